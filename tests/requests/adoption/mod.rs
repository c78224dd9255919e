//! Adoption: a launcher resumes requests and nodes that another one abandoned.

mod decisions;
mod launcher;
mod openstack;
