//! Names and ids as distinct types, so that a pool name cannot be passed as a provider name.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Name or id of one kind of object. Clones share its text.
pub struct Id<K> {
    text: Arc<str>,
    kind: PhantomData<fn() -> K>,
}

/// Markers for the kinds of named objects. Never constructed.
pub mod kind {
    pub enum Node {}
    pub enum Request {}
    pub enum Provider {}
    pub enum Pool {}
    pub enum Label {}
    pub enum Launcher {}
    pub enum Tenant {}
    pub enum Image {}
    pub enum Build {}
    pub enum Upload {}
}

/// Ten digits, e.g. `0000000042`.
pub type NodeId = Id<kind::Node>;
/// `<priority>-<sequence>`, e.g. `200-0000000042`.
pub type RequestId = Id<kind::Request>;
pub type ProviderName = Id<kind::Provider>;
pub type PoolName = Id<kind::Pool>;
pub type LabelName = Id<kind::Label>;
/// Identity of one pool worker: `<fqdn>-PoolWorker.<provider>-<pool>-<32 hex>`; opaque to others.
pub type LauncherId = Id<kind::Launcher>;
pub type TenantName = Id<kind::Tenant>;
pub type ImageName = Id<kind::Image>;
pub type BuildId = Id<kind::Build>;
pub type UploadId = Id<kind::Upload>;

/// Identity of a pool. The pool's name alone is unique only within its provider.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct PoolId {
    pub provider: ProviderName,
    pub pool: PoolName,
}

impl PoolId {
    pub fn new(provider: impl Into<ProviderName>, pool: impl Into<PoolName>) -> Self {
        Self { provider: provider.into(), pool: pool.into() }
    }
}

impl fmt::Display for PoolId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.provider, self.pool)
    }
}

impl<K> Id<K> {
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), kind: PhantomData }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl RequestId {
    /// The priority text before the dash; the whole id if there is no dash.
    pub fn priority(&self) -> &str {
        self.as_str().split_once('-').map_or(self.as_str(), |(priority, _)| priority)
    }

    /// The sequence text after the dash; empty if there is no dash.
    pub fn sequence(&self) -> &str {
        self.as_str().split_once('-').map_or("", |(_, sequence)| sequence)
    }
}

impl<K> Clone for Id<K> {
    fn clone(&self) -> Self {
        Self { text: self.text.clone(), kind: PhantomData }
    }
}
impl<K> PartialEq for Id<K> {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}
impl<K> Eq for Id<K> {}
impl<K> PartialOrd for Id<K> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Id<K> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}
impl<K> Hash for Id<K> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}
impl<K> fmt::Debug for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}
impl<K> fmt::Display for Id<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}
impl<K> From<&str> for Id<K> {
    fn from(text: &str) -> Self {
        Self::new(text)
    }
}
impl<K> From<String> for Id<K> {
    fn from(text: String) -> Self {
        Self::new(text)
    }
}
impl<K> std::borrow::Borrow<str> for Id<K> {
    fn borrow(&self) -> &str {
        &self.text
    }
}
impl<K> AsRef<str> for Id<K> {
    fn as_ref(&self) -> &str {
        self.as_str()
    }
}

impl<K> Serialize for Id<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}
impl<'de, K> Deserialize<'de> for Id<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(String::deserialize(deserializer)?))
    }
}

/// A driver's identifier of its resource: text, or a JSON object if one text is not enough.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ExternalId {
    Text(String),
    Object(serde_json::Map<String, serde_json::Value>),
}

impl ExternalId {
    pub fn text(text: impl Into<String>) -> Self {
        ExternalId::Text(text.into())
    }

    /// Whether both name the same resource. Of an id of several parts, one side may have only some.
    pub fn is_same(&self, other: &ExternalId) -> bool {
        match (self, other) {
            (ExternalId::Object(parts), ExternalId::Object(others)) => {
                let mut shared = parts.iter().filter_map(|(name, part)| Some((part, others.get(name)?))).peekable();
                parts == others || (shared.peek().is_some() && shared.all(|(part, other)| part == other))
            }
            (ExternalId::Text(text), ExternalId::Object(parts))
            | (ExternalId::Object(parts), ExternalId::Text(text)) => {
                parts.values().any(|part| part.as_str() == Some(text))
            }
            (ExternalId::Text(text), ExternalId::Text(other)) => text == other,
        }
    }

    /// Reads the value of a record; `None` if no resource was created.
    pub fn of(recorded: &serde_json::Value) -> Option<Self> {
        Self::deserialize(recorded).ok()
    }
}

impl fmt::Display for ExternalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExternalId::Text(text) => f.write_str(text),
            ExternalId::Object(object) => match serde_json::to_string(object) {
                Ok(json) => f.write_str(&json),
                Err(_) => Err(fmt::Error),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_with_a_part_in_common_name_the_same() {
        let id = |text: &str| serde_json::from_str::<ExternalId>(text).unwrap();
        let whole = id(r#"{"host": "h", "instance": "i"}"#);
        assert!(
            whole.is_same(&id(r#"{"instance": "i"}"#)) && whole.is_same(&id(r#""i""#)) && id(r#""i""#).is_same(&whole)
        );
        assert!(!whole.is_same(&id(r#"{"host": "h", "instance": "j"}"#)) && !whole.is_same(&id(r#""j""#)));
        assert!(!id(r#"{"host": "h"}"#).is_same(&id(r#"{"instance": "i"}"#)));
    }

    #[test]
    fn a_request_id_splits_at_its_dash() {
        let id = RequestId::from("200-0000000042");
        assert_eq!((id.priority(), id.sequence()), ("200", "0000000042"));
        let odd = RequestId::from("oops");
        assert_eq!((odd.priority(), odd.sequence()), ("oops", ""));
    }

    #[test]
    fn an_external_id_is_text_or_an_object_on_the_wire() {
        for json in [r#""host-1""#, r#"{"pod":"a","namespace":"b"}"#] {
            let id: ExternalId = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_string(&id).unwrap(), json);
        }
        assert!(serde_json::from_str::<ExternalId>("[1]").is_err());
        assert_eq!(ExternalId::text("host-1").to_string(), "host-1");
    }
}
