//! The job that lists resources which may be left behind: one kind after the other, page by page, then what uploads
//! have made.

use std::collections::VecDeque;

use nodepool_driver::cloud_resource::{CloudResource, UnusedResources};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::StoredImage;
use nodepool_model::records::ids::ExternalId;

use super::error_text::failed;

/// The kinds of resources of a cloud, and their lists.
pub trait UnusedKinds {
    type Call;
    type Reply;

    /// The call for the first page of a kind; `None` for a kind that is not listed by itself.
    fn begin(&mut self, kind: &'static str) -> Option<Self::Call>;

    /// Adds the unused resources of a page. Returns the call for the next page.
    fn on_page(
        &mut self,
        kind: &'static str,
        reply: Self::Reply,
        found: &mut Vec<CloudResource>,
    ) -> Result<Option<Self::Call>, CloudError>;
}

type ListImages<K> = Box<dyn StateMachine<Call = <K as UnusedKinds>::Call, Reply = <K as UnusedKinds>::Reply>>;

pub struct ListUnused<K: UnusedKinds> {
    cloud: K,
    /// Kinds that are still to be listed, the current one first.
    kinds: VecDeque<&'static str>,
    images: Option<Images<K>>,
    unused: UnusedResources,
}

/// The listing of what uploads have made, and the kinds for which it runs.
struct Images<K: UnusedKinds> {
    listing: ListImages<K>,
    kinds: Vec<&'static str>,
    kind_of: fn(&ExternalId) -> &'static str,
}

impl<K: UnusedKinds<Reply: std::fmt::Debug>> StateMachine for ListUnused<K> {
    type Call = K::Call;
    type Reply = K::Reply;

    fn step(&mut self, input: Input<'_, K::Reply>) -> Next<K::Call> {
        let Some(kind) = self.kinds.front().copied() else { return self.list_images(input) };
        let result = match input {
            Input::Start => return self.list(),
            Input::Reply(result) => result.and_then(|reply| self.cloud.on_page(kind, reply, &mut self.unused.found)),
            input @ Input::Observed(_) => return Next::Failed(failed(format!("unexpected {input:?}"))),
        };
        match result {
            Ok(Some(call)) => return Next::Call(call),
            Ok(None) => {}
            // A failure does not hide resources of other kinds.
            Err(error) => drop(self.unused.failed.insert(kind, error.to_string())),
        }
        self.kinds.pop_front();
        self.list()
    }

    fn label(&self) -> &'static str {
        "listing unused resources"
    }
}

impl<K: UnusedKinds> ListUnused<K> {
    pub fn new(cloud: K, kinds: &[&'static str]) -> Self {
        Self { cloud, kinds: kinds.iter().copied().collect(), images: None, unused: UnusedResources::default() }
    }

    /// Finds the resources of these kinds, which uploads make, by a listing of images.
    pub fn with_images(
        mut self,
        of_uploads: &[&'static str],
        kind_of: fn(&ExternalId) -> &'static str,
        listing: impl StateMachine<Call = K::Call, Reply = K::Reply> + 'static,
    ) -> Self {
        let (kinds, others): (Vec<_>, Vec<_>) = self.kinds.into_iter().partition(|kind| of_uploads.contains(kind));
        self.kinds = others.into();
        self.images = (!kinds.is_empty()).then(|| Images { listing: Box::new(listing), kinds, kind_of });
        self
    }

    /// Lists the first remaining kind.
    fn list(&mut self) -> Next<K::Call> {
        while let Some(kind) = self.kinds.front() {
            if let Some(call) = self.cloud.begin(kind) {
                return Next::Call(call);
            }
            self.kinds.pop_front();
        }
        self.list_images(Input::Start)
    }

    fn list_images(&mut self, input: Input<'_, K::Reply>) -> Next<K::Call> {
        if let Some(Images { listing, kinds, kind_of }) = &mut self.images {
            match listing.step(input) {
                Next::Done(Outcome::Images(images)) => {
                    let resource = |StoredImage { id, meta, .. }: StoredImage| CloudResource {
                        kind: kind_of(&id),
                        id,
                        metadata: meta,
                    };
                    let found = images.into_iter().map(resource).filter(|found| kinds.contains(&found.kind));
                    self.unused.found.extend(found);
                }
                Next::Failed(error) => {
                    let text = error.to_string();
                    self.unused.failed.extend(kinds.iter().map(|kind| (*kind, text.clone())));
                }
                next => return next,
            }
        }
        Next::Done(Outcome::Unused(std::mem::take(&mut self.unused)))
    }
}
