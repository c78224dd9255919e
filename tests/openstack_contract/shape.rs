//! What a driver reads of an answer: keys that are there, with values of the right type.

use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JsonType {
    Text,
    Number,
    Bool,
    List,
    Object,
    /// A text that may be null.
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

/// Panics when a key is missing or of another type.
pub fn check(what: &str, value: &Value, shape: &[(&str, JsonType)]) {
    for (key, is) in shape {
        let found = value.get(key).unwrap_or_else(|| panic!("{what} has no {key}: {value}"));
        assert!(is.matches_value(found), "{key} of {what} is not {is:?}: {found}");
    }
}
