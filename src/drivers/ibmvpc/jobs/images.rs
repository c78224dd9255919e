//! Listing and deletion of what uploads have made: images, and objects that a broken upload left in the bucket.

use std::sync::Arc;

use crate::ibmvpc::api::api_types::Image;
use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::{ApiError, failed};
use crate::ibmvpc::context::ProviderContext;
use crate::ibmvpc::image_id::ImageId;
use crate::ibmvpc::names;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::StoredImage;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Metadata of a listed image with its status.
pub const STATUS: &str = "status";
/// An image that is being imported or deleted is looked at again after this time.
const POLL_INTERVAL: Seconds = Seconds(2.0);
/// An import takes up to an hour; a deletion takes less.
const MAX_POLLS: u32 = 1800;

/// Lists the images of the provider's group, and its objects.
pub struct ListImages {
    context: Arc<ProviderContext>,
    found: Vec<StoredImage>,
    group: String,
    is_in_bucket: bool,
}

impl StateMachine for ListImages {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => Next::Call(calls::groups()),
            Input::Reply(Ok(Reply::Groups(page))) => {
                let wanted = names::image_group(&self.context.provider);
                match page.items.into_iter().find(|group| group.name == wanted) {
                    Some(group) => {
                        self.group = group.id;
                        Next::Call(calls::images_of_group(&self.group, None))
                    }
                    None => self.list_objects(None),
                }
            }
            Input::Reply(Ok(Reply::Images(page))) => {
                page.items.into_iter().for_each(|image| self.add_image(image));
                match page.next {
                    Some(next) => Next::Call(calls::images_of_group(&self.group, Some(&next))),
                    None => self.list_objects(None),
                }
            }
            Input::Reply(Ok(Reply::Listing(page))) => {
                page.contents.into_iter().for_each(|entry| self.add_object(entry.key));
                match page.next_continuation_token.filter(|token| !token.is_empty()) {
                    Some(token) => self.list_objects(Some(&token)),
                    None => self.finish(),
                }
            }
            // Without a bucket there are no objects.
            Input::Reply(Ok(Reply::Refused(error))) if self.is_in_bucket && error.code == "NoSuchBucket" => {
                self.finish()
            }
            Input::Reply(Ok(Reply::Refused(error))) => Next::Failed(error.into_error()),
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
        Self { context, found: Vec::new(), group: String::new(), is_in_bucket: false }
    }

    fn add_image(&mut self, image: Image) {
        let mut meta = names::image_marks(&self.context.provider, &image.name).unwrap_or_default();
        meta.insert(STATUS.to_owned(), image.status);
        self.found.push(StoredImage { id: ImageId::Image(image.id).to_external(), name: image.name, meta });
    }

    fn add_object(&mut self, key: String) {
        let name = key.split_once('.').map_or(key.as_str(), |(name, _)| name);
        if let Some(meta) = names::image_marks(&self.context.provider, name) {
            self.found.push(StoredImage { id: ImageId::Object(key.clone()).to_external(), name: key, meta });
        }
    }

    fn list_objects(&mut self, next: Option<&str>) -> Next<Call> {
        self.is_in_bucket = true;
        match &self.context.settings.storage {
            Some(storage) => Next::Call(calls::objects(&storage.bucket, next)),
            None => self.finish(),
        }
    }

    fn finish(&mut self) -> Next<Call> {
        Next::Done(Outcome::Images(std::mem::take(&mut self.found)))
    }
}

/// Deletes an image, after its object if there is one; or an object alone.
pub struct DeleteImage {
    context: Arc<ProviderContext>,
    id: ImageId,
    polls: u32,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    Reading,
    DeletingObject,
    Deleting,
    /// The image is being deleted, or imported.
    Waiting,
    Finished,
}

impl StateMachine for DeleteImage {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Reading, Input::Reply(Ok(Reply::Image(image)))) => self.delete_object(&image),
            (Step::DeletingObject, Input::Reply(Ok(reply))) => self.on_object_deleted(reply),
            (Step::Deleting, Input::Reply(Ok(Reply::Done | Reply::Lost(_)))) => self.wait(),
            (Step::Waiting, Input::Reply(Ok(Reply::Image(image)))) => match image.status.as_str() {
                "deleting" => self.wait(),
                _ => self.delete(),
            },
            (Step::Deleting | Step::Waiting, Input::Reply(Ok(Reply::Refused(error)))) => self.refused(error),
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
        Self { context, id: ImageId::of(id), polls: 0, step: Step::Begin }
    }

    fn begin(&mut self) -> Next<Call> {
        match (&self.id, &self.context.settings.storage) {
            (ImageId::Image(id), _) => {
                let call = calls::image(id);
                self.call(Step::Reading, call)
            }
            (ImageId::Object(key), Some(storage)) => {
                let call = calls::delete_object(&storage.bucket, key);
                self.call(Step::DeletingObject, call)
            }
            (ImageId::Object(_), None) => Next::Failed(CloudError::Denied("there is no object-storage".to_owned())),
        }
    }

    /// A failed upload may have left the object, which has the name of the image.
    fn delete_object(&mut self, image: &Image) -> Next<Call> {
        let is_ours = names::image_marks(&self.context.provider, &image.name).is_some();
        match self.context.settings.storage.as_ref().filter(|_| is_ours) {
            Some(storage) => {
                let key = format!("{}.{}", image.name, self.context.settings.image_format);
                let call = calls::delete_object(&storage.bucket, &key);
                self.call(Step::DeletingObject, call)
            }
            None => self.delete(),
        }
    }

    fn on_object_deleted(&mut self, reply: Reply) -> Next<Call> {
        match (&self.id, reply) {
            // The object does not keep the image.
            (ImageId::Image(_), Reply::Done | Reply::Refused(_) | Reply::Lost(_)) => self.delete(),
            (ImageId::Object(_), Reply::Done) => Next::Done(Outcome::Deleted),
            (ImageId::Object(_), Reply::Refused(error)) => Next::Failed(error.into_error()),
            (_, reply) => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn image_id(&self) -> &str {
        match &self.id {
            ImageId::Image(id) | ImageId::Object(id) => id,
        }
    }

    fn delete(&mut self) -> Next<Call> {
        let call = calls::delete_image(self.image_id());
        self.call(Step::Deleting, call)
    }

    fn refused(&mut self, error: ApiError) -> Next<Call> {
        match error.status.as_u16() {
            404 => Next::Done(Outcome::Deleted),
            // It is pending; the import ends.
            _ if error.is_wrong_state() => self.wait(),
            _ => Next::Failed(error.into_error()),
        }
    }

    fn wait(&mut self) -> Next<Call> {
        self.polls += 1;
        if self.polls > MAX_POLLS {
            return Next::Failed(failed("the image cannot be deleted"));
        }
        let call = calls::image(self.image_id()).after(POLL_INTERVAL);
        self.call(Step::Waiting, call)
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}
