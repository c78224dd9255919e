//! Interventions by `/sim`: events that happen to resources, and resources that no call asked for.

use serde_json::json;

use crate::api::control::{done, error};
use crate::faults::codes;
use crate::methods::fields::is_name;
use crate::server::call::Call;
use crate::server::response::Response;
use crate::state::fixtures::{Image, NewImage, Subnet};
use crate::state::instance::STATUSES;
use crate::state::instance_steps::status_reason;
use crate::state::table::{Entry, Table};
use crate::state::volume::NewVolume;
use crate::state::world::World;

/// Resources that one call creates at most.
const MAX_FOREIGN: usize = 50_000;

/// The kinds of resources of interventions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Instance,
    FloatingIp,
    Image,
    Volume,
}

impl World {
    pub fn intervene(&mut self, call: &Call, intervention: &str) -> Response {
        match intervention {
            "remove" => self.on_resource(call, |world, kind, id| {
                world.remove_resource(kind, id);
                done()
            }),
            "status" => self.on_resource(call, |world, kind, id| world.set_status(call, kind, id)),
            "foreign" => self.add_foreign(call),
            "group" => self.add_named_group(call),
            "image" => self.add_named_image(call),
            _ => error(404, "no such endpoint"),
        }
    }

    /// Changes the resource with the id or the name of the call. The kind is that of instances by default.
    fn on_resource(&mut self, call: &Call, change: impl FnOnce(&mut Self, Kind, &str) -> Response) -> Response {
        let Some(kind) = kind_of(call) else {
            return error(400, "the kinds are instance, floating_ip, image and volume");
        };
        let id = match kind {
            Kind::Instance => id_of(&self.instances, call),
            Kind::FloatingIp => id_of(&self.floating_ips, call),
            Kind::Image => id_of(&self.images, call),
            Kind::Volume => id_of(&self.volumes, call),
        };
        match id {
            Some(id) => change(self, kind, &id),
            None => error(404, "no resource of this kind has this id or name"),
        }
    }

    fn remove_resource(&mut self, kind: Kind, id: &str) {
        match kind {
            Kind::Instance => self.remove_instance(id, "removed"),
            Kind::FloatingIp => self.remove_floating_ip(id, "removed"),
            Kind::Image => self.remove_image(id, "removed"),
            Kind::Volume => self.remove_volume(id, "removed"),
        }
    }

    /// Sets the status of a resource, and for instances and images the reason of it.
    fn set_status(&mut self, call: &Call, kind: Kind, id: &str) -> Response {
        let status = call.parameter("status").unwrap_or_default().to_owned();
        let reason = call.parameter("reason").map(str::to_owned);
        let (statuses, reasons): (&[&str], &[&str]) = match kind {
            Kind::Instance => (&STATUSES, &codes::INSTANCE_REASONS),
            Kind::FloatingIp => (&["available", "deleting", "failed", "pending"], &[]),
            Kind::Image => (
                &["available", "deleting", "deprecated", "failed", "obsolete", "pending", "unusable"],
                &codes::IMAGE_REASONS,
            ),
            Kind::Volume => (&["available", "failed", "pending", "pending_deletion", "unusable"], &[]),
        };
        if !statuses.contains(&status.as_str()) {
            return error(400, &format!("the statuses are {}", statuses.join(", ")));
        }
        if reason.as_ref().is_some_and(|reason| !reasons.contains(&reason.as_str())) {
            return error(400, &format!("the reasons are {}", reasons.join(", ")));
        }
        match kind {
            Kind::Instance => drop(self.set_instance_status(id, &status, reason.as_deref())),
            Kind::FloatingIp => {
                if let Some(floating_ip) = self.floating_ips.get_mut(id) {
                    floating_ip.set_status(&status);
                }
            }
            Kind::Image => {
                if let Some(image) = self.images.get_mut(id) {
                    image.set_status(&status);
                    let reasons = reason.map_or_else(|| json!([]), |code| json!([status_reason(&code)]));
                    image.value_mut()["status_reasons"] = reasons;
                }
            }
            Kind::Volume => {
                if let Some(volume) = self.volumes.get_mut(id) {
                    volume.set_status(&status);
                }
            }
        }
        done()
    }

    /// The id of the group with the name in the call. A new group is created for a new name.
    fn group_of(&mut self, call: &Call) -> String {
        let Some(name) = call.parameter("group") else { return self.default_group.clone() };
        match self.groups.by_name(name) {
            Some(group) => group.id.clone(),
            None => self.add_group(name, false),
        }
    }

    fn add_named_group(&mut self, call: &Call) -> Response {
        match call.parameter("name") {
            None => error(400, "the parameter name must be the name of a resource group"),
            Some(name) if self.groups.by_name(name).is_some() => error(409, "the resource group exists"),
            Some(name) => {
                let id = self.add_group(name, false);
                Response::json(200, &json!({"id": id}))
            }
        }
    }

    /// Adds a public image, which is the newest of its operating system.
    fn add_named_image(&mut self, call: &Call) -> Response {
        let (name, system) = (call.parameter("name").unwrap_or_default(), call.parameter("os"));
        let system = system.unwrap_or("debian-12-amd64");
        let Ok(size_gb) = call.parameter("size").unwrap_or("100").parse() else {
            return error(400, "the parameter size must be a number of GB");
        };
        if !is_name(name) || self.operating_systems.get(system).is_none() {
            return error(400, "the parameters must be a name of an image, and os the name of an operating system");
        }
        if self.images.by_name(name).is_some() {
            return error(409, "the image exists");
        }
        let id = self.add_public_image(name, system, size_gb);
        Response::json(200, &json!({"id": id}))
    }

    /// Creates resources that no call asked for: `foreign-0001` and so on. Instances are running, floating IPs, images
    /// and volumes are available.
    fn add_foreign(&mut self, call: &Call) -> Response {
        let Some(kind) = kind_of(call) else {
            return error(400, "the kinds are instance, floating_ip, image and volume");
        };
        let count = call.parameter("count").unwrap_or("1").parse().ok().filter(|count| *count <= MAX_FOREIGN);
        let Some(count) = count else { return error(400, "the parameter count must be a number up to 50000") };
        let first_zone = self.zones().next().unwrap_or_default();
        let zone = call.parameter("zone").map_or(first_zone, str::to_owned);
        if self.zone_number(&zone).is_none() {
            return error(400, "no such zone");
        }
        let prefix = call.parameter("prefix").unwrap_or("foreign-").to_owned();
        let profile = call.parameter("profile").unwrap_or("cx2-2x4").to_owned();
        let group = self.group_of(call);
        for number in 1..=count {
            let name = format!("{prefix}{number:04}");
            let refusal = match kind {
                Kind::Instance => self.add_foreign_instance(&name, &zone, &profile, &group),
                Kind::FloatingIp => self.add_foreign_floating_ip(&name, &zone, &group),
                Kind::Image => self.add_foreign_image(&name, &group),
                Kind::Volume => self.add_foreign_volume(&name, &zone, &group),
            };
            if let Some(text) = refusal {
                return error(400, &text);
            }
        }
        done()
    }

    /// A name that exists is skipped. Otherwise the result is the error, if there is one.
    fn add_foreign_instance(&mut self, name: &str, zone: &str, profile: &str, group: &str) -> Option<String> {
        if self.instances.by_name(name).is_some() {
            return None;
        }
        let is_of_zone =
            |subnet: &&Entry<Subnet>| subnet.details.zone == zone && subnet.name().starts_with("nodepool-");
        let subnet = self.subnets.iter().find(is_of_zone).map(|subnet| subnet.id.clone());
        let image = self.images.iter().find(|image| !image.details.is_own).map(|image| image.id.clone());
        let known = self.profiles.get(profile).map_or("cx2-2x4", |_| profile);
        let body = json!({
            "name": name, "profile": {"name": known}, "zone": {"name": zone}, "image": {"id": image},
            "resource_group": {"id": group}, "primary_network_interface": {"subnet": {"id": subnet}},
        });
        let added = self.instance_spec(&body).and_then(|spec| self.add_instance(spec));
        match added {
            Ok(id) => {
                self.set_instance_status(&id, "running", None);
                if let Some(instance) = self.instances.get_mut(&id) {
                    instance.value_mut()["profile"]["name"] = json!(profile);
                }
                None
            }
            Err(refused) => Some(refused.message),
        }
    }

    fn add_foreign_floating_ip(&mut self, name: &str, zone: &str, group: &str) -> Option<String> {
        if self.floating_ips.by_name(name).is_some() {
            return None;
        }
        match self.add_floating_ip(name, zone, group) {
            Some(id) => {
                self.floating_ip_available(&id);
                None
            }
            None => Some("no address is left".to_owned()),
        }
    }

    fn add_foreign_image(&mut self, name: &str, group: &str) -> Option<String> {
        if self.images.by_name(name).is_some() {
            return None;
        }
        let system = self.operating_systems.get("debian-12-amd64")?.value().clone();
        let image = NewImage {
            name,
            operating_system: &system,
            size_gb: self.knobs.image_gb,
            group,
            visibility: "private",
            status: "available",
        };
        let id = self.add_image(&image, Image { is_own: true, fate: None });
        self.record("images", &id, name, "");
        None
    }

    fn add_foreign_volume(&mut self, name: &str, zone: &str, group: &str) -> Option<String> {
        if self.volumes.by_name(name).is_none() {
            let volume = NewVolume { name, profile: "general-purpose", capacity: 100, zone, group, image: None };
            self.add_volume(&volume);
        }
        None
    }
}

fn kind_of(call: &Call) -> Option<Kind> {
    Some(match call.parameter("kind").unwrap_or("instance") {
        "instance" => Kind::Instance,
        "floating_ip" => Kind::FloatingIp,
        "image" => Kind::Image,
        "volume" => Kind::Volume,
        _ => return None,
    })
}

fn id_of<T>(table: &Table<T>, call: &Call) -> Option<String> {
    let by_id = call.parameter("id").and_then(|id| table.get(id));
    let found = by_id.or_else(|| table.by_name(call.parameter("name")?));
    found.map(|row| row.id.clone())
}
