//! Clean-up: nodes at the end of their life, slots of static hosts, and the intervals of the clean-up rules.
//!
//! ZooKeeper and the clouds are in memory and time is paused, unless a module says otherwise.

mod intervals;
mod node_end;
mod rejected_repairs;
mod slots;
