//! The service account: its key, and the check of the assertions that clients sign with it.

use std::cell::OnceCell;
use std::convert::Infallible;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rsa::pkcs1v15::{Signature, VerifyingKey};
use rsa::pkcs8::{EncodePrivateKey, LineEnding};
use rsa::rand_core::{TryCryptoRng, TryRng};
use rsa::signature::Verifier;
use rsa::{RsaPrivateKey, RsaPublicKey};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::state::world::mixed;

/// Bits of the key, as those of Google have.
const KEY_BITS: usize = 2048;
/// Longest time for which an assertion may be valid.
const MAX_LIFETIME_S: i64 = 3600;
/// Maximum difference between the clocks of client and server.
const MAX_SKEW_S: i64 = 600;

pub struct ServiceAccount {
    pub email: String,
    project: String,
    /// The URL of the token endpoint.
    token_uri: String,
    key: OnceCell<RsaPrivateKey>,
}

/// The claims of an assertion.
#[derive(Deserialize)]
struct Claims {
    iss: String,
    aud: String,
    exp: i64,
    iat: i64,
    scope: Option<String>,
    target_audience: Option<String>,
}

impl ServiceAccount {
    pub fn new(project: &str, base: &str) -> Self {
        let email = format!("nodepool@{project}.iam.gserviceaccount.com");
        Self { email, project: project.to_owned(), token_uri: format!("{base}/token"), key: OnceCell::new() }
    }

    /// Generates the key at its first use, because that takes a while.
    fn key(&self) -> &RsaPrivateKey {
        self.key.get_or_init(|| RsaPrivateKey::new(&mut KeyNumbers(1), KEY_BITS).expect("the size is valid"))
    }

    /// The content of a key file.
    pub fn key_file(&self) -> Value {
        let pem = self.key().to_pkcs8_pem(LineEnding::LF).expect("a valid key has an encoding");
        json!({
            "type": "service_account", "project_id": self.project,
            "private_key_id": "0123456789abcdef0123456789abcdef01234567",
            "private_key": pem.as_str(), "client_email": self.email, "client_id": "100000000000000000001",
            "auth_uri": "https://accounts.google.com/o/oauth2/auth", "token_uri": self.token_uri,
            "universe_domain": "googleapis.com",
        })
    }

    /// Checks an assertion. The error is the description of `invalid_grant`.
    pub fn check(&self, assertion: &str, now_s: i64) -> Result<(), &'static str> {
        let parts: Vec<&str> = assertion.split('.').collect();
        let [header, claims, signature] = parts[..] else { return Err("Invalid JWT: it has not three parts") };
        let part = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok();
        let header: Option<Value> = part(header).and_then(|json| serde_json::from_slice(&json).ok());
        if header.is_none_or(|header| header["alg"] != "RS256") {
            return Err("Invalid JWT: its algorithm is not RS256");
        }
        let read = part(claims).and_then(|json| serde_json::from_slice::<Claims>(&json).ok());
        let Some(claims) = read else { return Err("Invalid JWT: iss, aud, exp and iat are required") };
        if claims.iss != self.email {
            return Err("Invalid grant: account not found");
        }
        if claims.aud != self.token_uri && claims.aud != "https://oauth2.googleapis.com/token" {
            return Err("Invalid JWT: Failed audience check.");
        }
        if claims.scope.is_none() && claims.target_audience.is_none() {
            return Err("Invalid OAuth scope or ID token audience provided.");
        }
        let is_current = claims.iat <= now_s + MAX_SKEW_S && claims.exp >= now_s - MAX_SKEW_S;
        if !is_current || claims.exp - claims.iat > MAX_LIFETIME_S {
            return Err("Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe.");
        }
        let signed = assertion.rsplit_once('.').map_or("", |(signed, _)| signed);
        let signature = part(signature).and_then(|bytes| Signature::try_from(bytes.as_slice()).ok());
        let key = VerifyingKey::<Sha256>::new(RsaPublicKey::from(self.key()));
        match signature.is_some_and(|signature| key.verify(signed.as_bytes(), &signature).is_ok()) {
            true => Ok(()),
            false => Err("Invalid JWT Signature."),
        }
    }
}

/// The same numbers each time: a key file stays valid for the next simulation. The key protects nothing.
struct KeyNumbers(u64);

impl TryRng for KeyNumbers {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.try_next_u64().map(|number| (number >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0 += 1;
        Ok(mixed(self.0.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let number = self.try_next_u64()?.to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
        Ok(())
    }
}

impl TryCryptoRng for KeyNumbers {}
