//! Bulk read of everything below `/nodepool/images`: flags, builds, uploads and their locks.

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;

use bytes::Bytes;
use futures::stream::{self, StreamExt};

use super::bulk::{BATCH, WINDOW, none_if_missing, read_all, read_locks};
use super::records::{Decoded, decode_versioned};
use crate::Zk;
use crate::paths::{self, ZnodePath};
use nodepool_model::records::ids::ImageName;
use nodepool_model::records::image_build::{BuildKey, ImageBuild};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey};
use nodepool_model::snapshot::images::{Images, UploadLockKey};
use nodepool_model::snapshot::{LockState, Versioned};
use zookeeper_server::types::{Stat, ZkError};

/// Image data, as read.
#[derive(Default)]
pub struct ImagesSubtree {
    names: BTreeSet<ImageName>,
    paused: BTreeSet<ImageName>,
    requested: BTreeMap<ImageName, i64>,
    locks: BTreeMap<ImageName, LockState>,
    upload_locks: BTreeMap<UploadLockKey, LockState>,
    /// `None` if the znode exists without data.
    builds: BTreeMap<BuildKey, Option<Versioned<ImageBuild>>>,
    uploads: BTreeMap<UploadKey, Option<Versioned<ImageUpload>>>,
}

/// Reads level by level: image, build, provider, upload. There are few znodes.
pub async fn read(zk: &Zk) -> Result<(ImagesSubtree, BTreeMap<String, String>), ZkError> {
    let (mut subtree, mut unreadable) = (ImagesSubtree::default(), BTreeMap::new());
    let images = children(zk, vec![paths::IMAGES.to_owned()]).await?;
    subtree.names = images.iter().map(|path| ImageName::from(paths::name(path))).collect();
    let flags = images.iter().flat_map(|image| [format!("{image}/pause"), format!("{image}/request-build")]);
    let builds = children(zk, images.iter().map(|image| format!("{image}/builds")).collect()).await?;
    let providers = children(zk, builds.iter().map(|build| format!("{build}/providers")).collect()).await?;
    let uploads = children(zk, providers.iter().map(|provider| format!("{provider}/images")).collect()).await?;
    let (locks, records): (Vec<String>, Vec<String>) =
        builds.into_iter().chain(uploads).partition(|path| paths::name(path) == "lock");
    let records = flags.chain(records).collect();
    let mut reads = pin!(read_all(zk.as_ref(), records));
    while let Some(batch) = reads.next().await {
        for (path, answer) in batch? {
            let reason = match answer {
                Ok((data, stat)) => subtree.insert(&path, &data, &stat),
                Err(ZkError::NoNode) => None,
                // A record without read permission does not fail the whole read.
                Err(ZkError::NotPermitted(reason)) => Some(reason),
                Err(error) => return Err(error),
            };
            if let Some(reason) = reason {
                unreadable.insert(path, reason);
            }
        }
    }
    for (path, lock_state) in read_locks(zk, locks).await? {
        match paths::parse(&path) {
            ZnodePath::ImageBuildsLock(image) => drop(subtree.locks.insert(image, lock_state)),
            ZnodePath::ImageUploadsLock(image, build, provider) => {
                let build = BuildKey { image, build };
                subtree.upload_locks.insert(UploadLockKey { build, provider }, lock_state);
            }
            _ => {}
        }
    }
    Ok((subtree, unreadable))
}

/// The paths of the children of these znodes, if they exist.
async fn children(zk: &Zk, parents: Vec<String>) -> Result<Vec<String>, ZkError> {
    let reads = stream::iter(parents).map(|parent| {
        let reply = zk.children(&parent);
        async move { (parent, reply.await) }
    });
    let mut reads = reads.buffer_unordered(WINDOW * BATCH);
    let mut found = Vec::new();
    while let Some((parent, answer)) = reads.next().await {
        let (names, _) = none_if_missing(answer)?.unwrap_or_default();
        found.extend(names.into_iter().map(|name| format!("{parent}/{name}")));
    }
    Ok(found)
}

impl ImagesSubtree {
    /// Adds one znode by its path; returns the reason if it cannot be read.
    pub fn insert(&mut self, path: &str, data: &Bytes, stat: &Stat) -> Option<String> {
        match paths::parse(path) {
            ZnodePath::ImagePause(image) => drop(self.paused.insert(image)),
            ZnodePath::ImageBuildRequest(image) => drop(self.requested.insert(image, stat.ctime)),
            ZnodePath::ImageBuild(image, build) => match decode_versioned::<ImageBuild>(data, stat) {
                Decoded::Record(stored) => drop(self.builds.insert(BuildKey { image, build }, Some(stored))),
                Decoded::Empty => drop(self.builds.insert(BuildKey { image, build }, None)),
                Decoded::Unreadable(reason) => return Some(reason),
            },
            ZnodePath::ImageUpload(key) => match decode_versioned::<ImageUpload>(data, stat) {
                Decoded::Record(stored) => drop(self.uploads.insert(key, Some(stored))),
                Decoded::Empty => drop(self.uploads.insert(key, None)),
                Decoded::Unreadable(reason) => return Some(reason),
            },
            _ => {}
        }
        None
    }

    /// The paths of pause flags, builds and uploads, in order.
    pub fn paths(&self) -> BTreeSet<String> {
        let pauses = self.paused.iter().map(paths::image_pause);
        let builds = self.builds.keys().map(|key| paths::image_build(&key.image, &key.build));
        let uploads = self.uploads.keys().map(paths::image_upload);
        pauses.chain(builds).chain(uploads).collect()
    }

    /// Adds the subtree to the images of a snapshot.
    pub fn merge_into(self, images: &mut Images) {
        self.names.into_iter().for_each(|name| images.add_image(name));
        self.paused.iter().for_each(|name| images.set_paused(name, true));
        self.requested.iter().for_each(|(name, since)| images.set_requested(name, Some(*since)));
        self.locks.into_iter().for_each(|(name, lock_state)| images.set_lock(&name, lock_state));
        self.upload_locks.into_iter().for_each(|(key, lock_state)| images.set_upload_lock(key, lock_state));
        for (key, stored) in self.builds {
            match stored {
                Some(stored) => images.put_build(&key, stored),
                None => images.remove_build(&key),
            }
        }
        for (key, stored) in self.uploads {
            match stored {
                Some(stored) => images.put_upload(key, stored),
                None => images.remove_upload(&key),
            }
        }
    }
}
