//! disk-image-create, or a replacement for it, as a child process with a log, a timeout and its own process group.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::process::Command;

use super::process_group::{ProcessGroup, exit_code};
use nodepool_model::config::DiskImage;
use nodepool_model::records::time::Seconds;

/// One run of the command.
#[derive(Clone, PartialEq)]
pub struct DibRun {
    /// The program and its arguments; they do not pass through a shell.
    pub command: Vec<String>,
    /// Added to the environment of this process. May hold secrets.
    pub environment: Vec<(String, String)>,
    /// Receives the command's stdout and stderr in order. A missing folder is created.
    pub log: PathBuf,
    pub timeout: Seconds,
}

/// Result of a run of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DibOutcome {
    /// The command exited with this code. If a signal killed it, the code is the negated signal number.
    Exited(i32),
    TimedOut,
    /// The build was cancelled.
    Cancelled,
}

#[derive(Debug, thiserror::Error)]
pub enum DibError {
    #[error("cannot write the log {}: {source}", path.display())]
    Log { path: PathBuf, source: io::Error },
    #[error("Failed to exec '{command}'. Error: '{source}'")]
    Exec { command: String, source: io::Error },
    #[error("cannot wait for the end of the build: {source}")]
    Wait { source: io::Error },
}

/// The command line of a build: the options of disk-image-create, which a replacement has to accept as well.
pub fn command(image: &DiskImage, formats: &BTreeSet<String>, base: &Path) -> Result<Vec<String>, String> {
    let unclosed_quote = |key: &str| format!("{key} of diskimage {} has a quote that is not closed", image.name);
    let tool = image.dib_cmd.replace("%p", &program_directory());
    let mut command = shlex::split(&tool).ok_or_else(|| unclosed_quote("dib-cmd"))?;
    let formats: Vec<&str> = formats.iter().map(String::as_str).collect();
    let formats = formats.join(",");
    command.extend(["-x", "-t", &formats, "--checksum", "--no-tmpfs"].map(str::to_owned));
    if formats.contains("qcow2") {
        command.extend(["--qemu-img-options", "compat=0.10"].map(str::to_owned));
    }
    command.extend(["-o".to_owned(), base.display().to_string()]);
    command.extend(shlex::split(&image.elements.join(" ")).ok_or_else(|| unclosed_quote("elements"))?);
    Ok(command)
}

/// Variables that a build receives in addition to the builder's environment; the variables of the image take
/// precedence.
pub fn environment(image: &DiskImage, base: &Path, elements_dir: Option<&str>) -> Vec<(String, String)> {
    let mut variables = vec![
        ("DIB_RELEASE".to_owned(), image.release.clone()),
        ("DIB_IMAGE_NAME".to_owned(), image.name.to_string()),
        ("DIB_IMAGE_FILENAME".to_owned(), base.display().to_string()),
    ];
    variables.extend(elements_dir.map(|folder| ("ELEMENTS_PATH".to_owned(), folder.to_owned())));
    variables.extend(image.env_vars.clone());
    variables
}

/// The directory of this program: the value of `%p` in a command.
fn program_directory() -> String {
    let directory = std::env::current_exe().ok().and_then(|program| Some(program.parent()?.display().to_string()));
    directory.unwrap_or_default()
}

/// Creates the files of a build.
pub trait ImageBuilder: Send + Sync {
    /// Runs the build until it ends, or until `cancelled` resolves.
    fn build<'a>(
        &'a self,
        run: &'a DibRun,
        cancelled: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<DibOutcome, DibError>>;
}

/// Runs the command as a process.
pub struct DiskImageBuilder;

impl ImageBuilder for DiskImageBuilder {
    fn build<'a>(
        &'a self,
        dib_run: &'a DibRun,
        cancelled: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<DibOutcome, DibError>> {
        run(dib_run, cancelled).boxed()
    }
}

/// Runs the command until it ends, or until `cancelled` resolves. If the future is dropped, all its processes are
/// terminated.
async fn run(run: &DibRun, cancelled: impl Future<Output = ()>) -> Result<DibOutcome, DibError> {
    let log_error = |source| DibError::Log { path: run.log.clone(), source };
    let mut log = open_log(&run.log).map_err(log_error)?;
    let exec_error = |source| DibError::Exec { command: run.command.join(" "), source };
    let (program, arguments) =
        run.command.split_first().ok_or_else(|| exec_error(io::ErrorKind::InvalidInput.into()))?;
    let mut command = Command::new(program);
    command.args(arguments).envs(run.environment.iter().map(|(name, value)| (name, value))).process_group(0);
    command.stdin(Stdio::null()).stdout(log.try_clone().map_err(log_error)?);
    command.stderr(log.try_clone().map_err(log_error)?);
    let mut group = ProcessGroup::new(command.spawn().map_err(exec_error)?);
    let outcome = tokio::select! {
        status = group.wait() => Ok(status.map_err(|source| DibError::Wait { source })?),
        () = tokio::time::sleep(run.timeout.to_duration()) => Err(DibOutcome::TimedOut),
        () = cancelled => Err(DibOutcome::Cancelled),
    };
    let status = match outcome {
        Ok(status) => status,
        Err(end) => {
            // SIGTERM is sent first, because the command unmounts its file systems itself.
            group.terminate().await;
            return Ok(end);
        }
    };
    group.mark_exited();
    let status = exit_code(status);
    // The line is informative only: if the disk is full, the build has failed anyway.
    let _ = writeln!(log, "Exit code: {status}");
    Ok(DibOutcome::Exited(status))
}

fn open_log(path: &Path) -> io::Result<std::fs::File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    std::fs::OpenOptions::new().create(true).append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(folder: &tempfile::TempDir, script: &str, timeout: f64) -> DibRun {
        DibRun {
            command: ["sh", "-c", script].map(str::to_owned).into(),
            environment: vec![("COLOUR".to_owned(), "blue".to_owned())],
            log: folder.path().join("logs/one.log"),
            timeout: Seconds(timeout),
        }
    }

    fn log(run: &DibRun) -> String {
        std::fs::read_to_string(&run.log).unwrap()
    }

    #[tokio::test]
    async fn the_log_contains_output_and_exit_code() {
        let folder = tempfile::tempdir().unwrap();
        let run_ = shell(&folder, "echo out $COLOUR; echo err >&2; exit 3", 60.0);
        assert_eq!(run(&run_, std::future::pending()).await.unwrap(), DibOutcome::Exited(3));
        assert_eq!(log(&run_), "out blue\nerr\nExit code: 3\n");
        let killed = shell(&folder, "kill -9 $$", 60.0);
        assert_eq!(run(&killed, std::future::pending()).await.unwrap(), DibOutcome::Exited(-9));
    }

    #[tokio::test]
    async fn a_build_that_times_out_is_terminated_with_all_its_children() {
        let folder = tempfile::tempdir().unwrap();
        let slow = shell(&folder, "(trap '' TERM; sleep 1000) & echo $!; wait", 0.3);
        assert_eq!(run(&slow, std::future::pending()).await.unwrap(), DibOutcome::TimedOut);
        let child: i32 = log(&slow).trim().parse().unwrap();
        // The new parent may reap the child a little later.
        let is_gone = || match std::fs::read_to_string(format!("/proc/{child}/stat")) {
            Ok(stat) => stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')),
            Err(_) => true,
        };
        while !is_gone() {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn the_error_names_a_missing_program_or_an_unwritable_log() {
        let folder = tempfile::tempdir().unwrap();
        let missing = DibRun { command: vec!["no-such-program".to_owned()], ..shell(&folder, "", 1.0) };
        let error = run(&missing, std::future::pending()).await.unwrap_err().to_string();
        assert!(error.starts_with("Failed to exec 'no-such-program'. Error: 'No such file"), "{error}");
        let unwritable = DibRun { log: folder.path().join("logs/one.log/no"), ..shell(&folder, "", 1.0) };
        assert!(matches!(run(&unwritable, std::future::pending()).await, Err(DibError::Log { .. })));
    }

    fn image(dib_cmd: &str, elements: &[&str]) -> DiskImage {
        let elements = elements.iter().map(|element| (*element).to_owned()).collect();
        DiskImage { dib_cmd: dib_cmd.to_owned(), elements, ..DiskImage::new("debian") }
    }

    #[test]
    fn the_command_line_equals_that_of_nodepool() {
        let line = |dib_cmd: &str, elements: &[&str], formats: &[&str]| {
            let formats = formats.iter().map(|format| (*format).to_owned()).collect();
            command(&image(dib_cmd, elements), &formats, Path::new("/images/debian-1e")).map(|words| words.join("|"))
        };
        let expected = "disk-image-create|-x|-t|qcow2|--checksum|--no-tmpfs|--qemu-img-options|compat=0.10|-o|/images/debian-1e|debian|vm";
        assert_eq!(line("disk-image-create", &["debian", "vm"], &["qcow2"]).unwrap(), expected);
        let expected = "my dib|-v|-x|-t|raw,vhd|--checksum|--no-tmpfs|-o|/images/debian-1e|a|b";
        assert_eq!(line("'my dib' -v", &["a b"], &["vhd", "raw"]).unwrap(), expected);
        assert!(line("dib 'open", &[], &["raw"]).unwrap_err().contains("dib-cmd of diskimage debian"));
        assert!(!line("%p/dib", &[], &["raw"]).unwrap().contains('%'));
    }
}
