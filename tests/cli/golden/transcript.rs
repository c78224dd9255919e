//! Transcript of command lines: their output, and the znodes that they changed.
//!
//! Two programs are compared at different times, so ages and current times are masked.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nodepool_zk::Connection;
use nodepool_zk::client::RealConnection;
use nodepool_zk::txn::delete_tree;
use serde_json::Value;
use testkit::programs;
use zookeeper_server::types::CreateMode;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Implementation {
    Ours,
    Nodepool11,
}

#[derive(serde::Deserialize)]
pub struct CommandOutput {
    pub out: String,
    pub notes: String,
    pub status: i32,
}

pub struct Step {
    pub line: String,
    pub typed: String,
    /// The command is rejected, and each program has its own error text.
    has_own_error_text: bool,
}

impl Step {
    pub fn words(&self) -> impl Iterator<Item = &str> {
        self.line.split(' ')
    }

    /// The path of a `(remove PATH)` step, which deletes a part of the tree and runs no command.
    pub fn removed(&self) -> Option<&str> {
        self.line.strip_prefix("(remove ")?.strip_suffix(')')
    }
}

pub fn folder() -> PathBuf {
    programs::repository().join("tests/cli/golden/cli")
}

pub fn golden(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).unwrap()
}

pub fn steps() -> Vec<Step> {
    golden("steps.txt").lines().map(step).collect()
}

fn step(text: &str) -> Step {
    let (own_words, text) = match text.strip_prefix('!') {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let (line, typed) = text.split_once(" <").unwrap_or((text, ""));
    let typed = if typed.trim().is_empty() { String::new() } else { format!("{}\n", typed.trim()) };
    Step { line: line.to_owned(), typed, has_own_error_text: own_words }
}

#[allow(clippy::disallowed_methods)] // a server needs the wall clock, and a test has no other place to read it
pub fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_millis()).unwrap()
}

/// Converts the times of `tree.txt` to real ones and back.
pub struct Times {
    start: i64,
}

impl Times {
    pub fn from_now() -> Self {
        Self { start: now_ms() / 1000 }
    }

    /// Replaces `"@N"` by the time N seconds before the start.
    fn to_real(&self, text: &str) -> String {
        let mut parts = text.split("\"@");
        let mut real = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let (ago, rest) = part.split_once('"').unwrap();
            real.push_str(&format!("{}.0{rest}", self.start - ago.parse::<i64>().unwrap()));
        }
        real
    }

    /// Replaces a time by `"@N"` or, if it was written during the test, by `"NOW"`, and sorts the keys.
    fn to_recorded(&self, value: Value) -> Value {
        match value {
            Value::Number(number) => match number.as_f64() {
                Some(time) if (time - self.start as f64).abs() < 1e8 => {
                    let ago = self.start as f64 - time;
                    let is_ours = ago.fract() == 0.0 && ago.abs() >= 1800.0;
                    Value::String(if is_ours { format!("@{ago}") } else { "NOW".to_owned() })
                }
                _ => Value::Number(number),
            },
            Value::Array(items) => items.into_iter().map(|item| self.to_recorded(item)).collect(),
            Value::Object(fields) => {
                let field = |(key, value): (String, Value)| match (key.as_str(), value) {
                    ("formats", Value::String(formats)) => (key, Value::String(in_order(&formats))),
                    (_, value) => (key, self.to_recorded(value)),
                };
                // Nodepool 11 omits empty fields of builds when it writes them; our command keeps them.
                let is_left_out = |key: &str, value: &Value| {
                    matches!(key, "builder" | "builder_id" | "formats") && (value.is_null() || value == "")
                };
                let fields = fields.into_iter().filter(|(key, value)| !is_left_out(key, value));
                let sorted: BTreeMap<String, Value> = fields.map(field).collect();
                Value::Object(sorted.into_iter().collect())
            }
            other => other,
        }
    }

    fn record(&self, data: &[u8]) -> String {
        match serde_json::from_slice(data) {
            Ok(value) => self.to_recorded(value).to_string(),
            Err(_) => String::from_utf8_lossy(data).into_owned(),
        }
    }
}

/// Sorts the formats of a build. Nodepool 11 sorts them whenever it writes them; our command keeps their order.
fn in_order(formats: &str) -> String {
    let mut formats: Vec<&str> = formats.split(',').collect();
    formats.sort_unstable();
    formats.join(",")
}

/// The tree below `/nodepool` as it was last read.
pub struct GoldenTree {
    zk: Arc<RealConnection>,
    last_read: BTreeMap<String, Vec<u8>>,
}

impl GoldenTree {
    pub async fn create(zk: Arc<RealConnection>, times: &Times) -> Self {
        for line in golden("tree.txt").lines() {
            let (path, data) = line.split_once(' ').unwrap_or((line, ""));
            for (slash, _) in path.match_indices('/').skip(1) {
                let _ = zk.create(&path[..slash], Vec::new().into(), CreateMode::Persistent).await;
            }
            let created = zk.create(path, times.to_real(data).into_bytes().into(), CreateMode::Persistent).await;
            created.unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        let mut tree = Self { zk, last_read: BTreeMap::new() };
        tree.last_read = tree.read_all().await;
        tree
    }

    pub async fn remove(&mut self, path: &str) {
        delete_tree::delete_tree(self.zk.as_ref(), path).await.unwrap();
        self.last_read = self.read_all().await;
    }

    async fn read_all(&self) -> BTreeMap<String, Vec<u8>> {
        let (mut found, mut unread) = (BTreeMap::new(), vec!["/nodepool".to_owned()]);
        while let Some(path) = unread.pop() {
            let (data, _) = self.zk.get(&path).await.unwrap();
            let (names, _) = self.zk.children(&path).await.unwrap();
            unread.extend(names.into_iter().map(|name| format!("{path}/{name}")));
            found.insert(path, data.to_vec());
        }
        found
    }

    /// The changes since the last read, one per line.
    pub async fn changes(&mut self, times: &Times) -> String {
        let now = self.read_all().await;
        let mut text = String::new();
        for (path, data) in now.iter().filter(|(path, _)| !is_created_by_reads(path)) {
            let change = match self.last_read.get(path) {
                None => "created",
                Some(old) if old != data => "changed",
                Some(_) => continue,
            };
            text.push_str(format!("{change} {path} {}", times.record(data)).trim_end());
            text.push('\n');
        }
        let deleted = self.last_read.keys().filter(|path| !now.contains_key(*path));
        for path in deleted.filter(|path| !is_created_by_reads(path)) {
            text.push_str(&format!("removed {path}\n"));
        }
        self.last_read = now;
        text
    }
}

/// Nodepool 11 creates these paths when it reads; our command creates nothing when it reads.
fn is_created_by_reads(path: &str) -> bool {
    let is_node_lock = path.starts_with("/nodepool/nodes/") && path.ends_with("/lock");
    is_node_lock || path.starts_with("/nodepool/components")
}

/// The output of a command, in a form that is the same for both programs.
pub fn entry(implementation: Implementation, step: &Step, output: &CommandOutput) -> String {
    let typed = if step.typed.is_empty() { String::new() } else { format!(" < {}", step.typed.trim_end()) };
    let mut text = format!("$ nodepool {}{typed}\n", step.line);
    let out: Vec<String> = output.out.lines().map(without_ages).collect();
    let out = if implementation == Implementation::Nodepool11 { sorted(&out) } else { out };
    if step.has_own_error_text && output.status == 2 {
        assert!(out.is_empty(), "{}: {out:?}", step.line);
    }
    text.push_str(&out.iter().map(|line| format!("{line}\n")).collect::<String>());
    text.push_str(&format!("status {}\n", output.status));
    if output.status == 1 && !step.has_own_error_text {
        let last = output.notes.lines().last().unwrap_or_default();
        let message = match implementation {
            Implementation::Ours => last.strip_prefix("nodepool: error: ").unwrap_or(last),
            Implementation::Nodepool11 => last.split_once(": ").map_or(last, |(_, message)| message),
        };
        text.push_str(&format!("error {message}\n"));
    }
    text
}

/// The content of an export, by path.
pub fn exported(file: &Path, times: &Times) -> String {
    let data: BTreeMap<String, String> = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    data.iter().map(|(path, text)| format!("exported {path} {}\n", times.record(text.as_bytes()))).collect()
}

/// Replaces `DD:HH:MM:SS` by `DD:HH:**:**`.
fn without_ages(line: &str) -> String {
    let is_age = |word: &str| {
        let digits = word.strip_prefix('-').unwrap_or(word);
        digits.split(':').count() == 4 && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b':')
    };
    let masked = |word: &str| if is_age(word) { format!("{}**:**", &word[..word.len() - 5]) } else { word.to_owned() };
    line.split(' ').map(masked).collect::<Vec<_>>().join(" ")
}

/// The columns by which our command sorts, most important first.
fn order(names: &[&str]) -> Vec<usize> {
    let keys: &[&str] = match names {
        ["Build ID", ..] => &["Image", "Build ID", "Provider", "Upload ID"],
        ["Image Name", ..] => &["Image Name", "Build ID"],
        ["ID", "Image", ..] => &["Image", "ID"],
        _ => &names[..1],
    };
    keys.iter().filter_map(|key| names.iter().position(|name| name == key)).collect()
}

/// Sorts the rows of each table in our order. A row may have several lines; only the first of them has an id.
fn sorted(lines: &[String]) -> Vec<String> {
    let mut done = Vec::new();
    let mut rest = lines.iter().peekable();
    while let Some(line) = rest.next() {
        done.push(line.clone());
        let Some(header) = line.starts_with("+-").then(|| rest.peek()).flatten().filter(|line| line.starts_with("| "))
        else {
            continue;
        };
        let keys = order(&cells(header));
        done.extend(rest.by_ref().take(2).cloned());
        let mut rows: Vec<Vec<String>> = Vec::new();
        while let Some(line) = rest.next_if(|line| line.starts_with('|')) {
            match rows.last_mut() {
                Some(row) if cells(line)[0].is_empty() => row.push(line.clone()),
                _ => rows.push(vec![line.clone()]),
            }
        }
        rows.sort_by_key(|row| keys.iter().map(|key| cells(&row[0])[*key].to_owned()).collect::<Vec<_>>());
        done.extend(rows.into_iter().flatten());
        done.extend(rest.next().cloned());
    }
    done
}

fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

/// Panics at the first step that differs.
pub fn assert_same(played: &str, expected: &str) {
    for (played, expected) in played.split("\n$ ").zip(expected.split("\n$ ")) {
        assert!(played == expected, "\n--- ours\n{played}\n--- Nodepool 11\n{expected}\n");
    }
    assert_eq!(played.len(), expected.len(), "steps are missing");
}
