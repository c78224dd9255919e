//! JSON of clouds: fields that are null count as missing, and an element that cannot be read hides no other one.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde::de::DeserializeOwned;
use serde_json::{Error, Value};
use tracing::warn;

/// Elements that were reported, so that each is reported once.
static REPORTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
/// No more elements are reported.
const MAX_REPORTED: usize = 1000;

/// Reads a value whose fields may be null.
pub fn read<T: DeserializeOwned>(mut value: Value) -> Result<T, Error> {
    remove_nulls(&mut value);
    serde_json::from_value(value)
}

/// Reads the elements of a list. One that cannot be read still exists: it has these fields alone.
pub fn read_elements<T: DeserializeOwned>(list: &str, values: Vec<Value>, essential: &[&str]) -> Vec<T> {
    let read_one = |value: Value| match read(value.clone()) {
        Ok(element) => Some(element),
        Err(error) => {
            report(list, value["name"].as_str().unwrap_or_default(), &error);
            value.as_object()?;
            let fields = essential.iter().map(|key| ((*key).to_owned(), value[*key].clone()));
            read(Value::Object(fields.collect())).ok()
        }
    };
    values.into_iter().filter_map(read_one).collect()
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
    use serde_json::json;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct Thing {
        name: String,
        size: u32,
    }

    #[test]
    fn nulls_count_as_missing_and_unreadable_elements_keep_their_names() {
        let values =
            vec![json!({"name": "a", "size": null}), json!({"name": "b", "size": "many"}), json!(7), json!(null)];
        let things: Vec<Thing> = read_elements("things", values, &["name"]);
        let names: Vec<&str> = things.iter().map(|thing| thing.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
    }
}
