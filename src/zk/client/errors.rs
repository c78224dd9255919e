//! Conversion between the client crate's types and ours: stats, modes, transactions, and errors, which are grouped by
//! what the caller does next.

use bytes::Bytes;
use zookeeper_client as client;

use zookeeper_server::types::{CreateMode, EventKind, Op, OpReply, Stat, WatchEvent, ZkError};

/// The largest packet a server accepts by default (`jute.maxbuffer`). For a larger one the server drops the connection
/// instead of refusing the packet, and a caller would retry forever. So requests are measured before they are sent.
pub const PACKET_LIMIT: usize = 0xf_ffff;
/// Bytes of a request besides paths and data: headers, lengths, version, the open access list. Rounded up.
const OPERATION_OVERHEAD: usize = 64;

/// Refuses a request for which a server would drop the connection. `chroot` is prepended to every path.
pub fn check_size(chroot: &str, parts: &[(&str, &Bytes)]) -> Result<(), ZkError> {
    let size: usize =
        parts.iter().map(|(path, data)| OPERATION_OVERHEAD + chroot.len() + path.len() + data.len()).sum();
    if size > PACKET_LIMIT {
        return Err(ZkError::TooLarge { size, limit: PACKET_LIMIT });
    }
    Ok(())
}

/// The size of a transaction is the size of all its operations together.
pub fn check_ops_size(chroot: &str, ops: &[Op]) -> Result<(), ZkError> {
    let nothing = Bytes::new();
    let parts: Vec<(&str, &Bytes)> = ops
        .iter()
        .map(|op| match op {
            Op::Create { path, data, .. } | Op::Set { path, data, .. } => (path.as_str(), data),
            Op::Delete { path, .. } | Op::Check { path, .. } => (path.as_str(), &nothing),
        })
        .collect();
    check_size(chroot, &parts)
}

pub fn error(error: client::Error) -> ZkError {
    use client::Error;
    match error {
        Error::NoNode => ZkError::NoNode,
        Error::NodeExists => ZkError::NodeExists,
        Error::BadVersion => ZkError::BadVersion,
        Error::NotEmpty => ZkError::NotEmpty,
        Error::NoChildrenForEphemerals => ZkError::NoChildrenForEphemerals,
        Error::BadArguments(text) => ZkError::BadArguments(text.to_string()),
        Error::InvalidAcl => ZkError::BadArguments("invalid access list".to_owned()),
        Error::NoAuth | Error::AuthFailed | Error::QuotaExceeded | Error::Throttled | Error::ReconfigDisabled => {
            ZkError::NotPermitted(error.to_string())
        }
        Error::NotReadOnly => ZkError::ReadOnly,
        Error::Unimplemented => ZkError::Unimplemented,
        // The crate also reports an expired session when no server has answered for long enough. Only a server can
        // decide that: the reconnector tries to resume the session, and reports `SessionExpired` if a server refuses
        // because the session has expired.
        Error::SessionExpired | Error::ClientClosed | Error::SessionMoved => outcome_unknown(&error),
        // A broken connection causes any of these errors.
        Error::ConnectionLoss | Error::Timeout | Error::NoHosts | Error::Custom(_) | Error::UnexpectedError(_) => {
            outcome_unknown(&error)
        }
        other => ZkError::Protocol(other.to_string()),
    }
}

fn outcome_unknown(error: &client::Error) -> ZkError {
    ZkError::Unknown(format!("{error}; the outcome of the request is unknown"))
}

pub fn multi_error(error_: client::MultiWriteError) -> ZkError {
    match error_ {
        client::MultiWriteError::RequestFailed { source } => error(source),
        client::MultiWriteError::OperationFailed { index, source } => {
            ZkError::Multi { index, source: Box::new(error(source)) }
        }
    }
}

pub fn stat(stat: client::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        pzxid: stat.pzxid,
        ctime: stat.ctime,
        mtime: stat.mtime,
        version: stat.version,
        cversion: stat.cversion,
        aversion: stat.aversion,
        ephemeral_owner: stat.ephemeral_owner,
        data_length: stat.data_length,
        num_children: stat.num_children,
    }
}

/// All znodes have the open access list, like those of Nodepool 11 and Zuul.
pub fn create_options(mode: CreateMode) -> client::CreateOptions<'static> {
    let mode = match mode {
        CreateMode::Persistent => client::CreateMode::Persistent,
        CreateMode::PersistentSequential => client::CreateMode::PersistentSequential,
        CreateMode::Ephemeral => client::CreateMode::Ephemeral,
        CreateMode::EphemeralSequential => client::CreateMode::EphemeralSequential,
    };
    mode.with_acls(client::Acls::anyone_all())
}

/// The full path of the created znode.
pub fn created_path(path: String, mode: CreateMode, sequence: client::CreateSequence) -> String {
    if mode.is_sequential() { format!("{path}{sequence}") } else { path }
}

pub fn add_op(writer: &mut client::MultiWriter<'_>, op: &Op) -> Result<(), client::Error> {
    match op {
        Op::Create { path, data, mode } => writer.add_create(path, data, &create_options(*mode)),
        Op::Set { path, data, version } => writer.add_set_data(path, data, Some(*version)),
        Op::Delete { path, version } => writer.add_delete(path, Some(*version)),
        Op::Check { path, version } => writer.add_check_version(path, *version),
    }
}

pub fn op_reply(result: client::MultiWriteResult) -> Result<OpReply, ZkError> {
    match result {
        client::MultiWriteResult::Create { path, .. } => Ok(OpReply::Created { path }),
        client::MultiWriteResult::SetData { stat: changed } => Ok(OpReply::Set(stat(changed))),
        client::MultiWriteResult::Delete => Ok(OpReply::Deleted),
        client::MultiWriteResult::Check => Ok(OpReply::Checked),
        other => Err(ZkError::Protocol(format!("unexpected result in a multi reply: {other:?}"))),
    }
}

/// One result of a multiRead.
pub fn read_reply(result: client::MultiReadResult) -> Result<Result<(Bytes, Stat), ZkError>, ZkError> {
    match result {
        client::MultiReadResult::Data { data, stat: found } => Ok(Ok((Bytes::from(data), stat(found)))),
        client::MultiReadResult::Error { err } => Ok(Err(error(err))),
        other => Err(ZkError::Protocol(format!("unexpected result in a multiRead reply: {other:?}"))),
    }
}

/// `None` for events about the session, which the reconnector handles.
pub fn event(event: client::WatchedEvent) -> Option<WatchEvent> {
    let kind = match event.event_type {
        client::EventType::Session => return None,
        client::EventType::NodeCreated => EventKind::Created,
        client::EventType::NodeDeleted => EventKind::Deleted,
        client::EventType::NodeDataChanged => EventKind::DataChanged,
        client::EventType::NodeChildrenChanged => EventKind::ChildrenChanged,
    };
    Some(WatchEvent { kind, path: event.path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_above_the_packet_limit_is_refused_with_its_size() {
        let fits = Bytes::from(vec![0; 1_048_376]);
        assert_eq!(check_size("", &[("/nodepool/nodes/0000000001", &fits)]), Ok(()));
        let too_large = Bytes::from(vec![0; 1_048_586]);
        let refused = check_size("", &[("/x", &too_large)]);
        assert_eq!(refused, Err(ZkError::TooLarge { size: 1_048_586 + 2 + 64, limit: PACKET_LIMIT }));
    }

    #[test]
    fn the_operations_of_a_transaction_count_together() {
        let half = Bytes::from(vec![0; 600_000]);
        let op = Op::set("/x", half, -1);
        assert_eq!(check_ops_size("/chroot", &[op.clone(), Op::check("/y", -1)]), Ok(()));
        assert!(matches!(check_ops_size("/chroot", &[op.clone(), op]), Err(ZkError::TooLarge { .. })));
    }

    #[test]
    fn every_connection_error_is_an_unknown_outcome() {
        for shape in [client::Error::ConnectionLoss, client::Error::Timeout, client::Error::SessionExpired] {
            let error = error(shape);
            assert!(matches!(&error, ZkError::Unknown(text) if text.ends_with("outcome of the request is unknown")));
        }
        assert_eq!(error(client::Error::NotReadOnly), ZkError::ReadOnly);
        assert_eq!(error(client::Error::NoNode), ZkError::NoNode);
    }
}
