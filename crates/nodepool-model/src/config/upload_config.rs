//! Upload settings of a provider (format, names, properties), and the order to upload one image.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::Value;

use crate::records::ids::{ExternalId, ImageName};
use crate::records::time::Seconds;

/// Metadata of an image in a cloud: its build, its upload and its provider.
pub const BUILD_MARK: &str = "nodepool_build_id";
pub const UPLOAD_MARK: &str = "nodepool_upload_id";
pub const PROVIDER_MARK: &str = "nodepool_provider_name";
pub const MARKS: [&str; 3] = [BUILD_MARK, UPLOAD_MARK, PROVIDER_MARK];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UploadConfig {
    /// Suffix of the uploaded file: `qcow2`.
    pub format: String,
    /// Template of the image's name; may contain `{image_name}`, `{upload_id}` and `{timestamp}`.
    pub name_format: String,
    /// Command that runs after an upload, with the provider, the image's id in the cloud and the file's path.
    pub hook: Option<String>,
    /// Limit for the cloud's processing of an uploaded file.
    pub timeout: Seconds,
    pub images: BTreeMap<ImageName, UploadEntry>,
}

/// One image of a provider.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct UploadEntry {
    /// Whether uploads of this image are paused.
    pub paused: bool,
    /// Properties of the image in the cloud, which override those of the diskimage.
    pub meta: BTreeMap<String, Value>,
}

/// Order to upload one image.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UploadOrder {
    /// Its name in the configuration.
    pub image: ImageName,
    /// Name in the cloud.
    pub name: String,
    pub file: PathBuf,
    /// Size of the file, in bytes.
    pub size: u64,
    pub format: String,
    /// Properties of the image, without the marks.
    pub meta: BTreeMap<String, Value>,
    /// Metadata that identifies the image and its owner, so that an inventory recognises it.
    pub marks: BTreeMap<String, String>,
    /// Checksum in hexadecimal, if known.
    pub md5: Option<String>,
    pub sha256: Option<String>,
    /// Whether an earlier attempt of the upload may have created an image. A complete image is used, any other is
    /// deleted.
    pub may_exist: bool,
    #[serde(skip)]
    pub progress: Progress,
}

impl UploadOrder {
    /// The image as listed by a cloud that stores all properties.
    pub fn to_stored_image(&self, id: ExternalId) -> StoredImage {
        let texts = self.meta.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        StoredImage { id, name: self.name.clone(), meta: texts.chain(self.marks.clone()).collect() }
    }
}

/// Number of bytes sent, shared by the upload and its observers. All values compare equal, because progress is not part
/// of an order's identity.
#[derive(Clone, Debug, Default)]
pub struct Progress(Arc<AtomicU64>);

impl Progress {
    pub fn set(&self, bytes: u64) {
        self.0.store(bytes, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl PartialEq for Progress {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// An image in a cloud.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredImage {
    pub id: ExternalId,
    pub name: String,
    /// All properties that the cloud stores, as texts.
    pub meta: BTreeMap<String, String>,
}

impl StoredImage {
    /// Whether the image has all these marks.
    pub fn has_marks(&self, marks: &BTreeMap<String, String>) -> bool {
        marks.iter().all(|(key, value)| self.meta.get(key) == Some(value))
    }
}
