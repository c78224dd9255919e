//! Access tokens, which expire or are revoked.

use std::collections::HashMap;
use std::time::Duration;

#[derive(Default)]
pub struct Tokens {
    /// Times since the start at which tokens expire.
    expiries: HashMap<String, Duration>,
    pub issued: u64,
}

/// Number of tokens above which those that have expired are dropped.
const PRUNED_ABOVE: usize = 1000;

impl Tokens {
    /// A token that expires at this time.
    pub fn issue(&mut self, now: Duration, expires: Duration) -> String {
        if self.expiries.len() > PRUNED_ABOVE {
            self.expiries.retain(|_, expires| *expires > now);
        }
        self.issued += 1;
        let token = format!("ya29.simulated-{:08}", self.issued);
        self.expiries.insert(token.clone(), expires);
        token
    }

    pub fn is_valid(&self, token: &str, now: Duration) -> bool {
        self.expiries.get(token).is_some_and(|expires| *expires > now)
    }

    /// Revokes all tokens that were issued until now.
    pub fn revoke(&mut self) {
        self.expiries.clear();
    }
}
