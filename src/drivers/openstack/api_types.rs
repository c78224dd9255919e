//! Response types of the OpenStack services, limited to the fields that are read. Only ids are required, because clouds
//! omit fields.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserializer, Error, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// One page of a listing.
#[derive(Debug, Deserialize)]
pub struct ServersPage {
    pub servers: Vec<Server>,
    #[serde(default, deserialize_with = "raw_or_default")]
    pub servers_links: Vec<Link>,
}

/// One page of the listing of ids.
#[derive(Debug, Deserialize)]
pub struct ServerIdPage {
    pub servers: Vec<IdOnly>,
    #[serde(default, deserialize_with = "raw_or_default")]
    pub servers_links: Vec<Link>,
}

#[derive(Debug, Deserialize)]
pub struct IdOnly {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
}

/// The response to a query of one server.
#[derive(Debug, Deserialize)]
pub struct OneServer {
    pub server: Server,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Link {
    #[serde(default)]
    pub rel: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Server {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    #[serde(default, deserialize_with = "raw_or_default")]
    pub name: String,
    #[serde(default, deserialize_with = "raw_or_default")]
    pub status: String,
    #[serde(default, rename = "OS-EXT-STS:task_state", deserialize_with = "raw_or_default")]
    pub task_state: Option<String>,
    #[serde(default, deserialize_with = "metadata_texts")]
    pub metadata: BTreeMap<String, String>,
    /// Addresses by network name.
    #[serde(default, deserialize_with = "raw_or_default")]
    pub addresses: BTreeMap<String, Vec<Address>>,
    #[serde(default, rename = "accessIPv4", deserialize_with = "raw_or_default")]
    pub access_ipv4: Option<String>,
    #[serde(default, rename = "accessIPv6", deserialize_with = "raw_or_default")]
    pub access_ipv6: Option<String>,
    #[serde(default, rename = "OS-EXT-AZ:availability_zone", deserialize_with = "raw_or_default")]
    pub zone: Option<String>,
    #[serde(default, rename = "hostId", deserialize_with = "raw_or_default")]
    pub host_id: Option<String>,
    #[serde(default, deserialize_with = "raw_or_default")]
    pub fault: Option<Fault>,
    #[serde(default, deserialize_with = "raw_or_default")]
    pub flavor: Option<ServerFlavor>,
    #[serde(default, rename = "os-extended-volumes:volumes_attached", deserialize_with = "raw_or_default")]
    pub volumes: Vec<AttachedVolume>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Address {
    pub addr: String,
    #[serde(default)]
    pub version: u8,
    #[serde(default, rename = "OS-EXT-IPS:type")]
    pub kind: Option<String>,
    #[serde(default, rename = "OS-EXT-IPS-MAC:mac_addr")]
    pub mac: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Fault {
    #[serde(default)]
    pub message: String,
}

/// Flavor of a server: an id, or the flavor itself with newer microversions.
#[derive(Clone, Debug, Deserialize)]
pub struct ServerFlavor {
    #[serde(default)]
    pub id: Option<String>,
    #[serde(default)]
    pub vcpus: Option<f64>,
    #[serde(default)]
    pub ram: Option<f64>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct AttachedVolume {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Flavor {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub name: String,
    /// MiB.
    #[serde(default, deserialize_with = "number_or_zero")]
    pub ram: f64,
    #[serde(default, deserialize_with = "number_or_zero")]
    pub vcpus: f64,
}

#[derive(Clone, Debug, Deserialize)]
pub struct SecurityGroup {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub name: String,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Network {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub name: String,
    #[serde(default, rename = "router:external", deserialize_with = "value_or_default")]
    pub is_external: bool,
    #[serde(default, rename = "provider:physical_network", deserialize_with = "value_or_default")]
    pub physical: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Subnet {
    #[serde(default, deserialize_with = "value_or_default")]
    pub network_id: String,
    #[serde(default)]
    pub gateway_ip: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Router {
    #[serde(default, rename = "admin_state_up", deserialize_with = "value_or_default")]
    pub is_up: bool,
    #[serde(default, rename = "external_gateway_info")]
    pub gateway: Option<Gateway>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Gateway {
    #[serde(default)]
    pub network_id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Port {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub network_id: String,
    #[serde(default)]
    pub created_at: Option<String>,
    #[serde(default)]
    pub fixed_ips: Vec<FixedIp>,
    #[serde(default)]
    pub device_owner: Option<String>,
    #[serde(default)]
    pub device_id: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct FixedIp {
    #[serde(default, deserialize_with = "value_or_default")]
    pub ip_address: String,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct FloatingIp {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub floating_ip_address: String,
    #[serde(default)]
    pub port_id: Option<String>,
    #[serde(default)]
    pub status: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct GlanceImage {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub name: String,
    #[serde(default, deserialize_with = "value_or_default")]
    pub status: String,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Zone {
    #[serde(default, rename = "zoneName", deserialize_with = "value_or_default")]
    pub name: String,
    #[serde(default, rename = "zoneState", deserialize_with = "value_or_default")]
    pub state: ZoneState,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct ZoneState {
    #[serde(default)]
    pub available: bool,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Volume {
    #[serde(deserialize_with = "id_text")]
    pub id: String,
    /// GB.
    #[serde(default, deserialize_with = "value_or_default")]
    pub size: f64,
}

/// The list under a key of a response; it is an error if the key is missing.
pub fn list<T: for<'de> Deserialize<'de>>(answer: &Value, key: &str) -> Result<Vec<T>, String> {
    let items = answer.get(key).ok_or_else(|| format!("the response has no `{key}`"))?;
    Vec::deserialize(items).map_err(|error| format!("cannot read `{key}` of the response: {error}"))
}

/// The value, or the default if it has an unexpected type: a malformed field must not hide a server.
pub fn value_or_default<'de, D: Deserializer<'de>, T: for<'a> Deserialize<'a> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let value = Value::deserialize(deserializer).map_err(D::Error::custom)?;
    Ok(T::deserialize(value).unwrap_or_default())
}

/// The same from the raw text of a response. It builds no intermediate `Value`, because there are thousands of servers.
fn raw_or_default<'de, D: Deserializer<'de>, T: for<'a> Deserialize<'a> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    let text = <&RawValue>::deserialize(deserializer)?;
    Ok(serde_json::from_str(text.get()).unwrap_or_default())
}

/// A number, or a number in a text; else 0.
fn number_or_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    Ok(number(&Value::deserialize(deserializer)?).unwrap_or_default())
}

/// A number, which some clouds write as a text.
pub fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())
}

/// An id, which some clouds write as a number.
fn id_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    struct IdVisitor;
    impl Visitor<'_> for IdVisitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an id")
        }

        fn visit_str<E: Error>(self, id: &str) -> Result<String, E> {
            Ok(id.to_owned())
        }

        fn visit_string<E: Error>(self, id: String) -> Result<String, E> {
            Ok(id)
        }

        fn visit_u64<E: Error>(self, id: u64) -> Result<String, E> {
            Ok(id.to_string())
        }
    }
    deserializer.deserialize_any(IdVisitor)
}

/// Metadata, whose values are strings in every conforming cloud.
fn metadata_texts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error> {
    let text = <&RawValue>::deserialize(deserializer)?.get();
    if let Ok(texts) = serde_json::from_str(text) {
        return Ok(texts);
    }
    let value: Value = serde_json::from_str(text).unwrap_or_default();
    let entries = value.as_object().into_iter().flatten();
    Ok(entries
        .map(|(key, value)| (key.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_types_of_ids_names_and_numbers_are_understood() {
        let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
        let ids: ServerIdPage = serde_json::from_str(r#"{"servers": [{"id": 138124}, {"id": "b"}]}"#).unwrap();
        assert_eq!(ids.servers.iter().map(|server| &*server.id).collect::<Vec<_>>(), ["138124", "b"]);
        let flavors = r#"{"flavors": [{"id": 1, "name": null, "ram": 1.048576e+06, "vcpus": "4"}]}"#;
        let flavors: Vec<Flavor> = list(&value(flavors), "flavors").unwrap();
        assert_eq!((flavors[0].name.as_str(), flavors[0].ram, flavors[0].vcpus), ("", 1_048_576.0, 4.0));
        let networks = r#"{"networks": [{"id": "7", "name": null, "provider:physical_network": true}]}"#;
        let networks: Vec<Network> = list(&value(networks), "networks").unwrap();
        assert_eq!((networks[0].name.as_str(), &networks[0].physical), ("", &None));
        let zones: Vec<Zone> = list(&value(r#"{"z": [{"zoneName": "nova", "zoneState": null}]}"#), "z").unwrap();
        assert!(!zones[0].state.available);
        let page: ServersPage = serde_json::from_str(r#"{"servers": [], "servers_links": null}"#).unwrap();
        assert!(page.servers_links.is_empty());
        assert!(serde_json::from_str::<IdOnly>(r#"{"id": null}"#).is_err());
    }

    #[test]
    fn malformed_fields_do_not_hide_a_server() {
        let text =
            br#"{"servers": [{"id": "a", "name": 5, "status": null, "addresses": [], "metadata": {"n": 7, "t": "x"},
            "fault": "none", "flavor": {"id": 1}, "hostId": {}, "OS-EXT-STS:task_state": "spawning"},
            {"id": "b", "metadata": {"k": "v"}}, {"id": "c", "metadata": "none", "accessIPv4": "192.0.2.1"}]}"#;
        let page: ServersPage = serde_json::from_slice(text).unwrap();
        let [a, b, c] = &page.servers[..] else { panic!("{page:?}") };
        assert_eq!((a.name.as_str(), a.status.as_str(), a.task_state.as_deref()), ("", "", Some("spawning")));
        assert!(a.addresses.is_empty() && a.fault.is_none() && a.flavor.is_none() && a.host_id.is_none());
        assert_eq!(a.metadata, BTreeMap::from([("n".to_owned(), "7".to_owned()), ("t".to_owned(), "x".to_owned())]));
        assert_eq!(b.metadata["k"], "v");
        assert!(c.metadata.is_empty());
        assert_eq!(c.access_ipv4.as_deref(), Some("192.0.2.1"));
    }
}
