//! Lists: their parameters, their pages, and their JSON.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Bound;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::api::filter::Filter;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::places::BASE;

/// Items of a page at most, which is also the default.
const MAX_RESULTS: usize = 500;

/// The parameters of a list.
pub struct ListQuery {
    filter: Option<Filter>,
    /// The last item of the page before.
    after: Option<String>,
    limit: usize,
}

/// Items of one page, with their keys, and the token of the next page if there is one.
pub struct Page<'t, T> {
    pub rows: Vec<(&'t str, &'t T)>,
    pub next: Option<String>,
}

impl ListQuery {
    pub fn new(call: &Call, page: usize) -> ApiResult<Self> {
        let filter = call.parameter("filter").map(Filter::parse).transpose()?;
        if let Some(order) = call.parameter("orderBy").filter(|order| *order != "name") {
            return Err(ApiError::invalid("orderBy", order, "The simulation orders by name only."));
        }
        let wanted = match call.parameter("maxResults") {
            None | Some("0") => MAX_RESULTS,
            Some(text) => text
                .parse()
                .ok()
                .filter(|number| *number <= MAX_RESULTS)
                .ok_or_else(|| ApiError::invalid("maxResults", text, "Must be between 0 and 500, inclusive."))?,
        };
        let after = call.parameter("pageToken").map(decoded).transpose()?;
        let limit = if page == 0 { wanted } else { wanted.min(page) };
        Ok(Self { filter, after, limit })
    }

    /// The page of a table.
    pub fn page<'t, T>(
        &self,
        table: &'t BTreeMap<String, T>,
        value: impl for<'v> Fn(&'v T) -> Cow<'v, Value>,
    ) -> Page<'t, T> {
        if let Some(name) = self.filter.as_ref().and_then(Filter::name) {
            let found = table.get_key_value(name).filter(|(name, _)| self.is_after(name));
            return self.select(found.into_iter().map(|(name, row)| (name.as_str(), row)), value);
        }
        self.scan(table, value)
    }

    /// The page of a table whose keys are no names.
    pub fn scan<'t, T>(
        &self,
        table: &'t BTreeMap<String, T>,
        value: impl for<'v> Fn(&'v T) -> Cow<'v, Value>,
    ) -> Page<'t, T> {
        let start = self.after.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        let rows = table.range::<str, _>((start, Bound::Unbounded));
        self.select(rows.map(|(name, row)| (name.as_str(), row)), value)
    }

    fn is_after(&self, key: &str) -> bool {
        self.after.as_deref().is_none_or(|after| key > after)
    }

    /// The page of rows that begin after the page before.
    fn select<'t, T: 't>(
        &self,
        rows: impl Iterator<Item = (&'t str, &'t T)>,
        value: impl for<'v> Fn(&'v T) -> Cow<'v, Value>,
    ) -> Page<'t, T> {
        let is_admitted = |row: &T| self.filter.as_ref().is_none_or(|filter| filter.admits(&value(row)));
        let mut page = Page { rows: Vec::new(), next: None };
        for (key, row) in rows.filter(|(_, row)| is_admitted(row)) {
            if page.rows.len() == self.limit {
                page.next = page.rows.last().map(|(last, _)| URL_SAFE_NO_PAD.encode(last));
                break;
            }
            page.rows.push((key, row));
        }
        page
    }

    /// The response for a list whose rows are only needed as JSON.
    pub fn respond(&self, list: &List<'_>, table: &BTreeMap<String, Value>) -> Response {
        let page = self.page(table, |value| Cow::Borrowed(value));
        let items = page.rows.iter().map(|(_, value)| value.to_string()).collect();
        list.respond(items, page.next.as_deref())
    }
}

fn decoded(token: &str) -> ApiResult<String> {
    let bytes = URL_SAFE_NO_PAD.decode(token).ok();
    let key = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    key.ok_or_else(|| ApiError::invalid("pageToken", token, "The page token is not valid."))
}

/// The envelope of a list.
pub struct List<'a> {
    pub kind: &'a str,
    /// The path of the list, from `projects`.
    pub path: String,
}

impl List<'_> {
    /// A list without items has no `items`.
    pub fn respond(&self, items: Vec<String>, next: Option<&str>) -> Response {
        let Self { kind, path } = self;
        let mut text = format!("{{\"kind\":{},\"id\":{}", json!(kind), json!(path));
        if !items.is_empty() {
            text.push_str(",\"items\":[");
            text.push_str(&items.join(","));
            text.push(']');
        }
        if let Some(next) = next {
            text.push_str(&format!(",\"nextPageToken\":{}", json!(next)));
        }
        text.push_str(&format!(",\"selfLink\":{}}}", json!(format!("{BASE}{path}"))));
        Response::json_text(200, text)
    }
}
