//! S3: objects with tags, in parts, and their listing.

use std::collections::BTreeMap;
use std::sync::Arc;

use reqwest::Method;

use crate::contract::peer::Peer;
use crate::ec2::Element;

/// Size of all parts but the last one, the smallest that S3 accepts.
const PART: usize = 5 * 1024 * 1024;

async fn delete(peer: &Peer, path: &str) {
    peer.s3(Method::DELETE, path, &[], &[]).await.expect_ok();
}

async fn tags(peer: &Peer, path: &str) -> BTreeMap<String, String> {
    let answer = peer.s3(Method::GET, &format!("{path}?tagging"), &[], &[]).await.expect_ok();
    let tags = answer.child("TagSet").children("Tag").into_iter();
    tags.map(|tag| (tag.child("Key").text().to_owned(), tag.child("Value").text().to_owned())).collect()
}

/// Keys of a page, and its token for the next one.
async fn page(peer: &Peer, query: &str) -> (Vec<String>, String) {
    let path = format!("/{}?list-type=2{query}", peer.resources.bucket);
    let answer = peer.s3(Method::GET, &path, &[], &[]).await.expect_ok();
    let keys = answer.children("Contents").into_iter().map(|object| object.child("Key").text().to_owned()).collect();
    let token = answer.child("NextContinuationToken").text().to_owned();
    assert_eq!(answer.child("IsTruncated").text() == "true", !token.is_empty(), "{answer:?}");
    (keys, token)
}

pub async fn lifecycle(peer: Arc<Peer>) {
    let key = peer.name("object") + ".raw";
    let path = format!("/{}/{key}", peer.resources.bucket);
    let tagging = [("x-amz-tagging", "nodepool_provider_name=west&text=a%20b%2Fc")];
    peer.s3(Method::PUT, &path, &tagging, b"data of an image").await.expect_ok();
    let tags = tags(&peer, &path).await;
    assert_eq!((tags["nodepool_provider_name"].as_str(), tags["text"].as_str()), ("west", "a b/c"));
    assert_eq!(page(&peer, &format!("&prefix={key}")).await, (vec![key], String::new()));
    delete(&peer, &path).await;
    // Deleting an object that is gone succeeds.
    delete(&peer, &path).await;
    peer.s3(Method::GET, &path, &[], &[]).await.expect_error(404, "NoSuchKey");
}

pub async fn parts(peer: Arc<Peer>) {
    let path = format!("/{}/{}", peer.resources.bucket, peer.name("large"));
    let tagging = [("x-amz-tagging", "a=b")];
    let created = peer.s3(Method::POST, &format!("{path}?uploads"), &tagging, &[]).await.expect_ok();
    let upload = created.child("UploadId").text().to_owned();
    assert!(!upload.is_empty(), "{created:?}");
    let mut list = String::new();
    for (number, size) in [(1, PART), (2, 10)] {
        let path = format!("{path}?partNumber={number}&uploadId={upload}");
        let answer = peer.s3(Method::PUT, &path, &[], &vec![number; size]).await;
        assert!(!answer.tag.is_empty(), "{answer:?}");
        list += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{}</ETag></Part>", answer.tag);
        answer.expect_ok();
    }
    let list = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    let query = format!("{path}?uploadId={upload}");
    let completed: Element = peer.s3(Method::POST, &query, &[], list.as_bytes()).await.expect_ok();
    assert_eq!(completed.name, "CompleteMultipartUploadResult", "{completed:?}");
    assert_eq!(tags(&peer, &path).await.get("a").map(String::as_str), Some("b"));
    delete(&peer, &path).await;

    let created = peer.s3(Method::POST, &format!("{path}?uploads"), &[], &[]).await.expect_ok();
    let query = format!("{path}?uploadId={}", created.child("UploadId").text());
    delete(&peer, &query).await;
    peer.s3(Method::DELETE, &query, &[], &[]).await.expect_error(404, "NoSuchUpload");
}

pub async fn pages(peer: Arc<Peer>) {
    let prefix = peer.name("page");
    let mut keys: Vec<String> = (0..5).map(|number| format!("{prefix}-{number}")).collect();
    keys.sort();
    for key in &keys {
        peer.s3(Method::PUT, &format!("/{}/{key}", peer.resources.bucket), &[], b"x").await.expect_ok();
    }
    let (mut found, mut token) = page(&peer, &format!("&prefix={prefix}&max-keys=2")).await;
    assert_eq!(found.len(), 2);
    while !token.is_empty() {
        let encoded: String = token.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let (more, next) = page(&peer, &format!("&prefix={prefix}&max-keys=2&continuation-token={encoded}")).await;
        found.extend(more);
        token = next;
    }
    assert_eq!(found, keys);
    for key in &keys {
        delete(&peer, &format!("/{}/{key}", peer.resources.bucket)).await;
    }
    // An empty listing has no objects.
    assert_eq!(page(&peer, &format!("&prefix={prefix}")).await, (Vec::new(), String::new()));
}

pub async fn unknown(peer: Arc<Peer>) {
    let path = format!("/{}/no-such-object", peer.resources.bucket);
    peer.s3(Method::GET, &format!("{path}?tagging"), &[], &[]).await.expect_error(404, "NoSuchKey");
    peer.s3(Method::PUT, "/no-such-bucket/object", &[], b"x").await.expect_error(404, "NoSuchBucket");
    peer.s3(Method::GET, "/no-such-bucket?list-type=2", &[], &[]).await.expect_error(404, "NoSuchBucket");
}
