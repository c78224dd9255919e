//! The bytes of two connections, frame by frame, through the embedded coordinator's decoder and dispatcher.
#![no_main]

use libfuzzer_sys::fuzz_target;
use nodepool::zk::embedded::coordinator::{Action, Coordinator, Input, LinkId, Moment, Output};
use nodepool::zk::embedded::protocol::{decode_call, decode_hello};
use nodepool::zk::tree::Tree;

// Input: per frame one byte that names the connection (and whether time passes), one byte of length, the frame.
fuzz_target!(|data: &[u8]| {
    let mut passed_ms = 0;
    let now = |passed_ms| Moment { wall_ms: 1_700_000_000_000, passed_ms };
    let mut coordinator = Coordinator::new(Tree::new(), now(0));
    let mut greeted = [false; 2];
    let mut rest = data;
    while let [control, length, tail @ ..] = rest {
        let (frame, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        rest = tail;
        let side = usize::from(control & 1);
        let link = LinkId(side as u64);
        if control & 2 != 0 {
            passed_ms += u64::from(*control) * 20;
            coordinator.handle(Input::Tick, now(passed_ms));
        }
        let input = if control & 4 != 0 {
            greeted[side] = false;
            Input::Gone { link }
        } else if greeted[side] {
            let Ok(call) = decode_call(frame) else { continue };
            Input::Call { link, call }
        } else {
            let Ok(hello) = decode_hello(frame) else { continue };
            greeted[side] = true;
            Input::Hello { link, hello, new_password: [7; 16] }
        };
        coordinator.handle(input, now(passed_ms));
        for Output { action, .. } in coordinator.take_outputs() {
            if let Action::Reply(bytes) | Action::Event(bytes) | Action::LastReply(bytes) = action {
                let length = i32::from_be_bytes(bytes[..4].try_into().expect("a frame has a length"));
                assert_eq!(length as usize + 4, bytes.len());
            }
        }
    }
    // What would be stored makes the same tree again.
    let tree = coordinator.tree();
    let records = tree.records().map(|(path, record)| (path.clone(), record.clone()));
    let again = Tree::restore(tree.last_zxid(), tree.last_session(), records, tree.sessions().cloned());
    assert_eq!(again.expect("a consistent tree").len(), tree.len());
});
