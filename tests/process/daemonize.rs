//! The launcher as a daemon: messages to its starter, the state of the daemon, the pid file.

use std::fs;
use std::path::Path;
use std::process::Output;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testkit::daemon_process::{Coordinator, PROCESS_TIMEOUT, WorkDir, last_line, text};
use testkit::{programs, wait};

const ARGUMENTS: [&str; 6] = ["-c", "nodepool.yaml", "-p", "run.pid", "-l", "logging.yaml"];

/// Starts a coordinator, and configures it in a working directory whose daemons log to a file.
async fn start_coordinator() -> (WorkDir, Coordinator) {
    let work_dir = WorkDir::new("");
    let coordinator = Coordinator::start(&work_dir.path("coordinator")).await;
    work_dir.configure(&coordinator.configuration());
    let log = work_dir.path("own.log");
    let yaml = format!(
        "disable_existing_loggers: false\nhandlers: {{file: {{class: logging.FileHandler, filename: '{}'}}}}\nroot: {{level: INFO, handlers: [file]}}\n",
        log.display()
    );
    work_dir.write("logging.yaml", &yaml);
    (work_dir, coordinator)
}

/// A daemon whose starter has exited; killed when dropped if it still runs.
struct BackgroundDaemon {
    pid: Pid,
}

impl BackgroundDaemon {
    async fn start(work_dir: &WorkDir) -> (Self, Output) {
        let command = work_dir.command(programs::launcher(), &ARGUMENTS);
        let output = tokio::process::Command::from(command).output().await.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let number = fs::read_to_string(work_dir.path("run.pid")).expect("the pid file exists when the starter exits");
        (Self { pid: Pid::from_raw(number.trim().parse().unwrap()) }, output)
    }

    fn proc_path(&self, file: &str) -> std::path::PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(file)
    }

    /// Waits until the daemon's pid does not exist: the daemon is not a child of the test, so it cannot be waited for.
    async fn wait_for_exit(&self) {
        wait::until("the daemon to exit", PROCESS_TIMEOUT, async || kill(self.pid, None).is_err()).await;
    }
}

impl Drop for BackgroundDaemon {
    fn drop(&mut self) {
        // Another process may have the pid by now, so only a process with our executable is killed.
        if fs::read_link(self.proc_path("exe")).is_ok_and(|executable| executable == Path::new(programs::launcher())) {
            let _ = kill(self.pid, Signal::SIGKILL);
        }
    }
}

#[tokio::test]
async fn the_daemon_is_detached_when_the_starter_exits() {
    let (work_dir, _coordinator) = start_coordinator().await;
    let (daemon, starter) = BackgroundDaemon::start(&work_dir).await;
    assert_eq!((text(&starter.stdout), text(&starter.stderr)), (String::new(), String::new()));
    assert_eq!(fs::read_link(daemon.proc_path("cwd")).unwrap(), Path::new("/"));
    for stream in ["fd/0", "fd/1", "fd/2"] {
        assert_eq!(fs::read_link(daemon.proc_path(stream)).unwrap(), Path::new("/dev/null"), "{stream}");
    }
    let status = fs::read_to_string(daemon.proc_path("status")).unwrap();
    assert!(status.lines().any(|line| line == "Umask:\t0000"), "{status}");
    let limits = fs::read_to_string(daemon.proc_path("limits")).unwrap();
    let core: Vec<&str> =
        limits.lines().find(|line| line.starts_with("Max core")).unwrap().split_whitespace().collect();
    assert_eq!(core[4..6], ["0", "0"]);
    // Fields after the name in parentheses: state, parent, group, session. A session leader has its own pid as session.
    let stat = fs::read_to_string(daemon.proc_path("stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    assert_ne!(fields[3], daemon.pid.to_string(), "a session leader could get a terminal");
    work_dir.wait_until_ready().await;
    assert!(fs::read_to_string(work_dir.path("own.log")).unwrap().contains("Nodepool launcher 12.0.0 starting"));
    kill(daemon.pid, Signal::SIGTERM).unwrap();
    daemon.wait_for_exit().await;
    assert!(!work_dir.path("run.pid").exists());
}

#[tokio::test]
async fn startup_errors_are_reported_to_the_starter() {
    let (work_dir, _coordinator) = start_coordinator().await;
    work_dir.write("broken.yaml", "labels: [");
    let cases: [(&[&str], &str); 4] = [
        (&["-c", "broken.yaml", "-p", "run.pid", "-l", "logging.yaml"], "broken.yaml"),
        (&["-c", "nodepool.yaml", "-p", "missing/run.pid", "-l", "logging.yaml"], "missing/run.pid"),
        (&["-c", "nodepool.yaml", "-p", "run.pid", "-l", "missing.yaml"], "Unable to read logging config file at"),
        (&["-c", "~/missing.yaml", "-p", "~/run.pid", "-l", "~/logging.yaml"], "missing.yaml"),
    ];
    for (arguments, message) in cases {
        let output = work_dir.run(programs::launcher(), arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let last = last_line(&output);
        assert!(last.contains(message) && !last.contains('~'), "{arguments:?}: {}", text(&output.stderr));
        assert!(!work_dir.path("run.pid").exists(), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_second_daemon_waits_for_the_pid_file_and_then_fails() {
    let (work_dir, _coordinator) = start_coordinator().await;
    let (first, _) = BackgroundDaemon::start(&work_dir).await;
    let command = work_dir.command(programs::launcher(), &ARGUMENTS);
    let second = tokio::process::Command::from(command).output().await.unwrap();
    assert_eq!(second.status.code(), Some(1));
    let expected = format!("another process (pid {}) holds the pid file", first.pid);
    assert!(last_line(&second).starts_with(&expected), "{}", text(&second.stderr));
    assert!(work_dir.path("run.pid").exists());
}

#[tokio::test]
async fn the_pid_file_of_a_killed_daemon_is_replaced() {
    let (work_dir, _coordinator) = start_coordinator().await;
    let (killed, _) = BackgroundDaemon::start(&work_dir).await;
    kill(killed.pid, Signal::SIGKILL).unwrap();
    killed.wait_for_exit().await;
    assert!(work_dir.path("run.pid").exists());
    let (next, _) = BackgroundDaemon::start(&work_dir).await;
    assert_ne!(next.pid, killed.pid);
}

#[tokio::test]
async fn the_pid_file_is_removed_whichever_signal_stops_the_daemon() {
    let (work_dir, _coordinator) = start_coordinator().await;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let (daemon, _) = BackgroundDaemon::start(&work_dir).await;
        work_dir.wait_until_ready().await;
        kill(daemon.pid, signal).unwrap();
        daemon.wait_for_exit().await;
        assert!(!work_dir.path("run.pid").exists(), "{signal}");
    }
}
