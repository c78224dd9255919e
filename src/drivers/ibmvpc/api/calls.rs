//! The API requests of this driver as data, each with its statsd name, lane and deadline.

use std::collections::BTreeMap;
use std::fmt;

use http::Method;
use nodepool_driver::driver::ApiCall;
use nodepool_driver::state_machine::Lane;
use nodepool_model::records::time::Seconds;
use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::api_types::{FloatingIp, Image, Page, Profile, Subnet, Thing, Volume, VpcInstance};
use super::errors::ApiError;
use crate::common::object_store::{self, Begun, Content, FilePart, Listing, ObjectRequest};
use crate::common::tolerant_json;

/// Objects of one page of a list: the most that IBM allows.
const PAGE_SIZE: u32 = 100;
const SHORT_DEADLINE: Seconds = Seconds(60.0);
const TRANSFER_DEADLINE: Seconds = Seconds(600.0);
/// A call with a longer delay takes no capacity of the queue while it waits.
const MAX_SPACED_DELAY: Seconds = Seconds(1.0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Vpc,
    /// The resource manager.
    Resources,
    /// Cloud Object Storage.
    Storage,
}

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
    /// Reads a successful response.
    pub read: Read,
}

type Read = fn(&HeaderMap, &[u8]) -> Result<Reply, String>;

#[derive(Clone, Debug)]
pub enum Request {
    Http(Box<HttpRequest>),
    /// Sends parts of an object, several at a time.
    SendParts(Vec<(u32, HttpRequest)>),
}

/// One HTTP request without its address.
#[derive(Clone, PartialEq)]
pub struct HttpRequest {
    pub service: Service,
    pub method: Method,
    /// As it is sent: percent-encoded.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
}

#[derive(Clone, PartialEq)]
pub enum Body {
    None,
    Json(Value),
    Text(String),
    File(FilePart),
}

/// Bodies may contain user data, and so secrets.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} {}", self.service, self.method, self.path)
    }
}

/// The response to a call.
#[derive(Debug)]
pub enum Reply {
    Done,
    Instances(Page<VpcInstance>),
    Created(Box<VpcInstance>),
    FloatingIps(Page<FloatingIp>),
    Profiles(Page<Profile>),
    Subnets(Page<Subnet>),
    Vpcs(Page<Thing>),
    Keys(Page<Thing>),
    Groups(Page<Thing>),
    /// A new resource group.
    Group(Thing),
    Images(Page<Image>),
    Image(Box<Image>),
    Volumes(Page<Volume>),
    Begun(Begun),
    Listing(Listing),
    /// The location of a bucket.
    Location(String),
    /// The parts that were sent, with their identification, and the first error of the others.
    Sent(BTreeMap<u32, String>, Option<String>),
    /// The service refused the call.
    Refused(ApiError),
    /// A change that may have been made although there is no response.
    Lost(String),
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
    /// Name of the operation, for messages.
    pub fn name(&self) -> &'static str {
        self.key.rsplit('.').next().unwrap_or(self.key)
    }

    /// The same call after a delay. One that waits for long does not count as in flight; others are spaced like new
    /// calls, so that a spell of errors brings no burst of repetitions.
    pub fn after(self, delay: Seconds) -> Self {
        Self { delay, lane: if delay > MAX_SPACED_DELAY { Lane::Bulk } else { self.lane }, ..self }
    }
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    tolerant_json::read(body).map_err(|error| error.to_string())
}

fn xml<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    quick_xml::de::from_reader(body).map_err(|error| error.to_string())
}

fn done(_: &HeaderMap, _: &[u8]) -> Result<Reply, String> {
    Ok(Reply::Done)
}

fn call(key: &'static str, lane: Lane, request: HttpRequest, read: Read) -> Call {
    let changes = lane == Lane::Change;
    let request = Request::Http(Box::new(request));
    Call { key, lane, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, changes, request, read }
}

fn request(service: Service, method: Method, path: impl Into<String>) -> HttpRequest {
    HttpRequest { service, method, path: path.into(), query: Vec::new(), headers: Vec::new(), body: Body::None }
}

/// One page of a list, with more parameters.
fn page(key: &'static str, path: &str, next: Option<&str>, query: &[(&'static str, &str)], read: Read) -> Call {
    let mut list = request(Service::Vpc, Method::GET, path);
    list.query.push(("limit", PAGE_SIZE.to_string()));
    list.query.extend(next.map(|start| ("start", start.to_owned())));
    list.query.extend(query.iter().map(|(name, value)| (*name, (*value).to_owned())));
    call(key, Lane::Read, list, read)
}

fn create(key: &'static str, path: &str, body: Value, read: Read) -> Call {
    let request = HttpRequest { body: Body::Json(body), ..request(Service::Vpc, Method::POST, path) };
    call(key, Lane::Change, request, read)
}

fn delete(key: &'static str, path: String) -> Call {
    call(key, Lane::Change, request(Service::Vpc, Method::DELETE, path), done)
}

pub fn instances(next: Option<&str>) -> Call {
    page("vpc.list_instances", "/instances", next, &[], |_, body| Page::read(body, "instances").map(Reply::Instances))
}

/// The instance with this name, if there is one.
pub fn instances_named(name: &str) -> Call {
    page("vpc.list_instances", "/instances", None, &[("name", name)], |_, body| {
        Page::read(body, "instances").map(Reply::Instances)
    })
}

pub fn create_instance(body: Value) -> Call {
    create("vpc.create_instance", "/instances", body, |_, body| from_json(body).map(Box::new).map(Reply::Created))
}

pub fn delete_instance(id: &str) -> Call {
    delete("vpc.delete_instance", format!("/instances/{id}"))
}

pub fn floating_ips(next: Option<&str>) -> Call {
    page("vpc.list_floating_ips", "/floating_ips", next, &[], |_, body| {
        Page::read(body, "floating_ips").map(Reply::FloatingIps)
    })
}

pub fn create_floating_ip(body: Value) -> Call {
    create("vpc.create_floating_ip", "/floating_ips", body, done)
}

pub fn delete_floating_ip(id: &str) -> Call {
    delete("vpc.delete_floating_ip", format!("/floating_ips/{id}"))
}

pub fn profiles(next: Option<&str>) -> Call {
    // This list has no pages in the versions that IBM documents, and no parameter for them.
    let mut list = request(Service::Vpc, Method::GET, "/instance/profiles");
    list.query.extend(next.map(|start| ("start", start.to_owned())));
    call("vpc.list_instance_profiles", Lane::Read, list, |_, body| Page::read(body, "profiles").map(Reply::Profiles))
}

pub fn vpcs(next: Option<&str>) -> Call {
    page("vpc.list_vpcs", "/vpcs", next, &[], |_, body| Page::read(body, "vpcs").map(Reply::Vpcs))
}

pub fn subnets(next: Option<&str>) -> Call {
    page("vpc.list_subnets", "/subnets", next, &[], |_, body| Page::read(body, "subnets").map(Reply::Subnets))
}

pub fn keys(next: Option<&str>) -> Call {
    page("vpc.list_keys", "/keys", next, &[], |_, body| Page::read(body, "keys").map(Reply::Keys))
}

pub fn images(next: Option<&str>) -> Call {
    page("vpc.list_images", "/images", next, &[], |_, body| Page::read(body, "images").map(Reply::Images))
}

pub fn images_of_group(group: &str, next: Option<&str>) -> Call {
    page("vpc.list_images", "/images", next, &[("resource_group.id", group)], |_, body| {
        Page::read(body, "images").map(Reply::Images)
    })
}

pub fn image(id: &str) -> Call {
    let request = request(Service::Vpc, Method::GET, format!("/images/{id}"));
    call("vpc.get_image", Lane::Read, request, |_, body| from_json(body).map(Box::new).map(Reply::Image))
}

pub fn create_image(body: Value) -> Call {
    create("vpc.create_image", "/images", body, |_, body| from_json(body).map(Box::new).map(Reply::Image))
}

pub fn delete_image(id: &str) -> Call {
    delete("vpc.delete_image", format!("/images/{id}"))
}

/// Volumes that are attached to nothing.
pub fn unattached_volumes(next: Option<&str>) -> Call {
    page("vpc.list_volumes", "/volumes", next, &[("attachment_state", "unattached")], |_, body| {
        Page::read(body, "volumes").map(Reply::Volumes)
    })
}

pub fn delete_volume(id: &str) -> Call {
    delete("vpc.delete_volume", format!("/volumes/{id}"))
}

pub fn groups() -> Call {
    let request = request(Service::Resources, Method::GET, "/v2/resource_groups");
    call("resource_manager.list_resource_groups", Lane::Read, request, |_, body| {
        Page::read(body, "resources").map(Reply::Groups)
    })
}

pub fn create_group(name: &str) -> Call {
    let body = Body::Json(json!({"name": name}));
    let request = HttpRequest { body, ..request(Service::Resources, Method::POST, "/v2/resource_groups") };
    call("resource_manager.create_resource_group", Lane::Change, request, |_, body| from_json(body).map(Reply::Group))
}

fn object(bucket: &str, request: ObjectRequest) -> HttpRequest {
    let encode = |part: &str| form_urlencoded::byte_serialize(part.as_bytes()).collect::<String>().replace('+', "%20");
    let key: Vec<String> = request.key.split('/').map(encode).collect();
    HttpRequest {
        service: Service::Storage,
        method: request.method,
        path: format!("/{bucket}/{}", key.join("/")),
        query: request.query,
        headers: request.headers,
        body: match request.content {
            Content::None => Body::None,
            Content::Text(text) => Body::Text(text),
            Content::File(part) => Body::File(part),
        },
    }
}

pub fn bucket_location(bucket: &str) -> Call {
    call("cos.GetBucketLocation", Lane::Read, object(bucket, object_store::location()), |_, body| {
        xml::<object_store::Location>(body).map(|location| Reply::Location(location.constraint))
    })
}

pub fn begin_object(bucket: &str, key: &str) -> Call {
    let request = object(bucket, object_store::begin(key, &BTreeMap::new()));
    call("cos.CreateMultipartUpload", Lane::Change, request, |_, body| xml(body).map(Reply::Begun))
}

pub fn send_parts(bucket: &str, key: &str, upload: &str, parts: Vec<(u32, FilePart)>) -> Call {
    let request = |(number, part)| (number, object(bucket, object_store::part(key, upload, number, part)));
    let parts = parts.into_iter().map(request).collect();
    Call {
        key: "cos.UploadPart",
        lane: Lane::Bulk,
        deadline: TRANSFER_DEADLINE,
        delay: Seconds::ZERO,
        changes: true,
        request: Request::SendParts(parts),
        read: done,
    }
}

pub fn complete_object(bucket: &str, key: &str, upload: &str, etags: &BTreeMap<u32, String>) -> Call {
    let request = object(bucket, object_store::complete(key, upload, etags));
    let call = call("cos.CompleteMultipartUpload", Lane::Change, request, done);
    Call { deadline: TRANSFER_DEADLINE, ..call }
}

pub fn abort_object(bucket: &str, key: &str, upload: &str) -> Call {
    let request = object(bucket, object_store::abort(key, upload));
    call("cos.AbortMultipartUpload", Lane::Change, request, done)
}

pub fn delete_object(bucket: &str, key: &str) -> Call {
    call("cos.DeleteObject", Lane::Change, object(bucket, object_store::delete(key)), done)
}

pub fn objects(bucket: &str, next: Option<&str>) -> Call {
    call("cos.ListObjectsV2", Lane::Read, object(bucket, object_store::list(next)), |_, body| {
        xml(body).map(Reply::Listing)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_change_something_are_fenced() {
        for call in [create_instance(json!({})), delete_floating_ip("f"), create_group("g"), delete_object("b", "k")] {
            assert!(call.is_mutating(), "{call:?}");
        }
        for call in [instances(None), groups(), objects("b", None), bucket_location("b")] {
            assert!(!call.is_mutating(), "{call:?}");
        }
    }

    #[test]
    fn bodies_are_not_shown() {
        let shown = format!("{:?}", create_instance(json!({"user_data": "hunter2"})));
        assert!(shown.contains("/instances") && !shown.contains("hunter2"), "{shown}");
    }
}
