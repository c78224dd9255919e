//! Google's own Python client accepts the simulated Compute Engine.

use testkit::clouds::simulated_gce::SimulatedGce;
use testkit::real;
use testkit::real::python::{self, Interpreter};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn googles_own_client_accepts_the_simulation() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedGce::start(&["--boot-s", "0.3", "--delete-s", "0.2"]).await;
    python::check(Interpreter::Reference, "gce_client.py", &[cloud.base()]).await;
}
