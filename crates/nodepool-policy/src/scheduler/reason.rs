//! Reasons of a verdict: why a pool does not serve a request, or not now. They are computed, recorded and displayed.

use std::fmt;

use nodepool_model::records::ids::{LabelName, LauncherId, ProviderName, TenantName};
use nodepool_model::records::request::MAX_NODES;

#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    // Ignored.
    Ended,
    DeclinedBefore,
    BeingServed,
    // Yielded: another pool is preferred, or handles the request already.
    Locked,
    /// Another pool of this process handles the request.
    HandledByOtherPool,
    PreferredProvider(ProviderName),
    PreferredPool {
        launcher: LauncherId,
        priority: i64,
    },
    OthersHaveLabels(Vec<LabelName>),
    // Deferred.
    NotConnected,
    /// The pool is about to stop: its launcher shuts down, or a reload replaces or removes the pool.
    Draining,
    NotRegistered,
    /// The provider facts have not been refreshed yet; with the error of the last refresh, if one failed.
    NotRefreshed(Option<String>),
    HandlesNothing,
    Concurrency {
        limit: i64,
    },
    NoIdleNode {
        label: LabelName,
        wanted: usize,
        idle: usize,
        reserved: usize,
    },
    /// Each label alone has enough nodes, but all labels together do not, because they share nodes.
    NoFreeNodes {
        labels: Vec<LabelName>,
        wanted: usize,
        free: usize,
    },
    Unreachable {
        labels: Vec<LabelName>,
        wanted: usize,
        usable: usize,
    },
    OverTenantLimit {
        tenant: TenantName,
        resource: String,
        wanted: f64,
        available: f64,
    },
    /// The limits of the provider or of the pool leave too little for the next node.
    InsufficientCapacity {
        resource: String,
        wanted: f64,
        available: f64,
    },
    /// The cloud itself refuses nodes because its quota is exceeded; with its own words.
    CloudFull(String),
    /// The cloud does not respond; with the error of the last probe.
    Outage(String),
    /// The chosen zone no longer exists.
    NoZone(String),
    WriteFailed(String),
    DeadHost(String),
    // Declined.
    Disabled,
    OutOfService(String),
    LabelsNotAvailable(Vec<LabelName>),
    /// The request has more nodes than allowed.
    TooManyNodes {
        wanted: usize,
    },
    LaunchesNothing,
    /// These labels can never work here; `why` is the reason of the first.
    LabelsBroken {
        labels: Vec<LabelName>,
        why: String,
    },
    ImagesNotAvailable {
        labels: Vec<LabelName>,
        why: String,
    },
    NeverFits {
        resource: String,
        wanted: f64,
        limit: f64,
    },
    /// Error of the last attempt.
    LaunchFailed(String),
    ExceedsQuota {
        labels: Vec<LabelName>,
        wanted: usize,
        slots: usize,
    },
    // Accepted.
    Checking {
        nodes: usize,
    },
    Fulfilling {
        nodes: usize,
    },
    Launching {
        nodes: usize,
    },
}

const LAUNCHES_NOTHING: &str = "it would exceed quota: the request wants new nodes and this provider launches none";

impl Reason {
    /// Whether a request may wait long for this reason, which says more than that the pool does not decide now.
    pub fn is_lasting(&self) -> bool {
        !matches!(
            self,
            Reason::NotConnected
                | Reason::Draining
                | Reason::NotRegistered
                | Reason::NotRefreshed(None)
                | Reason::WriteFailed(_)
                | Reason::DeadHost(_)
        )
    }
}

fn for_labels(labels: &[LabelName]) -> String {
    match labels {
        [only] => format!("of label {only}"),
        many => format!("of labels [{}] together", join(many)),
    }
}

/// Without spaces, as Nodepool 11 writes them; a long list is cut.
fn join(labels: &[LabelName]) -> String {
    const MAX_LABELS_SHOWN: usize = 50;
    let shown = labels.iter().take(MAX_LABELS_SHOWN).map(LabelName::as_str).collect::<Vec<_>>().join(",");
    match labels.len().saturating_sub(MAX_LABELS_SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Ended => f.write_str("it has ended"),
            Reason::DeclinedBefore => f.write_str("this pool declined it before"),
            Reason::BeingServed => f.write_str("a launcher has accepted it"),
            Reason::Locked => f.write_str("the request is locked; it is evaluated again when the lock is released"),
            Reason::HandledByOtherPool => f.write_str("another pool of this launcher is handling it"),
            Reason::PreferredProvider(provider) => write!(f, "it prefers provider {provider}, which could serve it"),
            Reason::PreferredPool { launcher, priority } => {
                write!(f, "{launcher} could serve it and has the better priority {priority}")
            }
            Reason::OthersHaveLabels(labels) => {
                write!(f, "this pool lacks [{}], another pool has all labels", join(labels))
            }
            Reason::NotConnected => f.write_str("ZooKeeper does not answer"),
            Reason::Draining => f.write_str("the pool is being shut down or replaced"),
            Reason::NotRegistered => f.write_str("the registrations of this launcher's pools are not visible yet"),
            Reason::NotRefreshed(None) => f.write_str("the provider has not been refreshed yet"),
            Reason::NotRefreshed(Some(why)) => write!(f, "the provider could not be refreshed yet: {why}"),
            Reason::OutOfService(why) => write!(f, "the provider is out of service: {why}"),
            Reason::HandlesNothing => f.write_str("max-concurrency is 0: this provider handles no requests"),
            Reason::Concurrency { limit } => write!(f, "max-concurrency: {limit} requests are being handled"),
            Reason::NoIdleNode { label, wanted, idle, reserved } => {
                write!(f, "needs {wanted} idle node(s) of label {label}, {idle} idle")?;
                if *reserved > 0 { write!(f, ", {reserved} reserved for requests of higher rank") } else { Ok(()) }
            }
            Reason::NoFreeNodes { labels, wanted, free } => {
                write!(f, "needs {wanted} idle node(s) {}, only {free} are free for it", for_labels(labels))
            }
            Reason::Unreachable { labels, wanted, usable } => write!(
                f,
                "needs {wanted} node(s) {}, but only {usable} are usable: hosts are down or nodes are held",
                for_labels(labels)
            ),
            Reason::OverTenantLimit { tenant, resource, wanted, available } => {
                write!(f, "tenant {tenant} is at its limit: needs {resource} {wanted}, free {available}")
            }
            Reason::InsufficientCapacity { resource, wanted, available } => {
                write!(f, "quota: the next node needs {resource} {wanted}, free {available}")
            }
            Reason::CloudFull(why) => write!(f, "quota: the cloud refuses new nodes: {why}"),
            Reason::Outage(error) => write!(f, "the cloud does not respond: {error}"),
            Reason::NoZone(zone) => write!(f, "zone {zone} no longer exists in the cloud; trying another zone"),
            Reason::WriteFailed(why) => write!(f, "writing to ZooKeeper failed: {why}; retrying"),
            Reason::DeadHost(why) => write!(f, "a host failed its check: {why}"),
            // The texts up to the colon are Nodepool 11's.
            Reason::Disabled => f.write_str("pool is disabled by max_servers"),
            Reason::LabelsNotAvailable(labels) => write!(f, "node type(s) [{}] not available", join(labels)),
            Reason::TooManyNodes { wanted } => write!(
                f,
                "it requests {wanted} nodes; a request can have at most {MAX_NODES}: split it into several requests"
            ),
            Reason::LabelsBroken { labels, why } => write!(f, "node type(s) [{}] not available: {why}", join(labels)),
            Reason::ImagesNotAvailable { labels, why } => {
                write!(f, "images are not available: those of [{}]: {why}", join(labels))
            }
            Reason::NeverFits { resource, wanted, limit } => {
                write!(f, "it would exceed quota: needs {resource} {wanted}, the limit is {limit}")
            }
            Reason::LaunchFailed(why) => write!(f, "a node could not be launched: {why}"),
            Reason::LaunchesNothing => f.write_str(LAUNCHES_NOTHING),
            Reason::ExceedsQuota { labels, wanted, slots } => {
                write!(f, "it would exceed quota: needs {wanted} node(s) {}, the pool has {slots}", for_labels(labels))
            }
            Reason::Checking { nodes } => write!(f, "checking that {nodes} node(s) are alive"),
            Reason::Launching { nodes } => write!(f, "launching {nodes} node(s)"),
            Reason::Fulfilling { nodes } => write!(f, "fulfilling with {nodes} idle node(s)"),
        }
    }
}
