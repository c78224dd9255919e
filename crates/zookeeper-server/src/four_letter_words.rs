//! The four-letter words that operators send: `ruok`, `srvr`, `stat`, `mntr`, `envi`, `isro`.

use tokio::sync::{mpsc, oneshot};

use crate::engine::{Message, Report};

/// What clients take for the version of the server: that of the protocol first.
const VERSION: &str = concat!("3.8.0-nodepool-", env!("CARGO_PKG_VERSION"));

/// The answer to the first four bytes of a connection, if they are a word. (As the length of a frame they would be
/// far too large, so nothing else can be meant.)
pub async fn answer(first: [u8; 4], engine: &mpsc::Sender<Message>) -> Option<String> {
    let report = match &first {
        b"ruok" => return Some("imok".into()),
        b"isro" => return Some("rw".into()),
        b"envi" => return Some(format!("Environment:\nzookeeper.version={VERSION}, embedded in Nodepool\n")),
        b"srvr" | b"stat" | b"mntr" => request_stats(engine).await?,
        _ => return None,
    };
    Some(if &first == b"mntr" { mntr(&report) } else { srvr(&report) })
}

async fn request_stats(engine: &mpsc::Sender<Message>) -> Option<Report> {
    let (sender, receiver) = oneshot::channel();
    engine.send(Message::Report(sender)).await.ok()?;
    receiver.await.ok()
}

fn srvr(report: &Report) -> String {
    format!(
        "Zookeeper version: {VERSION}, embedded in Nodepool\nReceived: {}\nSent: {}\nConnections: {}\nOutstanding: 0\n\
         Zxid: 0x{:x}\nMode: standalone\nNode count: {}\n",
        report.received, report.sent, report.connections, report.zxid, report.znodes
    )
}

fn mntr(report: &Report) -> String {
    let figures = [
        ("zk_version", format!("{VERSION}, embedded in Nodepool")),
        ("zk_server_state", "standalone".into()),
        ("zk_znode_count", report.znodes.to_string()),
        ("zk_watch_count", report.watches.to_string()),
        ("zk_ephemerals_count", report.ephemerals.to_string()),
        ("zk_global_sessions", report.sessions.to_string()),
        ("zk_num_alive_connections", report.connections.to_string()),
        ("zk_packets_received", report.received.to_string()),
        ("zk_packets_sent", report.sent.to_string()),
        ("zk_commit_count", report.commits.to_string()),
    ];
    figures.iter().map(|(name, value)| format!("{name}\t{value}\n")).collect()
}
