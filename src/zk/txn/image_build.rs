//! Transactions of builds: begin and end of a build, with its lock and its manual request.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::store::{Store, deleted_paths, release, unexpected_reply, write_error_of};
use crate::locks::lock::{self, Lock};
use crate::mirror::bulk;
use crate::mirror::records::{Decoded, decode_versioned, versioned};
use crate::paths;
use nodepool_model::records::ids::{BuildId, ImageName};
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::json;
use nodepool_model::records::time::{Seconds, Timestamp};
use nodepool_model::snapshot::{Versioned, WriteError};
use zookeeper_server::types::{CreateMode, Op, OpReply, Stat, ZkError};

/// Minimum difference between the state times of consecutive builds, and of consecutive uploads.
pub(crate) const TIMESTAMP_STEP: Seconds = Seconds(0.001);

/// The exclusive right to build an image, as long as this is held.
#[derive(Debug)]
pub struct BuildGrant {
    pub key: BuildKey,
    /// `None` when the build has ended.
    lock: Option<Lock>,
    version: i32,
    /// Time at which the previously newest build became ready.
    newest: Option<Timestamp>,
}

impl BuildGrant {
    /// The ready time of this build: later than that of the previously newest one, which a clock that was ahead may
    /// have put into the future.
    pub fn ready_time(&self, now: Timestamp) -> Timestamp {
        self.newest.map_or(now, |newest| now.max(newest + TIMESTAMP_STEP))
    }
}

/// Whether the build was requested by hand. The request is deleted when the build is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ManualRequest {
    Yes,
    No,
}

impl Store {
    /// Takes the lock of an image and records a new build of it. `Contended`: another builder builds the image.
    /// `Conflict`: the newest build is not the one that the decision was based on, or the request was deleted.
    pub async fn begin_build(
        &self,
        key: BuildKey,
        record: ImageBuild,
        newest: Option<&BuildId>,
        manual_request: ManualRequest,
    ) -> Result<BuildGrant, WriteError> {
        let locked = lock::try_lock(self.zk(), &paths::image_builds_lock(&key.image), "").await;
        let Some(lock) = locked.map_err(|error| write_error_of(&error))? else { return Err(WriteError::Contended) };
        match self.record_begun(&lock, &key, record, newest, manual_request).await {
            Ok((version, newest)) => Ok(BuildGrant { key, lock: Some(lock), version, newest }),
            Err(error) => {
                release(lock).await;
                Err(error)
            }
        }
    }

    async fn record_begun(
        &self,
        lock: &Lock,
        key: &BuildKey,
        record: ImageBuild,
        newest: Option<&BuildId>,
        manual_request: ManualRequest,
    ) -> Result<(i32, Option<Timestamp>), WriteError> {
        // The snapshot may be older than the lock.
        let builds = self.read_builds(&key.image).await.map_err(|error| write_error_of(&error))?;
        let ready = builds.iter().filter(|(_, stored)| stored.record.state == BuildState::Ready);
        let found = ready.max_by_key(|(_, stored)| (stored.record.state_time, stored.mzxid));
        if found.map(|(id, _)| id) != newest {
            return Err(WriteError::Conflict);
        }
        if manual_request == ManualRequest::Yes {
            let request = self.zk().exists(&paths::image_build_request(&key.image)).await;
            request.map_err(|error| write_error_of(&error))?.ok_or(WriteError::Conflict)?;
        }
        let path = paths::image_build(&key.image, &key.build);
        let ops = vec![lock.fence(), Op::create(path, json::to_bytes(&record), CreateMode::Persistent)];
        match self.zk().multi(ops).await.as_deref() {
            Ok([_, OpReply::Created { .. }]) => {
                let stat = Stat::of_new();
                self.mirror()
                    .apply_own_write(|update| update.snapshot_mut().images.put_build(key, versioned(record, &stat)));
                Ok((stat.version, found.map(|(_, stored)| stored.record.state_time)))
            }
            Ok(_) => Err(unexpected_reply()),
            Err(error) => Err(write_error_of(error)),
        }
    }

    /// The builds of an image, read from ZooKeeper; unreadable records are left out.
    pub async fn read_builds(&self, image: &ImageName) -> Result<BTreeMap<BuildId, Versioned<ImageBuild>>, ZkError> {
        let (names, _) = match self.zk().children(&paths::image_builds(image)).await {
            Err(ZkError::NoNode) => return Ok(BTreeMap::new()),
            answer => answer?,
        };
        let ids: Vec<BuildId> = names.into_iter().filter(|name| name != "lock").map(BuildId::from).collect();
        let paths: Vec<String> = ids.iter().map(|id| paths::image_build(image, id)).collect();
        let mut builds = BTreeMap::new();
        let answers = bulk::read_list(self.zk().as_ref(), paths).await?;
        for (id, (_, answer)) in ids.into_iter().zip(answers) {
            match answer {
                Ok((data, stat)) => {
                    if let Decoded::Record(stored) = decode_versioned::<ImageBuild>(&data, &stat) {
                        builds.insert(id, stored);
                    }
                }
                Err(ZkError::NoNode) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(builds)
    }

    /// Records the end of a build and releases its lock. `Conflict`: the record was deleted or changed, so the built
    /// files will never be used. After `Failed` the lock is still held and this may be retried.
    pub async fn finish_build(
        &self,
        grant: &mut BuildGrant,
        record: &ImageBuild,
        manual_request: ManualRequest,
    ) -> Result<(), WriteError> {
        let Some(lock) = &grant.lock else { return Err(WriteError::Conflict) };
        let (path, request) =
            (paths::image_build(&grant.key.image, &grant.key.build), paths::image_build_request(&grant.key.image));
        let mut ends_request = manual_request == ManualRequest::Yes && record.state == BuildState::Ready;
        let data = Bytes::from(json::to_bytes(record));
        loop {
            let mut ops = vec![Op::set(&*path, data.clone(), grant.version), lock.release_op()];
            if ends_request {
                ops.push(Op::delete(&*request, -1));
            }
            let own_write = self.mirror().begin_write(vec![path.clone()]).with_deletions(deleted_paths(&ops));
            match self.zk().multi(ops).await {
                Ok(replies) => {
                    let Some(OpReply::Set(stat)) = replies.first() else { return Err(unexpected_reply()) };
                    self.mirror().apply_own_write(|update| {
                        update.snapshot_mut().images.put_build(&grant.key, versioned(record.clone(), stat));
                        if ends_request {
                            update.snapshot_mut().images.set_requested(&grant.key.image, None);
                        }
                    });
                    own_write.done();
                    grant.lock.take().into_iter().for_each(Lock::mark_released);
                    return Ok(());
                }
                // The request was deleted in the meantime.
                Err(ZkError::Multi { index: 2, source }) if *source == ZkError::NoNode => ends_request = false,
                Err(error) => {
                    return self.recover_lost_reply(&mut grant.lock, &path, &data, write_error_of(&error)).await;
                }
            }
        }
    }
    /// Releases the lock after a conflict. Succeeds if the record already has the wanted content, because then only the
    /// reply to an earlier attempt was lost.
    pub(crate) async fn recover_lost_reply(
        &self,
        lock: &mut Option<Lock>,
        path: &str,
        record: &[u8],
        error: WriteError,
    ) -> Result<(), WriteError> {
        if error != WriteError::Conflict {
            return Err(error);
        }
        let found = match self.zk().get(path).await {
            Ok((data, _)) => Some(data),
            Err(ZkError::NoNode) => None,
            Err(error) => return Err(write_error_of(&error)),
        };
        if let Some(lock) = lock.take() {
            release(lock).await;
        }
        if found.is_some_and(|data| data == record) { Ok(()) } else { Err(error) }
    }
}
