//! Static nodes: hosts that the configuration lists. The driver launches nothing; it checks hosts and reports them as
//! facts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::common::keyscan::{self, ScanError, ScanMode, ScanTarget, Scanner};
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::driver::{ApiCall, Driver, JobMachine};
use nodepool_driver::error::{CloudError, FailureKind};
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::job::{Job, Outcome};
use nodepool_driver::state_machine::{InFlightLimit, Lane, OneCall, RateLimits, Spacing};
use nodepool_model::config::ProviderConfig;
use nodepool_model::records::resources::Resources;
use nodepool_model::records::static_host::{HostCheck, HostIdentity, StaticHost};
use nodepool_model::records::time::Seconds;
use python_yaml::diagnostics::Diagnostic;

pub mod config;

/// The host's own timeout bounds a scan; the deadline of the call is this much later.
const EXTRA_TIME_S: f64 = 5.0;
/// Maximum of checks and probes in flight. Checks may use four fifths of it: exactly `MAX_SCANS`, so no scan waits.
const MAX_IN_FLIGHT: usize = keyscan::MAX_SCANS + keyscan::MAX_SCANS / 4;

pub struct StaticNodes {
    facts: ProviderFacts,
    hosts: BTreeMap<HostIdentity, Arc<StaticHost>>,
    scanner: Scanner,
}

pub fn open(section: &ProviderConfig) -> Result<StaticNodes, Vec<Diagnostic>> {
    let static_hosts = config::hosts(section)?;
    let labels = section.pools.values().flat_map(|pool| &pool.labels);
    let needs = labels.map(|label| (label.clone(), Resources::none().with("instances", 1.0)));
    let hosts = static_hosts.iter().map(|host| (host.identity.clone(), host.clone())).collect();
    let facts = ProviderFacts { label_needs: needs.collect(), static_hosts, ..ProviderFacts::initial() };
    Ok(StaticNodes { facts, hosts, scanner: Scanner::default() })
}

/// One request to one host.
#[derive(Clone, Debug)]
pub enum Call {
    /// Connects, and collects the host keys if the host is configured for that.
    Check(Arc<StaticHost>),
    /// Connects only.
    Probe(Arc<StaticHost>),
}

impl ApiCall for Call {
    fn key(&self) -> &'static str {
        match self {
            Call::Check(_) => "host.check",
            Call::Probe(_) => "host.probe",
        }
    }

    fn lane(&self) -> Lane {
        match self {
            Call::Check(_) => Lane::Read,
            // A request waits for this node.
            Call::Probe(_) => Lane::Change,
        }
    }

    /// No call changes a host.
    fn is_mutating(&self) -> bool {
        false
    }

    fn deadline(&self) -> Seconds {
        let (Call::Check(host) | Call::Probe(host)) = self;
        Seconds(host.timeout.0.max(0.0) + EXTRA_TIME_S)
    }
}

impl Driver for StaticNodes {
    type Call = Call;
    type Reply = HostCheck;

    fn facts(&self) -> ProviderFacts {
        self.facts.clone()
    }

    fn rate_limits(&self) -> RateLimits {
        RateLimits {
            spacing: Spacing::NONE,
            in_flight: InFlightLimit::Fixed(MAX_IN_FLIGHT),
            listing_delay: Seconds(1.0),
            refresh: None,
        }
    }

    /// One job per host, so that a slow or dead host delays no other.
    fn subjobs(&self, job: &Job) -> Vec<Job> {
        match job {
            Job::Refresh => self.facts.static_hosts.iter().map(|host| Job::Inspect(host.identity.clone())).collect(),
            Job::Launch(_)
            | Job::Delete(_)
            | Job::List
            | Job::ListServerIds
            | Job::ListUnused(_)
            | Job::DeleteUnused(_)
            | Job::Console(_)
            | Job::Upload(_)
            | Job::DeleteImage(_)
            | Job::ListImages
            | Job::Inspect(_)
            | Job::Probe(_) => Vec::new(),
        }
    }

    fn begin(&self, job: &Job) -> JobMachine<Self> {
        Box::new(match job {
            Job::Launch(_) => {
                let reason = String::from("static nodes are registered by configuration, they are not launched");
                OneCall::finished(Err(CloudError::Denied(reason)))
            }
            // The host continues to exist; the launcher deletes only its record.
            Job::Delete(_) => OneCall::finished(Ok(Outcome::Deleted)),
            Job::Upload(_) => OneCall::finished(Err(CloudError::Denied("static nodes take no images".to_owned()))),
            Job::ListImages => OneCall::finished(Ok(Outcome::Images(Vec::new()))),
            Job::ListUnused(_) | Job::DeleteUnused(_) | Job::Console(_) | Job::DeleteImage(_) => OneCall::unsupported(),
            Job::List | Job::ListServerIds => OneCall::finished(Ok(Outcome::Listed(Arc::default()))),
            Job::Refresh => OneCall::finished(Ok(Outcome::Refreshed(Arc::new(self.facts.clone()), Arc::default()))),
            Job::Inspect(identity) => match self.hosts.get(identity) {
                Some(host) => inspect(host.clone()),
                None => OneCall::finished(Err(CloudError::not_found("no such host"))),
            },
            Job::Probe(identity) => match self.hosts.get(identity) {
                Some(host) => probe(host.clone()),
                None => OneCall::finished(Err(CloudError::not_found("no such host"))),
            },
        })
    }

    async fn call(&self, call: Call, _: &CallGuard) -> Result<HostCheck, CloudError> {
        match call {
            Call::Check(host) if host.skips_connection_check() => {
                let found = keyscan::first_address(&host.identity.name, host.timeout).await;
                let address = found.map_err(|error| scan_error(&error))?;
                Ok(HostCheck::NotNeeded { address: Some(address) })
            }
            Call::Check(host) => self.check(&host).await,
            Call::Probe(host) => self.scan(&host, ScanMode::ConnectOnly).await,
        }
    }
}

impl StaticNodes {
    async fn check(&self, host: &StaticHost) -> Result<HostCheck, CloudError> {
        let mode = if host.scans_host_keys() { ScanMode::Keys } else { ScanMode::ConnectOnly };
        let check = self.scan(host, mode).await?;
        if let HostCheck::Passed { host_keys, .. } = &check {
            check_configured_keys(host, host_keys)?;
        }
        Ok(check)
    }

    async fn scan(&self, host: &StaticHost, mode: ScanMode) -> Result<HostCheck, CloudError> {
        let HostIdentity { name, port, .. } = &host.identity;
        let target = ScanTarget { host: name.clone(), port: *port, timeout: host.timeout, mode };
        let scan = self.scanner.scan(&target).await.map_err(|error| scan_error(&error))?;
        // The TaskManager has a clock and sets the time.
        Ok(HostCheck::Passed { at: Default::default(), host_keys: scan.host_keys, address: scan.address })
    }
}

fn inspect(host: Arc<StaticHost>) -> OneCall<Call, HostCheck> {
    let identity = host.identity.clone();
    if host.skips_connection_check()
        && let Some(address) = address_without_lookup(&identity.name)
    {
        return OneCall::finished(Ok(Outcome::Inspected(identity, HostCheck::NotNeeded { address })));
    }
    OneCall::new("checking", Call::Check(host), move |check| Ok(Outcome::Inspected(identity, check)))
}

/// A host without host key checking counts as alive.
fn probe(host: Arc<StaticHost>) -> OneCall<Call, HostCheck> {
    let identity = host.identity.clone();
    if !host.host_key_checking {
        return OneCall::finished(Ok(Outcome::Alive(identity)));
    }
    OneCall::new("probing", Call::Probe(host), move |_| Ok(Outcome::Alive(identity)))
}

/// The address of a host that needs no resolver: its name if that is an address, none for a fake host.
fn address_without_lookup(name: &str) -> Option<Option<IpAddr>> {
    if keyscan::is_fake(name) {
        return Some(None);
    }
    name.parse().ok().map(Some)
}

/// Every configured key must be among the scanned keys; without configured keys, all keys are accepted.
fn check_configured_keys(host: &StaticHost, scanned: &[String]) -> Result<(), CloudError> {
    let missing = host.configured_keys.iter().filter(|key| !scanned.iter().any(|found| same_key(key, found))).count();
    if missing == 0 {
        return Ok(());
    }
    let detail = format!(
        "host key mismatches ({}): {missing} of {} configured keys not among the {} that the host shows; \
         correct `host-key`, or check which host answers at this address",
        host.identity.name,
        host.configured_keys.len(),
        scanned.len()
    );
    Err(CloudError::Failed { kind: FailureKind::KeyScan, detail })
}

/// Compares type and key; a comment behind them is ignored.
fn same_key(configured: &str, scanned: &str) -> bool {
    configured.split_whitespace().take(2).eq(scanned.split_whitespace().take(2))
}

fn scan_error(error: &ScanError) -> CloudError {
    let kind = match error {
        ScanError::Unresolvable { .. } => FailureKind::Network,
        ScanError::Timeout { .. } => FailureKind::Ssh,
    };
    CloudError::Failed { kind, detail: error.to_string() }
}
