//! A client of the Kubernetes API: a user of a kubeconfig, and single calls.

use std::path::Path;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use serde_json::{Value, json};

/// Timeout of a call and of an event.
pub const TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    pub base: String,
    token: Option<String>,
}

/// The answer to a call.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
    /// Null if the body is no JSON.
    pub body: Value,
}

impl Answer {
    /// The body of an answer with this status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status, status, "{}", self.text);
        self.body
    }

    /// The message of a Status object with this status and reason.
    #[track_caller]
    pub fn refused(self, status: u16, reason: &str) -> String {
        let body = self.expect(status);
        assert_eq!(body["kind"], "Status", "{body}");
        assert_eq!((&body["status"], &body["code"]), (&json!("Failure"), &json!(status)), "{body}");
        assert_eq!(body["reason"].as_str().unwrap_or_default(), reason, "{body}");
        body["message"].as_str().unwrap().to_owned()
    }
}

impl Client {
    /// The user of a context.
    pub fn connect(kubeconfig: &Path, context: &str) -> Client {
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        let config: Value = serde_yaml::from_str(&text).unwrap();
        let named = |list: &str, name: &str| -> Value {
            let entries = config[list].as_array().unwrap();
            entries.iter().find(|entry| entry["name"] == name).unwrap_or_else(|| panic!("{list} lack {name}")).clone()
        };
        let context = named("contexts", context)["context"].clone();
        let cluster = named("clusters", context["cluster"].as_str().unwrap())["cluster"].clone();
        let user = named("users", context["user"].as_str().unwrap())["user"].clone();
        let decoded = |value: &Value| value.as_str().map(|text| STANDARD.decode(text).unwrap());
        // Connections are not reused: some tests close them.
        let mut http = reqwest::Client::builder().pool_max_idle_per_host(0).use_rustls_tls();
        if let Some(authority) = decoded(&cluster["certificate-authority-data"]) {
            http = http.add_root_certificate(reqwest::Certificate::from_pem(&authority).unwrap());
        }
        if let Some(certificate) = decoded(&user["client-certificate-data"]) {
            let key = decoded(&user["client-key-data"]).unwrap();
            http = http.identity(reqwest::Identity::from_pem(&[certificate, key].concat()).unwrap());
        }
        let base = cluster["server"].as_str().unwrap().to_owned();
        Client { http: http.build().unwrap(), base, token: user["token"].as_str().map(str::to_owned) }
    }

    /// The same cluster with another token, or without one.
    pub fn with_token(&self, token: Option<&str>) -> Client {
        Client { token: token.map(str::to_owned), ..self.clone() }
    }

    fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method.parse().unwrap(), format!("{}{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a call; the error is a connection without an answer.
    pub async fn try_call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer, reqwest::Error> {
        let mut request = self.request(method, path).timeout(TIMEOUT);
        if let Some(body) = body {
            let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
            request = request.header(CONTENT_TYPE, content_type).body(body.to_string());
        }
        let response = request.send().await?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await?;
        let body = serde_json::from_str(&text).unwrap_or_default();
        Ok(Answer { status, headers, text, body })
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let sent = self.try_call(method, path, body).await;
        sent.unwrap_or_else(|error| panic!("{method} {path}: {error:?}"))
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.call("GET", path, None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.call("POST", path, Some(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.call("PATCH", path, Some(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.call("DELETE", path, None).await
    }

    pub async fn delete_with(&self, path: &str, options: Value) -> Answer {
        self.call("DELETE", path, Some(&options)).await
    }

    /// Opens a watch; the path has all parameters.
    pub async fn watch(&self, path: &str) -> Watch {
        let response = self.request("GET", path).send().await.unwrap();
        assert_eq!(response.status().as_u16(), 200, "{path}");
        Watch { response, buffer: Vec::new() }
    }
}

/// An open watch.
pub struct Watch {
    response: reqwest::Response,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next event, or `None` at the end of the watch.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let piece = tokio::time::timeout(TIMEOUT, self.response.chunk()).await.expect("an event arrives in time");
            match piece.unwrap() {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None => {
                    assert!(self.buffer.is_empty(), "half an event: {:?}", String::from_utf8_lossy(&self.buffer));
                    return None;
                }
            }
        }
    }

    /// Type and name of the next event.
    pub async fn next_name(&mut self) -> (String, String) {
        let event = self.next().await.expect("the watch goes on");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["type"]), text(&event["object"]["metadata"]["name"]))
    }
}
