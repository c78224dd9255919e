//! Cloud client of the tests: endpoints, a token, and the objects to delete at clean-up.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use testkit::wait;

/// A real cloud on a busy machine is slow.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(300);
/// Prefix of all names, so that leaked objects can be attributed.
pub const PREFIX: &str = "nodepool-contract";

pub struct Cloud {
    pub http: reqwest::Client,
    pub auth_url: String,
    /// Body of the token request.
    pub auth: Value,
    pub token: String,
    /// Public endpoints by service type.
    pub endpoints: BTreeMap<String, String>,
    /// Created objects: service and path to delete.
    created: Mutex<Vec<(&'static str, String)>>,
}

pub struct Answer {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
    pub body: Value,
}

impl Answer {
    pub async fn of(request: RequestBuilder) -> Self {
        let answer = request.send().await.expect("the cloud replies");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.expect("the reply is complete");
        let body = serde_json::from_str(&text).unwrap_or_default();
        Self { status, headers, text, body }
    }

    /// Panics if the status differs.
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// The top-level entry that contains the rest of the body.
    pub fn get(&self, key: &str) -> &Value {
        self.body.get(key).unwrap_or_else(|| panic!("no {key} in {}", self.text))
    }
}

impl Cloud {
    pub async fn connect(clouds_yaml: &Path, name: &str) -> Self {
        let text = std::fs::read_to_string(clouds_yaml).expect("clouds.yaml is readable");
        let clouds: Value = serde_yaml::from_str(&text).expect("clouds.yaml is YAML");
        let settings = &clouds["clouds"][name];
        let credentials = &settings["auth"];
        let auth_url = credentials["auth_url"].as_str().unwrap_or_else(|| panic!("{name} has no auth_url"));
        let auth_url = format!("{}/v3", auth_url.trim_end_matches('/').trim_end_matches("/v3"));
        let auth = identity(credentials);
        let http =
            reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(CLOUD_TIMEOUT).build();
        let http = http.expect("an HTTP client with these settings can be built");
        let answer = Answer::of(http.post(format!("{auth_url}/auth/tokens")).json(&auth)).await.expect(201);
        let token = answer.headers["x-subject-token"].to_str().expect("a token is text").to_owned();
        let endpoints = endpoints(&answer.get("token")["catalog"], settings["region_name"].as_str());
        Self { http, auth_url, auth, token, endpoints, created: Mutex::default() }
    }

    pub fn has(&self, service: &str) -> bool {
        self.endpoints.contains_key(service)
    }

    pub fn url(&self, service: &str, path: &str) -> String {
        let endpoint = self.endpoints.get(service).unwrap_or_else(|| panic!("no service {service} in the catalog"));
        let version = match service {
            "network" => "/v2.0",
            "image" => "/v2",
            _ => "",
        };
        format!("{}{version}{path}", endpoint.trim_end_matches('/').trim_end_matches(version))
    }

    pub fn request(&self, method: Method, service: &str, path: &str) -> RequestBuilder {
        self.http.request(method, self.url(service, path)).header("X-Auth-Token", &self.token)
    }

    pub async fn get(&self, service: &str, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, service, path)).await
    }

    /// Sends a GET with a microversion that all clouds with production nodes support.
    pub async fn get_with_microversion(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, "compute", path).header("OpenStack-API-Version", MICROVERSION)).await
    }

    pub async fn post(&self, service: &str, path: &str, body: &Value) -> Answer {
        Answer::of(self.request(Method::POST, service, path).json(body)).await
    }

    pub async fn delete(&self, service: &str, path: &str) -> Answer {
        Answer::of(self.request(Method::DELETE, service, path)).await
    }

    /// Registers an object for deletion at clean-up, whether or not the case passes.
    pub fn delete_at_clean_up(&self, service: &'static str, path: String) {
        self.created.lock().unwrap().push((service, path));
    }

    /// Valid create request. Each case changes the part that it tests.
    pub async fn server_request(&self, name: &str) -> Value {
        let (flavor, image) = (self.flavor(&setting("FLAVOR", "tiny")).await, self.image().await);
        json!({
            "name": format!("{PREFIX}-{name}"), "imageRef": image, "flavorRef": flavor["id"], "min_count": 1,
            "max_count": 1, "metadata": {"nodepool_node_id": name}, "networks": [{"uuid": self.network().await}],
        })
    }

    /// Creates a server and registers it for deletion.
    pub async fn create(&self, body: &Value) -> String {
        let answer = self.post("compute", "/servers", &json!({"server": body})).await.expect(202);
        let id = answer.get("server")["id"].as_str().expect("a new server has an id").to_owned();
        self.delete_at_clean_up("compute", format!("/servers/{id}"));
        id
    }

    pub async fn server(&self, id: &str) -> Value {
        self.get("compute", &format!("/servers/{id}")).await.expect(200).get("server").clone()
    }

    /// Waits until a server is no longer in BUILD.
    pub async fn built(&self, id: &str) -> Value {
        wait::until_some("the server to be built", CLOUD_TIMEOUT, async || {
            Some(self.server(id).await).filter(|server| server["status"] != "BUILD")
        })
        .await
    }

    pub async fn active(&self, id: &str) -> Value {
        let server = self.built(id).await;
        assert_eq!(server["status"], "ACTIVE", "{server}");
        server
    }

    /// Deletes a server and waits until it does not exist.
    pub async fn remove(&self, id: &str) {
        let path = format!("/servers/{id}");
        self.delete("compute", &path).await.expect(204);
        wait::until("the server to be deleted", CLOUD_TIMEOUT, async || self.get("compute", &path).await.status == 404)
            .await;
    }

    pub async fn flavor(&self, name: &str) -> Value {
        let answer = self.get("compute", "/flavors/detail").await.expect(200);
        let flavors = answer.get("flavors").as_array().expect("flavors are a list");
        let found = flavors.iter().find(|flavor| flavor["name"] == name);
        found.unwrap_or_else(|| panic!("no flavor {name}")).clone()
    }

    pub async fn image(&self) -> String {
        let name = setting("IMAGE", "raw-1M");
        let answer = self.get("image", &format!("/images?name={name}")).await.expect(200);
        answer.get("images")[0]["id"].as_str().unwrap_or_else(|| panic!("no image {name}")).to_owned()
    }

    pub async fn network(&self) -> String {
        let name = setting("NETWORK", "private");
        let answer = self.get("network", &format!("/networks?name={name}")).await.expect(200);
        answer.get("networks")[0]["id"].as_str().unwrap_or_else(|| panic!("no network {name}")).to_owned()
    }

    /// Whether servers obey their metadata (`loopback:spawn_error` and so on), as those of the simulated cloud do. A
    /// cloud with the flavor `broken` is such a cloud.
    pub async fn honors_metadata(&self) -> bool {
        let answer = self.get("compute", "/flavors").await.expect(200);
        answer.get("flavors").as_array().into_iter().flatten().any(|flavor| flavor["name"] == "broken")
    }

    pub async fn clean_up(&self) {
        let created = std::mem::take(&mut *self.created.lock().unwrap());
        for (service, path) in created.iter().rev() {
            self.delete(service, path).await;
        }
        for (service, path) in created {
            wait::until(&format!("{service}{path} to be deleted"), CLOUD_TIMEOUT, async || {
                self.get(service, &path).await.status == 404
            })
            .await;
        }
    }
}

/// The newest microversion that our drivers request.
const MICROVERSION: &str = "compute 2.79";

/// Name of a flavor, image or network. `NODEPOOL_TEST_OS_FLAVOR` and so on name its counterpart in another cloud.
fn setting(name: &str, default: &str) -> String {
    std::env::var(format!("NODEPOOL_TEST_OS_{name}")).unwrap_or_else(|_| default.to_owned())
}

fn identity(credentials: &Value) -> Value {
    if credentials.get("application_credential_id").is_some() {
        let credential = json!({
            "id": credentials["application_credential_id"], "secret": credentials["application_credential_secret"],
        });
        let identity = json!({"methods": ["application_credential"], "application_credential": credential});
        return json!({"auth": {"identity": identity}});
    }
    let domain = |kind: &str| match credentials.get(format!("{kind}_domain_id")) {
        Some(id) => json!({"id": id}),
        None => json!({"name": credentials[format!("{kind}_domain_name")].as_str().unwrap_or("Default")}),
    };
    let user = json!({"name": credentials["username"], "domain": domain("user"), "password": credentials["password"]});
    let project = json!({"name": credentials["project_name"], "domain": domain("project")});
    let identity = json!({"methods": ["password"], "password": {"user": user}});
    json!({"auth": {"identity": identity, "scope": {"project": project}}})
}

fn endpoints(catalog: &Value, region: Option<&str>) -> BTreeMap<String, String> {
    let mut endpoints = BTreeMap::new();
    for service in catalog.as_array().expect("a catalog is a list") {
        let all = service["endpoints"].as_array().into_iter().flatten();
        let mut public = all.filter(|endpoint| {
            endpoint["interface"] == "public" && region.is_none_or(|region| endpoint["region"] == region)
        });
        if let (Some(kind), Some(endpoint)) = (service["type"].as_str(), public.next()) {
            let kind = if kind == "block-storage" { "volumev3" } else { kind };
            endpoints.insert(kind.to_owned(), endpoint["url"].as_str().expect("an endpoint has an address").to_owned());
        }
    }
    endpoints
}
