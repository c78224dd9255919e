//! History of the cloud: the times at which each server and image was created, usable and deleted, and every mutating
//! call with its user. Tests check launchers and builders against the history; benchmarks compute durations from it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, Kind, SimTime, id};
use crate::services::server::Server;

/// All servers and images since the start, by number.
#[derive(Default)]
pub struct History {
    servers: BTreeMap<u64, ServerLifetime>,
    images: BTreeMap<u64, ImageLifetime>,
    changes: Vec<Change>,
}

/// A mutating call, whether it succeeded or not.
struct Change {
    by: String,
    at: SimTime,
    call: String,
}

#[derive(Default)]
struct ServerLifetime {
    id: String,
    name: String,
    /// Provider and node in its metadata.
    provider: Value,
    node: Value,
    created: SimTime,
    /// Time of the first response that showed it as ACTIVE.
    shown_active: Option<SimTime>,
    delete_requested: Option<SimTime>,
    deleted: Option<SimTime>,
}

/// Lifetime of an image.
struct ImageLifetime {
    /// Provider in its properties.
    provider: Value,
    created: SimTime,
    /// Time at which the content was complete.
    uploaded: Option<SimTime>,
    deleted: Option<SimTime>,
}

impl History {
    pub fn record_created(&mut self, number: u64, server: &Server, now: SimTime) {
        let metadata_value = |key| server.metadata.get(key).cloned().unwrap_or_default();
        let lifetime = ServerLifetime {
            id: server.id.clone(),
            name: server.name.clone(),
            provider: metadata_value("nodepool_provider_name"),
            node: metadata_value("nodepool_node_id"),
            created: now,
            ..ServerLifetime::default()
        };
        self.servers.insert(number, lifetime);
    }

    pub fn record_shown_active(&mut self, number: u64, now: SimTime) {
        self.update(number, |lifetime| lifetime.shown_active = lifetime.shown_active.or(Some(now)));
    }

    pub fn record_delete_requested(&mut self, number: u64, now: SimTime) {
        self.update(number, |lifetime| lifetime.delete_requested = lifetime.delete_requested.or(Some(now)));
    }

    pub fn record_deleted(&mut self, number: u64, now: SimTime) {
        self.update(number, |lifetime| lifetime.deleted = Some(now));
    }

    pub fn record_image_created(&mut self, number: u64, properties: &Map<String, Value>, now: SimTime) {
        let provider = properties.get("nodepool_provider_name").cloned().unwrap_or_default();
        self.images.insert(number, ImageLifetime { provider, created: now, uploaded: None, deleted: None });
    }

    pub fn record_image_uploaded(&mut self, number: u64, now: SimTime) {
        self.images.entry(number).and_modify(|lifetime| lifetime.uploaded = Some(now));
    }

    pub fn record_image_deleted(&mut self, number: u64, now: SimTime) {
        self.images.entry(number).and_modify(|lifetime| lifetime.deleted = Some(now));
    }

    fn update(&mut self, number: u64, change: impl FnOnce(&mut ServerLifetime)) {
        if let Some(lifetime) = self.servers.get_mut(&number) {
            change(lifetime);
        }
    }
}

impl Cloud {
    /// Records a mutating call when it is received, before it is executed or rejected.
    pub fn note_change(&mut self, service: Service, call: &Call) {
        if service == Service::Identity || matches!(&*call.method, "GET" | "HEAD") {
            return;
        }
        if let Some(by) = self.user(&call.token).map(str::to_owned) {
            let (at, call) = (self.now, format!("{} {}", call.method, call.path));
            self.history.changes.push(Change { by, at, call });
        }
    }

    /// The JSON of `GET /sim/history`; times are seconds since the Unix epoch.
    pub fn history_json(&self) -> Value {
        let started = self.started.timestamp_micros() as f64 / 1e6;
        let at = |moment: Duration| started + moment.as_secs_f64();
        let servers = self.history.servers.values().map(|lifetime| {
            json!({
                "id": lifetime.id, "name": lifetime.name, "provider": lifetime.provider, "node": lifetime.node,
                "created": at(lifetime.created), "shown_active": lifetime.shown_active.map(at),
                "delete_asked": lifetime.delete_requested.map(at), "gone": lifetime.deleted.map(at),
            })
        });
        let images = self.history.images.iter().map(|(number, lifetime)| {
            json!({
                "id": id(Kind::Image, *number), "provider": lifetime.provider, "created": at(lifetime.created),
                "filled": lifetime.uploaded.map(at), "gone": lifetime.deleted.map(at),
            })
        });
        let changes = self
            .history
            .changes
            .iter()
            .map(|Change { by, at: when, call }| json!({"by": by, "at": at(*when), "call": call}));
        json!({
            "now": at(self.now), "servers": servers.collect::<Vec<_>>(), "images": images.collect::<Vec<_>>(),
            "changes": changes.collect::<Vec<_>>(),
        })
    }
}
