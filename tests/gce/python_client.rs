//! Google's own Python client accepts the simulated Compute Engine.

use std::process::Command;

use testkit::clouds::simulated_gce::SimulatedGce;
use testkit::real::{self, python::Interpreter};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn googles_own_client_accepts_the_simulation() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedGce::start(&["--boot-s", "0.3", "--delete-s", "0.2"]).await;
    let mut command = Command::new(Interpreter::Reference.path());
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/python/gce_client.py")).arg(cloud.base());
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.trim_end().ends_with("ok"), "{stdout}");
}
