//! Quantities of named resources, with a default for absent names: 0 for usage and needs, infinity for limits.

use std::borrow::Cow;

use serde::{Serialize, Serializer};

/// Cores, ram (MiB), instances and other resources that a driver counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Resources {
    /// List sorted by name: there are few names and many such lists, one for each instance of a cloud.
    named: Vec<(Name, f64)>,
    default: f64,
}

type Name = Cow<'static, str>;

/// Common names, which are borrowed and need no allocation.
const NAMES: [&str; 7] = ["cores", "instances", "ram", "volumes", "volume-gb", PORTS, FLOATING_IPS];

/// Network resources, which are counted but never written into a record. Nodepool 11 would find no limit for them in
/// its cloud, use 0 as the limit, and stop launching.
pub const PORTS: &str = "ports";
pub const FLOATING_IPS: &str = "floating-ips";

fn named(name: &str) -> Name {
    let known = NAMES.into_iter().find(|known| *known == name);
    known.map_or_else(|| Cow::Owned(name.to_owned()), Cow::Borrowed)
}

impl Resources {
    /// Nothing used, nothing needed.
    pub fn none() -> Self {
        Self { named: Vec::new(), default: 0.0 }
    }

    /// No limit on anything.
    pub fn unlimited() -> Self {
        Self { named: Vec::new(), default: f64::INFINITY }
    }

    pub fn with(mut self, name: &str, amount: f64) -> Self {
        self.set(name, amount);
        self
    }

    pub fn set(&mut self, name: &str, amount: f64) {
        match self.position(name) {
            Ok(index) => self.named[index].1 = amount,
            Err(index) => self.named.insert(index, (named(name), amount)),
        }
    }

    pub fn remove(&mut self, name: &str) {
        if let Ok(index) = self.position(name) {
            self.named.remove(index);
        }
    }

    pub fn get(&self, name: &str) -> f64 {
        self.position(name).map_or(self.default, |index| self.named[index].1)
    }

    fn position(&self, name: &str) -> Result<usize, usize> {
        self.named.binary_search_by(|(known, _)| (**known).cmp(name))
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.named.iter().map(|(name, _)| &**name)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.named.iter().map(|(name, amount)| (&**name, *amount))
    }

    /// Only the resources that records contain (`true`), or only the others (`false`).
    pub fn recorded(&self, recorded: bool) -> Resources {
        let is_recorded = |name: &str| ![PORTS, FLOATING_IPS].contains(&name);
        self.iter()
            .filter(|(name, _)| is_recorded(name) == recorded)
            .map(|(name, amount)| (name.to_owned(), amount))
            .collect()
    }

    pub fn times(&self, count: f64) -> Resources {
        self.iter().map(|(name, amount)| (name.to_owned(), amount * count)).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.named.is_empty()
    }

    pub fn add(&mut self, other: &Resources) {
        self.combine(other, |own, theirs| own + theirs);
    }

    pub fn subtract(&mut self, other: &Resources) {
        self.combine(other, |own, theirs| own - theirs);
    }

    /// First resource whose needed quantity exceeds the available one: its name, the needed and the available quantity.
    pub fn shortage(&self, need: &Resources) -> Option<(String, f64, f64)> {
        need.iter()
            .find(|(name, wanted)| self.get(name) < *wanted)
            .map(|(name, wanted)| (name.to_owned(), wanted, self.get(name)))
    }

    fn combine(&mut self, other: &Resources, operation: impl Fn(f64, f64) -> f64) {
        for (name, own) in &mut self.named {
            *own = operation(*own, other.get(name));
        }
        for (name, theirs) in &other.named {
            if let Err(index) = self.position(name) {
                self.named.insert(index, (name.clone(), operation(self.default, *theirs)));
            }
        }
    }
}

/// No resources.
impl Default for Resources {
    fn default() -> Self {
        Self::none()
    }
}

impl FromIterator<(String, f64)> for Resources {
    fn from_iter<I: IntoIterator<Item = (String, f64)>>(pairs: I) -> Self {
        let mut resources = Self::none();
        pairs.into_iter().for_each(|(name, amount)| resources.set(&name, amount));
        resources
    }
}

/// Serializes the named quantities for dumps; a quantity without a limit is `null`.
impl Serialize for Resources {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(name, amount)| (name, amount.is_finite().then_some(amount))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_limits_are_infinite_and_absent_needs_nothing() {
        let limit = Resources::unlimited().with("cores", 8.0);
        let need = Resources::none().with("cores", 9.0).with("ram", 1e9);
        assert_eq!(limit.shortage(&need), Some(("cores".to_owned(), 9.0, 8.0)));
        assert_eq!(Resources::unlimited().shortage(&need), None);
    }

    #[test]
    fn use_is_taken_off_a_limit() {
        let mut limit = Resources::unlimited().with("cores", 8.0);
        limit.subtract(&Resources::none().with("cores", 3.0).with("ram", 4.0));
        assert_eq!((limit.get("cores"), limit.get("ram")), (5.0, f64::INFINITY));
    }
}
