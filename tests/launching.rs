//! A launcher's tree of actors, with its ZooKeeper and its clouds in memory.

#[path = "launching/example_driver.rs"]
mod example_driver;
#[path = "launching/fake_nodes.rs"]
mod fake_nodes;
#[path = "launching/fake_servers.rs"]
mod fake_servers;
#[path = "launching/forgotten_servers.rs"]
mod forgotten_servers;
mod grown;
mod late;
#[path = "launching/late_answers.rs"]
mod late_answers;
#[path = "launching/launched_ends.rs"]
mod launched_ends;
#[path = "launching/launched_nodes.rs"]
mod launched_nodes;
#[path = "launching/launcher.rs"]
mod launcher;
#[path = "launching/min_ready.rs"]
mod min_ready;
#[path = "launching/no_room.rs"]
mod no_room;
#[path = "launching/notifications.rs"]
mod notifications;
#[path = "launching/pools.rs"]
mod pools;
mod provider;
#[path = "launching/quotas.rs"]
mod quotas;
#[path = "launching/reload.rs"]
mod reload;
#[path = "launching/reload_in_place.rs"]
mod reload_in_place;
#[path = "launching/transactions.rs"]
mod transactions;
