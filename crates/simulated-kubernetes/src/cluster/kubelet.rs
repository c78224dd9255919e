//! Scheduler and kubelet: bind pods to the one node and write their status. No container is run.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::cluster::{Cluster, Deletion};
use crate::cluster::fixtures::NODE;
use crate::cluster::pod_plan::{Phase, Plan, Step, annotation, container_state, next_step, phase};
use crate::cluster::resources::Kind;
use crate::cluster::store::Object;
use crate::cluster::timers::Work;

/// State of the containers of a pod.
struct Containers {
    state: Value,
    is_ready: bool,
    restarts: u32,
    last_state: Value,
}

impl Cluster {
    /// Plans the next step of a pod after a change.
    pub fn plan_pod(&mut self, pod: &Object) {
        let fate = self.fates.get(&pod.uid).copied();
        let Some((step, wait)) = next_step(pod, &self.knobs, fate) else {
            self.plans.remove(&pod.uid);
            return;
        };
        let mut since = self.now;
        if let Some(old) = self.plans.get(&pod.uid).filter(|old| old.step == step) {
            if old.wait == wait {
                return;
            }
            // A grace period runs from its last change.
            if step != Step::Remove {
                since = old.since;
            }
        }
        self.plans_made += 1;
        let number = self.plans_made;
        if let Some(wait) = wait {
            self.timers.add(since + wait, Work::PodStep { uid: pod.uid.clone(), number });
        }
        let name = (pod.namespace.clone(), pod.name.clone());
        self.plans.insert(pod.uid.clone(), Plan { step, since, wait, number, name });
    }

    pub fn run_pod_step(&mut self, uid: &str, number: u64) {
        if self.plans.get(uid).is_none_or(|plan| plan.number != number) {
            return;
        }
        let plan = self.plans.remove(uid).expect("the plan was found");
        let Some(pod) = self.store.get(Kind::Pod, &plan.name.0, &plan.name.1).filter(|pod| pod.uid == uid).cloned()
        else {
            return;
        };
        match plan.step {
            Step::Bind => self.bind(&pod, NODE),
            Step::Unschedulable(message) => self.set_unschedulable(&pod, &message),
            Step::CreateContainers => self.create_containers(&pod),
            Step::Wait(reason) => self.wait(&pod, &reason),
            Step::Run => self.run_containers(&pod),
            Step::End(end) => self.end(&pod, end),
            Step::Remove => self.stop_and_erase(&pod),
        }
    }

    /// Plans all pods anew, after a change of the knobs.
    pub fn replan_pods(&mut self) {
        for pod in self.store.list(Kind::Pod, "").cloned().collect::<Vec<_>>() {
            self.plan_pod(&pod);
        }
    }

    pub fn bind(&mut self, pod: &Object, node: &str) {
        let scheduled = self.condition("PodScheduled", true, "", "");
        self.change(pod, |value| {
            value["spec"]["nodeName"] = json!(node);
            set_conditions(value, vec![scheduled]);
        });
    }

    fn set_unschedulable(&mut self, pod: &Object, message: &str) {
        let condition = self.condition("PodScheduled", false, "Unschedulable", message);
        self.change(pod, |value| set_conditions(value, vec![condition]));
    }

    fn create_containers(&mut self, pod: &Object) {
        let has_init = pod.value["spec"]["initContainers"].as_array().is_some_and(|list| !list.is_empty());
        let reason = if has_init { "PodInitializing" } else { "ContainerCreating" };
        let (started, conditions) = (self.timestamp(Duration::ZERO), self.conditions(false, "ContainersNotReady"));
        self.change(pod, |value| {
            set_conditions(value, conditions);
            value["status"]["hostIP"] = json!("127.0.0.1");
            value["status"]["startTime"] = json!(started);
            set_containers(value, &Containers::new(json!({"waiting": {"reason": reason}})));
        });
    }

    fn wait(&mut self, pod: &Object, reason: &str) {
        let images = pod.value["spec"]["containers"].as_array().into_iter().flatten();
        let images: Vec<&str> = images.filter_map(|container| container["image"].as_str()).collect();
        let images = images.join(", ");
        let message = annotation(pod, "message").map(str::to_owned).unwrap_or_else(|| match reason {
            "ErrImagePull" => format!("rpc error: code = NotFound desc = failed to pull image {images}"),
            "ImagePullBackOff" => format!("Back-off pulling image \"{images}\""),
            "CrashLoopBackOff" => "back-off 10s restarting failed container".to_owned(),
            reason => reason.to_owned(),
        });
        let (now, conditions) = (self.timestamp(Duration::ZERO), self.conditions(false, "ContainersNotReady"));
        self.change(pod, |value| {
            set_conditions(value, conditions);
            let mut containers = Containers::new(json!({"waiting": {"reason": reason, "message": message}}));
            if reason == "CrashLoopBackOff" {
                // The container has run before, so the phase is Running.
                value["status"]["phase"] = json!("Running");
                containers.restarts = 1;
                containers.last_state = json!({
                    "terminated": {"exitCode": 1, "reason": "Error", "startedAt": now, "finishedAt": now},
                });
            }
            set_containers(value, &containers);
        });
    }

    fn run_containers(&mut self, pod: &Object) {
        self.addresses_assigned = self.addresses_assigned % 0xFFFF + 1;
        let address = format!("127.86.{}.{}", self.addresses_assigned >> 8, self.addresses_assigned & 255);
        let (now, conditions) = (self.timestamp(Duration::ZERO), self.conditions(true, ""));
        self.change(pod, |value| {
            set_conditions(value, conditions);
            value["status"]["phase"] = json!("Running");
            value["status"]["podIP"] = json!(address);
            value["status"]["podIPs"] = json!([{"ip": address}]);
            let mut containers = Containers::new(json!({"running": {"startedAt": now}}));
            containers.is_ready = true;
            set_containers(value, &containers);
            let completed = json!({"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now});
            containers.state = json!({"terminated": completed});
            if let Some(statuses) = statuses(value, "initContainers", &containers) {
                value["status"]["initContainerStatuses"] = statuses;
            }
        });
    }

    fn end(&mut self, pod: &Object, end: Phase) {
        let (code, default_reason, ready_reason, phase) = match end {
            Phase::Succeeded => (0, "Completed", "PodCompleted", "Succeeded"),
            Phase::Failed => (1, "Error", "ContainersNotReady", "Failed"),
        };
        let code = annotation(pod, "exit-code").and_then(|code| code.parse().ok()).unwrap_or(code);
        let reason = annotation(pod, "reason").unwrap_or(default_reason);
        let (message, pod_reason) = (annotation(pod, "message"), annotation(pod, "pod-reason"));
        let terminated = self.terminated(code, reason, message);
        let conditions = self.conditions(false, ready_reason);
        self.change(pod, |value| {
            set_conditions(value, conditions);
            let status = &mut value["status"];
            status["phase"] = json!(phase);
            match (pod_reason, status.as_object_mut()) {
                (Some(reason), Some(status)) => {
                    // As after an eviction: the pod has a reason, its containers have no status.
                    status.insert("reason".to_owned(), json!(reason));
                    status.insert("message".to_owned(), json!(message.unwrap_or("ended by annotation")));
                    status.remove("containerStatuses");
                }
                _ => set_containers(value, &terminated),
            }
        });
    }

    fn stop_and_erase(&mut self, pod: &Object) {
        let mut pod = self.current(pod);
        if phase(&pod) == "Running" && container_state(&pod).is_some_and(|(kind, _)| kind == "running") {
            let (terminated, conditions) =
                (self.terminated(137, "Error", None), self.conditions(false, "ContainersNotReady"));
            let stopped = self.change(&pod, |value| {
                set_conditions(value, conditions);
                set_containers(value, &terminated);
            });
            pod = stopped.expect("the pod exists");
        }
        self.delete_pod(&pod, Some(0));
    }

    /// Deletes a pod with a grace period in seconds; by default the pod's own.
    pub fn delete_pod(&mut self, pod: &Object, grace_s: Option<u64>) -> Deletion {
        let own = pod.value["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(30);
        let is_bound = pod.value["spec"]["nodeName"].as_str().is_some_and(|node| !node.is_empty());
        let is_over = matches!(phase(pod), "Failed" | "Succeeded");
        let grace = if is_bound && !is_over { grace_s.unwrap_or(own) } else { 0 };
        let earlier = pod.metadata()["deletionGracePeriodSeconds"].as_u64().filter(|_| pod.is_being_deleted());
        let pod: Arc<Object> = if earlier.is_none_or(|earlier| grace < earlier) {
            let timestamp = self.timestamp(Duration::from_secs(grace));
            let changed = self.change(pod, |value| {
                value["metadata"]["deletionTimestamp"] = json!(timestamp);
                value["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
            });
            changed.expect("the pod exists")
        } else {
            self.current(pod)
        };
        if grace == 0 && !pod.has_finalizers() {
            self.erase(&pod);
            return Deletion::Done(pod);
        }
        Deletion::Pending(pod)
    }

    fn terminated(&self, code: i64, reason: &str, message: Option<&str>) -> Containers {
        let now = self.timestamp(Duration::ZERO);
        let mut state = json!({"exitCode": code, "reason": reason, "startedAt": now, "finishedAt": now});
        if let Some(message) = message {
            state["message"] = json!(message);
        }
        Containers::new(json!({"terminated": state}))
    }

    fn condition(&self, kind: &str, status: bool, reason: &str, message: &str) -> Value {
        let status = if status { "True" } else { "False" };
        let now = self.timestamp(Duration::ZERO);
        let mut condition = json!({"type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": now});
        for (key, value) in [("reason", reason), ("message", message)] {
            if !value.is_empty() {
                condition[key] = json!(value);
            }
        }
        condition
    }

    fn conditions(&self, is_ready: bool, reason: &str) -> Vec<Value> {
        vec![
            self.condition("Initialized", true, "", ""),
            self.condition("Ready", is_ready, reason, ""),
            self.condition("ContainersReady", is_ready, reason, ""),
            self.condition("PodScheduled", true, "", ""),
        ]
    }
}

impl Containers {
    fn new(state: Value) -> Self {
        Self { state, is_ready: false, restarts: 0, last_state: json!({}) }
    }
}

/// The types of a pod's conditions, in the order in which a kubelet writes them.
const CONDITIONS: [&str; 4] = ["Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// Sets conditions by their type. The transition time of one with an equal status stays.
fn set_conditions(pod: &mut Value, conditions: Vec<Value>) {
    let list = &mut pod["status"]["conditions"];
    if !list.is_array() {
        *list = json!([]);
    }
    let list = list.as_array_mut().expect("the conditions are a list");
    for mut condition in conditions {
        match list.iter_mut().find(|old| old["type"] == condition["type"]) {
            Some(old) => {
                if old["status"] == condition["status"] {
                    condition["lastTransitionTime"] = old["lastTransitionTime"].clone();
                }
                *old = condition;
            }
            None => list.push(condition),
        }
    }
    list.sort_by_key(|condition| CONDITIONS.iter().position(|kind| condition["type"] == *kind));
}

fn set_containers(pod: &mut Value, containers: &Containers) {
    if let Some(statuses) = statuses(pod, "containers", containers) {
        pod["status"]["containerStatuses"] = statuses;
    }
}

/// The statuses of the pod's containers, or init containers.
fn statuses(pod: &Value, which: &str, containers: &Containers) -> Option<Value> {
    let is_started = containers.is_ready || containers.restarts > 0;
    let status = |container: &Value| {
        let (name, image) = (&container["name"], container["image"].as_str().unwrap_or_default());
        let uid = pod["metadata"]["uid"].as_str().unwrap_or_default();
        let mut status = json!({
            "name": name, "state": containers.state, "lastState": containers.last_state,
            "ready": containers.is_ready, "restartCount": containers.restarts, "image": image,
            "imageID": if is_started { format!("loopback://{image}") } else { String::new() },
            "started": is_started,
        });
        if is_started {
            status["containerID"] = json!(format!("loopback://{uid}/{}", name.as_str().unwrap_or_default()));
        }
        status
    };
    Some(pod["spec"][which].as_array()?.iter().map(status).collect())
}
