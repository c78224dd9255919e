//! What operators are shown of images: builds, uploads, and what is asked of each image.

use serde_json::{Value, json};

use super::build::{BuildKey, BuildState, ImageBuild};
use super::ids::ImageName;
use super::images::{Image, Images};
use super::status::{Column, age};
use super::time::Timestamp;
use super::upload::{ImageUpload, UploadKey};

/// How ages are told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ages {
    /// To people: since when it has been in its state, counted to this time.
    Until(Timestamp),
    /// To programs: the second of the Unix epoch at which it came into its state.
    Since,
}

impl Ages {
    fn of(self, time: Timestamp) -> Value {
        match self {
            Ages::Until(now) => Value::String(age(time, now)),
            Ages::Since => json!(time.0.floor() as i64),
        }
    }
}

/// A build as it is listed.
pub struct BuildRow {
    pub key: BuildKey,
    pub build: ImageBuild,
    /// Its image is paused by command.
    pub paused: bool,
    pub ages: Ages,
}

pub const BUILD_COLUMNS: &[Column<BuildRow>] = &[
    Column { key: "id", header: "ID", value: |row| json!(row.key.file_name()) },
    Column { key: "image", header: "Image", value: |row| json!(row.key.image) },
    Column { key: "builder", header: "Builder", value: |row| json!(row.build.builder) },
    Column { key: "formats", header: "Formats", value: |row| json!(row.build.formats) },
    Column {
        key: "state",
        header: "State",
        value: |row| json!(if row.paused { "paused" } else { row.build.state.as_str() }),
    },
    Column { key: "age", header: "Age", value: |row| row.ages.of(row.build.state_time) },
];

/// An upload as it is listed.
pub struct UploadRow {
    pub key: UploadKey,
    pub upload: ImageUpload,
    pub ages: Ages,
}

pub const UPLOAD_COLUMNS: &[Column<UploadRow>] = &[
    Column { key: "id", header: "Build ID", value: |row| json!(row.key.build) },
    Column { key: "upload_id", header: "Upload ID", value: |row| json!(row.key.upload) },
    Column { key: "provider", header: "Provider", value: |row| json!(row.key.provider) },
    Column { key: "image", header: "Image", value: |row| json!(row.key.image) },
    Column { key: "external_name", header: "Provider Image Name", value: |row| json!(row.upload.external_name) },
    Column { key: "external_id", header: "Provider Image ID", value: |row| json!(row.upload.external_id) },
    Column { key: "state", header: "State", value: |row| json!(row.upload.state) },
    Column { key: "age", header: "Age", value: |row| row.ages.of(row.upload.state_time) },
];

/// An image and what is asked of it.
pub struct ImageRow {
    pub name: ImageName,
    pub paused: bool,
    pub requested_ms: Option<i64>,
    pub is_building: bool,
    pub ages: Ages,
}

pub const IMAGE_COLUMNS: &[Column<ImageRow>] = &[
    Column { key: "image", header: "Image", value: |row| json!(row.name) },
    Column { key: "paused", header: "Paused", value: |row| json!(row.paused) },
    Column {
        key: "build_request",
        header: "Build Request",
        value: |row| json!(row.requested_ms.map(|_| if row.is_building { "building" } else { "pending" })),
    },
    Column {
        key: "build_request_age",
        header: "Build Request Age",
        value: |row| row.requested_ms.map_or(Value::Null, |ms| row.ages.of(Timestamp(ms as f64 / 1000.0))),
    },
];

/// By image, then in the order of their ids.
pub fn builds(images: &Images, ages: Ages) -> Vec<BuildRow> {
    let row = |(key, stored): (BuildKey, &super::stored::Stored<ImageBuild>)| BuildRow {
        paused: images.image(&key.image).is_some_and(|image| image.paused),
        build: ImageBuild::clone(&stored.record),
        key,
        ages,
    };
    images.builds().map(row).collect()
}

/// By image, build, provider and number.
pub fn uploads(images: &Images, ages: Ages) -> Vec<UploadRow> {
    let row = |(key, stored): (&UploadKey, &super::stored::Stored<ImageUpload>)| UploadRow {
        key: key.clone(),
        upload: ImageUpload::clone(&stored.record),
        ages,
    };
    let mut rows: Vec<UploadRow> = images.uploads().map(row).collect();
    let order = |row: &UploadRow| {
        let UploadKey { provider, image, build, upload } = row.key.clone();
        (image, build, provider, upload)
    };
    rows.sort_by_key(order);
    rows
}

pub fn images(images: &Images, ages: Ages) -> Vec<ImageRow> {
    let row = |name: &ImageName| {
        let image = images.image(name).cloned().unwrap_or_default();
        let is_building = is_building(&image);
        ImageRow { name: name.clone(), paused: image.paused, requested_ms: image.requested_ms, is_building, ages }
    };
    images.names().map(row).collect()
}

/// Somebody holds the lock and has recorded a build that has not ended.
pub fn is_building(image: &Image) -> bool {
    image.lock.is_held() && image.builds.values().any(|stored| stored.record.state == BuildState::Building)
}
