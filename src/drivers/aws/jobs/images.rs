//! Listing and deletion of what uploads have made: AMIs with their snapshots, and what a broken upload left of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::aws::api::api_types::{Image, tags};
use crate::aws::api::calls::{self, Call, Reply};
use crate::aws::api::errors::{ApiError, failed};
use crate::aws::context::ProviderContext;
use crate::aws::image_id::ImageId;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::StoredImage;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use tracing::warn;

/// A snapshot that was just completed is deleted after this time.
const RETRY_PAUSE: Seconds = Seconds(2.0);
const MAX_RETRIES: u32 = 30;
/// Digits of the time at the end of an uploaded image's name.
const TIMESTAMP_DIGITS: usize = 10;

/// Lists AMIs, snapshots without an AMI, and objects of our uploads.
pub struct ListImages {
    context: Arc<ProviderContext>,
    found: Vec<StoredImage>,
    /// Snapshots of AMIs, which are deleted with these.
    of_images: BTreeSet<String>,
    /// Tags of import tasks by what they have made, which may have no tags of its own yet.
    of_tasks: BTreeMap<String, BTreeMap<String, String>>,
    /// Objects whose tags are still to be read.
    keys: VecDeque<String>,
    reads: Reads,
}

/// The part of a listing that is being read.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reads {
    SnapshotTasks,
    ImageTasks,
    Images,
    ObjectTags,
}

impl StateMachine for ListImages {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => Next::Call(calls::snapshot_tasks(None)),
            Input::Reply(Ok(Reply::SnapshotTasks(page))) => {
                for task in page.import_snapshot_task_set.item {
                    let made = task.snapshot_task_detail.snapshot_id;
                    self.of_tasks.extend(made.map(|snapshot| (snapshot, tags(&task.tag_set))));
                }
                match page.next_token.filter(|token| !token.is_empty()) {
                    Some(token) => Next::Call(calls::snapshot_tasks(Some(&token))),
                    None => self.read_image_tasks(),
                }
            }
            Input::Reply(Ok(Reply::ImageTasks(page))) => {
                for task in page.import_image_task_set.item {
                    let snapshots = task.snapshot_detail_set.item.into_iter().filter_map(|detail| detail.snapshot_id);
                    let made = snapshots.chain(task.image_id);
                    self.of_tasks.extend(made.map(|made| (made, tags(&task.tag_set))));
                }
                match page.next_token.filter(|token| !token.is_empty()) {
                    Some(token) => Next::Call(calls::image_tasks(Some(&token))),
                    None => self.read_images(),
                }
            }
            Input::Reply(Ok(Reply::Images(page))) => {
                page.images_set.item.into_iter().for_each(|image| self.add_image(image));
                match page.next_token.filter(|token| !token.is_empty()) {
                    Some(token) => Next::Call(calls::own_images(Some(&token))),
                    None => Next::Call(calls::own_snapshots(None)),
                }
            }
            Input::Reply(Ok(Reply::Snapshots(page))) => {
                for snapshot in page.snapshot_set.item {
                    if !self.of_images.contains(&snapshot.snapshot_id) {
                        let id = ImageId::Snapshot(snapshot.snapshot_id.clone()).to_external();
                        self.add(id, snapshot.snapshot_id, tags(&snapshot.tag_set));
                    }
                }
                match page.next_token.filter(|token| !token.is_empty()) {
                    Some(token) => Next::Call(calls::own_snapshots(Some(&token))),
                    None => self.list_objects(None),
                }
            }
            Input::Reply(Ok(Reply::Listing(page))) => {
                let format = &self.context.settings.image_format;
                let keys = page.contents.into_iter().map(|entry| entry.key);
                self.keys.extend(keys.filter(|key| is_object_name(key, format)));
                match page.next_continuation_token.filter(|token| !token.is_empty()) {
                    Some(token) => self.list_objects(Some(&token)),
                    None => self.read_tags(),
                }
            }
            Input::Reply(Ok(Reply::Tags(tags))) => {
                if let Some(key) = self.keys.pop_front() {
                    self.add(ImageId::Object(key.clone()).to_external(), key, tags);
                }
                self.read_tags()
            }
            Input::Reply(Ok(Reply::Refused(error))) => self.refused(error),
            Input::Reply(Err(error)) => Next::Failed(error),
            input => Next::Failed(failed(format!("unexpected {input:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing images"
    }
}

impl ListImages {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self {
            context,
            found: Vec::new(),
            of_images: BTreeSet::new(),
            of_tasks: BTreeMap::new(),
            keys: VecDeque::new(),
            reads: Reads::SnapshotTasks,
        }
    }

    fn refused(&mut self, error: ApiError) -> Next<Call> {
        match self.reads {
            // An account that imports nothing need not be allowed to read imports.
            Reads::SnapshotTasks => self.read_image_tasks(),
            Reads::ImageTasks => self.read_images(),
            Reads::Images => Next::Failed(error.into_error()),
            // The object was deleted meanwhile, or has another owner.
            Reads::ObjectTags => {
                self.keys.pop_front();
                self.read_tags()
            }
        }
    }

    fn read_image_tasks(&mut self) -> Next<Call> {
        self.reads = Reads::ImageTasks;
        Next::Call(calls::image_tasks(None))
    }

    fn read_images(&mut self) -> Next<Call> {
        self.reads = Reads::Images;
        Next::Call(calls::own_images(None))
    }

    fn add_image(&mut self, image: Image) {
        let snapshots = image.block_device_mapping.item.iter().filter_map(|mapping| mapping.ebs.as_ref());
        self.of_images.extend(snapshots.filter_map(|ebs| ebs.snapshot_id.clone()));
        let id = ImageId::Image(image.image_id.clone()).to_external();
        self.add(id, image.name.unwrap_or(image.image_id), tags(&image.tag_set));
    }

    fn add(&mut self, id: ExternalId, name: String, own: BTreeMap<String, String>) {
        let mut meta = self.of_tasks.get(&id.to_string()).cloned().unwrap_or_default();
        meta.extend(own);
        self.found.push(StoredImage { id, name, meta });
    }

    fn list_objects(&mut self, next: Option<&str>) -> Next<Call> {
        match &self.context.settings.bucket {
            Some(bucket) => Next::Call(calls::objects(bucket, next)),
            None => self.read_tags(),
        }
    }

    fn read_tags(&mut self) -> Next<Call> {
        self.reads = Reads::ObjectTags;
        match (&self.context.settings.bucket, self.keys.front()) {
            (Some(bucket), Some(key)) => Next::Call(calls::object_tags(bucket, key)),
            _ => Next::Done(Outcome::Images(std::mem::take(&mut self.found))),
        }
    }
}

/// Whether an object is named as an upload names it: `debian-1700000000.raw`.
fn is_object_name(key: &str, format: &str) -> bool {
    let name = key.strip_suffix(format).and_then(|name| name.strip_suffix('.'));
    name.and_then(|name| name.rsplit_once('-')).is_some_and(|(image, time)| {
        !image.is_empty() && time.len() == TIMESTAMP_DIGITS && time.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Deletes an AMI and its snapshots, or what a broken upload left.
pub struct DeleteImage {
    context: Arc<ProviderContext>,
    id: ImageId,
    snapshots: VecDeque<String>,
    retries: u32,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    Reading,
    Deregistering,
    DeletingSnapshot(String),
    /// Blocks were written to it; it must be completed before it can be deleted.
    CompletingSnapshot(String),
    DeletingObject,
    Finished,
}

impl StateMachine for DeleteImage {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Reading, Input::Reply(Ok(reply))) => self.on_image(reply),
            (Step::Deregistering, Input::Reply(Ok(Reply::Done | Reply::Lost(_)))) => self.delete_snapshot(),
            (Step::Deregistering, Input::Reply(Ok(Reply::Refused(error))))
                if error.code.starts_with("InvalidAMIID") =>
            {
                self.delete_snapshot()
            }
            (Step::DeletingSnapshot(id), Input::Reply(Ok(reply))) => self.on_snapshot_deleted(id, reply),
            (Step::CompletingSnapshot(id), Input::Reply(Ok(_))) => self.retry_snapshot(id),
            (Step::DeletingObject, Input::Reply(Ok(Reply::Done))) => Next::Done(Outcome::Deleted),
            (_, Input::Reply(Ok(Reply::Refused(error)))) => Next::Failed(error.into_error()),
            (_, Input::Reply(Ok(Reply::Lost(detail)))) => Next::Failed(failed(detail)),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        "deleting image"
    }
}

impl DeleteImage {
    pub fn new(context: Arc<ProviderContext>, id: &ExternalId) -> Self {
        Self { context, id: ImageId::of(id), snapshots: VecDeque::new(), retries: 0, step: Step::Begin }
    }

    fn begin(&mut self) -> Next<Call> {
        match &self.id {
            ImageId::Image(id) => {
                let call = calls::image(id);
                self.call(Step::Reading, call)
            }
            ImageId::Snapshot(id) => {
                self.snapshots.push_back(id.clone());
                self.delete_snapshot()
            }
            ImageId::Object(key) => match &self.context.settings.bucket {
                Some(bucket) => {
                    let call = calls::delete_object(bucket, key);
                    self.call(Step::DeletingObject, call)
                }
                None => Next::Failed(CloudError::Denied("object-storage has no bucket-name".to_owned())),
            },
        }
    }

    fn on_image(&mut self, reply: Reply) -> Next<Call> {
        let ImageId::Image(id) = &self.id else { return Next::Failed(failed("a snapshot is no AMI")) };
        let image = match reply {
            Reply::Images(page) => page.images_set.item.into_iter().find(|image| image.image_id == *id),
            Reply::Refused(error) if error.code.starts_with("InvalidAMIID") => None,
            Reply::Refused(error) => return Next::Failed(error.into_error()),
            reply => return Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        };
        let Some(image) = image else { return Next::Failed(CloudError::not_found(format!("AMI {id}"))) };
        let volumes = image.block_device_mapping.item.into_iter().filter_map(|mapping| mapping.ebs);
        self.snapshots = volumes.filter_map(|ebs| ebs.snapshot_id).collect();
        let call = calls::deregister_image(id);
        self.call(Step::Deregistering, call)
    }

    fn delete_snapshot(&mut self) -> Next<Call> {
        self.retries = 0;
        match self.snapshots.pop_front() {
            Some(id) => {
                let call = calls::delete_snapshot(&id);
                self.call(Step::DeletingSnapshot(id), call)
            }
            None => Next::Done(Outcome::Deleted),
        }
    }

    fn retry_snapshot(&mut self, id: String) -> Next<Call> {
        self.retries += 1;
        let call = calls::delete_snapshot(&id).after(RETRY_PAUSE);
        self.call(Step::DeletingSnapshot(id), call)
    }

    fn on_snapshot_deleted(&mut self, id: String, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Done => self.delete_snapshot(),
            Reply::Lost(_) if self.retries < MAX_RETRIES => self.retry_snapshot(id),
            Reply::Refused(error) if error.code == "InvalidSnapshot.NotFound" => {
                warn!(provider = %self.context.provider, snapshot = id, "a snapshot was deleted already");
                self.delete_snapshot()
            }
            // The AMI is deregistered a moment later.
            Reply::Refused(error) if error.code == "InvalidSnapshot.InUse" && self.retries < MAX_RETRIES => {
                self.retry_snapshot(id)
            }
            Reply::Refused(error) if error.code == "IncorrectState" && self.retries < MAX_RETRIES => {
                let call = calls::complete_snapshot(&id, 0);
                self.call(Step::CompletingSnapshot(id), call)
            }
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
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

    #[test]
    fn only_objects_of_uploads_are_looked_at() {
        assert!(is_object_name("debian-bookworm-1700000000.raw", "raw"));
        for other in
            ["debian-1700000000.vhd", "debian.raw", "-1700000000.raw", "backup-170000000.raw", "x-17000000a0.raw"]
        {
            assert!(!is_object_name(other, "raw"), "{other}");
        }
    }
}
