//! Watch loop of the mirror: applies events and replies to reads in whole batches, so that no snapshot shows half of
//! one.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, FuturesUnordered, Stream};
use futures::{FutureExt, StreamExt};
use tokio::sync::{Notify, mpsc, watch};

use super::bulk::{self, Subtree};
use super::mirror::{PendingRead, State, lock, report_unreadable};
use super::records::{Decoded, decode_versioned};
use crate::paths::{self, ZnodePath};
use crate::{SessionState, Zk};
use nodepool_model::records::image_build::BuildKey;
use nodepool_model::snapshot::Snapshot;
use nodepool_model::snapshot::images::UploadLockKey;
use zookeeper_server::types::{EventKind, Stat, WatchEvent, ZkError};

/// Back-off after a read whose reply was lost.
const READ_RETRY_INTERVAL: Duration = Duration::from_millis(200);

type ReadDone = (String, u64, Result<(Bytes, Stat), ZkError>);

pub(crate) struct Follower {
    zk: Zk,
    roots: &'static [&'static str],
    state: Arc<Mutex<State>>,
    reads: FuturesUnordered<BoxFuture<'static, ReadDone>>,
    /// Reads of records that another process wrote at the same time.
    to_read: mpsc::UnboundedReceiver<FollowUp>,
    /// Notified when an own write was applied.
    own_write_applied: Arc<Notify>,
    /// Notified when ZooKeeper was rolled back to an older state.
    rolled_back: Arc<Notify>,
}

/// Result of a re-read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reread {
    Done,
    Failed,
    StoreRolledBack,
}

impl Follower {
    pub(super) fn new(
        zk: Zk,
        roots: &'static [&'static str],
        state: Arc<Mutex<State>>,
        to_read: mpsc::UnboundedReceiver<FollowUp>,
        own_write_applied: Arc<Notify>,
        rolled_back: Arc<Notify>,
    ) -> Self {
        Self { zk, roots, state, reads: FuturesUnordered::new(), to_read, own_write_applied, rolled_back }
    }

    pub(crate) async fn run(
        mut self,
        mut events: BoxStream<'static, WatchEvent>,
        session: watch::Receiver<SessionState>,
    ) {
        // Rare events are awaited by one stream each, instead of a new future per iteration.
        let mut session = pin!(session_states(session));
        let mut own_writes_applied = pin!(notifications(self.own_write_applied.clone()));
        loop {
            let (mut batch, mut answers, mut due_reads) = (Vec::new(), Vec::new(), Vec::new());
            let mut is_reconnected = false;
            tokio::select! {
                biased;
                state = session.next() => match state {
                    None | Some(SessionState::Expired) => break,
                    // The event stream has a `Resync` for the same reconnect. Both are in one batch, so everything is
                    // re-read once.
                    Some(SessionState::Connected) => is_reconnected = true,
                    Some(SessionState::Suspended) => lock(&self.state).snapshot_mut().connected = false,
                },
                event = events.next() => {
                    let Some(event) = event else { break };
                    batch.push(event);
                }
                Some(answer) = self.reads.next(), if !self.reads.is_empty() => answers.push(answer),
                Some(read) = self.to_read.recv() => due_reads.push(read),
                Some(()) = own_writes_applied.next() => {}
            }
            // A burst is applied as a whole before it is published.
            while let Some(Some(event)) = events.next().now_or_never() {
                batch.push(event);
            }
            while let Some(Some(answer)) = self.reads.next().now_or_never() {
                answers.push(answer);
            }
            if self.process_batch(batch, answers, due_reads, is_reconnected).await == Reread::StoreRolledBack {
                break;
            }
        }
        self.publish_disconnected();
    }

    async fn process_batch(
        &mut self,
        batch: Vec<WatchEvent>,
        answers: Vec<ReadDone>,
        due_reads: Vec<FollowUp>,
        is_reconnected: bool,
    ) -> Reread {
        let has_gap = is_reconnected || batch.iter().any(|event| event.kind == EventKind::Resync);
        let follow_ups = lock(&self.state).apply_batch(batch, answers);
        for follow_up in due_reads.into_iter().chain(follow_ups) {
            match follow_up {
                FollowUp::Read(path, generation) => {
                    let reply = self.zk.get(&path);
                    self.reads.push(async move { (path, generation, reply.await) }.boxed());
                }
                FollowUp::Retry(path, generation) => {
                    let zk = self.zk.clone();
                    let retry = async move {
                        tokio::time::sleep(READ_RETRY_INTERVAL).await;
                        let answer = zk.get(&path).await;
                        (path, generation, answer)
                    };
                    self.reads.push(retry.boxed());
                }
            }
        }
        let reread = if has_gap { self.reread_all().await } else { Reread::Done };
        lock(&self.state).publish();
        reread
    }

    /// Publishes the snapshot as disconnected: an outdated one must not be used for decisions.
    fn publish_disconnected(&self) {
        let mut state = lock(&self.state);
        state.snapshot_mut().connected = false;
        state.publish();
    }

    fn is_connected(&self) -> bool {
        *self.zk.session().borrow() == SessionState::Connected
    }

    /// Re-reads everything, as events may have been lost. If the connection is lost meanwhile, the next reconnect
    /// causes another re-read.
    async fn reread_all(&mut self) -> Reread {
        for root in self.roots {
            loop {
                match self.reread_root(root).await {
                    Reread::Done => break,
                    Reread::Failed => {}
                    Reread::StoreRolledBack => {
                        self.rolled_back.notify_one();
                        return Reread::StoreRolledBack;
                    }
                }
                self.publish_disconnected();
                if !self.is_connected() {
                    return Reread::Failed;
                }
                tokio::time::sleep(READ_RETRY_INTERVAL).await;
            }
        }
        let is_connected = self.is_connected();
        lock(&self.state).snapshot_mut().connected = is_connected;
        Reread::Done
    }

    async fn reread_root(&mut self, root: &str) -> Reread {
        let known = {
            let mut state = lock(&self.state);
            state.own_writes.reset();
            state.snapshot.clone()
        };
        let read = match bulk::read(&self.zk, root).await {
            // A lagging server also returns older data, until it has caught up with the leader.
            Ok(subtree) if subtree.is_older_than(&known) => read_newest(&self.zk, root).await,
            read => read,
        };
        let subtree = match read {
            Ok(subtree) => subtree,
            Err(error) => {
                tracing::warn!(root, %error, "cannot re-read the tree after a reconnect");
                return Reread::Failed;
            }
        };
        if subtree.is_older_than(&known) {
            tracing::error!(
                target: "nodepool.zk.ZooKeeper",
                root,
                "ZooKeeper was rolled back to an older state, as by a restore from a backup; \
                 starting over with a new session"
            );
            return Reread::StoreRolledBack;
        }
        let mut state = lock(&self.state);
        // A write during the read may be newer than its result: its event must cause a read.
        state.own_writes.reset();
        state.reads.retain(|path, _| !path.starts_with(root));
        subtree.replace_since(&known, state.snapshot_mut());
        report_unreadable(&state.snapshot);
        Reread::Done
    }
}

async fn read_newest(zk: &Zk, root: &str) -> Result<Subtree, ZkError> {
    zk.sync(root).await?;
    bulk::read(zk, root).await
}

/// The state changes of a session from now on.
fn session_states(session: watch::Receiver<SessionState>) -> impl Stream<Item = SessionState> {
    stream::unfold(session, |mut session| async move {
        session.changed().await.ok()?;
        let state = *session.borrow_and_update();
        Some((state, session))
    })
}

fn notifications(notify: Arc<Notify>) -> impl Stream<Item = ()> {
    stream::unfold(notify, |notify| async move {
        notify.notified().await;
        Some(((), notify))
    })
}

/// A read that a batch or the end of an own write requires.
pub(super) enum FollowUp {
    Read(String, u64),
    /// The reply to the last attempt was lost.
    Retry(String, u64),
}

impl State {
    /// Applies the events first: the reply to a read of a deleted record is worthless.
    fn apply_batch(&mut self, batch: Vec<WatchEvent>, answers: Vec<ReadDone>) -> Vec<FollowUp> {
        let mut follow_ups: Vec<FollowUp> = batch.iter().filter_map(|event| self.on_event(event)).collect();
        follow_ups.extend(answers.into_iter().filter_map(|answer| self.on_read(answer)));
        follow_ups
    }

    fn on_event(&mut self, event: &WatchEvent) -> Option<FollowUp> {
        match event.kind {
            EventKind::Created => self.on_created(&event.path),
            EventKind::DataChanged if self.own_writes.on_event(&event.path) => None,
            EventKind::DataChanged => self.begin_read(&event.path, &paths::parse(&event.path)),
            // The other changes of its transaction are not visible yet.
            EventKind::Deleted if self.own_writes.on_deleted(&event.path) => None,
            EventKind::Deleted => {
                self.on_deleted(&event.path);
                None
            }
            EventKind::ChildrenChanged | EventKind::Resync => None,
        }
    }

    pub(super) fn on_deleted(&mut self, path: &str) {
        let parsed = paths::parse(path);
        if !self.defer_unlock(path, &parsed) {
            self.remove_parsed(path, parsed);
        }
    }

    fn on_created(&mut self, path: &str) -> Option<FollowUp> {
        if self.own_writes.on_created(path) {
            self.on_deleted(path);
        }
        match paths::parse(path) {
            // An own creation: every later change of it has its own event.
            ZnodePath::Node(id) if self.snapshot.node(&id).is_some() => {}
            ZnodePath::Request(id) if self.snapshot.request(&id).is_some() => {}
            parsed if is_tracked_record(&parsed) => return self.begin_read(path, &parsed),
            ZnodePath::NodeLock(id) => {
                self.change_node_lock(id, |lock_state| !std::mem::replace(&mut lock_state.exists, true))
            }
            ZnodePath::NodeContender(id, name) => self.change_node_lock(id, |lock_state| {
                lock_state.exists = true;
                lock_state.contenders.insert(name)
            }),
            // Own contenders may be known already.
            ZnodePath::RequestLock(id) => {
                self.change_request_lock(id, |lock_state| !std::mem::replace(&mut lock_state.exists, true))
            }
            ZnodePath::RequestContender(id, name) => self.change_request_lock(id, |lock_state| {
                lock_state.exists = true;
                lock_state.contenders.insert(name)
            }),
            parsed => self.on_image_created(parsed),
        }
        None
    }

    fn on_image_created(&mut self, parsed: ZnodePath) {
        match parsed {
            ZnodePath::Image(name) => self.snapshot_mut().images.add_image(name),
            ZnodePath::ImageBuildsContender(name, contender) => {
                self.snapshot_mut().images.set_contender(&name, &contender, true)
            }
            ZnodePath::ImageUploadsContender(image, build, provider, contender) => {
                let key = UploadLockKey { build: BuildKey { image, build }, provider };
                self.snapshot_mut().images.set_upload_contender(key, &contender, true);
            }
            _ => {}
        }
    }

    /// Requests a re-read of a record. At most one read per path is in flight; a change meanwhile causes one more.
    pub(super) fn begin_read(&mut self, path: &str, parsed: &ZnodePath) -> Option<FollowUp> {
        if !is_tracked_record(parsed) {
            return None;
        }
        if let Some(read) = self.reads.get_mut(path) {
            read.needs_reread = true;
            return None;
        }
        self.next_generation += 1;
        self.reads.insert(
            path.to_owned(),
            PendingRead { generation: self.next_generation, needs_reread: false, unlocks: Vec::new() },
        );
        Some(FollowUp::Read(path.to_owned(), self.next_generation))
    }

    /// A process writes a node just before it unlocks it. Until that write is read, the snapshot shows the node as
    /// locked; otherwise decisions would be based on the previous record.
    fn defer_unlock(&mut self, path: &str, parsed: &ZnodePath) -> bool {
        let ZnodePath::NodeContender(id, _) = parsed else { return false };
        let Some(read) = self.reads.get_mut(&paths::node(id)) else { return false };
        read.unlocks.push(path.to_owned());
        true
    }

    fn on_read(&mut self, (path, generation, answer): ReadDone) -> Option<FollowUp> {
        match self.reads.get_mut(&path) {
            Some(read) if read.generation == generation => match &answer {
                Ok(_) | Err(ZkError::NoNode | ZkError::SessionExpired | ZkError::NotPermitted(_)) => {}
                Err(error) => {
                    tracing::debug!(%path, %error, "cannot read a changed record, retrying");
                    read.needs_reread = false;
                    return Some(FollowUp::Retry(path, generation));
                }
            },
            _ => return None, // Deleted meanwhile.
        }
        match answer {
            Ok((data, stat)) => {
                let parsed = paths::parse(&path);
                if !self.is_current(&parsed, &stat) {
                    apply(self.snapshot_mut(), parsed, &path, &data, &stat);
                }
            }
            Err(ZkError::NoNode) => self.remove(&path),
            // The last readable content of the record is outdated. The next change of the record causes an event.
            Err(ZkError::NotPermitted(reason)) => {
                let mut subtree = Subtree::default();
                subtree.insert_unreadable(&path, reason);
                log_unreadable(subtree.merge_into(self.snapshot_mut()));
            }
            Err(_) => {} // The session has ended.
        }
        let read = self.reads.get_mut(&path)?;
        if std::mem::take(&mut read.needs_reread) {
            self.next_generation += 1;
            read.generation = self.next_generation;
            return Some(FollowUp::Read(path, self.next_generation));
        }
        for contender in self.reads.remove(&path).map(|read| read.unlocks).unwrap_or_default() {
            self.remove(&contender);
        }
        None
    }

    /// Whether the snapshot already has this version of a record, or a newer one.
    fn is_current(&self, parsed: &ZnodePath, stat: &Stat) -> bool {
        let known = match parsed {
            ZnodePath::Node(id) => self.snapshot.node(id).map(|known| known.mzxid),
            ZnodePath::Request(id) => self.snapshot.request(id).map(|known| known.mzxid),
            _ => None,
        };
        known.is_some_and(|known| known >= stat.mzxid)
    }
}

/// Whether the snapshot contains the data or the time of a znode.
fn is_tracked_record(parsed: &ZnodePath) -> bool {
    let is_of_nodes = matches!(parsed, ZnodePath::Node(_) | ZnodePath::Request(_) | ZnodePath::Component { .. });
    is_of_nodes
        || matches!(
            parsed,
            ZnodePath::ImagePause(_)
                | ZnodePath::ImageBuildRequest(_)
                | ZnodePath::ImageBuild(..)
                | ZnodePath::ImageUpload(_)
        )
}

/// Puts one record, as read, into the snapshot.
fn apply(snapshot: &mut Snapshot, parsed: ZnodePath, path: &str, data: &Bytes, stat: &Stat) {
    snapshot.clear_unreadable(path);
    // The most frequent changes, without the detour over a `Subtree`.
    match parsed {
        ZnodePath::Node(id) => match decode_versioned(data, stat) {
            Decoded::Record(stored) => {
                snapshot.put_node(id, stored);
                return;
            }
            Decoded::Empty => return snapshot.put_empty_node(id),
            Decoded::Unreadable(_) => {}
        },
        ZnodePath::Request(id) => {
            if let Decoded::Record(stored) = decode_versioned(data, stat) {
                snapshot.put_request(id, stored);
                return;
            }
        }
        _ => {}
    }
    let mut subtree = Subtree::default();
    subtree.insert(path, data, stat);
    log_unreadable(subtree.merge_into(snapshot));
}

fn log_unreadable(newly_unreadable: Vec<(String, String)>) {
    for (path, reason) in newly_unreadable {
        tracing::warn!(
            target: "nodepool.zk.ZooKeeper",
            %path,
            %reason,
            "cannot read a record; skipping it, its znode is left unchanged"
        );
    }
}
