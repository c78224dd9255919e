//! Connection options: servers, chroot, TLS and timeouts, checked as far as possible without a connection.

use std::fmt;
use std::time::Duration;

use super::tls::{Tls, TlsError};
use nodepool_model::config::{HostNames, ZooKeeperConfig};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    pub servers: Vec<ServerAddress>,
    /// Prepended to every path; empty for none. Its parent must exist; its last element is created if it is missing.
    pub chroot: String,
    pub tls: Option<Tls>,
    /// The requested timeout; the server may grant another (2 to 20 of its ticks).
    pub session_timeout: Duration,
    /// Time for which a request waits for a connection before it fails; the session timeout if not given.
    pub request_deadline: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    pub host: String,
    pub port: u16,
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// Reason of a failed attempt to establish a session.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    #[error("zookeeper-servers names no server")]
    NoServers,
    #[error("zookeeper-servers: {0:?} is not a host name or address with a port between 1 and 65535")]
    BadServer(String),
    #[error(
        "zookeeper-servers: the servers have different chroots ({0:?} and {1:?}); give the same to all, or only to the \
         last one"
    )]
    DifferentChroots(String, String),
    #[error("zookeeper-servers: the chroot {0:?} is not an absolute path of ZooKeeper")]
    BadChroot(String),
    #[error("zookeeper-timeout: {0:?} is not a session timeout that ZooKeeper could grant")]
    BadTimeout(Duration),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the parent of the chroot {0} does not exist in ZooKeeper; create it there, or correct the chroot")]
    NoChrootParent(String),
    #[error("cannot connect to ZooKeeper: {0}")]
    Unreachable(String),
    #[error("ZooKeeper denies access to the chroot {chroot}: {reason}")]
    ChrootRefused { chroot: String, reason: String },
    #[error("cannot start the thread of the ZooKeeper client: {0}")]
    NoThread(String),
}

impl ConnectError {
    /// Whether the configuration must be changed, so that a retry is useless.
    pub fn is_final(&self) -> bool {
        match self {
            ConnectError::NoServers
            | ConnectError::BadServer(_)
            | ConnectError::DifferentChroots(..)
            | ConnectError::BadChroot(_)
            | ConnectError::BadTimeout(_)
            | ConnectError::Tls(_) => true,
            ConnectError::NoChrootParent(_)
            | ConnectError::Unreachable(_)
            | ConnectError::ChrootRefused { .. }
            | ConnectError::NoThread(_) => false,
        }
    }
}

impl ConnectOptions {
    /// Options for one server without TLS and without a chroot, with Nodepool 11's session timeout.
    pub fn plain(host: impl Into<String>, port: u16) -> Self {
        Self {
            servers: vec![ServerAddress { host: host.into(), port }],
            chroot: String::new(),
            tls: None,
            session_timeout: Duration::from_secs(10),
            request_deadline: None,
        }
    }

    pub fn from_config(config: &ZooKeeperConfig) -> Result<Self, ConnectError> {
        let chroots: Vec<&str> = config.servers.iter().map(|server| server.chroot.as_str()).collect();
        let options = Self {
            servers: config
                .servers
                .iter()
                .map(|server| ServerAddress { host: unbracketed(&server.host).to_owned(), port: server.port })
                .collect(),
            chroot: common_chroot(&chroots)?,
            tls: config.tls.clone().map(|files| Tls { files, host_names: config.host_names }),
            session_timeout: config.session_timeout.to_duration(),
            request_deadline: None,
        };
        options.check()?;
        Ok(options)
    }

    /// Checks the options without a connection.
    pub fn check(&self) -> Result<(), ConnectError> {
        if self.servers.is_empty() {
            return Err(ConnectError::NoServers);
        }
        for server in &self.servers {
            let stray = |c: char| c.is_whitespace() || c.is_control() || matches!(c, ',' | '/' | '[' | ']');
            if server.host.is_empty() || server.port == 0 || server.host.contains(stray) {
                return Err(ConnectError::BadServer(server.to_string()));
            }
        }
        // The protocol counts milliseconds in a signed 32-bit number.
        let milliseconds = self.session_timeout.as_millis();
        if milliseconds == 0 || milliseconds > i32::MAX as u128 / 2 {
            return Err(ConnectError::BadTimeout(self.session_timeout));
        }
        check_chroot(&self.chroot)
    }

    pub fn request_deadline(&self) -> Duration {
        self.request_deadline.unwrap_or(self.session_timeout)
    }

    /// All addresses of all servers, in random order. The client uses the first that accepts a connection, and the
    /// first address of a name with several may belong to a server that hangs. Names are kept if certificates are
    /// checked against them, and if they cannot be resolved.
    pub async fn addresses(&self) -> String {
        let checks_names = |tls: &Tls| tls.host_names == HostNames::Checked;
        if self.tls.as_ref().is_some_and(checks_names) {
            return self.connect_string();
        }
        let lookups = self.servers.iter().map(|server| async move {
            let found = tokio::net::lookup_host((server.host.as_str(), server.port));
            match tokio::time::timeout(self.session_timeout / 5, found).await {
                Ok(Ok(addresses)) => addresses.map(|address| address.to_string()).collect(),
                _ => vec![server.to_string()],
            }
        });
        let mut addresses: Vec<String> = futures::future::join_all(lookups).await.concat();
        addresses.sort_by_cached_key(|_| nodepool_rng::uuid());
        addresses.join(",")
    }

    /// The server list in the client crate's format. The chroot is left out, because it may have to be created first.
    pub fn connect_string(&self) -> String {
        self.servers.iter().map(ServerAddress::to_string).collect::<Vec<_>>().join(",")
    }
}

fn unbracketed(host: &str) -> &str {
    host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host)
}

/// Nodepool 11's client reads a chroot only from the last server's entry. The same chroot at every server is accepted
/// as what the operator meant; any other combination would give the servers different paths.
fn common_chroot(written: &[&str]) -> Result<String, ConnectError> {
    let chroots: Vec<&str> = written.iter().map(|chroot| chroot.trim_end_matches('/')).collect();
    let Some((last, others)) = chroots.split_last() else { return Ok(String::new()) };
    let only_last = others.iter().all(|chroot| chroot.is_empty());
    match others.iter().find(|chroot| *chroot != last) {
        Some(other) if !only_last => Err(ConnectError::DifferentChroots((*other).to_owned(), (*last).to_owned())),
        _ => Ok((*last).to_owned()),
    }
}

fn check_chroot(chroot: &str) -> Result<(), ConnectError> {
    if chroot.is_empty() {
        return Ok(());
    }
    let sound = chroot.strip_prefix('/').is_some_and(|rest| {
        rest.split('/').all(|part| !matches!(part, "" | "." | "..") && !part.contains(|c: char| c.is_control()))
    });
    if sound { Ok(()) } else { Err(ConnectError::BadChroot(chroot.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::config::ZooKeeperServer;
    use nodepool_model::records::time::Seconds;

    fn check(servers: &[(&str, &str)]) -> Result<(String, String), String> {
        let config = ZooKeeperConfig {
            servers: servers
                .iter()
                .map(|(host, chroot)| ZooKeeperServer {
                    host: (*host).to_owned(),
                    port: 2281,
                    chroot: (*chroot).to_owned(),
                })
                .collect(),
            tls: None,
            host_names: HostNames::Checked,
            session_timeout: Seconds::new(10.0),
        };
        let options = ConnectOptions::from_config(&config).map_err(|error| error.to_string())?;
        Ok((options.connect_string(), options.chroot))
    }

    #[test]
    fn the_chroot_of_the_last_server_or_of_all_of_them_holds() {
        let ok = |hosts: &str, chroot: &str| Ok((hosts.to_owned(), chroot.to_owned()));
        assert_eq!(check(&[("a", "")]), ok("a:2281", ""));
        assert_eq!(check(&[("a", "/np")]), ok("a:2281", "/np"));
        assert_eq!(check(&[("a", ""), ("b", "/np")]), ok("a:2281,b:2281", "/np"));
        assert_eq!(check(&[("a", "/np"), ("b", "/np/")]), ok("a:2281,b:2281", "/np"));
        assert_eq!(check(&[("a", "/"), ("b", "")]), ok("a:2281,b:2281", ""));
        assert_eq!(check(&[("::1", ""), ("[fe80::1]", "/x/y")]), ok("[::1]:2281,[fe80::1]:2281", "/x/y"));
    }

    #[test]
    fn invalid_servers_are_refused_with_the_value() {
        let refused = |servers: &[(&str, &str)], text: &str| {
            let message = check(servers).unwrap_err();
            assert!(message.contains(text), "{message}");
        };
        refused(&[], "names no server");
        refused(&[("a", "/np"), ("b", "")], "different chroots (\"/np\" and \"\")");
        refused(&[("a", "/x"), ("b", "/y")], "different chroots");
        refused(&[("a", "np")], "not an absolute path");
        refused(&[("a", "/np/../x")], "not an absolute path");
        refused(&[("a b", "")], "\"a b:2281\"");
        refused(&[("", "")], "\":2281\"");
        refused(&[("a,b", "")], "zookeeper-servers");
    }
}
