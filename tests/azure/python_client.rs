//! Microsoft's own Python clients accept the simulated Azure.

use testkit::clouds::simulated_azure::SimulatedAzure;
use testkit::real;
use testkit::real::python::{self, Interpreter};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn microsofts_own_clients_accept_the_simulation() {
    if real::skipped() {
        return;
    }
    let cloud = SimulatedAzure::start(&[]).await;
    python::check(Interpreter::Azure, "azure_client.py", &[cloud.base()]).await;
}
