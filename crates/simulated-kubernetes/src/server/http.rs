//! HTTP server: receives calls, delays them, and responds, streams a watch or closes the connection.

use std::rc::Rc;
use std::time::Duration;

use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper::{Request, header};
use simulated_service::server::{self, Access, Body, Disconnected, Service, Simulation as _, full};
use tokio::sync::watch;

use crate::api::simulation::{CallOutcome, Reply, Simulation};
use crate::server::call::Call;
use crate::server::response::Response;
use crate::server::watch_stream;

/// Maximum size of a body, as of kube-apiserver.
const MAX_BODY_SIZE: usize = 3 << 20;
/// The simulation with the signals to its tasks.
pub struct Server {
    inner: server::Server<Simulation>,
    /// The newest resource version, for watches.
    pub version: watch::Sender<u64>,
}

impl Server {
    pub fn new(simulation: Simulation) -> Rc<Self> {
        let version = watch::Sender::new(simulation.cluster.store.version());
        Rc::new(Self { inner: server::Server::new(simulation), version })
    }

    /// Runs an operation on the simulation, at the current time, and wakes watches and timers.
    pub fn run<T>(&self, operation: impl FnOnce(&mut Simulation) -> T) -> T {
        let with_version = |simulation: &mut Simulation| {
            let result = operation(simulation);
            (result, simulation.cluster.store.version())
        };
        let (result, version) = self.inner.run(with_version);
        self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
        result
    }
}

impl Service for Server {
    type Simulation = Simulation;

    fn server(&self) -> &server::Server<Simulation> {
        &self.inner
    }

    fn run_timers(&self) -> Option<Duration> {
        self.run(|simulation| simulation.until_next_timer())
    }

    async fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
        access: Access,
    ) -> Result<hyper::Response<Body>, Disconnected> {
        let call = Call::from_request(&request);
        let (delay, outcome) = self.run(|simulation| simulation.receive(&call));
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let reply = match outcome {
            CallOutcome::Respond(answer) => Some(Reply::Response(answer)),
            CallOutcome::Disconnect(after) => {
                tokio::time::sleep(after).await;
                None
            }
            CallOutcome::Execute(_) if access == Access::Control && !call.path.starts_with("/sim/") => {
                Some(Reply::Response(Response::page_not_found()))
            }
            CallOutcome::Execute(faults) => {
                let Ok(body) = Limited::new(request.into_body(), MAX_BODY_SIZE).collect().await else {
                    return Err(Disconnected);
                };
                self.run(|simulation| simulation.execute(&call, &body.to_bytes(), &faults))
            }
        };
        match reply {
            None => Err(Disconnected),
            Some(Reply::Response(answer)) => Ok(http_response(answer)),
            Some(Reply::Watch(watch)) => Ok(watch_stream::response(self, watch)),
        }
    }
}

fn http_response(answer: Response) -> hyper::Response<Body> {
    let mut response = hyper::Response::builder().status(answer.status);
    response = response.header(header::CONTENT_TYPE, answer.content_type);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    response.body(full(answer.body)).expect("statuses and headers are valid")
}
