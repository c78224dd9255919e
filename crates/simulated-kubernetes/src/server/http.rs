//! HTTP server: receives calls, delays them, and responds, streams a watch or closes the connection.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::{self, Display};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::{Request, header};
use tokio::sync::{Notify, watch};

use crate::api::simulation::{CallOutcome, Reply, Simulation};
use crate::server::call::Call;
use crate::server::response::Response;
use crate::server::watch_stream;

/// Maximum size of a body, as of kube-apiserver.
const MAX_BODY_SIZE: usize = 3 << 20;
/// Maximum time between two looks at the timers.
const IDLE: Duration = Duration::from_secs(3600);

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Calls that a port accepts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The API and `/sim`.
    Api,
    /// Only `/sim`.
    Control,
}

/// The connection is closed without a response.
#[derive(Debug)]
pub struct Disconnected;

impl Display for Disconnected {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the simulation closes the connection")
    }
}

impl std::error::Error for Disconnected {}

/// The simulation with the signals to its tasks.
pub struct Server {
    pub simulation: RefCell<Simulation>,
    /// The newest resource version, for watches.
    pub version: watch::Sender<u64>,
    /// The knob `refuse_connections`.
    pub refusing: watch::Sender<bool>,
    /// A call may have set an earlier timer.
    timers_changed: Notify,
}

impl Server {
    pub fn new(simulation: Simulation) -> Rc<Self> {
        let refusing = watch::Sender::new(simulation.cluster.knobs.refuse_connections);
        let version = watch::Sender::new(simulation.cluster.store.version());
        Rc::new(Self { simulation: simulation.into(), version, refusing, timers_changed: Notify::new() })
    }

    /// Runs an operation on the simulation, at the current time, and wakes watches and timers.
    pub fn run<T>(&self, operation: impl FnOnce(&mut Simulation) -> T) -> T {
        let mut simulation = self.simulation.borrow_mut();
        simulation.advance();
        let result = operation(&mut simulation);
        let (version, refusing) = (simulation.cluster.store.version(), simulation.cluster.knobs.refuse_connections);
        drop(simulation);
        self.version.send_if_modified(|known| std::mem::replace(known, version) != version);
        self.refusing.send_if_modified(|known| std::mem::replace(known, refusing) != refusing);
        self.timers_changed.notify_one();
        result
    }

    /// Runs the timers of the cluster when they are due.
    pub async fn run_timers(self: Rc<Self>) {
        loop {
            let wait = self.run(|simulation| simulation.until_next_timer()).unwrap_or(IDLE);
            // The notification of this very run.
            self.timers_changed.notified().await;
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.timers_changed.notified() => {}
            }
        }
    }

    pub async fn answer(
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
    let body = Full::new(answer.body).boxed_unsync();
    response.body(body).expect("statuses and headers are valid")
}
