//! Resources of a cloud besides instances, such as ports and volumes, which a launch may leave behind.

use std::collections::BTreeMap;

use serde::Serialize;

use nodepool_model::config::upload_config::{BUILD_MARK, UPLOAD_MARK};
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::time::Seconds;

/// A kind of resources that are deleted once they are unused.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ResourceKind {
    /// Plural name, also in metrics, such as `ports`.
    pub name: &'static str,
    /// Time between two listings. A resource that both of them show is deleted.
    pub interval: Seconds,
    pub owner: ResourceOwner,
    /// The state of an unused one, such as `not attached`, for reports.
    pub unused: &'static str,
}

/// The evidence that a resource is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ResourceOwner {
    /// It carries the metadata of its node, as instances do. It is deleted if the node does not exist, with the same
    /// proof.
    Node,
    /// It carries the marks of the upload that made it. It is deleted if the upload does not exist.
    Upload,
    /// It carries nothing. All unused ones are deleted, also those of other users of the account, so the operator must
    /// have enabled it.
    Unmarked,
}

/// Build and upload of an image, as its marks name them. Images of other names may have the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct UploadMark {
    pub build: String,
    pub upload: String,
}

/// A resource that is unused now, or that carries the metadata of a node.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CloudResource {
    pub kind: &'static str,
    pub id: ExternalId,
    /// Empty if resources of this kind have none.
    pub metadata: BTreeMap<String, String>,
}

/// Result of a listing of several kinds.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UnusedResources {
    pub found: Vec<CloudResource>,
    /// Kinds that could not be listed completely, with the first error.
    pub failed: BTreeMap<&'static str, String>,
}

impl CloudResource {
    /// A resource without metadata.
    pub fn new(kind: &'static str, id: impl Into<String>) -> Self {
        Self { kind, id: ExternalId::text(id), metadata: BTreeMap::new() }
    }

    /// Whether this provider created it.
    pub fn belongs_to(&self, provider: &ProviderName) -> bool {
        self.metadata.get("nodepool_provider_name").is_some_and(|name| name == provider.as_str())
    }

    /// The upload that made the resource.
    pub fn upload(&self) -> Option<UploadMark> {
        let mark = |name: &str| self.metadata.get(name).cloned();
        Some(UploadMark { build: mark(BUILD_MARK)?, upload: mark(UPLOAD_MARK)? })
    }

    /// Id of the node that the resource was created for.
    pub fn node(&self) -> Option<&str> {
        self.metadata.get("nodepool_node_id").map(String::as_str)
    }
}
