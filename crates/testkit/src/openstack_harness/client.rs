//! OpenStack client that does not use the driver under test: reads, creates and deletes objects of a cloud.

use std::path::Path;
use std::sync::Mutex;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

/// Client that is authenticated with the password of clouds.yaml.
pub struct OpenStackClient {
    http: reqwest::Client,
    login: Login,
    root: &'static str,
    token: Mutex<String>,
    catalog: Vec<Value>,
}

struct Login {
    url: String,
    body: Value,
}

impl OpenStackClient {
    /// All services are addressed below `root`, a path prefix under which the cloud answers too.
    pub async fn log_in(clouds_yaml: &Path, cloud: &str, root: &'static str) -> OpenStackClient {
        let text = std::fs::read_to_string(clouds_yaml).expect("clouds.yaml can be read");
        let file: Value = serde_yaml::from_str(&text).expect("clouds.yaml is YAML");
        let auth = &file["clouds"][cloud]["auth"];
        let domain = |key: &str| json!({"id": auth[key].as_str().unwrap_or("default")});
        let user = json!({
            "name": auth["username"], "password": auth["password"], "domain": domain("user_domain_id"),
        });
        let project = json!({"name": auth["project_name"], "domain": domain("project_domain_id")});
        let body = json!({"auth": {
            "identity": {"methods": ["password"], "password": {"user": user}}, "scope": {"project": project},
        }});
        let base = auth["auth_url"].as_str().unwrap_or_else(|| panic!("clouds.yaml has no auth_url for {cloud}"));
        let url = format!("{}/v3/auth/tokens", base.trim_end_matches('/').trim_end_matches("/v3"));
        let mut http = reqwest::Client::builder();
        if let Some(authority) = file["clouds"][cloud]["cacert"].as_str() {
            let authority = std::fs::read(authority).expect("cacert can be read");
            http = http.add_root_certificate(reqwest::Certificate::from_pem(&authority).expect("cacert is PEM"));
        }
        let http = http.build().expect("a client with an authority can be built");
        let login = Login { url: under_root(root, &url), body };
        let (token, catalog) = login.token(&http).await;
        OpenStackClient { http, login, root, token: Mutex::new(token), catalog }
    }

    fn endpoint(&self, service: &str) -> Option<String> {
        let types: &[&str] = match service {
            "volume" => &["block-storage", "volumev3"],
            other => &[other],
        };
        let entry = self.catalog.iter().find(|entry| types.iter().any(|kind| entry["type"] == *kind))?;
        let endpoint = entry["endpoints"].as_array()?.iter().find(|endpoint| endpoint["interface"] == "public")?;
        Some(under_root(self.root, endpoint["url"].as_str()?.trim_end_matches('/')))
    }

    /// The current token, for logins with a token.
    pub fn token(&self) -> String {
        self.token.lock().expect("the lock is not poisoned").clone()
    }

    pub fn has(&self, service: &str) -> bool {
        self.endpoint(service).is_some()
    }

    /// Status and body of the reply; a body that is not JSON is null.
    pub async fn call(&self, method: Method, service: &str, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let endpoint = self.endpoint(service).unwrap_or_else(|| panic!("the cloud has no {service}"));
        let version = match service {
            "network" => "/v2.0",
            "image" => "/v2",
            _ => "",
        };
        let url = format!("{endpoint}{version}{path}");
        loop {
            let token = self.token.lock().expect("the lock is not poisoned").clone();
            let mut request = self.http.request(method.clone(), &url).header("x-auth-token", token);
            if let Some(body) = &body {
                request = request.json(body);
            }
            let answer = request.send().await.expect("the cloud answers");
            match answer.status() {
                // A test may have revoked all tokens, or made the cloud busy.
                StatusCode::UNAUTHORIZED => {
                    let (token, _) = self.login.token(&self.http).await;
                    *self.token.lock().expect("the lock is not poisoned") = token;
                }
                StatusCode::TOO_MANY_REQUESTS | StatusCode::PAYLOAD_TOO_LARGE => {}
                status => return (status, answer.json().await.unwrap_or(Value::Null)),
            }
        }
    }

    /// The body at a path; null if it does not exist.
    pub async fn get(&self, service: &str, path: &str) -> Value {
        let (status, body) = self.call(Method::GET, service, path, None).await;
        assert!(status.is_success() || status == StatusCode::NOT_FOUND, "{path}: {status} {body}");
        if status.is_success() { body } else { Value::Null }
    }

    pub async fn server(&self, id: &str) -> Value {
        self.get("compute", &format!("/servers/{id}")).await["server"].take()
    }

    /// The servers of a provider.
    pub async fn servers_of(&self, provider: &str) -> Vec<Value> {
        let mut listed = self.get("compute", "/servers/detail").await;
        let Value::Array(servers) = listed["servers"].take() else { panic!("no list of servers: {listed}") };
        servers.into_iter().filter(|server| server["metadata"]["nodepool_provider_name"] == provider).collect()
    }

    pub async fn delete_server(&self, id: &str) {
        self.call(Method::DELETE, "compute", &format!("/servers/{id}"), None).await;
    }

    /// The id of the entry with this name in a list.
    pub async fn id_of(&self, service: &str, list: &str, name: &str) -> String {
        let listed = self.get(service, &format!("/{list}")).await;
        let all = listed[list].as_array().unwrap_or_else(|| panic!("no list of {list}: {listed}"));
        let found = all.iter().find(|one| one["name"] == name).and_then(|one| one["id"].as_str());
        found.unwrap_or_else(|| panic!("the cloud has no {name} among its {list}")).to_owned()
    }

    /// Number of floating IPs with this address.
    pub async fn floating_ips_at(&self, address: &str) -> usize {
        let listed = self.get("network", &format!("/floatingips?floating_ip_address={address}")).await;
        listed["floatingips"].as_array().map_or(0, Vec::len)
    }

    /// Uploads an image, which is active at once. Returns its id.
    pub async fn upload_image(&self, name: &str) -> String {
        let record = json!({"name": name, "disk_format": "raw", "container_format": "bare"});
        let (status, image) = self.call(Method::POST, "image", "/images", Some(record)).await;
        assert_eq!(status, StatusCode::CREATED, "{image}");
        let id = image["id"].as_str().expect("an image has an id").to_owned();
        let endpoint = self.endpoint("image").expect("the image was created by this service");
        let token = self.token.lock().expect("the lock is not poisoned").clone();
        let sending = self.http.put(format!("{endpoint}/v2/images/{id}/file")).header("x-auth-token", token);
        let sent = sending.header("content-type", "application/octet-stream").body("not much of an image").send().await;
        assert!(sent.expect("the cloud answers").status().is_success(), "cannot upload image {name}");
        id
    }

    pub async fn delete_image(&self, id: &str) {
        self.call(Method::DELETE, "image", &format!("/images/{id}"), None).await;
    }
}

impl Login {
    /// A token and its catalog.
    async fn token(&self, http: &reqwest::Client) -> (String, Vec<Value>) {
        let answer = http.post(&self.url).json(&self.body).send().await.expect("Keystone answers");
        assert_eq!(answer.status(), StatusCode::CREATED, "the test cannot log in at {}", self.url);
        let token = answer.headers()["x-subject-token"].to_str().expect("a token is ASCII").to_owned();
        let body: Value = answer.json().await.expect("a token is JSON");
        (token, body["token"]["catalog"].as_array().expect("a token has a catalog").clone())
    }
}

/// The same URL below another root.
fn under_root(root: &str, url: &str) -> String {
    let host = url.find("://").map_or(0, |scheme| scheme + 3);
    let end = url[host..].find('/').map_or(url.len(), |path| host + path);
    format!("{}{root}{}", &url[..end], &url[end..])
}
