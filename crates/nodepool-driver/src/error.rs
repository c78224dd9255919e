//! Errors of cloud calls and jobs, by what the caller does next.

use serde::Serialize;

use nodepool_model::records::time::Seconds;

/// Error of a call or a job. The variants differ in what the caller does next.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize)]
pub enum CloudError {
    /// The object does not exist, in the cloud's own words. A deletion counts this as success.
    #[error("not found: {0}")]
    NotFound(String),
    /// Does not count as a failed attempt: the node is aborted, and the facts are refreshed.
    #[error("over quota: {0}")]
    Quota(String),
    /// The requested zone no longer exists. This does not count as a failed attempt: another zone is chosen.
    #[error("availability zone {0} no longer exists")]
    NoZone(String),
    /// The cloud is full. This counts as a failed attempt.
    #[error("no capacity: {0}")]
    Capacity(String),
    /// The TaskManager slows down and repeats the call as long as its job needs it; no submitter receives this error.
    #[error("throttled, retry after {} s", retry_after.0)]
    Throttled { retry_after: Seconds },
    /// Cannot succeed with this configuration: a launch fails without further attempts, and a refresh makes the
    /// provider permanently unavailable.
    #[error("denied: {0}")]
    Denied(String),
    /// The cloud did not serve the call: a 5xx, no connection, no name, no TLS. A driver cannot know whether this call
    /// or the whole cloud is concerned; the TaskManager finds out. Submitters and machines receive this error only for
    /// an outage of the whole cloud, which does not count as a failed attempt.
    #[error("{detail}")]
    Outage {
        detail: String,
        /// The call may have been executed nevertheless.
        may_have_worked: bool,
    },
    #[error("{detail}")]
    Failed { kind: FailureKind, detail: String },
    /// The call's own deadline passed before the cloud answered.
    #[error("deadline passed")]
    Deadline,
}

impl CloudError {
    /// Name of the kind, for metrics.
    pub fn kind(&self) -> &'static str {
        match self {
            CloudError::NotFound(_) => "not-found",
            CloudError::Quota(_) => "quota",
            CloudError::NoZone(_) => "no-zone",
            CloudError::Capacity(_) => "capacity",
            CloudError::Throttled { .. } => "throttled",
            CloudError::Denied(_) => "denied",
            CloudError::Outage { .. } => "outage",
            CloudError::Failed { .. } => "failed",
            CloudError::Deadline => "deadline",
        }
    }

    /// Error of a job for something that a cloud does not have.
    pub fn unsupported() -> Self {
        Self::not_found("this cloud has no such resources")
    }

    /// The object, or the kind of objects, does not exist.
    pub fn not_found(what: impl Into<String>) -> Self {
        CloudError::NotFound(what.into())
    }

    /// Whether the error may be part of an outage of the whole cloud.
    pub fn suggests_outage(&self) -> bool {
        matches!(self, CloudError::Outage { .. } | CloudError::Deadline)
    }

    /// The same error, of a call that met an outage of the whole cloud.
    pub fn during_outage(self) -> Self {
        match self {
            CloudError::Deadline => CloudError::Outage { detail: self.to_string(), may_have_worked: true },
            other => other,
        }
    }

    /// The same error, of a call that failed although the cloud responds.
    pub fn without_outage(self) -> Self {
        match self {
            CloudError::Outage { detail, .. } => CloudError::Failed { kind: FailureKind::Unknown, detail },
            other => other,
        }
    }

    /// Error of a job that Nodepool itself cancelled: the provider drains, the submitter abandoned the job, or the
    /// actor tree ends.
    pub fn abandoned(detail: impl Into<String>) -> Self {
        CloudError::Failed { kind: FailureKind::Nodepool, detail: detail.into() }
    }
}

/// Kinds of failed launches and deletions that operators monitor separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub enum FailureKind {
    /// A cause in Nodepool: no uploaded image, no token, cancelled.
    Nodepool,
    /// The cloud reports the instance as failed.
    Status,
    /// The instance has no usable address.
    Network,
    KeyScan,
    Ssh,
    Capacity,
    Quota,
    ServerCreateTimeout,
    ServerDeleteTimeout,
    /// The ZooKeeper session ended during the launch or deletion.
    Session,
    Unknown,
}

impl FailureKind {
    /// The part of a statsd key after `nodepool.launch.` and similar prefixes.
    pub fn statsd_suffix(self) -> &'static str {
        match self {
            FailureKind::Nodepool => "error.nodepool",
            FailureKind::Status => "error.status",
            FailureKind::Network => "error.network",
            FailureKind::KeyScan => "error.keyscan",
            FailureKind::Ssh => "error.ssh",
            FailureKind::Capacity => "error.capacity",
            FailureKind::Quota => "error.quota",
            FailureKind::ServerCreateTimeout => "error.servercreatetimeout",
            FailureKind::ServerDeleteTimeout => "error.serverdeletetimeout",
            FailureKind::Session => "error.zksession",
            FailureKind::Unknown => "error.unknown",
        }
    }
}
