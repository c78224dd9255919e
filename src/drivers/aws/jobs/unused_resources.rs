//! Listing of resources that may be left behind, and their deletion.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::aws::api::api_types;
use crate::aws::api::calls::{self, Call, Reply};
use crate::aws::api::errors::failed;
use crate::aws::context::ProviderContext;
use crate::aws::image_id::ImageId;
use crate::aws::instances::AwsId;
use crate::aws::jobs::images::ListImages;
use crate::aws::leaks::{HOSTS, IMAGES, OBJECTS, SNAPSHOTS, TEMPLATES, VOLUMES, is_of_uploads, is_template_name};
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
            Ok(Some(token)) => return self.list(Some(&token)),
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
            Some(&VOLUMES) => Next::Call(calls::volumes(next)),
            Some(&HOSTS) => Next::Call(calls::hosts(next)),
            Some(&TEMPLATES) => Next::Call(calls::templates(next)),
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
                        ImageId::Snapshot(_) => SNAPSHOTS,
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

    /// Adds one page; returns the token of the next one.
    fn on_page(&mut self, reply: Reply) -> Result<Option<String>, CloudError> {
        let next = match reply {
            Reply::Volumes(page) => {
                let unused = page.volume_set.item.into_iter().filter(|volume| is_unused(&volume.status));
                let found = unused.map(|volume| CloudResource {
                    kind: VOLUMES,
                    id: ExternalId::text(volume.volume_id),
                    metadata: api_types::tags(&volume.tag_set),
                });
                self.unused.found.extend(found);
                page.next_token
            }
            Reply::Hosts(page) => {
                let existing = page.host_set.item.into_iter().filter(|host| !host.state.starts_with("released"));
                let found = existing.map(|host| CloudResource {
                    kind: HOSTS,
                    id: AwsId { instance: None, host: Some(host.host_id) }.to_external(),
                    metadata: api_types::tags(&host.tag_set),
                });
                self.unused.found.extend(found);
                page.next_token
            }
            Reply::Templates(page) => {
                for template in page.launch_templates.item {
                    let is_ours = api_types::tags(&template.tag_set)
                        .get("nodepool_provider_name")
                        .is_some_and(|name| name == self.context.provider.as_str());
                    let name = template.launch_template_name;
                    if is_ours && is_template_name(&name) && !self.context.needs_template(&name) {
                        self.unused.found.push(CloudResource::new(TEMPLATES, name));
                    }
                }
                page.next_token
            }
            Reply::Refused(error) => return Err(error.into_error()),
            reply => return Err(failed(format!("unexpected reply {reply:?}"))),
        };
        Ok(next.filter(|token| !token.is_empty()))
    }
}

/// A volume that is attached, or is being created or deleted, is not unused.
fn is_unused(status: &str) -> bool {
    matches!(status, "available" | "error")
}

pub fn delete(resource: &CloudResource) -> OneCall<Call, Reply> {
    let (call, label) = match (resource.kind, &resource.id) {
        (VOLUMES, id) => (calls::delete_volume(&id.to_string()), "deleting volume"),
        (TEMPLATES, id) => (calls::delete_template(&id.to_string()), "deleting launch template"),
        (_, id) => (calls::release_host(&AwsId::of(id).host.unwrap_or_default()), "releasing host"),
    };
    OneCall::new(label, call, |reply| match reply {
        Reply::Done => Ok(Outcome::Deleted),
        Reply::Released(hosts) => match hosts.unsuccessful.item.first() {
            Some(unreleased) => Err(failed(format!("{}: {}", unreleased.error.code, unreleased.error.message))),
            None => Ok(Outcome::Deleted),
        },
        Reply::Refused(error) => Err(error.into_error()),
        Reply::Lost(detail) => Err(failed(detail)),
        reply => Err(failed(format!("unexpected reply {reply:?}"))),
    })
}
