//! Places without capacity, and the values of quotas, as knobs.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A place that answers `InsufficientInstanceCapacity`: an instance type, a zone or subnet, and `spot` or `on-demand`;
/// `*` stands for all.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FullPlace {
    instance_type: String,
    place: String,
    lifecycle: String,
}

impl FullPlace {
    pub fn contains(&self, instance_type: &str, zone: &str, subnet: &str, is_spot: bool) -> bool {
        let lifecycle = if is_spot { "spot" } else { "on-demand" };
        let matches = |pattern: &str, values: &[&str]| pattern == "*" || values.contains(&pattern);
        matches(&self.instance_type, &[instance_type])
            && matches(&self.place, &[zone, subnet])
            && matches(&self.lifecycle, &[lifecycle])
    }
}

impl FromStr for FullPlace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let (&instance_type, rest) = words.split_first().ok_or("a full place begins with an instance type")?;
        let (place, lifecycle) = match rest {
            [] => ("*", "*"),
            [place] => (*place, "*"),
            [place, lifecycle @ ("spot" | "on-demand" | "*")] => (*place, *lifecycle),
            _ => return Err(format!("{text} is not TYPE [ZONE|SUBNET [spot|on-demand]]")),
        };
        let [instance_type, place, lifecycle] = [instance_type, place, lifecycle].map(str::to_owned);
        Ok(Self { instance_type, place, lifecycle })
    }
}

impl TryFrom<String> for FullPlace {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<FullPlace> for String {
    fn from(place: FullPlace) -> Self {
        format!("{} {} {}", place.instance_type, place.place, place.lifecycle)
    }
}

/// Applied values of quotas by code: `L-1216C47A=100,L-34B43A08=50` on the command line, an object in JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QuotaValues(pub BTreeMap<String, f64>);

impl FromStr for QuotaValues {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let pair = |pair: &str| {
            let (code, value) = pair.split_once('=').ok_or_else(|| format!("{pair} is not CODE=VALUE"))?;
            Ok((code.to_owned(), value.parse().map_err(|_| format!("{pair}: expected a number"))?))
        };
        text.split(',').filter(|part| !part.is_empty()).map(pair).collect::<Result<_, String>>().map(Self)
    }
}
