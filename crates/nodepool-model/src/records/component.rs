//! Registered components: which launchers, pools and builders are online, and what they offer.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ids::{LabelName, LauncherId, PoolName, ProviderName};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ComponentKind {
    Builder,
    Launcher,
    Pool,
}

impl ComponentKind {
    pub const ALL: [ComponentKind; 3] = [ComponentKind::Builder, ComponentKind::Launcher, ComponentKind::Pool];

    pub fn as_str(self) -> &'static str {
        match self {
            ComponentKind::Builder => "builder",
            ComponentKind::Launcher => "launcher",
            ComponentKind::Pool => "pool",
        }
    }
}

/// A launcher's or builder's registration. Keys are written in sorted order, as peers write them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Component {
    #[serde(default)]
    pub hostname: String,
    pub kind: ComponentKind,
    #[serde(default)]
    pub model_api: i64,
    #[serde(default = "stopped")]
    pub state: String,
    #[serde(default)]
    pub version: Option<String>,
    /// `host:port` of the web server, which the CLI uses to find a launcher; peers ignore the key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webapp: Option<String>,
}

/// A pool worker's registration: all that the scheduler knows about other pools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolComponent {
    #[serde(default)]
    pub hostname: String,
    #[serde(default)]
    pub id: Option<LauncherId>,
    pub kind: ComponentKind,
    #[serde(default)]
    pub model_api: i64,
    #[serde(default)]
    pub name: Option<PoolName>,
    #[serde(default)]
    pub paused: bool,
    /// Lower is preferred.
    #[serde(default = "default_priority")]
    pub priority: i64,
    #[serde(default)]
    pub provider_name: Option<ProviderName>,
    #[serde(default = "stopped")]
    pub state: String,
    #[serde(default)]
    pub supported_labels: BTreeSet<LabelName>,
    #[serde(default)]
    pub version: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webapp: Option<String>,
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

pub const DEFAULT_PRIORITY: i64 = 100;

fn default_priority() -> i64 {
    DEFAULT_PRIORITY
}

fn stopped() -> String {
    "stopped".to_owned()
}

impl PoolComponent {
    /// Whether the pool's launcher adopts abandoned requests of other launchers together with their booting nodes.
    /// Nodepool up to version 11 launches new nodes instead.
    pub fn resumes_launches(&self) -> bool {
        let major = self.version.as_deref().and_then(|version| version.split('.').next()?.parse::<u32>().ok());
        self.state == "running" && major.is_some_and(|major| major >= 12)
    }

    pub fn serves(&self, labels: &BTreeSet<&LabelName>) -> bool {
        labels.iter().all(|label| self.supported_labels.contains(*label))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::json;

    #[test]
    fn missing_keys_of_a_pool_take_their_defaults() {
        let pool: PoolComponent = json::from_bytes(br#"{"kind": "pool", "id": "x"}"#).unwrap();
        assert_eq!((pool.model_api, pool.priority, pool.paused), (0, 100, false));
    }

    #[test]
    fn keys_are_written_in_sorted_order() {
        let pool: PoolComponent = json::from_bytes(br#"{"kind": "pool", "id": "x", "hostname": "h"}"#).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&json::to_bytes(&pool)).unwrap();
        let keys: Vec<&String> = value.as_object().unwrap().keys().collect();
        assert!(keys.is_sorted(), "{keys:?}");
    }
}
