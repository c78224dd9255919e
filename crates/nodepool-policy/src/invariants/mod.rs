//! What must hold in every state: checked by the running program, by tests and by the simulator.

pub mod images;
pub mod nodes;
pub(crate) mod records;
