//! Listing of resources that may be left behind, and their deletion.

use std::sync::Arc;

use crate::common::unused_listing::{ListUnused, UnusedKinds};
use crate::ibmvpc::api::api_types::{FloatingIp, Reference};
use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::failed;
use crate::ibmvpc::context::ProviderContext;
use crate::ibmvpc::image_id::ImageId;
use crate::ibmvpc::jobs::images::ListImages;
use crate::ibmvpc::leaks::{FLOATING_IPS, IMAGES, OBJECTS, OF_UPLOADS, VOLUMES};
use crate::ibmvpc::names;
use nodepool_driver::cloud_resource::CloudResource;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::OneCall;
use nodepool_model::records::ids::ExternalId;

/// The listing of these kinds.
pub fn list(context: Arc<ProviderContext>, kinds: &[&'static str]) -> ListUnused<IbmKinds> {
    let listing = ListImages::new(context.clone());
    ListUnused::new(IbmKinds { context }, kinds).with_images(OF_UPLOADS, kind_of_image, listing)
}

fn kind_of_image(id: &ExternalId) -> &'static str {
    match ImageId::of(id) {
        ImageId::Image(_) => IMAGES,
        ImageId::Object(_) => OBJECTS,
    }
}

pub struct IbmKinds {
    context: Arc<ProviderContext>,
}

impl UnusedKinds for IbmKinds {
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
        let next = match reply {
            Reply::FloatingIps(page) => {
                // One with a target serves an instance, with which it is deleted.
                let is_free = |ip: &FloatingIp| ip.status != "deleting" && ip.target.is_none();
                let free = page.items.into_iter().filter(is_free);
                found.extend(free.filter_map(|ip| self.of_node(kind, ip.id, &ip.resource_group, &ip.name)));
                page.next
            }
            Reply::Volumes(page) => {
                let unused = page.items.into_iter().filter(|volume| volume.attachment_state == "unattached");
                let unused = unused.filter(|volume| volume.status != "pending_deletion");
                found.extend(unused.filter_map(|volume| {
                    let instance = names::instance_of_volume(&volume.name)?;
                    self.of_node(kind, volume.id, &volume.resource_group, instance)
                }));
                page.next
            }
            Reply::Refused(error) => return Err(error.into_error()),
            reply => return Err(failed(format!("unexpected reply {reply:?}"))),
        };
        Ok(next.and_then(|next| page(kind, Some(&next))))
    }
}

impl IbmKinds {
    /// A resource of the node whose instance has this name.
    fn of_node(&self, kind: &'static str, id: String, group: &Reference, instance: &str) -> Option<CloudResource> {
        let group = self.context.catalog().group_name(group).unwrap_or_default();
        let metadata = names::metadata(&group, instance);
        (!metadata.is_empty()).then(|| CloudResource { kind, id: ExternalId::text(id), metadata })
    }
}

/// The call for a page of a kind.
fn page(kind: &str, next: Option<&str>) -> Option<Call> {
    match kind {
        FLOATING_IPS => Some(calls::floating_ips(next)),
        VOLUMES => Some(calls::unattached_volumes(next)),
        _ => None,
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
