//! Request processing of the server: sessions, requests and watch events over the tree. No I/O.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::jute::Writer;
use crate::protocol::{self, Call, ConnectRequest, ReadStep, Request, code, code_of, encode_event, encode_reply};
use crate::tree::{DirtyKey, Failure, Fired, Session, Tree, WatchKind, Write};

/// The shortest and longest session timeout granted, in milliseconds.
pub const TIMEOUTS_MS: std::ops::RangeInclusive<i32> = 1_000..=40_000;
/// Maximum number of watches of one session; a client that needs more is misbehaving.
pub const WATCH_LIMIT: usize = 250_000;
/// Maximum size of the reply to one `multiRead`, in bytes.
const MULTI_READ_LIMIT: usize = 4 * 1024 * 1024;
/// Maximum server stall without effect on sessions; a longer one extends them by its duration.
const SERVER_STALL_MS: u64 = 2_000;

/// One network connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// The time of an operation: by the wall clock, and since the start.
#[derive(Clone, Copy, Debug)]
pub struct OpTime {
    pub wall_ms: i64,
    pub passed_ms: u64,
}

#[derive(Debug)]
pub enum Input {
    Connect { link: LinkId, request: ConnectRequest, new_password: [u8; 16] },
    Call { link: LinkId, call: Call },
    Disconnected { link: LinkId },
    Tick,
}

/// An action for a connection.
#[derive(Debug, PartialEq, Eq)]
pub struct Output {
    pub link: LinkId,
    pub action: Action,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    Reply(Bytes),
    Event(Bytes),
    /// The connection is closed after this.
    LastReply(Bytes),
    Disconnect(&'static str),
}

pub struct Coordinator {
    tree: Tree,
    links: BTreeMap<LinkId, i64>,
    session_states: BTreeMap<i64, SessionState>,
    last_tick_ms: u64,
    dirty_keys: BTreeSet<DirtyKey>,
    outputs: Vec<Output>,
}

/// State of a session in this run of the server.
struct SessionState {
    link: Option<LinkId>,
    expires_ms: u64,
    /// Latest expiry while it has no connection, regardless of extensions.
    latest_expiry_ms: u64,
    /// Server stalls since its last message.
    pauses: u32,
    timeout_ms: i32,
    /// Users that the client has named; only kept for `WhoAmI`.
    users: BTreeSet<String>,
}

impl Coordinator {
    /// Serves a tree. Its sessions get their full timeout to reconnect.
    pub fn new(tree: Tree, now: OpTime) -> Self {
        let session_states =
            tree.sessions().map(|session| (session.id, SessionState::new(session.timeout_ms, now))).collect();
        let last_tick_ms = now.passed_ms;
        Self {
            tree,
            links: BTreeMap::new(),
            session_states,
            last_tick_ms,
            dirty_keys: BTreeSet::new(),
            outputs: Vec::new(),
        }
    }

    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    pub fn connections(&self) -> usize {
        self.links.len()
    }

    /// The changes to store before the current outputs may be sent. The caller takes both together.
    pub fn take_dirty_keys(&mut self) -> BTreeSet<DirtyKey> {
        std::mem::take(&mut self.dirty_keys)
    }

    pub fn take_outputs(&mut self) -> Vec<Output> {
        std::mem::take(&mut self.outputs)
    }

    pub fn handle(&mut self, input: Input, now: OpTime) {
        match input {
            Input::Connect { link, request, new_password } => self.connect(link, &request, new_password, now),
            Input::Call { link, call } => self.call(link, call, now),
            Input::Disconnected { link } => self.detach(link),
            Input::Tick => self.tick(now),
        }
    }

    fn connect(&mut self, link: LinkId, request: &ConnectRequest, new_password: [u8; 16], now: OpTime) {
        if self.links.contains_key(&link) {
            return self.push_output(link, Action::Disconnect("second connect request on one connection"));
        }
        let timeout_ms = request.timeout_ms.clamp(*TIMEOUTS_MS.start(), *TIMEOUTS_MS.end());
        let (session, password) = if request.session == 0 {
            // The time makes ids differ between data directories too.
            let id = (self.tree.last_session() + 1).max(now.wall_ms << 16);
            let opened = self.tree.open_session(Session { id, password: new_password, timeout_ms });
            self.dirty_keys.extend(opened.dirty_keys);
            (id, new_password)
        } else {
            match self.tree.session(request.session) {
                Some(session) if session.password == request.password => {}
                _ => {
                    let expired = protocol::encode_connect_response(request, 0, 0, [0; 16]);
                    return self.push_output(link, Action::LastReply(expired));
                }
            }
            if request.last_zxid_seen > self.tree.last_zxid() {
                return self.push_output(link, Action::Disconnect("client has seen a newer zxid than this store"));
            }
            self.dirty_keys.extend(self.tree.set_timeout(request.session, timeout_ms));
            (request.session, request.password)
        };
        let session_state = self.session_states.entry(session).or_insert_with(|| SessionState::new(timeout_ms, now));
        session_state.timeout_ms = timeout_ms;
        session_state.touch(now);
        if let Some(former) = session_state.link.replace(link) {
            self.links.remove(&former);
            self.tree.forget_watches(session);
            self.push_output(former, Action::Disconnect("session moved to another connection"));
        }
        self.links.insert(link, session);
        self.push_output(
            link,
            Action::Reply(protocol::encode_connect_response(request, session, timeout_ms, password)),
        );
    }

    /// The connection has ended; the session may be resumed.
    fn detach(&mut self, link: LinkId) {
        let Some(session) = self.links.remove(&link) else { return };
        self.tree.forget_watches(session);
        if let Some(session_state) = self.session_states.get_mut(&session) {
            session_state.link = None;
        }
    }

    fn tick(&mut self, now: OpTime) {
        let silent_ms = now.passed_ms.saturating_sub(self.last_tick_ms);
        self.last_tick_ms = now.passed_ms;
        if silent_ms > SERVER_STALL_MS {
            // This process or the disk stalled, not the clients.
            self.session_states.values_mut().for_each(|session_state| session_state.extend_by(silent_ms));
        }
        let expired: Vec<i64> = self
            .session_states
            .iter()
            .filter(|(_, session_state)| session_state.expires_ms <= now.passed_ms)
            .map(|(&session, _)| session)
            .collect();
        for session in expired {
            if let Some(link) = self.end_session(session) {
                self.push_output(link, Action::Disconnect("session expired"));
            }
        }
    }

    /// Ends a session; returns the connection that it had.
    fn end_session(&mut self, session: i64) -> Option<LinkId> {
        let session_state = self.session_states.remove(&session)?;
        if let Some(link) = session_state.link {
            self.links.remove(&link);
        }
        let closed = self.tree.close_session(session);
        self.dirty_keys.extend(closed.dirty_keys);
        self.send_events(closed.events);
        session_state.link
    }

    fn call(&mut self, link: LinkId, Call { xid, request }: Call, now: OpTime) {
        let Some(&session) = self.links.get(&link) else {
            return; // sent before the session ended or moved
        };
        self.session_states.get_mut(&session).expect("a linked session is present").touch(now);
        match request {
            Request::Ping | Request::Refused(_) => {
                let code = if let Request::Refused(code) = request { code } else { code::OK };
                self.reply(link, xid, code, |_| {});
            }
            Request::Close => {
                self.end_session(session);
                let reply = encode_reply(xid, self.tree.last_zxid(), code::OK, |_| {});
                self.push_output(link, Action::LastReply(reply));
            }
            Request::Sync { path } => self.reply(link, xid, code::OK, |writer| {
                writer.text(&path);
            }),
            Request::Write { write, operations } => self.write(link, session, xid, write, &operations, now),
            Request::Exists { .. } | Request::GetData { .. } | Request::GetChildren { .. } | Request::GetAcl { .. } => {
                self.read(link, session, xid, request);
            }
            Request::MultiRead(steps) => self.multi_read(link, xid, steps),
            Request::Auth { scheme, credentials } => self.auth(link, session, xid, &scheme, &credentials),
            Request::WhoAmI => {
                let users = &self.session_states[&session].users;
                let reply = encode_reply(xid, self.tree.last_zxid(), code::OK, |writer| {
                    writer.count(users.len() + 1).text("ip").text("127.0.0.1");
                    users.iter().for_each(|user| {
                        writer.text("digest").text(user);
                    });
                });
                self.push_output(link, Action::Reply(reply));
            }
            Request::SetWatches(_)
            | Request::AddWatch { .. }
            | Request::RemoveWatch { .. }
            | Request::CheckWatch { .. } => {
                self.watches(link, session, xid, request);
            }
        }
    }

    fn write(&mut self, link: LinkId, session: i64, xid: i32, write: Write, operations: &[i32], now: OpTime) {
        let is_multi = matches!(write, Write::Multi(_));
        let applied = self.tree.apply(session, now.wall_ms, write);
        self.dirty_keys.extend(applied.dirty_keys);
        self.send_events(applied.events);
        match applied.result {
            Ok(written) => {
                self.reply(link, xid, code::OK, |writer| protocol::write_result(writer, &written, operations));
            }
            Err(Failure::Multi { index, source }) if is_multi => {
                let code = code_of(&source);
                self.reply(link, xid, code::OK, |writer| {
                    protocol::write_failed_multi(writer, operations.len(), index, code);
                });
            }
            Err(failure) => self.reply(link, xid, code_of(&failure), |_| {}),
        }
    }

    fn read(&mut self, link: LinkId, session: i64, xid: i32, request: Request) {
        let mut writer = Writer::new();
        let outcome = match &request {
            Request::Exists { path, .. } => self.tree.stat(path).map(|stat| protocol::write_stat(&mut writer, &stat)),
            Request::GetData { path, .. } => self.tree.get(path).map(|(data, stat)| {
                writer.buffer(&data);
                protocol::write_stat(&mut writer, &stat);
            }),
            Request::GetChildren { path, with_stat, .. } => self.tree.children(path).map(|(names, stat)| {
                protocol::write_names(&mut writer, names);
                if *with_stat {
                    protocol::write_stat(&mut writer, &stat);
                }
            }),
            Request::GetAcl { path } => self.tree.acl(path).map(|(acl, stat)| {
                protocol::write_acl(&mut writer, &acl);
                protocol::write_stat(&mut writer, &stat);
            }),
            _ => Err(Failure::BadArguments("not a read".into())),
        };
        // A watch is set on an existing znode; `exists` may also watch for the creation of one.
        match (&request, &outcome) {
            (Request::Exists { path, watch: true }, Ok(()) | Err(Failure::NoNode))
            | (Request::GetData { path, watch: true }, Ok(())) => self.tree.add_watch(session, path, WatchKind::Data),
            (Request::GetChildren { path, watch: true, .. }, Ok(())) => {
                self.tree.add_watch(session, path, WatchKind::Children);
            }
            _ => {}
        }
        let code = outcome.map_or_else(|failure| code_of(&failure), |()| code::OK);
        let body = writer.finish();
        self.reply(link, xid, code, |writer| writer.raw(&body));
        self.bound_watches(link, session);
    }

    fn multi_read(&mut self, link: LinkId, xid: i32, steps: Vec<ReadStep>) {
        let mut writer = Writer::new();
        for step in steps {
            let outcome = match &step {
                ReadStep::Data(path) => self.tree.get(path).map(|(data, stat)| {
                    protocol::write_data_step(&mut writer, &data, &stat);
                }),
                ReadStep::Children(path) => self.tree.children(path).map(|(names, _)| {
                    protocol::write_children_step(&mut writer, names);
                }),
            };
            if let Err(failure) = outcome {
                protocol::write_failed_step(&mut writer, code_of(&failure));
            }
            if writer.len() > MULTI_READ_LIMIT {
                return self.reply(link, xid, code::BAD_ARGUMENTS, |_| {});
            }
        }
        protocol::write_end(&mut writer);
        let body = writer.finish();
        self.reply(link, xid, code::OK, |writer| writer.raw(&body));
    }

    fn watches(&mut self, link: LinkId, session: i64, xid: i32, request: Request) {
        match request {
            Request::SetWatches(list) => {
                let fired = self.tree.set_watches(session, list);
                self.send_events(fired);
                self.reply(link, xid, code::OK, |_| {});
            }
            Request::AddWatch { path, kind } => {
                self.tree.add_watch(session, &path, kind);
                self.reply(link, xid, code::OK, |writer| {
                    writer.int(code::OK);
                });
            }
            Request::RemoveWatch { path, filter } => {
                let outcome = self.tree.remove_watch(session, &path, filter);
                self.reply(link, xid, outcome.map_or_else(|failure| code_of(&failure), |()| code::OK), |_| {});
            }
            Request::CheckWatch { path, filter } => {
                let outcome = self.tree.has_watch(session, &path, filter);
                self.reply(link, xid, outcome.map_or_else(|failure| code_of(&failure), |()| code::OK), |_| {});
            }
            _ => self.reply(link, xid, code::UNIMPLEMENTED, |_| {}),
        }
        self.bound_watches(link, session);
    }

    fn bound_watches(&mut self, link: LinkId, session: i64) {
        if self.tree.watches_of(session) > WATCH_LIMIT {
            self.push_output(link, Action::Disconnect("too many watches in one session"));
            self.detach(link);
        }
    }

    /// Accepts any user with any password: access lists are not enforced.
    fn auth(&mut self, link: LinkId, session: i64, xid: i32, scheme: &str, credentials: &[u8]) {
        let user = std::str::from_utf8(credentials).ok().and_then(|text| text.split_once(':')).map(|(user, _)| user);
        match (scheme, user) {
            ("digest", Some(user)) => {
                let session_state = self.session_states.get_mut(&session).expect("a linked session is present");
                if session_state.users.len() < 16 {
                    session_state.users.insert(user.to_owned());
                }
                self.reply(link, xid, code::OK, |_| {});
            }
            _ => {
                let reply = encode_reply(xid, self.tree.last_zxid(), code::AUTH_FAILED, |_| {});
                self.push_output(link, Action::LastReply(reply));
                self.detach(link);
            }
        }
    }

    fn send_events(&mut self, fired: Vec<Fired>) {
        for Fired { session, event } in fired {
            if let Some(link) = self.session_states.get(&session).and_then(|session_state| session_state.link) {
                self.push_output(link, Action::Event(encode_event(&event)));
            }
        }
    }

    fn reply(&mut self, link: LinkId, xid: i32, code: i32, body: impl FnOnce(&mut Writer)) {
        let reply = encode_reply(xid, self.tree.last_zxid(), code, body);
        self.push_output(link, Action::Reply(reply));
    }

    fn push_output(&mut self, link: LinkId, action: Action) {
        self.outputs.push(Output { link, action });
    }
}

/// Consecutive server stalls for which a connected but silent session is extended.
const MAX_PAUSES: u32 = 3;

impl SessionState {
    fn new(timeout_ms: i32, now: OpTime) -> Self {
        let mut session_state =
            Self { link: None, expires_ms: 0, latest_expiry_ms: 0, pauses: 0, timeout_ms, users: BTreeSet::new() };
        session_state.touch(now);
        session_state
    }

    fn touch(&mut self, now: OpTime) {
        let timeout_ms = u64::try_from(self.timeout_ms).unwrap_or_default();
        (self.expires_ms, self.latest_expiry_ms, self.pauses) =
            (now.passed_ms + timeout_ms, now.passed_ms + 2 * timeout_ms, 0);
    }

    /// Extends a session after a server stall. A connected client may have sent a message that was not processed. A
    /// client without a connection gets as much time as it would have to reconnect, once. Both extensions are limited:
    /// otherwise, on a disk that is always slow, sessions would never expire.
    fn extend_by(&mut self, silent_ms: u64) {
        let later_ms = self.expires_ms + silent_ms;
        if self.link.is_none() {
            self.expires_ms = later_ms.min(self.latest_expiry_ms).max(self.expires_ms);
        } else if self.pauses < MAX_PAUSES {
            (self.expires_ms, self.pauses) = (later_ms, self.pauses + 1);
        }
    }
}

#[cfg(test)]
mod tests;
