//! Session expiry, and input that no client would send.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use super::*;
use crate::protocol::{decode_call, decode_connect_request};

const LINK: LinkId = LinkId(1);

fn at(passed_ms: u64) -> OpTime {
    OpTime { wall_ms: 1_700_000_000_000, passed_ms }
}

fn connect_request(timeout_ms: i32) -> ConnectRequest {
    ConnectRequest { last_zxid_seen: 0, timeout_ms, session: 0, password: [0; 16], reads_flag: true }
}

/// A server with one session of two seconds.
fn connected_coordinator() -> Coordinator {
    let mut coordinator = Coordinator::new(Tree::new(), at(0));
    coordinator.handle(Input::Connect { link: LINK, request: connect_request(2_000), new_password: [1; 16] }, at(0));
    assert!(matches!(coordinator.take_outputs()[..], [Output { action: Action::Reply(_), .. }]));
    coordinator
}

fn tick(coordinator: &mut Coordinator, passed_ms: u64) -> usize {
    coordinator.handle(Input::Tick, at(passed_ms));
    coordinator.tree().sessions().count()
}

#[test]
fn an_idle_session_expires_after_its_timeout() {
    let mut coordinator = connected_coordinator();
    let ping = || Input::Call { link: LINK, call: Call { xid: -2, request: Request::Ping } };
    for passed_ms in (250..=1_500).step_by(250) {
        assert_eq!(tick(&mut coordinator, passed_ms), 1);
    }
    coordinator.handle(ping(), at(1_500));
    for passed_ms in (1_750..3_500).step_by(250) {
        assert_eq!(tick(&mut coordinator, passed_ms), 1, "after {passed_ms} ms");
    }
    coordinator.take_outputs();
    assert_eq!(tick(&mut coordinator, 3_500), 0);
    assert_eq!(coordinator.take_outputs(), [Output { link: LINK, action: Action::Disconnect("session expired") }]);
    coordinator.handle(ping(), at(3_600));
    assert_eq!(coordinator.take_outputs(), [], "what arrives later is not answered");
}

#[test]
fn a_server_stall_does_not_expire_sessions() {
    let mut coordinator = connected_coordinator();
    assert_eq!(tick(&mut coordinator, 250), 1);
    assert_eq!(tick(&mut coordinator, 60_250), 1, "a minute without ticks: the machine slept or the disk hung");
    for passed_ms in (60_500..=61_750).step_by(250) {
        assert_eq!(tick(&mut coordinator, passed_ms), 1, "after {passed_ms} ms");
    }
    assert_eq!(tick(&mut coordinator, 62_000), 0);
}

#[test]
fn a_disconnected_session_expires_even_if_the_server_stalls_repeatedly() {
    let mut coordinator = connected_coordinator();
    coordinator.handle(Input::Disconnected { link: LINK }, at(100));
    assert_eq!(tick(&mut coordinator, 3_000), 1, "a disk stall of three seconds: the client may be reconnecting");
    assert_eq!(tick(&mut coordinator, 6_000), 0);
}

#[test]
fn a_silent_connected_session_expires_too() {
    let mut coordinator = connected_coordinator();
    for passed_ms in [3_000, 6_000, 9_000] {
        assert_eq!(tick(&mut coordinator, passed_ms), 1, "it may have sent a message");
    }
    assert_eq!(tick(&mut coordinator, 12_000), 0);
}

#[test]
fn a_restart_gives_sessions_their_full_timeout() {
    let tree = connected_coordinator().tree().clone();
    let mut restarted = Coordinator::new(tree, at(0));
    assert_eq!(tick(&mut restarted, 1_999), 1);
    assert_eq!(tick(&mut restarted, 2_000), 0);
}

/// The body of a valid request, to be corrupted.
fn body(random: &mut StdRng) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.int(random.gen_range(0..100)).int(*OPERATIONS.choose(random).unwrap());
    for _ in 0..random.gen_range(0..6) {
        match random.gen_range(0..6) {
            0 => writer.text(["/", "/a", "/a/b", "bad", ""].choose(random).unwrap()),
            1 => writer.int(random.gen_range(-2..4)),
            2 => writer.flag(random.gen_bool(0.5)),
            3 => writer.buffer(b"data"),
            4 => writer.int(1).int(31).text("world").text("anyone"),
            _ => writer.long(random.gen_range(-1..9)),
        };
    }
    writer.finish()
}

const OPERATIONS: [i32; 26] =
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 18, 22, 100, 101, 105, 106, 107, -11, 102, 77];

#[test]
fn no_bytes_make_the_server_panic_or_leave_the_tree_inconsistent() {
    let mut random = StdRng::seed_from_u64(1);
    let mut coordinator = connected_coordinator();
    let (mut understood, mut link) = (0, LINK);
    for round in 0..30_000_u64 {
        let mut frame = body(&mut random);
        for _ in 0..random.gen_range(0..3) {
            let position = random.gen_range(0..frame.len());
            frame[position] = random.r#gen();
        }
        frame.truncate(random.gen_range(8..=frame.len()));
        let _ = decode_connect_request(&frame);
        let Ok(call) = decode_call(&frame) else { continue };
        understood += 1;
        coordinator.handle(Input::Call { link, call }, at(round));
        for Output { action, .. } in coordinator.take_outputs() {
            if let Action::Reply(bytes) | Action::Event(bytes) = action {
                let length = i32::from_be_bytes(bytes[..4].try_into().unwrap());
                assert_eq!(length as usize, bytes.len() - 4);
            }
        }
        if !coordinator.links.contains_key(&link) {
            link = LinkId(round + 2);
            let connect = Input::Connect { link, request: connect_request(40_000), new_password: [1; 16] };
            coordinator.handle(connect, at(round));
        }
    }
    assert!(understood > 5_000, "only {understood} frames were understood");
    let tree = coordinator.tree();
    let records = tree.records().map(|(path, record)| (path.clone(), record.clone()));
    let restored = Tree::restore(tree.last_zxid(), tree.last_session(), records, tree.sessions().cloned());
    assert_eq!(restored.map(|restored| restored.len()), Ok(tree.len()));
}
