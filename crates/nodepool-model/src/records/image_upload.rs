//! Record of an image upload to a provider.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::ids::{BuildId, ImageName, ProviderName, UploadId};
use super::time::Timestamp;
use crate::config::upload_config::{BUILD_MARK, PROVIDER_MARK, UPLOAD_MARK};
use crate::records::ids::ExternalId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UploadState {
    Uploading,
    Ready,
    Deleting,
    Failed,
}

impl UploadState {
    pub fn as_str(self) -> &'static str {
        match self {
            UploadState::Uploading => "uploading",
            UploadState::Ready => "ready",
            UploadState::Deleting => "deleting",
            UploadState::Failed => "failed",
        }
    }
}

/// Identity of an upload: part of the znode's path, not of the record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UploadKey {
    pub provider: ProviderName,
    pub image: ImageName,
    pub build: BuildId,
    pub upload: UploadId,
}

impl UploadKey {
    /// Metadata that identifies the uploaded image in the cloud.
    pub fn marks(&self) -> BTreeMap<String, String> {
        let marks = [
            (BUILD_MARK, self.build.as_str()),
            (UPLOAD_MARK, self.upload.as_str()),
            (PROVIDER_MARK, self.provider.as_str()),
        ];
        marks.map(|(mark, value)| (mark.to_owned(), value.to_owned())).into()
    }

    /// `image_id` of nodes that boot from this upload: the path of the upload's znode.
    pub fn image_id(&self) -> String {
        let Self { provider, image, build, upload } = self;
        format!("/nodepool/images/{image}/builds/{build}/providers/{provider}/images/{upload}")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ImageUpload {
    pub state: UploadState,
    /// Determines which upload is the newest.
    #[serde(default)]
    pub state_time: Timestamp,
    /// Id of the image in the cloud.
    #[serde(default, deserialize_with = "known_id")]
    pub external_id: Option<ExternalId>,
    #[serde(default)]
    pub external_name: Option<String>,
    #[serde(default)]
    pub format: Option<String>,
    #[serde(default = "zuul")]
    pub username: Option<String>,
    #[serde(default = "python2")]
    pub python_path: Option<String>,
    #[serde(default)]
    pub shell_type: Option<String>,
}

impl ImageUpload {
    /// A record with a state and no other value.
    pub fn new(state: UploadState, now: Timestamp) -> Self {
        Self {
            state,
            state_time: now,
            external_id: None,
            external_name: None,
            format: None,
            username: None,
            python_path: None,
            shell_type: None,
        }
    }

    /// Whether the upload failed without a known image. The cloud may have one nevertheless, if its response was lost.
    pub fn has_failed_without_image(&self) -> bool {
        self.state == UploadState::Failed && self.external_id.is_none()
    }

    pub fn set_state(&mut self, state: UploadState, now: Timestamp) {
        (self.state, self.state_time) = (state, now);
    }
}

/// Default user name of build and upload records without this key.
pub(crate) fn zuul() -> Option<String> {
    Some("zuul".to_owned())
}

pub(crate) fn python2() -> Option<String> {
    Some("/usr/bin/python2".to_owned())
}

/// Reads an image's id. An id of an unknown type counts as none, because no node can boot from it.
fn known_id<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ExternalId>, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(text) if !text.is_empty() => Some(ExternalId::Text(text)),
        Value::Object(object) => Some(ExternalId::Object(object)),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    // A record with all its keys.
    const READY: &str = r#"{"state": "ready", "state_time": 1795171000.75, "external_id": "img-81f0", "external_name": "debian-1795170900", "format": "qcow2", "username": "zuul", "python_path": "auto", "shell_type": null}"#;

    #[test]
    fn an_upload_is_read_and_written_with_all_its_defaults() {
        let upload: ImageUpload = serde_json::from_str(READY).unwrap();
        assert_eq!(upload.external_id, Some(ExternalId::Text("img-81f0".to_owned())));
        assert_eq!(String::from_utf8(crate::records::json::to_bytes(&upload)).unwrap(), READY);
        let bare: ImageUpload = serde_json::from_str(r#"{"state": "uploading", "state_time": 5.0}"#).unwrap();
        assert_eq!((bare.external_id, bare.external_name, bare.format), (None, None, None));
        assert_eq!(bare.username.as_deref(), Some("zuul"));
        assert_eq!(bare.python_path.as_deref(), Some("/usr/bin/python2"));
    }
}
