//! Fields of a body, with the errors of values that they must not have.

use serde_json::{Map, Value};

use crate::server::response::{ApiError, ApiResult};

static EMPTY: Vec<Value> = Vec::new();

/// An object of a body, with its path, such as `boot_volume_attachment.volume`.
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// An object that has no fields except `known` ones.
    pub fn new(value: &'a Value, path: &str, known: &[&str]) -> ApiResult<Self> {
        let Some(object) = value.as_object() else {
            let message = "The JSON provided did not match the expected structure.";
            return Err(ApiError::field("validation_failure", path, "", message));
        };
        let fields = Self { object, path: path.to_owned() };
        match object.keys().find(|name| !known.contains(&name.as_str())) {
            Some(name) => {
                let message = "A field provided in the request is not valid.";
                Err(ApiError::field("invalid_request_field", &fields.field(name), "", message))
            }
            None => Ok(fields),
        }
    }

    pub fn field(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// Whether the field is there, even if it is null.
    pub fn has(&self, name: &str) -> bool {
        self.object.contains_key(name)
    }

    /// The error for the value of a field.
    pub fn invalid(&self, name: &str, code: &str, message: &str) -> ApiError {
        let value = match self.value(name) {
            Some(Value::String(text)) => text.clone(),
            None | Some(Value::Array(_) | Value::Object(_)) => String::new(),
            Some(other) => other.to_string(),
        };
        ApiError::field(code, &self.field(name), &value, message)
    }

    /// The error for a field that is missing.
    pub fn missing(&self, name: &str) -> ApiError {
        self.invalid(name, "validation_required_field", "Missing a required field.")
    }

    pub fn required(&self, name: &str) -> ApiResult<&'a Value> {
        self.value(name).ok_or_else(|| self.missing(name))
    }

    fn typed<T>(&self, name: &str, read: impl Fn(&'a Value) -> Option<T>) -> ApiResult<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let message = "The value type does not match the field type.";
        read(value).map(Some).ok_or_else(|| self.invalid(name, "validation_invalid_field_type", message))
    }

    pub fn text(&self, name: &str) -> ApiResult<Option<&'a str>> {
        self.typed(name, Value::as_str)
    }

    pub fn boolean(&self, name: &str) -> ApiResult<Option<bool>> {
        self.typed(name, Value::as_bool)
    }

    pub fn number(&self, name: &str) -> ApiResult<Option<u64>> {
        self.typed(name, Value::as_u64)
    }

    pub fn list(&self, name: &str) -> ApiResult<&'a [Value]> {
        Ok(self.typed(name, Value::as_array)?.unwrap_or(&EMPTY))
    }

    /// A name of a resource, if there is one.
    pub fn name(&self) -> ApiResult<Option<&'a str>> {
        let Some(name) = self.text("name")? else { return Ok(None) };
        match is_name(name) {
            true => Ok(Some(name)),
            false => Err(self.invalid("name", "validation_invalid_name", "The value is not a valid name.")),
        }
    }
}

/// Whether this is a name of a resource: at most 63 letters, digits and hyphens, not a digit alone, without a hyphen at
/// its end.
pub fn is_name(text: &str) -> bool {
    let is_sign = |sign: char| sign.is_ascii_lowercase() || sign.is_ascii_digit() || sign == '-';
    let rest = text.strip_prefix('-').unwrap_or(text);
    (1..=63).contains(&text.len())
        && text.chars().all(is_sign)
        && !text.ends_with('-')
        && rest.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit())
        && (rest.len() == text.len() || rest.starts_with(|first: char| first.is_ascii_lowercase()))
        && text.contains(|sign: char| sign.is_ascii_lowercase())
}

/// The body of a call as JSON.
pub fn parsed(body: &[u8]) -> ApiResult<Value> {
    let message = "The JSON provided did not match the expected structure.";
    serde_json::from_slice(body).map_err(|_| ApiError::with_message("validation_failure", message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_lower_case_and_end_with_a_letter_or_digit() {
        for name in ["a", "np0000000001", "npimage0000000001-3f", "-a1", "1a", "a-b"] {
            assert!(is_name(name), "{name}");
        }
        let long = "a".repeat(64);
        for name in ["", "A", "a_b", "a.b", "a-", "-", "12", "-1a", long.as_str()] {
            assert!(!is_name(name), "{name}");
        }
    }
}
