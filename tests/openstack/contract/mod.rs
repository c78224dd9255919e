//! Contract of the OpenStack API: everything that Nodepool relies on. The simulated cloud is always tested, and a real
//! one if `OS_CLIENT_CONFIG_FILE` and `OS_CLOUD` name it (doc/simulated-openstack.md lists its requirements).

pub mod cases;
mod shape;

use std::io::Write;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::sync::Arc;

use crate::cloud::Cloud;
use futures::FutureExt;
use testkit::clouds::simulated_openstack::SimulatedOpenStack;

/// Runs all cases one after another, reports those that failed, and deletes all their objects.
async fn check_contract(clouds_yaml: &Path, name: &str) {
    let cloud = Arc::new(Cloud::connect(clouds_yaml, name).await);
    let mut failed = Vec::new();
    for (claim, case) in cases::all(&cloud) {
        // A panic fails its case only; its text is in the output already.
        if AssertUnwindSafe(case).catch_unwind().await.is_err() {
            failed.push(claim);
        }
    }
    cloud.clean_up().await;
    assert!(failed.is_empty(), "cases that fail on {name}: {failed:#?}");
}

#[tokio::test]
async fn the_simulated_cloud_fulfils_the_contract() {
    let simulated = SimulatedOpenStack::start(&["--networks", "private,dual", "--boot-time-s", "0.3"]).await;
    check_contract(&simulated.clouds_yaml(), "simulated").await;
    let state = simulated.state().await;
    assert_eq!((&state["servers"], &state["ports"], &state["volumes"]), (&0.into(), &0.into(), &0.into()), "{state}");
}

#[tokio::test]
async fn the_contract_holds_with_an_application_credential() {
    let simulated = SimulatedOpenStack::start(&["--boot-time-s", "0.1"]).await;
    check_contract(&simulated.clouds_yaml(), "simulated-appcred").await;
}

/// Needs a real cloud that the environment names, because the test cannot install one.
#[tokio::test]
async fn a_real_cloud_fulfils_the_contract() {
    let (Some(file), Ok(name)) = (std::env::var_os("OS_CLIENT_CONFIG_FILE"), std::env::var("OS_CLOUD")) else {
        // Written to the stream itself: the test harness captures the output of a test that passes.
        let line = "SKIPPED: no real OpenStack (set OS_CLIENT_CONFIG_FILE and OS_CLOUD)\n";
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open in a test");
        return;
    };
    check_contract(Path::new(&file), &name).await;
}

/// Some YAML readers parse an id of digits as a number.
#[tokio::test]
async fn the_clouds_yaml_of_the_contract_is_parsed() {
    let simulated = SimulatedOpenStack::start(&["--region", "elsewhere", "--without", "cinder"]).await;
    let cloud = Cloud::connect(&simulated.clouds_yaml(), "simulated-appcred").await;
    assert!(cloud.auth_url.starts_with(simulated.base()));
    assert_eq!(cloud.endpoints.keys().collect::<Vec<_>>(), ["compute", "identity", "image", "network"]);
}
