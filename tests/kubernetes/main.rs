//! The drivers kubernetes, openshift and openshiftpods; the API that they rely on, with one contract for the simulated
//! cluster and real ones; and the knobs and faults of the simulated one.
//!
//! NODEPOOL_TEST_KUBECONFIG names a real cluster on loopback for the contract and one test of the driver, with the
//! contexts `admin` and `nodepool`. Without it, only the simulated cluster is used.

mod client;
mod contract;
mod credentials;
mod driver;
mod kubectl;
mod launcher;
mod openshift;
mod openshift_launcher;
mod openshiftpods;
mod real;
mod reference;
mod simulated;
