//! Listing and deletion of uploaded images, and of the disks that broken uploads leave.

use std::sync::Arc;

use serde_json::Value;

use crate::azure::api::api_types::{Disk, Image, Resource, Tags};
use crate::azure::api::calls::{Answer, Call, Kind, Reply};
use crate::azure::api::errors::failed;
use crate::azure::context::ProviderContext;
use crate::azure::jobs::listing::Pages;
use crate::azure::jobs::operation::{Await, Awaited};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::{PROVIDER_MARK, StoredImage};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

const REPEAT_PAUSE: Seconds = Seconds(2.0);
const MAX_REPEATS: u32 = 30;

pub struct ListImages {
    context: Arc<ProviderContext>,
    pages: Pages,
}

impl StateMachine for ListImages {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let result = match input {
            Input::Start => return Next::Call(self.context.scope.list(Kind::Image)),
            Input::Reply(result) => result.and_then(|reply| self.pages.add(reply)),
            input @ Input::Observed(_) => Err(failed(format!("unexpected {input:?}"))),
        };
        match result {
            Ok(Some(call)) => Next::Call(call),
            Ok(None) => {
                let images = self.pages.read();
                let stored = |image: Image| StoredImage {
                    id: ExternalId::text(&image.name),
                    name: self.context.upload_name(&image.name).to_owned(),
                    meta: image.tags,
                };
                Next::Done(Outcome::Images(images.into_iter().map(stored).collect()))
            }
            Err(error) => Next::Failed(error),
        }
    }

    fn label(&self) -> &'static str {
        "listing images"
    }
}

impl ListImages {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self { context, pages: Pages::new(Kind::Image.list_key()) }
    }
}

/// Deletes an image of this provider, and a disk of the same name that its upload has left.
pub struct DeleteImage {
    context: Arc<ProviderContext>,
    name: String,
    /// Tags that both must have.
    marks: Tags,
    repeats: u32,
    has_existed: bool,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// The image may belong to others.
    ReadingImage,
    DeletingImage,
    AwaitingImage(Await),
    ReadingDisk,
    EndingAccess,
    AwaitingAccess(Await),
    DeletingDisk,
    AwaitingDisk(Await),
    Finished,
}

impl StateMachine for DeleteImage {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => {
                let call = self.context.scope.get(Kind::Image, &self.name);
                self.call(Step::ReadingImage, call)
            }
            (Step::ReadingImage, Input::Reply(Ok(reply))) => self.on_image(reply),
            (Step::DeletingImage, Input::Reply(Ok(reply))) => self.on_image_deleted(reply),
            (Step::AwaitingImage(wait), Input::Reply(reply)) => self.await_image(wait, reply),
            (Step::ReadingDisk, Input::Reply(Ok(reply))) => self.on_disk(reply),
            (Step::EndingAccess, Input::Reply(Ok(Reply::Answer(answer)))) => {
                let begun = Await::begin(answer);
                self.go_on(begun, Step::AwaitingAccess, Self::access_ended)
            }
            // The access has not begun, or ended before.
            (Step::EndingAccess, Input::Reply(Ok(_))) => self.delete_disk(Seconds::ZERO),
            (Step::AwaitingAccess(mut wait), Input::Reply(reply)) => {
                let awaited = wait.step(reply);
                self.go_on((Some(wait), awaited), Step::AwaitingAccess, Self::access_ended)
            }
            (Step::DeletingDisk, Input::Reply(Ok(reply))) => self.on_disk_deleted(reply),
            (Step::AwaitingDisk(mut wait), Input::Reply(reply)) => {
                let awaited = wait.step(reply);
                self.go_on((Some(wait), awaited), Step::AwaitingDisk, Self::disk_deleted)
            }
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
        let marks = Tags::from([(PROVIDER_MARK.to_owned(), context.provider.to_string())]);
        Self::with_marks(context, &id.to_string(), marks)
    }

    pub fn with_marks(context: Arc<ProviderContext>, name: &str, marks: Tags) -> Self {
        Self { context, name: name.to_owned(), marks, repeats: 0, has_existed: false, step: Step::Begin }
    }

    /// Begins with the disk, and leaves the image.
    pub fn begin_with_disk(&mut self) -> Next<Call> {
        self.read_disk()
    }

    fn go_on(
        &mut self,
        (wait, awaited): (Option<Await>, Awaited),
        step: fn(Await) -> Step,
        end: fn(&mut Self, Result<Value, CloudError>) -> Next<Call>,
    ) -> Next<Call> {
        match (awaited, wait) {
            (Awaited::Poll(call), Some(wait)) => self.call(step(wait), call),
            (Awaited::Poll(_), None) => Next::Failed(failed("a poll without an operation")),
            (Awaited::Ended(result), _) => end(self, result),
        }
    }

    fn on_image(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Refused(error) if error.is_not_found() => self.read_disk(),
            reply => match reply.answer().and_then(Answer::read::<Image>) {
                Ok(image) if self.is_own(&image) => self.delete_image(Seconds::ZERO),
                Ok(_) => self.read_disk(),
                Err(error) => Next::Failed(error),
            },
        }
    }

    fn is_own<P: Default>(&self, resource: &Resource<P>) -> bool {
        self.marks.iter().all(|(key, value)| resource.tags.get(key) == Some(value))
    }

    fn delete_image(&mut self, delay: Seconds) -> Next<Call> {
        let call = self.context.scope.delete(Kind::Image, &self.name).after(delay);
        self.call(Step::DeletingImage, call)
    }

    fn on_image_deleted(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Answer(answer) => {
                self.has_existed |= answer.status != reqwest::StatusCode::NO_CONTENT;
                let begun = Await::begin(answer);
                self.go_on(begun, Step::AwaitingImage, Self::image_deleted)
            }
            Reply::Refused(error) if error.is_not_found() => self.read_disk(),
            Reply::Refused(error) if error.is_conflict() && self.may_repeat() => self.delete_image(REPEAT_PAUSE),
            Reply::Lost(_) if self.may_repeat() => self.delete_image(REPEAT_PAUSE),
            reply => fail(reply),
        }
    }

    fn await_image(&mut self, mut wait: Await, reply: Result<Reply, CloudError>) -> Next<Call> {
        let awaited = wait.step(reply);
        self.go_on((Some(wait), awaited), Step::AwaitingImage, Self::image_deleted)
    }

    fn image_deleted(&mut self, result: Result<Value, CloudError>) -> Next<Call> {
        match result {
            Ok(_) | Err(CloudError::NotFound(_)) => self.read_disk(),
            Err(error) => Next::Failed(error),
        }
    }

    fn read_disk(&mut self) -> Next<Call> {
        let call = self.context.scope.get(Kind::Disk, &self.name);
        self.call(Step::ReadingDisk, call)
    }

    /// A disk of the same name may belong to others.
    fn on_disk(&mut self, reply: Reply) -> Next<Call> {
        let disk: Disk = match reply {
            Reply::Refused(error) if error.is_not_found() => return self.finish(),
            reply => match reply.answer().and_then(Answer::read) {
                Ok(disk) => disk,
                Err(error) => return Next::Failed(error),
            },
        };
        if !self.is_own(&disk) {
            return self.finish();
        }
        self.has_existed = true;
        match disk.properties.disk_state.as_str() {
            "ReadyToUpload" | "ActiveUpload" | "ActiveSAS" => {
                let call = self.context.scope.end_access(&self.name);
                self.call(Step::EndingAccess, call)
            }
            _ => self.delete_disk(Seconds::ZERO),
        }
    }

    fn access_ended(&mut self, _: Result<Value, CloudError>) -> Next<Call> {
        self.delete_disk(Seconds::ZERO)
    }

    fn delete_disk(&mut self, delay: Seconds) -> Next<Call> {
        let call = self.context.scope.delete(Kind::Disk, &self.name).after(delay);
        self.call(Step::DeletingDisk, call)
    }

    fn on_disk_deleted(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Answer(answer) => {
                let begun = Await::begin(answer);
                self.go_on(begun, Step::AwaitingDisk, Self::disk_deleted)
            }
            Reply::Refused(error) if error.is_not_found() => self.finish(),
            Reply::Refused(error) if error.status == reqwest::StatusCode::CONFLICT && self.may_repeat() => {
                self.delete_disk(REPEAT_PAUSE)
            }
            Reply::Lost(_) if self.may_repeat() => self.delete_disk(REPEAT_PAUSE),
            reply => fail(reply),
        }
    }

    fn disk_deleted(&mut self, result: Result<Value, CloudError>) -> Next<Call> {
        match result {
            Ok(_) | Err(CloudError::NotFound(_)) => self.finish(),
            Err(error) => Next::Failed(error),
        }
    }

    fn may_repeat(&mut self) -> bool {
        self.repeats += 1;
        self.repeats <= MAX_REPEATS
    }

    fn finish(&mut self) -> Next<Call> {
        match self.has_existed {
            true => Next::Done(Outcome::Deleted),
            false => Next::Failed(CloudError::not_found(format!("image {}", self.name))),
        }
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}

fn fail(reply: Reply) -> Next<Call> {
    match reply.answer() {
        Err(error) => Next::Failed(error),
        Ok(answer) => Next::Failed(failed(format!("unexpected reply {answer:?}"))),
    }
}
