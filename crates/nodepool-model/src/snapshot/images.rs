//! Images in a snapshot: flags, builds, uploads, and the locks of running builds and uploads.

use imbl::OrdMap;

use super::versioned::{LockState, Versioned};
use crate::records::ids::{BuildId, ImageName, ProviderName};
use crate::records::image_build::{BuildKey, BuildState, ImageBuild};
use crate::records::image_upload::{ImageUpload, UploadKey, UploadState};

#[derive(Clone, Debug, Default)]
pub struct Images {
    by_name: OrdMap<ImageName, Image>,
    uploads: OrdMap<(ProviderName, ImageName), OrdMap<UploadKey, Versioned<ImageUpload>>>,
    /// Held locks of the uploads of a build to a provider.
    upload_locks: OrdMap<UploadLockKey, LockState>,
}

/// Key of the lock that all uploads of one build to one provider share.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UploadLockKey {
    pub build: BuildKey,
    pub provider: ProviderName,
}

impl UploadLockKey {
    pub fn of(key: &UploadKey) -> Self {
        Self { build: BuildKey::new(&key.image, &key.build), provider: key.provider.clone() }
    }
}

/// State of one image.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// Paused by a command; the configuration may pause it as well.
    pub paused: bool,
    /// Time of the manual build request, in milliseconds since the epoch by ZooKeeper's clock.
    pub requested_ms: Option<i64>,
    pub builds: OrdMap<BuildId, Versioned<ImageBuild>>,
    /// Held by the builder that builds the image.
    pub lock: LockState,
}

impl Image {
    /// Builds that can be used, the newest first.
    pub fn ready(&self) -> Vec<(&BuildId, &Versioned<ImageBuild>)> {
        let mut ready: Vec<_> =
            self.builds.iter().filter(|(_, stored)| stored.record.state == BuildState::Ready).collect();
        ready.sort_by_key(|(_, stored)| std::cmp::Reverse((stored.record.state_time, stored.mzxid)));
        ready
    }
}

// Reading.
impl Images {
    pub fn names(&self) -> impl Iterator<Item = &ImageName> {
        self.by_name.keys()
    }

    pub fn image(&self, name: &ImageName) -> Option<&Image> {
        self.by_name.get(name)
    }

    pub fn builds(&self) -> impl Iterator<Item = (BuildKey, &Versioned<ImageBuild>)> {
        self.by_name.iter().flat_map(|(name, image)| {
            image.builds.iter().map(move |(build, stored)| (BuildKey::new(name, build), stored))
        })
    }

    pub fn build(&self, key: &BuildKey) -> Option<&Versioned<ImageBuild>> {
        self.image(&key.image)?.builds.get(&key.build)
    }

    pub fn uploads(&self) -> impl Iterator<Item = (&UploadKey, &Versioned<ImageUpload>)> {
        self.uploads.values().flat_map(OrdMap::iter)
    }

    /// Uploads of all builds of an image to a provider.
    pub fn uploads_to(
        &self,
        provider: &ProviderName,
        image: &ImageName,
    ) -> impl Iterator<Item = (&UploadKey, &Versioned<ImageUpload>)> {
        self.uploads.get(&(provider.clone(), image.clone())).into_iter().flat_map(OrdMap::iter)
    }

    pub fn upload(&self, key: &UploadKey) -> Option<&Versioned<ImageUpload>> {
        self.uploads.get(&(key.provider.clone(), key.image.clone()))?.get(key)
    }

    /// The upload that nodes of an image boot from: the newest ready one of any build.
    pub fn newest_upload(
        &self,
        provider: &ProviderName,
        image: &ImageName,
    ) -> Option<(&UploadKey, &Versioned<ImageUpload>)> {
        let is_usable = |upload: &ImageUpload| upload.state == UploadState::Ready && upload.external_id.is_some();
        let usable = self.uploads_to(provider, image).filter(|(_, stored)| is_usable(&stored.record));
        usable.max_by_key(|(_, stored)| (stored.record.state_time, stored.mzxid))
    }

    /// Whether images, builds and uploads are unchanged; upload locks are not compared. Fast, but `false` after a
    /// change that was reverted.
    pub fn is_same_as(&self, other: &Images) -> bool {
        self.by_name.ptr_eq(&other.by_name) && self.uploads.ptr_eq(&other.uploads)
    }

    pub fn is_being_uploaded(&self, key: &UploadLockKey) -> bool {
        self.upload_locks.get(key).is_some_and(LockState::is_held)
    }
}

// Writing.
impl Images {
    pub fn add_image(&mut self, name: ImageName) {
        self.by_name.entry(name).or_default();
    }

    pub fn remove_image(&mut self, name: &ImageName) {
        self.by_name.remove(name);
    }

    pub fn set_paused(&mut self, name: &ImageName, paused: bool) {
        self.change(name, paused, |image| image.paused = paused);
    }

    pub fn set_requested(&mut self, name: &ImageName, since_ms: Option<i64>) {
        self.change(name, since_ms.is_some(), |image| image.requested_ms = since_ms);
    }

    pub fn set_lock(&mut self, name: &ImageName, lock: LockState) {
        self.change(name, lock.exists, |image| image.lock = lock);
    }

    /// Applies the creation or deletion of a contender for the build lock of an image.
    pub fn set_contender(&mut self, name: &ImageName, contender: &str, is_present: bool) {
        self.change(name, is_present, |image| set_contender(&mut image.lock, contender, is_present));
    }

    pub fn put_build(&mut self, key: &BuildKey, stored: Versioned<ImageBuild>) {
        let builds = &mut self.by_name.entry(key.image.clone()).or_default().builds;
        if builds.get(&key.build).is_none_or(|old| old.mzxid < stored.mzxid) {
            builds.insert(key.build.clone(), stored);
        }
    }

    pub fn remove_build(&mut self, key: &BuildKey) {
        self.change(&key.image, false, |image| drop(image.builds.remove(&key.build)));
    }

    pub fn put_upload(&mut self, key: UploadKey, stored: Versioned<ImageUpload>) {
        let uploads = self.uploads.entry((key.provider.clone(), key.image.clone())).or_default();
        if uploads.get(&key).is_none_or(|old| old.mzxid < stored.mzxid) {
            uploads.insert(key, stored);
        }
    }

    pub fn remove_upload(&mut self, key: &UploadKey) {
        let image_key = (key.provider.clone(), key.image.clone());
        if let Some(uploads) = self.uploads.get_mut(&image_key) {
            uploads.remove(key);
            if uploads.is_empty() {
                self.uploads.remove(&image_key);
            }
        }
    }

    pub fn set_upload_lock(&mut self, key: UploadLockKey, lock: LockState) {
        if lock.is_held() {
            self.upload_locks.insert(key, lock);
        } else {
            self.upload_locks.remove(&key);
        }
    }

    /// Applies the creation or deletion of a contender for the upload lock of a build and provider.
    pub fn set_upload_contender(&mut self, key: UploadLockKey, contender: &str, is_present: bool) {
        let mut lock = self.upload_locks.get(&key).cloned().unwrap_or_default();
        set_contender(&mut lock, contender, is_present);
        self.set_upload_lock(key, lock);
    }

    /// Edits an image. An unknown image is created only if `create` is set: a removal does not create it.
    fn change(&mut self, name: &ImageName, create: bool, edit: impl FnOnce(&mut Image)) {
        if create {
            edit(self.by_name.entry(name.clone()).or_default());
        } else if let Some(image) = self.by_name.get_mut(name) {
            edit(image);
        }
    }
}

fn set_contender(lock: &mut LockState, contender: &str, is_present: bool) {
    if is_present {
        lock.exists = true;
        lock.contenders.insert(contender.to_owned());
    } else {
        lock.contenders.remove(contender);
    }
}
