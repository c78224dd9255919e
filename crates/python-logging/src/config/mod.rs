//! Python's logging files, as a mapping in YAML or JSON or as an ini file.

pub(crate) mod formatters;
pub(crate) mod handlers;
pub(crate) mod ini;
pub(crate) mod literals;
pub(crate) mod mapping;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::logger_names::LoggerNames;
use crate::{Filter, Level, LogPlan, LoggerPlan, Propagate};

#[derive(Debug, thiserror::Error)]
pub enum LogConfigError {
    #[error("Unable to read logging config file at {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}: {reason}", path.display())]
    Invalid { path: PathBuf, reason: String },
}

/// One section of the file: a formatter, a filter, a handler or a logger. Its values are text in either form of the
/// file.
pub type Section = BTreeMap<String, String>;

/// The file, in either form.
#[derive(Debug, Default, PartialEq)]
pub struct Sections {
    pub formatters: BTreeMap<String, Section>,
    pub filters: BTreeMap<String, Section>,
    pub handlers: BTreeMap<String, Section>,
    /// The root is the empty name.
    pub loggers: BTreeMap<String, Section>,
    /// Python disables existing loggers that the file does not name, unless this is false.
    pub disables_existing: bool,
    pub notices: Vec<String>,
}

impl LogPlan {
    pub fn from_file(path: &Path, names: &'static LoggerNames) -> Result<Self, LogConfigError> {
        let bytes = fs::read(path).map_err(|source| LogConfigError::Unreadable { path: path.to_owned(), source })?;
        let invalid = |reason: String| LogConfigError::Invalid { path: path.to_owned(), reason };
        let text = String::from_utf8(bytes).map_err(|error| invalid(format!("not UTF-8: {error}")))?;
        let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or("");
        Self::parse(&text, suffix, names).map_err(invalid)
    }

    /// Parses the text of a file whose name has this suffix.
    pub fn parse(text: &str, suffix: &str, names: &'static LoggerNames) -> Result<Self, String> {
        let mapping = match suffix {
            "yml" | "yaml" | "json" => mapping::sections(text)?,
            _ => None,
        };
        match mapping {
            Some(sections) => plan(sections, names),
            // Python reads any text that is not a mapping as an ini file, whose parser reports the error.
            None => plan(ini::sections(text)?, names),
        }
    }
}

fn plan(sections: Sections, names: &'static LoggerNames) -> Result<LogPlan, String> {
    let mut notices = sections.notices;
    let mut formats = BTreeMap::new();
    for (name, section) in &sections.formatters {
        formats.insert(name.as_str(), formatters::format(name, section, &mut notices)?);
    }
    let filters: BTreeMap<&str, Filter> =
        sections.filters.iter().map(|(name, section)| (name.as_str(), filter(name, section, &mut notices))).collect();
    let mut plans = Vec::new();
    let mut indexes = BTreeMap::new();
    for (name, section) in &sections.handlers {
        indexes.insert(name.as_str(), plans.len());
        let filters = resolve_names(section, "filters", &filters, &format!("handler `{name}`"), "filter")?;
        plans.push(handlers::handler(name, section, &formats, filters, &mut notices)?);
    }
    let mut loggers = BTreeMap::new();
    for (name, section) in &sections.loggers {
        let logger = logger(name, section, &indexes, &filters, &mut notices)?;
        // An entry for a library of the original applies to the crate that does its work, unless the crate has an entry
        // of its own.
        for applied in names.applies_to(name) {
            if applied == *name || !sections.loggers.contains_key(&applied) {
                loggers.insert(applied, logger.clone());
            }
        }
    }
    if sections.disables_existing {
        disable_others(&mut loggers, names, &mut notices);
    }
    Ok(LogPlan { handlers: plans, loggers, notices, names })
}

/// Applies `disable_existing_loggers` to the loggers that exist in the original when it reads this file.
fn disable_others(loggers: &mut BTreeMap<String, LoggerPlan>, names: &LoggerNames, notices: &mut Vec<String>) {
    let is_named = |existing: &str| {
        let is_above = |name: &String| {
            !name.is_empty() && existing.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'))
        };
        loggers.contains_key(existing) || loggers.keys().any(is_above)
    };
    let disabled: Vec<&str> = names.existing_loggers.iter().copied().filter(|existing| !is_named(existing)).collect();
    if disabled.is_empty() {
        return;
    }
    for name in &disabled {
        loggers.insert((*name).to_owned(), LoggerPlan::disabled());
    }
    if let Some(library) = disabled.iter().find_map(|name| names.library_of(name)) {
        // This also silences the loggers of its modules, which are below it.
        let quiet = LoggerPlan::new(Some(Level::NEVER), Vec::new());
        loggers.entry(library.to_owned()).or_insert(quiet);
    }
    let (disabled, root) = (disabled.join(", "), names.root);
    notices.push(format!(
        "disable_existing_loggers, which is the default, disables {disabled}; \
         an entry for them, or for one above them such as `{root}`, enables them"
    ));
}

/// Supports filters by name; every other filter is Python code.
fn filter(name: &str, section: &Section, notices: &mut Vec<String>) -> Filter {
    let class = section.get("()").or_else(|| section.get("class")).map_or("", String::as_str);
    if !matches!(class, "" | "logging.Filter") {
        notices.push(format!("filter `{name}`: `{class}` is not supported; every record passes"));
        return Filter::default();
    }
    Filter(section.get("name").cloned().unwrap_or_default())
}

/// The objects that a list in a section names.
fn resolve_names<T: Clone>(
    section: &Section,
    key: &str,
    known: &BTreeMap<&str, T>,
    context: &str,
    kind: &str,
) -> Result<Vec<T>, String> {
    let listed = section.get(key).map_or("", String::as_str);
    let names = listed.split(',').map(str::trim).filter(|name| !name.is_empty());
    names
        .map(|name| known.get(name).cloned().ok_or_else(|| format!("{context}: there is no {kind} `{name}`")))
        .collect()
}

fn logger(
    name: &str,
    section: &Section,
    handlers: &BTreeMap<&str, usize>,
    filters: &BTreeMap<&str, Filter>,
    notices: &mut Vec<String>,
) -> Result<LoggerPlan, String> {
    let context = if name.is_empty() { "the root logger".to_owned() } else { format!("logger `{name}`") };
    for key in section.keys() {
        if !matches!(key.as_str(), "level" | "handlers" | "filters" | "propagate") {
            notices.push(format!("{context}: `{key}` is not a key of Python's logging files and is ignored"));
        }
    }
    let propagate = match section.get("propagate").map(|text| text.to_ascii_lowercase()).as_deref() {
        Some("0" | "false" | "no" | "off") => Propagate::Stop,
        _ => Propagate::Up,
    };
    let is_root_open = name.is_empty() && matches!(section.get("level").map(String::as_str), Some("NOTSET" | "0"));
    Ok(LoggerPlan {
        // The root has no logger above it whose level could apply.
        level: if is_root_open { Some(Level::ALL) } else { level(section, &context)? },
        handlers: resolve_names(section, "handlers", handlers, &context, "handler")?,
        filters: resolve_names(section, "filters", filters, &context, "filter")?,
        propagate,
        is_disabled: false,
    })
}

/// The level of a section, as a name in any case or as Python's number; with `NOTSET` the level of the loggers above
/// applies.
pub fn level(section: &Section, context: &str) -> Result<Option<Level>, String> {
    let Some(text) = section.get("level").filter(|text| !text.is_empty()) else { return Ok(None) };
    let level = match text.to_ascii_uppercase().as_str() {
        "NOTSET" | "0" => return Ok(None),
        "DEBUG" => Level::DEBUG,
        "INFO" => Level::INFO,
        "WARNING" | "WARN" => Level::WARNING,
        "ERROR" => Level::ERROR,
        "CRITICAL" | "FATAL" => Level::CRITICAL,
        other => Level(other.parse().map_err(|_| format!("{context}: unknown level `{text}`"))?),
    };
    Ok(Some(level))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logger_names::EXAMPLE;
    use crate::sinks::file::{FilePlan, Rotation};
    use crate::sinks::sink::SinkPlan;

    const YAML: &str = r"
version: 1
formatters:
  simple: {format: '%(name)s %(message)s'}
handlers:
  console: {class: logging.StreamHandler, formatter: simple, stream: 'ext://sys.stdout', level: INFO}
  file: {class: logging.handlers.RotatingFileHandler, filename: /tmp/n.log, maxBytes: 1_000, backupCount: 3}
  mail: {class: logging.handlers.SMTPHandler, mailhost: localhost}
loggers:
  nodepool: {level: DEBUG, handlers: [console, file], propagate: no}
  kazoo: {level: WARN}
root: {handlers: [mail]}
";

    fn parse(text: &str, suffix: &str) -> Result<LogPlan, String> {
        LogPlan::parse(text, suffix, &EXAMPLE)
    }

    #[test]
    fn a_mapping_gives_levels_handlers_and_notices() {
        let plan = parse(YAML, "yaml").unwrap();
        let sinks: Vec<&SinkPlan> = plan.handlers.iter().map(|handler| &handler.sink).collect();
        let rotation = Rotation::BySize { max_bytes: 1000, backups: 3 };
        let rotated = SinkPlan::File(FilePlan { rotation, ..FilePlan::watched("/tmp/n.log") });
        assert_eq!(sinks, [&SinkPlan::Stdout, &rotated, &SinkPlan::Nothing]);
        assert_eq!(plan.handlers[0].level, Level::INFO);
        let nodepool = &plan.loggers["nodepool"];
        assert_eq!((nodepool.level, nodepool.propagate), (Some(Level::DEBUG), Propagate::Stop));
        assert_eq!(nodepool.handlers, [0, 1]);
        assert_eq!(plan.loggers["zookeeper_client"].level, Some(Level::WARNING));
        assert_eq!(plan.notices.len(), 1);
        assert!(plan.notices[0].contains("SMTPHandler"), "{:?}", plan.notices);
    }

    #[test]
    fn an_invalid_entry_is_refused_with_its_position() {
        let cases = [
            ("handlers: {a: {class: logging.FileHandler}}", "handler `a`: `filename` is missing"),
            ("handlers: {a: {class: StreamHandler, formatter: x}}", "handler `a`: there is no formatter `x`"),
            ("handlers: {a: {class: StreamHandler, filters: [x]}}", "handler `a`: there is no filter `x`"),
            (
                "handlers: {a: {class: FileHandler, filename: f, mode: q}}",
                "handler `a`: `mode` must be `a` or `w`, not `q`",
            ),
            (
                "handlers: {a: {class: TimedRotatingFileHandler, filename: f, when: yearly}}",
                "handler `a`: `when` must be S, M, H, D, midnight or W0 to W6, not `yearly`",
            ),
            ("handlers: {a: {class: SysLogHandler, facility: x}}", "handler `a`: unknown facility `x`"),
            ("loggers: {nodepool: {handlers: [x]}}", "logger `nodepool`: there is no handler `x`"),
            ("root: {level: LOUD}", "the root logger: unknown level `LOUD`"),
            ("formatters: {f: {format: '%(x)s'}}", "formatter `f`: unknown field `x`"),
            ("formatters: {f: {format: '{x}', style: '{'}}", "formatter `f`: unknown field `x`"),
            ("formatters: {f: {style: '?'}}", "formatter `f`: unknown style `?`, expected %, { or $"),
            ("handlers: [a]", "`handlers` must be a mapping of names"),
            ("version: 2", "`version` must be 1, not 2"),
            ("root: {level: 'cfg://nothing.there'}", "root: `cfg://nothing.there` does not exist in this file"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text, "yaml").unwrap_err(), expected);
        }
        let error = parse("handlers:\n  a: [", "yaml").unwrap_err();
        assert_eq!(error, "unclosed bracket '[' (line 2, column 6): invalid YAML at or before this position");
    }

    #[test]
    fn existing_loggers_are_disabled_unless_they_are_named() {
        let disabled = |text: &str| {
            let plan = parse(text, "yaml").unwrap();
            (plan.loggers.values().filter(|logger| logger.is_disabled).count(), plan.notices.len())
        };
        assert_eq!(disabled("loggers: {nodepool: {}, kazoo: {}}"), (0, 0));
        assert_eq!(disabled("disable_existing_loggers: false"), (0, 0));
        assert_eq!(disabled("root: {}"), (EXAMPLE.existing_loggers.len(), 1));
        assert_eq!(disabled("loggers: {nodepool.zk: {}, kazoo: {}}"), (EXAMPLE.existing_loggers.len() - 4, 1));
    }

    #[test]
    fn cfg_references_are_resolved() {
        let text = "{logs: {file: [/tmp/x.log]}, version: 1,
            handlers: {a: {class: logging.FileHandler, filename: 'cfg://logs.file[0]'}}}";
        let plan = parse(text, "json").unwrap();
        assert_eq!(plan.handlers[0].sink, SinkPlan::File(FilePlan::watched("/tmp/x.log")));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = LogPlan::from_file(Path::new("/nowhere/logging.conf"), &EXAMPLE).unwrap_err();
        assert_eq!(error.to_string(), "Unable to read logging config file at /nowhere/logging.conf");
    }
}
