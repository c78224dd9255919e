//! The limits of a fault, and the count of the calls that it matches and hits.

use serde::{Serialize, Serializer};

use crate::knobs::is_nth;

/// The calls that a fault hits, among those that it matches.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
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
    pub fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
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

/// The kind of a fault, and its pairs of key and value.
pub type Words<'a> = (&'a str, Vec<(&'a str, &'a str)>);

/// Splits the text of a fault.
pub fn words(text: &str) -> Result<Words<'_>, String> {
    let mut words = text.split_whitespace();
    let kind = words.next().ok_or("a fault begins with its kind")?;
    let pairs = words.map(|word| word.split_once('=').ok_or_else(|| format!("{word} is not KEY=VALUE")));
    Ok((kind, pairs.collect::<Result<_, _>>()?))
}

/// Matching calls and hits of each fault, in the order of the knob.
#[derive(Default)]
pub struct FaultCounts {
    matches: Vec<u64>,
    hits: Vec<u64>,
}

impl FaultCounts {
    /// Prepares the counts of so many faults.
    pub fn resize(&mut self, faults: usize) {
        self.matches.resize(faults, 0);
        self.hits.resize(faults, 0);
    }

    /// Counts a call that the fault with this index matches, and returns whether the fault hits it.
    pub fn count(&mut self, index: usize, limits: Limits) -> bool {
        self.matches[index] += 1;
        let is_hit = limits.hit(self.matches[index]);
        self.hits[index] += u64::from(is_hit);
        is_hit
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
        for (key, value) in words("503 every=2 after=1 times=2").unwrap().1 {
            assert_eq!(limits.set(key, value), Ok(true));
        }
        let hits: Vec<u64> = (1..=9).filter(|number| limits.hit(*number)).collect();
        assert_eq!(hits, [3, 5]);
        assert_eq!(limits.set("verb", "get"), Ok(false));
        assert!(limits.set("every", "x").is_err());
    }
}
