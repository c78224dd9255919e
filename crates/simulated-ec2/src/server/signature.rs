//! Signature Version 4: the fields of a signed call, and the signature that it must have.

use std::collections::HashMap;

use hmac::{Hmac, KeyInit, Mac};
use hyper::HeaderMap;
use sha2::{Digest, Sha256};

use crate::server::call::{Call, Service};
use crate::server::encoding::{hex, percent_decoded, percent_encoded};

/// The signature of a call, from its header `Authorization` or its query.
#[derive(Clone, Debug)]
pub struct Signature {
    pub access_key: String,
    /// `20261128`.
    pub date: String,
    pub region: String,
    pub service: String,
    pub signed_headers: Vec<String>,
    pub signature: String,
    /// `20261128T120000Z`.
    pub time: String,
    /// Seconds for which a signed query is valid.
    pub expires_s: Option<i64>,
    pub token: Option<String>,
}

impl Signature {
    pub fn of(headers: &HeaderMap, query: &[(String, String)]) -> Option<Self> {
        let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let parameter = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone());
        if let Some(credential) = parameter("X-Amz-Credential") {
            let mut signature = Self::with_credential(&credential)?;
            signature.signed_headers = split(&parameter("X-Amz-SignedHeaders")?, ';');
            signature.signature = parameter("X-Amz-Signature")?;
            signature.time = parameter("X-Amz-Date")?;
            signature.expires_s = parameter("X-Amz-Expires").and_then(|text| text.parse().ok());
            signature.token = parameter("X-Amz-Security-Token");
            return Some(signature);
        }
        let authorization = header("authorization")?;
        let fields = authorization.strip_prefix("AWS4-HMAC-SHA256")?;
        let fields: HashMap<&str, &str> = fields.split(',').filter_map(|field| field.trim().split_once('=')).collect();
        let mut signature = Self::with_credential(fields.get("Credential")?)?;
        signature.signed_headers = split(fields.get("SignedHeaders").copied().unwrap_or_default(), ';');
        signature.signature = fields.get("Signature").copied().unwrap_or_default().to_owned();
        signature.time = header("x-amz-date").unwrap_or_default();
        signature.token = header("x-amz-security-token");
        Some(signature)
    }

    fn with_credential(credential: &str) -> Option<Self> {
        let fields: Vec<&str> = credential.rsplitn(5, '/').collect();
        let ["aws4_request", service, region, date, access_key] = fields[..] else { return None };
        let [access_key, date, region, service] = [access_key, date, region, service].map(str::to_owned);
        let (signed_headers, signature, time) = (Vec::new(), String::new(), String::new());
        Some(Self { access_key, date, region, service, signed_headers, signature, time, expires_s: None, token: None })
    }
}

fn split(text: &str, separator: char) -> Vec<String> {
    text.split(separator).map(str::to_owned).collect()
}

/// Derived keys by secret key, date, region and service: deriving one costs four hashes.
#[derive(Default)]
pub struct SigningKeys(HashMap<[String; 4], [u8; 32]>);

impl SigningKeys {
    fn key(&mut self, secret: &str, signature: &Signature) -> [u8; 32] {
        let Signature { date, region, service, .. } = signature;
        let scope = [secret.to_owned(), date.clone(), region.clone(), service.clone()];
        if self.0.len() > 1000 {
            self.0.clear();
        }
        *self.0.entry(scope).or_insert_with(|| {
            let mut key = authenticated(format!("AWS4{secret}").as_bytes(), date);
            for part in [region.as_str(), service.as_str(), "aws4_request"] {
                key = authenticated(&key, part);
            }
            key
        })
    }

    /// Whether the call is signed with this secret key.
    pub fn verify(&mut self, call: &Call, signature: &Signature, secret: &str) -> bool {
        let request = hex(&Sha256::digest(canonical_request(call, signature).as_bytes()));
        let Signature { date, region, service, time, .. } = signature;
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{date}/{region}/{service}/aws4_request\n{request}");
        let expected = hex(&authenticated(&self.key(secret, signature), &text));
        expected == signature.signature
    }
}

fn authenticated(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

/// Whether the header `x-amz-content-sha256` names another body.
pub fn has_other_body(call: &Call) -> bool {
    let claimed = call.header("x-amz-content-sha256");
    let is_hash = claimed.len() == 64 && claimed.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash && claimed != hex(&Sha256::digest(&call.body))
}

fn canonical_request(call: &Call, signature: &Signature) -> String {
    let path = match call.service {
        Service::S3 => call.path.clone(),
        _ => percent_encoded(call.path.as_bytes(), b"/"),
    };
    let pairs = call.raw_query.split('&').filter(|pair| !pair.is_empty());
    let mut query: Vec<String> = pairs
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .filter(|(key, _)| *key != "X-Amz-Signature")
        .map(|(key, value)| {
            let encoded = |text: &str| percent_encoded(&percent_decoded(text), b"");
            format!("{}={}", encoded(key), encoded(value))
        })
        .collect();
    query.sort_unstable();
    let mut headers = String::new();
    for name in &signature.signed_headers {
        let values = call.headers.get_all(name.as_str()).iter().map(|value| {
            let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        });
        headers.push_str(&format!("{name}:{}\n", values.collect::<Vec<_>>().join(",")));
    }
    let claimed = call.header("x-amz-content-sha256");
    let body = if !claimed.is_empty() {
        claimed.to_owned()
    } else if signature.expires_s.is_some() && call.service == Service::S3 {
        "UNSIGNED-PAYLOAD".to_owned()
    } else {
        hex(&Sha256::digest(&call.body))
    };
    let signed = signature.signed_headers.join(";");
    format!("{}\n{path}\n{}\n{headers}\n{signed}\n{body}", call.method, query.join("&"))
}
