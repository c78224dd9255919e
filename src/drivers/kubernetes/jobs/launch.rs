//! Launch of a node: a namespace with an account that may use it and, for a pod label, a pod.
//!
//! All names follow from the node, so a request whose response was lost is simply sent again.

use std::collections::BTreeMap;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tracing::warn;

use crate::common::python_format;
use crate::kubernetes::calls::{self, Call, Reply};
use crate::kubernetes::client::ClusterAddress;
use crate::kubernetes::config::PodLabel;
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use crate::kubernetes::inventory::{PodState, is_being_deleted, labels_of};
use crate::kubernetes::names::is_label_value;
use crate::kubernetes::objects::{self, LAUNCH_ID, USER};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceLogin, InstanceState, Inventory};
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// First and last delay between two looks at the token, and the time after which there should be one.
const FIRST_TOKEN_DELAY: Seconds = Seconds(0.05);
const LAST_TOKEN_DELAY: Seconds = Seconds(1.0);
const TOKEN_TIMEOUT: Seconds = Seconds(30.0);
/// Number of looks at a pod whose image cannot be pulled, and the time between them.
const PULL_LOOKS: u32 = 3;
const PULL_DELAY: Seconds = Seconds(10.0);
/// Number of requests without a response after which a launch fails, and the delay after the first one.
const MAX_LOST: u32 = 6;
const LOST_DELAY: Seconds = Seconds(0.2);
/// Time between two looks at the namespace of an earlier attempt that is being deleted.
const OLD_NAMESPACE_DELAY: Seconds = Seconds(0.5);
/// A namespace that so many consecutive inventories lack is asked for.
const MAX_MISSED: u32 = 3;

pub struct LaunchNode {
    context: Arc<ProviderContext>,
    order: Arc<LaunchOrder>,
    label: Option<Arc<PodLabel>>,
    namespace: String,
    id: Option<ExternalId>,
    launch_id: String,
    /// The cluster refuses to grant the account rights that the launcher does not have itself.
    has_plain_role: bool,
    token: Option<Token>,
    /// Consecutive requests without a response.
    lost: u32,
    /// The obstacle that holds the pod up, in the cluster's words.
    obstacle: Option<String>,
    step: Step,
}

/// Credentials of the account. The certificate stays in base64.
struct Token {
    token: String,
    ca_crt: String,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// Reads the namespace that exists already.
    ReadingNamespace,
    Creating(Part),
    /// Reads the namespace after the response to a creation was lost, because a failed read shows whether the cluster
    /// responds at all.
    Recovering(Part),
    /// The time waited so far, and the last delay.
    ReadingToken(Seconds, Seconds),
    /// The number of inventories that lacked the namespace.
    AwaitingPod(u32),
    ReadingPod,
    /// The number of looks that found the image not pulled.
    DoubtingPull(u32),
    Finished,
}

/// An object of the node, in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Namespace,
    Account,
    Secret,
    Role,
    Binding,
    Pod,
}

impl LaunchNode {
    pub fn new(context: Arc<ProviderContext>, order: Arc<LaunchOrder>) -> Self {
        let label = context.label(&order.pool, &order.label).cloned();
        let node = order.metadata.get("nodepool_node_id").map(String::as_str).unwrap_or_default();
        let namespace = format!("{}-{node}", order.pool);
        let launch_id = launch_id(&order);
        Self {
            context,
            label,
            namespace,
            id: None,
            launch_id,
            has_plain_role: false,
            token: None,
            lost: 0,
            obstacle: None,
            step: Step::Begin,
            order,
        }
    }

    pub fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    pub fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }

    pub fn label(&self) -> &'static str {
        match self.step {
            Step::Begin => "beginning",
            Step::ReadingNamespace | Step::Recovering(_) => "reading the namespace",
            Step::Creating(Part::Namespace) => "creating the namespace",
            Step::Creating(Part::Account | Part::Secret | Part::Role | Part::Binding) => "creating the account",
            Step::Creating(Part::Pod) => "creating the pod",
            Step::ReadingToken(..) => "waiting for the token",
            Step::AwaitingPod(_) | Step::ReadingPod => "waiting for the pod",
            Step::DoubtingPull(_) => "waiting for the image",
            Step::Finished => "ended",
        }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::ReadingNamespace, Input::Reply(Ok(Reply::Object(namespace)))) => self.on_existing(&namespace),
            (Step::ReadingNamespace, Input::Reply(Err(CloudError::NotFound(_)))) => self.create(Part::Namespace),
            (Step::Creating(part), Input::Reply(reply)) => self.on_created(part, reply),
            (Step::Recovering(Part::Namespace), Input::Reply(Ok(Reply::Object(namespace)))) => {
                self.on_existing(&namespace)
            }
            (Step::Recovering(Part::Namespace), Input::Reply(Err(CloudError::NotFound(_)))) => {
                self.create(Part::Namespace)
            }
            (Step::Recovering(part), Input::Reply(Ok(Reply::Object(_)))) => self.create(part),
            (Step::ReadingToken(waited, delay), Input::Reply(Ok(Reply::Object(secret)))) => {
                self.on_secret(waited, delay, &secret)
            }
            (Step::ReadingToken(waited, delay), Input::Reply(Err(CloudError::NotFound(_)))) => {
                self.on_secret(waited, delay, &Value::Null)
            }
            (Step::AwaitingPod(missed), Input::Observed(inventory)) => self.on_observed(missed, inventory),
            (Step::ReadingPod, Input::Reply(Ok(Reply::Object(pod)))) => self.on_pod(PodState::of(&pod), 0),
            (Step::DoubtingPull(looks), Input::Reply(Ok(Reply::Object(pod)))) => self.on_pod(PodState::of(&pod), looks),
            (Step::ReadingPod | Step::DoubtingPull(_), Input::Reply(Err(CloudError::NotFound(_)))) => {
                status_failure("the pod no longer exists".to_owned())
            }
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn begin(&mut self) -> Next<Call> {
        if self.label.is_none() {
            return Next::Failed(CloudError::Denied(format!("label {} is not configured", self.order.label)));
        }
        // Known before the first request, so that a crash cannot lose the namespace.
        self.id = Some(ExternalId::text(self.namespace.clone()));
        match &self.order.prior_instance {
            Some(prior) if prior.to_string() == self.namespace => self.read_namespace(Seconds::ZERO),
            _ => self.create(Part::Namespace),
        }
    }

    fn read_namespace(&mut self, delay: Seconds) -> Next<Call> {
        let call = calls::namespace(&self.namespace).after(delay);
        self.call(Step::ReadingNamespace, call)
    }

    /// Continues with the namespace that exists if this launch, or an earlier process for the same request, made it.
    fn on_existing(&mut self, namespace: &Value) -> Next<Call> {
        if is_being_deleted(namespace) {
            return self.read_namespace(OLD_NAMESPACE_DELAY);
        }
        match namespace["metadata"]["annotations"][LAUNCH_ID] == self.launch_id.as_str() {
            true => self.create(Part::Account),
            false => {
                // A namespace of another owner must not be deleted with the node.
                self.id = None;
                let owner = labels_of(namespace);
                let owner = owner.get("nodepool_provider_name").map_or("another owner", String::as_str);
                let detail = format!("the namespace {} exists already and belongs to {owner}", self.namespace);
                Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail })
            }
        }
    }

    fn create(&mut self, part: Part) -> Next<Call> {
        match self.creation(part) {
            Ok(call) => self.call(Step::Creating(part), call),
            Err(error) => Next::Failed(error),
        }
    }

    fn creation(&self, part: Part) -> Result<Call, CloudError> {
        let Some(label) = &self.label else { return Err(failed("the label is gone".to_owned())) };
        let namespace = &self.namespace;
        Ok(match part {
            Part::Namespace => {
                calls::create_namespace(objects::namespace(namespace, &self.labels(label), &self.launch_id))
            }
            Part::Account => calls::create_service_account(namespace),
            Part::Secret => calls::create_secret(namespace),
            Part::Role => calls::create_role(namespace, objects::role(label.access(), self.has_plain_role)),
            Part::Binding => calls::create_role_binding(namespace, objects::role_binding(label.access(), namespace)),
            Part::Pod => {
                let spec = label.pod_spec.as_ref().ok_or_else(|| failed("the label has no pod".to_owned()))?;
                let body = objects::pod(label.name.as_str(), &self.labels(label), &label.annotations, spec);
                calls::create_pod(namespace, body)
            }
        })
    }

    /// The labels of namespace and pod. Those of the configuration cannot replace the ones that identify the node.
    fn labels(&self, label: &PodLabel) -> BTreeMap<String, String> {
        let mut labels = label.labels.clone();
        let root = |name: &str| (name == "request").then(|| Value::clone(&self.order.request));
        for (key, text) in &label.dynamic_labels {
            match python_format::interpolate(text, root) {
                Ok(value) if is_label_value(&value) => drop(labels.insert(key.clone(), value)),
                Ok(value) => {
                    warn!(provider = %self.context.provider, label = %label.name, key, value, "Kubernetes accepts no label of this value; it is left out")
                }
                Err(error) => {
                    warn!(provider = %self.context.provider, label = %label.name, key, error, "cannot expand dynamic-labels")
                }
            }
        }
        labels.insert("nodepool_node_label".to_owned(), label.name.to_string());
        labels.extend(self.order.metadata.clone());
        labels
    }

    fn on_created(&mut self, part: Part, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply {
            Ok(Reply::Object(_)) => self.next_part(part),
            // An earlier request has made it.
            Ok(Reply::Rejected(Rejection::Exists { is_being_deleted: false })) if part != Part::Namespace => {
                self.next_part(part)
            }
            Ok(Reply::Rejected(Rejection::Exists { is_being_deleted })) => {
                self.read_namespace(if is_being_deleted { OLD_NAMESPACE_DELAY } else { Seconds::ZERO })
            }
            Ok(Reply::Rejected(Rejection::NotYet(delay))) => self.repeat(part, delay),
            Ok(Reply::Rejected(Rejection::NamespaceTerminating)) => {
                status_failure("the namespace is being deleted".to_owned())
            }
            Ok(other @ (Reply::Rejected(_) | Reply::Watching)) => Next::Failed(failed(format!("unexpected {other:?}"))),
            Ok(Reply::Lost(text)) => {
                self.lost += 1;
                if self.lost >= MAX_LOST {
                    return Next::Failed(CloudError::Outage { detail: text, may_have_worked: true });
                }
                let delay = Seconds(LOST_DELAY.0 * f64::from(1_u32 << (self.lost - 1)));
                let call = calls::namespace(&self.namespace).after(delay);
                self.call(Step::Recovering(part), call)
            }
            Err(CloudError::Denied(text)) if part == Part::Role && !self.has_plain_role && is_escalation(&text) => {
                self.has_plain_role = true;
                self.create(Part::Role)
            }
            Err(error) => Next::Failed(error),
        }
    }

    fn repeat(&mut self, part: Part, delay: Seconds) -> Next<Call> {
        match self.creation(part) {
            Ok(call) => self.call(Step::Creating(part), call.after(delay)),
            Err(error) => Next::Failed(error),
        }
    }

    fn next_part(&mut self, part: Part) -> Next<Call> {
        self.lost = 0;
        let has_pod = self.label.as_ref().is_some_and(|label| label.pod_spec.is_some());
        match part {
            Part::Namespace => self.create(Part::Account),
            Part::Account => self.create(Part::Secret),
            Part::Secret => self.create(Part::Role),
            Part::Role => self.create(Part::Binding),
            Part::Binding if has_pod => self.create(Part::Pod),
            Part::Binding | Part::Pod => {
                let call = calls::secret(&self.namespace);
                self.call(Step::ReadingToken(Seconds::ZERO, Seconds::ZERO), call)
            }
        }
    }

    fn on_secret(&mut self, waited: Seconds, delay: Seconds, secret: &Value) -> Next<Call> {
        if let Some(token) = token_of(secret) {
            self.token = Some(token);
            return match self.label.as_ref().is_some_and(|label| label.pod_spec.is_some()) {
                true => self.observe(0),
                false => self.launched(None),
            };
        }
        if waited >= TOKEN_TIMEOUT {
            let detail = format!("the account {USER} has no token after {} s", TOKEN_TIMEOUT.0);
            return Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail });
        }
        let next = Seconds((delay.0 * 2.0).clamp(FIRST_TOKEN_DELAY.0, LAST_TOKEN_DELAY.0));
        let call = calls::secret(&self.namespace).after(next);
        self.call(Step::ReadingToken(Seconds(waited.0 + next.0), next), call)
    }

    fn on_observed(&mut self, missed: u32, inventory: &Inventory) -> Next<Call> {
        let Some(instance) = self.id.as_ref().and_then(|id| inventory.find(id)) else {
            return match missed + 1 >= MAX_MISSED {
                true => self.read_pod(Step::ReadingPod, Seconds::ZERO),
                false => self.observe(missed + 1),
            };
        };
        if instance.state == InstanceState::Stopping {
            return status_failure("the namespace is being deleted".to_owned());
        }
        match self.context.pod_in(&self.namespace) {
            Some(state) => self.on_pod(state, 0),
            None => self.observe(0),
        }
    }

    fn on_pod(&mut self, state: PodState, looks: u32) -> Next<Call> {
        self.obstacle = match &state {
            PodState::Starting(why) => why.clone(),
            PodState::PullFailing(why) => Some(why.clone()),
            PodState::Ready(_) | PodState::Failed(_) => None,
        };
        match state {
            PodState::Ready(node) => self.launched(node),
            PodState::Failed(why) => status_failure(why),
            PodState::PullFailing(why) if looks >= PULL_LOOKS => status_failure(why),
            PodState::PullFailing(_) => self.read_pod(Step::DoubtingPull(looks + 1), PULL_DELAY),
            PodState::Starting(_) => self.observe(0),
        }
    }

    fn read_pod(&mut self, step: Step, delay: Seconds) -> Next<Call> {
        let call = calls::pod(&self.namespace, self.order.label.as_str()).after(delay);
        self.call(step, call)
    }

    fn launched(&mut self, node: Option<String>) -> Next<Call> {
        let (Some(label), Some(token)) = (&self.label, self.token.take()) else {
            return Next::Failed(failed("the node has no token".to_owned()));
        };
        let Some(address) = self.context.address() else {
            return Next::Failed(failed("the address of the cluster is unknown".to_owned()));
        };
        let is_pod = label.pod_spec.is_some();
        let mut instance = Instance::new(ExternalId::text(self.namespace.clone()));
        instance.interface_ip = is_pod.then(|| label.name.to_string());
        instance.cloud = self.context.settings.context.clone();
        instance.host_id = node;
        instance.resources = label.need.clone();
        instance.login = Some(Arc::new(InstanceLogin {
            connection_type: if is_pod { "kubectl" } else { "namespace" }.to_owned(),
            connection_port: connection(&self.namespace, &address, token, is_pod.then(|| label.name.as_str())),
            python_path: label.python_path.clone(),
            shell_type: label.shell_type.clone(),
        }));
        Next::Done(Outcome::Launched(Box::new(instance)))
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }

    fn observe(&mut self, missed: u32) -> Next<Call> {
        self.step = Step::AwaitingPod(missed);
        Next::Observe
    }
}

/// The data for Zuul's kubeconfig; the keys and their order are those of Nodepool 11.
fn connection(namespace: &str, address: &ClusterAddress, token: Token, pod: Option<&str>) -> Value {
    let mut connection = json!({
        "name": namespace, "namespace": namespace, "host": address.host, "skiptls": address.skips_tls,
        "token": token.token, "user": USER,
    });
    if !address.skips_tls {
        connection["ca_crt"] = token.ca_crt.into();
    }
    if let Some(pod) = pod {
        connection["pod"] = pod.into();
    }
    connection
}

/// A value that only the launch of this request knows, also in another process, and that another installation with the
/// same node ids does not have.
fn launch_id(order: &LaunchOrder) -> String {
    let request = ["id", "created_time", "event_id", "requestor", "tenant_name"].map(|key| order.request.get(key));
    let text = json!([order.metadata, request]).to_string();
    let digest = Sha256::digest(text.as_bytes());
    digest[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn token_of(secret: &Value) -> Option<Token> {
    let data = |key: &str| secret["data"][key].as_str().filter(|text| !text.is_empty());
    let (token, ca_crt) = (data("token")?, data("ca.crt")?);
    Some(Token { token: String::from_utf8(STANDARD.decode(token).ok()?).ok()?, ca_crt: ca_crt.to_owned() })
}

/// Whether a role is refused because it has rights that the launcher itself does not have.
fn is_escalation(text: &str) -> bool {
    text.contains("attempting to grant RBAC permissions not currently held")
}

fn status_failure(detail: String) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
}
