//! Contract of a ZooKeeper connection, on the in-memory store and on the embedded server. `tests/zookeeper/session.rs`
//! runs the same cases on Apache ZooKeeper.

use futures::FutureExt;
use futures::future::BoxFuture;
use nodepool_zk::Zk;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::memory::MemoryZooKeeper;
use testkit::zk_contract::Server;

struct InMemoryClient(MemoryZooKeeper);

impl Server for InMemoryClient {
    fn connect(&self) -> BoxFuture<'static, Zk> {
        let zk: Zk = self.0.connect();
        async { zk }.boxed()
    }
}

/// Our client as a subject of the contract.
struct RealClient(ConnectOptions);

impl Server for RealClient {
    fn connect(&self) -> BoxFuture<'static, Zk> {
        let options = self.0.clone();
        async move {
            let zk: Zk = connect(options).await.expect("the server accepts a session");
            zk
        }
        .boxed()
    }
}

#[tokio::test]
async fn the_memory_store_fulfils_the_contract() {
    testkit::zk_contract::run(&InMemoryClient(MemoryZooKeeper::new())).await;
}

#[tokio::test(start_paused = true)]
async fn the_memory_store_fulfils_the_contract_on_paused_time() {
    testkit::zk_contract::run(&InMemoryClient(MemoryZooKeeper::new())).await;
}

#[tokio::test]
async fn the_embedded_server_fulfils_the_contract_over_tcp() {
    let directory = tempfile::tempdir().unwrap();
    let server = testkit::embedded_zk::start(directory.path()).await;
    testkit::zk_contract::run(&RealClient(testkit::embedded_zk::client(server.address().port()))).await;
    server.stop().await;
}
