//! Znode paths of Nodepool: their construction, and parsing into a `ZnodePath`.
//!
//! Paths are absolute and relative to the chroot. The functions that end in `_prefix` return the path for a sequential
//! create: ZooKeeper appends ten digits to it.

use nodepool_model::records::component::ComponentKind;
use nodepool_model::records::ids::{BuildId, ImageName, NodeId, ProviderName, RequestId};
use nodepool_model::records::image_upload::UploadKey;

pub const ROOT: &str = "/nodepool";
/// Random name of the installation, which only this version writes.
pub const INSTALLATION: &str = "/nodepool/installation";
pub const NODES: &str = "/nodepool/nodes";
pub const REQUESTS: &str = "/nodepool/requests";
/// Request locks are not below their requests, so that a lock outlives the request.
pub const REQUEST_LOCKS: &str = "/nodepool/requests-lock";
pub const COMPONENTS: &str = "/nodepool/components";
pub const ELECTION_STATS: &str = "/nodepool/elections/stats";
pub const IMAGES: &str = "/nodepool/images";

/// The name of a lock directory inside a record's znode. It is a sibling of ids in some directories and is never an id.
const LOCK: &str = "lock";
/// Separates the random part and the sequence number of a contender's name.
const CONTENDER_MARK: &str = "__lock__";

/// Builds a path in one allocation, because each write builds several.
fn joined<const N: usize>(parts: [&str; N]) -> String {
    parts.join("/")
}

pub fn node(id: &NodeId) -> String {
    joined([NODES, id.as_str()])
}

pub fn node_prefix() -> String {
    format!("{NODES}/")
}

pub fn node_lock(id: &NodeId) -> String {
    joined([NODES, id.as_str(), LOCK])
}

pub fn request(id: &RequestId) -> String {
    joined([REQUESTS, id.as_str()])
}

/// `priority` is three digits, e.g. `900`: Zuul recognises request ids by their fourth character.
pub fn request_prefix(priority: &str) -> String {
    format!("{REQUESTS}/{priority}-")
}

pub fn request_lock(id: &RequestId) -> String {
    joined([REQUEST_LOCKS, id.as_str()])
}

pub fn components(kind: ComponentKind) -> String {
    format!("{COMPONENTS}/{}", kind.as_str())
}

pub fn component(kind: ComponentKind, name: &str) -> String {
    format!("{COMPONENTS}/{}/{name}", kind.as_str())
}

/// The host name is followed by the ten digits directly, without a separator.
pub fn component_prefix(kind: ComponentKind, hostname: &str) -> String {
    component(kind, hostname)
}

pub fn image(image: &ImageName) -> String {
    format!("{IMAGES}/{image}")
}

pub fn image_pause(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/pause")
}

pub fn image_build_request(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/request-build")
}

pub fn image_builds(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/builds")
}

pub fn image_builds_lock(image: &ImageName) -> String {
    format!("{IMAGES}/{image}/builds/{LOCK}")
}

pub fn image_build(image: &ImageName, build: &BuildId) -> String {
    format!("{IMAGES}/{image}/builds/{build}")
}

pub fn image_build_lock(image: &ImageName, build: &BuildId) -> String {
    format!("{IMAGES}/{image}/builds/{build}/{LOCK}")
}

pub fn image_providers(image: &ImageName, build: &BuildId) -> String {
    format!("{IMAGES}/{image}/builds/{build}/providers")
}

pub fn image_provider(image: &ImageName, build: &BuildId, provider: &ProviderName) -> String {
    format!("{IMAGES}/{image}/builds/{build}/providers/{provider}")
}

pub fn image_uploads(image: &ImageName, build: &BuildId, provider: &ProviderName) -> String {
    format!("{IMAGES}/{image}/builds/{build}/providers/{provider}/images")
}

pub fn image_uploads_lock(image: &ImageName, build: &BuildId, provider: &ProviderName) -> String {
    format!("{}/{LOCK}", image_uploads(image, build, provider))
}

/// The path of an upload is also the `image_id` of a node.
pub fn image_upload(key: &UploadKey) -> String {
    key.image_id()
}

pub fn image_upload_prefix(image: &ImageName, build: &BuildId, provider: &ProviderName) -> String {
    format!("{}/", image_uploads(image, build, provider))
}

pub fn image_upload_lock(key: &UploadKey) -> String {
    format!("{}/{LOCK}", image_upload(key))
}

/// The object that a path refers to. `Other` covers containers of records (`/nodepool/nodes`), flags of other programs,
/// children of a lock directory that are not contenders, and all unknown paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ZnodePath {
    Node(NodeId),
    NodeLock(NodeId),
    NodeContender(NodeId, String),
    Request(RequestId),
    RequestLock(RequestId),
    RequestContender(RequestId, String),
    Component { kind: ComponentKind, name: String },
    Image(ImageName),
    ImagePause(ImageName),
    ImageBuildRequest(ImageName),
    ImageBuildsLock(ImageName),
    ImageBuildsContender(ImageName, String),
    ImageBuild(ImageName, BuildId),
    ImageBuildLock(ImageName, BuildId),
    ImageBuildContender(ImageName, BuildId, String),
    ImageProvider(ImageName, BuildId, ProviderName),
    ImageUploadsLock(ImageName, BuildId, ProviderName),
    ImageUploadsContender(ImageName, BuildId, ProviderName, String),
    ImageUpload(UploadKey),
    ImageUploadLock(UploadKey),
    ImageUploadContender(UploadKey, String),
    Other,
}

/// Number of elements below the root in the path of a contender for an upload's lock. No path of Nodepool is deeper.
const MAX_DEPTH: usize = 10;

/// Parses an absolute path (without the chroot).
pub fn parse(path: &str) -> ZnodePath {
    let Some(rest) = path.strip_prefix("/nodepool/") else { return ZnodePath::Other };
    let (mut parts, mut depth, mut from) = ([""; MAX_DEPTH], 0, 0);
    // Split by hand: parts are short, and a string search in each costs more than comparing their bytes.
    while from <= rest.len() {
        let length = rest.as_bytes()[from..].iter().position(|byte| *byte == b'/');
        let at = length.map_or(rest.len(), |length| from + length);
        if at == from || depth == MAX_DEPTH {
            return ZnodePath::Other;
        }
        parts[depth] = &rest[from..at];
        (depth, from) = (depth + 1, at + 1);
    }
    match parts[..depth] {
        ["nodes", id] => ZnodePath::Node(id.into()),
        ["nodes", id, LOCK] => ZnodePath::NodeLock(id.into()),
        ["nodes", id, LOCK, name] if is_contender(name) => ZnodePath::NodeContender(id.into(), name.into()),
        ["requests", id] => ZnodePath::Request(id.into()),
        ["requests-lock", id] => ZnodePath::RequestLock(id.into()),
        ["requests-lock", id, name] if is_contender(name) => ZnodePath::RequestContender(id.into(), name.into()),
        ["components", kind, name] => match ComponentKind::ALL.into_iter().find(|known| known.as_str() == kind) {
            Some(kind) => ZnodePath::Component { kind, name: name.into() },
            None => ZnodePath::Other,
        },
        ["images", image, ref below @ ..] => parse_image(image.into(), below),
        _ => ZnodePath::Other,
    }
}

fn parse_image(image: ImageName, below: &[&str]) -> ZnodePath {
    match *below {
        [] => ZnodePath::Image(image),
        ["pause"] => ZnodePath::ImagePause(image),
        ["request-build"] => ZnodePath::ImageBuildRequest(image),
        ["builds", LOCK] => ZnodePath::ImageBuildsLock(image),
        ["builds", LOCK, name] if is_contender(name) => ZnodePath::ImageBuildsContender(image, name.into()),
        ["builds", LOCK, ..] => ZnodePath::Other,
        ["builds", build] => ZnodePath::ImageBuild(image, build.into()),
        ["builds", build, LOCK] => ZnodePath::ImageBuildLock(image, build.into()),
        ["builds", build, LOCK, name] if is_contender(name) => {
            ZnodePath::ImageBuildContender(image, build.into(), name.into())
        }
        ["builds", build, "providers", provider] => ZnodePath::ImageProvider(image, build.into(), provider.into()),
        ["builds", build, "providers", provider, "images", ref below @ ..] => {
            parse_upload(image, build.into(), provider.into(), below)
        }
        _ => ZnodePath::Other,
    }
}

fn parse_upload(image: ImageName, build: BuildId, provider: ProviderName, below: &[&str]) -> ZnodePath {
    let key = |upload: &str| UploadKey {
        provider: provider.clone(),
        image: image.clone(),
        build: build.clone(),
        upload: upload.into(),
    };
    match *below {
        [LOCK] => ZnodePath::ImageUploadsLock(image, build, provider),
        [LOCK, name] if is_contender(name) => ZnodePath::ImageUploadsContender(image, build, provider, name.into()),
        [LOCK, ..] => ZnodePath::Other,
        [upload] => ZnodePath::ImageUpload(key(upload)),
        [upload, LOCK] => ZnodePath::ImageUploadLock(key(upload)),
        [upload, LOCK, name] if is_contender(name) => ZnodePath::ImageUploadContender(key(upload), name.into()),
        _ => ZnodePath::Other,
    }
}

/// The prefix of one locking attempt's contender; `unique` is 32 hexadecimal digits.
pub fn contender_prefix(lock: &str, unique: &str) -> String {
    format!("{lock}/{unique}{CONTENDER_MARK}")
}

/// Whether a child of a lock directory is a contender. All clients ignore other children.
pub fn is_contender(name: &str) -> bool {
    contender_sequence(name).is_some()
}

/// The sequence number in a contender's name, as text. Contenders are ordered by this text, and the smallest holds the
/// lock. The counter is a signed 32-bit number, so the text may have a sign in a very busy directory.
pub fn contender_sequence(name: &str) -> Option<&str> {
    let (before, digits) = name.split_at_checked(name.len().checked_sub(10)?)?;
    let unsigned = before.strip_suffix('-').unwrap_or(before);
    let is_valid = digits.bytes().all(|byte| byte.is_ascii_digit()) && unsigned.ends_with(CONTENDER_MARK);
    is_valid.then(|| &name[unsigned.len()..])
}

/// The path one element up; `None` for the root and for text that is not an absolute path.
pub fn parent(path: &str) -> Option<&str> {
    match path.rsplit_once('/') {
        Some(("", "")) | None => None,
        Some(("", _)) => Some("/"),
        Some((parent, _)) => Some(parent),
    }
}

/// The last element of a path.
pub fn name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::ids::UploadId;

    const CONTENDER: &str = "0123456789abcdef0123456789abcdef__lock__0000000007";

    fn check(path: String, text: &str, expected: ZnodePath) {
        assert_eq!(path, text);
        assert_eq!(parse(text), expected, "{text}");
    }

    #[test]
    fn paths_of_nodes_and_requests_lead_back_to_them() {
        let (id, request_id) = (NodeId::from("0000000042"), RequestId::from("200-0000000012"));
        check(node(&id), "/nodepool/nodes/0000000042", ZnodePath::Node(id.clone()));
        check(node_lock(&id), "/nodepool/nodes/0000000042/lock", ZnodePath::NodeLock(id.clone()));
        let contender = format!("{}/{CONTENDER}", node_lock(&id));
        assert_eq!(parse(&contender), ZnodePath::NodeContender(id, CONTENDER.into()));
        check(request(&request_id), "/nodepool/requests/200-0000000012", ZnodePath::Request(request_id.clone()));
        let lock = "/nodepool/requests-lock/200-0000000012";
        check(request_lock(&request_id), lock, ZnodePath::RequestLock(request_id.clone()));
        assert_eq!(parse(&format!("{lock}/{CONTENDER}")), ZnodePath::RequestContender(request_id, CONTENDER.into()));
        assert_eq!(node_prefix(), "/nodepool/nodes/");
        assert_eq!(request_prefix("900"), "/nodepool/requests/900-");
    }

    #[test]
    fn paths_of_components_lead_back_to_kind_and_name() {
        for kind in ComponentKind::ALL {
            let name = "nl01.example.org0000000003";
            let text = format!("/nodepool/components/{}/{name}", kind.as_str());
            check(component(kind, name), &text, ZnodePath::Component { kind, name: name.into() });
            assert_eq!(parse(&components(kind)), ZnodePath::Other);
        }
        assert_eq!(component_prefix(ComponentKind::Pool, "nl01"), "/nodepool/components/pool/nl01");
        assert_eq!(parse("/nodepool/components/merger/x0000000001"), ZnodePath::Other);
    }

    #[test]
    fn paths_of_images_lead_back_to_flags_and_builds() {
        let (debian, build) = (ImageName::from("debian"), BuildId::from("1e998824122a4ab296c43fedc6d46c1a"));
        let root = "/nodepool/images/debian";
        let below = |rest: &str| format!("{root}/builds/{build}{rest}");
        check(image(&debian), root, ZnodePath::Image(debian.clone()));
        check(image_pause(&debian), "/nodepool/images/debian/pause", ZnodePath::ImagePause(debian.clone()));
        let flag = "/nodepool/images/debian/request-build";
        check(image_build_request(&debian), flag, ZnodePath::ImageBuildRequest(debian.clone()));
        let lock = "/nodepool/images/debian/builds/lock";
        check(image_builds_lock(&debian), lock, ZnodePath::ImageBuildsLock(debian.clone()));
        let expected = ZnodePath::ImageBuildsContender(debian.clone(), CONTENDER.into());
        assert_eq!(parse(&format!("{lock}/{CONTENDER}")), expected);
        check(image_builds(&debian), "/nodepool/images/debian/builds", ZnodePath::Other);
        check(image_build(&debian, &build), &below(""), ZnodePath::ImageBuild(debian.clone(), build.clone()));
        let expected = ZnodePath::ImageBuildLock(debian.clone(), build.clone());
        check(image_build_lock(&debian, &build), &below("/lock"), expected);
        let expected = ZnodePath::ImageBuildContender(debian.clone(), build.clone(), CONTENDER.into());
        assert_eq!(parse(&below(&format!("/lock/{CONTENDER}"))), expected);
        check(image_providers(&debian, &build), &below("/providers"), ZnodePath::Other);
    }

    #[test]
    fn paths_of_uploads_lead_back_to_them() {
        let (debian, build) = (ImageName::from("debian"), BuildId::from("1e998824122a4ab296c43fedc6d46c1a"));
        let (rax, upload) = (ProviderName::from("rax"), UploadId::from("0000000001"));
        let below = |rest: &str| format!("/nodepool/images/debian/builds/{build}/providers/rax{rest}");
        let expected = ZnodePath::ImageProvider(debian.clone(), build.clone(), rax.clone());
        check(image_provider(&debian, &build, &rax), &below(""), expected);
        check(image_uploads(&debian, &build, &rax), &below("/images"), ZnodePath::Other);
        let expected = ZnodePath::ImageUploadsLock(debian.clone(), build.clone(), rax.clone());
        check(image_uploads_lock(&debian, &build, &rax), &below("/images/lock"), expected);
        let expected = ZnodePath::ImageUploadsContender(debian.clone(), build.clone(), rax.clone(), CONTENDER.into());
        assert_eq!(parse(&below(&format!("/images/lock/{CONTENDER}"))), expected);
        let key = UploadKey { provider: rax.clone(), image: debian.clone(), build: build.clone(), upload };
        check(image_upload(&key), &below("/images/0000000001"), ZnodePath::ImageUpload(key.clone()));
        check(image_upload_lock(&key), &below("/images/0000000001/lock"), ZnodePath::ImageUploadLock(key.clone()));
        let path = below(&format!("/images/0000000001/lock/{CONTENDER}"));
        assert_eq!(parse(&path), ZnodePath::ImageUploadContender(key, CONTENDER.into()));
        assert_eq!(image_upload_prefix(&debian, &build, &rax), below("/images/"));
    }

    #[test]
    fn unknown_paths_are_other() {
        for path in [
            "",
            "/",
            "/nodepool",
            "/nodepool/",
            NODES,
            REQUESTS,
            REQUEST_LOCKS,
            COMPONENTS,
            ELECTION_STATS,
            IMAGES,
            "/nodepool/nodes/",
            "/nodepool/nodes//lock",
            "/nodepool/nodes/1/lock/stranger",
            "/nodepool/nodes/1/other",
            "/nodepool/images/debian/builds/lock/providers/rax",
            "/nodepool/images/debian/builds/b/providers/rax/images/lock/lock",
            "/nodepoolish/nodes/1",
            "/zuul/hold-requests/0000000001",
        ] {
            assert_eq!(parse(path), ZnodePath::Other, "{path}");
        }
    }

    #[test]
    fn only_the_recipes_names_are_contenders() {
        assert_eq!(contender_sequence(CONTENDER), Some("0000000007"));
        assert_eq!(contender_sequence("x__lock__-2147483648"), Some("-2147483648"));
        assert_eq!(contender_sequence("x__lock__y__lock__0000000001"), Some("0000000001"));
        for name in ["", "lock", "x__lock__", "x__lock__000000001", "x__lock__00000000011", "x__lock__--000000001"] {
            assert!(!is_contender(name), "{name}");
        }
        let prefix = contender_prefix("/nodepool/nodes/1/lock", "0123456789abcdef0123456789abcdef");
        assert_eq!(prefix, "/nodepool/nodes/1/lock/0123456789abcdef0123456789abcdef__lock__");
    }

    #[test]
    fn parent_and_name_split_at_the_last_element() {
        assert_eq!((parent("/a/b"), name("/a/b")), (Some("/a"), "b"));
        assert_eq!((parent("/a"), name("/a")), (Some("/"), "a"));
        assert_eq!((parent("/"), parent("")), (None, None));
    }
}
