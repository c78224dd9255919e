//! Images of the driver aws of Nodepool 11: their upload and deletion on moto, with each import method.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::clouds::moto::{BUCKET, Moto};
use testkit::real::{
    self,
    python::{self, Interpreter},
};

/// Timeout of the uploads on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(120);

fn tags(list: &Value) -> Value {
    let tags = list.as_array().expect("tags are a list").iter();
    tags.map(|tag| (tag["Key"].as_str().expect("a key is a text").to_owned(), tag["Value"].clone())).collect()
}

#[tokio::test]
async fn nodepool_11_uploads_and_deletes_images() {
    if real::skipped() {
        return;
    }
    let moto = Moto::start().await;
    moto.bucket(BUCKET).await;
    let arguments = [moto.base(), BUCKET];
    let uploads = python::run(Interpreter::Reference, "aws_reference.py", &arguments, TIMEOUT).await;
    let methods: Vec<&Value> = uploads.iter().map(|upload| &upload["method"]).collect();
    assert_eq!(methods, ["snapshot", "ebs-direct", "image"]);
    let metadata = json!({
        "nodepool_provider_name": "west", "nodepool_build_id": "1", "nodepool_upload_id": "0000000001", "team": "ci",
    });
    for upload in &uploads {
        let image = &upload["image"];
        assert_eq!((tags(&image["Tags"]), tags(&upload["snapshot tags"])), (metadata.clone(), metadata.clone()));
        assert_eq!(upload["listed"], json!(["ami", "snapshot"]), "{upload}");
        let left = ["objects", "images left", "snapshots left"].map(|key| &upload[key]);
        assert_eq!(left, [0, 0, 0], "{upload}");
        let mut shape = json!({"DeleteOnTermination": true, "Encrypted": false, "VolumeSize": 1, "VolumeType": "gp2"});
        let method = upload["method"].as_str().expect("a method is a text");
        if method != "image" {
            let name = format!("disk-{method}");
            assert_eq!((&image["Name"], &image["ImdsSupport"]), (&json!(name), &json!("v2.0")));
            (shape["VolumeType"], shape["Iops"], shape["Throughput"]) = (json!("gp3"), json!(3100), json!(140));
        }
        // With `ebs-direct`, Nodepool 11 ignores the configured size.
        if method == "snapshot" {
            shape["VolumeSize"] = json!(12);
        }
        assert_eq!(image["BlockDeviceMappings"], json!([{"DeviceName": "/dev/sda1", "Ebs": shape}]), "{upload}");
        assert_eq!((&image["EnaSupport"], &image["Architecture"]), (&json!(true), &json!("x86_64")), "{upload}");
    }
    // A block has 512 KiB; the last one is padded.
    assert_eq!(moto.calls(Some("PutSnapshotBlock")).await.len(), 18);
    assert_eq!(moto.calls(Some("UploadPart")).await.len(), 4);
}
