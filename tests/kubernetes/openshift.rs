//! The openshift driver on the simulated cluster: projects, lost responses, refusals, and what only OpenShift does.

use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::records::ids::ExternalId;
use serde_json::{Value, json};
use testkit::in_process_launcher::on_real_time;

use crate::client::Client;
use crate::driver::{KubernetesHarness, connection, user_of};

const LABELS: &[(&str, &str)] =
    &[("project", "type: project"), ("pod", "type: pod, image: busybox, cpu: 1, labels: {purpose: test}")];

async fn start(flags: &[&str]) -> KubernetesHarness {
    let flags = [&["--openshift", "--namespace-delete-s", "0.1"], flags].concat();
    KubernetesHarness::start_driver("openshift", &flags, LABELS).await
}

fn admin(harness: &KubernetesHarness) -> Client {
    Client::connect(&harness.cluster.kubeconfig(), "admin")
}

/// Waits until the cluster has none of our objects: a project in deletion is invisible, but not gone.
async fn wait_until_empty(harness: &KubernetesHarness) {
    testkit::wait::until("all projects to end", crate::client::TIMEOUT, async || {
        harness.cluster.state().await["objects"] == json!({})
    })
    .await;
}

#[test]
fn a_project_node_has_an_administrator_of_its_project_only() {
    on_real_time(async {
        // Up to 4.15 each account gets a secret by itself.
        for (flags, secrets) in [(&[][..], 1), (&["--account-secrets"], 2)] {
            let mut harness = start(flags).await;
            let node = harness.launch("project", "0000000001").await.unwrap();
            assert_eq!((&node.external_id, &node.interface_ip), (&ExternalId::text("main-0000000001"), &None));
            assert_eq!(node.login.as_ref().unwrap().connection_type.as_deref(), Some("project"));
            let data = connection(&node);
            let keys: Vec<&String> = data.as_object().unwrap().keys().collect();
            assert_eq!(keys, ["namespace", "host", "skiptls", "token", "user", "ca_crt"]);
            let user = user_of(&harness, &data);
            let project = "/api/v1/namespaces/main-0000000001";
            user.post(&format!("{project}/configmaps"), json!({"metadata": {"name": "c"}})).await.expect(201);
            user.post("/apis/apps/v1/namespaces/main-0000000001/deployments", json!({"metadata": {"name": "d"}}))
                .await
                .expect(201);
            user.get("/api/v1/namespaces/default/pods").await.expect(403);
            let found = admin(&harness).get(&format!("{project}/secrets")).await.expect(200);
            let is_ours = |secret: &&Value| {
                let annotations = &secret["metadata"]["annotations"];
                secret["type"] == "kubernetes.io/service-account-token"
                    && annotations["kubernetes.io/service-account.name"] == "zuul-worker"
            };
            assert_eq!(found["items"].as_array().unwrap().iter().filter(is_ours).count(), secrets, "{found}");
            harness.delete(node).await;
            wait_until_empty(&harness).await;
        }
    });
}

#[test]
fn a_pod_is_ready_however_it_may_be_watched() {
    on_real_time(async {
        let cases: [&[&str]; 4] =
            [&[], &["--watch-closes-after-s", "0.05"], &["--history-size", "1"], &["--no-watch", "403"]];
        for flags in cases {
            let mut harness = start(flags).await;
            let node = harness.launch("pod", "0000000001").await.unwrap();
            assert_eq!((node.interface_ip.as_deref(), node.host_id.as_deref()), (Some("pod"), Some("loopback")));
            assert_eq!(connection(&node)["pod"], "pod");
            harness.delete(node).await;
            wait_until_empty(&harness).await;
        }
    });
}

#[test]
fn looks_at_a_pod_without_a_response_do_not_end_its_launch() {
    on_real_time(async {
        for kind in ["closed", "502", "truncated"] {
            let mut harness = start(&[]).await;
            let faults =
                [format!("{kind} times=2 verb=watch resource=pods"), "502 times=1 verb=get resource=pods".to_owned()];
            harness.cluster.knobs(json!({ "faults": faults })).await;
            let node = harness.launch("pod", "0000000001").await.unwrap_or_else(|error| panic!("{kind}: {error}"));
            harness.delete(node).await;
        }
    });
}

#[test]
fn a_project_that_may_not_be_deleted_keeps_its_record() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let node = harness.launch("project", "0000000001").await.unwrap();
        harness.cluster.knobs(json!({"faults": ["403 verb=delete resource=projects"]})).await;
        let error = harness.provider.run(Job::Delete(node.external_id.clone())).await.unwrap_err();
        assert!(matches!(error, CloudError::Denied(_)), "{error:?}");
        // So does one of an account whose credentials are not accepted.
        harness.cluster.knobs(json!({"faults": ["401 verb=delete resource=projects"]})).await;
        let error = harness.provider.run(Job::Delete(node.external_id.clone())).await.unwrap_err();
        assert!(matches!(error, CloudError::Denied(_)), "{error:?}");
        harness.cluster.knobs(json!({"faults": []})).await;
        harness.delete(node).await;
        wait_until_empty(&harness).await;
    });
}

#[test]
fn a_watch_on_a_pod_takes_the_place_of_looks() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        harness.cluster.knobs(json!({"pod_start_s": 2})).await;
        harness.launch("pod", "0000000001").await.unwrap();
        let calls = &harness.cluster.state().await["counters"]["calls_by_kind"];
        assert_eq!((&calls["get pods"], &calls["list pods"]), (&Value::Null, &Value::Null), "{calls}");
    });
}

#[test]
fn lost_responses_make_no_project_twice() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let created = ["projectrequests", "serviceaccounts", "secrets", "rolebindings", "pods"];
        for (number, kind) in ["lost-answer", "closed", "503", "html"].into_iter().enumerate() {
            let faults: Vec<String> =
                created.iter().map(|resource| format!("{kind} times=1 verb=create resource={resource}")).collect();
            harness.cluster.knobs(json!({ "faults": faults })).await;
            let launched = harness.launch("pod", &format!("000000000{number}")).await;
            harness.delete(launched.unwrap_or_else(|error| panic!("{kind}: {error}"))).await;
        }
        wait_until_empty(&harness).await;
    });
}

#[test]
fn a_new_project_may_refuse_its_owner_for_a_moment() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        harness.cluster.knobs(json!({"faults": ["403 times=3 verb=create resource=serviceaccounts"]})).await;
        harness.launch("project", "0000000001").await.unwrap();
    });
}

#[test]
fn the_end_of_an_earlier_project_is_awaited() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        harness.cluster.knobs(json!({"namespace_delete_s": 1.5})).await;
        for _ in 0..2 {
            let node = harness.launch("project", "0000000001").await.unwrap();
            harness.delete(node).await;
        }
        wait_until_empty(&harness).await;
    });
}

#[test]
fn a_visible_project_of_others_is_neither_used_nor_deleted() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let body = json!({"metadata": {"name": "main-0000000001"}, "description": "by hand"});
        let nodepool = Client::connect(&harness.cluster.kubeconfig(), "nodepool");
        nodepool.post("/apis/project.openshift.io/v1/projectrequests", body).await.expect(201);
        let error = harness.launch("project", "0000000001").await.unwrap_err();
        let CloudError::Failed { kind: FailureKind::Nodepool, detail } = error else { panic!("{error:?}") };
        assert_eq!(detail, "the project main-0000000001 exists already and belongs to another owner");
        admin(&harness).get("/api/v1/namespaces/main-0000000001").await.expect(200);
    });
}

#[test]
fn refused_projects_are_a_quota_or_an_error_of_the_configuration() {
    on_real_time(async {
        let mut harness = start(&["--max-projects", "1"]).await;
        let first = harness.launch("project", "0000000001").await.unwrap();
        let error = harness.launch("project", "0000000002").await.unwrap_err();
        let CloudError::Quota(text) = error else { panic!("{error:?}") };
        assert!(text.ends_with("cannot create more than 1 project(s)."), "{text}");
        harness.delete(first).await;
        harness.cluster.knobs(json!({"max_projects": -1, "refuse_projects": true})).await;
        let error = harness.launch("project", "0000000003").await.unwrap_err();
        let CloudError::Denied(text) = error else { panic!("{error:?}") };
        assert_eq!(text, "You may not request a new project via this API.");
    });
}

#[test]
fn a_cluster_without_projects_says_so() {
    on_real_time(async {
        let mut harness = KubernetesHarness::start_driver("openshift", &[], LABELS).await;
        let error = harness.launch("project", "0000000001").await.unwrap_err().to_string();
        assert!(error.contains("needs the role self-provisioner, and the cluster must be an OpenShift"), "{error}");
        let error = harness.provider.run(Job::Refresh).await.unwrap_err().to_string();
        assert!(error.contains("this cluster has no projects, so it is no OpenShift"), "{error}");
    });
}

#[test]
fn projects_are_known_by_their_labels_or_their_description() {
    on_real_time(async {
        for (flags, label) in [(&[][..], Value::Null), (&["--label-projects"], json!("0000000001"))] {
            let mut harness = start(flags).await;
            let node = harness.launch("project", "0000000001").await.unwrap();
            let project = admin(&harness).get("/api/v1/namespaces/main-0000000001").await.expect(200);
            assert_eq!(project["metadata"]["labels"]["nodepool_node_id"], label, "{project}");
            let Ok(Outcome::Listed(inventory)) = harness.provider.run(Job::List).await else { panic!("no list") };
            let listed = inventory.find(&node.external_id).unwrap();
            assert_eq!((listed.node(), listed.belongs_to(&"kube".into())), (Some("0000000001"), true));
        }
    });
}

#[test]
fn a_quota_of_all_projects_limits_the_provider() {
    on_real_time(async {
        let mut harness = start(&[]).await;
        let node = harness.launch("pod", "0000000001").await.unwrap();
        let requester = json!({"openshift.io/requester": "system:serviceaccount:default:nodepool"});
        let quotas = "/apis/quota.openshift.io/v1/clusterresourcequotas";
        let hard = json!({"pods": "10", "requests.cpu": "6"});
        let spec = json!({"selector": {"annotations": requester}, "quota": {"hard": hard}});
        admin(&harness).post(quotas, json!({"metadata": {"name": "ci"}, "spec": spec})).await.expect(201);
        let status = json!({"total": {"hard": hard, "used": {"pods": "4", "requests.cpu": "1500m"}}});
        admin(&harness).patch(&format!("{quotas}/ci/status"), json!({"status": status})).await.expect(200);
        // One of the pods and one core are ours. Without a project of ours only the limits are known.
        for unmanaged in [(3.0, 0.5), (0.0, 0.0)] {
            let Ok(Outcome::Refreshed(facts, _)) = harness.provider.run(Job::Refresh).await else { panic!("no facts") };
            assert_eq!((facts.limits.get("instances"), facts.limits.get("cores")), (10.0, 6.0));
            assert_eq!((facts.unmanaged.get("instances"), facts.unmanaged.get("cores")), unmanaged);
            assert_eq!(facts.limits.get("ram"), f64::INFINITY);
            let _ = harness.provider.run(Job::Delete(node.external_id.clone())).await;
        }
    });
}
