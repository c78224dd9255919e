//! Jobs of one provider and their state machines: selects the next call, answers submitters and updates the facts.

mod cloud_health;
mod outcomes;
mod watch;

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::watch as watch_channel;
use tokio::time::Instant;
use tracing::{debug, warn};

use self::watch::Watch;
use super::jobs::{Abandon, JobResponder};
use super::tasks_view::{CallView, JobView, MAX_SHOWN, TasksView, failed_hosts};
use crate::actors::runtime::clock;
use crate::actors::runtime::log_context::LogContext;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::{Job, Outcome};
use nodepool_driver::state_machine::{Input, Next};
use nodepool_model::records::ids::{ExternalId, ProviderName};
use nodepool_model::records::time::Seconds;
use nodepool_policy::provider::health::ProviderHealth;
use nodepool_policy::provider::refresh_schedule::RefreshSchedule;
use nodepool_policy::provider::task_queue::{CallId, QueueStep, TaskQueue};

pub struct Tasks<D: Driver> {
    provider: ProviderName,
    driver: Rc<D>,
    /// Origin of the time of queue and refresh schedule.
    started_at: Instant,
    facts: watch_channel::Sender<Arc<ProviderFacts>>,
    queue: TaskQueue,
    calls: BTreeMap<CallId, Call<D::Call>>,
    /// Calls that another call in flight performs with its own.
    joined: BTreeMap<CallId, Vec<CallId>>,
    tasks: BTreeMap<TaskId, RunningTask<JobMachine<D>>>,
    next_number: u64,
    listing: ListingState,
    refresh_schedule: RefreshSchedule,
    /// Submitters that the running refresh answers.
    refresh_waiters: Vec<JobResponder>,
    /// Submitters that arrived during that refresh; the next one answers them.
    next_refresh_waiters: Vec<JobResponder>,
    refresh_error: Option<String>,
    listing_error: Option<String>,
    is_drained: bool,
    /// `None` if nothing here launches nodes: then a failed call concerns its own job alone.
    health: Option<ProviderHealth>,
    watch: Watch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TaskId(u64);

/// A call that is queued or in flight.
struct Call<C> {
    task: TaskId,
    call: C,
    started: Option<Instant>,
}

struct RunningTask<M> {
    task: Task,
    stage: Stage<M>,
}

/// One job.
struct Task {
    job: Job,
    owner: Owner,
    began: Instant,
    cancellation: Cancellation,
    /// There was an outage of the cloud during the job.
    met_outage: bool,
    /// Number of the last inventory of a watch that its machine has seen.
    observed: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cancellation {
    NotRequested,
    /// The job ends as soon as its call in flight has ended.
    Requested,
}

/// Receiver of a job's result.
enum Owner {
    Submitter(JobResponder),
    /// Part of a larger job.
    PartOf(TaskId),
    /// The listing for machines that observe.
    Internal,
    /// The listing that shows whether the cloud responds.
    Probe,
    /// The opening of the driver's watch.
    Watch,
}

/// Stage of a job: what it waits for.
enum Stage<M> {
    Calling(M, CallId),
    /// Waits for the inventory of a job with a higher number: an earlier inventory does not show the machine's last
    /// change.
    Observing(M, u64),
    /// Its call failed. The probe shows whether the whole cloud is concerned.
    Undecided(M, CloudError),
    Parts(usize),
}

/// The listing that machines in `Stage::Observing` wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListingState {
    NotNeeded,
    /// `take_due_listing` has yet to report it.
    Due,
    /// The TaskManager starts it after a delay, or it is running.
    InProgress,
}

impl<D: Driver> Tasks<D> {
    pub fn new(
        provider: ProviderName,
        driver: Rc<D>,
        queue: TaskQueue,
        refresh_schedule: RefreshSchedule,
        facts: watch_channel::Sender<Arc<ProviderFacts>>,
        health: Option<ProviderHealth>,
    ) -> Self {
        Self {
            provider,
            driver,
            started_at: Instant::now(),
            facts,
            queue,
            calls: BTreeMap::new(),
            joined: BTreeMap::new(),
            tasks: BTreeMap::new(),
            next_number: 0,
            listing: ListingState::NotNeeded,
            refresh_schedule,
            refresh_waiters: Vec::new(),
            next_refresh_waiters: Vec::new(),
            refresh_error: None,
            listing_error: None,
            is_drained: false,
            health,
            watch: Watch::default(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    pub fn submit(&mut self, job: Job, responder: JobResponder) {
        if job != Job::Refresh {
            return self.start_job(job, Owner::Submitter(responder));
        }
        // The first refresh answers all submitters that arrive while it runs. Later submitters need newer facts: one
        // refresh that starts after their submits answers all of them.
        if self.refresh_schedule.is_running() && !self.has_refreshed() {
            self.refresh_waiters.push(responder);
        } else {
            self.next_refresh_waiters.push(responder);
            self.refresh_schedule.request_now(self.now());
        }
    }

    /// Cancels a job, unless it has ended meanwhile; then its last event has already been sent.
    pub fn abandon(&mut self, abandon: &Abandon) {
        for responders in [&mut self.refresh_waiters, &mut self.next_refresh_waiters] {
            if let Some(index) = responders.iter().position(|responder| responder.belongs_to(abandon)) {
                return respond_abandoned(responders.swap_remove(index));
            }
        }
        let cancelled = self.tasks.iter().find(|(_, running)| match &running.task.owner {
            Owner::Submitter(responder) => responder.belongs_to(abandon),
            Owner::PartOf(_) | Owner::Internal | Owner::Probe | Owner::Watch => false,
        });
        if let Some(id) = cancelled.map(|(id, _)| *id) {
            self.cancel_with_parts(id);
        }
    }

    /// Time of the next refresh, at which `start_refresh` must be called.
    pub fn refresh_due(&self) -> Option<Seconds> {
        self.refresh_schedule.due()
    }

    /// Whether launches may wait for facts that no refresh has found yet.
    pub fn awaits_refresh(&self) -> bool {
        let is_complete = self.has_refreshed() && self.facts.borrow().failed_queries.is_empty();
        !is_complete && self.tasks.values().any(|running| matches!(running.task.job, Job::Launch(_)))
    }

    pub fn start_refresh(&mut self) {
        self.refresh_schedule.begin(self.now());
        self.refresh_waiters = std::mem::take(&mut self.next_refresh_waiters);
        self.start_job(Job::Refresh, Owner::Internal);
    }

    /// True once when machines start to wait for an inventory; `list` must then be called after the listing delay.
    pub fn take_due_listing(&mut self) -> bool {
        let is_due = self.listing == ListingState::Due;
        if is_due {
            self.listing = ListingState::InProgress;
        }
        is_due
    }

    pub fn list(&mut self) {
        assert_eq!(self.listing, ListingState::InProgress, "a listing is started after take_due_listing");
        if self.has_observers_after(None) {
            self.start_job(Job::List, Owner::Internal);
        } else {
            // A refresh has already provided the inventory.
            self.listing = ListingState::NotNeeded;
        }
    }

    /// Time of queue and refresh schedule.
    pub fn now(&self) -> Seconds {
        Seconds(self.started_at.elapsed().as_secs_f64())
    }

    /// Next step of the queue: a call that may start now, or the condition to wait for.
    pub fn next_step(&mut self) -> QueueStep {
        let now = self.now();
        self.queue.next(now)
    }

    /// The request of a call that starts now, with those that it performs as well.
    pub fn started(&mut self, id: CallId) -> D::Call {
        let now = Instant::now();
        let call = self.calls.get_mut(&id).expect("a queued call is known until it has ended");
        call.started = Some(now);
        let mut request = call.call.clone();
        if D::Call::JOINS {
            let queued: Vec<CallId> = self.queue.lane(request.lane()).collect();
            let joined: Vec<CallId> =
                queued.into_iter().filter(|other| request.join(&self.calls[other].call)).collect();
            for other in &joined {
                self.queue.cancel(*other);
                self.calls.get_mut(other).expect("a queued call is known until it has ended").started = Some(now);
            }
            self.joined.insert(id, joined);
        }
        request
    }

    /// Metric key and milliseconds of a call in flight.
    pub fn timing(&self, id: CallId) -> Option<(&'static str, f64)> {
        let call = self.calls.get(&id)?;
        Some((call.call.key(), call.started?.elapsed().as_secs_f64() * 1000.0))
    }

    /// Log context of a call; `None` if the call is made for the provider itself.
    pub fn log_context(&self, id: CallId) -> Option<&LogContext> {
        match &self.tasks.get(&self.calls.get(&id)?.task)?.task.owner {
            Owner::Submitter(responder) => Some(responder.log_context()),
            Owner::PartOf(_) | Owner::Internal | Owner::Probe | Owner::Watch => None,
        }
    }

    pub fn call_ended(&mut self, id: CallId, result: Result<D::Reply, CloudError>) {
        for other in self.joined.remove(&id).unwrap_or_default() {
            let shared = result.as_ref().map(|reply| self.driver.share(reply)).map_err(CloudError::clone);
            self.joined_call_ended(other, shared);
        }
        let now = self.now();
        let call = self.calls.get_mut(&id).expect("a call in flight is known until it has ended");
        let task = call.task;
        let Some(running) = self.tasks.get(&task) else { return self.forsaken_call_ended(id, &result) };
        if let Err(error @ CloudError::Throttled { retry_after }) = &result {
            self.queue.throttled(id, now, *retry_after);
            let is_repeated =
                running.task.cancellation == Cancellation::NotRequested && !matches!(running.task.owner, Owner::Probe);
            if is_repeated {
                call.started = None;
                // A throttled refresh does not end, so the reason for missing facts is recorded here.
                if running.task.job == Job::Refresh {
                    self.record_unavailable(error);
                }
                return;
            }
            self.queue.cancel(id);
        } else {
            self.queue.ended(id);
        }
        self.deliver(id, task, result);
    }

    /// A call whose job was cancelled has ended.
    fn forsaken_call_ended(&mut self, id: CallId, result: &Result<D::Reply, CloudError>) {
        if let Err(CloudError::Throttled { retry_after }) = result {
            self.queue.throttled(id, self.now(), *retry_after);
            self.queue.cancel(id);
        } else {
            self.queue.ended(id);
        }
        self.calls.remove(&id);
    }

    /// A call that another one performed has ended. If that was throttled, it waits for its turn again.
    fn joined_call_ended(&mut self, id: CallId, result: Result<D::Reply, CloudError>) {
        let call = self.calls.get_mut(&id).expect("a call in flight is known until it has ended");
        let task = call.task;
        let running = self.tasks.get(&task).expect("a task exists as long as its call");
        let is_wanted = running.task.cancellation == Cancellation::NotRequested;
        if matches!(result, Err(CloudError::Throttled { .. })) && is_wanted {
            call.started = None;
            let lane = call.call.lane();
            return self.queue.push_front(id, lane);
        }
        self.deliver(id, task, result);
    }

    /// Continues the machine whose call has ended.
    fn deliver(&mut self, id: CallId, task: TaskId, result: Result<D::Reply, CloudError>) {
        self.calls.remove(&id);
        let running = self.tasks.remove(&task).expect("a task exists as long as its call");
        let Stage::Calling(machine, call_id) = running.stage else { unreachable!("{task:?} waits for its call") };
        assert_eq!(call_id, id, "the answer belongs to another call of {task:?}");
        match result {
            Err(error) => self.call_failed(task, running.task, machine, error),
            Ok(reply) => self.advance(task, running.task, machine, Input::Reply(Ok(reply))),
        }
    }

    fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Starts a job, or all its parts.
    fn start_job(&mut self, job: Job, owner: Owner) {
        let id = TaskId(self.number());
        let parts = self.driver.subjobs(&job);
        let machine = parts.is_empty().then(|| self.driver.begin(&job));
        let met_outage = self.is_down();
        let cancellation = Cancellation::NotRequested;
        let task = Task { job, owner, began: Instant::now(), cancellation, met_outage, observed: 0 };
        match machine {
            Some(machine) => self.advance(id, task, machine, Input::Start),
            None => {
                self.tasks.insert(id, RunningTask { task, stage: Stage::Parts(parts.len()) });
                for part in parts {
                    self.start_job(part, Owner::PartOf(id));
                }
            }
        }
    }

    /// Performs one step of a machine, and its effects.
    fn advance(&mut self, id: TaskId, mut task: Task, mut machine: JobMachine<D>, input: Input<'_, D::Reply>) {
        let (before, before_id) = (machine.label(), machine.external_id().is_some());
        let next = machine.step(input);
        if let Owner::Submitter(responder) = &mut task.owner {
            responder.log_step(&self.provider, before, machine.label());
            responder.instance_known(machine.external_id());
            responder.waiting(machine.obstacle());
        }
        self.on_creation(before_id, &task, &machine);
        if task.cancellation == Cancellation::Requested {
            return self.finish_abandoned(task);
        }
        let stage = match next {
            Next::Done(outcome) => return self.finish(id, task, Ok(outcome), machine.external_id()),
            Next::Failed(error) => return self.finish(id, task, Err(error), machine.external_id()),
            Next::Observe => {
                if let Some((number, inventory)) = self.unseen_inventory(&task) {
                    task.observed = number;
                    return self.advance(id, task, machine, Input::Observed(&inventory));
                }
                if self.listing == ListingState::NotNeeded && self.needs_listings() {
                    self.listing = ListingState::Due;
                }
                Stage::Observing(machine, self.number())
            }
            Next::Call(call) => {
                if let Some(error) = self.rejection(&task, &machine, &call) {
                    return respond(task.owner, Err(error));
                }
                let call_id = CallId(self.number());
                match task.owner {
                    Owner::Probe => self.queue.push_probe(call_id, call.lane()),
                    Owner::Submitter(_) | Owner::PartOf(_) | Owner::Internal | Owner::Watch => {
                        self.queue.push(call_id, call.lane())
                    }
                }
                self.calls.insert(call_id, Call { task: id, call, started: None });
                Stage::Calling(machine, call_id)
            }
        };
        let before = self.tasks.insert(id, RunningTask { task, stage });
        assert!(before.is_none(), "task {id:?} runs twice");
    }

    /// Handles the end of a job: updates the facts, answers the owner and wakes observing machines.
    fn finish(
        &mut self,
        id: TaskId,
        task: Task,
        result: Result<Outcome, CloudError>,
        external_id: Option<&ExternalId>,
    ) {
        let result = result.map_err(|error| error_of(&task, error));
        if let Err(error) = &result {
            debug!(provider = %self.provider, job = task.job.name(), %error, "job failed");
        }
        let result = self.apply_outcome(&task.job, result);
        self.record_job(&task, result.as_ref(), external_id);
        if matches!(task.owner, Owner::Watch) {
            return self.on_watch_opened(&result);
        }
        let inventory_seen = match &result {
            Ok(Outcome::Refreshed(_, inventory) | Outcome::Listed(inventory)) => Some(inventory.clone()),
            _ => None,
        };
        match (task.owner, &task.job) {
            (Owner::Submitter(responder), _) => responder.finish(result),
            (Owner::PartOf(parent), _) => self.part_ended(parent),
            (Owner::Internal, Job::Refresh) => self.on_refresh_ended(&result),
            (Owner::Probe | Owner::Watch, _) => self.record_listing(result.as_ref().err()),
            (Owner::Internal, _) => {
                self.record_listing(result.as_ref().err());
                // Observing machines that this listing does not wake wait for the next one.
                let again = self.has_observers_after(inventory_seen.is_some().then_some(id));
                self.listing = if again { ListingState::Due } else { ListingState::NotNeeded };
            }
        }
        if let Some(inventory) = inventory_seen {
            self.wake_observers(id, &inventory);
        }
    }

    /// Logs each error once, not with every attempt. No other log line explains why booting instances are not observed.
    fn record_listing(&mut self, error: Option<&CloudError>) {
        self.on_listing_ended(error);
        let is_denied = matches!(error, Some(CloudError::Denied(_)));
        let error = error.map(CloudError::to_string);
        let is_new = |error: &&String| self.listing_error.as_ref() != Some(*error) && !self.is_down();
        if let Some(error) = error.as_ref().filter(is_new) {
            warn!(provider = %self.provider, %error, "cannot list instances; launches wait for a listing");
        }
        self.listing_error = error;
        if self.is_drained && is_denied {
            self.end_observers();
        }
    }

    fn on_refresh_ended(&mut self, result: &Result<Outcome, CloudError>) {
        let now = self.now();
        match result {
            Ok(_) if !self.facts.borrow().failed_queries.is_empty() => self.refresh_schedule.partially_succeeded(now),
            Ok(_) => self.refresh_schedule.succeeded(self.facts.borrow().is_missing_an_image(), now),
            Err(_) => self.refresh_schedule.failed(now),
        }
        self.refresh_waiters.drain(..).for_each(|responder| responder.finish(result.clone()));
    }

    /// Ends a cancelled job. Its result carries no information about the cloud.
    fn finish_abandoned(&mut self, task: Task) {
        match task.owner {
            Owner::Submitter(responder) => respond_abandoned(responder),
            Owner::PartOf(parent) => self.part_ended(parent),
            Owner::Internal | Owner::Probe | Owner::Watch => unreachable!("an internal listing cannot be cancelled"),
        }
    }

    fn part_ended(&mut self, parent: TaskId) {
        // A cancelled job is answered and removed before its parts have ended.
        let Some(running) = self.tasks.get_mut(&parent) else { return };
        let Stage::Parts(left) = &mut running.stage else { unreachable!("a job with parts has no machine") };
        *left -= 1;
        if *left == 0
            && let Some(RunningTask { task, .. }) = self.tasks.remove(&parent)
        {
            let facts = Arc::unwrap_or_clone(self.facts.borrow().clone());
            self.finish(parent, task, Ok(Outcome::Refreshed(Arc::new(facts), Arc::default())), None);
        }
    }

    /// Whether a handle of this provider exists: each handle watches the facts.
    pub fn has_watchers(&self) -> bool {
        self.facts.receiver_count() > 0
    }

    fn has_refreshed(&self) -> bool {
        self.facts.borrow().is_refreshed()
    }

    /// Whether machines observe that this listing does not wake; without a listing, whether any machines observe.
    fn has_observers_after(&self, listing: Option<TaskId>) -> bool {
        let woken = listing.map_or(0, |listing| listing.0);
        self.tasks.values().any(|running| matches!(running.stage, Stage::Observing(_, since) if since > woken))
    }

    fn wake_observers(&mut self, listing: TaskId, inventory: &Inventory) {
        let is_woken = |running: &RunningTask<JobMachine<D>>| matches!(running.stage, Stage::Observing(_, since) if since < listing.0);
        let waiting: Vec<TaskId> =
            self.tasks.iter().filter(|(_, running)| is_woken(running)).map(|(id, _)| *id).collect();
        for id in waiting {
            if let Some(RunningTask { mut task, stage: Stage::Observing(machine, _) }) = self.tasks.remove(&id) {
                task.observed = task.observed.max(listing.0);
                self.advance(id, task, machine, Input::Observed(inventory));
            }
        }
    }

    fn cancel_with_parts(&mut self, id: TaskId) {
        self.cancel(id);
        let is_part =
            |running: &RunningTask<JobMachine<D>>| matches!(running.task.owner, Owner::PartOf(whole) if whole == id);
        let parts: Vec<TaskId> =
            self.tasks.iter().filter(|(_, running)| is_part(running)).map(|(part, _)| *part).collect();
        for part in parts {
            self.cancel(part);
        }
    }

    /// Ends a job now, or marks it to end when its call in flight has ended: the answer may tell what exists now. A
    /// call that waits in the cloud tells nothing new.
    fn cancel(&mut self, id: TaskId) {
        let Some(running) = self.tasks.get_mut(&id) else { return };
        running.task.cancellation = Cancellation::Requested;
        if let Stage::Calling(_, call) = running.stage {
            if self.queue.cancel(call) {
                self.calls.remove(&call);
            } else if self.calls.get(&call).is_none_or(|call| !call.call.only_waits()) {
                return;
            }
        }
        if let Some(RunningTask { task, .. }) = self.tasks.remove(&id) {
            self.finish_abandoned(task);
        }
    }

    pub fn view(&self) -> TasksView {
        let in_flight = self.queue.in_flight().filter_map(|id| self.calls.get(&id));
        let facts = self.facts.borrow();
        TasksView {
            in_flight: in_flight
                .map(|call| CallView {
                    call: call.call.key(),
                    for_s: call.started.map_or(0.0, |started| started.elapsed().as_secs_f64()),
                })
                .collect(),
            queued: self.queue.queued(),
            tasks: self.tasks.len(),
            jobs: self.tasks.values().take(MAX_SHOWN).map(job_view::<D>).collect(),
            facts_age_s: self.has_refreshed().then(|| (clock::now() - facts.refreshed_at).0),
            refresh_error: self.refresh_error.clone(),
            listing_error: self.listing_error.clone(),
            hosts: facts.static_hosts.len(),
            hosts_failed: failed_hosts(&facts),
        }
    }
}

/// Errors of an outage are those of jobs that met one. The others concern their job alone.
fn error_of(task: &Task, error: CloudError) -> CloudError {
    let is_shared = matches!(task.owner, Owner::Internal | Owner::Probe | Owner::Watch);
    if task.met_outage || is_shared { error.during_outage() } else { error.without_outage() }
}

fn respond(owner: Owner, result: Result<Outcome, CloudError>) {
    if let Owner::Submitter(responder) = owner {
        responder.finish(result);
    }
}

fn respond_abandoned(responder: JobResponder) {
    responder.finish(Err(CloudError::abandoned("cancelled by its submitter")));
}

fn job_view<D: Driver>(running: &RunningTask<JobMachine<D>>) -> JobView {
    let step = match &running.stage {
        Stage::Calling(machine, _) | Stage::Observing(machine, _) | Stage::Undecided(machine, _) => machine.label(),
        Stage::Parts(_) => "parts",
    };
    JobView { job: running.task.job.name(), step, for_s: running.task.began.elapsed().as_secs_f64() }
}
