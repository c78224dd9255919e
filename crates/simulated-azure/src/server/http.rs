//! HTTP server: receives calls, delays them, and responds or closes the connection.

use std::rc::Rc;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, header};
use simulated_service::server::{Access, Body, Disconnected, Server, Service, full};

use crate::api::simulation::Simulation;
use crate::server::call::Call;
use crate::server::response::Response;
use crate::server::target::Target;

/// Maximum size of a body: pages of an upload are the largest.
const MAX_BODY_SIZE: usize = 16 << 20;

/// The endpoint of all services.
pub struct Endpoint {
    server: Server<Simulation>,
}

impl Endpoint {
    pub fn new(simulation: Simulation) -> Rc<Self> {
        Rc::new(Self { server: Server::new(simulation) })
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
        if access == Access::Control && call.target != Target::Control {
            return Ok(http_response(Response::text(404, "only /sim is served here\n")));
        }
        let (delay, outcome) = self.server.run(|simulation| simulation.receive(&call));
        let execute = async |planned| self.server.run(|simulation| simulation.execute(&call, planned));
        outcome.respond(delay, execute).await.map(http_response).ok_or(Disconnected)
    }
}

fn http_response(answer: Response) -> hyper::Response<Body> {
    let mut response = hyper::Response::builder().status(answer.status);
    if !answer.content_type.is_empty() {
        response = response.header(header::CONTENT_TYPE, answer.content_type);
    }
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(full(answer.body)).expect("statuses and headers are valid")
}
