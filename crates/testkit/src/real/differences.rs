//! Differences of two JSON values: records of Nodepool 11 and of ours.

use std::collections::BTreeSet;

use serde_json::Value;

/// Differences of two values, each with its path. The values of `own` keys differ in every run, and need
/// only have the same type.
pub fn differences(path: &str, theirs: &Value, ours: &Value, own: &[&str]) -> Vec<String> {
    if let (Value::Object(theirs), Value::Object(ours)) = (theirs, ours) {
        let keys: BTreeSet<&String> = theirs.keys().chain(ours.keys()).collect();
        let missing = Value::from("no such key");
        let of_key = |key: &String| {
            let [theirs, ours] = [theirs, ours].map(|object| object.get(key).unwrap_or(&missing));
            differences(&format!("{path}/{key}"), theirs, ours, own)
        };
        return keys.into_iter().flat_map(of_key).collect();
    }
    let is_own = own.iter().any(|key| path.ends_with(&format!("/{key}")));
    if theirs == ours || (is_own && type_of(theirs) == type_of(ours)) {
        return Vec::new();
    }
    vec![format!("{path}: {theirs} in Nodepool 11, {ours} in ours")]
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "text",
        Value::Array(_) => "list",
        Value::Object(_) => "object",
    }
}
