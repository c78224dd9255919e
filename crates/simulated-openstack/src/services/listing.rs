//! Paginated lists: the items of a page, and the link to the next page.

use std::cmp::Reverse;
use std::time::Duration;

use bytes::Bytes;
use regex_lite::Regex;
use serde_json::{Value, json};
use simulated_service::knobs::is_nth;

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, Kind, number_of};
use crate::response::Response;
use crate::services::server::{Server, Stage};

/// A page, and the marker of the next page if there is one.
pub struct Page {
    pub items: Vec<Value>,
    pub next: Option<String>,
}

/// The page that `limit` and `marker` of a call select; the error is an unknown marker.
pub fn page(call: &Call, mut items: Vec<Value>, max_size: u64) -> Result<Page, String> {
    if let Some(marker) = call.parameter("marker") {
        let index = items.iter().position(|item| item["id"] == marker).ok_or(marker)?;
        items.drain(..=index);
    }
    let limit = limit(call, max_size);
    // With `limit` in the call, a full page has a next page, which may be empty. Otherwise it has one only if items
    // remain.
    let full = items.len() >= limit && limit > 0 && (call.parameter("limit").is_some() || items.len() > limit);
    items.truncate(limit);
    let next = if full { items.last().and_then(|last| last["id"].as_str()).map(str::to_owned) } else { None };
    Ok(Page { items, next })
}

fn limit(call: &Call, max_size: u64) -> usize {
    let requested = call.parameter("limit").and_then(|limit| limit.parse::<u64>().ok()).filter(|limit| *limit > 0);
    usize::try_from(requested.unwrap_or(max_size).min(max_size)).unwrap_or(usize::MAX)
}

/// Whether a value matches a filter of a query.
pub fn matches(found: &Value, wanted: &str) -> bool {
    match found {
        Value::String(text) => text == wanted,
        Value::Bool(truth) => wanted.eq_ignore_ascii_case(if *truth { "true" } else { "false" }),
        Value::Number(number) => number.to_string() == wanted,
        Value::Null => wanted.is_empty(),
        Value::Array(_) | Value::Object(_) => false,
    }
}

/// The URL of the same list after another marker.
pub fn next_page(base: &str, call: &Call, marker: &str) -> String {
    let kept = call.query_string.split('&').filter(|pair| !pair.is_empty() && !pair.starts_with("marker="));
    let query: Vec<String> = kept.map(str::to_owned).chain([format!("marker={marker}")]).collect();
    format!("{base}{}?{}", call.path, query.join("&"))
}

impl Page {
    /// The format of Nova, Neutron and Cinder: `things` and `things_links`.
    pub fn linked(self, name: &str, base: &str, call: &Call) -> Value {
        let mut shown = json!({name: self.items});
        if let Some(marker) = self.next {
            shown[format!("{name}_links")] = json!([{"rel": "next", "href": next_page(base, call, &marker)}]);
        }
        shown
    }
}

/// Filter of a server list.
struct Filter {
    name: Option<Regex>,
    status: Option<String>,
}

impl Filter {
    fn from_call(call: &Call) -> Result<Self, Response> {
        let bad_request = |message: &str| Response::error(Service::Compute, 400, message);
        if let Some(limit) = call.parameter("limit")
            && limit.parse::<u64>().is_err()
        {
            let message = format!(
                "Invalid input for query parameters limit. Value: {limit}. '{limit}' does not match '^[0-9]*$'"
            );
            return Err(bad_request(&message));
        }
        let name = match call.parameter("name") {
            Some(name) => Some(Regex::new(name).map_err(|_| bad_request("Invalid filter: name"))?),
            None => None,
        };
        Ok(Self { name, status: call.parameter("status").map(str::to_uppercase) })
    }

    fn matches(&self, server: &Server, stage: Stage) -> bool {
        self.name.as_ref().is_none_or(|name| name.is_match(&server.name))
            && self.status.as_ref().is_none_or(|status| status == stage.status.name())
    }
}

impl Cloud {
    /// Lists servers, the newest first, as Nova does.
    pub fn list_servers(&mut self, call: &Call) -> Response {
        let filter = match Filter::from_call(call) {
            Ok(filter) => filter,
            Err(answer) => return answer,
        };
        let before = match call.parameter("marker") {
            None => u64::MAX,
            Some(marker) => match number_of(Kind::Server, marker) {
                Some(number) if self.servers.contains_key(&number) || self.deleted_servers.contains_key(&number) => {
                    number
                }
                _ => return Response::error(Service::Compute, 400, &format!("marker [{marker}] not found")),
            },
        };
        let limit = limit(call, self.knobs.page_size);
        let mut found = self.visible(&filter, before, limit.saturating_add(1));
        let more = found.len() > limit || (found.len() == limit && call.parameter("limit").is_some());
        found.truncate(limit);
        let detailed = call.parts.last().is_some_and(|part| part == "detail");
        let mut body = Vec::with_capacity(64 + found.len() * if detailed { 1800 } else { 400 });
        body.extend_from_slice(b"{\"servers\":[");
        for (index, (number, stage)) in found.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            body.extend_from_slice(&self.server_entry(*number, *stage, detailed, call.minor()));
        }
        body.push(b']');
        if let Some((last, _)) = found.last().filter(|_| more) {
            let href = next_page(&self.base, call, &crate::cloud::cloud::id(Kind::Server, *last));
            body.extend_from_slice(format!(",\"servers_links\":{}", json!([{"rel": "next", "href": href}])).as_bytes());
        }
        body.push(b'}');
        Response::rendered(200, body)
    }

    /// Matching servers below a number with their stages, as of now or as of `stale_lists_s` ago.
    fn visible(&self, filter: &Filter, before: u64, max_count: usize) -> Vec<(u64, Stage)> {
        let hidden_every = self.knobs.hidden_every;
        let passing = |(number, stage): (&u64, Option<Stage>), server: &Server| {
            if is_nth(hidden_every, *number) {
                return None;
            }
            stage.filter(|stage| filter.matches(server, *stage)).map(|stage| (*number, stage))
        };
        let present = self.servers.range(..before).rev();
        if self.knobs.stale_lists_s == 0.0 {
            let present = present.filter_map(|(number, server)| passing((number, Some(server.stage())), server));
            return present.take(max_count).collect();
        }
        let then = self.now.saturating_sub(Duration::from_secs_f64(self.knobs.stale_lists_s));
        let all = present.chain(self.deleted_servers.range(..before));
        let mut found: Vec<_> =
            all.filter_map(|(number, server)| passing((number, server.stage_at(then)), server)).collect();
        found.sort_by_key(|(number, _)| Reverse(*number));
        found.truncate(max_count);
        found
    }

    fn server_entry(&mut self, number: u64, stage: Stage, detailed: bool, minor: u32) -> Bytes {
        let present = self.servers.get(&number);
        let server = present.or_else(|| self.deleted_servers.get(&number)).expect("listed servers exist");
        if !detailed {
            let entry = json!({"id": server.id, "name": server.name, "links": server.links(&self.base)});
            return entry.to_string().into();
        }
        if present.is_some_and(|present| present.stage() == stage) {
            return self.rendered_json(number, minor).expect("the server exists");
        }
        self.server_json(server, stage, minor).to_string().into()
    }
}
