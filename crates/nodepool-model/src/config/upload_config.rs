//! How a provider takes images: in which format, under which names, and what is said of each; and one image on its way to it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde_json::Value;

use crate::records::ids::{ExternalId, ImageName};
use crate::records::time::Seconds;

/// On an image in a cloud: of which build it is, which upload made it, and which provider asked for it.
pub const BUILD_MARK: &str = "nodepool_build_id";
pub const UPLOAD_MARK: &str = "nodepool_upload_id";
pub const PROVIDER_MARK: &str = "nodepool_provider_name";
pub const MARKS: [&str; 3] = [BUILD_MARK, UPLOAD_MARK, PROVIDER_MARK];

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UploadConfig {
    /// The suffix of the file that is uploaded: `qcow2`.
    pub format: String,
    /// With `{image_name}`, `{upload_id}` and `{timestamp}` in it.
    pub name_format: String,
    /// Called with the provider, the image's id in the cloud and the file's path when an upload is there.
    pub hook: Option<String>,
    /// So long a cloud may take for what it was sent.
    pub timeout: Seconds,
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

/// What a cloud shall have.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct UploadOrder {
    /// In the cloud.
    pub name: String,
    pub file: PathBuf,
    /// In bytes.
    pub size: u64,
    pub format: String,
    /// Properties of the image, the marks not among them.
    pub meta: BTreeMap<String, Value>,
    /// Tell whose it is and which, so that an inventory tells it again.
    pub marks: BTreeMap<String, String>,
    /// Digits of base 16, where they are known.
    pub md5: Option<String>,
    pub sha256: Option<String>,
    /// An earlier attempt of the same upload may have left an image: it is taken if it is whole, and else it goes.
    pub may_exist: bool,
    #[serde(skip)]
    pub progress: Progress,
}

impl UploadOrder {
    /// As a cloud shows it that keeps what it is told.
    pub fn to_stored_image(&self, id: ExternalId) -> StoredImage {
        let texts = self.meta.iter().filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
        StoredImage { id, name: self.name.clone(), meta: texts.chain(self.marks.clone()).collect() }
    }
}

/// How many bytes of a file are on their way; shared by who sends and who shows. All of them are equal: they say nothing of what an
/// order is.
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

/// An image that a cloud has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StoredImage {
    pub id: ExternalId,
    pub name: String,
    /// All that the cloud keeps with it, as texts.
    pub meta: BTreeMap<String, String>,
}

impl StoredImage {
    /// Whether it bears all these marks.
    pub fn has_marks(&self, marks: &BTreeMap<String, String>) -> bool {
        marks.iter().all(|(key, value)| self.meta.get(key) == Some(value))
    }
}
