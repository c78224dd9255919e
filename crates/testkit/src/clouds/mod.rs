//! Clouds to test against, as processes on loopback: the project's simulations, and moto.

pub mod azurite;
pub mod beside_nodepool11;
pub mod cloud_launcher;
pub mod moto;
pub mod simulated_azure;
pub mod simulated_ec2;
pub mod simulated_gce;
pub mod simulated_ibm;
pub mod simulated_kubernetes;
pub mod simulated_openstack;
pub mod simulation_process;
pub mod tls_proxy;
