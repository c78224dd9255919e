//! Keys that other readers require in a record, by its path.

use nodepool_policy::invariants::nodes;
use nodepool_zk::paths::ZnodePath;

/// Required keys of the record at this path; `None` if no other reader reads it.
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
