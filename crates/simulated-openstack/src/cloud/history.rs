//! When each server and each image came, was first of use, was to be deleted and was gone, and who asked when for a change; for whoever
//! measures or judges a launcher or a builder.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, Kind, SimTime, id};
use crate::services::server::Server;

/// Of all that ever was, by its number.
#[derive(Default)]
pub struct History {
    servers: BTreeMap<u64, ServerLifetime>,
    images: BTreeMap<u64, ImageLifetime>,
    changes: Vec<Change>,
}

/// A call that makes, changes or deletes something, whatever came of it.
struct Change {
    by: String,
    at: SimTime,
    call: String,
}

#[derive(Default)]
struct ServerLifetime {
    id: String,
    name: String,
    /// What its metadata says of the provider and the node that it is for.
    provider: Value,
    node: Value,
    created: SimTime,
    /// In the first answer that said so.
    shown_active: Option<SimTime>,
    delete_requested: Option<SimTime>,
    deleted: Option<SimTime>,
}

/// Of an image.
struct ImageLifetime {
    /// What its properties say of the provider that it is for.
    provider: Value,
    created: SimTime,
    /// Its content was there.
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
        self.update(number, |life| life.shown_active = life.shown_active.or(Some(now)));
    }

    pub fn record_delete_requested(&mut self, number: u64, now: SimTime) {
        self.update(number, |life| life.delete_requested = life.delete_requested.or(Some(now)));
    }

    pub fn record_deleted(&mut self, number: u64, now: SimTime) {
        self.update(number, |life| life.deleted = Some(now));
    }

    pub fn record_image_created(&mut self, number: u64, properties: &Map<String, Value>, now: SimTime) {
        let provider = properties.get("nodepool_provider_name").cloned().unwrap_or_default();
        self.images.insert(number, ImageLifetime { provider, created: now, uploaded: None, deleted: None });
    }

    pub fn record_image_uploaded(&mut self, number: u64, now: SimTime) {
        self.images.entry(number).and_modify(|life| life.uploaded = Some(now));
    }

    pub fn record_image_deleted(&mut self, number: u64, now: SimTime) {
        self.images.entry(number).and_modify(|life| life.deleted = Some(now));
    }

    fn update(&mut self, number: u64, change: impl FnOnce(&mut ServerLifetime)) {
        if let Some(life) = self.servers.get_mut(&number) {
            change(life);
        }
    }
}

impl Cloud {
    /// A call as it comes in, before it is carried out or refused.
    pub fn note_change(&mut self, service: Service, call: &Call) {
        if service == Service::Identity || matches!(&*call.method, "GET" | "HEAD") {
            return;
        }
        if let Some(by) = self.user(&call.token).map(str::to_owned) {
            let (at, call) = (self.now, format!("{} {}", call.method, call.path));
            self.history.changes.push(Change { by, at, call });
        }
    }

    /// What `GET /sim/history` shows, in seconds since the Unix epoch.
    pub fn history_json(&self) -> Value {
        let started = self.started.timestamp_micros() as f64 / 1e6;
        let at = |moment: Duration| started + moment.as_secs_f64();
        let servers = self.history.servers.values().map(|life| {
            json!({
                "id": life.id, "name": life.name, "provider": life.provider, "node": life.node, "created": at(life.created), "shown_active": life.shown_active.map(at),
                "delete_asked": life.delete_requested.map(at), "gone": life.deleted.map(at),
            })
        });
        let images = self.history.images.iter().map(|(number, life)| {
            json!({
                "id": id(Kind::Image, *number), "provider": life.provider, "created": at(life.created), "filled": life.uploaded.map(at),
                "gone": life.deleted.map(at),
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
