//! HTTP server: receives calls, delays them, and responds or closes the connection.

use std::rc::Rc;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, header};
use simulated_service::effects::Execution;
use simulated_service::server::{Access, Body, Disconnected, Server, Service, full};

use crate::api::simulation::Simulation;
use crate::server::call::{self, Call};
use crate::server::response::Response;

/// Maximum size of a body. Metadata of an instance is limited to a sixteenth of this.
const MAX_BODY_SIZE: usize = 8 << 20;

/// The endpoint of all services.
pub struct Endpoint {
    server: Server<Simulation>,
}

impl Endpoint {
    pub fn new(simulation: Simulation) -> Rc<Self> {
        Rc::new(Self { server: Server::new(simulation) })
    }

    /// Answers a call after its latency. `None` means that the connection is closed.
    pub async fn respond(&self, call: &Call) -> Option<Response> {
        let (delay, outcome) = self.server.run(|simulation| simulation.receive(call));
        outcome.respond(delay, async |execution| self.execute(call, &execution).await).await
    }

    async fn execute(&self, call: &Call, execution: &Execution) -> Option<Response> {
        if let Some((done, limit)) = self.server.run(|simulation| simulation.pending_operation(call)) {
            // Nothing runs between the check above and this registration, so no notification is missed.
            let _ = tokio::time::timeout(limit, done.notified()).await;
        }
        self.server.run(|simulation| simulation.execute(call, execution))
    }
}

impl Service for Endpoint {
    type Simulation = Simulation;

    fn server(&self) -> &Server<Simulation> {
        &self.server
    }

    async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
        access: Access,
    ) -> Result<hyper::Response<Body>, Disconnected> {
        let (parts, body) = request.into_parts();
        let Ok(body) = Limited::new(body, MAX_BODY_SIZE).collect().await else { return Err(Disconnected) };
        let call = Call::new(parts, body.to_bytes());
        if access == Access::Control && call.service != call::Service::Control {
            return Ok(http_response(Response::text(404, "only /sim is served here\n")));
        }
        self.respond(&call).await.map(http_response).ok_or(Disconnected)
    }
}

fn http_response(answer: Response) -> hyper::Response<Body> {
    let mut response = hyper::Response::builder().status(answer.status);
    response = response.header(header::CONTENT_TYPE, answer.content_type).header(header::SERVER, "ESF");
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(full(answer.body)).expect("statuses and headers are valid")
}
