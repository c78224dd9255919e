//! Parameters of the calls that launch instances: RunInstances, AllocateHosts, CreateFleet and its launch template.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tracing::warn;

use super::api::api_types::Image;
use super::api::form::Form;
use super::label::{AwsLabel, InstanceProfile, Place};
use crate::common::python_format::interpolate;
use nodepool_driver::job::LaunchOrder;
use nodepool_model::records::ids::ProviderName;

/// The names of our launch templates begin so. Those of Nodepool 11 have another prefix, because its launchers delete
/// what they have not made.
pub const TEMPLATE_PREFIX: &str = "nodepool-fleet-template-";

/// One launch in one place.
pub struct Launch<'a> {
    pub provider: &'a ProviderName,
    pub label: &'a AwsLabel,
    pub order: &'a LaunchOrder,
    pub place: &'a Place,
    pub image_id: &'a str,
    /// The AMI, if it is known.
    pub image: Option<&'a Image>,
}

impl Launch<'_> {
    /// The tags of everything that the launch creates.
    pub fn tags(&self) -> BTreeMap<String, String> {
        let mut tags = self.label.tags.clone();
        for (key, text) in &self.label.dynamic_tags {
            match interpolate(text, |name| (name == "request").then(|| Value::clone(&self.order.request))) {
                Ok(value) => drop(tags.insert(key.clone(), value)),
                Err(error) => {
                    warn!(provider = %self.provider, label = %self.label.name, key, error, "cannot expand dynamic-tags")
                }
            }
        }
        tags.extend(self.order.metadata.clone());
        tags.insert("Name".to_owned(), self.order.hostname.clone());
        tags
    }

    /// Names this creation: if the call is repeated, AWS returns what the first one created.
    pub fn token(&self) -> String {
        let (identity, attempt, place) = (&self.order.identity, self.order.attempt, self.place);
        let text = format!("{identity} {attempt} {place} {}", self.image_id);
        hexadecimal(&Sha256::digest(text.as_bytes()))
    }

    pub fn run_instances(&self, host: Option<&str>) -> Form {
        let label = self.label;
        let mut form = Form::new("RunInstances")
            .with("ClientToken", self.token())
            .with("ImageId", self.image_id)
            .with("MinCount", 1)
            .with("MaxCount", 1)
            .with("InstanceType", &self.place.instance_type)
            .with("EbsOptimized", label.ebs_optimized);
        form.add_given("KeyName", label.key_name.as_ref());
        add_interface(&mut form, "", label);
        form.add_given("NetworkInterface.1.SubnetId", self.place.location.subnet.as_ref());
        add_volumes(&mut form, "", label, self.image);
        add_metadata_options(&mut form, "", label);
        add_profile(&mut form, "", label);
        form.add_given("UserData", label.userdata.as_ref().map(|text| STANDARD.encode(text)));
        form.add_given("Placement.AvailabilityZone", self.place.location.zone.as_ref());
        if let Some(host) = host {
            form.add("Placement.Tenancy", "host");
            form.add("Placement.HostId", host);
            form.add("Placement.Affinity", "host");
        }
        let mut tagged = vec!["instance", "volume", "network-interface"];
        if self.place.is_spot {
            form.add("InstanceMarketOptions.MarketType", "spot");
            form.add("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time");
            form.add("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate");
            tagged.push("spot-instances-request");
        }
        form.add_tags(&tagged, &self.tags());
        form
    }

    /// A host of its own for the instance.
    pub fn allocate_host(&self) -> Form {
        let mut form = Form::new("AllocateHosts")
            .with("ClientToken", self.token())
            .with("AutoPlacement", "off")
            .with("InstanceType", &self.place.instance_type)
            .with("Quantity", 1)
            .with("HostRecovery", "off")
            .with("HostMaintenance", "off");
        form.add_given("AvailabilityZone", self.place.location.zone.as_ref());
        form.add_tags(&["dedicated-host"], &self.tags());
        form
    }

    pub fn create_fleet(&self, template: &str) -> Form {
        let market = if self.place.is_spot { "spot" } else { "on-demand" };
        let options = if self.place.is_spot { "SpotOptions" } else { "OnDemandOptions" };
        let mut form = Form::new("CreateFleet")
            .with("ClientToken", self.token())
            .with("Type", "instant")
            .with("TargetCapacitySpecification.TotalTargetCapacity", 1)
            .with("TargetCapacitySpecification.DefaultTargetCapacityType", market)
            .with("LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName", template)
            .with("LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version", "$Latest");
        let Some(fleet) = &self.label.fleet else { return form };
        form.add(&format!("{options}.AllocationStrategy"), &fleet.strategy);
        for (index, instance_type) in fleet.instance_types.iter().enumerate() {
            let prefix = format!("LaunchTemplateConfigs.1.Overrides.{}", index + 1);
            form.add(&format!("{prefix}.ImageId"), self.image_id);
            form.add(&format!("{prefix}.InstanceType"), instance_type);
            form.add_given(&format!("{prefix}.SubnetId"), self.place.location.subnet.as_ref());
            if fleet.strategy == "prioritized" {
                form.add(&format!("{prefix}.Priority"), index);
            }
        }
        // An instant fleet tags nothing else.
        form.add_tags(&["instance", "volume"], &self.tags());
        form
    }

    /// The name of the launch template follows from its content, so that all launchers use the same.
    pub fn template_name(&self) -> String {
        template_name(self.provider, self.label, self.image)
    }

    pub fn create_template(&self) -> Form {
        template_data(self.provider, self.label, self.image).with("LaunchTemplateName", self.template_name())
    }
}

pub fn template_name(provider: &ProviderName, label: &AwsLabel, image: Option<&Image>) -> String {
    let digest = Sha256::digest(template_data(provider, label, image).encoded().as_bytes());
    format!("{TEMPLATE_PREFIX}{}", hexadecimal(&digest))
}

/// The launch template of a fleet, without its name.
fn template_data(provider: &ProviderName, label: &AwsLabel, image: Option<&Image>) -> Form {
    const PREFIX: &str = "LaunchTemplateData.";
    let mut form = Form::new("CreateLaunchTemplate");
    form.add_given(&format!("{PREFIX}KeyName"), label.key_name.as_ref());
    form.add(&format!("{PREFIX}EbsOptimized"), label.ebs_optimized);
    add_interface(&mut form, PREFIX, label);
    add_volumes(&mut form, PREFIX, label, image);
    add_metadata_options(&mut form, PREFIX, label);
    add_profile(&mut form, PREFIX, label);
    let userdata = label.userdata.as_ref().map(|text| STANDARD.encode(text));
    form.add_given(&format!("{PREFIX}UserData"), userdata);
    let tags = [("nodepool_managed", "True"), ("nodepool_provider_name", provider.as_str())];
    let tags = tags.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    form.add_tags(&["launch-template"], &tags);
    form
}

fn add_interface(form: &mut Form, prefix: &str, label: &AwsLabel) {
    let network = &label.network;
    let interface = format!("{prefix}NetworkInterface.1");
    form.add(&format!("{interface}.DeviceIndex"), 0);
    form.add(&format!("{interface}.AssociatePublicIpAddress"), network.public_ipv4);
    form.add_given(&format!("{interface}.SecurityGroupId.1"), network.security_group.as_ref());
    if network.public_ipv6 {
        form.add(&format!("{interface}.Ipv6AddressCount"), 1);
    }
}

/// The root volume as the label wants it, and that no volume outlives its instance.
fn add_volumes(form: &mut Form, prefix: &str, label: &AwsLabel, image: Option<&Image>) {
    let devices = image.map(Image::devices).unwrap_or_default();
    for (index, device) in devices.into_iter().enumerate() {
        let mapping = format!("{prefix}BlockDeviceMapping.{}", index + 1);
        form.add(&format!("{mapping}.DeviceName"), device);
        form.add(&format!("{mapping}.Ebs.DeleteOnTermination"), true);
        if index == 0 {
            let volume = &label.volume;
            form.add_given(&format!("{mapping}.Ebs.VolumeSize"), volume.size_gib);
            form.add_given(&format!("{mapping}.Ebs.VolumeType"), volume.kind.as_ref());
            form.add_given(&format!("{mapping}.Ebs.Iops"), volume.iops);
            form.add_given(&format!("{mapping}.Ebs.Throughput"), volume.throughput);
        }
    }
}

fn add_metadata_options(form: &mut Form, prefix: &str, label: &AwsLabel) {
    if let Some(tokens) = label.imds_tokens {
        form.add(&format!("{prefix}MetadataOptions.HttpTokens"), tokens);
        form.add(&format!("{prefix}MetadataOptions.HttpEndpoint"), "enabled");
    }
}

fn add_profile(form: &mut Form, prefix: &str, label: &AwsLabel) {
    match &label.instance_profile {
        Some(InstanceProfile::Name(name)) => form.add(&format!("{prefix}IamInstanceProfile.Name"), name),
        Some(InstanceProfile::Arn(arn)) => form.add(&format!("{prefix}IamInstanceProfile.Arn"), arn),
        None => {}
    }
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::aws::label::Location;
    use crate::aws::test_settings::{label, order};

    fn launch(yaml: &str, attempt: u32, is_spot: bool, image: Option<&Image>) -> (Form, String) {
        let label = label(yaml);
        let order = LaunchOrder { attempt, ..order() };
        let location = Location { subnet: Some("subnet-1".to_owned()), zone: None };
        let place = Place { instance_type: "t3.medium".to_owned(), location, is_spot };
        let provider = "ec2".into();
        let launch =
            Launch { provider: &provider, label: &label, order: &order, place: &place, image_id: "ami-1", image };
        (launch.run_instances(None), launch.token())
    }

    fn decoded(form: &Form) -> BTreeMap<String, String> {
        form_urlencoded::parse(form.encoded().as_bytes()).into_owned().collect()
    }

    #[test]
    fn a_token_names_the_creation_of_a_node_and_its_attempt() {
        let token = |attempt| launch("", attempt, false, None).1;
        assert_eq!((token(1), token(1).len()), (token(1), 64));
        assert_ne!(token(1), token(2));
        assert_ne!(token(1), launch("", 1, true, None).1);
    }

    #[test]
    fn no_volume_outlives_its_instance() {
        let image: Image = quick_xml::de::from_str(
            "<item><rootDeviceName>/dev/xvda</rootDeviceName><blockDeviceMapping>\
             <item><deviceName>/dev/sdb</deviceName><ebs><volumeSize>5</volumeSize></ebs></item>\
             <item><deviceName>/dev/sdc</deviceName><virtualName>ephemeral0</virtualName></item>\
             <item><deviceName>/dev/xvda</deviceName><ebs><volumeSize>8</volumeSize></ebs></item>\
             </blockDeviceMapping></item>",
        )
        .unwrap();
        let sent = decoded(&launch("volume-size: 40, volume-type: gp3, iops: 4000", 1, false, Some(&image)).0);
        let of = |key: &str| sent.get(&format!("BlockDeviceMapping.{key}")).map(String::as_str);
        assert_eq!(
            (of("1.DeviceName"), of("1.Ebs.VolumeSize"), of("1.Ebs.Iops")),
            (Some("/dev/xvda"), Some("40"), Some("4000"))
        );
        assert_eq!((of("2.DeviceName"), of("2.Ebs.DeleteOnTermination")), (Some("/dev/sdb"), Some("true")));
        assert_eq!((of("2.Ebs.VolumeSize"), of("3.DeviceName")), (None, None));
    }

    #[test]
    fn tags_are_texts_and_name_the_node() {
        let yaml = "tags: {Name: mine, count: 5, flag: true}, dynamic-tags: {tenant: \"{request.tenant_name}\", x: \"{oops}\"}";
        let sent = decoded(&launch(yaml, 1, true, None).0);
        assert_eq!(sent["TagSpecification.4.ResourceType"], "spot-instances-request");
        let tags: BTreeMap<&str, &str> = (1..9)
            .filter_map(|index| {
                let part = |part: &str| sent.get(&format!("TagSpecification.2.Tag.{index}.{part}")).map(String::as_str);
                Some((part("Key")?, part("Value")?))
            })
            .collect();
        let expected = [("Name", "np0000000001"), ("count", "5"), ("nodepool_node_id", "0000000001"), ("tenant", "t")];
        expected.iter().for_each(|(key, value)| assert_eq!(tags.get(key), Some(value), "{tags:?}"));
        assert_eq!((tags.get("flag"), tags.get("x")), (Some(&"True"), None));
    }
}
