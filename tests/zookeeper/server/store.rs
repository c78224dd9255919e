//! Durability of the embedded server's store: power losses after every write to a simulated disk, damaged files,
//! directories in use.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex};

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use zookeeper_server::store::Store;
use zookeeper_server::tree::{Applied, DirtyKey, Session, Tree, Write};
use zookeeper_server::types::{CreateMode, Op};
use zookeeper_server::{EmbeddedError, EmbeddedServer};

/// Groups of changes in the main test; every write in them is followed by two simulated power losses.
const COMMITS: usize = 14;

/// Events of a disk, in order.
#[derive(Clone, Debug)]
enum Event {
    Write {
        offset: u64,
        data: Vec<u8>,
    },
    Length(u64),
    Sync,
    /// A commit was acknowledged.
    Acknowledged,
}

/// A disk that records its events.
#[derive(Clone, Debug, Default)]
struct Disk {
    image: Arc<Mutex<Vec<u8>>>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Disk {
    fn of(image: Vec<u8>) -> Self {
        Self { image: Arc::new(Mutex::new(image)), events: Arc::default() }
    }

    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

fn apply(image: &mut Vec<u8>, event: &Event) {
    match event {
        Event::Write { offset, data } => {
            let offset = *offset as usize;
            if image.len() < offset + data.len() {
                image.resize(offset + data.len(), 0);
            }
            image[offset..offset + data.len()].copy_from_slice(data);
        }
        Event::Length(length) => image.resize(*length as usize, 0),
        Event::Sync | Event::Acknowledged => {}
    }
}

impl redb::StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.image.lock().unwrap().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let image = self.image.lock().unwrap();
        let found = image.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let event = Event::Length(len);
        apply(&mut self.image.lock().unwrap(), &event);
        self.note(event);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.note(Event::Sync);
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let event = Event::Write { offset, data: data.to_vec() };
        apply(&mut self.image.lock().unwrap(), &event);
        self.note(event);
        Ok(())
    }
}

/// All durable state, without the transaction counter, which every start advances.
fn describe_tree(tree: &Tree) -> String {
    format!("{:?} {:?}", tree.records().collect::<Vec<_>>(), tree.sessions().collect::<Vec<_>>())
}

/// A group of changes, as committed by the engine.
fn group(tree: &mut Tree, number: usize, random: &mut StdRng) -> BTreeSet<DirtyKey> {
    let mut touched = BTreeSet::new();
    let mut keep = |applied: Applied| touched.extend(applied.dirty_keys);
    if number == 0 {
        keep(tree.open_session(Session { id: 7, password: [1; 16], timeout_ms: 4_000 }));
    }
    if number == COMMITS / 2 {
        keep(tree.close_session(7));
        keep(tree.open_session(Session { id: 8, password: [1; 16], timeout_ms: 4_000 }));
    }
    let session = if number < COMMITS / 2 { 7 } else { 8 };
    for change in 0..random.gen_range(1..6) {
        let data = vec![b'x'; random.gen_range(0..3_000)];
        let mode =
            if random.gen_bool(0.5) { CreateMode::PersistentSequential } else { CreateMode::EphemeralSequential };
        keep(tree.apply(session, number as i64, Op::create(format!("/n{change}-"), data.clone(), mode).into()));
        let paths: Vec<String> =
            tree.records().map(|(path, _)| path.clone()).filter(|path| path.starts_with("/n")).collect();
        let path = paths.choose(random).cloned().unwrap_or_default();
        let write: Write = match random.gen_range(0..3) {
            0 => Op::set(path, data, -1).into(),
            1 => Op::delete(path, -1).into(),
            _ => Write::Multi(vec![Op::set(path.clone(), data, -1).into(), Op::check(path, -1).into()]),
        };
        keep(tree.apply(session, number as i64, write));
    }
    touched
}

/// Content of a disk after a crash: all writes up to the last sync, and some later ones, complete or torn, in any
/// order.
fn crashed(synced: &[u8], unsynced: &[Event], random: &mut StdRng) -> Vec<u8> {
    let mut image = synced.to_vec();
    let mut rest = unsynced.to_vec();
    match random.gen_range(0..4) {
        0 => {}                    // all writes were executed
        1 => rest.clear(),         // none was executed
        2 => rest.shuffle(random), // reordered
        _ => rest.retain(|_| random.gen_bool(0.5)),
    }
    for event in &mut rest {
        if let Event::Write { offset, data } = event
            && random.gen_bool(0.4)
        {
            // Torn: some sectors keep their old content.
            for (sector, chunk) in data.chunks_mut(512).enumerate() {
                if random.gen_bool(0.5) {
                    let start = *offset as usize + sector * 512;
                    let before: Vec<u8> =
                        (start..start + chunk.len()).map(|at| image.get(at).copied().unwrap_or(0)).collect();
                    chunk.copy_from_slice(&before);
                }
            }
        }
        apply(&mut image, event);
    }
    image
}

#[test]
fn a_power_loss_keeps_acknowledged_groups_atomic() {
    let mut random = StdRng::seed_from_u64(1);
    let disk = Disk::default();
    let (mut store, mut tree) = Store::open_on(disk.clone()).unwrap();
    let mut snapshots = vec![describe_tree(&tree)];
    let created = disk.events.lock().unwrap().len();
    for number in 0..COMMITS {
        let touched = group(&mut tree, number, &mut random);
        snapshots.push(describe_tree(&tree));
        store.commit(&tree, &touched).unwrap();
        disk.note(Event::Acknowledged);
    }
    drop(store);
    let events = disk.events.lock().unwrap().clone();
    let (mut synced, mut current, mut unsynced, mut acknowledged, mut images) = (vec![], vec![], vec![], 0, 0);
    for (position, event) in events.iter().enumerate() {
        apply(&mut current, event);
        match event {
            Event::Sync => {
                synced.clone_from(&current);
                unsynced.clear();
            }
            Event::Acknowledged => acknowledged += 1,
            other => unsynced.push(other.clone()),
        }
        if position < created {
            continue; // an incomplete store still has a temporary name
        }
        for _ in 0..2 {
            let image = crashed(&synced, &unsynced, &mut random);
            let (_, tree) =
                Store::open_on(Disk::of(image)).unwrap_or_else(|error| panic!("after event {position}: {error}"));
            let found = snapshots.iter().position(|state| *state == describe_tree(&tree));
            let found = found.unwrap_or_else(|| panic!("after event {position}: an unknown state"));
            let possible = acknowledged..=(acknowledged + 1).min(COMMITS);
            assert!(possible.contains(&found), "after event {position}: state {found}, acknowledged {acknowledged}");
            images += 1;
        }
    }
    assert_eq!(acknowledged, COMMITS);
    assert!(images > 150, "only {images} crashes were simulated");
}

#[test]
fn a_recovered_store_accepts_writes_and_recovers_again() {
    let mut random = StdRng::seed_from_u64(2);
    let mut image = Vec::new();
    let mut expected = None;
    for round in 0..6 {
        let disk = Disk::of(image);
        let (mut store, mut tree) = Store::open_on(disk.clone()).unwrap();
        if let Some(expected) = expected {
            assert_eq!(describe_tree(&tree), expected, "round {round}");
        }
        let opened =
            tree.open_session(Session { id: tree.last_session().max(6) + 1, password: [0; 16], timeout_ms: 1 });
        let mut touched: BTreeSet<DirtyKey> = opened.dirty_keys.into_iter().collect();
        let session = tree.last_session();
        for _ in 0..20 {
            let create = Op::create("/n", vec![0; random.gen_range(0..9_000)], CreateMode::PersistentSequential);
            touched.extend(tree.apply(session, 0, create.into()).dirty_keys);
        }
        store.commit(&tree, &touched).unwrap();
        expected = Some(describe_tree(&tree));
        image = disk.image.lock().unwrap().clone(); // as after a kill: the store was not closed
    }
}

#[tokio::test]
async fn a_data_directory_in_use_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    let refused = EmbeddedServer::start(testkit::embedded_zk::options(directory.path())).await;
    let error = refused.err().expect("the second server is rejected");
    assert!(matches!(error, EmbeddedError::InUse { .. }));
    assert!(error.to_string().contains(&directory.path().display().to_string()), "{error}");
    server.stop().await;
    testkit::embedded_zk::start(directory.path()).await.stop().await;
}

#[tokio::test]
async fn an_invalid_data_directory_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = EmbeddedServer::start(testkit::embedded_zk::options(&file)).await.err().expect("the file is rejected");
    assert!(matches!(error, EmbeddedError::Directory { .. }), "{error}");
    assert!(error.to_string().contains("file"), "{error}");
}

#[tokio::test]
async fn a_damaged_store_is_rejected_or_intact_but_never_misread() {
    let directory = tempfile::tempdir().unwrap();
    let mut random = StdRng::seed_from_u64(3);
    let expected = {
        let (mut store, mut tree) = Store::open(directory.path()).unwrap();
        for number in 0..10 {
            let touched = group(&mut tree, number, &mut random);
            store.commit(&tree, &touched).unwrap();
        }
        describe_tree(&tree)
    };
    let file = directory.path().join("coordinator.redb");
    let intact = std::fs::read(&file).unwrap();
    let mut refused = 0;
    for round in 0..120 {
        let mut damaged = intact.clone();
        match round % 4 {
            0 => damaged.truncate(random.gen_range(0..intact.len())),
            1 => {
                let start = random.gen_range(0..intact.len() - 4_096);
                damaged[start..start + 4_096].fill(0);
            }
            _ => (0..20).for_each(|_| damaged[random.gen_range(0..intact.len() / 4)] ^= 1 << random.gen_range(0..8)),
        }
        std::fs::write(&file, &damaged).unwrap();
        match EmbeddedServer::start(testkit::embedded_zk::options(directory.path())).await {
            Ok(server) => {
                server.stop().await;
                let (_, tree) = Store::open(directory.path()).unwrap();
                assert_eq!(describe_tree(&tree), expected, "round {round}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(matches!(error, EmbeddedError::Damaged { .. } | EmbeddedError::Store { .. }), "{text}");
                assert!(text.contains(&directory.path().display().to_string()), "{text}");
                refused += 1;
            }
        }
    }
    assert!(refused > 30, "only {refused} of 120 damaged stores were rejected");
}
