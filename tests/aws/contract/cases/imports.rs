//! Import tasks: from an object in a bucket to a snapshot or an image.

use std::sync::Arc;

use reqwest::Method;

use crate::contract::peer::{Parameters, Peer, poll};
use crate::ec2::{Element, tags};

/// Stores an object of 1000 bytes and returns its key.
async fn object(peer: &Peer) -> String {
    let key = peer.name("disk") + ".raw";
    peer.s3(Method::PUT, &format!("/{}/{key}", peer.resources.bucket), &[], &[7; 1000]).await.expect_ok();
    key
}

async fn remove(peer: &Peer, key: &str) {
    peer.s3(Method::DELETE, &format!("/{}/{key}", peer.resources.bucket), &[], &[]).await.expect_ok();
}

fn snapshot_parameters<'a>(peer: &'a Peer, key: &'a str) -> Parameters<'a> {
    vec![
        ("DiskContainer.Format", "raw"),
        ("DiskContainer.UserBucket.S3Bucket", peer.resources.bucket.as_str()),
        ("DiskContainer.UserBucket.S3Key", key),
        ("TagSpecification.1.ResourceType", "import-snapshot-task"),
        ("TagSpecification.1.Tag.1.Key", "nodepool_provider_name"),
        ("TagSpecification.1.Tag.1.Value", "west"),
    ]
}

/// The task of the import of a snapshot when it ended.
async fn ended(peer: &Peer, id: &str) -> Element {
    poll("the end of an import", async || {
        let answer = peer.ec2.ok("DescribeImportSnapshotTasks", &[("ImportTaskId.1", id)]).await;
        let task = answer.child("importSnapshotTaskSet").child("item");
        let status = task.child("snapshotTaskDetail").child("status").text();
        ["completed", "deleted"].contains(&status).then(|| task.clone())
    })
    .await
}

pub async fn snapshot(peer: Arc<Peer>) {
    let key = object(&peer).await;
    let task = peer.ec2.ok("ImportSnapshot", &snapshot_parameters(&peer, &key)).await;
    let id = task.child("importTaskId").text();
    assert!(id.starts_with("import-snap-"), "{task:?}");
    assert_eq!(task.child("snapshotTaskDetail").child("status").text(), "active");
    let task = ended(&peer, id).await;
    assert_eq!(tags(&task).get("nodepool_provider_name").map(String::as_str), Some("west"));
    let detail = task.child("snapshotTaskDetail");
    assert_eq!(detail.child("status").text(), "completed");
    let snapshot = detail.child("snapshotId").text();
    let listed = peer.ec2.ok("DescribeSnapshots", &[("SnapshotId.1", snapshot)]).await;
    let listed = listed.child("snapshotSet").child("item");
    // The tags are those of the task, not of the snapshot.
    assert_eq!((listed.child("volumeSize").text(), tags(listed).len()), ("1", 0));
    peer.ec2.ok("DeleteSnapshot", &[("SnapshotId", snapshot)]).await;
    remove(&peer, &key).await;
}

pub async fn image(peer: Arc<Peer>) {
    let key = object(&peer).await;
    let parameters = [
        ("Architecture", "x86_64"),
        ("DiskContainer.1.Format", "raw"),
        ("DiskContainer.1.UserBucket.S3Bucket", peer.resources.bucket.as_str()),
        ("DiskContainer.1.UserBucket.S3Key", &key),
        ("TagSpecification.1.ResourceType", "import-image-task"),
        ("TagSpecification.1.Tag.1.Key", "nodepool_provider_name"),
        ("TagSpecification.1.Tag.1.Value", "west"),
    ];
    let task = peer.ec2.ok("ImportImage", &parameters).await;
    let id = task.child("importTaskId").text();
    assert!(id.starts_with("import-ami-"), "{task:?}");
    assert_eq!(task.child("status").text(), "active");
    let task = poll("the end of an import", async || {
        let answer = peer.ec2.ok("DescribeImportImageTasks", &[("ImportTaskId.1", id)]).await;
        let task = answer.child("importImageTaskSet").child("item");
        ["completed", "deleted"].contains(&task.child("status").text()).then(|| task.clone())
    })
    .await;
    assert_eq!(task.child("status").text(), "completed");
    assert_eq!(tags(&task).get("nodepool_provider_name").map(String::as_str), Some("west"));
    let image = task.child("imageId").text();
    let snapshot = task.child("snapshotDetailSet").child("item").child("snapshotId").text();
    let listed = peer.ec2.ok("DescribeImages", &[("ImageId.1", image)]).await;
    let listed = listed.child("imagesSet").child("item");
    // The image is named after its task, and has no tags.
    assert_eq!((listed.child("name").text(), tags(listed).len()), (id, 0));
    assert_eq!(listed.child("blockDeviceMapping").text_of("snapshotId"), Some(snapshot));
    let listed = peer.ec2.ok("DescribeSnapshots", &[("SnapshotId.1", snapshot)]).await;
    let description = listed.find("description").text();
    assert!(description.contains(id), "{description}");
    peer.remove_image(image).await;
    remove(&peer, &key).await;
}

pub async fn client_token(peer: Arc<Peer>) {
    let (key, token) = (object(&peer).await, peer.name("token"));
    let parameters = [&snapshot_parameters(&peer, &key)[..], &[("ClientToken", token.as_str())]].concat();
    let first = peer.ec2.ok("ImportSnapshot", &parameters).await;
    let second = peer.ec2.ok("ImportSnapshot", &parameters).await;
    let id = first.child("importTaskId").text();
    assert_eq!(second.child("importTaskId").text(), id);
    let mut other = parameters.clone();
    other[0].1 = "vhd";
    peer.ec2.call("ImportSnapshot", &other).await.expect_error(400, "IdempotentParameterMismatch");
    let task = ended(&peer, id).await;
    let snapshot = task.child("snapshotTaskDetail").child("snapshotId").text();
    peer.ec2.ok("DeleteSnapshot", &[("SnapshotId", snapshot)]).await;
    remove(&peer, &key).await;
}

pub async fn unknown(peer: Arc<Peer>) {
    let calls = [
        ("DescribeImportSnapshotTasks", "import-snap-0123456789abcdef0"),
        ("DescribeImportImageTasks", "import-ami-0123456789abcdef0"),
    ];
    for (action, id) in calls {
        let answer = peer.ec2.call(action, &[("ImportTaskId.1", id)]).await;
        answer.expect_error(400, "InvalidConversionTaskId.Malformed");
    }
}
