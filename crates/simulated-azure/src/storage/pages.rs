//! Calls to the SAS URL of a disk: writes of pages, and the size of the blob.

use chrono::SecondsFormat;

use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{Access, Disk};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};

/// Maximum size of one write.
const MAX_PAGES: u64 = 4 << 20;

impl Cloud {
    pub fn pages(&mut self, call: &Call, account: &str, container: &str) -> ApiResult<Response> {
        let disk_key = self.check_sas(call, account, container)?;
        let disk = self.disks.get(&disk_key).expect("an access belongs to a disk");
        match (call.method.as_str(), call.parameter("comp")) {
            ("HEAD", None) => Ok(self.blob_response(200, disk)),
            ("PUT", Some("page")) => {
                write_pages(call, disk)?;
                let response = self.blob_response(201, disk);
                self.stats.pages_written += 1;
                Ok(response)
            }
            _ => {
                let text = "This request is not authorized to perform this operation using this permission.";
                Err(ApiError { status: 403, ..ApiError::new("AuthorizationPermissionMismatch", text) })
            }
        }
    }

    /// The key of the disk that a valid signature grants access to.
    fn check_sas(&self, call: &Call, account: &str, container: &str) -> ApiResult<String> {
        let text = "Server failed to authenticate the request. Make sure the value of Authorization header is formed \
                    correctly including the signature.";
        let refused = || ApiError { status: 403, ..ApiError::new("AuthenticationFailed", text) };
        let disk_key = self.containers.get(&format!("{account}/{container}")).ok_or_else(refused)?;
        let upload = self.disks.get(disk_key).and_then(|disk| disk.upload.as_ref());
        let access = upload.and_then(|upload| upload.access.as_ref()).ok_or_else(refused)?;
        let Access { signature, expires, may_write, .. } = access;
        if call.parameter("sig") != Some(signature) || *expires <= self.now || !may_write {
            return Err(refused());
        }
        Ok(disk_key.clone())
    }

    fn blob_response(&self, status: u16, disk: &Disk) -> Response {
        let now = (self.started + self.now).format("%a, %d %b %Y %H:%M:%S GMT").to_string();
        let upload = disk.upload.as_ref().expect("an access belongs to an upload");
        let etag = (self.started + self.now).to_rfc3339_opts(SecondsFormat::Micros, true);
        let mut response = Response::empty(status)
            .with("ETag", format!("\"{etag}\""))
            .with("Last-Modified", now.clone())
            .with("x-ms-blob-sequence-number", "0")
            .with("x-ms-request-id", disk.meta.guid.clone())
            .with("x-ms-version", "2018-03-28")
            .with("x-ms-date", now);
        if status == 200 {
            let size = upload.blob.borrow().size.to_string();
            response = response.with("Content-Length", size.clone()).with("x-ms-blob-content-length", size);
            response = response.with("x-ms-blob-type", "PageBlob");
        }
        response
    }
}

fn write_pages(call: &Call, disk: &Disk) -> ApiResult<()> {
    let upload = disk.upload.as_ref().expect("an access belongs to an upload");
    let mut blob = upload.blob.borrow_mut();
    let range = [call.header("x-ms-range"), call.header("range")].into_iter().find(|range| !range.is_empty());
    let range = range.ok_or_else(|| {
        ApiError::new("MissingRequiredHeader", "An HTTP header that's mandatory for this request is not specified.")
    })?;
    let invalid =
        || ApiError { status: 416, ..ApiError::new("InvalidPageRange", "The page range specified is invalid.") };
    let (start, end) = range.strip_prefix("bytes=").and_then(|range| range.split_once('-')).ok_or_else(invalid)?;
    let (start, last): (u64, u64) = (start.parse().map_err(|_| invalid())?, end.parse().map_err(|_| invalid())?);
    let end = last.checked_add(1).ok_or_else(invalid)?;
    if start >= end || !start.is_multiple_of(512) || !end.is_multiple_of(512) || end > blob.size {
        return Err(invalid());
    }
    match call.header("x-ms-page-write").to_ascii_lowercase().as_str() {
        "update" if end - start > MAX_PAGES => {
            let text = "The request body is too large and exceeds the maximum permissible limit.";
            Err(ApiError { status: 413, ..ApiError::new("RequestBodyTooLarge", text) })
        }
        "update" if call.body.len() as u64 != end - start => {
            let text = "The value for one of the HTTP headers is not in the correct format.";
            Err(ApiError::new("InvalidHeaderValue", text))
        }
        "update" => blob.write(start, &call.body),
        // Pages are cleared in parts, so that a large range needs no memory of its size.
        "clear" => {
            let zeros = vec![0; MAX_PAGES as usize];
            let mut at = start;
            while at < end {
                let size = (end - at).min(MAX_PAGES);
                blob.write(at, &zeros[..size as usize])?;
                at += size;
            }
            Ok(())
        }
        _ => Err(ApiError::new("InvalidHeaderValue", "The value of the header x-ms-page-write is invalid.")),
    }
}
