//! S3 with the bucket in the path: buckets, objects, tags and lists.

use bytes::Bytes;
use chrono::DateTime;

use crate::api::xml::Xml;
use crate::region::tags::Tags;
use crate::region::world::World;
use crate::server::call::Call;
use crate::server::encoding::percent_encoded;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::services::bucket::{Bucket, Object};

const NAMESPACE: &str = "xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"";
/// Maximum number of tags of an object.
const MAX_TAGS: usize = 10;

impl World {
    pub fn s3(&mut self, call: &Call) -> ApiResult<Response> {
        let (bucket, key) = call.bucket_and_key();
        match call.action.as_str() {
            "ListBuckets" => Ok(self.list_buckets()),
            "CreateBucket" => self.create_bucket(call, &bucket),
            "DeleteBucket" => self.delete_bucket(&bucket),
            "HeadBucket" => {
                self.bucket(&bucket)?;
                Ok(Response::empty(200).with("x-amz-bucket-region", call.region.clone()))
            }
            "GetBucketLocation" => self.bucket_location(&bucket),
            "ListObjects" | "ListObjectsV2" => self.list_objects(call, &bucket),
            "PutObject" => self.put_object(call, &bucket, key),
            "GetObject" | "HeadObject" => self.get_object(call, &bucket, &key),
            "DeleteObject" => {
                if self.bucket(&bucket)?.objects.remove(&key).is_some() {
                    self.object_deleted(&bucket, &key);
                }
                Ok(Response::empty(204))
            }
            "DeleteObjects" => self.delete_objects(call, &bucket),
            "GetObjectTagging" => self.get_tagging(&bucket, &key),
            "PutObjectTagging" => self.put_tagging(call, &bucket, &key),
            "CreateMultipartUpload" => self.create_upload(call, &bucket, key),
            "UploadPart" => self.upload_part(call, &bucket),
            "CompleteMultipartUpload" => self.complete_upload(call, &bucket),
            "AbortMultipartUpload" => self.abort_upload(call, &bucket),
            _ => Err(ApiError::new("MethodNotAllowed", "The specified method is not allowed against this resource.")),
        }
    }

    pub fn bucket(&mut self, name: &str) -> ApiResult<&mut Bucket> {
        let unknown = || ApiError::new("NoSuchBucket", "The specified bucket does not exist");
        self.buckets.get_mut(name).ok_or_else(unknown)
    }

    fn list_buckets(&self) -> Response {
        let mut xml = Xml::document();
        xml.open_with("ListAllMyBucketsResult", NAMESPACE);
        xml.within("Owner", |xml| xml.text("ID", &self.options.account)).open("Buckets");
        for (name, bucket) in &self.buckets {
            xml.within("Bucket", |xml| xml.text("Name", name).text("CreationDate", &bucket.created));
        }
        xml.close("Buckets").close("ListAllMyBucketsResult");
        Response::new(200, "application/xml", xml.finish())
    }

    fn create_bucket(&mut self, call: &Call, name: &str) -> ApiResult<Response> {
        let is_allowed = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == '-' || sign == '.';
        if !(3..=63).contains(&name.len()) || !name.chars().all(is_allowed) {
            return Err(ApiError::new("InvalidBucketName", "The specified bucket is not valid."));
        }
        if self.buckets.contains_key(name) {
            let text = "Your previous request to create the named bucket succeeded and you already own it.";
            return Err(ApiError::new("BucketAlreadyOwnedByYou", text));
        }
        let (region, created) = (call.region.clone(), self.timestamp());
        self.buckets.insert(name.to_owned(), Bucket { region, created, ..Bucket::default() });
        Ok(Response::empty(200).with("Location", format!("/{name}")))
    }

    fn delete_bucket(&mut self, name: &str) -> ApiResult<Response> {
        if !self.bucket(name)?.objects.is_empty() {
            return Err(ApiError::new("BucketNotEmpty", "The bucket you tried to delete is not empty"));
        }
        self.buckets.remove(name);
        Ok(Response::empty(204))
    }

    fn bucket_location(&mut self, name: &str) -> ApiResult<Response> {
        let region = self.bucket(name)?.region.clone();
        let mut xml = Xml::document();
        xml.open_with("LocationConstraint", NAMESPACE);
        if region != "us-east-1" {
            xml.raw(&region);
        }
        xml.close("LocationConstraint");
        Ok(Response::new(200, "application/xml", xml.finish()))
    }

    fn put_object(&mut self, call: &Call, bucket: &str, key: String) -> ApiResult<Response> {
        let data = call.content().ok_or_else(|| ApiError::new("IncompleteBody", "The chunks are malformed"))?;
        let (etag, tags) = (format!("\"{:x}\"", md5::compute(&data)), header_tags(call)?);
        let content_type = content_type(call);
        self.store(bucket, &key, Object { data, tags, etag: etag.clone(), content_type, modified: String::new() })?;
        Ok(Response::empty(200).with("ETag", etag))
    }

    /// Stores an object, and records its creation.
    pub fn store(&mut self, bucket: &str, key: &str, mut object: Object) -> ApiResult<()> {
        object.modified = self.timestamp();
        let tags = object.tags.clone();
        let owner = self.bucket(bucket)?;
        let region = owner.region.clone();
        owner.objects.insert(key.to_owned(), object);
        self.stats.created("objects");
        let id = format!("s3://{bucket}/{key}");
        self.history.created("objects", &id, &region, "s3", &tags, self.now);
        Ok(())
    }

    fn object_deleted(&mut self, bucket: &str, key: &str) {
        self.stats.deleted("objects");
        self.history.ended(&format!("s3://{bucket}/{key}"), self.now);
    }

    fn object(&mut self, bucket: &str, key: &str) -> ApiResult<&mut Object> {
        let unknown = || ApiError::new("NoSuchKey", "The specified key does not exist.");
        self.bucket(bucket)?.objects.get_mut(key).ok_or_else(unknown)
    }

    fn get_object(&mut self, call: &Call, bucket: &str, key: &str) -> ApiResult<Response> {
        let object = self.object(bucket, key)?;
        let size = object.data.len();
        let (mut status, mut data, mut range) = (200, object.data.clone(), None);
        if let Some(wanted) = call.header("range").strip_prefix("bytes=") {
            let (first, last) = requested_range(wanted, size)
                .ok_or_else(|| ApiError::new("InvalidRange", "The requested range is not satisfiable"))?;
            (status, data) = (206, object.data.slice(first..=last));
            range = Some(format!("bytes {first}-{last}/{size}"));
        }
        let modified = DateTime::parse_from_rfc3339(&object.modified).map(|time| time.to_rfc2822());
        let modified = modified.unwrap_or_default().replace("+0000", "GMT");
        let length = data.len();
        let body = if call.method == "HEAD" { Bytes::new() } else { data };
        let mut response = Response::new(status, object.content_type.clone(), body).with("ETag", object.etag.clone());
        response = response.with("Last-Modified", modified).with("Accept-Ranges", "bytes");
        if !object.tags.is_empty() {
            response = response.with("x-amz-tagging-count", object.tags.len().to_string());
        }
        if call.method == "HEAD" {
            response = response.with("Content-Length", length.to_string());
        }
        Ok(match range {
            Some(range) => response.with("Content-Range", range),
            None => response,
        })
    }

    fn list_objects(&mut self, call: &Call, name: &str) -> ApiResult<Response> {
        let page_limit = self.knobs.page_limit;
        let objects = &self.bucket(name)?.objects;
        let prefix = call.parameter("prefix").unwrap_or_default();
        let wanted = call.parameter("max-keys").and_then(|text| text.parse().ok()).unwrap_or(1000_usize).min(1000);
        let limit = if page_limit == 0 { wanted } else { wanted.min(page_limit) };
        let after = ["continuation-token", "start-after", "marker"].iter().find_map(|name| call.parameter(name));
        let is_encoded = call.parameter("encoding-type") == Some("url");
        let encoded = |text: &str| {
            if is_encoded { percent_encoded(text.as_bytes(), b"/") } else { text.to_owned() }
        };
        let is_after = |key: &&String| after.is_none_or(|after| key.as_str() > after);
        let listed = objects.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let mut listed = listed.filter(|(key, _)| is_after(key));
        let page: Vec<_> = listed.by_ref().take(limit).collect();
        let is_truncated = listed.next().is_some();
        let mut xml = Xml::document();
        xml.open_with("ListBucketResult", NAMESPACE).text("Name", name).text("Prefix", &encoded(prefix));
        xml.value("KeyCount", page.len()).value("MaxKeys", wanted).value("IsTruncated", is_truncated);
        if is_encoded {
            xml.text("EncodingType", "url");
        }
        if let Some((key, _)) = page.last().filter(|_| is_truncated) {
            let is_new = call.parameter("list-type") == Some("2");
            xml.text(if is_new { "NextContinuationToken" } else { "NextMarker" }, key);
        }
        for (key, object) in page {
            xml.within("Contents", |xml| {
                xml.text("Key", &encoded(key)).text("LastModified", &object.modified).text("ETag", &object.etag);
                xml.value("Size", object.data.len()).text("StorageClass", "STANDARD")
            });
        }
        xml.close("ListBucketResult");
        Ok(Response::new(200, "application/xml", xml.finish()))
    }

    fn delete_objects(&mut self, call: &Call, bucket: &str) -> ApiResult<Response> {
        self.bucket(bucket)?;
        let body = String::from_utf8_lossy(&call.content().unwrap_or_default()).into_owned();
        let mut xml = Xml::document();
        xml.open_with("DeleteResult", NAMESPACE);
        for key in elements(&body, "Key") {
            if self.bucket(bucket)?.objects.remove(&key).is_some() {
                self.object_deleted(bucket, &key);
            }
            xml.within("Deleted", |xml| xml.text("Key", &key));
        }
        xml.close("DeleteResult");
        Ok(Response::new(200, "application/xml", xml.finish()))
    }

    fn get_tagging(&mut self, bucket: &str, key: &str) -> ApiResult<Response> {
        let object = self.object(bucket, key)?;
        let mut xml = Xml::document();
        xml.open_with("Tagging", NAMESPACE).open("TagSet");
        for (key, value) in &object.tags {
            xml.within("Tag", |xml| xml.text("Key", key).text("Value", value));
        }
        xml.close("TagSet").close("Tagging");
        Ok(Response::new(200, "application/xml", xml.finish()))
    }

    fn put_tagging(&mut self, call: &Call, bucket: &str, key: &str) -> ApiResult<Response> {
        let body = String::from_utf8_lossy(&call.content().unwrap_or_default()).into_owned();
        let tags: Tags = elements(&body, "Key").into_iter().zip(elements(&body, "Value")).collect();
        check_tags(&tags)?;
        self.object(bucket, key)?.tags = tags;
        Ok(Response::empty(200))
    }
}

/// The tags of the header `x-amz-tagging`.
pub fn header_tags(call: &Call) -> ApiResult<Tags> {
    let tags: Tags = form_urlencoded::parse(call.header("x-amz-tagging").as_bytes()).into_owned().collect();
    check_tags(&tags)?;
    Ok(tags)
}

fn check_tags(tags: &Tags) -> ApiResult<()> {
    match tags.len() <= MAX_TAGS {
        true => Ok(()),
        false => Err(ApiError::new("BadRequest", "Object tags cannot be greater than 10")),
    }
}

pub fn content_type(call: &Call) -> String {
    match call.header("content-type") {
        "" => "binary/octet-stream".to_owned(),
        content_type => content_type.to_owned(),
    }
}

/// First and last byte of a range: `0-99`, `100-`, `-10`.
fn requested_range(text: &str, size: usize) -> Option<(usize, usize)> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = match (first.parse::<usize>(), last.parse::<usize>()) {
        (Ok(first), Ok(last)) => (first, last.min(size.checked_sub(1)?)),
        (Ok(first), Err(_)) => (first, size.checked_sub(1)?),
        (Err(_), Ok(count)) => (size.saturating_sub(count), size.checked_sub(1)?),
        (Err(_), Err(_)) => return None,
    };
    (first <= last).then_some((first, last))
}

/// The texts of all elements with this name. Bodies of S3 have no element within these.
pub fn elements(xml: &str, name: &str) -> Vec<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let texts = xml.split(open.as_str()).skip(1).filter_map(|rest| rest.split(close.as_str()).next());
    let entities = [("&quot;", "\""), ("&lt;", "<"), ("&gt;", ">"), ("&apos;", "'"), ("&#34;", "\""), ("&amp;", "&")];
    let plain = |text: &str| entities.iter().fold(text.to_owned(), |text, (entity, sign)| text.replace(entity, sign));
    texts.map(plain).collect()
}
