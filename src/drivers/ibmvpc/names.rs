//! Names of resources. IBM's tags are set after a creation, so names and resource groups say whose a resource is, as
//! in Nodepool 11: instances are `np<node>` in the group `np_<provider>_<pool>`, images are in `npimages_<provider>`.

use std::collections::BTreeMap;

use nodepool_driver::job::LaunchOrder;
use nodepool_model::config::upload_config::{BUILD_MARK, PROVIDER_MARK, UPLOAD_MARK};
use nodepool_model::records::ids::{PoolName, ProviderName};
use sha2::{Digest, Sha256};

/// The longest name of a resource group.
pub const MAX_GROUP_NAME: usize = 40;
const GROUP: &str = "np_";
const IMAGE_GROUP: &str = "npimages_";
const NODE: &str = "np";
const IMAGE: &str = "npimage";

/// The resource group of a pool's instances.
pub fn pool_group(provider: &ProviderName, pool: &PoolName) -> String {
    format!("{GROUP}{provider}_{pool}")
}

pub fn image_group(provider: &ProviderName) -> String {
    format!("{IMAGE_GROUP}{provider}")
}

/// Whether the name of a provider or pool can be read back from that of a group.
pub fn is_plain(name: &str) -> bool {
    !name.is_empty() && name.chars().all(|sign| sign.is_ascii_alphanumeric() || sign == '-')
}

/// The metadata that the names of a node's resource and of its group mean; empty for those of others.
pub fn metadata(group: &str, name: &str) -> BTreeMap<String, String> {
    let found = || {
        let (provider, pool) = group.strip_prefix(GROUP)?.split_once('_')?;
        let node = node_of(name)?;
        (is_plain(provider) && is_plain(pool)).then_some((provider, pool, node))
    };
    let Some((provider, pool, node)) = found() else { return BTreeMap::new() };
    let marks = [("nodepool_provider_name", provider), ("nodepool_pool_name", pool), ("nodepool_node_id", node)];
    marks.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

/// Whether a group is one of this provider's pools.
pub fn is_group_of(group: &str, provider: &ProviderName) -> bool {
    let found = group.strip_prefix(GROUP).and_then(|rest| rest.split_once('_'));
    found.is_some_and(|(name, pool)| name == provider.as_str() && is_plain(pool))
}

/// The node id in `np0000000001`.
fn node_of(name: &str) -> Option<&str> {
    name.strip_prefix(NODE).filter(|id| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The instance to which a boot volume belonged: `np0000000001` of `np0000000001-0a1b…`.
pub fn instance_of_volume(volume: &str) -> Option<&str> {
    let (instance, hash) = volume.split_once('-')?;
    (node_of(instance).is_some() && is_hash(hash)).then_some(instance)
}

fn is_hash(text: &str) -> bool {
    text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The name of the boot volume's attachment: the only field of an instance that names a node's creation. Names of
/// instances repeat in other installations.
pub fn creation_mark(order: &LaunchOrder) -> String {
    format!("{NODE}-{}", hash(&order.identity))
}

/// The name of the boot volume. Each attempt has its own, because a volume may outlive its instance.
pub fn volume(order: &LaunchOrder) -> String {
    format!("{}-{}", order.hostname, hash(&format!("{} {} {}", order.identity, order.attempt, order.may_exist)))
}

/// The name of an image: `npimage<upload>-<build>-<hash>`. Upload ids repeat in each build, names are unique in a
/// region, and the hash tells providers of the region apart.
pub fn image(provider: &ProviderName, marks: &BTreeMap<String, String>) -> String {
    let mark = |name: &str| marks.get(name).map(String::as_str).unwrap_or_default();
    format!("{IMAGE}{}-{}-{}", mark(UPLOAD_MARK), mark(BUILD_MARK), provider_hash(provider))
}

fn provider_hash(provider: &ProviderName) -> String {
    hash(provider.as_str())[..8].to_owned()
}

/// The marks in the name of an image or object of this provider. Those of Nodepool 11 name no build, so they are not
/// recognised.
pub fn image_marks(provider: &ProviderName, name: &str) -> Option<BTreeMap<String, String>> {
    let mut parts = name.strip_prefix(IMAGE)?.split('-');
    let (upload, build, hash) = (parts.next()?, parts.next()?, parts.next()?);
    let is_number = !upload.is_empty() && upload.bytes().all(|byte| byte.is_ascii_digit());
    let is_ours = is_number && !build.is_empty() && hash == provider_hash(provider) && parts.next().is_none();
    let marks = [(UPLOAD_MARK, upload), (BUILD_MARK, build), (PROVIDER_MARK, provider.as_str())];
    is_ours.then(|| marks.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_are_read_from_names() {
        let found = metadata("np_dallas_main-1", "np0000000007");
        let marks = [("node_id", "0000000007"), ("pool_name", "main-1"), ("provider_name", "dallas")];
        assert_eq!(found, marks.map(|(key, value)| (format!("nodepool_{key}"), value.to_owned())).into());
        for (group, name) in
            [("Default", "np1"), ("np_a_b", "web"), ("np_a_b", "np"), ("np_a.b_c", "np1"), ("np_a", "np1")]
        {
            assert_eq!(metadata(group, name), BTreeMap::new(), "{group} {name}");
        }
        assert!(is_group_of("np_dallas_main", &"dallas".into()) && !is_group_of("np_dallas2_main", &"dallas".into()));
    }

    #[test]
    fn images_are_recognised_by_build_upload_and_provider() {
        let provider = ProviderName::from("dallas");
        let marks =
            [(UPLOAD_MARK, "0000000001"), (BUILD_MARK, "1e998824122a4ab296c43fedc6d46c1a"), (PROVIDER_MARK, "dallas")];
        let marks: BTreeMap<String, String> = marks.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let name = image(&provider, &marks);
        assert!(name.starts_with("npimage0000000001-1e998824") && name.len() <= 63, "{name}");
        assert_eq!(image_marks(&provider, &name), Some(marks));
        assert_eq!(image_marks(&"other".into(), &name), None);
        assert_eq!(image_marks(&provider, "npimage0000000001"), None);
    }

    #[test]
    fn volumes_name_their_instance() {
        assert_eq!(instance_of_volume("np0000000001-0123456789abcdef"), Some("np0000000001"));
        for other in ["np0000000001", "data-0123456789abcdef", "np0000000001-backup"] {
            assert_eq!(instance_of_volume(other), None, "{other}");
        }
    }
}
