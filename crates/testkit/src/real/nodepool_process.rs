//! The programs of this repository, started as an operator starts them, each in its own directory.

use std::{
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use super::child_process::{ChildProcess, Output};
use crate::{programs, wait};
use nix::sys::signal::Signal;
use tempfile::TempDir;

/// Log texts of a defect: an action that would have violated an invariant, a panic of an actor or a thread.
const DEFECT_TEXTS: [&str; 2] = ["would violate an invariant", "panicked"];
/// Lines printed for each defect: the message of a panic is in the line after the text.
const SHOWN_LINES: usize = 4;

/// A running program. Dropping it kills it and, if the test fails, prints the end of its log. A program that logged a
/// defect or exited on its own fails the test, however the test ends it.
pub struct NodepoolProcess {
    running: ChildProcess,
    home: TempDir,
    /// Whether the test has observed the exit, so that the log was checked.
    is_log_checked: bool,
}

impl NodepoolProcess {
    /// Starts `executable` (for example `programs::launcher()`) with `-c FILE` before `arguments`. FILE contains
    /// `configuration`.
    pub fn start(executable: &str, configuration: &str, arguments: &[&str]) -> NodepoolProcess {
        Self::start_in(&[], executable, configuration, arguments)
    }

    /// `start` with these variables in its environment.
    pub fn start_in(
        environment: &[(&str, &Path)],
        executable: &str,
        configuration: &str,
        arguments: &[&str],
    ) -> NodepoolProcess {
        let home =
            tempfile::Builder::new().prefix("nodepool-test-").tempdir().expect("the temporary directory is writable");
        let file = home.path().join("nodepool.yaml");
        std::fs::write(&file, configuration).expect("a new directory is writable");
        let mut command = Command::new(executable);
        command.arg("-c").arg(&file).args(arguments).current_dir(home.path());
        command.envs(environment.iter().copied());
        let name = Path::new(executable).file_name().expect("an executable is a file").to_string_lossy().into_owned();
        let running = ChildProcess::start(&name, &mut command, Output::Logged, &home.path().join("log"), home.path());
        NodepoolProcess { running, home, is_log_checked: false }
    }

    /// The configuration file, for tests that change it under the running program.
    pub fn configuration(&self) -> PathBuf {
        self.home.path().join("nodepool.yaml")
    }

    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn pid(&self) -> u32 {
        self.running.pid()
    }

    pub fn signal(&self, signal: Signal) {
        self.running.signal(signal);
    }

    /// Output of the program on standard output and standard error.
    pub fn log(&self) -> String {
        self.running.log()
    }

    /// Waits for a text in the log.
    pub async fn wait_for_log(&self, text: &str, deadline: Duration) {
        wait::until(&format!("{text:?} in the log"), deadline, async || self.log().contains(text)).await;
    }

    /// The exit status, once the program has exited. The caller expects that it may have.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        let status = self.running.ended();
        if status.is_some() {
            self.check_log();
        }
        status
    }

    /// Waits for the program to end.
    pub async fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let status = self.running.wait(deadline).await;
        self.check_log();
        status
    }

    /// Stops the program (SIGTERM) and waits for its exit.
    pub async fn stop(&mut self, deadline: Duration) -> ExitStatus {
        self.assert_runs();
        let status = self.running.stop(deadline).await;
        self.check_log();
        status
    }

    /// Kills the program (SIGKILL).
    pub fn kill(&mut self) -> ExitStatus {
        self.assert_runs();
        let status = self.running.kill();
        self.check_log();
        status
    }

    fn assert_runs(&mut self) {
        if !self.is_log_checked
            && let Some(status) = self.running.ended()
        {
            self.check_log();
            panic!("{} exited on its own ({status}); {}", self.name(), self.save_log());
        }
    }

    /// Checks the log, once, after the program has exited.
    fn check_log(&mut self) {
        if std::mem::replace(&mut self.is_log_checked, true) {
            return;
        }
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let is_defect = |line: &str| DEFECT_TEXTS.iter().any(|text| line.contains(text));
        let found = (0..lines.len()).filter(|number| is_defect(lines[*number]));
        let found: Vec<String> = found.map(|at| lines[at..lines.len().min(at + SHOWN_LINES)].join("\n")).collect();
        assert!(found.is_empty(), "{} logged a defect:\n{}\n{}", self.name(), found.join("\n"), self.save_log());
    }

    fn name(&self) -> String {
        format!("{} {}", self.running.name(), self.pid())
    }

    /// Copies the log, which is deleted with the program, to a file.
    fn save_log(&self) -> String {
        let file = programs::target_tmp().join(format!("{}.log", self.name().replace(' ', "-")));
        std::fs::write(&file, self.log()).expect("the target directory is writable");
        format!("log: {}", file.display())
    }
}

impl Drop for NodepoolProcess {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.kill();
        }
    }
}
