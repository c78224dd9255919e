//! Web port: lists, pages, metrics, and (with the feature `otel`) traces. Real launcher processes, on an embedded
//! coordinator or on Apache ZooKeeper. `tests/run` provides chromium, Prometheus and Nodepool 11 for the tests that
//! need them.

mod browser;
mod http;
mod live_page;
mod live_page_faults;
mod live_page_harness;
mod metrics;
mod reference;
#[cfg(feature = "otel")]
mod traces;
