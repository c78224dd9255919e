//! Faults: the calls or operations that each of them hits, and what its text says.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::str::FromStr;

use regex_lite::Regex;
use serde::{Deserialize, Serialize, Serializer};

use crate::knobs::is_nth;

/// The part of a fault that a service defines: what it does, and what it concerns.
pub trait FaultRule: Clone + Debug {
    /// A call, or an operation.
    type Subject<'a>;
    /// The keys besides those of the limits, for the message about an unknown one.
    const KEYS: &'static str;

    /// The rule of this kind, which concerns everything.
    fn of_kind(kind: &str) -> Result<Self, String>;

    /// Sets a key. `false` means that the rule has none of this name.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, String>;

    /// Whether the keys fit together.
    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn concerns(&self, subject: &Self::Subject<'_>) -> bool;
}

/// One fault of a knob, such as `503 every=2 times=10`: its kind, and pairs of key and value.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String", bound = "R: FaultRule")]
pub struct Fault<R> {
    text: String,
    rule: R,
    limits: Limits,
}

impl<R: FaultRule> FromStr for Fault<R> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A message is the rest of the line, because it contains spaces.
        let (head, message) = match text.split_once(" message=") {
            Some((head, message)) => (head, Some(("message", message))),
            None => (text, None),
        };
        let mut words = head.split_whitespace();
        let mut rule = R::of_kind(words.next().ok_or("a fault begins with its kind")?)?;
        let mut limits = Limits::default();
        let pairs = words.map(|word| word.split_once('=').ok_or_else(|| format!("{word} is not KEY=VALUE")));
        for pair in pairs.chain(message.map(Ok)) {
            let (key, value) = pair?;
            if !limits.set(key, value)? && !rule.set(key, value)? {
                return Err(format!("unknown key or value {key}={value}: expected every, after, times, {}", R::KEYS));
            }
        }
        rule.check()?;
        Ok(Self { text: text.to_owned(), rule, limits })
    }
}

impl<R: FaultRule> TryFrom<String> for Fault<R> {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl<R> From<Fault<R>> for String {
    fn from(fault: Fault<R>) -> Self {
        fault.text
    }
}

/// Values that a fault wants of what it concerns, and a pattern of paths.
#[derive(Clone, Debug, Default)]
pub struct Selection {
    values: BTreeMap<&'static str, String>,
    path: Option<Regex>,
}

impl Selection {
    /// Sets one of these keys, of which `path` takes a pattern. `false` means that the key is none of them.
    pub fn set(&mut self, keys: &[&'static str], key: &str, value: &str) -> Result<bool, String> {
        match keys.iter().find(|known| **known == key) {
            None => return Ok(false),
            Some(&"path") => {
                self.path = Some(Regex::new(value).map_err(|error| format!("path={value}: {error}"))?);
            }
            Some(known) => drop(self.values.insert(known, value.to_owned())),
        }
        Ok(true)
    }

    /// Whether something with this path is selected. `is` says whether it has the wanted value of a key.
    pub fn matches(&self, path: &str, is: impl Fn(&str, &str) -> bool) -> bool {
        self.values.iter().all(|(key, wanted)| is(key, wanted))
            && self.path.as_ref().is_none_or(|pattern| pattern.is_match(path))
    }
}

/// The calls that a fault hits, among those that it matches.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Every n-th matching call is hit.
    every: u64,
    /// The first n matching calls are not hit.
    after: u64,
    /// At most n calls are hit.
    times: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { every: 1, after: 0, times: u64::MAX }
    }
}

impl Limits {
    /// Sets a limit. `false` means that the key is none of `every`, `after` and `times`.
    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        let limit = match key {
            "every" => &mut self.every,
            "after" => &mut self.after,
            "times" => &mut self.times,
            _ => return Ok(false),
        };
        *limit = value.parse().map_err(|_| format!("{key}={value}: expected a number"))?;
        Ok(true)
    }

    /// Whether the fault hits the n-th matching call, counted from 1.
    fn hit(self, number: u64) -> bool {
        let number = number.saturating_sub(self.after);
        number > 0 && is_nth(self.every, number) && number / self.every <= self.times
    }
}

/// Matching calls and hits of each fault, in the order of the knob.
#[derive(Default)]
pub struct FaultCounts {
    matches: Vec<u64>,
    hits: Vec<u64>,
}

impl FaultCounts {
    /// The rules of the faults that hit something. Each fault that concerns it is counted.
    pub fn strike<'f, R: FaultRule>(&mut self, faults: &'f [Fault<R>], subject: &R::Subject<'_>) -> Vec<&'f R> {
        self.matches.resize(faults.len(), 0);
        self.hits.resize(faults.len(), 0);
        let mut struck = Vec::new();
        for (index, fault) in faults.iter().enumerate().filter(|(_, fault)| fault.rule.concerns(subject)) {
            self.matches[index] += 1;
            if fault.limits.hit(self.matches[index]) {
                self.hits[index] += 1;
                struck.push(&fault.rule);
            }
        }
        struck
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The hits of each fault.
impl Serialize for FaultCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.hits.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_select_the_calls_that_a_fault_hits() {
        let mut limits = Limits::default();
        for (key, value) in [("every", "2"), ("after", "1"), ("times", "2")] {
            assert_eq!(limits.set(key, value), Ok(true));
        }
        let hits: Vec<u64> = (1..=9).filter(|number| limits.hit(*number)).collect();
        assert_eq!(hits, [3, 5]);
        assert_eq!(limits.set("verb", "get"), Ok(false));
        assert!(limits.set("every", "x").is_err());
    }
}
