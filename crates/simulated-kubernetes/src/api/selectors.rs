//! Label and field selectors.

use serde_json::Value;

use crate::cluster::resources::Kind;
use crate::cluster::store::Object;
use crate::server::call::Call;
use crate::server::response::{ApiResult, Response};

#[derive(Default)]
pub struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldRequirement>,
}

struct Requirement {
    key: String,
    operator: Operator,
}

enum Operator {
    Exists,
    Missing,
    In(Vec<String>),
    NotIn(Vec<String>),
}

struct FieldRequirement {
    /// Pointer into the object.
    pointer: &'static str,
    is_equal: bool,
    value: String,
}

impl Selector {
    pub fn from_call(call: &Call, kind: Kind) -> ApiResult<Self> {
        let labels = split_outside_parentheses(call.parameter("labelSelector").unwrap_or_default());
        let labels = labels.into_iter().map(requirement).collect::<ApiResult<_>>()?;
        let fields = call.parameter("fieldSelector").unwrap_or_default();
        let fields = fields.split(',').filter(|one| !one.is_empty());
        Ok(Self { labels, fields: fields.map(|one| field_requirement(one, kind)).collect::<ApiResult<_>>()? })
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &Object) -> bool {
        let labels = &object.metadata()["labels"];
        self.labels.iter().all(|requirement| requirement.is_met(labels[&requirement.key].as_str()))
            && self.fields.iter().all(|field| {
                let value = object.value.pointer(field.pointer).and_then(Value::as_str).unwrap_or_default();
                (value == field.value) == field.is_equal
            })
    }
}

impl Requirement {
    fn is_met(&self, label: Option<&str>) -> bool {
        match &self.operator {
            Operator::Exists => label.is_some(),
            Operator::Missing => label.is_none(),
            Operator::In(values) => label.is_some_and(|label| values.iter().any(|value| value == label)),
            Operator::NotIn(values) => !label.is_some_and(|label| values.iter().any(|value| value == label)),
        }
    }
}

fn split_outside_parentheses(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => {
                parts.push(&text[start..index]);
                start = index + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn requirement(text: &str) -> ApiResult<Requirement> {
    let unparsable = || Response::bad_request(format!("unable to parse requirement: {text}"));
    let new = |key: &str, operator| {
        let key = key.trim();
        let is_key = !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
        if is_key { Ok(Requirement { key: key.to_owned(), operator }) } else { Err(unparsable()) }
    };
    for (word, is_in) in [(" notin ", false), (" in ", true)] {
        if let Some((key, values)) = text.split_once(word) {
            let values = values.trim().strip_prefix('(').and_then(|values| values.strip_suffix(')'));
            let values = values.ok_or_else(unparsable)?.split(',').map(|value| value.trim().to_owned()).collect();
            return new(key, if is_in { Operator::In(values) } else { Operator::NotIn(values) });
        }
    }
    if let Some((key, value)) = text.split_once("!=") {
        return new(key, Operator::NotIn(vec![value.trim().to_owned()]));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        return new(key, Operator::In(vec![value.trim().to_owned()]));
    }
    match text.strip_prefix('!') {
        Some(key) => new(key, Operator::Missing),
        None => new(text, Operator::Exists),
    }
}

fn field_requirement(text: &str, kind: Kind) -> ApiResult<FieldRequirement> {
    let equal = || text.split_once("==").or_else(|| text.split_once('=')).map(|(key, value)| (key, value, true));
    let unequal = text.split_once("!=").map(|(key, value)| (key, value, false));
    let (key, value, is_equal) =
        unequal.or_else(equal).ok_or_else(|| Response::bad_request(format!("invalid selector: '{text}'")))?;
    let pointer = match (key, kind) {
        ("metadata.name", _) => "/metadata/name",
        ("metadata.namespace", _) => "/metadata/namespace",
        ("spec.nodeName", Kind::Pod) => "/spec/nodeName",
        ("status.phase", Kind::Pod | Kind::Namespace) => "/status/phase",
        ("status.podIP", Kind::Pod) => "/status/podIP",
        ("type", Kind::Secret) => "/type",
        _ => {
            let text =
                format!("\"{key}\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"");
            return Err(Response::bad_request(text));
        }
    };
    Ok(FieldRequirement { pointer, is_equal, value: value.to_owned() })
}
