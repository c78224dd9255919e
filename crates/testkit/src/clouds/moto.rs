//! An AWS on loopback: moto with `tests/python/aws_peer.py`, its resources, settings, faults and log of calls.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::real::child_process::{ChildProcess, Output};
use crate::real::python::Interpreter;
use crate::{programs, wait};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Timeout of the start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(60);
pub const REGION: &str = "us-west-2";
pub const KEY_NAME: &str = "zuul";
pub const BUCKET: &str = "nodepool-images";
/// moto reads the service and region from it, and checks no signature.
const EC2_AUTHORIZATION: &str = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-west-2/ec2/aws4_request, \
    SignedHeaders=host, Signature=0";

/// A running moto. Dropping it kills it and, if the test fails, prints its log.
pub struct Moto {
    running: ChildProcess,
    _home: TempDir,
    base: String,
    http: reqwest::Client,
}

/// Resources of `Moto::site`, by their ids.
pub struct Site {
    pub vpc: String,
    /// One in each of the zones `us-west-2a` and `us-west-2b`.
    pub subnets: [String; 2],
    pub security_group: String,
    /// An image with a root device of 8 GB.
    pub image: String,
}

/// One call that moto received.
#[derive(Clone, Debug, Deserialize)]
pub struct Call {
    /// Monotonic time of its arrival.
    pub at_s: f64,
    /// Duration until the answer was complete; `None` while the call runs.
    pub took_s: Option<f64>,
    pub service: String,
    pub action: String,
    pub parameters: Value,
    /// HTTP status; `None` if the call was not answered.
    pub status: Option<u16>,
    /// Id of the rule that applied.
    pub rule: Option<u64>,
}

impl Moto {
    /// Starts moto and waits until it listens.
    pub async fn start() -> Moto {
        // No idle connections: moto closes them.
        let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().expect("a plain client can be built");
        let home = tempfile::Builder::new().prefix("nodepool-test-aws-").tempdir();
        let home = home.expect("the temporary directory is writable");
        let script = programs::repository().join("tests/python/aws_peer.py");
        let mut command = Command::new(Interpreter::Moto.path());
        // Without bytecode files, because the sources are in the repository.
        command.args(["-u", "-B"]).arg(script).arg("0");
        let log = home.path().join("log");
        let mut running = ChildProcess::start("moto", &mut command, Output::Logged, &log, home.path());
        let base = wait::until_some("moto to listen", START_TIMEOUT, async || {
            let log = running.log();
            assert!(running.ended().is_none(), "moto ended: {log}");
            let line = log.lines().find_map(|line| line.strip_prefix("listening on ").map(str::to_owned));
            line.filter(|_| log.ends_with('\n'))
        })
        .await;
        Moto { running, _home: home, base, http }
    }

    /// `http://127.0.0.1:PORT`, the endpoint of all services.
    pub fn base(&self) -> &str {
        &self.base
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    /// Variables that let any client of AWS use this moto, and nothing else.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let variables = [
            ("AWS_ENDPOINT_URL", self.base.as_str()),
            ("AWS_ACCESS_KEY_ID", "testing"),
            ("AWS_SECRET_ACCESS_KEY", "testing"),
            ("AWS_REGION", REGION),
            ("AWS_DEFAULT_REGION", REGION),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_CONFIG_FILE", "/dev/null"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ];
        variables.map(|(name, value)| (name, PathBuf::from(value))).to_vec()
    }

    /// Creates a network whose instances have reachable loopback addresses, a security group, the key pair `KEY_NAME`,
    /// an image and the bucket `BUCKET`.
    ///
    /// The first instance in subnet 0 gets the private address 127.77.1.4, the next one 127.77.1.5, and so on; subnet 1
    /// is 127.77.2.0/24. Public addresses are of 127.78.0.0/16.
    pub async fn site(&self) -> Site {
        let vpc = self.created("CreateVpc", &[("CidrBlock", "127.77.0.0/16")], "vpcId").await;
        let subnets = [self.subnet(&vpc, "127.77.1.0/24", "a").await, self.subnet(&vpc, "127.77.2.0/24", "b").await];
        let parameters = [("GroupName", "nodepool"), ("GroupDescription", "nodes"), ("VpcId", vpc.as_str())];
        let security_group = self.created("CreateSecurityGroup", &parameters, "groupId").await;
        self.ec2("CreateKeyPair", &[("KeyName", KEY_NAME)]).await;
        let image = self.image("base").await;
        self.bucket(BUCKET).await;
        Site { vpc, subnets, security_group, image }
    }

    /// Creates a subnet in a zone of `REGION`, named by its letter.
    pub async fn subnet(&self, vpc: &str, addresses: &str, zone: &str) -> String {
        let zone = format!("{REGION}{zone}");
        let parameters = [("VpcId", vpc), ("CidrBlock", addresses), ("AvailabilityZone", zone.as_str())];
        self.created("CreateSubnet", &parameters, "subnetId").await
    }

    /// Gives a subnet of `Moto::site` IPv6 addresses, which are not reachable.
    pub async fn add_ipv6(&self, site: &Site, subnet: &str) {
        let parameters = [("VpcId", site.vpc.as_str()), ("AmazonProvidedIpv6CidrBlock", "true")];
        self.ec2("AssociateVpcCidrBlock", &parameters).await;
        let network = self.created("DescribeVpcs", &[("VpcId.1", &site.vpc)], "ipv6CidrBlock").await;
        let part = network.replace("/56", "/64");
        self.ec2("AssociateSubnetCidrBlock", &[("SubnetId", subnet), ("Ipv6CidrBlock", &part)]).await;
    }

    /// Registers an image with a root device of 8 GB.
    pub async fn image(&self, name: &str) -> String {
        let zone = format!("{REGION}a");
        let volume = self.created("CreateVolume", &[("Size", "8"), ("AvailabilityZone", &zone)], "volumeId").await;
        let snapshot = self.created("CreateSnapshot", &[("VolumeId", &volume)], "snapshotId").await;
        self.ec2("DeleteVolume", &[("VolumeId", &volume)]).await;
        let parameters = [
            ("Name", name),
            ("Architecture", "x86_64"),
            ("VirtualizationType", "hvm"),
            ("RootDeviceName", "/dev/sda1"),
            ("EnaSupport", "true"),
            ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
            ("BlockDeviceMapping.1.Ebs.SnapshotId", snapshot.as_str()),
            ("BlockDeviceMapping.1.Ebs.VolumeType", "gp3"),
            ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "true"),
        ];
        self.created("RegisterImage", &parameters, "imageId").await
    }

    pub async fn bucket(&self, name: &str) {
        let place = format!(
            "<CreateBucketConfiguration><LocationConstraint>{REGION}</LocationConstraint></CreateBucketConfiguration>"
        );
        let authorization = EC2_AUTHORIZATION.replace("/ec2/", "/s3/");
        let request = self.http.put(format!("{}/{name}", self.base)).header("Authorization", authorization).body(place);
        let answer = request.send().await.expect("moto answers");
        assert!(answer.status().is_success(), "{name}: {}", answer.text().await.unwrap_or_default());
    }

    /// Calls an action of EC2 and returns the XML of its answer; panics if it is an error.
    pub async fn ec2(&self, action: &str, parameters: &[(&str, &str)]) -> String {
        let form = [&[("Action", action), ("Version", "2016-11-15")], parameters].concat();
        let request = self.http.post(format!("{}/", self.base)).header("Authorization", EC2_AUTHORIZATION).form(&form);
        let answer = request.send().await.expect("moto answers");
        let status = answer.status();
        let text = answer.text().await.expect("moto's answer is complete");
        assert!(status.is_success(), "{action} {parameters:?}: {text}");
        text
    }

    /// The first element of this name in the answer.
    async fn created(&self, action: &str, parameters: &[(&str, &str)], element: &str) -> String {
        let text = self.ec2(action, parameters).await;
        let found = first_element(&text, element);
        found.unwrap_or_else(|| panic!("{action} returned no {element}: {text}")).to_owned()
    }

    /// Sets a fault, for example `json!({"action": "RunInstances", "error": {"code": "RequestLimitExceeded"}})`, and
    /// returns its id. `Rule` in tests/python/aws_faults.py describes all keys.
    pub async fn add_rule(&self, rule: Value) -> u64 {
        let added = self.control(Method::POST, "rules", Some(rule)).await;
        added["id"].as_u64().expect("a rule has an id")
    }

    /// The rules, with the number of calls to which each one applied, `fired`.
    pub async fn rules(&self) -> Value {
        self.control(Method::GET, "rules", None).await
    }

    pub async fn remove_rules(&self) {
        self.control(Method::DELETE, "rules", None).await;
    }

    /// The calls of one action since the start or `forget_calls`, in the order of their arrival; of all actions for
    /// `None`.
    pub async fn calls(&self, action: Option<&str>) -> Vec<Call> {
        let path = action.map_or_else(|| "calls".to_owned(), |action| format!("calls?action={action}"));
        let calls = self.control(Method::GET, &path, None).await;
        serde_json::from_value(calls).expect("the log of calls has this form")
    }

    pub async fn forget_calls(&self) {
        self.control(Method::DELETE, "calls", None).await;
    }

    /// Sets quotas, for example `json!({"applied": {"ec2": {"L-1216C47A": 4.0}}})`. With `json!({"denied": true})`, the
    /// calls are refused.
    pub async fn set_quotas(&self, quotas: Value) {
        self.control(Method::PUT, "quotas", Some(quotas)).await;
    }

    /// Changes settings; tests/python/aws_knobs.py describes them.
    pub async fn set_knobs(&self, knobs: Value) {
        self.control(Method::PUT, "knobs", Some(knobs)).await;
    }

    /// Changes the state of an instance, as AWS does on its own: for example to `terminated` with the code
    /// `Server.SpotInstanceTermination`.
    pub async fn set_instance_state(&self, id: &str, state: &str, code: &str) {
        let value = json!({"state": state, "code": code});
        self.control(Method::PUT, &format!("instances/{id}"), Some(value)).await;
    }

    /// Removes an instance from all listings.
    pub async fn forget_instance(&self, id: &str) {
        self.control(Method::DELETE, &format!("instances/{id}"), None).await;
    }

    /// Deletes all resources, rules and calls, and sets quotas and knobs to those of the start.
    pub async fn reset(&self) {
        let sent = self.http.post(format!("{}/moto-api/reset", self.base)).send().await;
        assert!(sent.expect("moto answers").status().is_success());
    }

    async fn control(&self, method: Method, path: &str, value: Option<Value>) -> Value {
        let mut request = self.http.request(method, format!("{}/moto-api/nodepool/{path}", self.base));
        if let Some(value) = &value {
            request = request.json(value);
        }
        let answer = request.send().await.expect("moto answers");
        let status = answer.status();
        let text = answer.text().await.expect("moto's answer is complete");
        assert!(status.is_success(), "{path} {value:?}: {text}");
        serde_json::from_str(&text).expect("moto's control paths reply with JSON")
    }
}

/// The text of the first element of this name.
fn first_element<'a>(xml: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

/// Variables as `NodepoolProcess::start_in` takes them.
pub fn as_paths<'a>(variables: &'a [(&'static str, PathBuf)]) -> Vec<(&'a str, &'a Path)> {
    variables.iter().map(|(name, value)| (*name, value.as_path())).collect()
}
