//! Invariants of builds, uploads and the images in clouds, checked in the same way as those of `nodes`.

use std::collections::{BTreeMap, BTreeSet};

use super::nodes::{CloudObjectKey, Violation};
use nodepool_model::records::ids::{BuildId, ImageName, ProviderName};
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::snapshot::images::Images;

/// An observed change.
#[derive(Clone, Debug)]
pub enum ImageObservation<'a> {
    /// A record as it is now; `None` if it was deleted.
    Build(&'a BuildKey, Option<&'a ImageBuild>),
    Upload(&'a UploadKey, Option<&'a ImageUpload>),
    /// A cloud stored an image.
    Created(&'a CloudObjectKey),
    /// A call of ours requests the deletion of the image.
    Deleting(&'a CloudObjectKey),
    /// The image no longer exists.
    Removed(&'a CloudObjectKey),
    /// An operator deletes this upload manually, regardless of other uploads.
    ManuallyDeleted(&'a UploadKey),
}

/// Violations of deleting all of these uploads: the last ready upload of a configured image is retained, unless an
/// operator deletes its build manually.
pub fn check_upload_deletions<'a>(
    deleted: impl IntoIterator<Item = &'a UploadKey>,
    images: &Images,
    is_wanted: impl Fn(&ProviderName, &ImageName) -> bool,
) -> Vec<Violation> {
    let deleted: BTreeSet<&UploadKey> = deleted.into_iter().collect();
    let is_ready = |key: &UploadKey| {
        let mut uploads = images.uploads_to(&key.provider, &key.image);
        uploads.any(|(upload, stored)| upload == key && stored.record.state == UploadState::Ready)
    };
    let is_built = |key: &UploadKey| {
        let build = images.build(&BuildKey::new(&key.image, &key.build));
        build.is_some_and(|build| build.record.state == BuildState::Ready)
    };
    let another_remains = |key: &UploadKey| {
        let mut uploads = images.uploads_to(&key.provider, &key.image);
        uploads.any(|(upload, stored)| stored.record.state == UploadState::Ready && !deleted.contains(upload))
    };
    let counts = |key: &&UploadKey| is_wanted(&key.provider, &key.image) && is_ready(key) && is_built(key);
    let lasts = deleted.iter().copied().filter(counts).filter(|key| !another_remains(key));
    lasts.map(last_upload_text).map(Violation).collect()
}

fn last_upload_text(key: &UploadKey) -> String {
    format!("{} is deleted, the last ready upload of {} to {}", key.image_id(), key.image, key.provider)
}

/// Checker of the invariants; it keeps the observed state.
#[derive(Debug, Default)]
pub struct ImageInvariantChecker {
    builds: BTreeMap<BuildKey, ImageBuild>,
    uploads: BTreeMap<UploadKey, ImageUpload>,
    images: BTreeSet<CloudObjectKey>,
    manually_deleted: BTreeSet<UploadKey>,
}

impl ImageInvariantChecker {
    /// Applies an observation; returns the violations.
    pub fn observe(&mut self, observation: ImageObservation<'_>) -> Vec<Violation> {
        let found = match observation {
            ImageObservation::Build(key, record) => self.build(key, record),
            ImageObservation::Upload(key, record) => self.upload(key, record),
            ImageObservation::Created(object) => {
                self.images.insert(object.clone());
                Vec::new()
            }
            ImageObservation::Deleting(object) => self.deleting(object),
            ImageObservation::Removed(object) => {
                self.images.remove(object);
                Vec::new()
            }
            ImageObservation::ManuallyDeleted(key) => {
                self.manually_deleted.insert(key.clone());
                Vec::new()
            }
        };
        found.into_iter().map(Violation).collect()
    }

    /// The observed builds.
    pub fn builds(&self) -> &BTreeMap<BuildKey, ImageBuild> {
        &self.builds
    }

    /// The observed uploads.
    pub fn uploads(&self) -> &BTreeMap<UploadKey, ImageUpload> {
        &self.uploads
    }

    /// Violations once faults have ended; `wanted` lists the images of each provider.
    pub fn at_quiescence(&self, wanted: &[(ImageName, ProviderName)]) -> Vec<Violation> {
        let unfinished = self.builds.iter().filter(|(_, build)| build.state != BuildState::Ready);
        let mut found: Vec<String> = unfinished
            .map(|(key, build)| format!("build {} is still {}", key.file_name(), build.state.as_str()))
            .collect();
        let unfinished = self.uploads.iter().filter(|(_, upload)| upload.state != UploadState::Ready);
        found.extend(unfinished.map(|(key, upload)| format!("{} is still {}", key.image_id(), upload.state.as_str())));
        let recorded: BTreeSet<CloudObjectKey> =
            self.uploads.iter().filter_map(|(key, upload)| object_key(key, upload)).collect();
        let leaked = self.images.difference(&recorded);
        found.extend(leaked.map(|(provider, image)| format!("image {image} of {provider} is leaked")));
        for (image, provider) in wanted {
            if self.ready(image, provider).next().is_none() {
                found.push(format!("{image} has no ready upload to {provider}"));
            }
            found.extend(
                self.surplus(image, provider).map(|key| format!("{} exceeds the retention limit", key.image_id())),
            );
        }
        found.into_iter().map(Violation).collect()
    }

    fn ready(&self, image: &ImageName, provider: &ProviderName) -> impl Iterator<Item = &UploadKey> {
        let of = move |key: &UploadKey| key.image == *image && key.provider == *provider;
        self.uploads
            .iter()
            .filter(move |(key, upload)| of(key) && upload.state == UploadState::Ready)
            .map(|(key, _)| key)
    }

    /// Uploads that are neither of the newest two builds nor the newest two themselves: a late upload may be of an old
    /// build.
    fn surplus(&self, image: &ImageName, provider: &ProviderName) -> impl Iterator<Item = &UploadKey> {
        let mut builds: Vec<(&BuildKey, &ImageBuild)> =
            self.builds.iter().filter(|(key, _)| key.image == *image).collect();
        builds.sort_by(|(_, one), (_, other)| other.state_time.0.total_cmp(&one.state_time.0));
        let builds: Vec<&BuildId> = builds.into_iter().take(2).map(|(key, _)| &key.build).collect();
        let mut uploads: Vec<&UploadKey> = self.ready(image, provider).collect();
        let since = |key: &UploadKey| self.uploads[key].state_time.0;
        uploads.sort_by(|one, other| since(other).total_cmp(&since(one)));
        uploads.into_iter().skip(2).filter(move |key| !builds.contains(&&key.build))
    }

    /// A build's record exists as long as any of its uploads.
    fn build(&mut self, key: &BuildKey, record: Option<&ImageBuild>) -> Vec<String> {
        if let Some(now) = record {
            self.builds.insert(key.clone(), now.clone());
            return Vec::new();
        }
        self.builds.remove(key);
        let remaining = self.uploads.keys().filter(|upload| upload.image == key.image && upload.build == key.build);
        remaining
            .map(|upload| format!("build {} was deleted before its upload to {}", key.file_name(), upload.provider))
            .collect()
    }

    fn upload(&mut self, key: &UploadKey, record: Option<&ImageUpload>) -> Vec<String> {
        let was = match record {
            Some(now) => self.uploads.insert(key.clone(), now.clone()),
            None => self.uploads.remove(key),
        };
        let was_ready = was.as_ref().is_some_and(|was| was.state == UploadState::Ready);
        let is_ready = record.is_some_and(|now| now.state == UploadState::Ready);
        let mut found = Vec::new();
        let is_manual = self.manually_deleted.contains(key);
        if was_ready && !is_ready && !is_manual && self.ready(&key.image, &key.provider).next().is_none() {
            found.push(last_upload_text(key));
        }
        if let (false, true, Some(now)) = (was_ready, is_ready, record)
            && !object_key(key, now).is_some_and(|object| self.images.contains(&object))
        {
            found.push(format!("{} is ready, but its image does not exist", key.image_id()));
        }
        // An image without a recorded id is found by the clean-up through its marks.
        if let (None, Some(was)) = (record, &was)
            && let Some(object) = object_key(key, was).filter(|object| self.images.contains(object))
        {
            found.push(format!("{} was deleted, but its image {} still exists", key.image_id(), object.1));
        }
        found
    }

    fn deleting(&self, (provider, image): &CloudObjectKey) -> Vec<String> {
        let is_it = |(key, upload): &(&UploadKey, &ImageUpload)| {
            object_key(key, upload).is_some_and(|(of, id)| of == *provider && id == *image)
        };
        let wanted = self.uploads.iter().filter(is_it).filter(|(_, upload)| upload.state == UploadState::Ready);
        wanted.map(|(key, _)| format!("image {image} is deleted while {} is ready", key.image_id())).collect()
    }
}

/// The cloud object of an upload, as its record names it.
fn object_key(key: &UploadKey, upload: &ImageUpload) -> Option<CloudObjectKey> {
    Some((key.provider.clone(), upload.external_id.as_ref()?.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use nodepool_model::records::ids::ExternalId;
    use nodepool_model::records::time::Timestamp;
    use nodepool_model::snapshot::Versioned;

    fn key(upload: &str) -> UploadKey {
        UploadKey { provider: "lab".into(), image: "debian".into(), build: "1e".into(), upload: upload.into() }
    }

    /// Uploads in these states, each with an image named after it.
    fn images(uploads: &[(&str, UploadState)]) -> Images {
        let mut images = Images::default();
        let build = ImageBuild {
            state: BuildState::Ready,
            ..ImageBuild::started("nb01", "id", ["raw".to_owned()].into(), Timestamp(0.0))
        };
        let stored = Versioned { record: Arc::new(build), version: 0, mzxid: 100, mtime_ms: 0 };
        images.put_build(&BuildKey::new(&"debian".into(), &"1e".into()), stored);
        for (number, (upload, state)) in (1..).zip(uploads) {
            let external_id = Some(ExternalId::text(format!("image-{upload}")));
            let record = ImageUpload { external_id, ..ImageUpload::new(*state, Timestamp(0.0)) };
            images.put_upload(
                key(upload),
                Versioned { record: Arc::new(record), version: 0, mzxid: number, mtime_ms: 0 },
            );
        }
        images
    }

    #[test]
    fn the_last_ready_upload_of_a_configured_image_is_retained() {
        use UploadState::{Deleting, Ready};
        let broken = |states: &[(&str, UploadState)], deleted: &[&str], is_wanted: bool| {
            let deleted: Vec<UploadKey> = deleted.iter().map(|upload| key(upload)).collect();
            check_upload_deletions(&deleted, &images(states), |_, _| is_wanted).len()
        };
        let two = [("1", Ready), ("2", Ready), ("3", Deleting)];
        assert_eq!(broken(&two, &["1"], true), 0);
        assert_eq!(broken(&two, &["1", "3"], true), 0);
        assert_eq!(broken(&two, &["1", "2"], true), 2);
        assert_eq!(broken(&two, &["1", "2"], false), 0);
        assert_eq!(broken(&[("1", Ready), ("3", Deleting)], &["1"], true), 1);
        assert_eq!(broken(&[("3", Deleting)], &["3"], true), 0, "the upload was not ready");
        let mut without_build = images(&[("1", Ready)]);
        without_build.remove_build(&BuildKey::new(&"debian".into(), &"1e".into()));
        assert_eq!(check_upload_deletions(&[key("1")], &without_build, |_, _| true), []);
    }

    /// Steps: `stored`, `deletion requested` and `removed` of an image, or the state of its upload's record.
    fn check(steps: &[(&str, &str)], expected: &[&str]) {
        let mut checker = ImageInvariantChecker::default();
        let mut found = Vec::new();
        for (upload, step) in steps {
            let key = key(upload);
            let object = (ProviderName::from("lab"), format!("image-{upload}"));
            let state = match *step {
                "uploading" => Some(UploadState::Uploading),
                "ready" => Some(UploadState::Ready),
                "deleting" => Some(UploadState::Deleting),
                _ => None,
            };
            let record = state.map(|state| ImageUpload {
                external_id: Some(ExternalId::text(object.1.clone())),
                ..ImageUpload::new(state, Timestamp(0.0))
            });
            let observation = match *step {
                "stored" => ImageObservation::Created(&object),
                "deletion requested" => ImageObservation::Deleting(&object),
                "removed" => ImageObservation::Removed(&object),
                _ => ImageObservation::Upload(&key, record.as_ref()),
            };
            found.extend(checker.observe(observation).into_iter().map(|violation| violation.0));
        }
        found
            .extend(checker.at_quiescence(&[("debian".into(), "lab".into())]).into_iter().map(|violation| violation.0));
        let found: Vec<&str> = found.iter().map(|text| text.rsplit("images/").next().unwrap()).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn an_upload_is_created_and_replaced_by_the_next() {
        let first = [("1", "uploading"), ("1", "stored"), ("1", "ready")];
        let second = first.map(|(_, step)| ("2", step));
        let end = [("1", "deleting"), ("1", "deletion requested"), ("1", "removed"), ("1", "no record")];
        check(&[&first[..], &second, &end].concat(), &[]);
    }

    #[test]
    fn violations_are_reported() {
        let ready = [("1", "uploading"), ("1", "stored"), ("1", "ready")];
        let after = |steps: &[(&'static str, &'static str)]| [&ready[..], steps].concat();
        check(&[("1", "ready")], &["1 is ready, but its image does not exist"]);
        check(
            &after(&[("1", "deletion requested")]),
            &["image image-1 is deleted while /nodepool/images/debian/builds/1e/providers/lab/images/1 is ready"]
                .map(|text| text.rsplit("images/").next().unwrap()),
        );
        check(
            &after(&[("1", "deleting")]),
            &[
                "1 is deleted, the last ready upload of debian to lab",
                "1 is still deleting",
                "debian has no ready upload to lab",
            ],
        );
        check(&[("1", "stored")], &["image image-1 of lab is leaked", "debian has no ready upload to lab"]);
    }
}
