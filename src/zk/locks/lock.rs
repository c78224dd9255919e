//! Locks compatible with kazoo's: contenders in a directory, of which the one with the smallest number holds the lock.

use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;

use crate::paths::{self, ZnodePath};
use crate::{SessionState, Zk};
use zookeeper_server::types::{CreateMode, Op, ZkError};

/// Maximum attempts at an operation that fails although there is a connection.
const MAX_ATTEMPTS: usize = 5;
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(50);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A held lock. Dropping it releases it in the background; `release` waits for that.
#[derive(Debug)]
pub struct Lock {
    contender: Contender,
}

impl Lock {
    /// The contender's znode.
    pub fn path(&self) -> &str {
        match &self.contender.state {
            State::Created(path) => path,
            State::Requested | State::Absent => unreachable!("a lock is made of a contender that was created"),
        }
    }

    /// The lock directory.
    pub fn directory(&self) -> &str {
        paths::parent(self.path()).expect("a contender has a lock directory")
    }

    /// Condition for every transaction that relies on this lock: it fails if the lock was lost, by an expired session
    /// or by `break_lock`.
    pub fn fence(&self) -> Op {
        Op::check(self.path(), -1)
    }

    /// Releases the lock as part of a transaction. `mark_released` records that the transaction succeeded.
    pub fn release_op(&self) -> Op {
        Op::delete(self.path(), -1)
    }

    /// A transaction deleted the contender, so there is nothing to release.
    pub fn mark_released(mut self) {
        self.contender.state = State::Absent;
    }

    /// Releases the lock. After an error the release is retried in the background.
    pub async fn release(mut self) -> Result<(), ZkError> {
        self.contender.leave().await
    }
}

/// A lock to be taken as part of a transaction, which also has to prove that the lock is free. Dropped before its
/// outcome is known, it counts as possibly taken and is released in the background.
#[derive(Debug)]
pub struct PlannedLock {
    contender: Contender,
}

impl PlannedLock {
    pub fn new(zk: &Zk, directory: &str) -> Self {
        let mut contender = Contender::new(zk, directory, CreateMode::EphemeralSequential);
        contender.state = State::Requested;
        Self { contender }
    }

    /// Operation for the transaction, after the operations that leave the directory existing and empty.
    pub fn op(&self) -> Op {
        let prefix = paths::contender_prefix(&self.contender.directory, &self.contender.unique);
        Op::create(prefix, Bytes::new(), self.contender.mode)
    }

    /// The transaction succeeded and created this znode.
    pub fn acquired(mut self, path: String) -> Lock {
        self.contender.state = State::Created(path);
        Lock { contender: self.contender }
    }

    /// The transaction failed, so there is no contender.
    pub fn aborted(mut self) {
        self.contender.state = State::Absent;
    }
}

/// Takes the lock if it is free. `identifier` is the holder's name for other processes; empty is usual.
///
/// Creates the lock directory if it is missing, but never the record it belongs to: `NoNode` means that the record is
/// deleted.
pub async fn try_lock(zk: &Zk, directory: &str, identifier: &str) -> Result<Option<Lock>, ZkError> {
    let contender = try_enter(zk, directory, identifier, CreateMode::EphemeralSequential).await?;
    Ok(contender.map(|contender| Lock { contender }))
}

/// Takes the lock with a contender that outlives the session and the process. Returns the contender's path;
/// `break_lock` deletes it.
pub async fn try_lock_persistent(zk: &Zk, directory: &str, identifier: &str) -> Result<Option<String>, ZkError> {
    let contender = try_enter(zk, directory, identifier, CreateMode::PersistentSequential).await?;
    Ok(contender.map(|contender| {
        let lock = Lock { contender };
        let path = lock.path().to_owned();
        lock.mark_released();
        path
    }))
}

/// Waits for the lock at most `within`; then returns `None`.
pub async fn lock_within(
    zk: &Zk,
    directory: &str,
    identifier: &str,
    within: Duration,
) -> Result<Option<Lock>, ZkError> {
    let mut contender = Contender::new(zk, directory, CreateMode::EphemeralSequential);
    match tokio::time::timeout(within, contender.wait(identifier)).await {
        Ok(Ok(())) => Ok(Some(Lock { contender })),
        Ok(Err(error)) => Err(error),
        Err(_) => {
            if *zk.session().borrow() == SessionState::Connected {
                // A failed deletion is retried in the background.
                let _ = contender.leave().await;
            }
            Ok(None)
        }
    }
}

/// Waits for the lock as long as the session is alive.
pub async fn lock(zk: &Zk, directory: &str, identifier: &str) -> Result<Lock, ZkError> {
    let mut contender = Contender::new(zk, directory, CreateMode::EphemeralSequential);
    contender.wait(identifier).await?;
    Ok(Lock { contender })
}

/// The contenders of a lock, the holder first; empty if the directory does not exist.
pub async fn contenders(zk: &Zk, directory: &str) -> Result<Vec<String>, ZkError> {
    let names = match zk.children(directory).await {
        Ok((names, _)) => names,
        Err(ZkError::NoNode) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut contenders: Vec<String> = names.into_iter().filter(|name| paths::is_contender(name)).collect();
    contenders.sort_by(|a, b| paths::contender_sequence(a).cmp(&paths::contender_sequence(b)));
    Ok(contenders)
}

/// Deletes the contender that holds the lock. Returns false if the lock was free.
pub async fn break_lock(zk: &Zk, directory: &str) -> Result<bool, ZkError> {
    let Some(holder) = contenders(zk, directory).await?.into_iter().next() else { return Ok(false) };
    match zk.delete(&format!("{directory}/{holder}"), -1).await {
        Ok(()) => Ok(true),
        Err(ZkError::NoNode) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Creates a path with all its parents, but no records: an empty record would only confuse its readers.
pub async fn make_path(zk: &Zk, path: &str) -> Result<(), ZkError> {
    match zk.create(path, Bytes::new(), CreateMode::Persistent).await {
        Ok(_) | Err(ZkError::NodeExists) => return Ok(()),
        Err(ZkError::NoNode) => {}
        Err(error) => return Err(error),
    }
    let parent = paths::parent(path).filter(|parent| *parent != "/").ok_or(ZkError::NoNode)?;
    match paths::parse(parent) {
        ZnodePath::Node(_) | ZnodePath::Request(_) | ZnodePath::ImageBuild(..) | ZnodePath::ImageUpload(..) => {
            return Err(ZkError::NoNode);
        }
        _ => Box::pin(make_path(zk, parent)).await?,
    }
    match zk.create(path, Bytes::new(), CreateMode::Persistent).await {
        Ok(_) | Err(ZkError::NodeExists) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn try_enter(zk: &Zk, directory: &str, identifier: &str, mode: CreateMode) -> Result<Option<Contender>, ZkError> {
    for _ in 0..MAX_ATTEMPTS {
        let mut contender = Contender::new(zk, directory, mode);
        contender.enter(identifier).await?;
        match contender.queue_position().await? {
            QueuePosition::Holds => return Ok(Some(contender)),
            QueuePosition::Behind(_) => {
                // A failed deletion is retried in the background.
                let _ = contender.leave().await;
                return Ok(None);
            }
            QueuePosition::Missing => contender.state = State::Absent,
        }
    }
    // Another client deletes contenders as fast as they are created, so this process does not hold the lock.
    Ok(None)
}

/// Position of a contender in the queue.
enum QueuePosition {
    Holds,
    /// Behind this contender, its predecessor.
    Behind(String),
    /// The contender was deleted by another client.
    Missing,
}

#[derive(Debug, PartialEq, Eq)]
enum State {
    /// Its creation may be in flight; it can be found by its unique name.
    Requested,
    Created(String),
    Absent,
}

/// An own znode in a lock directory, or the plan to create one. The znode is deleted when this is dropped.
struct Contender {
    zk: Zk,
    directory: String,
    /// Unique prefix of its name.
    unique: String,
    mode: CreateMode,
    state: State,
}

impl std::fmt::Debug for Contender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Contender({}/{} {:?})", self.directory, self.unique, self.state)
    }
}

impl Contender {
    fn new(zk: &Zk, directory: &str, mode: CreateMode) -> Self {
        let unique = nodepool_rng::uuid().simple().to_string();
        Self { zk: zk.clone(), directory: directory.to_owned(), unique, mode, state: State::Absent }
    }

    /// Creates the contender's znode exactly once.
    async fn enter(&mut self, identifier: &str) -> Result<(), ZkError> {
        let prefix = paths::contender_prefix(&self.directory, &self.unique);
        let mut unknown = ZkError::NoNode;
        for _ in 0..MAX_ATTEMPTS {
            self.state = State::Requested;
            match self.zk.create(&prefix, Bytes::copy_from_slice(identifier.as_bytes()), self.mode).await {
                Ok((path, _)) => {
                    self.state = State::Created(path);
                    return Ok(());
                }
                Err(ZkError::NoNode) => {
                    self.state = State::Absent;
                    make_path(&self.zk, &self.directory).await?;
                }
                Err(error @ ZkError::Unknown(_)) => {
                    // The contender may exist nevertheless. Without a connection this cannot be checked, and callers
                    // that can wait for one do so themselves.
                    if !self.is_connected() {
                        return Err(error);
                    }
                    self.locate().await?;
                    if self.state != State::Absent {
                        return Ok(());
                    }
                    unknown = error;
                }
                Err(error) => {
                    self.state = State::Absent;
                    return Err(error);
                }
            }
        }
        Err(unknown)
    }

    async fn queue_position(&self) -> Result<QueuePosition, ZkError> {
        let mut ahead = None;
        for name in contenders(&self.zk, &self.directory).await? {
            if name.starts_with(&self.unique) {
                return Ok(ahead.map_or(QueuePosition::Holds, QueuePosition::Behind));
            }
            ahead = Some(format!("{}/{name}", self.directory));
        }
        Ok(QueuePosition::Missing)
    }

    /// Enters the queue and waits until the contender holds the lock. A lost connection does not end the wait, and the
    /// position in the queue remains.
    async fn wait(&mut self, identifier: &str) -> Result<(), ZkError> {
        loop {
            match self.step(identifier).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(ZkError::Unknown(_)) => {
                    tokio::time::sleep(MIN_RETRY_INTERVAL).await;
                    if !connected(&self.zk).await {
                        return Err(ZkError::SessionExpired);
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns true if the contender holds the lock, false if another check is due.
    async fn step(&mut self, identifier: &str) -> Result<bool, ZkError> {
        if self.state == State::Requested {
            self.locate().await?;
        }
        if self.state == State::Absent {
            self.enter(identifier).await?;
        }
        match self.queue_position().await? {
            QueuePosition::Holds => return Ok(true),
            QueuePosition::Missing => self.state = State::Absent,
            QueuePosition::Behind(predecessor) => {
                if let (Some(_), changed) = self.zk.exists_and_watch(&predecessor).await? {
                    changed.await;
                }
            }
        }
        Ok(false)
    }

    /// After an unknown outcome: checks whether the contender exists.
    async fn locate(&mut self) -> Result<(), ZkError> {
        self.state = match find(&self.zk, &self.directory, &self.unique).await? {
            Some(name) => State::Created(format!("{}/{name}", self.directory)),
            None => State::Absent,
        };
        Ok(())
    }

    /// Deletes the contender and waits for that. After an error, dropping it retries the deletion.
    async fn leave(&mut self) -> Result<(), ZkError> {
        if self.state == State::Requested {
            self.locate().await?;
        }
        let State::Created(path) = &self.state else { return Ok(()) };
        match self.zk.delete(path, -1).await {
            // The contenders of an expired session are deleted.
            Ok(()) | Err(ZkError::NoNode | ZkError::SessionExpired) => {
                self.state = State::Absent;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn is_connected(&self) -> bool {
        *self.zk.session().borrow() == SessionState::Connected
    }
}

impl Drop for Contender {
    fn drop(&mut self) {
        let path = match std::mem::replace(&mut self.state, State::Absent) {
            State::Absent => return,
            State::Created(path) => Some(path),
            State::Requested => None,
        };
        // Sent at once, so that even a process that is about to end releases its locks.
        let first = path.as_ref().map(|path| self.zk.delete(path, -1));
        if let Ok(runtime) = Handle::try_current() {
            let (zk, directory, unique) = (self.zk.clone(), self.directory.clone(), self.unique.clone());
            runtime.spawn(async move {
                if let Some(reply) = first
                    && is_settled(&reply.await)
                {
                    return;
                }
                clean_up(&zk, &directory, &unique).await;
            });
        }
    }
}

/// Whether the deletion of a contender needs no retry.
fn is_settled(result: &Result<(), ZkError>) -> bool {
    !matches!(result, Err(ZkError::Unknown(_) | ZkError::Protocol(_)))
}

/// Finds a contender by its unique name and deletes it. Retries over lost connections until the contender is certainly
/// deleted or the session has ended, which also deletes it.
async fn clean_up(zk: &Zk, directory: &str, unique: &str) {
    let mut retry_interval = MIN_RETRY_INTERVAL;
    while connected(zk).await {
        match find(zk, directory, unique).await {
            Ok(None) => return,
            Ok(Some(name)) if is_settled(&zk.delete(&format!("{directory}/{name}"), -1).await) => return,
            Ok(Some(_)) | Err(ZkError::Unknown(_) | ZkError::Protocol(_)) => {}
            Err(_) => return,
        }
        tokio::time::sleep(retry_interval).await;
        retry_interval = (retry_interval * 2).min(MAX_RETRY_INTERVAL);
    }
}

async fn find(zk: &Zk, directory: &str, unique: &str) -> Result<Option<String>, ZkError> {
    let contenders = contenders(zk, directory).await?;
    Ok(contenders.into_iter().find(|name| name.starts_with(unique)))
}

/// Waits while the session is suspended. Returns false if the session has ended.
async fn connected(zk: &Zk) -> bool {
    let mut state = zk.session();
    match state.wait_for(|state| *state != SessionState::Suspended).await {
        Ok(state) => *state == SessionState::Connected,
        Err(_) => false,
    }
}
