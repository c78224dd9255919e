//! A cloud as the cases see it: its endpoints, a token, and what they made in it.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::support::wait;

/// A real cloud on a busy machine takes its time.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(300);
/// Names begin with it, so that whoever finds something knows where it came from.
pub const PREFIX: &str = "nodepool-contract";

pub struct Cloud {
    pub http: reqwest::Client,
    pub auth_url: String,
    /// What is posted for a token.
    pub auth: Value,
    pub token: String,
    /// Public endpoints by type.
    pub endpoints: BTreeMap<String, String>,
    /// What was made: the service and the path to delete.
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
        let answer = request.send().await.expect("the cloud answers");
        let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
        let text = answer.text().await.expect("the answer is complete");
        let body = serde_json::from_str(&text).unwrap_or_default();
        Self { status, headers, text, body }
    }

    /// Panics when the status is another.
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }

    /// The entry of the body that everything is in.
    pub fn get(&self, key: &str) -> &Value {
        self.body.get(key).unwrap_or_else(|| panic!("there is no {key} in {}", self.text))
    }
}

impl Cloud {
    pub async fn connect(clouds_yaml: &Path, name: &str) -> Self {
        let text = std::fs::read_to_string(clouds_yaml).expect("clouds.yaml is readable");
        let clouds: Value = serde_yaml::from_str(&text).expect("clouds.yaml is YAML");
        let settings = &clouds["clouds"][name];
        let given = &settings["auth"];
        let auth_url = given["auth_url"].as_str().unwrap_or_else(|| panic!("{name} has no auth_url"));
        let auth_url = format!("{}/v3", auth_url.trim_end_matches('/').trim_end_matches("/v3"));
        let auth = identity(given);
        let http =
            reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).timeout(CLOUD_TIMEOUT).build();
        let http = http.expect("a client without settings can be built");
        let answer = Answer::of(http.post(format!("{auth_url}/auth/tokens")).json(&auth)).await.expect(201);
        let token = answer.headers["x-subject-token"].to_str().expect("a token is text").to_owned();
        let endpoints = endpoints(&answer.get("token")["catalog"], settings["region_name"].as_str());
        Self { http, auth_url, auth, token, endpoints, created: Mutex::default() }
    }

    pub fn has(&self, service: &str) -> bool {
        self.endpoints.contains_key(service)
    }

    pub fn url(&self, service: &str, path: &str) -> String {
        let endpoint = self.endpoints.get(service).unwrap_or_else(|| panic!("there is no service {service}"));
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

    /// With the newest microversion that all clouds have on which nodes run today.
    pub async fn get_with_microversion(&self, path: &str) -> Answer {
        Answer::of(self.request(Method::GET, "compute", path).header("OpenStack-API-Version", MICROVERSION)).await
    }

    pub async fn post(&self, service: &str, path: &str, body: &Value) -> Answer {
        Answer::of(self.request(Method::POST, service, path).json(body)).await
    }

    pub async fn delete(&self, service: &str, path: &str) -> Answer {
        Answer::of(self.request(Method::DELETE, service, path)).await
    }

    /// Has something deleted in the end, whatever becomes of the case.
    pub fn delete_at_clean_up(&self, service: &'static str, path: String) {
        self.created.lock().unwrap().push((service, path));
    }

    /// What a server of the cases is made of; a case changes what it is about.
    pub async fn server_request(&self, name: &str) -> Value {
        let (flavor, image) = (self.flavor(&setting("FLAVOR", "tiny")).await, self.image().await);
        json!({
            "name": format!("{PREFIX}-{name}"), "imageRef": image, "flavorRef": flavor["id"], "min_count": 1,
            "max_count": 1, "metadata": {"nodepool_node_id": name}, "networks": [{"uuid": self.network().await}],
        })
    }

    /// Posts an order, and has the server deleted in the end.
    pub async fn create(&self, order: &Value) -> String {
        let answer = self.post("compute", "/servers", &json!({"server": order})).await.expect(202);
        let id = answer.get("server")["id"].as_str().expect("a new server has an id").to_owned();
        self.delete_at_clean_up("compute", format!("/servers/{id}"));
        id
    }

    pub async fn server(&self, id: &str) -> Value {
        self.get("compute", &format!("/servers/{id}")).await.expect(200).get("server").clone()
    }

    /// Waits until a server has left BUILD.
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

    /// Deletes a server and waits until it is gone.
    pub async fn remove(&self, id: &str) {
        let path = format!("/servers/{id}");
        self.delete("compute", &path).await.expect(204);
        wait::until("the server to be gone", CLOUD_TIMEOUT, async || self.get("compute", &path).await.status == 404)
            .await;
    }

    pub async fn flavor(&self, name: &str) -> Value {
        let answer = self.get("compute", "/flavors/detail").await.expect(200);
        let flavors = answer.get("flavors").as_array().expect("flavors are a list");
        let found = flavors.iter().find(|flavor| flavor["name"] == name);
        found.unwrap_or_else(|| panic!("there is no flavor {name}")).clone()
    }

    pub async fn image(&self) -> String {
        let name = setting("IMAGE", "raw-1M");
        let answer = self.get("image", &format!("/images?name={name}")).await.expect(200);
        answer.get("images")[0]["id"].as_str().unwrap_or_else(|| panic!("there is no image {name}")).to_owned()
    }

    pub async fn network(&self) -> String {
        let name = setting("NETWORK", "private");
        let answer = self.get("network", &format!("/networks?name={name}")).await.expect(200);
        answer.get("networks")[0]["id"].as_str().unwrap_or_else(|| panic!("there is no network {name}")).to_owned()
    }

    /// Whether servers do what their metadata says (`loopback:spawn_error` and so on), as the simulated ones do.
    pub async fn honors_metadata(&self) -> bool {
        let answer = self.get("compute", "/flavors").await.expect(200);
        answer.get("flavors").as_array().into_iter().flatten().any(|flavor| flavor["name"] == "broken")
    }

    pub async fn clean_up(&self) {
        let made = std::mem::take(&mut *self.created.lock().unwrap());
        for (service, path) in made.iter().rev() {
            self.delete(service, path).await;
        }
        for (service, path) in made {
            wait::until(&format!("{service}{path} to be gone"), CLOUD_TIMEOUT, async || {
                self.get(service, &path).await.status == 404
            })
            .await;
        }
    }
}

/// What the newest of our drivers asks for at most.
const MICROVERSION: &str = "compute 2.79";

/// What stands for a thing in another cloud: `NODEPOOL_TEST_OS_FLAVOR` and so on.
fn setting(name: &str, otherwise: &str) -> String {
    std::env::var(format!("NODEPOOL_TEST_OS_{name}")).unwrap_or_else(|_| otherwise.to_owned())
}

fn identity(given: &Value) -> Value {
    if given.get("application_credential_id").is_some() {
        let credential = json!({
            "id": given["application_credential_id"], "secret": given["application_credential_secret"],
        });
        let identity = json!({"methods": ["application_credential"], "application_credential": credential});
        return json!({"auth": {"identity": identity}});
    }
    let domain = |kind: &str| match given.get(format!("{kind}_domain_id")) {
        Some(id) => json!({"id": id}),
        None => json!({"name": given[format!("{kind}_domain_name")].as_str().unwrap_or("Default")}),
    };
    let user = json!({"name": given["username"], "domain": domain("user"), "password": given["password"]});
    let project = json!({"name": given["project_name"], "domain": domain("project")});
    let identity = json!({"methods": ["password"], "password": {"user": user}});
    json!({"auth": {"identity": identity, "scope": {"project": project}}})
}

fn endpoints(catalog: &Value, region: Option<&str>) -> BTreeMap<String, String> {
    let mut endpoints = BTreeMap::new();
    for service in catalog.as_array().expect("a catalogue is a list") {
        let of_service = service["endpoints"].as_array().into_iter().flatten();
        let mut public = of_service.filter(|endpoint| {
            endpoint["interface"] == "public" && region.is_none_or(|region| endpoint["region"] == region)
        });
        if let (Some(kind), Some(endpoint)) = (service["type"].as_str(), public.next()) {
            let kind = if kind == "block-storage" { "volumev3" } else { kind };
            endpoints.insert(kind.to_owned(), endpoint["url"].as_str().expect("an endpoint has an address").to_owned());
        }
    }
    endpoints
}
