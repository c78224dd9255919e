//! State machines of the jobs of a simple driver.

use std::sync::Arc;
use std::time::Duration;

use crate::cloud_resource::CloudResource;
use crate::error::{CloudError, FailureKind};
use crate::facts::ProviderFacts;
use crate::instance::{InstanceState, Inventory};
use crate::job::Outcome;
use crate::simple::{Call, Reply, Request};
use crate::simple_adapter::{Creation, Keys, Operation, OperationState};
use crate::simple_launch::Launch;
use crate::state_machine::{Input, Next, StateMachine};
use nodepool_model::config::upload_config::UploadOrder;
use nodepool_model::records::ids::{ExternalId, ProviderName};

/// Pause between two looks at an operation.
const OPERATION_PAUSE: Duration = Duration::from_secs(1);
/// Listings after which an instance that is still not ending is deleted again.
const MAX_IDLE_LISTINGS: u32 = 10;
/// Listings in which the instance of an earlier process may be missing.
const MAX_MISSED_LISTINGS: u32 = 20;

/// State machine of one job.
#[derive(Debug)]
pub struct Machine {
    keys: Keys,
    step: Step,
    external_id: Option<ExternalId>,
    launch: Option<Launch>,
}

#[derive(Debug)]
pub enum Step {
    Create,
    Creating,
    AwaitingCreation(Operation),
    /// The number of listings without the instance.
    Booting(u32),
    Delete(ExternalId),
    Deleting(ExternalId),
    AwaitingOperation(ExternalId, Operation),
    /// The number of listings in which the instance was not ending, if the cloud did not accept the deletion.
    AwaitingDeletion(ExternalId, Option<u32>),
    List,
    ListUnused(Vec<&'static str>),
    ListingUnused,
    DeleteUnused(CloudResource),
    DeletingUnused,
    Console(ExternalId),
    Upload(Arc<UploadOrder>),
    Uploading,
    DeleteImage(ExternalId),
    DeletingImage,
    ListImages,
    Refresh {
        facts: Box<ProviderFacts>,
        provider: ProviderName,
        describes_labels: bool,
    },
    Describing(Box<ProviderFacts>, ProviderName),
    Listing(Box<ProviderFacts>, ProviderName),
    Limiting(Box<ProviderFacts>, Inventory),
    Unsupported,
    Finished,
}

impl StateMachine for Machine {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        let step = std::mem::replace(&mut self.step, Step::Finished);
        let keys = self.keys;
        match (step, input) {
            (Step::Create, Input::Start) => self.create(),
            (Step::Creating, Input::Reply(Ok(Reply::Created(creation)))) => self.on_created(creation),
            (Step::Creating, Input::Reply(Err(error))) => {
                self.expect_instance(&error);
                self.not_created(error)
            }
            (Step::AwaitingCreation(operation), Input::Reply(Err(CloudError::Deadline))) => {
                self.await_creation(operation, OPERATION_PAUSE)
            }
            (Step::AwaitingCreation(_), Input::Reply(Err(error))) => self.not_created(error),
            (Step::AwaitingCreation(operation), Input::Reply(Ok(Reply::Operation(state)))) => match state {
                OperationState::Ended => self.created(),
                OperationState::Running => self.await_creation(operation, OPERATION_PAUSE),
            },
            (Step::Booting(missed), Input::Start) => self.observe(Step::Booting(missed)),
            (Step::Booting(missed), Input::Observed(inventory)) => self.check_boot(missed, inventory),
            (Step::Delete(id), Input::Start) => self.call(Step::Deleting(id.clone()), keys.delete, Request::Delete(id)),
            (Step::Deleting(id), Input::Reply(Ok(Reply::Accepted(Some(operation))))) => {
                self.await_deletion(id, operation, Duration::ZERO)
            }
            (Step::Deleting(id), Input::Reply(Ok(Reply::Accepted(None)))) => {
                self.observe(Step::AwaitingDeletion(id, None))
            }
            // Only a listing shows that it is gone.
            (Step::Deleting(id) | Step::AwaitingOperation(id, _), Input::Reply(Err(CloudError::NotFound(_)))) => {
                self.observe(Step::AwaitingDeletion(id, Some(0)))
            }
            (Step::AwaitingOperation(id, operation), Input::Reply(Ok(Reply::Operation(state)))) => match state {
                OperationState::Ended => self.observe(Step::AwaitingDeletion(id, None)),
                OperationState::Running => self.await_deletion(id, operation, OPERATION_PAUSE),
            },
            (Step::AwaitingOperation(id, operation), Input::Reply(Err(CloudError::Deadline))) => {
                self.await_deletion(id, operation, OPERATION_PAUSE)
            }
            (Step::AwaitingDeletion(id, idle), Input::Observed(inventory)) => match inventory.find(&id) {
                None => Next::Done(Outcome::Deleted),
                Some(instance) if instance.state == InstanceState::Stopping => {
                    self.observe(Step::AwaitingDeletion(id, idle))
                }
                Some(_) if idle.is_none_or(|idle| idle < MAX_IDLE_LISTINGS) => {
                    self.observe(Step::AwaitingDeletion(id, idle.map(|idle| idle + 1)))
                }
                Some(_) => self.call(Step::Deleting(id.clone()), keys.delete, Request::Delete(id)),
            },
            (Step::List, Input::Start) => self.call(Step::List, keys.list, Request::List),
            (Step::List, Input::Reply(Ok(Reply::Listed(instances)))) => {
                Next::Done(Outcome::Listed(Arc::new(Inventory::new(instances))))
            }
            (
                step @ (Step::Refresh { .. } | Step::Describing(..) | Step::Listing(..) | Step::Limiting(..)),
                input @ (Input::Start | Input::Reply(_)),
            ) => self.refresh(step, input),
            (Step::Unsupported, Input::Start) => Next::Failed(CloudError::unsupported()),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => self.one_call(step, input),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        self.external_id.as_ref()
    }

    fn obstacle(&self) -> Option<String> {
        self.launch.as_ref()?.full_zones()
    }

    fn label(&self) -> &'static str {
        match self.step {
            Step::Create | Step::Creating | Step::AwaitingCreation(_) => "creating instance",
            Step::Booting(_) => "booting",
            Step::Delete(_) | Step::Deleting(_) | Step::AwaitingOperation(..) => "deleting instance",
            Step::AwaitingDeletion(..) => "waiting for deletion",
            Step::List => "listing",
            Step::ListUnused(_) | Step::ListingUnused => "listing unused resources",
            Step::DeleteUnused(_) | Step::DeletingUnused => "deleting an unused resource",
            Step::Console(_) => "reading the console",
            Step::Upload(_) | Step::Uploading => "uploading",
            Step::DeleteImage(_) | Step::DeletingImage => "deleting image",
            Step::ListImages => "listing images",
            Step::Refresh { .. } | Step::Describing(..) | Step::Listing(..) | Step::Limiting(..) => "refreshing",
            Step::Unsupported | Step::Finished => "ended",
        }
    }
}

impl Machine {
    pub fn new(keys: Keys, step: Step) -> Self {
        Self { keys, step, external_id: None, launch: None }
    }

    pub fn launch(keys: Keys, launch: Launch) -> Self {
        let external_id = launch.prior_instance();
        let step = if external_id.is_some() { Step::Booting(0) } else { Step::Create };
        Self { keys, step, external_id, launch: Some(launch) }
    }

    fn call(&mut self, step: Step, key: &'static str, request: Request) -> Next<Call> {
        self.step = step;
        Next::Call(Call { key, request })
    }

    fn observe(&mut self, step: Step) -> Next<Call> {
        self.step = step;
        Next::Observe
    }

    fn create(&mut self) -> Next<Call> {
        match &self.launch {
            Some(launch) => {
                let request = Request::Create(launch.order());
                self.call(Step::Creating, self.keys.create, request)
            }
            None => unreachable!("only launches create instances"),
        }
    }

    fn on_created(&mut self, creation: Creation) -> Next<Call> {
        self.external_id = Some(creation.id);
        match creation.operation {
            Some(operation) => self.await_creation(operation, Duration::ZERO),
            None => self.created(),
        }
    }

    fn await_creation(&mut self, operation: Operation, pause: Duration) -> Next<Call> {
        let request = Request::Await(operation.clone(), pause);
        self.call(Step::AwaitingCreation(operation), self.keys.operation, request)
    }

    fn await_deletion(&mut self, id: ExternalId, operation: Operation, pause: Duration) -> Next<Call> {
        let request = Request::Await(operation.clone(), pause);
        self.call(Step::AwaitingOperation(id, operation), self.keys.operation, request)
    }

    fn created(&mut self) -> Next<Call> {
        if let Some(launch) = &self.launch {
            launch.record_capacity();
        }
        self.observe(Step::Booting(0))
    }

    /// An instance may exist if the cloud did not say that it refuses the creation.
    fn expect_instance(&mut self, error: &CloudError) {
        let is_unknown = matches!(error, CloudError::Outage { .. } | CloudError::Failed { .. } | CloudError::Deadline);
        if let Some(launch) = self.launch.as_ref().filter(|_| is_unknown) {
            self.external_id = launch.planned_id();
        }
    }

    /// If the zone has no capacity, the next one may have.
    fn not_created(&mut self, error: CloudError) -> Next<Call> {
        let is_capacity = matches!(error, CloudError::Capacity(_));
        if self.launch.as_mut().is_some_and(|launch| is_capacity && launch.try_next_zone()) {
            // The full zone has no instance.
            self.external_id = None;
            return self.create();
        }
        Next::Failed(error)
    }

    fn check_boot(&mut self, missed: u32, inventory: &Inventory) -> Next<Call> {
        let found = self.external_id.as_ref().and_then(|id| inventory.find(id));
        match found.map(|instance| (&instance.state, instance)) {
            Some((InstanceState::Running, instance)) => {
                let node = self.launch.as_ref().map_or_else(|| instance.clone(), |launch| launch.as_node(instance));
                Next::Done(Outcome::Launched(Box::new(node)))
            }
            Some((InstanceState::Starting, _)) => self.observe(Step::Booting(0)),
            // Some clouds accept a request beyond the quota and let the instance fail.
            Some((InstanceState::Failed(fault), _)) if fault.to_lowercase().contains("quota") => {
                Next::Failed(CloudError::Quota(fault.clone()))
            }
            Some((InstanceState::Failed(fault), _)) => status_failure(format!("Server in error state: {fault}")),
            Some((InstanceState::Stopping, _)) => status_failure("the instance is ending".to_owned()),
            None if self.is_resumed() && missed < MAX_MISSED_LISTINGS => self.observe(Step::Booting(missed + 1)),
            None => status_failure("the instance no longer exists".to_owned()),
        }
    }

    /// Whether an earlier process has created the instance. Its operation may still run.
    fn is_resumed(&self) -> bool {
        self.launch.as_ref().is_some_and(|launch| launch.prior_instance().is_some())
    }

    /// The labels, the instances, the limits: one after another.
    fn refresh(&mut self, step: Step, input: Input<'_, Reply>) -> Next<Call> {
        let keys = self.keys;
        match (step, input) {
            (Step::Refresh { facts, provider, describes_labels: true }, Input::Start) => {
                self.call(Step::Describing(facts, provider), keys.labels, Request::Labels)
            }
            (Step::Refresh { facts, provider, .. }, Input::Start) => {
                self.call(Step::Listing(facts, provider), keys.list, Request::List)
            }
            (Step::Describing(mut facts, provider), Input::Reply(Ok(Reply::Labels(config)))) => {
                facts.launch_config = Some(Arc::new(config));
                self.call(Step::Listing(facts, provider), keys.list, Request::List)
            }
            (Step::Listing(mut facts, provider), Input::Reply(Ok(Reply::Listed(instances)))) => {
                let inventory = Inventory::new(instances);
                facts.unmanaged = inventory.used_by_others(&provider);
                self.call(Step::Limiting(facts, inventory), keys.limits, Request::Limits)
            }
            (Step::Limiting(mut facts, inventory), Input::Reply(limits)) => {
                match limits {
                    Ok(Reply::Limits(limits)) => facts.limits = limits,
                    Err(CloudError::Denied(_)) => facts.refused_queries.push("limits"),
                    Err(error) => return Next::Failed(error),
                    Ok(reply) => unreachable!("limits have no reply {reply:?}"),
                }
                Next::Done(Outcome::Refreshed(Arc::new(*facts), Arc::new(inventory)))
            }
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (step, input) => unreachable!("unexpected {input:?} in step {step:?}"),
        }
    }

    /// Jobs of a single call.
    fn one_call(&mut self, step: Step, input: Input<'_, Reply>) -> Next<Call> {
        let keys = self.keys;
        match (step, input) {
            (Step::ListUnused(kinds), Input::Start) => {
                self.call(Step::ListingUnused, keys.list_unused, Request::ListUnused(kinds))
            }
            (Step::ListingUnused, Input::Reply(Ok(Reply::Unused(unused)))) => Next::Done(Outcome::Unused(unused)),
            (Step::DeleteUnused(resource), Input::Start) => {
                self.call(Step::DeletingUnused, keys.delete_unused, Request::DeleteUnused(resource))
            }
            (Step::Console(id), Input::Start) => {
                self.call(Step::Console(id.clone()), keys.console, Request::Console(id))
            }
            (Step::Console(_), Input::Reply(Ok(Reply::Console(text)))) => Next::Done(Outcome::Console(text)),
            (Step::Upload(order), Input::Start) => self.call(Step::Uploading, keys.upload, Request::Upload(order)),
            (Step::Uploading, Input::Reply(Ok(Reply::Uploaded(id)))) => {
                self.external_id = Some(id.clone());
                Next::Done(Outcome::Uploaded(id))
            }
            (Step::DeleteImage(id), Input::Start) => {
                self.call(Step::DeletingImage, keys.delete_image, Request::DeleteImage(id))
            }
            (Step::DeletingUnused | Step::DeletingImage, Input::Reply(Ok(Reply::Accepted(_)))) => {
                Next::Done(Outcome::Deleted)
            }
            (Step::ListImages, Input::Start) => self.call(Step::ListImages, keys.list_images, Request::Images),
            (Step::ListImages, Input::Reply(Ok(Reply::Images(images)))) => Next::Done(Outcome::Images(images)),
            (step, input) => unreachable!("unexpected {input:?} in step {step:?}"),
        }
    }
}

fn status_failure(detail: String) -> Next<Call> {
    Next::Failed(CloudError::Failed { kind: FailureKind::Status, detail })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;
    use crate::full_places::FullPlaces;
    use crate::instance::Instance;
    use crate::job::LaunchOrder;
    use crate::simple_adapter::LaunchPlan;
    use crate::simple_launch::FullZones;
    use nodepool_model::records::resources::Resources;
    use serde_json::Value;

    fn order() -> Arc<LaunchOrder> {
        Arc::new(LaunchOrder {
            pool: "main".into(),
            label: "small".into(),
            hostname: "np1".to_owned(),
            identity: "1".to_owned(),
            attempt: 1,
            zone: None,
            image: None,
            request: Arc::new(Value::Null),
            metadata: BTreeMap::new(),
            prior_instance: None,
            may_exist: false,
            may_appear: false,
        })
    }

    fn full() -> FullZones {
        Arc::new(Mutex::new(FullPlaces::new(Duration::from_secs(180))))
    }

    fn launch(zones: &[&str], full: &FullZones) -> Machine {
        let zones = zones.iter().map(|zone| (*zone).to_owned()).collect();
        let plan = LaunchPlan { zones, capacity: "big".to_owned(), use_internal_ip: true, id: Some(id()) };
        Machine::launch(Keys::DEFAULT, Launch::new(order(), plan, full.clone()))
    }

    fn id() -> ExternalId {
        ExternalId::text("np1")
    }

    fn operation() -> Operation {
        Operation("o".to_owned())
    }

    fn accepted() -> Input<'static, Reply> {
        let id = ExternalId::text("np1");
        Input::Reply(Ok(Reply::Created(Creation { id, operation: Some(operation()) })))
    }

    /// The zone of the creation that a machine asks for.
    fn zone_of(next: Next<Call>) -> Option<String> {
        match next {
            Next::Call(Call { request: Request::Create(order), .. }) => order.zone.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn assert_awaits(next: Next<Call>, pause: Duration) {
        match next {
            Next::Call(Call { request: Request::Await(found, after), .. }) => {
                assert_eq!((found, after), (operation(), pause));
            }
            other => panic!("{other:?}"),
        }
    }

    fn no_capacity() -> Input<'static, Reply> {
        Input::Reply(Err(CloudError::Capacity("exhausted".to_owned())))
    }

    #[test]
    fn a_creation_ends_with_its_operation_and_its_instance() {
        let mut machine = launch(&["a"], &full());
        assert_eq!(zone_of(machine.step(Input::Start)).as_deref(), Some("a"));
        assert_awaits(machine.step(accepted()), Duration::ZERO);
        assert_eq!(machine.external_id(), Some(&ExternalId::text("np1")));
        assert_awaits(machine.step(Input::Reply(Ok(Reply::Operation(OperationState::Running)))), OPERATION_PAUSE);
        // Nothing is known about the operation, so it is asked for again.
        assert_awaits(machine.step(Input::Reply(Err(CloudError::Deadline))), OPERATION_PAUSE);
        assert_eq!(machine.step(Input::Reply(Ok(Reply::Operation(OperationState::Ended)))), Next::Observe);
        let instance = Instance {
            private_ipv4: Some("10.0.0.2".to_owned()),
            interface_ip: Some("192.0.2.2".to_owned()),
            ..Instance::new(ExternalId::text("np1"))
        };
        match machine.step(Input::Observed(&Inventory::new(vec![instance]))) {
            Next::Done(Outcome::Launched(node)) => assert_eq!(node.interface_ip.as_deref(), Some("10.0.0.2")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn zones_without_capacity_are_skipped_by_all_launches() {
        let full = full();
        let mut machine = launch(&["a", "b"], &full);
        machine.step(Input::Start);
        machine.step(accepted());
        assert_eq!(zone_of(machine.step(no_capacity())).as_deref(), Some("b"));
        let obstacle = machine.obstacle().unwrap();
        assert!(obstacle.starts_with("big in a is full until "), "{obstacle}");
        let mut other = launch(&["a", "b"], &full);
        assert_eq!(zone_of(other.step(Input::Start)).as_deref(), Some("b"));
        assert!(matches!(machine.step(no_capacity()), Next::Failed(CloudError::Capacity(_))));
        // All are full, so the one that was full first is tried.
        let mut last = launch(&["a", "b"], &full);
        assert_eq!(zone_of(last.step(Input::Start)).as_deref(), Some("a"));
        last.step(accepted());
        last.step(Input::Reply(Ok(Reply::Operation(OperationState::Ended))));
        assert!(last.obstacle().is_some_and(|text| !text.contains("in a ")));
    }

    #[test]
    fn the_zone_of_the_requests_other_nodes_is_tried_first() {
        let zones = vec!["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let plan = LaunchPlan { zones, ..LaunchPlan::default() };
        let order = Arc::new(LaunchOrder { zone: Some("c".to_owned()), ..(*order()).clone() });
        let mut launch = Launch::new(order, plan, full());
        assert_eq!(launch.order().zone.as_deref(), Some("c"));
        launch.try_next_zone();
        assert_eq!(launch.order().zone.as_deref(), Some("a"));
    }

    #[test]
    fn other_errors_try_no_other_zone() {
        let mut machine = launch(&["a", "b"], &full());
        machine.step(Input::Start);
        machine.step(accepted());
        let next = machine.step(Input::Reply(Err(CloudError::Quota("cores".to_owned()))));
        assert_eq!(next, Next::Failed(CloudError::Quota("cores".to_owned())));
    }

    #[test]
    fn a_deletion_ends_once_the_instance_is_not_listed() {
        let id = ExternalId::text("np1");
        let mut machine = Machine::new(Keys::DEFAULT, Step::Delete(id.clone()));
        machine.step(Input::Start);
        assert_awaits(machine.step(Input::Reply(Ok(Reply::Accepted(Some(operation()))))), Duration::ZERO);
        assert_awaits(machine.step(Input::Reply(Err(CloudError::Deadline))), OPERATION_PAUSE);
        assert_eq!(machine.step(Input::Reply(Ok(Reply::Operation(OperationState::Ended)))), Next::Observe);
        assert_eq!(machine.step(Input::Observed(&Inventory::new(vec![Instance::new(id)]))), Next::Observe);
        assert_eq!(machine.step(Input::Observed(&Inventory::default())), Next::Done(Outcome::Deleted));
    }

    #[test]
    fn a_deletion_that_has_no_effect_is_repeated() {
        let mut machine = Machine::new(Keys::DEFAULT, Step::Delete(id()));
        machine.step(Input::Start);
        // The cloud does not find what its listing still shows.
        let next = machine.step(Input::Reply(Err(CloudError::not_found("404"))));
        assert_eq!(next, Next::Observe);
        let listed = Inventory::new(vec![Instance::new(id())]);
        for _ in 0..MAX_IDLE_LISTINGS {
            assert_eq!(machine.step(Input::Observed(&listed)), Next::Observe);
        }
        let next = machine.step(Input::Observed(&listed));
        assert!(matches!(next, Next::Call(Call { request: Request::Delete(_), .. })), "{next:?}");
    }

    #[test]
    fn an_instance_whose_creation_was_not_answered_has_its_planned_id() {
        let failed = |error: CloudError| {
            let mut machine = launch(&["a"], &full());
            machine.step(Input::Start);
            machine.step(Input::Reply(Err(error)));
            machine.external_id().cloned()
        };
        assert_eq!(failed(CloudError::Deadline), Some(id()));
        assert_eq!(failed(CloudError::Quota("cores".to_owned())), None);
        assert_eq!(failed(CloudError::Denied("no permission".to_owned())), None);
    }

    #[test]
    fn the_instance_of_an_earlier_process_may_be_listed_late() {
        let order = LaunchOrder { prior_instance: Some(id()), ..(*order()).clone() };
        let plan = LaunchPlan::default();
        let mut machine = Machine::launch(Keys::DEFAULT, Launch::new(Arc::new(order), plan, full()));
        assert_eq!(machine.step(Input::Start), Next::Observe);
        for _ in 0..MAX_MISSED_LISTINGS {
            assert_eq!(machine.step(Input::Observed(&Inventory::default())), Next::Observe);
        }
        assert!(matches!(machine.step(Input::Observed(&Inventory::default())), Next::Failed(_)));
    }

    #[test]
    fn limits_that_may_not_be_read_are_unlimited() {
        let facts = Box::new(ProviderFacts::initial());
        let step = Step::Refresh { facts, provider: "p".into(), describes_labels: false };
        let mut machine = Machine::new(Keys::DEFAULT, step);
        machine.step(Input::Start);
        machine.step(Input::Reply(Ok(Reply::Listed(Vec::new()))));
        match machine.step(Input::Reply(Err(CloudError::Denied("no permission".to_owned())))) {
            Next::Done(Outcome::Refreshed(facts, _)) => {
                assert_eq!((&facts.limits, &facts.refused_queries[..]), (&Resources::unlimited(), &["limits"][..]));
            }
            other => panic!("{other:?}"),
        }
    }
}
