//! No traces: what `otlp.rs` offers, without effect.

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

    pub fn end(&self) {}
}

pub struct Traces;

impl Traces {
    pub fn copy(&self, _: &NodeRequest) -> Option<NodeRequest> {
        None
    }

    pub fn accepted(&mut self, _: &RequestId, _: Option<&NodeRequest>, _: &PoolId) {}
    pub fn declined(&mut self, _: &RequestId, _: Option<&NodeRequest>, _: &PoolId, _: &[String]) {}
    pub fn ended(&mut self, _: &RequestId, _: &str) {}
    pub fn launches(&mut self, _: &RequestId, _: &NodeId, _: &ProviderName) {}
    pub fn boots(&mut self, _: &NodeId) {}
    pub fn booted(&mut self, _: &NodeId, _: Option<&str>) {}
    pub fn scans(&mut self, _: &NodeId) {}
    pub fn scanned(&mut self, _: &NodeId, _: Option<&str>) {}
    pub fn attempt_ended(&mut self, _: &NodeId, _: &str) {}
    pub fn given_up(&mut self, _: &NodeId) {}
}
