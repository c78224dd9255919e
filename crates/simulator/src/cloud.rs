//! Model of clouds: slow and throttled calls, lost replies, stale listings, failed boots and ignored deletions.

mod driver;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::driver::SimDrivers;
use super::configuration::CORES;
use super::history::RunHistory;
use super::step_budget::StepBudget;
use nodepool::actors::provider::providers::ExtraDrivers;
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::instance::{Instance, InstanceState};
use nodepool_driver::job::LaunchOrder;
use nodepool_model::config::upload_config::{StoredImage, UploadOrder};
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::resources::Resources;
use nodepool_model::records::time::Seconds;
use nodepool_policy::invariants::images::ImageObservation;
use nodepool_policy::invariants::launches::Caller;
use nodepool_policy::invariants::nodes::{self, CloudObjectKey, Observation, Violation};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::time::Instant;

/// Probabilities of faults per call.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CallFaultRates {
    pub refused: f64,
    pub lost_replies: f64,
    pub throttled: f64,
    pub failing_boots: f64,
    pub hanging_boots: f64,
    pub ignored_deletes: f64,
    /// A create call creates a second server.
    pub duplicate_creates: f64,
    /// Seconds by which listings are stale, for created and deleted servers.
    pub list_lag_s: f64,
    /// Maximum additional latency of a reply, in seconds.
    pub max_extra_latency_s: f64,
    /// Foreign servers, which use quota.
    pub foreign_servers: usize,
    /// No call is answered. Some are executed nevertheless.
    pub is_absent: bool,
    /// Number of servers beyond which creations are refused, although the cloud does not report this limit. One in
    /// `LATE_REFUSALS` is refused after the server was created.
    pub hidden_limit: Option<usize>,
}

/// All clouds of one run, by provider. Clones share them.
#[derive(Clone)]
pub struct Clouds(Arc<Mutex<State>>);

struct State {
    rng: StdRng,
    /// Rates with the number of their last change.
    fault_rates: BTreeMap<ProviderName, (u64, CallFaultRates)>,
    /// End of the last call that a fault delays.
    delayed_until: BTreeMap<ProviderName, Instant>,
    /// Time until which a launcher may not have noticed that the cloud has returned.
    unnoticed_until: BTreeMap<ProviderName, Instant>,
    servers: BTreeMap<CloudObjectKey, Server>,
    /// Deleted servers with the time of deletion: stale listings still contain them.
    deleted: Vec<(CloudObjectKey, Instance, Instant)>,
    /// Images with the time of their upload.
    images: BTreeMap<CloudObjectKey, (StoredImage, Instant)>,
    history: RunHistory,
    last_id: u64,
    last_connection: u64,
}

#[derive(Clone)]
struct Server {
    name: String,
    metadata: BTreeMap<String, String>,
    zone: Option<String>,
    created_at: Instant,
    boots_at: Instant,
    outcome: ServerOutcome,
    deleted_at: Option<Instant>,
    /// Whether the history has observed that the server runs.
    is_running_reported: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerOutcome {
    Runs,
    Fails,
    Hangs,
    /// The cloud has no capacity for the server.
    Refused,
}

impl Clouds {
    pub fn new(seed: u64, history: RunHistory) -> Self {
        let rng = StdRng::seed_from_u64(seed ^ 0xc10d);
        let state = State {
            rng,
            fault_rates: BTreeMap::new(),
            delayed_until: BTreeMap::new(),
            unnoticed_until: BTreeMap::new(),
            servers: BTreeMap::new(),
            deleted: Vec::new(),
            images: BTreeMap::new(),
            history,
            last_id: 0,
            last_connection: 0,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Sets the fault rates of a provider, until other rates are set or `duration` has passed.
    pub fn set_fault_rates(&self, provider: &str, rates: CallFaultRates, duration: Duration) {
        let number = {
            let mut state = self.0.lock().unwrap();
            state.history.interrupt_launches(&provider.into());
            let (number, current) = state.fault_rates.entry(provider.into()).or_default();
            (*number, *current) = (*number + 1, rates);
            *number
        };
        let (clouds, provider) = (self.clone(), ProviderName::from(provider));
        actix_rt::spawn(async move {
            tokio::time::sleep(duration).await;
            clouds.0.lock().unwrap().end_faults(&provider, Some(number));
        });
    }

    /// Ends the faults of all clouds.
    pub fn clear_faults(&self) {
        let mut state = self.0.lock().unwrap();
        let providers: Vec<_> = state.fault_rates.keys().cloned().collect();
        providers.iter().for_each(|provider| state.end_faults(provider, None));
    }

    /// Whether the cloud has no faults, and no call that one has delayed is still in flight.
    pub fn is_fault_free(&self, provider: &ProviderName) -> bool {
        let state = self.0.lock().unwrap();
        let is_delayed = state.delayed_until.get(provider).is_some_and(|until| Instant::now() < *until);
        !is_delayed && state.fault_rates(provider) == CallFaultRates::default()
    }

    /// Whether a launcher knows that the cloud has no faults.
    pub fn is_known_fault_free(&self, provider: &ProviderName) -> bool {
        let is_noticed =
            |state: &State| state.unnoticed_until.get(provider).is_none_or(|until| Instant::now() >= *until);
        self.is_fault_free(provider) && is_noticed(&self.0.lock().unwrap())
    }

    /// Deletes a server behind the launcher's back. False if none exists.
    pub fn delete_any_server(&self, nth: usize) -> bool {
        let mut state = self.0.lock().unwrap();
        let key = state.servers.keys().nth(nth % state.servers.len().max(1)).cloned();
        if let Some(key) = &key {
            state.remove_server(key);
        }
        key.is_some()
    }

    /// Connects a process to the cloud of a provider.
    pub fn connect(&self, process: &'static str, provider: ProviderName, budget: &StepBudget) -> CloudConnection {
        let mut state = self.0.lock().unwrap();
        state.last_connection += 1;
        let (number, session) = (state.last_connection, budget.last_session());
        let connection =
            CloudConnection { process, number, provider, clouds: self.clone(), budget: budget.clone(), session };
        state.history.connected(connection.caller());
        connection
    }

    /// The drivers of one process.
    pub fn drivers(&self, process: &'static str, budget: &StepBudget) -> Box<dyn ExtraDrivers> {
        Box::new(SimDrivers { process, clouds: self.clone(), budget: budget.clone() })
    }
}

impl State {
    fn fault_rates(&self, provider: &ProviderName) -> CallFaultRates {
        self.fault_rates.get(provider).map(|(_, rates)| *rates).unwrap_or_default()
    }

    /// Ends the faults of a provider, unless they were set after the change of this number.
    fn end_faults(&mut self, provider: &ProviderName, number: Option<u64>) {
        let Some((last, rates)) = self.fault_rates.get_mut(provider) else { return };
        if number.is_none_or(|number| number == *last) {
            *rates = CallFaultRates::default();
            self.unnoticed_until.insert(provider.clone(), Instant::now() + PROBE_INTERVAL);
            self.history.interrupt_launches(provider);
        }
    }

    fn happens(&mut self, likelihood: f64) -> bool {
        likelihood > 0.0 && self.rng.gen_bool(likelihood)
    }

    fn remove_server(&mut self, key: &CloudObjectKey) {
        if let Some(server) = self.servers.remove(key) {
            let now = Instant::now();
            self.deleted.retain(|(_, _, since)| *since + MAX_LIST_LAG > now);
            self.deleted.push((key.clone(), server.instance(&key.1, now), now));
            self.history.observe(Observation::Removed(key));
            self.history.server_removed(&key.0);
        }
    }

    /// Applies the boots and deletions that are due.
    fn advance(&mut self) {
        let now = Instant::now();
        let runs = |server: &Server| server.outcome == ServerOutcome::Runs && server.boots_at <= now;
        for (key, server) in self.servers.iter_mut().filter(|(_, server)| !server.is_running_reported && runs(server)) {
            server.is_running_reported = true;
            self.history.observe(Observation::Running(key));
        }
        let deleted = self.servers.iter().filter(|(_, server)| server.deleted_at.is_some_and(|at| at <= now));
        for key in deleted.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.remove_server(&key);
        }
    }

    fn create(&mut self, caller: Caller<'_>, order: &LaunchOrder, limit: usize) -> Result<ExternalId, CloudError> {
        let provider = caller.provider;
        self.advance();
        let own = || self.servers.iter().filter(|((of, _), _)| of == provider);
        // A launch that may have created its server before receives the existing one; other launches do not check for
        // one.
        let same = |(_, server): &(_, &Server)| server.name == order.hostname && server.deleted_at.is_none();
        if order.may_exist
            && let Some(((_, id), _)) = own().find(same)
        {
            return Ok(ExternalId::text(id.clone()));
        }
        if own().count() + self.fault_rates(provider).foreign_servers >= limit {
            return Err(CloudError::Quota("no more servers".to_owned()));
        }
        if let Some(image) = &order.image
            && !self.images.contains_key(&(provider.clone(), image.to_string()))
        {
            return Err(failed("there is no such image"));
        }
        let rates = self.fault_rates(provider);
        let is_full = rates.hidden_limit.is_some_and(|limit| self.running_count(provider) >= limit);
        if is_full && !self.rng.gen_ratio(1, LATE_REFUSALS) {
            self.history.launch_refused(caller);
            return Err(CloudError::Quota("no more ports".to_owned()));
        }
        self.last_id += 1;
        let key = (provider.clone(), format!("s-{}", self.last_id));
        let outcome = if is_full { ServerOutcome::Refused } else { self.draw_outcome(&rates) };
        let server = self.new_server(order, outcome);
        let node = server.metadata.get("nodepool_node_id").expect("a server has the id of its node");
        let node = NodeId::from(node.as_str());
        self.history.observe(Observation::Created(&key, &node));
        self.history.server_created(caller);
        if outcome != ServerOutcome::Refused {
            self.history.launch_accepted(caller, &node);
        }
        if self.happens(rates.duplicate_creates) {
            self.last_id += 1;
            let duplicate = (provider.clone(), format!("s-{}", self.last_id));
            self.history.observe(Observation::Duplicated(&duplicate, &node));
            self.servers.insert(duplicate, server.clone());
        }
        self.servers.insert(key.clone(), server);
        match self.happens(rates.lost_replies) {
            true => Err(failed("injected: reply lost")),
            false => Ok(ExternalId::text(key.1)),
        }
    }

    fn draw_outcome(&mut self, rates: &CallFaultRates) -> ServerOutcome {
        match () {
            () if self.happens(rates.failing_boots) => ServerOutcome::Fails,
            () if self.happens(rates.hanging_boots) => ServerOutcome::Hangs,
            () => ServerOutcome::Runs,
        }
    }

    fn new_server(&mut self, order: &LaunchOrder, outcome: ServerOutcome) -> Server {
        let now = Instant::now();
        Server {
            name: order.hostname.clone(),
            metadata: order.metadata.clone(),
            zone: order.zone.clone(),
            created_at: now,
            boots_at: now + Duration::from_secs_f64(self.rng.gen_range(5.0..60.0)),
            outcome,
            deleted_at: None,
            is_running_reported: false,
        }
    }

    /// Number of servers that run or will run.
    fn running_count(&self, provider: &ProviderName) -> usize {
        let runs = |server: &Server| server.outcome != ServerOutcome::Refused && server.deleted_at.is_none();
        self.servers.iter().filter(|((of, _), server)| of == provider && runs(server)).count()
    }

    fn delete(&mut self, key: &CloudObjectKey) -> Result<(), CloudError> {
        self.advance();
        if key.1.starts_with(FOREIGN_ID_PREFIX) {
            self.history.report_violation(Violation(format!("foreign server {} of {} is deleted", key.1, key.0)));
        }
        self.history.observe(Observation::Deleting(key));
        if !self.servers.contains_key(key) {
            return Err(CloudError::not_found("no such object"));
        }
        let rates = self.fault_rates(&key.0);
        // An ignored deletion succeeds without effect; only later listings show that.
        if !self.happens(rates.ignored_deletes) {
            let ends = Instant::now() + Duration::from_secs_f64(self.rng.gen_range(0.5..20.0));
            self.servers.get_mut(key).expect("the server exists, as checked above").deleted_at.get_or_insert(ends);
            self.history.observe(Observation::Ending(key));
        }
        match self.happens(rates.lost_replies) {
            true => Err(failed("injected: reply lost")),
            false => Ok(()),
        }
    }

    fn store(&mut self, provider: &ProviderName, order: &UploadOrder) -> Result<ExternalId, CloudError> {
        if self.fault_rates(provider).is_absent {
            return Err(outage(true));
        }
        let mut own = self.images.iter().filter(|((of, _), _)| of == provider);
        if order.may_exist
            && let Some((_, (image, _))) = own.find(|(_, (image, _))| image.has_marks(&order.marks))
        {
            return Ok(image.id.clone());
        }
        self.last_id += 1;
        let key = (provider.clone(), format!("i-{}", self.last_id));
        let id = ExternalId::text(key.1.clone());
        self.images.insert(key.clone(), (order.to_stored_image(id.clone()), Instant::now()));
        self.history.observe_image(ImageObservation::Created(&key));
        match self.happens(self.fault_rates(provider).lost_replies) {
            true => Err(failed("injected: reply lost")),
            false => Ok(id),
        }
    }

    fn delete_image(&mut self, key: &CloudObjectKey) -> Result<(), CloudError> {
        self.history.observe_image(ImageObservation::Deleting(key));
        self.images.remove(key).ok_or_else(|| CloudError::not_found("no such object"))?;
        self.history.observe_image(ImageObservation::Removed(key));
        match self.happens(self.fault_rates(&key.0).lost_replies) {
            true => Err(failed("injected: reply lost")),
            false => Ok(()),
        }
    }

    fn list_images(&self, provider: &ProviderName) -> Vec<StoredImage> {
        let (now, lag) = (Instant::now(), Duration::from_secs_f64(self.fault_rates(provider).list_lag_s));
        let own = self.images.iter().filter(|((of, _), (_, since))| of == provider && *since + lag <= now);
        own.map(|(_, (image, _))| image.clone()).collect()
    }

    fn list(&mut self, provider: &ProviderName) -> Vec<Instance> {
        self.advance();
        let CallFaultRates { list_lag_s, foreign_servers, .. } = self.fault_rates(provider);
        let (now, lag) = (Instant::now(), Duration::from_secs_f64(list_lag_s));
        let own = self.servers.iter().filter(|((of, _), server)| of == provider && server.created_at + lag <= now);
        let own = own.map(|((_, id), server)| server.instance(id, now));
        let deleted = self.deleted.iter().filter(|((of, _), _, since)| of == provider && *since + lag > now);
        let deleted = deleted.map(|(_, instance, _)| instance.clone());
        let foreign = (0..foreign_servers).map(|number| Instance {
            resources: server_resources(),
            state: InstanceState::Running,
            ..Instance::new(ExternalId::text(format!("{FOREIGN_ID_PREFIX}{number}")))
        });
        own.chain(deleted).chain(foreign).collect()
    }
}

impl Server {
    fn instance(&self, id: &str, now: Instant) -> Instance {
        let state = match self.outcome {
            _ if self.deleted_at.is_some() => InstanceState::Stopping,
            ServerOutcome::Hangs => InstanceState::Starting,
            _ if now < self.boots_at => InstanceState::Starting,
            ServerOutcome::Fails => InstanceState::Failed("it would not start".to_owned()),
            ServerOutcome::Refused => InstanceState::Failed("Quota exceeded for ports".to_owned()),
            ServerOutcome::Runs => InstanceState::Running,
        };
        Instance {
            interface_ip: Some("fake".to_owned()),
            zone: self.zone.clone(),
            metadata: self.metadata.clone(),
            resources: server_resources(),
            state,
            ..Instance::new(ExternalId::text(id))
        }
    }
}

fn server_resources() -> Resources {
    Resources::none().with("instances", 1.0).with("cores", CORES as f64).with("ram", 2048.0)
}

fn failed(detail: &str) -> CloudError {
    CloudError::Failed { kind: FailureKind::Unknown, detail: detail.to_owned() }
}

fn outage(may_have_worked: bool) -> CloudError {
    CloudError::Outage { detail: "injected: the cloud does not answer".to_owned(), may_have_worked }
}

/// Access of one process to one cloud.
pub struct CloudConnection {
    process: &'static str,
    number: u64,
    provider: ProviderName,
    clouds: Clouds,
    budget: StepBudget,
    /// Number of the session on whose behalf the calls are made.
    session: usize,
}

/// Calls that were in flight when the session ended may arrive within this time.
const IN_FLIGHT_GRACE: Seconds = Seconds(0.1);
/// Prefix of the ids of foreign servers.
const FOREIGN_ID_PREFIX: &str = "other-";
/// Upper bound of `list_lag_s`.
const MAX_LIST_LAG: Duration = Duration::from_secs(60);
/// Quota of each cloud.
const MAX_SERVERS: usize = 12;
/// One in this many refusals of a full cloud comes after the creation of the server.
const LATE_REFUSALS: u32 = 4;
/// Time for which an absent cloud keeps a connection open: longer than any deadline of a call.
const HANG_TIME: Duration = Duration::from_secs(90);
/// Maximum interval between two probes of a cloud that does not respond, with the probe itself.
const PROBE_INTERVAL: Duration = Duration::from_secs(35);

/// Behaviour of an absent cloud at one call.
enum Absence {
    /// It refuses the connection.
    Refuses,
    /// It ends the connection without an answer.
    Resets,
    /// It does not answer before the deadline.
    Hangs,
}

impl CloudConnection {
    fn caller(&self) -> Caller<'_> {
        Caller { launcher: self.process, provider: &self.provider, connection: self.number }
    }

    /// One call with its latency and injected faults.
    async fn call<T>(&self, call: impl FnOnce(&mut State) -> Result<T, CloudError>) -> Result<T, CloudError> {
        if !self.budget.take_step() {
            std::future::pending::<()>().await;
        }
        let rates = self.clouds.0.lock().unwrap().fault_rates(&self.provider);
        if rates.is_absent {
            return self.call_absent(call).await;
        }
        let (latency, extra_latency, failure) = {
            let mut state = self.clouds.0.lock().unwrap();
            let extra_latency =
                if rates.max_extra_latency_s > 0.0 { state.rng.gen_range(0.0..rates.max_extra_latency_s) } else { 0.0 };
            let failure = match () {
                () if state.happens(rates.throttled) => Some(CloudError::Throttled { retry_after: Seconds(2.0) }),
                () if state.happens(rates.refused) => Some(failed("injected cloud error")),
                () => None,
            };
            (state.rng.gen_range(0.05..0.6), extra_latency, failure)
        };
        tokio::time::sleep(Duration::from_secs_f64(latency)).await;
        if let Some(failure) = failure {
            return Err(failure);
        }
        // A call in flight takes effect even if its process was killed.
        let result = call(&mut self.clouds.0.lock().unwrap());
        if extra_latency > 0.0 {
            self.delay(Duration::from_secs_f64(extra_latency)).await;
        }
        if self.budget.is_exhausted() {
            std::future::pending::<()>().await;
        }
        result
    }

    /// Delays the reply of a call because of a fault.
    async fn delay(&self, duration: Duration) {
        let until = Instant::now() + duration;
        {
            let delayed_until = &mut self.clouds.0.lock().unwrap().delayed_until;
            let last = delayed_until.entry(self.provider.clone()).or_insert(until);
            *last = until.max(*last);
        }
        tokio::time::sleep_until(until).await;
    }

    /// Executes one call of a cloud that does not answer. It may be executed nevertheless.
    async fn call_absent<T>(&self, call: impl FnOnce(&mut State) -> Result<T, CloudError>) -> Result<T, CloudError> {
        let (latency, absence, is_executed) = {
            let rng = &mut self.clouds.0.lock().unwrap().rng;
            let absence = match rng.gen_range(0..8) {
                0..4 => Absence::Refuses,
                4..7 => Absence::Resets,
                _ => Absence::Hangs,
            };
            (rng.gen_range(0.05..0.6), absence, rng.r#gen())
        };
        tokio::time::sleep(Duration::from_secs_f64(latency)).await;
        if is_executed && !matches!(absence, Absence::Refuses) {
            // A call in flight takes effect even if its process was killed.
            drop(call(&mut self.clouds.0.lock().unwrap()));
        }
        if matches!(absence, Absence::Hangs) {
            self.delay(HANG_TIME).await;
        }
        if self.budget.is_exhausted() {
            std::future::pending::<()>().await;
        }
        Err(outage(!matches!(absence, Absence::Refuses)))
    }

    /// Reports a mutating call that a process makes after its session ended.
    fn check_session(&self, what: impl FnOnce() -> String) {
        let Some(expired_for) = self.budget.expired_for(self.session).filter(|_| !self.budget.is_exhausted()) else {
            return;
        };
        let what = format!("{} at {}", what(), self.provider);
        if let Some(violation) = nodes::check_call(what, Some(Seconds(expired_for.as_secs_f64())), IN_FLIGHT_GRACE) {
            self.clouds.0.lock().unwrap().history.report_violation(violation);
        }
    }

    pub async fn create(&self, order: &LaunchOrder) -> Result<ExternalId, CloudError> {
        self.check_session(|| format!("server {} is created", order.hostname));
        self.call(|state| state.create(self.caller(), order, MAX_SERVERS)).await
    }

    pub async fn delete(&self, id: &ExternalId) -> Result<(), CloudError> {
        self.check_session(|| format!("server {id} is deleted"));
        let key = (self.provider.clone(), id.to_string());
        self.call(|state| state.delete(&key)).await
    }

    /// Uploads an image in some time. An interrupted upload creates no image.
    async fn upload(&self, order: &UploadOrder) -> Result<ExternalId, CloudError> {
        self.check_session(|| format!("image {} is uploaded", order.name));
        let duration = self.call(|state| Ok(state.rng.gen_range(10.0..120.0))).await?;
        tokio::time::sleep(Duration::from_secs_f64(duration)).await;
        if self.budget.is_exhausted() {
            std::future::pending::<()>().await;
        }
        assert!(order.file.exists(), "{} is uploaded and does not exist", order.file.display());
        let reply = self.clouds.0.lock().unwrap().store(&self.provider, order);
        // A process that is killed here never receives the reply.
        if !self.budget.take_step() {
            std::future::pending::<()>().await;
        }
        reply
    }

    async fn delete_image(&self, id: &ExternalId) -> Result<(), CloudError> {
        self.check_session(|| format!("image {id} is deleted"));
        let key = (self.provider.clone(), id.to_string());
        self.call(|state| state.delete_image(&key)).await
    }

    pub async fn list(&self) -> Result<Vec<Instance>, CloudError> {
        self.call(|state| Ok(state.list(&self.provider))).await
    }
}
