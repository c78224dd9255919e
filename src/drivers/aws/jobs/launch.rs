//! Launch of an instance: tries the places of its label in turn, each with a token, so that a repeated call creates
//! nothing twice; then waits for the instance in listings.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::aws::api::api_types::{Fleet, Host, Image};
use crate::aws::api::calls::{self, Call, Reply};
use crate::aws::api::errors::{ApiError, ended, failed};
use crate::aws::context::ProviderContext;
use crate::aws::instances::{self, AwsId, instance_key};
use crate::aws::label::{AwsLabel, Place};
use crate::aws::request_body::Launch;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceState, Inventory};
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;
use reqwest::StatusCode;

/// Listings that are searched for an instance which an earlier process or attempt may have created.
const MAX_SEARCH_LISTINGS: u32 = 4;
/// An instance that an earlier process recorded exists no more if so many listings lack it.
const MAX_PRIOR_LISTINGS: u32 = 10;
/// A call without a response is repeated at most so often, after this pause.
const MAX_REPEATS: u32 = 5;
const REPEAT_PAUSE: Seconds = Seconds(1.0);
/// Interval between looks at a host that is being allocated.
const HOST_POLL_INTERVAL: Seconds = Seconds(2.0);

pub struct LaunchInstance {
    context: Arc<ProviderContext>,
    order: Arc<LaunchOrder>,
    label: Option<Arc<AwsLabel>>,
    id: AwsId,
    /// The id for the record; kept in step with `id`.
    external_id: Option<ExternalId>,
    /// Places that are still to be tried; the first one is being tried.
    places: VecDeque<Place>,
    image_id: String,
    /// The number of calls in this place that had no response.
    lost: u32,
    /// A launch template was created for this launch.
    has_created_template: bool,
    /// The places of its label that are full.
    obstacle: Option<String>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// An instance of this node may exist; the number of remaining listings.
    Searching(u32),
    ReadingImage,
    AllocatingHost,
    AwaitingHost,
    Creating,
    CreatingTemplate,
    /// The number of listings so far.
    Booting(u32),
    Finished,
}

impl StateMachine for LaunchInstance {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Searching(left), Input::Observed(inventory)) => self.search(left, inventory),
            (Step::ReadingImage, Input::Reply(Ok(reply))) => self.on_image(reply),
            (Step::AllocatingHost, Input::Reply(Ok(reply))) => self.on_host(reply),
            (Step::AwaitingHost, Input::Reply(Ok(Reply::Hosts(page)))) => self.await_host(page.host_set.item.first()),
            // A new host may not be visible yet.
            (Step::AwaitingHost, Input::Reply(Ok(Reply::Refused(error)))) if error.code == "InvalidHostID.NotFound" => {
                self.await_host(None)
            }
            (Step::CreatingTemplate, Input::Reply(Ok(reply))) => self.on_template(reply),
            (Step::Creating, Input::Reply(Ok(reply))) => self.on_created(reply),
            (Step::AllocatingHost, Input::Reply(Err(CloudError::Deadline))) => {
                self.repeat("no response within the deadline".to_owned(), Self::allocate_host)
            }
            (Step::Creating, Input::Reply(Err(CloudError::Deadline))) => {
                self.repeat("no response within the deadline".to_owned(), Self::create)
            }
            (Step::Booting(listings), Input::Observed(inventory)) => self.check_boot(listings, inventory),
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
            Step::ReadingImage | Step::CreatingTemplate => "start creating instance",
            Step::AllocatingHost => "submit allocating host",
            Step::AwaitingHost => "allocating host",
            Step::Creating => "submit creating instance",
            Step::Booting(_) => "creating instance",
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
        let id = order.prior_instance.as_ref().map(AwsId::of).unwrap_or_default();
        let external_id = order.prior_instance.clone();
        Self {
            context,
            order,
            label,
            id,
            external_id,
            places: VecDeque::new(),
            image_id: String::new(),
            lost: 0,
            has_created_template: false,
            obstacle: None,
            step: Step::Begin,
        }
    }

    fn begin(&mut self) -> Next<Call> {
        let Some(label) = self.label.clone() else {
            return Next::Failed(CloudError::Denied(format!("label {} is not configured", self.order.label)));
        };
        if self.id.instance.is_some() {
            return self.observe(Step::Booting(0));
        }
        // With a host there may be an instance that was not recorded yet.
        let has_host = self.id.host.is_some();
        if self.order.may_exist || self.order.may_appear || has_host {
            let listings = if self.order.may_appear || has_host { MAX_SEARCH_LISTINGS } else { 1 };
            return self.observe(Step::Searching(listings));
        }
        self.prepare(&label)
    }

    /// Finds out what to launch.
    fn prepare(&mut self, label: &AwsLabel) -> Next<Call> {
        let Some(image) = self.context.image_id(label, &self.order) else {
            let detail = format!("no AMI is known for label {}", label.name);
            return Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail });
        };
        self.image_id = image;
        self.places = self.context.usable_places(label).into();
        self.obstacle = self.context.full_places(label);
        if matches!(self.context.catalog().images.get(&self.image_id), Some(Some(_))) {
            return self.start();
        }
        self.read_image(Seconds::ZERO)
    }

    fn read_image(&mut self, delay: Seconds) -> Next<Call> {
        let call = calls::image(&self.image_id).after(delay);
        self.call(Step::ReadingImage, call)
    }

    /// The AMI names the devices whose volumes are to end with the instance. A new one may not be visible yet.
    fn on_image(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Images(page) => {
                let image = page.images_set.item.into_iter().find(|image| image.image_id == self.image_id);
                let Some(image) = image else { return self.image_missing() };
                self.context.catalog().images.insert(self.image_id.clone(), Some(image));
                self.lost = 0;
                self.start()
            }
            Reply::Refused(error) if error.code == "InvalidAMIID.NotFound" => self.image_missing(),
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn image_missing(&mut self) -> Next<Call> {
        self.lost += 1;
        match self.lost > MAX_REPEATS {
            true => Next::Failed(failed(format!("AMI {} does not exist", self.image_id))),
            false => self.read_image(REPEAT_PAUSE),
        }
    }

    fn start(&mut self) -> Next<Call> {
        let is_on_host = self.label.as_ref().is_some_and(|label| label.dedicated_host);
        match &self.id.host {
            None if is_on_host => self.allocate_host(Seconds::ZERO),
            Some(_) => self.poll_host(Seconds::ZERO),
            None => self.create(Seconds::ZERO),
        }
    }

    fn with_launch<T>(&self, use_it: impl FnOnce(&Launch<'_>) -> T) -> Option<T> {
        let (label, place) = (self.label.as_ref()?, self.places.front()?);
        let catalog = self.context.catalog();
        let image: Option<Image> = catalog.images.get(&self.image_id).cloned().flatten();
        drop(catalog);
        let launch = Launch {
            provider: &self.context.provider,
            label,
            order: &self.order,
            place,
            image_id: &self.image_id,
            image: image.as_ref(),
        };
        Some(use_it(&launch))
    }

    fn allocate_host(&mut self, delay: Seconds) -> Next<Call> {
        match self.with_launch(|launch| launch.allocate_host()) {
            Some(form) => self.call(Step::AllocatingHost, calls::allocate_hosts(form).after(delay)),
            None => self.no_place(),
        }
    }

    fn create(&mut self, delay: Seconds) -> Next<Call> {
        let host = self.id.host.clone();
        let is_fleet = self.label.as_ref().is_some_and(|label| label.fleet.is_some());
        let context = self.context.clone();
        let call = self.with_launch(|launch| {
            if !is_fleet {
                return calls::run_instances(launch.run_instances(host.as_deref()));
            }
            let template = launch.template_name();
            context.record_template(&template);
            calls::create_fleet(launch.create_fleet(&template))
        });
        match call {
            Some(call) => self.call(Step::Creating, call.after(delay)),
            None => self.no_place(),
        }
    }

    fn no_place(&mut self) -> Next<Call> {
        Next::Failed(failed("the label has no place to launch in"))
    }

    fn on_host(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Allocated(hosts) => match hosts.host_id_set.item.into_iter().next() {
                Some(host) => {
                    self.id.host = Some(host);
                    self.external_id = Some(self.id.to_external());
                    self.poll_host(Seconds::ZERO)
                }
                None => Next::Failed(failed("the response to the allocation has no host")),
            },
            Reply::Lost(detail) => self.repeat(detail, Self::allocate_host),
            Reply::Refused(error) => self.refused(error, Self::allocate_host),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn poll_host(&mut self, delay: Seconds) -> Next<Call> {
        let call = calls::host(self.id.host.as_deref().unwrap_or_default()).after(delay);
        self.call(Step::AwaitingHost, call)
    }

    fn await_host(&mut self, host: Option<&Host>) -> Next<Call> {
        match host.map(|host| host.state.as_str()) {
            Some("available") => {
                host.into_iter().for_each(|host| self.use_place_of(host));
                self.create(Seconds::ZERO)
            }
            Some(state @ ("permanent-failure" | "released" | "released-permanent-failure")) => {
                status_failure(format!("the host is {state}"))
            }
            _ => self.poll_host(HOST_POLL_INTERVAL),
        }
    }

    /// The instance must be where its host is. That is not the first place if an earlier process has recorded the host.
    fn use_place_of(&mut self, host: &Host) {
        let Some(label) = &self.label else { return };
        let fits = |place: &Place| {
            let zone = place.location.zone.as_deref();
            place.instance_type == host.host_properties.instance_type
                && zone.is_none_or(|zone| zone == host.availability_zone)
        };
        let place = self.places.front().filter(|place| fits(place)).cloned();
        if let Some(place) = place.or_else(|| label.places().into_iter().find(fits)) {
            self.places = VecDeque::from([place]);
        }
    }

    fn on_template(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Done | Reply::Lost(_) => self.create(Seconds::ZERO),
            // Another launcher has created the same.
            Reply::Refused(error) if error.code.starts_with("InvalidLaunchTemplateName.AlreadyExists") => {
                self.create(Seconds::ZERO)
            }
            Reply::Refused(error) => Next::Failed(error.into_error()),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn on_created(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Launched(reservation) => match reservation.instances_set.item.into_iter().next() {
                Some(instance) => self.created(instance.instance_id),
                None => Next::Failed(failed("the response to the launch has no instance")),
            },
            Reply::Fleet(fleet) => self.on_fleet(fleet),
            Reply::Lost(detail) => self.repeat(detail, Self::create),
            Reply::Refused(error) if is_missing_template(&error) && !self.has_created_template => {
                self.create_template()
            }
            // A new one may not be visible yet.
            Reply::Refused(error) if is_missing_template(&error) && self.lost < MAX_REPEATS => {
                self.lost += 1;
                self.create(REPEAT_PAUSE)
            }
            Reply::Refused(error) => self.refused(error, Self::create),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    fn create_template(&mut self) -> Next<Call> {
        self.has_created_template = true;
        match self.with_launch(|launch| launch.create_template()) {
            Some(form) => self.call(Step::CreatingTemplate, calls::create_template(form)),
            None => self.no_place(),
        }
    }

    /// A response may have an instance and errors.
    fn on_fleet(&mut self, fleet: Fleet) -> Next<Call> {
        let mut instances = fleet.fleet_instance_set.item.into_iter().flat_map(|set| set.instance_ids.item);
        if let Some(instance) = instances.next() {
            return self.created(instance);
        }
        let errors: Vec<ApiError> = fleet
            .error_set
            .item
            .into_iter()
            .map(|error| ApiError {
                status: StatusCode::BAD_REQUEST,
                code: error.error_code,
                message: error.error_message,
            })
            .collect();
        let capacity = errors.iter().find(|error| error.is_capacity()).or(errors.first());
        match capacity.cloned() {
            Some(error) if is_missing_template(&error) && !self.has_created_template => self.create_template(),
            Some(error) => self.refused(error, Self::create),
            None => Next::Failed(CloudError::Capacity("the fleet has no instance".to_owned())),
        }
    }

    fn created(&mut self, instance: String) -> Next<Call> {
        if let Some(place) = self.places.front() {
            self.context.record_capacity(place);
        }
        self.set_instance(instance);
        self.observe(Step::Booting(0))
    }

    fn set_instance(&mut self, instance: String) {
        self.id.instance = Some(instance);
        self.external_id = Some(self.id.to_external());
    }

    /// The place has no capacity, or its limit is reached: the next one may have.
    fn refused(&mut self, error: ApiError, again: fn(&mut Self, Seconds) -> Next<Call>) -> Next<Call> {
        let is_capacity = error.is_capacity();
        let error = error.into_error();
        if let (true, Some(place)) = (is_capacity, self.places.front()) {
            self.context.record_full(place);
            self.obstacle = self.label.as_ref().and_then(|label| self.context.full_places(label));
        }
        let may_differ = matches!(error, CloudError::Capacity(_) | CloudError::Quota(_));
        // The instance must be where its host is.
        if may_differ && self.places.len() > 1 && self.id.host.is_none() {
            self.places.pop_front();
            self.lost = 0;
            return again(self, Seconds::ZERO);
        }
        Next::Failed(error)
    }

    /// The call may have been executed. Its token makes a repetition harmless.
    fn repeat(&mut self, detail: String, again: fn(&mut Self, Seconds) -> Next<Call>) -> Next<Call> {
        self.lost += 1;
        if self.lost > MAX_REPEATS {
            return Next::Failed(CloudError::Outage { detail, may_have_worked: true });
        }
        again(self, REPEAT_PAUSE)
    }

    /// Searches by the tags, which name the node.
    fn search(&mut self, left: u32, inventory: &Inventory) -> Next<Call> {
        let is_own = |instance: &&Instance| {
            let has = |(key, value): (&String, &String)| instance.metadata.get(key) == Some(value);
            self.order.metadata.iter().all(has) && instance.state != InstanceState::Stopping
        };
        let found = inventory.instances().iter().find(is_own).map(|found| AwsId::of(&found.external_id).instance);
        if let Some(Some(instance)) = found {
            self.set_instance(instance);
            return self.check_boot(0, inventory);
        }
        if left > 1 {
            return self.observe(Step::Searching(left - 1));
        }
        match self.label.clone() {
            Some(label) => self.prepare(&label),
            None => self.no_place(),
        }
    }

    fn check_boot(&mut self, listings: u32, inventory: &Inventory) -> Next<Call> {
        let (Some(id), Some(label)) = (self.id.instance.clone(), self.label.clone()) else { return self.no_place() };
        if let Some(found) = self.context.ended(&id) {
            let text = match found.reason.message.as_str() {
                "" => format!("the instance is {}", found.state),
                message => message.to_owned(),
            };
            let error = ended(&found.reason.code, &text);
            if let (CloudError::Capacity(_), Some(place)) = (&error, self.places.front()) {
                self.context.record_full(place);
            }
            return Next::Failed(error);
        }
        match inventory.find(&instance_key(&id)) {
            Some(instance) if instance.state == InstanceState::Running => {
                let node = instances::launched(&self.context, instance, &self.id, &label, &self.image_id);
                Next::Done(Outcome::Launched(Box::new(node)))
            }
            None if self.order.prior_instance.is_some() && listings >= MAX_PRIOR_LISTINGS => {
                Next::Failed(CloudError::not_found(format!("instance {id} of an earlier process")))
            }
            // A new instance may be missing in listings.
            _ => self.observe(Step::Booting(listings + 1)),
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

fn is_missing_template(error: &ApiError) -> bool {
    error.code.starts_with("InvalidLaunchTemplateName.NotFound") || error.code == "InvalidLaunchTemplateId.NotFound"
}

fn status_failure(detail: String) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
}
