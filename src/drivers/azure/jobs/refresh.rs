//! Refresh of the provider facts: machines, sizes and usages.

use std::sync::Arc;

use crate::azure::api::api_types::{Sku, Usage};
use crate::azure::api::calls::{Call, Reply};
use crate::azure::api::errors::failed;
use crate::azure::context::ProviderContext;
use crate::azure::instances;
use crate::azure::jobs::listing::{Look, Pages};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::resources::Resources;
use tracing::warn;

pub struct RefreshProvider {
    context: Arc<ProviderContext>,
    look: Option<Look>,
    query: Query,
    pages: Pages,
    usages: Option<Vec<Usage>>,
    failed: Vec<&'static str>,
    refused: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Query {
    Machines,
    Sizes,
    Usages,
}

impl Query {
    fn name(self) -> &'static str {
        match self {
            Query::Machines => "machines",
            Query::Sizes => "sizes",
            Query::Usages => "limits",
        }
    }
}

impl StateMachine for RefreshProvider {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match input {
            Input::Start => {
                let (look, call) = Look::begin(self.context.clone());
                self.look = Some(look);
                Next::Call(call)
            }
            Input::Reply(result) => match result.and_then(|reply| self.on_reply(reply)) {
                Ok(next) => next,
                Err(error) => self.query_failed(error),
            },
            input @ Input::Observed(_) => Next::Failed(failed(format!("unexpected {input:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        "refreshing"
    }
}

impl RefreshProvider {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self {
            context,
            look: None,
            query: Query::Machines,
            pages: Pages::new("skus.list"),
            usages: None,
            failed: Vec::new(),
            refused: Vec::new(),
        }
    }

    fn on_reply(&mut self, reply: Reply) -> Result<Next<Call>, CloudError> {
        let more = match (self.query, &mut self.look) {
            (Query::Machines, Some(look)) => look.add(reply)?,
            _ => self.pages.add(reply)?,
        };
        if let Some(call) = more {
            return Ok(Next::Call(call));
        }
        match self.query {
            Query::Machines => {}
            Query::Sizes => {
                let skus: Vec<Sku> = self.pages.read();
                self.context.record_sizes(&skus);
            }
            Query::Usages => self.usages = Some(self.pages.read()),
        }
        Ok(self.next())
    }

    fn next(&mut self) -> Next<Call> {
        let scope = &self.context.scope;
        match self.query {
            Query::Machines if self.context.are_sizes_due() => {
                self.query = Query::Sizes;
                self.pages = Pages::new("skus.list");
                Next::Call(scope.sizes())
            }
            Query::Machines | Query::Sizes => {
                self.query = Query::Usages;
                self.pages = Pages::new("usages.list");
                Next::Call(scope.usages())
            }
            Query::Usages => self.finish(),
        }
    }

    fn query_failed(&mut self, error: CloudError) -> Next<Call> {
        let name = self.query.name();
        match (self.query, error) {
            // Without an inventory, nothing is known about the cloud. A missing resource group is an error of the
            // configuration.
            (Query::Machines, CloudError::NotFound(text)) => return Next::Failed(CloudError::Denied(text)),
            (Query::Machines, error) => return Next::Failed(error),
            (_, CloudError::Denied(error)) => {
                warn!(provider = %self.context.provider, error, "{name} cannot be read: they count as unlimited");
                self.refused.push(name);
            }
            // Labels wait for the sizes; a refresh that failed is soon repeated.
            (Query::Sizes, error) if !self.context.are_sizes_known() => return Next::Failed(error),
            _ => self.failed.push(name),
        }
        self.next()
    }

    fn finish(&mut self) -> Next<Call> {
        let context = self.context.clone();
        let Some(look) = self.look.take() else { return Next::Failed(failed("a refresh without a look")) };
        let inventory = instances::inventory(&context, look.found());
        let mut own = Resources::none();
        let ours = inventory.instances().iter().filter(|instance| instance.belongs_to(&context.provider));
        ours.for_each(|instance| own.add(&instance.resources));
        let (limits, unmanaged) = match &self.usages {
            Some(usages) => context.limits(usages, &own),
            None => (Resources::unlimited(), Resources::none()),
        };
        let are_sizes_refused = self.refused.contains(&Query::Sizes.name());
        let launch_config = context.settings.launch_config(|label| context.label_facts(label, are_sizes_refused));
        let facts = ProviderFacts {
            limits,
            unmanaged,
            launch_config: Some(Arc::new(launch_config)),
            failed_queries: std::mem::take(&mut self.failed),
            refused_queries: std::mem::take(&mut self.refused),
            ..context.facts.clone()
        };
        Next::Done(Outcome::Refreshed(Arc::new(facts), Arc::new(inventory)))
    }
}
