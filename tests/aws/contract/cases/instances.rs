//! Instances: their launch, description and termination.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::contract::peer::Peer;
use crate::ec2::tags;

/// Tags of an instance and its volumes.
const TAGS: [(&str, &str); 8] = [
    ("TagSpecification.1.ResourceType", "instance"),
    ("TagSpecification.1.Tag.1.Key", "Name"),
    ("TagSpecification.1.Tag.1.Value", "np0000000001"),
    ("TagSpecification.1.Tag.2.Key", "team <a> & b"),
    ("TagSpecification.1.Tag.2.Value", "\"ci\" 100 %"),
    ("TagSpecification.2.ResourceType", "volume"),
    ("TagSpecification.2.Tag.1.Key", "Name"),
    ("TagSpecification.2.Tag.1.Value", "np0000000001"),
];

pub async fn lifecycle(peer: Arc<Peer>) {
    let answer = peer.ec2.ok("RunInstances", &peer.instance(&[])).await;
    assert!(answer.child("reservationId").text().starts_with("r-"));
    let instances = answer.child("instancesSet").children("item");
    assert_eq!(instances.len(), 1);
    let id = instances[0].child("instanceId").text();
    assert!(id.starts_with("i-"), "{id}");
    let state = instances[0].child("instanceState");
    assert_eq!((state.child("code").text(), state.child("name").text()), ("0", "pending"));

    let running = peer.until_state(id, "running").await;
    assert_eq!(running.child("instanceState").child("code").text(), "16");
    assert_eq!(running.text_of("instanceLifecycle"), None);
    let answer = peer.ec2.ok("TerminateInstances", &[("InstanceId.1", id)]).await;
    let change = answer.child("instancesSet").child("item");
    assert_eq!(change.child("instanceId").text(), id);
    assert_eq!(change.child("previousState").child("name").text(), "running");
    assert_eq!(change.child("currentState").child("name").text(), "shutting-down");
    let terminated = peer.until_state(id, "terminated").await;
    assert_eq!(terminated.child("instanceState").child("code").text(), "48");
    let reason = terminated.child("stateReason");
    assert_eq!(reason.child("code").text(), "Client.UserInitiatedShutdown");
    // A terminated instance can be terminated again.
    peer.ec2.ok("TerminateInstances", &[("InstanceId.1", id)]).await;
    assert_eq!(peer.usage().await, (0, 0));
}

pub async fn description(peer: Arc<Peer>) {
    let id = peer.run(&TAGS).await;
    let instance = peer.until_state(&id, "running").await;
    let expected = [("Name", "np0000000001"), ("team <a> & b", "\"ci\" 100 %")];
    let expected: BTreeMap<String, String> =
        expected.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    assert_eq!(tags(&instance), expected);
    let volumes = peer.volumes(&instance).await;
    assert_eq!(volumes.len(), 1);
    assert_eq!(tags(&volumes[0]).get("Name").map(String::as_str), Some("np0000000001"));
    let text = |name: &str| instance.child(name).text();
    let resources = &peer.resources;
    assert_eq!((text("imageId"), text("keyName")), (resources.image.as_str(), resources.key_name.as_str()));
    assert_eq!((text("instanceType"), text("subnetId")), ("t3.medium", resources.subnets[0].as_str()));
    assert_eq!(instance.child("placement").child("availabilityZone").text(), "us-west-2a");
    assert_eq!(instance.child("groupSet").text_of("groupId"), Some(resources.security_group.as_str()));
    assert!(text("privateIpAddress").parse::<Ipv4Addr>().is_ok(), "{instance:?}");
    assert_eq!(instance.child("ipAddress").text(), "");
    assert!(text("launchTime").ends_with('Z'), "{}", text("launchTime"));
    let interface = instance.child("networkInterfaceSet").child("item");
    assert_eq!(interface.child("privateIpAddress").text(), text("privateIpAddress"));
    peer.terminate(&id).await;
}

pub async fn public_address(peer: Arc<Peer>) {
    let id = peer.run(&[("NetworkInterface.1.AssociatePublicIpAddress", "true")]).await;
    let instance = peer.until_state(&id, "running").await;
    let [public, private] = ["ipAddress", "privateIpAddress"].map(|name| instance.child(name).text().to_owned());
    assert!(public.parse::<Ipv4Addr>().is_ok(), "{instance:?}");
    assert_ne!(public, private);
    peer.terminate(&id).await;
}

pub async fn unknown_ids(peer: Arc<Peer>) {
    const UNKNOWN: &str = "i-0123456789abcdef0";
    let id = peer.run(&[]).await;
    peer.until_state(&id, "running").await;
    let both = [("InstanceId.1", UNKNOWN), ("InstanceId.2", id.as_str())];
    let message = peer.ec2.call("TerminateInstances", &both).await.expect_error(400, "InvalidInstanceID.NotFound");
    assert!(message.contains(UNKNOWN) && !message.contains(&id), "{message}");
    peer.until_state(&id, "running").await;
    let answer = peer.ec2.call("DescribeInstances", &[("InstanceId.1", UNKNOWN)]).await;
    answer.expect_error(400, "InvalidInstanceID.NotFound");
    peer.terminate(&id).await;
}

pub async fn unknown_resources(peer: Arc<Peer>) {
    let cases = [
        ("ImageId", "ami-0123456789abcdef0", "InvalidAMIID.NotFound"),
        ("KeyName", "no-such-key", "InvalidKeyPair.NotFound"),
        ("NetworkInterface.1.SubnetId", "subnet-0123456789abcdef0", "InvalidSubnetID.NotFound"),
        ("NetworkInterface.1.SecurityGroupId.1", "sg-0123456789abcdef0", "InvalidGroup.NotFound"),
        ("InstanceType", "q9.huge", "InvalidParameterValue"),
        ("IamInstanceProfile.Name", "no-such-profile", "InvalidParameterValue"),
    ];
    for (key, value, code) in cases {
        let parameters = peer.instance(&[(key, value)]);
        peer.ec2.call("RunInstances", &parameters).await.expect_error(400, code);
    }
    assert_eq!(peer.usage().await, (0, 0));
}

pub async fn filters(peer: Arc<Peer>) {
    let name = peer.name("tagged");
    let mut named = TAGS.to_vec();
    named[2].1 = &name;
    let (id, token) = (peer.run(&named).await, peer.name("token"));
    let other = peer.run(&[("ClientToken", &token)]).await;
    let cases = [
        ("tag:Name", name.as_str(), &id),
        ("client-token", token.as_str(), &other),
        ("instance-id", other.as_str(), &other),
    ];
    for (filter, value, expected) in cases {
        let filter = [("Filter.1.Name", filter), ("Filter.1.Value.1", value)];
        let answer = peer.ec2.ok("DescribeInstances", &filter).await;
        let found: Vec<&str> = answer.all("instanceId").into_iter().map(|found| found.text()).collect();
        assert_eq!(found, [expected], "{filter:?}");
    }
    for id in [&id, &other] {
        peer.until_state(id, "running").await;
    }
    let filter = [("Filter.1.Name", "instance-state-name"), ("Filter.1.Value.1", "running")];
    let answer = peer.ec2.ok("DescribeInstances", &filter).await;
    assert_eq!(answer.all("instanceState").len(), 2);
    for id in [&id, &other] {
        peer.terminate(id).await;
    }
}

pub async fn pages(peer: Arc<Peer>) {
    let mut ids = Vec::new();
    for _ in 0..7 {
        ids.push(peer.run(&[]).await);
    }
    let pages = peer.pages("DescribeInstances", "reservationSet", "5", &[]).await;
    let (last, full) = pages.split_last().unwrap();
    assert!(full.iter().all(|page| *page == 5) && *last <= 5 && !full.is_empty(), "{pages:?}");
    let all = peer.ec2.ok("DescribeInstances", &[]).await.child("reservationSet").children("item").len();
    assert_eq!(pages.iter().sum::<usize>(), all);
    let both = [("MaxResults", "5"), ("InstanceId.1", ids[0].as_str())];
    peer.ec2.call("DescribeInstances", &both).await.expect_error(400, "InvalidParameterCombination");
    let keys: Vec<String> = (1..=ids.len()).map(|number| format!("InstanceId.{number}")).collect();
    let batch: Vec<(&str, &str)> = keys.iter().map(String::as_str).zip(ids.iter().map(String::as_str)).collect();
    let answer = peer.ec2.ok("TerminateInstances", &batch).await;
    assert_eq!(answer.child("instancesSet").children("item").len(), ids.len());
    for id in &ids {
        peer.until_state(id, "terminated").await;
    }
}

pub async fn tags_after_termination(peer: Arc<Peer>) {
    let id = peer.run(&TAGS).await;
    peer.terminate(&id).await;
    let terminated = peer.described(&id).await;
    assert_eq!(tags(&terminated).get("Name").map(String::as_str), Some("np0000000001"), "{terminated:?}");
}

pub async fn ipv6_address(peer: Arc<Peer>) {
    let id = peer.run(&[("NetworkInterface.1.Ipv6AddressCount", "1")]).await;
    let instance = peer.until_state(&id, "running").await;
    let interface = instance.child("networkInterfaceSet").child("item");
    let addresses = interface.child("ipv6AddressesSet").children("item");
    assert_eq!(addresses.len(), 1, "{instance:?}");
    let address = addresses[0].child("ipv6Address").text();
    assert!(address.parse::<Ipv6Addr>().is_ok(), "{address}");
    peer.terminate(&id).await;
}

pub async fn console(peer: Arc<Peer>) {
    let id = peer.run(&[]).await;
    peer.until_state(&id, "running").await;
    let answer = peer.ec2.ok("GetConsoleOutput", &[("InstanceId", &id)]).await;
    assert_eq!(answer.child("instanceId").text(), id);
    // The text is wrapped.
    let encoded: String = answer.child("output").text().split_whitespace().collect();
    assert!(STANDARD.decode(encoded).is_ok(), "{answer:?}");
    peer.terminate(&id).await;
    let unknown = [("InstanceId", "i-0123456789abcdef0")];
    peer.ec2.call("GetConsoleOutput", &unknown).await.expect_error(400, "InvalidInstanceID.NotFound");
}

pub async fn client_token(peer: Arc<Peer>) {
    let token = peer.name("token");
    let id = peer.run(&[("ClientToken", &token)]).await;
    assert_eq!(peer.run(&[("ClientToken", &token)]).await, id);
    let other = peer.instance(&[("ClientToken", &token), ("InstanceType", "t3.large")]);
    peer.ec2.call("RunInstances", &other).await.expect_error(400, "IdempotentParameterMismatch");
    assert_eq!(peer.described(&id).await.child("clientToken").text(), token);
    assert_eq!(peer.usage().await.0, 1);
    peer.terminate(&id).await;
    // The token stays with its instance.
    let parameters = peer.instance(&[("ClientToken", &token)]);
    peer.ec2.call("RunInstances", &parameters).await.expect_error(400, "IdempotentInstanceTerminated");
    assert_eq!(peer.usage().await.0, 0);
}

pub async fn spot(peer: Arc<Peer>) {
    let options = [
        ("InstanceMarketOptions.MarketType", "spot"),
        ("InstanceMarketOptions.SpotOptions.SpotInstanceType", "one-time"),
        ("InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior", "terminate"),
        ("TagSpecification.1.ResourceType", "network-interface"),
        ("TagSpecification.1.Tag.1.Key", "Name"),
        ("TagSpecification.1.Tag.1.Value", "np0000000001"),
        ("TagSpecification.2.ResourceType", "spot-instances-request"),
        ("TagSpecification.2.Tag.1.Key", "Name"),
        ("TagSpecification.2.Tag.1.Value", "np0000000001"),
    ];
    let id = peer.run(&options).await;
    let instance = peer.until_state(&id, "running").await;
    assert_eq!(instance.child("instanceLifecycle").text(), "spot");
    assert!(instance.child("spotInstanceRequestId").text().starts_with("sir-"), "{instance:?}");
    peer.terminate(&id).await;
}

pub async fn metadata_options(peer: Arc<Peer>) {
    let options = [("MetadataOptions.HttpTokens", "required"), ("MetadataOptions.HttpEndpoint", "enabled")];
    let id = peer.run(&options).await;
    let instance = peer.until_state(&id, "running").await;
    let options = instance.child("metadataOptions");
    assert_eq!((options.child("httpTokens").text(), options.child("httpEndpoint").text()), ("required", "enabled"));
    peer.terminate(&id).await;
}
