//! Formatters of a logging file: text in one of Python's styles, or JSON.

use std::collections::BTreeMap;

use super::Section;
use crate::format::json::{self, Layout, Object};
use crate::format::pattern::{FormatError, Style};
use crate::format::{Date, Format, Lines};

pub fn format(name: &str, section: &Section, notices: &mut Vec<String>) -> Result<Format, String> {
    let class = section.get("()").or_else(|| section.get("class")).map_or("", String::as_str);
    let last = class.rsplit('.').next().unwrap_or_default();
    if last.eq_ignore_ascii_case("JsonFormatter") {
        return json_format(name, section, notices).map_err(|error| format!("formatter `{name}`: {error}"));
    }
    let lines = if last == "MultiLineFormatter" { Lines::Repeated } else { Lines::Verbatim };
    if !matches!(class, "" | "logging.Formatter" | "Formatter") && lines == Lines::Verbatim {
        notices.push(format!(
            "formatter `{name}`: `{class}` is not supported; its format is used as by logging.Formatter"
        ));
    }
    report_unknown_keys(name, section, &[], notices);
    let text = || -> Result<Format, FormatError> {
        let style = Style::parse(section.get("style").map_or("%", String::as_str))?;
        // Python's default for a formatter without a format.
        let default = match style {
            Style::Percent => "%(message)s",
            Style::Brace => "{message}",
            Style::Dollar => "${message}",
        };
        let text = lookup(section, &["format", "fmt"]).unwrap_or(default);
        Format::parse(text, style, lookup(section, &["datefmt"]), lines)
    };
    text().map_err(|error| format!("formatter `{name}`: {error}"))
}

/// With a format string, the keys are those that python-json-logger derives from it; without one, they are the default
/// keys of [`Object`].
fn json_format(name: &str, section: &Section, notices: &mut Vec<String>) -> Result<Format, String> {
    let to_text = |error: FormatError| error.to_string();
    report_unknown_keys(name, section, &["rename_fields", "static_fields", "timestamp"], notices);
    let style = Style::parse(section.get("style").map_or("%", String::as_str)).map_err(to_text)?;
    let mut object = match lookup(section, &["format", "fmt"]) {
        Some(text) => Object::with_keys_of(&json::segments(text, style).map_err(to_text)?),
        None => Object::default(),
    };
    let pairs = |key: &str| -> Result<BTreeMap<String, String>, String> {
        let Some(text) = lookup(section, &[key]) else { return Ok(BTreeMap::new()) };
        serde_json::from_str(text).map_err(|_| format!("`{key}` must be a mapping"))
    };
    pairs("rename_fields")?.iter().for_each(|(from, to)| object.rename(from, to));
    pairs("static_fields")?.iter().for_each(|(key, value)| object.add_static_field(key, value));
    if section.get("timestamp").is_some_and(|text| !matches!(text.to_ascii_lowercase().as_str(), "false" | "0" | "")) {
        object.add_timestamp();
    }
    let date = Date::parse(lookup(section, &["datefmt"])).map_err(to_text)?;
    Ok(Format::json(Layout::Object(object), date))
}

fn lookup<'a>(section: &'a Section, keys: &[&str]) -> Option<&'a str> {
    keys.iter().find_map(|key| section.get(*key)).filter(|text| !text.is_empty()).map(String::as_str)
}

fn report_unknown_keys(name: &str, section: &Section, extra_keys: &[&str], notices: &mut Vec<String>) {
    const KNOWN_KEYS: [&str; 8] = ["format", "fmt", "datefmt", "style", "class", "()", "validate", "defaults"];
    for (key, value) in section {
        if !KNOWN_KEYS.contains(&key.as_str()) && !extra_keys.contains(&key.as_str()) {
            notices.push(format!("formatter `{name}`: `{key}: {value}` is not supported and is ignored"));
        }
    }
}
