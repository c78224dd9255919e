//! What the other readers of a record need in it, by the place where it is.

use nodepool_policy::invariants::nodes;
use nodepool_zk::paths::Place;

/// `None` where there are no records that others read too.
pub fn needed(place: &Place) -> Option<&'static [&'static str]> {
    match place {
        Place::Node(_) => Some(nodes::KEYS_OF_NODES),
        Place::Request(_) => Some(nodes::KEYS_OF_REQUESTS),
        Place::Component { .. } => Some(nodes::KEYS_OF_COMPONENTS),
        Place::ImageBuild(..) => Some(nodes::KEYS_OF_BUILDS),
        Place::ImageUpload(_) => Some(nodes::KEYS_OF_UPLOADS),
        _ => None,
    }
}
