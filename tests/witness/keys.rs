//! What the other readers of a record need in it, by the place where it is.

use nodepool::policy::invariants;
use nodepool::zk::paths::Place;

/// `None` where there are no records that others read too.
pub fn needed(place: &Place) -> Option<&'static [&'static str]> {
    match place {
        Place::Node(_) => Some(invariants::KEYS_OF_NODES),
        Place::Request(_) => Some(invariants::KEYS_OF_REQUESTS),
        Place::Component { .. } => Some(invariants::KEYS_OF_COMPONENTS),
        Place::ImageBuild(..) => Some(invariants::KEYS_OF_BUILDS),
        Place::ImageUpload(_) => Some(invariants::KEYS_OF_UPLOADS),
        _ => None,
    }
}
