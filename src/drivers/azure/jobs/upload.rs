//! Upload of an image of the builder: its bytes go to the pages of a disk, which becomes an image.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::azure::api::api_types::{Disk, Image, Resource};
use crate::azure::api::calls::{self, Call, Kind, Page, Reply, SasUrl};
use crate::azure::api::errors::failed;
use crate::azure::context::ProviderContext;
use crate::azure::jobs::images::DeleteImage;
use crate::azure::jobs::listing::Pages;
use crate::azure::jobs::operation::{Await, Awaited};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use tracing::warn;

/// Bytes of a page range, which Azure limits, and ranges that one call sends.
const PAGE_SIZE: u64 = 4 * 1024 * 1024;
const PAGES_PER_CALL: usize = 10;
/// The length of an upload is a multiple of this.
const SECTOR: u64 = 512;
/// So many calls in a row may send nothing.
const MAX_FAILURES: u32 = 3;
const REPEAT_PAUSE: Seconds = Seconds(2.0);

pub struct UploadImage {
    context: Arc<ProviderContext>,
    order: Arc<UploadOrder>,
    /// The name of the disk and the image.
    name: String,
    id: Option<ExternalId>,
    /// Leftovers of earlier attempts: names of images that are incomplete, and of disks.
    old: Vec<String>,
    sas: Option<SasUrl>,
    pending: BTreeMap<u64, Page>,
    failures: u32,
    step: Step,
}

enum Step {
    Begin,
    /// An earlier attempt may have made an image or a disk, with another name, and others may use the name.
    ListingImages(Pages),
    ListingDisks(Pages),
    /// Remains of an earlier attempt are deleted first.
    DeletingOld(Box<DeleteImage>),
    Calling(Stage),
    Awaiting(Stage, Await),
    Sending,
    /// The image exists; its disk is not needed any more.
    DeletingDisk(Box<DeleteImage>),
    /// The upload has failed, and leaves nothing.
    Undoing(Box<DeleteImage>, CloudError),
    Finished,
}

/// The long operations of an upload, in their order.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    CreatingDisk,
    BeginningAccess,
    EndingAccess,
    CreatingImage,
}

impl StateMachine for UploadImage {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::ListingImages(pages), Input::Reply(reply)) => self.on_images(pages, reply),
            (Step::ListingDisks(pages), Input::Reply(reply)) => self.on_disks(pages, reply),
            (Step::DeletingOld(deletion), input) => self.delete_old(deletion, input),
            (Step::Calling(stage), Input::Reply(reply)) => self.on_called(stage, reply),
            (Step::Awaiting(stage, mut wait), Input::Reply(reply)) => {
                let awaited = wait.step(reply);
                self.go_on(stage, Some(wait), awaited)
            }
            (Step::Sending, Input::Reply(reply)) => self.on_sent(reply),
            (Step::DeletingDisk(deletion), input) => self.delete_disk(deletion, input),
            (Step::Undoing(deletion, error), input) => self.undo(deletion, error, input),
            (_, input) => Next::Failed(failed(format!("unexpected {input:?} while an image is uploaded"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        match &self.step {
            Step::Begin | Step::ListingImages(_) | Step::ListingDisks(_) => "searching for the image",
            Step::DeletingOld(_) => "deleting what an earlier attempt left",
            Step::Calling(stage) | Step::Awaiting(stage, _) => match stage {
                Stage::CreatingDisk => "creating disk",
                Stage::BeginningAccess => "beginning access",
                Stage::EndingAccess => "ending access",
                Stage::CreatingImage => "creating image",
            },
            Step::Sending => "sending to the disk",
            Step::DeletingDisk(_) => "deleting disk",
            Step::Undoing(..) => "deleting what the upload has made",
            Step::Finished => "ended",
        }
    }
}

impl UploadImage {
    pub fn new(context: Arc<ProviderContext>, order: Arc<UploadOrder>) -> Self {
        let name = context.image_name(&order.name);
        Self {
            context,
            order,
            name,
            id: None,
            old: Vec::new(),
            sas: None,
            pending: BTreeMap::new(),
            failures: 0,
            step: Step::Begin,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        if self.order.size == 0 || !self.order.size.is_multiple_of(SECTOR) {
            let size = self.order.size;
            return Next::Failed(failed(format!("the image has {size} bytes, which is no multiple of {SECTOR}")));
        }
        let (pages, call) = Pages::begin(&self.context.scope, Kind::Image);
        self.step = Step::ListingImages(pages);
        Next::Call(call)
    }

    fn is_own<P: Default>(&self, resource: &Resource<P>) -> bool {
        // Build and upload ids repeat for other images, whose names begin otherwise. An attempt has its own time.
        let (image, _) = self.order.name.rsplit_once('-').unwrap_or((&self.order.name, ""));
        let is_marked = self.order.marks.iter().all(|(key, value)| resource.tags.get(key) == Some(value));
        is_marked && resource.name.strip_prefix(image).is_some_and(|rest| rest.starts_with('-'))
    }

    /// A complete image of an earlier attempt is used. Nothing of others is changed.
    fn on_images(&mut self, mut pages: Pages, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply.and_then(|reply| pages.add(reply)) {
            Ok(Some(call)) => {
                self.step = Step::ListingImages(pages);
                return Next::Call(call);
            }
            Ok(None) => {}
            Err(error) => return Next::Failed(error),
        }
        let images: Vec<Image> = pages.read();
        for image in images {
            match (self.is_own(&image), image.properties.provisioning_state.as_str()) {
                (true, "Succeeded") => self.id = Some(ExternalId::text(&image.name)),
                (true, _) => self.old.push(image.name),
                (false, _) if image.name == self.name => return self.taken("an image"),
                (false, _) => {}
            }
        }
        let (pages, call) = Pages::begin(&self.context.scope, Kind::Disk);
        self.step = Step::ListingDisks(pages);
        Next::Call(call)
    }

    fn on_disks(&mut self, mut pages: Pages, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply.and_then(|reply| pages.add(reply)) {
            Ok(Some(call)) => {
                self.step = Step::ListingDisks(pages);
                return Next::Call(call);
            }
            Ok(None) => {}
            Err(error) => return Next::Failed(error),
        }
        let disks: Vec<Disk> = pages.read();
        for disk in disks {
            match self.is_own(&disk) {
                true if !self.old.contains(&disk.name) => self.old.push(disk.name),
                false if disk.name == self.name => return self.taken("a disk"),
                _ => {}
            }
        }
        self.delete_next_old()
    }

    fn taken(&self, what: &str) -> Next<Call> {
        Next::Failed(failed(format!("another owner has {what} of the name {}", self.name)))
    }

    fn deletion(&self, name: &str) -> Box<DeleteImage> {
        Box::new(DeleteImage::with_marks(self.context.clone(), name, self.order.marks.clone()))
    }

    fn delete_next_old(&mut self) -> Next<Call> {
        let Some(name) = self.old.pop() else {
            return if self.id.is_some() { self.uploaded() } else { self.run(Stage::CreatingDisk, Seconds::ZERO) };
        };
        let mut deletion = self.deletion(&name);
        let is_image_in_use = self.id.as_ref().is_some_and(|id| *id == ExternalId::text(&name));
        let next = if is_image_in_use { deletion.begin_with_disk() } else { deletion.step(Input::Start) };
        self.continue_old(deletion, next)
    }

    fn delete_old(&mut self, mut deletion: Box<DeleteImage>, input: Input<'_, Reply>) -> Next<Call> {
        let next = deletion.step(input);
        self.continue_old(deletion, next)
    }

    fn continue_old(&mut self, deletion: Box<DeleteImage>, next: Next<Call>) -> Next<Call> {
        match next {
            Next::Done(_) | Next::Failed(CloudError::NotFound(_)) => self.delete_next_old(),
            next => {
                self.step = Step::DeletingOld(deletion);
                next
            }
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

    /// Starts an operation.
    fn run(&mut self, stage: Stage, delay: Seconds) -> Next<Call> {
        let (scope, name) = (&self.context.scope, &self.name);
        let call = match stage {
            Stage::CreatingDisk => scope.put(Kind::Disk, name, self.disk()),
            Stage::BeginningAccess => scope.begin_access(name),
            Stage::EndingAccess => scope.end_access(name),
            Stage::CreatingImage => scope.put(Kind::Image, name, self.image()),
        };
        self.step = Step::Calling(stage);
        Next::Call(call.after(delay))
    }

    fn disk(&self) -> Value {
        json!({
            "location": self.context.settings.location,
            "tags": self.tags(),
            "properties": {"creationData": {"createOption": "Upload", "uploadSizeBytes": self.order.size}},
        })
    }

    fn image(&self) -> Value {
        let disk = self.context.scope.id(Kind::Disk, &self.name);
        json!({
            "location": self.context.settings.location,
            "tags": self.tags(),
            "properties": {
                "hyperVGeneration": "V2",
                "storageProfile": {
                    "osDisk": {"osType": "Linux", "managedDisk": {"id": disk}, "osState": "Generalized"},
                    "zoneResilient": true,
                },
            },
        })
    }

    fn on_called(&mut self, stage: Stage, reply: Result<Reply, CloudError>) -> Next<Call> {
        if stage == Stage::CreatingDisk {
            // It may exist from here on, also if the answer was lost.
            self.set_id();
        }
        let answer = match reply {
            Ok(Reply::Answer(answer)) => answer,
            // All of these calls may be repeated.
            Ok(Reply::Lost(detail)) => return self.repeat(stage, failed(detail)),
            Err(CloudError::Deadline) => return self.repeat(stage, CloudError::Deadline),
            Ok(Reply::Refused(error)) if error.is_conflict() => return self.repeat(stage, error.into_error()),
            Ok(reply) => return self.ended(stage, reply.answer().map(|answer| answer.value())),
            Err(error) => return self.ended(stage, Err(error)),
        };
        let (wait, awaited) = Await::begin(answer);
        self.go_on(stage, wait, awaited)
    }

    fn repeat(&mut self, stage: Stage, error: CloudError) -> Next<Call> {
        self.failures += 1;
        match self.failures > MAX_FAILURES {
            true => self.ended(stage, Err(error)),
            false => self.run(stage, REPEAT_PAUSE),
        }
    }

    fn go_on(&mut self, stage: Stage, wait: Option<Await>, awaited: Awaited) -> Next<Call> {
        match (awaited, wait) {
            (Awaited::Poll(call), Some(wait)) => {
                self.step = Step::Awaiting(stage, wait);
                Next::Call(call)
            }
            (Awaited::Poll(_), None) => self.fail(failed("a poll without an operation")),
            (Awaited::Ended(result), _) => self.ended(stage, result),
        }
    }

    fn ended(&mut self, stage: Stage, result: Result<Value, CloudError>) -> Next<Call> {
        let output = match result {
            Ok(output) => output,
            Err(error) => return self.fail(error),
        };
        self.failures = 0;
        match stage {
            Stage::CreatingDisk => self.run(Stage::BeginningAccess, Seconds::ZERO),
            Stage::BeginningAccess => match output["accessSAS"].as_str().or(output["accessSas"].as_str()) {
                Some(url) => {
                    self.sas = Some(SasUrl::new(url));
                    self.pending = pages(self.order.size);
                    self.send(Seconds::ZERO)
                }
                None => self.fail(failed("the answer to beginGetAccess has no URL")),
            },
            Stage::EndingAccess => self.run(Stage::CreatingImage, Seconds::ZERO),
            Stage::CreatingImage => {
                let mut deletion = self.deletion(&self.name);
                let next = deletion.begin_with_disk();
                self.step = Step::DeletingDisk(deletion);
                next
            }
        }
    }

    /// The image exists. A disk that stays is deleted with it.
    fn delete_disk(&mut self, mut deletion: Box<DeleteImage>, input: Input<'_, Reply>) -> Next<Call> {
        match deletion.step(input) {
            Next::Done(_) | Next::Failed(CloudError::NotFound(_)) => self.uploaded(),
            Next::Failed(error) => {
                warn!(provider = %self.context.provider, disk = self.name, %error, "cannot delete the disk of an upload");
                self.uploaded()
            }
            next => {
                self.step = Step::DeletingDisk(deletion);
                next
            }
        }
    }

    fn send(&mut self, pause: Seconds) -> Next<Call> {
        let next: Vec<Page> = self.pending.values().take(PAGES_PER_CALL).copied().collect();
        let Some(sas) = self.sas.as_ref().filter(|_| !next.is_empty()) else {
            return self.run(Stage::EndingAccess, Seconds::ZERO);
        };
        let call = calls::send_pages(sas, &self.order.file, next).after(pause);
        self.step = Step::Sending;
        Next::Call(call)
    }

    fn on_sent(&mut self, reply: Result<Reply, CloudError>) -> Next<Call> {
        let error = match reply {
            Ok(Reply::Sent(sent, error)) => {
                self.failures = 0;
                self.pending.retain(|from, _| !sent.contains(from));
                let left: u64 = self.pending.values().map(|page| page.length).sum();
                self.order.progress.set(self.order.size.saturating_sub(left));
                return self.send(if error.is_some() { REPEAT_PAUSE } else { Seconds::ZERO });
            }
            Ok(reply) => failed(format!("unexpected reply {reply:?}")),
            Err(error) => error,
        };
        self.failures += 1;
        if self.failures >= MAX_FAILURES { self.fail(error) } else { self.send(REPEAT_PAUSE) }
    }

    fn fail(&mut self, error: CloudError) -> Next<Call> {
        let deletion = self.deletion(&self.name);
        self.undo(deletion, error, Input::Start)
    }

    fn undo(&mut self, mut deletion: Box<DeleteImage>, error: CloudError, input: Input<'_, Reply>) -> Next<Call> {
        match deletion.step(input) {
            next @ (Next::Call(_) | Next::Observe) => {
                self.step = Step::Undoing(deletion, error);
                next
            }
            Next::Done(_) | Next::Failed(_) => Next::Failed(error),
        }
    }

    fn set_id(&mut self) {
        self.id = Some(ExternalId::text(&self.name));
    }

    fn uploaded(&mut self) -> Next<Call> {
        match self.id.clone() {
            Some(id) => Next::Done(Outcome::Uploaded(id)),
            None => Next::Failed(failed("an upload without an image")),
        }
    }
}

fn pages(size: u64) -> BTreeMap<u64, Page> {
    let page = |index: u64| {
        let from = index * PAGE_SIZE;
        (from, Page { from, length: PAGE_SIZE.min(size - from) })
    };
    (0..size.div_ceil(PAGE_SIZE)).map(page).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_cover_the_file_once() {
        for size in [SECTOR, PAGE_SIZE, PAGE_SIZE + SECTOR, 5 * PAGE_SIZE] {
            let mut at = 0;
            for page in pages(size).values() {
                assert_eq!(page.from, at);
                at += page.length;
            }
            assert_eq!(at, size);
        }
    }
}
