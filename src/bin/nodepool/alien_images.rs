//! Images in clouds that bear a builder's mark and of which no upload is known.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use nodepool::model::cloud::{ExternalId, Job, Outcome};
use nodepool::model::config::{Config, ProviderConfig};
use nodepool::model::driver_facts;
use nodepool::model::ids::{ImageName, ProviderName};
use nodepool::model::table::Table;
use nodepool::model::upload::UploadState;
use nodepool::model::uploading::{BUILD_MARK, StoredImage};
use nodepool::zk::{Zk, transfer};
use serde_json::json;

use crate::clouds;
use crate::follow_uploads;
use crate::output::Screen;

/// A cloud may have many images, in many pages.
const PATIENCE: Duration = Duration::from_secs(120);

/// One cloud that does not answer hides no other.
pub async fn list(
    zk: &Zk,
    config: &Config,
    screen: &mut Screen<'_>,
    wanted: Option<&ProviderName>,
) -> anyhow::Result<()> {
    let mut table = Table::new(["Provider", "Name", "Image ID"]);
    let mut found = Vec::new();
    let takes_images =
        |section: &ProviderConfig| driver_facts::find(&section.driver).is_some_and(|facts| facts.manages_images);
    let providers = config.providers.iter().filter(|(name, _)| wanted.is_none_or(|wanted| wanted == *name));
    for (name, section) in providers.filter(|(_, section)| takes_images(section)) {
        match aliens(zk, name, section).await {
            Ok(images) => {
                for image in images {
                    table.push([name.to_string(), image.name.clone(), image.id.to_string()]);
                    found.push(json!({"provider": name, "name": image.name, "image_id": image.id}));
                }
            }
            Err(error) => screen.note(format_args!("WARNING: Exception listing alien images for {name}: {error:#}"))?,
        }
    }
    screen.say(table)?;
    Ok(screen.outcome(json!(found))?)
}

async fn aliens(zk: &Zk, name: &ProviderName, section: &Arc<ProviderConfig>) -> anyhow::Result<Vec<StoredImage>> {
    let provider = clouds::open(section).await?;
    let listed = tokio::time::timeout(PATIENCE, provider.run(Job::ListImages)).await;
    let Outcome::Images(images) = listed.map_err(|_| anyhow!("no answer within {} s", PATIENCE.as_secs()))?? else {
        return Err(anyhow!("its driver lists no images"));
    };
    let taken: BTreeSet<ImageName> = follow_uploads::diskimages(section).map(|(image, _)| image).collect();
    let (records, _) = transfer::images(zk).await?;
    let known: BTreeSet<String> = records
        .uploads()
        .filter(|(key, stored)| {
            key.provider == *name && taken.contains(&key.image) && stored.record.state == UploadState::Ready
        })
        .filter_map(|(_, stored)| stored.record.external_id.as_ref().map(ExternalId::to_string))
        .collect();
    let is_alien = |image: &StoredImage| image.meta.contains_key(BUILD_MARK) && !known.contains(&image.id.to_string());
    Ok(images.into_iter().filter(is_alien).collect())
}
