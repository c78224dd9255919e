//! Bearer tokens that were issued, with the time of their end.

use std::collections::HashMap;
use std::time::Duration;

#[derive(Default)]
pub struct Tokens {
    valid: HashMap<String, Duration>,
    pub issued: u64,
    pub revoked: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenState {
    Valid,
    Expired,
    Unknown,
}

impl Tokens {
    pub fn issue(&mut self, token: String, expires: Duration, now: Duration) {
        // Tokens of the last day are kept, so that an expired one is told from an unknown one.
        if self.issued.is_multiple_of(1000) {
            self.valid.retain(|_, end| *end + Duration::from_secs(86400) > now);
        }
        self.issued += 1;
        self.valid.insert(token, expires);
    }

    pub fn state(&self, token: &str, now: Duration) -> TokenState {
        match self.valid.get(token) {
            None => TokenState::Unknown,
            Some(end) if *end <= now => TokenState::Expired,
            Some(_) => TokenState::Valid,
        }
    }

    /// All tokens are rejected from now on, as expired.
    pub fn revoke(&mut self, now: Duration) {
        for end in self.valid.values_mut() {
            *end = (*end).min(now);
        }
        self.revoked += 1;
    }
}
