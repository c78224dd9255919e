//! OpenStack clouds to test against: the simulated one always, and a real one where the environment names one.
#![allow(dead_code)] // Each test binary uses a part of it.

pub mod client;
pub mod roof;
pub mod scene;

use std::path::PathBuf;

use serde_json::{Value, json};

use client::Client;

use crate::support::real::simulated_openstack::SimulatedOpenStack;

/// A cloud, and what it is known to have.
pub struct Cloud {
    pub clouds_yaml: PathBuf,
    /// The key in clouds.yaml.
    pub name: String,
    /// A small flavor, an image and a network with IPv4.
    pub flavor: String,
    pub image: String,
    pub network: String,
    simulation: Option<SimulatedOpenStack>,
}

impl Cloud {
    /// A simulated cloud with these flags, whose servers boot quickly unless they say otherwise.
    pub async fn simulated(flags: &[&str]) -> Cloud {
        let quick = ["--boot-time-s", "0.2", "--delete-time-s", "0.1"];
        let given = |flag: &str| flags.contains(&flag);
        let quick = quick.chunks(2).filter(|pair| !given(pair[0])).flatten().copied();
        let simulation = SimulatedOpenStack::start(&quick.chain(flags.iter().copied()).collect::<Vec<_>>()).await;
        Cloud {
            clouds_yaml: simulation.clouds_yaml(),
            name: "simulated".to_owned(),
            flavor: "tiny".to_owned(),
            image: "raw-1M".to_owned(),
            network: "private".to_owned(),
            simulation: Some(simulation),
        }
    }

    /// The cloud that OS_CLIENT_CONFIG_FILE and OS_CLOUD name; `None` without both.
    pub fn real() -> Option<Cloud> {
        let named = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
        let or = |variable: &str, usual: &str| named(variable).unwrap_or_else(|| usual.to_owned());
        Some(Cloud {
            clouds_yaml: named("OS_CLIENT_CONFIG_FILE")?.into(),
            name: named("OS_CLOUD")?,
            flavor: or("NODEPOOL_TEST_OS_FLAVOR", "tiny"),
            image: or("NODEPOOL_TEST_OS_IMAGE", "raw-1M"),
            network: or("NODEPOOL_TEST_OS_NETWORK", "private"),
            simulation: None,
        })
    }

    /// Another cloud of the same clouds.yaml, where there is one of that name.
    pub fn sibling(&self, name: &str) -> Option<Cloud> {
        let text = std::fs::read_to_string(&self.clouds_yaml).expect("clouds.yaml can be read");
        let file: Value = serde_yaml::from_str(&text).expect("clouds.yaml is YAML");
        file["clouds"].get(name)?;
        let Cloud { clouds_yaml, flavor, image, network, .. } = self;
        let (clouds_yaml, flavor) = (clouds_yaml.clone(), flavor.clone());
        let (image, network, name) = (image.clone(), network.clone(), name.to_owned());
        Some(Cloud { clouds_yaml, name, flavor, image, network, simulation: None })
    }

    /// Writes a setting into the cloud's own clouds.yaml.
    pub fn set(&self, key: &str, value: Value) {
        assert!(!self.is_real(), "nobody's own clouds.yaml is written to");
        let text = std::fs::read_to_string(&self.clouds_yaml).expect("clouds.yaml can be read");
        let mut file: Value = serde_yaml::from_str(&text).expect("clouds.yaml is YAML");
        file["clouds"][&self.name][key] = value;
        std::fs::write(&self.clouds_yaml, file.to_string()).expect("the simulated cloud's clouds.yaml is ours");
    }

    pub async fn client(&self) -> Client {
        // There the simulated cloud answers what it has redirected, and faults of paths that begin otherwise do not hit.
        let root = if self.is_real() { "" } else { "/moved" };
        Client::log_in(&self.clouds_yaml, &self.name, root).await
    }

    pub fn is_real(&self) -> bool {
        self.simulation.is_none()
    }

    /// Knobs and counters.
    pub fn simulation(&self) -> &SimulatedOpenStack {
        self.simulation.as_ref().expect("only a simulated cloud has knobs")
    }

    /// A provider of one pool with the label `a`: the small flavor on the network, taken as it comes.
    pub fn provider(&self, name: &str) -> Value {
        json!({
            "name": name, "driver": "openstack", "cloud": self.name, "port-cleanup-interval": 0,
            "cloud-images": [{"name": "image", "image-name": self.image, "username": "zuul"}],
            "pools": [{
                "name": "main", "host-key-checking": false, "auto-floating-ip": false, "networks": [self.network],
                "labels": [{"name": "a", "cloud-image": "image", "flavor-name": self.flavor}],
            }],
        })
    }
}

/// The clouds of a case: a simulated one with these flags, and the real one.
pub async fn clouds(flags: &[&str]) -> Vec<Cloud> {
    let mut clouds = vec![Cloud::simulated(flags).await];
    clouds.extend(Cloud::real());
    clouds
}
