//! The post-upload hook of a provider: a command that runs after each upload, with its output, exit code and timeout.

use std::io::{self, PipeReader};
use std::process::Stdio;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::unix::pipe;
use tokio::process::Command;

use super::process_group::{ProcessGroup, exit_code};
use nodepool_model::records::time::Seconds;

/// Output beyond this is read and discarded.
const MAX_OUTPUT_BYTES: usize = 16 * 1024;

/// Result of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOutcome {
    pub exit: HookExit,
    /// The beginning of the hook's stdout and stderr.
    pub output: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookExit {
    /// The hook exited with this code. If a signal killed it, the code is the negated signal number.
    Exited(i32),
    TimedOut,
}

/// Runs the hook with these arguments, without a shell. If the future is dropped, all its processes are terminated.
pub async fn run(hook: &str, arguments: &[&str], timeout: Seconds) -> io::Result<HookOutcome> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(hook);
    command.args(arguments).process_group(0).stdin(Stdio::null());
    command.stdout(writer.try_clone()?).stderr(writer);
    let mut group = ProcessGroup::new(command.spawn()?);
    // The command holds the write end of the pipe; with it open, the reader would never reach the end.
    drop(command);
    let mut output = Vec::new();
    let mut reader = receiver(reader)?;
    let finished = async {
        let reading = read_all(&mut reader, &mut output);
        let status = group.wait();
        // A background process of the hook may keep the pipe open for ever.
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

/// Reads output that was still in the pipe when the hook ended.
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

    /// A hook that another process writes, because a child that another thread starts at the same time would inherit
    /// the open file, and Linux executes no file that is open for writing.
    fn script(folder: &Path, text: &str) -> String {
        let (source, path) = (folder.join("source"), folder.join("hook"));
        std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
        let installed = std::process::Command::new("install").arg(&source).arg(&path).status().unwrap();
        assert!(installed.success());
        path.display().to_string()
    }

    #[tokio::test]
    async fn a_hook_receives_its_arguments_and_its_output_is_returned() {
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
    async fn a_hanging_hook_is_terminated_and_a_background_child_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let hook = script(folder.path(), "echo begun; sleep 1000 & wait");
        let ended = run(&hook, &[], Seconds(0.3)).await.unwrap();
        assert_eq!(ended, HookOutcome { exit: HookExit::TimedOut, output: "begun".to_owned() });
        let hook = script(folder.path(), "sleep 5 & echo done");
        assert_eq!(run(&hook, &[], Seconds(60.0)).await.unwrap().output, "done");
    }

    #[tokio::test]
    async fn the_output_of_a_hook_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let hook = script(folder.path(), "yes | head -c 3000000");
        let ended = run(&hook, &[], Seconds(60.0)).await.unwrap();
        assert_eq!((ended.exit, ended.output.len() <= MAX_OUTPUT_BYTES), (HookExit::Exited(0), true));
    }
}
