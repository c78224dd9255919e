//! Which of several processes does what only one should do: kazoo's election, a lock whose holder leads.

use super::lock::{self, Lock};
use crate::{SessionState, Zk};
use zookeeper_server::types::ZkError;

/// Leading, until it is dropped or the session is over.
pub struct Leadership {
    zk: Zk,
    lock: Lock,
}

/// What other processes see as the candidate's name, in the reference's form.
pub fn candidate(hostname: &str, pid: u32) -> String {
    format!("{hostname}-{pid}")
}

/// Waits until it is this candidate's turn to lead. The directory is created if need be.
pub async fn lead(zk: &Zk, directory: &str, candidate: &str) -> Result<Leadership, ZkError> {
    let lock = lock::lock(zk, directory, candidate).await?;
    Ok(Leadership { zk: zk.clone(), lock })
}

impl Leadership {
    /// False while the connection is lost: if it stays lost, somebody else leads before we know.
    pub fn is_certain(&self) -> bool {
        *self.zk.session().borrow() == SessionState::Connected
    }

    /// Resolves when the session is over, and the leadership with it.
    pub async fn lost(&self) {
        let mut state = self.zk.session();
        // A state that nobody updates any more is that of a session that ended.
        let _ = state.wait_for(|state| *state == SessionState::Expired).await;
    }

    /// Lets the next candidate lead.
    pub async fn resign(self) -> Result<(), ZkError> {
        self.lock.release().await
    }
}
