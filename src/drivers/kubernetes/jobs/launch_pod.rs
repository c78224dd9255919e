//! Launch of a node that is a pod in a project that exists already.

use std::sync::Arc;

use serde_json::{Value, json};

use super::lost::LostRequests;
use super::marks;
use super::pod_wait::{PodProgress, PodWait};
use crate::kubernetes::calls::{self, Call, Reply};
use crate::kubernetes::config::PodLabel;
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use crate::kubernetes::inventory::{is_being_deleted, labels_of, pod_id};
use crate::kubernetes::objects::{self, LAUNCH_ID, USER};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceLogin};
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Time between two looks at the pod of an earlier attempt that is being deleted.
const OLD_POD_DELAY: Seconds = Seconds(0.5);

pub struct LaunchPod {
    context: Arc<ProviderContext>,
    order: Arc<LaunchOrder>,
    label: Option<Arc<PodLabel>>,
    pod: String,
    id: Option<ExternalId>,
    launch_id: String,
    lost: LostRequests,
    wait: PodWait,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    Creating,
    /// Reads the pod that exists already, or may exist because a response was lost.
    Reading,
    /// Reads the pod after its creation exceeded a quota, in the cluster's words: one of this name may belong to
    /// others.
    Confirming(String),
    Awaiting,
    Finished,
}

impl StateMachine for LaunchPod {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Creating, Input::Reply(reply)) => self.on_created(reply),
            (Step::Reading, Input::Reply(Ok(Reply::Object(pod)))) => self.on_existing(&pod),
            (Step::Reading, Input::Reply(Err(CloudError::NotFound(_)))) => self.create(Seconds::ZERO),
            (Step::Confirming(text), Input::Reply(reply)) => {
                if let Ok(Reply::Object(pod)) = reply
                    && !self.is_own(&pod)
                {
                    self.id = None;
                }
                Next::Failed(CloudError::Quota(text))
            }
            (Step::Awaiting, input) => match self.wait.step(input) {
                PodProgress::Ready(node) => self.launched(node),
                PodProgress::Waits(next) => {
                    self.step = Step::Awaiting;
                    next
                }
            },
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin => "beginning",
            Step::Creating => "creating the pod",
            Step::Reading | Step::Confirming(_) => "reading the pod",
            Step::Awaiting => self.wait.label(),
            Step::Finished => "ended",
        }
    }

    fn obstacle(&self) -> Option<String> {
        self.wait.obstacle()
    }
}

impl LaunchPod {
    pub fn new(context: Arc<ProviderContext>, order: Arc<LaunchOrder>) -> Self {
        let label = context.label(&order.pool, &order.label).cloned();
        let pod = format!("{}-{}", order.label, marks::node_id(&order));
        let id = pod_id(order.pool.as_str(), &pod);
        let wait = PodWait::new(context.clone(), id, order.pool.to_string(), pod.clone());
        let launch_id = marks::launch_id(&order);
        Self { context, label, pod, id: None, launch_id, lost: LostRequests::default(), wait, step: Step::Begin, order }
    }

    fn begin(&mut self) -> Next<Call> {
        if self.label.is_none() {
            return Next::Failed(CloudError::Denied(format!("label {} is not configured", self.order.label)));
        }
        let id = pod_id(self.order.pool.as_str(), &self.pod);
        if self.order.prior_instance.as_ref() == Some(&id) {
            self.id = Some(id);
            return self.read(Seconds::ZERO);
        }
        self.create(Seconds::ZERO)
    }

    fn create(&mut self, delay: Seconds) -> Next<Call> {
        let spec = self.label.as_ref().and_then(|label| Some((label, label.pod_spec.as_ref()?)));
        let Some((label, spec)) = spec else { return Next::Failed(failed("the label has no pod".to_owned())) };
        let mut annotations = label.annotations.clone();
        annotations.insert(LAUNCH_ID.to_owned(), self.launch_id.clone());
        let labels = marks::labels(&self.context, &self.order, label);
        let body = objects::pod(&self.pod, &labels, &annotations, spec);
        // Known before the request, so that a crash cannot lose the pod.
        self.id = Some(pod_id(self.order.pool.as_str(), &self.pod));
        let call = calls::create_pod(self.order.pool.as_str(), body).after(delay);
        self.call(Step::Creating, call)
    }

    fn on_created(&mut self, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply {
            Ok(Reply::Object(_)) => self.await_pod(),
            Ok(Reply::Rejected(Rejection::Exists { .. })) => {
                // Until it is known to be ours.
                self.id = None;
                self.read(Seconds::ZERO)
            }
            Ok(Reply::Rejected(Rejection::NotYet(delay))) => self.create(delay),
            Ok(Reply::Rejected(Rejection::NamespaceTerminating)) => {
                self.fail(FailureKind::Status, "the project is being deleted".to_owned())
            }
            Ok(Reply::Lost(text)) => {
                let Some(delay) = self.lost.next_delay() else {
                    return Next::Failed(CloudError::Outage { detail: text, may_have_worked: true });
                };
                self.read(delay)
            }
            Ok(other) => Next::Failed(failed(format!("unexpected {other:?}"))),
            Err(CloudError::Quota(text)) => {
                let call = calls::pod(self.order.pool.as_str(), &self.pod);
                self.call(Step::Confirming(text), call)
            }
            Err(error) => {
                // A refused pod does not exist, and it would not be ours to delete in a project of others.
                if matches!(error, CloudError::Denied(_)) {
                    self.id = None;
                }
                Next::Failed(error)
            }
        }
    }

    /// Continues with the pod that exists if this launch, or an earlier process for the same request, made it.
    fn on_existing(&mut self, pod: &Value) -> Next<Call> {
        if is_being_deleted(pod) {
            return self.read(OLD_POD_DELAY);
        }
        if self.is_own(pod) {
            self.id = Some(pod_id(self.order.pool.as_str(), &self.pod));
            return self.await_pod();
        }
        // A pod of another owner must not be deleted with the node.
        self.id = None;
        let owner = labels_of(pod);
        let owner = owner.get("nodepool_provider_name").map_or("another owner", String::as_str);
        let detail =
            format!("the pod {} in project {} exists already and belongs to {owner}", self.pod, self.order.pool);
        self.fail(FailureKind::Nodepool, detail)
    }

    /// Whether this launch made a pod.
    fn is_own(&self, pod: &Value) -> bool {
        pod["metadata"]["annotations"][LAUNCH_ID] == self.launch_id.as_str()
    }

    fn fail(&self, kind: FailureKind, detail: String) -> Next<Call> {
        Next::Failed(CloudError::Failed { kind, detail })
    }

    fn read(&mut self, delay: Seconds) -> Next<Call> {
        let call = calls::pod(self.order.pool.as_str(), &self.pod).after(delay);
        self.call(Step::Reading, call)
    }

    fn await_pod(&mut self) -> Next<Call> {
        self.step = Step::Awaiting;
        self.wait.begin()
    }

    fn launched(&mut self, node: Option<String>) -> Next<Call> {
        let (Some(label), Some(id)) = (&self.label, self.id.clone()) else {
            return Next::Failed(failed("the label is gone".to_owned()));
        };
        let (Some(address), Some(login)) = (self.context.address(), self.context.own_login()) else {
            return Next::Failed(failed("the login of the account is unknown".to_owned()));
        };
        let Some(token) = login.token else {
            let text = "the account has no token, and only a token can be handed out with a pod".to_owned();
            return Next::Failed(CloudError::Denied(text));
        };
        let mut instance = Instance::new(id);
        instance.interface_ip = Some(self.pod.clone());
        instance.cloud = self.context.settings.context.clone();
        instance.host_id = node;
        instance.resources = label.need.clone();
        instance.login = Some(Arc::new(InstanceLogin {
            username: None,
            connection_type: Some("kubectl".to_owned()),
            // The keys and their order are those of Nodepool 11.
            connection_port: json!({
                "pod": self.pod, "namespace": self.order.pool, "host": address.host, "ca_crt": login.ca_crt,
                "skiptls": address.skips_tls, "token": token, "user": USER,
            }),
            python_path: label.python_path.clone(),
            shell_type: label.shell_type.clone(),
            host_keys: Vec::new(),
        }));
        Next::Done(Outcome::Launched(Box::new(instance)))
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}
