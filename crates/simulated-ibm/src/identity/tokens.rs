//! Access tokens, which expire or are revoked, and refresh tokens.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;

use crate::state::ids::ACCOUNT;

#[derive(Default)]
pub struct Tokens {
    /// Times since the start at which tokens expire.
    expiries: HashMap<String, Duration>,
    refresh_tokens: HashSet<String>,
    pub issued: u64,
}

/// Number of tokens above which those that have expired are dropped.
const PRUNED_ABOVE: usize = 1000;

impl Tokens {
    /// A token that expires at this time. It is a JSON Web Token, because clients read its times; `issued_s` and
    /// `expires_s` are seconds since the Unix epoch.
    pub fn issue(&mut self, now: Duration, expires: Duration, (issued_s, expires_s): (u64, u64)) -> String {
        if self.expiries.len() > PRUNED_ABOVE {
            self.expiries.retain(|_, expires| *expires > now);
        }
        self.issued += 1;
        let header = json!({"kid": "simulated", "alg": "RS256"});
        let claims = json!({
            "iam_id": "iam-ServiceId-simulated", "id": "iam-ServiceId-simulated", "sub": "ServiceId-simulated",
            "jti": format!("simulated-{:08}", self.issued), "account": {"valid": true, "bss": ACCOUNT},
            "iat": issued_s, "exp": expires_s, "iss": "https://iam.cloud.ibm.com/identity", "scope": "ibm openid",
            "grant_type": "urn:ibm:params:oauth:grant-type:apikey", "client_id": "default",
        });
        let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
        let token = format!("{}.{}.{}", part(&header.to_string()), part(&claims.to_string()), part("not signed"));
        self.expiries.insert(token.clone(), expires);
        token
    }

    pub fn issue_refresh_token(&mut self) -> String {
        let token = format!("simulated-refresh-{:08}", self.issued);
        self.refresh_tokens.insert(token.clone());
        token
    }

    pub fn can_refresh(&self, token: &str) -> bool {
        self.refresh_tokens.contains(token)
    }

    pub fn is_valid(&self, token: &str, now: Duration) -> bool {
        self.expiries.get(token).is_some_and(|expires| *expires > now)
    }

    /// Revokes all tokens that were issued until now.
    pub fn revoke(&mut self) {
        self.expiries.clear();
        self.refresh_tokens.clear();
    }
}
