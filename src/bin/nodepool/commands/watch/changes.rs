//! Changes from one snapshot to the next, as one JSON document each.

use std::collections::BTreeMap;

use nodepool_model::records::image_build::BuildKey;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::image_status::{
    self, AgeFormat, BUILD_COLUMNS, BuildRow, IMAGE_COLUMNS, UPLOAD_COLUMNS, UploadRow,
};
use nodepool_model::report::list::Object;
use nodepool_model::report::status::{NODE_COLUMNS, NodeRow, REQUEST_COLUMNS, RequestRow};
use nodepool_model::snapshot::Snapshot;
use nodepool_model::snapshot::images::Images;
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Connection,
    Node,
    Request,
    Image,
    Build,
    Upload,
}

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Connection => "connection",
            Kind::Node => "node",
            Kind::Request => "request",
            Kind::Image => "image",
            Kind::Build => "build",
            Kind::Upload => "upload",
        }
    }
}

/// Value that differs whenever the object has changed.
type Fingerprint = (i64, bool);
type Fingerprints = BTreeMap<(Kind, String), Fingerprint>;

/// Compares snapshots by the fingerprints of their objects, so that no record is kept in memory.
#[derive(Default)]
pub struct ChangeTracker {
    previous: Option<Fingerprints>,
}

impl ChangeTracker {
    /// The changes since the previous snapshot; for the first one, all objects.
    pub fn update(&mut self, snapshot: &Snapshot, now: Timestamp) -> Vec<Value> {
        let fingerprints = fingerprints(snapshot);
        let mut documents = Vec::new();
        for ((kind, id), fingerprint) in &fingerprints {
            let change = match self.previous.as_ref().map(|previous| previous.get(&(*kind, id.clone()))) {
                None => "existing",
                Some(None) => "created",
                Some(Some(old)) if old != fingerprint => "changed",
                Some(Some(_)) => continue,
            };
            let mut document = json!({"change": change, "kind": kind.as_str(), "id": id});
            document[kind.as_str()] = record_document(*kind, id, snapshot, now);
            documents.push(document);
        }
        for (kind, id) in self.previous.iter().flat_map(BTreeMap::keys) {
            if !fingerprints.contains_key(&(*kind, id.clone())) {
                documents.push(json!({"change": "deleted", "kind": kind.as_str(), "id": id}));
            }
        }
        self.previous = Some(fingerprints);
        documents
    }
}

fn fingerprints(snapshot: &Snapshot) -> Fingerprints {
    let mut fingerprints = Fingerprints::from([((Kind::Connection, "zookeeper".to_owned()), (0, snapshot.connected))]);
    for (id, stored) in snapshot.nodes() {
        fingerprints.insert((Kind::Node, id.to_string()), (stored.mzxid, snapshot.is_node_locked(id)));
    }
    for (id, stored) in snapshot.requests() {
        fingerprints.insert((Kind::Request, id.to_string()), (stored.mzxid, false));
    }
    for name in snapshot.images.names() {
        let Some(image) = snapshot.images.image(name) else { continue };
        let requested = image.requested_ms.map_or(0, |ms| ms * 2 + i64::from(image_status::is_building(image)));
        fingerprints.insert((Kind::Image, name.to_string()), (requested, image.paused));
    }
    for (key, stored) in snapshot.images.builds() {
        fingerprints.insert((Kind::Build, key.file_name()), (stored.mzxid, is_paused(&snapshot.images, &key)));
    }
    for (key, stored) in snapshot.images.uploads() {
        fingerprints.insert((Kind::Upload, upload_id(key)), (stored.mzxid, false));
    }
    fingerprints
}

/// Upload numbers are counted per build and provider, so the id contains both.
fn upload_id(key: &nodepool_model::records::image_upload::UploadKey) -> String {
    format!("{}-{}/{}/{}", key.image, key.build, key.provider, key.upload)
}

fn is_paused(images: &Images, key: &BuildKey) -> bool {
    images.image(&key.image).is_some_and(|image| image.paused)
}

/// The record, as a row of the list of its kind.
fn record_document(kind: Kind, id: &str, snapshot: &Snapshot, now: Timestamp) -> Value {
    let ages = AgeFormat::EpochSeconds;
    let images = &snapshot.images;
    let found = match kind {
        Kind::Connection => Some(json!(if snapshot.connected { "connected" } else { "disconnected" })),
        Kind::Node => snapshot.node(&id.into()).map(|stored| {
            let locked = snapshot.is_node_locked(&id.into());
            let row = NodeRow { id: id.into(), node: stored.record.clone(), locked, now };
            json!(Object(NODE_COLUMNS, &row))
        }),
        Kind::Request => snapshot.request(&id.into()).map(|stored| {
            json!(Object(REQUEST_COLUMNS, &RequestRow { id: id.into(), request: stored.record.clone() }))
        }),
        Kind::Image => {
            let rows = image_status::images(images, ages);
            rows.iter().find(|row| row.name.as_str() == id).map(|row| json!(Object(IMAGE_COLUMNS, row)))
        }
        Kind::Build => images.builds().find(|(key, _)| key.file_name() == id).map(|(key, stored)| {
            let paused = is_paused(images, &key);
            json!(Object(BUILD_COLUMNS, &BuildRow { build: (*stored.record).clone(), key, paused, ages }))
        }),
        Kind::Upload => images.uploads().find(|(key, _)| upload_id(key) == id).map(|(key, stored)| {
            let row = UploadRow { key: key.clone(), upload: (*stored.record).clone(), ages };
            json!(Object(UPLOAD_COLUMNS, &row))
        }),
    };
    found.unwrap_or(Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::snapshot::LockState;
    use nodepool_model::snapshot::versioned::Versioned;
    use std::sync::Arc;

    fn put(snapshot: &mut Snapshot, id: &str, mzxid: i64, state: &str) {
        let record = Arc::new(serde_json::from_value(json!({"state": state})).unwrap());
        snapshot.put_node(id.into(), Versioned { record, version: 0, mzxid, mtime_ms: 0 });
    }

    fn reported(tracker: &mut ChangeTracker, snapshot: &Snapshot) -> Vec<String> {
        let documents = tracker.update(snapshot, Timestamp(0.0));
        let short = |document: &Value| {
            let detail = document["node"]["state"].as_str().or(document["connection"].as_str()).unwrap_or("-");
            let text = |key: &str| document[key].as_str().unwrap().to_owned();
            format!("{} {} {} {detail}", text("change"), text("kind"), text("id"))
        };
        documents.iter().map(short).collect()
    }

    #[test]
    fn every_object_is_reported_once_and_then_each_change() {
        let (mut tracker, mut snapshot) = (ChangeTracker::default(), Snapshot::default());
        snapshot.connected = true;
        put(&mut snapshot, "1", 1, "ready");
        assert_eq!(
            reported(&mut tracker, &snapshot),
            ["existing connection zookeeper connected", "existing node 1 ready"]
        );
        assert_eq!(reported(&mut tracker, &snapshot), Vec::<String>::new());
        put(&mut snapshot, "2", 2, "building");
        put(&mut snapshot, "1", 3, "in-use");
        assert_eq!(reported(&mut tracker, &snapshot), ["changed node 1 in-use", "created node 2 building"]);
        let mut lock = LockState { exists: true, ..LockState::default() };
        lock.contenders.insert("0__lock__0000000000".to_owned());
        snapshot.set_node_lock("2".into(), lock);
        assert_eq!(reported(&mut tracker, &snapshot), ["changed node 2 building"]);
        snapshot.remove_node(&"1".into());
        snapshot.connected = false;
        assert_eq!(
            reported(&mut tracker, &snapshot),
            ["changed connection zookeeper disconnected", "deleted node 1 -"]
        );
    }

    #[test]
    fn images_builds_and_uploads_are_reported_as_rows_of_the_lists() {
        let (mut tracker, mut snapshot) = (ChangeTracker::default(), Snapshot::default());
        snapshot.images.add_image("debian".into());
        tracker.update(&snapshot, Timestamp(0.0));
        snapshot.images.set_requested(&"debian".into(), Some(5000));
        let documents = tracker.update(&snapshot, Timestamp(0.0));
        let image = json!({"image": "debian", "paused": false, "build_request": "pending", "build_request_age": 5});
        assert_eq!(documents, [json!({"change": "changed", "kind": "image", "id": "debian", "image": image})]);
    }
}
