//! The API requests of this driver as data, each with its statsd name, lane and deadline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use nodepool_driver::driver::ApiCall;
use nodepool_driver::state_machine::Lane;
use nodepool_model::records::time::Seconds;
use reqwest::header::HeaderMap;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::api_types::{
    AllocatedHosts, Console, Fleet, HostsPage, ImageTask, ImageTasksPage, ImagesPage, InstancesPage, QuotasPage,
    RegisteredImage, ReleasedHosts, Reservation, SnapshotTask, SnapshotTasksPage, SnapshotsPage, TemplatesPage,
    TypesPage, VolumesPage,
};
use super::errors::ApiError;
use super::form::Form;
use crate::common::object_store::{self, Begun, Content, FilePart, Listing, ObjectRequest, Tagging};

/// Objects of one page of a list.
const PAGE_SIZE: u32 = 1000;
const MAX_TYPES_PER_PAGE: u32 = 100;
/// Instances that one request terminates.
const MAX_BATCH: usize = 50;
const SHORT_DEADLINE: Seconds = Seconds(60.0);
const TRANSFER_DEADLINE: Seconds = Seconds(600.0);

/// A service of AWS, by its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Ec2,
    S3,
    Ebs,
    Quotas,
}

impl Service {
    /// In host names.
    pub fn name(self) -> &'static str {
        match self {
            Service::Ec2 => "ec2",
            Service::S3 => "s3",
            Service::Ebs => "ebs",
            Service::Quotas => "servicequotas",
        }
    }

    pub fn signing_name(self) -> &'static str {
        self.name()
    }

    /// In the settings of clients, as `AWS_ENDPOINT_URL_SERVICE_QUOTAS`.
    pub fn id(self) -> &'static str {
        match self {
            Service::Ec2 => "ec2",
            Service::S3 => "s3",
            Service::Ebs => "ebs",
            Service::Quotas => "service quotas",
        }
    }
}

#[derive(Clone, Debug)]
pub struct Call {
    key: &'static str,
    lane: Lane,
    deadline: Seconds,
    /// Delay before the request is sent.
    pub delay: Seconds,
    /// Whether it changes something.
    pub changes: bool,
    pub request: Request,
    /// Reads a successful response.
    pub read: Read,
}

type Read = fn(&HeaderMap, &[u8]) -> Result<Reply, String>;

#[derive(Clone, Debug)]
pub enum Request {
    Http(Box<HttpRequest>),
    /// Terminates instances; one that cannot be terminated does not hold up the others.
    Terminate(Vec<String>),
    /// Sends parts of an object, several at a time.
    SendParts {
        requests: Vec<(u32, HttpRequest)>,
    },
    /// Writes blocks of a snapshot, several at a time.
    SendBlocks {
        snapshot: String,
        blocks: Vec<(u32, FilePart)>,
    },
}

/// One HTTP request without its address.
#[derive(Clone, PartialEq)]
pub struct HttpRequest {
    pub service: Service,
    /// The bucket, if it is one of S3.
    pub bucket: Option<String>,
    pub method: Method,
    /// As it is sent: percent-encoded.
    pub path: String,
    pub query: Vec<(&'static str, String)>,
    pub headers: Vec<(&'static str, String)>,
    pub body: Body,
}

#[derive(Clone, PartialEq)]
pub enum Body {
    None,
    Text(String),
    Bytes(Bytes),
    File(FilePart),
}

/// Bodies may contain user data, and so secrets.
impl fmt::Debug for HttpRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.service.name(), self.method, self.path)
    }
}

/// The response to a call.
#[derive(Debug)]
pub enum Reply {
    Done,
    Instances(InstancesPage),
    Launched(Reservation),
    Fleet(Fleet),
    Terminated(Arc<Terminated>),
    Types(TypesPage),
    Images(ImagesPage),
    Volumes(VolumesPage),
    Snapshots(SnapshotsPage),
    Hosts(HostsPage),
    Allocated(AllocatedHosts),
    Released(ReleasedHosts),
    Templates(TemplatesPage),
    Registered(RegisteredImage),
    Console(Console),
    SnapshotTask(SnapshotTask),
    SnapshotTasks(SnapshotTasksPage),
    ImageTask(ImageTask),
    ImageTasks(ImageTasksPage),
    Quotas(QuotasPage),
    Begun(Begun),
    Listing(Listing),
    Tags(BTreeMap<String, String>),
    /// The parts or blocks that were sent, with their identification, and the first error of the others.
    Sent(BTreeMap<u32, String>, Option<String>),
    /// A response in JSON.
    Json(Value),
    /// The service refused the call.
    Refused(ApiError),
    /// A change that may have been made although there is no response.
    Lost(String),
}

/// Result of a termination of several instances.
#[derive(Debug, Default)]
pub struct Terminated {
    pub gone: BTreeSet<String>,
    pub refused: BTreeMap<String, ApiError>,
}

impl ApiCall for Call {
    const JOINS: bool = true;

    fn key(&self) -> &'static str {
        self.key
    }

    fn lane(&self) -> Lane {
        self.lane
    }

    fn is_mutating(&self) -> bool {
        self.changes
    }

    fn deadline(&self) -> Seconds {
        Seconds(self.deadline.0 + self.delay.0)
    }

    fn join(&mut self, other: &Self) -> bool {
        match (&mut self.request, &other.request) {
            (Request::Terminate(all), Request::Terminate(more)) if all.len() + more.len() <= MAX_BATCH => {
                all.extend(more.iter().cloned());
                true
            }
            _ => false,
        }
    }
}

impl Call {
    /// Name of the action, for messages.
    pub fn name(&self) -> &'static str {
        self.key.rsplit('.').next().unwrap_or(self.key)
    }

    /// The same call after a delay. One that waits for long does not count as in flight; others are spaced like new
    /// calls, so that a spell of errors brings no burst of repetitions.
    pub fn after(self, delay: Seconds) -> Self {
        Self { delay, lane: if delay > MAX_SPACED_DELAY { Lane::Bulk } else { self.lane }, ..self }
    }
}

fn xml<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    quick_xml::de::from_reader(body).map_err(|error| error.to_string())
}

fn from_json<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn done(_: &HeaderMap, _: &[u8]) -> Result<Reply, String> {
    Ok(Reply::Done)
}

fn ec2(key: &'static str, lane: Lane, form: Form, read: Read) -> Call {
    let request = HttpRequest {
        service: Service::Ec2,
        bucket: None,
        method: Method::POST,
        path: "/".to_owned(),
        query: Vec::new(),
        headers: vec![("content-type", "application/x-www-form-urlencoded; charset=utf-8".to_owned())],
        body: Body::Text(form.encoded()),
    };
    let changes = lane == Lane::Change;
    let request = Request::Http(Box::new(request));
    Call { key, lane, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, changes, request, read }
}

fn change(key: &'static str, form: Form, read: Read) -> Call {
    ec2(key, Lane::Change, form, read)
}

/// One page of a list.
fn page(key: &'static str, form: Form, size: u32, next: Option<&str>, read: Read) -> Call {
    let mut form = form.with("MaxResults", size);
    form.add_given("NextToken", next);
    ec2(key, Lane::Read, form, read)
}

pub fn run_instances(form: Form) -> Call {
    change("ec2.RunInstances", form, |_, body| xml(body).map(Reply::Launched))
}

pub fn create_fleet(form: Form) -> Call {
    change("ec2.CreateFleet", form, |_, body| xml(body).map(Reply::Fleet))
}

pub fn create_template(form: Form) -> Call {
    change("ec2.CreateLaunchTemplate", form, done)
}

pub fn templates(next: Option<&str>) -> Call {
    let form = Form::new("DescribeLaunchTemplates");
    page("ec2.DescribeLaunchTemplates", form, 200, next, |_, body| xml(body).map(Reply::Templates))
}

pub fn delete_template(name: &str) -> Call {
    change("ec2.DeleteLaunchTemplate", Form::new("DeleteLaunchTemplate").with("LaunchTemplateName", name), done)
}

pub fn instances(next: Option<&str>) -> Call {
    let form = Form::new("DescribeInstances");
    page("ec2.DescribeInstances", form, PAGE_SIZE, next, |_, body| xml(body).map(Reply::Instances))
}

pub fn terminate(id: &str) -> Call {
    Call { request: Request::Terminate(vec![id.to_owned()]), ..terminate_all(&[]) }
}

/// The request that terminates these instances, or none of them.
pub fn terminate_all(ids: &[String]) -> Call {
    change("ec2.TerminateInstances", Form::new("TerminateInstances").with_list("InstanceId", ids), done)
}

pub fn console(id: &str) -> Call {
    let form = Form::new("GetConsoleOutput").with("InstanceId", id);
    ec2("ec2.GetConsoleOutput", Lane::Read, form, |_, body| xml(body).map(Reply::Console))
}

pub fn instance_types<'a>(types: impl IntoIterator<Item = &'a str>, next: Option<&str>) -> Call {
    let mut form = Form::new("DescribeInstanceTypes").with_list("InstanceType", types);
    form.add_given("NextToken", next);
    ec2("ec2.DescribeInstanceTypes", Lane::Read, form, |_, body| xml(body).map(Reply::Types))
}

/// Most types that one call describes.
pub const TYPES_PER_CALL: usize = MAX_TYPES_PER_PAGE as usize;
/// A call with a longer delay takes no capacity of the queue while it waits.
const MAX_SPACED_DELAY: Seconds = Seconds(1.0);

fn images(form: Form) -> Call {
    ec2("ec2.DescribeImages", Lane::Read, form, |_, body| xml(body).map(Reply::Images))
}

pub fn image(id: &str) -> Call {
    images(Form::new("DescribeImages").with_list("ImageId", [id]))
}

/// The images of all owners that match these filters.
pub fn images_matching(filters: &[(String, Vec<String>)]) -> Call {
    let mut form = Form::new("DescribeImages");
    for (index, (name, values)) in filters.iter().enumerate() {
        form = form
            .with(&format!("Filter.{}.Name", index + 1), name)
            .with_list(&format!("Filter.{}.Value", index + 1), values);
    }
    images(form)
}

pub fn own_images(next: Option<&str>) -> Call {
    let form = Form::new("DescribeImages").with_list("Owner", ["self"]);
    page("ec2.DescribeImages", form, PAGE_SIZE, next, |_, body| xml(body).map(Reply::Images))
}

pub fn own_image_named(name: &str) -> Call {
    let form = Form::new("DescribeImages").with_list("Owner", ["self"]).with("Filter.1.Name", "name");
    images(form.with_list("Filter.1.Value", [name]))
}

pub fn register_image(form: Form) -> Call {
    change("ec2.RegisterImage", form, |_, body| xml(body).map(Reply::Registered))
}

pub fn deregister_image(id: &str) -> Call {
    change("ec2.DeregisterImage", Form::new("DeregisterImage").with("ImageId", id), done)
}

pub fn volumes(next: Option<&str>) -> Call {
    let form = Form::new("DescribeVolumes");
    page("ec2.DescribeVolumes", form, PAGE_SIZE, next, |_, body| xml(body).map(Reply::Volumes))
}

pub fn delete_volume(id: &str) -> Call {
    change("ec2.DeleteVolume", Form::new("DeleteVolume").with("VolumeId", id), done)
}

pub fn own_snapshots(next: Option<&str>) -> Call {
    let form = Form::new("DescribeSnapshots").with_list("Owner", ["self"]);
    page("ec2.DescribeSnapshots", form, PAGE_SIZE, next, |_, body| xml(body).map(Reply::Snapshots))
}

pub fn snapshot(id: &str) -> Call {
    let form = Form::new("DescribeSnapshots").with_list("SnapshotId", [id]);
    ec2("ec2.DescribeSnapshots", Lane::Read, form, |_, body| xml(body).map(Reply::Snapshots))
}

pub fn delete_snapshot(id: &str) -> Call {
    change("ec2.DeleteSnapshot", Form::new("DeleteSnapshot").with("SnapshotId", id), done)
}

pub fn create_tags<'a>(ids: impl IntoIterator<Item = &'a str>, tags: &BTreeMap<String, String>) -> Call {
    let mut form = Form::new("CreateTags").with_list("ResourceId", ids);
    for (index, (key, value)) in tags.iter().enumerate() {
        form.add(&format!("Tag.{}.Key", index + 1), key);
        form.add(&format!("Tag.{}.Value", index + 1), value);
    }
    change("ec2.CreateTags", form, done)
}

pub fn allocate_hosts(form: Form) -> Call {
    change("ec2.AllocateHosts", form, |_, body| xml(body).map(Reply::Allocated))
}

pub fn hosts(next: Option<&str>) -> Call {
    let form = Form::new("DescribeHosts");
    page("ec2.DescribeHosts", form, 500, next, |_, body| xml(body).map(Reply::Hosts))
}

pub fn host(id: &str) -> Call {
    let form = Form::new("DescribeHosts").with_list("HostId", [id]);
    ec2("ec2.DescribeHosts", Lane::Read, form, |_, body| xml(body).map(Reply::Hosts))
}

pub fn release_host(id: &str) -> Call {
    let form = Form::new("ReleaseHosts").with_list("HostId", [id]);
    change("ec2.ReleaseHosts", form, |_, body| xml(body).map(Reply::Released))
}

pub fn import_snapshot(form: Form) -> Call {
    change("ec2.ImportSnapshot", form, |_, body| xml(body).map(Reply::SnapshotTask))
}

pub fn snapshot_task(id: &str) -> Call {
    let form = Form::new("DescribeImportSnapshotTasks").with_list("ImportTaskId", [id]);
    ec2("ec2.DescribeImportSnapshotTasks", Lane::Read, form, |_, body| xml(body).map(Reply::SnapshotTasks))
}

pub fn snapshot_tasks(next: Option<&str>) -> Call {
    let form = Form::new("DescribeImportSnapshotTasks");
    page("ec2.DescribeImportSnapshotTasks", form, PAGE_SIZE, next, |_, body| xml(body).map(Reply::SnapshotTasks))
}

pub fn import_image(form: Form) -> Call {
    change("ec2.ImportImage", form, |_, body| xml(body).map(Reply::ImageTask))
}

pub fn image_task(id: &str) -> Call {
    let form = Form::new("DescribeImportImageTasks").with_list("ImportTaskId", [id]);
    ec2("ec2.DescribeImportImageTasks", Lane::Read, form, |_, body| xml(body).map(Reply::ImageTasks))
}

pub fn image_tasks(next: Option<&str>) -> Call {
    let form = Form::new("DescribeImportImageTasks");
    page("ec2.DescribeImportImageTasks", form, PAGE_SIZE, next, |_, body| xml(body).map(Reply::ImageTasks))
}

/// The account's limits for a service of AWS, or AWS's defaults for them.
pub fn quotas(service: &str, are_defaults: bool, next: Option<&str>) -> Call {
    let (key, target) = match are_defaults {
        true => ("servicequotas.ListAWSDefaultServiceQuotas", "ServiceQuotasV20190624.ListAWSDefaultServiceQuotas"),
        false => ("servicequotas.ListServiceQuotas", "ServiceQuotasV20190624.ListServiceQuotas"),
    };
    let mut body = json!({"ServiceCode": service, "MaxResults": 100});
    if let Some(next) = next {
        body["NextToken"] = next.into();
    }
    let headers = [("content-type", "application/x-amz-json-1.1"), ("x-amz-target", target)];
    let request = HttpRequest {
        service: Service::Quotas,
        bucket: None,
        method: Method::POST,
        path: "/".to_owned(),
        query: Vec::new(),
        headers: headers.map(|(name, value)| (name, value.to_owned())).into(),
        body: Body::Text(body.to_string()),
    };
    let request = Request::Http(Box::new(request));
    let read: Read = |_, body| from_json(body).map(Reply::Quotas);
    Call { key, lane: Lane::Read, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, changes: false, request, read }
}

fn ebs(method: Method, path: String, headers: Vec<(&'static str, String)>, body: Body) -> HttpRequest {
    HttpRequest { service: Service::Ebs, bucket: None, method, path, query: Vec::new(), headers, body }
}

fn ebs_call(key: &'static str, request: HttpRequest) -> Call {
    let request = Request::Http(Box::new(request));
    let read: Read = |_, body| from_json(body).map(Reply::Json);
    Call { key, lane: Lane::Change, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, changes: true, request, read }
}

pub fn start_snapshot(body: &Value) -> Call {
    let headers = vec![("content-type", "application/json".to_owned())];
    ebs_call("ebs.StartSnapshot", ebs(Method::POST, "/snapshots".to_owned(), headers, Body::Text(body.to_string())))
}

/// Completes a snapshot of this many written blocks; the response has its status.
pub fn complete_snapshot(id: &str, blocks: usize) -> Call {
    let headers = vec![("x-amz-changedblockscount", blocks.to_string())];
    ebs_call("ebs.CompleteSnapshot", ebs(Method::POST, format!("/snapshots/completion/{id}"), headers, Body::None))
}

/// One block of a snapshot with its checksum.
pub fn block(snapshot: &str, index: u32, content: Bytes, checksum: &str) -> HttpRequest {
    let headers = vec![
        ("content-type", "application/octet-stream".to_owned()),
        ("x-amz-data-length", content.len().to_string()),
        ("x-amz-checksum", checksum.to_owned()),
        ("x-amz-checksum-algorithm", "SHA256".to_owned()),
    ];
    ebs(Method::PUT, format!("/snapshots/{snapshot}/blocks/{index}"), headers, Body::Bytes(content))
}

fn transfer(key: &'static str, request: Request) -> Call {
    Call {
        key,
        lane: Lane::Bulk,
        deadline: TRANSFER_DEADLINE,
        delay: Seconds::ZERO,
        changes: true,
        request,
        read: done,
    }
}

pub fn send_blocks(snapshot: &str, blocks: Vec<(u32, FilePart)>) -> Call {
    transfer("ebs.PutSnapshotBlock", Request::SendBlocks { snapshot: snapshot.to_owned(), blocks })
}

fn object(bucket: &str, request: ObjectRequest) -> HttpRequest {
    let key: Vec<String> = request.key.split('/').map(encoded).collect();
    HttpRequest {
        service: Service::S3,
        bucket: Some(bucket.to_owned()),
        method: request.method,
        path: format!("/{}", key.join("/")),
        query: request.query,
        headers: request.headers,
        body: match request.content {
            Content::None => Body::None,
            Content::Text(text) => Body::Text(text),
            Content::File(part) => Body::File(part),
        },
    }
}

/// A part of a path as S3 signs it.
fn encoded(part: &str) -> String {
    form_urlencoded::byte_serialize(part.as_bytes()).collect::<String>().replace('+', "%20").replace('*', "%2A")
}

fn object_call(key: &'static str, lane: Lane, bucket: &str, request: ObjectRequest, read: Read) -> Call {
    let changes = lane == Lane::Change;
    let request = Request::Http(Box::new(object(bucket, request)));
    Call { key, lane, deadline: SHORT_DEADLINE, delay: Seconds::ZERO, changes, request, read }
}

pub fn begin_object(bucket: &str, key: &str, tags: &BTreeMap<String, String>) -> Call {
    let request = object_store::begin(key, tags);
    object_call("s3.CreateMultipartUpload", Lane::Change, bucket, request, |_, body| xml(body).map(Reply::Begun))
}

pub fn send_parts(bucket: &str, key: &str, upload: &str, parts: Vec<(u32, FilePart)>) -> Call {
    let request = |(number, part)| (number, object(bucket, object_store::part(key, upload, number, part)));
    transfer("s3.UploadPart", Request::SendParts { requests: parts.into_iter().map(request).collect() })
}

pub fn complete_object(bucket: &str, key: &str, upload: &str, etags: &BTreeMap<u32, String>) -> Call {
    let request = object_store::complete(key, upload, etags);
    let call = object_call("s3.CompleteMultipartUpload", Lane::Change, bucket, request, done);
    Call { deadline: TRANSFER_DEADLINE, ..call }
}

pub fn abort_object(bucket: &str, key: &str, upload: &str) -> Call {
    object_call("s3.AbortMultipartUpload", Lane::Change, bucket, object_store::abort(key, upload), done)
}

pub fn delete_object(bucket: &str, key: &str) -> Call {
    object_call("s3.DeleteObject", Lane::Change, bucket, object_store::delete(key), done)
}

pub fn objects(bucket: &str, next: Option<&str>) -> Call {
    let request = object_store::list(next);
    object_call("s3.ListObjectsV2", Lane::Read, bucket, request, |_, body| xml(body).map(Reply::Listing))
}

pub fn object_tags(bucket: &str, key: &str) -> Call {
    let request = object_store::tags(key);
    object_call("s3.GetObjectTagging", Lane::Read, bucket, request, |_, body| {
        xml::<Tagging>(body).map(|tagging| Reply::Tags(tagging.tags()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminations_join_and_nothing_else_does() {
        let mut call = terminate("i-0");
        for number in 1..MAX_BATCH {
            assert!(call.join(&terminate(&format!("i-{number}"))));
        }
        assert!(!call.join(&terminate("i-51")), "a request has a limit");
        assert!(!call.join(&delete_volume("vol-1")) && !delete_volume("vol-1").join(&delete_volume("vol-2")));
    }

    #[test]
    fn reads_are_reads_and_user_data_is_not_shown() {
        assert!(instances(None).lane() == Lane::Read && !instances(None).is_mutating());
        assert!(release_host("h-1").is_mutating() && delete_object("b", "k").is_mutating());
        let call = run_instances(Form::new("RunInstances").with("UserData", "hunter2"));
        assert!(!format!("{call:?}").contains("hunter2"));
    }

    #[test]
    fn keys_of_objects_are_encoded() {
        assert_eq!(object("b", object_store::delete("a b/ü+1.raw")).path, "/a%20b/%C3%BC%2B1.raw");
    }
}
