//! What the other readers of a record need in it, by the place where it is.

use nodepool_policy::invariants::nodes;
use nodepool_zk::paths::ZnodePath;

/// `None` where there are no records that others read too.
pub fn required_keys(znode: &ZnodePath) -> Option<&'static [&'static str]> {
    match znode {
        ZnodePath::Node(_) => Some(nodes::KEYS_OF_NODES),
        ZnodePath::Request(_) => Some(nodes::KEYS_OF_REQUESTS),
        ZnodePath::Component { .. } => Some(nodes::KEYS_OF_COMPONENTS),
        ZnodePath::ImageBuild(..) => Some(nodes::KEYS_OF_BUILDS),
        ZnodePath::ImageUpload(_) => Some(nodes::KEYS_OF_UPLOADS),
        _ => None,
    }
}
