//! ZooKeeper's frames: decodes requests, encodes replies and events.

use std::sync::Arc;

use bytes::Bytes;

use crate::jute::{Malformed, Reader, Writer};
use crate::tree::{Acl, Failure, WatchFilter, WatchKind, WatchList, Write, WriteResult};
use crate::types::{CreateMode, EventKind, Stat, WatchEvent};

/// The longest frame accepted from a client: ZooKeeper's default.
pub const FRAME_LIMIT: usize = 0xf_ffff;

/// The first frame of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectRequest {
    /// Newest transaction that the client has observed.
    pub last_zxid_seen: i64,
    pub timeout_ms: i32,
    /// 0 requests a new session.
    pub session: i64,
    pub password: [u8; 16],
    /// Whether the client reads the flag at the end of the answer; very old ones do not.
    pub reads_flag: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Chosen by the client; the answer carries it.
    pub xid: i32,
    pub request: Request,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Ping,
    Close,
    Sync {
        path: String,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    GetChildren {
        path: String,
        watch: bool,
        with_stat: bool,
    },
    GetAcl {
        path: String,
    },
    MultiRead(Vec<ReadStep>),
    /// One write, with the operation numbers that determine the form of each step's reply.
    Write {
        write: Write,
        operations: Vec<i32>,
    },
    SetWatches(WatchList),
    AddWatch {
        path: String,
        kind: WatchKind,
    },
    RemoveWatch {
        path: String,
        filter: WatchFilter,
    },
    CheckWatch {
        path: String,
        filter: WatchFilter,
    },
    Auth {
        scheme: String,
        credentials: Vec<u8>,
    },
    WhoAmI,
    /// Decoded far enough to be answered with an error.
    Refused(i32),
}

impl Request {
    /// Whether the answer has to wait for the disk.
    pub fn changes(&self) -> bool {
        matches!(self, Request::Write { .. } | Request::Close)
    }

    /// Whether the answer may be large.
    pub fn reads_data(&self) -> bool {
        matches!(self, Request::GetData { .. } | Request::GetChildren { .. } | Request::MultiRead(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadStep {
    Data(String),
    Children(String),
}

/// Error numbers of the protocol.
pub mod code {
    pub const OK: i32 = 0;
    pub const RUNTIME_INCONSISTENCY: i32 = -2;
    pub const MARSHALLING: i32 = -5;
    pub const UNIMPLEMENTED: i32 = -6;
    pub const BAD_ARGUMENTS: i32 = -8;
    pub const NO_NODE: i32 = -101;
    pub const BAD_VERSION: i32 = -103;
    pub const NO_CHILDREN_FOR_EPHEMERALS: i32 = -108;
    pub const NODE_EXISTS: i32 = -110;
    pub const NOT_EMPTY: i32 = -111;
    pub const SESSION_EXPIRED: i32 = -112;
    pub const INVALID_ACL: i32 = -114;
    pub const AUTH_FAILED: i32 = -115;
    pub const NO_WATCHER: i32 = -121;
}

/// Operation numbers of the protocol.
mod operation {
    pub const ERROR: i32 = -1;
    pub const CREATE: i32 = 1;
    pub const DELETE: i32 = 2;
    pub const EXISTS: i32 = 3;
    pub const GET_DATA: i32 = 4;
    pub const SET_DATA: i32 = 5;
    pub const GET_ACL: i32 = 6;
    pub const SET_ACL: i32 = 7;
    pub const GET_CHILDREN: i32 = 8;
    pub const SYNC: i32 = 9;
    pub const PING: i32 = 11;
    pub const GET_CHILDREN_2: i32 = 12;
    pub const CHECK: i32 = 13;
    pub const MULTI: i32 = 14;
    pub const CREATE_2: i32 = 15;
    pub const CHECK_WATCHES: i32 = 17;
    pub const REMOVE_WATCHES: i32 = 18;
    pub const CREATE_CONTAINER: i32 = 19;
    pub const CREATE_TTL: i32 = 21;
    pub const MULTI_READ: i32 = 22;
    pub const CLOSE: i32 = -11;
    pub const AUTH: i32 = 100;
    pub const SET_WATCHES: i32 = 101;
    pub const SET_WATCHES_2: i32 = 105;
    pub const ADD_WATCH: i32 = 106;
    pub const WHO_AM_I: i32 = 107;
}

pub fn code_of(failure: &Failure) -> i32 {
    match failure {
        Failure::NoNode => code::NO_NODE,
        Failure::NodeExists => code::NODE_EXISTS,
        Failure::BadVersion => code::BAD_VERSION,
        Failure::NotEmpty => code::NOT_EMPTY,
        Failure::NoChildrenForEphemerals => code::NO_CHILDREN_FOR_EPHEMERALS,
        Failure::BadArguments(_) | Failure::TooLarge { .. } => code::BAD_ARGUMENTS,
        Failure::InvalidAcl => code::INVALID_ACL,
        Failure::NoWatcher => code::NO_WATCHER,
        Failure::SessionExpired => code::SESSION_EXPIRED,
        Failure::Multi { source, .. } => code_of(source),
    }
}

pub fn decode_connect_request(frame: &[u8]) -> Result<ConnectRequest, Malformed> {
    let mut reader = Reader::new(frame);
    let protocol = reader.int()?;
    if protocol != 0 {
        return Err(Malformed::Value(protocol, "the protocol version 0"));
    }
    let (last_zxid_seen, timeout_ms, session) = (reader.long()?, reader.int()?, reader.long()?);
    // A client without a session may send no password at all; with a wrong one no session is resumed.
    let password = reader.buffer()?.try_into().unwrap_or([0; 16]);
    Ok(ConnectRequest { last_zxid_seen, timeout_ms, session, password, reads_flag: !reader.is_empty() })
}

pub fn decode_call(frame: &[u8]) -> Result<Call, Malformed> {
    let mut reader = Reader::new(frame);
    let (xid, operation) = (reader.int()?, reader.int()?);
    Ok(Call { xid, request: decode_request(operation, &mut reader)? })
}

fn decode_request(operation: i32, reader: &mut Reader<'_>) -> Result<Request, Malformed> {
    Ok(match operation {
        operation::PING => Request::Ping,
        operation::CLOSE => Request::Close,
        operation::SYNC => Request::Sync { path: reader.text()? },
        operation::EXISTS => Request::Exists { path: reader.text()?, watch: reader.flag()? },
        operation::GET_DATA => Request::GetData { path: reader.text()?, watch: reader.flag()? },
        operation::GET_CHILDREN | operation::GET_CHILDREN_2 => Request::GetChildren {
            path: reader.text()?,
            watch: reader.flag()?,
            with_stat: operation == operation::GET_CHILDREN_2,
        },
        operation::GET_ACL => Request::GetAcl { path: reader.text()? },
        operation::MULTI_READ => decode_multi_read(reader)?,
        operation::MULTI => decode_multi(reader)?,
        operation::CREATE
        | operation::CREATE_2
        | operation::DELETE
        | operation::SET_DATA
        | operation::CHECK
        | operation::SET_ACL => match decode_write(operation, reader)? {
            Ok(write) => Request::Write { write, operations: vec![operation] },
            Err(code) => Request::Refused(code),
        },
        operation::SET_WATCHES | operation::SET_WATCHES_2 => decode_set_watches(operation, reader)?,
        operation::ADD_WATCH => {
            let path = reader.text()?;
            match reader.int()? {
                0 => Request::AddWatch { path, kind: WatchKind::Persistent },
                1 => Request::AddWatch { path, kind: WatchKind::Recursive },
                _ => Request::Refused(code::MARSHALLING),
            }
        }
        operation::REMOVE_WATCHES | operation::CHECK_WATCHES => {
            let path = reader.text()?;
            let filter = match reader.int()? {
                1 => WatchFilter::Only(WatchKind::Children),
                2 => WatchFilter::Only(WatchKind::Data),
                3 => WatchFilter::Any,
                4 => WatchFilter::Only(WatchKind::Persistent),
                5 => WatchFilter::Only(WatchKind::Recursive),
                _ => return Ok(Request::Refused(code::MARSHALLING)),
            };
            match operation {
                operation::CHECK_WATCHES => Request::CheckWatch { path, filter },
                _ => Request::RemoveWatch { path, filter },
            }
        }
        operation::AUTH => {
            reader.int()?; // a field that no server has ever used
            Request::Auth { scheme: reader.text()?, credentials: reader.buffer()?.to_vec() }
        }
        operation::WHO_AM_I => Request::WhoAmI,
        _ => Request::Refused(code::UNIMPLEMENTED),
    })
}

/// A single write, or the error number for one that is not supported here.
fn decode_write(operation: i32, reader: &mut Reader<'_>) -> Result<Result<Write, i32>, Malformed> {
    let path = reader.text()?;
    Ok(Ok(match operation {
        operation::CREATE | operation::CREATE_2 => {
            let (data, acl) = (Bytes::copy_from_slice(reader.buffer()?), decode_acl(reader)?);
            let mode = match reader.int()? {
                0 => CreateMode::Persistent,
                1 => CreateMode::Ephemeral,
                2 => CreateMode::PersistentSequential,
                3 => CreateMode::EphemeralSequential,
                4..=6 => return Ok(Err(code::UNIMPLEMENTED)), // containers and znodes with a time to live
                _ => return Ok(Err(code::BAD_ARGUMENTS)),
            };
            Write::Create { path, data, acl, mode }
        }
        operation::DELETE => Write::Delete { path, version: reader.int()? },
        operation::SET_DATA => {
            Write::Set { path, data: Bytes::copy_from_slice(reader.buffer()?), version: reader.int()? }
        }
        operation::CHECK => Write::Check { path, version: reader.int()? },
        operation::SET_ACL => Write::SetAcl { path, acl: decode_acl(reader)?, version: reader.int()? },
        other => return Err(Malformed::Value(other, "an operation that writes")),
    }))
}

pub fn decode_acl(reader: &mut Reader<'_>) -> Result<Arc<[Acl]>, Malformed> {
    let entries =
        reader.list(|reader| Ok(Acl { permissions: reader.int()?, scheme: reader.text()?, id: reader.text()? }))?;
    let open = Acl::open();
    // Nearly every znode has the open list, so all share one.
    Ok(if *entries == *open { open } else { Arc::from(entries) })
}

fn decode_multi(reader: &mut Reader<'_>) -> Result<Request, Malformed> {
    let (mut writes, mut operations) = (Vec::new(), Vec::new());
    while let Some(operation) = decode_step(reader)? {
        match operation {
            operation::CREATE | operation::CREATE_2 | operation::DELETE | operation::SET_DATA | operation::CHECK => {
                match decode_write(operation, reader)? {
                    Ok(write) => writes.push(write),
                    Err(code) => return Ok(Request::Refused(code)),
                }
                // ZooKeeper answers either kind of creation in a transaction in the old form, without a stat.
                operations.push(if operation == operation::CREATE_2 { operation::CREATE } else { operation });
            }
            operation::CREATE_CONTAINER | operation::CREATE_TTL => return Ok(Request::Refused(code::UNIMPLEMENTED)),
            _ => return Ok(Request::Refused(code::MARSHALLING)),
        }
    }
    Ok(Request::Write { write: Write::Multi(writes), operations })
}

fn decode_multi_read(reader: &mut Reader<'_>) -> Result<Request, Malformed> {
    let mut steps = Vec::new();
    while let Some(operation) = decode_step(reader)? {
        let step = match operation {
            operation::GET_DATA => ReadStep::Data,
            operation::GET_CHILDREN => ReadStep::Children,
            _ => return Ok(Request::Refused(code::MARSHALLING)),
        };
        steps.push(step(reader.text()?));
        reader.flag()?; // watches cannot be set this way
    }
    Ok(Request::MultiRead(steps))
}

/// The operation of the next step, or `None` after the last.
fn decode_step(reader: &mut Reader<'_>) -> Result<Option<i32>, Malformed> {
    let (operation, done, _) = (reader.int()?, reader.flag()?, reader.int()?);
    Ok((!done).then_some(operation))
}

fn decode_set_watches(operation: i32, reader: &mut Reader<'_>) -> Result<Request, Malformed> {
    let mut list = WatchList {
        last_zxid_seen: reader.long()?,
        data: reader.list(Reader::text)?,
        exist: reader.list(Reader::text)?,
        children: reader.list(Reader::text)?,
        ..WatchList::default()
    };
    if operation == operation::SET_WATCHES_2 {
        list.persistent = reader.list(Reader::text)?;
        list.recursive = reader.list(Reader::text)?;
    }
    Ok(Request::SetWatches(list))
}

/// The answer to the first frame.
pub fn encode_connect_response(request: &ConnectRequest, session: i64, timeout_ms: i32, password: [u8; 16]) -> Bytes {
    let mut writer = Writer::frame();
    writer.int(0).int(timeout_ms).long(session).buffer(&password);
    if request.reads_flag {
        writer.flag(false); // never read-only
    }
    writer.finish_frame()
}

/// A reply: its header, and a body on success.
pub fn encode_reply(xid: i32, zxid: i64, code: i32, body: impl FnOnce(&mut Writer)) -> Bytes {
    let mut writer = Writer::frame();
    writer.int(xid).long(zxid).int(code);
    if code == code::OK {
        body(&mut writer);
    }
    writer.finish_frame()
}

pub fn encode_event(event: &WatchEvent) -> Bytes {
    let kind = match event.kind {
        EventKind::Created => 1,
        EventKind::Deleted => 2,
        EventKind::DataChanged => 3,
        EventKind::ChildrenChanged => 4,
        EventKind::Resync => -1, // exists only in clients
    };
    let connected = 3;
    let mut writer = Writer::frame();
    writer.int(-1).long(-1).int(code::OK).int(kind).int(connected).text(&event.path);
    writer.finish_frame()
}

pub fn write_stat(writer: &mut Writer, stat: &Stat) {
    writer.long(stat.czxid).long(stat.mzxid).long(stat.ctime).long(stat.mtime);
    writer.int(stat.version).int(stat.cversion).int(stat.aversion).long(stat.ephemeral_owner);
    writer.int(stat.data_length).int(stat.num_children).long(stat.pzxid);
}

pub fn write_acl(writer: &mut Writer, acl: &[Acl]) {
    writer.count(acl.len());
    for entry in acl {
        writer.int(entry.permissions).text(&entry.scheme).text(&entry.id);
    }
}

/// The body of the reply to a write, in the form that its operation number requires.
pub fn write_result(writer: &mut Writer, written: &WriteResult, operations: &[i32]) {
    match written {
        WriteResult::Multi(all) => {
            for (written, &operation) in all.iter().zip(operations) {
                write_step(writer, operation, code::OK);
                match written {
                    WriteResult::Checked(_) => {} // inside a transaction a check has no body
                    other => write_result(writer, other, &[operation]),
                }
            }
            write_end(writer);
        }
        WriteResult::Created { path, stat } => {
            writer.text(path);
            if operations == [operation::CREATE_2] {
                write_stat(writer, stat);
            }
        }
        WriteResult::Set(stat) | WriteResult::Checked(stat) | WriteResult::AclSet(stat) => write_stat(writer, stat),
        WriteResult::Deleted => {}
    }
}

/// The body of the reply to a failed transaction: OK before the failure, its error number, then "runtime inconsistency"
/// for the steps that were not tried.
pub fn write_failed_multi(writer: &mut Writer, steps: usize, failed: usize, code: i32) {
    for step in 0..steps {
        let code = match step.cmp(&failed) {
            std::cmp::Ordering::Less => code::OK,
            std::cmp::Ordering::Equal => code,
            std::cmp::Ordering::Greater => code::RUNTIME_INCONSISTENCY,
        };
        write_failed_step(writer, code);
    }
    write_end(writer);
}

pub fn write_failed_step(writer: &mut Writer, code: i32) {
    write_step(writer, operation::ERROR, code);
    writer.int(code);
}

pub fn write_data_step(writer: &mut Writer, data: &[u8], stat: &Stat) {
    write_step(writer, operation::GET_DATA, code::OK);
    writer.buffer(data);
    write_stat(writer, stat);
}

pub fn write_children_step<'a>(writer: &mut Writer, names: impl ExactSizeIterator<Item = &'a String>) {
    write_step(writer, operation::GET_CHILDREN, code::OK);
    write_names(writer, names);
}

pub fn write_names<'a>(writer: &mut Writer, names: impl ExactSizeIterator<Item = &'a String>) {
    writer.count(names.len());
    for name in names {
        writer.text(name);
    }
}

pub fn write_end(writer: &mut Writer) {
    writer.int(-1).flag(true).int(-1);
}

fn write_step(writer: &mut Writer, operation: i32, code: i32) {
    writer.int(operation).flag(false).int(code);
}
