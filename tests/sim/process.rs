//! Launchers that are killed at any step, lose their sessions, and are started again by somebody.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nodepool::actors::files::Files;
use nodepool::actors::identity::Identity;
use nodepool::actors::shared::SessionEnd;
use nodepool::model::time::Span;
use nodepool::zk::Connection;
use nodepool::zk::memory::MemoryZooKeeper;

use super::book::Book;
use super::cloud::Clouds;
use super::configuration::{Launcher, Sizes};
use super::gate::{Gate, Gated};
use super::wire::Wire;
use crate::grown::Process;

/// What a ZooKeeper waits before it ends the session of somebody who has died.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// Where faults take hold of the process that runs under a name now.
#[derive(Clone)]
pub struct Handle(Rc<RefCell<Hold>>);

struct Hold {
    launcher: &'static Launcher,
    gate: Gate,
    wire: Wire,
    session: i64,
    files: Files,
    book: Book,
}

impl Handle {
    pub fn session(&self) -> i64 {
        self.0.borrow().session
    }

    pub fn wire(&self) -> Wire {
        self.0.borrow().wire.clone()
    }

    pub fn gate(&self) -> Gate {
        self.0.borrow().gate.clone()
    }

    /// The configuration that it reads at its next look.
    pub fn configure(&self, sizes: Sizes) {
        let hold = self.0.borrow();
        let Files::InMemory(files) = &hold.files else { unreachable!("simulated files are in memory") };
        files.lock().unwrap().insert("nodepool.yaml".into(), hold.launcher.yaml(sizes));
        hold.book.limit(&hold.launcher.own.into(), sizes.max_servers, DECIDED_BEFORE);
    }
}

/// What was decided on an older configuration has been done by then.
const DECIDED_BEFORE: Duration = Duration::from_secs(60);

/// Starts a launcher under a name and keeps it running: after a session with another one, after its death as another process.
pub fn keep_running(launcher: &'static Launcher, zookeeper: &MemoryZooKeeper, clouds: &Clouds, book: &Book) -> Handle {
    let (files, book) = (Files::InMemory(Arc::default()), book.clone());
    let handle = Handle(Rc::new(RefCell::new(Hold {
        launcher,
        gate: Gate::open(),
        wire: Wire::new(0),
        session: 0,
        files,
        book,
    })));
    handle.configure(Sizes::default());
    let (held, zookeeper, clouds) = (handle.clone(), zookeeper.clone(), clouds.clone());
    actix_rt::spawn(async move {
        loop {
            one_process(launcher.name, &held, &zookeeper, &clouds).await;
            // Whoever starts it again takes a moment.
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    handle
}

async fn one_process(name: &'static str, handle: &Handle, zookeeper: &MemoryZooKeeper, clouds: &Clouds) {
    let gate = Gate::open();
    let files = handle.0.borrow().files.clone();
    let tune = |options: &mut nodepool::actors::shared::LauncherOptions| {
        (options.files, options.config) = (files, "nodepool.yaml".into());
        options.delete_interval = Span(30.0);
        options.watermark_sleep = Span(30.0);
    };
    let mut process = Process::named(Identity::named(name), "", tune, Some(clouds.behind(&gate)));
    while !gate.is_closed() {
        let inner: Arc<dyn Connection> = zookeeper.connect();
        gate.attend(inner.session());
        let wire = Wire::new(inner.session_id() as u64);
        {
            let mut hold = handle.0.borrow_mut();
            (hold.gate, hold.wire, hold.session) = (gate.clone(), wire.clone(), inner.session_id());
        }
        let running = process.run_on(Arc::new(Gated { inner, gate: gate.clone(), wire }));
        tokio::select! {
            biased;
            ended = running => {
                let end = ended.expect("a tree ends in order");
                assert!(!matches!(end, SessionEnd::Panicked(_)), "{name}: {end:?}");
            }
            () = death(&gate) => break,
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // What is left of it does nothing any more that anybody would see.
    process.stop();
}

async fn death(gate: &Gate) {
    while !gate.is_closed() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}
