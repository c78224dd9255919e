//! The file of `-l`: Python's logging configuration, as a mapping in YAML or JSON or as an ini file.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_yaml::{Mapping, Value};

use super::format::{Format, FormatError, Lines};
use super::ini;
use super::sink::SinkPlan;
use super::{HandlerPlan, Level, LogPlan, LoggerPlan, Propagate, names};

#[derive(Debug, thiserror::Error)]
pub enum LogConfigError {
    #[error("Unable to read logging config file at {}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{}: {problem}", path.display())]
    Wrong { path: PathBuf, problem: String },
}

/// One section of the file: a formatter, a handler or a logger, its values as text wherever they came from.
pub type Section = BTreeMap<String, String>;

/// The file, whichever form it had.
#[derive(Debug, Default, PartialEq)]
pub struct Sections {
    pub formatters: BTreeMap<String, Section>,
    pub handlers: BTreeMap<String, Section>,
    /// The root is the empty name.
    pub loggers: BTreeMap<String, Section>,
    pub notices: Vec<String>,
}

impl LogPlan {
    pub fn from_file(path: &Path) -> Result<Self, LogConfigError> {
        let bytes = fs::read(path).map_err(|source| LogConfigError::Unreadable { path: path.to_owned(), source })?;
        let wrong = |problem: String| LogConfigError::Wrong { path: path.to_owned(), problem };
        let text = String::from_utf8(bytes).map_err(|error| wrong(format!("not UTF-8: {error}")))?;
        let suffix = path.extension().and_then(|suffix| suffix.to_str()).unwrap_or("");
        Self::parse(&text, suffix).map_err(wrong)
    }

    fn parse(text: &str, suffix: &str) -> Result<Self, String> {
        let mapping = match suffix {
            "yml" | "yaml" | "json" => match serde_yaml::from_str(text) {
                Ok(Value::Mapping(mapping)) => Some(mapping),
                // Python reads what is no mapping as an ini file; what is neither is reported by that.
                Ok(_) => None,
                Err(error) => return Err(error.to_string()),
            },
            _ => None,
        };
        let sections = match mapping {
            Some(mapping) => from_mapping(&mapping)?,
            None => ini::sections(text)?,
        };
        plan(sections)
    }
}

fn from_mapping(mapping: &Mapping) -> Result<Sections, String> {
    let mut sections = Sections::default();
    for (key, value) in mapping {
        match key.as_str().unwrap_or_default() {
            "version" | "disable_existing_loggers" | "incremental" => {}
            "formatters" => sections.formatters = named_sections("formatters", value)?,
            "handlers" => sections.handlers = named_sections("handlers", value)?,
            "loggers" => sections.loggers.extend(named_sections("loggers", value)?),
            "root" => drop(sections.loggers.insert(String::new(), section("root", value)?)),
            _ => sections.notices.push(format!("`{}` has no meaning here and is ignored", scalar(key))),
        }
    }
    Ok(sections)
}

fn named_sections(kind: &str, value: &Value) -> Result<BTreeMap<String, Section>, String> {
    let named = match value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Mapping(named) => named,
        _ => return Err(format!("`{kind}` must be a mapping of names")),
    };
    let pairs = named.iter().map(|(name, value)| {
        let name = scalar(name);
        section(&format!("{kind}.{name}"), value).map(|section| (name, section))
    });
    pairs.collect()
}

/// A list becomes its items joined by commas, as ini files write them.
fn section(place: &str, value: &Value) -> Result<Section, String> {
    let entries = match value {
        Value::Null => return Ok(Section::new()),
        Value::Mapping(entries) => entries,
        _ => return Err(format!("`{place}` must be a mapping")),
    };
    let text = |value: &Value| match value {
        Value::Sequence(items) => items.iter().map(scalar).collect::<Vec<_>>().join(","),
        other => scalar(other),
    };
    Ok(entries.iter().map(|(key, value)| (scalar(key), text(value))).collect())
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(truth) => truth.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Null => String::new(),
        Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => "(a collection)".to_owned(),
    }
}

fn plan(sections: Sections) -> Result<LogPlan, String> {
    let mut notices = sections.notices;
    let mut formats = BTreeMap::new();
    for (name, section) in &sections.formatters {
        formats.insert(name.as_str(), format(name, section, &mut notices)?);
    }
    let mut handlers = Vec::new();
    let mut indexes = BTreeMap::new();
    for (name, section) in &sections.handlers {
        indexes.insert(name.as_str(), handlers.len());
        handlers.push(handler(name, section, &formats, &mut notices)?);
    }
    let mut loggers = BTreeMap::new();
    for (name, section) in &sections.loggers {
        let logger = logger(name, section, &indexes, &mut notices)?;
        // An entry for the library of the reference is one for ours, unless ours has its own.
        for applied in names::applies_to(name) {
            if applied == *name || !sections.loggers.contains_key(&applied) {
                loggers.insert(applied, logger.clone());
            }
        }
    }
    Ok(LogPlan { handlers, loggers, notices })
}

fn format(name: &str, section: &Section, notices: &mut Vec<String>) -> Result<Format, String> {
    let mut lines = Lines::Verbatim;
    for (key, value) in section {
        match key.as_str() {
            "format" | "datefmt" => {}
            "class" | "()" if value.ends_with("MultiLineFormatter") => lines = Lines::Repeated,
            "class" | "()" if value == "logging.Formatter" || value.is_empty() => {}
            "style" if value == "%" => {}
            "style" => return Err(format!("formatter `{name}`: only the style % is supported, not `{value}`")),
            "validate" | "defaults" => {}
            _ => notices.push(format!("formatter `{name}`: `{key}: {value}` has no meaning here and is ignored")),
        }
    }
    // Python's default for a formatter without a format.
    let text = section.get("format").filter(|text| !text.is_empty()).map_or("%(message)s", String::as_str);
    let date = section.get("datefmt").filter(|date| !date.is_empty()).map(String::as_str);
    Format::parse(text, date, lines).map_err(|error: FormatError| format!("formatter `{name}`: {error}"))
}

fn handler(
    name: &str,
    section: &Section,
    formats: &BTreeMap<&str, Format>,
    notices: &mut Vec<String>,
) -> Result<HandlerPlan, String> {
    let format = match section.get("formatter").filter(|formatter| !formatter.is_empty()) {
        Some(formatter) => formats
            .get(formatter.as_str())
            .cloned()
            .ok_or_else(|| format!("handler `{name}`: there is no formatter `{formatter}`"))?,
        None => Format::parse("%(message)s", None, Lines::Verbatim).expect("a plain message is a format"),
    };
    let level = level(section, &format!("handler `{name}`"))?.unwrap_or(Level::ALL);
    Ok(HandlerPlan { level, format, sink: sink(name, section, notices)? })
}

fn sink(name: &str, section: &Section, notices: &mut Vec<String>) -> Result<SinkPlan, String> {
    let class = section.get("class").map_or("", String::as_str);
    let class = class.rsplit('.').next().unwrap_or(class);
    let file = || {
        let path = section.get("filename").filter(|path| !path.is_empty());
        path.map(PathBuf::from).ok_or_else(|| format!("handler `{name}`: `filename` is missing"))
    };
    let number = |key: &str| match section.get(key) {
        Some(text) if !text.is_empty() => {
            text.parse::<u64>().map_err(|_| format!("handler `{name}`: `{key}` must be a number, not `{text}`"))
        }
        _ => Ok(0),
    };
    Ok(match class {
        "StreamHandler" => match section.get("stream").map_or("", String::as_str) {
            "ext://sys.stdout" | "sys.stdout" => SinkPlan::Stdout,
            _ => SinkPlan::Stderr,
        },
        "FileHandler" | "WatchedFileHandler" => SinkPlan::WatchedFile(file()?),
        "RotatingFileHandler" => {
            let backups = u32::try_from(number("backupCount")?).unwrap_or(u32::MAX);
            SinkPlan::RotatedFile { path: file()?, max_bytes: number("maxBytes")?, backups }
        }
        "TimedRotatingFileHandler" => {
            notices.push(format!("handler `{name}`: rotation by time is left to logrotate; the file is followed"));
            SinkPlan::WatchedFile(file()?)
        }
        "SysLogHandler" => syslog(name, section, notices)?,
        "NullHandler" => SinkPlan::Nothing,
        other => {
            notices.push(format!("handler `{name}`: the class `{other}` is not known here; it writes nothing"));
            SinkPlan::Nothing
        }
    })
}

fn syslog(name: &str, section: &Section, notices: &mut Vec<String>) -> Result<SinkPlan, String> {
    const FACILITIES: [(&str, u8); 12] = [
        ("user", 1),
        ("daemon", 3),
        ("auth", 4),
        ("syslog", 5),
        ("local0", 16),
        ("local1", 17),
        ("local2", 18),
        ("local3", 19),
        ("local4", 20),
        ("local5", 21),
        ("local6", 22),
        ("local7", 23),
    ];
    let address = section.get("address").map_or("", String::as_str);
    if !address.starts_with('/') {
        let place = if address.is_empty() { "localhost:514" } else { address };
        notices.push(format!("handler `{name}`: only a local socket such as /dev/log is supported, not {place}"));
        return Ok(SinkPlan::Nothing);
    }
    let wanted = section.get("facility").filter(|facility| !facility.is_empty()).map_or("user", String::as_str);
    let known = FACILITIES.iter().find(|(facility, number)| *facility == wanted || number.to_string() == wanted);
    let (_, facility) = known.ok_or_else(|| format!("handler `{name}`: unknown facility `{wanted}`"))?;
    Ok(SinkPlan::Syslog { socket: PathBuf::from(address), facility: *facility })
}

fn logger(
    name: &str,
    section: &Section,
    handlers: &BTreeMap<&str, usize>,
    notices: &mut Vec<String>,
) -> Result<LoggerPlan, String> {
    let shown = if name.is_empty() { "the root logger".to_owned() } else { format!("logger `{name}`") };
    let mut indexes = Vec::new();
    let listed = section.get("handlers").map_or("", String::as_str);
    for handler in listed.split(',').map(str::trim).filter(|handler| !handler.is_empty()) {
        let index = handlers.get(handler).ok_or_else(|| format!("{shown}: there is no handler `{handler}`"))?;
        indexes.push(*index);
    }
    if section.contains_key("filters") {
        notices.push(format!("{shown}: filters have no meaning here and are ignored"));
    }
    let propagate = match section.get("propagate").map_or("", String::as_str) {
        "0" | "false" | "no" | "False" => Propagate::Stop,
        _ => Propagate::Up,
    };
    Ok(LoggerPlan { level: level(section, &shown)?, handlers: indexes, propagate })
}

/// Names in any case, or Python's numbers; `NOTSET` leaves the choice to the loggers above.
fn level(section: &Section, shown: &str) -> Result<Option<Level>, String> {
    let Some(text) = section.get("level").filter(|text| !text.is_empty()) else { return Ok(None) };
    let level = match text.to_ascii_uppercase().as_str() {
        "NOTSET" => return Ok(None),
        "DEBUG" => Level::DEBUG,
        "INFO" => Level::INFO,
        "WARNING" | "WARN" => Level::WARNING,
        "ERROR" => Level::ERROR,
        "CRITICAL" | "FATAL" => Level::CRITICAL,
        other => Level(other.parse().map_err(|_| format!("{shown}: unknown level `{text}`"))?),
    };
    Ok(Some(level))
}

#[cfg(test)]
mod tests {
    use super::*;

    const YAML: &str = r"
version: 1
formatters:
  simple: {format: '%(name)s %(message)s'}
handlers:
  console: {class: logging.StreamHandler, formatter: simple, stream: 'ext://sys.stdout', level: INFO}
  file: {class: logging.handlers.RotatingFileHandler, filename: /tmp/n.log, maxBytes: 1000, backupCount: 3}
  mail: {class: logging.handlers.SMTPHandler, mailhost: localhost}
loggers:
  nodepool: {level: DEBUG, handlers: [console, file], propagate: 0}
  kazoo: {level: WARN}
root: {handlers: [mail]}
";

    #[test]
    fn a_mapping_gives_levels_handlers_and_notices() {
        let plan = LogPlan::parse(YAML, "yaml").unwrap();
        let sinks: Vec<&SinkPlan> = plan.handlers.iter().map(|handler| &handler.sink).collect();
        let rotated = SinkPlan::RotatedFile { path: "/tmp/n.log".into(), max_bytes: 1000, backups: 3 };
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
            ("loggers: {nodepool: {handlers: [x]}}", "logger `nodepool`: there is no handler `x`"),
            ("root: {level: LOUD}", "the root logger: unknown level `LOUD`"),
            ("formatters: {f: {format: '%(x)s'}}", "formatter `f`: unknown field `x`"),
            ("handlers: [a]", "`handlers` must be a mapping of names"),
        ];
        for (text, expected) in cases {
            assert_eq!(LogPlan::parse(text, "yaml").unwrap_err(), expected);
        }
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = LogPlan::from_file(Path::new("/nowhere/logging.conf")).unwrap_err();
        assert_eq!(error.to_string(), "Unable to read logging config file at /nowhere/logging.conf");
    }
}
