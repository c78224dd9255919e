//! Launch of a machine: one request creates it with its parts; then listings show it, and later its addresses.

use std::sync::Arc;

use serde_json::Value;

use crate::azure::api::api_types::{Image, Machine, Tags, is_same_location};
use crate::azure::api::calls::{self, Call, Kind, OperationLink, Reply};
use crate::azure::api::errors::{ApiError, failed};
use crate::azure::context::{ProviderContext, WaitKind, Waits};
use crate::azure::instances;
use crate::azure::jobs::listing::Pages;
use crate::azure::jobs::operation::{self, State};
use crate::azure::label::{AzureLabel, ImageFilter, ImageSource};
use crate::azure::request_body::{self, CREATION, creation_mark};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{InstanceState, Inventory};
use nodepool_driver::job::{LaunchOrder, Outcome};
use nodepool_driver::state_machine::{Input, Next, StateMachine};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// A call without a response is repeated at most so often, after this pause.
const MAX_REPEATS: u32 = 5;
const REPEAT_PAUSE: Seconds = Seconds(1.0);
/// Another operation on the same machine ends within minutes.
const MAX_CONFLICTS: u32 = 60;
const CONFLICT_PAUSE: Seconds = Seconds(5.0);
/// Looks that may lack a machine before its operation is read, and before it counts as gone.
const MISSING_LOOKS: u32 = 3;
const MAX_MISSING_LOOKS: u32 = 30;
/// Looks for a machine that a process which died may have requested.
const MAX_SEARCHES: u32 = 3;
const SEARCH_PAUSE: Seconds = Seconds(2.0);

pub struct LaunchInstance {
    context: Arc<ProviderContext>,
    order: Arc<LaunchOrder>,
    label: Option<Arc<AzureLabel>>,
    id: Option<ExternalId>,
    image: Value,
    operation: Option<OperationLink>,
    /// Calls that had no response, calls that met another operation, and looks that lacked the machine.
    lost: u32,
    conflicts: u32,
    missing: u32,
    waits: Option<Waits>,
    obstacle: Option<String>,
    step: Step,
}

#[derive(Debug)]
enum Step {
    Begin,
    /// A machine of this node may exist; the number of remaining looks.
    Searching(u32),
    ListingImages(Pages),
    Creating,
    /// The creation met a machine of this name, or its answer was lost.
    ReadingExisting,
    Booting,
    /// The creation has failed or vanished; its operation and its states have the reason.
    ReadingOperation(CloudError),
    ReadingStates(CloudError),
    Finished,
}

impl StateMachine for LaunchInstance {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.begin(),
            (Step::Searching(left), Input::Reply(Ok(reply))) => self.search(left, reply),
            (Step::ListingImages(pages), Input::Reply(Ok(reply))) => self.on_images(pages, reply),
            (Step::Creating, Input::Reply(Ok(reply))) => self.on_created(reply),
            (Step::Creating, Input::Reply(Err(CloudError::Deadline))) => {
                self.read_existing("no response within the deadline".to_owned())
            }
            (Step::ReadingExisting, Input::Reply(reply)) => self.on_existing(reply),
            (Step::Booting, Input::Observed(inventory)) => self.check_boot(inventory),
            (Step::ReadingOperation(error), Input::Reply(reply)) => self.on_operation(error, reply),
            (Step::ReadingStates(error), Input::Reply(reply)) => self.on_states(error, reply),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => Next::Failed(failed(format!("unexpected {input:?} in step {step:?}"))),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.id.as_ref()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Begin => "start",
            Step::Searching(_) | Step::ReadingExisting => "searching for an earlier machine",
            Step::ListingImages(_) => "searching for the image",
            Step::Creating | Step::Booting => "creating vm",
            Step::ReadingOperation(_) | Step::ReadingStates(_) => "reading why the creation failed",
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
        let id = order.prior_instance.clone();
        Self {
            context,
            order,
            label,
            id,
            image: Value::Null,
            operation: None,
            lost: 0,
            conflicts: 0,
            missing: 0,
            waits: None,
            obstacle: None,
            step: Step::Begin,
        }
    }

    fn name(&self) -> &str {
        &self.order.hostname
    }

    fn begin(&mut self) -> Next<Call> {
        if self.label.is_none() {
            return Next::Failed(CloudError::Denied(format!("label {} is not configured", self.order.label)));
        }
        if self.id.is_some() {
            return self.boot();
        }
        if self.order.may_exist || self.order.may_appear {
            let looks = if self.order.may_appear { MAX_SEARCHES } else { 1 };
            let call = self.context.scope.get(Kind::Machine, self.name());
            return self.call(Step::Searching(looks), call);
        }
        self.find_image()
    }

    fn search(&mut self, left: u32, reply: Reply) -> Next<Call> {
        match self.existing(reply) {
            Ok(Some(machine)) if self.is_own(&machine.tags) => self.boot(),
            Ok(Some(_)) => self.foreign(),
            Ok(None) if left > 1 => {
                let call = self.context.scope.get(Kind::Machine, self.name()).after(SEARCH_PAUSE);
                self.call(Step::Searching(left - 1), call)
            }
            Ok(None) => self.find_image(),
            Err(error) => Next::Failed(error),
        }
    }

    /// The machine of this name, if there is one.
    fn existing(&self, reply: Reply) -> Result<Option<Machine>, CloudError> {
        match reply {
            // The resource group may be missing, which the creation reports.
            Reply::Refused(error) if error.is_not_found() => Ok(None),
            reply => reply.answer()?.read().map(Some),
        }
    }

    /// Whether tags are those of this creation. A machine with another mark is that of another installation.
    fn is_own(&self, tags: &Tags) -> bool {
        let is_own = tags.get(CREATION).map(|mark| *mark == creation_mark(&self.order));
        if is_own == Some(false) {
            self.context.record_foreign(self.name());
        }
        is_own == Some(true)
    }

    fn foreign(&mut self) -> Next<Call> {
        self.id = None;
        Next::Failed(failed(format!("another owner has a machine of the name {}", self.name())))
    }

    fn find_image(&mut self) -> Next<Call> {
        let Some(label) = self.label.clone() else { return Next::Failed(failed("no label")) };
        if let Some(image) = &self.order.image {
            self.image = request_body::uploaded_image(&self.context.scope, &image.to_string());
            return self.create(Seconds::ZERO);
        }
        match &label.source {
            ImageSource::Reference(reference) => {
                self.image = reference.clone();
                self.create(Seconds::ZERO)
            }
            ImageSource::Filter(_) => {
                let (pages, call) = Pages::begin(&self.context.scope, Kind::Image);
                self.call(Step::ListingImages(pages), call)
            }
            ImageSource::Uploaded | ImageSource::Missing => {
                let detail = format!("no image is known for label {}", label.name);
                Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail })
            }
        }
    }

    fn on_images(&mut self, mut pages: Pages, reply: Reply) -> Next<Call> {
        let images: Vec<Image> = match pages.add(reply) {
            Ok(Some(call)) => return self.call(Step::ListingImages(pages), call),
            Ok(None) => pages.read(),
            Err(error) => return Next::Failed(error),
        };
        let source = self.label.as_ref().map(|label| label.source.clone());
        let Some(ImageSource::Filter(filter)) = source else { return Next::Failed(failed("no filter")) };
        let matching = images.into_iter().filter(|image| is_match(image, &filter));
        match matching.max_by(|one, other| one.name.cmp(&other.name)) {
            Some(image) => {
                self.image = serde_json::json!({"id": image.id});
                self.create(Seconds::ZERO)
            }
            None => {
                let detail = "no image of the resource group matches the image-filter".to_owned();
                Next::Failed(CloudError::Failed { kind: FailureKind::Nodepool, detail })
            }
        }
    }

    fn create(&mut self, delay: Seconds) -> Next<Call> {
        let Some(label) = self.label.clone() else { return Next::Failed(failed("no label")) };
        self.obstacle = self.context.full_size(&label.size);
        let tags = request_body::tags(&self.context, &label, &self.order);
        let body = request_body::machine(&self.context, &label, &self.order, &self.image, &tags);
        // Parts of it may exist from here on, even if there is never a machine.
        self.context.record_creation(self.name(), tags);
        let call = self.context.scope.create_machine(self.name(), body).after(delay);
        self.call(Step::Creating, call)
    }

    fn on_created(&mut self, reply: Reply) -> Next<Call> {
        match reply {
            Reply::Answer(answer) => {
                self.operation = answer.operation.clone();
                let machine: Result<Machine, _> = answer.read();
                if machine.is_ok_and(|machine| !machine.tags.is_empty() && !self.is_own(&machine.tags)) {
                    return self.foreign();
                }
                self.boot()
            }
            Reply::Lost(detail) => self.read_existing(detail),
            Reply::Refused(error) if error.is_conflict() && self.conflicts < MAX_CONFLICTS => {
                self.conflicts += 1;
                self.obstacle = Some(error.text());
                self.create(CONFLICT_PAUSE)
            }
            Reply::Refused(error) if is_existing(&error) => self.read_existing(error.text()),
            Reply::Refused(error) => self.refused(error),
            reply => Next::Failed(failed(format!("unexpected reply {reply:?}"))),
        }
    }

    /// The creation was not accepted, so there is nothing to delete.
    fn refused(&mut self, error: ApiError) -> Next<Call> {
        self.record_capacity_of(&error);
        self.id = None;
        Next::Failed(error.into_launch_error())
    }

    fn record_capacity_of(&mut self, error: &ApiError) {
        if let Some(label) = self.label.as_ref().filter(|_| error.is_capacity()) {
            self.context.record_full(&label.size);
            self.obstacle = self.context.full_size(&label.size);
        }
    }

    /// The id is set once it is known whose machine has the name.
    fn read_existing(&mut self, detail: String) -> Next<Call> {
        self.lost += 1;
        if self.lost > MAX_REPEATS {
            return Next::Failed(CloudError::Outage { detail, may_have_worked: true });
        }
        let call = self.context.scope.get(Kind::Machine, self.name()).after(REPEAT_PAUSE);
        self.call(Step::ReadingExisting, call)
    }

    fn on_existing(&mut self, reply: Result<Reply, CloudError>) -> Next<Call> {
        match reply.and_then(|reply| self.existing(reply)) {
            Ok(Some(machine)) if self.is_own(&machine.tags) => self.boot(),
            Ok(Some(_)) => self.foreign(),
            Ok(None) => self.create(Seconds::ZERO),
            Err(error @ CloudError::Denied(_)) => Next::Failed(error),
            Err(error) => self.read_existing(error.to_string()),
        }
    }

    fn boot(&mut self) -> Next<Call> {
        self.id = Some(ExternalId::text(self.name()));
        self.waits = Some(Waits::new(&self.context, self.name(), WaitKind::Addresses));
        self.observe()
    }

    fn observe(&mut self) -> Next<Call> {
        self.step = Step::Booting;
        Next::Observe
    }

    fn check_boot(&mut self, inventory: &Inventory) -> Next<Call> {
        let (Some(id), Some(label)) = (self.id.clone(), self.label.clone()) else {
            return Next::Failed(failed("no machine"));
        };
        let Some(instance) = inventory.find(&id) else { return self.check_missing() };
        self.missing = 0;
        // The name of the machine of an earlier process was recorded; that does not say whose it is.
        if !self.is_own(&instance.metadata) {
            return self.foreign();
        }
        match &instance.state {
            InstanceState::Running => {
                self.context.record_capacity(&label.size);
                self.waits = None;
                self.obstacle = None;
                let node = instances::launched(instance, &label.network);
                Next::Done(Outcome::Launched(Box::new(node)))
            }
            InstanceState::Failed(text) => self.read_reason(status_failure(text.clone())),
            InstanceState::Stopping => self.read_reason(status_failure("the machine is being deleted".to_owned())),
            InstanceState::Starting => self.observe(),
        }
    }

    /// A new machine may be missing in listings. One whose creation failed may vanish.
    fn check_missing(&mut self) -> Next<Call> {
        self.missing += 1;
        let gone = || status_failure("the machine does not exist".to_owned());
        match &self.operation {
            _ if self.missing >= MAX_MISSING_LOOKS => self.read_reason(gone()),
            Some(_) if self.missing.is_multiple_of(MISSING_LOOKS) => self.read_reason(gone()),
            Some(_) => self.observe(),
            None if self.missing >= MAX_MISSING_LOOKS / 3 => Next::Failed(gone()),
            None => self.observe(),
        }
    }

    /// Reads the operation once. The error is that of the launch if it has no reason.
    fn read_reason(&mut self, error: CloudError) -> Next<Call> {
        match &self.operation {
            Some(link) => {
                let call = calls::operation(link);
                self.call(Step::ReadingOperation(error), call)
            }
            None => self.read_states(error),
        }
    }

    fn read_states(&mut self, error: CloudError) -> Next<Call> {
        let call = self.context.scope.instance_view(self.name());
        self.call(Step::ReadingStates(error), call)
    }

    fn on_operation(&mut self, error: CloudError, reply: Result<Reply, CloudError>) -> Next<Call> {
        let Some(link) = self.operation.clone() else { return Next::Failed(error) };
        match reply.and_then(|reply| operation::state(&link, reply)) {
            Ok(State::Failed(reason)) if !reason.code.is_empty() => self.ended(reason),
            // The listings are behind.
            Ok(State::Running | State::Succeeded(_)) if self.missing > 0 && self.missing < MAX_MISSING_LOOKS => {
                self.observe()
            }
            _ => self.read_states(error),
        }
    }

    fn on_states(&mut self, error: CloudError, reply: Result<Reply, CloudError>) -> Next<Call> {
        let machine: Result<Machine, _> = reply.and_then(Reply::answer).and_then(|answer| answer.read());
        let statuses = machine.map(|machine| machine.properties.instance_view.statuses).unwrap_or_default();
        let reason = statuses.iter().find_map(|status| {
            let code = status.code.strip_prefix("ProvisioningState/failed/")?;
            Some(ApiError::ended(code, &status.message))
        });
        match reason {
            Some(reason) => self.ended(reason),
            None => Next::Failed(error),
        }
    }

    /// The creation was accepted, and failed later for this reason.
    fn ended(&mut self, reason: ApiError) -> Next<Call> {
        self.record_capacity_of(&reason);
        Next::Failed(reason.into_status_error())
    }

    fn call(&mut self, step: Step, call: Call) -> Next<Call> {
        self.step = step;
        Next::Call(call)
    }
}

/// Whether there is a machine of this name, which is not changed.
fn is_existing(error: &ApiError) -> bool {
    error.status == reqwest::StatusCode::PRECONDITION_FAILED || error.code == "PropertyChangeNotAllowed"
}

fn is_match(image: &Image, filter: &ImageFilter) -> bool {
    let same = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
    image.properties.provisioning_state == "Succeeded"
        && same(&filter.name, &image.name)
        && filter.location.as_deref().is_none_or(|wanted| is_same_location(wanted, &image.location))
        && filter.tags.iter().all(|(key, value)| image.tags.get(key) == Some(value))
}

fn status_failure(detail: String) -> CloudError {
    CloudError::Failed { kind: FailureKind::Status, detail }
}
