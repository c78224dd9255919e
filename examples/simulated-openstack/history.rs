//! When each server came, was first shown as active, was to be deleted and was gone; for whoever measures a launcher.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cloud::{Cloud, Moment};

/// Of every server that ever was, by its number.
#[derive(Default)]
pub struct History(BTreeMap<u64, Life>);

#[derive(Default)]
struct Life {
    name: String,
    created: Moment,
    /// In the first answer that said so.
    shown_active: Option<Moment>,
    delete_asked: Option<Moment>,
    gone: Option<Moment>,
}

impl History {
    pub fn created(&mut self, number: u64, name: &str, now: Moment) {
        self.0.insert(number, Life { name: name.to_owned(), created: now, ..Life::default() });
    }

    pub fn shown_active(&mut self, number: u64, now: Moment) {
        self.note(number, |life| life.shown_active = life.shown_active.or(Some(now)));
    }

    pub fn delete_asked(&mut self, number: u64, now: Moment) {
        self.note(number, |life| life.delete_asked = life.delete_asked.or(Some(now)));
    }

    pub fn gone(&mut self, number: u64, now: Moment) {
        self.note(number, |life| life.gone = Some(now));
    }

    fn note(&mut self, number: u64, change: impl FnOnce(&mut Life)) {
        if let Some(life) = self.0.get_mut(&number) {
            change(life);
        }
    }
}

impl Cloud {
    /// What `GET /sim/history` shows, in seconds since the Unix epoch.
    pub fn told(&self) -> Value {
        let started = self.started.timestamp_micros() as f64 / 1e6;
        let at = |moment: Duration| started + moment.as_secs_f64();
        let servers = self.history.0.values().map(|life| {
            json!({
                "name": life.name, "created": at(life.created), "shown_active": life.shown_active.map(at),
                "delete_asked": life.delete_asked.map(at), "gone": life.gone.map(at),
            })
        });
        json!({"servers": servers.collect::<Vec<_>>()})
    }
}
