//! Amounts of named resources, with a default for names that are absent: 0 for use and need, infinity for limits.

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// Cores, ram (MiB), instances and whatever else a driver counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Amounts {
    named: BTreeMap<String, f64>,
    default: f64,
}

impl Amounts {
    /// Nothing used, nothing needed.
    pub fn none() -> Self {
        Self { named: BTreeMap::new(), default: 0.0 }
    }

    /// No limit on anything.
    pub fn unlimited() -> Self {
        Self { named: BTreeMap::new(), default: f64::INFINITY }
    }

    pub fn with(mut self, name: &str, amount: f64) -> Self {
        self.set(name, amount);
        self
    }

    pub fn set(&mut self, name: &str, amount: f64) {
        self.named.insert(name.to_owned(), amount);
    }

    pub fn get(&self, name: &str) -> f64 {
        self.named.get(name).copied().unwrap_or(self.default)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.keys().map(String::as_str)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.named.iter().map(|(name, amount)| (name.as_str(), *amount))
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    pub fn add(&mut self, other: &Amounts) {
        self.combine(other, |own, theirs| own + theirs);
    }

    pub fn subtract(&mut self, other: &Amounts) {
        self.combine(other, |own, theirs| own - theirs);
    }

    /// The first resource of which `need` takes more than is here, with what is here.
    pub fn shortage(&self, need: &Amounts) -> Option<(String, f64, f64)> {
        need.iter()
            .find(|(name, wanted)| self.get(name) < *wanted)
            .map(|(name, wanted)| (name.to_owned(), wanted, self.get(name)))
    }

    fn combine(&mut self, other: &Amounts, operation: impl Fn(f64, f64) -> f64) {
        for name in other.named.keys() {
            let own = self.get(name);
            self.named.insert(name.clone(), operation(own, other.get(name)));
        }
        for (name, own) in &mut self.named {
            if !other.named.contains_key(name) {
                *own = operation(*own, other.default);
            }
        }
    }
}

impl FromIterator<(String, f64)> for Amounts {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(pairs: I) -> Self {
        Self { named: pairs.into_iter().collect(), default: 0.0 }
    }
}

/// For dumps: the named amounts, `null` for those without a limit.
impl Serialize for Amounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.named.iter().map(|(name, amount)| (name, amount.is_finite().then_some(amount))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_limits_are_infinite_and_absent_needs_nothing() {
        let limit = Amounts::unlimited().with("cores", 8.0);
        let need = Amounts::none().with("cores", 9.0).with("ram", 1e9);
        assert_eq!(limit.shortage(&need), Some(("cores".to_owned(), 9.0, 8.0)));
        assert_eq!(Amounts::unlimited().shortage(&need), None);
    }

    #[test]
    fn use_is_taken_off_a_limit() {
        let mut limit = Amounts::unlimited().with("cores", 8.0);
        limit.subtract(&Amounts::none().with("cores", 3.0).with("ram", 4.0));
        assert_eq!((limit.get("cores"), limit.get("ram")), (5.0, f64::INFINITY));
    }
}
