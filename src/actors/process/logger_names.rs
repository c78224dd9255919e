//! Logger names of Nodepool 11 for the modules of this program, so that operators' logging files keep working.

use python_logging::logger_names::{Family, LoggerNames, SuffixRule};

pub static NODEPOOL: LoggerNames = LoggerNames {
    root: "nodepool",
    log_warnings: "nodepool.log",
    modules: &MODULES,
    nested_modules: &["nodepool_drivers"],
    families: &FAMILIES,
    existing_loggers: &EXISTING_LOGGERS,
    libraries: &[
        ("kazoo", "zookeeper_client"),
        ("kazoo.client", "zookeeper_client"),
        ("requests", "reqwest"),
        ("urllib3", "reqwest"),
    ],
    default_libraries: &["requests", "openstack", "kazoo"],
    // The client crate warns about every attempt to connect, several times a second and without a reason. The session
    // logs what operators have to know about failed connections.
    demoted_targets: &["zookeeper_client"],
};

/// Modules that do the work for which Nodepool 11 has a logger.
const MODULES: [(&str, &str); 25] = [
    ("nodepool::actors::builder::builder", "nodepool.builder.NodePoolBuilder"),
    ("nodepool::actors::launcher::backing_worker", "nodepool.driver.metastatic.MetastaticAdapter"),
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
    ("nodepool_drivers::aws", "nodepool.AwsAdapter"),
    ("nodepool_drivers::metastatic", "nodepool.driver.metastatic.MetastaticAdapter"),
    ("nodepool_drivers::openstack", "nodepool.OpenStackAdapter"),
    ("nodepool_drivers::static_nodes", "nodepool.driver.static"),
    ("nodepool_drivers", "nodepool.driver"),
    ("nodepool_zk::mirror", "nodepool.zk.cache.event"),
    ("nodepool_zk::client", "nodepool.zk.ZooKeeperClient"),
    ("nodepool_zk", "nodepool.zk.ZooKeeper"),
    ("zookeeper_server", "nodepool.zk.ZooKeeper"),
];

const FAMILIES: [Family; 10] = [
    dotted("nodepool.AwsAdapter", "provider"),
    dotted("nodepool.OpenStackAdapter", "provider"),
    dotted("nodepool.PoolWorker", "pool"),
    dotted("nodepool.StateMachineNodeDeleter", "provider"),
    dotted("nodepool.StateMachineNodeLauncher", "provider"),
    dotted("nodepool.StateMachineProvider", "provider"),
    dotted("nodepool.builder.BuildWorker", "worker"),
    dotted("nodepool.builder.CleanupWorker", "worker"),
    dotted("nodepool.builder.UploadWorker", "worker"),
    bracketed("nodepool.driver.NodeRequestHandler", "launcher"),
];

const fn dotted(logger: &'static str, field: &'static str) -> Family {
    Family { logger, field, suffix: SuffixRule::Dot }
}

const fn bracketed(logger: &'static str, field: &'static str) -> Family {
    Family { logger, field, suffix: SuffixRule::Brackets }
}

/// Loggers that Nodepool 11 creates at import, as far as this program uses them.
const EXISTING_LOGGERS: [&str; 14] = [
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

#[cfg(test)]
mod tests {
    use super::*;
    use python_logging::LogPlan;
    use python_logging::logger_names::may_be_member;

    #[test]
    fn modules_log_under_the_names_of_nodepool_11() {
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
            assert_eq!(NODEPOOL.logger(target), expected, "{target}");
        }
    }

    #[test]
    fn members_of_a_family_end_as_in_nodepool_11() {
        let cases = [
            ("nodepool.PoolWorker", "pool", "lab-main", "nodepool.PoolWorker.lab-main"),
            ("nodepool.builder.BuildWorker", "worker", "0", "nodepool.builder.BuildWorker.0"),
            ("nodepool.driver.NodeRequestHandler", "launcher", "host-1", "nodepool.driver.NodeRequestHandler[host-1]"),
        ];
        for (logger, field, value, expected) in cases {
            assert_eq!(NODEPOOL.distinguishing_field(logger), Some(field));
            assert_eq!(NODEPOOL.member_name(logger, value), expected);
            assert!(may_be_member(expected, logger) && !may_be_member(logger, logger));
        }
        assert_eq!(NODEPOOL.distinguishing_field("nodepool.NodePool"), None);
    }

    #[test]
    fn existing_loggers_are_silenced_unless_they_are_named() {
        let disabled = |text: &str| {
            let plan = LogPlan::parse(text, "yaml", &NODEPOOL).unwrap();
            plan.loggers.values().filter(|logger| logger.is_disabled).count()
        };
        assert_eq!(disabled("root: {}"), EXISTING_LOGGERS.len());
        assert_eq!(disabled("loggers: {nodepool.zk: {}, kazoo: {}}"), EXISTING_LOGGERS.len() - 4);
    }
}
