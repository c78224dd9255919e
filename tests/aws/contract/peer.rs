//! The endpoint under test: calls of all services, and steps that several cases share.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use reqwest::Method;
use serde_json::Value;
use testkit::clouds::moto::{BUCKET, KEY_NAME, Site};
use testkit::clouds::simulated_ec2;
use testkit::wait;

use crate::ec2::{Answer, Ec2, Element, TIMEOUT, authorization};

/// Parameters of a call.
pub type Parameters<'a> = Vec<(&'a str, &'a str)>;

/// Resources that exist before the first case.
pub struct Resources {
    /// In the zones `us-west-2a` and `us-west-2b`.
    pub subnets: [String; 2],
    pub security_group: String,
    /// An own image with the root device /dev/sda1: gp3, 8 GB, deleted with its instance.
    pub image: String,
    pub key_name: String,
    pub bucket: String,
}

impl Resources {
    /// The resources of a moto.
    pub fn of(site: Site) -> Resources {
        Resources {
            subnets: site.subnets,
            security_group: site.security_group,
            image: site.image,
            key_name: KEY_NAME.to_owned(),
            bucket: BUCKET.to_owned(),
        }
    }
}

impl Resources {
    /// The resources of a simulated EC2: those of its start, with a bucket and an image of the account.
    pub async fn of_simulation(base: &str) -> Resources {
        let peer = Ec2::new(base);
        let place =
            "<CreateBucketConfiguration><LocationConstraint>us-west-2</LocationConstraint></CreateBucketConfiguration>";
        let request =
            peer.http.put(format!("{base}/{BUCKET}")).header("Authorization", authorization("s3")).body(place);
        Answer::read(request.send().await.expect("the simulation answers")).await.unwrap().expect_ok();
        let zone = [("Size", "8"), ("AvailabilityZone", "us-west-2a")];
        let volume = peer.ok("CreateVolume", &zone).await.find("volumeId").text().to_owned();
        let snapshot = peer.ok("CreateSnapshot", &[("VolumeId", &volume)]).await.find("snapshotId").text().to_owned();
        peer.ok("DeleteVolume", &[("VolumeId", &volume)]).await;
        let parameters = [
            ("Name", "base"),
            ("Architecture", "x86_64"),
            ("RootDeviceName", "/dev/sda1"),
            ("VirtualizationType", "hvm"),
            ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
            ("BlockDeviceMapping.1.Ebs.SnapshotId", &snapshot),
            ("BlockDeviceMapping.1.Ebs.VolumeType", "gp3"),
            ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "true"),
        ];
        let image = peer.ok("RegisterImage", &parameters).await.find("imageId").text().to_owned();
        Resources {
            subnets: simulated_ec2::SUBNETS.map(str::to_owned),
            security_group: simulated_ec2::SECURITY_GROUP.to_owned(),
            image,
            key_name: simulated_ec2::KEY_NAME.to_owned(),
            bucket: BUCKET.to_owned(),
        }
    }
}

pub struct Peer {
    pub ec2: Ec2,
    pub resources: Resources,
    names: AtomicU32,
}

impl Peer {
    pub fn new(base: &str, resources: Resources) -> Peer {
        Peer { ec2: Ec2::new(base), resources, names: AtomicU32::new(0) }
    }

    /// A name that no other case uses.
    pub fn name(&self, prefix: &str) -> String {
        format!("{prefix}-{:04}", self.names.fetch_add(1, Ordering::Relaxed))
    }

    /// Parameters of RunInstances for a small instance; `more` replaces and extends them.
    pub fn instance<'a>(&'a self, more: &[(&'a str, &'a str)]) -> Parameters<'a> {
        let resources = &self.resources;
        let usual = [
            ("ImageId", resources.image.as_str()),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("KeyName", &resources.key_name),
            ("InstanceType", "t3.medium"),
            ("NetworkInterface.1.DeviceIndex", "0"),
            ("NetworkInterface.1.AssociatePublicIpAddress", "false"),
            ("NetworkInterface.1.SubnetId", &resources.subnets[0]),
            ("NetworkInterface.1.SecurityGroupId.1", &resources.security_group),
        ];
        let is_replaced = |key: &str| more.iter().any(|(other, _)| *other == key);
        let usual = usual.into_iter().filter(|(key, _)| !is_replaced(key));
        usual.chain(more.iter().copied()).collect()
    }

    /// Runs an instance and returns its id.
    pub async fn run(&self, more: &[(&str, &str)]) -> String {
        let answer = self.ec2.ok("RunInstances", &self.instance(more)).await;
        answer.find("instanceId").text().to_owned()
    }

    /// The description of one instance.
    pub async fn described(&self, id: &str) -> Element {
        let answer = self.ec2.ok("DescribeInstances", &[("InstanceId.1", id)]).await;
        answer.find("instancesSet").child("item").clone()
    }

    /// Polls an instance until it has this state.
    pub async fn until_state(&self, id: &str, state: &str) -> Element {
        wait::until_some(&format!("{id} to be {state}"), TIMEOUT, async || {
            let instance = self.described(id).await;
            (instance.child("instanceState").text_of("name") == Some(state)).then_some(instance)
        })
        .await
    }

    pub async fn terminate(&self, id: &str) {
        self.ec2.ok("TerminateInstances", &[("InstanceId.1", id)]).await;
        self.until_state(id, "terminated").await;
    }

    /// The volumes of an instance, in the order of their devices.
    pub async fn volumes(&self, instance: &Element) -> Vec<Element> {
        let mut volumes = Vec::new();
        for mapping in instance.child("blockDeviceMapping").children("item") {
            let id = mapping.find("volumeId").text();
            let answer = self.ec2.ok("DescribeVolumes", &[("VolumeId.1", id)]).await;
            volumes.push(answer.child("volumeSet").child("item").clone());
        }
        volumes
    }

    /// Numbers of instances that are not terminated, and of volumes.
    pub async fn usage(&self) -> (usize, usize) {
        let instances = self.ec2.ok("DescribeInstances", &[]).await;
        let states = instances.all("instanceState");
        let alive = states.iter().filter(|state| state.text_of("name") != Some("terminated")).count();
        let volumes = self.ec2.ok("DescribeVolumes", &[]).await;
        (alive, volumes.child("volumeSet").children("item").len())
    }

    /// A snapshot of a volume of this size, which exists no longer.
    pub async fn snapshot(&self, size: &str) -> String {
        let zone = [("Size", size), ("AvailabilityZone", "us-west-2a")];
        let volume = self.ec2.ok("CreateVolume", &zone).await.child("volumeId").text().to_owned();
        let snapshot = self.ec2.ok("CreateSnapshot", &[("VolumeId", &volume)]).await;
        self.ec2.ok("DeleteVolume", &[("VolumeId", &volume)]).await;
        snapshot.child("snapshotId").text().to_owned()
    }

    /// Registers an image with these mappings, and returns its id.
    pub async fn register(&self, mappings: &[(&str, &str)]) -> String {
        let name = self.name("image");
        let usual = [("Name", name.as_str()), ("Architecture", "x86_64"), ("RootDeviceName", "/dev/sda1")];
        let parameters = [&usual[..], mappings].concat();
        self.ec2.ok("RegisterImage", &parameters).await.child("imageId").text().to_owned()
    }

    /// Deregisters an image and deletes its snapshots.
    pub async fn remove_image(&self, image: &str) {
        let answer = self.ec2.ok("DescribeImages", &[("ImageId.1", image)]).await;
        let mut snapshots: Vec<&str> = answer.all("snapshotId").into_iter().map(Element::text).collect();
        snapshots.dedup();
        self.ec2.ok("DeregisterImage", &[("ImageId", image)]).await;
        for snapshot in snapshots {
            self.ec2.ok("DeleteSnapshot", &[("SnapshotId", snapshot)]).await;
        }
    }

    /// All pages of a listing: the numbers of items of each page.
    pub async fn pages(&self, action: &str, set: &str, size: &str, more: &[(&str, &str)]) -> Vec<usize> {
        let (mut pages, mut token) = (Vec::new(), String::new());
        loop {
            let mut parameters = [&[("MaxResults", size)], more].concat();
            if !token.is_empty() {
                parameters.push(("NextToken", &token));
            }
            let answer = self.ec2.ok(action, &parameters).await;
            pages.push(answer.child(set).children("item").len());
            assert!(pages.len() < 100, "{action} never ends");
            let next = answer.child("nextToken").text().to_owned();
            if next.is_empty() {
                return pages;
            }
            token = next;
        }
    }

    /// A call of S3 with a path such as `/bucket/key?tagging`.
    pub async fn s3(&self, method: Method, path: &str, headers: &[(&str, &str)], body: &[u8]) -> S3Answer {
        let response = self.send("s3", method, path, headers, body.to_vec()).await;
        let tag = response.headers().get("ETag").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
        S3Answer { tag, answer: Answer::read(response).await.expect("an answer is complete") }
    }

    /// A call of EBS direct; its answer is JSON, and some facts are in headers.
    pub async fn ebs(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> JsonAnswer {
        let kind =
            [("Content-Type", if body.first() == Some(&b'{') { "application/json" } else { "binary/octet-stream" })];
        let headers = [headers, &kind].concat();
        JsonAnswer::read(self.send("ebs", method, path, &headers, body).await).await
    }

    /// A call of Service Quotas.
    pub async fn quotas(&self, action: &str, parameters: Value) -> JsonAnswer {
        let target = format!("ServiceQuotasV20190624.{action}");
        let headers = [("X-Amz-Target", target.as_str()), ("Content-Type", "application/x-amz-json-1.1")];
        let body = parameters.to_string().into_bytes();
        JsonAnswer::read(self.send("servicequotas", Method::POST, "/", &headers, body).await).await
    }

    async fn send(
        &self,
        service: &str,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Vec<u8>,
    ) -> reqwest::Response {
        let url = format!("{}{path}", self.ec2.base);
        let mut request = self.ec2.http.request(method, url).header("Authorization", authorization(service));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(body).send().await.unwrap_or_else(|error| panic!("{service} {path}: {error:?}"))
    }
}

/// An answer of S3 with its ETag.
#[derive(Debug)]
pub struct S3Answer {
    pub tag: String,
    answer: Answer,
}

impl S3Answer {
    #[track_caller]
    pub fn expect_ok(self) -> Element {
        self.answer.expect_ok()
    }

    /// Asserts that the answer is an error with this status and code, in the envelope of S3.
    #[track_caller]
    pub fn expect_error(self, status: u16, code: &str) {
        let xml = &self.answer.xml;
        assert_eq!((self.answer.status, xml.name.as_str()), (status, "Error"), "{}", self.answer.text);
        assert_eq!(xml.child("Code").text(), code, "{}", self.answer.text);
    }
}

/// An answer in JSON.
#[derive(Debug)]
pub struct JsonAnswer {
    pub status: u16,
    /// The error in the header `x-amzn-ErrorType`, or in the body.
    pub error: Option<String>,
    pub checksum: Option<String>,
    pub body: Value,
}

impl JsonAnswer {
    async fn read(response: reqwest::Response) -> JsonAnswer {
        let status = response.status().as_u16();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (error, checksum) = (header("x-amzn-ErrorType"), header("x-amz-Checksum"));
        let text = response.text().await.expect("an answer is complete");
        let body: Value = serde_json::from_str(&text).unwrap_or_default();
        let error = error.or_else(|| body["__type"].as_str().map(str::to_owned));
        JsonAnswer { status, error, checksum, body }
    }

    #[track_caller]
    pub fn expect_ok(self) -> Value {
        assert!((200..300).contains(&self.status), "{self:?}");
        self.body
    }

    /// Asserts that the answer is this error, with any status of an error.
    #[track_caller]
    pub fn expect_error(self, code: &str) {
        assert!((400..600).contains(&self.status), "{self:?}");
        // Some services qualify the name of an error.
        let error = self.error.as_deref().unwrap_or_default();
        let error = error.rsplit('#').next().unwrap_or_default().split(':').next();
        assert_eq!(error, Some(code), "{self:?}");
    }
}

/// Polls a call until its answer is accepted.
pub async fn poll(what: &str, mut call: impl AsyncFnMut() -> Option<Element>) -> Element {
    wait::until_some(what, Duration::from_secs(60), async || call().await).await
}
