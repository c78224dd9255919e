//! Commands about images: lists, build requests, pauses, deletions, export and import.

pub mod alien;
pub mod export;
pub mod follow;
pub mod follow_uploads;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, bail};
use bytes::Bytes;
use nodepool::actors::runtime::clock;
use nodepool_model::config::Config;
use nodepool_model::records::ids::{BuildId, ImageName};
use nodepool_model::records::image_build::{BuildKey, BuildState};
use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::records::json;
use nodepool_model::report::image_status::{self, AgeFormat, BUILD_COLUMNS, IMAGE_COLUMNS, UPLOAD_COLUMNS};
use nodepool_model::snapshot::images::Images;
use nodepool_zk::locks::lock::make_path;
use nodepool_zk::tools::transfer;
use nodepool_zk::{Zk, paths};
use serde_json::{Value, json};
use zookeeper_server::types::{CreateMode, ZkError};

use crate::args::OutputFormat;
use crate::commands::nodes::is_path_element;
use crate::output::Output;

pub async fn dib_image_list(zk: &Zk, output: &mut Output<'_>) -> anyhow::Result<()> {
    let images = read(zk, output).await?;
    let rows = image_status::builds(&images, ages(output));
    Ok(output.list(BUILD_COLUMNS, &rows)?)
}

pub async fn image_list(zk: &Zk, output: &mut Output<'_>) -> anyhow::Result<()> {
    let images = read(zk, output).await?;
    let rows = image_status::uploads(&images, ages(output));
    Ok(output.list(UPLOAD_COLUMNS, &rows)?)
}

pub async fn image_status(zk: &Zk, output: &mut Output<'_>) -> anyhow::Result<()> {
    let images = read(zk, output).await?;
    let rows = image_status::images(&images, ages(output));
    Ok(output.list(IMAGE_COLUMNS, &rows)?)
}

async fn read(zk: &Zk, output: &mut Output<'_>) -> anyhow::Result<Images> {
    let (images, unreadable) = transfer::images(zk).await?;
    note_unreadable(output, unreadable)?;
    Ok(images)
}

pub fn note_unreadable(output: &mut Output<'_>, unreadable: BTreeMap<String, String>) -> anyhow::Result<()> {
    for (path, reason) in unreadable {
        output.note(format_args!("WARNING {path} is skipped, it cannot be read: {reason}"))?;
    }
    Ok(())
}

fn ages(output: &Output<'_>) -> AgeFormat {
    match output.format {
        OutputFormat::Table => AgeFormat::Elapsed(clock::now()),
        OutputFormat::Json => AgeFormat::EpochSeconds,
    }
}

/// Requests a build; a second request has no further effect.
pub async fn image_build(zk: &Zk, config: &Config, output: &mut Output<'_>, image: &ImageName) -> anyhow::Result<()> {
    request_build(zk, config, image).await?;
    Ok(output.outcome(json!({"outcome": "requested", "image": image}))?)
}

pub async fn request_build(zk: &Zk, config: &Config, image: &ImageName) -> anyhow::Result<()> {
    let Some(configured) = config.diskimages.get(image) else {
        bail!("Trying to build a non disk-image-builder image: {image}");
    };
    if configured.pause {
        bail!("Skipping build request for image {image}; paused");
    }
    // The driver of a provider that takes the image may name the format.
    if configured.formats.is_empty() && !is_taken(image, config) {
        bail!(
            "image {image} is built in no format: add it to the diskimages of a provider, or set its `formats` in the configuration"
        );
    }
    check_name(image)?;
    make_path(zk, &paths::image_build_request(image)).await.context("cannot request a build")
}

/// Whether a provider takes the image, or may take it: a provider that is out of service is unknown.
fn is_taken(image: &ImageName, config: &Config) -> bool {
    let mut taken = config.providers.values().flat_map(|provider| follow_uploads::diskimages(provider));
    !config.out_of_service.is_empty() || taken.any(|(name, _)| name == *image)
}

/// An image name must be one path element; any other text would address another znode.
fn check_name(image: &ImageName) -> anyhow::Result<()> {
    if !is_path_element(image.as_str()) {
        bail!("invalid image name {image}");
    }
    Ok(())
}

pub async fn image_pause(zk: &Zk, output: &mut Output<'_>, image: &ImageName) -> anyhow::Result<()> {
    check_name(image)?;
    match zk.create(&paths::image_pause(image), Bytes::new(), CreateMode::Persistent).await {
        Ok(_) | Err(ZkError::NodeExists) => {}
        Err(ZkError::NoNode) => {
            bail!("no image {image} in ZooKeeper: it was never built or requested")
        }
        Err(error) => return Err(error.into()),
    }
    Ok(output.outcome(json!({"outcome": "paused", "image": image}))?)
}

pub async fn image_unpause(zk: &Zk, output: &mut Output<'_>, image: &ImageName) -> anyhow::Result<()> {
    check_name(image)?;
    match zk.delete(&paths::image_pause(image), -1).await {
        Ok(()) | Err(ZkError::NoNode) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(output.outcome(json!({"outcome": "unpaused", "image": image}))?)
}

pub async fn dib_image_delete(zk: &Zk, output: &mut Output<'_>, id: &str) -> anyhow::Result<()> {
    let Some((image, build)) = id.rsplit_once('-') else {
        bail!("invalid build id {id}: expected IMAGE-BUILD, as in dib-image-list");
    };
    let key = BuildKey { image: ImageName::from(image), build: BuildId::from(build) };
    let missing = format!("Build {id} not found");
    if ![image, build].into_iter().all(is_path_element) {
        return report_unchanged(output, id, "not found", &missing);
    }
    let path = paths::image_build(&key.image, &key.build);
    let messages = Messages { missing: &missing, busy: "Cannot delete a build in progress" };
    mark_deleting(zk, output, &path, id, messages, |record| record["state"] == BuildState::Building.as_str()).await
}

pub async fn image_delete(zk: &Zk, output: &mut Output<'_>, key: &UploadKey) -> anyhow::Result<()> {
    let messages =
        Messages { missing: "Image upload not found", busy: "Cannot delete because image upload in progress" };
    let names = [key.provider.as_str(), key.image.as_str(), key.build.as_str(), key.upload.as_str()];
    if !names.into_iter().all(is_path_element) {
        return report_unchanged(output, key.upload.as_str(), "not found", messages.missing);
    }
    let path = paths::image_upload(key);
    mark_deleting(zk, output, &path, key.upload.as_str(), messages, |record| {
        record["state"] == json!(UploadState::Uploading)
    })
    .await
}

/// Messages for records that cannot be deleted.
struct Messages<'a> {
    missing: &'a str,
    busy: &'a str,
}

/// Marks a record for deletion. The write is conditional on the version that was read, because builders write it
/// concurrently.
async fn mark_deleting(
    zk: &Zk,
    output: &mut Output<'_>,
    path: &str,
    id: &str,
    messages: Messages<'_>,
    is_busy: impl Fn(&Value) -> bool,
) -> anyhow::Result<()> {
    loop {
        let (data, stat) = match zk.get(path).await {
            Err(ZkError::NoNode) => return report_unchanged(output, id, "not found", messages.missing),
            reply => reply?,
        };
        if data.is_empty() {
            return report_unchanged(output, id, "not found", messages.missing);
        }
        let mut record: Value =
            json::from_bytes(&data).with_context(|| format!("the record at {path} cannot be read"))?;
        if is_busy(&record) {
            return report_unchanged(output, id, "busy", messages.busy);
        }
        let Some(fields) = record.as_object_mut() else { bail!("the record at {path} is not a JSON object") };
        fields.insert("state".to_owned(), json!("deleting"));
        fields.insert("state_time".to_owned(), json!(clock::now()));
        match zk.set(path, Bytes::from(json::to_bytes(&record)), stat.version).await {
            Ok(_) => return Ok(output.outcome(json!({"outcome": "deleting", "id": id}))?),
            Err(ZkError::BadVersion) => {}
            Err(ZkError::NoNode) => return report_unchanged(output, id, "not found", messages.missing),
            Err(error) => return Err(error.into()),
        }
    }
}

fn report_unchanged(output: &mut Output<'_>, id: &str, outcome: &str, message: &str) -> anyhow::Result<()> {
    output.print(message)?;
    Ok(output.outcome(json!({"outcome": outcome, "id": id, "message": message}))?)
}

pub async fn export_image_data(zk: &Zk, output: &mut Output<'_>, path: &Path) -> anyhow::Result<()> {
    let (data, unreadable) = transfer::export(zk).await?;
    note_unreadable(output, unreadable)?;
    let (count, shown) = (data.len(), path.display());
    if data.is_empty() && export::holds_records(path).with_context(|| format!("cannot read {shown}"))? {
        bail!("ZooKeeper has no image data; refusing to overwrite the non-empty export {shown}");
    }
    let text = String::from_utf8(json::to_bytes(&Value::Object(data))).context("the data is not UTF-8")?;
    export::write(path, &text).with_context(|| format!("cannot write {shown}"))?;
    Ok(output.outcome(json!({"outcome": "exported", "path": path.display().to_string(), "records": count}))?)
}

pub async fn import_image_data(zk: &Zk, output: &mut Output<'_>, path: &Path) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let invalid = |reason: String| format!("{} was not written by export-image-data: {reason}", path.display());
    let document: Value = match serde_json::from_str(&text) {
        Ok(document) => document,
        Err(error) => bail!(invalid(format!("{error}; nothing was imported"))),
    };
    let entries = match transfer::check(&document) {
        Ok(entries) => entries,
        Err(error) => bail!(invalid(format!("{error}; nothing was imported"))),
    };
    transfer::import(zk, &entries).await.context("the import was interrupted; it can be repeated")?;
    Ok(output.outcome(json!({"outcome": "imported", "path": path.display().to_string(), "records": entries.len()}))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{CommandOutput, TestStore, capture, config};
    use std::os::unix::fs::PermissionsExt;

    const DEBIAN: &str = "/nodepool/images/debian";
    const UPLOAD: &str = r#"{"state": "ready", "state_time": 5.0, "external_id": "img-1", "external_name": "debian-1", "format": "raw"}"#;

    /// `debian` with the builds `b1`, ready, and `b2`, running; `b1` is uploaded to `rax`.
    async fn store() -> TestStore {
        let store = TestStore::new();
        let ready = r#"{"state": "ready", "state_time": 5.0, "builder": "nb01", "formats": "raw,qcow2", "later": 1}"#;
        store.put(&format!("{DEBIAN}/builds/b1"), ready).await;
        store.put(&format!("{DEBIAN}/builds/b2"), r#"{"state": "building", "state_time": 6.0}"#).await;
        store.put(&format!("{DEBIAN}/builds/b1/providers/rax/images/0000000003"), UPLOAD).await;
        store
    }

    async fn listed(store: &TestStore, command: &str) -> Value {
        let captured = capture(OutputFormat::Json, async |output| match command {
            "builds" => dib_image_list(&store.zk, output).await,
            "uploads" => image_list(&store.zk, output).await,
            _ => image_status(&store.zk, output).await,
        });
        captured.await.json()
    }

    fn upload_key() -> UploadKey {
        UploadKey { provider: "rax".into(), image: "debian".into(), build: "b1".into(), upload: "0000000003".into() }
    }

    #[tokio::test]
    async fn lists_show_builds_uploads_and_requests() {
        let store = store().await;
        let builds = listed(&store, "builds").await;
        let first = json!({"id": "debian-b1", "image": "debian", "builder": "nb01", "formats": ["qcow2", "raw"],
            "state": "ready", "age": 5});
        assert_eq!((&builds[0], &builds[1]["state"]), (&first, &json!("building")));
        let upload = json!([{"id": "b1", "upload_id": "0000000003", "provider": "rax", "image": "debian",
            "external_name": "debian-1", "external_id": "img-1", "state": "ready", "age": 5}]);
        assert_eq!(listed(&store, "uploads").await, upload);
        let status = listed(&store, "status").await;
        let idle = json!({"image": "debian", "paused": false, "build_request": null, "build_request_age": null});
        assert_eq!(status[0], idle);
        let table = capture(OutputFormat::Table, async |output| image_list(&TestStore::new().zk, output).await).await;
        let header =
            "| Build ID | Upload ID | Provider | Image | Provider Image Name | Provider Image ID | State | Age |";
        assert!(table.out.lines().nth(1) == Some(header) && table.out.lines().count() == 4, "{}", table.out);
    }

    #[tokio::test]
    async fn a_build_is_requested_once_and_only_of_configured_images() {
        let (store, text) = (
            store().await,
            "diskimages: [{name: debian}, {name: never, pause: true}, {name: loose}, {name: own, formats: [raw]}]\n\
             providers: [{name: p, cloud: c, diskimages: [{name: debian}], pools: []}]",
        );
        let config = config(&format!("zookeeper-servers: [{{host: localhost}}]\n{text}")).await;
        let request = async |image: &str| {
            capture(OutputFormat::Json, async |output| image_build(&store.zk, &config, output, &image.into()).await)
                .await
        };
        assert_eq!(request("never").await.error(), "Skipping build request for image never; paused");
        assert_eq!(request("missing").await.error(), "Trying to build a non disk-image-builder image: missing");
        assert!(request("loose").await.error().contains("image loose is built in no format"));
        for image in ["debian", "debian", "own"] {
            assert!(request(image).await.result.is_none());
        }
        assert_eq!(listed(&store, "status").await[0]["build_request"], "pending");
        store.put(&format!("{DEBIAN}/builds/lock/0123__lock__0000000001"), "").await;
        assert_eq!(listed(&store, "status").await[0]["build_request"], "building");
    }

    #[tokio::test]
    async fn a_pause_shows_in_every_build_and_may_be_repeated() {
        let store = store().await;
        let pause = async |image: &str| {
            capture(OutputFormat::Json, async |output| image_pause(&store.zk, output, &image.into()).await).await
        };
        for _ in 0..2 {
            assert!(pause("debian").await.result.is_none());
        }
        assert!(pause("missing").await.error().contains("no image missing"));
        let builds = listed(&store, "builds").await;
        assert_eq!((&builds[0]["state"], &builds[1]["state"]), (&json!("paused"), &json!("paused")));
        for _ in 0..2 {
            let captured =
                capture(OutputFormat::Json, async |output| image_unpause(&store.zk, output, &"debian".into()).await)
                    .await;
            assert!(captured.result.is_none());
        }
        assert_eq!(listed(&store, "builds").await[0]["state"], "ready");
    }

    async fn delete_build(store: &TestStore, id: &str) -> CommandOutput {
        capture(OutputFormat::Table, async |output| dib_image_delete(&store.zk, output, id).await).await
    }

    #[tokio::test]
    async fn deletions_are_marked_except_of_running_builds_and_uploads() {
        let store = store().await;
        assert_eq!(delete_build(&store, "debian-b2").await.out, "Cannot delete a build in progress\n");
        assert_eq!(delete_build(&store, "debian-b9").await.out, "Build debian-b9 not found\n");
        assert!(delete_build(&store, "debian").await.error().contains("invalid build id"));
        assert_eq!(delete_build(&store, "debian-b1").await.out, "");
        let record: Value = serde_json::from_str(&store.text(&format!("{DEBIAN}/builds/b1")).await).unwrap();
        assert_eq!((&record["state"], &record["later"]), (&json!("deleting"), &json!(1)));
        assert!(record["state_time"].as_f64().unwrap() > 5.0);
        let delete = async |key: &UploadKey| {
            capture(OutputFormat::Table, async |output| image_delete(&store.zk, output, key).await).await
        };
        let missing = UploadKey { upload: "0000000009".into(), ..upload_key() };
        assert_eq!(delete(&missing).await.out, "Image upload not found\n");
        assert_eq!(delete(&upload_key()).await.out, "");
        assert_eq!(listed(&store, "uploads").await[0]["state"], "deleting");
        let busy = format!("{DEBIAN}/builds/b1/providers/rax/images/0000000004");
        store.put(&busy, r#"{"state": "uploading", "state_time": 5.0}"#).await;
        let busy = UploadKey { upload: "0000000004".into(), ..upload_key() };
        assert_eq!(delete(&busy).await.out, "Cannot delete because image upload in progress\n");
    }

    #[tokio::test]
    async fn names_of_more_than_one_path_element_are_refused_and_nothing_is_created() {
        let store = store().await;
        let text = "zookeeper-servers: [{host: localhost}]\ndiskimages: [{name: debian/builds}]";
        let config = config(text).await;
        let before = store.server.last_zxid();
        for image in ["debian/builds", "", ".", "../images/debian", "debian/builds/b1"] {
            let captured =
                capture(OutputFormat::Json, async |output| image_pause(&store.zk, output, &image.into()).await).await;
            assert_eq!(captured.error(), format!("invalid image name {image}"));
            let captured =
                capture(OutputFormat::Json, async |output| image_unpause(&store.zk, output, &image.into()).await).await;
            assert_eq!(captured.error(), format!("invalid image name {image}"));
            let captured = capture(OutputFormat::Json, async |output| {
                image_build(&store.zk, &config, output, &image.into()).await
            });
            assert!(captured.await.result.is_some());
        }
        for id in ["debian/builds-b1", "debian-b1/providers/rax/images/0000000003", "-b1", "debian-", "debian-.."] {
            assert_eq!(delete_build(&store, id).await.out, format!("Build {id} not found\n"));
        }
        let odd = UploadKey { build: "b1/providers/rax".into(), provider: ".".into(), ..upload_key() };
        let captured = capture(OutputFormat::Json, async |output| image_delete(&store.zk, output, &odd).await).await;
        assert_eq!((captured.result.is_none(), &captured.json()["outcome"]), (true, &json!("not found")));
        assert_eq!(store.server.last_zxid(), before);
    }

    #[tokio::test]
    async fn an_import_restores_the_export_and_later_uploads_get_later_numbers() {
        let (store, folder) = (store().await, tempfile::tempdir().unwrap());
        capture(OutputFormat::Json, async |output| image_pause(&store.zk, output, &"debian".into()).await).await;
        let file = folder.path().join("export.json");
        std::fs::write(&file, "x".repeat(100_000)).unwrap();
        let captured =
            capture(OutputFormat::Json, async |output| export_image_data(&store.zk, output, &file).await).await;
        assert_eq!(captured.json()["records"], 4);
        let empty = TestStore::new();
        let captured =
            capture(OutputFormat::Json, async |output| import_image_data(&empty.zk, output, &file).await).await;
        assert!(captured.result.is_none(), "{captured:?}");
        assert_eq!(transfer::export(&empty.zk).await, transfer::export(&store.zk).await);
        let next = format!("{DEBIAN}/builds/b1/providers/rax/images/");
        let (path, _) = empty.zk.create(&next, Bytes::new(), CreateMode::PersistentSequential).await.unwrap();
        assert!(path.as_str() > format!("{next}0000000003").as_str(), "{path}");
        // Over existing data, too.
        let captured =
            capture(OutputFormat::Json, async |output| import_image_data(&store.zk, output, &file).await).await;
        assert!(captured.result.is_none(), "{captured:?}");
    }

    #[tokio::test]
    async fn an_export_replaces_the_file_and_only_its_owner_can_read_it() {
        let (store, folder) = (store().await, tempfile::tempdir().unwrap());
        let (file, link) = (folder.path().join("export.json"), folder.path().join("link.json"));
        std::fs::write(&file, "{}").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let before = std::fs::File::open(&file).unwrap();
        let captured =
            capture(OutputFormat::Json, async |output| export_image_data(&store.zk, output, &link).await).await;
        assert!(captured.result.is_none(), "{captured:?}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::io::read_to_string(before).unwrap(), "{}", "an open reader still reads all of the old file");
        let written: Value = serde_json::from_slice(&std::fs::read(&link).unwrap()).unwrap();
        assert_eq!(written.as_object().map(|records| records.len()), Some(3));
        assert!(link.is_symlink());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "no temporary file remains");
    }

    #[tokio::test]
    async fn an_empty_export_does_not_replace_a_non_empty_one() {
        let (store, folder) = (store().await, tempfile::tempdir().unwrap());
        let file = folder.path().join("export.json");
        let export = async |store: &TestStore| {
            capture(OutputFormat::Json, async |output| export_image_data(&store.zk, output, &file).await).await
        };
        let empty = TestStore::new();
        for _ in 0..2 {
            assert!(export(&empty).await.result.is_none(), "an empty export may be replaced");
        }
        assert_eq!(export(&store).await.json()["records"], 3);
        let before = std::fs::read(&file).unwrap();
        let refused = export(&empty).await.error();
        assert!(refused.contains("ZooKeeper has no image data"), "{refused}");
        assert_eq!(std::fs::read(&file).unwrap(), before);
    }

    #[tokio::test]
    async fn an_invalid_export_is_not_imported_at_all() {
        let (store, folder) = (TestStore::new(), tempfile::tempdir().unwrap());
        let file = folder.path().join("export.json");
        for (text, expected) in [
            ("{", "EOF while parsing"),
            ("[]", "not a JSON object"),
            (r#"{"/nodepool/nodes/1": "{}"}"#, "/nodepool/nodes/1 is not the path"),
            (r#"{"/nodepool/images/a/builds/b": "{"}"#, "cannot be read"),
            (r#"{"/nodepool/images/a/pause": "", "/nodepool/images/a/builds/b": 5}"#, "is not a string"),
        ] {
            std::fs::write(&file, text).unwrap();
            let captured =
                capture(OutputFormat::Json, async |output| import_image_data(&store.zk, output, &file).await).await;
            assert!(captured.error().contains(expected), "{text}: {}", captured.error());
            assert!(!store.exists("/nodepool/images").await, "{text}");
        }
    }
}
