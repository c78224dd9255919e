//! Messages that several types of actors handle; all others are defined next to their actor, those about jobs in
//! `provider/jobs`.

use actix::Message;

use nodepool_model::records::ids::RequestId;
use nodepool_model::report::status::PoolVerdict;

/// Queries the state of an actor, as one JSON object without secrets.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Option<serde_json::Value>")]
pub struct Dump;

/// Queries the last verdict about a request; `None` if the actor has none.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Option<PoolVerdict>")]
pub struct ExplainRequest(pub RequestId);

/// Stops an actor: it completes work that cannot be interrupted, releases the resources that it holds and stops. The
/// message is answered after that; only a draining pool answers before it has stopped.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Shutdown;
