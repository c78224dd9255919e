//! Calls to `/sim/…`: knobs, counters, history, credentials, and the dispatch of interventions.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::simulation::Simulation;
use crate::server::call::Call;
use crate::server::response::Response;
use crate::state::history::CallFilter;
use crate::state::table::Table;
use crate::state::world::World;

impl Simulation {
    pub fn control(&mut self, call: &Call) -> Response {
        let parts = call.parts();
        match (call.method.as_str(), &parts[1..]) {
            ("GET", ["knobs"]) => Response::json(200, &json!(self.world.knobs)),
            ("PUT" | "POST", ["knobs"]) => self.set_knobs(&call.body),
            ("GET", ["state"]) => Response::json(200, &self.state_json()),
            ("GET", ["history"]) => {
                let world = &self.world;
                let filter = CallFilter { action: call.parameter("action"), method: call.parameter("method") };
                Response::json(200, &world.history.json(&filter, |moment| world.epoch_ms(moment), world.now))
            }
            ("GET", ["credentials"]) => Response::text(200, self.credentials()),
            ("POST", ["reset"]) => {
                self.world.reset();
                done()
            }
            ("POST", ["revoke-tokens"]) => {
                self.world.tokens.revoke();
                done()
            }
            ("POST", [intervention]) => self.world.intervene(call, intervention),
            _ => error(404, "no such endpoint"),
        }
    }

    fn set_knobs(&mut self, body: &[u8]) -> Response {
        let change = serde_json::from_slice(body).map_err(|error| error.to_string());
        let updated = change.and_then(|change: Value| {
            let has = |knob: &str| change.get(knob).is_some();
            let replaced = (has("faults"), has("launch_faults"), has("image_faults"));
            Ok((replaced, self.world.knobs.updated(change)?))
        });
        match updated {
            Ok(((has_faults, has_launch_faults, has_image_faults), knobs)) => {
                let world = &mut self.world;
                world.knobs = knobs;
                let stats = &mut world.stats;
                for (is_replaced, counts) in [
                    (has_faults, &mut stats.faults_struck),
                    (has_launch_faults, &mut stats.launch_faults_struck),
                    (has_image_faults, &mut stats.image_faults_struck),
                ] {
                    if is_replaced {
                        counts.clear();
                    }
                }
                Response::json(200, &json!(self.world.knobs))
            }
            Err(text) => error(400, &text),
        }
    }

    fn state_json(&self) -> Value {
        let World { instances, floating_ips, images, volumes, .. } = &self.world;
        let own = images.iter().filter(|image| image.details.is_own);
        let (mut groups, mut zones) = (BTreeMap::<&str, u64>::new(), BTreeMap::<&str, u64>::new());
        for instance in instances.iter() {
            let group = instance.value()["resource_group"]["name"].as_str().unwrap_or_default();
            *groups.entry(group).or_default() += 1;
            *zones.entry(&instance.details.zone).or_default() += 1;
        }
        json!({
            "base": self.world.base, "control": self.control, "instances": by_status(instances),
            "instances_by_group": groups, "instances_by_zone": zones, "floating_ips": by_status(floating_ips),
            "floating_ips_attached": self.world.attached.len(), "images": counts(own.map(|image| image.status())),
            "volumes": counts(volumes.iter().map(|one| one.value()["attachment_state"].as_str().unwrap_or_default())),
            "usage": {
                "instances": instances.len(), "vcpus": self.world.used_vcpus, "memory_gib": self.world.used_memory_gib,
                "floating_ips": floating_ips.len(), "images": self.world.own_images(), "volumes": volumes.len(),
            },
            "resource_groups": self.world.groups.iter().map(|group| group.name()).collect::<Vec<_>>(),
            "tokens_issued": self.world.tokens.issued, "counters": self.world.stats,
        })
    }
}

fn by_status<T>(table: &Table<T>) -> BTreeMap<&str, u64> {
    counts(table.iter().map(|row| row.status()))
}

fn counts<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
    let mut counts = BTreeMap::new();
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    counts
}

pub fn done() -> Response {
    Response::json(200, &json!({}))
}

pub fn error(status: u16, text: &str) -> Response {
    Response::json(status, &json!({"error": text}))
}
