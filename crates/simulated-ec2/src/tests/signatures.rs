//! Signatures and credentials: the examples of the documentation of AWS, wrong keys and expired tokens.

use bytes::Bytes;
use hyper::Request;
use serde_json::json;

use super::{Cloud, LAUNCH, first};
use crate::server::call::Call;
use crate::server::signature::SigningKeys;

/// Whether a call without body is signed with a key.
fn is_signed(uri: &str, headers: &[(&str, &str)], scope: &str, signed: &str, signature: &str, secret: &str) -> bool {
    let authorization =
        format!("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/{scope}, SignedHeaders={signed}, Signature={signature}");
    let mut request = Request::builder().uri(uri).header("authorization", authorization);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).unwrap().into_parts();
    let call = Call::new(parts, Bytes::new(), "us-east-1");
    SigningKeys::default().verify(&call, call.signature.as_ref().unwrap(), secret)
}

#[test]
fn the_documented_signatures_are_accepted_and_others_are_not() {
    let (secret, date) = ("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830T123600Z");
    let list_users = |signature: &str, secret: &str| {
        let headers = [
            ("content-type", "application/x-www-form-urlencoded; charset=utf-8"),
            ("host", "iam.amazonaws.com"),
            ("x-amz-date", date),
        ];
        let scope = "20150830/us-east-1/iam/aws4_request";
        is_signed(
            "/?Action=ListUsers&Version=2010-05-08",
            &headers,
            scope,
            "content-type;host;x-amz-date",
            signature,
            secret,
        )
    };
    let signature = "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7";
    assert!(list_users(signature, secret));
    assert!(!list_users(signature, "another"));
    assert!(!list_users(&signature.replace('5', "6"), secret));
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let headers = [
        ("host", "examplebucket.s3.amazonaws.com"),
        ("range", "bytes=0-9"),
        ("x-amz-content-sha256", empty),
        ("x-amz-date", "20130524T000000Z"),
    ];
    let scope = "20130524/us-east-1/s3/aws4_request";
    let signed = "host;range;x-amz-content-sha256;x-amz-date";
    let signature = "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41";
    assert!(is_signed("/test.txt", &headers, scope, signed, signature, "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"));
}

#[test]
fn wrong_signatures_are_refused_with_the_codes_of_each_service() {
    let mut cloud = Cloud::new(&[]);
    cloud.knobs(json!({"check_signatures": true}));
    assert_eq!(cloud.refused("RunInstances", LAUNCH).0, 400, "a call without time has expired");
    let now = chrono::Utc::now().format("%Y%m%dT%H%M%SZ").to_string();
    let form = ("content-type", "application/x-www-form-urlencoded");
    let body = format!("Action=RunInstances&Version=2016-11-15&{LAUNCH}");
    let (status, text) = cloud.call("ec2", "POST", "/", &[form, ("x-amz-date", &now)], body.as_bytes());
    assert_eq!((status, first(&text, "Code").as_str()), (401, "AuthFailure"));
    let (status, text) = cloud.call("s3", "GET", "/bucket", &[("x-amz-date", &now)], b"");
    assert_eq!((status, first(&text, "Code").as_str()), (403, "SignatureDoesNotMatch"));
    assert_eq!(cloud.instances(), json!({}));
    assert_eq!(cloud.sim("GET", "/sim/state")["counters"]["unauthorized"], 3);
}

#[test]
fn credentials_of_a_role_expire() {
    let mut cloud = Cloud::new(&[]);
    let form = [("content-type", "application/x-www-form-urlencoded")];
    let body = b"Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn:aws:iam::1:role/nodepool\
                 &RoleSessionName=one&WebIdentityToken=token";
    let (status, text) = cloud.call("sts", "POST", "/", &form, body);
    assert_eq!(status, 200, "{text}");
    let (key, token) = (first(&text, "AccessKeyId"), first(&text, "SessionToken"));
    let call = |token: &str| {
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={key}/20261128/us-west-2/ec2/aws4_request, SignedHeaders=host, Signature=00"
        );
        let request = Request::builder().method("POST").uri("/").header("authorization", authorization);
        let request = request.header(form[0].0, form[0].1).header("x-amz-security-token", token);
        let (parts, ()) = request.body(()).unwrap().into_parts();
        Call::new(parts, Bytes::from_static(b"Action=DescribeHosts&Version=2016-11-15"), "us-west-2")
    };
    assert_eq!(cloud.send(&call(&token)).unwrap().status, 200);
    assert_eq!(cloud.send(&call("other")).unwrap().code.as_deref(), Some("AuthFailure"));
    cloud.sim("POST", "/sim/expire-sessions");
    assert_eq!(cloud.send(&call(&token)).unwrap().code.as_deref(), Some("RequestExpired"));
}
