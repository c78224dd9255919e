//! YAML tree with the position of every value, before any interpretation by the loader.

use std::collections::BTreeMap;

use crate::diagnostics::Diagnostic;
pub use crate::scalar::Position;

/// A value and its position. Nodes with equal values are equal, regardless of their positions.
#[derive(Clone, Debug)]
pub struct YamlNode {
    pub at: Position,
    pub value: YamlValue,
}

/// Maps are equal regardless of the order of their keys.
#[derive(Clone, Debug)]
pub enum YamlValue {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    /// A date, with or without a time, as written.
    Date(String),
    Text(String),
    List(Vec<YamlNode>),
    Map(Vec<(YamlKey, YamlNode)>),
}

/// A key of a map. `text` is the key as JSON would write it: `on: 1` has the key `true`.
#[derive(Clone, Debug)]
pub struct YamlKey {
    pub at: Position,
    pub text: String,
    pub kind: KeyKind,
}

/// Type of a key. Lookups find only text keys; other kinds are mistakes or data of other programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyKind {
    Text,
    Number,
    Bool,
    Null,
}

impl PartialEq for YamlNode {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}

impl PartialEq for YamlKey {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text && self.kind == other.kind
    }
}

impl PartialEq for YamlValue {
    fn eq(&self, other: &Self) -> bool {
        use YamlValue::*;
        match (self, other) {
            (Null, Null) => true,
            (Bool(own), Bool(other)) => own == other,
            (Int(own), Int(other)) => own == other,
            // NaN equals itself here; otherwise every reload would replace the provider.
            (Float(own), Float(other)) => own == other || (own.is_nan() && other.is_nan()),
            (Date(own), Date(other)) | (Text(own), Text(other)) => own == other,
            (List(own), List(other)) => own == other,
            (Map(own), Map(other)) => own.len() == other.len() && by_key(own) == by_key(other),
            _ => false,
        }
    }
}

fn by_key(entries: &[(YamlKey, YamlNode)]) -> BTreeMap<(&str, KeyKind), &YamlNode> {
    entries.iter().map(|(key, node)| ((key.text.as_str(), key.kind), node)).collect()
}

impl YamlKey {
    pub fn text(at: Position, text: impl Into<String>) -> Self {
        Self { at, text: text.into(), kind: KeyKind::Text }
    }

    /// The key as an element of a path: `'name'`, `5`, `True`, `None`.
    pub fn in_path(&self) -> String {
        match (self.kind, self.text.as_str()) {
            (KeyKind::Text, text) => python_quoted(text),
            (KeyKind::Bool, "true") => "True".to_owned(),
            (KeyKind::Bool, _) => "False".to_owned(),
            (KeyKind::Null, _) => "None".to_owned(),
            (KeyKind::Number, text) => text.to_owned(),
        }
    }
}

/// A text in quotes, in the notation of paths and Python.
pub fn python_quoted(text: &str) -> String {
    let shown = text.chars().take(80).flat_map(|letter| match letter {
        '\\' | '\'' | '\n' | '\r' | '\t' => letter.escape_default().collect::<Vec<_>>(),
        letter if letter.is_control() => letter.escape_unicode().collect(),
        letter => vec![letter],
    });
    let shown: String = shown.collect();
    let more = if text.chars().nth(80).is_some() { "…" } else { "" };
    format!("'{shown}{more}'")
}

impl YamlValue {
    /// Name of the type for operators.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "nothing (null)",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "a whole number",
            Self::Float(_) => "a number with decimals",
            Self::Date(_) => "a date",
            Self::Text(_) => "text",
            Self::List(_) => "a list",
            Self::Map(_) => "a mapping",
        }
    }
}

impl YamlNode {
    pub fn new(at: Position, value: YamlValue) -> Self {
        Self { at, value }
    }

    /// The value of a key of this map.
    pub fn get(&self, key: &str) -> Option<&YamlNode> {
        let found = self.entries().iter().find(|(own, _)| own.kind == KeyKind::Text && own.text == key);
        found.map(|(_, node)| node)
    }

    /// The value of a key, where null counts as absent.
    pub fn given(&self, key: &str) -> Option<&YamlNode> {
        self.get(key).filter(|node| !node.is_null())
    }

    /// The keys and values of a map; empty for everything else.
    pub fn entries(&self) -> &[(YamlKey, YamlNode)] {
        if let YamlValue::Map(entries) = &self.value { entries } else { &[] }
    }

    /// The items of a list; empty for everything else.
    pub fn items(&self) -> &[YamlNode] {
        if let YamlValue::List(items) = &self.value { items } else { &[] }
    }

    pub fn as_text(&self) -> Option<&str> {
        if let YamlValue::Text(text) = &self.value { Some(text) } else { None }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.value, YamlValue::Null)
    }

    /// Truth value of Python: false for null, false, zero and empty values, else true.
    pub fn is_truthy(&self) -> bool {
        match &self.value {
            YamlValue::Null => false,
            YamlValue::Bool(value) => *value,
            YamlValue::Int(value) => *value != 0,
            YamlValue::Float(value) => *value != 0.0,
            YamlValue::Text(text) | YamlValue::Date(text) => !text.is_empty(),
            YamlValue::List(items) => !items.is_empty(),
            YamlValue::Map(entries) => !entries.is_empty(),
        }
    }

    /// A scalar as text, numbers and booleans as Python prints them; `None` for lists, maps and null.
    pub fn scalar_text(&self) -> Option<String> {
        match &self.value {
            YamlValue::Text(text) | YamlValue::Date(text) => Some(text.clone()),
            YamlValue::Int(value) => Some(value.to_string()),
            YamlValue::Float(value) => Some(float_text(*value)),
            YamlValue::Bool(true) => Some("True".to_owned()),
            YamlValue::Bool(false) => Some("False".to_owned()),
            YamlValue::Null | YamlValue::List(_) | YamlValue::Map(_) => None,
        }
    }

    /// A scalar as a number, as Python's `int()` and `float()` convert it.
    pub fn scalar_number(&self) -> Option<f64> {
        match &self.value {
            YamlValue::Bool(value) => Some(f64::from(u8::from(*value))),
            YamlValue::Int(value) => Some(*value as f64),
            YamlValue::Float(value) => Some(*value).filter(|value| !value.is_nan()),
            YamlValue::Text(text) => text.trim().replace('_', "").parse().ok().filter(|value: &f64| !value.is_nan()),
            _ => None,
        }
    }

    /// The text at a key; other scalars are converted. Absent and null are `None`.
    pub fn text(&self, key: &str) -> Result<Option<String>, Diagnostic> {
        let Some(node) = self.given(key) else { return Ok(None) };
        node.scalar_text().map(Some).ok_or_else(|| wrong_type("str", key, node))
    }

    /// The whole number at a key, converted as Python's `int()` does. Absent and null are `None`.
    pub fn integer(&self, key: &str) -> Result<Option<i64>, Diagnostic> {
        let Some(node) = self.given(key) else { return Ok(None) };
        let value = match &node.value {
            YamlValue::Bool(value) => Some(i64::from(*value)),
            YamlValue::Int(value) => Some(*value),
            // Rust's conversion truncates the decimals and saturates at the ends of the range.
            YamlValue::Float(value) if !value.is_nan() => Some(*value as i64),
            YamlValue::Text(text) => text.trim().replace('_', "").parse().ok(),
            _ => None,
        };
        value.map(Some).ok_or_else(|| wrong_type("int", key, node))
    }

    /// The number at a key, converted as Python's `float()` does. Absent and null are `None`.
    pub fn number(&self, key: &str) -> Result<Option<f64>, Diagnostic> {
        self.get(key).map_or(Ok(None), |node| node.as_number(key))
    }

    /// This value as a number; `key` is named in the error. Null is `None`.
    pub fn as_number(&self, key: &str) -> Result<Option<f64>, Diagnostic> {
        if self.is_null() {
            return Ok(None);
        }
        self.scalar_number().map(Some).ok_or_else(|| wrong_type("float", key, self))
    }

    /// The truth of the value at a key, as in Python's `bool()`: null is false, any text that is not empty is true.
    pub fn boolean(&self, key: &str) -> Option<bool> {
        self.get(key).map(YamlNode::is_truthy)
    }

    /// The items of the list at a key; absent and null are an empty list.
    pub fn list(&self, key: &str) -> Result<&[YamlNode], Diagnostic> {
        match self.given(key) {
            None => Ok(&[]),
            Some(YamlNode { value: YamlValue::List(items), .. }) => Ok(items),
            Some(node) => Err(wrong_type("a list", key, node)),
        }
    }

    /// The keys and values of the map at a key; absent and null are an empty one.
    pub fn map(&self, key: &str) -> Result<&[(YamlKey, YamlNode)], Diagnostic> {
        match self.given(key) {
            None => Ok(&[]),
            Some(YamlNode { value: YamlValue::Map(entries), .. }) => Ok(entries),
            Some(node) => Err(wrong_type("a dictionary", key, node)),
        }
    }

    /// The texts at a key, which are written as one text, one list of texts, or not at all.
    pub fn texts(&self, key: &str) -> Result<Vec<String>, Diagnostic> {
        let Some(node) = self.given(key) else { return Ok(Vec::new()) };
        let items = if let YamlValue::List(items) = &node.value { items } else { std::slice::from_ref(node) };
        items.iter().map(|item| item.scalar_text().ok_or_else(|| wrong_type("str", key, item))).collect()
    }

    /// The same data as JSON, for records. A value that JSON cannot represent becomes null.
    pub fn to_json(&self) -> serde_json::Value {
        use serde_json::Value;
        match &self.value {
            YamlValue::Null => Value::Null,
            YamlValue::Bool(value) => (*value).into(),
            YamlValue::Int(value) => (*value).into(),
            YamlValue::Float(value) => (*value).into(),
            YamlValue::Text(text) | YamlValue::Date(text) => text.as_str().into(),
            YamlValue::List(items) => items.iter().map(YamlNode::to_json).collect(),
            YamlValue::Map(entries) => {
                Value::Object(entries.iter().map(|(key, node)| (key.text.clone(), node.to_json())).collect())
            }
        }
    }
}

/// A float as Python prints it: `2.0` keeps its decimal.
fn float_text(value: f64) -> String {
    format!("{value:?}")
}

fn wrong_type(expected: &str, key: &str, found: &YamlNode) -> Diagnostic {
    let path = format!("data[{}]", python_quoted(key));
    Diagnostic::error(found.at, format!("expected {expected} for dictionary value @ {path}"))
        .path(path)
        .help(format!("{key} cannot be {}", found.value.type_name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use YamlValue::*;

    fn map(entries: Vec<(&str, YamlValue)>) -> YamlNode {
        let at = Position::default();
        let entries = entries.into_iter();
        YamlNode::new(at, Map(entries.map(|(key, value)| (YamlKey::text(at, key), YamlNode::new(at, value))).collect()))
    }

    #[test]
    fn numbers_are_read_as_python_converts_them() {
        let node = map(vec![
            ("text", Text(" 13 ".into())),
            ("float", Float(5.9)),
            ("yes", Bool(true)),
            ("null", Null),
            ("word", Text("hunter2".into())),
        ]);
        assert_eq!(node.integer("text"), Ok(Some(13)));
        assert_eq!(node.integer("float"), Ok(Some(5)));
        assert_eq!(node.integer("yes"), Ok(Some(1)));
        assert_eq!(node.integer("null"), Ok(None));
        assert_eq!(node.integer("absent"), Ok(None));
        let problem = node.integer("word").unwrap_err();
        assert_eq!(problem.message, "expected int for dictionary value @ data['word']");
        assert!(!problem.to_string().contains("hunter2"), "a value could be a secret: {problem}");
    }

    #[test]
    fn truth_is_pythons() {
        let node = map(vec![("no", Text("no".into())), ("empty", Text(String::new())), ("null", Null)]);
        assert_eq!(node.boolean("no"), Some(true));
        assert_eq!(node.boolean("empty"), Some(false));
        assert_eq!(node.boolean("null"), Some(false));
        assert_eq!(node.boolean("absent"), None);
    }

    #[test]
    fn maps_are_equal_in_any_order_and_place() {
        let mut moved = map(vec![("b", Int(2)), ("a", Int(1))]);
        moved.at = Position { line: 7, column: 7 };
        assert_eq!(map(vec![("a", Int(1)), ("b", Int(2))]), moved);
        assert_ne!(map(vec![("a", Int(1)), ("b", Int(2))]), map(vec![("a", Int(1)), ("b", Int(3))]));
        assert_ne!(map(vec![("a", Int(1))]), map(vec![("a", Int(1)), ("b", Int(2))]));
        assert_eq!(map(vec![("a", Float(f64::NAN))]), map(vec![("a", Float(f64::NAN))]));
    }

    #[test]
    fn one_text_and_a_list_of_texts_read_alike() {
        let at = Position::default();
        let list = List(vec![YamlNode::new(at, Text("a".into())), YamlNode::new(at, Int(5))]);
        let node = map(vec![("one", Text("a".into())), ("list", list), ("map", Map(vec![]))]);
        assert_eq!(node.texts("one"), Ok(vec!["a".to_owned()]));
        assert_eq!(node.texts("list"), Ok(vec!["a".to_owned(), "5".to_owned()]));
        assert!(node.texts("map").is_err());
    }
}
