//! How a provider takes images: in which format, under which names, and what is said of each.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use super::ids::ImageName;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Uploading {
    /// The suffix of the file that is uploaded: `qcow2`.
    pub format: String,
    /// With `{image_name}`, `{upload_id}` and `{timestamp}` in it.
    pub name_format: String,
    /// Called with the provider, the image's id in the cloud and the file's path when an upload is there.
    pub hook: Option<String>,
    pub images: BTreeMap<ImageName, UploadEntry>,
}

/// One image of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UploadEntry {
    /// Not uploaded for now.
    pub paused: bool,
    /// Put on the image in the cloud, over what the image itself has.
    pub meta: BTreeMap<String, Value>,
}
