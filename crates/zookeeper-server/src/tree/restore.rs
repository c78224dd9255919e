//! Construction of a new tree, and of a tree from durable storage.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::path::split;
use super::watches::Watches;
use super::{Acl, Record, Session, Tree, Znode};

/// The stored records do not form a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inconsistent {
    #[error("the root is missing")]
    NoRoot,
    #[error("znode {0:?} has no parent")]
    NoParent(String),
    #[error("ephemeral znode {path:?} belongs to the unknown session {session:#x}")]
    NoOwner { path: String, session: i64 },
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

impl Tree {
    /// The tree of a fresh ZooKeeper: the root and `/zookeeper`, with ZooKeeper's stats.
    pub fn new() -> Self {
        let mut tree = Tree {
            znodes: BTreeMap::new(),
            ephemerals: BTreeMap::new(),
            sessions: BTreeMap::new(),
            watches: Watches::default(),
            zxid: 0,
            last_session: 0,
        };
        for (path, children) in [
            ("/", &["zookeeper"][..]),
            ("/zookeeper", &["config", "quota"]),
            ("/zookeeper/config", &[]),
            ("/zookeeper/quota", &[]),
        ] {
            let children = children.iter().map(|&name| name.to_owned()).collect();
            tree.znodes.insert(path.to_owned(), Znode { record: initial_record(), children });
        }
        tree
    }

    /// Rebuilds a tree. Watches are not stored: they belong to connections.
    pub fn restore(
        zxid: i64,
        last_session: i64,
        records: impl IntoIterator<Item = (String, Record)>,
        sessions: impl IntoIterator<Item = Session>,
    ) -> Result<Self, Inconsistent> {
        let sessions: BTreeMap<i64, Session> = sessions.into_iter().map(|session| (session.id, session)).collect();
        let mut znodes: BTreeMap<String, Znode> =
            records.into_iter().map(|(path, record)| (path, Znode { record, children: BTreeSet::new() })).collect();
        if !znodes.contains_key("/") {
            return Err(Inconsistent::NoRoot);
        }
        let mut ephemerals: BTreeMap<i64, BTreeSet<String>> = BTreeMap::new();
        let znode_owners: Vec<(String, i64)> = znodes
            .iter()
            .filter(|(path, _)| *path != "/")
            .map(|(path, znode)| (path.clone(), znode.record.ephemeral_owner))
            .collect();
        for (path, owner) in znode_owners {
            let Ok((parent, name)) = split(&path) else { return Err(Inconsistent::NoParent(path)) };
            let Some(parent) = znodes.get_mut(super::path::key(parent)) else {
                return Err(Inconsistent::NoParent(path));
            };
            parent.children.insert(name.to_owned());
            if owner != 0 {
                if !sessions.contains_key(&owner) {
                    return Err(Inconsistent::NoOwner { path, session: owner });
                }
                ephemerals.entry(owner).or_default().insert(path);
            }
        }
        Ok(Tree { znodes, ephemerals, sessions, watches: Watches::default(), zxid, last_session })
    }
}

fn initial_record() -> Record {
    Record {
        data: Bytes::new(),
        acl: Acl::open(),
        czxid: 0,
        mzxid: 0,
        pzxid: 0,
        ctime: 0,
        mtime: 0,
        version: 0,
        aversion: 0,
        creations: 0,
        ephemeral_owner: 0,
    }
}
