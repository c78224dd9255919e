//! Dedicated hosts.

use std::sync::Arc;

use crate::contract::peer::{Parameters, Peer, poll};
use crate::ec2::{Element, tags};

/// Parameters of a host of the type m5.large; `more` extends them.
fn host_parameters<'a>(more: &[(&'a str, &'a str)]) -> Parameters<'a> {
    let usual = [
        ("AutoPlacement", "off"),
        ("AvailabilityZone", "us-west-2a"),
        ("InstanceType", "m5.large"),
        ("Quantity", "1"),
        ("HostRecovery", "off"),
        ("HostMaintenance", "off"),
        ("TagSpecification.1.ResourceType", "dedicated-host"),
        ("TagSpecification.1.Tag.1.Key", "Name"),
        ("TagSpecification.1.Tag.1.Value", "np0000000002"),
    ];
    [&usual[..], more].concat()
}

/// Allocates a host and returns its id.
async fn allocate(peer: &Peer, more: &[(&str, &str)]) -> String {
    let answer = peer.ec2.ok("AllocateHosts", &host_parameters(more)).await;
    let id = answer.child("hostIdSet").child("item").text();
    assert!(id.starts_with("h-"), "{answer:?}");
    id.to_owned()
}

/// Allocates a host and waits until it is available.
async fn allocated(peer: &Peer) -> Element {
    let id = allocate(peer, &[]).await;
    poll("an available host", async || host(peer, &id, "available").await).await
}

/// A host that has this state.
async fn host(peer: &Peer, id: &str, state: &str) -> Option<Element> {
    let answer = peer.ec2.ok("DescribeHosts", &[("HostId.1", id)]).await;
    let hosts = answer.child("hostSet").children("item");
    hosts.into_iter().find(|host| host.child("state").text() == state).cloned()
}

async fn released(peer: &Peer, id: &str) {
    let answer = peer.ec2.ok("ReleaseHosts", &[("HostId.1", id)]).await;
    assert_eq!(answer.child("successful").child("item").text(), id);
    assert!(answer.child("unsuccessful").children("item").is_empty(), "{answer:?}");
    poll("a released host", async || host(peer, id, "released").await).await;
}

pub async fn lifecycle(peer: Arc<Peer>) {
    let host = allocated(&peer).await;
    assert_eq!(host.child("hostProperties").child("instanceType").text(), "m5.large");
    assert_eq!(host.child("availabilityZone").text(), "us-west-2a");
    assert_eq!(tags(&host).get("Name").map(String::as_str), Some("np0000000002"));
    released(&peer, host.child("hostId").text()).await;
}

pub async fn occupied(peer: Arc<Peer>) {
    let host = allocated(&peer).await;
    let host = host.child("hostId").text();
    let placement = [
        ("InstanceType", "m5.large"),
        ("Placement.Tenancy", "host"),
        ("Placement.HostId", host),
        ("Placement.Affinity", "host"),
        ("Placement.AvailabilityZone", "us-west-2a"),
    ];
    let id = peer.run(&placement).await;
    let instance = peer.until_state(&id, "running").await;
    let placement = instance.child("placement");
    assert_eq!((placement.child("hostId").text(), placement.child("tenancy").text()), (host, "host"));

    let answer = peer.ec2.ok("ReleaseHosts", &[("HostId.1", host)]).await;
    let refused = answer.child("unsuccessful").child("item");
    assert_eq!(refused.child("resourceId").text(), host);
    assert_eq!(refused.child("error").child("code").text(), "Client.InvalidHost.Occupied");
    assert!(answer.child("successful").children("item").is_empty(), "{answer:?}");
    peer.terminate(&id).await;
    released(&peer, host).await;
}

pub async fn unknown(peer: Arc<Peer>) {
    const UNKNOWN: &str = "h-0123456789abcdef0";
    peer.ec2.call("DescribeHosts", &[("HostId.1", UNKNOWN)]).await.expect_error(400, "InvalidHostID.NotFound");
    let answer = peer.ec2.ok("ReleaseHosts", &[("HostId.1", UNKNOWN)]).await;
    let refused = answer.child("unsuccessful").child("item");
    assert_eq!(refused.child("resourceId").text(), UNKNOWN);
    assert_eq!(refused.child("error").child("code").text(), "Client.InvalidHostID.NotFound");
}

pub async fn client_token(peer: Arc<Peer>) {
    let token = peer.name("token");
    let more = [("ClientToken", token.as_str())];
    let id = allocate(&peer, &more).await;
    assert_eq!(allocate(&peer, &more).await, id);
    let other = host_parameters(&[more[0], ("TagSpecification.1.Tag.2.Key", "other")]);
    peer.ec2.call("AllocateHosts", &other).await.expect_error(400, "IdempotentParameterMismatch");
    poll("an available host", async || host(&peer, &id, "available").await).await;
    released(&peer, &id).await;
}
