//! The API requests that this driver makes, each with its name for statsd, its lane and its deadline.

use std::borrow::Cow;
use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::api_types::{Roll, Server, ServersPage};
use super::http::{Api, PROJECT, Request, Services};
use super::jobs::image_stream::Content;
use nodepool_driver::driver::ApiCall;
use nodepool_driver::error::CloudError;
use nodepool_driver::state_machine::Lane;
use nodepool_model::records::time::Seconds;

/// Entries of one page; what Nova allows unless it is configured otherwise.
pub const PAGE_SIZE: usize = 1000;

#[derive(Clone, Debug)]
pub struct Call {
    key: &'static str,
    lane: Lane,
    deadline: Seconds,
    /// Waited before it is sent.
    pub delay: Seconds,
    pub what: What,
}

#[derive(Clone, Debug)]
pub enum What {
    /// Which services there are, and Nova's newest microversion.
    Discover,
    Send(Box<Request>, Shape),
}

/// What an answer is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Servers,
    OneServer,
    Roll,
    Json,
    /// The same, for a creation whose answer may be lost.
    Created,
    Nothing,
}

#[derive(Debug)]
pub enum Reply {
    Discovered(Services),
    Servers(ServersPage),
    Roll(Roll),
    Server(Box<Server>),
    Json(Value),
    Nothing,
    /// A creation that may have been carried out though there is no answer to it.
    Lost(CloudError),
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        self.key
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn changes(&self) -> bool {
        matches!(&self.what, What::Send(request, _) if request.method != Method::GET)
    }

    fn deadline(&self) -> Seconds {
        self.deadline
    }
}

const SHORT_DEADLINE: Seconds = Seconds(60.0);
/// A page of a thousand servers with their ports takes a busy cloud long.
const LIST_DEADLINE: Seconds = Seconds(120.0);
/// As long as bytes move, an image may take its time; whether they do is watched where they are sent.
const TRANSFER_DEADLINE: Seconds = Seconds(72_000.0);

pub fn discover() -> Call {
    Call { key: "identity.GET.discovery", lane: Lane::Read, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, what: What::Discover }
}

/// A listing, one page of it: the entries after `marker`.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    pub key: &'static str,
    pub api: Api,
    pub path: &'static [&'static str],
    /// The key of the list in the answer.
    pub list: &'static str,
}

pub const SERVERS: Listing =
    Listing { key: "compute.GET.servers.detail", api: Api::Compute, path: &["servers", "detail"], list: "servers" };
/// The same with nothing but ids, names and links.
pub const ROLL: Listing =
    Listing { key: "compute.GET.servers", api: Api::Compute, path: &["servers"], list: "servers" };
pub const FLAVORS: Listing =
    Listing { key: "compute.GET.flavors.detail", api: Api::Compute, path: &["flavors", "detail"], list: "flavors" };
pub const NETWORKS: Listing =
    Listing { key: "network.GET.networks", api: Api::Network, path: &["networks"], list: "networks" };
pub const SUBNETS: Listing =
    Listing { key: "network.GET.subnets", api: Api::Network, path: &["subnets"], list: "subnets" };
pub const ROUTERS: Listing =
    Listing { key: "network.GET.routers", api: Api::Network, path: &["routers"], list: "routers" };
pub const PORTS: Listing = Listing { key: "network.GET.ports", api: Api::Network, path: &["ports"], list: "ports" };
pub const FLOATING_IPS: Listing =
    Listing { key: "network.GET.floatingips", api: Api::Network, path: &["floatingips"], list: "floatingips" };
pub const VOLUMES: Listing = Listing {
    key: "block-storage.GET.volumes.detail",
    api: Api::BlockStorage,
    path: &["volumes", "detail"],
    list: "volumes",
};
pub const IMAGES: Listing = Listing { key: "image.GET.images", api: Api::Image, path: &["images"], list: "images" };

impl Listing {
    pub fn page(&self, marker: Option<&str>, filters: &[(&'static str, &str)]) -> Call {
        let mut query = vec![(Cow::Borrowed("limit"), PAGE_SIZE.to_string())];
        query.extend(filters.iter().map(|(key, value)| (Cow::Borrowed(*key), (*value).to_owned())));
        query.extend(marker.map(|marker| (Cow::Borrowed("marker"), marker.to_owned())));
        let request = Request { query, ..Request::new(self.api, Method::GET, self.path) };
        let shape = match self.path {
            path if path == SERVERS.path => Shape::Servers,
            path if path == ROLL.path => Shape::Roll,
            _ => Shape::Json,
        };
        Call {
            key: self.key,
            lane: Lane::Read,
            deadline: LIST_DEADLINE,
            delay: Seconds::ZERO,
            what: What::Send(Box::new(request), shape),
        }
    }
}

fn look(key: &'static str, api: Api, path: &[&str]) -> Call {
    let request = Box::new(Request::new(api, Method::GET, path));
    Call { key, lane: Lane::Read, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, what: What::Send(request, Shape::Json) }
}

fn change(key: &'static str, request: Request, shape: Shape) -> Call {
    Call { key, lane: Lane::Change, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, what: What::Send(Box::new(request), shape) }
}

fn create(key: &'static str, request: Request) -> Call {
    change(key, Request { creates: true, ..request }, Shape::Created)
}

pub fn zones() -> Call {
    look("compute.GET.os-availability-zone", Api::Compute, &["os-availability-zone"])
}

pub fn compute_limits() -> Call {
    look("compute.GET.limits", Api::Compute, &["limits"])
}

pub fn volume_limits() -> Call {
    look("block-storage.GET.limits", Api::BlockStorage, &["limits"])
}

/// What the project may have of the network's resources, and has.
pub fn network_quota() -> Call {
    look("network.GET.quota.details", Api::Network, &["quotas", PROJECT, "details"])
}

pub fn image(id: &str) -> Call {
    look("image.GET.image", Api::Image, &["images", id])
}

/// The same after a while, for an image that is not ready yet.
pub fn image_after(id: &str, delay: Seconds) -> Call {
    Call { lane: Lane::Bulk, deadline: Seconds(SHORT_DEADLINE.0 + delay.0), delay, ..image(id) }
}

/// Images with these properties. There are few of them, so one page is enough.
pub fn images_with(properties: &BTreeMap<String, String>, delay: Seconds) -> Call {
    let mut request = Request::new(IMAGES.api, Method::GET, IMAGES.path);
    request.query = properties.iter().map(|(key, value)| (Cow::Owned(key.clone()), value.clone())).collect();
    let what = What::Send(Box::new(request), Shape::Json);
    Call { key: IMAGES.key, lane: Lane::Bulk, deadline: Seconds(SHORT_DEADLINE.0 + delay.0), delay, what }
}

pub fn create_image(image: Value) -> Call {
    let request = Request { body: Some(image), ..Request::new(Api::Image, Method::POST, &["images"]) };
    create("image.POST.images", request)
}

/// The content of an image, from a file.
pub fn send_image(id: &str, content: Content) -> Call {
    let request = Request { content: Some(content), ..Request::new(Api::Image, Method::PUT, &["images", id, "file"]) };
    let what = What::Send(Box::new(request), Shape::Nothing);
    Call { key: "image.PUT.image.file", lane: Lane::Bulk, deadline: TRANSFER_DEADLINE, delay: Seconds::ZERO, what }
}

/// What an image is said to be, as a list of changes.
pub fn describe_image(id: &str, changes: Value) -> Call {
    let headers = vec![("content-type", "application/openstack-images-v2.1-json-patch".to_owned())];
    let request = Request { body: Some(changes), headers, ..Request::new(Api::Image, Method::PATCH, &["images", id]) };
    change("image.PATCH.image", request, Shape::Nothing)
}

pub fn create_task(task: Value) -> Call {
    let request = Request { body: Some(task), ..Request::new(Api::Image, Method::POST, &["tasks"]) };
    create("image.POST.tasks", request)
}

pub fn task_after(id: &str, delay: Seconds) -> Call {
    let call = look("image.GET.task", Api::Image, &["tasks", id]);
    Call { lane: Lane::Bulk, deadline: Seconds(SHORT_DEADLINE.0 + delay.0), delay, ..call }
}

pub fn put_container(name: &str) -> Call {
    change("object-store.PUT.container", Request::new(Api::ObjectStore, Method::PUT, &[name]), Shape::Nothing)
}

/// It goes by itself after a day.
pub fn put_object(container: &str, name: &str, content: Content, sums: Vec<(&'static str, String)>) -> Call {
    let own = [("x-delete-after", "86400".to_owned()), ("x-object-meta-x-sdk-autocreated", "true".to_owned())];
    let request = Request {
        content: Some(content),
        headers: own.into_iter().chain(sums).collect(),
        ..Request::new(Api::ObjectStore, Method::PUT, &object(container, name))
    };
    let what = What::Send(Box::new(request), Shape::Nothing);
    Call { key: "object-store.PUT.object", lane: Lane::Bulk, deadline: TRANSFER_DEADLINE, delay: Seconds::ZERO, what }
}

/// One object of many.
pub fn put_manifest(container: &str, name: &str, segments: Vec<Value>) -> Call {
    let request = Request {
        query: vec![(Cow::Borrowed("multipart-manifest"), "put".to_owned())],
        body: Some(segments.into()),
        headers: vec![("x-delete-after", "86400".to_owned())],
        ..Request::new(Api::ObjectStore, Method::PUT, &object(container, name))
    };
    change("object-store.PUT.object", request, Shape::Nothing)
}

/// With the others that it is made of, if it is.
pub fn delete_object(container: &str, name: &str, is_segmented: bool) -> Call {
    let query = is_segmented.then(|| (Cow::Borrowed("multipart-manifest"), "delete".to_owned()));
    let request = Request {
        query: query.into_iter().collect(),
        ..Request::new(Api::ObjectStore, Method::DELETE, &object(container, name))
    };
    change("object-store.DELETE.object", request, Shape::Nothing)
}

/// A name may have slashes in it.
fn object<'a>(container: &'a str, name: &'a str) -> Vec<&'a str> {
    std::iter::once(container).chain(name.split('/')).collect()
}

pub fn delete_image(id: &str) -> Call {
    change("image.DELETE.image", Request::new(Api::Image, Method::DELETE, &["images", id]), Shape::Nothing)
}

/// Somebody waits for it.
pub fn server(id: &str) -> Call {
    let request = Box::new(Request::new(Api::Compute, Method::GET, &["servers", id]));
    let what = What::Send(request, Shape::OneServer);
    Call { key: "compute.GET.server", lane: Lane::Change, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, what }
}

/// The same where nobody waits for it.
pub fn is_there(id: &str) -> Call {
    Call { lane: Lane::Read, ..server(id) }
}

/// Servers of exactly this name.
pub fn servers_named(name: &str) -> Call {
    Call { lane: Lane::Change, ..SERVERS.page(None, &[("name", &format!("^{name}$"))]) }
}

pub fn create_server(server: Value, microversion: Option<(u16, u16)>) -> Call {
    let version = microversion.map(|(major, minor)| format!("{major}.{minor}"));
    let request = Request {
        body: Some(json!({ "server": server })),
        version,
        ..Request::new(Api::Compute, Method::POST, &["servers"])
    };
    create("compute.POST.servers", request)
}

pub fn console(server: &str) -> Call {
    let request = Request {
        body: Some(json!({"os-getConsoleOutput": {}})),
        ..Request::new(Api::Compute, Method::POST, &["servers", server, "action"])
    };
    change("compute.POST.server.action", request, Shape::Json)
}

pub fn delete_server(id: &str) -> Call {
    change("compute.DELETE.server", Request::new(Api::Compute, Method::DELETE, &["servers", id]), Shape::Nothing)
}

pub fn ports_of(server: &str) -> Call {
    Call { lane: Lane::Change, ..PORTS.page(None, &[("device_id", server)]) }
}

pub fn floating_ips_at(address: &str) -> Call {
    Call { lane: Lane::Change, ..FLOATING_IPS.page(None, &[("floating_ip_address", address)]) }
}

pub fn floating_ips_of(port: &str) -> Call {
    Call { lane: Lane::Change, ..FLOATING_IPS.page(None, &[("port_id", port)]) }
}

pub fn delete_port(id: &str) -> Call {
    change("network.DELETE.port", Request::new(Api::Network, Method::DELETE, &["ports", id]), Shape::Nothing)
}

pub fn create_floating_ip(floating_ip: Value) -> Call {
    let request = Request {
        body: Some(json!({ "floatingip": floating_ip })),
        ..Request::new(Api::Network, Method::POST, &["floatingips"])
    };
    create("network.POST.floatingips", request)
}

pub fn floating_ip(id: &str) -> Call {
    look("network.GET.floatingip", Api::Network, &["floatingips", id])
}

pub fn delete_floating_ip(id: &str) -> Call {
    change(
        "network.DELETE.floatingip",
        Request::new(Api::Network, Method::DELETE, &["floatingips", id]),
        Shape::Nothing,
    )
}
