//! Image records as a builder writes them.

use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::image_upload::{ImageUpload, UploadKey, UploadState};
use nodepool_model::records::json;
use nodepool_model::records::time::Timestamp;
use nodepool_zk::{Zk, paths};
use zookeeper_server::types::CreateMode;

/// Writes the record of an upload.
pub async fn record_upload(zk: &Zk, key: &UploadKey, state: UploadState, at: f64, image: Option<&str>) {
    let upload = ImageUpload {
        state,
        state_time: Timestamp(at),
        external_id: image.map(|id| ExternalId::Text(id.to_owned())),
        external_name: None,
        format: Some("raw".to_owned()),
        username: Some("somebody".to_owned()),
        python_path: Some("auto".to_owned()),
        shell_type: None,
    };
    let path = paths::image_upload(key);
    for (at, _) in path.match_indices('/').skip(1) {
        let _ = zk.create(&path[..at], Default::default(), CreateMode::Persistent).await;
    }
    let data: bytes::Bytes = json::to_bytes(&upload).into();
    if zk.create(&path, data.clone(), CreateMode::Persistent).await.is_err() {
        zk.set(&path, data, -1).await.expect("an upload can be written");
    }
}
