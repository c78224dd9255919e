//! Values of knobs that are more than a number: amounts by name, and choices.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Amounts by name: `cores=100,virtualMachines=20`. In JSON they may also be an object.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "AmountsValue", into = "BTreeMap<String, u64>")]
pub struct Amounts(pub BTreeMap<String, u64>);

#[derive(Deserialize)]
#[serde(untagged)]
enum AmountsValue {
    Map(BTreeMap<String, u64>),
    Text(String),
}

impl FromStr for Amounts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let amount = |pair: &str| {
            let (name, amount) = pair.split_once('=').ok_or_else(|| format!("{pair} is not NAME=N"))?;
            Ok((name.to_owned(), amount.parse().map_err(|_| format!("{amount} is not a number"))?))
        };
        text.split(',').filter(|pair| !pair.is_empty()).map(amount).collect::<Result<_, String>>().map(Self)
    }
}

impl TryFrom<AmountsValue> for Amounts {
    type Error = String;

    fn try_from(value: AmountsValue) -> Result<Self, String> {
        match value {
            AmountsValue::Map(map) => Ok(Self(map)),
            AmountsValue::Text(text) => text.parse(),
        }
    }
}

impl From<Amounts> for BTreeMap<String, u64> {
    fn from(amounts: Amounts) -> Self {
        amounts.0
    }
}

/// The headers of a long operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OperationStyle {
    /// `Azure-AsyncOperation`.
    Async,
    /// `Location`.
    Location,
    /// As in Azure: `Azure-AsyncOperation`, and `Location` for deletions and actions.
    Both,
}

/// Resources that exist after the failure of an accepted creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailedCreation {
    /// The virtual machine as Failed, with its parts.
    Vm,
    /// Its interfaces, public IPs and disk without it.
    Parts,
    Nothing,
}

/// The public IP within an interface's address configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NestedPublicIp {
    Full,
    Id,
}

/// A part of a virtual machine that remains after its deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    Nic,
    Ip,
    Disk,
}
