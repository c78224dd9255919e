//! S3, EBS direct, Service Quotas, images and import tasks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Cloud, all, first};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn objects_have_tags_and_are_listed_in_pages() {
    let mut cloud = Cloud::new(&["--page-limit", "2"]);
    assert_eq!(cloud.call("s3", "PUT", "/images", &[], b"").0, 200);
    for key in ["a", "b", "c", "d%20e"] {
        let tags = [("x-amz-tagging", "nodepool_build_id=1&x=y%20z")];
        assert_eq!(cloud.call("s3", "PUT", &format!("/images/{key}"), &tags, b"data").0, 200);
    }
    let (_, tags) = cloud.call("s3", "GET", "/images/d%20e?tagging", &[], b"");
    assert_eq!(
        (all(&tags, "Key"), all(&tags, "Value")),
        (vec!["nodepool_build_id".into(), "x".into()], vec!["1".into(), "y z".into()])
    );
    let (_, page) = cloud.call("s3", "GET", "/images?list-type=2", &[], b"");
    assert_eq!((all(&page, "Key"), first(&page, "IsTruncated")), (vec!["a".to_owned(), "b".into()], "true".to_owned()));
    let uri = format!("/images?list-type=2&continuation-token={}", first(&page, "NextContinuationToken"));
    let (_, page) = cloud.call("s3", "GET", &uri, &[], b"");
    assert_eq!(
        (all(&page, "Key"), first(&page, "IsTruncated")),
        (vec!["c".to_owned(), "d e".into()], "false".to_owned())
    );
    assert_eq!(cloud.call("s3", "DELETE", "/images/a", &[], b"").0, 204);
    assert_eq!(cloud.call("s3", "GET", "/images/a", &[], b"").0, 404);
}

#[test]
fn an_upload_in_parts_joins_them_in_order() {
    let mut cloud = Cloud::new(&[]);
    cloud.call("s3", "PUT", "/images", &[], b"");
    let (_, started) = cloud.call("s3", "POST", "/images/big?uploads", &[("x-amz-tagging", "a=b")], b"");
    let id = first(&started, "UploadId");
    let part = |number: u32| format!("/images/big?partNumber={number}&uploadId={id}");
    cloud.call("s3", "PUT", &part(2), &[], b"end");
    cloud.call("s3", "PUT", &part(1), &[], &vec![7; 5 << 20]);
    let etag = |data: &[u8]| format!("{:x}", md5::compute(data));
    let list = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>\"{}\"</ETag></Part><Part><PartNumber>2\
         </PartNumber><ETag>&quot;{}&quot;</ETag></Part></CompleteMultipartUpload>",
        etag(&vec![7; 5 << 20]),
        etag(b"end")
    );
    let uri = format!("/images/big?uploadId={id}");
    assert_eq!(cloud.call("s3", "POST", &uri, &[], list.as_bytes()).0, 200);
    let (status, end) = cloud.call("s3", "GET", "/images/big", &[("range", "bytes=5242879-")], b"");
    assert_eq!((status, end.as_str()), (206, "\u{7}end"));
    assert_eq!(cloud.call("s3", "POST", &uri, &[], list.as_bytes()).0, 404, "the upload is complete");
}

#[test]
fn blocks_are_verified_and_can_be_read_again() {
    let mut cloud = Cloud::new(&[]);
    let start = json!({"VolumeSize": 1, "ClientToken": "one"}).to_string();
    let (status, answer) = cloud.call("ebs", "POST", "/snapshots", &[], start.as_bytes());
    let snapshot: Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((status, &snapshot["Status"]), (201, &json!("pending")));
    assert_eq!(cloud.call("ebs", "POST", "/snapshots", &[], start.as_bytes()).1, answer, "a repeated token");
    let id = snapshot["SnapshotId"].as_str().unwrap();
    let block = vec![b'x'; 524_288];
    let checksum = STANDARD.encode(Sha256::digest(&block));
    let headers = |checksum| {
        [("x-amz-data-length", "524288"), ("x-amz-checksum-algorithm", "SHA256"), ("x-amz-checksum", checksum)]
    };
    let uri = format!("/snapshots/{id}/blocks/5");
    assert_eq!(cloud.call("ebs", "PUT", &uri, &headers("AAAA"), &block).0, 400);
    assert_eq!(cloud.call("ebs", "PUT", &uri, &headers(&checksum), &block).0, 201);
    let (_, blocks) = cloud.call("ebs", "GET", &format!("/snapshots/{id}/blocks"), &[], b"");
    let blocks: Value = serde_json::from_str(&blocks).unwrap();
    let token = blocks["Blocks"][0]["BlockToken"].as_str().unwrap();
    assert_eq!(cloud.call("ebs", "GET", &format!("{uri}?blockToken={token}"), &[], b"").1, text(&block));
    let complete = format!("/snapshots/completion/{id}");
    let count = [("x-amz-changedblockscount", "1")];
    assert_eq!(cloud.call("ebs", "POST", &complete, &count, b"").1, "{\"Status\":\"pending\"}");
    assert_eq!(cloud.call("ebs", "POST", &complete, &count, b"").1, "{\"Status\":\"completed\"}");
}

#[test]
fn an_imported_snapshot_becomes_an_image_that_launches() {
    let mut cloud = Cloud::new(&["--import-limit", "1", "--import-fail-every", "2"]);
    let import = "DiskContainer.Format=raw&DiskContainer.UserBucket.S3Bucket=images&DiskContainer.UserBucket.S3Key=a";
    assert_eq!(cloud.refused("ImportSnapshot", import).1, "InvalidParameter");
    cloud.call("s3", "PUT", "/images", &[], b"");
    cloud.call("s3", "PUT", "/images/a", &[], b"data");
    cloud.done("ImportSnapshot", import);
    let tasks = cloud.done("DescribeImportSnapshotTasks", "");
    assert_eq!(first(&tasks, "status"), "completed");
    let snapshot = first(&tasks, "snapshotId");
    let image = format!(
        "Name=image&Architecture=x86_64&RootDeviceName=/dev/sda1&BlockDeviceMapping.1.DeviceName=/dev/sda1\
         &BlockDeviceMapping.1.Ebs.SnapshotId={snapshot}"
    );
    let id = first(&cloud.done("RegisterImage", &image), "imageId");
    assert_eq!(cloud.refused("DeleteSnapshot", &format!("SnapshotId={snapshot}")).1, "InvalidSnapshot.InUse");
    cloud.done("RunInstances", &format!("ImageId={id}&InstanceType=t3.nano&MinCount=1&MaxCount=1"));
    cloud.done("DeregisterImage", &format!("ImageId={id}"));
    cloud.done("DeleteSnapshot", &format!("SnapshotId={snapshot}"));
    cloud.knobs(json!({"import_s": 100}));
    cloud.done("ImportSnapshot", import);
    assert_eq!(cloud.refused("ImportSnapshot", import).1, "ResourceCountLimitExceeded");
    cloud.knobs(json!({"import_limit": 9, "import_s": 0, "import_fail_every": 1}));
    let failed = first(&cloud.done("ImportSnapshot", import), "importTaskId");
    let task = cloud.done("DescribeImportSnapshotTasks", &format!("ImportTaskId.1={failed}"));
    assert_eq!(first(&task, "status"), "deleted");
    assert!(first(&task, "statusMessage").starts_with("ClientError"), "{task}");
    let unknown = cloud.refused("DescribeImportImageTasks", "ImportTaskId.1=import-ami-1");
    assert_eq!(unknown.1, "InvalidConversionTaskId.Malformed");
}

#[test]
fn quotas_have_their_applied_and_default_values() {
    let mut cloud = Cloud::new(&["--quotas", "L-7A658B76=5"]);
    let list = |cloud: &mut Cloud, action: &str| {
        let target = [("x-amz-target", format!("ServiceQuotasV20190624.{action}"))];
        let target = [(target[0].0, target[0].1.as_str())];
        cloud.call("servicequotas", "POST", "/", &target, b"{\"ServiceCode\": \"ebs\"}")
    };
    let value = |text: &str| {
        let all: Value = serde_json::from_str(text).unwrap();
        let quotas = all["Quotas"].as_array().unwrap();
        quotas.iter().find(|quota| quota["QuotaCode"] == "L-7A658B76").map(|quota| quota["Value"].clone())
    };
    assert_eq!(value(&list(&mut cloud, "ListServiceQuotas").1), Some(json!(5.0)));
    assert_eq!(value(&list(&mut cloud, "ListAWSDefaultServiceQuotas").1), Some(json!(100_000.0)));
    cloud.knobs(json!({"refuse_quotas": true}));
    let (status, text) = list(&mut cloud, "ListServiceQuotas");
    assert_eq!((status, text.contains("AccessDeniedException")), (400, true), "{text}");
}
