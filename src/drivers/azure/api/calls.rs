//! The API requests of this driver as data, each with its statsd name, lane and deadline.

use std::fmt;
use std::path::PathBuf;

use nodepool_driver::driver::ApiCall;
use nodepool_driver::error::CloudError;
use nodepool_driver::state_machine::Lane;
use nodepool_model::records::time::Seconds;
use reqwest::{Method, StatusCode};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::errors::{ApiError, failed};
use crate::common::tolerant_json;

/// Interfaces and addresses can have tags in the request of a machine from this version on.
const MACHINES: &str = "2025-04-01";
const NETWORK: &str = "2020-11-01";
const DISKS: &str = "2020-06-30";
const IMAGES: &str = "2020-12-01";
const USAGES: &str = "2020-12-01";
const SIZES: &str = "2019-04-01";
/// The version of the network API with which Azure creates the parts of a machine.
pub const PARTS: &str = NETWORK;

const SHORT_DEADLINE: Seconds = Seconds(60.0);
const TRANSFER_DEADLINE: Seconds = Seconds(600.0);
/// A call with a longer delay takes no capacity of the queue while it waits.
const MAX_SPACED_DELAY: Seconds = Seconds(1.0);
/// Time for which pages of a disk can be written.
const ACCESS_S: u32 = 24 * 3600;

#[derive(Clone, Debug)]
pub struct Call {
    key: &'static str,
    lane: Lane,
    deadline: Seconds,
    /// Delay before the request is sent.
    pub delay: Seconds,
    /// Whether it changes something.
    pub changes: bool,
    pub request: Request,
}

#[derive(Clone, Debug)]
pub enum Request {
    Arm(Box<ArmRequest>),
    /// Writes pages of a disk, several at a time.
    SendPages {
        sas: SasUrl,
        file: PathBuf,
        pages: Vec<Page>,
    },
}

/// A request to the Resource Manager.
#[derive(Clone, PartialEq)]
pub struct ArmRequest {
    pub method: Method,
    pub link: Link,
    pub query: Vec<(&'static str, String)>,
    pub body: Option<Value>,
    /// Whether a resource that exists already is not to be changed.
    pub creates: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Link {
    Path(String),
    /// A URL of an earlier answer.
    Whole(String),
}

/// Bodies may contain passwords and user data.
impl fmt::Debug for ArmRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Link::Path(text) | Link::Whole(text)) = &self.link;
        write!(f, "{} {}", self.method, text.split('?').next().unwrap_or_default())
    }
}

/// A URL with which everyone can write a disk.
#[derive(Clone, PartialEq)]
pub struct SasUrl(String);

impl fmt::Debug for SasUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SasUrl")
    }
}

impl SasUrl {
    pub fn new(url: &str) -> Self {
        Self(url.to_owned())
    }

    pub fn for_pages(&self) -> String {
        let separator = if self.0.contains('?') { '&' } else { '?' };
        if self.0.contains("comp=page") { self.0.clone() } else { format!("{}{separator}comp=page", self.0) }
    }
}

/// A range of an image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Page {
    pub from: u64,
    pub length: u64,
}

/// The response to a call.
#[derive(Debug)]
pub enum Reply {
    Answer(Answer),
    /// The pages that were written, by their beginnings, and the first error of the others.
    Sent(Vec<u64>, Option<String>),
    Refused(ApiError),
    /// A change that may have been made although there is no answer.
    Lost(String),
}

pub struct Answer {
    pub status: StatusCode,
    /// Null if the response has no body.
    pub body: Box<RawValue>,
    pub operation: Option<OperationLink>,
    pub retry_after: Option<Seconds>,
}

/// The address of an operation, in the two styles of Azure.
#[derive(Clone, Debug, PartialEq)]
pub enum OperationLink {
    /// Answers with a `status`.
    Status(String),
    /// Answers with 202 until the end.
    Location(String),
}

/// An answer may contain a SAS URL.
impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Answer({})", self.status.as_u16())
    }
}

impl Answer {
    pub fn value(&self) -> Value {
        serde_json::from_str(self.body.get()).unwrap_or_default()
    }

    pub fn read<T: DeserializeOwned>(self) -> Result<T, CloudError> {
        tolerant_json::read(self.body.get().as_bytes())
            .map_err(|error| failed(format!("cannot read an answer: {error}")))
    }
}

impl Reply {
    /// The answer, or why there is none.
    pub fn answer(self) -> Result<Answer, CloudError> {
        match self {
            Reply::Answer(answer) => Ok(answer),
            Reply::Refused(error) => Err(error.into_error()),
            Reply::Lost(detail) => Err(failed(detail)),
            Reply::Sent(..) => Err(failed("unexpected reply to a transfer")),
        }
    }
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        self.key
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn is_mutating(&self) -> bool {
        self.changes
    }

    fn deadline(&self) -> Seconds {
        Seconds(self.deadline.0 + self.delay.0)
    }
}

impl Call {
    /// The same call after a delay. One that waits for long does not count as in flight.
    pub fn after(self, delay: Seconds) -> Self {
        Self { delay, lane: if delay > MAX_SPACED_DELAY { Lane::Bulk } else { self.lane }, ..self }
    }

    /// The same call for a new resource: one that exists is not changed.
    fn creating(mut self) -> Self {
        if let Request::Arm(request) = &mut self.request {
            request.creates = true;
        }
        self
    }
}

fn arm(key: &'static str, method: Method, link: Link, query: Vec<(&'static str, String)>, body: Option<Value>) -> Call {
    let changes = method != Method::GET;
    let lane = if changes { Lane::Change } else { Lane::Read };
    let request = Request::Arm(Box::new(ArmRequest { method, link, query, body, creates: false }));
    Call { key, lane, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, changes, request }
}

/// The next page of a list.
pub fn next_page(key: &'static str, link: &str) -> Call {
    arm(key, Method::GET, Link::Whole(link.to_owned()), Vec::new(), None)
}

/// The state of an operation.
pub fn operation(link: &OperationLink) -> Call {
    let (OperationLink::Status(url) | OperationLink::Location(url)) = link;
    arm("operations.get", Method::GET, Link::Whole(url.clone()), Vec::new(), None)
}

pub fn send_pages(sas: &SasUrl, file: &std::path::Path, pages: Vec<Page>) -> Call {
    let request = Request::SendPages { sas: sas.clone(), file: file.to_owned(), pages };
    Call {
        key: "blobs.put",
        lane: Lane::Bulk,
        deadline: TRANSFER_DEADLINE,
        delay: Seconds::ZERO,
        changes: true,
        request,
    }
}

/// A kind of resources of a resource group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Machine,
    Interface,
    Address,
    Disk,
    Image,
}

impl Kind {
    fn provider(self) -> &'static str {
        match self {
            Kind::Machine => "Microsoft.Compute/virtualMachines",
            Kind::Interface => "Microsoft.Network/networkInterfaces",
            Kind::Address => "Microsoft.Network/publicIPAddresses",
            Kind::Disk => "Microsoft.Compute/disks",
            Kind::Image => "Microsoft.Compute/images",
        }
    }

    fn version(self) -> &'static str {
        match self {
            Kind::Machine => MACHINES,
            Kind::Interface | Kind::Address => NETWORK,
            Kind::Disk => DISKS,
            Kind::Image => IMAGES,
        }
    }

    pub fn list_key(self) -> &'static str {
        match self {
            Kind::Machine => "virtualMachines.list",
            Kind::Interface => "networkInterfaces.list",
            Kind::Address => "publicIPAddresses.list",
            Kind::Disk => "disks.list",
            Kind::Image => "images.list",
        }
    }

    fn get_key(self) -> &'static str {
        match self {
            Kind::Machine => "virtualMachines.get",
            Kind::Interface => "networkInterfaces.get",
            Kind::Address => "publicIPAddresses.get",
            Kind::Disk => "disks.get",
            Kind::Image => "images.get",
        }
    }

    fn delete_key(self) -> &'static str {
        match self {
            Kind::Machine => "virtualMachines.delete",
            Kind::Interface => "networkInterfaces.delete",
            Kind::Address => "publicIPAddresses.delete",
            Kind::Disk => "disks.delete",
            Kind::Image => "images.delete",
        }
    }

    fn put_key(self) -> &'static str {
        match self {
            Kind::Machine => "virtualMachines.put",
            Kind::Interface => "networkInterfaces.put",
            Kind::Address => "publicIPAddresses.put",
            Kind::Disk => "disks.put",
            Kind::Image => "images.put",
        }
    }
}

/// The place of a provider: all its paths begin with it.
#[derive(Clone, Debug, PartialEq)]
pub struct Scope {
    pub subscription: String,
    pub group: String,
    pub location: String,
}

impl Scope {
    /// The id of a resource of the provider's group.
    pub fn id(&self, kind: Kind, name: &str) -> String {
        let Self { subscription, group, .. } = self;
        format!("/subscriptions/{subscription}/resourceGroups/{group}/providers/{}/{name}", kind.provider())
    }

    pub fn subnet(&self, group: &str, network: &str, subnet: &str) -> String {
        let subscription = &self.subscription;
        let of_network = "providers/Microsoft.Network/virtualNetworks";
        format!("/subscriptions/{subscription}/resourceGroups/{group}/{of_network}/{network}/subnets/{subnet}")
    }

    fn call(&self, key: &'static str, method: Method, kind: Kind, name: &str, body: Option<Value>) -> Call {
        let query = vec![("api-version", kind.version().to_owned())];
        arm(key, method, Link::Path(self.id(kind, name)), query, body)
    }

    /// The first page of a list.
    pub fn list(&self, kind: Kind) -> Call {
        let path = self.id(kind, "");
        let query = vec![("api-version", kind.version().to_owned())];
        arm(kind.list_key(), Method::GET, Link::Path(path.trim_end_matches('/').to_owned()), query, None)
    }

    pub fn get(&self, kind: Kind, name: &str) -> Call {
        self.call(kind.get_key(), Method::GET, kind, name, None)
    }

    pub fn delete(&self, kind: Kind, name: &str) -> Call {
        self.call(kind.delete_key(), Method::DELETE, kind, name, None)
    }

    pub fn put(&self, kind: Kind, name: &str, body: Value) -> Call {
        self.call(kind.put_key(), Method::PUT, kind, name, Some(body))
    }

    /// Creates a machine. One of the same name stays as it is.
    pub fn create_machine(&self, name: &str, body: Value) -> Call {
        self.put(Kind::Machine, name, body).creating()
    }

    /// The states of a machine, which name the reason of a failure.
    pub fn instance_view(&self, name: &str) -> Call {
        let mut call = self.get(Kind::Machine, name);
        if let Request::Arm(request) = &mut call.request {
            request.query.push(("$expand", "instanceView".to_owned()));
        }
        call
    }

    /// Permits writes to a disk. The operation has a SAS URL.
    pub fn begin_access(&self, disk: &str) -> Call {
        let body = json!({"access": "Write", "durationInSeconds": ACCESS_S});
        self.call("disks.beginGetAccess", Method::POST, Kind::Disk, &format!("{disk}/beginGetAccess"), Some(body))
    }

    pub fn end_access(&self, disk: &str) -> Call {
        let path = format!("{disk}/endGetAccess");
        self.call("disks.endGetAccess", Method::POST, Kind::Disk, &path, Some(json!({})))
    }

    fn of_subscription(&self, key: &'static str, path: &str, query: Vec<(&'static str, String)>) -> Call {
        let path = format!("/subscriptions/{}/providers/Microsoft.Compute/{path}", self.subscription);
        arm(key, Method::GET, Link::Path(path), query, None)
    }

    pub fn usages(&self) -> Call {
        let query = vec![("api-version", USAGES.to_owned())];
        self.of_subscription("usages.list", &format!("locations/{}/usages", self.location.replace(' ', "")), query)
    }

    /// The sizes of machines of the location. All locations together are tens of megabytes.
    pub fn sizes(&self) -> Call {
        let filter = format!("location eq '{}'", self.location.replace(' ', "").to_lowercase());
        let query = vec![("api-version", SIZES.to_owned()), ("$filter", filter)];
        self.of_subscription("skus.list", "skus", query)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_texts_show_no_secret() {
        let sas = SasUrl::new("https://md-x.blob/disk?sig=hunter2");
        assert_eq!(sas.for_pages(), "https://md-x.blob/disk?sig=hunter2&comp=page");
        let call = send_pages(&sas, "/image".as_ref(), Vec::new());
        assert!(!format!("{call:?}").contains("hunter2"));
        let scope = Scope { subscription: "s".to_owned(), group: "g".to_owned(), location: "eastus".to_owned() };
        let call = scope.create_machine("np1", json!({"adminPassword": "hunter2"}));
        let text = format!("{call:?}");
        assert!(text.contains("PUT /subscriptions/s/resourceGroups/g/") && !text.contains("hunter2"), "{text}");
    }
}
