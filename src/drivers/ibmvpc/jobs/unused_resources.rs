//! Listing of resources that may be left behind, and their deletion.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::ibmvpc::api::api_types::{FloatingIp, Reference};
use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::failed;
use crate::ibmvpc::context::ProviderContext;
use crate::ibmvpc::image_id::ImageId;
use crate::ibmvpc::jobs::images::ListImages;
use crate::ibmvpc::leaks::{FLOATING_IPS, IMAGES, OBJECTS, VOLUMES, is_of_uploads};
use crate::ibmvpc::names;
use nodepool_driver::cloud_resource::{CloudResource, UnusedResources};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, OneCall, StateMachine};
use nodepool_model::config::upload_config::StoredImage;
use nodepool_model::records::ids::ExternalId;

pub struct ListUnused {
    context: Arc<ProviderContext>,
    /// Kinds that are still to be listed, the current one first.
    kinds: VecDeque<&'static str>,
    /// The listing of what uploads have made, and the kinds for which it runs.
    images: Option<(ListImages, Vec<&'static str>)>,
    unused: UnusedResources,
}

impl StateMachine for ListUnused {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        if self.kinds.is_empty() && !matches!(input, Input::Start) {
            return self.list_images(input);
        }
        let result = match input {
            Input::Start => return self.list(None),
            Input::Reply(result) => result.and_then(|reply| self.on_page(reply)),
            input @ Input::Observed(_) => return Next::Failed(failed(format!("unexpected {input:?}"))),
        };
        match result {
            Ok(Some(next)) => return self.list(Some(&next)),
            Ok(None) => {}
            // A failure does not hide resources of other kinds.
            Err(error) => {
                if let Some(kind) = self.kinds.front() {
                    self.unused.failed.entry(kind).or_insert_with(|| error.to_string());
                }
            }
        }
        self.kinds.pop_front();
        self.list(None)
    }

    fn label(&self) -> &'static str {
        "listing unused resources"
    }
}

impl ListUnused {
    pub fn new(context: Arc<ProviderContext>, kinds: &[&'static str]) -> Self {
        let (of_uploads, others): (Vec<&'static str>, Vec<&'static str>) =
            kinds.iter().partition(|kind| is_of_uploads(kind));
        let images = (!of_uploads.is_empty()).then(|| (ListImages::new(context.clone()), of_uploads));
        Self { context, kinds: others.into(), images, unused: UnusedResources::default() }
    }

    fn list(&mut self, next: Option<&str>) -> Next<Call> {
        match self.kinds.front() {
            Some(&FLOATING_IPS) => Next::Call(calls::floating_ips(next)),
            Some(&VOLUMES) => Next::Call(calls::unattached_volumes(next)),
            Some(_) => {
                self.kinds.pop_front();
                self.list(None)
            }
            None => self.list_images(Input::Start),
        }
    }

    fn list_images(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let Some((listing, kinds)) = &mut self.images else { return self.finish() };
        match listing.step(input) {
            Next::Done(Outcome::Images(images)) => {
                let resource = |image: StoredImage| {
                    let kind = match ImageId::of(&image.id) {
                        ImageId::Image(_) => IMAGES,
                        ImageId::Object(_) => OBJECTS,
                    };
                    kinds.contains(&kind).then_some(CloudResource { kind, id: image.id, metadata: image.meta })
                };
                self.unused.found.extend(images.into_iter().filter_map(resource));
                self.finish()
            }
            Next::Failed(error) => {
                let text = error.to_string();
                self.unused.failed.extend(kinds.iter().map(|kind| (*kind, text.clone())));
                self.finish()
            }
            next => next,
        }
    }

    fn finish(&mut self) -> Next<Call> {
        Next::Done(Outcome::Unused(std::mem::take(&mut self.unused)))
    }

    /// Adds one page; returns the start of the next one.
    fn on_page(&mut self, reply: Reply) -> Result<Option<String>, CloudError> {
        match reply {
            Reply::FloatingIps(page) => {
                // One with a target serves an instance, with which it is deleted.
                let is_free = |ip: &FloatingIp| ip.status != "deleting" && ip.target.is_none();
                for ip in page.items.into_iter().filter(is_free) {
                    self.add(FLOATING_IPS, ip.id, &ip.resource_group, &ip.name);
                }
                Ok(page.next)
            }
            Reply::Volumes(page) => {
                let unused = page.items.into_iter().filter(|volume| volume.attachment_state == "unattached");
                for volume in unused.filter(|volume| volume.status != "pending_deletion") {
                    if let Some(instance) = names::instance_of_volume(&volume.name) {
                        self.add(VOLUMES, volume.id, &volume.resource_group, instance);
                    }
                }
                Ok(page.next)
            }
            Reply::Refused(error) => Err(error.into_error()),
            reply => Err(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    /// Adds a resource of the node whose instance has this name.
    fn add(&mut self, kind: &'static str, id: String, group: &Reference, instance: &str) {
        let group = self.context.catalog().group_name(group).unwrap_or_default();
        let metadata: BTreeMap<String, String> = names::metadata(&group, instance);
        if !metadata.is_empty() {
            self.unused.found.push(CloudResource { kind, id: ExternalId::text(id), metadata });
        }
    }
}

pub fn delete(resource: &CloudResource) -> OneCall<Call, Reply> {
    let id = resource.id.to_string();
    let (call, label) = match resource.kind {
        VOLUMES => (calls::delete_volume(&id), "deleting volume"),
        _ => (calls::delete_floating_ip(&id), "deleting floating IP"),
    };
    OneCall::new(label, call, |reply| match reply {
        Reply::Done => Ok(Outcome::Deleted),
        Reply::Refused(error) => Err(error.into_error()),
        Reply::Lost(detail) => Err(failed(detail)),
        reply => Err(failed(format!("unexpected reply {reply:?}"))),
    })
}
