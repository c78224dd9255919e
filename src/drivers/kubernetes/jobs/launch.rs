//! Launch of a node that is a namespace, or an OpenShift project: with an account that may use it and, for a pod label,
//! a pod.
//!
//! All names follow from the node, so a request whose response was lost is simply sent again.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::lost::LostRequests;
use super::marks;
use super::pod_wait::{PodProgress, PodWait};
use crate::kubernetes::calls::{self, Call, Reply};
use crate::kubernetes::client::ClusterAddress;
use crate::kubernetes::config::PodLabel;
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use crate::kubernetes::inventory::{is_being_deleted, marks_of};
use crate::kubernetes::objects::{self, LAUNCH_ID, USER};
use crate::kubernetes::variant::Variant;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceLogin};
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// First and last delay between two looks at the token, and the time after which there should be one.
const FIRST_TOKEN_DELAY: Seconds = Seconds(0.05);
const LAST_TOKEN_DELAY: Seconds = Seconds(1.0);
const TOKEN_TIMEOUT: Seconds = Seconds(30.0);
/// Time between two looks at the namespace of an earlier attempt that is being deleted.
const OLD_NAMESPACE_DELAY: Seconds = Seconds(0.5);
/// Number of looks at a project that exists but is not visible. OpenShift shows its users no project of their own that
/// is being deleted, and the end of one takes some seconds.
const MAX_HIDDEN: u32 = 60;
const HIDDEN_DELAY: Seconds = Seconds(1.0);
/// Number of refused requests to a new project, and the time between them: not every server of a cluster knows at once
/// that it is ours.
const MAX_REFUSED: u32 = 10;
const REFUSED_DELAY: Seconds = Seconds(0.3);

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
    lost: LostRequests,
    /// Requests that a new project refused.
    refused: u32,
    /// Looks at a project that exists but is not visible.
    hidden: u32,
    pod: PodWait,
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
    /// Reads the namespace after its creation exceeded a quota, in the cluster's words: one of this name may belong to
    /// others.
    Confirming(String),
    Creating(Part),
    /// Reads the namespace after the response to a creation was lost, because a failed read shows whether the cluster
    /// responds at all.
    Recovering(Part),
    /// The time waited so far, and the last delay.
    ReadingToken(Seconds, Seconds),
    AwaitingPod,
    Finished,
}

/// An object of the node, in the order of creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The namespace or project.
    Namespace,
    Account,
    /// The labels of a project.
    Labels,
    Secret,
    Role,
    Binding,
    Pod,
}

impl StateMachine for LaunchNode {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::ReadingNamespace, Input::Reply(Ok(Reply::Object(namespace)))) => self.on_existing(&namespace),
            (Step::ReadingNamespace, Input::Reply(Err(CloudError::NotFound(_)))) => self.create(Part::Namespace),
            (Step::ReadingNamespace, Input::Reply(Ok(Reply::Rejected(Rejection::Hidden(_))))) => self.on_hidden(),
            (Step::Creating(part), Input::Reply(reply)) => self.on_created(part, reply),
            (Step::Recovering(Part::Namespace), Input::Reply(Ok(Reply::Object(namespace)))) => {
                self.on_existing(&namespace)
            }
            (
                Step::Recovering(Part::Namespace),
                Input::Reply(Err(CloudError::NotFound(_)) | Ok(Reply::Rejected(Rejection::Hidden(_)))),
            ) => self.create(Part::Namespace),
            (Step::Recovering(part), Input::Reply(Ok(Reply::Object(_) | Reply::Rejected(Rejection::Hidden(_))))) => {
                self.create(part)
            }
            (Step::Confirming(text), Input::Reply(reply)) => self.on_refused(text, &reply),
            (Step::ReadingToken(waited, delay), Input::Reply(Ok(Reply::Object(secret)))) => {
                self.on_secret(waited, delay, &secret)
            }
            (Step::ReadingToken(waited, delay), Input::Reply(Err(CloudError::NotFound(_)))) => {
                self.on_secret(waited, delay, &Value::Null)
            }
            (Step::ReadingToken(waited, delay), Input::Reply(Err(CloudError::Denied(_)))) if self.may_be_refused() => {
                self.refused += 1;
                self.on_secret(waited, delay, &Value::Null)
            }
            (Step::AwaitingPod, input) => self.on_pod(input),
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
            Step::ReadingNamespace | Step::Confirming(_) | Step::Recovering(_) => "reading the namespace",
            Step::Creating(Part::Namespace | Part::Labels) => "creating the namespace",
            Step::Creating(Part::Account | Part::Secret | Part::Role | Part::Binding) => "creating the account",
            Step::Creating(Part::Pod) => "creating the pod",
            Step::ReadingToken(..) => "waiting for the token",
            Step::AwaitingPod => self.pod.label(),
            Step::Finished => "ended",
        }
    }

    fn obstacle(&self) -> Option<String> {
        self.pod.obstacle()
    }
}

impl LaunchNode {
    pub fn new(context: Arc<ProviderContext>, order: Arc<LaunchOrder>) -> Self {
        let label = context.label(&order.pool, &order.label).cloned();
        let namespace = format!("{}-{}", order.pool, marks::node_id(&order));
        let launch_id = marks::launch_id(&order);
        let id = ExternalId::text(namespace.clone());
        let pod = PodWait::new(context.clone(), id, namespace.clone(), order.label.to_string());
        Self {
            context,
            label,
            namespace,
            id: None,
            launch_id,
            has_plain_role: false,
            token: None,
            lost: LostRequests::default(),
            refused: 0,
            hidden: 0,
            pod,
            step: Step::Begin,
            order,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        if self.label.is_none() {
            return Next::Failed(CloudError::Denied(format!("label {} is not configured", self.order.label)));
        }
        match &self.order.prior_instance {
            Some(prior) if prior.to_string() == self.namespace => {
                self.id = Some(prior.clone());
                self.read_namespace(Seconds::ZERO)
            }
            _ => self.create(Part::Namespace),
        }
    }

    fn variant(&self) -> Variant {
        self.context.settings.variant
    }

    fn has_pod(&self) -> bool {
        self.label.as_ref().is_some_and(|label| label.pod_spec.is_some())
    }

    fn read_namespace(&mut self, delay: Seconds) -> Next<Call> {
        let call = self.variant().home(&self.namespace).after(delay);
        self.call(Step::ReadingNamespace, call)
    }

    /// Continues with the namespace that exists if this launch, or an earlier process for the same request, made it.
    fn on_existing(&mut self, namespace: &Value) -> Next<Call> {
        if is_being_deleted(namespace) {
            return self.read_namespace(OLD_NAMESPACE_DELAY);
        }
        match self.is_own(namespace) {
            true => {
                self.id = Some(ExternalId::text(self.namespace.clone()));
                self.next_part(Part::Namespace)
            }
            false => {
                let marks = marks_of(namespace);
                let owner = marks.get("nodepool_provider_name").map_or("another owner", String::as_str);
                self.fail_as_foreign(&format!("belongs to {owner}"))
            }
        }
    }

    /// Whether this launch made a namespace.
    fn is_own(&self, namespace: &Value) -> bool {
        let annotated = namespace["metadata"]["annotations"][LAUNCH_ID].as_str().map(str::to_owned);
        annotated.or_else(|| marks_of(namespace).remove(LAUNCH_ID)).as_ref() == Some(&self.launch_id)
    }

    fn on_refused(&mut self, text: String, reply: &Result<Reply, CloudError>) -> Next<Call> {
        if let Ok(Reply::Object(namespace)) = reply
            && !self.is_own(namespace)
        {
            self.id = None;
        }
        Next::Failed(CloudError::Quota(text))
    }

    /// A namespace of another owner must not be deleted with the node.
    fn fail_as_foreign(&mut self, why: &str) -> Next<Call> {
        self.id = None;
        let detail = format!("the {} {} exists already and {why}", self.variant().home_word(), self.namespace);
        Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail })
    }

    /// The project that was to be read does not exist, or is not visible.
    fn on_hidden(&mut self) -> Next<Call> {
        self.hidden += 1;
        if self.hidden > MAX_HIDDEN {
            return self.fail_as_foreign("is not visible to this account");
        }
        self.create_after(Part::Namespace, HIDDEN_DELAY)
    }

    fn create(&mut self, part: Part) -> Next<Call> {
        self.create_after(part, Seconds::ZERO)
    }

    fn create_after(&mut self, part: Part, delay: Seconds) -> Next<Call> {
        if part == Part::Namespace {
            // Known before the request, so that a crash cannot lose the namespace.
            self.id = Some(ExternalId::text(self.namespace.clone()));
        }
        match self.creation(part) {
            Ok(call) => self.call(Step::Creating(part), call.after(delay)),
            Err(error) => Next::Failed(error),
        }
    }

    fn creation(&self, part: Part) -> Result<Call, CloudError> {
        let Some(label) = &self.label else { return Err(failed("the label is gone".to_owned())) };
        let (namespace, is_project) = (&self.namespace, self.variant().is_openshift());
        let labels = || marks::labels(&self.context, &self.order, label);
        Ok(match part {
            Part::Namespace if is_project => {
                calls::request_project(objects::project_request(namespace, &labels(), &self.launch_id))
            }
            Part::Namespace => calls::create_namespace(objects::namespace(namespace, &labels(), &self.launch_id)),
            Part::Labels => calls::label_namespace(namespace, &labels()),
            Part::Account => calls::create_service_account(namespace),
            Part::Secret => calls::create_secret(namespace),
            Part::Role => calls::create_role(namespace, objects::role(label.access(), self.has_plain_role)),
            Part::Binding if is_project => calls::create_project_role_binding(namespace),
            Part::Binding => calls::create_role_binding(namespace, objects::role_binding(label.access(), namespace)),
            Part::Pod => {
                let spec = label.pod_spec.as_ref().ok_or_else(|| failed("the label has no pod".to_owned()))?;
                let body = objects::pod(label.name.as_str(), &labels(), &label.annotations, spec);
                calls::create_pod(namespace, body)
            }
        })
    }

    fn on_created(&mut self, part: Part, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply {
            Ok(Reply::Object(_)) => self.next_part(part),
            // An earlier request has made it.
            Ok(Reply::Rejected(Rejection::Exists { is_being_deleted: false })) if part != Part::Namespace => {
                self.next_part(part)
            }
            Ok(Reply::Rejected(Rejection::Exists { is_being_deleted })) => {
                // Until it is known to be ours. A hidden project cannot be deleted anyway.
                if self.hidden == 0 {
                    self.id = None;
                }
                self.read_namespace(if is_being_deleted { OLD_NAMESPACE_DELAY } else { Seconds::ZERO })
            }
            Ok(Reply::Rejected(Rejection::NotYet(delay))) => self.create_after(part, delay),
            Ok(Reply::Rejected(Rejection::NamespaceTerminating)) => {
                status_failure("the namespace is being deleted".to_owned())
            }
            Ok(other @ (Reply::Rejected(_) | Reply::Watching | Reply::Event(_))) => {
                Next::Failed(failed(format!("unexpected {other:?}")))
            }
            Ok(Reply::Lost(text)) => {
                let Some(delay) = self.lost.next_delay() else {
                    return Next::Failed(CloudError::Outage { detail: text, may_have_worked: true });
                };
                let call = self.variant().home(&self.namespace).after(delay);
                self.call(Step::Recovering(part), call)
            }
            Err(CloudError::Denied(_)) if part == Part::Labels => {
                self.context.refuse_labels();
                self.next_part(part)
            }
            Err(CloudError::Denied(_)) if part != Part::Namespace && self.may_be_refused() => {
                self.refused += 1;
                self.create_after(part, REFUSED_DELAY)
            }
            Err(CloudError::Denied(text) | CloudError::NotFound(text))
                if part == Part::Namespace && lacks_projects(&text) =>
            {
                self.id = None;
                Next::Failed(CloudError::Denied(format!(
                    "{text}; the account needs the role self-provisioner, and the cluster must be an OpenShift"
                )))
            }
            Err(CloudError::Denied(text)) if part == Part::Role && !self.has_plain_role && is_escalation(&text) => {
                self.has_plain_role = true;
                self.create(Part::Role)
            }
            Err(CloudError::Quota(text)) if part == Part::Namespace => {
                let call = self.variant().home(&self.namespace);
                self.call(Step::Confirming(text), call)
            }
            Err(error) => {
                if part == Part::Namespace && matches!(error, CloudError::Denied(_)) {
                    self.id = None;
                }
                Next::Failed(error)
            }
        }
    }

    fn may_be_refused(&self) -> bool {
        self.variant().is_openshift() && self.refused < MAX_REFUSED
    }

    fn next_part(&mut self, part: Part) -> Next<Call> {
        self.lost = LostRequests::default();
        let is_project = self.variant().is_openshift();
        match part {
            Part::Namespace => self.create(Part::Account),
            // A refusal after the account was accepted is one of the labels.
            Part::Account if is_project && self.context.may_label() => self.create(Part::Labels),
            Part::Account | Part::Labels => self.create(Part::Secret),
            Part::Secret if !is_project => self.create(Part::Role),
            Part::Secret | Part::Role => self.create(Part::Binding),
            Part::Binding if self.has_pod() => self.create(Part::Pod),
            Part::Binding | Part::Pod => {
                let call = calls::secret(&self.namespace);
                self.call(Step::ReadingToken(Seconds::ZERO, Seconds::ZERO), call)
            }
        }
    }

    fn on_secret(&mut self, waited: Seconds, delay: Seconds, secret: &Value) -> Next<Call> {
        if let Some(token) = token_of(secret) {
            self.token = Some(token);
            if !self.has_pod() {
                return self.launched(None);
            }
            self.step = Step::AwaitingPod;
            return self.pod.begin();
        }
        if waited >= TOKEN_TIMEOUT {
            let detail = format!("the account {USER} has no token after {} s", TOKEN_TIMEOUT.0);
            return Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail });
        }
        let next = Seconds((delay.0 * 2.0).clamp(FIRST_TOKEN_DELAY.0, LAST_TOKEN_DELAY.0));
        let call = calls::secret(&self.namespace).after(next);
        self.call(Step::ReadingToken(Seconds(waited.0 + next.0), next), call)
    }

    fn on_pod(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match self.pod.step(input) {
            PodProgress::Ready(node) => self.launched(node),
            PodProgress::Waits(next) => {
                self.step = Step::AwaitingPod;
                next
            }
        }
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
            username: None,
            connection_type: Some(if is_pod { "kubectl" } else { self.variant().home_word() }.to_owned()),
            connection_port: self.connection(&address, token, is_pod.then(|| label.name.as_str())),
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

    /// The data for Zuul's kubeconfig; the keys and their order are those of Nodepool 11.
    fn connection(&self, address: &ClusterAddress, token: Token, pod: Option<&str>) -> Value {
        let mut connection = match self.variant() {
            Variant::Kubernetes => json!({ "name": self.namespace }),
            Variant::OpenShift | Variant::OpenShiftPods => json!({}),
        };
        connection["namespace"] = self.namespace.as_str().into();
        connection["host"] = address.host.as_str().into();
        connection["skiptls"] = address.skips_tls.into();
        connection["token"] = token.token.into();
        connection["user"] = USER.into();
        if !address.skips_tls {
            connection["ca_crt"] = token.ca_crt.into();
        }
        if let Some(pod) = pod {
            connection["pod"] = pod.into();
        }
        connection
    }
}

fn token_of(secret: &Value) -> Option<Token> {
    let data = |key: &str| secret["data"][key].as_str().filter(|text| !text.is_empty());
    let (token, ca_crt) = (data("token")?, data("ca.crt")?);
    Some(Token { token: String::from_utf8(STANDARD.decode(token).ok()?).ok()?, ca_crt: ca_crt.to_owned() })
}

/// Whether a project is refused because the account may not request any, or the cluster has none.
fn lacks_projects(text: &str) -> bool {
    text.contains("cannot create resource \"projectrequests\"")
        || text.contains("could not find the requested resource")
}

/// Whether a role is refused because it has rights that the launcher itself does not have.
fn is_escalation(text: &str) -> bool {
    text.contains("attempting to grant RBAC permissions not currently held")
}

fn status_failure(detail: String) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::kubernetes::open_with;
    use nodepool_model::config::diagnostics::Source;
    use nodepool_model::config::resolve::resolve;

    fn openshift_launch() -> LaunchNode {
        let text = "labels: [{name: p}]\nproviders: [{name: o, driver: openshift, context: c, pools: [{name: main, labels: \
                    [{name: p, type: project}]}]}]\n";
        let root = python_yaml::parse::parse(text, &mut Vec::new()).unwrap();
        let config =
            resolve(Source { file: "nodepool.yaml", root: &root }, None, crate::BUILT_IN_DRIVERS).config.unwrap();
        let driver = open_with(config.providers.values().next().unwrap(), Vec::new()).unwrap();
        let order = LaunchOrder {
            pool: "main".into(),
            label: "p".into(),
            hostname: "np0000000001".to_owned(),
            identity: "identity".to_owned(),
            attempt: 1,
            zone: None,
            image: None,
            request: Arc::new(json!({"id": "100-0000000001"})),
            metadata: BTreeMap::from([("nodepool_node_id".to_owned(), "0000000001".to_owned())]),
            prior_instance: None,
            may_exist: false,
            may_appear: false,
        };
        LaunchNode::new(driver.context.clone(), Arc::new(order))
    }

    #[test]
    fn a_namespace_is_known_before_each_request_for_it() {
        let mut launch = openshift_launch();
        assert!(matches!(launch.step(Input::Start), Next::Call(_)) && launch.external_id().is_some());
        // The existing one may belong to others.
        let exists = Rejection::Exists { is_being_deleted: true };
        launch.step(Input::Reply(Ok(Reply::Rejected(exists))));
        assert_eq!(launch.external_id(), None);
        let next = launch.step(Input::Reply(Err(CloudError::not_found("it has ended"))));
        assert!(matches!(next, Next::Call(_)) && launch.external_id().is_some());
    }

    #[test]
    fn a_project_that_stays_invisible_belongs_to_others() {
        let mut launch = openshift_launch();
        let mut next = launch.step(Input::Start);
        for look in 0.. {
            let call = match next {
                Next::Call(call) => call,
                Next::Failed(error) => {
                    let words = "the project main-0000000001 exists already and is not visible to this account";
                    assert!(error.to_string().contains(words), "{error}");
                    break;
                }
                other => panic!("{other:?}"),
            };
            assert!(look < 200);
            let reply = match call.method == http::Method::POST {
                true => Rejection::Exists { is_being_deleted: false },
                false => Rejection::Hidden("projects.project.openshift.io is forbidden".to_owned()),
            };
            let reply = Ok(Reply::Rejected(reply));
            next = launch.step(Input::Reply(reply));
        }
        // It is not deleted with the node.
        assert_eq!(launch.external_id(), None);
    }
}
