//! The subset of Python's format strings that server properties use: `{request.labels[0]}`,
//! `{request.tenant_name!r:>8}`.

use std::collections::BTreeMap;

use python_yaml::tree::YamlNode;
use serde_json::Value;

/// Replaces the fields of a format string. `root` returns the value of a field's first name, such as `request`.
pub fn interpolate(text: &str, root: impl Fn(&str) -> Option<Value>) -> Result<String, String> {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        result.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix(brace) {
            result.push_str(brace);
            rest = after;
        } else if brace == "{" {
            let end = rest.find('}').ok_or("expected '}' before end of string")?;
            result.push_str(&format_field(&rest[..end], &root)?);
            rest = &rest[end + 1..];
        } else {
            return Err("single '}' encountered in format string".to_owned());
        }
    }
    Ok(result + rest)
}

/// `name(.attribute|[index])*(!conversion)?(:spec)?`
fn format_field(field: &str, root: impl Fn(&str) -> Option<Value>) -> Result<String, String> {
    let (field, spec) = field.split_once(':').unwrap_or((field, ""));
    let (path, conversion) = field.split_once('!').unwrap_or((field, ""));
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, mut rest) = path.split_at(end);
    let mut value = root(name).ok_or_else(|| format!("unknown field {name:?}"))?;
    while !rest.is_empty() {
        let step;
        (step, rest) = match rest.strip_prefix('[') {
            Some(after) => {
                let (index, after) = after.split_once(']').ok_or("missing ']' in format string")?;
                (Access::Index(index), after)
            }
            None => {
                let after = rest.strip_prefix('.').ok_or_else(|| format!("{rest:?} is not an attribute or index"))?;
                let end = after.find(['.', '[']).unwrap_or(after.len());
                (Access::Attribute(&after[..end]), &after[end..])
            }
        };
        value = step.lookup(&value)?;
    }
    let text = match conversion {
        "" | "s" => python_str(&value),
        "r" | "a" => python_repr(&value),
        other => return Err(format!("unknown conversion specifier {other:?}")),
    };
    pad_text(text, spec)
}

enum Access<'a> {
    Attribute(&'a str),
    Index(&'a str),
}

impl Access<'_> {
    fn lookup(&self, value: &Value) -> Result<Value, String> {
        let found = match self {
            Access::Attribute(name) | Access::Index(name) if value.is_object() => value.get(*name),
            Access::Index(index) => index.parse().ok().and_then(|index: usize| value.get(index)),
            Access::Attribute(_) => None,
        };
        let (Access::Attribute(name) | Access::Index(name)) = self;
        found.cloned().ok_or_else(|| format!("the value has no attribute or index {name:?}"))
    }
}

/// Formats like Python's `str`.
pub fn python_str(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => python_repr(other),
    }
}

/// Formats like Python's `repr`.
fn python_repr(value: &Value) -> String {
    match value {
        Value::Null => "None".to_owned(),
        Value::Bool(true) => "True".to_owned(),
        Value::Bool(false) => "False".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => python_yaml::tree::python_quoted(text),
        Value::Array(items) => format!("[{}]", items.iter().map(python_repr).collect::<Vec<_>>().join(", ")),
        Value::Object(entries) => {
            let entries = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", python_yaml::tree::python_quoted(key), python_repr(value)));
            format!("{{{}}}", entries.collect::<Vec<_>>().join(", "))
        }
    }
}

/// `[[fill]align][width][.precision][s]`. The number formats of Python's mini-language are not supported.
fn pad_text(text: String, spec: &str) -> Result<String, String> {
    if spec.is_empty() {
        return Ok(text);
    }
    let unknown = || format!("unsupported format {spec:?}: expected [[fill]align][width][.precision]");
    let letters: Vec<char> = spec.chars().collect();
    let is_align = |letter: Option<&char>| letter.is_some_and(|letter| "<>^".contains(*letter));
    let (fill, align, rest) = match (is_align(letters.get(1)), is_align(letters.first())) {
        (true, _) => (letters[0], letters[1], &letters[2..]),
        (false, true) => (' ', letters[0], &letters[1..]),
        (false, false) => (' ', '<', &letters[..]),
    };
    let rest: String = rest.iter().collect();
    let rest = rest.strip_suffix('s').unwrap_or(&rest);
    let (width, precision) = rest.split_once('.').map_or((rest, None), |(width, precision)| (width, Some(precision)));
    let width: usize = if width.is_empty() { 0 } else { width.parse().map_err(|_| unknown())? };
    let text = match precision {
        Some(most) => text.chars().take(most.parse().map_err(|_| unknown())?).collect(),
        None => text,
    };
    let missing = width.min(10_000).saturating_sub(text.chars().count());
    let before = match align {
        '>' => missing,
        '^' => missing / 2,
        _ => 0,
    };
    let pad = |count: usize| std::iter::repeat_n(fill, count).collect::<String>();
    Ok(pad(before) + &text + &pad(missing - before))
}

/// A mapping of texts, in which other values are written as Python writes them.
pub fn texts(node: &YamlNode, key: &str) -> BTreeMap<String, String> {
    let entries = node.given(key).map(YamlNode::entries).unwrap_or_default();
    entries.iter().map(|(key, value)| (key.text.clone(), python_str(&value.to_json()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn interpolated(text: &str) -> Result<String, String> {
        let request = json!({"id": "100-1", "labels": ["a", "b"], "tenant_name": null, "requestor_data": {"job": "x"}});
        interpolate(text, |name| (name == "request").then(|| request.clone()))
    }

    #[test]
    fn fields_are_replaced_by_their_values() {
        for (text, expected) in [
            ("plain", "plain"),
            ("{{{request.id}}}", "{100-1}"),
            ("Tenant is {request.tenant_name}", "Tenant is None"),
            ("{request.labels[1]} of {request.labels}", "b of ['a', 'b']"),
            ("{request.requestor_data[job]!r}", "'x'"),
            ("[{request.id:>8}|{request.id:_^9.3}|{request.id:8s}]", "[   100-1|___100___|100-1   ]"),
        ] {
            assert_eq!(interpolated(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn malformed_strings_and_unknown_fields_are_rejected() {
        for text in
            ["{", "}", "{request.nothing}", "{other}", "{request.labels[9]}", "{request.id:x}", "{request!z}", "{}"]
        {
            assert!(interpolated(text).is_err(), "{text}");
        }
    }
}
