//! Upload of an image to Glance: creates the record, sends the content, and verifies the stored image.
//!
//! This job does not delete the image of a failed upload: the caller knows its id, and records whether the deletion
//! worked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::image_stream::Content;
use crate::openstack::api_types;
use crate::openstack::calls::{self, Call, Reply};
use crate::openstack::catalog::shared::ProviderContext;
use crate::openstack::errors::failed;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::{MARKS, StoredImage, UploadOrder};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Delays before the searches for an image whose creation response was lost: the creation may take effect later.
const SEARCH_DELAYS: [Seconds; 3] = [Seconds(1.0), Seconds(3.0), Seconds(6.0)];
/// Interval between polls of an image that is being stored; it grows.
const MIN_POLL_INTERVAL: Seconds = Seconds(1.0);
const MAX_POLL_INTERVAL: Seconds = Seconds(10.0);
/// Maximum time from the last byte to an active image.
const STORE_TIMEOUT_S: f64 = 3600.0;
/// Length of a checksum; some clouds write an empty text instead.
const MD5_DIGITS: usize = 32;
/// Maximum time in which all polls fail.
const POLL_FAILURE_TIMEOUT_S: f64 = 300.0;
/// Glance's numeric properties.
const NUMERIC_PROPERTIES: [&str; 2] = ["min_disk", "min_ram"];

pub struct UploadImage {
    context: Arc<ProviderContext>,
    order: Arc<UploadOrder>,
    id: Option<ExternalId>,
    step: Step,
    /// Time since the last successful poll, if polls fail.
    failing_poll_s: f64,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// Searches for images of an earlier attempt, or for the image whose creation response was lost. The value is the
    /// error of that creation and the number of searches.
    SearchingExisting(Option<(CloudError, usize)>),
    /// Images to delete, and the complete image to reuse afterwards, if there is one.
    DeletingExisting(VecDeque<String>, Option<String>),
    Creating,
    Sending,
    /// The seconds waited so far, and the error if sending failed.
    AwaitingStorage(f64, Option<CloudError>),
    Finished,
}

impl StateMachine for UploadImage {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) if self.order.may_exist => {
                self.call(Step::SearchingExisting(None), calls::images_with(&self.order.marks, Seconds::ZERO))
            }
            (Step::Begin, Input::Start) => self.create(),
            (Step::SearchingExisting(lost), Input::Reply(Ok(Reply::Json(answer)))) => {
                self.on_search_result(lost, &answer)
            }
            (Step::DeletingExisting(left, whole), Input::Reply(Ok(_) | Err(CloudError::NotFound(_)))) => {
                self.delete_existing(left, whole)
            }
            (Step::Creating, Input::Reply(Ok(Reply::Json(image)))) => match image.get("id").and_then(Value::as_str) {
                Some(id) => self.send(id),
                None => Next::Failed(failed("the response to the image creation has no id".to_owned())),
            },
            (Step::Creating, Input::Reply(Ok(Reply::ResponseLost(error)) | Err(error @ CloudError::Deadline))) => {
                self.search(error, 0)
            }
            (Step::Sending, Input::Reply(Ok(_))) => self.poll(Seconds::ZERO, 0.0, None),
            // Other errors mean that the cloud has rejected the content.
            (Step::Sending, Input::Reply(Err(error @ CloudError::Failed { .. }))) => {
                self.poll(Seconds::ZERO, 0.0, Some(error))
            }
            (Step::AwaitingStorage(waited, lost), Input::Reply(Ok(Reply::Json(image)))) => {
                self.failing_poll_s = 0.0;
                self.on_status(waited, lost, &image)
            }
            (Step::AwaitingStorage(_, Some(lost)), Input::Reply(Err(_))) => Next::Failed(lost),
            // All bytes were sent, so a failed poll is no reason to send them again.
            (
                Step::AwaitingStorage(waited, None),
                Input::Reply(Err(CloudError::Failed { .. } | CloudError::Deadline)),
            ) if self.failing_poll_s < POLL_FAILURE_TIMEOUT_S => {
                self.failing_poll_s += MAX_POLL_INTERVAL.0;
                self.poll(MAX_POLL_INTERVAL, waited + MAX_POLL_INTERVAL.0, None)
            }
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::SearchingExisting(_) => "searching for the image",
            Step::DeletingExisting(..) => "deleting images of an earlier attempt",
            Step::Creating => "creating image",
            Step::Sending => "sending",
            Step::AwaitingStorage(..) => "waiting for the image to be stored",
            Step::Finished => "ended",
        }
    }
}

impl UploadImage {
    pub fn new(context: Arc<ProviderContext>, order: Arc<UploadOrder>) -> Self {
        Self { context, order, id: None, step: Step::Begin, failing_poll_s: 0.0 }
    }

    fn search(&mut self, lost: CloudError, number: usize) -> Next<Call> {
        match SEARCH_DELAYS.get(number) {
            Some(delay) => {
                let call = calls::images_with(&self.order.marks, *delay);
                self.call(Step::SearchingExisting(Some((lost, number))), call)
            }
            None => Next::Failed(lost),
        }
    }

    fn on_search_result(&mut self, lost: Option<(CloudError, usize)>, answer: &Value) -> Next<Call> {
        let images: Vec<Value> = match api_types::list(answer, "images") {
            Ok(images) => images,
            Err(error) => return Next::Failed(failed(error)),
        };
        // A cloud that does not support these filters lists all images.
        let ours: Vec<(Value, StoredImage)> = images
            .into_iter()
            .filter_map(|image| stored_image(&image).map(|known| (image, known)))
            .filter(|(_, known)| known.has_marks(&self.order.marks))
            .collect();
        let is_complete = |image: &Value| self.is_complete(image).is_ok();
        let complete = ours.iter().find(|(image, _)| is_complete(image)).and_then(|(image, _)| id_of(image));
        match (lost, ours.first()) {
            (Some(_), Some((image, _))) if complete.is_none() => match id_of(image) {
                Some(id) => self.send(&id),
                None => Next::Failed(failed("an image without an id".to_owned())),
            },
            (Some((error, number)), None) => self.search(error, number + 1),
            (_, _) => {
                let others =
                    ours.iter().filter_map(|(image, _)| id_of(image)).filter(|id| complete.as_ref() != Some(id));
                self.delete_existing(others.collect(), complete)
            }
        }
    }

    fn delete_existing(&mut self, mut remaining: VecDeque<String>, complete: Option<String>) -> Next<Call> {
        match (remaining.pop_front(), complete) {
            (Some(id), whole) => self.call(Step::DeletingExisting(remaining, whole), calls::delete_image(&id)),
            (None, Some(whole)) => {
                self.id = Some(ExternalId::text(whole));
                self.done()
            }
            (None, None) => self.create(),
        }
    }

    fn create(&mut self) -> Next<Call> {
        let record = image_record(&self.order, &self.context.cloud.image_properties);
        let call = calls::create_image(Value::Object(record));
        self.call(Step::Creating, call)
    }

    fn send(&mut self, id: &str) -> Next<Call> {
        self.id = Some(ExternalId::text(id));
        let content = Content {
            file: self.order.file.clone(),
            from: 0,
            size: self.order.size,
            progress: self.order.progress.clone(),
        };
        self.call(Step::Sending, calls::send_image(id, content))
    }

    fn poll(&mut self, delay: Seconds, waited: f64, lost: Option<CloudError>) -> Next<Call> {
        let Some(ExternalId::Text(id)) = &self.id else {
            return Next::Failed(failed("no image id".to_owned()));
        };
        let call = if delay > Seconds::ZERO { calls::image_after(id, delay) } else { calls::image(id) };
        self.call(Step::AwaitingStorage(waited, lost), call)
    }

    fn on_status(&mut self, waited: f64, lost: Option<CloudError>, image: &Value) -> Next<Call> {
        let status = image.get("status").and_then(Value::as_str).unwrap_or_default();
        match (status, lost) {
            ("active", _) => match self.is_complete(image) {
                Ok(()) => self.done(),
                Err(error) => Next::Failed(failed(error)),
            },
            // A partial image is useless.
            (_, Some(lost)) => Next::Failed(lost),
            ("queued" | "saving" | "uploading" | "importing", None) if waited < STORE_TIMEOUT_S => {
                let delay = (waited / 2.0).clamp(MIN_POLL_INTERVAL.0, MAX_POLL_INTERVAL.0);
                self.poll(Seconds(delay), waited + delay, None)
            }
            (status, None) => Next::Failed(failed(format!("the image is {status} after all of it was sent"))),
        }
    }

    /// Checks status, size and checksum, as far as the cloud reports them.
    fn is_complete(&self, image: &Value) -> Result<(), String> {
        if image.get("status").and_then(Value::as_str) != Some("active") {
            return Err("the image is not active".to_owned());
        }
        // Some clouds convert images, and report the size and no checksum of what they have made.
        let is_converted = image.get("disk_format").and_then(Value::as_str).is_some_and(|now| now != self.order.format);
        let checksum = image.get("checksum").and_then(Value::as_str).filter(|text| text.len() == MD5_DIGITS);
        if is_converted {
            return Ok(());
        }
        match (checksum, &self.order.md5) {
            (Some(there), Some(here)) if there != here => {
                return Err(format!(
                    "the image was corrupted in transit: its md5 is {there} in the cloud and {here} in the file"
                ));
            }
            (Some(_), Some(_)) => return Ok(()),
            _ => {}
        }
        match image.get("size").and_then(Value::as_u64) {
            Some(size) if size < self.order.size => {
                Err(format!("the cloud has {size} bytes of the image, the file has {}", self.order.size))
            }
            _ => Ok(()),
        }
    }

    fn done(&self) -> Next<Call> {
        match &self.id {
            Some(id) => Next::Done(Outcome::Uploaded(id.clone())),
            None => Next::Failed(failed("the image has no id".to_owned())),
        }
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}

/// The record of an image, as openstacksdk writes it.
pub fn image_record(order: &UploadOrder, cloud_properties: &BTreeMap<String, String>) -> Map<String, Value> {
    let mut record = Map::new();
    record.insert("name".to_owned(), order.name.as_str().into());
    record.insert("disk_format".to_owned(), order.format.as_str().into());
    record.insert("container_format".to_owned(), "bare".into());
    record.insert("visibility".to_owned(), "private".into());
    for (name, hash) in [("md5", &order.md5), ("sha256", &order.sha256)] {
        record.insert(format!("owner_specified.openstack.{name}"), hash.clone().unwrap_or_default().into());
    }
    record.insert("owner_specified.openstack.object".to_owned(), format!("images/{}", order.name).into());
    record.extend(cloud_properties.iter().map(|(key, value)| (key.clone(), json!(value))));
    record.extend(order.meta.iter().map(|(key, value)| (key.clone(), property_value(key, value))));
    record.extend(order.marks.iter().map(|(key, value)| (key.clone(), json!(value))));
    record
}

/// Properties are strings, except for the numeric ones.
fn property_value(key: &str, value: &Value) -> Value {
    let number = || value.as_i64().or_else(|| value.as_str()?.trim().parse().ok());
    match value {
        _ if NUMERIC_PROPERTIES.contains(&key) => number().map_or_else(|| value.clone(), Value::from),
        Value::Bool(flag) if key == "protected" => (*flag).into(),
        Value::Bool(flag) => if *flag { "True" } else { "False" }.into(),
        Value::Null | Value::String(_) => value.clone(),
        Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string().into(),
    }
}

fn id_of(image: &Value) -> Option<String> {
    image.get("id").and_then(Value::as_str).map(str::to_owned)
}

/// An entry of Glance's listing. A snapshot of a server inherits our properties but belongs to a user, so its marks are
/// ignored.
pub fn stored_image(image: &Value) -> Option<StoredImage> {
    let is_snapshot = image.get("base_image_ref").is_some()
        || image.get("instance_uuid").is_some()
        || image.get("image_type").and_then(Value::as_str) == Some("snapshot");
    let is_reported = |key: &str| !is_snapshot || !MARKS.contains(&key);
    let texts = image.as_object()?.iter().filter(|(key, _)| is_reported(key));
    let texts = texts.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    let name = image.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    Some(StoredImage { id: ExternalId::text(id_of(image)?), name, meta: texts.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openstack::test_settings::context;

    #[test]
    fn a_stored_image_is_complete_unless_it_is_shorter_or_other_bytes() {
        let md5 = "d41d8cd98f00b204e9800998ecf8427e";
        let order = |md5: Option<&str>| UploadOrder {
            image: "debian".into(),
            name: "debian-5".to_owned(),
            file: "/images/debian.vmdk".into(),
            size: 100,
            format: "vmdk".to_owned(),
            meta: BTreeMap::new(),
            marks: BTreeMap::new(),
            md5: md5.map(str::to_owned),
            sha256: None,
            may_exist: false,
            progress: Default::default(),
        };
        let is_complete = |image: Value, md5: Option<&str>| {
            UploadImage::new(context(), Arc::new(order(md5))).is_complete(&image).is_ok()
        };
        let active = |size: u64, checksum: Value| json!({"status": "active", "size": size, "checksum": checksum});
        assert!(is_complete(active(100, json!(md5)), Some(md5)));
        assert!(!is_complete(active(100, json!(md5.replace('d', "e"))), Some(md5)));
        assert!(!is_complete(active(99, json!(null)), Some(md5)));
        assert!(!is_complete(active(99, json!(md5)), None));
        // Some clouds unpack or convert what they receive.
        assert!(is_complete(active(31_457_280_000, json!("")), Some(md5)));
        let mut converted = active(50, json!(md5.replace('d', "e")));
        assert!(!is_complete(converted.clone(), Some(md5)));
        converted["disk_format"] = json!("raw");
        assert!(is_complete(converted, Some(md5)));
        assert!(!is_complete(json!({"status": "queued", "size": 100}), None));
    }
}
