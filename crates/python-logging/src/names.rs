//! Names of loggers: what operators have in their logging files, for the modules that do the same work here.

use std::borrow::Cow;

/// Modules that do what a logger of the reference was for. The longest prefix counts.
const MODULES: [(&str, &str); 22] = [
    ("nodepool::actors::builder::builder", "nodepool.builder.NodePoolBuilder"),
    ("nodepool::actors::launcher::cleanup_worker", "nodepool.CleanupWorker"),
    ("nodepool::actors::runtime::dump", "nodepool.stack_dump"),
    ("nodepool::actors::launcher::launcher", "nodepool.NodePool"),
    ("nodepool::actors::launcher::pool_worker", "nodepool.PoolWorker"),
    ("nodepool::actors::process::process", "nodepool.NodePool"),
    ("nodepool::actors::provider::providers", "nodepool.ProviderManager"),
    ("nodepool::actors::process::signals", "nodepool.NodePool"),
    ("nodepool::actors::process::standalone", "nodepool.NodePool"),
    ("nodepool::actors::launcher::stats_worker", "nodepool.StatsWorker"),
    ("nodepool::actors::telemetry::statsd", "nodepool.stats"),
    ("nodepool::actors::provider::tasks", "nodepool.StateMachineProvider"),
    ("nodepool::actors::provider::task_manager", "nodepool.StateMachineProvider"),
    ("nodepool::actors::web", "nodepool.WebApp"),
    ("nodepool_drivers::common::keyscan", "nodepool.utils"),
    ("nodepool_drivers::openstack", "nodepool.OpenStackAdapter"),
    ("nodepool_drivers::static_nodes", "nodepool.driver.static"),
    ("nodepool_drivers", "nodepool.driver"),
    ("nodepool_zk::mirror", "nodepool.zk.cache.event"),
    ("nodepool_zk::client", "nodepool.zk.ZooKeeperClient"),
    ("nodepool_zk", "nodepool.zk.ZooKeeper"),
    ("zookeeper_server", "nodepool.zk.ZooKeeper"),
];

/// Of these loggers there is one for each value of a field, whose name ends with that.
const FAMILIES: [(&str, &str, SuffixRule); 9] = [
    ("nodepool.OpenStackAdapter", "provider", SuffixRule::Dot),
    ("nodepool.PoolWorker", "pool", SuffixRule::Dot),
    ("nodepool.StateMachineNodeDeleter", "provider", SuffixRule::Dot),
    ("nodepool.StateMachineNodeLauncher", "provider", SuffixRule::Dot),
    ("nodepool.StateMachineProvider", "provider", SuffixRule::Dot),
    ("nodepool.builder.BuildWorker", "worker", SuffixRule::Dot),
    ("nodepool.builder.CleanupWorker", "worker", SuffixRule::Dot),
    ("nodepool.builder.UploadWorker", "worker", SuffixRule::Dot),
    ("nodepool.driver.NodeRequestHandler", "launcher", SuffixRule::Brackets),
];

#[derive(Clone, Copy)]
enum SuffixRule {
    Dot,
    Brackets,
}

/// Loggers that the original has when it reads its logging file, as far as they do something here: `disable_existing_loggers`
/// is about these.
pub const EXISTING_LOGGERS: [&str; 14] = [
    "kazoo.client",
    "nodepool.Component",
    "nodepool.ComponentRegistry",
    "nodepool.NodeDeleter",
    "nodepool.NodePool",
    "nodepool.ProviderManager",
    "nodepool.WebApp",
    "nodepool.builder.NodePoolBuilder",
    "nodepool.driver.Drivers",
    "nodepool.stats",
    "nodepool.utils",
    "nodepool.zk.ZooKeeper",
    "nodepool.zk.ZooKeeperClient",
    "nodepool.zk.cache.event",
];

/// The logger of a tracing target.
pub fn logger(target: &str) -> Cow<'_, str> {
    if !target.contains("::") {
        return Cow::Borrowed(target);
    }
    let longest_match =
        MODULES.iter().filter(|(module, _)| is_in_module(target, module)).max_by_key(|(module, _)| module.len());
    match longest_match {
        Some((module @ "nodepool_drivers", logger)) => {
            Cow::Owned(format!("{logger}{}", target[module.len()..].replace("::", ".")))
        }
        Some((_, logger)) => Cow::Borrowed(logger),
        None => Cow::Owned(target.replace("::", ".")),
    }
}

fn is_in_module(target: &str, module: &str) -> bool {
    target.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// The field by which the loggers of this name are told apart.
pub fn distinguishing_field(logger: &str) -> Option<&'static str> {
    FAMILIES.iter().find(|(family, ..)| *family == logger).map(|(_, field, _)| *field)
}

/// The member of a family for a value of its field.
pub fn member_name(logger: &str, value: &str) -> String {
    match FAMILIES.iter().find(|(family, ..)| *family == logger) {
        Some((.., SuffixRule::Brackets)) => format!("{logger}[{value}]"),
        Some((.., SuffixRule::Dot)) | None => format!("{logger}.{value}"),
    }
}

/// Whether a name that an entry has may be one of a family.
pub fn may_be_member(entry: &str, logger: &str) -> bool {
    entry.strip_prefix(logger).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// The loggers that an entry of a logging file is for: itself and the library that does the same work here.
pub fn applies_to(name: &str) -> Vec<String> {
    std::iter::once(name).chain(library_of(name)).map(str::to_owned).collect()
}

/// The library that does the work of one of the original's.
pub fn library_of(name: &str) -> Option<&'static str> {
    match name {
        "kazoo" | "kazoo.client" => Some("zookeeper_client"),
        "requests" | "urllib3" => Some("reqwest"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_log_under_the_names_of_the_reference() {
        let cases = [
            ("nodepool::actors::launcher::launcher", "nodepool.NodePool"),
            ("nodepool::actors::launcher::launcher::tree", "nodepool.NodePool"),
            ("nodepool::actors::launchers", "nodepool.actors.launchers"),
            ("nodepool_drivers::static_nodes::probe", "nodepool.driver.static"),
            ("nodepool_drivers::openstack::request_body", "nodepool.OpenStackAdapter"),
            ("nodepool_drivers::fake", "nodepool.driver.fake"),
            ("nodepool_zk::txn", "nodepool.zk.ZooKeeper"),
            ("nodepool_zk::client::connection", "nodepool.zk.ZooKeeperClient"),
            ("zookeeper_client::client::session", "zookeeper_client.client.session"),
            ("nodepool.stack_dump", "nodepool.stack_dump"),
        ];
        for (target, expected) in cases {
            assert_eq!(logger(target), expected, "{target}");
        }
    }

    #[test]
    fn members_of_a_family_end_as_those_of_the_reference() {
        let cases = [
            ("nodepool.PoolWorker", "pool", "lab-main", "nodepool.PoolWorker.lab-main"),
            ("nodepool.builder.BuildWorker", "worker", "0", "nodepool.builder.BuildWorker.0"),
            ("nodepool.driver.NodeRequestHandler", "launcher", "host-1", "nodepool.driver.NodeRequestHandler[host-1]"),
        ];
        for (logger, field, value, expected) in cases {
            assert_eq!(distinguishing_field(logger), Some(field));
            assert_eq!(member_name(logger, value), expected);
            assert!(may_be_member(expected, logger) && !may_be_member(logger, logger));
        }
        assert_eq!(distinguishing_field("nodepool.NodePool"), None);
    }
}
