//! IBM's own Python clients accept the simulated IBM VPC.

use testkit::clouds::simulated_ibm::SimulatedIbm;
use testkit::real;
use testkit::real::python::{self, Interpreter};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ibms_own_clients_accept_the_simulation() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedIbm::start_with_tokens(&["--boot-s", "0.3", "--delete-s", "0.2"]).await;
    python::check(Interpreter::Reference, "ibm_client.py", &[cloud.base()]).await;
}
