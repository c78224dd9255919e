//! Reader of ZooKeeper's transaction logs: every change of the tree, in its order, with its time.
//!
//! A client with watches observes less: of two writes in quick succession it reads only the last one.

use std::collections::BTreeMap;
use std::path::Path;

use zookeeper_server::jute::{Malformed, Reader};

/// A committed transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Transaction {
    pub zxid: i64,
    /// Time by the leader's clock at which it accepted the request: before any client could know of it.
    pub at_ms: i64,
    pub session: i64,
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Created(String, Vec<u8>),
    Updated(String, Vec<u8>),
    Deleted(String),
    SessionEnded,
}

/// Transactions in the logs of a majority of these servers, in order. A transaction that only a killed server has in
/// its log was not acknowledged to any client.
pub fn committed(data_dirs: &[&Path]) -> Vec<Transaction> {
    let mut found: BTreeMap<i64, (usize, Transaction)> = BTreeMap::new();
    for directory in data_dirs {
        for (zxid, transaction) in logged(directory) {
            found.entry(zxid).or_insert((0, transaction)).0 += 1;
        }
    }
    let committed = found.into_values().filter(|(servers, _)| 2 * servers > data_dirs.len());
    let committed: Vec<Transaction> = committed.map(|(_, transaction)| transaction).collect();
    for pair in committed.windows(2) {
        let (earlier, later) = (pair[0].zxid, pair[1].zxid);
        let is_next = later == earlier + 1 || (later >> 32 > earlier >> 32 && later & 0xffff_ffff == 1);
        assert!(is_next, "the logs lack transactions between {earlier:#x} and {later:#x}");
    }
    committed
}

/// Transactions by zxid. One that a server received again after a truncation occurs once.
fn logged(data_dir: &Path) -> BTreeMap<i64, Transaction> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(data_dir.join("version-2")).expect("a server that ran has logs").flatten() {
        if entry.file_name().to_string_lossy().starts_with("log.") {
            let bytes = std::fs::read(entry.path()).expect("a log can be read");
            read_log(&bytes, |transaction| drop(found.insert(transaction.zxid, transaction)));
        }
    }
    found
}

/// Reads a log up to the zeros with which ZooKeeper fills its files, or to a partial transaction of a killed server.
fn read_log(bytes: &[u8], mut visit: impl FnMut(Transaction)) {
    const HEADER: usize = 16;
    let Some(rest) = bytes.get(HEADER..) else { return };
    let mut reader = Reader::new(rest);
    while let (Ok(checksum), Ok(body), Ok(b'B')) = (reader.long(), reader.buffer(), reader.byte()) {
        if checksum != adler32(body) {
            return;
        }
        visit(transaction(body).expect("a transaction whose checksum is right can be read"));
    }
}

fn transaction(bytes: &[u8]) -> Result<Transaction, Malformed> {
    let mut reader = Reader::new(bytes);
    let (session, _xid) = (reader.long()?, reader.int()?);
    let (zxid, at_ms, kind) = (reader.long()?, reader.long()?, reader.int()?);
    let mut changes = Vec::new();
    read_changes(kind, &mut reader, &mut changes)?;
    Ok(Transaction { zxid, at_ms, session, changes })
}

fn read_changes(kind: i32, reader: &mut Reader<'_>, changes: &mut Vec<Change>) -> Result<(), Malformed> {
    match kind {
        // create, create2, createContainer, createTTL; ACL and lifetime follow.
        1 | 15 | 19 | 21 => changes.push(Change::Created(reader.text()?, reader.buffer()?.to_vec())),
        // delete, deleteContainer
        2 | 20 => changes.push(Change::Deleted(reader.text()?)),
        5 => changes.push(Change::Updated(reader.text()?, reader.buffer()?.to_vec())),
        14 => {
            let parts = reader.list(|reader| Ok((reader.int()?, reader.buffer()?.to_vec())))?;
            // In a rejected multi the operations before the rejected one are logged as if they had succeeded.
            let is_rejected = parts.iter().any(|(kind, _)| *kind == -1);
            for (kind, part) in parts.iter().filter(|_| !is_rejected) {
                read_changes(*kind, &mut Reader::new(part), changes)?;
            }
        }
        -11 => {
            changes.extend(reader.list(|reader| reader.text())?.into_iter().map(Change::Deleted));
            changes.push(Change::SessionEnded);
        }
        // New sessions, ACLs, checks and rejected requests.
        _ => {}
    }
    Ok(())
}

fn adler32(bytes: &[u8]) -> i64 {
    const PRIME: u32 = 65_521;
    let (mut one, mut two) = (1_u32, 0_u32);
    for byte in bytes {
        one = (one + u32::from(*byte)) % PRIME;
        two = (two + one) % PRIME;
    }
    i64::from((two << 16) | one)
}
