//! Arbitrary text as the file of `-l`, and as the variables of statsd: a valid file writes lines, an invalid one is an
//! error.

use chrono::{Local, TimeZone};
use nodepool::actors::process::logger_names::NODEPOOL;
use nodepool_model::metrics::statsd_metrics::StatsdAddress;
use python_logging::format::{Record, RecordFields};
use python_logging::sinks::file::{FilePlan, Rotation};
use python_logging::sinks::sink::SinkPlan;
use python_logging::{Level, LogPlan};
use serde_json::Value;

/// The lines after this one are variables, `NAME=VALUE`.
const SEPARATOR: &str = "\n#environment\n";
const NOW: i64 = 1_700_000_000;

// Input: the suffix of the file's name in a separate line, the file, and optional variables.
pub fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let (file, variables) = text.split_once(SEPARATOR).unwrap_or((text, ""));
    check_statsd(variables);
    let Some((suffix, file)) = file.split_once('\n') else { return };
    let plan = LogPlan::parse(file, suffix, &NODEPOOL);
    assert_eq!(plan, LogPlan::parse(file, suffix, &NODEPOOL), "parsing is deterministic");
    match plan {
        Ok(plan) => check_plan(&plan),
        Err(problem) => assert!(!problem.trim().is_empty(), "an error has a message"),
    }
}

fn check_plan(plan: &LogPlan) {
    for logger in plan.loggers.values() {
        assert!(logger.handlers.iter().all(|handler| *handler < plan.handlers.len()), "handlers exist");
    }
    for handler in &plan.handlers {
        assert!(handler.format.render(&record()).ends_with('\n'), "records are lines");
        if let SinkPlan::File(FilePlan { rotation: Rotation::ByTime { schedule, .. }, .. }) = &handler.sink {
            let next = schedule.next(NOW);
            assert!(next > NOW, "the next rotation is in the future");
            assert!(schedule.is_suffix(&schedule.suffix(next)), "the suffix of a rotated file is recognised");
        }
    }
    for handler in &plan.clone().as_json().handlers {
        let line = handler.format.render(&record());
        let object = serde_json::from_str(line.trim_end());
        assert!(matches!(object, Ok(Value::Object(_))) && line.matches('\n').count() == 1, "{line}");
    }
}

fn record() -> Record<'static> {
    Record {
        time: Local.timestamp_opt(NOW, 123_456_789).earliest().expect("a valid time in 2023"),
        level: Level::WARNING,
        logger: "nodepool.PoolWorker.lab-main",
        message: "[e: 7] two\nlines of \"text\"",
        plain: "two\nlines of \"text\"",
        fields: RecordFields { event: Some("7"), ..RecordFields::default() },
        file: "src/lib.rs",
        line: 1,
        thread: "main",
    }
}

fn check_statsd(variables: &str) {
    let value = |name: &str| {
        let lines = variables.lines().filter_map(|line| line.split_once('='));
        lines.rev().find(|(given, _)| *given == name).map(|(_, value)| value.to_owned())
    };
    match StatsdAddress::from_environment(value) {
        Ok(Some(address)) => assert!(address.port != 0 && !address.host.is_empty()),
        Ok(None) => {
            assert!(["STATSD_HOST", "STATSD_PORT"].iter().all(|name| value(name).is_none_or(|value| value.is_empty())))
        }
        Err(problem) => assert!(problem.contains("STATSD_PORT"), "{problem}"),
    }
}
