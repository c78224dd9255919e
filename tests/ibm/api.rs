//! The simulated IBM VPC as others use it, without a driver.

use reqwest::Client;
use serde_json::{Value, json};
use testkit::clouds::moto::BUCKET;
use testkit::clouds::simulated_ibm::{SimulatedIbm, ZONES};

pub struct Api<'a> {
    cloud: &'a SimulatedIbm,
    http: Client,
}

impl<'a> Api<'a> {
    pub fn new(cloud: &'a SimulatedIbm) -> Self {
        Self { cloud, http: Client::new() }
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}?version=2025-06-03&generation=2&limit=100", self.cloud.base())
    }

    pub async fn list(&self, path: &str, key: &str) -> Vec<Value> {
        let sent = self.http.get(self.url(path)).send().await.unwrap();
        let mut page: Value = sent.json().await.unwrap();
        serde_json::from_value(page[key].take()).unwrap()
    }

    pub async fn id_of(&self, path: &str, key: &str, name: &str) -> Value {
        let all = self.list(path, key).await;
        let found = all.iter().find(|one| one["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {all:?}"))["id"].clone()
    }

    async fn create(&self, path: &str, body: Value) {
        let url = format!("{}{path}?version=2025-06-03&generation=2", self.cloud.base());
        let sent = self.http.post(url).json(&body).send().await.unwrap();
        assert!(sent.status().is_success(), "{}", sent.text().await.unwrap());
    }

    /// A reference to a resource group that exists.
    pub async fn group(&self, name: &str) -> Value {
        json!({"id": self.id_of("/v2/resource_groups", "resources", name).await})
    }

    pub async fn create_group(&self, name: &str) -> Value {
        self.create("/v2/resource_groups", json!({"name": name})).await;
        self.group(name).await
    }

    pub async fn delete_group(&self, name: &str) {
        let group = self.group(name).await;
        let url = self.url(&format!("/v2/resource_groups/{}", group["id"].as_str().unwrap()));
        let sent = self.http.delete(url).send().await.unwrap();
        assert!(sent.status().is_success(), "{}", sent.text().await.unwrap());
    }

    /// Creates an instance that leaves its boot volume, which has this name.
    pub async fn instance(&self, name: &str, group: &Value, volume: &str) {
        let vpc = json!({"id": self.id_of("/v1/vpcs", "vpcs", "nodepool").await});
        let subnet = json!({"id": self.id_of("/v1/subnets", "subnets", "nodepool-1").await});
        let image = json!({"id": self.list("/v1/images", "images").await[0]["id"]});
        let volume = json!({"name": volume, "profile": {"name": "general-purpose"}, "resource_group": group});
        let boot = json!({"volume": volume, "delete_volume_on_instance_delete": false});
        let body = json!({
            "name": name, "profile": {"name": "bx2-2x8"}, "resource_group": group, "image": image, "vpc": vpc,
            "zone": {"name": ZONES[0]}, "primary_network_interface": {"subnet": subnet},
            "boot_volume_attachment": boot,
        });
        self.create("/v1/instances", body).await;
    }

    pub async fn floating_ip(&self, name: &str, group: &Value) {
        self.create("/v1/floating_ips", json!({"name": name, "resource_group": group, "zone": {"name": ZONES[0]}}))
            .await;
    }

    pub async fn image(&self, name: &str, group: &Value) {
        let body = json!({
            "name": name, "resource_group": group, "file": {"href": format!("cos://us-south/{BUCKET}/{name}.qcow2")},
            "operating_system": {"name": "debian-12-amd64"},
        });
        self.create("/v1/images", body).await;
    }

    /// The sorted names of the resources that may belong to nodes or uploads.
    pub async fn names(&self, path: &str, key: &str) -> Vec<String> {
        let all = self.list(path, key).await;
        let mut names: Vec<String> = all.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect();
        names.retain(|name| name.starts_with("np"));
        names.sort();
        names
    }
}
