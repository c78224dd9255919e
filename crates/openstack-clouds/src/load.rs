//! Conversion of a cloud's merged and normalized entry to its settings.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::auth::identity;
use crate::config_paths::Environment;
use crate::error::CloudsError;
use crate::merge::{Map, Node, Origin, Value};
use crate::networks::networks;
use crate::normalize::normalized;
use crate::select::CloudEntry;
use crate::settings::{
    ClientCertificate, CloudSettings, FloatingIps, Interface, Scope, Service, Services, Statsd, Verify,
};
use python_yaml::diagnostics::{Diagnostic, Severity};

/// Port of statsd if only the host is configured.
const STATSD_PORT: u16 = 8125;

/// The SDK's name of the block storage service, and the service's old names.
const BLOCK_STORAGE: [&str; 5] = ["block_storage", "volumev3", "volumev2", "volume", "block_store"];

pub fn settings(
    entry: CloudEntry,
    root: &Map,
    environment: &Environment,
    warnings: &mut Vec<Diagnostic>,
) -> Result<CloudSettings, CloudsError> {
    let CloudEntry { cloud, origin, map } = entry;
    let networks = networks(&map)?;
    let mut map = normalized(map, &origin, warnings)?;
    let identity = identity(&mut map, cloud.as_deref(), &origin)?;
    interpolate_all(&mut map)?;
    let mut services = services(&map)?;
    // Rackspace's catalogue has no endpoint of version 2; the profile's endpoint has to end with the project.
    if let (Some("rackspace"), Scope::ProjectId(project)) = (map.text("profile")?.as_deref(), &identity.scope) {
        services.block_storage.endpoint = services.block_storage.endpoint.map(|endpoint| endpoint + project);
    }
    let source = map.text("floating_ip_source")?;
    Ok(CloudSettings {
        region: map.text("region_name")?,
        verify: verify(&map, environment)?,
        certificate: certificate(&map, environment)?,
        api_timeout_s: timeout(&map)?,
        image_format: map.text("image_format")?.unwrap_or_else(|| "qcow2".to_owned()),
        image_api_use_tasks: map.flag_or("image_api_use_tasks", false)?,
        image_properties: texts(&map, "disable_vendor_agent")?,
        floating_ips: floating_ips(&map, warnings)?,
        requires_floating_ip: match (source.as_deref(), map.given("requires_floating_ip")) {
            (Some("None"), _) => Some(false),
            (_, None) => None,
            (_, Some(node)) => Some(node.flag("requires_floating_ip")?),
        },
        use_external_network: map.flag_or("use_external_network", true)?,
        use_internal_network: map.flag_or("use_internal_network", true)?,
        private: map.flag_or("private", false)?,
        force_ipv4: force_ipv4(&map, root, environment)?,
        statsd: statsd(&map, root, environment)?,
        cloud,
        identity,
        services,
        networks,
    })
}

/// Replaces references, because settings may refer to each other: `https://{region_name}.example.com`.
fn interpolate_all(map: &mut Map) -> Result<(), CloudsError> {
    for at in 0..map.0.len() {
        let (key, node) = &map.0[at];
        if let Value::Text(text) = &node.value
            && key != "password"
        {
            let interpolated = map.interpolate(key, text, &node.origin)?;
            map.0[at].1.value = Value::Text(interpolated);
        }
    }
    Ok(())
}

fn services(map: &Map) -> Result<Services, CloudsError> {
    Ok(Services {
        compute: service(map, &["compute"])?,
        network: service(map, &["network"])?,
        image: service(map, &["image"])?,
        block_storage: service(map, &BLOCK_STORAGE)?,
        object_store: service(map, &["object_store"])?,
        identity: service(map, &["identity"])?,
    })
}

fn service(map: &Map, names: &[&str]) -> Result<Service, CloudsError> {
    let own = |key: &str| names.iter().find_map(|name| map.given(&format!("{name}_{key}")));
    let text = |key: &str| -> Result<Option<String>, CloudsError> {
        let text = own(key).map(|node| node.scalar(key)).transpose()?.flatten();
        Ok(text.filter(|text| !text.is_empty()))
    };
    let endpoint = text("endpoint_override")?;
    let region = text("region_name")?;
    let version = text("api_version")?;
    let enabled = names.iter().find_map(|name| map.given(&format!("has_{name}")));
    Ok(Service {
        is_enabled: enabled.map_or(Ok(true), |node| node.flag(&format!("has_{}", names[0])))?,
        endpoint: if endpoint.is_some() { endpoint } else { text("endpoint")? },
        region: if region.is_some() { region } else { map.text("region_name")? },
        interfaces: own("interface").or_else(|| map.given("interface")).map_or_else(default_interfaces, interfaces)?,
        // `latest` and other texts have the same effect as no version.
        api_version: version.filter(|version| version.trim().parse::<f64>().is_ok()),
        microversion: text("default_microversion")?,
        service_type: text("service_type")?,
        service_name: text("service_name")?,
    })
}

fn default_interfaces() -> Result<Vec<Interface>, CloudsError> {
    Ok(vec![Interface::Public])
}

fn interfaces(node: &Node) -> Result<Vec<Interface>, CloudsError> {
    if let Value::List(items) = &node.value {
        return items.iter().filter(|item| !item.is_null()).map(interface).collect();
    }
    Ok(vec![interface(node)?])
}

/// Reads an interface such as `internal`, or its old spelling `internalURL`.
fn interface(node: &Node) -> Result<Interface, CloudsError> {
    let name = node.scalar("interface")?.unwrap_or_default();
    match name.strip_suffix("URL").unwrap_or(&name) {
        "public" => Ok(Interface::Public),
        "internal" => Ok(Interface::Internal),
        "admin" => Ok(Interface::Admin),
        _ => Err(node.origin.invalid(format!("there is no interface {name}"), "write public, internal or admin")),
    }
}

fn verify(map: &Map, environment: &Environment) -> Result<Verify, CloudsError> {
    if map.flag_or("insecure", false)? {
        return Ok(Verify::Off);
    }
    let bundle = map.text("cacert")?.map(|path| Verify::Bundle(expand_path(&path, environment)));
    let system = || bundle.clone().unwrap_or(Verify::System);
    let Some(node) = map.given("verify") else { return Ok(system()) };
    match &node.value {
        Value::Bool(false) => Ok(Verify::Off),
        Value::Bool(true) => Ok(system()),
        Value::Text(text) if text.is_empty() => Ok(Verify::Off),
        Value::Text(text) if ["true", "false"].contains(&text.to_lowercase().as_str()) => {
            let help = "write it without quotes; in the environment, OS_INSECURE=true turns verification off";
            Err(node.origin.invalid("verify is a text, which would be the path of a certificate file", help))
        }
        Value::Text(_) if bundle.is_some() => Ok(system()),
        Value::Text(text) => Ok(Verify::Bundle(PathBuf::from(text))),
        _ => Err(node.type_error("verify", "true, false or the path of a certificate file")),
    }
}

fn certificate(map: &Map, environment: &Environment) -> Result<Option<ClientCertificate>, CloudsError> {
    let Some(certificate) = map.text("cert")? else { return Ok(None) };
    let key = map.text("key")?.map(|key| expand_path(&key, environment));
    Ok(Some(ClientCertificate { certificate: expand_path(&certificate, environment), key }))
}

/// A path; `~` is the home directory of the user.
fn expand_path(text: &str, environment: &Environment) -> PathBuf {
    match (text.strip_prefix('~'), &environment.home) {
        (Some(""), Some(home)) => home.clone(),
        (Some(rest), Some(home)) if rest.starts_with('/') => home.join(rest.trim_start_matches('/')),
        _ => PathBuf::from(text),
    }
}

fn timeout(map: &Map) -> Result<Option<f64>, CloudsError> {
    let Some(node) = map.given("api_timeout") else { return Ok(None) };
    let seconds = node.scalar("api_timeout")?.unwrap_or_default().trim().parse::<f64>().ok();
    match seconds.filter(|seconds| *seconds > 0.0 && seconds.is_finite()) {
        Some(seconds) => Ok(Some(seconds)),
        None => Err(node.type_error("api_timeout", "seconds, more than 0")),
    }
}

fn texts(map: &Map, key: &str) -> Result<BTreeMap<String, String>, CloudsError> {
    let mut texts = BTreeMap::new();
    for (name, node) in map.map(key)?.0 {
        texts.insert(name.clone(), node.scalar(&name)?.unwrap_or_default());
    }
    Ok(texts)
}

fn floating_ips(map: &Map, warnings: &mut Vec<Diagnostic>) -> Result<FloatingIps, CloudsError> {
    let Some(node) = map.given("floating_ip_source") else { return Ok(FloatingIps::None) };
    match node.scalar("floating_ip_source")?.unwrap_or_default().to_lowercase().as_str() {
        "neutron" => Ok(FloatingIps::Neutron),
        "nova" => {
            let help =
                "Nova's own network was removed in the release Rocky; write neutron, or None for no floating addresses";
            let warning = node.origin.diagnostic("floating addresses of Nova are not used", help);
            warnings.push(warning.at_most(Severity::Warning));
            Ok(FloatingIps::Nova)
        }
        "none" | "" => Ok(FloatingIps::None),
        other => {
            let message = format!("there is no floating_ip_source {other}");
            Err(node.origin.invalid(message, "write neutron, nova or None"))
        }
    }
}

/// Whether IPv4 is forced: the cloud's own value, else the variable's, else that of the section `client`. Each has an
/// old, inverse spelling.
fn force_ipv4(map: &Map, root: &Map, environment: &Environment) -> Result<bool, CloudsError> {
    let variable = |name: &str| environment.variables.get(name).map(|value| value.eq_ignore_ascii_case("true"));
    let client = root.map("client")?;
    let prefer = if client.get("prefer_ipv6").is_some() { "prefer_ipv6" } else { "prefer-ipv6" };
    let force = if client.get("force_ipv4").is_some() { "force_ipv4" } else { "broken-ipv6" };
    let prefers_ipv6 = variable("OS_PREFER_IPV6").map_or_else(|| client.flag_or(prefer, true), Ok)?;
    let forced = variable("OS_FORCE_IPV4").map_or_else(|| client.flag_or(force, false), Ok)?;
    let default = forced || !prefers_ipv6;
    Ok(map.flag_or("force_ipv4", default)? || !map.flag_or("prefer_ipv6", true)?)
}

fn statsd(map: &Map, root: &Map, environment: &Environment) -> Result<Option<Statsd>, CloudsError> {
    let variable = |name: &str| environment.variables.get(name).filter(|value| !value.is_empty()).cloned();
    let global = root.map("metrics")?.map("statsd")?;
    let of_cloud = map.map("metrics")?.map("statsd")?;
    let value = |key: &str, name: &str| -> Result<Option<String>, CloudsError> {
        match (of_cloud.get(key), variable(name)) {
            (Some(_), _) => of_cloud.text(key),
            (None, Some(value)) => Ok(Some(value)),
            (None, None) => global.text(key),
        }
    };
    let host = value("host", "STATSD_HOST")?;
    let port = value("port", "STATSD_PORT")?;
    let prefix = value("prefix", "STATSD_PREFIX")?;
    if host.is_none() && port.is_none() {
        return Ok(None);
    }
    let number = port.map_or(Ok(STATSD_PORT), |port| {
        // The variable takes precedence over the section of all clouds.
        let of_all = || global.get("port").filter(|_| variable("STATSD_PORT").is_none());
        let node = of_cloud.get("port").or_else(of_all);
        port.parse::<u16>().ok().filter(|number| *number > 0).ok_or_else(|| {
            let origin =
                node.map_or_else(|| Origin::named("environment variable STATSD_PORT"), |node| node.origin.clone());
            origin.invalid("the port of statsd is not a port", "write a number from 1 to 65535")
        })
    })?;
    Ok(Some(Statsd {
        host: host.unwrap_or_else(|| "localhost".to_owned()),
        port: number,
        prefix: prefix.filter(|prefix| !prefix.is_empty()).unwrap_or_else(|| "openstack.api".to_owned()),
    }))
}
