//! Upload of an image to a cloud that requires import tasks (`image_api_use_tasks`): the content is stored as an
//! object, and a task of Glance creates an image from it.
//!
//! As in openstacksdk, the object is in the container `images`, is named like the image and expires after a day. The
//! properties are set after the import.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::image_stream::Content;
use super::upload;
use crate::openstack::calls::{self, Call, Reply};
use crate::openstack::errors::failed;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

const CONTAINER: &str = "images";
/// Size of a segment of a large image: object stores accept at most five gigabytes per object.
const SEGMENT_SIZE: u64 = 4 << 30;
/// Interval between polls of a task; it grows.
const MIN_POLL_INTERVAL_S: f64 = 1.0;
const MAX_POLL_INTERVAL_S: f64 = 15.0;

pub struct ImportImage {
    order: Arc<UploadOrder>,
    /// Timeout of the task.
    timeout: Seconds,
    /// Properties of all images of this cloud.
    cloud_properties: BTreeMap<String, String>,
    segment_size: u64,
    id: Option<ExternalId>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// Searches for images of an earlier attempt.
    SearchingExisting,
    DeletingExisting(Vec<String>),
    CreatingContainer,
    /// The number of the segment.
    Sending(u64),
    WritingManifest,
    CreatingTask,
    /// The task's id, and the seconds waited so far.
    AwaitingTask(String, f64),
    SettingProperties,
    /// Deletes the object after the import.
    DeletingObject,
    CheckingImage,
    /// Deletes the object before the job fails with this error.
    DeletingObjectAfterFailure(CloudError),
    Finished,
}

impl StateMachine for ImportImage {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) if self.order.may_exist => {
                self.call(Step::SearchingExisting, calls::images_with(&self.order.marks, Seconds::ZERO))
            }
            (Step::Begin, Input::Start) => self.call(Step::CreatingContainer, calls::put_container(CONTAINER)),
            // No existing image is reused: the task may convert the image, so size and checksum may differ from the
            // file's.
            (Step::SearchingExisting, Input::Reply(Ok(Reply::Json(answer)))) => {
                let images = answer.get("images").and_then(Value::as_array).cloned().unwrap_or_default();
                let ours =
                    images.iter().filter_map(upload::stored_image).filter(|image| image.has_marks(&self.order.marks));
                self.delete_existing(ours.map(|image| image.id.to_string()).collect())
            }
            (Step::DeletingExisting(left), Input::Reply(Ok(_) | Err(CloudError::NotFound(_)))) => {
                self.delete_existing(left)
            }
            (Step::CreatingContainer, Input::Reply(Ok(_))) => self.send(0),
            (Step::Sending(number), Input::Reply(Ok(_))) => self.on_segment_sent(number),
            (Step::WritingManifest, Input::Reply(Ok(_))) => self.create_task(),
            (Step::CreatingTask, Input::Reply(Ok(Reply::Json(task)))) => match task.get("id").and_then(Value::as_str) {
                Some(id) => self.poll_task(id.to_owned(), 0.0),
                None => Next::Failed(failed("the response to the task creation has no id".to_owned())),
            },
            (Step::CreatingTask, Input::Reply(Ok(Reply::ResponseLost(error)) | Err(error))) => self.fail(error),
            (Step::AwaitingTask(task, waited), Input::Reply(Ok(Reply::Json(answer)))) => {
                self.on_task_status(task, waited, &answer)
            }
            (Step::AwaitingTask(task, waited), Input::Reply(Err(error))) => match error {
                // A failed poll does not mean that the import failed.
                CloudError::Failed { .. } | CloudError::Deadline if waited < self.timeout.0 => {
                    self.poll_task(task, waited)
                }
                error => self.fail(error),
            },
            (Step::DeletingObjectAfterFailure(error), Input::Reply(_)) => Next::Failed(error),
            (Step::SettingProperties, Input::Reply(Ok(_))) => {
                let call = self.delete_object_call();
                self.call(Step::DeletingObject, call)
            }
            (Step::SettingProperties, Input::Reply(Err(error))) => self.fail(error),
            // A failed deletion is ignored: the object expires.
            (Step::DeletingObject, Input::Reply(_)) => match &self.id {
                Some(ExternalId::Text(id)) => {
                    let call = calls::image(id);
                    self.call(Step::CheckingImage, call)
                }
                _ => Next::Failed(failed("the image has no id".to_owned())),
            },
            (Step::CheckingImage, Input::Reply(Ok(Reply::Json(image)))) => self.check_image(&image),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::SearchingExisting => "searching for the image",
            Step::DeletingExisting(_) => "deleting images of an earlier attempt",
            Step::CreatingContainer | Step::Sending(_) | Step::WritingManifest => "sending to the object store",
            Step::CreatingTask | Step::AwaitingTask(..) => "waiting for the import",
            Step::SettingProperties | Step::DeletingObject | Step::CheckingImage => "setting image properties",
            Step::DeletingObjectAfterFailure(_) => "deleting the object",
            Step::Finished => "ended",
        }
    }
}

impl ImportImage {
    pub fn new(order: Arc<UploadOrder>, timeout: Seconds, cloud_properties: BTreeMap<String, String>) -> Self {
        Self { order, timeout, cloud_properties, segment_size: SEGMENT_SIZE, id: None, step: Step::Begin }
    }

    fn delete_existing(&mut self, mut remaining: Vec<String>) -> Next<Call> {
        match remaining.pop() {
            Some(id) => self.call(Step::DeletingExisting(remaining), calls::delete_image(&id)),
            None => self.call(Step::CreatingContainer, calls::put_container(CONTAINER)),
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

    fn on_segment_sent(&mut self, number: u64) -> Next<Call> {
        if number + 1 < self.segments() {
            return self.send(number + 1);
        }
        if self.segments() == 1 {
            return self.create_task();
        }
        let size = |number: u64| (self.order.size - number * self.segment_size).min(self.segment_size);
        let entry =
            |number: u64| json!({"path": format!("{CONTAINER}/{}", self.object(number)), "size_bytes": size(number)});
        let manifest = (0..self.segments()).map(entry).collect();
        let call = calls::put_manifest(CONTAINER, &self.order.name, manifest);
        self.call(Step::WritingManifest, call)
    }

    fn create_task(&mut self) -> Next<Call> {
        let name = &self.order.name;
        // The marks are set at creation, so that the image can be found if the result of the task is lost.
        let mut properties = json!({"name": name});
        self.order.marks.iter().for_each(|(mark, value)| properties[mark] = value.as_str().into());
        let from = format!("{CONTAINER}/{name}");
        let task = json!({"type": "import", "input": {"import_from": from, "image_properties": properties}});
        self.call(Step::CreatingTask, calls::create_task(task))
    }

    fn poll_task(&mut self, task: String, waited: f64) -> Next<Call> {
        let delay = (waited / 2.0).clamp(MIN_POLL_INTERVAL_S, MAX_POLL_INTERVAL_S);
        let call = calls::task_after(&task, Seconds(delay));
        self.call(Step::AwaitingTask(task, waited + delay), call)
    }

    fn on_task_status(&mut self, task: String, waited: f64, answer: &Value) -> Next<Call> {
        let limit = self.timeout.0;
        match answer.get("status").and_then(Value::as_str).unwrap_or_default() {
            "success" => match answer.pointer("/result/image_id").and_then(Value::as_str) {
                Some(id) => {
                    self.id = Some(ExternalId::text(id));
                    let call = calls::update_image(id, self.properties());
                    self.call(Step::SettingProperties, call)
                }
                None => self.fail(failed("the import task succeeded without an image".to_owned())),
            },
            "pending" | "processing" if waited < limit => self.poll_task(task, waited),
            "pending" | "processing" => {
                self.fail(failed(format!("the import task did not end within image-upload-timeout, {limit} s")))
            }
            _ => {
                let reason = answer.get("message").and_then(Value::as_str).unwrap_or("no reason given");
                self.fail(failed(format!("the import task failed: {reason}")))
            }
        }
    }

    fn delete_object_call(&self) -> Call {
        calls::delete_object(CONTAINER, &self.order.name, self.segments() > 1)
    }

    fn fail(&mut self, error: CloudError) -> Next<Call> {
        let call = self.delete_object_call();
        self.call(Step::DeletingObjectAfterFailure(error), call)
    }

    /// The properties as a JSON patch, which is the format that Glance accepts.
    fn properties(&self) -> Value {
        let record = upload::image_record(&self.order, &self.cloud_properties);
        let fixed_properties = ["name", "disk_format", "container_format", "visibility"];
        let changes = record.iter().filter(|(key, _)| !fixed_properties.contains(&key.as_str()));
        let escaped = |key: &str| key.replace('~', "~0").replace('/', "~1");
        changes.map(|(key, value)| json!({"op": "add", "path": format!("/{}", escaped(key)), "value": value})).collect()
    }

    fn check_image(&self, image: &Value) -> Next<Call> {
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
            image: "debian".into(),
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
        let calls::CallKind::Send(request, _) = &call.kind else { panic!("{call:?}") };
        format!("{} {}", request.method, request.path.join("/"))
    }

    #[test]
    fn a_large_image_is_sent_in_segments_and_a_manifest() {
        let mut machine =
            ImportImage { segment_size: 4, ..ImportImage::new(order(10), Seconds(60.0), BTreeMap::new()) };
        assert_eq!(path(&machine.step(Input::Start)), "PUT images");
        let mut requests = Vec::new();
        for _ in 0..5 {
            requests.push(path(&machine.step(Input::Reply(Ok(Reply::Nothing)))));
        }
        let segments = ["000000", "000001", "000002"].map(|number| format!("PUT images/debian-5/{number}"));
        assert_eq!(requests[..3], segments);
        assert_eq!(requests[3..], ["PUT images/debian-5", "POST tasks"]);
    }

    #[test]
    fn the_object_is_deleted_after_each_failure_of_the_import() {
        let success = |result: Value| Ok(Reply::Json(json!({"status": "success", "result": result})));
        let cases: [(f64, Vec<Result<Reply, CloudError>>); 4] = [
            (0.0, vec![Err(CloudError::Deadline)]),
            (60.0, vec![Err(CloudError::not_found("gone"))]),
            (60.0, vec![success(json!({}))]),
            (60.0, vec![success(json!({"image_id": "i"})), Err(CloudError::Deadline)]),
        ];
        for (timeout, replies) in cases {
            let mut machine = ImportImage::new(order(4), Seconds(timeout), BTreeMap::new());
            machine.step(Input::Start);
            machine.step(Input::Reply(Ok(Reply::Nothing)));
            machine.step(Input::Reply(Ok(Reply::Nothing)));
            assert_eq!(path(&machine.step(Input::Reply(Ok(Reply::Json(json!({"id": "t"})))))), "GET tasks/t");
            let last = replies.into_iter().map(|reply| machine.step(Input::Reply(reply))).last().unwrap();
            assert!(matches!(machine.step, Step::DeletingObjectAfterFailure(_)), "{last:?}");
            assert!(matches!(machine.step(Input::Reply(Ok(Reply::Nothing))), Next::Failed(_)));
        }
    }
}
