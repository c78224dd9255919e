//! Log context: ids of event, request and node, by which operators search the log.

use tracing::{Span, info_span};

use nodepool_model::records::ids::{NodeId, RequestId};
use nodepool_model::records::node::Node;
use nodepool_model::snapshot::Snapshot;

/// Ids that are passed with the work from actor to actor. Unknown ids are left out of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogContext {
    pub event: Option<String>,
    pub request: Option<RequestId>,
    pub node: Option<NodeId>,
}

impl LogContext {
    pub fn request(id: &RequestId, event: Option<&str>) -> Self {
        Self { event: event.map(str::to_owned), request: Some(id.clone()), node: None }
    }

    /// Context of a node, with the request to which it is allocated, and its event if the request still exists.
    pub fn node(id: &NodeId, record: Option<&Node>, snapshot: &Snapshot) -> Self {
        let request = record.and_then(|record| record.allocated_to.clone());
        let known = request.as_ref().and_then(|request| snapshot.request(request));
        Self { event: known.and_then(|known| known.record.event_id.clone()), request, node: Some(id.clone()) }
    }

    // Values of log fields; an unknown id is an empty text.

    pub fn event_id(&self) -> &str {
        self.event.as_deref().unwrap_or_default()
    }

    pub fn request_id(&self) -> &str {
        self.request.as_ref().map(RequestId::as_str).unwrap_or_default()
    }

    pub fn node_id(&self) -> &str {
        self.node.as_ref().map(NodeId::as_str).unwrap_or_default()
    }

    /// Span for work that logs in other modules.
    pub fn span(&self) -> Span {
        let (event_id, node_request_id, node_id) = (self.event_id(), self.request_id(), self.node_id());
        info_span!("log_context", event_id, node_request_id, node_id)
    }
}
