//! Traces: one per node request, with the feature `otel`. Without it, the calls do nothing and cost nothing.

#[cfg(feature = "otel")]
#[path = "otlp.rs"]
mod backend;
#[cfg(not(feature = "otel"))]
#[path = "disabled.rs"]
mod backend;

pub use backend::{Tracer, Traces};
