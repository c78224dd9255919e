//! Mixed fleets: Nodepool 11 and Zuul share a ZooKeeper with our programs.

mod images;
mod openstack;
mod requests;
