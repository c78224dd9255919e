//! The embedded coordinator as a separate process, for tests: `coordinator DATA_DIR [FIRST_PORT]` prints its two
//! addresses and serves until its standard input closes or it is killed.

use std::io::Read;

use anyhow::Context;
use zookeeper_server::{EmbeddedOptions, EmbeddedServer};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let data_dir = arguments.next().context("usage: coordinator DATA_DIR [FIRST_PORT]")?.into();
    let first_port = arguments.next().map_or(Ok(2181), |port| port.parse()).context("FIRST_PORT is not a port")?;
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let server = EmbeddedServer::start(EmbeddedOptions { data_dir, first_port, now_ms }).await?;
    println!("{} {}", server.address(), server.tls_address());
    let (open, closed) = tokio::sync::oneshot::channel::<()>();
    // A separate thread: the runtime would wait for a blocking task, so the process would continue after the server
    // failed.
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        drop(open);
    });
    tokio::select! {
        _ = closed => {}
        reason = server.failed() => {
            eprintln!("{reason}");
            // Exit directly: the thread that reads standard input does not end.
            std::process::exit(1);
        }
    }
    server.stop().await;
    Ok(())
}

#[allow(clippy::disallowed_methods)] // a separate process, which has to read the clock somewhere
fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX)
}
