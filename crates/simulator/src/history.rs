//! History of a run: observations in their order, checked against the invariants as they happen, and a digest that
//! identifies the run.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::configuration::{LABELS, PROVIDERS, Participants};
use super::min_ready::MinReadyChecker;
use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::records::ids::{
    LabelName, LauncherId, NodeId, PoolId, PoolName, ProviderName, RequestId, TenantName,
};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::interned::Json;
use nodepool_model::records::json;
use nodepool_model::records::node::{Node, NodeState};
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Timestamp;
use nodepool_policy::invariants::images::{ImageInvariantChecker, ImageObservation};
use nodepool_policy::invariants::launches::{Caller, LaunchInvariantChecker};
use nodepool_policy::invariants::nodes::{self, CloudObjectKey, InvariantChecker, Observation, Violation};
use nodepool_zk::paths;
use rustc_hash::{FxHashMap, FxHasher};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use testkit::history_checker::record_schema;
use zookeeper_server::types::Stat;

/// Clones share the history.
#[derive(Clone, Default)]
pub struct RunHistory(Arc<Mutex<RunState>>);

#[derive(Default)]
struct RunState {
    checker: InvariantChecker,
    images: ImageInvariantChecker,
    min_ready: MinReadyChecker,
    launches: LaunchInvariantChecker,
    data: FxHashMap<String, Bytes>,
    /// Limits in the configuration files, and limits that the invariant checker has observed.
    limits: BTreeMap<PoolId, usize>,
    reported_limits: BTreeMap<PoolId, usize>,
    violations: Vec<String>,
    digest: FxHasher,
    changes: u64,
    /// Whether each record is checked against the keys that its other readers require.
    validates_every_record: bool,
    /// Whether only the checked fields of nodes and requests are parsed.
    keeps_checked_fields_only: bool,
    trace: Option<Vec<String>>,
}

/// The first pool of each provider has room if it has fewer nodes, whatever its limit and however many nodes a request
/// of higher rank reserves.
const ROOM: usize = 5;
const MAIN_POOL: &str = "main";

impl RunHistory {
    /// A history that keeps every line of the trace.
    pub fn with_trace() -> Self {
        let history = Self::default();
        history.0.lock().unwrap().trace = Some(Vec::new());
        history
    }

    /// Parses only the checked fields of records. Parsing whole records takes longer than all other work of the
    /// history.
    pub fn keep_checked_fields_only(&self) {
        self.0.lock().unwrap().keeps_checked_fields_only = true;
    }

    /// Checks each record against the keys that its other readers require, instead of one in `VALIDATE_ONE_IN`.
    pub fn validate_every_record(&self) {
        self.0.lock().unwrap().validates_every_record = true;
    }

    pub fn observe(&self, observation: Observation<'_>) {
        let mut state = self.0.lock().unwrap();
        if state.trace.is_some() && !matches!(observation, Observation::Node(..) | Observation::Request(..)) {
            state.trace_line(&format!("{observation:?}"));
        }
        let found = state.checker.observe(observation);
        state.record_violations(found);
    }

    pub fn observe_image(&self, observation: ImageObservation<'_>) {
        let mut state = self.0.lock().unwrap();
        state.trace_line(&format!("{observation:?}"));
        let found = state.images.observe(observation);
        state.record_violations(found);
    }

    /// Checks launches with the label that all pools have. In runs without other faults of clouds, no pool of these
    /// declines a request for it.
    pub fn check_launches(&self, participants: Participants) {
        let launches = &mut self.0.lock().unwrap().launches;
        launches.set_common_label(LABELS[0]);
        // Nodepool 11 declines requests for labels that it does not have.
        if participants.harmless_clouds && !participants.nodepool11 {
            launches.forbid_declines();
        }
    }

    /// A process opened a connection to a cloud.
    pub fn connected(&self, caller: Caller<'_>) {
        self.0.lock().unwrap().launches.connected(caller);
    }

    /// A cloud refuses a creation because it is full.
    pub fn launch_refused(&self, caller: Caller<'_>) {
        let mut state = self.0.lock().unwrap();
        state.trace_line(&format!("Refused({} at {})", caller.launcher, caller.provider));
        let found = state.launches.refused(caller, clock::monotonic_now());
        state.record_violations(found.into_iter().collect());
    }

    /// A cloud creates a server, which may fail because the cloud is full.
    pub fn server_created(&self, caller: Caller<'_>) {
        self.0.lock().unwrap().launches.created(caller, clock::monotonic_now());
    }

    /// A cloud creates a server for this node, which will run.
    pub fn launch_accepted(&self, caller: Caller<'_>, node: &NodeId) {
        let (state, now) = (&mut *self.0.lock().unwrap(), clock::monotonic_now());
        let (requests, nodes) = (state.checker.requests(), state.checker.nodes());
        // A request that lacks room in the pool itself is not in line.
        let is_beside = |node: &&Node| {
            node.provider.as_ref() == Some(caller.provider) && node.pool.as_ref() == Some(&MAIN_POOL.into())
        };
        let has_room = nodes.values().filter(is_beside).count() < ROOM;
        let request = nodes.get(node).filter(|_| has_room);
        let request = request.and_then(|node| requests.get_key_value(node.allocated_to.as_ref()?));
        let is_of = |id: &RequestId, node: &Node| node.allocated_to.as_ref() == Some(id);
        let has_nodes = |id: &RequestId| nodes.values().any(|node| is_of(id, node));
        let found = state.launches.accepted(caller, node, request, has_nodes, now);
        state.record_violations(found.into_iter().collect());
    }

    /// A server of this provider no longer exists.
    pub fn server_removed(&self, provider: &ProviderName) {
        self.0.lock().unwrap().launches.removed(provider, clock::monotonic_now());
    }

    /// The faults of a cloud change.
    pub fn interrupt_launches(&self, provider: &ProviderName) {
        self.0.lock().unwrap().launches.interrupted(provider);
    }

    /// Adds a violation that the invariant checkers do not detect.
    pub fn report_violation(&self, violation: Violation) {
        self.0.lock().unwrap().record_violations(vec![violation]);
    }

    /// Names the launcher that opened a session.
    pub fn session(&self, session: i64, launcher: &'static str) {
        self.0.lock().unwrap().min_ready.session(session, launcher);
    }

    /// A launcher is configured with this `min-ready` from now on.
    pub fn min_ready(&self, launcher: &'static str, label: &LabelName, number: usize) {
        self.0.lock().unwrap().min_ready.configure(launcher, label, number);
    }

    /// Records a change of a znode; `None` means that it was deleted.
    pub fn znode(&self, path: &str, znode: Option<&(Bytes, Stat)>) {
        let (data, owner) = (znode.map(|(data, _)| data), znode.map_or(0, |(_, stat)| stat.ephemeral_owner));
        let mut state = self.0.lock().unwrap();
        if state.data.get(path) == data {
            return;
        }
        match data {
            Some(data) => state.data.insert(path.to_owned(), data.clone()),
            None => state.data.remove(path),
        };
        state.changes += 1;
        (path, data.map(|data| &data[..])).hash(&mut state.digest);
        let Some(rest) = path.strip_prefix("/nodepool/") else { return };
        if state.trace.is_some() {
            let text = data.map_or("deleted".into(), |data| String::from_utf8_lossy(data).into_owned());
            state.trace_line(&format!("{rest} {text}"));
        }
        if (state.validates_every_record || state.changes.is_multiple_of(VALIDATE_ONE_IN))
            && let Some(data) = data
        {
            let found = unreadable(path, data);
            state.record_violations(found);
        }
        let found = match paths::parse(path) {
            paths::ZnodePath::Node(id) => {
                let node = if state.keeps_checked_fields_only {
                    record::<NodeFields>(data).map(Node::from)
                } else {
                    record(data)
                };
                state.min_ready.node(&id, node.as_ref());
                let mut found = state.node_changed(&id, node.as_ref());
                found.extend(state.checker.observe(Observation::Node(&id, node.as_ref())));
                found
            }
            paths::ZnodePath::Request(id) => {
                let checked_fields_only = state.keeps_checked_fields_only;
                let request =
                    if checked_fields_only { record::<RequestFields>(data).map(From::from) } else { record(data) };
                let mut found = state.min_ready.request(&id, owner, request.as_ref());
                found.extend(state.checker.observe(Observation::Request(&id, request.as_ref())));
                found.extend(state.request_changed(&id));
                found
            }
            paths::ZnodePath::NodeContender(id, name) => {
                if data.is_some() {
                    state.min_ready.node_locked(&id);
                }
                state.checker.observe(Observation::NodeContender(&id, &name, data.is_some()))
            }
            paths::ZnodePath::RequestContender(id, _) => {
                let mut found = state.checker.observe(Observation::RequestContender(&id, data.is_some()));
                found.extend(state.request_changed(&id));
                found
            }
            paths::ZnodePath::ImageBuild(image, build) => {
                let key = BuildKey { image, build };
                state.images.observe(ImageObservation::Build(&key, record(data).as_ref()))
            }
            paths::ZnodePath::ImageUpload(key) => {
                state.images.observe(ImageObservation::Upload(&key, record(data).as_ref()))
            }
            _ => Vec::new(),
        };
        state.record_violations(found);
    }

    /// The nodes for which `matches` is true, without any delay.
    pub fn nodes(&self, matches: impl Fn(&Node) -> bool) -> Vec<(NodeId, Node)> {
        let state = self.0.lock().unwrap();
        let matching = state.checker.nodes().iter().filter(|(_, node)| matches(node));
        matching.map(|(id, node)| (id.clone(), node.clone())).collect()
    }

    /// The requests for which `matches` is true, in the order in which they are served.
    pub fn requests(&self, matches: impl Fn(&NodeRequest) -> bool) -> Vec<(RequestId, NodeRequest)> {
        let state = self.0.lock().unwrap();
        let matching = state.checker.requests().iter().filter(|(_, request)| matches(request));
        matching.map(|(id, request)| (id.clone(), request.clone())).collect()
    }

    /// Sets the server limit of a pool. A lower limit applies after `grace_period`; the file may be written again with
    /// the same limit before that.
    pub fn limit(&self, pool: &PoolId, limit: usize, grace_period: Duration) {
        let (earlier, reported) = {
            let mut state = self.0.lock().unwrap();
            (state.limits.insert(pool.clone(), limit), state.reported_limits.get(pool).copied())
        };
        if earlier == Some(limit) {
            return;
        }
        // The checker has not observed a limit that was lowered and raised again, so the comparison is with the last
        // limit that it has observed.
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

    /// Nodes, requests and images that a quiescent system does not have.
    pub fn leftovers(&self, participants: Participants) -> Vec<Violation> {
        let state = self.0.lock().unwrap();
        let mut leftovers = state.checker.at_quiescence();
        // All consumers have ended, and operators have deleted the nodes that they held.
        let requests = state.checker.requests().keys();
        leftovers.extend(requests.map(|id| Violation(format!("request {id} was not deleted"))));
        let held = state.checker.nodes().iter().filter(|(_, node)| node.state == NodeState::Hold);
        leftovers.extend(held.map(|(id, _)| Violation(format!("node {id} is still in state hold"))));
        leftovers.extend(state.images.at_quiescence(&participants.expected_images()));
        // kazoo re-creates a deleted node as an empty one when it locks it.
        let empty = state.data.iter().filter(|(_, data)| data.is_empty());
        let empty_nodes = empty.filter_map(|(path, _)| match paths::parse(path) {
            paths::ZnodePath::Node(id) => Some(Violation(format!("node {id} was not deleted, and is empty"))),
            _ => None,
        });
        leftovers.extend(empty_nodes);
        leftovers
    }

    /// One of the uploads in state ready.
    pub fn ready_upload(&self, nth: usize) -> Option<(UploadKey, ImageUpload)> {
        let state = self.0.lock().unwrap();
        let uploads = state.images.uploads().iter().filter(|(_, upload)| upload.state == UploadState::Ready);
        let ready: Vec<_> = uploads.collect();
        ready.get(nth % ready.len().max(1)).map(|(key, upload)| ((*key).clone(), (*upload).clone()))
    }

    /// Leaked servers of the launchers' providers.
    pub fn stray_servers(&self) -> Vec<CloudObjectKey> {
        let state = self.0.lock().unwrap();
        let stray = state.checker.stray_servers().map(|(key, _)| key.clone());
        stray.filter(|(provider, _)| PROVIDERS.contains(&provider.as_str())).collect()
    }

    /// Requests that a launcher should handle, each with the provider of an idle node that it could use.
    pub fn neglected(&self) -> Vec<(RequestId, Option<ProviderName>)> {
        let state = self.0.lock().unwrap();
        let neglected = state.checker.neglected_requests();
        neglected.map(|(id, idle)| (id.clone(), idle.and_then(|node| node.provider.clone()))).collect()
    }

    /// Whether this request is requested or pending.
    pub fn is_open(&self, id: &RequestId) -> bool {
        let state = self.0.lock().unwrap();
        let request = state.checker.requests().get(id);
        request.is_some_and(|request| matches!(request.state, RequestState::Requested | RequestState::Pending))
    }

    /// Whether the record of a build exists.
    pub fn is_built(&self, key: &BuildKey) -> bool {
        self.0.lock().unwrap().images.builds().contains_key(key)
    }

    pub fn digest(&self) -> (u64, u64) {
        let state = self.0.lock().unwrap();
        (state.changes, state.digest.finish())
    }

    pub fn trace(&self) -> Vec<String> {
        self.0.lock().unwrap().trace.clone().unwrap_or_default()
    }
}

/// The fields of a node record that the invariants are checked on.
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
    #[serde(default)]
    user_data: Json,
    #[serde(default)]
    driver_data: Json,
}

impl From<NodeFields> for Node {
    fn from(fields: NodeFields) -> Self {
        let mut node = Self::new(fields.state, fields.state_time);
        (node.provider, node.labels, node.allocated_to) = (fields.provider, fields.labels, fields.allocated_to);
        (node.external_id, node.hostname) = (fields.external_id.into(), fields.hostname);
        (node.tenant_name, node.pool, node.launcher) = (fields.tenant_name, fields.pool, fields.launcher);
        (node.user_data, node.driver_data) = (fields.user_data, fields.driver_data);
        node
    }
}

/// The fields of a request record that the invariants are checked on.
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
    fn from(fields: RequestFields) -> Self {
        let mut request = Self::new(fields.node_types, "", Timestamp::default());
        (request.state, request.nodes) = (fields.state, fields.nodes);
        (request.relative_priority, request.reuse) = (fields.relative_priority, fields.reuse);
        (request.tenant_name, request.declined_by) = (fields.tenant_name, fields.declined_by);
        request
    }
}

/// One in this many records is checked against the required keys: checking each takes as long as everything else.
const VALIDATE_ONE_IN: u64 = 8;

fn unreadable(path: &str, data: &[u8]) -> Vec<Violation> {
    // A znode may be created before its record is written.
    let keys = record_schema::required_keys(&paths::parse(path)).filter(|_| !data.is_empty());
    keys.map_or_else(Vec::new, |keys| nodes::check_readable(path, keys, data))
}

/// An empty znode has no record yet: its writer created the znode first.
fn record<T: DeserializeOwned>(data: Option<&Bytes>) -> Option<T> {
    let written = data.filter(|data| !data.is_empty())?;
    Some(json::from_bytes(written).expect("a record can be read"))
}

impl RunState {
    fn node_changed(&mut self, id: &NodeId, node: Option<&Node>) -> Vec<Violation> {
        let Some(node) = node.filter(|node| self.checker.nodes().get(id).is_none_or(|was| was.state != node.state))
        else {
            return Vec::new();
        };
        let now = clock::monotonic_now();
        let provider = node.provider.as_ref();
        provider.and_then(|provider| self.launches.node(id, provider, node.state, now)).into_iter().collect()
    }

    fn request_changed(&mut self, id: &RequestId) -> Option<Violation> {
        let now = clock::monotonic_now();
        let request = self.checker.requests().get(id).filter(|_| !self.checker.is_request_locked(id));
        self.launches.request(id, request, now)
    }

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
