//! Response faults, which apply after the call was executed.

use serde_json::{Value, json};

use crate::call::Call;
use crate::faults::fault::{CallRule, FaultKind};
use crate::response::Response;
use crate::services::listing::next_page;

/// Applies a fault to a response; `None` if the response is lost. A response without affected fields stays unchanged.
pub fn apply_response_fault(mut answer: Response, fault: &CallRule, base: &str, call: &Call) -> Option<Response> {
    if fault.kind == FaultKind::LostAnswer {
        return None;
    }
    if fault.kind == FaultKind::Truncated {
        answer.body.truncate(answer.body.len() / 2);
        return Some(answer);
    }
    let Some(mut value) = answer.value() else { return Some(answer) };
    match fault.kind {
        FaultKind::MissingFields => remove_fields(&mut value, &fault.fields),
        FaultKind::UnknownState => replace_status(&mut value),
        FaultKind::PartialList => truncate_list(&mut value),
        FaultKind::RepeatedMarker => repeat_marker(&mut value, base, call),
        FaultKind::Status(_)
        | FaultKind::Html
        | FaultKind::Page
        | FaultKind::Empty
        | FaultKind::Redirect(_)
        | FaultKind::Closed
        | FaultKind::Hang
        | FaultKind::LostAnswer
        | FaultKind::Truncated => {}
    }
    answer.body = value.to_string().into();
    Some(answer)
}

fn remove_fields(value: &mut Value, fields: &[String]) {
    match value {
        Value::Object(object) => {
            object.retain(|key, _| !fields.contains(key));
            object.values_mut().for_each(|value| remove_fields(value, fields));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| remove_fields(item, fields)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn replace_status(value: &mut Value) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                if key == "status" && value.is_string() {
                    *value = json!("UNHEARD_OF");
                } else {
                    replace_status(value);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(replace_status),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The list in a response, and its key.
fn list(value: &mut Value) -> Option<(String, &mut Vec<Value>)> {
    let object = value.as_object_mut()?;
    let lists = object.iter_mut().filter(|(key, _)| !key.ends_with("_links"));
    lists.filter_map(|(key, value)| Some((key.clone(), value.as_array_mut()?))).next()
}

fn truncate_list(value: &mut Value) {
    let Some((name, items)) = list(value) else { return };
    items.truncate(items.len() / 2);
    if let Some(object) = value.as_object_mut() {
        object.remove(&format!("{name}_links"));
        object.remove("next");
    }
}

fn repeat_marker(value: &mut Value, base: &str, call: &Call) {
    let Some((name, items)) = list(value) else { return };
    let last = items.last().and_then(|last| last["id"].as_str()).unwrap_or_default().to_owned();
    let marker = call.parameter("marker").map_or(last, str::to_owned);
    match value.get("first") {
        // Glance's links are relative to its own root.
        Some(_) => value["next"] = json!(next_page("", call, &marker).trim_start_matches("/image")),
        None => value[format!("{name}_links")] = json!([{"rel": "next", "href": next_page(base, call, &marker)}]),
    }
}
