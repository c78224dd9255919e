//! The command that a provider calls for each image that has arrived: what it said, how it ended, and never longer than it may take.

use std::io::{self, PipeReader};
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::process_group::{ProcessGroup, exit_code};
use nodepool_model::records::time::Seconds;

/// Of what it writes; the rest is read and forgotten.
const MAX_OUTPUT_BYTES: usize = 16 * 1024;

/// How a hook ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOutcome {
    pub exit: HookExit,
    /// The beginning of what it wrote, to both of its streams.
    pub output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookExit {
    /// By itself; by a signal, this is its number below zero.
    Exited(i32),
    TimedOut,
}

/// Runs it with these arguments; no shell has a look at them. Dropped before, all its processes end.
pub async fn run(hook: &str, arguments: &[&str], timeout: Seconds) -> io::Result<HookOutcome> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(hook);
    command.args(arguments).process_group(0).stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut group = ProcessGroup::new(command.spawn()?);
    // It keeps the writing end open, and the reader would wait for it.
    drop(command);
    let mut output = Vec::new();
    let mut reader = receiver(reader)?;
    let finished = async {
        let reading = read_all(&mut reader, &mut output);
        let status = group.wait();
        // What it leaves running in the background may keep the pipe open for ever.
        tokio::pin!(reading, status);
        tokio::select! {
            status = &mut status => status,
            () = &mut reading => status.await,
        }
    };
    let exit = match tokio::time::timeout(timeout.to_duration(), finished).await {
        Ok(status) => {
            group.mark_exited();
            HookExit::Exited(exit_code(status?))
        }
        Err(_) => {
            group.terminate().await;
            HookExit::TimedOut
        }
    };
    read_remaining(&mut reader, &mut output);
    Ok(HookOutcome { exit, output: String::from_utf8_lossy(&output).trim_end().to_owned() })
}

fn receiver(reader: PipeReader) -> io::Result<pipe::Receiver> {
    pipe::Receiver::from_owned_fd(reader.into())
}

async fn read_all(reader: &mut (impl AsyncRead + Unpin), output: &mut Vec<u8>) {
    let mut chunk = [0; 4096];
    while let Ok(read) = reader.read(&mut chunk).await {
        if read == 0 {
            return;
        }
        append_limited(output, &chunk[..read]);
    }
}

/// What was written and not read when it ended.
fn read_remaining(reader: &mut pipe::Receiver, output: &mut Vec<u8>) {
    let mut chunk = [0; 4096];
    while let Ok(read) = reader.try_read(&mut chunk) {
        if read == 0 || output.len() >= MAX_OUTPUT_BYTES {
            return;
        }
        append_limited(output, &chunk[..read]);
    }
}

fn append_limited(output: &mut Vec<u8>, chunk: &[u8]) {
    let capacity = MAX_OUTPUT_BYTES.saturating_sub(output.len()).min(chunk.len());
    output.extend_from_slice(&chunk[..capacity]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn script(folder: &Path, text: &str) -> String {
        let path = folder.join("hook");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        path.display().to_string()
    }

    // operations.md check 48
    #[tokio::test]
    async fn a_hook_gets_its_arguments_and_what_it_says_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let hook = script(folder.path(), r#"echo "$1|$2|$3"; echo no >&2; exit 3"#);
        let ended = run(&hook, &["cloud", "an id", "/images/one.qcow2"], Seconds(60.0)).await.unwrap();
        assert_eq!(
            ended,
            HookOutcome { exit: HookExit::Exited(3), output: "cloud|an id|/images/one.qcow2\nno".to_owned() }
        );
        assert!(run("/no/such/hook", &[], Seconds(1.0)).await.is_err());
    }

    #[tokio::test]
    async fn a_hook_that_hangs_is_ended_and_one_that_leaves_a_child_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let hook = script(folder.path(), "echo begun; sleep 1000 & wait");
        let ended = run(&hook, &[], Seconds(0.3)).await.unwrap();
        assert_eq!(ended, HookOutcome { exit: HookExit::TimedOut, output: "begun".to_owned() });
        let hook = script(folder.path(), "sleep 5 & echo done");
        assert_eq!(run(&hook, &[], Seconds(60.0)).await.unwrap().output, "done");
    }

    #[tokio::test]
    async fn a_talkative_hook_fills_no_memory() {
        let folder = tempfile::tempdir().unwrap();
        let hook = script(folder.path(), "yes | head -c 3000000");
        let ended = run(&hook, &[], Seconds(60.0)).await.unwrap();
        assert_eq!((ended.exit, ended.output.len() <= MAX_OUTPUT_BYTES), (HookExit::Exited(0), true));
    }
}
