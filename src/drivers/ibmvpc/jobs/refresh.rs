//! Refresh of the provider facts: resource groups, what labels refer to, instances and floating IPs.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ibmvpc::api::api_types::{Image, Page, Profile, Subnet, Thing};
use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::failed;
use crate::ibmvpc::config::ImageSource;
use crate::ibmvpc::context::ProviderContext;
use crate::ibmvpc::jobs::listing::InventoryPages;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};

pub struct RefreshProvider {
    context: Arc<ProviderContext>,
    queries: VecDeque<Query>,
    current: Query,
    pages: InventoryPages,
    /// Items of the pages so far of the current list.
    things: Vec<Thing>,
    subnets: Vec<Subnet>,
    profiles: Vec<Profile>,
    images: Vec<Image>,
    /// Queries that failed; their earlier results are kept.
    failed: Vec<&'static str>,
}

/// A list that a refresh reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Query {
    Groups,
    Vpcs,
    Subnets,
    Keys,
    Profiles,
    Images,
    Inventory,
}

impl Query {
    fn name(self) -> &'static str {
        match self {
            Query::Groups => "resource groups",
            Query::Vpcs => "VPCs",
            Query::Subnets => "subnets",
            Query::Keys => "keys",
            Query::Profiles => "profiles",
            Query::Images => "images",
            Query::Inventory => "instances",
        }
    }

    fn call(self, next: Option<&str>) -> Call {
        match self {
            Query::Groups => calls::groups(),
            Query::Vpcs => calls::vpcs(next),
            Query::Subnets => calls::subnets(next),
            Query::Keys => calls::keys(next),
            Query::Profiles => calls::profiles(next),
            Query::Images => calls::images(next),
            Query::Inventory => InventoryPages::first(),
        }
    }
}

impl StateMachine for RefreshProvider {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let result = match input {
            Input::Start => return Next::Call(self.current.call(None)),
            Input::Reply(Ok(Reply::Refused(error))) => Err(error.into_error()),
            Input::Reply(Ok(reply)) => self.on_page(reply),
            Input::Reply(Err(error)) => Err(error),
            input @ Input::Observed(_) => return Next::Failed(failed(format!("unexpected {input:?}"))),
        };
        match result {
            Ok(Some(call)) => Next::Call(call),
            Ok(None) => self.next(),
            // Requests wait until all lists were read once; a refresh that failed is soon repeated.
            Err(error) if matches!(error, CloudError::Outage { .. }) || !self.is_known() => Next::Failed(error),
            Err(_) => {
                self.failed.push(self.current.name());
                // The pages so far are no list.
                (self.things, self.subnets, self.profiles, self.images) = Default::default();
                self.next()
            }
        }
    }

    fn label(&self) -> &'static str {
        "refreshing"
    }
}

impl RefreshProvider {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        // Names of groups are needed to read the inventory.
        let mut queries = VecDeque::from([Query::Vpcs, Query::Subnets, Query::Profiles]);
        if context.settings.labels().any(|label| !label.keys.is_empty()) {
            queries.push_back(Query::Keys);
        }
        let is_searched = |source: &ImageSource| matches!(source, ImageSource::Name(_) | ImageSource::Filter(_));
        if context.settings.labels().any(|label| is_searched(&label.source)) {
            queries.push_back(Query::Images);
        }
        queries.push_back(Query::Inventory);
        Self {
            context,
            queries,
            current: Query::Groups,
            pages: InventoryPages::default(),
            things: Vec::new(),
            subnets: Vec::new(),
            profiles: Vec::new(),
            images: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Whether there is an earlier result of the current query.
    fn is_known(&self) -> bool {
        let catalog = self.context.catalog();
        match self.current {
            Query::Vpcs => catalog.vpcs.is_some(),
            Query::Subnets => catalog.subnets.is_some(),
            Query::Keys => catalog.keys.is_some(),
            Query::Profiles => catalog.profiles.is_some(),
            Query::Images => catalog.images.is_some(),
            // Without these, nothing is known about the cloud, or about the owners of what is in it.
            Query::Groups | Query::Inventory => false,
        }
    }

    fn next(&mut self) -> Next<Call> {
        match self.queries.pop_front() {
            Some(query) => {
                self.current = query;
                Next::Call(query.call(None))
            }
            None => self.finish(),
        }
    }

    /// Adds a page. Returns the call for the next one; `None` after the last one of the list.
    fn on_page(&mut self, reply: Reply) -> Result<Option<Call>, CloudError> {
        let next = match (self.current, reply) {
            (Query::Inventory, reply) => return self.pages.add(reply),
            (Query::Groups, Reply::Groups(page)) => {
                self.context.record_groups(page.items);
                None
            }
            (Query::Vpcs, Reply::Vpcs(page)) | (Query::Keys, Reply::Keys(page)) => add(&mut self.things, page),
            (Query::Subnets, Reply::Subnets(page)) => add(&mut self.subnets, page),
            (Query::Profiles, Reply::Profiles(page)) => add(&mut self.profiles, page),
            (Query::Images, Reply::Images(page)) => add(&mut self.images, page),
            (_, reply) => return Err(failed(format!("unexpected reply {reply:?}"))),
        };
        if next.is_none() {
            self.record();
        }
        Ok(next.map(|next| self.current.call(Some(&next))))
    }

    /// Keeps a complete list in the catalog.
    fn record(&mut self) {
        let mut catalog = self.context.catalog();
        let things = std::mem::take(&mut self.things).into_iter().map(|thing| (thing.name, thing.id));
        match self.current {
            Query::Vpcs => catalog.vpcs = Some(things.collect()),
            Query::Keys => catalog.keys = Some(things.collect()),
            Query::Subnets => catalog.subnets = Some(std::mem::take(&mut self.subnets)),
            Query::Profiles => {
                let profiles = std::mem::take(&mut self.profiles).into_iter();
                catalog.profiles = Some(profiles.map(|profile| (profile.name.clone(), profile)).collect());
            }
            Query::Images => catalog.images = Some(std::mem::take(&mut self.images)),
            Query::Groups | Query::Inventory => {}
        }
    }

    fn finish(&mut self) -> Next<Call> {
        let context = self.context.clone();
        let inventory = self.pages.inventory(&context);
        let unmanaged = inventory.used_by_others(&context.provider);
        let catalog = context.catalog();
        let launch_config = context.settings.launch_config(|label| catalog.label_facts(&context.settings, label));
        drop(catalog);
        let facts = ProviderFacts {
            unmanaged,
            launch_config: Some(Arc::new(launch_config)),
            failed_queries: std::mem::take(&mut self.failed),
            ..context.facts.clone()
        };
        Next::Done(Outcome::Refreshed(Arc::new(facts), Arc::new(inventory)))
    }
}

fn add<T>(items: &mut Vec<T>, page: Page<T>) -> Option<String> {
    items.extend(page.items);
    page.next
}
