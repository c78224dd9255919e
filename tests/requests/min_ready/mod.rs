//! Min-ready: nodes that are kept ready before any request for them exists.

mod decisions;
mod launcher;
