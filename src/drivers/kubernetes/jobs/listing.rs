//! Listings: all namespaces, projects and pods of the provider, page by page.

use std::sync::Arc;

use serde_json::Value;

use crate::kubernetes::calls::{self, Call, Reply, Source};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::failed;
use crate::kubernetes::inventory::inventory;
use crate::kubernetes::variant::Variant;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};

/// Purpose of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    List,
    /// The objects are stored as the beginning of a watch.
    Watch,
}

pub struct ListNodes {
    context: Arc<ProviderContext>,
    purpose: Purpose,
    /// The lists that are complete, and the one whose pages are being read.
    lists: Vec<ObjectList>,
    items: Vec<Value>,
    /// The number of refused lists, and the last refusal.
    refused: usize,
    refusal: Option<CloudError>,
}

struct ObjectList {
    source: Source,
    items: Vec<Value>,
    version: String,
}

impl StateMachine for ListNodes {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => self.page(None),
            Input::Reply(Ok(Reply::Object(page))) => self.on_page(page),
            // One of several projects is not ours. The launches in it fail with the cluster's words.
            Input::Reply(Err(error @ CloudError::Denied(_)))
                if self.source().is_some_and(Source::is_one_of_several) =>
            {
                self.refused += 1;
                self.refusal = Some(error);
                self.items.clear();
                self.next_list(String::new())
            }
            Input::Reply(Err(error)) => Next::Failed(self.error(error)),
            input => Next::Failed(failed(format!("unexpected {input:?} in a listing"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing namespaces and pods"
    }
}

impl ListNodes {
    pub fn new(context: Arc<ProviderContext>, purpose: Purpose) -> Self {
        Self { context, purpose, lists: Vec::new(), items: Vec::new(), refused: 0, refusal: None }
    }

    /// The objects that are listed next.
    fn source(&self) -> Option<&Source> {
        self.context.settings.sources.get(self.lists.len())
    }

    fn page(&mut self, next: Option<&str>) -> Next<Call> {
        match self.source() {
            Some(source) => Next::Call(calls::list(source, &self.context.selector(), next)),
            None => self.finish(),
        }
    }

    fn on_page(&mut self, mut page: Value) -> Next<Call> {
        let Value::Array(items) = page["items"].take() else {
            return Next::Failed(failed("a list has no items".to_owned()));
        };
        self.items.extend(items);
        match page["metadata"]["continue"].as_str().filter(|next| !next.is_empty()) {
            Some(next) => self.page(Some(next)),
            None => self.next_list(page["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned()),
        }
    }

    fn next_list(&mut self, version: String) -> Next<Call> {
        if let Some(source) = self.source().cloned() {
            self.lists.push(ObjectList { source, items: std::mem::take(&mut self.items), version });
        }
        self.page(None)
    }

    fn finish(&mut self) -> Next<Call> {
        if self.refused == self.lists.len()
            && let Some(refusal) = self.refusal.take()
        {
            return Next::Failed(refusal);
        }
        let objects = self.lists.iter().flat_map(|list| list.items.iter().map(|item| (&list.source, item)));
        let inventory = Arc::new(inventory(&self.context, objects));
        if self.purpose == Purpose::Watch {
            let mut objects = self.context.objects();
            for list in self.lists.drain(..) {
                objects.replace(list.source, list.items, &list.version);
            }
        }
        Next::Done(Outcome::Listed(inventory))
    }

    /// `NotFound` would describe an object, but here the API itself is missing. In OpenShift each user may list
    /// projects.
    fn error(&self, error: CloudError) -> CloudError {
        match error {
            CloudError::NotFound(text) | CloudError::Denied(text)
                if self.context.settings.variant == Variant::OpenShift =>
            {
                CloudError::Denied(format!("this cluster has no projects, so it is no OpenShift: {text}"))
            }
            CloudError::NotFound(text) => failed(format!("this is no Kubernetes API: {text}")),
            other => other,
        }
    }
}
