//! Watches: the events of a scope after a resource version.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Value, json};

use crate::api::read::version_parameter;
use crate::api::scope::Scope;
use crate::cluster::cluster::Cluster;
use crate::cluster::store::{Change, Event, Object};
use crate::server::call::Call;
use crate::server::response::{ApiResult, Response, failure_object};

/// Lifetime of a watch for which the client sets no timeout.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(1800);

pub struct Watch {
    scope: Scope,
    /// The newest resource version that the client knows; `None` before the initial objects were sent.
    version: Option<u64>,
    pub lifetime: Duration,
    pub has_bookmarks: bool,
    pub bookmark_interval: Duration,
    /// The first event is cut, and the watch ends.
    pub is_truncated: bool,
}

/// Lines to send now.
pub enum Lines {
    More(String),
    /// The watch ends after them.
    Last(String),
}

impl Watch {
    /// A watch as a call asks for it.
    pub fn new(cluster: &Cluster, call: &Call, scope: Scope) -> ApiResult<Self> {
        let version = version_parameter(call)?;
        if version > 0 && version < cluster.store.oldest() && cluster.knobs.gone_as_status {
            return Err(Response::gone(too_old(version, cluster.store.oldest())));
        }
        let timeout = call.parameter("timeoutSeconds").and_then(|timeout| timeout.parse().ok());
        let timeout = timeout.filter(|timeout| *timeout > 0).map_or(DEFAULT_LIFETIME, Duration::from_secs);
        let closes = Some(cluster.knobs.watch_closes_after_s).filter(|closes| *closes > 0.0);
        Ok(Self {
            scope,
            version: Some(version).filter(|version| *version > 0),
            lifetime: closes.map_or(timeout, |closes| timeout.min(Duration::from_secs_f64(closes))),
            has_bookmarks: call.flag("allowWatchBookmarks"),
            bookmark_interval: Duration::from_secs_f64(cluster.knobs.bookmark_s.max(0.01)),
            is_truncated: false,
        })
    }

    /// The events since the last call, one per line.
    pub fn next_lines(&mut self, cluster: &Cluster) -> Lines {
        let mut text = String::new();
        match self.version {
            None => {
                for object in self.scope.objects(cluster) {
                    self.push(&mut text, "ADDED", object);
                }
            }
            Some(version) => match cluster.store.events_after(version) {
                Err(gone) => {
                    let status = failure_object(410, "Expired", too_old(version, gone.0), Value::Null);
                    return Lines::Last(format!("{}\n", json!({"type": "ERROR", "object": status})));
                }
                Ok(events) => {
                    for event in events {
                        if let Some(kind) = self.event_kind(cluster, event) {
                            self.push(&mut text, kind, &event.object);
                        }
                    }
                }
            },
        }
        self.version = Some(self.version.unwrap_or(0).max(cluster.store.version()));
        if self.is_truncated && !text.is_empty() {
            text.truncate(text.len() / 2);
            return Lines::Last(text);
        }
        Lines::More(text)
    }

    /// A bookmark with the newest resource version.
    pub fn bookmark(&self, cluster: &Cluster) -> String {
        let (kind, api_version) = self.scope.view.kind(self.scope.kind);
        let version = cluster.store.version().to_string();
        let object = json!({
            "kind": kind, "apiVersion": api_version,
            "metadata": {"resourceVersion": version, "creationTimestamp": null},
        });
        format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
    }

    /// The kind of an event for this scope: an object may enter or leave it by a change of its labels.
    fn event_kind(&self, cluster: &Cluster, event: &Event) -> Option<&'static str> {
        let was_included = event.previous.as_ref().is_some_and(|previous| self.scope.includes(cluster, previous));
        let is_included = event.change != Change::Deleted && self.scope.includes(cluster, &event.object);
        match (was_included, is_included) {
            (false, false) => None,
            (false, true) => Some("ADDED"),
            (true, true) => Some("MODIFIED"),
            (true, false) => Some("DELETED"),
        }
    }

    fn push(&self, text: &mut String, kind: &str, object: &Object) {
        let body = self.scope.view.body(object);
        writeln!(text, "{{\"type\":\"{kind}\",\"object\":{body}}}").expect("a string takes any text");
    }
}

fn too_old(version: u64, oldest: u64) -> String {
    format!("too old resource version: {version} ({oldest})")
}
