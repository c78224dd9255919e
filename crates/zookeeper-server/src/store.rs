//! The tree on disk: one redb file, one durable commit per batch of changes, everything checked when it is opened.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use redb::{
    Builder, Database, DatabaseError, Durability, ReadableDatabase, ReadableTable, StorageBackend, TableDefinition,
};
use tracing::info;

use crate::jute::{Malformed, Reader, Writer};
use crate::protocol::{decode_acl, write_acl};
use crate::tree::{DirtyKey, Inconsistent, Record, Session, Tree};

const ZNODES: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("znodes");
const SESSIONS: TableDefinition<'_, i64, &[u8]> = TableDefinition::new("sessions");
const META: TableDefinition<'_, &str, i64> = TableDefinition::new("meta");
const ZXID: &str = "zxid";
const LAST_SESSION: &str = "last_session";
const FORMAT: &str = "format";
const FORMAT_VERSION: i64 = 1;

const FILE_NAME: &str = "coordinator.redb";
const LOCK_NAME: &str = "lock";
/// Reads happen at start only; the tree is in memory.
const CACHE_BYTES: usize = 4 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("in use by another process")]
    InUse,
    #[error("damaged ({0})")]
    Damaged(String),
    #[error("written by a newer version (format {0})")]
    Newer(i64),
    #[error("{0}")]
    Disk(#[source] redb::Error),
    #[error("{0}")]
    File(#[source] std::io::Error),
}

pub struct Store {
    database: Database,
    /// Keeps other processes out of the directory, from before the store file exists.
    _lock: Option<Flock<File>>,
}

impl Store {
    /// Opens the store of a data directory, or creates one, and reads the tree.
    pub fn open(directory: &Path) -> Result<(Self, Tree), StoreError> {
        let lock = lock(directory)?;
        let path = directory.join(FILE_NAME);
        let (mut store, tree) = if path.try_exists().map_err(StoreError::File)? {
            if fs::metadata(&path).map_err(StoreError::File)?.len() == 0 {
                // A store is complete before it gets its name, so it was emptied later.
                return Err(StoreError::Damaged("the file is empty".into()));
            }
            Self::load(builder().open(&path)?)?
        } else {
            let unfinished = path.with_extension("redb.new");
            // Empties the file of an earlier attempt that crashed.
            let mut options = OpenOptions::new();
            options.write(true).create(true).truncate(true).mode(0o600).open(&unfinished).map_err(StoreError::File)?;
            let opened = Self::load(builder().create(&unfinished)?)?;
            fs::rename(&unfinished, &path).and_then(|()| sync_directory(directory)).map_err(StoreError::File)?;
            opened
        };
        store._lock = Some(lock);
        Ok((store, tree))
    }

    /// As `open`, but on any storage, for tests of recovery.
    pub fn open_on(backend: impl StorageBackend) -> Result<(Self, Tree), StoreError> {
        Self::load(builder().create_with_backend(backend)?)
    }

    fn load(mut database: Database) -> Result<(Self, Tree), StoreError> {
        // The check returns false after a repair, which is not an error, and fails if the repair was not possible.
        database.check_integrity()?;
        let mut store = Self { database, _lock: None };
        let tree = match store.read()? {
            Some(tree) => tree,
            None => store.create()?,
        };
        Ok((store, tree))
    }

    /// The stored tree, or `None` in a new store. A new run starts in a new range of transaction ids, so that ids which
    /// the last run assigned to refused (hence unstored) changes are not assigned again.
    fn read(&mut self) -> Result<Option<Tree>, StoreError> {
        let transaction = self.database.begin_read().map_err(redb::Error::from)?;
        let meta = match transaction.open_table(META) {
            Ok(meta) => meta,
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let number = |key: &str| -> Result<i64, StoreError> {
            let value = meta.get(key)?.ok_or_else(|| StoreError::Damaged(format!("{key} is missing")))?;
            Ok(value.value())
        };
        let format = number(FORMAT)?;
        if format != FORMAT_VERSION {
            return Err(StoreError::Newer(format));
        }
        let zxid = ((number(ZXID)? >> 32) + 1) << 32;
        let last_session = number(LAST_SESSION)?;
        let mut records = Vec::new();
        for entry in transaction.open_table(ZNODES)?.iter()? {
            let (path, bytes) = entry?;
            let path = path.value().to_owned();
            let record = decode_record(bytes.value())
                .map_err(|error| StoreError::Damaged(format!("the entry of znode {path:?}: {error}")))?;
            records.push((path, record));
        }
        let mut sessions = Vec::new();
        for entry in transaction.open_table(SESSIONS)?.iter()? {
            let (id, bytes) = entry?;
            let session = decode_session(id.value(), bytes.value())
                .map_err(|error| StoreError::Damaged(format!("the entry of session {:#x}: {error}", id.value())))?;
            sessions.push(session);
        }
        let tree = Tree::restore(zxid, last_session, records, sessions)?;
        drop(transaction);
        self.commit(&tree, &BTreeSet::new())?;
        Ok(Some(tree))
    }

    fn create(&mut self) -> Result<Tree, StoreError> {
        let tree = Tree::new();
        let everything = tree.records().map(|(path, _)| DirtyKey::Znode(path.as_str().into())).collect();
        self.commit(&tree, &everything)?;
        Ok(tree)
    }

    /// Makes the changed keys durable, all or nothing. After this returns, they survive a power failure.
    pub fn commit(&mut self, tree: &Tree, dirty_keys: &BTreeSet<DirtyKey>) -> Result<(), StoreError> {
        let mut transaction = self.database.begin_write().map_err(redb::Error::from)?;
        transaction.set_durability(Durability::Immediate).map_err(redb::Error::from)?;
        {
            let mut znodes = transaction.open_table(ZNODES)?;
            let mut sessions = transaction.open_table(SESSIONS)?;
            for entry in dirty_keys {
                match entry {
                    DirtyKey::Znode(path) => match tree.record(path) {
                        Some(record) => drop(znodes.insert(&**path, &*encode_record(record))?),
                        None => drop(znodes.remove(&**path)?),
                    },
                    DirtyKey::Session(id) => match tree.session(*id) {
                        Some(session) => drop(sessions.insert(*id, &*encode_session(session))?),
                        None => drop(sessions.remove(*id)?),
                    },
                }
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert(FORMAT, FORMAT_VERSION)?;
            meta.insert(ZXID, tree.last_zxid())?;
            meta.insert(LAST_SESSION, tree.last_session())?;
        }
        transaction.commit().map_err(redb::Error::from)?;
        Ok(())
    }
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    let is_logged = Cell::new(false);
    builder.set_repair_callback(move |_| {
        // The callback is called repeatedly while the repair proceeds.
        if !is_logged.replace(true) {
            info!("the store was not closed cleanly: checking it and rolling back unfinished transactions");
        }
    });
    builder
}

fn lock(directory: &Path) -> Result<Flock<File>, StoreError> {
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(directory.join(LOCK_NAME));
    Flock::lock(file.map_err(StoreError::File)?, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
        Errno::EWOULDBLOCK => StoreError::InUse,
        other => StoreError::File(other.into()),
    })
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(directory: &Path) -> std::io::Result<()> {
    File::open(directory)?.sync_all()
}

fn encode_record(record: &Record) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.long(record.czxid).long(record.mzxid).long(record.pzxid).long(record.ctime).long(record.mtime);
    writer.int(record.version).int(record.aversion).int(record.creations).long(record.ephemeral_owner);
    write_acl(&mut writer, &record.acl);
    writer.buffer(&record.data);
    writer.finish()
}

fn decode_record(bytes: &[u8]) -> Result<Record, Malformed> {
    let mut reader = Reader::new(bytes);
    let (czxid, mzxid, pzxid) = (reader.long()?, reader.long()?, reader.long()?);
    let (ctime, mtime) = (reader.long()?, reader.long()?);
    let (version, aversion, creations) = (reader.int()?, reader.int()?, reader.int()?);
    let ephemeral_owner = reader.long()?;
    let acl = decode_acl(&mut reader)?;
    let data = Bytes::copy_from_slice(reader.buffer()?);
    Ok(Record { data, acl, czxid, mzxid, pzxid, ctime, mtime, version, aversion, creations, ephemeral_owner })
}

fn encode_session(session: &Session) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.int(session.timeout_ms).buffer(&session.password);
    writer.finish()
}

fn decode_session(id: i64, bytes: &[u8]) -> Result<Session, Malformed> {
    let mut reader = Reader::new(bytes);
    let timeout_ms = reader.int()?;
    let password = reader.buffer()?;
    let password = password.try_into().map_err(|_| Malformed::Short)?;
    Ok(Session { id, password, timeout_ms })
}

impl From<DatabaseError> for StoreError {
    fn from(error: DatabaseError) -> Self {
        match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::InUse,
            DatabaseError::RepairAborted => StoreError::Damaged("cannot be repaired".into()),
            DatabaseError::Storage(error) => error.into(),
            other => StoreError::Disk(other.into()),
        }
    }
}

impl From<redb::StorageError> for StoreError {
    fn from(error: redb::StorageError) -> Self {
        match error {
            redb::StorageError::Corrupted(reason) => StoreError::Damaged(reason),
            // redb reports a file that is not a store, among others, as invalid data.
            redb::StorageError::Io(error) if error.kind() == std::io::ErrorKind::InvalidData => {
                StoreError::Damaged(error.to_string())
            }
            other => StoreError::Disk(other.into()),
        }
    }
}

impl From<redb::TableError> for StoreError {
    fn from(error: redb::TableError) -> Self {
        match error {
            redb::TableError::Storage(error) => error.into(),
            other => StoreError::Damaged(other.to_string()),
        }
    }
}

impl From<redb::Error> for StoreError {
    fn from(error: redb::Error) -> Self {
        StoreError::Disk(error)
    }
}

impl From<Inconsistent> for StoreError {
    fn from(error: Inconsistent) -> Self {
        StoreError::Damaged(error.to_string())
    }
}
