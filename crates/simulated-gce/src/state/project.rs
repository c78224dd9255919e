//! One project: its instances and operations by zone, its usage of quotas, and the ids of requests.

use std::cell::OnceCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;

use crate::state::instance::Instance;
use crate::state::operation::{Operation, OperationError, OperationStatus};
use crate::state::places;
use crate::state::quotas::Usage;
use crate::state::work::{Place, Step};
use crate::state::world::World;

pub struct Project {
    pub name: String,
    pub number: u64,
    pub zones: BTreeMap<&'static str, Zone>,
    pub usage: Usage,
    /// Results of calls by the id of their request.
    pub requests: HashMap<String, RememberedRequest>,
}

#[derive(Default)]
pub struct Zone {
    pub instances: BTreeMap<String, Instance>,
    pub operations: BTreeMap<String, Operation>,
}

/// A call that was accepted with the id of a request.
pub struct RememberedRequest {
    /// The method and the name of the instance, which a repeated call must have.
    pub call: String,
    pub zone: &'static str,
    pub operation: String,
}

impl Project {
    pub fn new(name: &str, number: u64) -> Self {
        let zones = places::zones().map(|zone| (zone, Zone::default())).collect();
        Self { name: name.to_owned(), number, zones, usage: Usage::default(), requests: HashMap::new() }
    }

    /// The account that instances have by default, and the user of operations without a token.
    pub fn default_account(&self) -> String {
        format!("{}-compute@developer.gserviceaccount.com", self.number)
    }

    pub fn zone(&mut self, name: &str) -> &mut Zone {
        self.zones.get_mut(name).expect("a place names a zone that exists")
    }
}

/// A project with the state that all projects share, as methods need both.
pub struct Compute<'a> {
    pub world: &'a mut World,
    pub project: &'a mut Project,
}

impl Compute<'_> {
    pub fn place(&self, zone: &str) -> Place {
        Place { project: self.project.name.clone(), zone: zone.to_owned() }
    }

    pub fn run(&mut self, place: &Place, step: Step) {
        let zone = place.zone.as_str();
        match step {
            Step::RunOperation(name) => self.run_operation(zone, &name),
            Step::FailOperation(name) => self.fail_operation(zone, &name),
            Step::ForgetOperation(name) => drop(self.project.zone(zone).operations.remove(&name)),
            Step::Stage(name, id) => self.stage(zone, &name, id),
            Step::Boot(name, id) => self.boot(zone, &name, id),
            Step::Preempt(name, id) => self.preempt_after(zone, &name, id),
            Step::FinishStop(name, id) => self.finish_stop(zone, &name, id),
            Step::FinishDelete(name, id) => self.finish_delete(zone, &name, id),
            Step::ForgetRequest(id) => drop(self.project.requests.remove(&id)),
        }
    }

    /// Adds a PENDING operation on an instance, and returns its name.
    pub fn add_operation(&mut self, zone: &str, kind: &'static str, (target, target_id): (&str, u64)) -> String {
        let epoch = Duration::from_secs_f64(self.world.epoch_ms(self.world.now) / 1000.0);
        let name = Operation::new_name(epoch, self.world.random());
        let operation = Operation {
            name: name.clone(),
            id: self.world.new_id(),
            kind,
            user: self.project.default_account(),
            target: target.to_owned(),
            target_id,
            status: OperationStatus::Pending,
            inserted: self.world.timestamp(),
            started: None,
            ended: None,
            error: None,
            fate: None,
            done: Rc::new(Notify::new()),
            cache: OnceCell::new(),
        };
        let earlier = self.project.zone(zone).operations.insert(name.clone(), operation);
        assert!(earlier.is_none(), "a second operation has the name {name}");
        self.world.stats.operations += 1;
        let wait = self.world.duration(self.world.knobs.operation_s);
        self.world.schedule(wait, &self.place(zone), Step::RunOperation(name.clone()));
        name
    }

    fn run_operation(&mut self, zone: &str, name: &str) {
        let now = self.world.timestamp();
        if let Some(operation) = self.project.zone(zone).operations.get_mut(name)
            && operation.status == OperationStatus::Pending
        {
            operation.status = OperationStatus::Running;
            operation.started = Some(now);
            operation.cache.take();
        }
    }

    /// Ends an operation, with an error or without, unless it has ended already.
    pub fn finish_operation(&mut self, zone: &str, name: &str, error: Option<OperationError>) {
        let now = self.world.timestamp();
        let Some(operation) = self.project.zone(zone).operations.get_mut(name) else { return };
        if operation.is_done() {
            return;
        }
        if let Some(error) = &error {
            *self.world.stats.operation_errors.entry(error.code.clone()).or_default() += 1;
        }
        operation.status = OperationStatus::Done;
        operation.started.get_or_insert_with(|| now.clone());
        operation.ended = Some(now);
        operation.error = error;
        operation.cache.take();
        operation.done.notify_waiters();
        let kept = self.world.knobs.operations_kept_s;
        self.world.schedule(kept, &self.place(zone), Step::ForgetOperation(name.to_owned()));
    }
}
