//! Upload of an image: its file is sent to the bucket, imported from there, and deleted from the bucket.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tracing::warn;

use crate::common::object_store;
use crate::common::part_upload::{MAX_FAILURES, PartUpload, REPEAT_PAUSE, Stored};
use crate::ibmvpc::api::api_types::{Image, Page, Thing};
use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::failed;
use crate::ibmvpc::config::IMPORT_TIMEOUT;
use crate::ibmvpc::context::ProviderContext;
use crate::ibmvpc::image_id::ImageId;
use crate::ibmvpc::jobs::images::{DeleteImage, ListImages, STATUS};
use crate::ibmvpc::names;
use crate::ibmvpc::request_body;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Parts of an object that one call sends.
const PARTS_PER_CALL: usize = 10;
/// Looks in a row at an import that may fail.
const MAX_FAILED_LOOKS: u32 = 10;
/// Interval between looks at an import: it grows.
const MIN_POLL_INTERVAL: f64 = 2.0;
const MAX_POLL_INTERVAL: f64 = 30.0;

pub struct UploadImage {
    context: Arc<ProviderContext>,
    order: Arc<UploadOrder>,
    /// The last thing that this upload has made; deleted if it fails.
    id: Option<ExternalId>,
    /// The name of the image, and of the object without its suffix.
    name: String,
    /// The address of the object for the import.
    object: String,
    /// Parts that are still to be sent.
    parts: PartUpload,
    failures: u32,
    waited: f64,
    step: Step,
}

enum Step {
    Begin,
    /// An earlier attempt may have left something.
    SearchingOld(Box<ListImages>),
    /// Leftovers of an earlier attempt are deleted first.
    DeletingOld(Box<DeleteImage>, VecDeque<ExternalId>),
    ReadingLocation,
    BeginningObject,
    SendingParts(String),
    CompletingObject(String),
    /// The object was not completed; its parts are deleted.
    Aborting(String, CloudError),
    ReadingGroups,
    CreatingGroup,
    Importing(String),
    /// The import may have begun although there was no response.
    SearchingImport(String),
    AwaitingImage(String),
    /// The import is over; the object is not needed any more.
    DeletingObject(String),
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
            (Step::ReadingLocation, Input::Reply(Ok(Reply::Location(location)))) => self.begin_object(&location),
            (Step::BeginningObject, Input::Reply(Ok(Reply::Begun(begun)))) => {
                self.id = Some(ImageId::Object(self.key()).to_external());
                let parts = object_store::parts(&self.order.file, self.order.size);
                self.parts = PartUpload::new(self.order.clone(), parts);
                self.send_parts(begun.upload, Seconds::ZERO)
            }
            (Step::SendingParts(upload), Input::Reply(result)) => match self.parts.on_sent(stored(result)) {
                Ok(pause) => self.send_parts(upload, pause),
                Err(error) => self.abort(&upload, error),
            },
            (Step::Aborting(upload, error), Input::Reply(reply)) => self.on_aborted(upload, error, reply),
            (Step::CompletingObject(upload), Input::Reply(result)) => self.on_object_completed(upload, result),
            (Step::ReadingGroups, Input::Reply(Ok(Reply::Groups(page)))) => self.on_groups(page),
            (Step::CreatingGroup, Input::Reply(Ok(reply))) => self.on_group(reply),
            (Step::Importing(group), Input::Reply(Ok(reply))) => self.on_import(group, reply),
            (Step::Importing(group), Input::Reply(Err(CloudError::Deadline))) => {
                self.on_import(group, Reply::Lost("no response within the deadline".to_owned()))
            }
            (Step::SearchingImport(group), Input::Reply(Ok(Reply::Images(page)))) => self.search_import(group, page),
            (Step::AwaitingImage(_), Input::Reply(Ok(Reply::Image(image)))) => {
                self.failures = 0;
                self.on_image(*image)
            }
            // A look that fails says nothing about the import.
            (Step::AwaitingImage(id), Input::Reply(Ok(_) | Err(_))) if self.failures < MAX_FAILED_LOOKS => {
                self.failures += 1;
                self.poll(id)
            }
            (Step::DeletingObject(image), Input::Reply(reply)) => self.on_object_deleted(image, reply),
            (_, Input::Reply(Ok(Reply::Refused(error)))) => Next::Failed(error.into_error()),
            (_, Input::Reply(Ok(Reply::Lost(detail)))) => Next::Failed(failed(detail)),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
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
            Step::ReadingLocation => "looking for the bucket",
            Step::BeginningObject | Step::SendingParts(_) | Step::CompletingObject(_) | Step::Aborting(..) => {
                "sending to the bucket"
            }
            Step::ReadingGroups | Step::CreatingGroup => "creating resource group",
            Step::Importing(_) | Step::SearchingImport(_) | Step::AwaitingImage(_) => "importing image",
            Step::DeletingObject(_) => "deleting the object",
            Step::Finished => "ended",
        }
    }
}

impl UploadImage {
    pub fn new(context: Arc<ProviderContext>, order: Arc<UploadOrder>) -> Self {
        let name = names::image(&context.provider, &order.marks);
        Self {
            context,
            parts: PartUpload::new(order.clone(), BTreeMap::new()),
            order,
            id: None,
            name,
            object: String::new(),
            failures: 0,
            waited: 0.0,
            step: Step::Begin,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        match self.order.may_exist {
            true => self.search_old(Box::new(ListImages::new(self.context.clone())), Input::Start),
            false => self.create(),
        }
    }

    /// A complete image is used. Everything else of an earlier attempt is deleted.
    fn search_old(&mut self, mut listing: Box<ListImages>, input: Input<'_, Reply>) -> Next<Call> {
        match listing.step(input) {
            Next::Done(Outcome::Images(images)) => {
                let own: Vec<_> = images.into_iter().filter(|image| image.has_marks(&self.order.marks)).collect();
                let is_complete = |status: Option<&String>| status.is_some_and(|status| status == "available");
                match own.iter().find(|image| is_complete(image.meta.get(STATUS))) {
                    Some(image) => self.delete_object(image.id.to_string()),
                    None => self.delete_old(own.into_iter().map(|image| image.id).collect()),
                }
            }
            next => {
                self.step = Step::SearchingOld(listing);
                next
            }
        }
    }

    fn delete_old(&mut self, mut left: VecDeque<ExternalId>) -> Next<Call> {
        match left.pop_front() {
            Some(id) => {
                let deletion = Box::new(DeleteImage::new(self.context.clone(), &id));
                self.go_on_deleting(deletion, left, Input::Start)
            }
            None => self.create(),
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

    fn bucket(&self) -> &str {
        self.context.settings.storage.as_ref().map(|storage| storage.bucket.as_str()).unwrap_or_default()
    }

    fn key(&self) -> String {
        format!("{}.{}", self.name, self.order.format)
    }

    fn create(&mut self) -> Next<Call> {
        if !self.context.settings.disk_images.contains_key(&self.order.image) {
            return Next::Failed(CloudError::Denied(format!("diskimage {} is not configured", self.order.image)));
        }
        if self.context.settings.storage.is_none() {
            return Next::Failed(CloudError::Denied("there is no object-storage to import images from".to_owned()));
        }
        let call = calls::bucket_location(self.bucket());
        self.call(Step::ReadingLocation, call)
    }

    /// The location of a bucket ends with its storage class: `us-south-standard`.
    fn begin_object(&mut self, location: &str) -> Next<Call> {
        if location.is_empty() {
            let detail = format!("the bucket {} names no location, from which IBM could import", self.bucket());
            return Next::Failed(CloudError::Denied(detail));
        }
        let region = location.rsplit_once('-').map_or(location, |(region, _)| region);
        self.object = format!("cos://{region}/{}/{}", self.bucket(), self.key());
        let call = calls::begin_object(self.bucket(), &self.key());
        self.call(Step::BeginningObject, call)
    }

    fn send_parts(&mut self, upload: String, pause: Seconds) -> Next<Call> {
        let next = self.parts.next(PARTS_PER_CALL);
        if next.is_empty() {
            let call = calls::complete_object(self.bucket(), &self.key(), &upload, &self.parts.stored).after(pause);
            return self.call(Step::CompletingObject(upload), call);
        }
        let call = calls::send_parts(self.bucket(), &self.key(), &upload, next).after(pause);
        self.call(Step::SendingParts(upload), call)
    }

    /// A completion without a response is repeated. If it had an effect, there is no such upload any more.
    fn on_object_completed(&mut self, upload: String, result: Result<Reply, CloudError>) -> Next<Call> {
        let error = match result {
            Ok(Reply::Done) => return self.find_group(),
            Ok(Reply::Refused(error)) if error.code == "NoSuchUpload" && self.parts.failures > 0 => {
                return self.find_group();
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
        self.failures = 0;
        let call = calls::abort_object(self.bucket(), &self.key(), upload);
        self.call(Step::Aborting(upload.to_owned(), error), call)
    }

    fn on_aborted(&mut self, upload: String, error: CloudError, reply: Result<Reply, CloudError>) -> Next<Call> {
        let Some(problem) = problem_of(reply) else { return Next::Failed(error) };
        self.failures += 1;
        if self.failures < MAX_FAILURES {
            let call = calls::abort_object(self.bucket(), &self.key(), &upload).after(REPEAT_PAUSE);
            return self.call(Step::Aborting(upload, error), call);
        }
        let object = &self.object;
        warn!(provider = %self.context.provider, object, problem, "the parts of an unfinished upload stay in the bucket");
        Next::Failed(error)
    }

    fn find_group(&mut self) -> Next<Call> {
        self.failures = 0;
        self.call(Step::ReadingGroups, calls::groups())
    }

    fn on_groups(&mut self, page: Page<Thing>) -> Next<Call> {
        let wanted = names::image_group(&self.context.provider);
        match page.items.into_iter().find(|group| group.name == wanted) {
            Some(group) => self.import(group.id, Seconds::ZERO),
            None if self.failures > MAX_FAILURES => Next::Failed(failed(format!("group {wanted} does not appear"))),
            None => self.call(Step::CreatingGroup, calls::create_group(&wanted)),
        }
    }

    fn on_group(&mut self, reply: Reply) -> Next<Call> {
        self.failures += 1;
        match reply {
            Reply::Group(group) => {
                self.failures = 0;
                self.import(group.id, Seconds::ZERO)
            }
            // Another upload has created it.
            Reply::Refused(error) if error.is_taken_name() || error.is_wrong_state() => {
                self.call(Step::ReadingGroups, calls::groups())
            }
            Reply::Lost(_) => self.call(Step::ReadingGroups, calls::groups().after(REPEAT_PAUSE)),
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn import(&mut self, group: String, delay: Seconds) -> Next<Call> {
        let Some(spec) = self.context.settings.disk_images.get(&self.order.image) else {
            return Next::Failed(CloudError::Denied(format!("diskimage {} is not configured", self.order.image)));
        };
        let body = request_body::image(&self.name, &group, &self.object, &spec.operating_system);
        self.call(Step::Importing(group), calls::create_image(body).after(delay))
    }

    fn on_import(&mut self, group: String, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Image(image) => self.on_image(*image),
            Reply::Lost(_) => {
                let call = calls::images_of_group(&group, None).after(REPEAT_PAUSE);
                self.call(Step::SearchingImport(group), call)
            }
            // An earlier call, whose response was lost, has begun the import.
            Reply::Refused(error) if error.is_taken_name() && self.failures < MAX_FAILURES => {
                self.failures += 1;
                let call = calls::images_of_group(&group, None);
                self.call(Step::SearchingImport(group), call)
            }
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn search_import(&mut self, group: String, page: Page<Image>) -> Next<Call> {
        if let Some(image) = page.items.into_iter().find(|image| image.name == self.name) {
            return self.on_image(image);
        }
        match page.next {
            Some(next) => {
                let call = calls::images_of_group(&group, Some(&next));
                self.call(Step::SearchingImport(group), call)
            }
            None if self.failures < MAX_FAILURES => {
                self.failures += 1;
                self.import(group, REPEAT_PAUSE)
            }
            None => Next::Failed(failed("the import does not begin")),
        }
    }

    fn on_image(&mut self, image: Image) -> Next<Call> {
        self.id = Some(ImageId::Image(image.id.clone()).to_external());
        match image.status.as_str() {
            "available" => self.delete_object(image.id),
            "pending" if self.waited > IMPORT_TIMEOUT.0 => {
                Next::Failed(failed(format!("the import {} does not end", image.id)))
            }
            "pending" => self.poll(image.id),
            status => {
                let reasons = image.status_reasons.iter().map(|reason| format!("{}: {}", reason.code, reason.message));
                let text = reasons.collect::<Vec<_>>().join("; ");
                Next::Failed(failed(format!("the imported image is {status}: {text}")))
            }
        }
    }

    fn poll(&mut self, id: String) -> Next<Call> {
        let delay = (self.waited / 4.0).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
        self.waited += delay;
        let call = calls::image(&id).after(Seconds(delay));
        self.call(Step::AwaitingImage(id), call)
    }

    fn delete_object(&mut self, image: String) -> Next<Call> {
        self.failures = 0;
        let call = calls::delete_object(self.bucket(), &self.key());
        self.call(Step::DeletingObject(image), call)
    }

    fn on_object_deleted(&mut self, image: String, reply: Result<Reply, CloudError>) -> Next<Call> {
        if let Some(problem) = problem_of(reply) {
            self.failures += 1;
            if self.failures < MAX_FAILURES {
                let call = calls::delete_object(self.bucket(), &self.key()).after(REPEAT_PAUSE);
                return self.call(Step::DeletingObject(image), call);
            }
            warn!(provider = %self.context.provider, object = self.object, problem, "cannot delete an object");
        }
        let id = ImageId::Image(image).to_external();
        self.id = Some(id.clone());
        Next::Done(Outcome::Uploaded(id))
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

/// Why a deletion may have had no effect.
fn problem_of(reply: Result<Reply, CloudError>) -> Option<String> {
    match reply {
        Ok(Reply::Refused(error)) if error.status.as_u16() == 404 => None,
        Ok(Reply::Refused(error)) => Some(error.text()),
        Ok(Reply::Lost(detail)) => Some(detail),
        Ok(_) => None,
        Err(error) => Some(error.to_string()),
    }
}
