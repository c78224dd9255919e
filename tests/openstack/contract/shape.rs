//! Shape of a reply: each key that a driver reads exists and has a value of the right type.

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonType {
    Text,
    Number,
    Bool,
    List,
    Object,
    /// A string or null.
    TextOrNull,
}

impl JsonType {
    fn matches_value(self, value: &Value) -> bool {
        match self {
            Self::Text => value.is_string(),
            Self::Number => value.is_number(),
            Self::Bool => value.is_boolean(),
            Self::List => value.is_array(),
            Self::Object => value.is_object(),
            Self::TextOrNull => value.is_string() || value.is_null(),
        }
    }
}

/// Panics if a key is missing or has another type.
pub fn check(what: &str, value: &Value, shape: &[(&str, JsonType)]) {
    for (key, is) in shape {
        let found = value.get(key).unwrap_or_else(|| panic!("{what} has no {key}: {value}"));
        assert!(is.matches_value(found), "{key} of {what} is not {is:?}: {found}");
    }
}
