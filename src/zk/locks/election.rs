//! Leader election compatible with kazoo's: a lock whose holder leads.

use super::lock::{self, Lock};
use crate::{SessionState, Zk};
use zookeeper_server::types::ZkError;

/// Leadership, until it is dropped or the session ends.
pub struct Leadership {
    zk: Zk,
    lock: Lock,
}

/// The candidate's name for other processes, in Nodepool 11's form.
pub fn candidate(hostname: &str, pid: u32) -> String {
    format!("{hostname}-{pid}")
}

/// Waits until this candidate leads. Creates the directory if it is missing.
pub async fn lead(zk: &Zk, directory: &str, candidate: &str) -> Result<Leadership, ZkError> {
    let lock = lock::lock(zk, directory, candidate).await?;
    Ok(Leadership { zk: zk.clone(), lock })
}

impl Leadership {
    /// False while the connection is lost: if it stays lost, another candidate leads before this process knows.
    pub fn is_certain(&self) -> bool {
        *self.zk.session().borrow() == SessionState::Connected
    }

    /// Resolves when the session has ended, and the leadership with it.
    pub async fn lost(&self) {
        let mut state = self.zk.session();
        // A closed channel means that the session has ended.
        let _ = state.wait_for(|state| *state == SessionState::Expired).await;
    }

    /// Lets the next candidate lead.
    pub async fn resign(self) -> Result<(), ZkError> {
        self.lock.release().await
    }
}
