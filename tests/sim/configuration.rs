//! What the launchers of an hour serve.

use serde_json::{Value, json};

use crate::grown::fake::{self, provider};

/// Both launchers have the provider in the middle.
pub const PROVIDERS: [&str; 3] = ["north", "middle", "south"];
pub const LAUNCHERS: [Launcher; 2] = [
    Launcher { name: "east", providers: ["north", "middle"], own: "north" },
    Launcher { name: "west", providers: ["middle", "south"], own: "south" },
];
pub const LABELS: &[&str] = &["a", "b"];

pub struct Launcher {
    pub name: &'static str,
    pub providers: [&'static str; 2],
    /// What nobody else serves: there its limits hold strictly, while two that count at the same time may exceed theirs.
    pub own: &'static str,
}

/// What a reload changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    pub max_servers: usize,
    /// Of the label `a`.
    pub min_ready: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { max_servers: 8, min_ready: 1 }
    }
}

impl Launcher {
    pub fn yaml(&self, sizes: Sizes) -> String {
        let of_pool = json!({"max-servers": sizes.max_servers, "host-key-checking": false});
        let section = |name: &&str| provider(name, json!({"launch-timeout": 180}), of_pool.clone());
        let sections: Vec<Value> = self.providers.iter().map(section).collect();
        let mut configuration = fake::configuration(&sections);
        configuration["labels"] = json!([{"name": "a", "min-ready": sizes.min_ready}, {"name": "b"}]);
        configuration.to_string()
    }
}
