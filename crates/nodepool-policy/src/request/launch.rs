//! Launch: state machine of one node from `building` to `ready` or failed, with attempts, timeouts and host keys. A
//! node never has two instances: the instance of a failed attempt is deleted before the next attempt starts.
//!
//! A launch that meets an outage of its cloud, or probes a full cloud in vain, does not end: it is suspended.

mod suspension;

use std::sync::Arc;

use serde::Serialize;

use self::suspension::{AfterUnwinding, ScanStage};
pub use self::suspension::{OnRefusal, Suspension};

use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::{LaunchConfig, LaunchLabel};
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, JobEvent, LaunchOrder, Outcome};
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::{MonotonicTime, Seconds};

/// A failed deletion is retried after this time.
const UNWIND_RETRY_INTERVAL: Seconds = Seconds(5.0);

/// Event of a launch.
#[derive(Debug)]
pub enum LaunchEvent {
    JobUpdate(JobEvent),
    /// The host keys that the scan of this attempt gathered, or its error.
    Scanned(u32, Result<Vec<String>, String>),
    /// Time has passed.
    Clock,
    /// An outage of the cloud begins: its duration does not count towards timeouts.
    OutageBegan,
    OutageEnded,
    /// A suspended launch may probe the full cloud again.
    Probe,
    /// The request of a suspended launch can be served elsewhere.
    GiveUp,
    /// The node is no longer needed.
    Abandon,
}

/// Effect of a launch.
#[derive(Clone, Debug, PartialEq)]
pub enum LaunchEffect {
    Submit(Job),
    /// Cancels the job that was submitted last.
    Abandon,
    Scan(ScanTarget),
    /// The instance's console text, for the log.
    ShowConsole {
        external_id: ExternalId,
        text: String,
    },
    /// Write the instance id at once, so that a crash cannot lose the instance.
    SaveId(ExternalId),
    /// Remove the instance id at once, so that what has it is not deleted with the node.
    ForgetId,
    /// An attempt finished: its statsd result, the duration of the launch so far, and the zone of its instance.
    Report {
        result: &'static str,
        took: Seconds,
        zone: Option<String>,
    },
    Finished(LaunchOutcome),
}

/// The instance id that the record of a launched node should have.
#[derive(Clone, Debug, PartialEq)]
pub enum RecordedId {
    Known(ExternalId),
    /// None, although one was written.
    Void,
    /// The one that it has.
    Unchanged,
}

/// Target of the host key scan of one attempt.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScanTarget {
    pub attempt: u32,
    pub address: String,
    pub port: u16,
    pub gathers_keys: bool,
    pub timeout: Seconds,
}

/// Result of a launch, reported once.
#[derive(Clone, Debug, PartialEq)]
pub enum LaunchOutcome {
    Ready {
        instance: Box<Instance>,
        host_keys: Vec<String>,
    },
    Failed(CloudError),
    /// Over the cloud's quota. This is not a failure: the launch is retried when capacity is available.
    Aborted(String),
    /// The zone does not exist. This is not a failure: the launch is retried in another zone.
    NoZone(String),
    /// The launch ended after `LaunchEvent::Abandon`.
    Abandoned,
}

#[derive(Clone, Debug, Serialize)]
pub struct Launch {
    #[serde(skip)]
    order: Arc<LaunchOrder>,
    #[serde(skip)]
    checks: Checks,
    attempt: u32,
    max_attempts: u32,
    on_refusal: OnRefusal,
    /// Start of the outage that is in progress.
    #[serde(skip)]
    outage_since: Option<MonotonicTime>,
    #[serde(skip)]
    started_at: MonotonicTime,
    #[serde(skip)]
    attempt_started_at: MonotonicTime,
    external_id: Option<ExternalId>,
    /// The reported id is no instance of ours.
    is_id_void: bool,
    /// The obstacle that holds the attempt up, in the cloud's own words.
    obstacle: Option<String>,
    stage: Stage,
}

#[derive(Clone, Debug, Default)]
struct Checks {
    timeout: Seconds,
    boot_timeout: Seconds,
    /// Port of the host key scan; `None` if the node is used without a check.
    port: Option<u16>,
    gathers_keys: bool,
    console_log: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Stage {
    Creating,
    /// The attempt timed out, or the node is no longer needed; the job is cancelled.
    Abandoning(AbandonReason),
    Scanning(#[serde(skip)] Box<Instance>, ScanStage),
    /// The scan failed; the console may show the reason.
    FetchingConsole(#[serde(skip)] CloudError),
    /// The instance of the failed attempt is being deleted.
    Unwinding {
        #[serde(skip)]
        since: MonotonicTime,
        #[serde(skip)]
        retry_at: Option<MonotonicTime>,
        next: AfterUnwinding,
    },
    /// The cloud takes no launch now. No job runs.
    Suspended(Suspension),
    Finished,
}

/// Reason why a job was cancelled.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum AbandonReason {
    TimedOut,
    Unwanted,
}

impl Launch {
    /// Starts a launch; returns it with its first effects.
    pub fn begin(
        order: LaunchOrder,
        label: &LaunchLabel,
        rules: &LaunchConfig,
        on_refusal: OnRefusal,
        now: MonotonicTime,
    ) -> (Self, Vec<LaunchEffect>) {
        let checks = Checks {
            timeout: rules.timeout,
            boot_timeout: rules.boot_timeout,
            port: label.host_key_checking.then_some(label.login.connection_port),
            console_log: label.console_log,
            gathers_keys: has_host_keys(label.login.connection_type.as_deref()),
        };
        let order = Arc::new(order);
        let job = Job::Launch(order.clone());
        let launch = Self {
            external_id: order.prior_instance.clone(),
            order,
            checks,
            attempt: 1,
            max_attempts: rules.attempts.max(1),
            on_refusal,
            outage_since: None,
            started_at: now,
            attempt_started_at: now,
            obstacle: None,
            is_id_void: false,
            stage: Stage::Creating,
        };
        (launch, vec![LaunchEffect::Submit(job)])
    }

    /// The instance id for the node's record.
    pub fn recorded_id(&self) -> RecordedId {
        match &self.external_id {
            Some(id) => RecordedId::Known(id.clone()),
            None if self.is_id_void => RecordedId::Void,
            None => RecordedId::Unchanged,
        }
    }

    pub fn external_id(&self) -> Option<&ExternalId> {
        self.external_id.as_ref()
    }

    /// The obstacle that holds the launch up, in the cloud's own words.
    pub fn obstacle(&self) -> Option<&str> {
        self.obstacle.as_deref().filter(|_| matches!(self.stage, Stage::Creating))
    }

    /// Duration of the current attempt so far.
    pub fn attempt_duration(&self, now: MonotonicTime) -> Seconds {
        now - self.attempt_started_at
    }

    pub fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished)
    }

    /// The reason, if the launch is suspended.
    pub fn suspension(&self) -> Option<&Suspension> {
        match &self.stage {
            Stage::Suspended(suspension) => Some(suspension),
            _ => None,
        }
    }

    /// Latest time at which `LaunchEvent::Clock` is due.
    pub fn due(&self) -> Option<MonotonicTime> {
        match self.stage {
            _ if self.outage_since.is_some() => None,
            Stage::Creating | Stage::Scanning(..) | Stage::FetchingConsole(_) => {
                Some(self.attempt_started_at + self.checks.timeout)
            }
            Stage::Unwinding { since, retry_at, .. } => {
                let end = since + self.checks.timeout;
                Some(retry_at.map_or(end, |at| at.min(end)))
            }
            Stage::Abandoning(_) | Stage::Suspended(_) | Stage::Finished => None,
        }
    }

    pub fn step(&mut self, event: LaunchEvent, now: MonotonicTime) -> Vec<LaunchEffect> {
        match event {
            LaunchEvent::JobUpdate(JobEvent::InstanceKnown(id)) => self.note_id(id),
            LaunchEvent::JobUpdate(JobEvent::NoInstance) => self.forget_id(),
            LaunchEvent::JobUpdate(JobEvent::Waiting(obstacle)) => {
                self.obstacle = obstacle;
                Vec::new()
            }
            LaunchEvent::JobUpdate(JobEvent::Finished(result)) => self.job_ended(result, now),
            // A scan of an abandoned attempt may still run. Its address may belong to another server by now.
            LaunchEvent::Scanned(attempt, result) if attempt == self.attempt => self.scanned(result, now),
            LaunchEvent::Scanned(..) => Vec::new(),
            LaunchEvent::Clock => self.clock(now),
            LaunchEvent::OutageBegan => self.outage_began(now),
            LaunchEvent::OutageEnded => self.outage_ended(now),
            LaunchEvent::Probe => self.probe(now),
            LaunchEvent::GiveUp => self.give_up(now),
            LaunchEvent::Abandon => self.abandon(),
        }
    }

    fn note_id(&mut self, id: ExternalId) -> Vec<LaunchEffect> {
        if self.external_id.as_ref() == Some(&id) {
            return Vec::new();
        }
        (self.external_id, self.is_id_void) = (Some(id.clone()), false);
        vec![LaunchEffect::SaveId(id)]
    }

    fn forget_id(&mut self) -> Vec<LaunchEffect> {
        (self.external_id, self.is_id_void) = (None, true);
        vec![LaunchEffect::ForgetId]
    }

    fn job_ended(&mut self, result: Result<Outcome, CloudError>, now: MonotonicTime) -> Vec<LaunchEffect> {
        match (&self.stage, result) {
            (Stage::Creating, Ok(Outcome::Launched(instance))) => self.created(instance, now),
            (Stage::Creating, Err(CloudError::Quota(text))) => self.refused(text, now),
            (Stage::Creating, Err(CloudError::Outage { detail, may_have_worked })) => {
                self.suspend_for_outage(detail, may_have_worked, now)
            }
            (Stage::Creating, Err(CloudError::NoZone(zone))) => {
                self.stage = Stage::Finished;
                vec![
                    self.report(FailureKind::Unknown.statsd_suffix(), now),
                    LaunchEffect::Finished(LaunchOutcome::NoZone(zone)),
                ]
            }
            (Stage::Creating, Err(error)) => self.attempt_failed(error, now),
            (Stage::Creating, Ok(other)) => {
                let detail = format!("the driver finished a launch with an unexpected outcome: {other:?}");
                self.attempt_failed(CloudError::Failed { kind: FailureKind::Unknown, detail }, now)
            }
            (Stage::FetchingConsole(error), result) => {
                let error = error.clone();
                let mut effects = Vec::new();
                if let (Ok(Outcome::Console(Some(text))), Some(external_id)) = (result, self.external_id.clone()) {
                    effects.push(LaunchEffect::ShowConsole { external_id, text });
                }
                effects.extend(self.attempt_failed(error, now));
                effects
            }
            (Stage::Abandoning(reason), result) => {
                let reason = reason.clone();
                let mut effects = match result {
                    Ok(Outcome::Launched(instance)) => self.note_id(instance.external_id.clone()),
                    _ => Vec::new(),
                };
                match reason {
                    AbandonReason::Unwanted => {
                        self.stage = Stage::Finished;
                        effects.push(LaunchEffect::Finished(LaunchOutcome::Abandoned));
                    }
                    AbandonReason::TimedOut => effects.extend(self.attempt_failed(timeout_error(), now)),
                }
                effects
            }
            (Stage::Unwinding { next, .. }, Ok(_) | Err(CloudError::NotFound(_))) => match next.clone() {
                AfterUnwinding::NextAttempt => self.next_attempt(now),
                AfterUnwinding::Suspend(text) => {
                    self.external_id = None;
                    Arc::make_mut(&mut self.order).attempt += 1;
                    self.stage = Stage::Suspended(Suspension::Refused(text));
                    Vec::new()
                }
            },
            (Stage::Unwinding { since, next, .. }, Err(_)) => {
                let (since, next) = (*since, next.clone());
                self.stage = Stage::Unwinding { since, retry_at: Some(now + UNWIND_RETRY_INTERVAL), next };
                Vec::new()
            }
            (Stage::Scanning(..) | Stage::Suspended(_) | Stage::Finished, _) => Vec::new(),
        }
    }

    fn created(&mut self, instance: Box<Instance>, now: MonotonicTime) -> Vec<LaunchEffect> {
        let mut effects = self.note_id(instance.external_id.clone());
        let Some(port) = self.scan_port(&instance) else {
            effects.extend(self.ready(instance, Vec::new(), now));
            return effects;
        };
        effects.push(self.scan(&instance, port));
        self.stage = Stage::Scanning(instance, ScanStage::Running);
        effects
    }

    /// The port to check. Credentials in place of a port are used without a check.
    fn scan_port(&self, instance: &Instance) -> Option<u16> {
        let own_port = instance.login.as_ref().map(|login| login.port());
        self.checks.port.and_then(|port| own_port.unwrap_or(Some(port)))
    }

    fn scan(&self, instance: &Instance, port: u16) -> LaunchEffect {
        let own_type = instance.login.as_ref().map(|login| login.connection_type.as_deref());
        LaunchEffect::Scan(ScanTarget {
            attempt: self.attempt,
            address: instance.interface_ip.clone().unwrap_or_default(),
            port,
            gathers_keys: own_type.map_or(self.checks.gathers_keys, has_host_keys),
            timeout: self.checks.boot_timeout,
        })
    }

    fn scanned(&mut self, result: Result<Vec<String>, String>, now: MonotonicTime) -> Vec<LaunchEffect> {
        let Stage::Scanning(instance, stage) = &self.stage else { return Vec::new() };
        match result {
            Ok(host_keys) => {
                let instance = instance.clone();
                self.ready(instance, host_keys, now)
            }
            Err(_) if self.outage_since.is_some() => {
                self.stage = Stage::Scanning(instance.clone(), ScanStage::Due);
                Vec::new()
            }
            Err(_) if *stage == ScanStage::Doubtful => self.scan_again(instance.clone()),
            Err(detail) => {
                let error = CloudError::Failed { kind: FailureKind::KeyScan, detail };
                match self.external_id.clone().filter(|_| self.checks.console_log) {
                    Some(id) => {
                        self.stage = Stage::FetchingConsole(error);
                        vec![LaunchEffect::Submit(Job::Console(id))]
                    }
                    None => self.attempt_failed(error, now),
                }
            }
        }
    }

    fn scan_again(&mut self, instance: Box<Instance>) -> Vec<LaunchEffect> {
        let effects = self.scan_port(&instance).map(|port| self.scan(&instance, port)).into_iter().collect();
        self.stage = Stage::Scanning(instance, ScanStage::Running);
        effects
    }

    fn submit(&mut self) -> Vec<LaunchEffect> {
        self.obstacle = None;
        self.stage = Stage::Creating;
        vec![LaunchEffect::Submit(Job::Launch(self.order.clone()))]
    }

    fn report(&self, result: &'static str, now: MonotonicTime) -> LaunchEffect {
        LaunchEffect::Report { result, took: now - self.started_at, zone: None }
    }

    fn ready(&mut self, instance: Box<Instance>, host_keys: Vec<String>, now: MonotonicTime) -> Vec<LaunchEffect> {
        self.stage = Stage::Finished;
        let report = LaunchEffect::Report { result: "ready", took: now - self.started_at, zone: instance.zone.clone() };
        vec![report, LaunchEffect::Finished(LaunchOutcome::Ready { instance, host_keys })]
    }

    fn clock(&mut self, now: MonotonicTime) -> Vec<LaunchEffect> {
        if self.due().is_none_or(|due| now < due) {
            return Vec::new();
        }
        match &self.stage {
            Stage::Scanning(..) => self.attempt_failed(timeout_error(), now),
            Stage::Creating | Stage::FetchingConsole(_) => {
                self.stage = Stage::Abandoning(AbandonReason::TimedOut);
                vec![LaunchEffect::Abandon]
            }
            Stage::Unwinding { since, retry_at, next } if now >= *since + self.checks.timeout => {
                // A running deletion would otherwise wait for the server forever.
                let deletion = retry_at.is_none().then_some(LaunchEffect::Abandon);
                let end = match next.clone() {
                    AfterUnwinding::Suspend(text) => self.aborted(text, now),
                    AfterUnwinding::NextAttempt => {
                        let report = self.report(FailureKind::ServerCreateTimeout.statsd_suffix(), now);
                        [report].into_iter().chain(self.failed(timeout_error())).collect()
                    }
                };
                deletion.into_iter().chain(end).collect()
            }
            Stage::Unwinding { since, next, .. } => {
                self.stage = Stage::Unwinding { since: *since, retry_at: None, next: next.clone() };
                self.external_id.clone().map(|id| LaunchEffect::Submit(Job::Delete(id))).into_iter().collect()
            }
            Stage::Abandoning(_) | Stage::Suspended(_) | Stage::Finished => Vec::new(),
        }
    }

    fn abandon(&mut self) -> Vec<LaunchEffect> {
        match self.stage {
            Stage::Creating | Stage::FetchingConsole(_) => {
                self.stage = Stage::Abandoning(AbandonReason::Unwanted);
                vec![LaunchEffect::Abandon]
            }
            // The deletion of the node also deletes its instance.
            Stage::Scanning(..) | Stage::Suspended(_) | Stage::Unwinding { retry_at: Some(_), .. } => {
                self.stage = Stage::Finished;
                vec![LaunchEffect::Finished(LaunchOutcome::Abandoned)]
            }
            Stage::Unwinding { .. } => {
                self.stage = Stage::Abandoning(AbandonReason::Unwanted);
                vec![LaunchEffect::Abandon]
            }
            Stage::Abandoning(_) => {
                self.stage = Stage::Abandoning(AbandonReason::Unwanted);
                Vec::new()
            }
            Stage::Finished => Vec::new(),
        }
    }

    fn attempt_failed(&mut self, error: CloudError, now: MonotonicTime) -> Vec<LaunchEffect> {
        let mut effects = vec![self.report(failure_kind(&error).statsd_suffix(), now)];
        if self.attempt >= self.max_attempts || matches!(error, CloudError::Denied(_)) {
            effects.extend(self.failed(error));
        } else if let Some(id) = self.external_id.clone() {
            self.stage = Stage::Unwinding { since: now, retry_at: None, next: AfterUnwinding::NextAttempt };
            effects.push(LaunchEffect::Submit(Job::Delete(id)));
        } else {
            effects.extend(self.next_attempt(now));
        }
        effects
    }

    fn next_attempt(&mut self, now: MonotonicTime) -> Vec<LaunchEffect> {
        self.attempt += 1;
        self.attempt_started_at = now;
        // For an attempt of a previous process, only the server whose id was recorded has been deleted so far.
        let may_exist = self.external_id.take().is_none() || self.order.prior_instance.is_some();
        let order = Arc::make_mut(&mut self.order);
        (order.may_exist, order.may_appear, order.prior_instance) = (may_exist, false, None);
        order.attempt += 1;
        self.submit()
    }

    fn failed(&mut self, error: CloudError) -> Vec<LaunchEffect> {
        self.stage = Stage::Finished;
        vec![LaunchEffect::Finished(LaunchOutcome::Failed(error))]
    }
}

fn has_host_keys(connection_type: Option<&str>) -> bool {
    matches!(connection_type, Some("ssh" | "network_cli"))
}

fn timeout_error() -> CloudError {
    CloudError::Failed { kind: FailureKind::ServerCreateTimeout, detail: "launch-timeout passed".to_owned() }
}

/// The kind under which a failure is counted.
pub fn failure_kind(error: &CloudError) -> FailureKind {
    match error {
        CloudError::Failed { kind, .. } => *kind,
        CloudError::Quota(_) => FailureKind::Quota,
        CloudError::Capacity(_) => FailureKind::Capacity,
        CloudError::NotFound(_)
        | CloudError::NoZone(_)
        | CloudError::Throttled { .. }
        | CloudError::Denied(_)
        | CloudError::Outage { .. }
        | CloudError::Deadline => FailureKind::Unknown,
    }
}

#[cfg(test)]
mod tests;
