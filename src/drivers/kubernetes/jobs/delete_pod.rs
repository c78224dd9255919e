//! Deletion of a node that is a pod in a shared project. The job ends when the pod no longer exists.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::Value;
use tracing::warn;

use crate::kubernetes::calls::{self, Call, Reply};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use crate::kubernetes::inventory::{is_being_deleted, labels_of, name_of};
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::{ExternalId, PoolName};
use nodepool_model::records::time::Seconds;

/// Time between two looks at a pod that inventories lack.
const CHECK_DELAY: Seconds = Seconds(1.0);

pub struct DeletePod {
    context: Arc<ProviderContext>,
    id: ExternalId,
    /// The pods that the id may mean, the next one first. Several only for ids of Nodepool 11.
    candidates: VecDeque<PodName>,
    pod: PodName,
    /// Projects that are not visible: they may not exist, or the account may have lost its rights.
    hidden: Vec<String>,
    /// Whether a project of the configuration was searched.
    was_found: bool,
    /// Whether the last inventory had the pod, so that one without it will follow.
    is_listed: bool,
    step: Step,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct PodName {
    project: String,
    pod: String,
}

#[derive(Debug)]
enum Step {
    Begin,
    Searching,
    Deleting,
    Awaiting,
    /// Inventories lack the pod, or its deletion was requested with an unclear result: only the API tells.
    Checking,
    /// Whether a project that is not visible exists.
    ListingProjects,
    Finished,
}

impl StateMachine for DeletePod {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Searching, Input::Reply(Ok(Reply::Object(pod)))) if self.is_ours(&pod) => self.delete(),
            (Step::Searching, Input::Reply(Ok(Reply::Object(_)) | Err(CloudError::NotFound(_)))) => {
                self.was_found |= self.is_configured();
                self.search()
            }
            (
                Step::Searching | Step::Deleting | Step::Checking,
                Input::Reply(Ok(Reply::Rejected(Rejection::Hidden(_)))),
            ) => {
                self.hidden.push(self.pod.project.clone());
                self.search()
            }
            (Step::ListingProjects, Input::Reply(Ok(Reply::Object(list)))) => self.on_projects(&list),
            // The cluster is no OpenShift.
            (Step::ListingProjects, Input::Reply(Err(CloudError::NotFound(_) | CloudError::Denied(_)))) => {
                if self.was_found { Next::Done(Outcome::Deleted) } else { self.fail_as_hidden() }
            }
            (Step::Deleting | Step::Checking, Input::Reply(Err(CloudError::NotFound(_)))) => {
                Next::Done(Outcome::Deleted)
            }
            (Step::Deleting, Input::Reply(Ok(_))) => self.observe(),
            (Step::Awaiting, Input::Observed(inventory)) => self.on_observed(inventory),
            // Otherwise the request was lost.
            (Step::Checking, Input::Reply(Ok(Reply::Object(pod)))) if !is_being_deleted(&pod) => self.delete(),
            (Step::Checking, Input::Reply(Ok(Reply::Object(_)))) if self.is_listed => self.observe(),
            (Step::Checking, Input::Reply(Ok(Reply::Object(_)))) => self.check(CHECK_DELAY),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::Deleting => "deleting the pod",
            Step::Searching | Step::ListingProjects => "looking for the pod",
            Step::Awaiting | Step::Checking => "waiting for the end of the pod",
            Step::Finished => "ended",
        }
    }
}

impl DeletePod {
    pub fn new(context: Arc<ProviderContext>, id: ExternalId) -> Self {
        let candidates = candidates(&id, &context.settings.pools.keys().collect::<Vec<_>>());
        Self {
            context,
            id,
            candidates,
            pod: PodName::default(),
            hidden: Vec::new(),
            was_found: false,
            is_listed: false,
            step: Step::Begin,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        match (self.candidates.pop_front(), &self.id) {
            (None, _) => Next::Failed(CloudError::not_found(format!("{} is no id of a pod", self.id))),
            (Some(pod), ExternalId::Object(_)) if self.context.is_listed_as_ours(&self.id) => {
                self.pod = pod;
                self.delete()
            }
            // It may be another owner's.
            (Some(pod), _) => {
                self.candidates.push_front(pod);
                self.search()
            }
        }
    }

    fn is_ours(&self, pod: &Value) -> bool {
        let labels = labels_of(pod);
        labels.get("nodepool_provider_name").is_some_and(|name| name == self.context.provider.as_str())
            && labels.get("nodepool_node_id").is_some_and(|node| self.pod.pod.ends_with(&format!("-{node}")))
    }

    fn is_configured(&self) -> bool {
        self.context.settings.pools.keys().any(|pool| pool.as_str() == self.pod.project)
    }

    /// Looks at the next pod that the id may mean.
    fn search(&mut self) -> Next<Call> {
        let call = match self.candidates.pop_front() {
            Some(next) => {
                self.pod = next;
                self.step = Step::Searching;
                calls::pod_if_visible(&self.pod.project, &self.pod.pod)
            }
            None if self.hidden.is_empty() => return Next::Done(Outcome::Deleted),
            None => {
                self.step = Step::ListingProjects;
                calls::visible_projects()
            }
        };
        Next::Call(call)
    }

    /// A project that the account should see in this list, but does not, does not exist.
    fn on_projects(&self, list: &Value) -> Next<Call> {
        let Some(projects) = list["items"].as_array() else {
            return Next::Failed(failed("a list has no items".to_owned()));
        };
        let exists = |hidden: &&String| projects.iter().any(|project| name_of(project) == hidden.as_str());
        let is_complete = list["metadata"]["continue"].as_str().is_none_or(str::is_empty);
        if !is_complete || self.hidden.iter().any(|hidden| exists(&hidden)) {
            return self.fail_as_hidden();
        }
        warn!(provider = %self.context.provider, external_id = %self.id, projects = self.hidden.join(", "), "the account sees no such project, so the pod counts as deleted");
        Next::Done(Outcome::Deleted)
    }

    fn fail_as_hidden(&self) -> Next<Call> {
        let projects = self.hidden.join(", ");
        Next::Failed(CloudError::Denied(format!("the account may not look for pod {} in {projects}", self.id)))
    }

    fn delete(&mut self) -> Next<Call> {
        let call = calls::delete_pod(&self.pod.project, &self.pod.pod);
        self.call(Step::Deleting, call)
    }

    fn on_observed(&mut self, inventory: &Inventory) -> Next<Call> {
        let instance = inventory.find(&self.id);
        self.is_listed = instance.is_some();
        match instance.map(|instance| &instance.state) {
            Some(InstanceState::Stopping) => self.observe(),
            // An inventory may be older than the deletion, or lack the pods of a pool that is no longer configured.
            _ => self.check(Seconds::ZERO),
        }
    }

    fn check(&mut self, delay: Seconds) -> Next<Call> {
        let call = calls::pod_if_visible(&self.pod.project, &self.pod.pod).after(delay);
        self.call(Step::Checking, call)
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }

    fn observe(&mut self) -> Next<Call> {
        self.step = Step::Awaiting;
        Next::Observe
    }
}

/// The pods that an id may mean. Nodepool 11 joins project, label and node id with hyphens, which project and label may
/// contain: first the projects of the configuration, the longest one first, then every other way to take it apart.
fn candidates(id: &ExternalId, pools: &[&PoolName]) -> VecDeque<PodName> {
    let name = |project: &str, pod: &str| PodName { project: project.to_owned(), pod: pod.to_owned() };
    let text = match id {
        ExternalId::Text(text) => text,
        ExternalId::Object(parts) => {
            let part = |key: &str| parts.get(key).and_then(|part| part.as_str());
            let pod = part("project").zip(part("pod"));
            return pod.map(|(project, pod)| name(project, pod)).into_iter().collect();
        }
    };
    let Some((both, node)) = text.rsplit_once('-') else { return VecDeque::new() };
    if !node.bytes().all(|byte| byte.is_ascii_digit()) {
        return VecDeque::new();
    }
    let split = both.rmatch_indices('-').map(|(index, _)| name(&text[..index], &text[index + 1..]));
    let mut all: Vec<PodName> = split.filter(|pod| !pod.project.is_empty() && !pod.pod.starts_with('-')).collect();
    all.sort_by_key(|pod| !pools.iter().any(|pool| pool.as_str() == pod.project));
    all.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::inventory::pod_id;

    fn meant(id: &ExternalId, pools: &[&str]) -> Vec<String> {
        let pools: Vec<PoolName> = pools.iter().map(|pool| PoolName::from(*pool)).collect();
        let found = candidates(id, &pools.iter().collect::<Vec<_>>());
        found.into_iter().map(|PodName { project, pod }| format!("{project}/{pod}")).collect()
    }

    #[test]
    fn an_id_names_its_project_also_without_the_configuration() {
        assert_eq!(meant(&pod_id("a-b", "pod-0000000001"), &["a"]), ["a-b/pod-0000000001"]);
        assert!(meant(&ExternalId::Object(serde_json::Map::new()), &[]).is_empty());
    }

    #[test]
    fn an_id_of_nodepool_11_is_taken_apart_by_the_names_of_pools() {
        let id = ExternalId::text("a-b-pod-0000000001");
        assert_eq!(meant(&id, &["a", "x"]), ["a/b-pod-0000000001", "a-b/pod-0000000001"]);
        for pools in [&["a", "a-b"][..], &["a-b"], &[]] {
            assert_eq!(meant(&id, pools), ["a-b/pod-0000000001", "a/b-pod-0000000001"]);
        }
        assert!(meant(&ExternalId::text("0000000001"), &["x"]).is_empty());
    }
}
