//! The container drivers of Nodepool 11 on the simulated cluster, and our driver beside them.
//!
//! `golden/DRIVER.jsonl` is the output of `tests/python/kubernetes_reference.py` for the configuration
//! `golden/DRIVER.yaml`: one line per node, as its record would be, and one per request.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nodepool::actors::provider::providers;
use nodepool_driver::instance::Instance;
use nodepool_driver::job::{Job, Outcome};
use serde_json::{Value, json};
use testkit::clouds::simulated_kubernetes::{InProcessKubernetes, SimulatedKubernetes};
use testkit::in_process_launcher::on_real_time;
use testkit::provider_harness::{ProviderHarness, provider_section};
use testkit::real::python;

use crate::client::Client;
use crate::driver::launch;

const TIMEOUT: Duration = Duration::from_secs(120);
/// Flags of the cluster for the reference, which looks once a second.
const QUICK: [&str; 9] =
    ["--tls", "--secret-fill-s", "0", "--pod-start-s", "0", "--namespace-delete-s", "0", "--grace-max-s", "0"];

fn golden_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kubernetes/golden").join(name)
}

fn golden(driver: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(golden_path(&format!("{driver}.jsonl"))).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Asserts that Nodepool 11 does what is recorded.
async fn compare(driver: &str, flags: &[&str]) {
    let cluster = SimulatedKubernetes::start(&[&QUICK, flags].concat()).await;
    let (kubeconfig, config) = (cluster.kubeconfig(), golden_path(&format!("{driver}.yaml")));
    let arguments = [kubeconfig.to_str().unwrap(), config.to_str().unwrap()];
    let reference = python::Interpreter::Reference;
    let lines = python::run(reference, "kubernetes_reference.py", &arguments, TIMEOUT).await;
    let expected = golden(driver);
    for (number, (line, expected)) in lines.iter().zip(&expected).enumerate() {
        assert_eq!(line, expected, "{driver}: line {}", number + 1);
    }
    assert_eq!(lines.len(), expected.len(), "{driver}");
}

#[test]
fn the_kubernetes_driver_of_nodepool_11_does_what_is_recorded() {
    on_real_time(compare("kubernetes", &[]));
}

#[test]
fn the_openshift_drivers_of_nodepool_11_do_what_is_recorded() {
    on_real_time(async {
        let flags = ["--openshift", "--account-secrets"];
        compare("openshift", &flags).await;
        compare("openshiftpods", &[&flags[..], &["--project", "main", "--project", "defaults"]].concat()).await;
    });
}

/// The launch that the reference made for this node.
fn order(node: &Value) -> Job {
    let id = node["external_id"].as_str().unwrap();
    let (pool, _) = id.split_once('-').unwrap();
    let (_, id) = id.rsplit_once('-').unwrap();
    let request = json!({"id": format!("200-{id}"), "tenant_name": "tenant-one"});
    launch("cluster", pool, node["node"].as_str().unwrap(), id, request)
}

/// The fields of a launched node that Zuul reads, with placeholders in the same places.
fn described(label: &Value, instance: &Instance) -> Value {
    let login = instance.login.as_ref().unwrap();
    let mut data = login.connection_port.clone();
    for key in ["host", "token", "ca_crt"] {
        assert!(data[key].as_str().is_some_and(|text| !text.is_empty()), "{data}");
        data[key] = format!("<{key}>").into();
    }
    json!({
        "node": label, "connection_port": data, "connection_type": login.connection_type,
        "interface_ip": instance.interface_ip, "external_id": instance.external_id.to_string(),
        "host_id": instance.host_id, "cloud": instance.cloud, "python_path": login.python_path,
        "shell_type": login.shell_type,
        "resources": instance.resources.iter().collect::<BTreeMap<_, _>>(),
    })
}

/// The same with all numbers in one notation.
fn with_floats(mut node: Value) -> Value {
    for amount in node["resources"].as_object_mut().unwrap().values_mut() {
        *amount = json!(amount.as_f64());
    }
    node
}

fn amount(value: &Value) -> Option<f64> {
    let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let units = [("Mi", 1024.0 * 1024.0), ("Gi", 1024.0 * 1024.0 * 1024.0), ("M", 1e6), ("", 1.0)];
    units.into_iter().find_map(|(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor))
}

/// Asserts that a pod has everything that the reference's has.
fn assert_includes(ours: &Value, theirs: &Value, place: &str) {
    match theirs {
        Value::Object(entries) => {
            for (key, value) in entries {
                assert_includes(&ours[key], value, &format!("{place}.{key}"));
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            assert_eq!(ours.as_array().map(Vec::len), Some(items.len()), "{place}");
            for (index, item) in items.iter().enumerate() {
                assert_includes(&ours[index], item, &format!("{place}[{index}]"));
            }
        }
        // The cluster stores quantities in a notation of its own.
        _ => {
            assert!(ours == theirs || amount(ours).is_some_and(|ours| amount(theirs) == Some(ours)), "{place}: {ours}")
        }
    }
}

/// Asserts that our driver makes the nodes and pods of the reference.
async fn compare_nodes(driver: &str, flags: &[&str]) {
    let cluster = SimulatedKubernetes::start(&[&QUICK, flags].concat()).await;
    let section = provider_section(&std::fs::read_to_string(golden_path(&format!("{driver}.yaml"))).unwrap());
    let drivers = InProcessKubernetes(vec![cluster.kubeconfig()]);
    let mut provider = ProviderHarness::new(|deps| providers::start(&section, deps, Some(&drivers)).unwrap());
    let admin = Client::connect(&cluster.kubeconfig(), "admin");
    let golden = golden(driver);
    for node in golden.iter().filter(|line| line.get("node").is_some()) {
        let label = &node["node"];
        let outcome = provider.run(order(node)).await.unwrap_or_else(|error| panic!("{driver} {label}: {error}"));
        let Outcome::Launched(instance) = outcome else { panic!("{label}: {outcome:?}") };
        let mut expected = with_floats(node.clone());
        if label == "pod-spec" {
            // Nodepool 11 does not count what a specification requests.
            expected["resources"] = json!({"cores": 0.5, "instances": 1.0, "ram": 64.0});
        }
        let has_pod = node["connection_type"] == "kubectl";
        match driver {
            // Nodepool 11 does not store on which node a pod runs.
            "openshift" if has_pod => expected["host_id"] = json!("loopback"),
            // Its id does not say where the name of the project ends.
            "openshiftpods" => {
                let (pod, project) = (&node["interface_ip"], &node["connection_port"]["namespace"]);
                expected["external_id"] = json!({"pod": pod, "project": project}).to_string().into();
            }
            _ => {}
        }
        let ours = described(label, &instance);
        let keys = |node: &Value| node["connection_port"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!((&ours, keys(&ours)), (&expected, keys(&expected)), "{driver}");
        if has_pod {
            compare_pods(&admin, &golden, node).await;
        }
    }
}

/// Asserts that the pod of a node has everything that the reference requested for it.
async fn compare_pods(admin: &Client, golden: &[Value], node: &Value) {
    let (label, data) = (node["node"].as_str().unwrap(), &node["connection_port"]);
    let path = format!("/api/v1/namespaces/{}/pods", data["namespace"].as_str().unwrap());
    let is_pod = |line: &&Value| {
        line["method"] == "POST" && line["path"] == path.as_str() && line["body"]["metadata"]["name"] == data["pod"]
    };
    let request = golden.iter().find(is_pod).unwrap_or_else(|| panic!("no request for the pod of {label}"));
    let pod = admin.get(&format!("{path}/{}", data["pod"].as_str().unwrap())).await.expect(200);
    assert_includes(&pod["metadata"], &request["body"]["metadata"], &format!("{label}: metadata"));
    assert_includes(&pod["spec"], &request["body"]["spec"], &format!("{label}: spec"));
}

#[test]
fn nodes_and_pods_are_those_of_nodepool_11() {
    on_real_time(async {
        compare_nodes("kubernetes", &[]).await;
        compare_nodes("openshift", &["--openshift"]).await;
        compare_nodes("openshiftpods", &["--openshift", "--project", "main", "--project", "defaults"]).await;
    });
}
