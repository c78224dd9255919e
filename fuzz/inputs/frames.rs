//! Bytes of connections to the embedded coordinator: frames through its dispatcher, and streams in chunks of any size.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex, split};
use tokio::runtime::Builder;
use tokio::sync::mpsc;
use zookeeper_server::client_connection::{self, LinkError, SendHandle};
use zookeeper_server::coordinator::{Action, Coordinator, Input, LinkId, OpTime, Output};
use zookeeper_server::engine::{Message, ServerStats};
use zookeeper_server::protocol::{decode_call, decode_connect_request};
use zookeeper_server::tree::Tree;

/// A stream in one-byte chunks takes a virtual millisecond per byte, and the handshake times out after ten seconds.
const MAX_STREAM_BYTES: usize = 4096;
const FOUR_LETTER_WORDS: [&[u8]; 6] = [b"ruok", b"srvr", b"stat", b"mntr", b"envi", b"isro"];
/// Marks a connection that ended without an error.
const CLEAN_END: &str = "well";
/// Pause between chunks in virtual time, which advances only when all tasks are idle.
const IDLE_TIME: Duration = Duration::from_millis(1);

// Input: a zero and frames, or the chunk size and a stream.
pub fn check(data: &[u8]) {
    match data.split_first() {
        Some((0, frames)) => check_frames(frames),
        Some((piece, stream)) => check_stream(&stream[..stream.len().min(MAX_STREAM_BYTES)], usize::from(*piece)),
        None => {}
    }
}

fn now(passed_ms: u64) -> OpTime {
    OpTime { wall_ms: 1_700_000_000_000, passed_ms }
}

// Per frame: one byte that selects one of two connections (and whether time advances), one byte of length, the frame.
fn check_frames(data: &[u8]) {
    let mut passed_ms = 0;
    let mut coordinator = Coordinator::new(Tree::new(), now(0));
    let mut handshaken = [false; 2];
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
            handshaken[side] = false;
            Input::Disconnected { link }
        } else if handshaken[side] {
            let Ok(call) = decode_call(frame) else { continue };
            Input::Call { link, call }
        } else {
            let Ok(hello) = decode_connect_request(frame) else { continue };
            handshaken[side] = true;
            Input::Connect { link, request: hello, new_password: [7; 16] }
        };
        coordinator.handle(input, now(passed_ms));
        for Output { action, .. } in coordinator.take_outputs() {
            if let Action::Reply(bytes) | Action::Event(bytes) | Action::LastReply(bytes) = action {
                assert_eq!(frames(&bytes).len(), 1);
            }
        }
    }
    // The stored records restore the same tree.
    let tree = coordinator.tree();
    let records = tree.records().map(|(path, record)| (path.clone(), record.clone()));
    let again = Tree::restore(tree.last_zxid(), tree.last_session(), records, tree.sessions().cloned());
    assert_eq!(again.expect("a consistent tree").len(), tree.len());
}

fn check_stream(stream: &[u8], chunk_size: usize) {
    let (whole, ended) = serve_stream(stream, MAX_STREAM_BYTES);
    let (chunked, ended_chunked) = serve_stream(stream, chunk_size);
    // Invalid bytes that fail the whole stream may arrive after the server has closed a chunked stream cleanly.
    assert!(
        ended == ended_chunked || ended != CLEAN_END && ended_chunked == CLEAN_END,
        "{ended}, and in chunks {ended_chunked}"
    );
    if stream.get(..4).is_some_and(|first| FOUR_LETTER_WORDS.contains(&first)) {
        assert!(whole.is_ascii() && whole.len() > 1, "a four-letter word has a reply");
        assert_eq!(whole, chunked);
        return;
    }
    let (whole, chunked) = (frames(&whole), frames(&chunked));
    // After invalid bytes, the server also drops the replies to earlier frames of the same chunk.
    let is_shorter = ended != CLEAN_END && whole.len() < chunked.len();
    assert!(whole.len() == chunked.len() || is_shorter, "{whole:?} {chunked:?}");
    for (number, (whole, chunked)) in whole.iter().zip(chunked).enumerate() {
        // The first reply contains a random password.
        assert!(*whole == chunked || number == 0 && whole.len() == chunked.len(), "{whole:?} {chunked:?}");
    }
}

/// The contents of frames; the last one must be complete.
fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).expect("a frame has a length");
        let (frame, rest) = rest.split_at_checked(length).expect("a frame has as many bytes as its length says");
        frames.push(frame);
        bytes = rest;
    }
    assert!(bytes.is_empty(), "{} bytes behind the last frame", bytes.len());
    frames
}

/// Sends a stream in chunks and closes the connection. Returns all bytes that the server sent, and its result.
fn serve_stream(stream: &[u8], chunk_size: usize) -> (Vec<u8>, String) {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime without any I/O").block_on(async {
        let (ours, theirs) = duplex(2 * MAX_STREAM_BYTES);
        let (engine, inbox) = mpsc::channel(16);
        let answering = tokio::spawn(run_engine(inbox));
        let serving = tokio::spawn(client_connection::serve(theirs, LinkId(0), engine));
        let (mut reader, mut writer) = split(ours);
        let reading = tokio::spawn(async move {
            let mut received = Vec::new();
            reader.read_to_end(&mut received).await.expect("memory can be read");
            received
        });
        for piece in stream.chunks(chunk_size) {
            // The server has closed the connection.
            if writer.write_all(piece).await.is_err() {
                break;
            }
            tokio::time::sleep(IDLE_TIME).await;
        }
        let _ = writer.shutdown().await;
        let ended = match serving.await.expect("a connection does not panic") {
            Ok(()) => CLEAN_END.to_owned(),
            Err(LinkError::Silent) => panic!("the client was not silent"),
            Err(error) => error.to_string(),
        };
        answering.await.expect("an engine does not panic");
        (reading.await.expect("a client does not panic"), ended)
    })
}

/// The loop of the engine, without a disk.
async fn run_engine(mut inbox: mpsc::Receiver<Message>) {
    let mut coordinator = Coordinator::new(Tree::new(), now(0));
    let mut send_handle: Option<SendHandle> = None;
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Opened { send_handle: opened, .. } => send_handle = Some(opened),
            Message::Stats(reply) => drop(reply.send(ServerStats::default())),
            Message::Input(input) => coordinator.handle(input, now(0)),
        }
        for Output { action, .. } in coordinator.take_outputs() {
            let Some(open) = &send_handle else { continue };
            let is_open = match action {
                Action::Reply(frame) => open.reply(frame),
                Action::Event(frame) => open.event(frame),
                Action::LastReply(frame) => open.last_reply(frame),
                Action::Disconnect(reason) => open.disconnect(reason),
            };
            if is_open.is_break() {
                send_handle = None;
            }
        }
    }
}
