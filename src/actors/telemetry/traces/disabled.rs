//! Tracing without the feature `otel`: the interface of `otlp.rs` without any effect.

use tokio::runtime::Handle;

use nodepool_model::records::ids::{NodeId, PoolId, ProviderName, RequestId};
use nodepool_model::records::request::NodeRequest;

#[derive(Clone, Default)]
pub struct Tracer;

impl Tracer {
    pub fn from_environment(_: &Handle) -> Self {
        Self
    }

    pub fn traces(&self) -> Traces {
        Traces
    }

    pub fn shutdown(&self) {}
}

pub struct Traces;

impl Traces {
    pub fn clone_if_traced(&self, _: &NodeRequest) -> Option<NodeRequest> {
        None
    }

    pub fn request_accepted(&mut self, _: &RequestId, _: Option<&NodeRequest>, _: &PoolId) {}
    pub fn request_declined(&mut self, _: &RequestId, _: Option<&NodeRequest>, _: &PoolId, _: &[String]) {}
    pub fn request_ended(&mut self, _: &RequestId, _: &str) {}
    pub fn launch_started(&mut self, _: &RequestId, _: &NodeId, _: &ProviderName) {}
    pub fn boot_started(&mut self, _: &NodeId) {}
    pub fn boot_ended(&mut self, _: &NodeId, _: Option<&str>) {}
    pub fn keyscan_started(&mut self, _: &NodeId) {}
    pub fn keyscan_ended(&mut self, _: &NodeId, _: Option<&str>) {}
    pub fn attempt_ended(&mut self, _: &NodeId, _: &str) {}
    pub fn launch_abandoned(&mut self, _: &NodeId) {}
}
