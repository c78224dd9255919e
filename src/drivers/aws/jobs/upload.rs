//! Upload of an image of the builder: its bytes go to a bucket or directly into a snapshot, which becomes an AMI.
//!
//! The import methods differ only in how the snapshot or the AMI is made:
//!
//! * `snapshot`: object, ImportSnapshot, RegisterImage;
//! * `image`: object, ImportImage;
//! * `ebs-direct`: blocks of a snapshot, RegisterImage.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde_json::json;
use tracing::warn;

use crate::aws::api::api_types::{ImageTask, ImageTasksPage, Snapshot, SnapshotTask, SnapshotTasksPage, tags};
use crate::aws::api::calls::{self, Call, Reply};
use crate::aws::api::errors::{ApiError, failed};
use crate::aws::api::transfer::blocks;
use crate::aws::config::{DiskImageSpec, IMPORT_TIMEOUT, ImportMethod, MAX_OBJECT_TAGS};
use crate::aws::context::ProviderContext;
use crate::aws::image_body::ImageBody;
use crate::aws::image_id::ImageId;
use crate::aws::jobs::images::{DeleteImage, ListImages};
use crate::aws::jobs::import_wait::ImportWait;
use crate::common::object_store;
use crate::common::part_upload::{MAX_FAILURES, PartUpload, REPEAT_PAUSE, Stored};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Parts of an object that one call sends, and blocks of a snapshot.
const PARTS_PER_CALL: usize = 10;
const BLOCKS_PER_CALL: usize = 128;

pub struct UploadImage {
    context: Arc<ProviderContext>,
    order: Arc<UploadOrder>,
    spec: Option<Arc<DiskImageSpec>>,
    /// The last thing that this upload has made; deleted if it fails.
    id: Option<ExternalId>,
    key: String,
    /// Parts or blocks that are still to be sent.
    parts: PartUpload,
    wait: ImportWait,
    snapshot: Option<Snapshot>,
    /// The AMI, as soon as there is one.
    image: Option<String>,
    step: Step,
}

enum Step {
    Begin,
    /// An earlier attempt may have left something.
    SearchingOld(Box<ListImages>),
    /// Leftovers of an earlier attempt are deleted first.
    DeletingOld(Box<DeleteImage>, VecDeque<ExternalId>),
    BeginningObject,
    SendingParts(String),
    CompletingObject(String),
    /// The object was not completed; its parts are deleted.
    Aborting(CloudError),
    ImportingSnapshot,
    /// The import may have begun although there was no response.
    SearchingSnapshotTask,
    AwaitingSnapshot(String),
    ImportingImage,
    SearchingImageTask,
    AwaitingImage(String),
    StartingSnapshot,
    SendingBlocks,
    CompletingSnapshot,
    /// The import is over; the object is not needed any more. The error if it failed.
    DeletingObject(Option<CloudError>),
    Tagging,
    ReadingSnapshot,
    Registering,
    /// The AMI may have been registered although there was no response.
    SearchingRegistered,
    Finished,
}

impl StateMachine for UploadImage {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::SearchingOld(listing), input) => self.search_old(listing, input),
            (Step::DeletingOld(deletion, left), input) => self.go_on_deleting(deletion, left, input),
            (Step::BeginningObject, Input::Reply(Ok(Reply::Begun(begun)))) => {
                self.set_id(ImageId::Object(self.key.clone()));
                let parts = object_store::parts(&self.order.file, self.order.size);
                self.parts = PartUpload::new(self.order.clone(), parts);
                self.send_parts(begun.upload, Seconds::ZERO)
            }
            (Step::SendingParts(upload), Input::Reply(result)) => match self.parts.on_sent(stored(result)) {
                Ok(pause) => self.send_parts(upload, pause),
                Err(error) => self.abort(&upload, error),
            },
            (Step::Aborting(error), Input::Reply(_)) => Next::Failed(error),
            (Step::CompletingObject(upload), Input::Reply(result)) => self.on_object_completed(upload, result),
            (Step::ImportingSnapshot, Input::Reply(Ok(reply))) => self.on_snapshot_task(reply),
            (Step::SearchingSnapshotTask, Input::Reply(Ok(Reply::SnapshotTasks(page)))) => {
                self.search_snapshot_task(page)
            }
            (Step::AwaitingSnapshot(id), Input::Reply(Ok(Reply::SnapshotTasks(page)))) => {
                self.await_snapshot(id, page.import_snapshot_task_set.item.into_iter().next())
            }
            (Step::AwaitingSnapshot(id), Input::Reply(Err(CloudError::Deadline))) => self.poll_snapshot(id),
            (Step::ImportingImage, Input::Reply(Ok(reply))) => self.on_image_task(reply),
            (Step::SearchingImageTask, Input::Reply(Ok(Reply::ImageTasks(page)))) => self.search_image_task(page),
            (Step::AwaitingImage(id), Input::Reply(Ok(Reply::ImageTasks(page)))) => {
                self.await_image(id, page.import_image_task_set.item.into_iter().next())
            }
            (Step::AwaitingImage(id), Input::Reply(Err(CloudError::Deadline))) => self.poll_image(id),
            (Step::StartingSnapshot, Input::Reply(Ok(reply))) => self.on_started(reply),
            (Step::SendingBlocks, Input::Reply(result)) => match self.parts.on_sent(stored(result)) {
                Ok(pause) => self.send_blocks(pause),
                Err(error) => Next::Failed(error),
            },
            (Step::CompletingSnapshot, Input::Reply(Ok(reply))) => self.on_completed(reply),
            (Step::DeletingObject(error), Input::Reply(reply)) => self.on_object_deleted(error, reply),
            (Step::Tagging, Input::Reply(reply)) => self.on_tagged(reply),
            (Step::ReadingSnapshot, Input::Reply(Ok(Reply::Snapshots(page)))) => {
                self.snapshot = page.snapshot_set.item.into_iter().next().or(self.snapshot.take());
                self.register(Seconds::ZERO)
            }
            (Step::Registering, Input::Reply(Ok(reply))) => self.on_registered(reply),
            (Step::SearchingRegistered, Input::Reply(Ok(Reply::Images(page)))) => {
                // Another provider of the account may have registered an image of the same build.
                let snapshot = self.snapshot_id();
                match page.images_set.item.into_iter().find(|image| image.has_snapshot(&snapshot)) {
                    Some(image) => self.registered(image.image_id),
                    None => Next::Failed(failed("another AMI has the name of the image")),
                }
            }
            (_, Input::Reply(Ok(Reply::Refused(error)))) => self.fail(error.into_error()),
            (_, Input::Reply(Err(error))) => self.fail(error),
            (_, input) => Next::Failed(failed(format!("unexpected {input:?} while an image is uploaded"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::SearchingOld(_) => "searching for the image",
            Step::DeletingOld(..) => "deleting what an earlier attempt left",
            Step::BeginningObject | Step::SendingParts(_) | Step::CompletingObject(_) | Step::Aborting(_) => {
                "sending to the bucket"
            }
            Step::ImportingSnapshot | Step::SearchingSnapshotTask | Step::AwaitingSnapshot(_) => "importing snapshot",
            Step::ImportingImage | Step::SearchingImageTask | Step::AwaitingImage(_) => "importing image",
            Step::StartingSnapshot | Step::SendingBlocks | Step::CompletingSnapshot => "writing snapshot",
            Step::DeletingObject(_) => "deleting the object",
            Step::Tagging => "tagging",
            Step::ReadingSnapshot | Step::Registering | Step::SearchingRegistered => "registering image",
            Step::Finished => "ended",
        }
    }
}

impl UploadImage {
    pub fn new(context: Arc<ProviderContext>, order: Arc<UploadOrder>) -> Self {
        let spec = context.settings.disk_images.get(&order.image).cloned();
        let key = format!("{}.{}", order.name, order.format);
        Self {
            context,
            parts: PartUpload::new(order.clone(), BTreeMap::new()),
            order,
            spec,
            id: None,
            key,
            wait: ImportWait::default(),
            snapshot: None,
            image: None,
            step: Step::Begin,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        match self.order.may_exist {
            true => self.search_old(Box::new(ListImages::new(self.context.clone())), Input::Start),
            false => self.create(),
        }
    }

    fn tags(&self) -> BTreeMap<String, String> {
        let texts = self
            .order
            .meta
            .iter()
            .map(|(key, value)| (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)));
        texts.chain(self.order.marks.clone()).collect()
    }

    fn is_own(&self, tags: &BTreeMap<String, String>) -> bool {
        self.order.marks.iter().all(|(key, value)| tags.get(key) == Some(value))
    }

    /// A complete AMI is used. Everything else of an earlier attempt is deleted.
    fn search_old(&mut self, mut listing: Box<ListImages>, input: Input<'_, Reply>) -> Next<Call> {
        match listing.step(input) {
            Next::Done(Outcome::Images(images)) => {
                let own = images.into_iter().filter(|image| self.is_own(&image.meta)).map(|image| image.id);
                let is_image = |id: &ExternalId| matches!(ImageId::of(id), ImageId::Image(_));
                let (mut images, mut others): (VecDeque<ExternalId>, VecDeque<ExternalId>) = own.partition(is_image);
                self.image = images.pop_front().map(|id| id.to_string());
                others.append(&mut images);
                self.delete_old(others)
            }
            next => {
                self.step = Step::SearchingOld(listing);
                next
            }
        }
    }

    fn delete_old(&mut self, mut left: VecDeque<ExternalId>) -> Next<Call> {
        match (left.pop_front(), self.image.take()) {
            (Some(id), complete) => {
                self.image = complete;
                let deletion = Box::new(DeleteImage::new(self.context.clone(), &id));
                self.go_on_deleting(deletion, left, Input::Start)
            }
            (None, Some(complete)) => self.registered(complete),
            (None, None) => self.create(),
        }
    }

    fn go_on_deleting(
        &mut self,
        mut deletion: Box<DeleteImage>,
        left: VecDeque<ExternalId>,
        input: Input<'_, Reply>,
    ) -> Next<Call> {
        match deletion.step(input) {
            Next::Done(_) | Next::Failed(CloudError::NotFound(_)) => self.delete_old(left),
            next => {
                self.step = Step::DeletingOld(deletion, left);
                next
            }
        }
    }

    fn create(&mut self) -> Next<Call> {
        match (self.spec.as_deref().map(|spec| spec.method), self.context.settings.bucket.clone()) {
            (None, _) => Next::Failed(CloudError::Denied(format!("diskimage {} is not configured", self.order.image))),
            (Some(ImportMethod::EbsDirect), _) => {
                let body = self.with_body(|body| body.start_snapshot());
                self.call(Step::StartingSnapshot, calls::start_snapshot(&body.unwrap_or(json!({}))))
            }
            (Some(_), Some(bucket)) => {
                let tags = self.tags();
                if tags.len() > MAX_OBJECT_TAGS {
                    let text = format!("an object has at most {MAX_OBJECT_TAGS} tags, the image has {}", tags.len());
                    return Next::Failed(CloudError::Denied(text));
                }
                let call = calls::begin_object(&bucket, &self.key, &tags);
                self.call(Step::BeginningObject, call)
            }
            (Some(_), None) => Next::Failed(CloudError::Denied("object-storage has no bucket-name".to_owned())),
        }
    }

    fn bucket(&self) -> &str {
        self.context.settings.bucket.as_deref().unwrap_or_default()
    }

    fn with_body<T>(&self, use_it: impl FnOnce(&ImageBody<'_>) -> T) -> Option<T> {
        let (spec, tags) = (self.spec.as_deref()?, self.tags());
        let body = ImageBody { order: &self.order, spec, tags: &tags, bucket: self.bucket(), key: &self.key };
        Some(use_it(&body))
    }

    fn send_parts(&mut self, upload: String, pause: Seconds) -> Next<Call> {
        let next = self.parts.next(PARTS_PER_CALL);
        if next.is_empty() {
            let call = calls::complete_object(self.bucket(), &self.key, &upload, &self.parts.stored).after(pause);
            return self.call(Step::CompletingObject(upload), call);
        }
        let call = calls::send_parts(self.bucket(), &self.key, &upload, next).after(pause);
        self.call(Step::SendingParts(upload), call)
    }

    /// A completion without a response is repeated. If it had an effect, there is no such upload any more.
    fn on_object_completed(&mut self, upload: String, result: Result<Reply, CloudError>) -> Next<Call> {
        let error = match result {
            Ok(Reply::Done) => return self.import(Seconds::ZERO),
            Ok(Reply::Refused(error)) if error.code == "NoSuchUpload" && self.parts.failures > 0 => {
                return self.import(Seconds::ZERO);
            }
            Ok(Reply::Refused(error)) => error.into_error(),
            Ok(reply) => failed(format!("the object was not completed: {reply:?}")),
            Err(error) => error,
        };
        match self.parts.may_repeat(error) {
            Ok(pause) => self.send_parts(upload, pause),
            Err(error) => self.abort(&upload, error),
        }
    }

    fn abort(&mut self, upload: &str, error: CloudError) -> Next<Call> {
        let call = calls::abort_object(self.bucket(), &self.key, upload);
        self.call(Step::Aborting(error), call)
    }

    fn import(&mut self, delay: Seconds) -> Next<Call> {
        let is_image = self.spec.as_ref().is_some_and(|spec| spec.method == ImportMethod::Image);
        match self.with_body(|body| if is_image { body.import_image() } else { body.import_snapshot() }) {
            Some(form) if is_image => self.call(Step::ImportingImage, calls::import_image(form).after(delay)),
            Some(form) => self.call(Step::ImportingSnapshot, calls::import_snapshot(form).after(delay)),
            None => Next::Failed(failed("the diskimage is not configured")),
        }
    }

    fn on_snapshot_task(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::SnapshotTask(task) => self.poll_snapshot(task.import_task_id),
            Reply::Lost(_) => self.call(Step::SearchingSnapshotTask, calls::snapshot_tasks(None).after(REPEAT_PAUSE)),
            Reply::Refused(error) => self.import_refused(error),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn on_image_task(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::ImageTask(task) => self.poll_image(task.import_task_id),
            Reply::Lost(_) => self.call(Step::SearchingImageTask, calls::image_tasks(None).after(REPEAT_PAUSE)),
            Reply::Refused(error) => self.import_refused(error),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn search_snapshot_task(&mut self, page: SnapshotTasksPage) -> Next<Call> {
        let found = page.import_snapshot_task_set.item.into_iter().find(|task| self.is_own(&tags(&task.tag_set)));
        match (found, page.next_token.filter(|token| !token.is_empty())) {
            (Some(task), _) => self.poll_snapshot(task.import_task_id),
            (None, Some(token)) => self.call(Step::SearchingSnapshotTask, calls::snapshot_tasks(Some(&token))),
            (None, None) => self.import(REPEAT_PAUSE),
        }
    }

    fn search_image_task(&mut self, page: ImageTasksPage) -> Next<Call> {
        let found = page.import_image_task_set.item.into_iter().find(|task| self.is_own(&tags(&task.tag_set)));
        match (found, page.next_token.filter(|token| !token.is_empty())) {
            (Some(task), _) => self.poll_image(task.import_task_id),
            (None, Some(token)) => self.call(Step::SearchingImageTask, calls::image_tasks(Some(&token))),
            (None, None) => self.import(REPEAT_PAUSE),
        }
    }

    /// An account has few imports at a time; others end.
    fn import_refused(&mut self, error: ApiError) -> Next<Call> {
        let limit = self.context.settings.import_wait.unwrap_or(Seconds::ZERO);
        let is_busy = error.code == "ResourceCountLimitExceeded";
        match is_busy.then(|| self.wait.retry_delay(limit)).flatten() {
            Some(delay) => self.import(delay),
            None => self.fail(error.into_error()),
        }
    }

    fn is_overdue(&self) -> bool {
        let is_direct = self.spec.as_ref().is_some_and(|spec| spec.method == ImportMethod::EbsDirect);
        self.wait.has_exceeded(self.context.settings.import_wait.filter(|_| is_direct).unwrap_or(IMPORT_TIMEOUT))
    }

    fn poll_snapshot(&mut self, task: String) -> Next<Call> {
        if self.is_overdue() {
            return self.fail(failed(format!("the import {task} does not end")));
        }
        let delay = self.wait.poll_delay();
        let call = calls::snapshot_task(&task).after(delay);
        self.call(Step::AwaitingSnapshot(task), call)
    }

    fn await_snapshot(&mut self, id: String, task: Option<SnapshotTask>) -> Next<Call> {
        let Some(detail) = task.map(|task| task.snapshot_task_detail) else { return self.poll_snapshot(id) };
        match (detail.status.as_str(), detail.snapshot_id) {
            ("completed", Some(snapshot)) => {
                self.set_id(ImageId::Snapshot(snapshot.clone()));
                self.snapshot = Some(Snapshot { snapshot_id: snapshot, ..Snapshot::default() });
                self.delete_object(None)
            }
            ("deleted" | "deleting" | "error", _) => {
                let text = detail.status_message.unwrap_or_else(|| "no reason is known".to_owned());
                self.fail(failed(format!("the import {id} failed: {text}")))
            }
            _ => self.poll_snapshot(id),
        }
    }

    fn poll_image(&mut self, task: String) -> Next<Call> {
        if self.is_overdue() {
            return self.fail(failed(format!("the import {task} does not end")));
        }
        let delay = self.wait.poll_delay();
        let call = calls::image_task(&task).after(delay);
        self.call(Step::AwaitingImage(task), call)
    }

    fn await_image(&mut self, id: String, task: Option<ImageTask>) -> Next<Call> {
        let Some(task) = task else { return self.poll_image(id) };
        match (task.status.as_str(), task.image_id) {
            ("completed", Some(image)) => {
                let snapshot = task.snapshot_detail_set.item.into_iter().find_map(|detail| detail.snapshot_id);
                self.snapshot = snapshot.map(|id| Snapshot { snapshot_id: id, ..Snapshot::default() });
                self.set_id(ImageId::Image(image.clone()));
                self.image = Some(image);
                self.delete_object(None)
            }
            ("deleted" | "deleting" | "error", _) => {
                let text = task.status_message.unwrap_or_else(|| "no reason is known".to_owned());
                self.fail(failed(format!("the import {id} failed: {text}")))
            }
            _ => self.poll_image(id),
        }
    }

    fn on_started(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Json(body) => match body.get("SnapshotId").and_then(|id| id.as_str()) {
                Some(id) => {
                    self.set_id(ImageId::Snapshot(id.to_owned()));
                    self.snapshot = Some(Snapshot { snapshot_id: id.to_owned(), ..Snapshot::default() });
                    let blocks = blocks(&self.order.file, self.order.size);
                    self.parts = PartUpload::new(self.order.clone(), blocks);
                    self.send_blocks(Seconds::ZERO)
                }
                None => Next::Failed(failed("the response to StartSnapshot has no id")),
            },
            // Its token makes a repetition harmless.
            Reply::Lost(detail) if self.parts.failures < MAX_FAILURES => {
                self.parts.failures += 1;
                warn!(provider = %self.context.provider, detail, "StartSnapshot had no response; it is repeated");
                let body = self.with_body(|body| body.start_snapshot()).unwrap_or(json!({}));
                self.call(Step::StartingSnapshot, calls::start_snapshot(&body).after(REPEAT_PAUSE))
            }
            Reply::Lost(detail) => Next::Failed(failed(detail)),
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn snapshot_id(&self) -> String {
        self.snapshot.as_ref().map(|snapshot| snapshot.snapshot_id.clone()).unwrap_or_default()
    }

    fn send_blocks(&mut self, pause: Seconds) -> Next<Call> {
        let next = self.parts.next(BLOCKS_PER_CALL);
        if next.is_empty() {
            return self.complete_snapshot(Seconds::ZERO);
        }
        let call = calls::send_blocks(&self.snapshot_id(), next).after(pause);
        self.call(Step::SendingBlocks, call)
    }

    fn complete_snapshot(&mut self, delay: Seconds) -> Next<Call> {
        let call = calls::complete_snapshot(&self.snapshot_id(), self.parts.stored.len()).after(delay);
        self.call(Step::CompletingSnapshot, call)
    }

    fn on_completed(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Json(body) => match body.get("Status").and_then(|status| status.as_str()) {
                Some("completed") => self.read_snapshot(),
                Some("error") => Next::Failed(failed("the snapshot could not be completed")),
                _ if self.is_overdue() => Next::Failed(failed("the snapshot is not completed")),
                _ => {
                    let delay = self.wait.poll_delay();
                    self.complete_snapshot(delay)
                }
            },
            Reply::Lost(_) => self.complete_snapshot(REPEAT_PAUSE),
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    /// The size of a snapshot is that of its volume, unless the configuration has one.
    fn read_snapshot(&mut self) -> Next<Call> {
        let call = calls::snapshot(&self.snapshot_id());
        self.call(Step::ReadingSnapshot, call)
    }

    fn delete_object(&mut self, error: Option<CloudError>) -> Next<Call> {
        let call = calls::delete_object(self.bucket(), &self.key);
        self.call(Step::DeletingObject(error), call)
    }

    fn on_object_deleted(&mut self, error: Option<CloudError>, reply: Result<Reply, CloudError>) -> Next<Call> {
        let refused = match reply {
            Ok(Reply::Refused(error)) => Some(error.into_error()),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            warn!(provider = %self.context.provider, key = self.key, %error, "cannot delete an object");
        }
        if let Some(error) = error {
            return Next::Failed(error);
        }
        let (snapshot, image) = (self.snapshot_id(), self.image.clone());
        let ids: Vec<&str> = image.as_deref().into_iter().chain([&*snapshot]).filter(|id| !id.is_empty()).collect();
        let call = calls::create_tags(ids, &self.tags());
        self.call(Step::Tagging, call)
    }

    fn on_tagged(&mut self, reply: Result<Reply, CloudError>) -> Next<Call> {
        let refused = match reply {
            Ok(Reply::Refused(error)) => Some(error.into_error()),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if let Some(error) = refused {
            warn!(provider = %self.context.provider, image = self.order.name, %error, "cannot tag an import");
        }
        match self.image.take() {
            Some(image) => self.registered(image),
            None => self.read_snapshot(),
        }
    }

    fn register(&mut self, delay: Seconds) -> Next<Call> {
        let snapshot = self.snapshot.clone().unwrap_or_default();
        match self.with_body(|body| body.register_image(&snapshot)) {
            Some(form) => self.call(Step::Registering, calls::register_image(form).after(delay)),
            None => Next::Failed(failed("the diskimage is not configured")),
        }
    }

    fn on_registered(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Registered(image) => self.registered(image.image_id),
            Reply::Lost(_) => self.register(REPEAT_PAUSE),
            Reply::Refused(error) if error.code == "InvalidAMIName.Duplicate" => {
                self.call(Step::SearchingRegistered, calls::own_image_named(&self.order.name))
            }
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn registered(&mut self, image: String) -> Next<Call> {
        let id = ImageId::Image(image).to_external();
        self.id = Some(id.clone());
        self.step = Step::Finished;
        Next::Done(Outcome::Uploaded(id))
    }

    fn set_id(&mut self, id: ImageId) {
        self.id = Some(id.to_external());
    }

    /// Fails after the object was deleted, if there is one.
    fn fail(&mut self, error: CloudError) -> Next<Call> {
        let has_object = matches!(self.id.as_ref().map(ImageId::of), Some(ImageId::Object(_)));
        if has_object { self.delete_object(Some(error)) } else { Next::Failed(error) }
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}

/// The parts that a call has stored.
fn stored(result: Result<Reply, CloudError>) -> Result<Stored, CloudError> {
    match result? {
        Reply::Sent(stored, error) => Ok((stored, error)),
        Reply::Refused(error) => Err(error.into_error()),
        reply => Err(failed(format!("unexpected reply {reply:?}"))),
    }
}
