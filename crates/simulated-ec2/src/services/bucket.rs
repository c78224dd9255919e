//! A bucket of S3: its objects and its uploads in parts.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::region::tags::Tags;

#[derive(Default)]
pub struct Bucket {
    pub region: String,
    pub created: String,
    pub objects: BTreeMap<String, Object>,
    pub uploads: BTreeMap<String, Upload>,
}

pub struct Object {
    pub data: Bytes,
    pub tags: Tags,
    pub etag: String,
    pub content_type: String,
    pub modified: String,
}

pub struct Upload {
    pub key: String,
    pub tags: Tags,
    pub content_type: String,
    /// Data and entity tag of each part.
    pub parts: BTreeMap<u32, (Bytes, String)>,
}
