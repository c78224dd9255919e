//! The ini form of a logging file (`fileConfig`): named sections, values that refer to each other, arguments in Python.

use std::collections::BTreeMap;

use super::literals::Literal;
use super::{Section, Sections};

/// Values that Python does not interpolate, because a percent sign has another meaning in them.
const UNINTERPOLATED: [&str; 3] = ["format", "datefmt", "style"];
/// Maximum depth of nested references; deeper nesting counts as a circular reference.
const MAX_DEPTH: usize = 10;

type RawSections = BTreeMap<String, Section>;

/// Reads the sections that the lists `[loggers]`, `[handlers]` and `[formatters]` name.
pub fn sections(text: &str) -> Result<Sections, String> {
    let raw = raw_sections(text)?;
    let mut found = Sections { disables_existing: true, ..Sections::default() };
    for name in listed(&raw, "formatters")? {
        let section = section_of(&raw, "formatter", &name)?;
        found.formatters.insert(name, section);
    }
    for name in listed(&raw, "handlers")? {
        let section = with_arguments(&name, section_of(&raw, "handler", &name)?, &mut found.notices)?;
        found.handlers.insert(name, section);
    }
    for name in listed(&raw, "loggers")? {
        let mut section = section_of(&raw, "logger", &name)?;
        let qualified = section.remove("qualname").unwrap_or_else(|| name.clone());
        found.loggers.insert(if name == "root" { String::new() } else { qualified }, section);
    }
    Ok(found)
}

fn listed(raw: &RawSections, kind: &str) -> Result<Vec<String>, String> {
    let section = raw.get(kind).ok_or_else(|| format!("there is no section [{kind}]"))?;
    let keys = section.get("keys").ok_or_else(|| format!("[{kind}] has no `keys`"))?;
    Ok(keys.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned).collect())
}

/// One section merged with `[DEFAULT]`.
fn section_of(raw: &RawSections, kind: &str, name: &str) -> Result<Section, String> {
    let title = format!("{kind}_{name}");
    let own = raw.get(&title).ok_or_else(|| format!("there is no section [{title}]"))?;
    let mut all = raw.get("DEFAULT").cloned().unwrap_or_default();
    all.extend(own.clone());
    let mut section = Section::new();
    for (key, value) in &all {
        let is_raw = kind == "formatter" && UNINTERPOLATED.contains(&key.as_str());
        let value = if is_raw {
            value.clone()
        } else {
            interpolate(value, &all, MAX_DEPTH).map_err(|error| format!("[{title}] {key}: {error}"))?
        };
        section.insert(key.clone(), value);
    }
    Ok(section)
}

/// `%(key)s` becomes the value of that key, `%%` a percent sign.
fn interpolate(value: &str, all: &Section, depth: usize) -> Result<String, String> {
    let depth = depth.checked_sub(1).ok_or("circular reference")?;
    let mut text = String::new();
    let mut rest = value;
    while let Some(at) = rest.find('%') {
        text.push_str(&rest[..at]);
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('%') {
            text.push('%');
            rest = after;
            continue;
        }
        let inner = after.strip_prefix('(').and_then(|inner| inner.split_once(")s"));
        let (key, after) =
            inner.ok_or_else(|| format!("`%` must be followed by `%` or `(name)s`, found `{}`", &rest[at..]))?;
        let target = all.get(&key.to_lowercase()).ok_or_else(|| format!("there is no `{key}` to refer to"))?;
        text.push_str(&interpolate(target, all, depth)?);
        rest = after;
    }
    text.push_str(rest);
    Ok(text)
}

/// A line that is indented more than its key continues the value; `#` and `;` start a comment line; keys ignore case.
fn raw_sections(text: &str) -> Result<RawSections, String> {
    let mut sections = RawSections::new();
    let mut current: Option<String> = None;
    let mut last: Option<(String, usize)> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        let indent = line.len() - line.trim_start().len();
        if let (Some(section), Some((key, _))) = (&current, last.as_ref().filter(|(_, own)| indent > *own)) {
            let value = sections.entry(section.clone()).or_default().entry(key.clone()).or_default();
            value.push('\n');
            value.push_str(trimmed);
            continue;
        }
        let position = format!("line {}", number + 1);
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let name = name.0.to_owned();
            if sections.contains_key(&name) && name != "DEFAULT" {
                return Err(format!("{position}: duplicate section [{name}]"));
            }
            sections.entry(name.clone()).or_default();
            current = Some(name);
            last = None;
            continue;
        }
        let section = current.as_ref().ok_or_else(|| format!("{position}: a section such as [loggers] is expected"))?;
        let (key, value) =
            trimmed.split_once(['=', ':']).ok_or_else(|| format!("{position}: `key = value` is expected"))?;
        let key = key.trim().to_lowercase();
        let before = sections.entry(section.clone()).or_default().insert(key.clone(), value.trim().to_owned());
        if before.is_some() {
            return Err(format!("{position}: duplicate key `{key}` in [{section}]"));
        }
        last = Some((key, indent));
    }
    Ok(sections)
}

/// Names a handler's positional arguments as in the mapping form, and adds the named ones.
fn with_arguments(handler: &str, mut section: Section, notices: &mut Vec<String>) -> Result<Section, String> {
    let class = section.get("class").map_or("", String::as_str);
    let class = class.rsplit('.').next().unwrap_or(class);
    let names: &[&str] = match class {
        "StreamHandler" => &["stream"],
        "FileHandler" | "WatchedFileHandler" => &["filename", "mode", "encoding", "delay", "errors"],
        "RotatingFileHandler" => &["filename", "mode", "maxBytes", "backupCount", "encoding", "delay", "errors"],
        "TimedRotatingFileHandler" => {
            &["filename", "when", "interval", "backupCount", "encoding", "delay", "utc", "atTime", "errors"]
        }
        "SysLogHandler" => &["address", "facility", "socktype"],
        _ => &[],
    };
    for key in ["args", "kwargs"] {
        let Some(text) = section.remove(key).filter(|text| !text.is_empty()) else { continue };
        let position = format!("[handler_{handler}] {key}");
        match Literal::parse(&text).map_err(|error| format!("{position}: {error}"))? {
            // A class with unknown arguments is reported as not supported later.
            Literal::List(_) if names.is_empty() => {}
            Literal::List(items) => {
                if items.len() > names.len() {
                    notices.push(format!("{position}: arguments after the first {} are ignored", names.len()));
                }
                for (name, value) in names.iter().zip(items) {
                    section.insert((*name).to_owned(), value.text());
                }
            }
            Literal::Map(entries) => section.extend(entries.into_iter().map(|(name, value)| (name, value.text()))),
            Literal::Text(text) => return Err(format!("{position}: `{text}` is neither a tuple nor a dict")),
        }
    }
    Ok(section)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INI: &str = r#"
[DEFAULT]
folder = /var/log

[loggers]
keys = root, nodepool

[handlers]
keys=console,file

[formatters]
keys=simple

[logger_root]
level=WARNING
handlers=console

[logger_nodepool]
level=DEBUG
handlers=console,
         file
qualname=nodepool

[handler_console]
class=StreamHandler
level=DEBUG
formatter=simple
args=(sys.stdout,)

[handler_file]
class=logging.handlers.RotatingFileHandler
formatter=simple
args=("%(folder)s/a, 100%%.log", 'a')
kwargs={'maxBytes': 1000, 'backupCount': 3}

[formatter_simple]
format=%(asctime)s %(message)s
"#;

    #[test]
    fn an_ini_file_gives_the_same_sections_as_a_mapping() {
        let found = sections(INI).unwrap();
        let file = &found.handlers["file"];
        assert_eq!((file["filename"].as_str(), file["maxBytes"].as_str()), ("/var/log/a, 100%.log", "1000"));
        assert_eq!(found.handlers["console"]["stream"], "sys.stdout");
        assert_eq!(found.loggers[""]["level"], "WARNING");
        assert_eq!(found.loggers["nodepool"]["handlers"], "console,\nfile");
        assert_eq!(found.formatters["simple"]["format"], "%(asctime)s %(message)s");
    }

    #[test]
    fn an_invalid_ini_file_is_refused_with_the_position() {
        let handler = |line: &str| format!("[formatters]\nkeys=\n[handlers]\nkeys=a\n[handler_a]\n{line}");
        let cases = [
            ("nonsense".to_owned(), "line 1: a section such as [loggers] is expected"),
            ("[loggers]\nnonsense".to_owned(), "line 2: `key = value` is expected"),
            ("[a]\nb=1\nB=2".to_owned(), "line 3: duplicate key `b` in [a]"),
            ("[a]\n[a]".to_owned(), "line 2: duplicate section [a]"),
            (String::new(), "there is no section [formatters]"),
            ("[formatters]\nkeys=a".to_owned(), "there is no section [formatter_a]"),
            (handler("class=%(x)s"), "[handler_a] class: there is no `x` to refer to"),
            (handler("class=%(class)s"), "[handler_a] class: circular reference"),
            (handler("args=5"), "[handler_a] args: `5` is neither a tuple nor a dict"),
            (handler("class=FileHandler\nargs=('a"), "[handler_a] args: unterminated string 'a"),
        ];
        for (text, expected) in cases {
            assert_eq!(sections(&text).unwrap_err(), expected);
        }
    }
}
