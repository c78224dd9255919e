//! The mapping form of a logging file (`dictConfig`), in YAML or JSON, as sections of texts.

use std::collections::BTreeMap;

use serde_yaml::{Mapping, Value};

use super::{Section, Sections};
use python_yaml::parse;

/// `None` if the text is not a mapping.
pub fn sections(text: &str) -> Result<Option<Sections>, String> {
    // python-yaml accepts what Python's reader accepts, such as merge keys and duplicate keys.
    let tree = parse::parse(text, &mut Vec::new()).map_err(|problem| problem.to_string())?;
    let value = serde_yaml::to_value(tree.to_json()).map_err(|error| error.to_string())?;
    let Value::Mapping(mapping) = &value else { return Ok(None) };
    let mut sections = Sections { disables_existing: true, ..Sections::default() };
    let root = &value;
    for (key, value) in mapping {
        match key.as_str().unwrap_or_default() {
            "version" if scalar(value) == "1" => {}
            "version" => return Err(format!("`version` must be 1, not {}", scalar(value))),
            "disable_existing_loggers" => sections.disables_existing = is_true(value),
            "incremental" if is_true(value) => {
                sections.notices.push("`incremental` has no effect at start-up".to_owned());
            }
            "incremental" => {}
            "formatters" => sections.formatters = named_sections("formatters", value, root)?,
            "filters" => sections.filters = named_sections("filters", value, root)?,
            "handlers" => sections.handlers = named_sections("handlers", value, root)?,
            "loggers" => sections.loggers.extend(named_sections("loggers", value, root)?),
            "root" => drop(sections.loggers.insert(String::new(), section("root", value, root)?)),
            // A key that `cfg://` refers to.
            name if text.contains(&format!("cfg://{name}")) => {}
            _ => sections.notices.push(format!("`{}` is not supported and is ignored", scalar(key))),
        }
    }
    Ok(Some(sections))
}

fn is_true(value: &Value) -> bool {
    !matches!(scalar(value).to_ascii_lowercase().as_str(), "false" | "no" | "off" | "0" | "")
}

fn named_sections(kind: &str, value: &Value, root: &Value) -> Result<BTreeMap<String, Section>, String> {
    let named = match value {
        Value::Null => return Ok(BTreeMap::new()),
        Value::Mapping(named) => named,
        _ => return Err(format!("`{kind}` must be a mapping of names")),
    };
    let pairs = named.iter().map(|(name, value)| {
        let name = scalar(name);
        section(&format!("{kind}.{name}"), value, root).map(|section| (name, section))
    });
    pairs.collect()
}

fn section(location: &str, value: &Value, root: &Value) -> Result<Section, String> {
    let entries = match value {
        Value::Null => return Ok(Section::new()),
        Value::Mapping(entries) => entries,
        _ => return Err(format!("`{location}` must be a mapping")),
    };
    let mut section = Section::new();
    for (key, value) in entries {
        section.insert(scalar(key), text(location, value, root)?);
    }
    Ok(section)
}

/// A list becomes its items joined by commas, as in ini files; a mapping becomes JSON.
fn text(location: &str, value: &Value, root: &Value) -> Result<String, String> {
    match value {
        Value::Sequence(items) => {
            let texts: Result<Vec<String>, String> = items.iter().map(|item| text(location, item, root)).collect();
            Ok(texts?.join(","))
        }
        Value::Mapping(entries) => mapping_text(location, entries, root),
        Value::String(path) if path.starts_with("cfg://") => {
            let target = resolve_reference(&path["cfg://".len()..], root);
            // A reference in the target is not followed: two that refer to each other would never end.
            match target.ok_or_else(|| format!("{location}: `{path}` does not exist in this file"))? {
                Value::Mapping(_) | Value::Tagged(_) => Err(format!("{location}: `{path}` refers to a mapping")),
                Value::Sequence(items) => Ok(items.iter().map(scalar).collect::<Vec<_>>().join(",")),
                value => Ok(scalar(value)),
            }
        }
        other => Ok(scalar(other)),
    }
}

fn mapping_text(location: &str, entries: &Mapping, root: &Value) -> Result<String, String> {
    let mut texts = BTreeMap::new();
    for (key, value) in entries {
        texts.insert(scalar(key), text(location, value, root)?);
    }
    serde_json::to_string(&texts).map_err(|error| format!("{location}: {error}"))
}

/// The value at a path such as `logs.files[0].name`.
fn resolve_reference<'a>(path: &str, root: &'a Value) -> Option<&'a Value> {
    let path = path.replace('[', ".").replace(']', "");
    path.split('.').try_fold(root, |value, step| match value {
        Value::Sequence(items) => items.get(step.parse::<usize>().ok()?),
        Value::Mapping(entries) => entries.get(step),
        _ => None,
    })
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::Null => String::new(),
        Value::Sequence(_) | Value::Mapping(_) | Value::Tagged(_) => "(a collection)".to_owned(),
    }
}
