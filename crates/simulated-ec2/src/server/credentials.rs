//! Access keys: the one of the account, and those of roles, which expire.

use std::collections::HashMap;
use std::time::Duration;

/// Credentials of a role.
#[derive(Clone, Debug)]
pub struct Session {
    pub access_key: String,
    pub secret_key: String,
    pub token: String,
    pub role: String,
    /// Time since the start at which they expire.
    pub expires: Duration,
}

#[derive(Default)]
pub struct Credentials {
    sessions: HashMap<String, Session>,
    pub issued: u64,
}

impl Credentials {
    /// Credentials of a role that expire at this time.
    pub fn issue(&mut self, role: &str, expires: Duration) -> Session {
        self.issued += 1;
        let number = self.issued;
        let session = Session {
            access_key: format!("ASIA{number:016}"),
            secret_key: format!("session-secret-{number}"),
            token: format!("session-token-{number}"),
            role: role.to_owned(),
            expires,
        };
        self.sessions.insert(session.access_key.clone(), session.clone());
        session
    }

    pub fn session(&self, access_key: &str) -> Option<&Session> {
        self.sessions.get(access_key)
    }

    /// Expires all credentials that were issued until now.
    pub fn expire(&mut self) {
        for session in self.sessions.values_mut() {
            session.expires = Duration::ZERO;
        }
    }
}
