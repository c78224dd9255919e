//! The parts of a znode and of a session that survive a restart.

use std::sync::Arc;

use bytes::Bytes;

use crate::types::Stat;

/// One entry of an access list. Lists are stored and returned, but not enforced.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acl {
    pub permissions: i32,
    pub scheme: String,
    pub id: String,
}

impl Acl {
    /// All permissions for all clients, which Nodepool and Zuul use.
    pub fn open() -> Arc<[Acl]> {
        Arc::from([Acl { permissions: 31, scheme: "world".into(), id: "anyone".into() }])
    }
}

/// A znode without its children, which follow from the children's paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub data: Bytes,
    pub acl: Arc<[Acl]>,
    pub czxid: i64,
    pub mzxid: i64,
    pub pzxid: i64,
    pub ctime: i64,
    pub mtime: i64,
    pub version: i32,
    pub aversion: i32,
    /// Children ever created here: the next sequence number. Never reset while the znode exists.
    pub creations: i32,
    /// 0 for a persistent znode.
    pub ephemeral_owner: i64,
}

impl Record {
    /// ZooKeeper's `cversion` counts creations and deletions. It is derived from the creations and the present
    /// children.
    pub(super) fn stat(&self, children: usize) -> Stat {
        let children = i32::try_from(children).unwrap_or(i32::MAX);
        Stat {
            czxid: self.czxid,
            mzxid: self.mzxid,
            pzxid: self.pzxid,
            ctime: self.ctime,
            mtime: self.mtime,
            version: self.version,
            cversion: self.creations.wrapping_mul(2).wrapping_sub(children),
            aversion: self.aversion,
            ephemeral_owner: self.ephemeral_owner,
            data_length: i32::try_from(self.data.len()).unwrap_or(i32::MAX),
            num_children: children,
        }
    }
}

/// A client's session: a client that presents id and password may resume it.
#[derive(Clone, PartialEq, Eq)]
pub struct Session {
    pub id: i64,
    pub password: [u8; 16],
    pub timeout_ms: i32,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Session({:#x}, {} ms)", self.id, self.timeout_ms)
    }
}
