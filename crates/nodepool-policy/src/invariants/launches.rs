//! Invariants of launches while a cloud is full or does not respond, checked on observations from outside: who serves
//! next, how often a full cloud is called, and which requests fail.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::nodes::Violation;
use nodepool_model::records::ids::{NodeId, ProviderName, RequestId};
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::{MIN_READY_PRIORITY, NodeRequest, Rank, RequestState};
use nodepool_model::records::time::{MonotonicTime, Seconds};

/// Period of the limits below.
const MINUTE: Seconds = Seconds(60.0);
/// Refusals of a launcher's creations in a minute, after the first `SETTLING_TIME` of a full cloud. The delay between
/// two probes doubles from one second to a minute.
const MAX_REFUSALS: usize = 10;
/// Further ones for each server that the cloud created, even if it fails later: up to four launches at a time follow
/// it, and the delay starts again.
const MAX_REFUSALS_AFTER_CREATION: usize = 10;
/// Nodes of a provider that are aborted in a minute, beside one for each refused creation.
const MAX_ABORTED: usize = 40;
/// Time in which launches that were decided on before the first refusal end.
const SETTLING_TIME: Seconds = Seconds(10.0);
/// A launcher knows that a cloud is full this long after the first refusal, and for a minute after the last one:
/// launches that were decided on before have ended.
const FULL_TIME: Seconds = Seconds(20.0);
/// A request that has waited unchanged for this time is known to every launcher with a session, however slow its
/// connection, and launches that it decided on before have begun.
const KNOWN_TIME: Seconds = Seconds(25.0);

/// A launcher's connection to a provider. Each process, session and configuration has connections of its own.
#[derive(Clone, Copy, Debug)]
pub struct Caller<'a> {
    pub launcher: &'a str,
    pub provider: &'a ProviderName,
    pub connection: u64,
}

/// Checker of the invariants; it keeps the observed state.
#[derive(Debug, Default)]
pub struct LaunchInvariantChecker {
    /// The label that every pool has.
    common_label: &'static str,
    /// Clouds have no faults by which a request for this label may fail.
    are_declines_forbidden: bool,
    /// Requests for one node of the common label that no launcher has accepted, since they are unchanged.
    waiting: BTreeMap<RequestId, (Rank, MonotonicTime)>,
    /// Nodes for which a cloud created a server that would run. If that fails, the launch keeps its turn.
    launched: BTreeSet<NodeId>,
    connections: BTreeMap<(String, ProviderName), Connection>,
    providers: BTreeMap<ProviderName, Events>,
}

#[derive(Debug, Default)]
struct Connection {
    number: u64,
    /// First and last refusal, without a longer time between two.
    full: Option<(MonotonicTime, MonotonicTime)>,
    refused: VecDeque<MonotonicTime>,
    created: VecDeque<MonotonicTime>,
}

/// Events at a provider in the last minute.
#[derive(Debug, Default)]
struct Events {
    removed: VecDeque<MonotonicTime>,
    refused: VecDeque<MonotonicTime>,
    aborted: VecDeque<MonotonicTime>,
}

impl LaunchInvariantChecker {
    pub fn set_common_label(&mut self, label: &'static str) {
        self.common_label = label;
    }

    /// Requests for one node of the common label must not be declined from now on.
    pub fn forbid_declines(&mut self) {
        self.are_declines_forbidden = true;
    }

    /// A request as it is now; `None` if it was deleted, or if its lock has a contender.
    pub fn request(&mut self, id: &RequestId, request: Option<&NodeRequest>, now: MonotonicTime) -> Option<Violation> {
        let is_plain = |request: &&NodeRequest| {
            let [only] = request.node_types.as_slice() else { return false };
            only.as_str() == self.common_label && id.priority() != MIN_READY_PRIORITY
        };
        let plain = request.filter(is_plain);
        let waits = |request: &&NodeRequest| request.state == RequestState::Requested && request.declined_by.is_empty();
        match plain.filter(waits).map(|request| Rank::of(id, request)) {
            Some(rank) if self.waiting.get(id).is_some_and(|(known, _)| *known == rank) => {}
            Some(rank) => drop(self.waiting.insert(id.clone(), (rank, now))),
            None => drop(self.waiting.remove(id)),
        }
        let declined = plain.filter(|_| self.are_declines_forbidden)?.declined_by.last()?;
        Some(Violation(format!(
            "{declined} declines request {id}, although its cloud had no other faults than outages"
        )))
    }

    /// A launcher opened a connection: it knows nothing of earlier refusals.
    pub fn connected(&mut self, caller: Caller<'_>) {
        let connection = Connection { number: caller.connection, ..Connection::default() };
        self.connections.insert((caller.launcher.to_owned(), caller.provider.clone()), connection);
    }

    /// The cloud refuses a creation, because it is full.
    pub fn refused(&mut self, caller: Caller<'_>, now: MonotonicTime) -> Option<Violation> {
        let events = self.providers.entry(caller.provider.clone()).or_default();
        record(&mut events.refused, now);
        let removed = count(&mut events.removed, now);
        let connection = self.connection(caller)?;
        let since = match connection.full {
            Some((since, last)) if now - last <= MINUTE => since,
            _ => now,
        };
        connection.full = Some((since, now));
        if now - since <= SETTLING_TIME {
            return None;
        }
        record(&mut connection.refused, now);
        let created = count(&mut connection.created, now);
        let limit = MAX_REFUSALS + MAX_REFUSALS_AFTER_CREATION * created + removed;
        let refused = connection.refused.len();
        (refused > limit).then(|| {
            let Caller { launcher, provider, .. } = caller;
            Violation(format!(
                "{launcher} made {refused} creations in a minute that {provider} refused, because it is full"
            ))
        })
    }

    /// The faults of the cloud change: what its launchers know of it is unclear.
    pub fn interrupted(&mut self, provider: &ProviderName) {
        self.connections
            .iter_mut()
            .filter(|((_, of), _)| of == provider)
            .for_each(|(_, connection)| connection.full = None);
    }

    /// The cloud created a server.
    pub fn created(&mut self, caller: Caller<'_>, now: MonotonicTime) {
        if let Some(connection) = self.connection(caller) {
            record(&mut connection.created, now);
        }
    }

    /// The cloud created a server that will run, for this node of this request. `has_nodes`: whether a request has
    /// nodes already, so that others leave it to the launcher that allocated them.
    pub fn accepted(
        &mut self,
        caller: Caller<'_>,
        node: &NodeId,
        request: Option<(&RequestId, &NodeRequest)>,
        has_nodes: impl Fn(&RequestId) -> bool,
        now: MonotonicTime,
    ) -> Option<Violation> {
        let is_retry = !self.launched.insert(node.clone());
        let connection = self.connection(caller).filter(|_| !is_retry)?;
        let (since, last) = connection.full?;
        if now - since < FULL_TIME || now - last > MINUTE {
            return None;
        }
        // A request for several nodes may have received some of them before.
        let (id, request) = request.filter(|(_, request)| request.node_types.len() == 1)?;
        let rank = Rank::of(id, request);
        let precedes = |(other, since): &(Rank, MonotonicTime)| *other < rank && now - *since > KNOWN_TIME;
        let (first, _) = self.waiting.iter().find(|(id, waiting)| precedes(waiting) && !has_nodes(id))?;
        let Caller { launcher, provider, .. } = caller;
        Some(Violation(format!(
            "{launcher} launches a node for {id} at {provider}, which is full, although {first} precedes it"
        )))
    }

    /// A server of the provider no longer exists.
    pub fn removed(&mut self, provider: &ProviderName, now: MonotonicTime) {
        record(&mut self.providers.entry(provider.clone()).or_default().removed, now);
    }

    /// The state of a node has changed.
    pub fn node(
        &mut self,
        id: &NodeId,
        provider: &ProviderName,
        state: NodeState,
        now: MonotonicTime,
    ) -> Option<Violation> {
        if state != NodeState::Aborted {
            return None;
        }
        let events = self.providers.entry(provider.clone()).or_default();
        record(&mut events.aborted, now);
        let limit = MAX_ABORTED + count(&mut events.refused, now);
        let aborted = events.aborted.len();
        (aborted > limit).then(|| Violation(format!("node {id} is the {aborted}th that {provider} aborts in a minute")))
    }

    fn connection(&mut self, caller: Caller<'_>) -> Option<&mut Connection> {
        let key = (caller.launcher.to_owned(), caller.provider.clone());
        self.connections.get_mut(&key).filter(|connection| connection.number == caller.connection)
    }
}

fn record(events: &mut VecDeque<MonotonicTime>, now: MonotonicTime) {
    events.push_back(now);
    count(events, now);
}

/// Number of events in the last minute.
fn count(events: &mut VecDeque<MonotonicTime>, now: MonotonicTime) -> usize {
    while events.front().is_some_and(|first| now - *first > MINUTE) {
        events.pop_front();
    }
    events.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::time::Timestamp;

    const LAUNCHER: &str = "east";

    struct Observed {
        checker: LaunchInvariantChecker,
        provider: ProviderName,
        number: u64,
    }

    impl Observed {
        fn new() -> Self {
            let mut checker = LaunchInvariantChecker::default();
            checker.set_common_label("a");
            let mut observed = Self { checker, provider: "north".into(), number: 0 };
            observed.reconnect();
            observed
        }

        fn reconnect(&mut self) {
            self.number += 1;
            let caller = Caller { launcher: LAUNCHER, provider: &self.provider, connection: self.number };
            self.checker.connected(caller);
        }

        fn refuse(&mut self, second: f64) -> Option<Violation> {
            let caller = Caller { launcher: LAUNCHER, provider: &self.provider, connection: self.number };
            self.checker.refused(caller, MonotonicTime::at(second))
        }

        fn create(&mut self, second: f64) {
            let caller = Caller { launcher: LAUNCHER, provider: &self.provider, connection: self.number };
            self.checker.created(caller, MonotonicTime::at(second));
        }

        fn accept(&mut self, id: &str, node: &str, second: f64) -> Option<String> {
            let caller = Caller { launcher: LAUNCHER, provider: &self.provider, connection: self.number };
            let (id, request, node) = (RequestId::from(id), request(), NodeId::from(node));
            let time = MonotonicTime::at(second);
            let found = self.checker.accepted(caller, &node, Some((&id, &request)), |_| false, time);
            found.map(|violation| violation.0)
        }

        fn wait(&mut self, id: &str, second: f64) {
            assert_eq!(self.checker.request(&id.into(), Some(&request()), MonotonicTime::at(second)), None);
        }
    }

    fn request() -> NodeRequest {
        NodeRequest::new(vec!["a".into()], "tester", Timestamp(0.0))
    }

    #[test]
    fn at_a_full_cloud_no_request_overtakes_one_of_higher_rank() {
        let mut observed = Observed::new();
        observed.refuse(0.0);
        observed.wait("200-2", 1.0);
        assert_eq!(observed.accept("200-3", "1", 10.0), None, "the launch may have begun before");
        observed.refuse(25.0);
        assert_eq!(observed.accept("200-1", "2", 30.0), None);
        let overtaken = "east launches a node for 200-3 at north, which is full, although 200-2 precedes it";
        assert_eq!(observed.accept("200-3", "3", 30.0).as_deref(), Some(overtaken));
        assert_eq!(observed.accept("200-3", "3", 31.0), None, "its first server may have failed");
        assert_eq!(observed.accept("200-3", "4", 90.0), None, "the cloud may have recovered");
        observed.refuse(91.0);
        observed.reconnect();
        assert_eq!(observed.accept("200-3", "5", 92.0), None, "the launcher does not know of the refusal");
    }

    #[test]
    fn a_full_cloud_is_called_seldom() {
        let refusals = |created: bool| {
            let mut observed = Observed::new();
            observed.refuse(0.0);
            if created {
                observed.create(11.0);
            }
            (0..40).filter(|at| observed.refuse(12.0 + f64::from(*at)).is_some()).count()
        };
        assert_eq!((refusals(false), refusals(true)), (30, 20));
    }

    #[test]
    fn nodes_are_aborted_only_as_often_as_a_cloud_refuses() {
        let mut observed = Observed::new();
        let mut abort = |second| {
            let time = MonotonicTime::at(second);
            observed.checker.node(&"7".into(), &"north".into(), NodeState::Aborted, time)
        };
        assert_eq!((0..41).filter(|_| abort(1.0).is_some()).count(), 1);
        assert_eq!(abort(62.0), None);
    }

    #[test]
    fn requests_are_not_declined_because_of_outages() {
        let mut observed = Observed::new();
        let mut declined = request();
        declined.declined_by.push("pool".into());
        let mut check = |id: &str| observed.checker.request(&id.into(), Some(&declined), MonotonicTime::at(1.0));
        assert_eq!(check("200-1"), None);
        observed.checker.forbid_declines();
        let mut check = |id: &str| observed.checker.request(&id.into(), Some(&declined), MonotonicTime::at(1.0));
        assert!(check("200-1").is_some());
        assert_eq!(check("900-1"), None, "a min-ready request");
    }
}
