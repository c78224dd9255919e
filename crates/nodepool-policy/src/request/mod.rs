//! State machines of one node request, from its claim to its end.

pub(crate) mod adoption;
pub mod fulfillment;
pub mod handler;
pub mod launch;
pub(crate) mod node_updates;
pub(crate) mod requested_node;
pub mod resumable;
