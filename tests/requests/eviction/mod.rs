//! Eviction: an idle node is deleted for a request that lacks capacity.

mod decisions;
mod launcher;
