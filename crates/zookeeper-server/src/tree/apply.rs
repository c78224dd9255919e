//! Writes: one transaction at a time, all or nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;

use super::path::{self, split, validate};
use super::{Acl, Applied, DATA_LIMIT, DirtyKey, Failure, Record, Session, Tree, Write, WriteResult, Znode};
use crate::types::{CreateMode, EventKind};

/// A transaction in progress: its stamps, the steps that roll it back, and its effects.
struct Transaction {
    zxid: i64,
    session: i64,
    now_ms: i64,
    undo: Vec<Undo>,
    events: Vec<(EventKind, Arc<str>)>,
    dirty_keys: Vec<DirtyKey>,
}

/// Reverts one step. Steps are rolled back newest first.
enum Undo {
    Create { path: Arc<str>, parent: Counters },
    Delete { path: Arc<str>, znode: Box<Znode>, parent: Counters },
    Replace { path: Arc<str>, record: Box<Record> },
}

/// The fields of a parent that change with its children.
struct Counters {
    pzxid: i64,
    creations: i32,
}

impl Tree {
    /// Applies one write on behalf of a session, stamped with the given time.
    pub fn apply(&mut self, session: i64, now_ms: i64, write: Write) -> Applied {
        let mut transaction = self.begin(session, now_ms);
        let result = if self.sessions.contains_key(&session) {
            match write {
                Write::Multi(writes) => self.multi(&mut transaction, writes),
                single => self.apply_one(&mut transaction, single),
            }
        } else {
            Err(Failure::SessionExpired)
        };
        self.end(transaction, result)
    }

    /// Starts a session. Its id must be new.
    pub fn open_session(&mut self, session: Session) -> Applied {
        let mut transaction = self.begin(session.id, 0);
        transaction.dirty_keys.push(DirtyKey::Session(session.id));
        self.last_session = self.last_session.max(session.id);
        let former = self.sessions.insert(session.id, session);
        assert!(former.is_none(), "session id assigned twice");
        self.end(transaction, Ok(WriteResult::Multi(Vec::new())))
    }

    /// Ends a session: its ephemeral znodes and its watches are deleted, in one transaction.
    pub fn close_session(&mut self, id: i64) -> Applied {
        let mut transaction = self.begin(id, 0);
        if self.sessions.remove(&id).is_none() {
            return self.end(transaction, Err(Failure::SessionExpired));
        }
        self.watches.remove_all_of(id);
        transaction.dirty_keys.push(DirtyKey::Session(id));
        for path in self.ephemerals.get(&id).cloned().unwrap_or_default() {
            self.delete(&mut transaction, &path, -1).expect("an ephemeral znode is a leaf with a parent");
        }
        self.end(transaction, Ok(WriteResult::Multi(Vec::new())))
    }

    /// Sets the timeout that a resumed session requests. Takes no transaction id.
    pub fn set_timeout(&mut self, id: i64, timeout_ms: i32) -> Option<DirtyKey> {
        let session = self.sessions.get_mut(&id).filter(|session| session.timeout_ms != timeout_ms)?;
        session.timeout_ms = timeout_ms;
        Some(DirtyKey::Session(id))
    }

    fn begin(&mut self, session: i64, now_ms: i64) -> Transaction {
        self.zxid += 1;
        let zxid = self.zxid;
        Transaction { zxid, session, now_ms, undo: Vec::new(), events: Vec::new(), dirty_keys: Vec::new() }
    }

    fn end(&mut self, transaction: Transaction, result: Result<WriteResult, Failure>) -> Applied {
        let mut applied = Applied { zxid: transaction.zxid, result, dirty_keys: Vec::new(), events: Vec::new() };
        if applied.result.is_err() {
            self.roll_back(transaction.undo);
            return applied;
        }
        for (kind, path) in transaction.events {
            self.watches.fire(kind, &path, &mut applied.events);
        }
        applied.dirty_keys = transaction.dirty_keys;
        applied
    }

    fn multi(&mut self, transaction: &mut Transaction, writes: Vec<Write>) -> Result<WriteResult, Failure> {
        let mut written = Vec::with_capacity(writes.len());
        for (index, write) in writes.into_iter().enumerate() {
            let done = match write {
                Write::Multi(_) => Err(Failure::BadArguments("transactions do not nest".into())),
                single => self.apply_one(transaction, single),
            };
            written.push(done.map_err(|source| Failure::Multi { index, source: Box::new(source) })?);
        }
        Ok(WriteResult::Multi(written))
    }

    fn apply_one(&mut self, transaction: &mut Transaction, write: Write) -> Result<WriteResult, Failure> {
        match write {
            Write::Create { path, data, acl, mode } => self.create(transaction, &path, data, acl, mode),
            Write::Set { path, data, version } => self.set(transaction, &path, data, version),
            Write::Delete { path, version } => {
                // ZooKeeper's own znodes are permanent.
                if matches!(path.as_str(), "/" | "/zookeeper" | "/zookeeper/config" | "/zookeeper/quota") {
                    return Err(Failure::BadArguments(format!("{path} cannot be deleted")));
                }
                self.delete(transaction, &path, version)
            }
            Write::Check { path, version } => {
                validate(&path)?;
                let znode = self.find(&path)?;
                require(znode.record.version, version)?;
                Ok(WriteResult::Checked(znode.stat()))
            }
            Write::SetAcl { path, acl, version } => self.set_acl(transaction, &path, acl, version),
            Write::Multi(_) => Err(Failure::BadArguments("transactions do not nest".into())),
        }
    }

    fn create(
        &mut self,
        transaction: &mut Transaction,
        path: &str,
        data: Bytes,
        acl: Arc<[Acl]>,
        mode: CreateMode,
    ) -> Result<WriteResult, Failure> {
        let (parent_path, _) = split(path)?;
        let parent_path = path::key(parent_path).to_owned();
        let acl = valid_acl(acl)?;
        fits(&data)?;
        let parent = self.find(&parent_path)?;
        let path = match mode.is_sequential() {
            true => format!("{path}{:010}", parent.record.creations),
            false => path.to_owned(),
        };
        validate(&path)?;
        if self.znodes.contains_key(&path) {
            return Err(Failure::NodeExists);
        }
        if parent.record.ephemeral_owner != 0 {
            return Err(Failure::NoChildrenForEphemerals);
        }
        let owner = if mode.is_ephemeral() { transaction.session } else { 0 };
        let zxid = transaction.zxid;
        let record = Record {
            data,
            acl,
            czxid: zxid,
            mzxid: zxid,
            pzxid: zxid,
            ctime: transaction.now_ms,
            mtime: transaction.now_ms,
            version: 0,
            aversion: 0,
            creations: 0,
            ephemeral_owner: owner,
        };
        let znode = Znode { record, children: BTreeSet::new() };
        let stat = znode.stat();
        let counters = self.attach(&path, znode);
        let parent = self.znodes.get_mut(&parent_path).expect("the parent was found above");
        parent.record.creations = parent.record.creations.wrapping_add(1);
        parent.record.pzxid = zxid;
        let shared_path = transaction.record_child_change(EventKind::Created, &path, &parent_path);
        transaction.undo.push(Undo::Create { path: shared_path, parent: counters });
        Ok(WriteResult::Created { path, stat })
    }

    fn set(
        &mut self,
        transaction: &mut Transaction,
        path: &str,
        data: Bytes,
        version: i32,
    ) -> Result<WriteResult, Failure> {
        validate(path)?;
        fits(&data)?;
        require(self.find(path)?.record.version, version)?;
        let znode = self.znodes.get_mut(path).expect("found above");
        let shared_path: Arc<str> = path.into();
        transaction.undo.push(Undo::Replace { path: shared_path.clone(), record: Box::new(znode.record.clone()) });
        let record = &mut znode.record;
        record.data = data;
        record.version = record.version.wrapping_add(1);
        record.mzxid = transaction.zxid;
        record.mtime = transaction.now_ms;
        transaction.dirty_keys.push(DirtyKey::Znode(shared_path.clone()));
        transaction.events.push((EventKind::DataChanged, shared_path));
        Ok(WriteResult::Set(znode.stat()))
    }

    fn set_acl(
        &mut self,
        transaction: &mut Transaction,
        path: &str,
        acl: Arc<[Acl]>,
        version: i32,
    ) -> Result<WriteResult, Failure> {
        validate(path)?;
        let acl = valid_acl(acl)?;
        require(self.find(path)?.record.aversion, version)?;
        let znode = self.znodes.get_mut(path).expect("found above");
        let shared_path: Arc<str> = path.into();
        transaction.undo.push(Undo::Replace { path: shared_path.clone(), record: Box::new(znode.record.clone()) });
        znode.record.acl = acl;
        znode.record.aversion = znode.record.aversion.wrapping_add(1);
        transaction.dirty_keys.push(DirtyKey::Znode(shared_path));
        Ok(WriteResult::AclSet(znode.stat()))
    }

    fn delete(&mut self, transaction: &mut Transaction, path: &str, version: i32) -> Result<WriteResult, Failure> {
        let (parent_path, _) = split(path)?;
        let parent_path = path::key(parent_path).to_owned();
        self.find(&parent_path)?;
        let znode = self.find(path)?;
        require(znode.record.version, version)?;
        if !znode.children.is_empty() {
            return Err(Failure::NotEmpty);
        }
        let (znode, counters) = self.detach(path);
        self.znodes.get_mut(&parent_path).expect("the parent was found above").record.pzxid = transaction.zxid;
        let shared_path = transaction.record_child_change(EventKind::Deleted, path, &parent_path);
        transaction.undo.push(Undo::Delete { path: shared_path, znode: Box::new(znode), parent: counters });
        Ok(WriteResult::Deleted)
    }

    /// Inserts a znode and its entries in the indexes. Returns the parent's counters, which are unchanged.
    fn attach(&mut self, path: &str, znode: Znode) -> Counters {
        let owner = znode.record.ephemeral_owner;
        if owner != 0 {
            self.ephemerals.entry(owner).or_default().insert(path.to_owned());
        }
        let (parent, name) = self.parent_of(path);
        assert!(parent.children.insert(name.to_owned()), "{path} already exists");
        let counters = parent.record.counters();
        assert!(self.znodes.insert(path.to_owned(), znode).is_none(), "{path} already exists");
        counters
    }

    fn detach(&mut self, path: &str) -> (Znode, Counters) {
        let znode = self.znodes.remove(path).expect("only existing znodes are removed");
        let owner = znode.record.ephemeral_owner;
        if let Some(paths) = self.ephemerals.get_mut(&owner) {
            assert!(paths.remove(path), "{path} is missing among its session's ephemerals");
            if paths.is_empty() {
                self.ephemerals.remove(&owner);
            }
        }
        let (parent, name) = self.parent_of(path);
        assert!(parent.children.remove(name), "{path} is missing among its parent's children");
        let counters = parent.record.counters();
        (znode, counters)
    }

    fn parent_of<'a>(&mut self, path: &'a str) -> (&mut Znode, &'a str) {
        let (parent, name) = split(path).expect("paths in the tree are absolute");
        (self.znodes.get_mut(path::key(parent)).expect("every znode has its parent"), name)
    }

    fn roll_back(&mut self, undo: Vec<Undo>) {
        for step in undo.into_iter().rev() {
            match step {
                Undo::Create { path, parent } => {
                    self.detach(&path);
                    self.parent_of(&path).0.record.restore_counters(parent);
                }
                Undo::Delete { path, znode, parent } => {
                    self.attach(&path, *znode);
                    self.parent_of(&path).0.record.restore_counters(parent);
                }
                Undo::Replace { path, record } => {
                    self.znodes.get_mut(&*path).expect("a replaced znode exists").record = *record;
                }
            }
        }
    }
}

impl Transaction {
    /// Records the creation or deletion of a child. Returns its path, to be shared.
    fn record_child_change(&mut self, kind: EventKind, path: &str, parent: &str) -> Arc<str> {
        let (path, parent): (Arc<str>, Arc<str>) = (path.into(), parent.into());
        self.dirty_keys.extend([&path, &parent].map(|path| DirtyKey::Znode(path.clone())));
        self.events.extend([(kind, path.clone()), (EventKind::ChildrenChanged, parent)]);
        path
    }
}

impl Record {
    fn counters(&self) -> Counters {
        Counters { pzxid: self.pzxid, creations: self.creations }
    }

    fn restore_counters(&mut self, counters: Counters) {
        self.pzxid = counters.pzxid;
        self.creations = counters.creations;
    }
}

fn require(actual: i32, wanted: i32) -> Result<(), Failure> {
    if wanted == -1 || wanted == actual { Ok(()) } else { Err(Failure::BadVersion) }
}

fn fits(data: &Bytes) -> Result<(), Failure> {
    if data.len() > DATA_LIMIT { Err(Failure::TooLarge { size: data.len() }) } else { Ok(()) }
}

/// ZooKeeper's check of an access list; the caller must have resolved the scheme `auth`, which needs the credentials.
fn valid_acl(acl: Arc<[Acl]>) -> Result<Arc<[Acl]>, Failure> {
    let good = |entry: &Acl| match entry.scheme.as_str() {
        "world" => entry.id == "anyone",
        "digest" => entry.id.split(':').count() == 2,
        "ip" | "x509" => !entry.id.is_empty(),
        _ => false,
    };
    if acl.is_empty() || !acl.iter().all(good) {
        return Err(Failure::InvalidAcl);
    }
    let mut unique: Vec<Acl> = Vec::new();
    for entry in acl.iter() {
        if !unique.contains(entry) {
            unique.push(entry.clone());
        }
    }
    Ok(if unique.len() == acl.len() { acl } else { Arc::from(unique) })
}
