//! Identity of this process: host name, and one launcher id per pool for the lifetime of the process.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use nodepool_model::records::component::{Component, ComponentKind};
use nodepool_model::records::ids::{LauncherId, PoolId};

/// Timeout for resolving the full host name; without a reply the short name is used.
const DNS_TIMEOUT: Duration = Duration::from_secs(5);

/// Launcher ids survive a lost ZooKeeper session, so requests that a pool declined stay declined.
#[derive(Debug)]
pub struct Identity {
    pub hostname: String,
    /// Full host name, or the short one if unknown.
    pub fqdn: String,
    pools: Mutex<BTreeMap<PoolId, LauncherId>>,
}

impl Identity {
    pub fn from_host() -> Self {
        let hostname = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
        let hostname = hostname.filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".to_owned());
        let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        let fqdn = in_hosts_file(&hostname, &hosts).or_else(|| with_timeout(hostname.clone(), in_dns));
        let fqdn = fqdn.unwrap_or_else(|| hostname.clone());
        Self { hostname, fqdn, pools: Mutex::default() }
    }

    /// Identity with a given host name.
    pub fn named(name: &str) -> Self {
        Self { hostname: name.to_owned(), fqdn: name.to_owned(), pools: Mutex::default() }
    }

    /// Component record of this process.
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
        let new = || LauncherId::from(format!("{}-PoolWorker.{pool}-{}", self.fqdn, nodepool_rng::uuid().simple()));
        pools.entry(pool.clone()).or_insert_with(new).clone()
    }

    /// Drops the id of a removed pool. If the pool is added again, it gets a new id.
    pub fn forget(&self, pool: &PoolId) {
        self.pools.lock().unwrap_or_else(PoisonError::into_inner).remove(pool);
    }
}

/// First dotted name on the line of the hosts file that contains this host.
fn in_hosts_file(hostname: &str, hosts: &str) -> Option<String> {
    if hostname.contains('.') {
        return Some(hostname.to_owned());
    }
    let lines = hosts.lines().map(|line| line.split('#').next().unwrap_or_default());
    let names = lines.map(|line| line.split_whitespace().skip(1).collect::<Vec<_>>());
    let mut ours = names.filter(|names| names.contains(&hostname));
    ours.find_map(|names| names.into_iter().find(|name| name.contains('.'))).map(str::to_owned)
}

/// Name of this host's address, as Python's `getfqdn` resolves it.
fn in_dns(hostname: String) -> Option<String> {
    let address = (hostname, 0).to_socket_addrs().ok()?.next()?.ip();
    let (name, _) = dns_lookup::getnameinfo(&SocketAddr::new(address, 0), nix::libc::NI_NAMEREQD).ok()?;
    name.contains('.').then_some(name)
}

/// Runs the lookup on its own thread, which is abandoned after the timeout: the system's resolver cannot be
/// interrupted.
fn with_timeout(hostname: String, lookup: fn(String) -> Option<String>) -> Option<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // Fails after the timeout, when the receiver is dropped.
        let _ = sender.send(lookup(hostname));
    });
    receiver.recv_timeout(DNS_TIMEOUT).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_name_comes_from_the_hosts_file() {
        let hosts = "127.0.0.1 localhost\n127.0.1.1 nl01.example.org nl01 # us\n";
        assert_eq!(in_hosts_file("nl01", hosts).as_deref(), Some("nl01.example.org"));
        assert_eq!(in_hosts_file("nl02", hosts), None);
        assert_eq!(in_hosts_file("a.b", hosts).as_deref(), Some("a.b"));
    }

    #[test]
    fn names_without_a_dot_and_unknown_ones_are_no_full_names() {
        assert_eq!(in_dns("localhost".to_owned()).filter(|name| !name.contains('.')), None);
        assert_eq!(in_dns("no-such-host.invalid".to_owned()), None);
        assert_eq!(with_timeout("nl01".to_owned(), |name| Some(name + ".x")).as_deref(), Some("nl01.x"));
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
