//! Fault injection: the faults, and the knobs that control them.

pub mod api_versions;
pub mod corrupt;
pub mod document_links;
pub mod fault;
pub mod knobs;
pub mod latency;
pub mod per_service;
