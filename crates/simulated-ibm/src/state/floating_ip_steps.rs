//! The life of a floating IP: it is created, becomes available, is attached and detached, and is deleted.

use serde_json::json;
use simulated_service::knobs::is_nth;

use crate::state::history::Lifetime;
use crate::state::work::Step;
use crate::state::world::World;

pub struct FloatingIp {
    pub address: u32,
    pub zone: String,
    /// The interface that it has, or will have after `attach_s`.
    pub interface: Option<String>,
    /// It will be failed instead of available.
    pub is_doomed: bool,
}

impl World {
    /// Adds a pending floating IP. `None` means that no address is left.
    pub fn add_floating_ip(&mut self, name: &str, zone: &str, group: &str) -> Option<String> {
        let address = self.public.allocate()?;
        let (id, now) = (self.regional_id(), self.timestamp());
        let json = json!({
            "address": self.public.ipv4(address), "created_at": now, "crn": self.crn(zone, "floating-ip", &id),
            "href": self.href(&format!("floating_ips/{id}")), "id": id, "name": name,
            "resource_group": self.group_reference(group), "status": "pending", "zone": self.zone_reference(zone),
        });
        let zone = zone.to_owned();
        self.stats.floating_ip_creations += 1;
        let is_doomed = is_nth(self.knobs.floating_ips_fail_every, self.stats.floating_ip_creations);
        self.floating_ips.insert(&id, json, FloatingIp { address, zone: zone.clone(), interface: None, is_doomed });
        self.record("floating_ips", &id, name, &zone);
        let time = self.duration(self.knobs.floating_ip_s);
        self.schedule(time, Step::FloatingIpAvailable(id.clone()));
        Some(id)
    }

    /// Records and counts a resource that is no instance.
    pub fn record(&mut self, kind: &'static str, id: &str, name: &str, zone: &str) {
        self.stats.count_created(kind);
        self.history.created(Lifetime {
            kind,
            id: id.to_owned(),
            name: name.to_owned(),
            zone: zone.to_owned(),
            profile: String::new(),
            provider: None,
            node: None,
            created: self.now,
            ready: None,
            end_asked: None,
            ended: None,
            reason: None,
        });
    }

    pub fn floating_ip_available(&mut self, id: &str) {
        if let Some(floating_ip) = self.floating_ips.get_mut(id).filter(|one| one.status() == "pending") {
            if floating_ip.details.is_doomed {
                floating_ip.set_status("failed");
                return;
            }
            floating_ip.set_status("available");
            self.history.ready(id, self.now);
        }
    }

    /// Begins to attach a floating IP to an interface. Neither may be attached to another one.
    pub fn attach(&mut self, id: &str, interface: &str) {
        let Some(floating_ip) = self.floating_ips.get_mut(id) else { return };
        floating_ip.details.interface = Some(interface.to_owned());
        let earlier = self.attached.insert(interface.to_owned(), id.to_owned());
        assert!(earlier.is_none_or(|earlier| earlier == id), "an interface has one floating IP");
        let time = self.duration(self.knobs.attach_s);
        match time > 0.0 {
            true => self.schedule(time, Step::Attach(id.to_owned(), interface.to_owned())),
            false => self.finish_attach(id, interface),
        }
    }

    pub fn finish_attach(&mut self, id: &str, interface: &str) {
        let target = self.interface_reference(interface);
        if let Some(floating_ip) = self.floating_ips.get_mut(id)
            && floating_ip.details.interface.as_deref() == Some(interface)
            && let Some(target) = target
        {
            floating_ip.value_mut()["target"] = target;
        }
    }

    pub fn detach(&mut self, id: &str) {
        let Some(floating_ip) = self.floating_ips.get_mut(id) else { return };
        if let Some(interface) = floating_ip.details.interface.take() {
            self.attached.remove(&interface);
        }
        if let Some(value) = floating_ip.value_mut().as_object_mut() {
            value.shift_remove("target");
        }
    }

    /// Begins to delete a floating IP.
    pub fn begin_delete_floating_ip(&mut self, id: &str) {
        self.history.end_asked(id, "deleted", self.now);
        self.stats.floating_ip_deletions += 1;
        if is_nth(self.knobs.floating_ips_stay_every, self.stats.floating_ip_deletions) {
            self.stats.left_behind += 1;
            return;
        }
        self.detach(id);
        if let Some(floating_ip) = self.floating_ips.get_mut(id) {
            floating_ip.set_status("deleting");
        }
        let time = self.duration(self.knobs.floating_ip_delete_s);
        self.schedule(time, Step::FloatingIpGone(id.to_owned()));
    }

    /// Removes a floating IP at once.
    pub fn remove_floating_ip(&mut self, id: &str, reason: &str) {
        self.detach(id);
        if let Some(floating_ip) = self.floating_ips.remove(id) {
            self.public.release(floating_ip.details.address);
            self.history.ended(id, reason, self.now);
            self.stats.count_deleted("floating_ips");
        }
    }
}
