//! Child process that never outlives its test, and whose log is printed if the test fails.

use std::{
    fs::{File, OpenOptions},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use crate::wait;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Script that kills the process `$1` and deletes the directory `$2` once the test process has exited. A test that is
/// killed, or that keeps its server in a static, drops nothing, but its end of the pipe closes.
const GUARD: &str = r#"trap "" INT TERM HUP; read -r line; kill -9 "$1" 2>/dev/null; rm -rf "$2""#;

/// Lines of a log that a failed test prints.
const SHOWN_LINES: usize = 40;

/// A running child process; dropping it kills it.
pub struct ChildProcess {
    name: String,
    process: Child,
    guard: Child,
    log: PathBuf,
}

impl ChildProcess {
    /// Starts the command. Its standard error is appended to the log, and so is its standard output, unless `output` is
    /// `Piped`. The guard deletes `home` if the test does not.
    pub fn start(name: &str, command: &mut Command, output: Output, log: &Path, home: &Path) -> ChildProcess {
        let file = append(log);
        match output {
            Output::Logged => command.stdin(Stdio::null()).stdout(file.try_clone().expect("a log file can be shared")),
            Output::Piped => command.stdin(Stdio::piped()).stdout(Stdio::piped()),
        };
        let mut process =
            command.stderr(file).spawn().unwrap_or_else(|error| panic!("cannot start {name} ({command:?}): {error}"));
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard", &process.id().to_string()])
            .arg(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let guard = guard.unwrap_or_else(|error| {
            let _ = process.kill();
            panic!("cannot start the guard of {name}: {error}")
        });
        ChildProcess { name: name.to_owned(), process, guard, log: log.to_owned() }
    }

    /// The two ends of a piped child; a second call panics.
    pub fn pipes(&mut self) -> (std::process::ChildStdin, std::process::ChildStdout) {
        let input = self.process.stdin.take().expect("the pipes of a child started with Output::Piped are taken once");
        (input, self.process.stdout.take().expect("standard output is piped together with standard input"))
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).expect("process ids are positive 32-bit numbers"));
        // A process that has exited but was not waited for keeps its id, so this never signals another process.
        kill(pid, signal).unwrap_or_else(|error| panic!("cannot send {signal} to {}: {error}", self.name));
    }

    /// The exit status, once the process has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.try_wait().expect("a child process can be waited for")
    }

    /// Kills the process (SIGKILL).
    pub fn kill(&mut self) -> ExitStatus {
        // Fails only if the process has exited already.
        let _ = self.process.kill();
        let status = self.process.wait().expect("a child process can be waited for");
        self.dismiss_guard();
        status
    }

    /// Stops the process (SIGTERM) and waits for its exit.
    pub async fn stop(&mut self, deadline: Duration) -> ExitStatus {
        if self.ended().is_none() {
            self.signal(Signal::SIGTERM);
        }
        self.wait(deadline).await
    }

    /// Waits for the process to end.
    pub async fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let what = format!("{} to end", self.name);
        let status = wait::until_some(&what, deadline, async || self.ended()).await;
        self.dismiss_guard();
        status
    }

    /// Output of the process and of earlier ones with the same log.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// The end of the log, as a failed test prints it.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        format!(
            "--- end of the log of {} ---\n{}\n---",
            self.name,
            lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n")
        )
    }

    // The guard must exit before the process id can be reused.
    fn dismiss_guard(&mut self) {
        let _ = self.guard.kill();
        let _ = self.guard.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        let status = self.kill();
        if std::thread::panicking() {
            let end = status.signal().map_or_else(|| status.to_string(), |number| format!("signal {number}"));
            eprintln!("{} (ended by {end})\n{}", self.name, self.log_tail());
        }
    }
}

/// Destination of a child's standard output.
pub enum Output {
    Logged,
    Piped,
}

fn append(log: &Path) -> File {
    let file = OpenOptions::new().create(true).append(true).open(log);
    file.unwrap_or_else(|error| panic!("cannot open the log {}: {error}", log.display()))
}
