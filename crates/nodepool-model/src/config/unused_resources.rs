//! What is deleted now and then though it bears no mark of ours: floating addresses, ports.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::records::time::Seconds;

/// What is deleted now and then though it bears no mark of ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct UnusedResourcePolicy {
    pub floating_ips: bool,
    /// Unused ports, seen in two looks so far apart.
    pub ports: Option<Seconds>,
}

/// What a tidy-up does with what it finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CleanMode {
    /// At most so many of each kind; of more, none.
    Delete { budget: usize },
    /// It only tells what would be deleted, however many there are.
    DryRun,
}

/// What a tidy-up found and did, by the plural that metrics know things by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanReport {
    pub deleted: BTreeMap<&'static str, usize>,
    /// Too many to be deleted.
    pub exceeded: BTreeMap<&'static str, usize>,
    /// Of a mere look: the ids of all that nobody uses.
    pub unused: BTreeMap<&'static str, Vec<String>>,
    /// Of what not all could be listed or deleted, with the first error.
    pub failed: BTreeMap<&'static str, String>,
}
