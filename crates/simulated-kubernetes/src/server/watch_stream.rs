//! The stream of a watch: one JSON object per line for each event, until the watch ends.

use std::convert::Infallible;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use futures::channel::mpsc;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::header;
use simulated_service::server::Body;
use tokio::time::Instant;

use crate::api::watch::{Lines, Watch};
use crate::server::http::Server;

/// Pieces of a watch that may wait for the client.
const BUFFER: usize = 16;

pub fn response(server: Rc<Server>, watch: Watch) -> hyper::Response<Body> {
    let (sender, receiver) = mpsc::channel(BUFFER);
    // The task ends when the client closes the connection, or with the watch.
    tokio::task::spawn_local(send_events(server, watch, sender));
    let response = hyper::Response::builder().header(header::CONTENT_TYPE, "application/json");
    let body = BodyExt::boxed_unsync(StreamBody::new(frames(receiver)));
    response.body(body).expect("the header is valid")
}

fn frames(receiver: mpsc::Receiver<Bytes>) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    futures::StreamExt::map(receiver, |piece| Ok(Frame::data(piece)))
}

async fn send_events(server: Rc<Server>, mut watch: Watch, mut sender: mpsc::Sender<Bytes>) {
    let started = Instant::now();
    let end = started + watch.lifetime;
    let mut versions = server.version.subscribe();
    let mut next_bookmark = bookmark_time(&watch);
    server.run(|simulation| simulation.cluster.stats.watches_open += 1);
    loop {
        versions.mark_unchanged();
        let lines = server.run(|simulation| {
            let lines = watch.next_lines(&simulation.cluster);
            if matches!(lines, Lines::Last(_)) && !watch.is_truncated {
                simulation.cluster.stats.watches_gone += 1;
            }
            lines
        });
        let (text, is_last) = match lines {
            Lines::More(text) => (text, false),
            Lines::Last(text) => (text, true),
        };
        if !text.is_empty() && futures::SinkExt::send(&mut sender, text.into()).await.is_err() || is_last {
            break;
        }
        tokio::select! {
            changed = versions.changed() => if changed.is_err() { break },
            () = tokio::time::sleep_until(end) => break,
            () = closed(&sender) => break,
            () = tokio::time::sleep_until(next_bookmark) => {
                let bookmark = server.run(|simulation| watch.bookmark(&simulation.cluster));
                if futures::SinkExt::send(&mut sender, bookmark.into()).await.is_err() {
                    break;
                }
                next_bookmark = bookmark_time(&watch);
            }
        }
    }
    server.run(|simulation| simulation.cluster.stats.watches_open -= 1);
}

fn bookmark_time(watch: &Watch) -> Instant {
    /// Time after which a watch has ended.
    const NEVER: Duration = Duration::from_secs(1_000_000);
    Instant::now() + if watch.has_bookmarks { watch.bookmark_interval } else { NEVER }
}

/// Waits until the client has closed the connection.
async fn closed(sender: &mpsc::Sender<Bytes>) {
    /// Interval at which a watch without events notices that its client is gone.
    const POLL_INTERVAL: Duration = Duration::from_secs(1);
    while !sender.is_closed() {
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
