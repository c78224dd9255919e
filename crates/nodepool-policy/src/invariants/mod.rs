//! Invariants: conditions that hold in every state, checked at run time, by tests and by the simulator.

pub mod images;
pub mod launches;
pub mod nodes;
pub(crate) mod records;
pub(crate) mod slots;
