//! Knobs for the API versions of a cloud, and for the addresses of its services in the catalogue.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::cloud::cloud::PROJECT_ID;

/// A version of Keystone's API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum IdentityVersion {
    #[value(name = "v2.0")]
    #[serde(rename = "v2.0")]
    V2,
    #[value(name = "v3")]
    #[serde(rename = "v3")]
    V3,
}

impl IdentityVersion {
    pub fn name(self) -> &'static str {
        match self {
            Self::V2 => "v2.0",
            Self::V3 => "v3",
        }
    }
}

/// Address of Nova in the catalogue, below the root of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum ComputeAddress {
    #[value(name = "")]
    #[serde(rename = "")]
    Unversioned,
    #[value(name = "v2")]
    #[serde(rename = "v2")]
    V2,
    #[value(name = "v2/PROJECT")]
    #[serde(rename = "v2/PROJECT")]
    V2WithProject,
    #[value(name = "v2.1")]
    #[serde(rename = "v2.1")]
    V21,
    #[value(name = "v2.1/PROJECT")]
    #[serde(rename = "v2.1/PROJECT")]
    V21WithProject,
}

impl ComputeAddress {
    pub fn path(self) -> String {
        match self {
            Self::Unversioned => String::new(),
            Self::V2 => "/v2".to_owned(),
            Self::V2WithProject => format!("/v2/{PROJECT_ID}"),
            Self::V21 => "/v2.1".to_owned(),
            Self::V21WithProject => format!("/v2.1/{PROJECT_ID}"),
        }
    }

    /// The versions that Nova serves, in the order of its version document.
    pub fn versions(self) -> &'static [&'static str] {
        match self {
            Self::V2 | Self::V2WithProject => &["v2", "v2.1"],
            Self::Unversioned | Self::V21 | Self::V21WithProject => &["v2.1"],
        }
    }

    /// Whether paths have the project's id after the version.
    pub fn has_project(self) -> bool {
        matches!(self, Self::V2WithProject | Self::V21WithProject)
    }
}

/// Type of an entry for Cinder in the catalogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeType {
    Volume,
    Volumev2,
    Volumev3,
    BlockStorage,
    BlockStore,
}

impl VolumeType {
    pub fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Volumev2 => "volumev2",
            Self::Volumev3 => "volumev3",
            Self::BlockStorage => "block-storage",
            Self::BlockStore => "block-store",
        }
    }

    /// The version in the address of the entry.
    pub fn version(self) -> &'static str {
        match self {
            Self::Volume => "v1",
            Self::Volumev2 => "v2",
            Self::Volumev3 | Self::BlockStorage | Self::BlockStore => "v3",
        }
    }
}
