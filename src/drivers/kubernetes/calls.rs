//! The API requests of this driver as data, each with its statsd name, lane and deadline.

use http::Method;
use serde_json::{Value, json};

use super::errors::Rejection;
use super::objects::{self, USER};
use nodepool_driver::driver::ApiCall;
use nodepool_driver::state_machine::Lane;
use nodepool_model::records::time::Seconds;

/// Objects of one page of a list.
const PAGE_SIZE: u32 = 500;
/// The cluster ends a watch after this time, and another one continues it.
pub const WATCH_DURATION_S: u64 = 300;
const SHORT_DEADLINE: Seconds = Seconds(30.0);
const LIST_DEADLINE: Seconds = Seconds(60.0);

#[derive(Clone, Debug)]
pub struct Call {
    key: &'static str,
    lane: Lane,
    deadline: Seconds,
    /// Delay before the request is sent.
    pub delay: Seconds,
    pub method: Method,
    pub path: String,
    pub body: Option<Value>,
    /// The response is a stream of changes of this kind.
    pub watches: Option<Kind>,
}

/// The response to a call.
#[derive(Debug)]
pub enum Reply {
    Object(Value),
    Rejected(Rejection),
    /// The watch is open.
    Watching,
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
        self.method != Method::GET
    }

    fn deadline(&self) -> Seconds {
        Seconds(self.deadline.0 + self.delay.0)
    }
}

impl Call {
    /// The same call after a delay. Delayed calls do not count as in flight.
    pub fn after(self, delay: Seconds) -> Self {
        Self { delay, lane: if delay > Seconds::ZERO { Lane::Bulk } else { self.lane }, ..self }
    }
}

fn call(key: &'static str, lane: Lane, method: Method, path: String, body: Option<Value>) -> Call {
    Call { key, lane, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, method, path, body, watches: None }
}

fn creation(key: &'static str, path: String, body: Value) -> Call {
    call(key, Lane::Change, Method::POST, path, Some(body))
}

fn read(key: &'static str, path: String) -> Call {
    call(key, Lane::Change, Method::GET, path, None)
}

const NAMESPACES: &str = "/api/v1/namespaces";

pub fn create_namespace(body: Value) -> Call {
    creation("namespaces.create", NAMESPACES.to_owned(), body)
}

pub fn namespace(name: &str) -> Call {
    read("namespaces.get", format!("{NAMESPACES}/{name}"))
}

pub fn delete_namespace(name: &str) -> Call {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"});
    call("namespaces.delete", Lane::Change, Method::DELETE, format!("{NAMESPACES}/{name}"), Some(options))
}

pub fn create_service_account(namespace: &str) -> Call {
    let path = format!("{NAMESPACES}/{namespace}/serviceaccounts");
    creation("serviceaccounts.create", path, objects::service_account())
}

pub fn create_secret(namespace: &str) -> Call {
    creation("secrets.create", format!("{NAMESPACES}/{namespace}/secrets"), objects::token_secret())
}

pub fn secret(namespace: &str) -> Call {
    read("secrets.get", format!("{NAMESPACES}/{namespace}/secrets/{USER}"))
}

pub fn create_role(namespace: &str, body: Value) -> Call {
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles");
    creation("roles.create", path, body)
}

pub fn create_role_binding(namespace: &str, body: Value) -> Call {
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings");
    creation("rolebindings.create", path, body)
}

pub fn create_pod(namespace: &str, body: Value) -> Call {
    creation("pods.create", format!("{NAMESPACES}/{namespace}/pods"), body)
}

pub fn pod(namespace: &str, name: &str) -> Call {
    read("pods.get", format!("{NAMESPACES}/{namespace}/pods/{name}"))
}

/// Kinds of objects that inventories consist of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Namespaces,
    Pods,
}

impl Kind {
    fn path(self) -> &'static str {
        match self {
            Kind::Namespaces => NAMESPACES,
            Kind::Pods => "/api/v1/pods",
        }
    }
}

/// Changes of the objects with this label after a version.
pub fn watch(kind: Kind, selector: &str, version: &str) -> Call {
    let key = match kind {
        Kind::Namespaces => "namespaces.watch",
        Kind::Pods => "pods.watch",
    };
    let mut query = form_urlencoded::Serializer::new(String::new());
    query
        .append_pair("watch", "1")
        .append_pair("allowWatchBookmarks", "true")
        .append_pair("timeoutSeconds", &WATCH_DURATION_S.to_string())
        .append_pair("labelSelector", selector)
        .append_pair("resourceVersion", version);
    let path = format!("{}?{}", kind.path(), query.finish());
    Call { watches: Some(kind), ..call(key, Lane::Read, Method::GET, path, None) }
}

/// One page of the objects with this label, of all namespaces.
pub fn list(kind: Kind, selector: &str, next: Option<&str>) -> Call {
    let key = match kind {
        Kind::Namespaces => "namespaces.list",
        Kind::Pods => "pods.list",
    };
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("labelSelector", selector).append_pair("limit", &PAGE_SIZE.to_string());
    if let Some(next) = next {
        query.append_pair("continue", next);
    }
    let path = format!("{}?{}", kind.path(), query.finish());
    Call { deadline: LIST_DEADLINE, ..call(key, Lane::Read, Method::GET, path, None) }
}
