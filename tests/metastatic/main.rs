//! Metastatic nodes: slots of backing nodes, in whole launchers. ZooKeeper and the cloud of the backing nodes are in
//! memory and time is paused, unless a module says otherwise. The tests with Nodepool 11 run real processes.

mod backing_nodes;
mod failures;
mod launcher_harness;
mod nodepool11;
mod slots;
