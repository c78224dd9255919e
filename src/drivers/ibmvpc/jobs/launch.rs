//! Launch of an instance: creates its pool's resource group if it is missing, then the instance, and once this runs, a
//! floating IP if the pool asks for one.

use std::sync::Arc;

use serde_json::Value;

use crate::ibmvpc::api::api_types::VpcInstance;
use crate::ibmvpc::api::calls::{self, Call, Reply};
use crate::ibmvpc::api::errors::{ApiError, ended, failed};
use crate::ibmvpc::config::{IbmLabel, ImageSource};
use crate::ibmvpc::context::{self, ProviderContext, SeenInstance};
use crate::ibmvpc::instances;
use crate::ibmvpc::names;
use crate::ibmvpc::request_body::{self, InstanceRefs};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// Listings that are searched for an instance which an earlier process or attempt may have created.
const MAX_SEARCH_LISTINGS: u32 = 4;
/// An instance does not exist if so many listings lack it; one that was seen exists no more after fewer.
const MAX_PRIOR_LISTINGS: u32 = 10;
const MAX_LISTINGS_WITHOUT: u32 = 3;
/// A call without a response is repeated at most so often, after this pause.
const MAX_REPEATS: u32 = 5;
const REPEAT_PAUSE: Seconds = Seconds(1.0);

pub struct LaunchInstance {
    context: Arc<ProviderContext>,
    order: Arc<LaunchOrder>,
    label: Option<Arc<IbmLabel>>,
    /// Set once it is known that the instance of this name is ours.
    external_id: Option<ExternalId>,
    /// The number of calls in a row that had no response or no lasting effect.
    lost: u32,
    /// Whether a listing has shown the instance.
    was_seen: bool,
    /// Why the floating IP was refused.
    refusal: Option<String>,
    /// The zone of its label is full.
    obstacle: Option<String>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// An instance of this node may exist; the number of remaining listings.
    Searching(u32),
    CreatingGroup,
    /// Another launch has created the group meanwhile.
    ReadingGroups,
    Creating,
    /// The creation was refused. The resource group may have been deleted since groups were last read; its id.
    CheckingGroup(Option<String>, CloudError),
    /// The instance may have been created although there is no success.
    Asking(Doubt),
    /// The number of listings in a row that lack the instance.
    Booting(u32),
    CreatingAddress,
    /// The floating IP is not shown as attached yet; the number of listings so far.
    AwaitingAddress(u32),
    Finished,
}

/// Why the result of a creation is in doubt.
#[derive(Debug)]
struct Doubt {
    detail: String,
    is_name_taken: bool,
}

impl StateMachine for LaunchInstance {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Searching(left), Input::Observed(inventory)) => self.search(left, inventory),
            (Step::CreatingGroup, Input::Reply(Ok(reply))) => self.on_group(reply),
            (Step::ReadingGroups, Input::Reply(Ok(Reply::Groups(page)))) => {
                self.context.record_groups(page.items);
                self.prepare()
            }
            (Step::CheckingGroup(used, error), Input::Reply(Ok(Reply::Groups(page)))) => {
                self.context.record_groups(page.items);
                let is_gone = self.context.pool_group(&self.order.pool) != used;
                if is_gone { self.prepare() } else { Next::Failed(error) }
            }
            (Step::CheckingGroup(_, error), _) => Next::Failed(error),
            (Step::Creating, Input::Reply(Ok(reply))) => self.on_created(reply),
            (Step::Creating, Input::Reply(Err(CloudError::Deadline))) => {
                self.ask("no response within the deadline".to_owned())
            }
            (Step::Asking(doubt), Input::Reply(Ok(Reply::Instances(page)))) => self.on_named(doubt, page.items),
            (Step::Booting(listings), Input::Observed(inventory)) => self.check_boot(listings, inventory),
            (Step::CreatingAddress, Input::Reply(Ok(reply))) => self.on_address_created(reply),
            (Step::CreatingAddress, Input::Reply(Err(CloudError::Deadline))) => self.observe(Step::AwaitingAddress(0)),
            (Step::AwaitingAddress(listings), Input::Observed(inventory)) => self.await_address(listings, inventory),
            (_, Input::Reply(Ok(Reply::Refused(error)))) => Next::Failed(error.into_error()),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.external_id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin => "start",
            Step::Searching(_) => "searching for an earlier instance",
            Step::CreatingGroup | Step::ReadingGroups | Step::CheckingGroup(..) => "creating resource group",
            Step::Creating | Step::Asking(_) => "submit creating instance",
            Step::Booting(_) => "creating vm",
            Step::CreatingAddress => "creating fip",
            Step::AwaitingAddress(_) => "attaching fip",
            Step::Finished => "complete",
        }
    }

    fn obstacle(&self) -> Option<String> {
        self.obstacle.clone()
    }
}

impl LaunchInstance {
    pub fn new(context: Arc<ProviderContext>, order: Arc<LaunchOrder>) -> Self {
        let label = context.label(&order);
        let external_id = order.prior_instance.clone();
        Self {
            context,
            order,
            label,
            external_id,
            lost: 0,
            was_seen: false,
            refusal: None,
            obstacle: None,
            step: Step::Begin,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        if self.label.is_none() {
            return Next::Failed(CloudError::Denied(format!("label {} is not configured", self.order.label)));
        }
        if self.order.prior_instance.is_some() {
            return self.observe(Step::Booting(0));
        }
        if self.order.may_exist || self.order.may_appear {
            let listings = if self.order.may_appear { MAX_SEARCH_LISTINGS } else { 1 };
            return self.observe(Step::Searching(listings));
        }
        self.prepare()
    }

    /// Whether the instance of this name is that of this creation of the node. Otherwise its owner is another one, who
    /// keeps it.
    fn is_own(&self, instance: &SeenInstance) -> bool {
        let is_own = instance.mark == names::creation_mark(&self.order);
        if !is_own {
            self.context.record_foreign(&instance.id);
        }
        is_own
    }

    fn foreign(&mut self, detail: &str) -> Next<Call> {
        self.external_id = None;
        Next::Failed(failed(format!("another owner has an instance of this name{detail}")))
    }

    fn search(&mut self, left: u32, inventory: &Inventory) -> Next<Call> {
        match self.context.seen(&self.order.hostname) {
            Some(found) if self.is_own(&found) => {
                self.external_id = Some(ExternalId::text(&self.order.hostname));
                self.check_boot(0, inventory)
            }
            // The creation will say that the name is taken.
            Some(_) => self.prepare(),
            None if left > 1 => self.observe(Step::Searching(left - 1)),
            None => self.prepare(),
        }
    }

    fn prepare(&mut self) -> Next<Call> {
        match self.context.pool_group(&self.order.pool) {
            Some(group) => self.create(&group, Seconds::ZERO),
            None if self.lost > MAX_REPEATS => Next::Failed(failed("the resource group of the pool does not appear")),
            None => {
                let group = names::pool_group(&self.context.provider, &self.order.pool);
                self.call(Step::CreatingGroup, calls::create_group(&group))
            }
        }
    }

    fn on_group(&mut self, reply: Reply) -> Next<Call> {
        self.lost += 1;
        match reply {
            Reply::Group(group) if !group.id.is_empty() => {
                let name = names::pool_group(&self.context.provider, &self.order.pool);
                self.context.catalog().groups.insert(name, group.id);
                self.prepare()
            }
            Reply::Refused(error) if error.is_taken_name() || error.is_wrong_state() => {
                self.call(Step::ReadingGroups, calls::groups())
            }
            Reply::Lost(_) => self.call(Step::ReadingGroups, calls::groups().after(REPEAT_PAUSE)),
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn create(&mut self, group: &str, delay: Seconds) -> Next<Call> {
        let Some(label) = self.label.clone() else { return Next::Failed(failed("the label has vanished")) };
        self.obstacle = self.context.full_place(&label);
        match self.refs(&label, group) {
            Ok(refs) => {
                let body = request_body::instance(&label, &self.order, &refs);
                self.call(Step::Creating, calls::create_instance(body).after(delay))
            }
            Err(detail) => Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail }),
        }
    }

    /// The ids of what the label names.
    fn refs(&self, label: &IbmLabel, group: &str) -> Result<InstanceRefs, String> {
        let (catalog, settings) = (self.context.catalog(), &self.context.settings);
        let vpc = catalog.vpcs.as_ref().and_then(|vpcs| vpcs.get(&settings.vpc)).cloned();
        let vpc = vpc.ok_or_else(|| format!("the VPC {} is not known", settings.vpc))?;
        let subnet = catalog.subnet(&vpc, &label.place.subnet).map(|subnet| subnet.id.clone());
        let subnet = subnet.ok_or_else(|| format!("the subnet {} is not known", label.place.subnet))?;
        let key = |name: &String| {
            let id = catalog.keys.as_ref().and_then(|keys| keys.get(name)).cloned();
            id.ok_or_else(|| format!("the key {name} is not known"))
        };
        let keys = label.keys.iter().map(key).collect::<Result<_, _>>()?;
        let image: Option<Value> = match label.source {
            ImageSource::Uploaded => context::uploaded(&self.order),
            _ => catalog.image(&label.source),
        };
        let image = image.ok_or_else(|| format!("no image is known for label {}", label.name))?;
        Ok(InstanceRefs { vpc, subnet, group: group.to_owned(), keys, image })
    }

    fn on_created(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Created(instance) => self.booting(&instance),
            Reply::Lost(detail) => self.ask(detail),
            Reply::Refused(error) if error.is_taken_name() => {
                let call = calls::instances_named(&self.order.hostname);
                self.call(Step::Asking(Doubt { detail: error.text(), is_name_taken: true }), call)
            }
            Reply::Refused(error) => self.refused(error),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn refused(&mut self, error: ApiError) -> Next<Call> {
        self.external_id = None;
        if error.is_capacity()
            && let Some(label) = &self.label
        {
            self.context.record_full(label);
        }
        let may_lack_group = error.is_unknown_reference();
        let error = match error.into_error() {
            // A resource that the label names has vanished since the last refresh.
            CloudError::NotFound(text) => CloudError::Denied(text),
            error => error,
        };
        match may_lack_group {
            true => self.call(Step::CheckingGroup(self.context.pool_group(&self.order.pool), error), calls::groups()),
            false => Next::Failed(error),
        }
    }

    /// Asks whether a creation without a response had an effect.
    fn ask(&mut self, detail: String) -> Next<Call> {
        let call = calls::instances_named(&self.order.hostname).after(REPEAT_PAUSE);
        self.call(Step::Asking(Doubt { detail, is_name_taken: false }), call)
    }

    fn on_named(&mut self, doubt: Doubt, named: Vec<VpcInstance>) -> Next<Call> {
        let Doubt { detail, is_name_taken } = doubt;
        let found = named.into_iter().find(|instance| instance.name == self.order.hostname);
        let is_own = found.as_ref().is_some_and(|instance| self.is_own(&SeenInstance::new(instance)));
        match found {
            Some(instance) if is_own && instance.status != "deleting" => self.booting(&instance),
            Some(_) if !is_own => self.foreign(&format!(": {detail}")),
            // Nothing was created; or the name is that of an instance or a volume which is ending.
            Some(_) | None => {
                self.lost += 1;
                if self.lost > MAX_REPEATS {
                    let outage = CloudError::Outage { detail: detail.clone(), may_have_worked: true };
                    return Next::Failed(if is_name_taken { failed(detail) } else { outage });
                }
                let pause = if is_name_taken { REPEAT_PAUSE } else { Seconds::ZERO };
                match self.context.pool_group(&self.order.pool) {
                    Some(group) => self.create(&group, pause),
                    None => self.prepare(),
                }
            }
        }
    }

    fn booting(&mut self, instance: &VpcInstance) -> Next<Call> {
        self.lost = 0;
        self.external_id = Some(ExternalId::text(&self.order.hostname));
        self.context.record_created(&self.order.hostname, &instance.id);
        self.observe(Step::Booting(0))
    }

    fn check_boot(&mut self, listings: u32, inventory: &Inventory) -> Next<Call> {
        let Some(label) = self.label.clone() else { return Next::Failed(failed("the label has vanished")) };
        let Some(seen) = self.context.seen(&self.order.hostname) else {
            // A new instance may be missing in listings.
            let most = if self.was_seen { MAX_LISTINGS_WITHOUT } else { MAX_PRIOR_LISTINGS };
            return match listings >= most {
                true => Next::Failed(CloudError::not_found(format!("the instance {}", self.order.hostname))),
                false => self.observe(Step::Booting(listings + 1)),
            };
        };
        if !self.is_own(&seen) {
            return self.foreign("");
        }
        self.was_seen = true;
        match seen.status.as_str() {
            "running" => {
                self.context.record_capacity(&label);
                match label.public_ipv4 {
                    true => self.await_address(0, inventory),
                    false => self.launched(inventory),
                }
            }
            "failed" => self.ended(&label, &seen),
            // It passes through `stopping` without reasons.
            "stopped" => self.ended(&label, &seen),
            "stopping" if !seen.reasons.is_empty() => self.ended(&label, &seen),
            "deleting" => Next::Failed(failed("the instance is being deleted")),
            _ => self.observe(Step::Booting(0)),
        }
    }

    fn ended(&mut self, label: &IbmLabel, seen: &SeenInstance) -> Next<Call> {
        let error = ended(&seen.status, &seen.reasons);
        if matches!(error, CloudError::Capacity(_)) {
            self.context.record_full(label);
        }
        Next::Failed(error)
    }

    /// Creates the floating IP after the instance runs: IBM bills it for a month, and not all instances start.
    fn create_address(&mut self, interface: &str) -> Next<Call> {
        let Some(group) = self.context.pool_group(&self.order.pool) else {
            return Next::Failed(failed("the resource group of the pool has vanished"));
        };
        let body = request_body::floating_ip(&self.order.hostname, &group, interface);
        self.call(Step::CreatingAddress, calls::create_floating_ip(body))
    }

    fn on_address_created(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Done | Reply::Lost(_) => self.observe(Step::AwaitingAddress(1)),
            // The listing shows whether it is ours.
            Reply::Refused(error) if error.is_taken_name() || error.code == "target_in_use" => {
                self.refusal = Some(error.text());
                self.observe(Step::AwaitingAddress(1))
            }
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn await_address(&mut self, listings: u32, inventory: &Inventory) -> Next<Call> {
        let name = &self.order.hostname;
        let Some(seen) = self.context.seen(name) else { return Next::Failed(failed("the instance has vanished")) };
        let found = self.context.floating_ip(name);
        let target = found.as_ref().and_then(|ip| ip.target.as_ref()).map(|target| target.id.as_str());
        match found.as_ref().map(|ip| ip.status.as_str()) {
            Some("failed") => Next::Failed(CloudError::Failed {
                kind: FailureKind::Network,
                detail: "the floating IP has failed".to_owned(),
            }),
            Some("available") if target == Some(&seen.interface) => self.launched(inventory),
            Some("pending") => self.observe(Step::AwaitingAddress(listings + 1)),
            // It gets its target a moment later.
            Some("available") if target.is_none() && listings > 0 && listings < MAX_PRIOR_LISTINGS => {
                self.observe(Step::AwaitingAddress(listings + 1))
            }
            // One of an earlier attempt is going.
            Some("deleting") => self.observe(Step::AwaitingAddress(0)),
            Some(status) => Next::Failed(failed(format!("another floating IP of this name is {status}"))),
            None if listings == 0 || self.lost < MAX_REPEATS => {
                self.lost += 1;
                self.create_address(&seen.interface)
            }
            None => {
                let refusal = self.refusal.take().map(|text| format!(": {text}")).unwrap_or_default();
                Next::Failed(failed(format!("the floating IP does not appear{refusal}")))
            }
        }
    }

    fn launched(&mut self, inventory: &Inventory) -> Next<Call> {
        let id = ExternalId::text(&self.order.hostname);
        match (inventory.find(&id), &self.label) {
            (Some(instance), Some(label)) => {
                Next::Done(Outcome::Launched(Box::new(instances::launched(instance, label))))
            }
            _ => Next::Failed(failed("the inventory lacks the instance")),
        }
    }

    fn observe(&mut self, step: Step) -> Next<Call> {
        self.step = step;
        Next::Observe
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}
