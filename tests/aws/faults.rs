//! Faults and settings of the AWS for tests (tests/python/aws_peer.py), which tests of the driver rely on.

use std::net::Ipv6Addr;

use serde_json::json;
use testkit::clouds::moto::{BUCKET, KEY_NAME, Moto};
use testkit::real;

use crate::contract::{Peer, Resources};

/// moto and a peer that calls it.
async fn started() -> (Moto, Peer) {
    let moto = Moto::start().await;
    let peer = Peer::new(moto.base(), Resources::of(moto.site().await));
    (moto, peer)
}

#[tokio::test]
async fn rules_answer_errors_in_the_envelope_of_each_service() {
    if real::skipped() {
        return;
    }
    let (moto, peer) = started().await;
    let busy = json!({"action": "RunInstances", "times": 2, "error": {"code": "RequestLimitExceeded"}});
    let id = moto.add_rule(busy).await;
    for _ in 0..2 {
        let answer = peer.ec2.call("RunInstances", &peer.instance(&[])).await;
        assert_eq!(answer.expect_error(503, "RequestLimitExceeded"), "injected by the test");
    }
    let instance = peer.run(&[]).await;
    peer.terminate(&instance).await;
    let rules = moto.rules().await;
    assert_eq!((&rules[0]["id"], &rules[0]["fired"]), (&json!(id), &json!(2)));

    moto.add_rule(json!({"action": "PutObject", "error": {"code": "SlowDown"}})).await;
    let path = format!("/{BUCKET}/key");
    peer.s3(reqwest::Method::PUT, &path, &[], b"x").await.expect_error(503, "SlowDown");
    moto.add_rule(json!({"action": "ListServiceQuotas", "error": {"code": "TooManyRequestsException"}})).await;
    let parameters = json!({"ServiceCode": "ec2"});
    let throttled = peer.quotas("ListServiceQuotas", parameters.clone()).await;
    throttled.expect_error("TooManyRequestsException");
    peer.quotas("ListServiceQuotas", parameters.clone()).await.expect_ok();
    moto.set_quotas(json!({"denied": true})).await;
    let denied = peer.quotas("ListServiceQuotas", parameters.clone()).await;
    assert_eq!(denied.status, 403);
    denied.expect_error("AccessDeniedException");
    moto.set_quotas(json!({"denied": false, "applied": {"ec2": {"L-1216C47A": 4.0}}})).await;
    let quotas = peer.quotas("ListServiceQuotas", parameters).await.expect_ok();
    assert_eq!((quotas["Quotas"].as_array().unwrap().len(), &quotas["Quotas"][0]["Value"]), (1, &json!(4.0)));
}

#[tokio::test]
async fn a_call_whose_answer_is_lost_is_executed() {
    if real::skipped() {
        return;
    }
    let (moto, peer) = started().await;
    let parameters = peer.instance(&[("ClientToken", "one")]);
    for (cut, instances) in [("before", 0), ("after", 1), ("middle", 1)] {
        moto.add_rule(json!({"action": "RunInstances", "cut": cut})).await;
        peer.ec2.try_call("RunInstances", &parameters).await.expect_err(cut);
        assert_eq!(peer.usage().await.0, instances, "{cut}");
    }
    // The repeated call returns the same instance.
    peer.ec2.ok("RunInstances", &parameters).await;
    assert_eq!(peer.usage().await.0, 1);
}

#[tokio::test]
async fn calls_are_logged_with_their_times() {
    if real::skipped() {
        return;
    }
    let (moto, peer) = started().await;
    moto.forget_calls().await;
    moto.add_rule(json!({"action": "DescribeHosts", "skip": 1, "delay_s": 0.4})).await;
    for _ in 0..2 {
        peer.ec2.ok("DescribeHosts", &[("MaxResults", "50")]).await;
    }
    let calls = moto.calls(Some("DescribeHosts")).await;
    let [first, second] = &calls[..] else { panic!("{calls:?}") };
    assert!(second.at_s > first.at_s && second.took_s > Some(0.4), "{calls:?}");
    assert_eq!((first.service.as_str(), first.status, first.rule), ("ec2", Some(200), None));
    assert_eq!((&first.parameters, second.rule.is_some()), (&json!({"MaxResults": "50"}), true));
    assert_eq!(moto.calls(None).await.len(), 2);
}

#[tokio::test]
async fn a_subnet_has_ipv6_addresses_on_demand() {
    if real::skipped() {
        return;
    }
    let moto = Moto::start().await;
    let site = moto.site().await;
    moto.add_ipv6(&site, &site.subnets[0]).await;
    let peer = Peer::new(moto.base(), Resources::of(site));
    let id = peer.run(&[("NetworkInterface.1.Ipv6AddressCount", "1")]).await;
    let instance = peer.until_state(&id, "running").await;
    let address = instance.child("networkInterfaceSet").find("ipv6Address").text();
    assert!(address.parse::<Ipv6Addr>().unwrap().is_unique_local(), "{address}");
}

#[tokio::test]
async fn instances_end_and_vanish_on_demand() {
    if real::skipped() {
        return;
    }
    let (moto, peer) = started().await;
    let end = json!({"state": "terminated", "code": "Client.VolumeLimitExceeded", "message": "too many"});
    moto.set_knobs(json!({"instances": {"hidden_polls": 1, "pending_polls": 1, "end": end}})).await;
    let id = peer.run(&[]).await;
    let hidden = peer.ec2.call("DescribeInstances", &[("InstanceId.1", &id)]).await;
    hidden.expect_error(400, "InvalidInstanceID.NotFound");
    let state = async || peer.described(&id).await.child("instanceState").child("name").text().to_owned();
    assert_eq!((state().await.as_str(), state().await.as_str()), ("pending", "terminated"));
    let reason = peer.described(&id).await;
    assert_eq!(reason.child("stateReason").child("code").text(), "Client.VolumeLimitExceeded");

    moto.set_knobs(json!({"instances": {"hidden_polls": 0, "pending_polls": 0}})).await;
    let id = peer.run(&[]).await;
    peer.until_state(&id, "running").await;
    moto.set_instance_state(&id, "terminated", "Server.SpotInstanceTermination").await;
    let instance = peer.described(&id).await;
    assert_eq!(instance.child("stateReason").child("code").text(), "Server.SpotInstanceTermination");
    assert_eq!(peer.usage().await, (0, 0));
    moto.forget_instance(&id).await;
    let gone = peer.ec2.call("TerminateInstances", &[("InstanceId.1", &id)]).await;
    gone.expect_error(400, "InvalidInstanceID.NotFound");
    moto.reset().await;
    assert!(moto.calls(None).await.is_empty());
    let keys = peer.ec2.call("DescribeKeyPairs", &[("KeyName.1", KEY_NAME)]).await;
    keys.expect_error(400, "InvalidKeyPair.NotFound");
}
