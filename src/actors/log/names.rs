//! Names of loggers: what operators have in their logging files, for the modules that do the same work here.

use std::borrow::Cow;

/// Modules that do what a logger of the reference was for. The longest prefix counts.
const MODULES: [(&str, &str); 19] = [
    ("nodepool::actors::cleanup_worker", "nodepool.CleanupWorker"),
    ("nodepool::actors::dump", "nodepool.stack_dump"),
    ("nodepool::actors::launcher", "nodepool.NodePool"),
    ("nodepool::actors::pool_worker", "nodepool.PoolWorker"),
    ("nodepool::actors::process", "nodepool.NodePool"),
    ("nodepool::actors::providers", "nodepool.ProviderManager"),
    ("nodepool::actors::signals", "nodepool.NodePool"),
    ("nodepool::actors::standalone", "nodepool.NodePool"),
    ("nodepool::actors::stats_worker", "nodepool.StatsWorker"),
    ("nodepool::actors::statsd", "nodepool.stats"),
    ("nodepool::actors::tasks", "nodepool.ProviderManager"),
    ("nodepool::actors::task_manager", "nodepool.ProviderManager"),
    ("nodepool::actors::webapp", "nodepool.WebApp"),
    ("nodepool::drivers::keyscan", "nodepool.utils"),
    ("nodepool::drivers::static_nodes", "nodepool.driver.static"),
    ("nodepool::drivers", "nodepool.driver"),
    ("nodepool::zk::mirror", "nodepool.zk.cache.event"),
    ("nodepool::zk::session", "nodepool.zk.ZooKeeperClient"),
    ("nodepool::zk", "nodepool.zk.ZooKeeper"),
];

/// The logger of a tracing target.
pub fn logger(target: &str) -> Cow<'_, str> {
    if !target.contains("::") {
        return Cow::Borrowed(target);
    }
    let known = MODULES.iter().filter(|(module, _)| below(target, module)).max_by_key(|(module, _)| module.len());
    match known {
        Some((module @ "nodepool::drivers", logger)) => {
            Cow::Owned(format!("{logger}{}", target[module.len()..].replace("::", ".")))
        }
        Some((_, logger)) => Cow::Borrowed(logger),
        None => Cow::Owned(target.replace("::", ".")),
    }
}

fn below(target: &str, module: &str) -> bool {
    target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The loggers that an entry of a logging file is for: itself and the library that does the same work here.
pub fn applies_to(name: &str) -> Vec<String> {
    let library = match name {
        "kazoo" => Some("zookeeper_client"),
        "requests" => Some("reqwest"),
        _ => None,
    };
    std::iter::once(name).chain(library).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_log_under_the_names_of_the_reference() {
        let cases = [
            ("nodepool::actors::launcher", "nodepool.NodePool"),
            ("nodepool::actors::launcher::tree", "nodepool.NodePool"),
            ("nodepool::actors::launchers", "nodepool.actors.launchers"),
            ("nodepool::drivers::static_nodes::probe", "nodepool.driver.static"),
            ("nodepool::drivers::fake", "nodepool.driver.fake"),
            ("nodepool::zk::txn", "nodepool.zk.ZooKeeper"),
            ("nodepool::zk::session::connect", "nodepool.zk.ZooKeeperClient"),
            ("zookeeper_client::client::session", "zookeeper_client.client.session"),
            ("nodepool.stack_dump", "nodepool.stack_dump"),
        ];
        for (target, expected) in cases {
            assert_eq!(logger(target), expected, "{target}");
        }
    }
}
