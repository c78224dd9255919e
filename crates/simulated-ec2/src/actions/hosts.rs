//! AllocateHosts, DescribeHosts, ReleaseHosts.

use std::time::Duration;

use crate::api::xml::Xml;
use crate::region::instance_types;
use crate::region::objects::Host;
use crate::region::region::Ec2;
use crate::region::tags::{self, Tags};
use crate::region::work::Step;
use crate::server::form::{Form, missing};
use crate::server::response::{ApiError, ApiResult};

impl Ec2<'_> {
    pub fn describe_hosts(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let mut query = self.query(form, "HostId", ("InvalidHostID.NotFound", "host ID"));
        query.sizes = 5..=500;
        let page = query.page(&self.region.hosts, |_| true)?;
        page.write(xml, "hostSet", |xml, host| self.write_host(xml, host));
        Ok(())
    }

    fn write_host(&self, xml: &mut Xml, host: &Host) {
        let account = &self.world.options.account;
        xml.text("autoPlacement", &host.auto_placement).text("availabilityZone", &host.zone);
        if let Some(one) = instance_types::find(&host.instance_type) {
            let total = one.per_host();
            let free = total.saturating_sub(host.instances.len() as u32);
            xml.within("availableCapacity", |xml| {
                xml.items("availableInstanceCapacity", [()], |xml, ()| {
                    xml.value("availableCapacity", free).text("instanceType", one.name).value("totalCapacity", total);
                });
                xml.value("availableVCpus", free * one.vcpus)
            });
            xml.within("hostProperties", |xml| {
                xml.value("cores", one.cores * total).text("instanceType", one.name);
                xml.text("instanceFamily", one.family()).value("sockets", 1).value("totalVCpus", one.vcpus * total)
            });
        }
        xml.text("clientToken", &host.client_token).text("hostId", &host.id);
        xml.items("instances", &host.instances, |xml, id| {
            xml.text("instanceId", id).text("instanceType", &host.instance_type).text("ownerId", account);
        });
        xml.text("state", &host.state).text("allocationTime", &host.allocation_time);
        xml.optional("releaseTime", host.release_time.as_deref());
        tags::write(xml, &host.tags);
        xml.text("hostRecovery", &host.recovery).text("allowsMultipleInstanceTypes", "off");
        xml.text("ownerId", account).text("hostMaintenance", &host.maintenance);
    }

    pub fn allocate_hosts(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let ids = match self.repeated("AllocateHosts", form)? {
            Some(ids) => ids,
            None => {
                let ids = self.allocate_new_hosts(form)?;
                self.remember("AllocateHosts", form, ids.clone());
                ids
            }
        };
        xml.open("hostIdSet");
        for id in &ids {
            xml.text("item", id);
        }
        xml.close("hostIdSet");
        Ok(())
    }

    fn allocate_new_hosts(&mut self, form: &Form) -> ApiResult<Vec<String>> {
        let zone = form.required("AvailabilityZone")?.to_owned();
        if !self.zones().contains(&zone) {
            return Err(ApiError::invalid(format!("Invalid availability zone: [{zone}]")));
        }
        let name = form.get("InstanceType").ok_or_else(|| missing("InstanceType"))?;
        let unknown = || ApiError::invalid(format!("Invalid value '{name}' for InstanceType."));
        let one = instance_types::find(name).ok_or_else(unknown)?;
        let quantity = form.number("Quantity")?.unwrap_or(1);
        if !(1..=1000).contains(&quantity) {
            return Err(ApiError::invalid(format!("Invalid value '{quantity}' for Quantity.")));
        }
        let tags = tags::specified_for(form, "dedicated-host")?;
        if self.world.knobs.full_places.iter().any(|place| place.contains(name, &zone, "", false)) {
            let text = format!("Insufficient capacity for {name} hosts in {zone}.");
            return Err(ApiError::new("InsufficientHostCapacity", text));
        }
        self.check_hosts(one.family(), quantity)?;
        Ok((0..quantity).map(|_| self.allocate_host(form, one, &zone, &tags)).collect())
    }

    fn allocate_host(&mut self, form: &Form, one: &instance_types::InstanceType, zone: &str, tags: &Tags) -> String {
        let id = self.world.new_id("h");
        let text = |name: &str, default: &str| form.get(name).unwrap_or(default).to_owned();
        let host_s = self.world.knobs.host_s;
        let host = Host {
            id: id.clone(),
            state: if host_s > 0.0 { "pending" } else { "available" }.to_owned(),
            instance_type: one.name.to_owned(),
            zone: zone.to_owned(),
            auto_placement: text("AutoPlacement", "off"),
            recovery: text("HostRecovery", "off"),
            maintenance: text("HostMaintenance", "off"),
            instances: Vec::new(),
            allocated: self.world.now,
            allocation_time: self.world.timestamp(),
            release_time: None,
            client_token: text("ClientToken", ""),
            tags: tags.clone(),
        };
        self.created("hosts", &id, one.name, tags);
        *self.region.usage.hosts.entry(one.family().to_owned()).or_default() += 1;
        self.region.hosts.insert(&id, host);
        if host_s > 0.0 {
            self.after(host_s, Step::HostAvailable(id.clone()));
        } else {
            self.world.history.running(&id, self.world.now);
        }
        id
    }

    /// An instance has left its host. A Mac host is then cleaned for `host_clean_s`.
    pub fn leave_host(&mut self, host: &str, instance: &str, one: &instance_types::InstanceType) {
        let clean_s = self.world.knobs.host_clean_s;
        let Some(host) = self.region.hosts.get_mut(host) else { return };
        host.instances.retain(|other| other != instance);
        if one.is_mac() && clean_s > 0.0 {
            "pending".clone_into(&mut host.state);
            let step = Step::HostAvailable(host.id.clone());
            self.after(clean_s, step);
        }
    }

    pub fn host_available(&mut self, id: &str) {
        if let Some(host) = self.region.hosts.get_mut(id).filter(|host| host.state == "pending") {
            host.state = "available".to_owned();
            self.world.history.running(id, self.world.now);
        }
    }

    /// Releases hosts one by one: the answer lists those that cannot be released.
    pub fn release_hosts(&mut self, form: &Form, xml: &mut Xml) -> ApiResult<()> {
        let ids = form.list("HostId");
        if ids.is_empty() {
            return Err(missing("HostId"));
        }
        let (mut released, mut refused) = (Vec::new(), Vec::new());
        for id in ids {
            match self.release_host(id) {
                Ok(()) => released.push(id),
                Err(error) => refused.push((id, error)),
            }
        }
        xml.open("successful");
        for id in released {
            xml.text("item", id);
        }
        xml.close("successful");
        xml.items("unsuccessful", refused, |xml, (id, error)| {
            xml.within("error", |xml| xml.text("code", &error.code).text("message", &error.message));
            xml.text("resourceId", id);
        });
        Ok(())
    }

    fn release_host(&mut self, id: &str) -> ApiResult<()> {
        let (now, minimum) = (self.world.now, Duration::from_secs_f64(self.world.knobs.host_minimum_s));
        let released_at = self.world.timestamp();
        let unknown = || ApiError::new("Client.InvalidHostID.NotFound", format!("The host ID '{id}' does not exist"));
        let host = self.region.hosts.get_mut(id).filter(|host| !host.state.starts_with("released"));
        let host = host.ok_or_else(unknown)?;
        // A Mac host that is cleaned counts as occupied.
        if !host.instances.is_empty() || host.state == "pending" {
            let text = format!("Dedicated host '{id}' cannot be released as it is occupied");
            return Err(ApiError::new("Client.InvalidHost.Occupied", text));
        }
        let one = instance_types::find(&host.instance_type).expect("hosts have known types");
        let earliest = host.allocated + minimum;
        if one.is_mac() && now < earliest {
            let (name, hours) = (one.name, minimum.as_secs() / 3600);
            let text = format!(
                "Unable to release Dedicated Host {id}. {name} hosts must be allocated to your AWS account for at least \
                 {hours} hour(s). You can release this host any time after {}.",
                self.world.timestamp_of(earliest)
            );
            return Err(ApiError::new("Client.HostMinAllocationPeriodUnexpired", text));
        }
        let has_failed = host.state == "permanent-failure";
        host.state = if has_failed { "released-permanent-failure" } else { "released" }.to_owned();
        host.release_time = Some(released_at);
        if let Some(used) = self.region.usage.hosts.get_mut(one.family()) {
            *used -= 1;
        }
        self.world.history.end_asked(id, "released", now);
        self.deleted("hosts", id);
        let visible_s = self.world.knobs.terminated_visible_s;
        self.after(visible_s, Step::Forget(id.to_owned()));
        Ok(())
    }
}
