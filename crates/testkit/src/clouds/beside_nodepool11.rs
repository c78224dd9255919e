//! A site at which our launcher and that of Nodepool 11 serve the same requests, one after the other: a real ZooKeeper,
//! and an sshd at the addresses of a cloud's instances.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use nix::sys::signal::Signal;
use nodepool_model::records::ids::NodeId;
use nodepool_zk::client::{ConnectOptions, connect};
use nodepool_zk::locks::lock;
use serde_json::Value;

use crate::clouds::moto::as_paths;
use crate::in_process_launcher::Consumer;
use crate::real::nodepool_process::NodepoolProcess;
use crate::real::zookeeper::{Options, Server};
use crate::real::{nodepool11, ports, sshd};
use crate::{programs, wait};

/// Timeout for Python programs, which start slowly, more so on a busy machine. Nodepool 11 lists instances every ten
/// seconds.
pub const TIMEOUT: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug)]
pub enum Program {
    Nodepool11,
    Ours,
}

pub struct Site {
    pub server: Server,
    pub consumer: Consumer,
    pub host: sshd::Host,
}

impl Site {
    /// A site whose sshd listens at these addresses.
    pub async fn start(addresses: &[Ipv4Addr]) -> Self {
        let port = ports::reserve_at(addresses[0].into());
        let others = addresses[1..].iter().map(|address| format!("ListenAddress {address}:{}", port.number));
        let options =
            sshd::Options { address: addresses[0].into(), settings: others.collect(), ..sshd::Options::default() };
        let (server, host) = tokio::join!(Server::start(Options::tls()), sshd::Host::start_on(options, port));
        let plain = server.plain_address();
        let (name, port) = plain.rsplit_once(':').expect("an address ends with its port");
        let zk = connect(ConnectOptions::plain(name, port.parse().expect("a port is a number"))).await;
        let consumer = Consumer { zk: zk.expect("a running server accepts clients") };
        // Zuul creates it; Nodepool 11 does not.
        lock::make_path(&consumer.zk, "/nodepool/requests").await.expect("ZooKeeper answers");
        Self { server, consumer, host }
    }

    /// Starts a launcher with this configuration, to which the connection to ZooKeeper is added, and waits until this
    /// number of pools is registered.
    pub async fn launch(
        &self,
        program: Program,
        environment: &[(&'static str, PathBuf)],
        configuration: &str,
        pools: usize,
    ) -> NodepoolProcess {
        let configuration = format!("{}{configuration}", nodepool11::zookeeper_section(&self.server));
        let environment = as_paths(environment);
        let process = match program {
            Program::Nodepool11 => nodepool11::launcher_in(&environment, &configuration),
            Program::Ours => {
                let arguments = ["-d", "--no-webapp"];
                NodepoolProcess::start_in(&environment, programs::launcher(), &configuration, &arguments)
            }
        };
        let path = "/nodepool/components/pool";
        wait::until("registered pools", TIMEOUT, async || self.consumer.count(path).await == pools).await;
        process
    }

    /// The record of a ready node of a label, and a test of what exists then. The node is released and deleted.
    pub async fn use_node(&self, label: &str, look: impl AsyncFnOnce(&Value)) -> Value {
        let request = self.consumer.submit_labels(&[label]).await;
        let nodes: Vec<NodeId> = self.consumer.fulfilled_nodes(&request).await;
        let node = self.consumer.raw_node(&nodes[0]).await;
        look(&node).await;
        let locked = self.consumer.accept(&request).await;
        self.consumer.use_and_release(locked).await;
        self.wait_until_empty().await;
        node
    }

    pub async fn wait_until_empty(&self) {
        wait::until("the nodes to be deleted", TIMEOUT, async || self.consumer.nodes().await.is_empty()).await;
    }

    pub async fn stop(&self, program: Program, mut process: NodepoolProcess) {
        process.signal(match program {
            // At SIGTERM, Nodepool 11 exits without closing its session.
            Program::Nodepool11 => Signal::SIGUSR1,
            Program::Ours => Signal::SIGTERM,
        });
        let status = process.wait(TIMEOUT).await;
        assert!(status.success(), "{status}");
    }
}
