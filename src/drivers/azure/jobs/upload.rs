//! Upload of an image of the builder: its bytes go to the pages of a disk, which becomes an image.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::azure::api::api_types::Image;
use crate::azure::api::calls::{self, Answer, Call, Kind, Page, Reply, SasUrl};
use crate::azure::api::errors::failed;
use crate::azure::context::ProviderContext;
use crate::azure::jobs::images::DeleteImage;
use crate::azure::jobs::operation::{Await, Awaited};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use tracing::warn;

/// Bytes of a page range, which Azure limits, and ranges that one call sends.
const PAGE_SIZE: u64 = 4 * 1024 * 1024;
const PAGES_PER_CALL: usize = 40;
/// The length of an upload is a multiple of this.
const SECTOR: u64 = 512;
/// So many calls in a row may send nothing.
const MAX_FAILURES: u32 = 3;
const REPEAT_PAUSE: Seconds = Seconds(2.0);

pub struct UploadImage {
    context: Arc<ProviderContext>,
    order: Arc<UploadOrder>,
    id: Option<ExternalId>,
    sas: Option<SasUrl>,
    pending: BTreeMap<u64, Page>,
    failures: u32,
    step: Step,
}

enum Step {
    Begin,
    /// An earlier attempt may have made an image.
    ReadingOld,
    /// Remains of an earlier attempt are deleted first.
    DeletingOld(Box<DeleteImage>),
    Calling(Stage),
    Awaiting(Stage, Await),
    Sending,
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
    DeletingDisk,
}

impl UploadImage {
    pub fn new(context: Arc<ProviderContext>, order: Arc<UploadOrder>) -> Self {
        Self { context, order, id: None, sas: None, pending: BTreeMap::new(), failures: 0, step: Step::Begin }
    }

    pub fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    pub fn label(&self) -> &'static str {
        match &self.step {
            Step::Begin | Step::ReadingOld => "searching for the image",
            Step::DeletingOld(_) => "deleting what an earlier attempt left",
            Step::Calling(stage) | Step::Awaiting(stage, _) => match stage {
                Stage::CreatingDisk => "creating disk",
                Stage::BeginningAccess => "beginning access",
                Stage::EndingAccess => "ending access",
                Stage::CreatingImage => "creating image",
                Stage::DeletingDisk => "deleting disk",
            },
            Step::Sending => "sending to the disk",
            Step::Undoing(..) => "deleting what the upload has made",
            Step::Finished => "ended",
        }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::ReadingOld, Input::Reply(Ok(reply))) => self.on_old(reply),
            (Step::ReadingOld, Input::Reply(Err(error))) => Next::Failed(error),
            (Step::DeletingOld(deletion), input) => self.delete_old(deletion, input),
            (Step::Calling(stage), Input::Reply(reply)) => self.on_called(stage, reply),
            (Step::Awaiting(stage, mut wait), Input::Reply(reply)) => {
                let awaited = wait.step(reply);
                self.go_on(stage, Some(wait), awaited)
            }
            (Step::Sending, Input::Reply(reply)) => self.on_sent(reply),
            (Step::Undoing(deletion, error), input) => self.undo(deletion, error, input),
            (_, input) => Next::Failed(failed(format!("unexpected {input:?} while an image is uploaded"))),
        }
    }

    fn begin(&mut self) -> Next<Call> {
        if self.order.size == 0 || !self.order.size.is_multiple_of(SECTOR) {
            let size = self.order.size;
            return Next::Failed(failed(format!("the image has {size} bytes, which is no multiple of {SECTOR}")));
        }
        match self.order.may_exist {
            true => {
                let call = self.context.scope.get(Kind::Image, &self.order.name);
                self.step = Step::ReadingOld;
                Next::Call(call)
            }
            false => self.run(Stage::CreatingDisk, Seconds::ZERO),
        }
    }

    /// A complete image is used. Everything else of an earlier attempt is deleted.
    fn on_old(&mut self, reply: Reply) -> Next<Call> {
        let image: Option<Image> = match reply {
            Reply::Refused(error) if error.is_not_found() => None,
            reply => match reply.answer().and_then(Answer::read) {
                Ok(image) => Some(image),
                Err(error) => return Next::Failed(error),
            },
        };
        if let Some(image) = image {
            let is_own = self.order.marks.iter().all(|(key, value)| image.tags.get(key) == Some(value));
            if !is_own {
                return Next::Failed(failed(format!("another owner has an image of the name {}", self.order.name)));
            }
            if image.properties.provisioning_state == "Succeeded" {
                self.set_id();
                return self.run(Stage::DeletingDisk, Seconds::ZERO);
            }
        }
        let deletion = Box::new(self.deletion());
        self.delete_old(deletion, Input::Start)
    }

    fn deletion(&self) -> DeleteImage {
        DeleteImage::new(self.context.clone(), &ExternalId::text(&self.order.name))
    }

    fn delete_old(&mut self, mut deletion: Box<DeleteImage>, input: Input<'_, Reply>) -> Next<Call> {
        match deletion.step(input) {
            Next::Done(_) | Next::Failed(CloudError::NotFound(_)) => self.run(Stage::CreatingDisk, Seconds::ZERO),
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
        let (scope, name) = (&self.context.scope, &self.order.name);
        let call = match stage {
            Stage::CreatingDisk => scope.put(Kind::Disk, name, self.disk()),
            Stage::BeginningAccess => scope.begin_access(name),
            Stage::EndingAccess => scope.end_access(name),
            Stage::CreatingImage => scope.put(Kind::Image, name, self.image()),
            Stage::DeletingDisk => scope.delete(Kind::Disk, name),
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
        let disk = self.context.scope.id(Kind::Disk, &self.order.name);
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
            Ok(reply) => return self.ended(stage, reply.answer().map(|answer| answer.body)),
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
        let output = match (stage, result) {
            (_, Ok(output)) => output,
            // The image exists; the disk is a leak.
            (Stage::DeletingDisk, Err(error)) => {
                if !matches!(error, CloudError::NotFound(_)) {
                    warn!(provider = %self.context.provider, image = self.order.name, %error, "cannot delete a disk");
                }
                return self.uploaded();
            }
            (_, Err(error)) => return self.fail(error),
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
            Stage::CreatingImage => self.run(Stage::DeletingDisk, Seconds::ZERO),
            Stage::DeletingDisk => self.uploaded(),
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
        let deletion = Box::new(self.deletion());
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
        self.id = Some(ExternalId::text(&self.order.name));
    }

    fn uploaded(&mut self) -> Next<Call> {
        Next::Done(Outcome::Uploaded(ExternalId::text(&self.order.name)))
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
