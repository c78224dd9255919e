//! Listings: all namespaces with the provider's label, and their pods, page by page.

use std::sync::Arc;

use serde_json::Value;

use crate::kubernetes::calls::{self, Call, Kind, Reply};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::failed;
use crate::kubernetes::inventory::inventory;
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};

/// Purpose of a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    List,
    Refresh,
    /// The objects are stored as the beginning of a watch.
    Watch,
}

pub struct ListNodes {
    context: Arc<ProviderContext>,
    purpose: Purpose,
    kind: Kind,
    /// The objects so far, with the version of the list, of the kinds before and of this one.
    namespaces: (Vec<Value>, String),
    pods: (Vec<Value>, String),
}

impl ListNodes {
    pub fn new(context: Arc<ProviderContext>, purpose: Purpose) -> Self {
        Self { context, purpose, kind: Kind::Namespaces, namespaces: Default::default(), pods: Default::default() }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => Next::Call(self.page(None)),
            Input::Reply(Ok(Reply::Object(page))) => self.on_page(page),
            Input::Reply(Err(error)) => Next::Failed(self.error(error)),
            input => Next::Failed(failed(format!("unexpected {input:?} in a listing"))),
        }
    }

    fn page(&self, next: Option<&str>) -> Call {
        calls::list(self.kind, &self.context.selector(), next)
    }

    fn on_page(&mut self, mut page: Value) -> Next<Call> {
        let Value::Array(items) = page["items"].take() else {
            return Next::Failed(failed("a list has no items".to_owned()));
        };
        let list = match self.kind {
            Kind::Namespaces => &mut self.namespaces,
            Kind::Pods => &mut self.pods,
        };
        list.0.extend(items);
        list.1 = page["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        if let Some(next) = page["metadata"]["continue"].as_str().filter(|next| !next.is_empty()) {
            return Next::Call(self.page(Some(next)));
        }
        if self.kind == Kind::Namespaces && self.context.settings.has_pods() {
            self.kind = Kind::Pods;
            return Next::Call(self.page(None));
        }
        let inventory = Arc::new(inventory(&self.context, self.namespaces.0.iter(), self.pods.0.iter()));
        Next::Done(match self.purpose {
            Purpose::Watch => {
                let mut objects = self.context.objects();
                for (kind, (items, version)) in [(Kind::Namespaces, &mut self.namespaces), (Kind::Pods, &mut self.pods)]
                {
                    objects.replace(kind, std::mem::take(items), version);
                }
                Outcome::Listed(inventory)
            }
            Purpose::List => Outcome::Listed(inventory),
            Purpose::Refresh => Outcome::Refreshed(Arc::new(self.context.facts.clone()), inventory),
        })
    }

    /// `NotFound` would describe an object, but here the API itself is missing.
    fn error(&self, error: CloudError) -> CloudError {
        match error {
            CloudError::NotFound(text) => failed(format!("this is no Kubernetes API: {text}")),
            other => other,
        }
    }
}
