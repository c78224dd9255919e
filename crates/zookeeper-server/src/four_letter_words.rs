//! The four-letter words that operators send: `ruok`, `srvr`, `stat`, `mntr`, `envi`, `isro`.

use tokio::sync::{mpsc, oneshot};

use crate::engine::{Message, ServerStats};

/// The server version that clients receive; it begins with the version of the protocol.
const VERSION: &str = concat!("3.8.0-nodepool-", env!("CARGO_PKG_VERSION"));

/// The answer to the first four bytes of a connection, if they are a word. A word cannot be confused with the length of
/// a frame: such a length would be far too large.
pub async fn answer(first: [u8; 4], engine: &mpsc::Sender<Message>) -> Option<String> {
    let stats = match &first {
        b"ruok" => return Some("imok".into()),
        b"isro" => return Some("rw".into()),
        b"envi" => return Some(format!("Environment:\nzookeeper.version={VERSION}, embedded in Nodepool\n")),
        b"srvr" | b"stat" | b"mntr" => request_stats(engine).await?,
        _ => return None,
    };
    Some(if &first == b"mntr" { mntr(&stats) } else { srvr(&stats) })
}

async fn request_stats(engine: &mpsc::Sender<Message>) -> Option<ServerStats> {
    let (sender, receiver) = oneshot::channel();
    engine.send(Message::Stats(sender)).await.ok()?;
    receiver.await.ok()
}

fn srvr(stats: &ServerStats) -> String {
    format!(
        "Zookeeper version: {VERSION}, embedded in Nodepool\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: 0\n\
         Zxid: 0x{:x}\nMode: standalone\nNode count: {}\n",
        stats.received, stats.sent, stats.connections, stats.zxid, stats.znodes
    )
}

fn mntr(stats: &ServerStats) -> String {
    let metrics = [
        ("zk_version", format!("{VERSION}, embedded in Nodepool")),
        ("zk_server_state", "standalone".into()),
        ("zk_znode_count", stats.znodes.to_string()),
        ("zk_watch_count", stats.watches.to_string()),
        ("zk_ephemerals_count", stats.ephemerals.to_string()),
        ("zk_global_sessions", stats.sessions.to_string()),
        ("zk_num_alive_connections", stats.connections.to_string()),
        ("zk_packets_received", stats.received.to_string()),
        ("zk_packets_sent", stats.sent.to_string()),
        ("zk_commit_count", stats.commits.to_string()),
    ];
    metrics.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect()
}
