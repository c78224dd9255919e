//! Objects of IBM's APIs, with the fields that the driver reads.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::common::tolerant_json;

/// One page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The parameter `start` of the next page.
    pub next: Option<String>,
}

impl<T: DeserializeOwned> Page<T> {
    /// Reads a page whose items have this key. One without the key is no empty list.
    pub fn read(body: &[u8], key: &str) -> Result<Self, String> {
        let page: BTreeMap<String, &RawValue> = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let items = page.get(key).ok_or_else(|| format!("there is no {key}"))?;
        let items: Vec<_> = serde_json::from_str(items.get()).map_err(|_| format!("{key} is no list"))?;
        let items = tolerant_json::read_elements(key, &items, &["id", "name", "status", "resource_group"]);
        let next: Value = page.get("next").and_then(|next| serde_json::from_str(next.get()).ok()).unwrap_or_default();
        let next = match next["href"].as_str() {
            Some(href) => Some(start_of(href).ok_or_else(|| format!("the next page {href} has no start"))?),
            None => None,
        };
        Ok(Self { items, next })
    }
}

fn start_of(href: &str) -> Option<String> {
    // Some links lack the host.
    let base = reqwest::Url::parse("http://localhost").ok()?;
    let url = base.join(href).ok()?;
    url.query_pairs().find(|(key, _)| key == "start").map(|(_, value)| value.into_owned())
}

/// A reference to another object. The name is missing in some lists.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Reference {
    pub id: String,
    pub name: Option<String>,
}

/// A name or an id alone, such as that of a zone.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Named {
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct VpcInstance {
    pub id: String,
    pub name: String,
    pub status: String,
    pub status_reasons: Vec<StatusReason>,
    pub resource_group: Reference,
    pub zone: Named,
    pub profile: Named,
    pub vcpu: Count,
    /// In GiB.
    pub memory: f64,
    pub primary_network_interface: Interface,
    pub primary_network_attachment: Option<Attachment>,
    pub boot_volume_attachment: Named,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Count {
    pub count: f64,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct StatusReason {
    pub code: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Interface {
    pub id: String,
    pub primary_ip: Option<Address>,
    /// The address in old versions of the API.
    pub primary_ipv4_address: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Attachment {
    pub virtual_network_interface: Reference,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Address {
    pub address: String,
}

impl VpcInstance {
    /// The private address. IBM shows zeros until it has selected one.
    pub fn private_ipv4(&self) -> Option<String> {
        let interface = &self.primary_network_interface;
        let current = interface.primary_ip.as_ref().map(|ip| ip.address.clone());
        let address = current.or_else(|| interface.primary_ipv4_address.clone());
        address.filter(|address| !address.is_empty() && address != "0.0.0.0")
    }

    /// Whether a floating IP with this target is attached to the instance.
    pub fn has_interface(&self, target: &str) -> bool {
        let of_attachment = self.primary_network_attachment.as_ref().map(|own| &own.virtual_network_interface.id);
        self.primary_network_interface.id == target || of_attachment.is_some_and(|id| id == target)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FloatingIp {
    pub id: String,
    pub name: String,
    pub status: String,
    pub address: String,
    pub resource_group: Reference,
    pub target: Option<Reference>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Image {
    pub id: String,
    pub name: String,
    pub status: String,
    pub status_reasons: Vec<StatusReason>,
    /// Not in new versions of the API.
    pub owner_type: Option<String>,
    pub visibility: String,
    pub created_at: String,
    /// The operating system has fields that filters name.
    pub operating_system: Value,
    pub resource_group: Reference,
}

impl Image {
    /// `user` or `provider`.
    pub fn owner_type(&self) -> &str {
        let derived = if self.visibility == "public" { "provider" } else { "user" };
        self.owner_type.as_deref().unwrap_or(derived)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Volume {
    pub id: String,
    pub name: String,
    pub status: String,
    pub attachment_state: String,
    pub resource_group: Reference,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Subnet {
    pub id: String,
    pub name: String,
    pub zone: Named,
    pub vpc: Reference,
}

/// A VPC, a key, or a resource group.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Thing {
    pub id: String,
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Profile {
    pub name: String,
    pub vcpu_count: Amount,
    /// In GiB.
    pub memory: Amount,
}

/// A number; profiles with a range have none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Amount {
    pub value: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_names_the_next_one() {
        let body =
            br#"{"keys": [{"id": "k", "name": "n"}], "next": {"href": "https://h/v1/keys?limit=1&start=a%3Db"}}"#;
        let page: Page<Thing> = Page::read(body, "keys").unwrap();
        assert_eq!((page.items.len(), page.next.as_deref()), (1, Some("a=b")));
        assert_eq!(Page::<Thing>::read(br#"{"keys": []}"#, "keys"), Ok(Page { items: Vec::new(), next: None }));
        Page::<Thing>::read(b"{}", "keys").unwrap_err();
    }

    #[test]
    fn addresses_of_old_and_new_versions_are_read() {
        let address = |interface: &str| {
            let text = format!("{{\"primary_network_interface\": {interface}}}");
            serde_json::from_str::<VpcInstance>(&text).unwrap().private_ipv4()
        };
        assert_eq!(address(r#"{"primary_ip": {"address": "10.0.0.4"}}"#).as_deref(), Some("10.0.0.4"));
        assert_eq!(address(r#"{"primary_ipv4_address": "10.0.0.5"}"#).as_deref(), Some("10.0.0.5"));
        assert_eq!(address(r#"{"primary_ip": {"address": "0.0.0.0"}}"#), None);
    }
}
