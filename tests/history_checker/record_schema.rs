//! Keys that other readers require in a record, by its path.

use nodepool_policy::invariants::nodes;
use nodepool_zk::paths::ZnodePath;

/// `None` for paths without records of other readers.
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
