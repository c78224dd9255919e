//! Labels with an image of the builder: nodes boot from its newest upload.

use nodepool_model::records::image_upload::{UploadKey, UploadState};
use nodepool_model::records::request::RequestState;
use nodepool_zk::{Connection, paths};
use serde_json::json;
use testkit::in_process_launcher::image_records::record_upload;
use testkit::in_process_launcher::on_real_time;
use testkit::openstack_harness::clouds;
use testkit::openstack_harness::harness::{OpenStackHarness, server_of, with_launcher};

fn key(harness: &OpenStackHarness, build: &str) -> UploadKey {
    let (provider, image) = (harness.provider.as_str().into(), "debian".into());
    UploadKey { provider, image, build: build.into(), upload: "0000000001".into() }
}

/// Writes the record of an upload, as a builder does.
async fn record(
    harness: &OpenStackHarness,
    build: &str,
    state: UploadState,
    at: f64,
    image: Option<&str>,
) -> UploadKey {
    let key = key(harness, build);
    record_upload(&harness.consumer.zk, &key, state, at, image).await;
    key
}

#[test]
fn nodes_boot_from_the_newest_upload_that_is_ready() {
    on_real_time(async {
        for cloud in clouds(&[]).await {
            let client = cloud.client().await;
            let image = client.id_of("image", "images", &cloud.image).await;
            let configure = |name: &str| {
                let mut provider = cloud.provider(name);
                provider["diskimages"] = json!([{"name": "debian", "connection-port": 2222, "config-drive": true}]);
                let label = &mut provider["pools"][0]["labels"][0];
                label["diskimage"] = json!("debian");
                label.as_object_mut().unwrap().remove("cloud-image");
                vec![provider]
            };
            with_launcher(&cloud, configure, async |harness| {
                let id = harness.consumer.submit_labels(&["a"]).await;
                assert_eq!(harness.wait_for_end(&id).await.state, RequestState::Failed);
                harness.wait_for_reason(&id, "image debian has not been uploaded to this provider").await;

                let unknown_id = "00000000-0000-4000-8000-000000000000";
                record(harness, "b1", UploadState::Ready, 1000.0, Some(&image)).await;
                record(harness, "b2", UploadState::Uploading, 3000.0, None).await;
                record(harness, "b3", UploadState::Deleting, 4000.0, Some(unknown_id)).await;
                let newest = record(harness, "b0", UploadState::Ready, 2000.0, Some(&image)).await;
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                let node = &nodes[0];
                let path =
                    format!("/nodepool/images/debian/builds/b0/providers/{}/images/0000000001", harness.provider);
                assert_eq!(node.image_id.as_deref(), Some(path.as_str()));
                // User name and port are those of the configuration, not of the upload.
                assert_eq!((node.username.as_deref(), node.port()), (Some("zuul"), Some(2222)));
                let server = harness.client.server(server_of(node)).await;
                assert_eq!(server["image"]["id"], json!(image));
                assert_eq!(
                    (&server["metadata"]["nodepool_image_name"], &server["config_drive"]),
                    (&json!("debian"), &json!("True"))
                );
                harness.accept_and_release(&id).await;

                // The newest upload is being deleted, so the previous one is used.
                record(harness, "b0", UploadState::Deleting, 5000.0, Some(unknown_id)).await;
                let (id, nodes) = harness.obtain_nodes(&["a"]).await;
                assert_eq!(nodes[0].image_id.as_deref(), Some(path.replace("/b0/", "/b1/").as_str()));
                harness.accept_and_release(&id).await;
                let zk = harness.zookeeper.connect();
                for key in [newest, key(harness, "b1")] {
                    zk.delete(&paths::image_upload(&key), -1).await.expect("the upload exists");
                }
                let id = harness.consumer.submit_labels(&["a"]).await;
                assert_eq!(harness.wait_for_end(&id).await.state, RequestState::Failed);
                harness.wait_until_empty().await;
            })
            .await;
        }
    });
}
