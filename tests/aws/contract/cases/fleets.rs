//! Launch templates and the fleets that use them.

use std::net::Ipv4Addr;
use std::sync::Arc;

use crate::contract::peer::{Parameters, Peer};
use crate::ec2::{Element, tags};

/// Creates a launch template for instances with a volume of 30 GB, and returns its name.
async fn template(peer: &Peer) -> String {
    let name = peer.name("nodepool-launch-template");
    peer.ec2.ok("CreateLaunchTemplate", &template_parameters(peer, &name)).await;
    name
}

fn template_parameters<'a>(peer: &'a Peer, name: &'a str) -> Parameters<'a> {
    vec![
        ("LaunchTemplateName", name),
        ("LaunchTemplateData.KeyName", &peer.resources.key_name),
        ("LaunchTemplateData.SecurityGroupId.1", &peer.resources.security_group),
        ("LaunchTemplateData.BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("LaunchTemplateData.BlockDeviceMapping.1.Ebs.DeleteOnTermination", "true"),
        ("LaunchTemplateData.BlockDeviceMapping.1.Ebs.VolumeSize", "30"),
        ("LaunchTemplateData.BlockDeviceMapping.1.Ebs.VolumeType", "gp3"),
        ("LaunchTemplateData.BlockDeviceMapping.1.Ebs.Iops", "3500"),
        ("LaunchTemplateData.MetadataOptions.HttpTokens", "required"),
        ("TagSpecification.1.ResourceType", "launch-template"),
        ("TagSpecification.1.Tag.1.Key", "nodepool_managed"),
        ("TagSpecification.1.Tag.1.Value", "True"),
    ]
}

async fn delete(peer: &Peer, name: &str) {
    peer.ec2.ok("DeleteLaunchTemplate", &[("LaunchTemplateName", name)]).await;
}

/// Parameters of an instant fleet of one instance; `more` extends them.
fn fleet<'a>(peer: &'a Peer, template: &'a str, more: &[(&'a str, &'a str)]) -> Parameters<'a> {
    const SPECIFICATION: [&str; 2] = [
        "LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName",
        "LaunchTemplateConfigs.1.LaunchTemplateSpecification.Version",
    ];
    let usual = [
        ("Type", "instant"),
        ("TargetCapacitySpecification.TotalTargetCapacity", "1"),
        (SPECIFICATION[0], template),
        (SPECIFICATION[1], "$Latest"),
        ("LaunchTemplateConfigs.1.Overrides.1.ImageId", &peer.resources.image),
        ("LaunchTemplateConfigs.1.Overrides.1.InstanceType", "t3.small"),
        ("LaunchTemplateConfigs.1.Overrides.1.SubnetId", &peer.resources.subnets[0]),
        ("LaunchTemplateConfigs.1.Overrides.2.ImageId", &peer.resources.image),
        ("LaunchTemplateConfigs.1.Overrides.2.InstanceType", "t3.medium"),
        ("LaunchTemplateConfigs.1.Overrides.2.SubnetId", &peer.resources.subnets[1]),
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", "Name"),
        ("TagSpecification.1.Tag.1.Value", "np0000000003"),
        ("TagSpecification.2.ResourceType", "volume"),
        ("TagSpecification.2.Tag.1.Key", "Name"),
        ("TagSpecification.2.Tag.1.Value", "np0000000003"),
    ];
    usual.into_iter().chain(more.iter().copied()).collect()
}

const ON_DEMAND: [(&str, &str); 2] = [
    ("TargetCapacitySpecification.DefaultTargetCapacityType", "on-demand"),
    ("OnDemandOptions.AllocationStrategy", "lowest-price"),
];

/// The only entry of the instances of a fleet.
fn launched(answer: &Element) -> (&Element, String) {
    assert!(answer.child("fleetId").text().starts_with("fleet-"), "{answer:?}");
    assert!(answer.child("errorSet").children("item").is_empty(), "{answer:?}");
    let entries = answer.child("fleetInstanceSet").children("item");
    assert_eq!(entries.len(), 1, "{answer:?}");
    let ids = entries[0].child("instanceIds").children("item");
    assert_eq!(ids.len(), 1, "{answer:?}");
    (entries[0], ids[0].text().to_owned())
}

pub async fn templates(peer: Arc<Peer>) {
    let name = template(&peer).await;
    let again = peer.ec2.call("CreateLaunchTemplate", &template_parameters(&peer, &name)).await;
    again.expect_error(400, "InvalidLaunchTemplateName.AlreadyExistsException");
    let other = template(&peer).await;
    let filter = [("Filter.1.Name", "launch-template-name"), ("Filter.1.Value.1", "nodepool-launch-template-*")];
    let answer = peer.ec2.ok("DescribeLaunchTemplates", &filter).await;
    let found = answer.child("launchTemplates").children("item");
    let mut names: Vec<&str> = found.iter().map(|one| one.child("launchTemplateName").text()).collect();
    names.sort_unstable();
    assert_eq!(names, [&name, &other]);
    assert!(found[0].child("launchTemplateId").text().starts_with("lt-"), "{answer:?}");
    assert_eq!(tags(found[0]).get("nodepool_managed").map(String::as_str), Some("True"));
    for name in [&name, &other] {
        delete(&peer, name).await;
    }
    let answer = peer.ec2.ok("DescribeLaunchTemplates", &filter).await;
    assert!(answer.child("launchTemplates").children("item").is_empty(), "{answer:?}");
    let code = "InvalidLaunchTemplateName.NotFoundException";
    for (action, key) in
        [("DescribeLaunchTemplates", "LaunchTemplateName.1"), ("DeleteLaunchTemplate", "LaunchTemplateName")]
    {
        peer.ec2.call(action, &[(key, &name)]).await.expect_error(400, code);
    }
}

pub async fn on_demand(peer: Arc<Peer>) {
    let template = template(&peer).await;
    let answer = peer.ec2.ok("CreateFleet", &fleet(&peer, &template, &ON_DEMAND)).await;
    let (entry, id) = launched(&answer);
    assert_eq!(entry.child("lifecycle").text(), "on-demand");
    let kind = entry.child("instanceType").text();
    assert!(["t3.small", "t3.medium"].contains(&kind), "{kind}");
    let instance = peer.until_state(&id, "running").await;
    assert_eq!(instance.child("instanceType").text(), kind);
    assert_eq!(instance.child("instanceLifecycle").text(), "");
    assert_eq!(instance.child("imageId").text(), peer.resources.image);
    assert_eq!(instance.child("keyName").text(), peer.resources.key_name);
    assert_eq!(instance.child("groupSet").text_of("groupId"), Some(peer.resources.security_group.as_str()));
    assert_eq!(instance.child("metadataOptions").child("httpTokens").text(), "required");
    assert_eq!(tags(&instance).get("Name").map(String::as_str), Some("np0000000003"));
    let volumes = peer.volumes(&instance).await;
    let shape = ["size", "volumeType", "iops"].map(|name| volumes[0].child(name).text());
    assert_eq!((volumes.len(), shape), (1, ["30", "gp3", "3500"]));
    assert_eq!(tags(&volumes[0]).get("Name").map(String::as_str), Some("np0000000003"));
    peer.terminate(&id).await;
    assert_eq!(peer.usage().await, (0, 0));
    delete(&peer, &template).await;
}

pub async fn interface(peer: Arc<Peer>) {
    let template = peer.name("nodepool-launch-template");
    const INTERFACE: [&str; 3] = [
        "LaunchTemplateData.NetworkInterface.1.DeviceIndex",
        "LaunchTemplateData.NetworkInterface.1.AssociatePublicIpAddress",
        "LaunchTemplateData.NetworkInterface.1.SecurityGroupId.1",
    ];
    let parameters = [
        ("LaunchTemplateName", template.as_str()),
        ("LaunchTemplateData.KeyName", &peer.resources.key_name),
        ("LaunchTemplateData.EbsOptimized", "false"),
        (INTERFACE[0], "0"),
        (INTERFACE[1], "true"),
        (INTERFACE[2], &peer.resources.security_group),
    ];
    peer.ec2.ok("CreateLaunchTemplate", &parameters).await;
    let answer = peer.ec2.ok("CreateFleet", &fleet(&peer, &template, &ON_DEMAND)).await;
    let (entry, id) = launched(&answer);
    let zone = if entry.child("instanceType").text() == "t3.small" { 0 } else { 1 };
    let instance = peer.until_state(&id, "running").await;
    assert_eq!(instance.child("subnetId").text(), peer.resources.subnets[zone]);
    assert_eq!(instance.child("groupSet").text_of("groupId"), Some(peer.resources.security_group.as_str()));
    assert!(instance.child("ipAddress").text().parse::<Ipv4Addr>().is_ok(), "{instance:?}");
    peer.terminate(&id).await;
    delete(&peer, &template).await;
}

pub async fn priorities(peer: Arc<Peer>) {
    let template = template(&peer).await;
    let options = [
        ("TargetCapacitySpecification.DefaultTargetCapacityType", "on-demand"),
        ("OnDemandOptions.AllocationStrategy", "prioritized"),
        ("LaunchTemplateConfigs.1.Overrides.1.Priority", "1"),
        ("LaunchTemplateConfigs.1.Overrides.2.Priority", "0"),
    ];
    let answer = peer.ec2.ok("CreateFleet", &fleet(&peer, &template, &options)).await;
    let (entry, id) = launched(&answer);
    assert_eq!(entry.child("instanceType").text(), "t3.medium");
    peer.until_state(&id, "running").await;
    peer.terminate(&id).await;
    delete(&peer, &template).await;
}

pub async fn errors(peer: Arc<Peer>) {
    let template = template(&peer).await;
    let mut parameters = fleet(&peer, &template, &ON_DEMAND);
    for (_, value) in parameters.iter_mut().filter(|(key, _)| key.ends_with(".ImageId")) {
        *value = "ami-0123456789abcdef0";
    }
    let answer = peer.ec2.ok("CreateFleet", &parameters).await;
    assert!(answer.child("fleetInstanceSet").children("item").is_empty(), "{answer:?}");
    let errors = answer.child("errorSet").children("item");
    let codes: Vec<&str> = errors.iter().map(|error| error.child("errorCode").text()).collect();
    assert!(!codes.is_empty() && codes.iter().all(|code| *code == "InvalidAMIID.NotFound"), "{answer:?}");
    assert!(errors[0].child("errorMessage").text().contains("ami-0123456789abcdef0"), "{answer:?}");
    delete(&peer, &template).await;
}

pub async fn spot(peer: Arc<Peer>) {
    let template = template(&peer).await;
    let options = [
        ("TargetCapacitySpecification.DefaultTargetCapacityType", "spot"),
        ("SpotOptions.AllocationStrategy", "price-capacity-optimized"),
    ];
    let answer = peer.ec2.ok("CreateFleet", &fleet(&peer, &template, &options)).await;
    let (entry, id) = launched(&answer);
    assert_eq!(entry.child("lifecycle").text(), "spot");
    assert_eq!(peer.until_state(&id, "running").await.child("instanceLifecycle").text(), "spot");
    peer.terminate(&id).await;
    delete(&peer, &template).await;
}

pub async fn unknown_template(peer: Arc<Peer>) {
    let parameters = fleet(&peer, "nodepool-launch-template-gone", &ON_DEMAND);
    let code = "InvalidLaunchTemplateName.NotFoundException";
    peer.ec2.call("CreateFleet", &parameters).await.expect_error(400, code);
}

pub async fn client_token(peer: Arc<Peer>) {
    let (template, token) = (template(&peer).await, peer.name("token"));
    let options = [&ON_DEMAND[..], &[("ClientToken", token.as_str())]].concat();
    let parameters = fleet(&peer, &template, &options);
    let first = peer.ec2.ok("CreateFleet", &parameters).await;
    let second = peer.ec2.ok("CreateFleet", &parameters).await;
    assert_eq!(launched(&first).1, launched(&second).1);
    assert_eq!(peer.usage().await.0, 1);
    peer.terminate(&launched(&first).1).await;
    delete(&peer, &template).await;
}
