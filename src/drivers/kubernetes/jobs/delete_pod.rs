//! Deletion of a node that is a pod in a shared project. The job ends when the pod no longer exists.

use std::sync::Arc;

use crate::kubernetes::calls::{self, Call, Reply};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::failed;
use crate::kubernetes::inventory::{is_being_deleted, labels_of};
use nodepool_driver::error::CloudError;
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::records::ids::{ExternalId, PoolName};
use nodepool_model::records::time::Seconds;

/// Time between two looks at a pod that inventories lack.
const CHECK_DELAY: Seconds = Seconds(1.0);

pub struct DeletePod {
    context: Arc<ProviderContext>,
    id: ExternalId,
    /// The pods that the id may mean, the next one last. Several only for ids of Nodepool 11.
    candidates: Vec<PodName>,
    pod: PodName,
    /// A project that could not be searched, with the cluster's words.
    refusal: Option<String>,
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
    Finished,
}

impl DeletePod {
    pub fn new(context: Arc<ProviderContext>, id: ExternalId) -> Self {
        let pools: Vec<&PoolName> = context.settings.pools.keys().collect();
        let candidates = candidates(&id, &pools);
        Self { context, id, candidates, pod: PodName::default(), refusal: None, is_listed: false, step: Step::Begin }
    }

    pub fn label(&self) -> &'static str {
        match self.step {
            Step::Begin | Step::Deleting => "deleting the pod",
            Step::Searching => "looking for the pod",
            Step::Awaiting | Step::Checking => "waiting for the end of the pod",
            Step::Finished => "ended",
        }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Searching, Input::Reply(Ok(Reply::Object(pod)))) => {
                let labels = labels_of(&pod);
                let is_ours = labels
                    .get("nodepool_provider_name")
                    .is_some_and(|name| name == self.context.provider.as_str())
                    && labels.get("nodepool_node_id").is_some_and(|node| self.pod.pod.ends_with(&format!("-{node}")));
                if is_ours { self.delete() } else { self.search() }
            }
            (Step::Searching, Input::Reply(Err(CloudError::NotFound(_)))) => self.search(),
            (Step::Searching, Input::Reply(Err(CloudError::Denied(text)))) => {
                self.refusal = Some(text);
                self.search()
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

    fn begin(&mut self) -> Next<Call> {
        match self.candidates.as_slice() {
            [] => Next::Failed(CloudError::not_found(format!("{} is no id of a pod", self.id))),
            [only] if matches!(self.id, ExternalId::Object(_)) || self.is_configured(&only.project) => {
                self.pod = only.clone();
                self.delete()
            }
            _ => self.search(),
        }
    }

    fn is_configured(&self, project: &str) -> bool {
        self.context.settings.pools.keys().any(|pool| pool.as_str() == project)
    }

    /// Looks at the next pod that the id may mean.
    fn search(&mut self) -> Next<Call> {
        match (self.candidates.pop(), self.refusal.take()) {
            (Some(next), refusal) => {
                (self.pod, self.refusal) = (next, refusal);
                let call = calls::pod(&self.pod.project, &self.pod.pod);
                self.call(Step::Searching, call)
            }
            (None, None) => Next::Done(Outcome::Deleted),
            (None, Some(text)) => Next::Failed(CloudError::Denied(format!(
                "the project of {} is unknown, because its pool is no longer configured, and cannot be searched for: {text}",
                self.id
            ))),
        }
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
        let call = calls::pod(&self.pod.project, &self.pod.pod).after(delay);
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
/// contain: the projects of the configuration, the longest one last, or else every way to take it apart.
fn candidates(id: &ExternalId, pools: &[&PoolName]) -> Vec<PodName> {
    let name = |project: &str, pod: &str| PodName { project: project.to_owned(), pod: pod.to_owned() };
    let text = match id {
        ExternalId::Text(text) => text,
        ExternalId::Object(parts) => {
            let part = |key: &str| parts.get(key).and_then(|part| part.as_str());
            let pod = part("project").zip(part("pod"));
            return pod.map(|(project, pod)| name(project, pod)).into_iter().collect();
        }
    };
    let is_configured = |project: &str| pools.iter().any(|pool| pool.as_str() == project);
    let Some((both, node)) = text.rsplit_once('-') else { return Vec::new() };
    if !node.bytes().all(|byte| byte.is_ascii_digit()) {
        return Vec::new();
    }
    let split = both.match_indices('-').map(|(index, _)| name(&text[..index], &text[index + 1..]));
    let all: Vec<PodName> = split.filter(|pod| !pod.project.is_empty() && !pod.pod.starts_with('-')).collect();
    let configured: Vec<PodName> = all.iter().filter(|pod| is_configured(&pod.project)).cloned().collect();
    if configured.is_empty() { all } else { configured }
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
        assert_eq!(meant(&id, &["a-b", "x"]), ["a-b/pod-0000000001"]);
        assert_eq!(meant(&id, &["a", "a-b"]), ["a/b-pod-0000000001", "a-b/pod-0000000001"]);
        assert_eq!(meant(&id, &["x"]), ["a/b-pod-0000000001", "a-b/pod-0000000001"]);
        assert!(meant(&ExternalId::text("0000000001"), &["x"]).is_empty());
    }
}
