//! Fields of a body, with the errors of values that they must not have.

use serde_json::{Map, Value};

use crate::server::response::{ApiError, ApiResult};

static EMPTY: Vec<Value> = Vec::new();

/// An object of a body, with its path, such as `resource.disks[0]`.
pub struct Fields<'a> {
    object: &'a Map<String, Value>,
    path: String,
}

impl<'a> Fields<'a> {
    /// An object that has no fields except `known` ones.
    pub fn new(value: &'a Value, path: &str, known: &[&str]) -> ApiResult<Self> {
        let Some(object) = value.as_object() else {
            let text = format!("Invalid value at '{path}' (type.googleapis.com/compute), {value}");
            return Err(ApiError::new("badRequest", text));
        };
        if let Some(name) = object.keys().find(|name| !known.contains(&name.as_str())) {
            let place = path.trim_start_matches("resource").trim_start_matches('.');
            let place = if place.is_empty() { String::new() } else { format!(" at '{place}'") };
            let text = format!("Invalid JSON payload received. Unknown name \"{name}\"{place}: Cannot find field.");
            return Err(ApiError::new("badRequest", text));
        }
        Ok(Self { object, path: path.to_owned() })
    }

    pub fn field(&self, name: &str) -> String {
        format!("{}.{name}", self.path)
    }

    pub fn value(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// The error for the value of a field.
    pub fn invalid(&self, name: &str, why: &str) -> ApiError {
        let value = match self.value(name) {
            None => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(Value::Array(_) | Value::Object(_)) => String::new(),
            Some(other) => other.to_string(),
        };
        ApiError::invalid(&self.field(name), &value, why)
    }

    fn typed<T>(&self, name: &str, read: impl Fn(&'a Value) -> Option<T>) -> ApiResult<Option<T>> {
        let Some(value) = self.value(name) else { return Ok(None) };
        let error = || ApiError::new("badRequest", format!("Invalid value at '{}', {value}", self.field(name)));
        read(value).map(Some).ok_or_else(error)
    }

    pub fn text(&self, name: &str) -> ApiResult<Option<&'a str>> {
        self.typed(name, Value::as_str)
    }

    pub fn boolean(&self, name: &str) -> ApiResult<Option<bool>> {
        self.typed(name, Value::as_bool)
    }

    /// A number, which may be text: JSON has no integers of 64 bits.
    pub fn number(&self, name: &str) -> ApiResult<Option<u64>> {
        self.typed(name, |value| value.as_u64().or_else(|| value.as_str()?.parse().ok()))
    }

    pub fn list(&self, name: &str) -> ApiResult<&'a [Value]> {
        Ok(self.typed(name, Value::as_array)?.unwrap_or(&EMPTY))
    }

    /// A field that has to be one of these values.
    pub fn one_of(&self, name: &str, values: &[&str]) -> ApiResult<Option<&'a str>> {
        match self.text(name)? {
            Some(value) if !values.contains(&value) => {
                Err(self.invalid(name, &format!("Must be one of {}.", values.join(", "))))
            }
            value => Ok(value),
        }
    }
}
