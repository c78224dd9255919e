//! Who this process is to others: host name, and one launcher id per pool for the life of the process.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use uuid::Uuid;

use crate::model::component::{Component, ComponentKind};
use crate::model::ids::{LauncherId, PoolId};

/// Launcher ids survive a lost ZooKeeper session: requests that were declined before stay declined.
#[derive(Debug)]
pub struct Identity {
    pub hostname: String,
    /// The host's full name where it is known.
    pub fqdn: String,
    pools: Mutex<BTreeMap<PoolId, LauncherId>>,
}

impl Identity {
    pub fn of_this_host() -> Self {
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let hostname = hostname.filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned());
        let fqdn = full_name(&hostname, &std::fs::read_to_string("/etc/hosts").unwrap_or_default());
        Self { hostname, fqdn, pools: Mutex::default() }
    }

    /// This process as others see it.
    pub fn component(&self, kind: ComponentKind, webapp: Option<String>) -> Component {
        Component {
            hostname: self.hostname.clone(),
            kind,
            model_api: 0,
            state: "running".to_owned(),
            version: Some(env!("CARGO_PKG_VERSION").to_owned()),
            webapp,
        }
    }

    pub fn launcher_id(&self, pool: &PoolId) -> LauncherId {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || LauncherId::from(format!("{}-PoolWorker.{pool}-{}", self.fqdn, Uuid::new_v4().simple()));
        pools.entry(pool.clone()).or_insert_with(new).clone()
    }

    /// A pool that was removed and comes back is another one.
    pub fn forget(&self, pool: &PoolId) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
    }
}

/// The first dotted name on the line of the hosts file that names this host.
fn full_name(hostname: &str, hosts: &str) -> String {
    if hostname.contains('.') {
        return hostname.to_owned();
    }
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names = lines.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let mut ours = names.filter(|names| names.contains(&hostname));
    let full = ours.find_map(|names| names.into_iter().find(|name| name.contains('.')));
    full.unwrap_or(hostname).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_name_comes_from_the_hosts_file() {
        let hosts = "127.0.0.1 localhost\n127.0.1.1 nl01.example.org nl01 # us\n";
        assert_eq!(full_name("nl01", hosts), "nl01.example.org");
        assert_eq!(full_name("nl02", hosts), "nl02");
        assert_eq!(full_name("a.b", hosts), "a.b");
    }

    #[test]
    fn a_pool_keeps_its_launcher_id_until_it_is_forgotten() {
        let identity = Identity { hostname: "h".into(), fqdn: "h.x".into(), pools: Mutex::default() };
        let pool = PoolId::new("p", "main");
        let first = identity.launcher_id(&pool);
        assert!(first.as_str().starts_with("h.x-PoolWorker.p-main-"), "{first}");
        assert_eq!(identity.launcher_id(&pool), first);
        identity.forget(&pool);
        assert_ne!(identity.launcher_id(&pool), first);
    }
}
