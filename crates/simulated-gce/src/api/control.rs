//! Calls to `/sim/…`: knobs, counters, history, credentials, images, and events that happen to instances.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::simulation::Simulation;
use crate::methods::spec::is_name;
use crate::server::call::Call;
use crate::server::response::Response;
use crate::state::history::CallFilter;
use crate::state::images::NewImage;
use crate::state::instance::Status;
use crate::state::machine_types::MachineType;
use crate::state::places::{self, BASE, DEFAULT_ZONE};
use crate::state::project::{Compute, Project, Zone};

/// Instances that one call creates at most.
const MAX_FOREIGN: usize = 100_000;

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
            ("POST", ["reset"]) => {
                self.reset();
                done()
            }
            ("POST", ["revoke-tokens"]) => {
                self.world.tokens.revoke();
                done()
            }
            ("GET", ["service-account-key"]) => Response::json(200, &self.service_account_key()),
            ("GET", ["authorized-user"]) => Response::json(200, &self.authorized_user()),
            ("POST", ["image"]) => self.add_image(call),
            ("POST", ["deprecate"]) => self.change_image(call, ImageChange::Deprecate),
            ("POST", ["remove-image"]) => self.change_image(call, ImageChange::Remove),
            ("POST", ["foreign"]) => self.add_foreign(call),
            ("POST", ["preempt"]) => self.on_instance(call, |compute, zone, name| compute.preempt(zone, name)),
            ("POST", ["stop"]) => {
                self.on_instance(call, |compute, zone, name| compute.begin_stop(zone, name, "stopped"))
            }
            ("POST", ["remove"]) => self.on_instance(call, |compute, zone, name| compute.remove(zone, name, "removed")),
            ("POST", ["status"]) => self.set_status(call),
            _ => error(404, "no such endpoint"),
        }
    }

    fn set_knobs(&mut self, body: &[u8]) -> Response {
        let change = serde_json::from_slice(body).map_err(|error| error.to_string());
        let updated = change.and_then(|change: Value| {
            let has = |knob: &str| change.get(knob).is_some();
            let replaced = (has("faults"), has("operation_faults"));
            Ok((replaced, self.world.knobs.updated(change)?))
        });
        match updated {
            Ok(((has_faults, has_operation_faults), knobs)) => {
                self.world.knobs = knobs;
                if has_faults {
                    self.world.stats.faults_struck.clear();
                }
                if has_operation_faults {
                    self.world.stats.operation_faults_struck.clear();
                }
                Response::json(200, &json!(self.world.knobs))
            }
            Err(text) => error(400, &text),
        }
    }

    /// The project of a call, by default the first one.
    fn project_of(&self, call: &Call) -> String {
        let first = self.world.options.projects.first().map_or("", String::as_str);
        call.parameter("project").unwrap_or(first).to_owned()
    }

    /// Changes an instance, which is looked for in all zones unless the call names one.
    fn on_instance(&mut self, call: &Call, change: impl FnOnce(&mut Compute<'_>, &'static str, &str)) -> Response {
        let (project, name) = (self.project_of(call), call.parameter("instance").unwrap_or_default());
        let Some(mut compute) = self.project(&project) else { return error(404, "no such project") };
        let zone = call.parameter("zone");
        let has = |(_, content): &(&&'static str, &Zone)| content.instances.contains_key(name);
        let found = compute.project.zones.iter().filter(|(one, _)| zone.is_none_or(|zone| zone == **one)).find(has);
        match found.map(|(zone, _)| *zone) {
            Some(zone) => {
                change(&mut compute, zone, name);
                done()
            }
            None => error(404, "no such instance"),
        }
    }

    fn set_status(&mut self, call: &Call) -> Response {
        let wanted = call.parameter("status").unwrap_or_default();
        let Some(status) = Status::ALL.into_iter().find(|status| status.name() == wanted) else {
            return error(400, &format!("the statuses are {}", Status::ALL.map(Status::name).join(", ")));
        };
        self.on_instance(call, |compute, zone, name| compute.force_status(zone, name, status))
    }

    fn add_image(&mut self, call: &Call) -> Response {
        let project = self.project_of(call);
        let (name, family) = (call.parameter("name").unwrap_or_default(), call.parameter("family"));
        if !is_name(name) {
            return error(400, "the parameter name must be the name of an image");
        }
        let Ok(size_gb) = call.parameter("size").unwrap_or("10").parse() else {
            return error(400, "the parameter size must be a number of GB");
        };
        let (created, id) = (self.world.timestamp(), self.world.new_id());
        let image = NewImage { project: &project, name, family, size_gb };
        match self.world.images.add(&image, &created, id) {
            true => done(),
            false => error(409, "the image exists"),
        }
    }

    fn change_image(&mut self, call: &Call, change: ImageChange) -> Response {
        let (project, name) = (self.project_of(call), call.parameter("name").unwrap_or_default());
        let is_found = match change {
            ImageChange::Remove => self.world.images.remove(&project, name).is_some(),
            ImageChange::Deprecate => {
                let image = self.world.images.get_mut(&project, name);
                image.map(|image| image.is_deprecated = true).is_some()
            }
        };
        if is_found { done() } else { error(404, "no such image") }
    }

    /// Creates RUNNING instances that no call asked for: `foreign-0001` and so on.
    fn add_foreign(&mut self, call: &Call) -> Response {
        let project = self.project_of(call);
        let Some(zone) = places::zone(call.parameter("zone").unwrap_or(DEFAULT_ZONE)) else {
            return error(400, "no such zone");
        };
        let count = call.parameter("count").unwrap_or("1").parse().ok().filter(|count| *count <= MAX_FOREIGN);
        let Some(count) = count else { return error(400, "the parameter count must be a number up to 100000") };
        let prefix = call.parameter("prefix").unwrap_or("foreign-").to_owned();
        let machine_type = call.parameter("type").unwrap_or("e2-small").to_owned();
        let Some(mut compute) = self.project(&project) else { return error(404, "no such project") };
        let known = MachineType::find(zone, &machine_type).map_or("e2-small", |_| machine_type.as_str());
        for number in 1..=count {
            let name = format!("{prefix}{number:04}");
            if compute.project.zones[zone].instances.contains_key(&name) {
                continue;
            }
            let body = json!({
                "name": name, "machineType": format!("zones/{zone}/machineTypes/{known}"),
                "disks": [{"boot": true, "initializeParams": {
                    "sourceImage": format!("{BASE}projects/debian-cloud/global/images/family/debian-12")}}],
                "networkInterfaces": [{"accessConfigs": [{}]}],
            });
            match compute.spec(&body, zone) {
                Ok(spec) => compute.add_foreign(zone, spec, &machine_type),
                Err(refused) => return error(400, &refused.message),
            }
        }
        done()
    }

    fn state_json(&self) -> Value {
        let projects: BTreeMap<&str, Value> =
            self.projects.iter().map(|(name, project)| (name.as_str(), project_json(project))).collect();
        json!({
            "base": self.base, "control": self.control, "projects": projects,
            "tokens_issued": self.world.tokens.issued, "counters": self.world.stats,
        })
    }
}

enum ImageChange {
    Deprecate,
    Remove,
}

fn project_json(project: &Project) -> Value {
    fn counts<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<&'a str, u64> {
        let mut counts = BTreeMap::new();
        for name in names {
            *counts.entry(name).or_default() += 1;
        }
        counts
    }
    let instances = project.zones.values().flat_map(|zone| zone.instances.values());
    let operations = project.zones.values().flat_map(|zone| zone.operations.values());
    let zones: BTreeMap<&str, usize> = project
        .zones
        .iter()
        .map(|(name, zone)| (*name, zone.instances.len()))
        .filter(|(_, count)| *count > 0)
        .collect();
    json!({
        "instances": counts(instances.map(|instance| instance.status().name())), "instances_by_zone": zones,
        "operations": counts(operations.map(|operation| operation.status.name())), "usage": project.usage.amounts(),
    })
}

fn done() -> Response {
    Response::json(200, &json!({}))
}

fn error(status: u16, text: &str) -> Response {
    Response::json(status, &json!({"error": text}))
}
