//! Requests of S3 as data: objects with tags, sent in parts. A client adds the bucket's address and signs them, or adds
//! a token.

use std::collections::BTreeMap;
use std::path::PathBuf;

use http::Method;
use serde::Deserialize;

/// Bytes of one part of an object, unless it would have too many.
const PART_SIZE: u64 = 8 * 1024 * 1024;
const MAX_PARTS: u64 = 10_000;

/// A request for an object, or for the bucket if the key is empty.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectRequest {
    pub method: Method,
    pub key: String,
    pub query: Vec<(&'static str, String)>,
    pub headers: Vec<(&'static str, String)>,
    pub content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Content {
    None,
    Text(String),
    File(FilePart),
}

/// A part of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct FilePart {
    pub file: PathBuf,
    pub from: u64,
    pub length: u64,
}

fn request(method: Method, key: &str) -> ObjectRequest {
    ObjectRequest { method, key: key.to_owned(), query: Vec::new(), headers: Vec::new(), content: Content::None }
}

/// Begins an object of several parts. The response names the upload.
pub fn begin(key: &str, tags: &BTreeMap<String, String>) -> ObjectRequest {
    let mut headers = Vec::new();
    if !tags.is_empty() {
        let mut tagging = form_urlencoded::Serializer::new(String::new());
        tagging.extend_pairs(tags);
        headers.push(("x-amz-tagging", tagging.finish()));
    }
    ObjectRequest { query: vec![("uploads", String::new())], headers, ..request(Method::POST, key) }
}

/// Sends one part; the header `etag` of the response identifies it.
pub fn part(key: &str, upload: &str, number: u32, part: FilePart) -> ObjectRequest {
    ObjectRequest {
        query: vec![("partNumber", number.to_string()), ("uploadId", upload.to_owned())],
        content: Content::File(part),
        ..request(Method::PUT, key)
    }
}

/// Completes an object from its parts.
pub fn complete(key: &str, upload: &str, etags: &BTreeMap<u32, String>) -> ObjectRequest {
    let parts = etags.iter().map(|(number, etag)| {
        let etag = etag.replace('&', "&amp;").replace('<', "&lt;");
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    });
    let parts: String = parts.collect();
    ObjectRequest {
        query: vec![("uploadId", upload.to_owned())],
        content: Content::Text(format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>")),
        ..request(Method::POST, key)
    }
}

/// Deletes the parts of an object that was not completed.
pub fn abort(key: &str, upload: &str) -> ObjectRequest {
    ObjectRequest { query: vec![("uploadId", upload.to_owned())], ..request(Method::DELETE, key) }
}

pub fn delete(key: &str) -> ObjectRequest {
    request(Method::DELETE, key)
}

pub fn tags(key: &str) -> ObjectRequest {
    ObjectRequest { query: vec![("tagging", String::new())], ..request(Method::GET, key) }
}

/// One page of the keys of a bucket.
pub fn list(next: Option<&str>) -> ObjectRequest {
    let mut query = vec![("list-type", "2".to_owned())];
    query.extend(next.map(|token| ("continuation-token", token.to_owned())));
    ObjectRequest { query, ..request(Method::GET, "") }
}

/// The location of the bucket.
pub fn location() -> ObjectRequest {
    ObjectRequest { query: vec![("location", String::new())], ..request(Method::GET, "") }
}

/// The response of `location`.
#[derive(Debug, Deserialize)]
pub struct Location {
    #[serde(rename = "$text", default)]
    pub constraint: String,
}

/// The response of `begin`.
#[derive(Debug, Deserialize)]
pub struct Begun {
    #[serde(rename = "UploadId")]
    pub upload: String,
}

/// The response of `list`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Listing {
    #[serde(default)]
    pub contents: Vec<Entry>,
    pub next_continuation_token: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Entry {
    pub key: String,
}

/// The response of `tags`.
#[derive(Debug, Deserialize)]
pub struct Tagging {
    #[serde(rename = "TagSet", default)]
    set: TagSet,
}

#[derive(Debug, Default, Deserialize)]
struct TagSet {
    #[serde(rename = "Tag", default)]
    tags: Vec<ObjectTag>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ObjectTag {
    key: String,
    #[serde(default)]
    value: String,
}

impl Tagging {
    pub fn tags(self) -> BTreeMap<String, String> {
        self.set.tags.into_iter().map(|tag| (tag.key, tag.value)).collect()
    }
}

/// The parts of a file, by number from 1.
pub fn parts(file: &std::path::Path, size: u64) -> BTreeMap<u32, FilePart> {
    let part_size = PART_SIZE.max(size.div_ceil(MAX_PARTS));
    let count = size.div_ceil(part_size).max(1);
    let part = |index: u64| {
        let from = index * part_size;
        let part = FilePart { file: file.to_owned(), from, length: part_size.min(size - from) };
        (index as u32 + 1, part)
    };
    (0..count).map(part).collect()
}

/// Services with the API of S3 report an error of a long call with status 200, because they have begun the response
/// before.
pub fn is_late_error(body: &[u8]) -> bool {
    // White space keeps the connection alive before.
    let body = body.trim_ascii_start();
    let text = String::from_utf8_lossy(&body[..body.len().min(200)]);
    text.contains("<Error>") && !text.contains("<Response>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_errors_may_have_a_declaration() {
        assert!(is_late_error(b"  <?xml version=\"1.0\"?>\n<Error><Code>InternalError</Code></Error>"));
        assert!(!is_late_error(b"<?xml version=\"1.0\"?><CompleteMultipartUploadResult/>"));
    }

    #[test]
    fn parts_cover_the_file_once() {
        for size in [0, 1, PART_SIZE - 1, PART_SIZE, PART_SIZE + 1, 5 * PART_SIZE] {
            let parts = parts("/image".as_ref(), size);
            let mut at = 0;
            for part in parts.values() {
                assert_eq!(part.from, at);
                at += part.length;
            }
            assert_eq!((at, parts.len() as u64), (size, size.div_ceil(PART_SIZE).max(1)));
        }
        assert_eq!(parts("/image".as_ref(), 500 << 30).len(), 10_000);
    }

    #[test]
    fn tags_and_keys_are_read() {
        let tagging = "<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag><Tag><Key>b</Key><Value/></Tag></TagSet></Tagging>";
        let tagging: Tagging = quick_xml::de::from_str(tagging).unwrap();
        assert_eq!(tagging.tags(), [("a", "1"), ("b", "")].map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        let listing = "<ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>x.raw</Key></Contents>\
             <Contents><Key>y</Key></Contents><NextContinuationToken>t</NextContinuationToken></ListBucketResult>";
        let listing: Listing = quick_xml::de::from_str(listing).unwrap();
        assert_eq!((listing.contents.len(), listing.next_continuation_token.as_deref()), (2, Some("t")));
    }
}
