//! An instance and its XML.

use std::cell::RefCell;
use std::time::Duration;

use crate::api::filters::Resource;
use crate::api::xml::Xml;
use crate::region::instance_types::InstanceType;
use crate::region::tags::{self, Tags};
use crate::server::form::Form;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Pending,
    Running,
    ShuttingDown,
    Terminated,
    Stopped,
}

impl State {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::ShuttingDown => "shutting-down",
            Self::Terminated => "terminated",
            Self::Stopped => "stopped",
        }
    }

    pub fn code(self) -> u8 {
        match self {
            Self::Pending => 0,
            Self::Running => 16,
            Self::ShuttingDown => 32,
            Self::Terminated => 48,
            Self::Stopped => 80,
        }
    }

    pub fn write(self, xml: &mut Xml, name: &str) {
        xml.within(name, |xml| xml.value("code", self.code()).text("name", self.name()));
    }
}

/// An attached volume.
#[derive(Clone, Debug)]
pub struct Attachment {
    pub device: String,
    pub volume: String,
    pub delete_on_termination: bool,
}

pub struct Instance {
    pub id: String,
    pub reservation: String,
    pub state: State,
    pub state_reason: Option<(String, String)>,
    /// The reason of its end that `fail_every` and the limits of volumes have decided at its launch.
    pub fate: Option<String>,
    pub instance_type: &'static InstanceType,
    pub image: String,
    pub architecture: String,
    pub root_device: String,
    pub zone: String,
    pub subnet: String,
    pub vpc: String,
    pub groups: Vec<(String, String)>,
    pub key_name: Option<String>,
    pub spot_request: Option<String>,
    pub host: Option<String>,
    /// The ARN of its instance profile.
    pub profile: Option<String>,
    /// Number of the private address in its subnet, while it has one.
    pub private_address: Option<u32>,
    pub private_ip: String,
    pub public_address: Option<u32>,
    pub public_ip: Option<String>,
    pub ipv6: Vec<String>,
    pub interface: String,
    pub attachments: Vec<Attachment>,
    pub tags: Tags,
    /// The tags at its launch.
    pub launch_tags: Tags,
    pub launched: Duration,
    /// `launched` as the time of day.
    pub launch_time: String,
    pub client_token: Option<String>,
    pub launch_index: u64,
    /// The parameters of its launch, with those of the launch template.
    pub parameters: Form,
    pub cached: RefCell<String>,
}

impl Instance {
    pub fn is_spot(&self) -> bool {
        self.spot_request.is_some()
    }

    pub fn is_alive(&self) -> bool {
        matches!(self.state, State::Pending | State::Running | State::Stopped)
    }

    /// Appends the XML of the instance, which is rendered once after each change.
    pub fn write(&self, xml: &mut Xml) {
        let mut cached = self.cached.borrow_mut();
        if cached.is_empty() {
            let mut part = Xml::part();
            self.render(&mut part);
            *cached = part.finish();
        }
        xml.raw(&cached);
    }

    fn render(&self, xml: &mut Xml) {
        let form = &self.parameters;
        let is_listed = self.state != State::Terminated;
        let private_ip = Some(self.private_ip.as_str()).filter(|_| is_listed);
        xml.text("instanceId", &self.id).text("imageId", &self.image);
        self.state.write(xml, "instanceState");
        let dns = private_ip.map(|ip| format!("ip-{}.ec2.internal", ip.replace('.', "-")));
        xml.text("privateDnsName", dns.as_deref().unwrap_or_default());
        let public_ip = self.public_ip.as_deref();
        let public_dns = public_ip.map(|ip| format!("ec2-{}.compute.amazonaws.com", ip.replace('.', "-")));
        xml.text("dnsName", public_dns.as_deref().unwrap_or_default());
        xml.text("reason", self.state_reason.as_ref().map_or("", |(_, message)| message));
        xml.optional("keyName", self.key_name.as_deref()).value("amiLaunchIndex", self.launch_index);
        xml.text("instanceType", self.instance_type.name).text("launchTime", &self.launch_time);
        self.write_placement(xml);
        xml.within("monitoring", |xml| xml.text("state", "disabled"));
        if is_listed {
            xml.text("subnetId", &self.subnet).text("vpcId", &self.vpc);
        }
        xml.optional("privateIpAddress", private_ip).optional("ipAddress", public_ip);
        xml.value("sourceDestCheck", true);
        self.write_groups(xml);
        if let Some((code, message)) = &self.state_reason {
            xml.within("stateReason", |xml| xml.text("code", code).text("message", message));
        }
        xml.text("architecture", &self.architecture).text("rootDeviceType", "ebs");
        xml.text("rootDeviceName", &self.root_device);
        xml.items("blockDeviceMapping", &self.attachments, |xml, one| self.write_attachment(xml, one));
        xml.text("virtualizationType", "hvm");
        if let Some(request) = &self.spot_request {
            xml.text("instanceLifecycle", "spot").text("spotInstanceRequestId", request);
        }
        xml.text("clientToken", self.client_token.as_deref().unwrap_or_default());
        tags::write(xml, &self.tags);
        xml.text("hypervisor", "xen");
        self.write_interfaces(xml, is_listed);
        self.write_profile(xml);
        xml.value("ebsOptimized", form.get("EbsOptimized") == Some("true")).value("enaSupport", true);
        let threads = self.instance_type.vcpus / self.instance_type.cores;
        xml.within("cpuOptions", |xml| {
            xml.value("coreCount", self.instance_type.cores).value("threadsPerCore", threads)
        });
        self.write_metadata_options(xml);
        xml.optional("ipv6Address", self.ipv6.first().map(String::as_str));
    }

    fn write_placement(&self, xml: &mut Xml) {
        let tenancy = if self.host.is_some() { "host" } else { "default" };
        xml.within("placement", |xml| {
            xml.text("availabilityZone", &self.zone).text("groupName", "").text("tenancy", tenancy);
            xml.optional("hostId", self.host.as_deref());
            xml.optional("affinity", self.parameters.get("Placement.Affinity"))
        });
    }

    fn write_groups(&self, xml: &mut Xml) {
        xml.items("groupSet", &self.groups, |xml, (id, name)| {
            xml.text("groupId", id).text("groupName", name);
        });
    }

    fn write_attachment(&self, xml: &mut Xml, one: &Attachment) {
        xml.text("deviceName", &one.device).within("ebs", |xml| {
            let status = if self.state == State::Pending { "attaching" } else { "attached" };
            xml.text("volumeId", &one.volume).text("status", status).text("attachTime", &self.launch_time);
            xml.value("deleteOnTermination", one.delete_on_termination)
        });
    }

    fn write_interfaces(&self, xml: &mut Xml, is_listed: bool) {
        xml.items("networkInterfaceSet", is_listed.then_some(()), |xml, ()| {
            xml.text("networkInterfaceId", &self.interface).text("subnetId", &self.subnet);
            xml.text("vpcId", &self.vpc).text("status", "in-use").text("privateIpAddress", &self.private_ip);
            self.write_groups(xml);
            let association = |xml: &mut Xml| {
                if let Some(ip) = &self.public_ip {
                    xml.within("association", |xml| {
                        xml.text("publicIp", ip).text("publicDnsName", "").text("ipOwnerId", "amazon")
                    });
                }
            };
            xml.within("attachment", |xml| {
                xml.text("attachmentId", &format!("eni-attach-{}", &self.interface[4..])).value("deviceIndex", 0);
                xml.text("status", "attached").text("attachTime", &self.launch_time);
                xml.value("deleteOnTermination", true)
            });
            association(xml);
            xml.items("privateIpAddressesSet", [()], |xml, ()| {
                xml.text("privateIpAddress", &self.private_ip).value("primary", true);
                association(xml);
            });
            xml.items("ipv6AddressesSet", &self.ipv6, |xml, address| {
                xml.text("ipv6Address", address);
            });
            xml.text("interfaceType", "interface");
        });
    }

    fn write_profile(&self, xml: &mut Xml) {
        if let Some(arn) = &self.profile {
            let id = format!("AIPA{:X}", md5::compute(arn)).chars().take(21).collect::<String>();
            xml.within("iamInstanceProfile", |xml| xml.text("arn", arn).text("id", &id));
        }
    }

    fn write_metadata_options(&self, xml: &mut Xml) {
        let option = |name: &str, default: &'static str| {
            self.parameters.get(&format!("MetadataOptions.{name}")).unwrap_or(default).to_owned()
        };
        let state = if self.state == State::Pending { "pending" } else { "applied" };
        xml.within("metadataOptions", |xml| {
            xml.text("state", state).text("httpTokens", &option("HttpTokens", "optional"));
            xml.text("httpPutResponseHopLimit", &option("HttpPutResponseHopLimit", "1"));
            xml.text("httpEndpoint", &option("HttpEndpoint", "enabled"));
            xml.text("httpProtocolIpv6", &option("HttpProtocolIpv6", "disabled"));
            xml.text("instanceMetadataTags", &option("InstanceMetadataTags", "disabled"))
        });
    }
}

impl Resource for Instance {
    fn id(&self) -> &str {
        &self.id
    }

    fn tags(&self) -> &Tags {
        &self.tags
    }

    fn field(&self, name: &str) -> Option<Vec<String>> {
        let text = |text: &str| vec![text.to_owned()];
        let maybe = |value: Option<&str>| value.map(str::to_owned).into_iter().collect();
        Some(match name {
            "instance-id" => text(&self.id),
            "instance-state-name" => text(self.state.name()),
            "instance-state-code" => vec![self.state.code().to_string()],
            "instance-type" => text(self.instance_type.name),
            "image-id" => text(&self.image),
            "availability-zone" => text(&self.zone),
            "subnet-id" => text(&self.subnet),
            "vpc-id" => text(&self.vpc),
            "client-token" => maybe(self.client_token.as_deref()),
            "key-name" => maybe(self.key_name.as_deref()),
            "host-id" => maybe(self.host.as_deref()),
            "reservation-id" => text(&self.reservation),
            "private-ip-address" => text(&self.private_ip),
            "ip-address" => maybe(self.public_ip.as_deref()),
            "instance-lifecycle" => maybe(self.is_spot().then_some("spot")),
            "spot-instance-request-id" => maybe(self.spot_request.as_deref()),
            "architecture" => text(&self.architecture),
            "tenancy" => text(if self.host.is_some() { "host" } else { "default" }),
            "instance.group-id" | "group-id" => self.groups.iter().map(|(id, _)| id.clone()).collect(),
            "state-reason-code" => maybe(self.state_reason.as_ref().map(|(code, _)| code.as_str())),
            "block-device-mapping.volume-id" => self.attachments.iter().map(|one| one.volume.clone()).collect(),
            _ => return None,
        })
    }
}
