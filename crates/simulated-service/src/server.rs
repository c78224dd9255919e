//! The simulation between its calls: its clock and timers, and the program around its ports.

use std::cell::RefCell;
use std::convert::Infallible;
use std::fmt::{self, Display};
use std::future::Future;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::body::Incoming;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};

use crate::port::{ReservedPort, accept};

/// Maximum time between two runs of the timers.
const IDLE: Duration = Duration::from_secs(3600);

pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// A body that is complete.
pub fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).boxed_unsync()
}

/// Calls that a port accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The state behind the API.
pub trait Simulation: 'static {
    /// Runs all timers that are due.
    fn advance(&mut self);

    /// Time until the next timer is due.
    fn until_next_timer(&self) -> Option<Duration>;

    /// The knob `refuse_connections`.
    fn refuses_connections(&self) -> bool;
}

/// The HTTP side of a simulation: answers the calls that its ports receive.
pub trait Service: 'static {
    type Simulation: Simulation;

    fn server(&self) -> &Server<Self::Simulation>;

    /// Runs the timers that are due, and returns the time until the next one.
    fn run_timers(&self) -> Option<Duration> {
        self.server().run(|simulation| simulation.until_next_timer())
    }

    fn answer(
        self: Rc<Self>,
        request: Request<Incoming>,
        access: Access,
    ) -> impl Future<Output = Result<hyper::Response<Body>, Disconnected>>;
}

/// The simulation with the signals to its tasks.
pub struct Server<S> {
    simulation: RefCell<S>,
    /// The knob `refuse_connections`.
    refusing: watch::Sender<bool>,
    /// A call may have set an earlier timer.
    timers_changed: Notify,
}

impl<S: Simulation> Server<S> {
    pub fn new(simulation: S) -> Self {
        let refusing = watch::Sender::new(simulation.refuses_connections());
        Self { simulation: simulation.into(), refusing, timers_changed: Notify::new() }
    }

    pub fn refusing(&self) -> watch::Receiver<bool> {
        self.refusing.subscribe()
    }

    /// Runs an operation on the simulation, at the current time, and wakes the timers.
    pub fn run<T>(&self, operation: impl FnOnce(&mut S) -> T) -> T {
        let mut simulation = self.simulation.borrow_mut();
        simulation.advance();
        let result = operation(&mut simulation);
        let refusing = simulation.refuses_connections();
        drop(simulation);
        self.refusing.send_if_modified(|known| std::mem::replace(known, refusing) != refusing);
        self.timers_changed.notify_one();
        result
    }

    /// Waits until a timer may be due.
    async fn timer(&self, wait: Option<Duration>) {
        // The notification of the run that returned the time.
        self.timers_changed.notified().await;
        tokio::select! {
            () = tokio::time::sleep(wait.unwrap_or(IDLE)) => {}
            () = self.timers_changed.notified() => {}
        }
    }
}

/// The listening sockets of a simulation: its API, and the control port, which listens even while connections are
/// refused.
pub struct Ports {
    api: ReservedPort,
    control: TcpListener,
}

impl Ports {
    pub async fn open(api: ReservedPort, control: u16) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, control)).await;
        let control = listener.with_context(|| format!("cannot listen on port {control}"))?;
        Ok(Self { api, control })
    }

    /// The URL of the API.
    pub fn base(&self) -> String {
        self.api.base()
    }

    /// The URL of the control port.
    pub fn control(&self) -> anyhow::Result<String> {
        Ok(format!("http://{}", self.control.local_addr()?))
    }

    /// Prints the addresses once it listens, and serves until a signal ends the process.
    pub async fn serve<S: Service>(self, service: Rc<S>) -> anyhow::Result<()> {
        let listener = self.api.listen()?;
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        println!("control on {}\nlistening on {}", self.control()?, self.base());
        let timers = async {
            loop {
                let wait = service.run_timers();
                service.server().timer(wait).await;
            }
        };
        tokio::select! {
            _ = terminate.recv() => Ok(()),
            _ = interrupt.recv() => Ok(()),
            () = timers => Ok(()),
            () = accept(&self.control, None, &service, Access::Control) => Ok(()),
            failed = self.api.serve(listener, &service) => failed,
        }
    }
}
