//! Volumes: those of instances, and single ones.

use std::sync::Arc;

use crate::contract::peer::Peer;
use crate::ec2::{Element, tags};

/// Size, type, IOPS and throughput of a volume.
fn shape(volume: &Element) -> [&str; 4] {
    ["size", "volumeType", "iops", "throughput"].map(|name| volume.child(name).text())
}

pub async fn root(peer: Arc<Peer>) {
    let mapping = [
        ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "true"),
        ("BlockDeviceMapping.1.Ebs.VolumeSize", "20"),
        ("BlockDeviceMapping.1.Ebs.VolumeType", "gp3"),
        ("BlockDeviceMapping.1.Ebs.Iops", "4000"),
        ("BlockDeviceMapping.1.Ebs.Throughput", "200"),
    ];
    let id = peer.run(&mapping).await;
    let instance = peer.until_state(&id, "running").await;
    assert_eq!(instance.child("rootDeviceName").text(), "/dev/sda1");
    assert_eq!(instance.child("rootDeviceType").text(), "ebs");
    let device = instance.child("blockDeviceMapping").child("item");
    assert_eq!(device.child("deviceName").text(), "/dev/sda1");
    let ebs = device.child("ebs");
    assert_eq!((ebs.child("deleteOnTermination").text(), ebs.child("status").text()), ("true", "attached"));
    let volumes = peer.volumes(&instance).await;
    assert_eq!(shape(&volumes[0]), ["20", "gp3", "4000", "200"]);
    assert_eq!(volumes[0].child("status").text(), "in-use");
    let attachment = volumes[0].child("attachmentSet").child("item");
    assert_eq!((attachment.child("instanceId").text(), attachment.child("device").text()), (id.as_str(), "/dev/sda1"));
    let volume = volumes[0].child("volumeId").text();
    peer.ec2.call("DeleteVolume", &[("VolumeId", volume)]).await.expect_error(400, "VolumeInUse");
    peer.terminate(&id).await;
}

pub async fn merged(peer: Arc<Peer>) {
    let snapshot = peer.snapshot("3").await;
    let image = peer
        .register(&[
            ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
            ("BlockDeviceMapping.1.Ebs.SnapshotId", &snapshot),
            ("BlockDeviceMapping.1.Ebs.VolumeType", "gp3"),
            ("BlockDeviceMapping.2.DeviceName", "/dev/sdb"),
            ("BlockDeviceMapping.2.Ebs.VolumeSize", "5"),
            ("BlockDeviceMapping.2.Ebs.VolumeType", "gp2"),
            ("BlockDeviceMapping.2.Ebs.DeleteOnTermination", "false"),
        ])
        .await;
    let request = [
        ("ImageId", image.as_str()),
        ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("BlockDeviceMapping.1.Ebs.VolumeSize", "9"),
        ("BlockDeviceMapping.2.DeviceName", "/dev/sdb"),
        ("BlockDeviceMapping.2.Ebs.DeleteOnTermination", "true"),
    ];
    let id = peer.run(&request).await;
    let instance = peer.until_state(&id, "running").await;
    let volumes = peer.volumes(&instance).await;
    let shapes: Vec<_> = volumes.iter().map(|volume| [shape(volume)[0], shape(volume)[1]]).collect();
    assert_eq!(shapes, [["9", "gp3"], ["5", "gp2"]]);
    assert_eq!(volumes[0].child("snapshotId").text(), snapshot);
    // The request has changed the second device: no volume is left.
    peer.terminate(&id).await;
    assert_eq!(peer.usage().await, (0, 0));
    peer.remove_image(&image).await;
}

pub async fn kept(peer: Arc<Peer>) {
    let mapping = [
        ("BlockDeviceMapping.1.DeviceName", "/dev/sdc"),
        ("BlockDeviceMapping.1.Ebs.VolumeSize", "2"),
        ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "false"),
    ];
    let id = peer.run(&mapping).await;
    peer.until_state(&id, "running").await;
    assert_eq!(peer.usage().await, (1, 2));
    peer.terminate(&id).await;
    let volumes = peer.ec2.ok("DescribeVolumes", &[]).await;
    let left = volumes.child("volumeSet").children("item");
    assert_eq!(left.len(), 1);
    assert_eq!((left[0].child("size").text(), left[0].child("status").text()), ("2", "available"));
    peer.ec2.ok("DeleteVolume", &[("VolumeId", left[0].child("volumeId").text())]).await;
}

pub async fn volume(peer: Arc<Peer>) {
    let parameters = [
        ("Size", "4"),
        ("VolumeType", "gp3"),
        ("AvailabilityZone", "us-west-2a"),
        ("TagSpecification.1.ResourceType", "volume"),
        ("TagSpecification.1.Tag.1.Key", "Name"),
        ("TagSpecification.1.Tag.1.Value", "data"),
    ];
    let created = peer.ec2.ok("CreateVolume", &parameters).await;
    let id = created.child("volumeId").text();
    let tag = [("ResourceId.1", id), ("Tag.1.Key", "owner"), ("Tag.1.Value", "nodepool")];
    peer.ec2.ok("CreateTags", &tag).await;
    let answer = peer.ec2.ok("DescribeVolumes", &[("VolumeId.1", id)]).await;
    let volume = answer.child("volumeSet").child("item");
    assert_eq!((shape(volume)[0], shape(volume)[1]), ("4", "gp3"));
    assert_eq!(volume.child("availabilityZone").text(), "us-west-2a");
    let tags = tags(volume);
    assert_eq!((tags["Name"].as_str(), tags["owner"].as_str()), ("data", "nodepool"));
    peer.ec2.ok("DeleteVolume", &[("VolumeId", id)]).await;
    peer.ec2.call("DeleteVolume", &[("VolumeId", id)]).await.expect_error(400, "InvalidVolume.NotFound");
    peer.ec2.call("DescribeVolumes", &[("VolumeId.1", id)]).await.expect_error(400, "InvalidVolume.NotFound");
}

pub async fn pages(peer: Arc<Peer>) {
    let mut ids = Vec::new();
    for _ in 0..7 {
        let created = peer.ec2.ok("CreateVolume", &[("Size", "1"), ("AvailabilityZone", "us-west-2a")]).await;
        ids.push(created.child("volumeId").text().to_owned());
    }
    assert_eq!(peer.pages("DescribeVolumes", "volumeSet", "5", &[]).await, [5, 2]);
    for id in &ids {
        peer.ec2.ok("DeleteVolume", &[("VolumeId", id)]).await;
    }
}
