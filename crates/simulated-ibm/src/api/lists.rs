//! Lists: filters, pages, and their JSON.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::table::{Entry, Table};
use crate::state::world::World;

const DEFAULT_LIMIT: usize = 50;
const MAX_LIMIT: usize = 100;

/// The parameters of a list.
pub struct ListQuery {
    /// Paths of fields with the values that they must have; a comma separates alternatives.
    filters: Vec<(String, String)>,
    order: Order,
    /// The number of the last item of the page before.
    after: Option<u64>,
    limit: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    NewestFirst,
    OldestFirst,
}

/// Items of one page, and the number of the last one if there is a next page.
pub struct Page<'t, T> {
    rows: Vec<&'t Entry<T>>,
    next: Option<u64>,
    total: usize,
}

impl ListQuery {
    /// Reads the parameters, which are those of all lists and `filters`. `page` is the longest page; 0: no maximum.
    pub fn new(call: &Call, filters: &[&str], page: usize) -> ApiResult<Self> {
        let mut query = Self { filters: Vec::new(), order: Order::NewestFirst, after: None, limit: DEFAULT_LIMIT };
        for (name, value) in call.parameters() {
            let invalid = || ApiError::parameter("bad_query_parameter", name, value);
            match name {
                "version" | "generation" => {}
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
                    query.limit = limit.ok_or_else(invalid)?;
                }
                "start" => query.after = Some(decoded(value).ok_or_else(invalid)?),
                "sort" if value == "-created_at" => query.order = Order::NewestFirst,
                "sort" if value == "created_at" => query.order = Order::OldestFirst,
                _ if filters.contains(&name) => query.filters.push((name.to_owned(), value.to_owned())),
                _ => return Err(invalid()),
            }
        }
        if page > 0 {
            query.limit = query.limit.min(page);
        }
        Ok(query)
    }

    /// The query of a list whose filters cannot matter.
    pub fn without_filters(call: &Call) -> ApiResult<Self> {
        let names: Vec<&str> = call.parameters().map(|(name, _)| name).collect();
        Self::new(call, &names, 0)
    }

    pub fn page<'t, T>(&self, table: &'t Table<T>) -> Page<'t, T> {
        if let Some((_, name)) = self.filters.iter().find(|(path, _)| path == "name") {
            let found = table.by_name(name).filter(|row| self.admits(row.value()));
            let rows: Vec<&Entry<T>> = found.into_iter().filter(|row| self.is_after(row.number)).collect();
            return Page { total: rows.len(), rows, next: None };
        }
        let total = match self.filters.is_empty() {
            true => table.len(),
            false => table.iter().filter(|row| self.admits(row.value())).count(),
        };
        let (rows, next) = match self.order {
            Order::NewestFirst => self.select(table.newest_before(self.after.unwrap_or(u64::MAX))),
            Order::OldestFirst => self.select(table.oldest_after(self.after.unwrap_or_default())),
        };
        Page { rows, next, total }
    }

    fn is_after(&self, number: u64) -> bool {
        match self.order {
            Order::NewestFirst => self.after.is_none_or(|after| number < after),
            Order::OldestFirst => self.after.is_none_or(|after| number > after),
        }
    }

    fn admits(&self, value: &Value) -> bool {
        self.filters.iter().all(|(path, wanted)| {
            let found = path.split('.').fold(value, |value, field| &value[field]);
            wanted.split(',').any(|wanted| is_written(found, wanted))
        })
    }

    fn select<'t, T>(&self, rows: impl Iterator<Item = &'t Entry<T>>) -> (Vec<&'t Entry<T>>, Option<u64>) {
        let mut page: Vec<&Entry<T>> = Vec::new();
        for row in rows.filter(|row| self.admits(row.value())) {
            if page.len() == self.limit {
                return (page.clone(), page.last().map(|last| last.number));
            }
            page.push(row);
        }
        (page, None)
    }
}

/// Whether a parameter writes this value so.
pub fn is_written(value: &Value, parameter: &str) -> bool {
    match value {
        Value::String(text) => text == parameter,
        Value::Bool(value) => parameter == if *value { "true" } else { "false" },
        Value::Number(number) => parameter.parse().is_ok_and(|wanted: u64| number.as_u64() == Some(wanted)),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

fn encoded(number: u64) -> String {
    URL_SAFE_NO_PAD.encode(number.to_be_bytes())
}

fn decoded(token: &str) -> Option<u64> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// The envelope of a list: the key of its items, and its path below `/v1`.
pub struct List {
    pub key: &'static str,
    pub path: &'static str,
}

impl List {
    pub fn respond<'t, T>(
        &self,
        world: &World,
        call: &Call,
        query: &ListQuery,
        page: &Page<'t, T>,
        text: impl Fn(&'t Entry<T>) -> Cow<'t, str>,
    ) -> Response {
        let first = self.href(world, call, query, None);
        let items: Vec<Cow<'_, str>> = page.rows.iter().map(|row| text(row)).collect();
        let mut body = format!("{{\"first\":{},\"limit\":{},\"{}\":[", json!({"href": first}), query.limit, self.key);
        body.push_str(&items.join(","));
        body.push(']');
        if let Some(next) = page.next {
            let next = self.href(world, call, query, Some(next));
            body.push_str(&format!(",\"next\":{}", json!({"href": next})));
        }
        body.push_str(&format!(",\"total_count\":{}}}", page.total));
        Response::json_text(200, body)
    }

    /// The URL of a page. That of the first one has no `start`.
    fn href(&self, world: &World, call: &Call, query: &ListQuery, after: Option<u64>) -> String {
        let mut url = form_urlencoded::Serializer::new(String::new());
        url.append_pair("limit", &query.limit.to_string());
        if let Some(after) = after {
            url.append_pair("start", &encoded(after));
        }
        for (name, value) in call.parameters().filter(|(name, _)| !["limit", "start", "version"].contains(name)) {
            // A client that follows the URL adds its own version.
            if name != "generation" {
                url.append_pair(name, value);
            }
        }
        format!("{}?{}", world.href(self.path), url.finish())
    }
}
