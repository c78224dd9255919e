//! Launches: client tokens, ends, volumes, limits, hosts and fleets.

use serde_json::json;

use super::{Cloud, LAUNCH, all, first};

#[test]
fn a_repeated_token_returns_the_same_instance() {
    let mut cloud = Cloud::new(&[]);
    let id = cloud.launch("ClientToken=one");
    assert_eq!(cloud.launch("ClientToken=one"), id);
    assert_ne!(cloud.launch("ClientToken=two"), id);
    assert_ne!(cloud.launch(""), cloud.launch(""));
    let other = format!("{LAUNCH}&ClientToken=one&KeyName=nodepool");
    assert_eq!(cloud.refused("RunInstances", &other), (400, "IdempotentParameterMismatch".to_owned()));
    assert_eq!(cloud.instances(), json!({"running": 4}));
    cloud.done("TerminateInstances", &format!("InstanceId.1={id}"));
    let repeated = cloud.refused("RunInstances", &format!("{LAUNCH}&ClientToken=one"));
    assert_eq!(repeated, (400, "IdempotentInstanceTerminated".to_owned()));
}

#[test]
fn termination_is_all_or_nothing_and_names_unknown_ids() {
    let mut cloud = Cloud::new(&[]);
    let id = cloud.launch("");
    let ids = format!("InstanceId.1=i-1&InstanceId.2={id}&InstanceId.3=i-2");
    let (status, text) = cloud.ec2("TerminateInstances", &ids);
    assert_eq!((status, first(&text, "Code").as_str()), (400, "InvalidInstanceID.NotFound"));
    assert_eq!(first(&text, "Message"), "The instance IDs 'i-1, i-2' do not exist");
    assert_eq!(cloud.instances(), json!({"running": 1}));
    cloud.done("TerminateInstances", &format!("InstanceId.1={id}"));
    assert_eq!(cloud.instances(), json!({"terminated": 1}));
}

#[test]
fn volumes_end_with_their_instance_unless_the_image_keeps_them() {
    let mut cloud = Cloud::new(&[]);
    let two_volumes = "ImageId=ami-00000000000000002&InstanceType=t3.small&MinCount=1&MaxCount=1";
    let id = first(&cloud.done("RunInstances", two_volumes), "instanceId");
    let volumes = all(&cloud.done("DescribeVolumes", ""), "status");
    assert_eq!(volumes.iter().filter(|state| *state == "in-use").count(), 2);
    let volume = first(&cloud.done("DescribeVolumes", "Filter.1.Name=size&Filter.1.Value.1=8"), "volumeId");
    assert_eq!(cloud.refused("DeleteVolume", &format!("VolumeId={volume}")).1, "VolumeInUse");
    cloud.done("TerminateInstances", &format!("InstanceId.1={id}"));
    let left = cloud.done("DescribeVolumes", "");
    assert_eq!((first(&left, "status").as_str(), all(&left, "size")), ("available", vec!["4".to_owned()]));
    cloud.done("DeleteVolume", &format!("VolumeId={}", first(&left, "volumeId")));
    assert_eq!(cloud.sim("GET", "/sim/state")["regions"]["us-west-2"]["volume_gib"], json!({"gp2": 0, "gp3": 0}));
}

#[test]
fn unknown_images_keys_subnets_groups_and_types_are_refused() {
    let mut cloud = Cloud::new(&[]);
    for (change, code) in [
        ("ImageId=ami-1", "InvalidAMIID.NotFound"),
        ("ImageId=one", "InvalidAMIID.Malformed"),
        ("KeyName=none", "InvalidKeyPair.NotFound"),
        ("SubnetId=subnet-1", "InvalidSubnetID.NotFound"),
        ("SecurityGroupId.1=sg-1", "InvalidGroup.NotFound"),
        ("InstanceType=t9.huge", "InvalidParameterValue"),
        ("InstanceType=t4g.micro", "InvalidParameterValue"),
        ("SubnetId=subnet-0000000000000000a&NetworkInterface.1.DeviceIndex=0", "InvalidParameterCombination"),
        (
            "BlockDeviceMapping.1.DeviceName=/dev/sda1&BlockDeviceMapping.1.Ebs.VolumeSize=1",
            "InvalidBlockDeviceMapping",
        ),
        ("UserData=%25", "InvalidParameterValue"),
        ("IamInstanceProfile.Name=none", "InvalidParameterValue"),
    ] {
        // The last value of a parameter counts.
        assert_eq!(cloud.refused("RunInstances", &format!("{LAUNCH}&{change}")), (400, code.to_owned()), "{change}");
    }
}

#[test]
fn limits_of_vcpus_addresses_and_volumes_are_enforced() {
    let mut cloud = Cloud::new(&["--quotas", "L-1216C47A=4,L-34B43A08=2"]);
    let spot = format!("{LAUNCH}&InstanceMarketOptions.MarketType=spot");
    cloud.launch("");
    let id = cloud.launch("");
    assert_eq!(cloud.refused("RunInstances", LAUNCH).1, "VcpuLimitExceeded");
    cloud.done("RunInstances", &spot);
    assert_eq!(cloud.refused("RunInstances", &spot).1, "MaxSpotInstanceCountExceeded");
    cloud.done("TerminateInstances", &format!("InstanceId.1={id}"));
    cloud.launch("");
    cloud.knobs(json!({"quotas": {}, "subnet_addresses": 2}));
    // The first two zones are full with two instances each.
    let places: Vec<String> = (0..4).map(|_| cloud.done("RunInstances", LAUNCH)).collect();
    assert!(places[3].contains("us-west-2c"), "{}", places[3]);
    let subnet = format!("{LAUNCH}&SubnetId=subnet-0000000000000000a");
    assert_eq!(cloud.refused("RunInstances", &subnet).1, "InsufficientFreeAddressesInSubnet");
    cloud.knobs(json!({"subnet_addresses": 0, "quotas": {"L-7A658B76": 0.001}}));
    assert_eq!(cloud.refused("RunInstances", LAUNCH).1, "VolumeLimitExceeded");
    cloud.knobs(json!({"late_volume_limit": true, "fail_after_s": 0, "boot_s": 1}));
    let id = cloud.launch("");
    let text = cloud.done("DescribeInstances", &format!("InstanceId.1={id}"));
    assert!(text.contains("<code>Client.VolumeLimitExceeded</code>"), "{text}");
    assert!(text.contains("<name>terminated</name>"), "{text}");
}

#[test]
fn a_full_place_refuses_one_type_zone_and_lifecycle() {
    let mut cloud = Cloud::new(&["--full-place", "t3.medium us-west-2a spot"]);
    let zone = "Placement.AvailabilityZone=us-west-2a";
    let spot = format!("{LAUNCH}&InstanceMarketOptions.MarketType=spot");
    assert_eq!(
        cloud.refused("RunInstances", &format!("{spot}&{zone}")),
        (500, "InsufficientInstanceCapacity".to_owned())
    );
    cloud.launch(zone);
    let text = cloud.done("RunInstances", &spot);
    assert_eq!(first(&text, "availabilityZone"), "us-west-2b", "another zone has room");
}

#[test]
fn reclaimed_and_failed_instances_have_a_state_reason() {
    let mut cloud = Cloud::new(&["--fail-every", "2", "--fail-after-s", "0"]);
    let spot = cloud.launch("InstanceMarketOptions.MarketType=spot");
    let failed = cloud.launch("");
    cloud.sim("POST", &format!("/sim/reclaim?instance={spot}"));
    for (id, code) in [(spot, "Server.SpotInstanceTermination"), (failed, "Server.InternalError")] {
        let text = cloud.done("DescribeInstances", &format!("InstanceId.1={id}"));
        assert!(text.contains(&format!("<stateReason><code>{code}</code>")), "{text}");
    }
    assert_eq!(cloud.instances(), json!({"terminated": 2}));
}

#[test]
fn a_new_instance_is_invisible_for_the_visibility_delay() {
    let mut cloud = Cloud::new(&["--visibility-delay-s", "1000"]);
    let id = cloud.launch("");
    let by_id = format!("InstanceId.1={id}");
    assert_eq!(cloud.refused("DescribeInstances", &by_id).1, "InvalidInstanceID.NotFound");
    assert!(!cloud.done("DescribeInstances", "").contains(&id));
    cloud.knobs(json!({"visibility_delay_s": 0}));
    assert!(cloud.done("DescribeInstances", &by_id).contains(&id));
}

#[test]
fn pages_hold_each_instance_once() {
    let mut cloud = Cloud::new(&[]);
    let many = LAUNCH.replace("Count=1", "Count=12");
    cloud.done("RunInstances", &many);
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let text = cloud.done("DescribeInstances", &format!("MaxResults=5&NextToken={token}"));
        found.extend(all(&text, "instanceId"));
        token = first(&text, "nextToken");
        if token.is_empty() {
            break;
        }
        cloud.launch("");
    }
    let count = found.len();
    found.sort_unstable();
    found.dedup();
    assert_eq!((count, found.len()), (14, 14));
    assert_eq!(cloud.refused("DescribeInstances", "MaxResults=1001").1, "InvalidParameterValue");
}

#[test]
fn occupied_and_young_mac_hosts_are_not_released() {
    let mut cloud = Cloud::new(&[]);
    let text = cloud.done("AllocateHosts", "AvailabilityZone=us-west-2a&InstanceType=mac1.metal&Quantity=1");
    let host = first(&text, "item");
    let launch = "ImageId=ami-00000000000000004&InstanceType=mac1.metal&MinCount=1&MaxCount=1";
    assert_eq!(cloud.refused("RunInstances", launch).1, "Unsupported");
    let on_host = format!("{launch}&Placement.Tenancy=host&Placement.HostId={host}");
    let id = first(&cloud.done("RunInstances", &on_host), "instanceId");
    assert_eq!(cloud.refused("RunInstances", &on_host).1, "InsufficientCapacityOnHost");
    let release = format!("HostId.1={host}&HostId.2=h-1");
    let text = cloud.done("ReleaseHosts", &release);
    assert_eq!(all(&text, "code"), ["Client.InvalidHost.Occupied", "Client.InvalidHostID.NotFound"]);
    cloud.done("TerminateInstances", &format!("InstanceId.1={id}"));
    let text = cloud.done("ReleaseHosts", &release);
    assert_eq!(first(&text, "code"), "Client.HostMinAllocationPeriodUnexpired");
    assert!(text.contains("mac1.metal hosts must be allocated to your AWS account for at least 24 hour(s)"), "{text}");
    cloud.knobs(json!({"host_minimum_s": 0, "host_clean_s": 1000}));
    let id = first(&cloud.done("RunInstances", &on_host), "instanceId");
    cloud.done("TerminateInstances", &format!("InstanceId.1={id}"));
    assert_eq!(first(&cloud.done("ReleaseHosts", &release), "code"), "Client.InvalidHost.Occupied");
    cloud.sim("POST", &format!("/sim/host?host={host}&state=available"));
    assert_eq!(all(&cloud.done("ReleaseHosts", &release), "code"), ["Client.InvalidHostID.NotFound"]);
}

#[test]
fn a_fleet_takes_the_first_priority_with_room() {
    let mut cloud = Cloud::new(&["--full-place", "t3.large"]);
    let data = "LaunchTemplateData.KeyName=nodepool&LaunchTemplateData.SecurityGroupId.1=sg-00000000000000002";
    let template = format!("LaunchTemplateName=nodepool-1&{data}");
    cloud.done("CreateLaunchTemplate", &template);
    let duplicate = cloud.refused("CreateLaunchTemplate", &template);
    assert_eq!(duplicate.1, "InvalidLaunchTemplateName.AlreadyExistsException");
    let config = "LaunchTemplateConfigs.1";
    let mut fleet = format!(
        "Type=instant&ClientToken=f&TargetCapacitySpecification.TotalTargetCapacity=1&TagSpecification.1.ResourceType=volume\
         &TagSpecification.1.Tag.1.Key=node&TagSpecification.1.Tag.1.Value=7\
         &{config}.LaunchTemplateSpecification.LaunchTemplateName=nodepool-1"
    );
    for (index, name, priority) in [(1, "m5.large", "2.0"), (2, "t3.large", "0.0"), (3, "t3.small", "1.0")] {
        let part = format!("{config}.Overrides.{index}");
        fleet.push_str(&format!(
            "&{part}.ImageId=ami-00000000000000001&{part}.InstanceType={name}&{part}.Priority={priority}"
        ));
    }
    let wrong = format!("{fleet}&OnDemandOptions.AllocationStrategy=diversified");
    assert_eq!(cloud.refused("CreateFleet", &wrong).1, "InvalidParameterValue");
    fleet.push_str("&OnDemandOptions.AllocationStrategy=prioritized");
    let text = cloud.done("CreateFleet", &fleet);
    assert_eq!(all(&text, "errorCode"), ["InsufficientInstanceCapacity"]);
    assert!(text.contains("</instanceIds><instanceType>t3.small</instanceType>"), "{text}");
    let repeated = cloud.done("CreateFleet", &fleet);
    assert_eq!(first(&repeated, "fleetId"), first(&text, "fleetId"));
    assert_eq!(cloud.instances(), json!({"running": 1}));
    let volumes = cloud.done("DescribeVolumes", "Filter.1.Name=tag:node&Filter.1.Value.1=7");
    assert_eq!(all(&volumes, "volumeId").len(), 2, "the volume and its attachment: {volumes}");
}
