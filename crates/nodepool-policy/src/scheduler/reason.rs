//! Why a request is not served here, or not now: values that are computed, kept and shown.

use std::fmt;

use nodepool_model::records::ids::{LabelName, LauncherId, ProviderName, TenantName};
use nodepool_model::records::request::MAX_NODES;

#[derive(Clone, Debug, PartialEq)]
pub enum Reason {
    // Nothing to do here.
    Ended,
    DeclinedBefore,
    BeingServed,
    // Somebody else is better placed or busy with it.
    Locked,
    /// By another pool of this process.
    HandledByOtherPool,
    PreferredProvider(ProviderName),
    PreferredPool {
        launcher: LauncherId,
        priority: i64,
    },
    OthersHaveLabels(Vec<LabelName>),
    // Not now.
    NotConnected,
    NotRegistered,
    /// Nothing is known of the provider yet; with the error of the last look.
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
    /// Of each label there are enough, of all of them together there are not: they are on the same nodes.
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
    /// Of the provider's limits or the pool's.
    InsufficientCapacity {
        resource: String,
        wanted: f64,
        available: f64,
    },
    /// The cloud itself refused for want of quota.
    OverQuota,
    /// The zone that was chosen has gone.
    NoZone(String),
    WriteFailed(String),
    DeadHost(String),
    // Never here.
    Disabled,
    OutOfService(String),
    LabelsNotAvailable(Vec<LabelName>),
    /// More than one request may ask for.
    TooManyNodes {
        wanted: usize,
    },
    LaunchesNothing,
    /// They can never work here, and why the first of them cannot.
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
    /// What the last attempt said.
    LaunchFailed(String),
    ExceedsQuota {
        labels: Vec<LabelName>,
        wanted: usize,
        slots: usize,
    },
    // It is.
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

fn for_labels(labels: &[LabelName]) -> String {
    match labels {
        [only] => format!("of label {only}"),
        many => format!("of labels [{}] together", join(many)),
    }
}

/// Without blanks, as the reference writes them; of very many the first will do.
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
            Reason::Locked => f.write_str("somebody holds its lock; it is looked at again when the lock is free"),
            Reason::HandledByOtherPool => f.write_str("another pool of this launcher is about to take it"),
            Reason::PreferredProvider(provider) => write!(f, "it prefers provider {provider}, which could serve it"),
            Reason::PreferredPool { launcher, priority } => {
                write!(f, "{launcher} could serve it and has the better priority {priority}")
            }
            Reason::OthersHaveLabels(labels) => {
                write!(f, "this pool lacks [{}], another pool has all labels", join(labels))
            }
            Reason::NotConnected => f.write_str("ZooKeeper does not answer"),
            Reason::NotRegistered => f.write_str("the registrations of this launcher's pools are not visible yet"),
            Reason::NotRefreshed(None) => f.write_str("the provider has not been looked at yet"),
            Reason::NotRefreshed(Some(why)) => write!(f, "the provider could not be looked at yet: {why}"),
            Reason::OutOfService(why) => write!(f, "the provider is out of service: {why}"),
            Reason::HandlesNothing => f.write_str("max-concurrency is 0: this provider handles no requests"),
            Reason::Concurrency { limit } => write!(f, "max-concurrency: {limit} requests are being handled"),
            Reason::NoIdleNode { label, wanted, idle, reserved: kept } => {
                write!(f, "needs {wanted} idle node(s) of label {label}, {idle} idle")?;
                if *kept > 0 { write!(f, ", {kept} kept for requests before it") } else { Ok(()) }
            }
            Reason::NoFreeNodes { labels, wanted, free } => {
                write!(f, "needs {wanted} idle node(s) {}, only {free} are free for it", for_labels(labels))
            }
            Reason::Unreachable { labels, wanted, usable } => write!(
                f,
                "needs {wanted} node(s) {}, but only {usable} are usable: hosts are down or nodes are held",
                for_labels(labels)
            ),
            Reason::OverTenantLimit { tenant, resource, wanted, available: left } => {
                write!(f, "tenant {tenant} is at its limit: needs {resource} {wanted}, free {left}")
            }
            Reason::InsufficientCapacity { resource, wanted, available: left } => {
                write!(f, "quota: the next node needs {resource} {wanted}, free {left}")
            }
            Reason::OverQuota => f.write_str("quota: the cloud refused a node; it is tried again"),
            Reason::NoZone(zone) => write!(f, "the cloud has no zone {zone} any more; another one is tried"),
            Reason::WriteFailed(why) => write!(f, "writing to ZooKeeper failed: {why}; it is tried again"),
            Reason::DeadHost(why) => write!(f, "a host failed its check: {why}"),
            // The texts up to the colon are the reference's.
            Reason::Disabled => f.write_str("pool is disabled by max_servers"),
            Reason::LabelsNotAvailable(labels) => write!(f, "node type(s) [{}] not available", join(labels)),
            Reason::TooManyNodes { wanted } => {
                write!(f, "it asks for {wanted} nodes, and a request can get {MAX_NODES} at most: ask with several")
            }
            Reason::LabelsBroken { labels, why } => write!(f, "node type(s) [{}] not available: {why}", join(labels)),
            Reason::ImagesNotAvailable { labels, why } => {
                write!(f, "images are not available: those of [{}]: {why}", join(labels))
            }
            Reason::NeverFits { resource, wanted, limit } => {
                write!(f, "it would exceed quota: needs {resource} {wanted}, the limit is {limit}")
            }
            Reason::LaunchFailed(why) => write!(f, "a node could not be launched: {why}"),
            Reason::LaunchesNothing => {
                f.write_str("it would exceed quota: the request wants new nodes and this provider launches none")
            }
            Reason::ExceedsQuota { labels, wanted, slots } => {
                write!(f, "it would exceed quota: needs {wanted} node(s) {}, the pool has {slots}", for_labels(labels))
            }
            Reason::Checking { nodes } => write!(f, "checking that {nodes} node(s) are alive"),
            Reason::Launching { nodes } => write!(f, "launching {nodes} node(s)"),
            Reason::Fulfilling { nodes } => write!(f, "handing out {nodes} node(s)"),
        }
    }
}
