//! The API requests of this driver as data, each with its statsd name, lane and deadline.

use std::collections::BTreeMap;

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
/// The same for a watch on a single object.
const EVENT_DURATION_S: u64 = 50;
/// Grace period of pods in seconds. The command of a generated pod is process 1 and ignores SIGTERM, so a deletion
/// would take 30.
pub const GRACE_PERIOD_S: u32 = 2;
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
    pub response: Response,
    /// The cluster forbids what it hides: 403 is no error of the configuration.
    pub is_hidden_if_forbidden: bool,
}

/// Form of the response to a successful call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    Object,
    /// A stream of changes of these objects; the first one replaces those of an earlier watch.
    Stream {
        source: Source,
        is_first: bool,
    },
    /// The next event of a watch on a single object.
    Event,
}

/// The response to a call.
#[derive(Debug)]
pub enum Reply {
    Object(Value),
    Rejected(Rejection),
    /// The watch is open.
    Watching,
    /// An event of a watch on a single object; `None` if nothing happened during the call.
    Event(Option<Value>),
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
    /// Format of the body.
    pub fn content_type(&self) -> &'static str {
        if self.method == Method::PATCH { "application/merge-patch+json" } else { "application/json" }
    }

    /// The same call after a delay. Delayed calls do not count as in flight.
    pub fn after(self, delay: Seconds) -> Self {
        Self { delay, lane: if delay > Seconds::ZERO { Lane::Bulk } else { self.lane }, ..self }
    }
}

fn call(key: &'static str, lane: Lane, method: Method, path: String, body: Option<Value>) -> Call {
    Call {
        key,
        lane,
        deadline: SHORT_DEADLINE,
        delay: Seconds::ZERO,
        method,
        path,
        body,
        response: Response::Object,
        is_hidden_if_forbidden: false,
    }
}

fn creation(key: &'static str, path: String, body: Value) -> Call {
    call(key, Lane::Change, Method::POST, path, Some(body))
}

fn read(key: &'static str, path: String) -> Call {
    call(key, Lane::Change, Method::GET, path, None)
}

const NAMESPACES: &str = "/api/v1/namespaces";
const PROJECTS: &str = "/apis/project.openshift.io/v1/projects";
const PROJECT_REQUESTS: &str = "/apis/project.openshift.io/v1/projectrequests";

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

pub fn request_project(body: Value) -> Call {
    creation("projectrequests.create", PROJECT_REQUESTS.to_owned(), body)
}

/// OpenShift forbids its users all projects but their own, also those that do not exist, and their own ones as soon as
/// they are being deleted.
pub fn project(name: &str) -> Call {
    Call { is_hidden_if_forbidden: true, ..read("projects.get", format!("{PROJECTS}/{name}")) }
}

pub fn delete_project(name: &str) -> Call {
    let call = call("projects.delete", Lane::Change, Method::DELETE, format!("{PROJECTS}/{name}"), None);
    Call { is_hidden_if_forbidden: true, ..call }
}

/// All projects that the account may see.
pub fn visible_projects() -> Call {
    call("projects.list", Lane::Read, Method::GET, PROJECTS.to_owned(), None)
}

/// Changes labels of a namespace; the others stay.
pub fn label_namespace(name: &str, labels: &BTreeMap<String, String>) -> Call {
    let body = json!({"metadata": {"labels": labels}});
    call("namespaces.patch", Lane::Change, Method::PATCH, format!("{NAMESPACES}/{name}"), Some(body))
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

/// A role binding in OpenShift's own, older form.
pub fn create_project_role_binding(project: &str) -> Call {
    let path = format!("/apis/authorization.openshift.io/v1/namespaces/{project}/rolebindings");
    creation("rolebindings.create", path, objects::project_role_binding(project))
}

pub fn create_pod(namespace: &str, body: Value) -> Call {
    creation("pods.create", format!("{NAMESPACES}/{namespace}/pods"), body)
}

pub fn pod(namespace: &str, name: &str) -> Call {
    read("pods.get", format!("{NAMESPACES}/{namespace}/pods/{name}"))
}

/// The same in a project that may be hidden.
pub fn pod_if_visible(project: &str, name: &str) -> Call {
    Call { is_hidden_if_forbidden: true, ..pod(project, name) }
}

pub fn delete_pod(namespace: &str, name: &str) -> Call {
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": GRACE_PERIOD_S});
    let path = format!("{NAMESPACES}/{namespace}/pods/{name}");
    let call = call("pods.delete", Lane::Change, Method::DELETE, path, Some(options));
    Call { is_hidden_if_forbidden: true, ..call }
}

/// The quotas of a project of its own.
pub fn resource_quotas(project: &str) -> Call {
    quota("resourcequotas.list", format!("{NAMESPACES}/{project}/resourcequotas"))
}

/// The quotas of several projects that apply to this one.
pub fn applied_quotas(project: &str) -> Call {
    let path = format!("/apis/quota.openshift.io/v1/namespaces/{project}/appliedclusterresourcequotas");
    quota("appliedclusterresourcequotas.list", path)
}

fn quota(key: &'static str, path: String) -> Call {
    call(key, Lane::Read, Method::GET, path, None)
}

/// Waits for a change of a pod after this version; without one, the first event shows the pod as it is. Like all long
/// calls, it does not count as in flight.
pub fn pod_event(namespace: &str, name: &str, version: Option<&str>) -> Call {
    let mut query = watch_query(EVENT_DURATION_S, version);
    query.append_pair("fieldSelector", &format!("metadata.name={name}"));
    let path = format!("{NAMESPACES}/{namespace}/pods?{}", query.finish());
    let deadline = Seconds(EVENT_DURATION_S as f64 + SHORT_DEADLINE.0);
    Call { response: Response::Event, deadline, ..call("pods.watch", Lane::Bulk, Method::GET, path, None) }
}

/// A list of objects that inventories consist of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    Namespaces,
    /// The projects that the account may see.
    Projects,
    /// The pods of all namespaces.
    Pods,
    /// The pods of one project.
    PodsOf(String),
}

impl Source {
    fn path(&self) -> String {
        match self {
            Source::Namespaces => NAMESPACES.to_owned(),
            Source::Projects => PROJECTS.to_owned(),
            Source::Pods => "/api/v1/pods".to_owned(),
            Source::PodsOf(project) => format!("{NAMESPACES}/{project}/pods"),
        }
    }

    /// Whether our objects have our labels. OpenShift does not copy those of a request to the project.
    fn has_labels(&self) -> bool {
        *self != Source::Projects
    }

    /// Whether the provider goes on without these objects if the account may not see them.
    pub fn is_one_of_several(&self) -> bool {
        matches!(self, Source::PodsOf(_))
    }

    /// Whether a watch continues from the version of a list. OpenShift's watch of projects knows no versions but 0, for
    /// which it begins with all projects.
    pub fn has_versions(&self) -> bool {
        *self != Source::Projects
    }
}

fn watch_query(duration_s: u64, version: Option<&str>) -> form_urlencoded::Serializer<'static, String> {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("watch", "1").append_pair("timeoutSeconds", &duration_s.to_string());
    if let Some(version) = version {
        query.append_pair("resourceVersion", version);
    }
    query
}

/// Changes of the objects with this label after a version.
pub fn watch(source: &Source, selector: &str, version: &str, is_first: bool) -> Call {
    let key = match source {
        Source::Namespaces => "namespaces.watch",
        Source::Projects => "projects.watch",
        Source::Pods | Source::PodsOf(_) => "pods.watch",
    };
    let mut query = watch_query(WATCH_DURATION_S, Some(version));
    query.append_pair("allowWatchBookmarks", "true");
    if source.has_labels() {
        query.append_pair("labelSelector", selector);
    }
    let path = format!("{}?{}", source.path(), query.finish());
    Call {
        response: Response::Stream { source: source.clone(), is_first },
        ..call(key, Lane::Read, Method::GET, path, None)
    }
}

/// One page of the objects with this label.
pub fn list(source: &Source, selector: &str, next: Option<&str>) -> Call {
    let key = match source {
        Source::Namespaces => "namespaces.list",
        Source::Projects => "projects.list",
        Source::Pods | Source::PodsOf(_) => "pods.list",
    };
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("limit", &PAGE_SIZE.to_string());
    if source.has_labels() {
        query.append_pair("labelSelector", selector);
    }
    if let Some(next) = next {
        query.append_pair("continue", next);
    }
    let path = format!("{}?{}", source.path(), query.finish());
    Call { deadline: LIST_DEADLINE, ..call(key, Lane::Read, Method::GET, path, None) }
}
