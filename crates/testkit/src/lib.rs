//! Support for the tests: harnesses per feature, real services, workloads, faults, and checkers of the state after a
//! run.
//!
//! Every test program links this crate, which is compiled once. Support that a single program needs is in the folder of
//! that program.

pub mod builder_process;
pub mod clouds;
pub mod daemon_process;
pub mod delayed_replies;
pub mod disk_faults;
pub mod diskimage_builder;
pub mod embedded_zk;
pub mod executable;
pub mod fake_dib;
pub mod fault_injector;
pub mod fixtures;
pub mod history_checker;
pub mod in_process_builder;
pub mod in_process_launcher;
pub mod instant_driver;
pub mod load;
pub mod misbehaving_hosts;
pub mod openstack_harness;
pub mod programs;
pub mod provider_harness;
pub mod real;
pub mod request_lifecycle;
pub mod scale_parameters;
pub mod wait;
pub mod workload;
pub mod zk_contract;
