//! Logging files (`-l`): our programs and Nodepool 11 write the same lines into the same files.
//!
//! In comparisons, our part runs in child processes of the test. The reference runs in its Python environment, which
//! `tests/run` provides.

mod cases;

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::process::Command;

use cases::{Case, READ, REFUSED};
use nodepool::actors::process::logger_names::NODEPOOL;
use python_logging::format::{Record, RecordFields};
use python_logging::routing::Routing;
use python_logging::sinks::schedule::{ClockZone, Schedule};
use python_logging::{Level, LogPlan, Verbosity};
use serde_json::{Value, json};
use testkit::real::{self, python};

/// A time zone with summer time.
const ZONE: &str = "Europe/Berlin";

/// Logged records: a logger of the reference, the level, and the message.
const RECORDS: [(&str, u32, &str); 12] = [
    ("nodepool.NodePool", 20, "Nodepool launcher 11.0.0 starting"),
    ("nodepool.NodePool", 10, "Finished stopping"),
    ("nodepool.PoolWorker.lab-main", 10, "Active requests: []"),
    ("nodepool.PoolWorker.lab-main", 40, "Error in PoolWorker:\nTraceback (most recent call last):\n  ValueError: 7"),
    (
        "nodepool.driver.NodeRequestHandler[a.example.org-PoolWorker.lab-main-00ff]",
        20,
        "[e: e1] Declining node request",
    ),
    ("nodepool.zk.ZooKeeper", 30, "Unable to find the lock"),
    ("nodepool.zk.ZooKeeper", 10, "Locked node"),
    ("nodepool.zk.ZooKeeperClient", 40, "Connection lost"),
    ("nodepool.builder.BuildWorker.0", 50, "No space left"),
    ("nodepool.builder.BuildWorker.0", 20, "Running disk-image-create"),
    ("other.library", 40, "über"),
    ("other.library", 20, "quiet"),
];

/// The files of a folder and the output streams, with all numbers masked.
type Outcome = BTreeMap<String, String>;

fn outcome(folder: &Path, streams: [(&str, String); 2]) -> Outcome {
    let mut found: Outcome = streams.into_iter().map(|(name, text)| (format!("<{name}>"), normalized(&text))).collect();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        found.insert(name, normalized(&std::fs::read_to_string(path).unwrap()));
    }
    found
}

/// Masks all numbers, because times and process ids differ.
fn normalized(text: &str) -> String {
    let mut masked = String::new();
    for character in text.chars() {
        match character {
            '0'..='9' if masked.ends_with('0') => {}
            '0'..='9' => masked.push('0'),
            other => masked.push(other),
        }
    }
    masked
}

fn folder(case: &Case) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(case.file), case.text).unwrap();
    for (name, text) in case.before {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

async fn theirs(script: &mut python::Script, case: &Case) -> Result<Outcome, String> {
    let folder = folder(case);
    let command =
        json!({"do": "log", "directory": folder.path(), "file": case.file, "zone": ZONE, "records": RECORDS.to_vec()});
    let reply = script.try_call(&command).await?;
    let stream = |name: &str| reply[name].as_str().unwrap().to_owned();
    Ok(outcome(folder.path(), [("stdout", stream("stdout")), ("stderr", stream("stderr"))]))
}

/// Runs `child_process` in a process of its own, because output streams and time zone belong to a whole process.
fn ours(case: &Case) -> Result<Outcome, String> {
    let folder = folder(case);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "logging::child_process", "--nocapture"]).env("NODEPOOL_LOGGING_CHILD", case.file);
    let ended = command.env("TZ", ZONE).current_dir(folder.path()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let stdout = text(&ended.stdout);
    match (stdout.split_once("BEGIN\n"), ended.status.success()) {
        (Some((_, stdout)), true) => {
            Ok(outcome(folder.path(), [("stdout", stdout.to_owned()), ("stderr", text(&ended.stderr))]))
        }
        _ => Err(text(&ended.stderr)),
    }
}

/// The part of `ours` that runs in the child process. Without NODEPOOL_LOGGING_CHILD it does nothing.
#[test]
fn child_process() {
    let Ok(file) = std::env::var("NODEPOOL_LOGGING_CHILD") else { return };
    let exit_with = |error: &dyn Error| -> ! {
        eprintln!("{error}");
        std::process::exit(1)
    };
    let plan = match file.as_str() {
        "default" => LogPlan::to_stdout(Verbosity::Normal, &NODEPOOL),
        "debug" => LogPlan::to_stdout(Verbosity::Debug, &NODEPOOL),
        file => LogPlan::from_file(Path::new(file), &NODEPOOL).unwrap_or_else(|error| exit_with(&error)),
    };
    let routing = Routing::open(plan).unwrap_or_else(|error| exit_with(&error));
    println!("BEGIN");
    for (logger, level, message) in RECORDS {
        let record = Record {
            time: chrono::Local::now(),
            level: Level(level),
            logger,
            message,
            plain: message,
            fields: RecordFields::default(),
            file: "src/lib.rs",
            line: 1,
            thread: "main",
        };
        if routing.is_enabled(logger, record.level) {
            routing.write(&record);
        }
    }
    std::process::exit(0);
}

#[test]
fn no_logging_file_causes_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    for case in &READ {
        let path = folder.path().join(case.file);
        let characters: Vec<char> = case.text.chars().collect();
        for at in 0..characters.len() {
            let mut wrong = characters.clone();
            // The text is cut off, lacks a character, or has another character in its place.
            match at % 3 {
                0 => wrong.truncate(at),
                1 => drop(wrong.remove(at)),
                _ => wrong[at] = ['%', '(', '{', '\u{fc}', '\n', '9', ':', '\''][at % 8],
            }
            std::fs::write(&path, wrong.into_iter().collect::<String>()).unwrap();
            // Loading may fail, but not panic.
            let _ = LogPlan::from_file(&path, &NODEPOOL);
        }
    }
}

#[tokio::test]
async fn the_same_lines_are_written_to_the_same_files() {
    if real::skipped() {
        return;
    }
    let mut script = python::spawn(python::Interpreter::Reference, "logs.py", &[]);
    let mut differences = Vec::new();
    for case in &READ {
        match (ours(case), theirs(&mut script, case).await) {
            (Ok(ours), Ok(theirs)) if ours == theirs => {}
            (ours, theirs) => differences.push(format!("{}:\nours   {ours:#?}\ntheirs {theirs:#?}", case.name)),
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

#[tokio::test]
async fn files_that_python_rejects_are_rejected_with_the_position() {
    if real::skipped() {
        return;
    }
    let mut script = python::spawn(python::Interpreter::Reference, "logs.py", &[]);
    for (file, text, expected) in REFUSED {
        let case = Case { name: "", file, text, before: &[] };
        let (ours, theirs) = (ours(&case), theirs(&mut script, &case).await);
        assert!(theirs.is_err(), "{text}: {theirs:?}");
        let error = ours.expect_err(text);
        assert!(error.starts_with(expected), "{text}: {error}");
    }
}

/// The next rotation after each time is the same in UTC. In other zones, Nodepool 11 may rotate an hour early or late
/// when the clock changes.
#[tokio::test]
async fn files_are_rotated_at_the_same_time() {
    if real::skipped() {
        return;
    }
    let mut cases = Vec::new();
    for when in ["S", "M", "H", "D", "midnight", "W0", "W3", "W6"] {
        for interval in [1, 3] {
            // Every 31 hours of a year.
            cases.extend((0..280).map(|step| (when, interval, 1_706_933_106 + step * 111_600)));
        }
    }
    let queries: Vec<Value> = cases.iter().map(|(when, interval, time)| json!([when, interval, true, time])).collect();
    let mut script = python::spawn(python::Interpreter::Reference, "logs.py", &[]);
    let theirs = script.call(json!({"do": "rollovers", "zone": "UTC", "cases": queries})).await;
    for ((when, interval, time), theirs) in cases.iter().zip(theirs.as_array().unwrap()) {
        let schedule = Schedule::parse(when, *interval, ClockZone::Utc).unwrap();
        assert_eq!(Some(schedule.next(*time)), theirs.as_i64(), "{when} {interval} after {time}");
    }
}
