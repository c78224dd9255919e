//! Listing of resources that may be left behind, and their deletion.

use std::sync::Arc;

use crate::aws::api::api_types;
use crate::aws::api::calls::{self, Call, Reply};
use crate::aws::api::errors::failed;
use crate::aws::context::ProviderContext;
use crate::aws::image_id::ImageId;
use crate::aws::instances::AwsId;
use crate::aws::jobs::images::ListImages;
use crate::aws::leaks::{HOSTS, IMAGES, OBJECTS, OF_UPLOADS, SNAPSHOTS, TEMPLATES, VOLUMES, is_template_name};
use crate::common::unused_listing::{ListUnused, UnusedKinds};
use nodepool_driver::cloud_resource::CloudResource;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::OneCall;
use nodepool_model::records::ids::ExternalId;

/// The listing of these kinds.
pub fn list(context: Arc<ProviderContext>, kinds: &[&'static str]) -> ListUnused<AwsKinds> {
    let listing = ListImages::new(context.clone());
    ListUnused::new(AwsKinds { context }, kinds).with_images(OF_UPLOADS, kind_of_image, listing)
}

fn kind_of_image(id: &ExternalId) -> &'static str {
    match ImageId::of(id) {
        ImageId::Image(_) => IMAGES,
        ImageId::Snapshot(_) => SNAPSHOTS,
        ImageId::Object(_) => OBJECTS,
    }
}

pub struct AwsKinds {
    context: Arc<ProviderContext>,
}

impl UnusedKinds for AwsKinds {
    type Call = Call;
    type Reply = Reply;

    fn begin(&mut self, kind: &'static str) -> Option<Call> {
        page(kind, None)
    }

    fn on_page(
        &mut self,
        kind: &'static str,
        reply: Reply,
        found: &mut Vec<CloudResource>,
    ) -> Result<Option<Call>, CloudError> {
        let token = match reply {
            Reply::Volumes(page) => {
                let unused = page.volume_set.item.into_iter().filter(|volume| is_unused(&volume.status));
                found.extend(unused.map(|volume| CloudResource {
                    kind,
                    id: ExternalId::text(volume.volume_id),
                    metadata: api_types::tags(&volume.tag_set),
                }));
                page.next_token
            }
            Reply::Hosts(page) => {
                let existing = page.host_set.item.into_iter().filter(|host| !host.state.starts_with("released"));
                found.extend(existing.map(|host| CloudResource {
                    kind,
                    id: AwsId { instance: None, host: Some(host.host_id) }.to_external(),
                    metadata: api_types::tags(&host.tag_set),
                }));
                page.next_token
            }
            Reply::Templates(page) => {
                for template in page.launch_templates.item {
                    let is_ours = api_types::tags(&template.tag_set)
                        .get("nodepool_provider_name")
                        .is_some_and(|name| name == self.context.provider.as_str());
                    let name = template.launch_template_name;
                    if is_ours && is_template_name(&name) && !self.context.needs_template(&name) {
                        found.push(CloudResource::new(kind, name));
                    }
                }
                page.next_token
            }
            Reply::Refused(error) => return Err(error.into_error()),
            reply => return Err(failed(format!("unexpected reply {reply:?}"))),
        };
        Ok(token.filter(|token| !token.is_empty()).and_then(|token| page(kind, Some(&token))))
    }
}

/// The call for a page of a kind.
fn page(kind: &str, token: Option<&str>) -> Option<Call> {
    match kind {
        VOLUMES => Some(calls::volumes(token)),
        HOSTS => Some(calls::hosts(token)),
        TEMPLATES => Some(calls::templates(token)),
        _ => None,
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
