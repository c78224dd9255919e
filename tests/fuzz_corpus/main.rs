//! Replay of the fuzzing corpora: every file of each corpus is passed to the function of its target.
//!
//! The functions run in process, without a fuzzer.

#[path = "../../fuzz/inputs/clouds.rs"]
mod clouds;
#[path = "../../fuzz/inputs/config.rs"]
mod config;
#[path = "../../fuzz/inputs/frames.rs"]
mod frames;
#[path = "../../fuzz/inputs/http.rs"]
mod http;
#[path = "../../fuzz/inputs/logging.rs"]
mod logging;
#[path = "../../fuzz/inputs/records.rs"]
mod records;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use testkit::programs;

type Check = fn(&[u8]);

/// The function of each target.
const CHECKS: [(&str, Check); 6] = [
    ("clouds", clouds::check),
    ("config", config::check),
    ("frames", frames::check),
    ("http", http::check),
    ("logging", logging::check),
    ("records", records::check),
];

fn fuzz(path: &str) -> PathBuf {
    programs::repository().join("fuzz").join(path)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn replay(target: &str) {
    let (_, check) = CHECKS.iter().find(|(name, _)| *name == target).unwrap();
    let corpus = fuzz("corpus").join(target);
    let names = names(&corpus);
    assert!(names.len() >= 10, "{} has {} files", corpus.display(), names.len());
    for name in names {
        // If a check fails, the last name in the output is that of its file.
        println!("{target}/{name}");
        check(&fs::read(corpus.join(name)).unwrap());
    }
}

#[test]
fn every_fuzz_target_has_a_replayed_corpus() {
    let replayed = BTreeSet::from(CHECKS.map(|(name, _)| name.to_owned()));
    assert_eq!(names(&fuzz("corpus")), replayed);
    let targets = names(&fuzz("fuzz_targets")).into_iter().map(|file| file.trim_end_matches(".rs").to_owned());
    assert_eq!(BTreeSet::from_iter(targets), replayed);
}

#[test]
fn clouds_files() {
    replay("clouds");
}

#[test]
fn configurations() {
    replay("config");
}

#[test]
fn zookeeper_frames_and_streams() {
    replay("frames");
}

#[test]
fn requests_to_the_web_port() {
    replay("http");
}

#[test]
fn logging_files() {
    replay("logging");
}

#[test]
fn records_of_any_content() {
    replay("records");
}
