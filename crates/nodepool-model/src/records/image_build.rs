//! Record of an image build.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::ids::{BuildId, ImageName};
use super::image_upload::{python2, zuul};
use super::time::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuildState {
    Building,
    Ready,
    Deleting,
    Failed,
}

impl BuildState {
    pub fn as_str(self) -> &'static str {
        match self {
            BuildState::Building => "building",
            BuildState::Ready => "ready",
            BuildState::Deleting => "deleting",
            BuildState::Failed => "failed",
        }
    }
}

/// Identity of a build: part of the znode's path, not of the record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct BuildKey {
    pub image: ImageName,
    pub build: BuildId,
}

impl BuildKey {
    pub fn new(image: &ImageName, build: &BuildId) -> Self {
        Self { image: image.clone(), build: build.clone() }
    }

    /// Prefix of the build's files, and the build's name in the CLI: `debian-1e998824122a4ab296c43fedc6d46c1a`.
    pub fn file_name(&self) -> String {
        format!("{}-{}", self.image, self.build)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageBuild {
    pub state: BuildState,
    #[serde(default)]
    pub state_time: Timestamp,
    /// Host name of the builder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder: Option<String>,
    /// Distinguishes the builders of one host; it stays the same after a restart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub builder_id: Option<String>,
    #[serde(
        default,
        skip_serializing_if = "BTreeSet::is_empty",
        serialize_with = "joined",
        deserialize_with = "split"
    )]
    pub formats: BTreeSet<String>,
    #[serde(default = "zuul")]
    pub username: Option<String>,
    #[serde(default = "python2")]
    pub python_path: Option<String>,
    #[serde(default)]
    pub shell_type: Option<String>,
}

impl ImageBuild {
    /// The record at the start of a build.
    pub fn started(builder: &str, builder_id: &str, formats: BTreeSet<String>, now: Timestamp) -> Self {
        Self {
            state: BuildState::Building,
            state_time: now,
            builder: Some(builder.to_owned()),
            builder_id: Some(builder_id.to_owned()),
            formats,
            username: None,
            python_path: None,
            shell_type: None,
        }
    }

    pub fn set_state(&mut self, state: BuildState, now: Timestamp) {
        (self.state, self.state_time) = (state, now);
    }
}

/// Serializes formats as one text, sorted: `qcow2,raw`.
fn joined<S: Serializer>(formats: &BTreeSet<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let formats: Vec<&str> = formats.iter().map(String::as_str).collect();
    serializer.serialize_str(&formats.join(","))
}

fn split<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<String>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?.unwrap_or_default();
    Ok(text.split(',').filter(|format| !format.is_empty()).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::json;

    fn written(build: &ImageBuild) -> String {
        String::from_utf8(json::to_bytes(build)).unwrap()
    }

    #[test]
    fn a_build_is_read_and_written_as_peers_do() {
        let text = r#"{"state": "ready", "state_time": 1795170000.5, "builder": "nb01.example.org", "builder_id": "705c8f5d-6bcc-4bb5-bd96-f61902760199", "formats": "qcow2,raw", "username": "zuul", "python_path": "auto", "shell_type": null}"#;
        let build: ImageBuild = serde_json::from_str(text).unwrap();
        assert_eq!(build.formats, BTreeSet::from(["raw".to_owned(), "qcow2".to_owned()]));
        assert_eq!(written(&build), text);
    }

    #[test]
    fn unset_fields_are_omitted_or_null() {
        let mut build = ImageBuild::started("nb01", "id", BTreeSet::new(), Timestamp(5.0));
        (build.builder, build.builder_id) = (None, None);
        let bare =
            r#"{"state": "building", "state_time": 5.0, "username": null, "python_path": null, "shell_type": null}"#;
        assert_eq!(written(&build), bare);
        let build: ImageBuild = serde_json::from_str(r#"{"state": "failed", "formats": null}"#).unwrap();
        assert_eq!(build.python_path.as_deref(), Some("/usr/bin/python2"));
        assert_eq!((build.username.as_deref(), build.formats.len()), (Some("zuul"), 0));
    }
}
