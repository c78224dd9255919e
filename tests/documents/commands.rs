//! Commands that README, CONTRIBUTING and the pages tell users to type: each runs against `nodepool standalone`, or in
//! the file that `COMMAND_CHECKS` names.
//!
//! The tests run real programs, and need the services that `tests/run` installs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testkit::daemon_process::{PROCESS_TIMEOUT, WorkDir, text};
use testkit::real::child_process::{ChildProcess, Output};
use testkit::{executable, programs, real, wait};

/// Method by which a command is checked.
enum CommandCheck {
    /// The command runs until it has written this text.
    RunsUntil(&'static str),
    /// This file contains the command and runs it.
    CoveredBy(&'static str),
    /// Only the names in the command are checked, for this reason.
    #[allow(dead_code)] // for readers
    NotRun(&'static str),
}

use CommandCheck::{CoveredBy, NotRun, RunsUntil};

const COVERED_IN_SYSTEMD: CommandCheck = CoveredBy("tests/systemd/inside");
const TOO_SLOW: CommandCheck = NotRun("takes minutes to an hour and has no pass or fail result");

/// Checks by the beginning of the command. Every other command must exit with success.
const COMMAND_CHECKS: [(&str, CommandCheck); 30] = [
    ("nodepool standalone", RunsUntil("Nodepool launcher")),
    ("nodepool-launcher", RunsUntil("provider started")),
    ("nodepool watch", RunsUntil("000")),
    ("cargo run --example simulated-openstack", RunsUntil("listening on ")),
    ("cargo run --example simulated-kubernetes", RunsUntil("listening on ")),
    ("cargo run --example simulated-ec2", RunsUntil("listening on ")),
    ("cargo run --example simulated-gce", RunsUntil("listening on ")),
    ("cargo run --example simulated-azure", RunsUntil("listening on ")),
    ("cargo run --example simulated-ibm", RunsUntil("listening on ")),
    ("cargo run --example coordinator", RunsUntil("127.0.0.1:")),
    ("apt ", COVERED_IN_SYSTEMD),
    ("systemctl", COVERED_IN_SYSTEMD),
    ("install -m", COVERED_IN_SYSTEMD),
    ("chown", COVERED_IN_SYSTEMD),
    ("contrib/debian/build", CoveredBy("tests/process/package_systemd.rs")),
    ("OTEL_EXPORTER_OTLP_ENDPOINT=", CoveredBy("tests/web/traces.rs")),
    // A build without the features of the tests would compile all crates again.
    ("cargo build --release", NotRun("tests/run builds the same sources, with and without the feature")),
    ("cargo install", NotRun("tests/run builds the same sources")),
    ("cargo build --examples && cargo test", NotRun("the command runs this test")),
    ("cargo test", NotRun("the command runs this test")),
    ("tests/run", NotRun("the command runs this test")),
    ("benches/run", TOO_SLOW),
    ("cargo bench", TOO_SLOW),
    ("cargo run --profile sim", NotRun(".ci/run runs it")),
    ("cargo run --release -p simulator", NotRun(".ci/run runs the same with another profile")),
    ("tests/mutants/run", NotRun(".ci/run runs it")),
    ("docker", NotRun("base images come from registries, and tests stay on loopback")),
    ("nodepool request --label pod-fedora", NotRun("needs the user's own cluster")),
    ("openstack", NotRun("needs the user's own cloud")),
    ("apt-get install mariadb-server", NotRun("needs the user's own cloud")),
];

/// Code that names a command within a sentence and is not a command line.
const MENTIONS: [&str; 4] = ["cargo install", "cargo test", "cargo fuzz cmin", "apt purge"];

const PROGRAMS: [&str; 16] = [
    "apt-get",
    "chown",
    "install",
    "nodepool",
    "nodepool-launcher",
    "nodepool-builder",
    "cargo",
    "tests/run",
    "benches/run",
    "contrib/debian/build",
    "apt",
    "systemctl",
    "docker",
    "curl",
    "openstack",
    "source",
];

/// Commands that a page mentions without the arguments they require; they are run with `--help`.
const NEEDS_MORE: [&str; 3] = ["nodepool request", "nodepool why", "nodepool info"];

fn root() -> &'static Path {
    programs::repository()
}

/// README, CONTRIBUTING and all pages except the changelog, which describes earlier versions.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md"), root().join("CONTRIBUTING.md")];
    for folder in ["doc", "doc/drivers"] {
        let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let pages = entries.filter(|path| path.extension().is_some_and(|end| end == "md"));
        found.extend(pages.filter(|path| !path.ends_with("changelog.md")));
    }
    found[1..].sort();
    found
}

/// The command in a line of a code block or in code within a sentence, changed to run the programs of this build.
fn command(code: &str) -> Option<String> {
    // Strips a comment, a prompt, and variables for the client `openstack`.
    let code = code.split(" # ").next()?.trim().trim_start_matches("$ ").trim_start_matches("# ");
    let is_set = |word: &&str| word.starts_with("OS_") && word.contains('=');
    let code = code.split(' ').skip_while(is_set).collect::<Vec<_>>().join(" ").replace("target/release/", "");
    let code = code.replace("cargo run --release --bin nodepool -- ", "nodepool ");
    let program = code.split_whitespace().next()?;
    let is_one = PROGRAMS.contains(&program) || program.starts_with("OTEL_EXPORTER_OTLP_ENDPOINT=");
    if MENTIONS.contains(&&*code) {
        return None;
    }
    (is_one && code.contains(' ') || code == "tests/run").then(|| code.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn commands(page: &str) -> Vec<String> {
    let (mut found, mut is_code): (Vec<String>, _) = (Vec::new(), false);
    for line in page.lines() {
        is_code ^= line.starts_with("```");
        let is_indented = line.starts_with("    ");
        match found.last_mut() {
            // The line continues a synopsis.
            Some(last) if (is_code || is_indented) && line.trim_start().starts_with('[') && last.contains(" [") => {
                *last = format!("{last} {}", line.trim());
            }
            _ if is_code || is_indented => found.extend(command(line)),
            _ => found.extend(line.split('`').skip(1).step_by(2).filter_map(command)),
        }
    }
    found
}

/// The forms of a synopsis: without its optional parts, and with all of them. The first of several alternatives is
/// used.
fn forms(command: &str) -> Vec<String> {
    if !command.contains(" [") {
        return vec![command.to_owned()];
    }
    let (mut brief, mut full) = (String::new(), String::new());
    for (index, part) in command.split(" [").enumerate() {
        let (within, after) = if index == 0 { ("", part) } else { part.split_once(']').unwrap() };
        brief += after;
        full += &format!(" {}{after}", within.split(" | ").next().unwrap());
    }
    vec![brief, full.trim_start().to_owned()]
}

/// A running `standalone`, and a working directory for the commands.
struct CommandHarness {
    work_dir: WorkDir,
    path: String,
    /// Two for the example `coordinator`, one for the example `simulated-openstack`.
    ports: [real::ports::Port; 3],
    started: usize,
    running: Vec<ChildProcess>,
}

impl CommandHarness {
    async fn new() -> Self {
        let work_dir = WorkDir::new("labels: [{name: cloud}]\nzookeeper-servers: [{host: 127.0.0.1}]\n");
        let bin = work_dir.path("bin");
        fs::create_dir(&bin).unwrap();
        let playbook = "#!/bin/sh\ntest -s \"$2\" && echo \"plays $3\"\n";
        executable::install(&bin.join("ansible-playbook"), playbook);
        let programs = Path::new(programs::nodepool()).parent().unwrap();
        let path = format!("{}:{}:{}", programs.display(), bin.display(), std::env::var("PATH").unwrap());
        work_dir.write("secure.conf", "{}\n");
        let logging = "version: 1\ndisable_existing_loggers: false\nhandlers: {console: {class: logging.StreamHandler}}\n\
                       root: {level: INFO, handlers: [console]}\n";
        work_dir.write("logging.yaml", logging);
        Self { work_dir, path, ports: std::array::from_fn(|_| real::ports::reserve()), started: 0, running: Vec::new() }
    }

    fn shell(&self, line: &str) -> Command {
        let mut command = self.work_dir.command("bash", &["-c", line]);
        command.env("PATH", &self.path);
        command
    }

    /// Waits until a row of a list satisfies the condition, and returns the id of the first.
    async fn first_id(&self, list: &str, is_match: impl Fn(&serde_json::Value) -> bool) -> String {
        wait::until_some(list, PROCESS_TIMEOUT, async || {
            let listed = self.shell(&format!("nodepool -o json {list}")).output().unwrap();
            let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).ok()?;
            let found = listed.as_array()?.iter().find(|row| is_match(row))?;
            Some(found["id"].as_str()?.to_owned())
        })
        .await
    }

    /// Replaces each placeholder by an existing object, file or value.
    async fn fill_placeholders(&mut self, line: &str) -> String {
        let mut words = Vec::new();
        for word in line.split(' ').filter(|word| !word.is_empty() && *word != "…") {
            words.push(match word {
                "REQUEST" => {
                    // The request exists while its server boots.
                    self.spawn("nodepool request --label cloud -- true", "request");
                    self.first_id("request-list", |_| true).await
                }
                "ID" => self.first_id("list", |node| node["state"] == "ready" && node["locked"] == "unlocked").await,
                "PROVIDER" => "fake-cloud".to_owned(),
                "IMAGE" => "demo".to_owned(),
                "LABEL" | "debian" => "cloud".to_owned(),
                "TENANT" => "tenant".to_owned(),
                "COMMAND" => "true".to_owned(),
                "CONFIG" | "/etc/nodepool/nodepool.yaml" if line.starts_with("nodepool-launcher") => {
                    self.write_second_config();
                    "second.yaml".to_owned()
                }
                "CONFIG" | "/etc/nodepool/nodepool.yaml" => "nodepool-data/nodepool.yaml".to_owned(),
                "SECURE" => "secure.conf".to_owned(),
                "LOGCONFIG" => "logging.yaml".to_owned(),
                "FORMAT" => "json".to_owned(),
                "PIDFILE" => "launcher.pid".to_owned(),
                "DIRECTORY" | "DATA_DIR" => "directory".to_owned(),
                "SECONDS" => "20".to_owned(),
                "30" => "1".to_owned(),
                "FILE" if line.contains("-c FILE") => "nodepool-data/nodepool.yaml".to_owned(),
                "FILE" | "/root/images.json" => "images.json".to_owned(),
                "FIRST_PORT" => self.ports[0].number.to_string(),
                // No node fails here, so the example shows the ready ones.
                "\"failed\")" => "\"ready\")".to_owned(),
                word if line.starts_with("nodepool") && !word.contains('\'') => {
                    word.split('|').find(|word| !word.is_empty()).unwrap_or(word).to_owned()
                }
                word => word.replace("8774", &self.ports[2].number.to_string()),
            });
        }
        let line = words.join(" ").replace("--profile 20", "--profile 1");
        let examples = Path::new(programs::nodepool()).with_file_name("examples");
        match line.strip_prefix("cargo run --example ") {
            Some(rest) => format!("{}/{}", examples.display(), rest.replacen("-- ", "", 1)),
            None => line,
        }
    }

    /// Writes a configuration for a launcher beside `standalone`: the same one with another web port.
    fn write_second_config(&self) {
        let written = fs::read_to_string(self.work_dir.path("nodepool-data/nodepool.yaml")).unwrap();
        let mut config: serde_yaml::Value = serde_yaml::from_str(&written).unwrap();
        config["webapp"]["port"] = self.work_dir.web_port.number.into();
        self.work_dir.write("second.yaml", &serde_yaml::to_string(&config).unwrap());
    }

    fn spawn(&mut self, line: &str, name: &str) {
        // `exec` replaces the shell by the program, so that a signal ends the program, and its reader exits with it.
        let line = match line.split_once(" | ") {
            Some((program, reader)) => format!("{program} > >({reader})"),
            None => line.to_owned(),
        };
        let line = &*line;
        let mut shell = self.shell(&format!("exec {line}"));
        let (log, nothing) = (self.work_dir.path(name), self.work_dir.path("nothing"));
        self.running.push(ChildProcess::start(line, &mut shell, Output::Logged, &log, &nothing));
    }

    async fn spawn_and_wait(&mut self, line: &str, text: &str) {
        self.started += 1;
        let name = format!("serving-{}", self.started);
        let log = self.work_dir.path(&name);
        if line.contains("standalone") && self.started > 1 {
            // A second `standalone` runs in a folder of its own.
            let folder = format!("standalone-{}", self.started);
            let data = self.work_dir.path(&folder).join("nodepool-data");
            fs::create_dir_all(&data).unwrap();
            fs::copy(self.work_dir.path("secure.conf"), data.parent().unwrap().join("secure.conf")).unwrap();
            let port = self.work_dir.web_port.number;
            fs::write(data.join("nodepool.yaml"), format!("webapp: {{port: {port}}}\nlabels: []\nproviders: []\n"))
                .unwrap();
            // Stops the launchers started before, whose checks are complete.
            self.running.retain(|running| !running.name().contains("nodepool-launcher"));
            self.spawn(&format!("env --chdir={folder} {line}"), &name);
        } else if line.contains("coordinator") {
            // The coordinator exits at the end of its standard input.
            self.spawn(&format!("{line} < <(sleep 1000)"), &name);
        } else {
            self.spawn(line, &name);
        }
        let running = self.running.last_mut().unwrap();
        let logged = || fs::read_to_string(&log).unwrap_or_default();
        wait::until(&format!("{text:?} of {line}"), PROCESS_TIMEOUT, async || {
            assert!(logged().contains(text) || running.ended().is_none(), "{line}: {}", logged());
            logged().contains(text)
        })
        .await;
    }

    async fn run(&mut self, command: &str) -> Result<(), String> {
        let check = COMMAND_CHECKS.iter().find(|(start, _)| command.starts_with(start)).map(|(_, check)| check);
        match check {
            Some(CoveredBy(file)) => {
                let words = command.split(['…', '=']).next().unwrap().replace("--release ", "");
                let is_covered = fs::read_to_string(root().join(file)).unwrap().contains(words.trim());
                return if is_covered { Ok(()) } else { Err(format!("{command} is not in {file}")) };
            }
            Some(NotRun(_)) => return names_exist(command),
            Some(RunsUntil(_)) | None => {}
        }
        for form in forms(command) {
            if form == "nodepool-launcher" {
                continue; // It reads the default file, which is in /etc.
            }
            let line = self.fill_placeholders(&form).await;
            if let Some(RunsUntil(text)) = check {
                self.spawn_and_wait(&line, text).await;
                continue;
            }
            let line = if NEEDS_MORE.contains(&&*line) { format!("{line} --help") } else { line };
            let output = tokio::process::Command::from(self.shell(&format!("set -o pipefail; {line} <<< y"))).output();
            let output = tokio::time::timeout(PROCESS_TIMEOUT * 4, output)
                .await
                .map_err(|_| format!("{line} does not exit"))?
                .unwrap();
            if !output.status.success() {
                return Err(format!("{line}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr)));
            }
        }
        Ok(())
    }
}

/// Checks a command that is not run: the tests and the parts of the benchmarks that it names exist.
fn names_exist(command: &str) -> Result<(), String> {
    let words: Vec<&str> = command.split_whitespace().collect();
    for pair in words.windows(2).filter(|pair| pair[0] == "--test") {
        if !root().join(format!("tests/{}/main.rs", pair[1])).exists() {
            return Err(format!("{command}: there is no test {}", pair[1]));
        }
    }
    let parts = fs::read_to_string(root().join("benches/run")).unwrap();
    for pair in words.windows(2).filter(|pair| pair[0].ends_with("--only")) {
        for part in pair[1].trim_end_matches(']').split(',') {
            if !parts.contains(&format!("def {part}(self)")) {
                return Err(format!("{command}: there is no part {part}"));
            }
        }
    }
    Ok(())
}

/// Every documented command succeeds, is run by another file, or is excluded for a reason.
#[tokio::test]
async fn documented_commands_work() {
    if real::skipped() {
        return;
    }
    let mut all: Vec<String> = Vec::new();
    for page in pages() {
        for command in commands(&fs::read_to_string(page).unwrap()) {
            if !all.contains(&command) {
                all.push(command);
            }
        }
    }
    // `nodepool erase` deletes the nodes that other commands show, so it runs last.
    all.sort_by_key(|command| command.starts_with("nodepool erase"));
    let mut harness = CommandHarness::new().await;
    let mut failed = Vec::new();
    for (index, command) in all.iter().enumerate() {
        if let Err(why) = harness.run(command).await {
            failed.push(why);
        }
        if index == 0 {
            assert!(command == "nodepool standalone", "the first command of the README is {command}");
            harness.first_id("list", |node| node["state"] == "ready").await;
        }
    }
    assert!(failed.is_empty(), "of {} commands {} failed:\n{}", all.len(), failed.len(), failed.join("\n\n"));
    assert!(all.len() > 80, "only {} commands were found", all.len());
}
