//! JSON Schema of `nodepool config-schema`: it agrees with the validator on files and on every small mutation of them.
//!
//! The tests call schema and validator in process. The files of Nodepool 11 need the Python environment of the
//! reference, which `tests/run` provides.

use std::process::Command;

use jsonschema::Validator;
use nodepool_model::config::schema::check;
use nodepool_model::config::schema::json_schema::configuration_schema;
use python_yaml::diagnostics::Diagnostic;
use python_yaml::parse::parse;
use python_yaml::tree::{YamlNode, YamlValue};
use serde_json::{Value, json};
use testkit::programs;

/// The JSON document of a YAML node; `None` for values that JSON lacks.
fn as_json(node: &YamlNode) -> Option<Value> {
    Some(match &node.value {
        YamlValue::Null => Value::Null,
        YamlValue::Bool(value) => json!(value),
        YamlValue::Int(value) => json!(value),
        YamlValue::Float(value) => Value::Number(serde_json::Number::from_f64(*value)?),
        YamlValue::Date(_) => return None,
        YamlValue::Text(text) => json!(text),
        YamlValue::List(items) => Value::Array(items.iter().map(as_json).collect::<Option<_>>()?),
        YamlValue::Map(entries) => {
            let entry =
                |(key, value): &(python_yaml::tree::YamlKey, YamlNode)| Some((key.text.clone(), as_json(value)?));
            Value::Object(entries.iter().map(entry).collect::<Option<_>>()?)
        }
    })
}

fn validator() -> Validator {
    let document = configuration_schema();
    jsonschema::draft202012::meta::validate(&document).expect("the document is a valid schema");
    jsonschema::draft202012::new(&document).unwrap()
}

/// Diagnostics of the validator on the structure of a file, without those that a schema cannot express.
fn diagnostics_of(root: &YamlNode) -> Vec<Diagnostic> {
    let mut problems = check::check(root, &[]);
    // 10 and 10.0 are the same number in JSON.
    problems
        .retain(|problem| !(problem.message.starts_with("expected float") && problem.help.ends_with("a whole number")));
    problems
}

/// Asserts that schema and validator both accept or both reject the text, and returns whether they accept it.
fn verdicts_agree(validator: &Validator, what: &str, text: &str) -> bool {
    let Ok(root) = parse(text, &mut Vec::new()) else { return false };
    let Some(document) = as_json(&root) else { return false };
    let diagnostics = diagnostics_of(&root);
    let errors: Vec<String> =
        validator.iter_errors(&document).map(|error| format!("{}: {error}", error.instance_path)).collect();
    let verdicts = (diagnostics.is_empty(), errors.is_empty());
    assert!(verdicts.0 == verdicts.1, "{what}\n{text}\nvalidator: {diagnostics:#?}\nschema: {errors:#?}");
    verdicts.0
}

/// Every document that differs from this one in one value or key.
fn mutants(document: &Value) -> Vec<Value> {
    let replacements = [json!(null), json!(true), json!(3), json!(2.5), json!("x_y"), json!("7"), json!([]), json!({})];
    let mut found: Vec<Value> = replacements.into_iter().filter(|value| value != document).collect();
    match document {
        Value::Object(fields) => {
            let mut more = fields.clone();
            more.insert("no-such-key".to_owned(), json!("x"));
            found.push(Value::Object(more));
            for (key, value) in fields {
                let mut fewer = fields.clone();
                fewer.remove(key);
                found.push(Value::Object(fewer));
                for mutant in mutants(value) {
                    let mut changed = fields.clone();
                    changed.insert(key.clone(), mutant);
                    found.push(Value::Object(changed));
                }
            }
        }
        Value::Array(items) => {
            // The validator checks equal items alike, so two of them suffice.
            for (index, item) in items.iter().enumerate().take(2) {
                for mutant in mutants(item) {
                    let mut changed = items.clone();
                    changed[index] = mutant;
                    found.push(Value::Array(changed));
                }
            }
        }
        _ => {}
    }
    found
}

fn files() -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = std::fs::read_dir("tests/fixtures/config")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "yaml"))
        .map(|path| (path.display().to_string(), std::fs::read_to_string(&path).unwrap()))
        .map(|(name, text)| (name, text.replace("%(NODEPOOL_PORT)", "8005")))
        .collect();
    files.sort();
    files
}

/// The configurations that Nodepool 11 ships.
fn upstream_files() -> Vec<(String, String)> {
    let python = testkit::real::setting("NODEPOOL_TEST_REFERENCE");
    let output = Command::new(python).args(["-B", "tests/fixtures/config/reference.py"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    let text = |verdict: &Value, key: &str| verdict[key].as_str().unwrap().to_owned();
    lines
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|verdict| (text(&verdict, "file"), text(&verdict, "text")))
        .collect()
}

fn check_with_mutants(files: &[(String, String)]) {
    let validator = validator();
    let (mut accepted, mut rejected) = (0, 0);
    for (name, text) in files {
        verdicts_agree(&validator, name, text);
        let Ok(root) = parse(text, &mut Vec::new()) else { continue };
        let Some(document) = as_json(&root) else { continue };
        for mutant in mutants(&document) {
            match verdicts_agree(&validator, name, &mutant.to_string()) {
                true => accepted += 1,
                false => rejected += 1,
            }
        }
    }
    assert!(accepted > 100 && rejected > 100, "{accepted} accepted, {rejected} rejected");
}

#[test]
fn schema_and_validator_agree_on_files_and_their_mutations() {
    check_with_mutants(&files());
}

#[test]
fn schema_and_validator_agree_on_nodepool_11_files() {
    if testkit::real::skipped() {
        return;
    }
    let validator = validator();
    let shipped = upstream_files();
    assert!(shipped.len() > 100, "{} files", shipped.len());
    for (name, text) in &shipped {
        verdicts_agree(&validator, name, text);
    }
    // Mutate only the longest file of each driver, which has nearly all of its keys.
    let mut longest: std::collections::BTreeMap<String, &(String, String)> = Default::default();
    for file in &shipped {
        for driver in schema_names().filter(|driver| file.1.contains(&format!("driver: {driver}\n"))) {
            let best = longest.entry(driver.to_owned()).or_insert(file);
            if best.1.len() < file.1.len() {
                *best = file;
            }
        }
    }
    assert!(longest.len() >= 10, "{:?}", longest.keys());
    check_with_mutants(&longest.into_values().cloned().collect::<Vec<_>>());
}

fn schema_names() -> impl Iterator<Item = &'static str> {
    nodepool_model::config::driver_limits::names()
}

#[test]
fn the_command_prints_the_schema() {
    let output = Command::new(programs::nodepool()).arg("config-schema").output().unwrap();
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && printed == configuration_schema());
}

/// Collects every property of a schema with its name.
fn properties(schema: &Value, found: &mut Vec<(String, Value)>) {
    match schema {
        Value::Object(fields) => {
            for (key, value) in fields {
                if let ("properties", Value::Object(named)) = (key.as_str(), value) {
                    found.extend(named.iter().map(|(name, property)| (name.clone(), property.clone())));
                }
                properties(value, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| properties(item, found)),
        _ => {}
    }
}

/// The rows of the tables in `doc/` that describe keys.
fn documented_rows() -> Vec<String> {
    let mut rows = Vec::new();
    for file in ["configuration", "drivers/static", "drivers/fake", "drivers/openstack", "drivers/example"] {
        let text = std::fs::read_to_string(format!("doc/{file}.md")).unwrap();
        rows.extend(text.lines().filter(|line| line.starts_with("| ")).map(str::to_owned));
    }
    rows
}

#[test]
fn schema_defaults_match_their_types_and_the_documents() {
    let rows = documented_rows();
    let mut found = Vec::new();
    properties(&configuration_schema(), &mut found);
    let mut defaults = 0;
    for (name, property) in found {
        let Some(default) = property.get("default") else { continue };
        defaults += 1;
        assert!(jsonschema::draft202012::new(&property).unwrap().is_valid(default), "{name}: {default}");
        let shown = match default {
            Value::String(text) => text.clone(),
            Value::Array(items) => items[0].as_str().unwrap().to_owned(),
            other => other.to_string(),
        };
        let has_default = |row: &String| row.contains(&format!("`{name}`")) && row.contains(&shown);
        assert!(rows.iter().any(has_default), "doc/ lacks the default of {name}: {shown}");
    }
    assert!(defaults > 50, "{defaults}");
}

#[test]
fn the_schema_describes_every_key() {
    let document = configuration_schema();
    let of_server = &document["properties"]["zookeeper-servers"]["items"]["properties"];
    assert!(of_server["port"]["description"].as_str().unwrap().contains("2181"));
    let label = &document["$defs"]["openstack"]["properties"]["pools"]["items"]["properties"]["labels"]["items"];
    assert_eq!(label["properties"]["volume-size"]["default"], 50);
}
