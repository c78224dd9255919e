//! Ids, hrefs and resource names (CRN), as IBM forms them.

use serde_json::{Value, json};

use crate::state::world::World;

/// The account of all resources.
pub const ACCOUNT: &str = "5a1c0dea2f6b4e0c9a7d3b8e1f405162";
/// Number of zones.
pub const ZONES: usize = 3;

const WORDS: [&str; 16] = [
    "amber", "basil", "cedar", "delta", "ember", "fable", "grove", "hazel", "ivory", "jolly", "koala", "lunar",
    "maple", "noble", "olive", "pearl",
];

impl World {
    fn uuid(&mut self) -> String {
        let (high, low) = (self.random(), self.random());
        uuid::Builder::from_random_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes())
            .into_uuid()
            .to_string()
    }

    /// The id of a resource of the region.
    pub fn regional_id(&mut self) -> String {
        format!("r006-{}", self.uuid())
    }

    /// The id of a resource of a zone.
    pub fn zonal_id(&mut self, zone: &str) -> String {
        let number = self.zone_number(zone).unwrap_or_default() + 1;
        format!("07{number}7-{}", self.uuid())
    }

    /// The id of an instance, which has another separator.
    pub fn instance_id(&mut self, zone: &str) -> String {
        self.zonal_id(zone).replacen('-', "_", 1)
    }

    /// An id without the prefix of a place, which resource groups have.
    pub fn plain_id(&mut self) -> String {
        self.uuid().replace('-', "")
    }

    /// The id of an error or a request.
    pub fn trace(&mut self) -> String {
        self.uuid()
    }

    /// A name for a resource that was created without one.
    pub fn new_name(&mut self) -> String {
        let (random, count) = (self.random(), self.random() % 1_000_000);
        let word = |shift: u32| WORDS[(random >> shift) as usize % WORDS.len()];
        format!("{}-{}-{}-n{count:06}", word(0), word(8), word(16))
    }

    pub fn zones(&self) -> impl Iterator<Item = String> {
        let region = self.options.region.clone();
        (1..=ZONES).map(move |number| format!("{region}-{number}"))
    }

    /// The number of a zone, from 0.
    pub fn zone_number(&self, name: &str) -> Option<usize> {
        self.zones().position(|zone| zone == name)
    }

    /// The URL of a path below `/v1`.
    pub fn href(&self, path: &str) -> String {
        format!("{}/v1/{path}", self.base)
    }

    /// The CRN of a resource in the region or in a zone.
    pub fn crn(&self, place: &str, kind: &str, id: &str) -> String {
        format!("crn:v1:bluemix:public:is:{place}:a/{ACCOUNT}::{kind}:{id}")
    }

    pub fn zone_reference(&self, zone: &str) -> Value {
        json!({"href": self.href(&format!("regions/{}/zones/{zone}", self.options.region)), "name": zone})
    }

    /// The reference to a resource group.
    pub fn group_reference(&self, id: &str) -> Value {
        let name = self.groups.get(id).map_or("", |group| group.name());
        json!({"href": format!("{}/v2/resource_groups/{id}", self.base), "id": id, "name": name})
    }
}

/// The fields of a resource's JSON that references to it have.
pub fn reference(value: &Value) -> Value {
    let mut reference = json!({});
    for field in ["crn", "fingerprint", "href", "id", "name", "resource_type"] {
        if let Some(found) = value.get(field) {
            reference[field] = found.clone();
        }
    }
    reference
}
