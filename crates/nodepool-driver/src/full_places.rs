//! Memory of full places, which all launches of a provider share: a place without capacity is skipped for a while.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

/// `P` is what may be full: for example, an instance type in a zone.
#[derive(Debug)]
pub struct FullPlaces<P> {
    skipped_for: Duration,
    full: BTreeMap<P, Full>,
}

/// The end of the time for which a place is skipped.
#[derive(Clone, Copy, Debug)]
struct Full {
    until: Instant,
    /// The same for people.
    wall: DateTime<Utc>,
}

impl<P: Clone + Display + Ord> FullPlaces<P> {
    pub fn new(skipped_for: Duration) -> Self {
        Self { skipped_for, full: BTreeMap::new() }
    }

    /// The place has no capacity now.
    pub fn insert(&mut self, place: P, now: Instant) {
        let full = Full { until: now + self.skipped_for, wall: Utc::now() + self.skipped_for };
        self.full.insert(place, full);
    }

    /// The place has capacity.
    pub fn remove(&mut self, place: &P) {
        self.full.remove(place);
    }

    /// The places to try, in their order, without the full ones. If all are full, the one that was full first is tried.
    pub fn usable(&mut self, places: Vec<P>, now: Instant) -> Vec<P> {
        self.full.retain(|_, full| full.until > now);
        let usable: Vec<P> = places.iter().filter(|place| !self.full.contains_key(*place)).cloned().collect();
        if !usable.is_empty() {
            return usable;
        }
        places.into_iter().min_by_key(|place| self.full.get(place).map(|full| full.until)).into_iter().collect()
    }

    /// Those of these places that are skipped now, for `nodepool why`; `None` if there are none.
    pub fn describe(&self, places: &[P], now: Instant) -> Option<String> {
        let full = places.iter().filter_map(|place| Some((place, self.full.get(place)?)));
        let skipped = full.filter(|(_, full)| full.until > now);
        let texts: Vec<String> = skipped
            .map(|(place, full)| format!("{place} is full until {} UTC", full.wall.format("%H:%M:%S")))
            .collect();
        (!texts.is_empty()).then(|| texts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SKIPPED_FOR: Duration = Duration::from_secs(180);

    #[test]
    fn a_full_place_is_skipped_for_a_while() {
        let (mut full, now) = (FullPlaces::new(SKIPPED_FOR), Instant::now());
        let all = || vec!["a", "b"];
        full.insert("a", now);
        assert_eq!(full.usable(all(), now), ["b"]);
        let text = full.describe(&all(), now).unwrap();
        assert!(text.starts_with("a is full until ") && text.ends_with(" UTC"), "{text}");
        assert_eq!(full.describe(&all(), now + SKIPPED_FOR), None);
        assert_eq!(full.usable(all(), now + SKIPPED_FOR), all());
        full.insert("b", now);
        full.remove(&"b");
        assert_eq!(full.usable(all(), now), all());
    }

    #[test]
    fn if_all_places_are_full_the_one_that_was_full_first_is_tried() {
        let (mut full, now) = (FullPlaces::new(SKIPPED_FOR), Instant::now());
        full.insert("b", now);
        full.insert("a", now + Duration::from_secs(1));
        assert_eq!(full.usable(vec!["a", "b"], now + Duration::from_secs(2)), ["b"]);
    }
}
