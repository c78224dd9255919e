//! `alien-image-list`: images in clouds that carry a builder's metadata and have no upload record.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::config::upload_config::{BUILD_MARK, StoredImage, UPLOAD_MARK};
use nodepool_model::config::{Config, ProviderConfig, driver_limits};
use nodepool_model::records::ids::{ExternalId, ImageName, ProviderName};
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::report::table::Table;
use nodepool_zk::Zk;
use nodepool_zk::paths::{self, ZnodePath};
use nodepool_zk::tools::transfer;
use serde_json::json;

use crate::commands::images::follow_uploads;
use crate::commands::{clouds, images};
use crate::output::Output;

/// Timeout for listing images, which a cloud may return in many pages.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);

/// Lists alien images. A cloud that does not respond does not hide the other clouds.
pub async fn list(
    zk: &Zk,
    config: &Config,
    output: &mut Output<'_>,
    only: Option<&ProviderName>,
) -> anyhow::Result<()> {
    let mut table = Table::new(["Provider", "Name", "Image ID"]);
    let (mut found, mut unreadable) = (Vec::new(), BTreeMap::new());
    let supports_images =
        |section: &ProviderConfig| driver_limits::find(&section.driver).is_some_and(|facts| facts.manages_images);
    let providers = config.providers.iter().filter(|(name, _)| only.is_none_or(|wanted| wanted == *name));
    for (name, section) in providers.filter(|(_, section)| supports_images(section)) {
        match aliens(zk, name, section).await {
            Ok((images, skipped)) => {
                unreadable.extend(skipped);
                for image in images {
                    table.push([name.to_string(), image.name.clone(), image.id.to_string()]);
                    found.push(json!({"provider": name, "name": image.name, "image_id": image.id}));
                }
            }
            Err(error) => output.note(format_args!("WARNING: Exception listing alien images for {name}: {error:#}"))?,
        }
    }
    images::note_unreadable(output, unreadable)?;
    output.print(table)?;
    Ok(output.outcome(json!(found))?)
}

/// Images without an upload record, and records that cannot be read, with the reasons.
type AlienImages = (Vec<StoredImage>, BTreeMap<String, String>);

async fn aliens(zk: &Zk, name: &ProviderName, section: &Arc<ProviderConfig>) -> anyhow::Result<AlienImages> {
    let provider = clouds::open(section).await?;
    let listed = tokio::time::timeout(LIST_TIMEOUT, provider.run(Job::ListImages)).await;
    let Outcome::Images(images) = listed.map_err(|_| anyhow!("no reply within {} s", LIST_TIMEOUT.as_secs()))?? else {
        return Err(anyhow!("the driver does not list images"));
    };
    let configured: BTreeSet<ImageName> = follow_uploads::diskimages(section).map(|(image, _)| image).collect();
    // The records are read after the listing, because the record of every listed image was written before the listing.
    zk.sync(paths::IMAGES).await.context("cannot read images")?;
    without_upload(zk, name, &configured, images).await
}

/// The images without a ready upload of this provider.
async fn without_upload(
    zk: &Zk,
    name: &ProviderName,
    configured: &BTreeSet<ImageName>,
    images: Vec<StoredImage>,
) -> anyhow::Result<AlienImages> {
    let (records, unreadable) = transfer::images(zk).await?;
    let known: BTreeSet<String> = records
        .uploads()
        .filter(|(key, stored)| {
            key.provider == *name && configured.contains(&key.image) && stored.record.state == UploadState::Ready
        })
        .filter_map(|(_, stored)| stored.record.external_id.as_ref().map(ExternalId::to_string))
        .collect();
    // Uploads with unreadable records; only the metadata of an image shows that it may be one of theirs.
    let skipped: Vec<UploadKey> = unreadable
        .keys()
        .filter_map(|path| match paths::parse(path) {
            ZnodePath::ImageUpload(key) if key.provider == *name => Some(key),
            _ => None,
        })
        .collect();
    let is_alien = |image: &StoredImage| {
        image.meta.contains_key(BUILD_MARK)
            && !known.contains(&image.id.to_string())
            && !skipped.iter().any(|key| may_belong_to(image, key))
    };
    Ok((images.into_iter().filter(is_alien).collect(), unreadable))
}

/// Whether an image may belong to this upload. Without an upload number it may belong to any upload of its build.
fn may_belong_to(image: &StoredImage, key: &UploadKey) -> bool {
    image.meta.get(BUILD_MARK).is_some_and(|build| build == key.build.as_str())
        && image.meta.get(UPLOAD_MARK).is_none_or(|upload| upload == key.upload.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TestStore;

    #[tokio::test]
    async fn images_that_may_belong_to_an_unreadable_upload_are_not_listed() {
        let store = TestStore::new();
        let upload = |number: &str| format!("/nodepool/images/debian/builds/b1/providers/p/images/{number}");
        store.put(&upload("0000000001"), r#"{"state": "ready", "external_id": "known"}"#).await;
        store.put(&upload("0000000002"), b"\xff").await;
        let image = |id: &str, marks: &[(&str, &str)]| StoredImage {
            id: ExternalId::Text(id.to_owned()),
            name: id.to_owned(),
            meta: marks.iter().map(|(mark, value)| ((*mark).to_owned(), (*value).to_owned())).collect(),
        };
        let images = vec![
            image("known", &[(BUILD_MARK, "b1"), (UPLOAD_MARK, "0000000001")]),
            image("skipped", &[(BUILD_MARK, "b1"), (UPLOAD_MARK, "0000000002")]),
            image("unnumbered", &[(BUILD_MARK, "b1")]),
            image("other-upload", &[(BUILD_MARK, "b1"), (UPLOAD_MARK, "0000000003")]),
            image("other-build", &[(BUILD_MARK, "b2"), (UPLOAD_MARK, "0000000002")]),
            image("unmarked", &[]),
        ];
        let configured = BTreeSet::from(["debian".into()]);
        let ids = |found: &AlienImages| found.0.iter().map(|image| image.name.clone()).collect::<Vec<_>>();
        let found = without_upload(&store.zk, &"p".into(), &configured, images.clone()).await.unwrap();
        assert_eq!(ids(&found), ["other-upload", "other-build"]);
        assert_eq!(found.1.keys().collect::<Vec<_>>(), [&upload("0000000002")]);
        let of_other_provider = without_upload(&store.zk, &"q".into(), &configured, images).await.unwrap();
        assert_eq!(ids(&of_other_provider), ["known", "skipped", "unnumbered", "other-upload", "other-build"]);
    }
}
