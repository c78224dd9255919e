//! Refresh: a listing, and the quotas that bound the nodes of the provider.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use tracing::info;

use super::listing::{ListNodes, Purpose};
use crate::kubernetes::calls::{self, Call, Reply};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::failed;
use crate::kubernetes::quota;
use crate::kubernetes::variant::Variant;
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::PoolQuota;
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::PoolName;
use nodepool_model::records::resources::Resources;

pub struct Refresh {
    context: Arc<ProviderContext>,
    lists: ListNodes,
    inventory: Option<Arc<Inventory>>,
    /// The projects whose quotas are still to be read.
    projects: Vec<String>,
    quotas: BTreeMap<String, PoolQuota>,
    /// The cluster has told the quotas of a project.
    has_looked: bool,
}

impl StateMachine for Refresh {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        if self.inventory.is_none() {
            return match self.lists.step(input) {
                Next::Done(Outcome::Listed(inventory)) => {
                    self.projects = self.projects_with_quotas(&inventory);
                    self.inventory = Some(inventory);
                    self.next_quota()
                }
                other => other,
            };
        }
        match input {
            Input::Reply(Ok(Reply::Object(list))) => {
                self.on_quotas(&list);
                self.next_quota()
            }
            Input::Reply(Err(error @ (CloudError::Denied(_) | CloudError::NotFound(_)))) => {
                if self.context.refuse_quotas() {
                    info!(provider = %self.context.provider, %error, "the quota cannot be read, so no limit is known; launches that exceed it wait");
                }
                self.projects.pop();
                self.next_quota()
            }
            Input::Reply(Err(error)) => Next::Failed(error),
            input => Next::Failed(failed(format!("unexpected {input:?} while quotas are read"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing namespaces and pods, and reading quotas"
    }
}

impl Refresh {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        let lists = ListNodes::new(context.clone(), Purpose::List);
        Self { context, lists, inventory: None, projects: Vec::new(), quotas: BTreeMap::new(), has_looked: false }
    }

    fn projects_with_quotas(&self, inventory: &Inventory) -> Vec<String> {
        match self.context.settings.variant {
            // The quotas of its namespaces do not exist before the namespaces.
            Variant::Kubernetes => Vec::new(),
            // All our projects have the same owner, for whom such a quota is made.
            Variant::OpenShift => {
                let exists = |instance: &&Instance| {
                    instance.belongs_to(&self.context.provider) && instance.state != InstanceState::Stopping
                };
                inventory.instances().iter().find(exists).map(|own| own.external_id.to_string()).into_iter().collect()
            }
            Variant::OpenShiftPods => self.context.settings.pools.keys().map(ToString::to_string).collect(),
        }
    }

    fn next_quota(&mut self) -> Next<Call> {
        match (self.projects.last(), self.context.settings.variant) {
            (Some(project), Variant::OpenShift) => Next::Call(calls::applied_quotas(project)),
            (Some(project), _) => Next::Call(calls::resource_quotas(project)),
            (None, _) => self.finish(),
        }
    }

    fn on_quotas(&mut self, list: &Value) {
        let Some(project) = self.projects.pop() else { return };
        self.has_looked = true;
        let is_whole = self.context.settings.variant == Variant::OpenShift;
        let read = if is_whole { quota::of_projects } else { quota::of_project };
        let quotas: Vec<(Value, Value)> = list["items"].as_array().into_iter().flatten().filter_map(read).collect();
        let mut ours = Resources::none();
        let instances = self.inventory.iter().flat_map(|inventory| inventory.instances());
        let is_counted = |instance: &&Instance| {
            let pool = instance.metadata.get("nodepool_pool_name");
            instance.belongs_to(&self.context.provider) && (is_whole || pool == Some(&project))
        };
        instances.filter(is_counted).for_each(|instance| ours.add(&instance.resources));
        if let Some(limits) = quota::limits(&quotas, &ours) {
            self.quotas.insert(project, limits);
        }
    }

    fn finish(&mut self) -> Next<Call> {
        let Some(inventory) = self.inventory.take() else { return Next::Failed(failed("no inventory".to_owned())) };
        let mut facts = self.context.facts.clone();
        let quotas = std::mem::take(&mut self.quotas);
        match self.context.settings.variant {
            Variant::OpenShift => {
                let quota = match self.has_looked {
                    true => {
                        let quota = quotas.into_values().next();
                        self.context.set_quota(quota.clone());
                        quota
                    }
                    // There is no project to ask in.
                    false => self.context.last_quota(),
                };
                if let Some(PoolQuota { limits, unmanaged }) = quota {
                    (facts.limits, facts.unmanaged) = (limits, unmanaged);
                }
            }
            Variant::Kubernetes | Variant::OpenShiftPods => {
                facts.pool_quotas = quotas.into_iter().map(|(pool, quota)| (PoolName::from(pool), quota)).collect();
            }
        }
        Next::Done(Outcome::Refreshed(Arc::new(facts), inventory))
    }
}
