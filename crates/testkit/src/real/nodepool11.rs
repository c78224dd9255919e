//! The Python Nodepool 11.0.0: its launcher and builder beside ours, and its command line on our records.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use super::{nodepool_process::NodepoolProcess, python::Interpreter, tls, zookeeper::Server};

/// Timeout of a command. The Python program takes seconds to import its modules, more on a busy machine.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(120);

/// The head of a configuration for this server, which must have TLS: the Python program connects in no other way.
pub fn zookeeper_section(server: &Server) -> String {
    let address = server.address();
    let (host, port) = address.rsplit_once(':').expect("an address ends with its port");
    let mut text = format!("zookeeper-servers:\n  - host: {host}\n    port: {port}\nzookeeper-tls:\n");
    for (key, name) in [("ca", "ca.pem"), ("cert", "client.pem"), ("key", "client.key")] {
        writeln!(text, "  {key}: {}", tls::file(name).display()).expect("a string takes any text");
    }
    text
}

/// A label and a static provider whose hosts are not checked, each for one job at a time.
pub fn static_sections(provider: &str, label: &str, hosts: &[&str]) -> String {
    let mut text = format!(
        "labels:\n  - name: {label}\nproviders:\n  - name: {provider}\n    driver: static\n    pools:\n      - name: main\n\
        \x20       nodes:\n"
    );
    for host in hosts {
        let keys = "host-key-checking: false, max-parallel-jobs: 1";
        writeln!(text, "          - {{name: {host}, labels: {label}, username: zuul, {keys}}}")
            .expect("a string takes any text");
    }
    text
}

/// Starts the Python launcher in the foreground, with debug messages and without its web port. The configuration starts
/// with `zookeeper_section`.
pub fn launcher(configuration: &str) -> NodepoolProcess {
    launcher_in(&[], configuration)
}

/// `launcher` with these environment variables.
pub fn launcher_in(environment: &[(&str, &Path)], configuration: &str) -> NodepoolProcess {
    let executable = program_path("nodepool-launcher");
    NodepoolProcess::start_in(
        environment,
        executable.to_str().expect("the cache directory has a name in UTF-8"),
        configuration,
        &["-d", "--no-webapp"],
    )
}

/// Starts the Python launcher with its web port, which the configuration names.
pub fn launcher_with_web(configuration: &str) -> NodepoolProcess {
    let executable = program_path("nodepool-launcher");
    let executable = executable.to_str().expect("the cache directory has a name in UTF-8");
    NodepoolProcess::start_in(&[], executable, configuration, &["-d"])
}

/// Starts the Python builder in the foreground, with debug messages.
pub fn builder(configuration: &str) -> NodepoolProcess {
    builder_in(&[], configuration)
}

/// `builder` with these environment variables.
pub fn builder_in(environment: &[(&str, &Path)], configuration: &str) -> NodepoolProcess {
    let executable = program_path("nodepool-builder");
    let executable = executable.to_str().expect("the cache directory has a name in UTF-8");
    NodepoolProcess::start_in(environment, executable, configuration, &["-d"])
}

/// Output and exit status of a command of the Python `nodepool`.
pub struct CommandOutput {
    pub stdout: String,
    pub stderr: String,
    pub status: Option<i32>,
}

/// Runs one command of the Python `nodepool`, for example `["list", "--detail"]`.
pub async fn command(configuration: &str, arguments: &[&str]) -> CommandOutput {
    let home = tempfile::tempdir().expect("the temporary directory is writable");
    let file = home.path().join("nodepool.yaml");
    std::fs::write(&file, configuration).expect("a new directory is writable");
    let mut command = tokio::process::Command::new(program_path("nodepool"));
    command.arg("-c").arg(&file).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(COMMAND_TIMEOUT, command.output()).await;
    let output = output.unwrap_or_else(|_| panic!("nodepool {arguments:?} still runs after {COMMAND_TIMEOUT:?}"));
    let output = output.unwrap_or_else(|error| panic!("cannot run the Python nodepool: {error}"));
    let text = |bytes| String::from_utf8(bytes).expect("the Python nodepool prints UTF-8");
    CommandOutput { stdout: text(output.stdout), stderr: text(output.stderr), status: output.status.code() }
}

/// The path of a program in the environment of Nodepool 11.
fn program_path(program: &str) -> PathBuf {
    let path = Interpreter::Reference.path().with_file_name(program);
    assert!(path.is_file(), "{} does not exist: run tests/run", path.display());
    path
}
