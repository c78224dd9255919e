//! Every message that crosses between actors, apart from those of the TaskManager.

use actix::Message;

use nodepool_model::records::ids::RequestId;
use nodepool_model::report::status::PoolVerdict;

/// Asks an actor for the state of its brain, as one JSON object. Nothing in it is a secret.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "Option<serde_json::Value>")]
pub struct Dump;

/// Asks a pool worker what it last decided about a request; `None` where it never saw it.
#[derive(Clone, Debug, Message)]
#[rtype(result = "Option<PoolVerdict>")]
pub struct ExplainRequest(pub RequestId);

/// Asks an actor to finish what cannot be left, to release what it holds and to stop. The answer comes when it has.
#[derive(Clone, Copy, Debug, Message)]
#[rtype(result = "()")]
pub struct Shutdown;
