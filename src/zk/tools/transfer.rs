//! Export and import of the image data in ZooKeeper: one JSON object that maps paths to texts.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::Zk;
use crate::locks::lock::make_path;
use crate::mirror::bulk_images;
use crate::mirror::records::{Decoded, decode};
use crate::paths::{self, ZnodePath};
use nodepool_model::records::image_build::ImageBuild;
use nodepool_model::records::image_upload::ImageUpload;
use nodepool_model::snapshot::images::Images;
use zookeeper_server::types::{CreateMode, ZkError};

/// Maximum upload number; larger ones are refused. The import advances ZooKeeper's sequence one by one beyond the
/// imported uploads, which would take too long for larger numbers.
const MAX_UPLOAD_NUMBER: u64 = 1_000_000;

/// All image data, and the records that cannot be read.
pub async fn images(zk: &Zk) -> Result<(Images, BTreeMap<String, String>), ZkError> {
    let (subtree, unreadable) = bulk_images::read(zk).await?;
    let mut images = Images::default();
    subtree.merge_into(&mut images);
    Ok((images, unreadable))
}

/// The exported data, and the records that are left out because they cannot be read, with the reasons.
pub type Exported = (Map<String, Value>, BTreeMap<String, String>);

/// Exports pause flags, builds and uploads, without requests and locks. A build znode that never had a record, but only
/// uploads, has an empty text, as in Nodepool 11.
pub async fn export(zk: &Zk) -> Result<Exported, ZkError> {
    let (subtree, unreadable) = bulk_images::read(zk).await?;
    let mut found = Map::new();
    for path in subtree.paths() {
        match zk.get(&path).await {
            Ok((data, _)) => {
                let text = String::from_utf8_lossy(&data).into_owned();
                found.insert(path, Value::String(text));
            }
            // The znode was deleted meanwhile.
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(error),
        }
    }
    Ok((found, unreadable))
}

/// The paths and texts of an exported file, or its first error: a file with an error is not imported at all.
pub fn check(document: &Value) -> Result<BTreeMap<String, String>, String> {
    let entries = document.as_object().ok_or("not a JSON object that maps paths to strings")?;
    let mut checked = BTreeMap::new();
    for (path, value) in entries {
        let text = value.as_str().ok_or_else(|| format!("the value of {path} is not a string"))?;
        let error = match paths::parse(path) {
            ZnodePath::ImagePause(_) => None,
            ZnodePath::ImageBuild(..) => unreadable(decode::<ImageBuild>(text.as_bytes())),
            ZnodePath::ImageUpload(key) => {
                check_number(path, key.upload.as_str())?;
                unreadable(decode::<ImageUpload>(text.as_bytes()))
            }
            _ => return Err(format!("{path} is not the path of a pause flag, build or upload")),
        };
        if let Some(error) = error {
            return Err(format!("the record for {path} cannot be read: {error}"));
        }
        checked.insert(path.clone(), text.to_owned());
    }
    Ok(checked)
}

fn check_number(path: &str, upload: &str) -> Result<(), String> {
    if upload.len() != 10 || !upload.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(format!("{path} is not an upload: its name is not a ten-digit sequence number"));
    }
    match upload.parse::<u64>() {
        Ok(number) if number <= MAX_UPLOAD_NUMBER => Ok(()),
        _ => Err(format!("the upload number of {path} is too large: at most {MAX_UPLOAD_NUMBER}")),
    }
}

fn unreadable<T>(decoded: Decoded<T>) -> Option<String> {
    match decoded {
        // Nodepool 11 also exports znodes without records.
        Decoded::Record(_) | Decoded::Empty => None,
        Decoded::Unreadable(reason) => Some(reason),
    }
}

/// Writes exported data; other image data is left unchanged. Numbers of later uploads follow the imported ones.
pub async fn import(zk: &Zk, entries: &BTreeMap<String, String>) -> Result<(), ZkError> {
    let uploads = entries.keys().filter(|path| matches!(paths::parse(path), ZnodePath::ImageUpload(_)));
    let mut numbers: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for path in uploads {
        let parent = paths::parent(path).unwrap_or(path).to_owned();
        numbers.entry(parent).or_default().insert(paths::name(path).to_owned());
    }
    // A build is written before everything below it.
    for (path, text) in entries {
        write(zk, path, text).await?;
    }
    for (parent, names) in &numbers {
        advance_sequence(zk, parent, names).await?;
    }
    Ok(())
}

async fn write(zk: &Zk, path: &str, text: &str) -> Result<(), ZkError> {
    let data = Bytes::copy_from_slice(text.as_bytes());
    for _ in 0..2 {
        match zk.create(path, data.clone(), CreateMode::Persistent).await {
            Ok(_) => return Ok(()),
            Err(ZkError::NodeExists) => return zk.set(path, data, -1).await.map(drop),
            Err(ZkError::NoNode) => make_parents(zk, path).await?,
            Err(error) => return Err(error),
        }
    }
    Err(ZkError::NoNode)
}

/// Creates the parents of a path, also of an upload whose build is not part of the data: it had a record once, or will
/// have one.
async fn make_parents(zk: &Zk, path: &str) -> Result<(), ZkError> {
    for (end, _) in path.match_indices('/').skip(1) {
        match make_path(zk, &path[..end]).await {
            Ok(()) => {}
            Err(ZkError::NoNode) => match zk.create(&path[..end], Bytes::new(), CreateMode::Persistent).await {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Advances ZooKeeper's sequence beyond the highest imported number. The placeholders are ephemeral: a persistent one,
/// left behind by a killed process, would remain an upload without a record forever.
async fn advance_sequence(zk: &Zk, parent: &str, imported: &BTreeSet<String>) -> Result<(), ZkError> {
    let highest = imported.iter().filter_map(|name| name.parse::<u64>().ok()).max().unwrap_or(0);
    loop {
        let prefix = format!("{parent}/placeholder-");
        let (path, _) = zk.create(&prefix, Bytes::new(), CreateMode::EphemeralSequential).await?;
        zk.delete(&path, -1).await?;
        let number = paths::name(&path).trim_start_matches("placeholder-").parse::<u64>();
        if number.is_ok_and(|number| number >= highest) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Fault, MemoryZooKeeper};
    use serde_json::json;

    const UPLOADS: &str = "/nodepool/images/debian/builds/b1/providers/rax/images";

    #[tokio::test]
    async fn a_killed_import_leaves_no_placeholder_and_the_next_continues() {
        let server = MemoryZooKeeper::new();
        let (killed, later): (Zk, Zk) = (server.connect(), server.connect());
        let path = format!("{UPLOADS}/0000000003");
        let record = r#"{"state": "ready", "state_time": 5.0}"#.to_owned();
        write(&later, &path, &record).await.unwrap();
        server.fail_next(killed.session_id(), 1, Fault::AfterApplying);
        let numbers = BTreeSet::from(["0000000003".to_owned()]);
        assert!(advance_sequence(&killed, UPLOADS, &numbers).await.is_err());
        assert_eq!(later.children(UPLOADS).await.unwrap().0.len(), 2, "the placeholder exists");
        server.expire(killed.session_id());
        import(&later, &BTreeMap::from([(path, record)])).await.unwrap();
        assert_eq!(later.children(UPLOADS).await.unwrap().0, ["0000000003"]);
        let next = later.create(&format!("{UPLOADS}/"), Bytes::new(), CreateMode::PersistentSequential).await;
        assert!(next.unwrap().0 > format!("{UPLOADS}/0000000003"));
    }

    #[test]
    fn uploads_with_numbers_zookeeper_would_not_issue_are_refused() {
        for (name, expected) in [
            ("placeholder-0000000001", "ten-digit"),
            ("3", "ten-digit"),
            ("00000000x3", "ten-digit"),
            ("-000000003", "ten-digit"),
            ("2147483647", "too large"),
            ("9999999999", "too large"),
        ] {
            let refused = check(&json!({(format!("{UPLOADS}/{name}")): "{}"})).unwrap_err();
            assert!(refused.contains(expected) && refused.contains(name), "{refused}");
        }
        let good = json!({(format!("{UPLOADS}/0000000003")): r#"{"state": "ready", "state_time": 5.0}"#});
        assert_eq!(check(&good).map(|checked| checked.len()), Ok(1));
    }
}
