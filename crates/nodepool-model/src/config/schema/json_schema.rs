//! JSON Schema of the validator's tables, so that editors can check and complete a configuration.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::dsl::{Key, Section, Shape};
use super::tables::common::TOP_LEVEL;
use super::{check, descriptions};
use crate::config::driver_limits;

/// Texts that Python's `float()` converts to a number; underscores between digits are allowed.
const NUMBER: &str =
    r"^\s*[+-]?((\d[\d_]*\.?[\d_]*|\.\d[\d_]*)([eE][+-]?\d+)?|[iI][nN][fF]([iI][nN][iI][tT][yY])?)\s*$";

/// The schema, in draft 2020-12. It cannot express that `10` is not a float and `10.0` is not an integer, the YAML type
/// of a key, and conditions on other parts of the file.
pub fn configuration_schema() -> Value {
    let mut root = section_schema(&TOP_LEVEL);
    root["properties"]["providers"]["items"] = json!({"$ref": "#/$defs/provider"});
    let mut definitions = Map::from_iter([("provider".to_owned(), provider_schema())]);
    for driver in driver_limits::names() {
        if let Some(section) = check::driver_schema(driver) {
            definitions.insert(driver.to_owned(), section_schema(section));
        }
    }
    let mut document = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "nodepool.yaml",
        "description": "Configuration of Nodepool",
    });
    if let (Some(document), Value::Object(root)) = (document.as_object_mut(), root) {
        document.extend(root.into_iter().filter(|(key, _)| key != "title"));
        document.insert("$defs".to_owned(), Value::Object(definitions));
    }
    document
}

/// Schema of a provider, whose keys depend on its driver.
fn provider_schema() -> Value {
    let drivers: Vec<&str> = driver_limits::names().filter(|name| check::driver_schema(name).is_some()).collect();
    let reference = |driver: &str| json!({"$ref": format!("#/$defs/{driver}")});
    let mut cases: Vec<Value> = drivers
        .iter()
        .map(|driver| {
            let is_driver = json!({"required": ["driver"], "properties": {"driver": {"const": driver}}});
            json!({"if": is_driver, "then": reference(driver)})
        })
        .collect();
    // Without a driver, the provider's name selects one.
    let is_fake = json!({"required": ["name"], "properties": {"name": {"type": "string", "pattern": "^fake"}}});
    cases.push(json!({
        "if": {"not": {"required": ["driver"]}},
        "then": {"if": is_fake, "then": reference("fake"), "else": reference("openstack")},
    }));
    json!({
        "title": "a provider",
        "type": "object",
        "properties": {"driver": {"enum": drivers}},
        "allOf": cases,
    })
}

fn section_schema(section: &Section) -> Value {
    let mut properties = Map::new();
    for key in section.all_keys() {
        // If several lists contain a key, the first one counts.
        properties.entry(key.name).or_insert_with(|| key_schema(section, key));
    }
    let rest = section.additional.as_ref().map_or(Value::Bool(false), shape_schema);
    let mut document = json!({
        "title": section.title,
        "type": "object",
        "properties": properties,
        "additionalProperties": rest,
    });
    let required: BTreeSet<&str> = section.all_keys().filter(|key| key.required).map(|key| key.name).collect();
    if !required.is_empty() {
        document["required"] = json!(required);
    }
    let rules = rules(section);
    if !rules.is_empty() {
        document["allOf"] = json!(rules);
    }
    document
}

/// The key's shape, with description and default for editors.
fn key_schema(section: &Section, key: &Key) -> Value {
    let mut document = shape_schema(&key.shape);
    if let (Some(description), Some(fields)) = (descriptions::find(section.title, key.name), document.as_object_mut()) {
        fields.insert("description".to_owned(), json!(description.text));
        fields.extend(description.default().map(|default| ("default".to_owned(), default)));
    }
    document
}

/// Keys of which at most one may be given, and keys of which at least one must be given.
fn rules(section: &Section) -> Vec<Value> {
    let mut rules = Vec::new();
    let members: Vec<(&str, &str)> =
        section.all_keys().filter_map(|key| key.group.map(|group| (group, key.name))).collect();
    for (index, (group, name)) in members.iter().enumerate() {
        for (_, other) in members[index + 1..].iter().filter(|(of, _)| of == group) {
            rules.push(json!({"not": {"required": [name, other]}}));
        }
    }
    for need in section.required_keys {
        let one: Vec<Value> = need.keys.iter().map(|key| json!({"required": [key]})).collect();
        rules.push(json!({"anyOf": one}));
    }
    rules
}

fn shape_schema(shape: &Shape) -> Value {
    match shape {
        Shape::Text => json!({"type": "string"}),
        Shape::Integer => json!({"type": ["integer", "boolean"]}),
        Shape::Float => json!({"type": "number"}),
        Shape::Convertible => {
            json!({"anyOf": [{"type": ["number", "boolean"]}, {"type": "string", "pattern": NUMBER}]})
        }
        Shape::Boolean => json!({"type": "boolean"}),
        Shape::AnyMap => json!({"type": "object"}),
        Shape::AnyList => json!({"type": "array"}),
        Shape::List(inner) => json!({"type": "array", "items": shape_schema(inner)}),
        Shape::TextMap(inner) => json!({"type": "object", "additionalProperties": shape_schema(inner)}),
        Shape::Map(section) => section_schema(section),
        Shape::Either(shapes) => json!({"anyOf": shapes.iter().map(shape_schema).collect::<Vec<_>>()}),
        Shape::OneOf(words) => json!({"enum": words}),
        Shape::OneOfOrNull(words) => {
            let words: Vec<Value> = words.iter().map(|word| json!(word)).chain([Value::Null]).collect();
            json!({"enum": words})
        }
        // Python's `match` is anchored at the start; a schema's pattern matches anywhere.
        Shape::Pattern(pattern) => {
            let expression = format!("^(?:{})", pattern.expression.trim_start_matches('^'));
            json!({"type": "string", "pattern": expression, "description": pattern.meaning})
        }
    }
}
