//! Pods: their states, their deletion and their validation.

use std::sync::Arc;
use std::time::Duration;

use crate::contract::cluster::{Cluster, condition, pod};
use serde_json::{Value, json};

fn phase(pod: &Value) -> &str {
    pod["status"]["phase"].as_str().unwrap()
}

/// Kind and reason of the first container's state.
fn state(pod: &Value) -> (String, String) {
    let state = pod["status"]["containerStatuses"][0]["state"].as_object().and_then(|state| state.iter().next());
    let (kind, state) = state.map_or((String::new(), &Value::Null), |(kind, state)| (kind.clone(), state));
    (kind, state["reason"].as_str().unwrap_or_default().to_owned())
}

fn is_waiting(pod: &Value, reason: &str) -> bool {
    state(pod) == ("waiting".to_owned(), reason.to_owned())
}

pub async fn running(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let mut body = pod("node", &[("delay-seconds", "0.5")]);
    // Nodepool 11 puts the restart policy here, where it has no effect.
    body["restartPolicy"] = json!("Never");
    body["spec"]["containers"][0]["resources"] = json!({"limits": {"cpu": 0.5, "memory": "64Mi"}});
    let created = cluster.pod(&namespace, &body).await;
    assert_eq!(created["status"], json!({"phase": "Pending", "qosClass": "Guaranteed"}));
    assert!(created["restartPolicy"].is_null(), "{created}");
    assert_eq!(
        (&created["spec"]["restartPolicy"], &created["spec"]["serviceAccountName"]),
        (&json!("Always"), &json!("default"))
    );
    let container = &created["spec"]["containers"][0];
    assert_eq!(container["imagePullPolicy"], "IfNotPresent");
    assert_eq!(container["resources"]["requests"], json!({"cpu": "500m", "memory": "64Mi"}));

    let path = format!("{namespace}/pods/node");
    let creating = cluster.pod_when(&path, "the pod to be bound", |pod| is_waiting(pod, "ContainerCreating")).await;
    assert_eq!((phase(&creating), &condition(&creating, "PodScheduled")["status"]), ("Pending", &json!("True")));
    assert_eq!(condition(&creating, "Ready")["reason"], "ContainersNotReady");
    let running = cluster.pod_when(&path, "the pod to run", |pod| phase(pod) == "Running").await;
    assert_eq!(condition(&running, "Ready")["status"], "True");
    assert!(!running["spec"]["nodeName"].as_str().unwrap().is_empty());
    let status = &running["status"];
    assert!(status["podIP"].as_str().unwrap().parse::<std::net::IpAddr>().is_ok());
    assert_eq!(status["podIPs"][0]["ip"], status["podIP"]);
    assert!(status["hostIP"].is_string() && status["startTime"].is_string());
    let container = &status["containerStatuses"][0];
    assert_eq!(
        (&container["name"], &container["ready"], &container["restartCount"]),
        (&json!("main"), &json!(true), &json!(0))
    );
    assert_eq!(state(&running).0, "running");
    let again = cluster.nodepool.post(&format!("{namespace}/pods"), body).await;
    assert_eq!(again.refused(409, "AlreadyExists"), "pods \"node\" already exists");
}

pub async fn deletion(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let path = format!("{namespace}/pods/node");
    let created = cluster.pod(&namespace, &pod("node", &[("delay-seconds", "0"), ("stop-seconds", "never")])).await;
    let uid = created["metadata"]["uid"].as_str().unwrap();
    cluster.pod_when(&path, "the pod to run", |pod| phase(pod) == "Running").await;
    let wrong = cluster.nodepool.delete_with(&path, json!({"preconditions": {"uid": "other"}})).await;
    let expected = format!(
        "Operation cannot be fulfilled on Pod \"node\": the UID in the precondition (other) does not match the UID in \
         record ({uid}). The object might have been deleted and then recreated"
    );
    assert_eq!(wrong.refused(409, "Conflict"), expected);
    let deleted = cluster.nodepool.delete_with(&path, json!({"gracePeriodSeconds": 20})).await.expect(200);
    assert_eq!((&deleted["kind"], &deleted["metadata"]["deletionGracePeriodSeconds"]), (&json!("Pod"), &json!(20)));
    let again = cluster.nodepool.post(&format!("{namespace}/pods"), pod("node", &[])).await;
    let text = again.refused(409, "AlreadyExists");
    assert_eq!(text, "object is being deleted: pods \"node\" already exists");
    let shorter = cluster.nodepool.delete_with(&path, json!({"gracePeriodSeconds": 10})).await.expect(200);
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 10);
    let longer = cluster.nodepool.delete(&format!("{path}?gracePeriodSeconds=30")).await.expect(200);
    assert_eq!(longer["metadata"]["deletionGracePeriodSeconds"], 10);
    // The containers do not stop by themselves.
    assert_eq!(phase(&cluster.nodepool.get(&path).await.expect(200)), "Running");
    let forced = cluster.nodepool.delete_with(&path, json!({"gracePeriodSeconds": 0})).await.expect(200);
    assert_eq!(forced["metadata"]["uid"], uid);
    let text = cluster.nodepool.get(&path).await.refused(404, "NotFound");
    assert_eq!(text, "pods \"node\" not found");

    // A pod that was never bound ends at once.
    cluster.pod(&namespace, &pod("unbound", &[("unschedulable", "true")])).await;
    cluster.nodepool.delete(&format!("{namespace}/pods/unbound")).await.expect(200);
    cluster.nodepool.get(&format!("{namespace}/pods/unbound")).await.refused(404, "NotFound");
    // Running containers stop within the grace period.
    cluster.pod(&namespace, &pod("short", &[("delay-seconds", "0")])).await;
    let path = format!("{namespace}/pods/short");
    cluster.pod_when(&path, "the pod to run", |pod| phase(pod) == "Running").await;
    cluster.nodepool.delete(&path).await.expect(200);
    cluster.gone(&path).await;
}

pub async fn invalid(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    // The default account exists from here on.
    cluster.pod(&namespace, &pod("valid", &[])).await;
    let with = |key: &str, value: Value| {
        let mut pod = pod("bad", &[]);
        pod["spec"]["containers"][0][key] = value;
        pod
    };
    let gpu = json!({"requests": {"example.org/gpu": "0.50"}, "limits": {"example.org/gpu": "0.50"}});
    let too_much = json!({"requests": {"cpu": 2}, "limits": {"cpu": 1}});
    let mut no_containers = pod("bad", &[]);
    no_containers["spec"]["containers"] = json!([]);
    for (body, field, problem) in [
        (pod("Fedora_28", &[]), "metadata.name", "a lowercase RFC 1123 subdomain must consist of"),
        (with("name", json!("Fedora_28")), "spec.containers[0].name", "a lowercase RFC 1123 label must consist of"),
        (with("image", json!("")), "spec.containers[0].image", "Required value"),
        (no_containers, "spec.containers", "Required value"),
        (with("imagePullPolicy", json!("Maybe")), "spec.containers[0].imagePullPolicy", "Unsupported value: \"Maybe\""),
        (with("resources", gpu), "spec.containers[0].resources.limits[example.org/gpu]", "must be an integer"),
        (
            with("resources", too_much),
            "spec.containers[0].resources.requests",
            "must be less than or equal to cpu limit",
        ),
    ] {
        let answer = cluster.nodepool.post(&format!("{namespace}/pods"), body).await;
        let cause = &answer.body["details"]["causes"][0];
        assert_eq!(cause["field"], field, "{}", answer.text);
        assert!(cause["message"].as_str().unwrap().contains(problem), "{cause}");
        answer.refused(422, "Invalid");
    }
    for body in [
        with("resources", json!({"requests": {"cpu": "many"}})),
        json!({"metadata": {"name": "x", "annotations": {"a": 5}}}),
    ] {
        cluster.nodepool.post(&format!("{namespace}/pods"), body).await.refused(400, "BadRequest");
    }
    let mut elsewhere = pod("bad", &[]);
    elsewhere["metadata"]["namespace"] = json!("default");
    let text = cluster.nodepool.post(&format!("{namespace}/pods"), elsewhere).await.refused(400, "BadRequest");
    assert_eq!(text, "the namespace of the provided object does not match the namespace sent on the request");
}

pub async fn unknown_account(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let mut body = pod("node", &[]);
    body["spec"]["serviceAccountName"] = json!("nothing");
    let text = cluster.nodepool.post(&format!("{namespace}/pods"), body).await.refused(403, "Forbidden");
    let name = namespace.rsplit('/').next().unwrap();
    let reason = format!("error looking up service account {name}/nothing: serviceaccount \"nothing\" not found");
    assert_eq!(text, format!("pods \"node\" is forbidden: {reason}"));
}

pub async fn unschedulable(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let message = "0/3 nodes are available: 3 Insufficient cpu.";
    let annotations = [("unschedulable", message), ("unschedulable-seconds", "1"), ("delay-seconds", "0")];
    cluster.pod(&namespace, &pod("node", &annotations)).await;
    let path = format!("{namespace}/pods/node");
    let is_refused = |pod: &Value| condition(pod, "PodScheduled")["status"] == "False";
    let found = cluster.pod_when(&path, "the condition", is_refused).await;
    let scheduled = condition(&found, "PodScheduled");
    assert_eq!((&scheduled["reason"], &scheduled["message"]), (&json!("Unschedulable"), &json!(message)));
    assert_eq!((phase(&found), found["spec"]["nodeName"].as_str()), ("Pending", None));
    let running = cluster.pod_when(&path, "the pod to run", |pod| phase(pod) == "Running").await;
    let scheduled = condition(&running, "PodScheduled");
    assert_eq!((&scheduled["status"], &scheduled["reason"]), (&json!("True"), &Value::Null));
}

pub async fn waiting(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    cluster.pod(&namespace, &pod("pull", &[("waiting", "ImagePullBackOff"), ("delay-seconds", "0")])).await;
    let path = format!("{namespace}/pods/pull");
    let pull = cluster.pod_when(&path, "a failed pull", |pod| is_waiting(pod, "ErrImagePull")).await;
    assert_eq!(phase(&pull), "Pending");
    let pull = cluster.pod_when(&path, "a back-off", |pod| is_waiting(pod, "ImagePullBackOff")).await;
    let message = &pull["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    assert_eq!(message, "Back-off pulling image \"image:1\"");
    // Without the annotation the pod starts.
    let change = json!({"metadata": {"annotations": {"loopback/waiting": null}}});
    cluster.admin.patch(&path, change).await.expect(200);
    cluster.pod_when(&path, "the pod to run", |pod| phase(pod) == "Running").await;

    let annotations =
        [("waiting", "CreateContainerConfigError"), ("message", "no such secret"), ("delay-seconds", "0")];
    cluster.pod(&namespace, &pod("config", &annotations)).await;
    let path = format!("{namespace}/pods/config");
    let config = cluster.pod_when(&path, "the error", |pod| is_waiting(pod, "CreateContainerConfigError")).await;
    let message = &config["status"]["containerStatuses"][0]["state"]["waiting"]["message"];
    assert_eq!((phase(&config), message), ("Pending", &json!("no such secret")));

    cluster.pod(&namespace, &pod("never", &[("delay-seconds", "never")])).await;
    let path = format!("{namespace}/pods/never");
    cluster.pod_when(&path, "the pod to be bound", |pod| is_waiting(pod, "ContainerCreating")).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(phase(&cluster.nodepool.get(&path).await.expect(200)), "Pending");
}

pub async fn crash_loop(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    cluster.pod(&namespace, &pod("node", &[("waiting", "CrashLoopBackOff"), ("delay-seconds", "0")])).await;
    let path = format!("{namespace}/pods/node");
    let found = cluster.pod_when(&path, "the crash loop", |pod| is_waiting(pod, "CrashLoopBackOff")).await;
    assert_eq!((phase(&found), &condition(&found, "Ready")["status"]), ("Running", &json!("False")));
    let container = &found["status"]["containerStatuses"][0];
    assert_eq!((&container["ready"], &container["restartCount"]), (&json!(false), &json!(1)));
    assert_eq!(container["lastState"]["terminated"]["exitCode"], 1);
}

pub async fn ended(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    let failed = [("end", "Failed"), ("exit-code", "137"), ("reason", "OOMKilled"), ("delay-seconds", "0")];
    let evicted = [
        ("end", "Failed"),
        ("end-seconds", "0.2"),
        ("pod-reason", "Evicted"),
        ("message", "low on memory"),
        ("delay-seconds", "0"),
    ];
    let succeeded = [("end", "Succeeded"), ("delay-seconds", "0")];
    for (name, annotations, phase_wanted) in
        [("failed", &failed[..], "Failed"), ("evicted", &evicted, "Failed"), ("succeeded", &succeeded, "Succeeded")]
    {
        cluster.pod(&namespace, &pod(name, annotations)).await;
        let path = format!("{namespace}/pods/{name}");
        let ended = cluster.pod_when(&path, "the pod to end", |pod| phase(pod) == phase_wanted).await;
        let terminated = &ended["status"]["containerStatuses"][0]["state"]["terminated"];
        match name {
            "failed" => {
                assert_eq!((&terminated["exitCode"], &terminated["reason"]), (&json!(137), &json!("OOMKilled")))
            }
            "evicted" => {
                let status = &ended["status"];
                assert_eq!((&status["reason"], &status["message"]), (&json!("Evicted"), &json!("low on memory")));
                assert!(terminated.is_null(), "{ended}");
            }
            _ => assert_eq!((&terminated["exitCode"], &terminated["reason"]), (&json!(0), &json!("Completed"))),
        }
        assert_eq!(condition(&ended, "Ready")["status"], "False");
        cluster.nodepool.delete(&path).await.expect(200);
        cluster.nodepool.get(&path).await.refused(404, "NotFound");
    }
}

pub async fn streams(cluster: Arc<Cluster>) {
    let namespace = cluster.namespace().await;
    cluster.pod(&namespace, &pod("node", &[("delay-seconds", "0")])).await;
    let path = format!("{namespace}/pods/node");
    cluster.pod_when(&path, "the pod to run", |pod| phase(pod) == "Running").await;
    let text = cluster.admin.get(&format!("{path}/log")).await.refused(500, "");
    assert!(text.ends_with("connect: connection refused"), "{text}");
    for stream in ["exec?command=ls&stdout=1", "portforward?ports=22"] {
        let text = cluster.admin.post(&format!("{path}/{stream}"), json!({})).await.refused(400, "BadRequest");
        assert_eq!(text, "Upgrade request required");
    }
    cluster.admin.get(&format!("{namespace}/pods/none/log")).await.refused(404, "NotFound");
}
