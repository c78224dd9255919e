//! The file of `-l`: Python's logging configuration, as a mapping in YAML or JSON or as an ini file.

pub(crate) mod formatters;
pub(crate) mod handlers;
pub(crate) mod ini;
pub(crate) mod literals;
pub(crate) mod mapping;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Filter, Level, LogPlan, LoggerPlan, Propagate, names};

#[derive(Debug, thiserror::Error)]
pub enum LogConfigError {
    #[error("Unable to read logging config file at {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}: {problem}", path.display())]
    Invalid { path: PathBuf, problem: String },
}

/// One section of the file: a formatter, a handler or a logger, its values as text wherever they came from.
pub type Section = BTreeMap<String, String>;

/// The file, whichever form it had.
#[derive(Debug, Default, PartialEq)]
pub struct Sections {
    pub formatters: BTreeMap<String, Section>,
    pub filters: BTreeMap<String, Section>,
    pub handlers: BTreeMap<String, Section>,
    /// The root is the empty name.
    pub loggers: BTreeMap<String, Section>,
    /// Python silences the loggers that are there already and that the file does not name, unless it is told not to.
    pub disables_existing: bool,
    pub notices: Vec<String>,
}

impl LogPlan {
    pub fn from_file(path: &Path) -> Result<Self, LogConfigError> {
        let bytes = fs::read(path).map_err(|source| LogConfigError::Unreadable { path: path.to_owned(), source })?;
        let invalid = |problem: String| LogConfigError::Invalid { path: path.to_owned(), problem };
        let text = String::from_utf8(bytes).map_err(|error| invalid(format!("not UTF-8: {error}")))?;
        let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or("");
        Self::parse(&text, suffix).map_err(invalid)
    }

    /// The text of a file whose name ends so.
    pub fn parse(text: &str, suffix: &str) -> Result<Self, String> {
        let mapping = match suffix {
            "yml" | "yaml" | "json" => mapping::sections(text)?,
            _ => None,
        };
        match mapping {
            Some(sections) => plan(sections),
            // Python reads what is no mapping as an ini file; what is neither is reported by that.
            None => plan(ini::sections(text)?),
        }
    }
}

fn plan(sections: Sections) -> Result<LogPlan, String> {
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
        // An entry for the library of the reference is one for ours, unless ours has its own.
        for applied in names::applies_to(name) {
            if applied == *name || !sections.loggers.contains_key(&applied) {
                loggers.insert(applied, logger.clone());
            }
        }
    }
    if sections.disables_existing {
        disable_others(&mut loggers, &mut notices);
    }
    Ok(LogPlan { handlers: plans, loggers, notices })
}

/// What `disable_existing_loggers` does to the loggers that are there in the original when it reads this file.
fn disable_others(loggers: &mut BTreeMap<String, LoggerPlan>, notices: &mut Vec<String>) {
    let is_named = |existing: &str| {
        let is_above = |name: &String| {
            !name.is_empty() && existing.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('.'))
        };
        loggers.contains_key(existing) || loggers.keys().any(is_above)
    };
    let silenced: Vec<&str> = names::EXISTING_LOGGERS.into_iter().filter(|existing| !is_named(existing)).collect();
    if silenced.is_empty() {
        return;
    }
    for name in &silenced {
        loggers.insert((*name).to_owned(), LoggerPlan::disabled());
    }
    if let Some(library) = silenced.iter().find_map(|name| names::library_of(name)) {
        // All of its modules, which are loggers below this one.
        let quiet = LoggerPlan::new(Some(Level::NEVER), Vec::new());
        loggers.entry(library.to_owned()).or_insert(quiet);
    }
    let names = silenced.join(", ");
    notices.push(format!(
        "disable_existing_loggers, which is the default, silences {names}; an entry for them, or for one above them such as `nodepool`, brings them back"
    ));
}

/// Only filters by name are more than Python code.
fn filter(name: &str, section: &Section, notices: &mut Vec<String>) -> Filter {
    let class = section.get("()").or_else(|| section.get("class")).map_or("", String::as_str);
    if !matches!(class, "" | "logging.Filter") {
        notices.push(format!("filter `{name}`: `{class}` cannot be run here; it lets everything through"));
        return Filter::default();
    }
    Filter(section.get("name").cloned().unwrap_or_default())
}

/// What a list in a section names.
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
            notices.push(format!("{context}: `{key}` has no meaning in Python's logging files and is ignored"));
        }
    }
    let propagate = match section.get("propagate").map(|text| text.to_ascii_lowercase()).as_deref() {
        Some("0" | "false" | "no" | "off") => Propagate::Stop,
        _ => Propagate::Up,
    };
    let is_root_open = name.is_empty() && matches!(section.get("level").map(String::as_str), Some("NOTSET" | "0"));
    Ok(LoggerPlan {
        // Nobody is above the root to take a level from.
        level: if is_root_open { Some(Level::ALL) } else { level(section, &context)? },
        handlers: resolve_names(section, "handlers", handlers, &context, "handler")?,
        filters: resolve_names(section, "filters", filters, &context, "filter")?,
        propagate,
        is_disabled: false,
    })
}

/// Names in any case, or Python's numbers; `NOTSET` leaves the choice to the loggers above.
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

    #[test]
    fn a_mapping_gives_levels_handlers_and_notices() {
        let plan = LogPlan::parse(YAML, "yaml").unwrap();
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
    fn what_refers_to_nothing_is_refused_with_its_place() {
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
            ("formatters: {f: {style: '?'}}", "formatter `f`: unknown style `?`; there are %, { and $"),
            ("handlers: [a]", "`handlers` must be a mapping of names"),
            ("version: 2", "`version` must be 1, not 2"),
            ("root: {level: 'cfg://nothing.there'}", "root: `cfg://nothing.there` refers to nothing in this file"),
        ];
        for (text, expected) in cases {
            assert_eq!(LogPlan::parse(text, "yaml").unwrap_err(), expected);
        }
        let error = LogPlan::parse("handlers:\n  a: [", "yaml").unwrap_err();
        assert_eq!(error, "unclosed bracket '[' (line 2, column 6): not YAML at or before this place");
    }

    #[test]
    fn loggers_that_exist_are_silenced_unless_they_are_named() {
        let disabled = |text: &str| {
            let plan = LogPlan::parse(text, "yaml").unwrap();
            (plan.loggers.values().filter(|logger| logger.is_disabled).count(), plan.notices.len())
        };
        assert_eq!(disabled("loggers: {nodepool: {}, kazoo: {}}"), (0, 0));
        assert_eq!(disabled("disable_existing_loggers: false"), (0, 0));
        assert_eq!(disabled("root: {}"), (names::EXISTING_LOGGERS.len(), 1));
        assert_eq!(disabled("loggers: {nodepool.zk: {}, kazoo: {}}"), (names::EXISTING_LOGGERS.len() - 4, 1));
    }

    #[test]
    fn values_may_be_elsewhere_in_the_file() {
        let text = "{logs: {file: [/tmp/x.log]}, version: 1,
            handlers: {a: {class: logging.FileHandler, filename: 'cfg://logs.file[0]'}}}";
        let plan = LogPlan::parse(text, "json").unwrap();
        assert_eq!(plan.handlers[0].sink, SinkPlan::File(FilePlan::watched("/tmp/x.log")));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = LogPlan::from_file(Path::new("/nowhere/logging.conf")).unwrap_err();
        assert_eq!(error.to_string(), "Unable to read logging config file at /nowhere/logging.conf");
    }
}
