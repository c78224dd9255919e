//! One trace per node request, with the feature `otel`; without it these calls do nothing and cost nothing.

#[cfg(feature = "otel")]
#[path = "otlp.rs"]
mod backend;
#[cfg(not(feature = "otel"))]
#[path = "disabled.rs"]
mod backend;

pub use backend::{Tracer, Traces};
