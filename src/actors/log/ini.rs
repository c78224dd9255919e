//! Python's ini form of a logging configuration: sections by name, a handler's arguments as a Python tuple.

use std::collections::BTreeMap;

use super::config::{Section, Sections};

/// Reads the sections that the lists `[loggers]`, `[handlers]` and `[formatters]` name.
pub fn sections(text: &str) -> Result<Sections, String> {
    let raw = raw_sections(text)?;
    let mut found = Sections::default();
    for name in listed(&raw, "formatters")? {
        let section = part(&raw, "formatter", &name)?;
        found.formatters.insert(name, section);
    }
    for name in listed(&raw, "handlers")? {
        let mut section = part(&raw, "handler", &name)?;
        if let Some(arguments) = section.remove("args") {
            name_arguments(&name, &arguments, &mut section, &mut found.notices);
        }
        found.handlers.insert(name, section);
    }
    for name in listed(&raw, "loggers")? {
        let mut section = part(&raw, "logger", &name)?;
        let qualified = section.remove("qualname").unwrap_or_else(|| name.clone());
        found.loggers.insert(if name == "root" { String::new() } else { qualified }, section);
    }
    Ok(found)
}

fn listed(raw: &BTreeMap<String, Section>, kind: &str) -> Result<Vec<String>, String> {
    let section = raw.get(kind).ok_or_else(|| format!("there is no section [{kind}]"))?;
    let keys = section.get("keys").ok_or_else(|| format!("[{kind}] has no `keys`"))?;
    Ok(keys.split(',').map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned).collect())
}

fn part(raw: &BTreeMap<String, Section>, kind: &str, name: &str) -> Result<Section, String> {
    raw.get(&format!("{kind}_{name}")).cloned().ok_or_else(|| format!("there is no section [{kind}_{name}]"))
}

/// An indented line continues the value above it; `#` and `;` start a comment line; names of keys are caseless.
fn raw_sections(text: &str) -> Result<BTreeMap<String, Section>, String> {
    let mut sections: BTreeMap<String, Section> = BTreeMap::new();
    let mut current: Option<String> = None;
    let mut last_key: Option<String> = None;
    for (number, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
            continue;
        }
        let continues = line.starts_with([' ', '\t']);
        if let (true, Some(section), Some(key)) = (continues, &current, &last_key) {
            let value = sections.entry(section.clone()).or_default().entry(key.clone()).or_default();
            value.push('\n');
            value.push_str(trimmed);
            continue;
        }
        if let Some(name) = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            sections.entry(name.to_owned()).or_default();
            current = Some(name.to_owned());
            last_key = None;
            continue;
        }
        let place = format!("line {}", number + 1);
        let section = current.as_ref().ok_or_else(|| format!("{place}: a section such as [loggers] is expected"))?;
        let (key, value) =
            trimmed.split_once(['=', ':']).ok_or_else(|| format!("{place}: `key = value` is expected"))?;
        let key = key.trim().to_lowercase();
        sections.entry(section.clone()).or_default().insert(key.clone(), value.trim().to_owned());
        last_key = Some(key);
    }
    Ok(sections)
}

/// Gives the positions of a handler's arguments the names that the other form uses.
fn name_arguments(handler: &str, text: &str, section: &mut Section, notices: &mut Vec<String>) {
    let class = section.get("class").map_or("", String::as_str);
    let class = class.rsplit('.').next().unwrap_or(class);
    let names: &[&str] = match class {
        "StreamHandler" => &["stream"],
        "FileHandler" | "WatchedFileHandler" => &["filename", "mode", "encoding", "delay"],
        "RotatingFileHandler" => &["filename", "mode", "maxBytes", "backupCount", "encoding"],
        "TimedRotatingFileHandler" => &["filename", "when", "interval", "backupCount", "encoding"],
        "SysLogHandler" => &["address", "facility"],
        _ => &[],
    };
    let arguments = arguments(text);
    if arguments.len() > names.len() && !names.is_empty() {
        notices.push(format!("handler `{handler}`: arguments after {} are ignored", names[names.len() - 1]));
    }
    for (name, value) in names.iter().zip(arguments) {
        section.insert((*name).to_owned(), value);
    }
}

/// The items of a Python tuple of texts, numbers and names; `handlers.SysLogHandler.LOG_USER` becomes `user`.
fn arguments(text: &str) -> Vec<String> {
    let inner = text.trim().trim_start_matches('(').trim_end_matches(')');
    let mut items = Vec::new();
    let mut item = String::new();
    let mut quote = None;
    for character in inner.chars() {
        match (quote, character) {
            (None, '\'' | '"') => quote = Some(character),
            (Some(open), _) if open == character => quote = None,
            (None, ',') => items.push(std::mem::take(&mut item)),
            (None, blank) if blank.is_whitespace() => {}
            (_, other) => item.push(other),
        }
    }
    items.push(item);
    let facility = |item: String| match item.rsplit_once(".LOG_") {
        Some((_, facility)) => facility.to_lowercase(),
        None => item,
    };
    items.into_iter().filter(|item| !item.is_empty()).map(facility).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INI: &str = r#"
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
args=("/var/log/a, b.log", 'a', 1000, 3)

[formatter_simple]
format=%(asctime)s %(message)s
"#;

    #[test]
    fn an_ini_file_gives_the_same_sections_as_a_mapping() {
        let found = sections(INI).unwrap();
        let file = &found.handlers["file"];
        assert_eq!((file["filename"].as_str(), file["maxBytes"].as_str()), ("/var/log/a, b.log", "1000"));
        assert_eq!(found.handlers["console"]["stream"], "sys.stdout");
        assert_eq!(found.loggers[""]["level"], "WARNING");
        assert_eq!(found.loggers["nodepool"]["handlers"], "console,\nfile");
        assert_eq!(found.formatters["simple"]["format"], "%(asctime)s %(message)s");
    }

    #[test]
    fn what_is_no_ini_file_is_refused_with_its_place() {
        let cases = [
            ("nonsense", "line 1: a section such as [loggers] is expected"),
            ("[loggers]\nnonsense", "line 2: `key = value` is expected"),
            ("", "there is no section [formatters]"),
            ("[formatters]\nkeys=a", "there is no section [formatter_a]"),
        ];
        for (text, expected) in cases {
            assert_eq!(sections(text).unwrap_err(), expected);
        }
    }

    #[test]
    fn a_facility_is_taken_from_its_python_name() {
        assert_eq!(arguments("('/dev/log', handlers.SysLogHandler.LOG_DAEMON)"), ["/dev/log", "daemon"]);
    }
}
