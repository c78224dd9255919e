//! Embedded ZooKeeper server in the test's process, on free ports and in a given directory.

pub mod raw_client;

use std::path::Path;
use std::time::Duration;

use nodepool_zk::client::{ConnectOptions, ServerAddress};
use zookeeper_server::{EmbeddedOptions, EmbeddedServer};

pub fn options(data_dir: &Path) -> EmbeddedOptions {
    EmbeddedOptions { data_dir: data_dir.to_owned(), first_port: 0, now_ms }
}

pub async fn start(data_dir: &Path) -> EmbeddedServer {
    EmbeddedServer::start(options(data_dir)).await.expect("the embedded server starts")
}

#[allow(clippy::disallowed_methods)] // A server needs the wall clock; `clock::now` may be simulated.
fn now_ms() -> i64 {
    let since_epoch = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(since_epoch.as_millis()).unwrap()
}

/// Options of our client for a port on loopback.
pub fn client(port: u16) -> ConnectOptions {
    let servers = vec![ServerAddress { host: "127.0.0.1".into(), port }];
    ConnectOptions { servers, session_timeout: Duration::from_secs(4), ..ConnectOptions::plain("unused", 1) }
}
