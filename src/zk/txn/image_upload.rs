//! Transactions of uploads: begin, progress and end of an upload, and the deletion of uploads and builds.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::delete_tree::delete_tree_after;
use super::image_build::TIMESTAMP_STEP;
use super::store::{Store, deleted_paths, release, unexpected_reply, write_error_of};
use crate::locks::lock::{self, Lock};
use crate::mirror::records::{Decoded, decode_versioned, versioned};
use crate::paths;
use nodepool_model::records::ids::{BuildId, ImageName, ProviderName, UploadId};
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::json;
use nodepool_model::records::time::Timestamp;
use nodepool_model::snapshot::images::UploadLockKey;
use nodepool_model::snapshot::{Snapshot, Versioned, WriteError};
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, ZkError};

/// Maximum number of failed upload records per build and provider; then the next attempt reuses the last record.
const MAX_FAILED_UPLOADS: usize = 2;

/// The exclusive right to upload a build to a provider, as long as this is held.
#[derive(Debug)]
pub struct UploadGrant {
    pub key: UploadKey,
    /// The record of this upload by a builder that died during the upload.
    pub prior_record: Option<ImageUpload>,
    /// `None` when the upload has ended.
    lock: Option<Lock>,
    version: i32,
}

impl Store {
    /// The ready time of this upload: later than that of every ready upload of the image at the provider. A clock that
    /// was ahead may have put those into the future, and all launchers would continue to use them.
    pub fn upload_ready_time(&self, key: &UploadKey, now: Timestamp) -> Timestamp {
        let newest = |snapshot: &Snapshot| {
            let newest = snapshot.images.newest_upload(&key.provider, &key.image);
            newest.map(|(_, upload)| upload.record.state_time)
        };
        self.mirror().with_snapshot(newest).map_or(now, |newest| now.max(newest + TIMESTAMP_STEP))
    }

    /// Takes the lock of a build at a provider and records a new upload, or takes over one whose owner has disappeared.
    /// After several uploads that failed without an image, the last of their records is reused: while a cloud does not
    /// answer, attempts would add a record every few seconds, and none of them could be deleted. `Contended`: another
    /// builder uploads the build. `Conflict`: the upload exists already, or the build is no longer ready.
    pub async fn begin_upload(&self, lock_key: &UploadLockKey, record: ImageUpload) -> Result<UploadGrant, WriteError> {
        let directory = paths::image_uploads_lock(&lock_key.build.image, &lock_key.build.build, &lock_key.provider);
        let locked = lock::try_lock(self.zk(), &directory, "").await;
        let Some(lock) = locked.map_err(|error| write_error_of(&error))? else { return Err(WriteError::Contended) };
        match self.record_upload(&lock, lock_key, record).await {
            Ok((key, version, prior_record)) => Ok(UploadGrant { key, prior_record, lock: Some(lock), version }),
            Err(error) => {
                release(lock).await;
                Err(error)
            }
        }
    }

    async fn record_upload(
        &self,
        lock: &Lock,
        lock_key: &UploadLockKey,
        record: ImageUpload,
    ) -> Result<(UploadKey, i32, Option<ImageUpload>), WriteError> {
        // The snapshot may be older than the lock.
        let uploads = self.read_uploads(lock_key).await.map_err(|error| write_error_of(&error))?;
        if uploads.values().any(|upload| upload.record.state == UploadState::Ready) {
            return Err(WriteError::Conflict);
        }
        let build_path = paths::image_build(&lock_key.build.image, &lock_key.build.build);
        let (data, stat) = self.zk().get(&build_path).await.map_err(|error| write_error_of(&error))?;
        match decode_versioned::<ImageBuild>(&data, &stat) {
            Decoded::Record(build) if build.record.state == BuildState::Ready => {}
            _ => return Err(WriteError::Conflict),
        }
        let key = |upload: &UploadId| UploadKey {
            provider: lock_key.provider.clone(),
            image: lock_key.build.image.clone(),
            build: lock_key.build.build.clone(),
            upload: upload.clone(),
        };
        let data = json::to_bytes(&record);
        let mut resumable = uploads.iter().rev().find(|(_, upload)| upload.record.state == UploadState::Uploading);
        let mut reuse_lock = None;
        let mut failed = uploads.iter().filter(|(_, upload)| upload.record.has_failed_without_image());
        if resumable.is_none() && failed.clone().count() >= MAX_FAILED_UPLOADS {
            resumable = failed.next_back();
            if let Some((id, _)) = resumable {
                // A deletion of the record holds this lock.
                let lock = lock::try_lock(self.zk(), &paths::image_upload_lock(&key(id)), "").await;
                reuse_lock = lock.map_err(|error| write_error_of(&error))?;
                resumable = resumable.filter(|_| reuse_lock.is_some());
            }
        }
        let prefix = paths::image_upload_prefix(&lock_key.build.image, &lock_key.build.build, &lock_key.provider);
        let write = match resumable {
            Some((id, upload)) => Op::set(paths::image_upload(&key(id)), data, upload.version),
            None => Op::create(prefix, data, CreateMode::PersistentSequential),
        };
        let mut ops = vec![lock.fence(), Op::check(build_path, stat.version), write];
        ops.extend(reuse_lock.iter().map(Lock::release_op));
        let (key, stat, before) = match (self.zk().multi(ops).await.as_deref(), resumable) {
            (Ok([_, _, OpReply::Created { path }]), _) => (key(&paths::name(path).into()), Stat::of_new(), None),
            (Ok([_, _, OpReply::Set(stat), ..]), Some((id, upload))) => {
                (key(id), *stat, Some(ImageUpload::clone(&upload.record)))
            }
            (Ok(_), _) => return Err(unexpected_reply()),
            (Err(error), _) => return Err(write_error_of(error)),
        };
        reuse_lock.into_iter().for_each(Lock::mark_released);
        self.mirror()
            .apply_own_write(|update| update.snapshot_mut().images.put_upload(key.clone(), versioned(record, &stat)));
        Ok((key, stat.version, before))
    }

    /// Builds and ids of all uploads to a provider, and an upper bound of the issued build ids, read from ZooKeeper.
    pub async fn read_upload_ids(&self, provider: &ProviderName) -> Result<(Vec<(BuildId, UploadId)>, u64), ZkError> {
        let (mut found, mut issued_below) = (Vec::new(), 0);
        self.zk().sync(paths::IMAGES).await?;
        for image in self.children_or_none(paths::IMAGES).await?.into_iter().map(ImageName::from) {
            let builds = paths::image_builds(&image);
            if let Some(stat) = self.zk().exists(&builds).await? {
                let creations = (i64::from(stat.cversion) + i64::from(stat.num_children)) / 2;
                issued_below = issued_below.max(u64::try_from(creations).unwrap_or(u64::MAX));
            }
            for build in self.children_or_none(&builds).await?.into_iter().filter(|name| name != "lock") {
                let uploads = paths::image_uploads(&image, &build.clone().into(), provider);
                let uploads = self.children_or_none(&uploads).await?.into_iter().filter(|name| name != "lock");
                found.extend(uploads.map(|upload| (BuildId::from(build.clone()), UploadId::from(upload))));
            }
        }
        Ok((found, issued_below))
    }

    async fn children_or_none(&self, path: &str) -> Result<Vec<String>, ZkError> {
        match self.zk().children(path).await {
            Ok((names, _)) => Ok(names),
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The uploads of a build to a provider, read from ZooKeeper; unreadable records are left out.
    pub async fn read_uploads(
        &self,
        lock_key: &UploadLockKey,
    ) -> Result<BTreeMap<UploadId, Versioned<ImageUpload>>, ZkError> {
        let UploadLockKey { build, provider } = lock_key;
        let (names, _) = match self.zk().children(&paths::image_uploads(&build.image, &build.build, provider)).await {
            Err(ZkError::NoNode) => return Ok(BTreeMap::new()),
            answer => answer?,
        };
        let mut uploads = BTreeMap::new();
        for upload in names.into_iter().filter(|name| name != "lock").map(UploadId::from) {
            let key = UploadKey {
                provider: provider.clone(),
                image: build.image.clone(),
                build: build.build.clone(),
                upload: upload.clone(),
            };
            match self.zk().get(&paths::image_upload(&key)).await {
                Ok((data, stat)) => {
                    if let Decoded::Record(stored) = decode_versioned::<ImageUpload>(&data, &stat) {
                        uploads.insert(upload, stored);
                    }
                }
                Err(ZkError::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(uploads)
    }

    /// Updates the record of an upload in progress.
    pub async fn update_upload(&self, grant: &mut UploadGrant, record: &ImageUpload) -> Result<(), WriteError> {
        let Some(lock) = &grant.lock else { return Err(WriteError::Conflict) };
        let (path, data) = (paths::image_upload(&grant.key), json::to_bytes(record));
        let ops = vec![lock.fence(), Op::set(&*path, data.clone(), grant.version)];
        let stat = match self.zk().multi(ops).await.as_deref() {
            Ok([_, OpReply::Set(stat)]) => *stat,
            Ok(_) => return Err(unexpected_reply()),
            // The reply to an earlier attempt may have been lost: then the record already has the wanted content.
            Err(error) => match self.zk().get(&path).await {
                Ok((found, stat)) if found == data => stat,
                _ => return Err(write_error_of(error)),
            },
        };
        grant.version = stat.version;
        let stored = versioned(record.clone(), &stat);
        self.mirror().apply_own_write(|update| update.snapshot_mut().images.put_upload(grant.key.clone(), stored));
        Ok(())
    }

    /// Publishes the progress of an upload for waiting clients. The text is the data of the lock's contender, which no
    /// peer reads, and is deleted with it.
    pub async fn write_progress(&self, grant: &UploadGrant, text: String) {
        if let Some(lock) = &grant.lock {
            // A failed update is ignored: the next one replaces it.
            let _ = self.zk().set(lock.path(), Bytes::from(text), -1).await;
        }
    }

    /// Records the end of an upload and releases its lock. `Conflict`: the record was deleted or changed. After
    /// `Failed` the lock is still held and this may be retried.
    pub async fn finish_upload(&self, grant: &mut UploadGrant, record: &ImageUpload) -> Result<(), WriteError> {
        let Some(lock) = &grant.lock else { return Err(WriteError::Conflict) };
        let path = paths::image_upload(&grant.key);
        let ops = vec![Op::set(&*path, json::to_bytes(record), grant.version), lock.release_op()];
        let own_write = self.mirror().begin_write(vec![path.clone()]).with_deletions(deleted_paths(&ops));
        match self.zk().multi(ops).await {
            Ok(replies) => {
                let Some(OpReply::Set(stat)) = replies.first() else { return Err(unexpected_reply()) };
                let stored = versioned(record.clone(), stat);
                self.mirror()
                    .apply_own_write(|update| update.snapshot_mut().images.put_upload(grant.key.clone(), stored));
                own_write.done();
                grant.lock.take().into_iter().for_each(Lock::mark_released);
                Ok(())
            }
            Err(error) => {
                self.recover_lost_reply(&mut grant.lock, &path, &json::to_bytes(record), write_error_of(&error)).await
            }
        }
    }

    /// Marks an upload as `deleting` and keeps its lock, so that no peer deletes the upload at the same time.
    pub async fn mark_upload_deleting(
        &self,
        key: &UploadKey,
        version: i32,
        record: Option<ImageUpload>,
    ) -> Result<Lock, WriteError> {
        let locked = lock::try_lock(self.zk(), &paths::image_upload_lock(key), "").await;
        let Some(lock) = locked.map_err(|error| write_error_of(&error))? else { return Err(WriteError::Contended) };
        let path = paths::image_upload(key);
        let write = match &record {
            Some(record) => Op::set(path, json::to_bytes(record), version),
            None => Op::check(path, version),
        };
        match self.zk().multi(vec![lock.fence(), write]).await.as_deref() {
            Ok([_, OpReply::Set(stat)]) => {
                if let Some(record) = record {
                    let stored = versioned(record, stat);
                    self.mirror()
                        .apply_own_write(|update| update.snapshot_mut().images.put_upload(key.clone(), stored));
                }
                Ok(lock)
            }
            Ok(_) => Ok(lock),
            Err(error) => {
                let error = write_error_of(error);
                release(lock).await;
                Err(error)
            }
        }
    }

    /// Deletes the znode of an upload and its lock.
    pub async fn remove_upload(&self, lock: Lock, key: &UploadKey) -> Result<(), WriteError> {
        match delete_tree_after(&**self.zk(), &paths::image_upload(key), &[lock.fence()]).await {
            Ok(()) => {
                lock.mark_released();
                self.mirror().apply_own_write(|update| update.snapshot_mut().images.remove_upload(key));
                Ok(())
            }
            Err(error) => {
                release(lock).await;
                Err(write_error_of(&error))
            }
        }
    }

    /// Takes the lock without which no builder uploads the build to the provider.
    pub async fn lock_uploads(&self, lock_key: &UploadLockKey) -> Result<Lock, WriteError> {
        let directory = paths::image_uploads_lock(&lock_key.build.image, &lock_key.build.build, &lock_key.provider);
        let locked = lock::try_lock(self.zk(), &directory, "").await.map_err(|error| write_error_of(&error))?;
        locked.ok_or(WriteError::Contended)
    }

    /// Marks a build as `deleting`: its files may be deleted before its uploads.
    pub async fn mark_build_deleting(
        &self,
        key: &BuildKey,
        version: i32,
        record: ImageBuild,
    ) -> Result<(), WriteError> {
        let locked = lock::try_lock(self.zk(), &paths::image_build_lock(&key.image, &key.build), "").await;
        let Some(lock) = locked.map_err(|error| write_error_of(&error))? else { return Err(WriteError::Contended) };
        let path = paths::image_build(&key.image, &key.build);
        let ops = vec![Op::set(path, json::to_bytes(&record), version), lock.release_op()];
        match self.zk().multi(ops).await.as_deref() {
            Ok([OpReply::Set(stat), _]) => {
                lock.mark_released();
                let stored = versioned(record, stat);
                self.mirror().apply_own_write(|update| update.snapshot_mut().images.put_build(key, stored));
                Ok(())
            }
            Ok(_) => Err(unexpected_reply()),
            Err(error) => {
                let error = write_error_of(error);
                release(lock).await;
                Err(error)
            }
        }
    }

    /// Whether the record of a build exists. An empty znode, re-created by a peer's lock attempt, is not a record.
    pub async fn build_exists(&self, key: &BuildKey) -> Result<bool, ZkError> {
        match self.zk().get(&paths::image_build(&key.image, &key.build)).await {
            Ok((data, _)) => Ok(!data.is_empty()),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes the znode of a build without uploads. `Conflict`: uploads exist, or the record was changed.
    pub async fn remove_build(&self, key: &BuildKey, version: i32) -> Result<(), WriteError> {
        let providers = paths::image_providers(&key.image, &key.build);
        let names = match self.zk().children(&providers).await {
            Ok((names, _)) => names,
            Err(ZkError::NoNode) => Vec::new(),
            Err(error) => return Err(write_error_of(&error)),
        };
        for provider in names.into_iter().map(ProviderName::from) {
            let directory = paths::image_uploads(&key.image, &key.build, &provider);
            let uploads = match self.zk().children(&directory).await {
                Ok((uploads, _)) => uploads,
                Err(ZkError::NoNode) => Vec::new(),
                Err(error) => return Err(write_error_of(&error)),
            };
            for upload in uploads.iter().filter(|name| *name != "lock") {
                // A peer's lock attempt may have re-created a deleted record without data.
                match self.zk().get(&format!("{directory}/{upload}")).await {
                    Ok((data, _)) if data.is_empty() => {}
                    Ok(_) => return Err(WriteError::Conflict),
                    Err(ZkError::NoNode) => {}
                    Err(error) => return Err(write_error_of(&error)),
                }
            }
        }
        let path = paths::image_build(&key.image, &key.build);
        let unchanged = Op::check(&*path, version);
        delete_tree_after(&**self.zk(), &path, &[unchanged]).await.map_err(|error| write_error_of(&error))?;
        self.mirror().apply_own_write(|update| update.snapshot_mut().images.remove_build(key));
        Ok(())
    }
}
