//! Validation of objects: the JSON types that decoding requires, names and labels.

use serde_json::Value;

use crate::cluster::quantity::Quantity;
use crate::cluster::quotas;
use crate::cluster::resources::{NameRule, Resource};
use crate::server::response::{ApiResult, Cause, Response};

const LABEL_TEXT: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
    start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_TEXT: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
    '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is \
    '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const VALUE_TEXT: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
    and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for \
    validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const KEY_TEXT: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with \
    an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
    '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const QUANTITY_TEXT: &str = "quantities must match the regular expression \
    '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// Parses a body as an object of this resource.
pub fn decode(resource: &Resource, body: &[u8]) -> ApiResult<Value> {
    let value: Value = serde_json::from_slice(body).map_err(|error| {
        let text = format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: \
             {error}",
            resource.kind_name
        );
        Response::bad_request(text)
    })?;
    if !value.is_object() {
        return Err(Response::bad_request("the object provided is unrecognized: it is not a JSON object"));
    }
    let kind = value["kind"].as_str().unwrap_or(resource.kind_name);
    if kind != resource.kind_name {
        return Err(Response::bad_request(format!(
            "{kind} in version \"{}\" cannot be handled as a {}: converting ({kind}) to ({}): unknown conversion",
            value["apiVersion"].as_str().unwrap_or("v1"),
            resource.kind_name,
            resource.kind_name
        )));
    }
    check_shape(resource, &value)?;
    for (map, field) in [("labels", "Labels"), ("annotations", "Annotations")] {
        check_strings(resource, &value["metadata"][map], field)?;
    }
    for container in value["spec"]["containers"].as_array().into_iter().flatten() {
        check_quantities(resource, container)?;
    }
    Ok(value)
}

/// Refuses values that are no objects where the simulation needs some.
fn check_shape(resource: &Resource, value: &Value) -> ApiResult<()> {
    let is_object = |value: &Value| value.is_object() || value.is_null();
    let parts = ["metadata", "spec", "status", "data", "roleRef"];
    let mut containers = value["spec"]["containers"].as_array().into_iter().flatten();
    let is_well_formed = parts.iter().all(|part| is_object(&value[part]))
        && containers.all(|container| container.is_object() && is_object(&container["resources"]));
    if is_well_formed { Ok(()) } else { Err(undecodable(resource, "expects { or n", "")) }
}

fn undecodable(resource: &Resource, problem: &str, near: &str) -> Response {
    let kind = resource.kind_name;
    Response::bad_request(format!(
        "{kind} in version \"{}\" cannot be handled as a {kind}: {problem}, error found in #10 byte of ...|{near}|..., \
         bigger context ...|{near}|...",
        resource.api_version()
    ))
}

fn check_strings(resource: &Resource, map: &Value, field: &str) -> ApiResult<()> {
    for (key, value) in map.as_object().into_iter().flatten() {
        if !value.is_string() && !value.is_null() {
            let found = value.to_string();
            let first = found.chars().next().unwrap_or('?');
            let problem = format!(
                "v1.{}.ObjectMeta: v1.ObjectMeta.{field}: ReadString: expects \" or n, but found {first}",
                resource.kind_name
            );
            return Err(undecodable(resource, &problem, &format!("\"{key}\":{found}")));
        }
    }
    Ok(())
}

fn check_quantities(resource: &Resource, container: &Value) -> ApiResult<()> {
    for (list, field) in [("requests", "Requests"), ("limits", "Limits")] {
        for (name, amount) in container["resources"][list].as_object().into_iter().flatten() {
            if Quantity::parse(&quotas::text(amount)).is_none() {
                let problem = format!(
                    "v1.Pod.Spec: v1.PodSpec.Containers: []v1.Container: v1.Container.Resources: \
                     v1.ResourceRequirements.{field}: unmarshalerDecoder: {QUANTITY_TEXT}"
                );
                return Err(undecodable(resource, &problem, &format!("\"{name}\":{amount}")));
            }
        }
    }
    Ok(())
}

/// Problems with the name and the labels.
pub fn metadata_causes(resource: &Resource, metadata: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let name = metadata["name"].as_str().unwrap_or_default();
    if name.is_empty() {
        causes.push(Cause::required("metadata.name", "name or generateName is required"));
    } else {
        let problems = name_problems(resource.names, name);
        causes.extend(problems.into_iter().map(|problem| Cause::invalid("metadata.name", name, &problem)));
    }
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        let part = key.rsplit_once('/').map_or(key.as_str(), |(_, part)| part);
        if !is_label_text(part) || part.is_empty() {
            causes.push(Cause::invalid("metadata.labels", key, KEY_TEXT));
        }
        let value = value.as_str().unwrap_or_default();
        if value.len() > 63 {
            causes.push(Cause::invalid("metadata.labels", value, "must be no more than 63 characters"));
        }
        if !is_label_text(value) {
            causes.push(Cause::invalid("metadata.labels", value, VALUE_TEXT));
        }
    }
    causes
}

/// Problems with a name.
pub fn name_problems(rule: NameRule, name: &str) -> Vec<String> {
    let too_long = |limit: usize| (name.len() > limit).then(|| format!("must be no more than {limit} characters"));
    let wrong = |is_valid: bool, text: &str| (!is_valid).then(|| text.to_owned());
    let problems = match rule {
        NameRule::Label => [too_long(63), wrong(is_dns_label(name), LABEL_TEXT)],
        NameRule::Subdomain => [too_long(253), wrong(name.split('.').all(is_dns_label), SUBDOMAIN_TEXT)],
        NameRule::PathSegment => {
            let is_dots = matches!(name, "." | "..");
            let forbidden = ['/', '%'].into_iter().find(|sign| name.contains(*sign));
            [is_dots.then(|| format!("may not be '{name}'")), forbidden.map(|sign| format!("may not contain '{sign}'"))]
        }
    };
    problems.into_iter().flatten().collect()
}

fn is_dns_label(text: &str) -> bool {
    is_framed(text, |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit(), b"-") && !text.is_empty()
}

fn is_label_text(text: &str) -> bool {
    is_framed(text, |byte| byte.is_ascii_alphanumeric(), b"-_.")
}

/// Whether a text consists of some letters and, except at its ends, some other signs.
fn is_framed(text: &str, is_letter: impl Fn(u8) -> bool, inner: &[u8]) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().all(|byte| is_letter(*byte) || inner.contains(byte))
        && bytes.first().is_none_or(|byte| is_letter(*byte))
        && bytes.last().is_none_or(|byte| is_letter(*byte))
}
