//! OpenStack clouds for tests: always the simulated one, and a real one if the environment names one.

pub mod client;
pub mod harness;
pub mod in_process_driver;

use std::path::{Path, PathBuf};

use crate::clouds::simulated_openstack::SimulatedOpenStack;
use crate::real::tls;
use client::OpenStackClient;
use serde_json::{Value, json};

/// A cloud with the names of its flavor, image and network.
pub struct TestCloud {
    pub clouds_yaml: PathBuf,
    /// The key in clouds.yaml.
    pub name: String,
    /// A small flavor, an image and a network with IPv4.
    pub flavor: String,
    pub image: String,
    pub network: String,
    simulation: Option<SimulatedOpenStack>,
}

impl TestCloud {
    /// A simulated cloud with these flags, whose servers boot quickly by default.
    pub async fn simulated(flags: &[&str]) -> TestCloud {
        Self::of(SimulatedOpenStack::start(&quick(flags)).await)
    }

    /// A simulated cloud with TLS, whose certificate is signed by the test authority.
    pub async fn simulated_with_tls(flags: &[&str]) -> TestCloud {
        let (certificate, key) = (tls::file("server.pem"), tls::file("server.key"));
        let own = ["--tls-cert", certificate.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
        let flags = [&quick(flags)[..], &own].concat();
        let cloud = Self::of(SimulatedOpenStack::start_with_authority(&flags, &tls::text("ca.pem")).await);
        cloud.set("cacert", json!(tls::file("ca.pem")));
        cloud
    }

    fn of(simulation: SimulatedOpenStack) -> TestCloud {
        TestCloud {
            clouds_yaml: simulation.clouds_yaml(),
            name: "simulated".to_owned(),
            flavor: "tiny".to_owned(),
            image: "raw-1M".to_owned(),
            network: "private".to_owned(),
            simulation: Some(simulation),
        }
    }

    /// The cloud that OS_CLIENT_CONFIG_FILE and OS_CLOUD name; `None` without both.
    pub fn real() -> Option<TestCloud> {
        let named = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
        let or = |variable: &str, usual: &str| named(variable).unwrap_or_else(|| usual.to_owned());
        Some(TestCloud {
            clouds_yaml: named("OS_CLIENT_CONFIG_FILE")?.into(),
            name: named("OS_CLOUD")?,
            flavor: or("NODEPOOL_TEST_OS_FLAVOR", "tiny"),
            image: or("NODEPOOL_TEST_OS_IMAGE", "raw-1M"),
            network: or("NODEPOOL_TEST_OS_NETWORK", "private"),
            simulation: None,
        })
    }

    /// Another cloud of the same clouds.yaml, if it has one of this name.
    pub fn sibling(&self, name: &str) -> Option<TestCloud> {
        let text = std::fs::read_to_string(&self.clouds_yaml).expect("clouds.yaml can be read");
        let file: Value = serde_yaml::from_str(&text).expect("clouds.yaml is YAML");
        file["clouds"].get(name)?;
        let TestCloud { clouds_yaml, flavor, image, network, .. } = self;
        let (clouds_yaml, flavor) = (clouds_yaml.clone(), flavor.clone());
        let (image, network, name) = (image.clone(), network.clone(), name.to_owned());
        Some(TestCloud { clouds_yaml, name, flavor, image, network, simulation: None })
    }

    /// Writes a setting into the cloud's own clouds.yaml.
    pub fn set(&self, key: &str, value: Value) {
        self.write(|clouds| clouds[&self.name][key] = value);
    }

    /// Adds another cloud to its clouds.yaml.
    pub fn add(&self, name: &str, cloud: Value) {
        self.write(|clouds| clouds[name] = cloud);
    }

    fn write(&self, change: impl FnOnce(&mut Value)) {
        assert!(!self.is_real(), "the clouds.yaml of a real cloud is not changed");
        self.write_to(&self.clouds_yaml, |file| change(&mut file["clouds"]));
    }

    /// Replaces the cloud's clouds.yaml with a changed copy in this folder.
    pub fn copy_clouds_yaml(&mut self, folder: &Path, change: impl FnOnce(&mut Value)) {
        let copy = folder.join("clouds.yaml");
        self.write_to(&copy, change);
        self.clouds_yaml = copy;
    }

    fn write_to(&self, path: &Path, change: impl FnOnce(&mut Value)) {
        let text = std::fs::read_to_string(&self.clouds_yaml).expect("clouds.yaml can be read");
        let mut file: Value = serde_yaml::from_str(&text).expect("clouds.yaml is YAML");
        change(&mut file);
        std::fs::write(path, file.to_string()).expect("the test's clouds.yaml is writable");
    }

    pub async fn client(&self) -> OpenStackClient {
        // The simulated cloud serves redirected requests below /moved. Faults for other paths do not affect this client
        // there.
        let root = if self.is_real() { "" } else { "/moved" };
        OpenStackClient::log_in(&self.clouds_yaml, &self.name, root).await
    }

    pub fn is_real(&self) -> bool {
        self.simulation.is_none()
    }

    /// The simulated cloud, with its knobs and counters.
    pub fn simulation(&self) -> &SimulatedOpenStack {
        self.simulation.as_ref().expect("only a simulated cloud has knobs")
    }

    /// A provider of one pool with the label `a`: the small flavor on the network, without host key checks.
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

fn quick<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    let quick = ["--boot-time-s", "0.2", "--delete-time-s", "0.1"];
    let missing = quick.chunks(2).filter(|pair| !flags.contains(&pair[0])).flatten().copied();
    missing.chain(flags.iter().copied()).collect()
}

/// The clouds of a case: a simulated one with these flags, and the real one, if any.
pub async fn clouds(flags: &[&str]) -> Vec<TestCloud> {
    let mut clouds = vec![TestCloud::simulated(flags).await];
    clouds.extend(TestCloud::real());
    clouds
}
