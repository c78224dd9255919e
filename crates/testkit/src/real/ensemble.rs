//! Ensemble: several ZooKeeper servers on loopback that elect a leader.

use std::time::Duration;

use super::{
    ports,
    zookeeper::{Options, Server},
};
use crate::wait;

const ELECTION_TIMEOUT: Duration = Duration::from_secs(60);
/// Time in which members must connect to each other; the machine may be busy.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// The servers of one ensemble, counted from 0.
pub struct Ensemble {
    pub servers: Vec<Server>,
    // Two ports per server for the other servers: data and elections.
    _peer_ports: Vec<ports::Port>,
}

impl Ensemble {
    /// Starts this many servers with these options and waits until all serve.
    pub async fn start(size: usize, options: Options) -> Ensemble {
        let peer_ports: Vec<ports::Port> = (0..2 * size).map(|_| ports::reserve()).collect();
        let [start, sync] =
            [START_TIMEOUT, options.sync_timeout].map(|time| time.as_millis() / options.tick.as_millis());
        let mut settings =
            vec![format!("initLimit={start}"), format!("syncLimit={sync}"), "standaloneEnabled=false".into()];
        settings.extend(
            peer_ports.chunks(2).enumerate().map(|(index, ports)| {
                format!("server.{}=127.0.0.1:{}:{}", index + 1, ports[0].number, ports[1].number)
            }),
        );
        let mut servers: Vec<Server> = (0..size).map(|_| Server::prepare(options.clone())).collect();
        for (index, server) in servers.iter_mut().enumerate() {
            server.join(index + 1, &settings);
            server.launch();
        }
        for server in &mut servers {
            server.wait_until_serving().await;
        }
        Ensemble { servers, _peer_ports: peer_ports }
    }

    /// `host:port,host:port,…` for clients.
    pub fn address(&self) -> String {
        self.servers.iter().map(Server::address).collect::<Vec<_>>().join(",")
    }

    /// The index of the leader; waits for an election.
    pub async fn leader(&self) -> usize {
        wait::until_some("the ensemble to have a leader", ELECTION_TIMEOUT, async || {
            for (index, server) in self.servers.iter().enumerate() {
                if server.is_running() && server.role().await.as_deref() == Some("leader") {
                    return Some(index);
                }
            }
            None
        })
        .await
    }

    /// Waits until all servers serve under one leader. A frozen leader that was replaced still reports itself as leader
    /// for a moment.
    pub async fn wait_until_settled(&self) {
        wait::until("all servers to serve under one leader", ELECTION_TIMEOUT, async || {
            let mut leaders = 0;
            for server in &self.servers {
                match server.role().await.as_deref() {
                    Some("leader") => leaders += 1,
                    Some(_) => {}
                    None => return false,
                }
            }
            leaders == 1
        })
        .await;
    }

    /// Kills one server.
    pub fn kill(&mut self, index: usize) {
        self.servers[index].kill();
    }

    /// Restarts all servers, none of which runs, and waits until they serve.
    pub async fn start_all_again(&mut self) {
        self.servers.iter_mut().for_each(Server::launch);
        for server in &mut self.servers {
            server.wait_until_serving().await;
        }
    }

    /// Restarts one server and waits until it serves.
    pub async fn start_again(&mut self, index: usize) {
        self.servers[index].start_again().await;
    }
}
