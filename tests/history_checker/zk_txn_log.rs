//! What ZooKeeper servers have written to their transaction logs: every change of the tree, in its order, with its time.
//!
//! Nobody who watches through a session sees so much: what is written twice in a moment is seen once. The logs have all of it.

use std::collections::BTreeMap;
use std::path::Path;

use zookeeper_server::jute::{Malformed, Reader};

/// One that was committed.
#[derive(Clone, Debug, PartialEq)]
pub struct Transaction {
    pub zxid: i64,
    /// By the leader's clock, when it took up the request: before anybody could know of it.
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

/// What a majority of these servers has in its log, in order. A server that died before anybody else heard of a transaction
/// is the only one that has it, and nobody was told that it was done.
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
        assert!(is_next, "between the transactions {earlier:#x} and {later:#x} something lacks in the logs");
    }
    committed
}

/// By its number; one that a server got again after it had forgotten it is there once.
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

/// Until the zeros with which ZooKeeper fills its files, or what was being written when the server died.
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
        // create, create2, createContainer, createTTL: what follows are rights and what becomes of it.
        1 | 15 | 19 | 21 => changes.push(Change::Created(reader.text()?, reader.buffer()?.to_vec())),
        // delete, deleteContainer
        2 | 20 => changes.push(Change::Deleted(reader.text()?)),
        5 => changes.push(Change::Updated(reader.text()?, reader.buffer()?.to_vec())),
        14 => {
            let parts = reader.list(|reader| Ok((reader.int()?, reader.buffer()?.to_vec())))?;
            // Of one that was refused the parts before the refused one are logged as if nothing were wrong.
            let is_refused = parts.iter().any(|(kind, _)| *kind == -1);
            for (kind, part) in parts.iter().filter(|_| !is_refused) {
                read_changes(*kind, &mut Reader::new(part), changes)?;
            }
        }
        -11 => {
            changes.extend(reader.list(|reader| reader.text())?.into_iter().map(Change::Deleted));
            changes.push(Change::SessionEnded);
        }
        // Sessions that begin, rights, checks, and what was refused.
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
