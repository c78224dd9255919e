//! Images and their snapshots.

use std::sync::Arc;

use crate::contract::peer::Peer;
use crate::ec2::tags;

pub async fn lifecycle(peer: Arc<Peer>) {
    let (snapshot, name) = (peer.snapshot("6").await, peer.name("image"));
    let parameters = [
        ("Name", name.as_str()),
        ("Architecture", "arm64"),
        ("RootDeviceName", "/dev/sda1"),
        ("VirtualizationType", "hvm"),
        ("EnaSupport", "true"),
        ("ImdsSupport", "v2.0"),
        ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("BlockDeviceMapping.1.Ebs.SnapshotId", &snapshot),
        ("BlockDeviceMapping.1.Ebs.VolumeSize", "10"),
        ("BlockDeviceMapping.1.Ebs.VolumeType", "gp3"),
        ("BlockDeviceMapping.1.Ebs.Iops", "3100"),
        ("BlockDeviceMapping.1.Ebs.Throughput", "150"),
        ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "true"),
        ("TagSpecification.1.ResourceType", "image"),
        ("TagSpecification.1.Tag.1.Key", "nodepool_provider_name"),
        ("TagSpecification.1.Tag.1.Value", "west"),
    ];
    let id = peer.ec2.ok("RegisterImage", &parameters).await.child("imageId").text().to_owned();
    assert!(id.starts_with("ami-"), "{id}");
    peer.ec2.call("RegisterImage", &parameters).await.expect_error(400, "InvalidAMIName.Duplicate");
    let answer = peer.ec2.ok("DescribeImages", &[("ImageId.1", &id)]).await;
    let image = answer.child("imagesSet").child("item");
    let expected = [
        ("name", name.as_str()),
        ("imageState", "available"),
        ("architecture", "arm64"),
        ("rootDeviceName", "/dev/sda1"),
        ("rootDeviceType", "ebs"),
        ("virtualizationType", "hvm"),
        ("enaSupport", "true"),
        ("imdsSupport", "v2.0"),
        ("isPublic", "false"),
    ];
    for (element, value) in expected {
        assert_eq!(image.child(element).text(), value, "{element}");
    }
    assert!(image.child("creationDate").text().ends_with('Z'), "{image:?}");
    let mapping = image.child("blockDeviceMapping").child("item");
    assert_eq!(mapping.child("deviceName").text(), "/dev/sda1");
    let ebs = ["snapshotId", "volumeSize", "volumeType", "iops", "throughput", "deleteOnTermination"];
    let ebs = ebs.map(|element| mapping.child("ebs").child(element).text());
    assert_eq!(ebs, [&snapshot, "10", "gp3", "3100", "150", "true"]);
    assert_eq!(tags(image).get("nodepool_provider_name").map(String::as_str), Some("west"));
    peer.remove_image(&id).await;
}

pub async fn filters(peer: Arc<Peer>) {
    let snapshot = peer.snapshot("1").await;
    let mapping =
        [("BlockDeviceMapping.1.DeviceName", "/dev/sda1"), ("BlockDeviceMapping.1.Ebs.SnapshotId", &*snapshot)];
    let id = peer.register(&mapping).await;
    let tag = [("ResourceId.1", id.as_str()), ("Tag.1.Key", "family"), ("Tag.1.Value", "noble")];
    peer.ec2.ok("CreateTags", &tag).await;
    let own = peer.ec2.ok("DescribeImages", &[("Owner.1", "self")]).await;
    let own: Vec<&str> = own.all("imageId").into_iter().map(|image| image.text()).collect();
    assert!(own.contains(&id.as_str()) && own.contains(&peer.resources.image.as_str()), "{own:?}");
    let described = peer.ec2.ok("DescribeImages", &[("ImageId.1", &id)]).await;
    let name = described.find("name").text();
    for (filter, value) in [("name", name), ("tag:family", "noble"), ("architecture", "x86_64")] {
        let filter = [("Filter.1.Name", filter), ("Filter.1.Value.1", value)];
        let answer = peer.ec2.ok("DescribeImages", &filter).await;
        assert!(answer.all("imageId").iter().any(|image| image.text() == id), "{filter:?}");
    }
    let filter = [("Filter.1.Name", "name"), ("Filter.1.Value.1", "no such image")];
    let answer = peer.ec2.ok("DescribeImages", &filter).await;
    assert!(answer.child("imagesSet").children("item").is_empty(), "{answer:?}");
    peer.remove_image(&id).await;
}

pub async fn unknown(peer: Arc<Peer>) {
    const UNKNOWN: &str = "ami-0123456789abcdef0";
    peer.ec2.call("DescribeImages", &[("ImageId.1", UNKNOWN)]).await.expect_error(400, "InvalidAMIID.NotFound");
    peer.ec2.call("DeregisterImage", &[("ImageId", UNKNOWN)]).await.expect_error(400, "InvalidAMIID.NotFound");
    let mapping = [
        ("Name", "no-snapshot"),
        ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
        ("BlockDeviceMapping.1.Ebs.SnapshotId", "snap-0123456789abcdef0"),
    ];
    peer.ec2.call("RegisterImage", &mapping).await.expect_error(400, "InvalidSnapshot.NotFound");
}

pub async fn snapshot_in_use(peer: Arc<Peer>) {
    let snapshot = peer.snapshot("2").await;
    let mapping =
        [("BlockDeviceMapping.1.DeviceName", "/dev/sda1"), ("BlockDeviceMapping.1.Ebs.SnapshotId", &*snapshot)];
    let id = peer.register(&mapping).await;
    let listed = peer.ec2.ok("DescribeSnapshots", &[("Owner.1", "self"), ("SnapshotId.1", &snapshot)]).await;
    let listed = listed.child("snapshotSet").child("item").clone();
    assert_eq!((listed.child("volumeSize").text(), listed.child("status").text()), ("2", "completed"));
    let delete = [("SnapshotId", snapshot.as_str())];
    peer.ec2.call("DeleteSnapshot", &delete).await.expect_error(400, "InvalidSnapshot.InUse");
    peer.ec2.ok("DeregisterImage", &[("ImageId", &id)]).await;
    peer.ec2.ok("DeleteSnapshot", &delete).await;
    peer.ec2.call("DeleteSnapshot", &delete).await.expect_error(400, "InvalidSnapshot.NotFound");
    let gone = [("SnapshotId.1", snapshot.as_str())];
    peer.ec2.call("DescribeSnapshots", &gone).await.expect_error(400, "InvalidSnapshot.NotFound");
}

pub async fn pages(peer: Arc<Peer>) {
    let (mut images, mut templates) = (Vec::new(), Vec::new());
    for _ in 0..6 {
        let snapshot = peer.snapshot("1").await;
        let mapping = [
            ("BlockDeviceMapping.1.DeviceName", "/dev/sda1"),
            ("BlockDeviceMapping.1.Ebs.SnapshotId", snapshot.as_str()),
        ];
        images.push(peer.register(&mapping).await);
        let name = peer.name("nodepool-launch-template");
        let template =
            [("LaunchTemplateName", name.as_str()), ("LaunchTemplateData.KeyName", &peer.resources.key_name)];
        peer.ec2.ok("CreateLaunchTemplate", &template).await;
        templates.push(name);
    }
    // One image and its snapshot exist from the start.
    assert_eq!(peer.pages("DescribeImages", "imagesSet", "5", &[("Owner.1", "self")]).await, [5, 2]);
    assert_eq!(peer.pages("DescribeSnapshots", "snapshotSet", "5", &[("Owner.1", "self")]).await, [5, 2]);
    assert_eq!(peer.pages("DescribeLaunchTemplates", "launchTemplates", "5", &[]).await, [5, 1]);
    for image in &images {
        peer.remove_image(image).await;
    }
    for template in &templates {
        peer.ec2.ok("DeleteLaunchTemplate", &[("LaunchTemplateName", template)]).await;
    }
}
