//! The actors of a launcher, with ZooKeeper and the clouds in memory.

mod delayed_replies;
#[path = "launching/example_driver.rs"]
mod example_driver;
#[path = "launching/fake_nodes.rs"]
mod fake_nodes;
#[path = "launching/fake_servers.rs"]
mod fake_servers;
mod in_process_launcher;
#[path = "launching/insufficient_capacity.rs"]
mod insufficient_capacity;
#[path = "launching/late_write_replies.rs"]
mod late_write_replies;
#[path = "launching/launched_nodes.rs"]
mod launched_nodes;
#[path = "launching/launcher.rs"]
mod launcher;
#[path = "launching/leaked_servers.rs"]
mod leaked_servers;
#[path = "launching/min_ready.rs"]
mod min_ready;
#[path = "launching/node_lifecycle_end.rs"]
mod node_lifecycle_end;
#[path = "launching/notifications.rs"]
mod notifications;
#[path = "launching/pools.rs"]
mod pools;
mod provider_harness;
#[path = "launching/quotas.rs"]
mod quotas;
#[path = "launching/reload.rs"]
mod reload;
#[path = "launching/reload_in_place.rs"]
mod reload_in_place;
#[path = "launching/transactions.rs"]
mod transactions;
