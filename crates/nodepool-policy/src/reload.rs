//! Reload: the smallest set of changes between two configurations, which names what to start, replace and drain.

use std::collections::BTreeSet;
use std::fmt;

use nodepool_model::config::Config;
use nodepool_model::records::ids::{PoolId, ProviderName};

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    ProviderAdded(ProviderName),
    /// The provider's TaskManager is replaced; its pools keep running and are notified.
    ProviderChanged(ProviderName),
    ProviderRemoved(ProviderName),
    PoolAdded(PoolId),
    PoolChanged(PoolId),
    PoolRemoved(PoolId),
    LabelsChanged,
    /// Tenant limits or `max-hold-age` changed.
    LimitsChanged,
    /// The list of ZooKeeper servers changed: the session moves to the new servers.
    ServersChanged,
    /// A change that needs a restart, with its name for the log.
    NeedsRestart(&'static str),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::ProviderAdded(name) => write!(f, "provider {name} was added"),
            Change::ProviderChanged(name) => write!(f, "provider {name} changed"),
            Change::ProviderRemoved(name) => write!(f, "provider {name} was removed"),
            Change::PoolAdded(id) => write!(f, "pool {id} was added"),
            Change::PoolChanged(id) => write!(f, "pool {id} changed"),
            Change::PoolRemoved(id) => write!(f, "pool {id} was removed"),
            Change::LabelsChanged => f.write_str("labels changed"),
            Change::LimitsChanged => f.write_str("limits changed"),
            Change::ServersChanged => f.write_str("ZooKeeper servers changed"),
            Change::NeedsRestart(key) => write!(f, "{key} changed"),
        }
    }
}

pub fn diff(old: &Config, new: &Config) -> Vec<Change> {
    let mut changes = Vec::new();
    for name in old.providers.keys().filter(|name| !new.providers.contains_key(*name)) {
        changes.push(Change::ProviderRemoved(name.clone()));
    }
    for (name, section) in &new.providers {
        match old.providers.get(name) {
            None => changes.push(Change::ProviderAdded(name.clone())),
            Some(before) if before != section => changes.push(Change::ProviderChanged(name.clone())),
            Some(_) => {}
        }
    }
    let (before, after): (BTreeSet<PoolId>, BTreeSet<PoolId>) = (old.pools().collect(), new.pools().collect());
    changes.extend(before.difference(&after).cloned().map(Change::PoolRemoved));
    changes.extend(after.difference(&before).cloned().map(Change::PoolAdded));
    for id in before.intersection(&after) {
        if old.providers[&id.provider].pools[&id.pool] != new.providers[&id.provider].pools[&id.pool] {
            changes.push(Change::PoolChanged(id.clone()));
        }
    }
    if old.labels != new.labels {
        changes.push(Change::LabelsChanged);
    }
    if old.tenant_limits != new.tenant_limits || old.max_hold_age != new.max_hold_age {
        changes.push(Change::LimitsChanged);
    }
    let servers_differ = old.zookeeper.servers != new.zookeeper.servers;
    let chroots = |config: &Config| config.zookeeper.servers.iter().map(|server| server.chroot.clone()).max();
    let tls = |config: &Config| (config.zookeeper.tls.clone(), config.zookeeper.host_names);
    // The session would keep its old TLS settings and could not connect to servers that accept only the new ones.
    let tls_differs = tls(old) != tls(new);
    if servers_differ && !tls_differs {
        changes.push(Change::ServersChanged);
    }
    let restarts = [
        ("zookeeper-servers, with zookeeper-tls,", servers_differ && tls_differs),
        ("the chroot in zookeeper-servers", chroots(old) != chroots(new)),
        ("zookeeper-tls", tls_differs && !servers_differ),
        ("zookeeper-timeout", old.zookeeper.session_timeout != new.zookeeper.session_timeout),
        ("webapp", old.webapp != new.webapp),
    ];
    changes.extend(restarts.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| Change::NeedsRestart(key)));
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::config::diagnostics::Source;
    use nodepool_model::config::resolve::resolve;
    use python_yaml::parse;

    fn changes(old: &str, new: &str) -> Vec<Change> {
        let [old, new] = [old, new].map(|text| {
            let root = parse::parse(text, &mut Vec::new()).unwrap();
            resolve(Source { file: "nodepool.yaml", root: &root }, None, &[]).config.unwrap()
        });
        diff(&old, &new)
    }

    // The session once used plain text with servers that accept only TLS, and never learned that it had expired.
    #[test]
    fn a_session_does_not_move_to_servers_with_other_tls_settings() {
        let plain = "zookeeper-servers: [{host: zk1, port: 2181}]\n";
        let others = "zookeeper-servers: [{host: zk2, port: 2181}]\n";
        let secure = "zookeeper-servers: [{host: zk1, port: 2281}]\nzookeeper-tls: {cert: c, key: k, ca: a}\n";
        assert_eq!(changes(plain, others), [Change::ServersChanged]);
        assert_eq!(changes(plain, secure), [Change::NeedsRestart("zookeeper-servers, with zookeeper-tls,")]);
        let tls = format!("{plain}zookeeper-tls: {{cert: c, key: k, ca: a}}\n");
        assert_eq!(changes(plain, &tls), [Change::NeedsRestart("zookeeper-tls")]);
    }
}
