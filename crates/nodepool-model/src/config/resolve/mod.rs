//! Conversion of a YAML tree to a `Config`: defaults, inheritance, references. Files that Nodepool 11 loads still load.

pub mod images;
pub mod providers;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::diagnostics::Diagnostics;
pub use super::diagnostics::Source;
use super::resolve::providers::Providers;
use super::schema::check;
use super::{Config, HostNames, Label, TlsFiles, WebappConfig, ZooKeeperConfig, ZooKeeperServer, references};
use crate::records::ids::{LabelName, TenantName};
use crate::records::resources::Resources;
use crate::records::time::Seconds;
use python_yaml::diagnostics::{Diagnostic, Severity};
use python_yaml::tree::{Position, YamlNode, YamlValue};

/// Either a configuration, perhaps with warnings, or the errors that prevent it.
#[derive(Clone, Debug)]
pub struct Resolved {
    pub config: Option<Arc<Config>>,
    pub diagnostics: Vec<Diagnostic>,
}

/// Loads a configuration as the daemons do. `available_drivers` are the drivers of this program.
pub fn resolve(main: Source<'_>, secure: Option<Source<'_>>, available_drivers: &[&str]) -> Resolved {
    // Errors of the validator alone do not prevent a start.
    let rejected = check::check(main.root, available_drivers).into_iter().chain(references::check(main.root));
    let mut problems: Vec<Diagnostic> = rejected.map(|problem| problem.at_most(Severity::Warning)).collect();
    let (config, diagnostics) = load(main, secure, available_drivers);
    let found: Vec<Diagnostic> = diagnostics.items.into_iter().chain(diagnostics.loader_only).collect();
    // An error replaces the warning at the same position of the same file.
    let errors: BTreeSet<Position> = found
        .iter()
        .filter(|problem| problem.is_error() && problem.file.is_empty())
        .map(|problem| problem.at)
        .collect();
    problems.retain(|problem| !errors.contains(&problem.at));
    let mut reported: BTreeSet<(String, Position, String)> = BTreeSet::new();
    problems.extend(found);
    problems.retain(|problem| reported.insert((problem.file.clone(), problem.at, problem.message.clone())));
    let problems: Vec<Diagnostic> = problems.into_iter().map(|problem| problem.in_file(main.file)).collect();
    let usable = config.filter(|_| !problems.iter().any(Diagnostic::is_error));
    Resolved { config: usable.map(Arc::new), diagnostics: problems }
}

/// Loads a configuration without the schema check. The result is meaningful only if no error was found.
pub(crate) fn load(
    main: Source<'_>,
    secure: Option<Source<'_>>,
    available_drivers: &[&str],
) -> (Option<Config>, Diagnostics) {
    let mut diagnostics = Diagnostics::default();
    let root = main.root;
    if !matches!(root.value, YamlValue::Map(_)) {
        let help = format!("the file holds {} where top-level keys were expected", root.value.type_name());
        diagnostics.error(root.at, "expected a dictionary", help);
        return (None, diagnostics);
    }
    let secure = secure.filter(|secure| secure.root.is_truthy());
    let mut diskimages = images::resolve(root, &mut diagnostics);
    let labels = labels(root, &mut diagnostics);
    if let Some(secure) = secure {
        // The secure file is applied last, but it names only images of the main file, so the order does not matter.
        with_secure_file(secure, &mut diagnostics, |root, diagnostics| {
            check_secure(root, diagnostics);
            images::apply_secure(secure, &mut diskimages, diagnostics);
        });
    }
    let Providers { providers, out_of_service } =
        providers::resolve(root, &labels, &mut diskimages, available_drivers, &mut diagnostics);
    let config = Config {
        zookeeper: zookeeper(root, secure, &mut diagnostics),
        webapp: webapp(root, &mut diagnostics),
        labels,
        providers,
        out_of_service,
        diskimages: diskimages.into_iter().map(|(name, image)| (name, Arc::new(image))).collect(),
        tenant_limits: tenant_limits(root, &mut diagnostics),
        max_hold_age: diagnostics.or_default(root.number("max-hold-age")).filter(|age| *age > 0.0).map(Seconds),
        elements_dir: diagnostics.or_default(root.text("elements-dir")),
        images_dir: diagnostics.or_default(root.text("images-dir")).map(Into::into),
        build_log_dir: diagnostics.or_default(root.text("build-log-dir")).map(Into::into),
        build_log_retention: diagnostics.or_default(root.integer("build-log-retention")).unwrap_or(7),
    };
    (Some(config), diagnostics)
}

/// Checks a secure file. Only three of its keys have an effect; every other key causes a warning.
fn check_secure(root: &YamlNode, diagnostics: &mut Diagnostics) {
    const KNOWN: [&str; 3] = ["diskimages", "zookeeper-servers", "zookeeper-tls"];
    if !matches!(root.value, YamlValue::Map(_)) {
        let help = format!("the secure file holds {} where top-level keys were expected", root.value.type_name());
        diagnostics.error(root.at, "expected a dictionary", help);
    }
    for (key, _) in root.entries().iter().filter(|(key, _)| !KNOWN.contains(&key.text.as_str())) {
        let help = format!("the secure file may set {}", KNOWN.join(", "));
        diagnostics.warning(key.at, format!("key {} has no effect here", key.in_path()), help);
    }
}

fn webapp(root: &YamlNode, diagnostics: &mut Diagnostics) -> WebappConfig {
    let mut webapp = WebappConfig { port: 8005, listen_address: "0.0.0.0".to_owned() };
    diagnostics.or_default(root.map("webapp").map(|_| ()));
    let Some(section) = root.given("webapp") else { return webapp };
    if let Some(port) = port(section, 0, diagnostics) {
        webapp.port = port;
    }
    if let Some(address) = diagnostics.or_default(section.text("listen_address")) {
        webapp.listen_address = address;
    }
    webapp
}

fn port(section: &YamlNode, lowest: u16, diagnostics: &mut Diagnostics) -> Option<u16> {
    let number = diagnostics.or_default(section.integer("port"))?;
    let port = u16::try_from(number).ok().filter(|port| *port >= lowest);
    if port.is_none() {
        let at = section.get("port").map_or(section.at, |node| node.at);
        diagnostics.error(at, "port is out of range", format!("{number} is not between {lowest} and 65535"));
    }
    port
}

fn zookeeper(root: &YamlNode, secure: Option<Source<'_>>, diagnostics: &mut Diagnostics) -> ZooKeeperConfig {
    // A key of the secure file replaces the main file's completely; the main file's value is not even checked.
    let deciding = |key: &str| secure.filter(|secure| secure.root.get(key).is_some_and(YamlNode::is_truthy));
    let servers = match deciding("zookeeper-servers") {
        Some(secure) => with_secure_file(secure, diagnostics, servers),
        None => servers(root, diagnostics),
    };
    let tls = match deciding("zookeeper-tls") {
        Some(secure) => with_secure_file(secure, diagnostics, tls),
        None => tls(root, diagnostics),
    };
    let (tls, host_names) = tls.unzip();
    let host_names = host_names.unwrap_or_default();
    ZooKeeperConfig { servers, tls, host_names, session_timeout: session_timeout(root, diagnostics) }
}

/// Runs `work` on the secure file; its diagnostics name that file.
fn with_secure_file<T>(
    secure: Source<'_>,
    diagnostics: &mut Diagnostics,
    work: impl FnOnce(&YamlNode, &mut Diagnostics) -> T,
) -> T {
    let mut own = Diagnostics::default();
    let result = work(secure.root, &mut own);
    diagnostics.items.extend(own.items.into_iter().map(|problem| problem.in_file(secure.file)));
    let for_loader = own.loader_only.into_iter().map(|problem| problem.in_file(secure.file));
    diagnostics.loader_only.extend(for_loader);
    result
}

/// Maximum session timeout: ZooKeeper counts milliseconds in 32 bits.
const MAX_SESSION_TIMEOUT_S: f64 = 2_147_483.0;

fn session_timeout(root: &YamlNode, diagnostics: &mut Diagnostics) -> Seconds {
    let Some(node) = root.get("zookeeper-timeout") else { return Seconds(10.0) };
    let seconds = node.scalar_number();
    let usable = seconds.filter(|seconds| *seconds > 0.0 && *seconds <= MAX_SESSION_TIMEOUT_S);
    if usable.is_none() {
        let help = format!("the session timeout is a number of seconds, above 0 and up to {MAX_SESSION_TIMEOUT_S}");
        diagnostics.error(node.at, "expected float for dictionary value @ data['zookeeper-timeout']", help);
    }
    Seconds(usable.unwrap_or(10.0))
}

fn servers(root: &YamlNode, diagnostics: &mut Diagnostics) -> Vec<ZooKeeperServer> {
    let mut servers = Vec::new();
    let sections = diagnostics.mappings(root, "zookeeper-servers", "a ZooKeeper server");
    for section in &sections {
        let is_empty = section.get("host").is_some_and(YamlNode::is_null) && section.given("chroot").is_none();
        if is_empty {
            let help = "`host` is empty; the server is ignored";
            diagnostics.warning(section.at, "ZooKeeper server without a host", help);
            continue;
        }
        let Some(host) = diagnostics.required(section, "host", "a ZooKeeper server") else { continue };
        if host.trim().is_empty() {
            diagnostics.loader_error(section.at, "ZooKeeper host is empty", "`host` is a name or an address");
        }
        let server = ZooKeeperServer {
            host,
            port: port(section, 1, diagnostics).unwrap_or(2281),
            chroot: diagnostics.or_default(section.text("chroot")).unwrap_or_default(),
        };
        check_chroot(&server.chroot, section, diagnostics);
        servers.push(server);
    }
    // A session has one chroot. Clients disagree about the meaning of any other combination.
    let last = servers.last().map_or("", |server| server.chroot.trim_end_matches('/'));
    let same = |server: &ZooKeeperServer| server.chroot.trim_end_matches('/') == last;
    let only_last = servers.iter().rev().skip(1).all(|server| server.chroot.trim_end_matches('/').is_empty());
    if !only_last && !servers.iter().all(same) {
        let at = sections.first().map_or(root.at, |section| section.at);
        let help = "write the same chroot at every server, or one at the last server only";
        diagnostics.loader_error(at, "ZooKeeper servers have different chroots", help);
    }
    servers
}

fn check_chroot(chroot: &str, section: &YamlNode, diagnostics: &mut Diagnostics) {
    let path = chroot.trim_end_matches('/');
    let parts = path.strip_prefix('/').map(|path| path.split('/'));
    let valid = match parts {
        None => path.is_empty(),
        Some(mut parts) => parts.all(|part| !matches!(part, "" | "." | "..") && !part.contains([',', ' '])),
    };
    if !valid {
        let at = section.get("chroot").map_or(section.at, |node| node.at);
        diagnostics.loader_error(at, "ZooKeeper chroot is not a path", "write it like /ci/nodepool");
    }
}

const TLS_INCOMPLETE: &str = "A TLS ZooKeeper connection is required; please supply the zookeeper-tls config values.";

fn tls(root: &YamlNode, diagnostics: &mut Diagnostics) -> Option<(TlsFiles, HostNames)> {
    diagnostics.or_default(root.map("zookeeper-tls").map(|_| ()));
    let section = root.get("zookeeper-tls").filter(|section| section.is_truthy())?;
    let [cert, key, ca] = ["cert", "key", "ca"].map(|file| diagnostics.or_default(section.text(file)));
    let missing: Vec<&str> = [("cert", &cert), ("key", &key), ("ca", &ca)]
        .into_iter()
        .filter(|(_, path)| path.as_ref().is_none_or(String::is_empty))
        .map(|(file, _)| file)
        .collect();
    if !missing.is_empty() {
        diagnostics.loader_error(section.at, TLS_INCOMPLETE, format!("missing: {}", missing.join(", ")));
    }
    let host_names = match section.boolean("check-hostname") {
        Some(true) => HostNames::Checked,
        Some(false) | None => HostNames::Ignored,
    };
    Some((TlsFiles { cert: cert?.into(), key: key?.into(), ca: ca?.into() }, host_names))
}

fn labels(root: &YamlNode, diagnostics: &mut Diagnostics) -> BTreeMap<LabelName, Label> {
    let mut labels = BTreeMap::new();
    for section in diagnostics.mappings(root, "labels", "a label") {
        let Some(name) = diagnostics.required(section, "name", "a label").map(LabelName::from) else { continue };
        let label = Label {
            name: name.clone(),
            min_ready: diagnostics.or_default(section.integer("min-ready")).unwrap_or(0),
            max_ready_age: diagnostics
                .or_default(section.number("max-ready-age"))
                .filter(|age| *age > 0.0)
                .map(Seconds),
        };
        if labels.insert(name.clone(), label).is_some() {
            diagnostics.warning(section.at, format!("label {name} already defined"), "the last definition counts");
        }
    }
    labels
}

fn tenant_limits(root: &YamlNode, diagnostics: &mut Diagnostics) -> BTreeMap<TenantName, Resources> {
    let mut tenants = BTreeMap::new();
    for section in diagnostics.mappings(root, "tenant-resource-limits", "a tenant's limits") {
        let name = diagnostics.required(section, "tenant-name", "a tenant's limits");
        let Some(name) = name.map(TenantName::from) else { continue };
        let mut limits = Resources::unlimited();
        for (key, node) in section.entries().iter().filter(|(key, _)| key.text != "tenant-name") {
            let resource = match key.text.as_str() {
                "max-cores" => "cores",
                "max-servers" => "instances",
                "max-ram" => "ram",
                "max-volumes" => "volumes",
                "max-volume-gb" => "volume-gb",
                other => other,
            };
            if let Some(limit) = diagnostics.or_default(node.as_number(&key.text)) {
                limits.set(resource, limit);
            }
        }
        if tenants.insert(name.clone(), limits).is_some() {
            diagnostics.warning(section.at, format!("tenant {name} already defined"), "the last definition counts");
        }
    }
    tenants
}
