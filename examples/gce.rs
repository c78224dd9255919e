//! A launcher with an out-of-tree driver: `gce`, a `SimpleAdapter` for clouds with the API of Google Compute Engine.
//! The driver reads the main keys of Nodepool's `gce` section. This file is a template for crates that depend on
//! `nodepool`.
//!
//! usage: `GCE_ENDPOINT=http://127.0.0.1:PORT GCE_TOKEN=… gce CONFIG`

use std::collections::BTreeMap;
use std::process::ExitCode;

use nodepool::actors::process::context::LauncherOptions;
use nodepool::actors::process::process::{DaemonOptions, Mode, run_launcher};
use nodepool::actors::provider::jobs::ProviderHandle;
use nodepool::actors::provider::providers::{ExtraDrivers, StartProvider};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::{LabelImage, LaunchConfig, LaunchLabel, Login};
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_driver::job::LaunchOrder;
use nodepool_driver::simple_adapter::{Simple, SimpleAdapter};
use nodepool_driver::state_machine::{InFlightLimit, REFRESH_INTERVAL, RateLimits, Spacing};
use nodepool_drivers::OpenDriver;
use nodepool_model::config::ProviderConfig;
use nodepool_model::config::diagnostics::Diagnostics;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use python_logging::{LineFormat, Verbosity};
use python_yaml::diagnostics::Diagnostic;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

struct Gce {
    endpoint: String,
    token: Option<String>,
    http: reqwest::Client,
    project: String,
    region: String,
    zone: String,
    launching: LaunchConfig,
    /// Machine type and source image of each label.
    labels: BTreeMap<String, (String, String)>,
}

impl Gce {
    fn open(section: &ProviderConfig, driver: &GceDriver) -> Result<Self, Vec<Diagnostic>> {
        let (mut diagnostics, node) = (Diagnostics::default(), &section.section);
        let mut text = |key| diagnostics.required(node, key, "a gce provider").unwrap_or_default();
        let (project, region, zone) = (text("project"), text("region"), text("zone"));
        let mut images = BTreeMap::new();
        for image in diagnostics.mappings(node, "cloud-images", "a cloud image") {
            let Some(name) = diagnostics.required(image, "name", "a cloud image") else { continue };
            let owner = diagnostics.or_default(image.text("image-project")).unwrap_or_else(|| project.clone());
            let source = match (
                diagnostics.or_default(image.text("image-id")),
                diagnostics.or_default(image.text("image-family")),
            ) {
                (Some(id), _) => id,
                (None, Some(family)) => format!("projects/{owner}/global/images/family/{family}"),
                (None, None) => {
                    diagnostics.error(
                        image.at,
                        format!("cloud image {name} names no image"),
                        "give image-id or image-family",
                    );
                    continue;
                }
            };
            let login = Login {
                username: diagnostics.or_default(image.text("username")),
                python_path: Some("auto".to_owned()),
                connection_type: Some("ssh".to_owned()),
                connection_port: 22,
                ..Login::default()
            };
            images.insert(name, (source, login));
        }
        let (mut labels, mut labels_by_pool) = (BTreeMap::new(), BTreeMap::new());
        for pool in section.pools.values() {
            let host_key_checking = pool.section.boolean("host-key-checking").unwrap_or(true);
            let mut pool_labels = BTreeMap::new();
            for label in diagnostics.mappings(&pool.section, "labels", "a gce label") {
                let mut text = |key| diagnostics.required(label, key, "a gce label");
                let (Some(name), Some(kind), Some(image)) = (text("name"), text("instance-type"), text("cloud-image"))
                else {
                    continue;
                };
                let Some((source, login)) = images.get(&image) else {
                    diagnostics.error(label.at, format!("cloud-image {image} is not defined"), "see cloud-images");
                    continue;
                };
                labels.insert(name.clone(), (kind, source.clone()));
                let label = LaunchLabel {
                    console_log: false,
                    need: Some(Resources::none().with("instances", 1.0)),
                    image: Some(LabelImage::Cloud(image)),
                    login: login.clone(),
                    host_key_checking,
                    unavailable: None,
                    backing: None,
                };
                pool_labels.insert(name.into(), label);
            }
            labels_by_pool.insert(pool.name.clone(), pool_labels);
        }
        let attempts = diagnostics.or_default(node.integer("launch-retries")).unwrap_or(3).clamp(1, 100) as u32;
        let boot_timeout = Seconds(diagnostics.or_default(node.integer("boot-timeout")).unwrap_or(60) as f64);
        diagnostics.items.retain(Diagnostic::is_error);
        if !diagnostics.items.is_empty() {
            return Err(diagnostics.items);
        }
        let (zones, resource_kinds) = (Vec::new(), Vec::new());
        let launching = LaunchConfig {
            attempts,
            timeout: Seconds(3600.0),
            boot_timeout,
            zones,
            resource_kinds,
            labels: labels_by_pool,
        };
        let (endpoint, token, http) = (driver.endpoint.clone(), driver.token.clone(), reqwest::Client::new());
        Ok(Self { endpoint, token, http, project, region, zone, launching, labels })
    }

    /// Sends one request below the project. Only this function classifies responses, by what the caller does next.
    async fn request(&self, method: Method, path: &str, body: Option<Value>) -> Result<Value, CloudError> {
        let url = format!("{}/compute/v1/projects/{}/{path}", self.endpoint, self.project);
        let mut request = self.http.request(method, url);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = &body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| failed(error.without_url().to_string()))?;
        let status = response.status();
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
        let answer: Value = response.json().await.map_err(|error| failed(error.without_url().to_string()))?;
        let reason = answer["error"]["errors"][0]["reason"].as_str().unwrap_or_default();
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        match status {
            status if status.is_success() => Ok(answer),
            StatusCode::NOT_FOUND => Err(CloudError::not_found(message)),
            StatusCode::TOO_MANY_REQUESTS => {
                Err(CloudError::Throttled { retry_after: Seconds(retry_after.unwrap_or(1.0)) })
            }
            StatusCode::FORBIDDEN if reason == "quotaExceeded" => Err(CloudError::Quota(message.to_owned())),
            status => Err(failed(format!("{status}: {message}"))),
        }
    }

    fn instances(&self) -> String {
        format!("zones/{}/instances", self.zone)
    }
}

fn failed(detail: String) -> CloudError {
    CloudError::Failed { kind: FailureKind::Unknown, detail }
}

impl SimpleAdapter for Gce {
    /// The name is the id, so repeating a creation whose response was lost finds the same instance.
    async fn create_instance(&self, order: &LaunchOrder) -> Result<ExternalId, CloudError> {
        let label = self.labels.get(order.label.as_str());
        let (kind, source) = label.ok_or_else(|| CloudError::Denied(format!("no label {}", order.label)))?;
        let items: Vec<Value> = order.metadata.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
        let body = json!({
            "name": order.hostname,
            "machineType": format!("zones/{}/machineTypes/{kind}", self.zone),
            "disks": [{"boot": true, "autoDelete": true, "initializeParams": {"sourceImage": source}}],
            "networkInterfaces": [{"network": "global/networks/default", "accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
            "metadata": {"items": items},
        });
        let id = ExternalId::text(order.hostname.clone());
        match self.request(Method::POST, &self.instances(), Some(body)).await {
            Ok(_) => Ok(id),
            Err(CloudError::Failed { detail, .. }) if detail.starts_with("409") => Ok(id),
            Err(error) => Err(error),
        }
    }

    async fn delete_instance(&self, id: &ExternalId) -> Result<(), CloudError> {
        self.request(Method::DELETE, &format!("{}/{id}", self.instances()), None).await.map(drop)
    }

    async fn list_instances(&self) -> Result<Vec<Instance>, CloudError> {
        let (mut instances, mut page) = (Vec::new(), String::new());
        loop {
            let answer = self.request(Method::GET, &format!("{}?pageToken={page}", self.instances()), None).await?;
            instances.extend(answer["items"].as_array().into_iter().flatten().filter_map(instance));
            match answer["nextPageToken"].as_str() {
                Some(next) if next != page => page = next.to_owned(),
                Some(_) => return Err(failed("the listing repeats a page token".to_owned())),
                None => return Ok(instances),
            }
        }
    }

    async fn quota_limits(&self) -> Result<Resources, CloudError> {
        let answer = self.request(Method::GET, &format!("regions/{}", self.region), None).await?;
        let mut limits = Resources::unlimited();
        for quota in answer["quotas"].as_array().into_iter().flatten() {
            if let (Some("INSTANCES"), Some(limit)) = (quota["metric"].as_str(), quota["limit"].as_f64()) {
                limits.set("instances", limit);
            }
        }
        Ok(limits)
    }

    fn launching(&self) -> LaunchConfig {
        self.launching.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::NONE,
            in_flight: InFlightLimit::Configurable,
            listing_delay: Seconds(1.0),
            refresh: Some(REFRESH_INTERVAL),
        }
    }
}

fn instance(item: &Value) -> Option<Instance> {
    let interface = &item["networkInterfaces"][0];
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let public = text(&interface["accessConfigs"][0]["natIP"]);
    let private = text(&interface["networkIP"]);
    let metadata = item["metadata"]["items"].as_array().into_iter().flatten();
    Some(Instance {
        interface_ip: public.clone().or_else(|| private.clone()),
        public_ipv4: public,
        private_ipv4: private,
        zone: text(&item["zone"]),
        metadata: metadata.filter_map(|entry| Some((text(&entry["key"])?, text(&entry["value"])?))).collect(),
        resources: Resources::none().with("instances", 1.0),
        state: match item["status"].as_str()? {
            "RUNNING" => InstanceState::Running,
            "PROVISIONING" | "STAGING" => InstanceState::Starting,
            "STOPPING" => InstanceState::Stopping,
            other => InstanceState::Failed(other.to_owned()),
        },
        ..Instance::new(ExternalId::text(item["name"].as_str()?))
    })
}

/// Opens the driver of a section.
pub struct GceDriver {
    pub endpoint: String,
    pub token: Option<String>,
}

impl ExtraDrivers for GceDriver {
    fn names(&self) -> Vec<&'static str> {
        vec!["gce"]
    }

    fn open(&self, section: &ProviderConfig, start: StartProvider) -> Result<ProviderHandle, Vec<Diagnostic>> {
        Ok(start.with(Simple::new(section.name.clone(), Gce::open(section, self)?)))
    }
}

fn main() -> ExitCode {
    let Some(config) = std::env::args().nth(1) else {
        eprintln!("usage: gce CONFIG");
        return ExitCode::from(2);
    };
    let daemon = DaemonOptions {
        mode: Mode::Foreground,
        log_config: None,
        log_format: LineFormat::Text,
        verbosity: Verbosity::Normal,
    };
    let endpoint = std::env::var("GCE_ENDPOINT").unwrap_or_else(|_| "https://compute.googleapis.com".to_owned());
    let drivers = GceDriver { endpoint, token: std::env::var("GCE_TOKEN").ok() };
    run_launcher(LauncherOptions::new(config), &daemon, Some(Box::new(drivers)))
}
