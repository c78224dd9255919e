//! A time in seconds, or a range of times.

use std::fmt::{self, Display};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Shortest and longest time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "SecondsText", into = "String")]
pub struct SecondsRange {
    low: f64,
    high: f64,
}

/// A knob's value in JSON: a number, or text as on the command line.
#[derive(Deserialize)]
#[serde(untagged)]
enum SecondsText {
    Number(f64),
    Text(String),
}

impl SecondsRange {
    /// The time for a number, of which those of a uniform distribution give uniformly distributed times.
    pub fn at(self, random: u64) -> f64 {
        self.low + (self.high - self.low) * (random % 1_000_001) as f64 / 1e6
    }
}

impl FromStr for SecondsRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (low, high) = text.split_once('-').unwrap_or((text, text));
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|number| (0.0..1e9).contains(number));
        match (number(low), number(high)) {
            (Some(low), Some(high)) if low <= high => Ok(Self { low, high }),
            _ => Err(format!("{text} is not a time: expected seconds (2.5) or a range (2-5)")),
        }
    }
}

impl TryFrom<SecondsText> for SecondsRange {
    type Error = String;

    fn try_from(value: SecondsText) -> Result<Self, String> {
        match value {
            SecondsText::Number(number) => number.to_string().parse(),
            SecondsText::Text(text) => text.parse(),
        }
    }
}

impl From<SecondsRange> for String {
    fn from(range: SecondsRange) -> Self {
        range.to_string()
    }
}

impl Display for SecondsRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.low == self.high {
            true => write!(formatter, "{}", self.low),
            false => write!(formatter, "{}-{}", self.low, self.high),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_two_numbers_in_order() {
        let range: SecondsRange = "0.5-2".parse().unwrap();
        assert_eq!((range.at(0), range.at(1_000_000), range.to_string()), (0.5, 2.0, "0.5-2".to_owned()));
        assert_eq!("3".parse::<SecondsRange>().unwrap().to_string(), "3");
        for wrong in ["2-1", "-1", "x", "", "1-x", "nan"] {
            assert!(wrong.parse::<SecondsRange>().is_err(), "{wrong}");
        }
    }
}
