//! Wait for the pod of a launch: until it is ready, or can never be.

use std::sync::Arc;

use serde_json::Value;

use crate::kubernetes::calls::{self, Call, Reply};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use crate::kubernetes::inventory::PodState;
use crate::kubernetes::variant::Variant;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Number of looks at a pod whose image cannot be pulled, and the time between them.
const PULL_LOOKS: u32 = 3;
const PULL_DELAY: Seconds = Seconds(10.0);
/// A pod that so many consecutive inventories lack is asked for.
const MAX_MISSED: u32 = 3;
/// Number of consecutive looks without a response after which the attempt ends.
const MAX_FAILURES: u32 = 5;
/// Time between two looks at a pod that may not be watched.
const LOOK_DELAY: Seconds = Seconds(1.0);

pub struct PodWait {
    context: Arc<ProviderContext>,
    id: ExternalId,
    namespace: String,
    pod: String,
    /// The obstacle that holds the pod up, in the cluster's words.
    obstacle: Option<String>,
    /// The cluster refuses to have this pod watched.
    is_watch_refused: bool,
    /// Consecutive looks without a response.
    failures: u32,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// The number of inventories that lacked the pod.
    Observing(u32),
    /// The pod is watched by itself, because no inventory has the pods of a project.
    Watching,
    Reading,
    /// The number of looks that found the image not pulled.
    DoubtingPull(u32),
    Finished,
}

/// Result of a step.
#[derive(Debug)]
pub enum PodProgress {
    Waits(Next<Call>),
    /// The pod is ready, on this node of the cluster.
    Ready(Option<String>),
}

impl PodWait {
    pub fn new(context: Arc<ProviderContext>, id: ExternalId, namespace: String, pod: String) -> Self {
        Self { context, id, namespace, pod, obstacle: None, is_watch_refused: false, failures: 0, step: Step::Finished }
    }

    pub fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }

    pub fn label(&self) -> &'static str {
        match self.step {
            Step::DoubtingPull(_) => "waiting for the image",
            Step::Observing(_) | Step::Watching | Step::Reading | Step::Finished => "waiting for the pod",
        }
    }

    pub fn begin(&mut self) -> Next<Call> {
        self.wait(None)
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> PodProgress {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Observing(missed), Input::Observed(inventory)) => self.on_observed(missed, inventory),
            (Step::Watching, Input::Reply(reply)) => self.on_event(reply),
            (Step::Reading, Input::Reply(Ok(Reply::Object(pod)))) => self.on_pod(&pod, 0),
            (Step::DoubtingPull(looks), Input::Reply(Ok(Reply::Object(pod)))) => self.on_pod(&pod, looks),
            (Step::Reading | Step::DoubtingPull(_), Input::Reply(Err(CloudError::NotFound(_)))) => {
                status_failure("the pod no longer exists".to_owned())
            }
            (step, Input::Reply(Err(error))) => PodProgress::Waits(self.on_error(step, error)),
            (step, input) => PodProgress::Waits(Next::Failed(failed(format!("unexpected {input:?} in step {step:?}")))),
        }
    }

    fn on_observed(&mut self, missed: u32, inventory: &Inventory) -> PodProgress {
        let Some(instance) = inventory.find(&self.id) else {
            return PodProgress::Waits(match missed + 1 >= MAX_MISSED {
                true => self.read(Step::Reading, Seconds::ZERO),
                false if self.context.is_unwatched(&self.namespace) => self.read(Step::Reading, LOOK_DELAY),
                false => self.observe(missed + 1),
            });
        };
        if instance.state == InstanceState::Stopping {
            let word = match self.context.settings.variant {
                Variant::OpenShiftPods => "pod",
                variant @ (Variant::Kubernetes | Variant::OpenShift) => variant.home_word(),
            };
            return status_failure(format!("the {word} is being deleted"));
        }
        match self.context.pod_state(&self.id) {
            Some(state) => self.on_state(state, 0, None),
            None => PodProgress::Waits(self.observe(0)),
        }
    }

    fn on_event(&mut self, reply: Result<Reply, CloudError>) -> PodProgress {
        match reply {
            Ok(Reply::Event(Some(event))) => match event["type"].as_str() {
                Some("DELETED") => status_failure("the pod no longer exists".to_owned()),
                // The version is too old.
                Some("ERROR") => PodProgress::Waits(self.read(Step::Reading, LOOK_DELAY)),
                _ => self.on_pod(&event["object"], 0),
            },
            Ok(Reply::Event(None) | Reply::Rejected(Rejection::Gone)) => {
                PodProgress::Waits(self.read(Step::Reading, LOOK_DELAY))
            }
            Err(CloudError::Denied(_)) => {
                self.is_watch_refused = true;
                PodProgress::Waits(self.wait(None))
            }
            Err(error) => PodProgress::Waits(self.on_error(Step::Reading, error)),
            Ok(other) => PodProgress::Waits(Next::Failed(failed(format!("unexpected {other:?} while a pod starts")))),
        }
    }

    /// A look without a response says nothing about the pod. A few in a row end the attempt.
    fn on_error(&mut self, step: Step, error: CloudError) -> Next<Call> {
        let is_transient = matches!(error, CloudError::Failed { .. } | CloudError::Deadline);
        self.failures += 1;
        match is_transient && self.failures <= MAX_FAILURES {
            true => self.read(step, LOOK_DELAY),
            false => Next::Failed(error),
        }
    }

    fn on_pod(&mut self, pod: &Value, looks: u32) -> PodProgress {
        self.on_state(PodState::of(pod), looks, pod["metadata"]["resourceVersion"].as_str())
    }

    fn on_state(&mut self, state: PodState, looks: u32, version: Option<&str>) -> PodProgress {
        self.failures = 0;
        self.obstacle = match &state {
            PodState::Starting(why) => why.clone(),
            PodState::PullFailing(why) => Some(why.clone()),
            PodState::Ready(_) | PodState::Failed(_) => None,
        };
        match state {
            PodState::Ready(node) => PodProgress::Ready(node),
            PodState::Failed(why) => status_failure(why),
            PodState::PullFailing(why) if looks >= PULL_LOOKS => status_failure(why),
            PodState::PullFailing(_) => PodProgress::Waits(self.read(Step::DoubtingPull(looks + 1), PULL_DELAY)),
            PodState::Starting(_) => PodProgress::Waits(self.wait(version)),
        }
    }

    /// Waits for the next change of the pod, after this version of it if it was read.
    fn wait(&mut self, version: Option<&str>) -> Next<Call> {
        match self.context.settings.variant {
            Variant::OpenShift if self.is_watch_refused => self.read(Step::Reading, LOOK_DELAY),
            Variant::OpenShiftPods if self.context.is_unwatched(&self.namespace) => {
                self.read(Step::Reading, LOOK_DELAY)
            }
            Variant::Kubernetes | Variant::OpenShiftPods => self.observe(0),
            Variant::OpenShift => {
                self.step = Step::Watching;
                Next::Call(calls::pod_event(&self.namespace, &self.pod, version))
            }
        }
    }

    fn observe(&mut self, missed: u32) -> Next<Call> {
        self.step = Step::Observing(missed);
        Next::Observe
    }

    fn read(&mut self, step: Step, delay: Seconds) -> Next<Call> {
        self.step = step;
        Next::Call(calls::pod(&self.namespace, &self.pod).after(delay))
    }
}

fn status_failure(detail: String) -> PodProgress {
    PodProgress::Waits(Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail }))
}
