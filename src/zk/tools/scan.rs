//! Bulk reads for tools: all records of one kind, read once, with many requests in flight.
//!
//! Reading never creates a znode. An unreadable record is reported with its path and does not end the scan.

use std::pin::pin;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::mirror::bulk::{self, BATCH, ReadReply, WINDOW, read_batch};
use crate::mirror::records::{Decoded, Record, decode_versioned};
use crate::{Connection, Contenders, paths};
use nodepool_model::records::component::{Component, ComponentKind, PoolComponent};
use nodepool_model::records::ids::{BuildId, ImageName, NodeId, ProviderName, RequestId, UploadId};
use nodepool_model::records::node::Node;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::snapshot::Versioned;
use zookeeper_server::types::{Stat, ZkError};

/// Small requests in flight. The server answers in order, so this only has to cover the round trip.
const MAX_IN_FLIGHT: usize = WINDOW * BATCH;

/// The records found, sorted by id, and the znodes without a readable record.
#[derive(Clone, Debug)]
pub struct ScanResult<T> {
    pub found: Vec<T>,
    pub unreadable: Vec<Unreadable>,
}

/// A znode that holds no record of its kind, with the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    pub path: String,
    pub reason: String,
}

/// A node's record and the contenders for its lock.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeEntry {
    pub id: NodeId,
    pub stored: Versioned<Node>,
    pub contenders: Contenders,
}

#[derive(Clone, Debug, PartialEq)]
pub struct RequestEntry {
    pub id: RequestId,
    pub stored: Versioned<NodeRequest>,
}

/// A build with a znode for a provider, and the uploads below it, if any.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ProviderBuild {
    pub image: ImageName,
    pub build: BuildId,
    pub uploads: Vec<UploadId>,
}

/// Result of reading one path.
enum ReadOutcome<T> {
    Found(T),
    Unreadable(Unreadable),
    /// A znode without data: reported in a list, and treated as missing by the read of one record.
    Empty(Unreadable),
    /// Deleted since it was listed.
    Removed,
}

impl<T> ReadOutcome<T> {
    fn map<U>(self, make: impl FnOnce(T) -> U) -> ReadOutcome<U> {
        match self {
            ReadOutcome::Found(found) => ReadOutcome::Found(make(found)),
            ReadOutcome::Unreadable(unreadable) => ReadOutcome::Unreadable(unreadable),
            ReadOutcome::Empty(unreadable) => ReadOutcome::Empty(unreadable),
            ReadOutcome::Removed => ReadOutcome::Removed,
        }
    }
}

/// All nodes. Locks are read only if a lock directory can exist.
pub async fn nodes(zk: &dyn Connection) -> Result<ScanResult<NodeEntry>, ZkError> {
    let mut found = Vec::new();
    let unreadable = each_node(zk, |entry| found.push(entry)).await?;
    Ok(ScanResult { found, unreadable })
}

/// Visits all nodes in the order of their ids, each as soon as it is read; returns the unreadable ones.
pub async fn each_node(zk: &dyn Connection, mut visit: impl FnMut(NodeEntry)) -> Result<Vec<Unreadable>, ZkError> {
    let ids: Vec<NodeId> = sorted_children(zk, paths::NODES).await?.into_iter().map(NodeId::from).collect();
    let mut unreadable = Vec::new();
    let mut reads = stream::iter(ids.chunks(BATCH)).map(|ids| read_nodes(zk, ids)).buffered(WINDOW);
    while let Some(batch) = reads.try_next().await? {
        for read in batch {
            match read {
                ReadOutcome::Found(entry) => visit(entry),
                ReadOutcome::Unreadable(reason) | ReadOutcome::Empty(reason) => unreadable.push(reason),
                ReadOutcome::Removed => {}
            }
        }
    }
    Ok(unreadable)
}

/// One node; `None` if it does not exist.
pub async fn node(zk: &dyn Connection, id: &NodeId) -> Result<Option<Result<NodeEntry, Unreadable>>, ZkError> {
    optional(read_nodes(zk, std::slice::from_ref(id)).await?.pop().unwrap_or(ReadOutcome::Removed))
}

/// All requests.
pub async fn requests(zk: &dyn Connection) -> Result<ScanResult<RequestEntry>, ZkError> {
    let ids = sorted_children(zk, paths::REQUESTS).await?;
    let entry = |id, stored| RequestEntry { id: RequestId::from(id), stored };
    collect(zk, ids, |id| paths::request(&RequestId::from(id)), entry).await
}

/// One request; `None` if it does not exist.
pub async fn request(zk: &dyn Connection, id: &RequestId) -> Result<Option<Result<RequestEntry, Unreadable>>, ZkError> {
    let path = paths::request(id);
    optional(match zk.get(&path).await {
        Ok((data, stat)) => classify(path, &data, &stat).map(|stored| RequestEntry { id: id.clone(), stored }),
        Err(ZkError::NoNode) => ReadOutcome::Removed,
        Err(error) => return Err(error),
    })
}

/// All registered pools.
pub async fn pools(zk: &dyn Connection) -> Result<ScanResult<Versioned<PoolComponent>>, ZkError> {
    components_of(zk, ComponentKind::Pool).await
}

/// All registered launchers.
pub async fn launchers(zk: &dyn Connection) -> Result<ScanResult<Versioned<Component>>, ZkError> {
    components_of(zk, ComponentKind::Launcher).await
}

/// The builds of all images that have a znode for the provider, sorted.
pub async fn builds_of_provider(zk: &dyn Connection, provider: &ProviderName) -> Result<Vec<ProviderBuild>, ZkError> {
    let images = sorted_children(zk, paths::IMAGES).await?.into_iter().map(ImageName::from);
    let builds: Vec<Vec<(ImageName, BuildId)>> =
        stream::iter(images).map(|image| builds_of_image(zk, image)).buffered(MAX_IN_FLIGHT).try_collect().await?;
    stream::iter(builds.into_iter().flatten())
        .map(|(image, build)| uploads_of_build(zk, image, build, provider))
        .buffered(MAX_IN_FLIGHT)
        .try_filter_map(async |build| Ok(build))
        .try_collect()
        .await
}

async fn builds_of_image(zk: &dyn Connection, image: ImageName) -> Result<Vec<(ImageName, BuildId)>, ZkError> {
    let builds = sorted_children(zk, &paths::image_builds(&image)).await?;
    let builds = builds.into_iter().filter(|name| name != "lock");
    Ok(builds.map(|build| (image.clone(), BuildId::from(build))).collect())
}

async fn uploads_of_build(
    zk: &dyn Connection,
    image: ImageName,
    build: BuildId,
    provider: &ProviderName,
) -> Result<Option<ProviderBuild>, ZkError> {
    let provider_stat = zk.exists(&paths::image_provider(&image, &build, provider));
    let uploads_path = paths::image_uploads(&image, &build, provider);
    let uploads = sorted_children(zk, &uploads_path);
    let (provider_stat, uploads) = futures::try_join!(provider_stat, uploads)?;
    let uploads = uploads.into_iter().filter(|name| name != "lock").map(UploadId::from).collect();
    Ok(provider_stat.map(|_| ProviderBuild { image, build, uploads }))
}

async fn components_of<T: Record>(
    zk: &dyn Connection,
    kind: ComponentKind,
) -> Result<ScanResult<Versioned<T>>, ZkError> {
    let names = sorted_children(zk, &paths::components(kind)).await?;
    collect(zk, names, |name| paths::component(kind, name), |_, stored| stored).await
}

/// The children of a znode in order; empty if the znode does not exist.
async fn sorted_children(zk: &dyn Connection, path: &str) -> Result<Vec<String>, ZkError> {
    match zk.children(path).await {
        Ok((mut names, _)) => {
            names.sort_unstable();
            Ok(names)
        }
        Err(ZkError::NoNode) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Reads the records in the order of `names`; `make` turns a name and its record into an entry.
async fn collect<R: Record, T>(
    zk: &dyn Connection,
    names: Vec<String>,
    path: impl Fn(&str) -> String,
    make: impl Fn(String, Versioned<R>) -> T,
) -> Result<ScanResult<T>, ZkError> {
    let mut scan = ScanResult { found: Vec::with_capacity(names.len()), unreadable: Vec::new() };
    let mut reads = pin!(bulk::read_all(zk, names.iter().map(|name| path(name)).collect()));
    let mut names = names.into_iter();
    while let Some(batch) = reads.try_next().await? {
        for ((path, answer), name) in batch.into_iter().zip(&mut names) {
            let (data, stat) = match answer {
                Ok(answer) => answer,
                Err(ZkError::NoNode) => continue, // Deleted since it was listed.
                Err(error) => return Err(error),
            };
            match classify(path, &data, &stat) {
                ReadOutcome::Found(stored) => scan.found.push(make(name, stored)),
                ReadOutcome::Unreadable(reason) | ReadOutcome::Empty(reason) => scan.unreadable.push(reason),
                ReadOutcome::Removed => {}
            }
        }
    }
    Ok(scan)
}

fn optional<T>(read: ReadOutcome<T>) -> Result<Option<Result<T, Unreadable>>, ZkError> {
    match read {
        ReadOutcome::Found(entry) => Ok(Some(Ok(entry))),
        ReadOutcome::Unreadable(unreadable) => Ok(Some(Err(unreadable))),
        ReadOutcome::Empty(_) | ReadOutcome::Removed => Ok(None),
    }
}

/// Reads nodes with their contenders. The request for the records is sent when this is called, not when the future is
/// polled.
fn read_nodes<'a>(
    zk: &'a dyn Connection,
    ids: &'a [NodeId],
) -> impl Future<Output = Result<Vec<ReadOutcome<NodeEntry>>, ZkError>> + 'a {
    let reply = read_batch(zk, ids.iter().map(paths::node).collect());
    async move {
        // A node's only child is its lock directory; most idle nodes never had one.
        let with_lock = |((path, answer), id): (ReadReply, &NodeId)| {
            let has_lock = answer.as_ref().is_ok_and(|(_, stat)| stat.num_children > 0);
            (path, answer, has_lock.then(|| zk.children(&paths::node_lock(id))))
        };
        let answers: Vec<_> = reply.await?.into_iter().zip(ids).map(with_lock).collect();
        let mut read = Vec::with_capacity(ids.len());
        for ((path, answer, lock), id) in answers.into_iter().zip(ids) {
            let (data, stat) = match answer {
                Ok(answer) => answer,
                Err(ZkError::NoNode) => {
                    read.push(ReadOutcome::Removed);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let contenders = match lock {
                Some(reply) => contenders(reply.await)?,
                None => Contenders::new(),
            };
            read.push(classify(path, &data, &stat).map(|stored| NodeEntry { id: id.clone(), stored, contenders }));
        }
        Ok(read)
    }
}

fn contenders(children: Result<(Vec<String>, Stat), ZkError>) -> Result<Contenders, ZkError> {
    match children {
        Ok((names, _)) => Ok(names.into_iter().filter(|name| paths::is_contender(name)).collect()),
        Err(ZkError::NoNode) => Ok(Contenders::new()),
        Err(error) => Err(error),
    }
}

fn classify<T: Record>(path: String, data: &Bytes, stat: &Stat) -> ReadOutcome<Versioned<T>> {
    match decode_versioned(data, stat) {
        Decoded::Record(stored) => ReadOutcome::Found(stored),
        Decoded::Unreadable(reason) => ReadOutcome::Unreadable(Unreadable { path, reason }),
        Decoded::Empty => {
            let reason = "no data; a lock attempt left it after its record was removed".to_owned();
            ReadOutcome::Empty(Unreadable { path, reason })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zk;
    use crate::memory::MemoryZooKeeper;
    use zookeeper_server::types::CreateMode;

    async fn put(zk: &Zk, path: &str, data: &[u8]) {
        let mut at = 1;
        while let Some(slash) = path[at..].find('/') {
            at += slash;
            let _ = zk.create(&path[..at], Bytes::new(), CreateMode::Persistent).await;
            at += 1;
        }
        zk.create(path, Bytes::copy_from_slice(data), CreateMode::Persistent).await.unwrap();
    }

    #[tokio::test]
    async fn an_empty_zookeeper_holds_nothing_and_is_left_so() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        let before = server.last_zxid();
        assert_eq!(nodes(zk.as_ref()).await.unwrap().found, []);
        assert_eq!(requests(zk.as_ref()).await.unwrap().found, []);
        assert_eq!(builds_of_provider(zk.as_ref(), &"p".into()).await, Ok(vec![]));
        assert_eq!(node(zk.as_ref(), &"0000000000".into()).await, Ok(None));
        assert_eq!(server.last_zxid(), before);
    }

    #[tokio::test]
    async fn unreadable_records_are_reported_and_the_others_read() {
        let zk: Zk = MemoryZooKeeper::new().connect();
        put(&zk, "/nodepool/nodes/0000000003", br#"{"state": "ready"}"#).await;
        put(&zk, "/nodepool/nodes/0000000001", br#"{"state": "used"}"#).await;
        put(&zk, "/nodepool/nodes/0000000002", b"\xff").await;
        put(&zk, "/nodepool/nodes/0000000004", b"").await;
        let scan = nodes(zk.as_ref()).await.unwrap();
        let ids: Vec<&str> = scan.found.iter().map(|node| node.id.as_str()).collect();
        assert_eq!(ids, ["0000000001", "0000000003"]);
        let paths: Vec<&str> = scan.unreadable.iter().map(|unreadable| unreadable.path.as_str()).collect();
        assert_eq!(paths, ["/nodepool/nodes/0000000002", "/nodepool/nodes/0000000004"]);
    }

    #[tokio::test]
    async fn only_contenders_make_a_lock() {
        let zk: Zk = MemoryZooKeeper::new().connect();
        let contender = format!("{}__lock__0000000000", "0".repeat(32));
        put(&zk, "/nodepool/nodes/0000000001", br#"{"state": "ready"}"#).await;
        put(&zk, "/nodepool/nodes/0000000001/lock/bystander", b"").await;
        put(&zk, "/nodepool/nodes/0000000002", br#"{"state": "ready"}"#).await;
        put(&zk, &format!("/nodepool/nodes/0000000002/lock/{contender}"), b"").await;
        let scan = nodes(zk.as_ref()).await.unwrap();
        let contenders: Vec<usize> = scan.found.iter().map(|node| node.contenders.len()).collect();
        assert_eq!(contenders, [0, 1]);
    }

    #[tokio::test]
    async fn builds_of_a_provider_include_uploads_and_no_locks() {
        let zk: Zk = MemoryZooKeeper::new().connect();
        let builds = "/nodepool/images/debian/builds";
        put(&zk, &format!("{builds}/lock"), b"").await;
        put(&zk, &format!("{builds}/b2/providers/p"), b"").await;
        for name in ["lock", "0000000002", "0000000001"] {
            put(&zk, &format!("{builds}/b1/providers/p/images/{name}"), b"").await;
        }
        put(&zk, &format!("{builds}/b3/providers/other/images/0000000001"), b"").await;
        let found = builds_of_provider(zk.as_ref(), &"p".into()).await.unwrap();
        let b1 = vec!["0000000001".into(), "0000000002".into()];
        let expected = [("b1", b1), ("b2", vec![])].map(|(build, uploads)| ProviderBuild {
            image: "debian".into(),
            build: build.into(),
            uploads,
        });
        assert_eq!(found, expected);
    }
}
