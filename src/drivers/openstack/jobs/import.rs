//! Brings an image to a cloud that wants tasks for that (`image_api_use_tasks`): its content goes to the object store, and a task of
//! Glance makes an image of it.
//!
//! As openstacksdk does it: container `images`, an object of the image's name that expires after a day, properties afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::image_stream::Content;
use super::upload;
use crate::openstack::calls::{self, Call, Reply};
use crate::openstack::errors::failed;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

const CONTAINER: &str = "images";
/// Object stores take five gigabytes in one piece.
const SEGMENT_SIZE: u64 = 4 << 30;
/// Between looks at a task, growing.
const MIN_POLL_INTERVAL_S: f64 = 1.0;
const MAX_POLL_INTERVAL_S: f64 = 15.0;

pub struct ImportImage {
    order: Arc<UploadOrder>,
    /// For the task.
    timeout: Seconds,
    /// What all images of this cloud bear.
    cloud_properties: BTreeMap<String, String>,
    segment_size: u64,
    id: Option<ExternalId>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// For what an earlier attempt has left.
    Searching,
    Removing(Vec<String>),
    Container,
    /// With the number of the segment.
    Sending(u64),
    Manifest,
    Asking,
    /// For a task, for so long already.
    Waiting(String, f64),
    Describing,
    /// The object, which nobody needs any more.
    Tidying,
    Looking,
    /// The object goes first.
    Failing(CloudError),
    Over,
}

impl ImportImage {
    pub fn new(order: Arc<UploadOrder>, timeout: Seconds, cloud_properties: BTreeMap<String, String>) -> Self {
        Self { order, timeout, cloud_properties, segment_size: SEGMENT_SIZE, id: None, step: Step::Begin }
    }

    pub fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    pub fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::Searching => "looking for the image",
            Step::Removing(_) => "removing what an earlier attempt left",
            Step::Container | Step::Sending(_) | Step::Manifest => "sending to the object store",
            Step::Asking | Step::Waiting(..) => "waiting for the import",
            Step::Describing | Step::Tidying | Step::Looking => "describing the image",
            Step::Failing(_) => "removing the object",
            Step::Over => "ended",
        }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Over), input) {
            (Step::Begin, Input::Start) if self.order.may_exist => {
                self.call(Step::Searching, calls::images_with(&self.order.marks, Seconds::ZERO))
            }
            (Step::Begin, Input::Start) => self.call(Step::Container, calls::put_container(CONTAINER)),
            // Its size and sum may be others than those of the file, so none is taken as it is.
            (Step::Searching, Input::Reply(Ok(Reply::Json(answer)))) => {
                let images = answer.get("images").and_then(Value::as_array).cloned().unwrap_or_default();
                let ours = images.iter().filter_map(upload::stored).filter(|image| image.bears(&self.order.marks));
                self.remove(ours.map(|image| image.id.to_string()).collect())
            }
            (Step::Removing(left), Input::Reply(Ok(_) | Err(CloudError::NotFound))) => self.remove(left),
            (Step::Container, Input::Reply(Ok(_))) => self.send(0),
            (Step::Sending(number), Input::Reply(Ok(_))) => self.sent(number),
            (Step::Manifest, Input::Reply(Ok(_))) => self.ask(),
            (Step::Asking, Input::Reply(Ok(Reply::Json(task)))) => match task.get("id").and_then(Value::as_str) {
                Some(id) => self.wait(id.to_owned(), 0.0),
                None => Next::Failed(failed("the answer to a new task has no id".to_owned())),
            },
            (Step::Asking, Input::Reply(Ok(Reply::Lost(error)) | Err(error))) => self.fail(error),
            (Step::Waiting(task, waited), Input::Reply(Ok(Reply::Json(answer)))) => self.looked(task, waited, &answer),
            // One look that fails says nothing about the import.
            (Step::Waiting(task, waited), Input::Reply(Err(error))) if waited < self.timeout.0 => match error {
                CloudError::Failed { .. } | CloudError::Deadline => self.wait(task, waited),
                error => self.fail(error),
            },
            (Step::Failing(error), Input::Reply(_)) => Next::Failed(error),
            (Step::Describing, Input::Reply(Ok(_))) => {
                let call = self.removal();
                self.call(Step::Tidying, call)
            }
            // It expires by itself.
            (Step::Tidying, Input::Reply(_)) => match &self.id {
                Some(ExternalId::Text(id)) => {
                    let call = calls::image(id);
                    self.call(Step::Looking, call)
                }
                _ => Next::Failed(failed("the image has no id".to_owned())),
            },
            (Step::Looking, Input::Reply(Ok(Reply::Json(image)))) => self.arrived(&image),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("{input:?} does not answer {step:?}"))),
        }
    }

    fn remove(&mut self, mut left: Vec<String>) -> Next<Call> {
        match left.pop() {
            Some(id) => self.call(Step::Removing(left), calls::delete_image(&id)),
            None => self.call(Step::Container, calls::put_container(CONTAINER)),
        }
    }

    fn segments(&self) -> u64 {
        self.order.size.div_ceil(self.segment_size).max(1)
    }

    fn object(&self, segment: u64) -> String {
        match self.segments() {
            1 => self.order.name.clone(),
            _ => format!("{}/{segment:06}", self.order.name),
        }
    }

    fn send(&mut self, number: u64) -> Next<Call> {
        let order = &self.order;
        let from = number * self.segment_size;
        let content = Content {
            file: order.file.clone(),
            from,
            size: (order.size - from).min(self.segment_size),
            progress: order.progress.clone(),
        };
        let sums = [("x-object-meta-x-sdk-md5", &order.md5), ("x-object-meta-x-sdk-sha256", &order.sha256)];
        let sums = sums.into_iter().filter_map(|(name, sum)| Some((name, sum.clone()?))).collect();
        let call = calls::put_object(CONTAINER, &self.object(number), content, sums);
        self.call(Step::Sending(number), call)
    }

    fn sent(&mut self, number: u64) -> Next<Call> {
        if number + 1 < self.segments() {
            return self.send(number + 1);
        }
        if self.segments() == 1 {
            return self.ask();
        }
        let size = |number: u64| (self.order.size - number * self.segment_size).min(self.segment_size);
        let entry =
            |number: u64| json!({"path": format!("{CONTAINER}/{}", self.object(number)), "size_bytes": size(number)});
        let manifest = (0..self.segments()).map(entry).collect();
        let call = calls::put_manifest(CONTAINER, &self.order.name, manifest);
        self.call(Step::Manifest, call)
    }

    fn ask(&mut self) -> Next<Call> {
        let name = &self.order.name;
        // The marks from the beginning: should nobody hear of the end, the image is found by them.
        let mut properties = json!({"name": name});
        self.order.marks.iter().for_each(|(mark, value)| properties[mark] = value.as_str().into());
        let from = format!("{CONTAINER}/{name}");
        let task = json!({"type": "import", "input": {"import_from": from, "image_properties": properties}});
        self.call(Step::Asking, calls::create_task(task))
    }

    fn wait(&mut self, task: String, waited: f64) -> Next<Call> {
        let delay = (waited / 2.0).clamp(MIN_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S);
        let call = calls::task_after(&task, Seconds(delay));
        self.call(Step::Waiting(task, waited + delay), call)
    }

    fn looked(&mut self, task: String, waited: f64, answer: &Value) -> Next<Call> {
        let limit = self.timeout.0;
        match answer.get("status").and_then(Value::as_str).unwrap_or_default() {
            "success" => match answer.pointer("/result/image_id").and_then(Value::as_str) {
                Some(id) => {
                    self.id = Some(ExternalId::text(id));
                    let call = calls::describe_image(id, self.properties());
                    self.call(Step::Describing, call)
                }
                None => Next::Failed(failed("the import has succeeded without an image".to_owned())),
            },
            "pending" | "processing" if waited < limit => self.wait(task, waited),
            "pending" | "processing" => {
                self.fail(failed(format!("the import has not ended after image-upload-timeout, {limit} s")))
            }
            _ => {
                let why = answer.get("message").and_then(Value::as_str).unwrap_or("no reason is given");
                self.fail(failed(format!("the import has failed: {why}")))
            }
        }
    }

    fn removal(&self) -> Call {
        calls::delete_object(CONTAINER, &self.order.name, self.segments() > 1)
    }

    fn fail(&mut self, error: CloudError) -> Next<Call> {
        let call = self.removal();
        self.call(Step::Failing(error), call)
    }

    /// As changes of a document, which is how Glance takes them.
    fn properties(&self) -> Value {
        let record = upload::record(&self.order, &self.cloud_properties);
        let settled = ["name", "disk_format", "container_format", "visibility"];
        let changes = record.iter().filter(|(key, _)| !settled.contains(&key.as_str()));
        let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
        changes.map(|(key, value)| json!({"op": "add", "path": format!("/{}", escaped(key)), "value": value})).collect()
    }

    fn arrived(&self, image: &Value) -> Next<Call> {
        match (image.get("status").and_then(Value::as_str), &self.id) {
            (Some("active"), Some(id)) => Next::Done(Outcome::Uploaded(id.clone())),
            (status, _) => Next::Failed(failed(format!("the imported image is {}", status.unwrap_or("unknown")))),
        }
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn order(size: u64) -> Arc<UploadOrder> {
        Arc::new(UploadOrder {
            name: "debian-5".to_owned(),
            file: PathBuf::from("/images/debian.vhd"),
            size,
            format: "vhd".to_owned(),
            meta: BTreeMap::new(),
            marks: BTreeMap::new(),
            md5: None,
            sha256: None,
            may_exist: false,
            progress: Default::default(),
        })
    }

    fn path(next: &Next<Call>) -> String {
        let Next::Call(call) = next else { panic!("{next:?}") };
        let calls::What::Send(request, _) = &call.what else { panic!("{call:?}") };
        format!("{} {}", request.method, request.path.join("/"))
    }

    #[test]
    fn a_large_image_goes_in_segments_and_a_list_of_them() {
        let mut machine =
            ImportImage { segment_size: 4, ..ImportImage::new(order(10), Seconds(60.0), BTreeMap::new()) };
        assert_eq!(path(&machine.step(Input::Start)), "PUT images");
        let mut said = Vec::new();
        for _ in 0..5 {
            said.push(path(&machine.step(Input::Reply(Ok(Reply::Nothing)))));
        }
        let segments = ["000000", "000001", "000002"].map(|number| format!("PUT images/debian-5/{number}"));
        assert_eq!(said[..3], segments);
        assert_eq!(said[3..], ["PUT images/debian-5", "POST tasks"]);
    }
}
