//! Lists of builds, uploads and images for operators.

use super::list::{Cell, Column};
use super::status::age;
use crate::records::ids::ImageName;
use crate::records::image_build::{BuildKey, BuildState, ImageBuild};
use crate::records::image_upload::{ImageUpload, UploadKey};
use crate::records::time::Timestamp;
use crate::snapshot::images::{Image, Images};

/// Format of ages.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AgeFormat {
    /// For people: time in the current state, up to this time.
    Elapsed(Timestamp),
    /// For programs: start of the current state, in seconds since the Unix epoch.
    EpochSeconds,
}

impl AgeFormat {
    fn cell(self, time: Timestamp) -> Cell<'static> {
        match self {
            AgeFormat::Elapsed(now) => age(time, now).into(),
            AgeFormat::EpochSeconds => Cell::Number(time.0.floor() as i64),
        }
    }
}

/// A row of the build list.
pub struct BuildRow {
    pub key: BuildKey,
    pub build: ImageBuild,
    /// Whether the image is paused by a command.
    pub paused: bool,
    pub ages: AgeFormat,
}

pub const BUILD_COLUMNS: &[Column<BuildRow>] = &[
    Column { key: "id", header: "ID", value: |row| row.key.file_name().into() },
    Column { key: "image", header: "Image", value: |row| (&row.key.image).into() },
    Column { key: "builder", header: "Builder", value: |row| (&row.build.builder).into() },
    Column { key: "formats", header: "Formats", value: |row| Cell::texts(&row.build.formats) },
    Column {
        key: "state",
        header: "State",
        value: |row| if row.paused { "paused" } else { row.build.state.as_str() }.into(),
    },
    Column { key: "age", header: "Age", value: |row| row.ages.cell(row.build.state_time) },
];

/// A row of the upload list.
pub struct UploadRow {
    pub key: UploadKey,
    pub upload: ImageUpload,
    pub ages: AgeFormat,
}

pub const UPLOAD_COLUMNS: &[Column<UploadRow>] = &[
    Column { key: "id", header: "Build ID", value: |row| (&row.key.build).into() },
    Column { key: "upload_id", header: "Upload ID", value: |row| (&row.key.upload).into() },
    Column { key: "provider", header: "Provider", value: |row| (&row.key.provider).into() },
    Column { key: "image", header: "Image", value: |row| (&row.key.image).into() },
    Column { key: "external_name", header: "Provider Image Name", value: |row| (&row.upload.external_name).into() },
    Column { key: "external_id", header: "Provider Image ID", value: |row| (&row.upload.external_id).into() },
    Column { key: "state", header: "State", value: |row| row.upload.state.as_str().into() },
    Column { key: "age", header: "Age", value: |row| row.ages.cell(row.upload.state_time) },
];

/// A row of the image list: an image with its pause and its requested build.
pub struct ImageRow {
    pub name: ImageName,
    pub paused: bool,
    pub requested_ms: Option<i64>,
    pub is_building: bool,
    pub ages: AgeFormat,
}

pub const IMAGE_COLUMNS: &[Column<ImageRow>] = &[
    Column { key: "image", header: "Image", value: |row| (&row.name).into() },
    Column { key: "paused", header: "Paused", value: |row| Cell::Bool(row.paused) },
    Column {
        key: "build_request",
        header: "Build Request",
        value: |row| match row.requested_ms {
            Some(_) => if row.is_building { "building" } else { "pending" }.into(),
            None => Cell::Null,
        },
    },
    Column {
        key: "build_request_age",
        header: "Build Request Age",
        value: |row| row.requested_ms.map_or(Cell::Null, |ms| row.ages.cell(Timestamp(ms as f64 / 1000.0))),
    },
];

/// Builds by image, then by id.
pub fn builds(images: &Images, ages: AgeFormat) -> Vec<BuildRow> {
    let row = |(key, stored): (BuildKey, &crate::snapshot::versioned::Versioned<ImageBuild>)| BuildRow {
        paused: images.image(&key.image).is_some_and(|image| image.paused),
        build: ImageBuild::clone(&stored.record),
        key,
        ages,
    };
    images.builds().map(row).collect()
}

/// Uploads by image, build, provider and id.
pub fn uploads(images: &Images, ages: AgeFormat) -> Vec<UploadRow> {
    let row = |(key, stored): (&UploadKey, &crate::snapshot::versioned::Versioned<ImageUpload>)| UploadRow {
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

pub fn images(images: &Images, ages: AgeFormat) -> Vec<ImageRow> {
    let row = |name: &ImageName| {
        let image = images.image(name).cloned().unwrap_or_default();
        let is_building = is_building(&image);
        ImageRow { name: name.clone(), paused: image.paused, requested_ms: image.requested_ms, is_building, ages }
    };
    images.names().map(row).collect()
}

/// Whether the image is locked and has a build in state `building`.
pub fn is_building(image: &Image) -> bool {
    image.lock.is_held() && image.builds.values().any(|stored| stored.record.state == BuildState::Building)
}
