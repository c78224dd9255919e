//! The life of an instance: launch, boot, and its end.

use std::cell::RefCell;

use simulated_service::knobs::is_nth;

use crate::actions::run_instances::{Launch, NewVolume};
use crate::faults::codes;
use crate::region::fixtures::VPC;
use crate::region::instance::{Attachment, Instance, State};
use crate::region::objects::Volume;
use crate::region::region::Ec2;
use crate::region::tags::Tags;
use crate::region::work::Step;

impl Ec2<'_> {
    /// Creates so many instances; returns their ids. The launch was admitted.
    pub fn launch(&mut self, launch: Launch, count: u32, token: Option<&str>) -> Vec<String> {
        let reservation = self.world.new_id("r");
        (0..count).map(|index| self.launch_one(&launch, &reservation, index, token)).collect()
    }

    fn launch_one(&mut self, launch: &Launch, reservation: &str, index: u32, token: Option<&str>) -> String {
        let id = self.world.new_id("i");
        let subnet = self.region.subnets.get_mut(&launch.subnet).expect("a checked launch has a subnet");
        let private_address = subnet.addresses.allocate().expect("an admitted launch has an address");
        let private_ip = subnet.addresses.ipv4(private_address);
        let public = &mut self.world.public_addresses;
        let public_address = launch.has_public_address.then(|| public.allocate()).flatten();
        let public_ip = public_address.map(|number| public.ipv4(number));
        // The last part of the private address is unique within the subnet, and the subnet's zone within the region.
        let letter = launch.zone.chars().last().map_or(0, u32::from);
        let ipv6 =
            (0..launch.ipv6_addresses).map(|number| format!("fd00:77:{letter:x}:{number:x}::{private_address:x}"));
        let fate = self.fate(launch);
        let attachments = launch.volumes.iter().map(|one| self.attached(one, &launch.zone, &id, &launch.volume_tags));
        let attachments = attachments.collect();
        let instance = Instance {
            reservation: reservation.to_owned(),
            state: State::Pending,
            state_reason: None,
            fate,
            instance_type: launch.instance_type,
            image: launch.image.id.clone(),
            architecture: launch.image.architecture.clone(),
            root_device: launch.image.root_device.clone(),
            zone: launch.zone.clone(),
            subnet: launch.subnet.clone(),
            vpc: VPC.to_owned(),
            groups: launch.groups.clone(),
            key_name: launch.key_name.clone(),
            spot_request: launch.is_spot.then(|| self.world.new_id("sir")),
            host: launch.host.clone(),
            profile: launch.profile.clone(),
            private_address: Some(private_address),
            private_ip,
            public_address,
            public_ip,
            ipv6: ipv6.collect(),
            interface: self.world.new_id("eni"),
            attachments,
            tags: launch.tags.clone(),
            launch_tags: launch.tags.clone(),
            launched: self.world.now,
            launch_time: self.world.timestamp(),
            client_token: token.map(str::to_owned),
            launch_index: u64::from(index),
            parameters: launch.parameters.clone(),
            cached: RefCell::default(),
            id,
        };
        self.start(instance)
    }

    /// Adds an instance, counts it, and sets its timers.
    fn start(&mut self, instance: Instance) -> String {
        let id = instance.id.clone();
        match &instance.host {
            None => self.use_vcpus(instance.instance_type, instance.is_spot()),
            Some(host) => {
                let host = self.region.hosts.get_mut(host).expect("a checked launch has a host");
                host.instances.push(id.clone());
            }
        }
        self.created("instances", &id, instance.instance_type.name, &instance.tags);
        self.world.stats.instance_launched(&instance.tags);
        let (boot_s, fail_after_s) = (self.world.knobs.boot_s, self.world.knobs.fail_after_s);
        self.after(boot_s, Step::Boot(id.clone()));
        if instance.fate.is_some() {
            self.after(fail_after_s, Step::Fail(id.clone()));
        }
        self.region.instances.insert(&id, instance);
        id
    }

    /// The reason of an end that is decided at the launch.
    fn fate(&mut self, launch: &Launch) -> Option<String> {
        self.world.instances_launched += 1;
        let knobs = &self.world.knobs;
        if is_nth(knobs.fail_every, self.world.instances_launched) {
            return Some(knobs.fail_reason.clone());
        }
        let is_above = knobs.late_volume_limit && self.check_volumes(launch.volumes.iter(), 1).is_err();
        is_above.then(|| "Client.VolumeLimitExceeded".to_owned())
    }

    fn attached(&mut self, new: &NewVolume, zone: &str, instance: &str, tags: &Tags) -> Attachment {
        let attachment = Some((instance.to_owned(), new.device.clone(), new.delete_on_termination));
        let volume = self.add_volume(new, zone, attachment, tags.clone());
        Attachment { device: new.device.clone(), volume, delete_on_termination: new.delete_on_termination }
    }

    /// Creates a volume; returns its id.
    pub fn add_volume(
        &mut self,
        new: &NewVolume,
        zone: &str,
        attachment: Option<(String, String, bool)>,
        tags: Tags,
    ) -> String {
        let id = self.world.new_id("vol");
        let usage = &mut self.region.usage;
        *usage.storage.entry(new.volume_type.clone()).or_default() += u64::from(new.size_gib);
        *usage.iops.entry(new.volume_type.clone()).or_default() += u64::from(new.iops.unwrap_or(0));
        self.created("volumes", &id, &new.volume_type, &tags);
        let volume = Volume {
            id: id.clone(),
            size_gib: new.size_gib,
            volume_type: new.volume_type.clone(),
            iops: new.iops,
            throughput: new.throughput,
            snapshot: new.snapshot.clone(),
            encrypted: new.encrypted,
            zone: zone.to_owned(),
            state: if attachment.is_some() { "in-use" } else { "available" },
            attachment,
            created: self.world.timestamp(),
            tags,
        };
        self.region.volumes.insert(&id, volume);
        id
    }

    pub fn remove_volume(&mut self, id: &str) {
        let Some(volume) = self.region.volumes.remove(id) else { return };
        let usage = &mut self.region.usage;
        if let Some(storage) = usage.storage.get_mut(&volume.volume_type) {
            *storage -= u64::from(volume.size_gib);
        }
        if let Some(iops) = usage.iops.get_mut(&volume.volume_type) {
            *iops -= u64::from(volume.iops.unwrap_or(0));
        }
        self.deleted("volumes", id);
    }

    /// An instance to be changed: its XML will be rendered again.
    pub fn instance_mut(&mut self, id: &str) -> Option<&mut Instance> {
        let instance = self.region.instances.get_mut(id)?;
        instance.cached.get_mut().clear();
        Some(instance)
    }

    pub fn boot(&mut self, id: &str) {
        let Some(instance) = self.instance_mut(id).filter(|instance| instance.state == State::Pending) else { return };
        instance.state = State::Running;
        let is_spot = instance.is_spot();
        self.world.history.running(id, self.world.now);
        let reclaim_after_s = self.world.knobs.spot_reclaim_after_s;
        if is_spot && reclaim_after_s > 0.0 {
            self.after(reclaim_after_s, Step::Reclaim(id.to_owned()));
        }
    }

    /// Ends an instance with the reason of its fate; a pending one is terminated at once.
    pub fn fail(&mut self, id: &str) {
        let Some(instance) = self.region.instances.get(id).filter(|instance| instance.is_alive()) else { return };
        let was_pending = instance.state == State::Pending;
        let reason = instance.fate.clone().unwrap_or_else(|| "Server.InternalError".to_owned());
        self.shut_down(id, &reason, &codes::state_reason(&reason));
        if was_pending {
            self.finish_termination(id);
        }
    }

    pub fn reclaim(&mut self, id: &str) {
        if self.region.instances.get(id).is_some_and(|instance| instance.is_alive()) {
            let code = "Server.SpotInstanceTermination";
            self.shut_down(id, code, &codes::state_reason(code));
        }
    }

    /// Begins the end of an instance.
    pub fn shut_down(&mut self, id: &str, code: &str, message: &str) {
        let Some(instance) = self.instance_mut(id).filter(|instance| instance.is_alive()) else { return };
        instance.state = State::ShuttingDown;
        instance.state_reason = Some((code.to_owned(), message.to_owned()));
        self.world.history.end_asked(id, code, self.world.now);
        let terminate_s = self.world.knobs.terminate_s;
        self.after(terminate_s, Step::Terminate(id.to_owned()));
    }

    /// Stops an instance with a reason, as `/sim/end` requests; it keeps its addresses and volumes.
    pub fn stop(&mut self, id: &str, code: &str) {
        if let Some(instance) = self.instance_mut(id).filter(|instance| instance.is_alive()) {
            instance.state = State::Stopped;
            instance.state_reason = Some((code.to_owned(), codes::state_reason(code)));
        }
    }

    /// Terminates an instance, and frees what it has used.
    pub fn finish_termination(&mut self, id: &str) {
        let is_ending = |instance: &&mut Instance| instance.state == State::ShuttingDown;
        let Some(instance) = self.instance_mut(id).filter(is_ending) else { return };
        instance.state = State::Terminated;
        let (instance_type, is_spot, host) = (instance.instance_type, instance.is_spot(), instance.host.clone());
        let (private, public, subnet) =
            (instance.private_address.take(), instance.public_address.take(), instance.subnet.clone());
        instance.public_ip = None;
        instance.ipv6.clear();
        let attachments = std::mem::take(&mut instance.attachments);
        let launch_tags = std::mem::take(&mut instance.launch_tags);
        self.world.stats.instance_ended(&launch_tags);
        match host {
            Some(host) => self.leave_host(&host, id, instance_type),
            None => self.free_vcpus(instance_type, is_spot),
        }
        if let (Some(address), Some(subnet)) = (private, self.region.subnets.get_mut(&subnet)) {
            subnet.addresses.release(address);
        }
        if let Some(address) = public {
            self.world.public_addresses.release(address);
        }
        for one in attachments {
            if one.delete_on_termination {
                self.remove_volume(&one.volume);
            } else if let Some(volume) = self.region.volumes.get_mut(&one.volume) {
                (volume.state, volume.attachment) = ("available", None);
            }
        }
        self.deleted("instances", id);
        let visible_s = self.world.knobs.terminated_visible_s;
        self.after(visible_s, Step::Forget(id.to_owned()));
    }
}
