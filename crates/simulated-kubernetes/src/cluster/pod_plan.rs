//! The next step of a pod, as its state, its annotations and the knobs determine it. Annotations have the prefix
//! `loopback/`; doc/simulated-kubernetes.md lists them.

use std::time::Duration;

use serde_json::Value;

use crate::cluster::fixtures::NODE;
use crate::cluster::store::Object;
use crate::faults::knobs::Knobs;

/// Time between ErrImagePull and ImagePullBackOff.
const PULL_RETRY: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    Bind,
    /// The pod stays unbound, with this message.
    Unschedulable(String),
    CreateContainers,
    /// The containers wait, with this reason.
    Wait(String),
    Run,
    /// The pod ends as Failed or Succeeded.
    End(Phase),
    Remove,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Failed,
    Succeeded,
}

/// The end that a knob has chosen for a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Sticks,
    Fails,
}

/// A step, and the time at which it is due.
pub struct Plan {
    pub step: Step,
    /// Time since which this is the next step.
    pub since: Duration,
    /// `None` is never.
    pub wait: Option<Duration>,
    pub number: u64,
    /// Namespace and name of the pod.
    pub name: (String, String),
}

type Planned = (Step, Option<Duration>);

const NOW: Option<Duration> = Some(Duration::ZERO);
const NEVER: Option<Duration> = None;

pub fn annotation<'a>(pod: &'a Object, name: &str) -> Option<&'a str> {
    pod.metadata()["annotations"][format!("loopback/{name}")].as_str()
}

/// The time in an annotation; texts that are no number are ignored.
fn seconds(pod: &Object, name: &str, default: Option<Duration>) -> Option<Duration> {
    match annotation(pod, name) {
        None => default,
        Some("never") => NEVER,
        Some(text) => match text.parse::<f64>() {
            Ok(seconds) => Duration::try_from_secs_f64(seconds.clamp(0.0, 1e9)).ok(),
            Err(_) => default,
        },
    }
}

pub fn phase(pod: &Object) -> &str {
    pod.value["status"]["phase"].as_str().unwrap_or_default()
}

/// Kind and reason of the first container's state, such as `("waiting", "ErrImagePull")`.
pub fn container_state(pod: &Object) -> Option<(&str, &str)> {
    let (kind, state) = pod.value["status"]["containerStatuses"][0]["state"].as_object()?.iter().next()?;
    Some((kind, state["reason"].as_str().unwrap_or_default()))
}

/// The next step, and the time from when this became the next step until it is due.
pub fn next_step(pod: &Object, knobs: &Knobs, fate: Option<Fate>) -> Option<Planned> {
    let node = pod.value["spec"]["nodeName"].as_str().unwrap_or_default();
    if !node.is_empty() && node != NODE {
        // The pod is bound to a node that does not respond.
        return None;
    }
    if pod.is_being_deleted() {
        return removal(pod, knobs);
    }
    if matches!(phase(pod), "Failed" | "Succeeded") {
        return None;
    }
    if node.is_empty() {
        return Some(scheduling(pod));
    }
    let start = Duration::from_secs_f64(knobs.pod_start_s);
    let start = seconds(pod, "delay-seconds", if fate == Some(Fate::Sticks) { NEVER } else { Some(start) });
    match container_state(pod) {
        None => Some((Step::CreateContainers, NOW)),
        Some(("waiting", reason)) => Some(starting(pod, reason, start, fate)),
        Some(("running", _)) => end(pod, fate).map(|phase| (Step::End(phase), seconds(pod, "end-seconds", NOW))),
        Some(_) => None,
    }
}

fn removal(pod: &Object, knobs: &Knobs) -> Option<Planned> {
    let grace = pod.metadata()["deletionGracePeriodSeconds"].as_u64().unwrap_or_default();
    if grace == 0 && pod.has_finalizers() {
        return None;
    }
    if container_state(pod).is_none_or(|(kind, _)| kind != "running") {
        return Some((Step::Remove, NOW));
    }
    let grace = Duration::from_secs_f64((grace as f64).min(knobs.grace_max_s));
    let stop = seconds(pod, "stop-seconds", Some(grace));
    Some((Step::Remove, stop.map(|stop| stop.min(grace))))
}

fn scheduling(pod: &Object) -> Planned {
    let Some(message) = annotation(pod, "unschedulable") else { return (Step::Bind, NOW) };
    let message = if matches!(message, "" | "true") { "0/1 nodes are available: 1 Insufficient cpu." } else { message };
    let conditions = pod.value["status"]["conditions"].as_array().into_iter().flatten();
    let is_reported = |one: &Value| one["type"] == "PodScheduled" && one["message"] == message;
    if conditions.into_iter().any(is_reported) {
        (Step::Bind, seconds(pod, "unschedulable-seconds", NEVER))
    } else {
        (Step::Unschedulable(message.to_owned()), NOW)
    }
}

/// The next step of a pod whose containers wait with this reason.
fn starting(pod: &Object, reason: &str, start: Option<Duration>, fate: Option<Fate>) -> Planned {
    let is_fresh = matches!(reason, "ContainerCreating" | "PodInitializing");
    // Without the annotation, a pod that waited starts at once.
    let mut delay = if is_fresh { start } else { NOW };
    if let Some(waiting) = annotation(pod, "waiting").filter(|waiting| !waiting.is_empty()) {
        let first = if waiting == "ImagePullBackOff" { "ErrImagePull" } else { waiting };
        if is_fresh {
            return (Step::Wait(first.to_owned()), start);
        }
        if reason != waiting {
            let wait = if reason == "ErrImagePull" { Some(PULL_RETRY) } else { NOW };
            return (Step::Wait(waiting.to_owned()), wait);
        }
        delay = seconds(pod, "waiting-seconds", NEVER);
    }
    match end(pod, fate) {
        Some(phase) if annotation(pod, "end-seconds").is_none() => (Step::End(phase), delay),
        _ => (Step::Run, delay),
    }
}

fn end(pod: &Object, fate: Option<Fate>) -> Option<Phase> {
    match annotation(pod, "end") {
        Some("Failed") => Some(Phase::Failed),
        Some("Succeeded") => Some(Phase::Succeeded),
        _ if fate == Some(Fate::Fails) => Some(Phase::Failed),
        _ => None,
    }
}
