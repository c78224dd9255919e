//! Notifications of the daemons to systemd, and the validity of their units. The test's process receives the
//! notifications.

use std::collections::VecDeque;
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;
use testkit::daemon_process::{Coordinator, PROCESS_TIMEOUT, WorkDir};
use testkit::programs;

/// The receiving end of sd_notify.
struct ServiceManager {
    socket: UnixDatagram,
    received: VecDeque<String>,
}

impl ServiceManager {
    fn listen(work_dir: &WorkDir) -> ServiceManager {
        let socket = UnixDatagram::bind(work_dir.path("notify")).unwrap();
        socket.set_read_timeout(Some(PROCESS_TIMEOUT)).unwrap();
        ServiceManager { socket, received: VecDeque::new() }
    }

    fn command(&self, work_dir: &WorkDir, program: &str) -> Command {
        let mut command = work_dir.command(program, &["-f", "-c", "nodepool.yaml"]);
        command.env("NOTIFY_SOCKET", work_dir.path("notify")).env("WATCHDOG_USEC", "900000");
        command
    }

    /// The next line that starts with one of these prefixes.
    fn expect_line(&mut self, prefixes: &[&str]) -> String {
        loop {
            while let Some(line) = self.received.pop_front() {
                if prefixes.iter().any(|start| line.starts_with(start)) {
                    return line;
                }
            }
            let mut message = [0; 4096];
            let length = self.socket.recv(&mut message).unwrap_or_else(|error| panic!("{prefixes:?}: {error}"));
            self.received.extend(String::from_utf8_lossy(&message[..length]).lines().map(str::to_owned));
        }
    }
}

// The receiving socket may block this thread, as no other task runs on it.
fn assert_lifecycle_notified(program: &str, work_dir: &WorkDir) {
    let mut manager = ServiceManager::listen(work_dir);
    let mut running = work_dir.start_command(manager.command(work_dir, program));
    assert_eq!(manager.expect_line(&["STATUS="]), "STATUS=waiting for ZooKeeper");
    manager.expect_line(&["READY=1"]);
    for _ in 0..3 {
        manager.expect_line(&["WATCHDOG=1"]);
    }
    running.signal(Signal::SIGTERM);
    manager.expect_line(&["STOPPING=1"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(running.wait_for_exit()).success());
}

/// Runs a test that blocks its thread with a coordinator, which has its own threads.
fn with_coordinator(rest: &str, test: impl FnOnce(&WorkDir)) {
    let work_dir = WorkDir::new("");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let mut coordinator = runtime.block_on(Coordinator::start(&work_dir.path("coordinator")));
    work_dir.configure(&(coordinator.configuration() + rest));
    test(&work_dir);
    runtime.block_on(coordinator.stop());
}

#[test]
fn the_launcher_notifies_systemd_of_ready_watchdog_and_stopping() {
    with_coordinator("", |work_dir| assert_lifecycle_notified(programs::launcher(), work_dir));
}

#[test]
fn the_builder_notifies_systemd_of_ready_watchdog_and_stopping() {
    let images = "images-dir: images\n";
    with_coordinator(images, |work_dir| {
        std::fs::create_dir(work_dir.path("images")).unwrap();
        assert_lifecycle_notified(programs::builder(), work_dir);
    });
}

#[test]
fn while_zookeeper_is_unreachable_only_the_watchdog_is_notified() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let work_dir = WorkDir::new(&testkit::daemon_process::configuration(free));
    let mut manager = ServiceManager::listen(&work_dir);
    let mut launcher = work_dir.start_command(manager.command(&work_dir, programs::launcher()));
    for _ in 0..3 {
        assert_eq!(manager.expect_line(&["WATCHDOG=1", "READY=1"]), "WATCHDOG=1");
    }
    // A stopped process notifies nothing.
    launcher.signal(Signal::SIGSTOP);
    manager.socket.set_nonblocking(true).unwrap();
    while manager.socket.recv(&mut [0; 4096]).is_ok() {}
    manager.socket.set_nonblocking(false).unwrap();
    manager.socket.set_read_timeout(Some(Duration::from_millis(900))).unwrap();
    let mut message = [0; 4096];
    // One message may have been in flight.
    let received = (0..2).filter(|_| manager.socket.recv(&mut message).is_ok()).count();
    assert!(received < 2, "a stopped process feeds the watchdog");
    launcher.signal(Signal::SIGCONT);
    manager.socket.set_read_timeout(Some(PROCESS_TIMEOUT)).unwrap();
    manager.expect_line(&["WATCHDOG=1"]);
    launcher.signal(Signal::SIGTERM);
    manager.expect_line(&["STOPPING=1"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert!(runtime.block_on(launcher.wait_for_exit()).success());
}

/// Success and output of systemd-analyze; `None` if it is not installed.
fn analyze(words: &[&str], unit: &str) -> Option<(bool, String)> {
    let path = format!("{}/contrib/systemd/{unit}", programs::repository().display());
    match Command::new("systemd-analyze").args(words).arg(path).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        }
        Err(_) if testkit::real::skipped() => None,
        Err(error) => panic!("systemd-analyze: {error}; tests/run installs it"),
    }
}

/// The exposure is in tenths: a unit at 100 uses no sandboxing of systemd, a unit at 0 uses all of it.
#[test]
fn the_systemd_units_are_valid_and_sandboxed() {
    for (unit, exposure) in [("nodepool-launcher.service", "20"), ("nodepool-builder.service", "90")] {
        let Some((_, text)) = analyze(&["verify", "--man=no", "--recursive-errors=no"], unit) else { return };
        // The programs are not installed here, and messages about other units of this machine are irrelevant.
        let ours: Vec<&str> =
            text.lines().filter(|line| line.contains(unit) && !line.contains("is not executable")).collect();
        assert!(ours.is_empty(), "{ours:#?}");
        let threshold = format!("--threshold={exposure}");
        let Some((is_below, text)) = analyze(&["security", "--offline=true", "--no-pager", &threshold], unit) else {
            return;
        };
        assert!(is_below, "{text}");
    }
}
