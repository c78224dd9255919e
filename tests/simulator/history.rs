//! What was seen, in its order, held to the promises as it happens; and a digest of it, by which two runs are told apart.

#[path = "../history_checker/record_schema.rs"]
mod record_schema;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{
    LabelName, LauncherId, NodeId, PoolId, PoolName, ProviderName, RequestId, TenantName,
};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Timestamp;
use nodepool_policy::invariants::images::{ImageInvariantChecker, ImageObservation};
use nodepool_policy::invariants::nodes::{self, CloudObjectKey, InvariantChecker, Observation, Violation};
use nodepool_zk::paths;
use rustc_hash::{FxHashMap, FxHasher};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::configuration::{PROVIDERS, Participants};

/// Clones are the same book.
#[derive(Clone, Default)]
pub struct RunHistory(Arc<Mutex<RunState>>);

#[derive(Default)]
struct RunState {
    checker: InvariantChecker,
    images: ImageInvariantChecker,
    data: FxHashMap<String, Bytes>,
    /// As the files have them, and as the watcher was told.
    limits: BTreeMap<PoolId, usize>,
    reported_limits: BTreeMap<PoolId, usize>,
    violations: Vec<String>,
    digest: FxHasher,
    changes: u64,
    /// Each record is read as its other readers do.
    validates_every_record: bool,
    /// Of nodes and requests the gist is kept.
    keeps_checked_fields_only: bool,
    trace: Option<Vec<String>>,
}

impl RunHistory {
    /// One that remembers every line, to be read by people.
    pub fn with_trace() -> Self {
        let history = Self::default();
        history.0.lock().unwrap().trace = Some(Vec::new());
        history
    }

    /// Nobody asks for whole records: they are not read, which takes longer than all else here.
    pub fn keep_checked_fields_only(&self) {
        self.0.lock().unwrap().keeps_checked_fields_only = true;
    }

    /// Each record is read as its other readers do, not one in some.
    pub fn validate_every_record(&self) {
        self.0.lock().unwrap().validates_every_record = true;
    }

    pub fn observe(&self, observation: Observation<'_>) {
        let mut pages = self.0.lock().unwrap();
        if pages.trace.is_some() && !matches!(observation, Observation::Node(..) | Observation::Request(..)) {
            pages.trace_line(&format!("{observation:?}"));
        }
        let found = pages.checker.observe(observation);
        pages.record_violations(found);
    }

    pub fn observe_image(&self, sight: ImageObservation<'_>) {
        let mut pages = self.0.lock().unwrap();
        pages.trace_line(&format!("{sight:?}"));
        let found = pages.images.observe(sight);
        pages.record_violations(found);
    }

    /// Of what no watcher sees.
    pub fn report_violation(&self, violation: Violation) {
        self.0.lock().unwrap().record_violations(vec![violation]);
    }

    /// A change of a znode, or of its children.
    pub fn znode(&self, path: &str, data: Option<&Bytes>) {
        let mut pages = self.0.lock().unwrap();
        if pages.data.get(path) == data {
            return;
        }
        match data {
            Some(data) => pages.data.insert(path.to_owned(), data.clone()),
            None => pages.data.remove(path),
        };
        pages.changes += 1;
        (path, data.map(|data| &data[..])).hash(&mut pages.digest);
        let Some(rest) = path.strip_prefix("/nodepool/") else { return };
        if pages.trace.is_some() {
            let text = data.map_or("gone".into(), |data| String::from_utf8_lossy(data).into_owned());
            pages.trace_line(&format!("{rest} {text}"));
        }
        if (pages.validates_every_record || pages.changes.is_multiple_of(VALIDATE_ONE_IN))
            && let Some(data) = data
        {
            let found = unreadable(path, data);
            pages.record_violations(found);
        }
        let found = match paths::parse(path) {
            paths::ZnodePath::Node(id) => {
                let node = if pages.keeps_checked_fields_only {
                    record::<NodeFields>(data).map(Node::from)
                } else {
                    record(data)
                };
                pages.checker.observe(Observation::Node(&id, node.as_ref()))
            }
            paths::ZnodePath::Request(id) => {
                let checked_fields_only = pages.keeps_checked_fields_only;
                let request =
                    if checked_fields_only { record::<RequestFields>(data).map(From::from) } else { record(data) };
                pages.checker.observe(Observation::Request(&id, request.as_ref()))
            }
            paths::ZnodePath::NodeContender(id, name) => {
                pages.checker.observe(Observation::NodeContender(&id, &name, data.is_some()))
            }
            paths::ZnodePath::RequestContender(id, _) => {
                pages.checker.observe(Observation::RequestContender(&id, data.is_some()))
            }
            paths::ZnodePath::ImageBuild(image, build) => {
                let key = BuildKey { image, build };
                pages.images.observe(ImageObservation::Build(&key, record(data).as_ref()))
            }
            paths::ZnodePath::ImageUpload(key) => {
                pages.images.observe(ImageObservation::Upload(&key, record(data).as_ref()))
            }
            _ => Vec::new(),
        };
        pages.record_violations(found);
    }

    /// The nodes of this kind, as who follows all changes has them.
    pub fn nodes(&self, matches: impl Fn(&Node) -> bool) -> Vec<(NodeId, Node)> {
        let pages = self.0.lock().unwrap();
        let meant = pages.checker.nodes().iter().filter(|(_, node)| matches(node));
        meant.map(|(id, node)| (id.clone(), node.clone())).collect()
    }

    /// The same of requests, in the order in which they are served.
    pub fn requests(&self, matches: impl Fn(&NodeRequest) -> bool) -> Vec<(RequestId, NodeRequest)> {
        let pages = self.0.lock().unwrap();
        let meant = pages.checker.requests().iter().filter(|(_, request)| matches(request));
        meant.map(|(id, request)| (id.clone(), request.clone())).collect()
    }

    /// From now on no more servers than that; where it falls, a while later. The file may be written again with the same limit before
    /// that.
    pub fn limit(&self, pool: &PoolId, limit: usize, grace_period: Duration) {
        let (earlier, reported) = {
            let mut pages = self.0.lock().unwrap();
            (pages.limits.insert(pool.clone(), limit), pages.reported_limits.get(pool).copied())
        };
        if earlier == Some(limit) {
            return;
        }
        // One that rises again from where it has not been told of yet has fallen for the watcher.
        if reported.is_none_or(|reported| reported <= limit) {
            return self.observe_limit(pool, limit);
        }
        let (history, pool) = (self.clone(), pool.clone());
        actix_rt::spawn(async move {
            tokio::time::sleep(grace_period).await;
            let last = history.0.lock().unwrap().limits.get(&pool).copied();
            if last == Some(limit) {
                history.observe_limit(&pool, limit);
            }
        });
    }

    fn observe_limit(&self, pool: &PoolId, limit: usize) {
        self.0.lock().unwrap().reported_limits.insert(pool.clone(), limit);
        self.observe(Observation::PoolLimit(pool, limit));
    }

    pub fn trace_remark(&self, text: &str) {
        self.0.lock().unwrap().trace_line(text);
    }

    pub fn violations(&self) -> Vec<String> {
        self.0.lock().unwrap().violations.clone()
    }

    /// What keeps all from being at rest.
    pub fn leftovers(&self, participants: Participants) -> Vec<Violation> {
        let pages = self.0.lock().unwrap();
        let mut leftovers = pages.checker.at_quiescence();
        // Nobody who asked is there any more, and who held a node has let it go.
        let requests = pages.checker.requests().keys();
        leftovers.extend(requests.map(|id| Violation(format!("request {id} is left over"))));
        let held = pages.checker.nodes().iter().filter(|(_, node)| node.state == NodeState::Hold);
        leftovers.extend(held.map(|(id, _)| Violation(format!("node {id} is still held"))));
        leftovers.extend(pages.images.at_quiescence(&participants.expected_images()));
        // What kazoo made anew by locking what had gone (K10).
        let empty = pages.data.iter().filter(|(_, data)| data.is_empty());
        let empty_nodes = empty.filter_map(|(path, _)| match paths::parse(path) {
            paths::ZnodePath::Node(id) => Some(Violation(format!("node {id} is left over, and empty"))),
            _ => None,
        });
        leftovers.extend(empty_nodes);
        leftovers
    }

    /// One of the uploads that are ready.
    pub fn ready_upload(&self, nth: usize) -> Option<(UploadKey, ImageUpload)> {
        let pages = self.0.lock().unwrap();
        let uploads = pages.images.uploads().iter().filter(|(_, upload)| upload.state == UploadState::Ready);
        let ready: Vec<_> = uploads.collect();
        ready.get(nth % ready.len().max(1)).map(|(key, upload)| ((*key).clone(), (*upload).clone()))
    }

    /// Servers of our providers that are nobody's.
    pub fn stray_servers(&self) -> Vec<CloudObjectKey> {
        let pages = self.0.lock().unwrap();
        let stray = pages.checker.stray_servers().map(|(place, _)| place.clone());
        stray.filter(|(provider, _)| PROVIDERS.contains(&provider.as_str())).collect()
    }

    /// Requests that somebody should look after, with the provider of a node that each could have.
    pub fn neglected(&self) -> Vec<(RequestId, Option<ProviderName>)> {
        let pages = self.0.lock().unwrap();
        let neglected = pages.checker.neglected_requests();
        neglected.map(|(id, idle)| (id.clone(), idle.and_then(|node| node.provider.clone()))).collect()
    }

    /// Whether somebody waits for this request.
    pub fn is_open(&self, id: &RequestId) -> bool {
        let pages = self.0.lock().unwrap();
        let state = pages.checker.requests().get(id).map(|request| request.state);
        state.is_some_and(|state| matches!(state, RequestState::Requested | RequestState::Pending))
    }

    /// Whether there is a record of a build.
    pub fn is_built(&self, key: &BuildKey) -> bool {
        self.0.lock().unwrap().images.builds().contains_key(key)
    }

    pub fn digest(&self) -> (u64, u64) {
        let pages = self.0.lock().unwrap();
        (pages.changes, pages.digest.finish())
    }

    pub fn trace(&self) -> Vec<String> {
        self.0.lock().unwrap().trace.clone().unwrap_or_default()
    }
}

/// What promises are held to, of a record of a node; nobody else looks at the rest.
#[derive(Deserialize)]
struct NodeFields {
    state: NodeState,
    provider: Option<ProviderName>,
    #[serde(rename = "type")]
    labels: Vec<LabelName>,
    allocated_to: Option<RequestId>,
    external_id: serde_json::Value,
    hostname: Option<String>,
    tenant_name: Option<TenantName>,
    pool: Option<PoolName>,
    launcher: Option<String>,
    state_time: Timestamp,
}

impl From<NodeFields> for Node {
    fn from(fields: NodeFields) -> Self {
        let mut node = Self::new(fields.state, fields.state_time);
        (node.provider, node.labels, node.allocated_to) = (fields.provider, fields.labels, fields.allocated_to);
        (node.external_id, node.hostname) = (fields.external_id.into(), fields.hostname);
        (node.tenant_name, node.pool, node.launcher) = (fields.tenant_name, fields.pool, fields.launcher);
        node
    }
}

/// The same of a request.
#[derive(Deserialize)]
struct RequestFields {
    state: RequestState,
    #[serde(default)]
    relative_priority: i64,
    #[serde(default)]
    reuse: bool,
    tenant_name: Option<TenantName>,
    #[serde(default)]
    declined_by: Vec<LauncherId>,
    node_types: Vec<LabelName>,
    #[serde(default)]
    nodes: Vec<NodeId>,
}

impl From<RequestFields> for NodeRequest {
    fn from(gist: RequestFields) -> Self {
        let mut request = Self::new(gist.node_types, "", Timestamp::default());
        (request.state, request.nodes) = (gist.state, gist.nodes);
        (request.relative_priority, request.reuse) = (gist.relative_priority, gist.reuse);
        (request.tenant_name, request.declined_by) = (gist.tenant_name, gist.declined_by);
        request
    }
}

/// One in so many records is read as its other readers do, where not each is: it takes as long as all the rest.
const VALIDATE_ONE_IN: u64 = 8;

fn unreadable(path: &str, data: &[u8]) -> Vec<Violation> {
    // The place of a record may be made before it.
    let keys = record_schema::required_keys(&paths::parse(path)).filter(|_| !data.is_empty());
    keys.map_or_else(Vec::new, |keys| nodes::check_readable(path, keys, data))
}

/// One that holds nothing yet is none: its writer has made the place for it first.
fn record<T: DeserializeOwned>(data: Option<&Bytes>) -> Option<T> {
    let written = data.filter(|data| !data.is_empty())?;
    Some(json::from_bytes(written).expect("a record can be read"))
}

impl RunState {
    fn record_violations(&mut self, found: Vec<Violation>) {
        for violation in found {
            self.trace_line(&format!("VIOLATION {violation}"));
            self.violations.push(format!("{:.3}: {violation}", clock::now().0));
        }
    }

    fn trace_line(&mut self, text: &str) {
        if let Some(trace) = &mut self.trace {
            trace.push(format!("{:.3} {text}", clock::now().0));
        }
    }
}
