//! EBS direct: snapshots that are written block by block.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::contract::peer::{JsonAnswer, Peer};
use crate::ec2::tags;

const BLOCK: usize = 512 * 1024;

async fn start(peer: &Peer, parameters: Value) -> JsonAnswer {
    peer.ebs(Method::POST, "/snapshots", &[], parameters.to_string().into_bytes()).await
}

fn checksum(data: &[u8]) -> String {
    STANDARD.encode(Sha256::digest(data))
}

async fn put(peer: &Peer, snapshot: &str, index: usize, data: Vec<u8>, checksum: &str) -> JsonAnswer {
    let length = data.len().to_string();
    let headers =
        [("x-amz-Data-Length", length.as_str()), ("x-amz-Checksum", checksum), ("x-amz-Checksum-Algorithm", "SHA256")];
    peer.ebs(Method::PUT, &format!("/snapshots/{snapshot}/blocks/{index}"), &headers, data).await
}

/// Completes a snapshot; polls until it is completed.
async fn complete(peer: &Peer, snapshot: &str, blocks: usize) {
    let blocks = blocks.to_string();
    let headers = [("x-amz-ChangedBlocksCount", blocks.as_str())];
    for _ in 0..100 {
        let path = format!("/snapshots/completion/{snapshot}");
        let answer = peer.ebs(Method::POST, &path, &headers, Vec::new()).await.expect_ok();
        if answer["Status"] == "completed" {
            return;
        }
        assert_eq!(answer["Status"], "pending", "{answer}");
    }
    panic!("{snapshot} is not completed");
}

async fn delete(peer: &Peer, snapshot: &str) {
    peer.ec2.ok("DeleteSnapshot", &[("SnapshotId", snapshot)]).await;
}

pub async fn written(peer: Arc<Peer>) {
    let parameters = json!({"VolumeSize": 3, "ClientToken": peer.name("token"), "Tags": [{"Key": "a", "Value": "b"}]});
    let started = start(&peer, parameters).await.expect_ok();
    let id = started["SnapshotId"].as_str().unwrap();
    assert_eq!((&started["Status"], &started["VolumeSize"]), (&json!("pending"), &json!(3)));
    for index in [0, 5] {
        let data = vec![index as u8; BLOCK];
        let sum = checksum(&data);
        let answer = put(&peer, id, index, data, &sum).await;
        assert_eq!(answer.checksum.as_deref(), Some(sum.as_str()), "{answer:?}");
        answer.expect_ok();
    }
    let listed = peer.ec2.ok("DescribeSnapshots", &[("SnapshotId.1", id)]).await;
    assert_eq!(listed.find("status").text(), "pending");
    complete(&peer, id, 2).await;
    let listed = peer.ec2.ok("DescribeSnapshots", &[("SnapshotId.1", id)]).await;
    let listed = listed.child("snapshotSet").child("item");
    assert_eq!((listed.child("status").text(), listed.child("volumeSize").text()), ("completed", "3"));
    assert_eq!(tags(listed).get("a").map(String::as_str), Some("b"));
    delete(&peer, id).await;
}

pub async fn checked(peer: Arc<Peer>) {
    let started = start(&peer, json!({"VolumeSize": 1, "ClientToken": peer.name("token")})).await.expect_ok();
    let id = started["SnapshotId"].as_str().unwrap();
    let data = vec![9; BLOCK];
    put(&peer, id, 0, data.clone(), &checksum(b"other")).await.expect_error("ValidationException");
    put(&peer, id, 0, vec![9; 100], &checksum(&[9; 100])).await.expect_error("ValidationException");
    let sum = checksum(&data);
    let unknown = put(&peer, "snap-0123456789abcdef0", 0, data.clone(), &sum).await;
    unknown.expect_error("ResourceNotFoundException");
    put(&peer, id, 0, data.clone(), &sum).await.expect_ok();
    // A repeated block counts once.
    put(&peer, id, 0, data, &sum).await.expect_ok();
    complete(&peer, id, 1).await;
    delete(&peer, id).await;
}

pub async fn client_token(peer: Arc<Peer>) {
    let token = peer.name("token");
    let parameters = json!({"VolumeSize": 1, "ClientToken": token});
    let first = start(&peer, parameters.clone()).await.expect_ok();
    let second = start(&peer, parameters).await.expect_ok();
    assert_eq!(first["SnapshotId"], second["SnapshotId"]);
    start(&peer, json!({"VolumeSize": 2, "ClientToken": token})).await.expect_error("ConflictException");
    delete(&peer, first["SnapshotId"].as_str().unwrap()).await;
}
