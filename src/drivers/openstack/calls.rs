//! The API requests of this driver, each with its statsd name, lane and deadline.

use std::borrow::Cow;
use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::api_types::{FloatingIp, Server, ServerIdPage, ServersPage};
use super::http::{Api, PROJECT, Request, Services};
use super::jobs::image_stream::Content;
use nodepool_driver::driver::ApiCall;
use nodepool_driver::error::CloudError;
use nodepool_driver::state_machine::Lane;
use nodepool_model::records::time::Seconds;

/// Entries of one page; the default maximum of Nova.
pub const PAGE_SIZE: usize = 1000;

#[derive(Clone, Debug)]
pub struct Call {
    key: &'static str,
    lane: Lane,
    deadline: Seconds,
    /// Delay before the request is sent.
    pub delay: Seconds,
    pub kind: CallKind,
}

#[derive(Clone, Debug)]
pub enum CallKind {
    /// Discovers the services, and Nova's newest microversion.
    Discover,
    Send(Box<Request>, ResponseKind),
}

/// Expected format of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseKind {
    Servers,
    OneServer,
    ServerIds,
    Json,
    /// The same, for a creation whose response may be lost.
    Created,
    Nothing,
}

#[derive(Debug)]
pub enum Reply {
    Discovered(Services),
    Servers(ServersPage),
    ServerIds(ServerIdPage),
    Server(Box<Server>),
    Json(Value),
    Nothing,
    /// A creation that may have been executed although there is no response.
    ResponseLost(CloudError),
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        self.key
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn is_mutating(&self) -> bool {
        matches!(&self.kind, CallKind::Send(request, _) if request.method != Method::GET)
    }

    fn deadline(&self) -> Seconds {
        self.deadline
    }
}

const SHORT_DEADLINE: Seconds = Seconds(60.0);
/// A busy cloud needs a long time for a page of a thousand servers with their ports.
const LIST_DEADLINE: Seconds = Seconds(120.0);
/// A transfer may continue as long as it makes progress; `image_stream` detects a stalled one.
const TRANSFER_DEADLINE: Seconds = Seconds(72_000.0);

pub fn discover() -> Call {
    Call {
        key: "identity.GET.discovery",
        lane: Lane::Read,
        deadline: SHORT_DEADLINE,
        delay: Seconds::ZERO,
        kind: CallKind::Discover,
    }
}

/// A kind of listing: its path, and the key of its entries in the response.
#[derive(Clone, Copy, Debug)]
pub struct ListKind {
    pub key: &'static str,
    pub api: Api,
    pub path: &'static [&'static str],
    /// The key of the list in the response.
    pub list: &'static str,
}

pub const SERVERS: ListKind =
    ListKind { key: "compute.GET.servers.detail", api: Api::Compute, path: &["servers", "detail"], list: "servers" };
/// The same with ids, names and links only.
pub const SERVER_IDS: ListKind =
    ListKind { key: "compute.GET.servers", api: Api::Compute, path: &["servers"], list: "servers" };
pub const FLAVORS: ListKind =
    ListKind { key: "compute.GET.flavors.detail", api: Api::Compute, path: &["flavors", "detail"], list: "flavors" };
pub const NETWORKS: ListKind =
    ListKind { key: "network.GET.networks", api: Api::Network, path: &["networks"], list: "networks" };
pub const SUBNETS: ListKind =
    ListKind { key: "network.GET.subnets", api: Api::Network, path: &["subnets"], list: "subnets" };
pub const ROUTERS: ListKind =
    ListKind { key: "network.GET.routers", api: Api::Network, path: &["routers"], list: "routers" };
pub const SECURITY_GROUPS: ListKind = ListKind {
    key: "network.GET.security-groups",
    api: Api::Network,
    path: &["security-groups"],
    list: "security_groups",
};
pub const PORTS: ListKind = ListKind { key: "network.GET.ports", api: Api::Network, path: &["ports"], list: "ports" };
pub const FLOATING_IPS: ListKind =
    ListKind { key: "network.GET.floatingips", api: Api::Network, path: &["floatingips"], list: "floatingips" };
pub const VOLUMES: ListKind = ListKind {
    key: "block-storage.GET.volumes.detail",
    api: Api::BlockStorage,
    path: &["volumes", "detail"],
    list: "volumes",
};
pub const IMAGES: ListKind = ListKind { key: "image.GET.images", api: Api::Image, path: &["images"], list: "images" };

impl ListKind {
    /// Whether requests name the size of a page. Neutron lists everything without it, or announces the next page. With
    /// it, some clouds limit before they filter, or ignore the marker.
    pub fn is_paged(&self) -> bool {
        self.api != Api::Network
    }

    /// The call for one page: the entries after `marker`.
    pub fn page(&self, marker: Option<&str>, filters: &[(&'static str, &str)]) -> Call {
        let mut query: Vec<_> =
            self.is_paged().then(|| (Cow::Borrowed("limit"), PAGE_SIZE.to_string())).into_iter().collect();
        query.extend(filters.iter().map(|(key, value)| (Cow::Borrowed(*key), (*value).to_owned())));
        query.extend(marker.map(|marker| (Cow::Borrowed("marker"), marker.to_owned())));
        let request = Request { query, ..Request::new(self.api, Method::GET, self.path) };
        let shape = match self.path {
            path if path == SERVERS.path => ResponseKind::Servers,
            path if path == SERVER_IDS.path => ResponseKind::ServerIds,
            _ => ResponseKind::Json,
        };
        Call {
            key: self.key,
            lane: Lane::Read,
            deadline: LIST_DEADLINE,
            delay: Seconds::ZERO,
            kind: CallKind::Send(Box::new(request), shape),
        }
    }
}

fn read(key: &'static str, api: Api, path: &[&str]) -> Call {
    let request = Box::new(Request::new(api, Method::GET, path));
    Call {
        key,
        lane: Lane::Read,
        deadline: SHORT_DEADLINE,
        delay: Seconds::ZERO,
        kind: CallKind::Send(request, ResponseKind::Json),
    }
}

fn mutation(key: &'static str, request: Request, shape: ResponseKind) -> Call {
    Call {
        key,
        lane: Lane::Change,
        deadline: SHORT_DEADLINE,
        delay: Seconds::ZERO,
        kind: CallKind::Send(Box::new(request), shape),
    }
}

fn creation(key: &'static str, request: Request) -> Call {
    mutation(key, Request { creates: true, ..request }, ResponseKind::Created)
}

pub fn zones() -> Call {
    read("compute.GET.os-availability-zone", Api::Compute, &["os-availability-zone"])
}

pub fn compute_limits() -> Call {
    read("compute.GET.limits", Api::Compute, &["limits"])
}

pub fn volume_limits() -> Call {
    read("block-storage.GET.limits", Api::BlockStorage, &["limits"])
}

/// Limits and usage of the project's network resources.
pub fn network_quota() -> Call {
    read("network.GET.quota.details", Api::Network, &["quotas", PROJECT, "details"])
}

pub fn image(id: &str) -> Call {
    read("image.GET.image", Api::Image, &["images", id])
}

/// The same after a delay, for an image that is not active yet.
pub fn image_after(id: &str, delay: Seconds) -> Call {
    Call { lane: Lane::Bulk, deadline: Seconds(SHORT_DEADLINE.0 + delay.0), delay, ..image(id) }
}

/// Images with these properties. There are few of them, so one page suffices.
pub fn images_with(properties: &BTreeMap<String, String>, delay: Seconds) -> Call {
    let mut request = Request::new(IMAGES.api, Method::GET, IMAGES.path);
    request.query = properties.iter().map(|(key, value)| (Cow::Owned(key.clone()), value.clone())).collect();
    let kind = CallKind::Send(Box::new(request), ResponseKind::Json);
    Call { key: IMAGES.key, lane: Lane::Bulk, deadline: Seconds(SHORT_DEADLINE.0 + delay.0), delay, kind }
}

pub fn create_image(image: Value) -> Call {
    let request = Request { body: Some(image), ..Request::new(Api::Image, Method::POST, &["images"]) };
    creation("image.POST.images", request)
}

/// Sends the content of an image from a file.
pub fn send_image(id: &str, content: Content) -> Call {
    let request = Request { content: Some(content), ..Request::new(Api::Image, Method::PUT, &["images", id, "file"]) };
    let kind = CallKind::Send(Box::new(request), ResponseKind::Nothing);
    Call { key: "image.PUT.image.file", lane: Lane::Bulk, deadline: TRANSFER_DEADLINE, delay: Seconds::ZERO, kind }
}

/// Changes the properties of an image by a JSON patch.
pub fn update_image(id: &str, changes: Value) -> Call {
    let headers = vec![("content-type", "application/openstack-images-v2.1-json-patch".to_owned())];
    let request = Request { body: Some(changes), headers, ..Request::new(Api::Image, Method::PATCH, &["images", id]) };
    mutation("image.PATCH.image", request, ResponseKind::Nothing)
}

pub fn create_task(task: Value) -> Call {
    let request = Request { body: Some(task), ..Request::new(Api::Image, Method::POST, &["tasks"]) };
    creation("image.POST.tasks", request)
}

pub fn task_after(id: &str, delay: Seconds) -> Call {
    let call = read("image.GET.task", Api::Image, &["tasks", id]);
    Call { lane: Lane::Bulk, deadline: Seconds(SHORT_DEADLINE.0 + delay.0), delay, ..call }
}

pub fn put_container(name: &str) -> Call {
    mutation("object-store.PUT.container", Request::new(Api::ObjectStore, Method::PUT, &[name]), ResponseKind::Nothing)
}

/// Stores an object that expires after a day.
pub fn put_object(container: &str, name: &str, content: Content, sums: Vec<(&'static str, String)>) -> Call {
    let own = [("x-delete-after", "86400".to_owned()), ("x-object-meta-x-sdk-autocreated", "true".to_owned())];
    let request = Request {
        content: Some(content),
        headers: own.into_iter().chain(sums).collect(),
        ..Request::new(Api::ObjectStore, Method::PUT, &object_path(container, name))
    };
    let kind = CallKind::Send(Box::new(request), ResponseKind::Nothing);
    Call { key: "object-store.PUT.object", lane: Lane::Bulk, deadline: TRANSFER_DEADLINE, delay: Seconds::ZERO, kind }
}

/// Stores a manifest that joins segments into one object.
pub fn put_manifest(container: &str, name: &str, segments: Vec<Value>) -> Call {
    let request = Request {
        query: vec![(Cow::Borrowed("multipart-manifest"), "put".to_owned())],
        body: Some(segments.into()),
        headers: vec![("x-delete-after", "86400".to_owned())],
        ..Request::new(Api::ObjectStore, Method::PUT, &object_path(container, name))
    };
    mutation("object-store.PUT.object", request, ResponseKind::Nothing)
}

/// Deletes an object, with its segments if it has any.
pub fn delete_object(container: &str, name: &str, is_segmented: bool) -> Call {
    let query = is_segmented.then(|| (Cow::Borrowed("multipart-manifest"), "delete".to_owned()));
    let request = Request {
        query: query.into_iter().collect(),
        ..Request::new(Api::ObjectStore, Method::DELETE, &object_path(container, name))
    };
    mutation("object-store.DELETE.object", request, ResponseKind::Nothing)
}

/// The name may contain slashes.
fn object_path<'a>(container: &'a str, name: &'a str) -> Vec<&'a str> {
    std::iter::once(container).chain(name.split('/')).collect()
}

pub fn delete_image(id: &str) -> Call {
    mutation("image.DELETE.image", Request::new(Api::Image, Method::DELETE, &["images", id]), ResponseKind::Nothing)
}

/// A launch waits for the reply, so the lane is `Change`.
pub fn server(id: &str) -> Call {
    let request = Box::new(Request::new(Api::Compute, Method::GET, &["servers", id]));
    let kind = CallKind::Send(request, ResponseKind::OneServer);
    Call { key: "compute.GET.server", lane: Lane::Change, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, kind }
}

/// The same in the lane `Read`, because no launch waits for the reply.
pub fn server_exists(id: &str) -> Call {
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
    creation("compute.POST.servers", request)
}

pub fn console(server: &str) -> Call {
    let request = Request {
        body: Some(json!({"os-getConsoleOutput": {}})),
        ..Request::new(Api::Compute, Method::POST, &["servers", server, "action"])
    };
    mutation("compute.POST.server.action", request, ResponseKind::Json)
}

pub fn delete_server(id: &str) -> Call {
    mutation(
        "compute.DELETE.server",
        Request::new(Api::Compute, Method::DELETE, &["servers", id]),
        ResponseKind::Nothing,
    )
}

pub fn ports_of(server: &str) -> Call {
    Call { lane: Lane::Change, ..PORTS.page(None, &[("device_id", server)]) }
}

/// Selection of floating addresses.
#[derive(Clone, Debug)]
pub enum FloatingIpFilter {
    Address(String),
    /// The id of the port that they are associated with.
    Port(String),
}

impl FloatingIpFilter {
    /// Whether the cloud has selected this one rightly. Some clouds ignore filters and list everything.
    pub fn matches(&self, floating_ip: &FloatingIp) -> bool {
        match self {
            FloatingIpFilter::Address(address) => floating_ip.floating_ip_address == *address,
            FloatingIpFilter::Port(port) => floating_ip.port_id.as_ref() == Some(port),
        }
    }
}

pub fn floating_ips(filter: &FloatingIpFilter) -> Call {
    let filter = match filter {
        FloatingIpFilter::Address(address) => ("floating_ip_address", address.as_str()),
        FloatingIpFilter::Port(port) => ("port_id", port.as_str()),
    };
    Call { lane: Lane::Change, ..FLOATING_IPS.page(None, &[filter]) }
}

pub fn delete_port(id: &str) -> Call {
    mutation("network.DELETE.port", Request::new(Api::Network, Method::DELETE, &["ports", id]), ResponseKind::Nothing)
}

pub fn create_floating_ip(floating_ip: Value) -> Call {
    let request = Request {
        body: Some(json!({ "floatingip": floating_ip })),
        ..Request::new(Api::Network, Method::POST, &["floatingips"])
    };
    creation("network.POST.floatingips", request)
}

pub fn floating_ip(id: &str) -> Call {
    read("network.GET.floatingip", Api::Network, &["floatingips", id])
}

pub fn delete_floating_ip(id: &str) -> Call {
    mutation(
        "network.DELETE.floatingip",
        Request::new(Api::Network, Method::DELETE, &["floatingips", id]),
        ResponseKind::Nothing,
    )
}
