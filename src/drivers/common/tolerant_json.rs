//! JSON of clouds: fields that are null count as missing, and an element that cannot be read hides no other one.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use serde_json::{Error, Value};
use tracing::warn;

/// Elements that were reported, so that each is reported once.
static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// No more elements are reported.
const MAX_REPORTED: usize = 1000;

/// Reads a value whose fields may be null. Most have no such fields where one is expected, so the text is read twice
/// only after an error: a tree of a long list needs four times the time.
pub fn read<T: DeserializeOwned>(json: &[u8]) -> Result<T, Error> {
    serde_json::from_slice(json).or_else(|_| read_value(serde_json::from_slice(json)?))
}

/// Like `read`, for a value that has been parsed.
pub fn read_value<T: DeserializeOwned>(mut value: Value) -> Result<T, Error> {
    remove_nulls(&mut value);
    serde_json::from_value(value)
}

/// Reads the elements of a list. One that cannot be read still exists: it has these fields alone.
pub fn read_elements<T: DeserializeOwned>(list: &str, elements: &[Box<RawValue>], essential: &[&str]) -> Vec<T> {
    let read_one = |element: &RawValue| {
        let json = element.get().as_bytes();
        let error = match read(json) {
            Ok(element) => return Some(element),
            Err(error) => error,
        };
        let value: Value = serde_json::from_slice(json).ok()?;
        report(list, value["name"].as_str().unwrap_or_default(), &error);
        value.as_object()?;
        let fields = essential.iter().map(|key| ((*key).to_owned(), value[*key].clone()));
        read_value(Value::Object(fields.collect())).ok()
    };
    elements.iter().filter_map(|element| read_one(element)).collect()
}

fn report(list: &str, name: &str, error: &Error) {
    let mut reported = REPORTED.lock().unwrap_or_else(PoisonError::into_inner);
    if reported.len() < MAX_REPORTED && reported.insert(format!("{list} {name}")) {
        warn!(list, name, %error, "an element of a list cannot be read");
    }
}

fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(values) => {
            values.retain(|value| !value.is_null());
            values.iter_mut().for_each(remove_nulls);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Thing {
        name: String,
        size: u32,
        parts: Vec<Thing>,
    }

    #[test]
    fn nulls_count_as_missing_and_unreadable_elements_keep_their_names() {
        let json =
            r#"[{"name": "a", "size": null}, {"name": "b", "size": "many"}, {"name": "c", "parts": [null]}, 7, null]"#;
        let elements: Vec<Box<RawValue>> = serde_json::from_str(json).unwrap();
        let things: Vec<Thing> = read_elements("things", &elements, &["name"]);
        let names: Vec<&str> = things.iter().map(|thing| thing.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
