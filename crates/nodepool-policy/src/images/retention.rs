//! Image retention: the uploads and builds to delete. The newest two are retained; failed, abandoned and unused ones
//! are deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::inputs::Inputs;
use nodepool_model::config::{ProviderConfig, driver_limits};
use nodepool_model::records::ids::{BuildId, ExternalId, ImageName, ProviderName};
use nodepool_model::records::image_build::{BuildKey, BuildState, ImageBuild};
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::snapshot::Versioned;
use nodepool_model::snapshot::images::{Images, UploadLockKey};

/// Number of builds and uploads that are retained: the current one and its predecessor.
pub const RETAINED: usize = 2;

/// One deletion.
#[derive(Clone, Debug, PartialEq)]
pub enum RetentionAction {
    /// Deletes the image in the cloud, then the record.
    Upload(UploadKey, Versioned<ImageUpload>),
    /// The builder of the upload died: searches the cloud for the image, then deletes the record.
    Stale(UploadKey),
    /// Marks the build `deleting`, so that its files can be deleted even if a cloud is slow to delete its images.
    Build(BuildKey, Versioned<ImageBuild>),
    /// Deletes the record; nothing else of the build exists.
    Record(BuildKey, Versioned<ImageBuild>),
}

/// Range of deletions that a run considers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetentionScope {
    /// Records in state `deleting`, and the deletions that follow from them.
    Marked,
    /// All records. Failed builds and uploads stay visible until this run.
    All,
}

impl RetentionAction {
    /// The provider whose cloud performs the deletion.
    pub fn provider(&self) -> Option<&ProviderName> {
        match self {
            RetentionAction::Upload(key, _) | RetentionAction::Stale(key) => Some(&key.provider),
            RetentionAction::Build(..) | RetentionAction::Record(..) => None,
        }
    }

    /// Key of the object; at most one action per key may be in flight.
    pub fn key(&self) -> String {
        match self {
            RetentionAction::Upload(key, _) | RetentionAction::Stale(key) => key.image_id(),
            RetentionAction::Build(key, _) | RetentionAction::Record(key, _) => key.file_name(),
        }
    }
}

/// Deletions that are due. `own_builds`: the build of each image whose lock this builder holds.
pub fn due(
    inputs: &Inputs<'_>,
    scope: RetentionScope,
    own_builds: &BTreeMap<ImageName, BuildId>,
) -> Vec<RetentionAction> {
    let images = &inputs.snapshot.images;
    let uploads = by_build(images);
    let none = Vec::new();
    let mut actions = Vec::new();
    for name in images.names() {
        let retained = retained_builds(inputs, name);
        let recent = recent_uploads(inputs, name);
        let Some(image) = images.image(name) else { continue };
        for (id, stored) in &image.builds {
            let key = BuildKey::new(name, id);
            let uploads = uploads.get(&key).unwrap_or(&none);
            let is_retained_build = retained.contains(&key);
            // This builder holds the lock for one build, so earlier builds belong to builders that died. A later build
            // belongs to the current holder of the lock: our build has ended, and the answer to its last write was
            // lost.
            let own = own_builds.get(name);
            let is_earlier = |own| {
                let own = image.builds.get(own);
                own.is_none_or(|own: &Versioned<ImageBuild>| stored.record.state_time <= own.record.state_time)
            };
            let is_of_another = || own.is_some_and(|own| own != id && is_earlier(own));
            let is_active = stored.record.state == BuildState::Building && image.lock.is_held() && !is_of_another();
            let is_retained = stored.record.state != BuildState::Deleting && (is_retained_build || is_active);
            for (upload, record) in uploads {
                let Some(action) = upload_action(inputs, upload, record, is_retained, &recent) else { continue };
                let is_marked = record.record.state == UploadState::Deleting;
                if scope == RetentionScope::All || is_marked || stored.record.state == BuildState::Deleting {
                    actions.push(action);
                }
            }
            if is_retained || (scope == RetentionScope::Marked && stored.record.state != BuildState::Deleting) {
                continue;
            }
            if uploads.is_empty() {
                actions.push(RetentionAction::Record(key, stored.clone()));
            } else if stored.record.state != BuildState::Deleting
                && uploads.iter().all(|(_, upload)| upload.record.state == UploadState::Deleting)
            {
                actions.push(RetentionAction::Build(key, stored.clone()));
            }
        }
    }
    actions
}

type Uploads<'a> = Vec<(&'a UploadKey, &'a Versioned<ImageUpload>)>;

fn by_build(images: &Images) -> BTreeMap<BuildKey, Uploads<'_>> {
    let mut builds: BTreeMap<BuildKey, Uploads<'_>> = BTreeMap::new();
    for (key, stored) in images.uploads() {
        builds.entry(BuildKey::new(&key.image, &key.build)).or_default().push((key, stored));
    }
    builds
}

/// The newest builds of a configured image. No builds of other images are retained.
fn retained_builds(inputs: &Inputs<'_>, image: &ImageName) -> BTreeSet<BuildKey> {
    let view = inputs.snapshot.images.image(image).filter(|_| inputs.config.diskimages.contains_key(image));
    let ready = view.map(|view| view.ready()).unwrap_or_default();
    ready.into_iter().take(RETAINED).map(|(id, _)| BuildKey::new(image, id)).collect()
}

/// The newest uploads of an image at each provider, of any usable build.
fn recent_uploads(inputs: &Inputs<'_>, image: &ImageName) -> BTreeSet<UploadKey> {
    let images = &inputs.snapshot.images;
    let mut recent = BTreeSet::new();
    for provider in inputs.facts.keys() {
        let usable = images.uploads_to(provider, image).filter(|(key, stored)| {
            let build = images.build(&BuildKey::new(&key.image, &key.build));
            stored.record.state == UploadState::Ready
                && build.is_some_and(|build| build.record.state == BuildState::Ready)
        });
        let mut usable: Uploads<'_> = usable.collect();
        usable.sort_by_key(|(_, stored)| std::cmp::Reverse((stored.record.state_time, stored.mzxid)));
        recent.extend(usable.into_iter().take(RETAINED).map(|(key, _)| key.clone()));
    }
    recent
}

/// The action for one upload; `None` if it is retained. Uploads of providers without facts in this process are
/// retained.
fn upload_action(
    inputs: &Inputs<'_>,
    key: &UploadKey,
    stored: &Versioned<ImageUpload>,
    is_build_retained: bool,
    recent: &BTreeSet<UploadKey>,
) -> Option<RetentionAction> {
    let upload_config = inputs.facts.get(&key.provider)?.upload_config.as_deref()?;
    let delete = || Some(RetentionAction::Upload(key.clone(), stored.clone()));
    let is_wanted = upload_config.images.contains_key(&key.image);
    match stored.record.state {
        UploadState::Uploading => {
            let lock_key = UploadLockKey::of(key);
            (!inputs.snapshot.images.is_being_uploaded(&lock_key)).then(|| RetentionAction::Stale(key.clone()))
        }
        UploadState::Deleting | UploadState::Failed => delete(),
        UploadState::Ready if !is_wanted => delete(),
        UploadState::Ready if is_build_retained || recent.contains(key) => None,
        UploadState::Ready => delete(),
    }
}

/// Another ready upload that names this image.
pub fn other_owner(image: &ExternalId, of: &UploadKey, images: &Images) -> Option<UploadKey> {
    let mut uploads = images.uploads_to(&of.provider, &of.image);
    let names_it =
        |upload: &ImageUpload| upload.state == UploadState::Ready && upload.external_id.as_ref() == Some(image);
    let (owner, _) = uploads.find(|(key, upload)| *key != of && names_it(&upload.record))?;
    Some(owner.clone())
}

/// The formats of a build that are still needed here; `None` if all are.
pub fn needed_formats(inputs: &Inputs<'_>, key: &BuildKey) -> Option<BTreeSet<String>> {
    let image = inputs.config.diskimages.get(&key.image).filter(|image| image.delete_after_upload)?;
    let build = inputs.snapshot.images.build(key)?;
    // The images of a provider that failed to start are unknown.
    let is_unknown = |(name, section): (&ProviderName, &Arc<ProviderConfig>)| {
        !inputs.facts.contains_key(name)
            && driver_limits::find(&section.driver).is_some_and(|limits| limits.manages_images)
    };
    // If a provider's section is invalid, it is not even known whether the provider takes images.
    let are_unknown = !inputs.config.out_of_service.is_empty() || inputs.config.providers.iter().any(is_unknown);
    if build.record.state != BuildState::Ready || are_unknown {
        return None;
    }
    let lacks = |provider: &ProviderName| {
        let mut uploads = inputs.snapshot.images.uploads_to(provider, &key.image);
        !uploads.any(|(upload, stored)| upload.build == key.build && stored.record.state == UploadState::Ready)
    };
    let uploading_providers =
        inputs.facts.iter().filter_map(|(name, facts)| Some((name, facts.upload_config.as_deref()?)));
    let uploading_providers = uploading_providers
        .filter(|(name, upload_config)| upload_config.images.contains_key(&key.image) && lacks(name));
    let needed = uploading_providers.map(|(_, upload_config)| upload_config.format.clone());
    Some(needed.chain(image.keep_formats.iter().cloned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::config::Config;
    use nodepool_model::config::diagnostics::Source;
    use nodepool_model::config::resolve::resolve;
    use nodepool_model::records::time::{MonotonicTime, Timestamp};
    use nodepool_model::snapshot::Snapshot;
    use python_yaml::parse;

    fn with_image(image: &str) -> Arc<Config> {
        let text = format!("zookeeper-servers: [{{host: localhost}}]\ndiskimages: [{image}]");
        let root = parse::parse(&text, &mut Vec::new()).unwrap();
        resolve(Source { file: "nodepool.yaml", root: &root }, None, &[]).config.unwrap()
    }

    #[test]
    fn the_image_of_another_ready_upload_is_not_deleted() {
        let key = |upload: &str| UploadKey {
            provider: "lab".into(),
            image: "debian".into(),
            build: "1".into(),
            upload: upload.into(),
        };
        let mut images = Images::default();
        for (upload, state) in [("1", UploadState::Ready), ("2", UploadState::Deleting)] {
            let external_id = Some(ExternalId::text(format!("image-{upload}")));
            let record = Arc::new(ImageUpload { external_id, ..ImageUpload::new(state, Timestamp(0.0)) });
            images.put_upload(key(upload), Versioned { record, version: 0, mzxid: 1, mtime_ms: 0 });
        }
        let is_owned = |image: &str, of: &str| other_owner(&ExternalId::text(image), &key(of), &images).is_some();
        assert!(is_owned("image-1", "2"));
        assert!(!is_owned("image-1", "1"), "its own record may still be ready in a stale snapshot");
        assert!(!is_owned("image-2", "1"));
        assert!(!is_owned("image-3", "2"));
    }

    #[test]
    fn formats_stay_as_long_as_a_provider_is_out_of_service() {
        let mut config = Arc::unwrap_or_clone(with_image("{name: debian, delete-after-upload: true}"));
        let (mut snapshot, facts) = (Snapshot::default(), BTreeMap::new());
        let key = BuildKey { image: "debian".into(), build: "1".into() };
        let mut build = ImageBuild::started("nb01", "id", ["raw".to_owned()].into(), Timestamp(1.0));
        build.state = BuildState::Ready;
        snapshot.images.put_build(&key, Versioned { record: Arc::new(build), version: 0, mzxid: 1, mtime_ms: 0 });
        let needed = |config: &Config| {
            needed_formats(
                &Inputs {
                    config,
                    snapshot: &snapshot,
                    facts: &facts,
                    now: Timestamp(2.0),
                    monotonic_now: MonotonicTime::at(2.0),
                },
                &key,
            )
        };
        assert_eq!(needed(&config), Some(BTreeSet::new()));
        config.out_of_service.insert("lab".into(), "no cloud of this name".to_owned());
        assert_eq!(needed(&config), None, "the formats of the provider are unknown");
    }

    // An abandoned build of a previous process of this builder, while the image's next build is in progress.
    #[test]
    fn a_build_is_abandoned_when_the_image_lock_is_held_for_another_build() {
        let config = with_image("{name: debian}");
        let (mut snapshot, facts) = (Snapshot::default(), BTreeMap::new());
        for (mzxid, (id, started_at)) in [("abandoned", 1.0), ("ours", 1.5), ("another's", 1.9)].into_iter().enumerate()
        {
            let build = ImageBuild::started("nb01", "id", Default::default(), Timestamp(started_at));
            let stored = Versioned { record: Arc::new(build), version: 0, mzxid: mzxid as i64 + 1, mtime_ms: 0 };
            snapshot.images.put_build(&BuildKey { image: "debian".into(), build: id.into() }, stored);
        }
        snapshot.images.set_contender(&"debian".into(), "one", true);
        let inputs = Inputs {
            config: &config,
            snapshot: &snapshot,
            facts: &facts,
            now: Timestamp(2.0),
            monotonic_now: MonotonicTime::at(2.0),
        };
        let actions = |own_builds: &[(&str, &str)]| {
            let own_builds =
                own_builds.iter().map(|(image, build)| (ImageName::from(*image), BuildId::from(*build))).collect();
            due(&inputs, RetentionScope::All, &own_builds).iter().map(RetentionAction::key).collect::<Vec<_>>()
        };
        assert_eq!(actions(&[]), Vec::<String>::new(), "other builders may be building them");
        assert_eq!(
            actions(&[("debian", "ours")]),
            ["debian-abandoned"],
            "a builder that started later has the lock by now"
        );
    }
}
