//! Contract of AWS: everything that the driver relies on, of EC2, EBS direct, S3 and Service Quotas. Each peer that
//! tests use must fulfil it.

mod cases;
mod peer;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::FutureExt;
use testkit::clouds::moto::Moto;
use testkit::clouds::simulated_ec2::SimulatedEc2;
use testkit::real;

pub use peer::{Peer, Resources};

/// Runs all cases one after another on an endpoint, and reports those that failed.
async fn check_contract(base: &str, resources: Resources) {
    let peer = Arc::new(Peer::new(base, resources));
    let mut failed = Vec::new();
    for (claim, case) in cases::all(&peer) {
        // A panic fails its case only; its text is in the output already.
        if AssertUnwindSafe(case).catch_unwind().await.is_err() {
            failed.push(claim);
        }
    }
    assert!(failed.is_empty(), "cases that fail: {failed:#?}");
    assert_eq!(peer.usage().await, (0, 0), "instances and volumes that cases left behind");
}

#[tokio::test]
async fn moto_fulfils_the_contract() {
    if real::skipped() {
        return;
    }
    let moto = Moto::start().await;
    let site = moto.site().await;
    moto.add_ipv6(&site, &site.subnets[0]).await;
    let resources = Resources::of(site);
    check_contract(moto.base(), resources).await;
}

#[tokio::test]
async fn the_simulated_ec2_fulfils_the_contract() {
    // The contract's client does not sign.
    let access = ["--access-key", "testing", "--check-signatures", "false"];
    let times = ["--boot-s", "0.1", "--terminate-s", "0.1", "--snapshot-s", "0"];
    let simulated = SimulatedEc2::start(&[&access[..], &times[..]].concat()).await;
    check_contract(simulated.base(), Resources::of_simulation(simulated.base()).await).await;
}
