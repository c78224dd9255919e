//! One network connection: frames in, replies and events out, with a bound on every queue.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::timeout;

use crate::coordinator::{Input, LinkId};
use crate::engine::Message;
use crate::four_letter_words;
use crate::jute::Malformed;
use crate::protocol::{FRAME_LIMIT, decode_call, decode_connect_request};

/// Time for a new connection to send its connect request.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for one write to make progress.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for an orderly close of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Requests in flight, weighted: reads of data count `READ_WEIGHT`, so at most 32 large replies wait for a client.
const MAX_IN_FLIGHT: u32 = 256;
const READ_WEIGHT: u32 = 8;
/// Bytes of watch events that may wait. Replies are bounded by the requests in flight; events have no other bound.
const MAX_EVENT_BYTES: usize = 8 * 1024 * 1024;
/// Bytes that are gathered for one write.
const WRITE_CHUNK: usize = 64 * 1024;

/// Sends frames to a connection; the engine's end of its queue.
pub struct SendHandle {
    // Unbounded as a channel: replies are bounded by `MAX_IN_FLIGHT` and events by `MAX_EVENT_BYTES`.
    frames: mpsc::UnboundedSender<Outgoing>,
    state: Arc<QueueState>,
}

/// The connection's end of its queue.
pub struct SendQueue {
    frames: mpsc::UnboundedReceiver<Outgoing>,
    state: Arc<QueueState>,
}

enum Outgoing {
    Reply(Bytes),
    Event(Bytes),
    Last(Bytes),
}

struct QueueState {
    event_bytes: AtomicUsize,
    disconnect: Notify,
    reason: std::sync::OnceLock<&'static str>,
}

pub fn send_queue() -> (SendHandle, SendQueue) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let state = Arc::new(QueueState {
        event_bytes: AtomicUsize::new(0),
        disconnect: Notify::new(),
        reason: std::sync::OnceLock::new(),
    });
    (SendHandle { frames: sender, state: state.clone() }, SendQueue { frames: receiver, state })
}

/// Each method returns `Break` when the connection ends.
impl SendHandle {
    pub fn reply(&self, frame: Bytes) -> ControlFlow<()> {
        self.send(Outgoing::Reply(frame))
    }

    pub fn event(&self, frame: Bytes) -> ControlFlow<()> {
        let waiting = self.state.event_bytes.fetch_add(frame.len(), Ordering::Relaxed) + frame.len();
        if waiting > MAX_EVENT_BYTES {
            return self.disconnect("client does not read its watch events");
        }
        self.send(Outgoing::Event(frame))
    }

    pub fn last_reply(&self, frame: Bytes) -> ControlFlow<()> {
        drop(self.frames.send(Outgoing::Last(frame)));
        ControlFlow::Break(())
    }

    pub fn disconnect(&self, reason: &'static str) -> ControlFlow<()> {
        let _ = self.state.reason.set(reason); // the first reason counts
        self.state.disconnect.notify_one();
        ControlFlow::Break(())
    }

    fn send(&self, outgoing: Outgoing) -> ControlFlow<()> {
        match self.frames.send(outgoing) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()), // the connection is closing by itself
        }
    }
}

/// Reason of a connection's end, if it is worth logging.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("frame of {0} bytes, limit {FRAME_LIMIT}")]
    FrameLength(i32),
    #[error("malformed frame: {0}")]
    Malformed(#[from] Malformed),
    #[error("no connect request within 10 s")]
    Silent,
    #[error("TLS handshake not completed within 10 s")]
    HandshakeTimeout,
    #[error("TLS handshake failed: {0}")]
    Handshake(#[source] std::io::Error),
    #[error("write timed out")]
    Stuck,
    #[error("{0}")]
    Disconnected(&'static str),
    #[error("{0}")]
    Network(#[from] std::io::Error),
}

/// Serves a connection until it ends. `Ok` is an ordinary end.
pub async fn serve<S>(stream: S, link: LinkId, engine: mpsc::Sender<Message>) -> Result<(), LinkError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = tokio::io::split(stream);
    let first = match timeout(CONNECT_TIMEOUT, read_length(&mut reader)).await {
        Err(_) => return Err(LinkError::Silent),
        Ok(Ok(Some(first))) => first,
        Ok(other) => return other.map(drop),
    };
    if let Some(answer) = four_letter_words::answer(first, &engine).await {
        writer.write_all(answer.as_bytes()).await?;
        return Ok(writer.shutdown().await?);
    }
    let frame = match timeout(CONNECT_TIMEOUT, read_body(&mut reader, first)).await {
        Err(_) => return Err(LinkError::Silent),
        Ok(frame) => frame?,
    };
    let request = decode_connect_request(&frame)?;
    let (send_handle, mut queue) = send_queue();
    let limit = RequestLimit { free: Semaphore::new(MAX_IN_FLIGHT as usize), acquired: Mutex::default() };
    if engine.send(Message::Opened { link, send_handle }).await.is_err() {
        return Ok(()); // the server is stopping
    }
    let connect = Input::Connect { link, request, new_password: rand::random() };
    let state = queue.state.clone();
    let ended = tokio::select! {
        ended = read_calls(&mut reader, link, connect, &engine, &limit) => ended,
        ended = write_frames(&mut writer, &mut queue, &limit) => ended,
        () = state.disconnect.notified() => Ok(()),
    };
    drop(engine.send(Message::Input(Input::Disconnected { link })).await);
    drop(timeout(CLOSE_TIMEOUT, writer.shutdown()).await); // the client may not read any more
    state.reason.get().map_or(ended, |reason| Err(LinkError::Disconnected(reason)))
}

async fn read_calls(
    reader: &mut (impl AsyncRead + Unpin),
    link: LinkId,
    connect: Input,
    engine: &mpsc::Sender<Message>,
    limit: &RequestLimit,
) -> Result<(), LinkError> {
    let mut input = connect;
    let mut weight = 1;
    loop {
        limit.acquire(weight).await;
        if engine.send(Message::Input(input)).await.is_err() {
            return Ok(()); // the server is stopping
        }
        let Some(length) = read_length(reader).await? else { return Ok(()) };
        let call = decode_call(&read_body(reader, length).await?)?;
        weight = if call.request.reads_data() { READ_WEIGHT } else { 1 };
        input = Input::Call { link, call };
    }
}

/// Bounds the requests in flight. Replies are in the order of the requests, so each reply releases the weight of its
/// request.
struct RequestLimit {
    free: Semaphore,
    acquired: Mutex<VecDeque<u32>>,
}

impl RequestLimit {
    /// Waits while too many requests are in flight; then the client's own socket buffer fills.
    async fn acquire(&self, weight: u32) {
        self.free.acquire_many(weight).await.expect("the semaphore is never closed").forget();
        self.lock().push_back(weight);
    }

    fn release(&self, answers: usize) {
        let mut acquired = self.lock();
        let weight: u32 = (0..answers).filter_map(|_| acquired.pop_front()).sum();
        self.free.add_permits(weight as usize);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u32>> {
        self.acquired.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read_length(reader: &mut (impl AsyncRead + Unpin)) -> Result<Option<[u8; 4]>, LinkError> {
    let mut length = [0; 4];
    match reader.read_exact(&mut length).await {
        Ok(_) => Ok(Some(length)),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error.into()),
    }
}

async fn read_body(reader: &mut (impl AsyncRead + Unpin), length: [u8; 4]) -> Result<Bytes, LinkError> {
    let length = i32::from_be_bytes(length);
    let size =
        usize::try_from(length).ok().filter(|&size| size <= FRAME_LIMIT).ok_or(LinkError::FrameLength(length))?;
    // Memory grows with the bytes received, not with the announced length.
    let mut body = BytesMut::new();
    let mut rest = reader.take(size as u64);
    while body.len() < size {
        if rest.read_buf(&mut body).await? == 0 {
            return Err(Malformed::Short.into());
        }
    }
    Ok(body.freeze())
}

async fn write_frames(
    writer: &mut (impl AsyncWrite + Unpin),
    queue: &mut SendQueue,
    limit: &RequestLimit,
) -> Result<(), LinkError> {
    let mut chunk = BytesMut::new();
    while let Some(first) = queue.frames.recv().await {
        let (mut replies, mut event_bytes, mut last) = (0, 0, false);
        let mut next = Some(first);
        while let Some(outgoing) = next {
            match outgoing {
                Outgoing::Reply(frame) => {
                    chunk.extend_from_slice(&frame);
                    replies += 1;
                }
                Outgoing::Event(frame) => {
                    chunk.extend_from_slice(&frame);
                    event_bytes += frame.len();
                }
                Outgoing::Last(frame) => {
                    chunk.extend_from_slice(&frame);
                    last = true;
                }
            }
            next = if chunk.len() < WRITE_CHUNK && !last { queue.frames.try_recv().ok() } else { None };
        }
        timeout(WRITE_TIMEOUT, writer.write_all(&chunk)).await.map_err(|_| LinkError::Stuck)??;
        timeout(WRITE_TIMEOUT, writer.flush()).await.map_err(|_| LinkError::Stuck)??;
        chunk.clear();
        queue.state.event_bytes.fetch_sub(event_bytes, Ordering::Relaxed);
        limit.release(replies);
        if last {
            return Ok(());
        }
    }
    Ok(())
}
