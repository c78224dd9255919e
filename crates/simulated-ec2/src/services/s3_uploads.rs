//! Uploads to S3 in parts.

use std::collections::BTreeMap;

use bytes::BytesMut;

use crate::api::xml::Xml;
use crate::region::world::World;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::services::bucket::{Object, Upload};
use crate::services::s3::{content_type, elements, header_tags};

/// Minimum size of all parts but the last.
const MIN_PART: usize = 5 << 20;

impl World {
    pub fn create_upload(&mut self, call: &Call, bucket: &str, key: String) -> ApiResult<Response> {
        let (tags, content_type) = (header_tags(call)?, content_type(call));
        let id = self.new_id("upload");
        let uploads = &mut self.bucket(bucket)?.uploads;
        let mut xml = Xml::document();
        xml.within("InitiateMultipartUploadResult", |xml| {
            xml.text("Bucket", bucket).text("Key", &key).text("UploadId", &id)
        });
        uploads.insert(id, Upload { key, tags, content_type, parts: BTreeMap::new() });
        Ok(Response::new(200, "application/xml", xml.finish()))
    }

    pub fn upload_part(&mut self, call: &Call, bucket: &str) -> ApiResult<Response> {
        let data = call.content().ok_or_else(|| ApiError::new("IncompleteBody", "The chunks are malformed"))?;
        let number = call.parameter("partNumber").and_then(|text| text.parse().ok());
        let number = number.filter(|number| (1..=10_000).contains(number));
        let invalid = || ApiError::new("InvalidArgument", "Part number must be an integer between 1 and 10000");
        let number: u32 = number.ok_or_else(invalid)?;
        let etag = format!("\"{:x}\"", md5::compute(&data));
        self.upload(call, bucket)?.parts.insert(number, (data, etag.clone()));
        Ok(Response::empty(200).with("ETag", etag))
    }

    fn upload(&mut self, call: &Call, bucket: &str) -> ApiResult<&mut Upload> {
        let id = call.parameter("uploadId").unwrap_or_default();
        self.bucket(bucket)?.uploads.get_mut(id).ok_or_else(no_such_upload)
    }

    pub fn complete_upload(&mut self, call: &Call, bucket: &str) -> ApiResult<Response> {
        let body = String::from_utf8_lossy(&call.body).into_owned();
        let upload = self.upload(call, bucket)?;
        let numbers = elements(&body, "PartNumber");
        let etags = elements(&body, "ETag");
        if numbers.is_empty() || numbers.len() != etags.len() {
            return Err(ApiError::new("MalformedXML", "The XML you provided was not well-formed"));
        }
        let mut data = BytesMut::new();
        let mut digests = Vec::new();
        for (index, (number, etag)) in numbers.iter().zip(&etags).enumerate() {
            let part = number.parse().ok().and_then(|number: u32| upload.parts.get(&number));
            let invalid = || ApiError::new("InvalidPart", format!("The part {number} could not be found"));
            let (part, known) = part.ok_or_else(invalid)?;
            if known.trim_matches('"') != etag.trim_matches('"') {
                return Err(invalid());
            }
            if part.len() < MIN_PART && index + 1 < numbers.len() {
                let text = "Your proposed upload is smaller than the minimum allowed size";
                return Err(ApiError::new("EntityTooSmall", text));
            }
            data.extend_from_slice(part);
            digests.extend_from_slice(&md5::compute(part).0);
        }
        let etag = format!("\"{:x}-{}\"", md5::compute(digests), numbers.len());
        let (key, tags, content_type) = (upload.key.clone(), upload.tags.clone(), upload.content_type.clone());
        let id = call.parameter("uploadId").unwrap_or_default();
        self.bucket(bucket)?.uploads.remove(id);
        let modified = String::new();
        let object = Object { data: data.freeze(), tags, etag: etag.clone(), content_type, modified };
        self.store(bucket, &key, object)?;
        let mut xml = Xml::document();
        xml.within("CompleteMultipartUploadResult", |xml| {
            xml.text("Location", &format!("/{bucket}/{key}")).text("Bucket", bucket).text("Key", &key);
            xml.text("ETag", &etag)
        });
        Ok(Response::new(200, "application/xml", xml.finish()))
    }

    pub fn abort_upload(&mut self, call: &Call, bucket: &str) -> ApiResult<Response> {
        let id = call.parameter("uploadId").unwrap_or_default();
        self.bucket(bucket)?.uploads.remove(id).ok_or_else(no_such_upload)?;
        Ok(Response::empty(204))
    }
}

fn no_such_upload() -> ApiError {
    ApiError::new("NoSuchUpload", "The specified upload does not exist. The upload ID may be invalid.")
}
