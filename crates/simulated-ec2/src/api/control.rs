//! Calls to `/sim/…`: knobs, counters, history, and events that happen to instances and hosts.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::simulation::Simulation;
use crate::faults::codes;
use crate::region::fixtures::PUBLIC_OWNER;
use crate::region::region::{Ec2, Region};
use crate::server::call::Call;
use crate::server::response::Response;

impl Simulation {
    pub fn control(&mut self, call: &Call) -> Response {
        let parts = call.parts();
        match (call.method.as_str(), &parts[..]) {
            ("GET", ["sim", "knobs"]) => Response::json(200, &json!(self.world.knobs)),
            ("PUT", ["sim", "knobs"]) => self.set_knobs(&call.body),
            ("GET", ["sim", "state"]) => Response::json(200, &self.state_json()),
            ("GET", ["sim", "history"]) => {
                let world = &self.world;
                let action = call.parameter("action");
                Response::json(200, &world.history.json(action, |moment| world.epoch_ms(moment), world.now))
            }
            ("POST", ["sim", "reset"]) => {
                self.reset();
                Response::json(200, &json!({}))
            }
            ("POST", ["sim", "expire-sessions"]) => {
                self.world.credentials.expire();
                Response::json(200, &json!({}))
            }
            ("GET", ["sim", "instance"]) => self.instance_json(call),
            ("POST", ["sim", "reclaim"]) => self.on_instance(call, |ec2, id| ec2.reclaim(id)),
            ("POST", ["sim", "end"]) => {
                let reason = call.parameter("reason").unwrap_or("Server.InternalError").to_owned();
                match call.parameter("state") {
                    None | Some("terminated") => self.on_instance(call, |ec2, id| {
                        ec2.shut_down(id, &reason, &codes::state_reason(&reason));
                    }),
                    Some("stopped") => self.on_instance(call, |ec2, id| ec2.stop(id, &reason)),
                    Some(_) => error(400, "the states are terminated and stopped"),
                }
            }
            ("POST", ["sim", "host"]) => self.set_host_state(call),
            _ => error(404, "no such endpoint"),
        }
    }

    fn set_knobs(&mut self, body: &[u8]) -> Response {
        let change = serde_json::from_slice(body).map_err(|error| error.to_string());
        let updated = change.and_then(|change: Value| {
            let has_faults = change.get("faults").is_some();
            Ok((has_faults, self.world.knobs.updated(change)?))
        });
        match updated {
            Ok((has_faults, knobs)) => {
                self.world.knobs = knobs;
                if has_faults {
                    self.world.stats.faults_struck.clear();
                }
                Response::json(200, &json!(self.world.knobs))
            }
            Err(text) => error(400, &text),
        }
    }

    /// The region that has this instance or host.
    fn region_of(&mut self, has: impl Fn(&Region) -> bool) -> Option<Ec2<'_>> {
        let name = self.regions.iter().find(|(_, region)| has(region)).map(|(name, _)| name.clone())?;
        Some(self.region(&name))
    }

    fn on_instance(&mut self, call: &Call, change: impl FnOnce(&mut Ec2<'_>, &str)) -> Response {
        let id = call.parameter("instance").unwrap_or_default();
        match self.region_of(|region| region.instances.contains(id)) {
            Some(mut ec2) => {
                change(&mut ec2, id);
                Response::json(200, &json!({}))
            }
            None => error(404, "no such instance"),
        }
    }

    fn set_host_state(&mut self, call: &Call) -> Response {
        let id = call.parameter("host").unwrap_or_default();
        let state = call.parameter("state").unwrap_or_default();
        let states = ["pending", "available", "under-assessment", "permanent-failure"];
        if !states.contains(&state) {
            return error(400, &format!("the states are {}", states.join(", ")));
        }
        match self.region_of(|region| region.hosts.contains(id)) {
            Some(ec2) => {
                if let Some(host) = ec2.region.hosts.get_mut(id) {
                    state.clone_into(&mut host.state);
                }
                Response::json(200, &json!({}))
            }
            None => error(404, "no such host"),
        }
    }

    /// An instance with the parameters of its launch.
    fn instance_json(&mut self, call: &Call) -> Response {
        let id = call.parameter("instance").unwrap_or_default();
        let Some(ec2) = self.region_of(|region| region.instances.contains(id)) else {
            return error(404, "no such instance");
        };
        let one = ec2.region.instances.get(id).expect("the region has the instance");
        let volumes: Vec<&str> = one.attachments.iter().map(|one| one.volume.as_str()).collect();
        Response::json(
            200,
            &json!({
                "id": one.id, "region": ec2.region.name, "state": one.state.name(), "tags": one.tags, "zone": one.zone,
                "subnet": one.subnet, "host": one.host, "spot": one.is_spot(), "volumes": volumes,
                "private_ip": one.private_ip, "public_ip": one.public_ip, "client_token": one.client_token,
                "parameters": one.parameters.0,
            }),
        )
    }

    fn state_json(&self) -> Value {
        let limit = self.world.knobs.subnet_addresses;
        let regions: BTreeMap<&str, Value> =
            self.regions.iter().map(|(name, region)| (name.as_str(), region_json(region, limit))).collect();
        let buckets: BTreeMap<&str, Value> = self
            .world
            .buckets
            .iter()
            .map(|(name, bucket)| {
                let bytes: usize = bucket.objects.values().map(|object| object.data.len()).sum();
                let keys: Vec<&String> = bucket.objects.keys().take(1000).collect();
                let json = json!({"objects": bucket.objects.len(), "bytes": bytes, "keys": keys,
                    "uploads": bucket.uploads.len()});
                (name.as_str(), json)
            })
            .collect();
        json!({
            "base": self.base, "control": self.control, "regions": regions, "buckets": buckets,
            "sessions_issued": self.world.credentials.issued, "counters": self.world.stats,
        })
    }
}

/// The objects of a region, without those that exist from the start.
fn region_json(region: &Region, address_limit: u32) -> Value {
    fn by_state<'a>(states: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
        let mut counts = BTreeMap::new();
        for state in states {
            *counts.entry(state).or_default() += 1;
        }
        counts
    }
    let own_images = region.images.values().filter(|image| !image.is_public);
    let snapshots = region.snapshots.values().filter(|snapshot| snapshot.owner != PUBLIC_OWNER);
    let tasks = region.snapshot_imports.values().chain(region.image_imports.values());
    let free: BTreeMap<&str, u32> =
        region.subnets.values().map(|subnet| (subnet.id.as_str(), subnet.free_addresses(address_limit))).collect();
    let templates: Vec<&str> = region.templates.values().map(|template| template.name.as_str()).collect();
    json!({
        "instances": by_state(region.instances.values().map(|one| one.state.name())),
        "volumes": by_state(region.volumes.values().map(|one| one.state)),
        "hosts": by_state(region.hosts.values().map(|one| one.state.as_str())),
        "snapshots": by_state(snapshots.map(|one| one.state)),
        "import_tasks": by_state(tasks.map(|one| one.state)),
        "images": own_images.count(), "launch_templates": templates, "key_pairs": region.key_pairs.len(),
        "vcpus": region.usage.vcpus, "volume_gib": region.usage.storage, "free_addresses": free,
    })
}

fn error(status: u16, text: &str) -> Response {
    Response::json(status, &json!({"error": text}))
}
