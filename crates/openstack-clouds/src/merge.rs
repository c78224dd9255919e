//! Values of clouds files with file and position, and maps that are merged like Python's.

use std::sync::Arc;

use crate::error::CloudsError;
use python_yaml::diagnostics::Diagnostic;
use python_yaml::tree::{Position, YamlNode, YamlValue};

/// Source of a value: a file, an environment variable or a table of this program.
#[derive(Clone)]
pub struct Origin {
    pub file: Arc<str>,
    pub at: Position,
}

/// A value with its origin. Not `Debug`, because it may be a password.
#[derive(Clone)]
pub struct Node {
    pub origin: Origin,
    pub value: Value,
}

#[derive(Clone)]
pub enum Value {
    Null,
    Bool(bool),
    /// A number or a date as Python prints it.
    Number(String),
    Text(String),
    List(Vec<Node>),
    Map(Map),
}

/// Keys in the order of their first appearance, which decides between two spellings of a key.
#[derive(Clone, Default)]
pub struct Map(pub Vec<(String, Node)>);

impl Origin {
    /// An origin without lines.
    pub fn named(name: impl AsRef<str>) -> Self {
        Self { file: name.as_ref().into(), at: Position::default() }
    }

    pub fn diagnostic(&self, message: impl Into<String>, help: impl Into<String>) -> Diagnostic {
        Diagnostic::error(self.at, message).help(help).in_file(&self.file)
    }

    pub fn invalid(&self, message: impl Into<String>, help: impl Into<String>) -> CloudsError {
        CloudsError::Invalid(self.diagnostic(message, help))
    }
}

impl Node {
    pub fn text(origin: &Origin, text: impl Into<String>) -> Self {
        Self { origin: origin.clone(), value: Value::Text(text.into()) }
    }

    pub fn from_yaml(node: YamlNode, file: &Arc<str>) -> Self {
        let number = node.scalar_text();
        let value = match node.value {
            YamlValue::Null => Value::Null,
            YamlValue::Bool(value) => Value::Bool(value),
            YamlValue::Text(text) => Value::Text(text),
            YamlValue::Int(_) | YamlValue::Float(_) | YamlValue::Date(_) => Value::Number(number.unwrap_or_default()),
            YamlValue::List(items) => Value::List(items.into_iter().map(|item| Self::from_yaml(item, file)).collect()),
            YamlValue::Map(entries) => {
                let entries = entries.into_iter().map(|(key, node)| (key.text, Self::from_yaml(node, file)));
                Value::Map(Map(entries.collect()))
            }
        };
        Self { origin: Origin { file: file.clone(), at: node.at }, value }
    }

    /// JSON values have no position.
    pub fn from_json(value: serde_json::Value, file: &Arc<str>) -> Self {
        use serde_json::Value as Json;
        let value = match value {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(value),
            Json::Number(number) => Value::Number(number.to_string()),
            Json::String(text) => Value::Text(text),
            Json::Array(items) => Value::List(items.into_iter().map(|item| Self::from_json(item, file)).collect()),
            Json::Object(entries) => {
                Value::Map(Map(entries.into_iter().map(|(key, item)| (key, Self::from_json(item, file))).collect()))
            }
        };
        Self { origin: Origin { file: file.clone(), at: Position::default() }, value }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.value, Value::Null)
    }

    /// The error for a `what` of the wrong type.
    pub fn type_error(&self, what: &str, expected: &str) -> CloudsError {
        let found = match self.value {
            Value::Null => "nothing (null)",
            Value::Bool(_) => "a boolean",
            Value::Number(_) => "a number",
            Value::Text(_) => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a mapping",
        };
        self.origin.invalid(format!("{what} is {found}"), format!("write {expected}"))
    }

    /// Any scalar as text, as Python prints it. Null is `None`.
    pub fn scalar(&self, what: &str) -> Result<Option<String>, CloudsError> {
        match &self.value {
            Value::Null => Ok(None),
            Value::Bool(true) => Ok(Some("True".to_owned())),
            Value::Bool(false) => Ok(Some("False".to_owned())),
            Value::Number(text) | Value::Text(text) => Ok(Some(text.clone())),
            Value::List(_) | Value::Map(_) => Err(self.type_error(what, "text")),
        }
    }

    /// A boolean or a text. Only the text `true`, in upper or lower case, is true. Null is false.
    pub fn flag(&self, what: &str) -> Result<bool, CloudsError> {
        match &self.value {
            Value::Null => Ok(false),
            Value::Bool(value) => Ok(*value),
            Value::Text(text) => Ok(text.eq_ignore_ascii_case("true")),
            Value::Number(_) | Value::List(_) | Value::Map(_) => Err(self.type_error(what, "true or false")),
        }
    }

    /// A mapping; null is an empty one.
    pub fn map(&self, what: &str) -> Result<Map, CloudsError> {
        match &self.value {
            Value::Null => Ok(Map::default()),
            Value::Map(map) => Ok(map.clone()),
            _ => Err(self.type_error(what, "a mapping (lines of `key: value`, indented below it)")),
        }
    }

    /// The items of a list; null is an empty one.
    pub fn list(&self, what: &str) -> Result<&[Node], CloudsError> {
        match &self.value {
            Value::Null => Ok(&[]),
            Value::List(items) => Ok(items),
            _ => Err(self.type_error(what, "a list (lines that begin with `- `)")),
        }
    }
}

impl Map {
    pub fn get(&self, key: &str) -> Option<&Node> {
        self.0.iter().find(|(own, _)| own == key).map(|(_, node)| node)
    }

    /// The value of a key, where null counts as absent.
    pub fn given(&self, key: &str) -> Option<&Node> {
        self.get(key).filter(|node| !node.is_null())
    }

    /// Sets the value of a key; an existing key keeps its position.
    pub fn set(&mut self, key: &str, node: Node) {
        match self.0.iter_mut().find(|(own, _)| own == key) {
            Some((_, old)) => *old = node,
            None => self.0.push((key.to_owned(), node)),
        }
    }

    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let at = self.0.iter().position(|(own, _)| own == key)?;
        Some(self.0.remove(at).1)
    }

    /// The scalar at a key as text; an empty one counts as absent.
    pub fn text(&self, key: &str) -> Result<Option<String>, CloudsError> {
        let Some(node) = self.get(key) else { return Ok(None) };
        Ok(node.scalar(key)?.filter(|text| !text.is_empty()))
    }

    pub fn flag_or(&self, key: &str, default: bool) -> Result<bool, CloudsError> {
        self.get(key).map_or(Ok(default), |node| node.flag(key))
    }

    pub fn map(&self, key: &str) -> Result<Map, CloudsError> {
        self.get(key).map_or_else(|| Ok(Map::default()), |node| node.map(key))
    }

    pub fn list(&self, key: &str) -> Result<&[Node], CloudsError> {
        self.get(key).map_or(Ok(&[]), |node| node.list(key))
    }

    /// Merges the secure file over the plain one: nested mappings are merged, everything else is replaced.
    pub fn merge_deep(&mut self, stronger: Map) {
        for (key, node) in stronger.0 {
            let merged = match (self.get(&key).map(|old| &old.value), node.value) {
                (Some(Value::Map(old)), Value::Map(new)) => {
                    let mut old = old.clone();
                    old.merge_deep(new);
                    Value::Map(old)
                }
                (_, value) => value,
            };
            self.set(&key, Node { origin: node.origin, value: merged });
        }
    }

    /// Merges cloud over profile over defaults: only `auth` is merged, key by key; everything else is replaced.
    pub fn merge_entry(&mut self, stronger: Map) -> Result<(), CloudsError> {
        for (key, node) in stronger.0 {
            if key == "auth" {
                let mut auth = self.map("auth")?;
                for (option, value) in node.map("auth")?.0 {
                    auth.set(&option, value);
                }
                self.set("auth", Node { origin: node.origin, value: Value::Map(auth) });
            } else {
                self.set(&key, node);
            }
        }
        Ok(())
    }

    /// Replaces dashes with underscores, also in nested mappings. If both spellings exist, the later one counts.
    pub fn with_underscores(self) -> Self {
        let mut result = Self::default();
        for (key, node) in self.0 {
            let value = match node.value {
                Value::Map(map) => Value::Map(map.with_underscores()),
                value => value,
            };
            result.set(&key.replace('-', "_"), Node { origin: node.origin, value });
        }
        result
    }

    /// The text with `{key}` replaced by the value of that key, and `{{` by a brace.
    pub fn interpolate(&self, what: &str, text: &str, origin: &Origin) -> Result<String, CloudsError> {
        let help = "`{name}` stands for the setting of that name in this cloud, `{{` for a brace";
        let broken = |reason: String| origin.invalid(reason, help);
        let mut interpolated = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            interpolated.push_str(&rest[..at]);
            let brace = &rest[at..at + 1];
            rest = &rest[at + 1..];
            if let Some(after) = rest.strip_prefix(brace) {
                interpolated.push_str(brace);
                rest = after;
            } else if let Some((name, after)) = rest.split_once('}').filter(|_| brace == "{") {
                // The name is not shown, because an unused secret may contain braces.
                let node =
                    self.get(name).ok_or_else(|| broken(format!("{what} refers to a setting that does not exist")))?;
                interpolated.push_str(&node.scalar(name)?.unwrap_or_else(|| "None".to_owned()));
                rest = after;
            } else {
                return Err(broken(format!("{what} has a single brace")));
            }
        }
        interpolated.push_str(rest);
        Ok(interpolated)
    }
}
