//! One parsed call: its service, its action, its region and its parameters.

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::http::request::Parts;

use crate::server::encoding::{percent_decoded, unchunked};
use crate::server::form::Form;
use crate::server::signature::Signature;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Ec2,
    S3,
    Ebs,
    Quotas,
    Sts,
    /// Credentials of an instance or a container.
    Metadata,
    /// `/sim`.
    Control,
}

impl Service {
    pub fn name(self) -> &'static str {
        match self {
            Self::Ec2 => "ec2",
            Self::S3 => "s3",
            Self::Ebs => "ebs",
            Self::Quotas => "servicequotas",
            Self::Sts => "sts",
            Self::Metadata => "metadata",
            Self::Control => "control",
        }
    }
}

/// A received request.
pub struct Call {
    pub method: String,
    /// The path as it was sent, percent-encoded.
    pub path: String,
    pub raw_query: String,
    pub query: Vec<(String, String)>,
    pub headers: HeaderMap,
    /// The body as it was sent.
    pub body: Bytes,
    pub service: Service,
    pub action: String,
    pub region: String,
    pub signature: Option<Signature>,
    /// The parameters of EC2 and STS.
    pub form: Form,
}

impl Call {
    pub fn new(parts: Parts, body: Bytes, region: &str) -> Self {
        let raw_query = parts.uri.query().unwrap_or_default().to_owned();
        let query: Vec<_> = form_urlencoded::parse(raw_query.as_bytes()).into_owned().collect();
        let signature = Signature::of(&parts.headers, &query);
        let region = signature.as_ref().map_or(region, |signature| &signature.region).to_owned();
        let method = parts.method.as_str().to_owned();
        let path = parts.uri.path().to_owned();
        let (service, action, form) = (Service::Control, String::new(), Form::default());
        let headers = parts.headers;
        let mut call = Self { method, path, raw_query, query, headers, body, service, action, region, signature, form };
        call.classify();
        call
    }

    /// Finds service and action, as the endpoints of AWS would.
    fn classify(&mut self) {
        let scope = self.signature.as_ref().map(|signature| signature.service.clone()).unwrap_or_default();
        let first = self.parts().first().map(ToString::to_string).unwrap_or_default();
        let target = self.header("x-amz-target").to_owned();
        let is_form = self.header("content-type").starts_with("application/x-www-form-urlencoded");
        (self.service, self.action) = if first == "sim" {
            (Service::Control, String::new())
        } else if scope.is_empty() && matches!(first.as_str(), "latest" | "creds") {
            (Service::Metadata, format!("{} {}", self.method, self.path))
        } else if let Some((_, action)) = target.rsplit_once('.') {
            (Service::Quotas, action.to_owned())
        } else if is_form && self.path == "/" || self.parameter("Action").is_some() {
            self.form = if self.body.is_empty() { Form(self.query.iter().cloned().collect()) } else { self.parsed() };
            let is_sts = self.form.get("Version") == Some("2011-06-15");
            let action = self.form.get("Action").unwrap_or_default().to_owned();
            (if is_sts { Service::Sts } else { Service::Ec2 }, action)
        } else if scope == "ebs" || scope.is_empty() && first == "snapshots" {
            (Service::Ebs, self.ebs_action().to_owned())
        } else {
            (Service::S3, self.s3_action().to_owned())
        };
    }

    fn parsed(&self) -> Form {
        Form::parse(&self.body)
    }

    fn ebs_action(&self) -> &'static str {
        match (self.method.as_str(), &self.parts()[..]) {
            ("POST", ["snapshots"]) => "StartSnapshot",
            ("POST", ["snapshots", "completion", _]) => "CompleteSnapshot",
            ("PUT", ["snapshots", _, "blocks", _]) => "PutSnapshotBlock",
            ("GET", ["snapshots", _, "blocks", _]) => "GetSnapshotBlock",
            ("GET", ["snapshots", _, "blocks"]) => "ListSnapshotBlocks",
            _ => "",
        }
    }

    fn s3_action(&self) -> &'static str {
        let has = |name: &str| self.query.iter().any(|(key, _)| key == name);
        let (bucket, key) = self.bucket_and_key();
        match (self.method.as_str(), !bucket.is_empty(), !key.is_empty()) {
            ("GET", false, _) => "ListBuckets",
            ("GET", _, false) if has("location") => "GetBucketLocation",
            ("GET", _, false) if has("list-type") => "ListObjectsV2",
            ("GET", _, false) => "ListObjects",
            ("PUT", true, false) => "CreateBucket",
            ("HEAD", true, false) => "HeadBucket",
            ("DELETE", true, false) => "DeleteBucket",
            ("POST", true, false) if has("delete") => "DeleteObjects",
            ("GET", _, true) if has("tagging") => "GetObjectTagging",
            ("PUT", _, true) if has("tagging") => "PutObjectTagging",
            ("GET", _, true) => "GetObject",
            ("HEAD", _, true) => "HeadObject",
            ("PUT", _, true) if has("uploadId") => "UploadPart",
            ("PUT", _, true) => "PutObject",
            ("POST", _, true) if has("uploads") => "CreateMultipartUpload",
            ("POST", _, true) if has("uploadId") => "CompleteMultipartUpload",
            ("DELETE", _, true) if has("uploadId") => "AbortMultipartUpload",
            ("DELETE", _, true) => "DeleteObject",
            _ => "",
        }
    }

    /// The bucket of the path, and the key, decoded.
    pub fn bucket_and_key(&self) -> (String, String) {
        let path = String::from_utf8_lossy(&percent_decoded(&self.path)).into_owned();
        let path = path.strip_prefix('/').unwrap_or(&path);
        let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
        (bucket.to_owned(), key.to_owned())
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
    }

    /// A parameter of the query.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        let found = self.query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        found.filter(|value| !value.is_empty())
    }

    /// The parts of the path, without empty ones.
    pub fn parts(&self) -> Vec<&str> {
        self.path.split('/').filter(|part| !part.is_empty()).collect()
    }

    /// The body without the encoding `aws-chunked`; `None` if that is malformed.
    pub fn content(&self) -> Option<Bytes> {
        let is_chunked = self.header("content-encoding").split(',').any(|encoding| encoding.trim() == "aws-chunked")
            || self.header("x-amz-content-sha256").starts_with("STREAMING-");
        if is_chunked { unchunked(&self.body) } else { Some(self.body.clone()) }
    }
}
