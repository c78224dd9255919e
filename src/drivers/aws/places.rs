//! Memory of full places, which all launches of a provider share: a place without capacity is skipped for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::time::Instant;

use super::label::Place;

/// Time for which a full place is skipped.
const SKIPPED_FOR: Duration = Duration::from_secs(180);

#[derive(Debug, Default)]
pub struct FullPlaces(BTreeMap<Place, Full>);

/// The end of the time for which a place is skipped.
#[derive(Clone, Copy, Debug)]
struct Full {
    until: Instant,
    /// The same for people.
    wall: DateTime<Utc>,
}

impl FullPlaces {
    /// The place has no capacity now.
    pub fn insert(&mut self, place: Place, now: Instant) {
        self.0.insert(place, Full { until: now + SKIPPED_FOR, wall: Utc::now() + SKIPPED_FOR });
    }

    /// The place has capacity.
    pub fn remove(&mut self, place: &Place) {
        self.0.remove(place);
    }

    /// The places to try, in their order, without the full ones. If all are full, the one that was full first is tried.
    pub fn usable(&mut self, places: Vec<Place>, now: Instant) -> Vec<Place> {
        self.0.retain(|_, full| full.until > now);
        let usable: Vec<Place> = places.iter().filter(|place| !self.0.contains_key(*place)).cloned().collect();
        if !usable.is_empty() {
            return usable;
        }
        places.into_iter().min_by_key(|place| self.0.get(place).map(|full| full.until)).into_iter().collect()
    }

    /// Those of these places that are skipped now, for `nodepool why`; `None` if there are none.
    pub fn describe(&self, places: &[Place], now: Instant) -> Option<String> {
        let full = places.iter().filter_map(|place| Some((place, self.0.get(place)?)));
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
    use crate::aws::label::Location;

    fn place(zone: &str) -> Place {
        let location = Location { subnet: None, zone: Some(zone.to_owned()) };
        Place { instance_type: "t3.medium".to_owned(), location, is_spot: false }
    }

    #[test]
    fn a_full_place_is_skipped_for_three_minutes() {
        let (mut full, now) = (FullPlaces::default(), Instant::now());
        let all = || vec![place("a"), place("b")];
        full.insert(place("a"), now);
        assert_eq!(full.usable(all(), now), [place("b")]);
        let text = full.describe(&all(), now).unwrap();
        assert!(text.starts_with("t3.medium on demand in a is full until ") && text.ends_with(" UTC"), "{text}");
        assert_eq!(full.describe(&all(), now + SKIPPED_FOR), None);
        assert_eq!(full.usable(all(), now + SKIPPED_FOR), all());
        full.insert(place("b"), now);
        full.remove(&place("b"));
        assert_eq!(full.usable(all(), now), all());
    }

    #[test]
    fn if_all_places_are_full_the_one_that_was_full_first_is_tried() {
        let (mut full, now) = (FullPlaces::default(), Instant::now());
        full.insert(place("b"), now);
        full.insert(place("a"), now + Duration::from_secs(1));
        assert_eq!(full.usable(vec![place("a"), place("b")], now + Duration::from_secs(2)), [place("b")]);
    }
}
