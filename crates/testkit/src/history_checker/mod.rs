//! History checker: merges ZooKeeper's transaction logs and the cloud's history into one order, and checks it against
//! the invariants that the simulator checks.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::clouds::simulated_openstack::SimulatedOpenStack;
use crate::programs;
use crate::real::zookeeper::{Ensemble, Server};
use nodepool_model::records::ids::{ImageName, NodeId, PoolId, ProviderName, RequestId};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::json;
use nodepool_model::records::node::Node;
use nodepool_model::records::request::{NodeRequest, RequestState};
use nodepool_model::records::time::Seconds;
use nodepool_policy::invariants::images::{ImageInvariantChecker, ImageObservation};
use nodepool_policy::invariants::nodes::{self, CloudObjectKey, InvariantChecker, Observation, Violation};
use nodepool_zk::paths;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub mod record_schema;
pub mod zk_txn_log;

use zk_txn_log::{Change, Transaction};

/// ZooKeeper's logs have milliseconds, the cloud's history has microseconds. Both use the clock of this machine.
const MICROS_PER_MS: i64 = 1000;

/// Maximum time of a call until it arrives at the cloud. The fence (`src/actors/provider/fence.rs`) sends a call while
/// the session is known to be alive for another moment. On a busy machine the call may arrive later.
const CALL_TRANSIT_TIME: Seconds = Seconds(0.5);

/// Maximum bytes of each record in the trace.
const MAX_SHOWN_BYTES: usize = 3000;

/// Inputs of the checks of one run.
pub struct HistoryChecker {
    pub transactions: Arc<[Transaction]>,
    pub servers: Vec<ServerLifetime>,
    pub images: Vec<ImageLifetime>,
    /// Server limits of pools during the whole run.
    pub limits: Vec<(PoolId, usize)>,
    /// The sessions of each user of the cloud. Calls of other users are not checked.
    pub sessions: BTreeMap<String, BTreeSet<i64>>,
    /// The images that a provider must have at the end.
    pub expected_images: Vec<(ImageName, ProviderName)>,
    /// Mutating calls of the cloud.
    pub cloud_calls: Vec<CloudCall>,
    chroot: String,
}

/// A mutating call of the cloud; time in microseconds since the Unix epoch.
pub struct CloudCall {
    pub by: String,
    pub at: i64,
    pub call: String,
}

/// A server of the cloud; times in microseconds since the Unix epoch.
pub struct ServerLifetime {
    pub key: CloudObjectKey,
    pub node: NodeId,
    pub created: i64,
    /// Time of the first reply that showed it as running.
    pub shown_active: Option<i64>,
    pub delete_requested: Option<i64>,
    pub deleted: Option<i64>,
}

/// An image of a provider in the cloud; times in microseconds since the Unix epoch.
pub struct ImageLifetime {
    pub key: CloudObjectKey,
    pub created: i64,
    /// Time at which its content was complete.
    pub filled: Option<i64>,
    pub deleted: Option<i64>,
}

/// A request from its submission to its end; times in milliseconds since the Unix epoch.
#[derive(Clone, Debug)]
pub struct RequestLifetime {
    pub id: RequestId,
    pub submitted_ms: i64,
    /// Time at which it was fulfilled, failed or deleted.
    pub ended_ms: Option<i64>,
}

impl RequestLifetime {
    /// Longest wait outside the intervals of faults, each of which has a beginning and an end.
    pub fn longest_fault_free_wait_ms(&self, faults: &[(i64, i64)]) -> i64 {
        let Some(ended) = self.ended_ms else { return 0 };
        let (mut fault_free_since, mut longest) = (self.submitted_ms, 0);
        for (began, ended_at) in
            faults.iter().filter(|(began, ended_at)| *ended_at > self.submitted_ms && *began < ended)
        {
            longest = longest.max(began - fault_free_since);
            // The effects of one fault may outlast the next fault.
            fault_free_since = fault_free_since.max(*ended_at);
        }
        longest.max(ended - fault_free_since)
    }
}

/// Result of the checks.
pub struct HistoryReport {
    pub violations: Vec<String>,
    /// Leftovers at the end of the run.
    pub leftovers: Vec<String>,
    pub requests: Vec<RequestLifetime>,
    pub nodes: usize,
    /// Changes of records of any kind.
    pub changes: usize,
    /// All events, line by line.
    pub trace: String,
}

impl HistoryChecker {
    /// Reads the histories. Call it when all servers run and all writers have received their replies.
    pub async fn of_ensemble(ensemble: &Ensemble, cloud: Option<&SimulatedOpenStack>) -> HistoryChecker {
        let homes: Vec<_> = ensemble.servers.iter().map(|server| server.home().join("data")).collect();
        Self::of(&homes.iter().map(|home| &**home).collect::<Vec<_>>(), "", cloud).await
    }

    pub async fn of_server(server: &Server, chroot: &str, cloud: Option<&SimulatedOpenStack>) -> HistoryChecker {
        Self::of(&[&server.home().join("data")], chroot, cloud).await
    }

    async fn of(data_dirs: &[&Path], chroot: &str, cloud: Option<&SimulatedOpenStack>) -> HistoryChecker {
        let (servers, images, cloud_calls) = match cloud {
            Some(cloud) => {
                let history = cloud.history().await;
                (server_lifetimes(&history), image_lifetimes(&history), cloud_calls(&history))
            }
            None => Default::default(),
        };
        let (limits, sessions, expected_images) = Default::default();
        let transactions = zk_txn_log::committed(data_dirs).into();
        HistoryChecker {
            transactions,
            servers,
            images,
            limits,
            sessions,
            expected_images,
            cloud_calls,
            chroot: chroot.to_owned(),
        }
    }

    /// The sessions of launchers and builders: those that registered a component.
    fn program_sessions(&self) -> BTreeSet<i64> {
        let creates_component = |change: &Change| match change {
            Change::Created(path, _) => self
                .strip_chroot(path)
                .is_some_and(|path| matches!(paths::parse(path), paths::ZnodePath::Component { .. })),
            Change::Updated(..) | Change::Deleted(_) | Change::SessionEnded => false,
        };
        let registrations =
            self.transactions.iter().filter(|transaction| transaction.changes.iter().any(creates_component));
        registrations.map(|transaction| transaction.session).collect()
    }

    /// A path as launchers and builders know it.
    pub fn strip_chroot<'a>(&self, path: &'a str) -> Option<&'a str> {
        path.strip_prefix(&*self.chroot)
    }

    pub fn check(&self) -> HistoryReport {
        let mut checker = Checker { program_sessions: self.program_sessions(), ..Checker::default() };
        for (pool, limit) in &self.limits {
            checker.observe(0, Observation::PoolLimit(pool, *limit));
        }
        let mut events = self.cloud_events().into_iter().peekable();
        for transaction in &*self.transactions {
            // A record is written before its server is created, and the server is deleted before the record. Within one
            // millisecond, the creation of the record and the end of the server are therefore applied first.
            while let Some(event) = events.next_if(|event| event.at < transaction.at_ms * MICROS_PER_MS) {
                checker.cloud(&event);
            }
            for change in &transaction.changes {
                let (path, data) = match change {
                    Change::Created(path, data) | Change::Updated(path, data) => (path, Some(data)),
                    Change::Deleted(path) => (path, None),
                    Change::SessionEnded => {
                        checker.trace_line(transaction.at_ms, &format!("session {:#x} ends", transaction.session));
                        continue;
                    }
                };
                if let Some(path) = self.strip_chroot(path) {
                    checker.znode(transaction, path, data.map(Vec::as_slice));
                }
            }
        }
        events.for_each(|event| checker.cloud(&event));
        self.check_cloud_calls(&mut checker);
        checker.finish(&self.expected_images)
    }

    /// Checks that the caller of each mutating call had a session.
    fn check_cloud_calls(&self, checker: &mut Checker) {
        let mut session_times: BTreeMap<i64, (i64, Option<i64>)> = BTreeMap::new();
        for Transaction { session, at_ms, changes, .. } in &*self.transactions {
            let (_, end) = session_times.entry(*session).or_insert((*at_ms, None));
            *end = end.or(changes.contains(&Change::SessionEnded).then_some(*at_ms));
        }
        for CloudCall { by, at, call } in &self.cloud_calls {
            let Some(sessions) = self.sessions.get(by) else { continue };
            let at_ms = at / MICROS_PER_MS;
            let started =
                sessions.iter().filter_map(|session| session_times.get(session)).filter(|(start, _)| *start <= at_ms);
            // A caller without a session counts as expired forever.
            let expired_ms =
                started.map(|(_, end)| end.map_or(0, |end| (at_ms - end).max(0))).min().unwrap_or(i64::MAX);
            let expired_for = Seconds(expired_ms as f64 / 1000.0);
            checker.record_violations(
                at_ms,
                nodes::check_call(format_args!("{call} of {by}"), Some(expired_for), CALL_TRANSIT_TIME)
                    .into_iter()
                    .collect(),
            );
        }
    }

    fn cloud_events(&self) -> Vec<CloudEvent<'_>> {
        let mut events = Vec::new();
        // Ends are dated a millisecond earlier, but never before the creation.
        let early = |at: i64, created: i64| ((at / MICROS_PER_MS - 1) * MICROS_PER_MS).max(created);
        for server in &self.servers {
            let mut happened = |at, kind| events.push(CloudEvent { at, object: ObjectRef::Server(server), kind });
            happened(server.created, LifecycleEvent::Created);
            // Its node may become ready within the same millisecond.
            if let Some(at) = server.shown_active {
                happened(early(at, server.created), LifecycleEvent::Runs);
            }
            if let Some(at) = server.delete_requested {
                happened(at, LifecycleEvent::Deleting);
                happened(early(at, server.created), LifecycleEvent::Ending);
            }
            if let Some(at) = server.deleted {
                happened(early(at, server.created), LifecycleEvent::Removed);
            }
        }
        for image in &self.images {
            let mut happened = |at, kind| events.push(CloudEvent { at, object: ObjectRef::Image(image), kind });
            // An image without content counts as leaked as well. An image with content is ready at once.
            happened(image.filled.map_or(image.created, |at| early(at, image.created)), LifecycleEvent::Created);
            if let Some(at) = image.deleted {
                happened(at, LifecycleEvent::Deleting);
                happened(early(at, image.created), LifecycleEvent::Removed);
            }
        }
        events.sort_by_key(|event| (event.at, event.kind));
        events
    }
}

struct CloudEvent<'a> {
    at: i64,
    object: ObjectRef<'a>,
    kind: LifecycleEvent,
}

enum ObjectRef<'a> {
    Server(&'a ServerLifetime),
    Image(&'a ImageLifetime),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum LifecycleEvent {
    Created,
    Runs,
    Deleting,
    Ending,
    Removed,
}

fn micros(seconds: &Value) -> Option<i64> {
    seconds.as_f64().map(|seconds| (seconds * 1e6) as i64)
}

/// The images of providers, from the cloud's history.
pub fn image_lifetimes(history: &Value) -> Vec<ImageLifetime> {
    let images = history["images"].as_array().expect("a history has its images");
    let ours = images.iter().filter_map(|image| Some((image, image["provider"].as_str()?)));
    let lifetime = |(image, provider): (&Value, &str)| ImageLifetime {
        key: (provider.into(), image["id"].as_str().expect("an image has an id").to_owned()),
        created: micros(&image["created"]).expect("an image was created at some time"),
        filled: micros(&image["filled"]),
        deleted: micros(&image["gone"]),
    };
    ours.map(lifetime).collect()
}

fn cloud_calls(history: &Value) -> Vec<CloudCall> {
    let changes = history["changes"].as_array().expect("a history has its changes");
    let text = |change: &Value, key: &str| change[key].as_str().expect("a change has its caller and call").to_owned();
    let call = |change: &Value| CloudCall {
        by: text(change, "by"),
        at: micros(&change["at"]).expect("a change was requested at some time"),
        call: text(change, "call"),
    };
    changes.iter().map(call).collect()
}

fn server_lifetimes(history: &Value) -> Vec<ServerLifetime> {
    let servers = history["servers"].as_array().expect("a history has its servers");
    let ours = servers.iter().filter_map(|server| Some((server, server["node"].as_str()?)));
    let lifetime = |(server, node): (&Value, &str)| ServerLifetime {
        key: (
            ProviderName::from(server["provider"].as_str().expect("a server with a node has a provider")),
            server["id"].as_str().expect("a server has an id").to_owned(),
        ),
        node: NodeId::from(node),
        created: micros(&server["created"]).expect("a server was created at some time"),
        shown_active: micros(&server["shown_active"]),
        delete_requested: micros(&server["delete_asked"]),
        deleted: micros(&server["gone"]),
    };
    ours.map(lifetime).collect()
}

#[derive(Default)]
struct Checker {
    checker: InvariantChecker,
    /// Records written by these sessions must have the keys that other readers require. Zuul's records are not checked.
    program_sessions: BTreeSet<i64>,
    image_checker: ImageInvariantChecker,
    violations: Vec<String>,
    requests: BTreeMap<RequestId, RequestLifetime>,
    nodes: BTreeSet<NodeId>,
    changes: usize,
    trace: String,
}

impl Checker {
    fn observe(&mut self, at_ms: i64, observation: Observation<'_>) {
        let found = self.checker.observe(observation);
        self.record_violations(at_ms, found);
    }

    fn observe_image(&mut self, at_ms: i64, observation: ImageObservation<'_>) {
        let found = self.image_checker.observe(observation);
        self.record_violations(at_ms, found);
    }

    fn record_violations(&mut self, at_ms: i64, found: Vec<Violation>) {
        for violation in found {
            self.trace_line(at_ms, &format!("VIOLATION {violation}"));
            self.violations.push(format!("{at_ms}: {violation}"));
        }
    }

    fn trace_line(&mut self, at_ms: i64, text: &str) {
        writeln!(self.trace, "{at_ms} {text}").expect("a string takes any text");
    }

    fn cloud(&mut self, event: &CloudEvent<'_>) {
        match event.object {
            ObjectRef::Server(server) => self.server(event, server),
            ObjectRef::Image(image) => self.image(event, image),
        }
    }

    fn server(&mut self, event: &CloudEvent<'_>, ServerLifetime { key, node, .. }: &ServerLifetime) {
        let at_ms = event.at / MICROS_PER_MS;
        self.trace_line(at_ms, &format!("server {} of {} for node {node}: {:?}", key.1, key.0, event.kind));
        let observation = match event.kind {
            LifecycleEvent::Created => Observation::Created(key, node),
            LifecycleEvent::Runs => Observation::Running(key),
            LifecycleEvent::Deleting => Observation::Deleting(key),
            LifecycleEvent::Ending => Observation::Ending(key),
            LifecycleEvent::Removed => Observation::Removed(key),
        };
        self.observe(at_ms, observation);
    }

    fn image(&mut self, event: &CloudEvent<'_>, ImageLifetime { key, .. }: &ImageLifetime) {
        let at_ms = event.at / MICROS_PER_MS;
        self.trace_line(at_ms, &format!("image {} of {}: {:?}", key.1, key.0, event.kind));
        let observation = match event.kind {
            LifecycleEvent::Created | LifecycleEvent::Runs => ImageObservation::Created(key),
            LifecycleEvent::Deleting | LifecycleEvent::Ending => ImageObservation::Deleting(key),
            LifecycleEvent::Removed => ImageObservation::Removed(key),
        };
        self.observe_image(at_ms, observation);
    }

    fn znode(&mut self, transaction: &Transaction, path: &str, data: Option<&[u8]>) {
        let Some(rest) = path.strip_prefix("/nodepool/") else { return };
        let shown = data.map(|data| &data[..data.len().min(MAX_SHOWN_BYTES)]);
        let (at_ms, text) = (transaction.at_ms, shown.map_or("deleted".into(), String::from_utf8_lossy));
        self.trace_line(at_ms, &format!("{:#x} session {:#x} {rest} {text}", transaction.zxid, transaction.session));
        let znode = paths::parse(path);
        if let Some(keys) = record_schema::required_keys(&znode) {
            self.changes += 1;
            // A znode may be created before its record is written.
            let of_program = self.program_sessions.contains(&transaction.session);
            if let Some(written) = data.filter(|data| of_program && !data.is_empty()) {
                self.record_violations(at_ms, nodes::check_readable(path, keys, written));
            }
        }
        match znode {
            paths::ZnodePath::Node(id) => {
                let Some(record) = self.record::<Node>(at_ms, rest, data) else { return };
                self.nodes.insert(id.clone());
                self.observe(at_ms, Observation::Node(&id, record.as_ref()));
            }
            paths::ZnodePath::Request(id) => {
                let Some(record) = self.record::<NodeRequest>(at_ms, rest, data) else { return };
                self.track_request(&id, at_ms, record.as_ref());
                self.observe(at_ms, Observation::Request(&id, record.as_ref()));
            }
            paths::ZnodePath::NodeContender(id, name) => {
                self.observe(at_ms, Observation::NodeContender(&id, &name, data.is_some()))
            }
            // An empty znode was created as a parent.
            paths::ZnodePath::ImageBuild(image, build) => {
                let data = data.filter(|data| !data.is_empty());
                let Some(record) = self.record(at_ms, rest, data) else { return };
                self.observe_image(at_ms, ImageObservation::Build(&BuildKey { image, build }, record.as_ref()));
            }
            paths::ZnodePath::ImageUpload(key) => {
                let data = data.filter(|data| !data.is_empty());
                let Some(record) = self.record(at_ms, rest, data) else { return };
                self.observe_image(at_ms, ImageObservation::Upload(&key, record.as_ref()));
            }
            _ => {}
        }
    }

    fn track_request(&mut self, id: &RequestId, at_ms: i64, record: Option<&NodeRequest>) {
        let lifetime = RequestLifetime { id: id.clone(), submitted_ms: at_ms, ended_ms: None };
        let lifetime = self.requests.entry(id.clone()).or_insert(lifetime);
        let is_open = |record: &NodeRequest| matches!(record.state, RequestState::Requested | RequestState::Pending);
        if !record.is_some_and(is_open) {
            lifetime.ended_ms = lifetime.ended_ms.or(Some(at_ms));
        }
    }

    /// The record in `data`; `Some(None)` if it was deleted, `None` if it cannot be read.
    fn record<T: DeserializeOwned>(&mut self, at_ms: i64, path: &str, data: Option<&[u8]>) -> Option<Option<T>> {
        let Some(data) = data else { return Some(None) };
        match json::from_bytes(data) {
            Ok(record) => Some(Some(record)),
            Err(error) => {
                self.violations.push(format!("{at_ms}: {path} cannot be read: {error}"));
                None
            }
        }
    }

    fn finish(self, expected_images: &[(ImageName, ProviderName)]) -> HistoryReport {
        let image_leftovers = self.image_checker.at_quiescence(expected_images);
        HistoryReport {
            leftovers: self.checker.at_quiescence().iter().chain(&image_leftovers).map(ToString::to_string).collect(),
            changes: self.changes,
            violations: self.violations,
            requests: self.requests.into_values().collect(),
            nodes: self.nodes.len(),
            trace: self.trace,
        }
    }
}

impl HistoryReport {
    /// Fails with every violated invariant and writes the trace to a file. Also fails if the history is empty.
    pub fn assert_no_violations(&self, what: &str) {
        assert!(self.changes > 0, "{what}: the transaction logs of ZooKeeper contain no record");
        let all = [&self.violations[..], &self.leftovers].concat();
        if all.is_empty() {
            return;
        }
        let file = self.write_trace(what);
        panic!("{what}: {} invariants were violated; trace: {}:\n{}", all.len(), file.display(), all.join("\n"));
    }

    /// Longest wait of a request without a fault (`longest_fault_free_wait_ms`). Fails if it exceeds the limit.
    pub fn longest_fault_free_wait(&self, faults: &[(i64, i64)], limit: Duration, what: &str) -> Duration {
        let waits = self.requests.iter().map(|lifetime| (lifetime.longest_fault_free_wait_ms(faults), &lifetime.id));
        let (longest, id) = waits.max().expect("the history has requests");
        let longest = Duration::from_millis(longest.try_into().expect("a request ends after its submission"));
        if longest > limit {
            panic!(
                "{what}: request {id} waited {longest:?} in a fault-free period; trace: {}",
                self.write_trace(what).display()
            );
        }
        longest
    }

    /// Writes the trace to a file.
    pub fn write_trace(&self, what: &str) -> PathBuf {
        let file = programs::target_tmp().join(format!("{what}.log"));
        std::fs::write(&file, &self.trace).expect("the target directory is writable");
        file
    }
}
