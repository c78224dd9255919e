//! The drivers under test, each with a configuration and its simulated cloud.

use nodepool::actors::provider::providers::{self, ExtraDrivers};
use nodepool_drivers::{OpenDriver, kubernetes};
use nodepool_model::records::static_host::HostIdentity;
use serde_json::json;
use testkit::clouds::simulated_azure::SimulatedAzure;
use testkit::clouds::simulated_ec2::SimulatedEc2;
use testkit::clouds::simulated_gce::SimulatedGce;
use testkit::clouds::simulated_ibm::SimulatedIbm;
use testkit::clouds::simulated_kubernetes::{InProcessKubernetes, SimulatedKubernetes};
use testkit::clouds::simulated_openstack::SimulatedOpenStack;
use testkit::openstack_harness::in_process_driver::{InProcessDriver, open_driver};
use testkit::provider_harness::{ProviderHarness, provider_section};

pub struct Case {
    pub driver: &'static str,
    pub config: &'static str,
    /// A host in the configuration, for drivers with static hosts.
    pub host: Option<HostIdentity>,
    /// The simulated cloud with its flags, for drivers that need one.
    pub cloud: Option<(CloudKind, &'static [&'static str])>,
    /// The provider has capacity for two instances.
    pub is_limited: bool,
}

#[derive(Clone, Copy)]
pub enum CloudKind {
    OpenStack,
    Kubernetes,
    Azure,
    Ec2,
    Gce,
    Ibm,
}

pub enum SimulatedCloud {
    OpenStack(SimulatedOpenStack),
    Kubernetes(SimulatedKubernetes),
    Azure(SimulatedAzure),
    Ec2(SimulatedEc2),
    Gce(SimulatedGce),
    Ibm(SimulatedIbm),
}

impl SimulatedCloud {
    /// Limits the pages of lists to one entry.
    pub async fn limit_pages(&self) {
        match self {
            SimulatedCloud::OpenStack(cloud) => cloud.knobs(json!({"page_size": 1})).await,
            SimulatedCloud::Kubernetes(cluster) => cluster.knobs(json!({"page_limit": 1})).await,
            SimulatedCloud::Ec2(cloud) => cloud.knobs(json!({"page_limit": 1})).await,
            SimulatedCloud::Azure(cloud) => cloud.knobs(json!({"page": 1})).await,
            SimulatedCloud::Gce(cloud) => cloud.knobs(json!({"page": 1})).await,
            SimulatedCloud::Ibm(cloud) => cloud.knobs(json!({"page": 1})).await,
        }
    }
}

/// A running provider of a case, and its cloud if the cloud is a process.
pub struct ContractHarness {
    pub provider: ProviderHarness,
    pub cloud: Option<SimulatedCloud>,
}

impl Case {
    pub async fn cloud(&self) -> Option<SimulatedCloud> {
        Some(match self.cloud? {
            (CloudKind::OpenStack, flags) => SimulatedCloud::OpenStack(SimulatedOpenStack::start(flags).await),
            (CloudKind::Kubernetes, flags) => SimulatedCloud::Kubernetes(SimulatedKubernetes::start(flags).await),
            (CloudKind::Azure, flags) => SimulatedCloud::Azure(SimulatedAzure::start(flags).await),
            (CloudKind::Ec2, flags) => SimulatedCloud::Ec2(SimulatedEc2::start(flags).await),
            (CloudKind::Gce, flags) => SimulatedCloud::Gce(SimulatedGce::start(flags).await),
            (CloudKind::Ibm, flags) => {
                let cloud = SimulatedIbm::start(flags).await;
                // With the resource group, a launch begins with the creation of its instance.
                cloud.control("group?name=np_contract_main").await;
                SimulatedCloud::Ibm(cloud)
            }
        })
    }

    pub async fn start(&self) -> ContractHarness {
        let cloud = self.cloud().await;
        let drivers: Box<dyn ExtraDrivers> = match &cloud {
            None => return ContractHarness { provider: ProviderHarness::of_config(self.config), cloud },
            Some(SimulatedCloud::OpenStack(cloud)) => Box::new(InProcessDriver(cloud.clouds_yaml())),
            Some(SimulatedCloud::Kubernetes(cluster)) => Box::new(InProcessKubernetes(vec![cluster.kubeconfig()])),
            Some(SimulatedCloud::Azure(cloud)) => Box::new(cloud.driver()),
            Some(SimulatedCloud::Ec2(cloud)) => Box::new(cloud.driver()),
            Some(SimulatedCloud::Gce(cloud)) => Box::new(cloud.driver()),
            Some(SimulatedCloud::Ibm(cloud)) => Box::new(cloud.driver()),
        };
        let section = provider_section(self.config);
        let provider = ProviderHarness::new(|deps| providers::start(&section, deps, Some(&*drivers)).unwrap());
        ContractHarness { provider, cloud }
    }

    pub fn open<V: OpenDriver>(&self, cloud: Option<&SimulatedCloud>, visitor: V) -> V::Out {
        let section = provider_section(self.config);
        match cloud {
            None => nodepool_drivers::open(&section, visitor).unwrap(),
            Some(SimulatedCloud::OpenStack(cloud)) => {
                visitor.with(open_driver(&section, &cloud.clouds_yaml()).unwrap())
            }
            Some(SimulatedCloud::Kubernetes(cluster)) => {
                visitor.with(kubernetes::open_with(&section, vec![cluster.kubeconfig()]).unwrap())
            }
            Some(SimulatedCloud::Azure(cloud)) => visitor.with(cloud.open_driver(&section)),
            Some(SimulatedCloud::Ec2(cloud)) => visitor.with(cloud.open_driver(&section)),
            Some(SimulatedCloud::Gce(cloud)) => visitor.with(cloud.open_driver(&section)),
            Some(SimulatedCloud::Ibm(cloud)) => visitor.with(cloud.open_driver(&section)),
        }
    }
}

pub fn drivers_under_test() -> Vec<Case> {
    let fake = Case {
        driver: "fake",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: fake
    cloud: fake
    fake: {max-instances: 2}
    cloud-images: [{name: image, image-name: Fake Precise}]
    pools:
      - name: main
        labels: [{name: small, cloud-image: image, flavor-name: Fake Flavor}]
",
        host: None,
        cloud: None,
        is_limited: true,
    };
    let openstack = Case {
        driver: "openstack",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: openstack
    cloud: simulated
    cloud-images: [{name: raw-1M}]
    pools:
      - name: main
        auto-floating-ip: false
        labels: [{name: small, cloud-image: raw-1M, flavor-name: tiny}]
",
        host: None,
        cloud: Some((
            CloudKind::OpenStack,
            &["--boot-time-s", "0.1", "--delete-time-s", "0.1", "--quota-servers", "2"],
        )),
        is_limited: true,
    };
    let example = Case {
        driver: "example",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: example
    region: region
    project: project
    rate-limit: 100
    cloud-images: [{name: image}]
    pools:
      - name: main
        labels: [{name: small, cloud-image: image, instance-type: large}]
",
        host: None,
        cloud: None,
        is_limited: false,
    };
    let statics = Case {
        driver: "static",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: static
    pools:
      - name: main
        nodes:
          - {name: fake-host, labels: small, timeout: 1}
          - {name: 127.0.0.1, labels: small, connection-port: 1, timeout: 1}
",
        host: Some(HostIdentity { name: String::from("127.0.0.1"), username: String::from("zuul"), port: 1 }),
        cloud: None,
        is_limited: false,
    };
    let kubernetes = Case {
        driver: "kubernetes",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: kubernetes
    context: nodepool
    pools:
      - name: main
        labels: [{name: small, type: pod, image: busybox}]
",
        host: None,
        cloud: Some((CloudKind::Kubernetes, &["--pod-start-s", "0.1", "--namespace-delete-s", "0.1"])),
        is_limited: false,
    };
    let openshift = Case {
        driver: "openshift",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: openshift
    context: nodepool
    pools:
      - name: main
        labels: [{name: small, type: pod, image: busybox}]
",
        host: None,
        cloud: Some((
            CloudKind::Kubernetes,
            &["--openshift", "--max-projects", "2", "--pod-start-s", "0.1", "--namespace-delete-s", "0.1"],
        )),
        is_limited: true,
    };
    let openshiftpods = Case {
        driver: "openshiftpods",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: openshiftpods
    context: nodepool
    pools:
      - name: main
        labels: [{name: small, image: busybox}]
",
        host: None,
        cloud: Some((CloudKind::Kubernetes, &["--openshift", "--project", "main", "--pod-start-s", "0.1"])),
        is_limited: false,
    };
    // Without a launcher, which alone puts nodes into slots, its launches fail.
    let metastatic = Case {
        driver: "metastatic",
        config: "labels: [{name: small}, {name: big}]
providers:
  - name: contract
    driver: metastatic
    pools:
      - name: main
        labels: [{name: small, backing-label: big}]
",
        host: None,
        cloud: None,
        is_limited: false,
    };
    let aws = Case {
        driver: "aws",
        config: "labels: [{name: small}]
diskimages: [{name: debian, elements: [vm]}]
providers:
  - name: contract
    driver: aws
    region-name: us-west-2
    rate: 1000
    cloud-images: [{name: image, image-id: ami-00000000000000001, username: zuul}]
    diskimages: [{name: debian, import-method: ebs-direct}]
    pools:
      - name: main
        subnet-id: subnet-0000000000000000a
        security-group-id: sg-00000000000000002
        labels: [{name: small, cloud-image: image, instance-type: t3.medium, key-name: nodepool}]
",
        host: None,
        cloud: Some((CloudKind::Ec2, &["--boot-s", "0.1", "--terminate-s", "0.1", "--subnet-addresses", "2"])),
        is_limited: true,
    };
    vec![
        statics,
        fake,
        openstack,
        example,
        kubernetes,
        openshift,
        openshiftpods,
        metastatic,
        aws,
        azure(),
        gce(),
        ibmvpc(),
    ]
}

fn azure() -> Case {
    Case {
        driver: "azure",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: azure
    location: eastus
    resource-group: nodepool
    resource-group-location: eastus
    network: network
    auth-path: /nonexistent
    rate: 1000
    cloud-images:
      - name: image
        username: zuul
        generate-password: true
        image-reference: {publisher: Debian, offer: debian-12, sku: 12-gen2, version: latest}
    pools:
      - name: main
        max-servers: 10
        labels: [{name: small, cloud-image: image, hardware-profile: {vm-size: Standard_D2s_v3}}]
",
        host: None,
        cloud: Some((
            CloudKind::Azure,
            &[
                "--boot-s",
                "0.1",
                "--delete-s",
                "0.1",
                "--operation-s",
                "0",
                "--limits",
                "virtualMachines=2",
                "--upload-minimum",
                "512",
                "--check-footer",
                "false",
            ],
        )),
        is_limited: true,
    }
}

fn gce() -> Case {
    Case {
        driver: "gce",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: gce
    project: simulated
    region: us-central1
    zone: us-central1-a
    rate-limit: 1000
    cloud-images: [{name: image, image-project: debian-cloud, image-family: debian-12, username: zuul}]
    pools:
      - name: main
        labels: [{name: small, cloud-image: image, instance-type: e2-medium}]
",
        host: None,
        cloud: Some((
            CloudKind::Gce,
            &["--boot-s", "0.1", "--delete-s", "0.1", "--operation-s", "0", "--quotas", "INSTANCES=2"],
        )),
        is_limited: true,
    }
}

fn ibmvpc() -> Case {
    Case {
        driver: "ibmvpc",
        config: "labels: [{name: small}]
providers:
  - name: contract
    driver: ibmvpc
    vpc: nodepool
    region: us-south
    zone: us-south-1
    subnet: nodepool-1
    rate: 1000
    quota: {instances: 2}
    cloud-images: [{name: image, image-filter: {operating-system: {name: debian-12-amd64}}, username: zuul}]
    pools:
      - name: main
        max-servers: 10
        labels: [{name: small, cloud-image: image, profile: cx2-2x4}]
",
        host: None,
        cloud: Some((CloudKind::Ibm, &["--boot-s", "0.1", "--delete-s", "0.1", "--quotas", "instances=2"])),
        is_limited: true,
    }
}
