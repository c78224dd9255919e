//! IBM's own Python clients accept the simulated IBM VPC.

use std::process::Command;

use testkit::clouds::simulated_ibm::SimulatedIbm;
use testkit::real::{self, python::Interpreter};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ibms_own_clients_accept_the_simulation() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedIbm::start_with_tokens(&["--boot-s", "0.3", "--delete-s", "0.2"]).await;
    let mut command = Command::new(Interpreter::Reference.path());
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/ibm_client.py")).arg(cloud.base());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
}
