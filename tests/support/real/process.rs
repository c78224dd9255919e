//! Our own programs, started as an operator starts them, each in a directory of its own.

use super::child::{Output, Running};
use crate::support::wait;
use nix::sys::signal::Signal;
use std::{
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};
use tempfile::TempDir;

/// A running program; dropping it kills it and, when the test fails, shows the end of its log.
pub struct Nodepool {
    running: Running,
    home: TempDir,
}

impl Nodepool {
    /// Starts `executable` (for example `env!("CARGO_BIN_EXE_nodepool-launcher")`) with `-c FILE` in front of `arguments`; FILE
    /// holds `configuration`.
    pub fn start(executable: &str, configuration: &str, arguments: &[&str]) -> Nodepool {
        Self::start_in(&[], executable, configuration, arguments)
    }

    /// The same with these variables in its environment.
    pub fn start_in(
        environment: &[(&str, &Path)],
        executable: &str,
        configuration: &str,
        arguments: &[&str],
    ) -> Nodepool {
        let home =
            tempfile::Builder::new().prefix("nodepool-test-").tempdir().expect("the temporary directory is writable");
        let file = home.path().join("nodepool.yaml");
        std::fs::write(&file, configuration).expect("a new directory is writable");
        let mut command = Command::new(executable);
        command.arg("-c").arg(&file).args(arguments).current_dir(home.path());
        command.envs(environment.iter().copied());
        let name = Path::new(executable).file_name().expect("an executable is a file").to_string_lossy().into_owned();
        let running = Running::start(&name, &mut command, Output::Logged, &home.path().join("log"), home.path());
        Nodepool { running, home }
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

    /// Everything the program has written to its standard output and standard error.
    pub fn log(&self) -> String {
        self.running.log()
    }

    /// Waits for a text in the log.
    pub async fn wait_for_log(&self, text: &str, deadline: Duration) {
        wait::until(&format!("{text:?} in the log"), deadline, async || self.log().contains(text)).await;
    }

    /// The exit status, once the program has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.running.ended()
    }

    /// Waits for the program to end.
    pub async fn wait(&mut self, deadline: Duration) -> ExitStatus {
        self.running.wait(deadline).await
    }

    /// Asks the program to end (SIGTERM) and waits for it.
    pub async fn stop(&mut self, deadline: Duration) -> ExitStatus {
        self.running.stop(deadline).await
    }

    /// Ends the program without a warning (SIGKILL).
    pub fn kill(&mut self) -> ExitStatus {
        self.running.kill()
    }
}
