//! Instance types.

use std::sync::Arc;

use crate::contract::peer::Peer;

pub async fn known(peer: Arc<Peer>) {
    let parameters = [("InstanceType.1", "t3.medium"), ("InstanceType.2", "m5.large")];
    let answer = peer.ec2.ok("DescribeInstanceTypes", &parameters).await;
    let types = answer.child("instanceTypeSet").children("item");
    let mut found: Vec<[&str; 4]> = types
        .iter()
        .map(|one| {
            let cpus = one.child("vCpuInfo");
            [
                one.child("instanceType").text(),
                cpus.child("defaultCores").text(),
                cpus.child("defaultVCpus").text(),
                one.child("memoryInfo").child("sizeInMiB").text(),
            ]
        })
        .collect();
    found.sort_unstable();
    assert_eq!(found, [["m5.large", "1", "2", "8192"], ["t3.medium", "1", "2", "4096"]]);
}

pub async fn unknown(peer: Arc<Peer>) {
    let parameters = [("InstanceType.1", "t3.medium"), ("InstanceType.2", "q9.huge")];
    let message = peer.ec2.call("DescribeInstanceTypes", &parameters).await.expect_error(400, "InvalidInstanceType");
    assert!(message.contains("q9.huge"), "{message}");
}
