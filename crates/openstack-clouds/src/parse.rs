//! Parser of one file, YAML or JSON, to a map.

use std::sync::Arc;

use crate::config_paths::FileText;
use crate::error::CloudsError;
use crate::merge::{Map, Node, Origin, Value};
use python_yaml::diagnostics::Diagnostic;
use python_yaml::parse;
use python_yaml::tree::Position;

/// Parses a file; an empty file is an empty map. Warnings are added to `warnings`.
pub fn parse(file: &FileText, warnings: &mut Vec<Diagnostic>) -> Result<Map, CloudsError> {
    let name = file.path.display().to_string();
    let root = if name.ends_with("json") { json(&name, &file.text) } else { yaml(&name, &file.text, warnings) }?;
    match root.value {
        Value::Null => Ok(Map::default()),
        Value::Map(map) => Ok(map),
        _ => Err(root.type_error("the file", "a mapping with the key `clouds`")),
    }
}

fn yaml(name: &str, text: &str, warnings: &mut Vec<Diagnostic>) -> Result<Node, CloudsError> {
    let mut found = Vec::new();
    let parsed = parse::parse(text, &mut found);
    let malformed = |problem: Diagnostic| CloudsError::Malformed(problem.in_file(name));
    let root = parsed.map_err(|problem| {
        // Environment variables are not substituted in these files.
        let hint =
            if problem.help.contains("NODEPOOL_") { "invalid YAML at or before this position" } else { &problem.help };
        let help = format!("{hint}; fix this file, because no other file is read in its place");
        malformed(Diagnostic { help, ..problem.clone() })
    })?;
    for problem in found {
        // A rounded number would be a different password or id.
        if problem.message.contains("beyond 64 bits") {
            return Err(malformed(problem.help("put it in quotes if it is meant as text")));
        }
        warnings.push(problem.in_file(name));
    }
    Ok(Node::from_yaml(root, &Arc::from(name)))
}

fn json(name: &str, text: &str) -> Result<Node, CloudsError> {
    let value = serde_json::from_str(text).map_err(|error| {
        let number = |value: usize| u32::try_from(value).unwrap_or(u32::MAX);
        let at = Position { line: number(error.line()), column: number(error.column()) };
        let what =
            if error.is_eof() { "unexpected end of the file" } else { "invalid JSON at or before this position" };
        let diagnostic = Diagnostic::error(at, "file is not JSON")
            .help(format!("{what}; if the file is YAML, rename it to end in .yaml"));
        CloudsError::Malformed(diagnostic.in_file(name))
    })?;
    Ok(Node::from_json(value, &Arc::from(name)))
}

/// Parses a built-in table of this program, written as YAML.
pub fn built_in(name: &str, text: &str) -> Map {
    let root = parse::parse(text, &mut Vec::new()).expect("the built-in tables are YAML, a test reads them all");
    Node::from_yaml(root, &Origin::named(name).file).map(name).expect("the built-in tables are mappings")
}
