//! Paginated listings: the result is the complete list or an error, never a partial list.

use serde::Deserialize;
use serde_json::Value;

use super::api_types::{self, IdOnly, Server, ServerIdPage, ServersPage};
use super::calls::{Call, ListKind, PAGE_SIZE, SERVER_IDS, SERVERS};
use super::errors::failed;
use nodepool_driver::error::CloudError;

/// Keys and values of a listing's query.
pub type Filters = &'static [(&'static str, &'static str)];

/// A listing in progress.
#[derive(Debug)]
pub struct Pages<T> {
    listing: ListKind,
    filters: Filters,
    entries: Vec<T>,
    marker: Option<String>,
}

impl<T> Pages<T> {
    pub fn begin(listing: ListKind) -> (Self, Call) {
        Self::filtered(listing, &[])
    }

    pub fn filtered(listing: ListKind, filters: Filters) -> (Self, Call) {
        (Self { listing, filters, entries: Vec::new(), marker: None }, listing.page(None, filters))
    }

    /// Adds a page. `last` is the id of its last entry. After a full page the next one is requested even without
    /// `has_more`, unless requests name no size.
    fn add_page(mut self, page: Vec<T>, last: Option<String>, has_more: bool) -> Result<PageResult<T>, CloudError> {
        let is_full = page.len() >= PAGE_SIZE && self.listing.is_paged();
        self.entries.extend(page);
        let Some(last) = last.filter(|_| has_more || is_full) else { return Ok(PageResult::Complete(self.entries)) };
        if self.marker.as_ref() == Some(&last) {
            let path = self.listing.path.join("/");
            return Err(failed(format!("the listing of {path} gives the same page again after {last}")));
        }
        let call = self.listing.page(Some(&last), self.filters);
        self.marker = Some(last);
        Ok(PageResult::Next(self, call))
    }
}

/// Result of adding a page: the next call, or the complete listing.
pub enum PageResult<T> {
    Next(Pages<T>, Call),
    Complete(Vec<T>),
}

impl<T> Pages<T> {
    /// Removes and returns the entries received so far, for callers that process each page at once.
    pub fn drain(&mut self) -> Vec<T> {
        std::mem::take(&mut self.entries)
    }
}

impl Pages<Server> {
    pub fn servers() -> (Self, Call) {
        Self::begin(SERVERS)
    }

    pub fn add_servers_page(self, page: ServersPage) -> Result<PageResult<Server>, CloudError> {
        let last = page.servers.last().map(|server| server.id.clone());
        let has_more = page.servers_links.iter().any(|link| link.rel == "next");
        self.add_page(page.servers, last, has_more)
    }
}

impl Pages<IdOnly> {
    pub fn server_ids() -> (Self, Call) {
        Self::begin(SERVER_IDS)
    }

    pub fn add_server_ids_page(self, page: ServerIdPage) -> Result<PageResult<IdOnly>, CloudError> {
        let last = page.servers.last().map(|server| server.id.clone());
        let has_more = page.servers_links.iter().any(|link| link.rel == "next");
        self.add_page(page.servers, last, has_more)
    }
}

impl Pages<Value> {
    pub fn add_json_page(self, answer: &Value) -> Result<PageResult<Value>, CloudError> {
        let list = self.listing.list;
        let page: Vec<Value> = api_types::list(answer, list).map_err(failed)?;
        let last = page.last().and_then(|entry| entry.get("id")?.as_str().map(str::to_owned));
        let links = answer.get(format!("{list}_links")).and_then(Value::as_array);
        let next =
            links.is_some_and(|links| links.iter().any(|link| link.get("rel").and_then(Value::as_str) == Some("next")));
        // Glance names the next page in the response itself.
        let has_more = next || answer.get("next").is_some_and(|next| !next.is_null());
        self.add_page(page, last, has_more)
    }
}

/// Parses the entries of a complete listing.
pub fn typed<T: for<'de> Deserialize<'de>>(entries: Vec<Value>, kind: &str) -> Result<Vec<T>, CloudError> {
    let typed = entries.into_iter().map(serde_json::from_value).collect::<Result<_, _>>();
    typed.map_err(|error| failed(format!("cannot read an entry of the listing of {kind}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn page(entries: &[&str], more: bool) -> Value {
        let entries: Vec<Value> = entries.iter().map(|id| json!({"id": id})).collect();
        let links = if more { json!([{"rel": "next", "href": "x"}]) } else { json!([]) };
        json!({"networks": entries, "networks_links": links})
    }

    fn begun() -> Pages<Value> {
        Pages::begin(super::super::calls::NETWORKS).0
    }

    #[test]
    fn pages_follow_each_other_until_none_is_announced() {
        let Ok(PageResult::Next(pages, _)) = begun().add_json_page(&page(&["a", "b"], true)) else {
            panic!("no next page")
        };
        let Ok(PageResult::Complete(entries)) = pages.add_json_page(&page(&["c"], false)) else { panic!("no end") };
        assert_eq!(entries.len(), 3);
    }

    #[test]
    fn a_repeated_page_is_an_error() {
        let Ok(PageResult::Next(pages, _)) = begun().add_json_page(&page(&["a"], true)) else { panic!("no next page") };
        assert!(pages.add_json_page(&page(&["a"], true)).is_err());
    }

    #[test]
    fn networks_are_complete_unless_another_page_is_announced() {
        let ids: Vec<String> = (0..PAGE_SIZE + 1).map(|id| id.to_string()).collect();
        let all: Vec<&str> = ids.iter().map(String::as_str).collect();
        let Ok(PageResult::Complete(entries)) = begun().add_json_page(&page(&all, false)) else { panic!("no end") };
        assert_eq!(entries.len(), all.len());
        let (_, call) = Pages::<Value>::begin(super::super::calls::NETWORKS);
        let (_, servers) = Pages::servers();
        assert!(!format!("{call:?}").contains("limit") && format!("{servers:?}").contains("limit"));
    }

    #[test]
    fn a_response_without_the_list_is_an_error() {
        assert!(begun().add_json_page(&json!({})).is_err());
        assert!(begun().add_json_page(&json!({"networks": 1})).is_err());
    }
}
