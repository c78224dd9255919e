//! Commands about nodes: `list`, `hold`, `delete`.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use nodepool::actors::runtime::clock;
use nodepool_model::config::{Config, ProviderConfig};
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName};
use nodepool_model::records::json;
use nodepool_model::records::node::{NodeState, Writer};
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::list::{self, Column, Objects};
use nodepool_model::report::status::{NODE_COLUMNS, NODE_COLUMNS_BRIEF, NodeRow};
use nodepool_zk::locks::lock::{self, Lock};
use nodepool_zk::tools::scan::{self, NodeEntry};
use nodepool_zk::txn::delete_tree;
use nodepool_zk::{Connection, Zk, paths};
use serde_json::json;
use zookeeper_server::types::{Op, ZkError};

use crate::commands::clouds;
use crate::output::{Output, TablePrinter};

/// Timeout for locking a node whose lock another client holds.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// Attempts to write a record that other clients change without taking its lock.
const WRITE_ATTEMPTS: usize = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    Brief,
    Full,
}

impl Detail {
    pub fn of_flag(detail: bool) -> Self {
        if detail { Detail::Full } else { Detail::Brief }
    }

    fn columns(self) -> &'static [Column<NodeRow>] {
        match self {
            Detail::Brief => &NODE_COLUMNS[..NODE_COLUMNS_BRIEF],
            Detail::Full => NODE_COLUMNS,
        }
    }
}

pub async fn list(zk: &dyn Connection, output: &mut Output<'_>, detail: Detail) -> anyhow::Result<()> {
    let now = clock::now();
    let mut printer = TablePrinter::new(output.format, detail.columns());
    let unreadable = scan::each_node(zk, |entry| printer.push(&row(entry, now))).await?;
    output.note_unreadable(&unreadable)?;
    Ok(output.print_table(printer)?)
}

pub async fn hold(zk: &Zk, output: &mut Output<'_>, id: &NodeId) -> anyhow::Result<()> {
    change_state(zk, output, id, NodeState::Hold, "held").await
}

pub async fn delete(zk: &Zk, output: &mut Output<'_>, id: &NodeId) -> anyhow::Result<()> {
    change_state(zk, output, id, NodeState::Deleting, "deleting").await
}

/// Deletes a node with its instance in this process instead of its launcher; a static node has no instance.
pub async fn delete_now(zk: &Zk, config: &Config, output: &mut Output<'_>, id: &NodeId) -> anyhow::Result<()> {
    let Some((node, lock)) = find_and_lock(zk, output, id).await? else { return Ok(()) };
    let done = match deleter(config, node.stored.record.provider.as_ref()) {
        Deleter::Locally => remove(zk.as_ref(), id, &lock).await.map(|()| Deletion::Done),
        Deleter::Cloud(section) => remove_with_instance(zk.as_ref(), &section, node, &lock).await,
        Deleter::Unknown(provider) => {
            Ok(Deletion::ProviderUndefined(format!("Provider {provider} for node {id} not defined on this launcher")))
        }
        Deleter::OtherProcess(reason) => {
            Err(anyhow!("cannot delete node {id} here: {reason}; without --now, its launcher deletes it"))
        }
    };
    match &done {
        // The lock was deleted with the node.
        Ok(Deletion::Done) => lock.mark_released(),
        _ => release(lock, output).await?,
    }
    match done? {
        Deletion::Done => show(zk.as_ref(), output, id, "deleted").await,
        Deletion::AlreadyDeleted => not_found(output, id),
        Deletion::ProviderUndefined(message) => {
            output.print(&message)?;
            Ok(output.outcome(json!({"outcome": "provider not defined", "id": id, "message": message}))?)
        }
    }
}

/// Result of a deletion in this process.
enum Deletion {
    Done,
    /// Another client had removed the record.
    AlreadyDeleted,
    /// The configuration has no such provider; the message.
    ProviderUndefined(String),
}

/// Method of deleting the nodes of a provider.
enum Deleter {
    Locally,
    /// The instance is deleted first.
    Cloud(Arc<ProviderConfig>),
    /// Only another process can delete them; the reason.
    OtherProcess(String),
    /// The configuration has no such provider; its name as Nodepool 11 shows it.
    Unknown(String),
}

fn deleter(config: &Config, provider: Option<&ProviderName>) -> Deleter {
    let Some(provider) = provider else { return Deleter::Unknown("None".to_owned()) };
    match (config.providers.get(provider), config.out_of_service.get(provider)) {
        (Some(section), _) if section.driver == "static" => Deleter::Locally,
        (Some(section), _) if section.driver == "fake" => {
            Deleter::OtherProcess(format!("the cloud of provider {provider} is in the memory of its launcher"))
        }
        (Some(section), _) => Deleter::Cloud(section.clone()),
        (None, Some(reason)) => Deleter::OtherProcess(format!("provider {provider} is out of service: {reason}")),
        (None, None) => Deleter::Unknown(provider.to_string()),
    }
}

/// Marks the record as `deleting` first: if this process fails later, the node is not assigned without its instance,
/// and its launcher continues the deletion.
async fn remove_with_instance(
    zk: &dyn Connection,
    section: &Arc<ProviderConfig>,
    node: NodeEntry,
    lock: &Lock,
) -> anyhow::Result<Deletion> {
    let (id, external_id) = (node.id.clone(), ExternalId::of(&node.stored.record.external_id));
    if let UpdateResult::AlreadyDeleted = write_state(zk, node, NodeState::Deleting, lock).await? {
        return Ok(Deletion::AlreadyDeleted);
    }
    // Without an external id no instance was created.
    if let Some(external_id) = external_id {
        clouds::delete(section, external_id).await?;
    }
    remove(zk, &id, lock).await?;
    Ok(Deletion::Done)
}

async fn change_state(
    zk: &Zk,
    output: &mut Output<'_>,
    id: &NodeId,
    state: NodeState,
    outcome: &str,
) -> anyhow::Result<()> {
    let Some((node, lock)) = find_and_lock(zk, output, id).await? else { return Ok(()) };
    let updated = write_state(zk.as_ref(), node, state, &lock).await;
    release(lock, output).await?;
    match updated? {
        UpdateResult::Done => show(zk.as_ref(), output, id, outcome).await,
        UpdateResult::AlreadyDeleted => not_found(output, id),
    }
}

enum UpdateResult {
    Done,
    AlreadyDeleted,
}

async fn write_state(
    zk: &dyn Connection,
    mut entry: NodeEntry,
    state: NodeState,
    lock: &Lock,
) -> anyhow::Result<UpdateResult> {
    let path = paths::node(&entry.id);
    for _ in 0..WRITE_ATTEMPTS {
        let mut node = (*entry.stored.record).clone();
        node.set_state(state, Writer::Operator, clock::now());
        let write = Op::set(&path, json::to_bytes(&node), entry.stored.version);
        match zk.multi(vec![lock.fence(), write]).await {
            Ok(_) => return Ok(UpdateResult::Done),
            Err(error) if *error.root() == ZkError::BadVersion => match read(zk, &entry.id).await? {
                Some(newer) => entry = newer,
                None => return Ok(UpdateResult::AlreadyDeleted),
            },
            Err(error) if *error.root() == ZkError::NoNode => {
                if read(zk, &entry.id).await?.is_none() {
                    return Ok(UpdateResult::AlreadyDeleted);
                }
                bail!("the lock {} was removed by another client", lock.directory());
            }
            Err(error) => return Err(error).with_context(|| format!("cannot write {path}")),
        }
    }
    bail!("{path} keeps changing: another client ignores its lock")
}

/// Marks the node as `deleting` and removes it with its lock, in one transaction. That state is never visible, but the
/// version check of its write proves that the removed record is the one that the decision was based on.
async fn remove(zk: &dyn Connection, id: &NodeId, lock: &Lock) -> anyhow::Result<()> {
    let path = paths::node(id);
    for _ in 0..WRITE_ATTEMPTS {
        let Some(entry) = read(zk, id).await? else { return Ok(()) };
        let mut node = (*entry.stored.record).clone();
        node.set_state(NodeState::Deleting, Writer::Operator, clock::now());
        let mark = Op::set(&path, json::to_bytes(&node), entry.stored.version);
        match delete_tree::delete_tree_after(zk, &path, &[lock.fence(), mark]).await {
            Ok(()) => return Ok(()),
            Err(error) if matches!(error.root(), ZkError::BadVersion) => {}
            Err(error) => return Err(error).with_context(|| format!("cannot remove {path}")),
        }
    }
    bail!("{path} keeps changing: another client ignores its lock")
}

/// Locks a node and reads it. `None` if the node does not exist, which is reported.
async fn find_and_lock(zk: &Zk, output: &mut Output<'_>, id: &NodeId) -> anyhow::Result<Option<(NodeEntry, Lock)>> {
    // Locking first would recreate the znode of a deleted node.
    if !is_path_element(id.as_str()) || read(zk.as_ref(), id).await?.is_none() {
        not_found(output, id)?;
        return Ok(None);
    }
    let path = paths::node_lock(id);
    let lock = match lock::lock_within(zk, &path, "", LOCK_WAIT).await {
        Ok(Some(lock)) => lock,
        Ok(None) => bail!("Timeout trying to acquire lock {path}"),
        Err(ZkError::NoNode) => {
            not_found(output, id)?;
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("cannot lock {path}")),
    };
    match read(zk.as_ref(), id).await {
        Ok(Some(node)) => Ok(Some((node, lock))),
        Ok(None) => {
            release(lock, output).await?;
            not_found(output, id)?;
            Ok(None)
        }
        Err(error) => {
            release(lock, output).await?;
            Err(error)
        }
    }
}

/// Releases a lock. If that fails, the lock is released when the session ends, and writes made under it remain.
async fn release(lock: Lock, output: &mut Output<'_>) -> anyhow::Result<()> {
    let directory = lock.directory().to_owned();
    if let Err(error) = lock.release().await {
        output.note(format_args!("WARNING lock {directory} will be released when the session ends: {error}"))?;
    }
    Ok(())
}

/// Whether a text is one path element, as an id must be; any other text would address another znode.
pub fn is_path_element(text: &str) -> bool {
    !text.is_empty() && text != "." && text != ".." && !text.contains(|c: char| c == '/' || c.is_control())
}

pub async fn read(zk: &dyn Connection, id: &NodeId) -> anyhow::Result<Option<NodeEntry>> {
    match scan::node(zk, id).await? {
        Some(Ok(node)) => Ok(Some(node)),
        Some(Err(unreadable)) => bail!("{} cannot be read: {}", unreadable.path, unreadable.reason),
        None => Ok(None),
    }
}

/// Prints the list with this node only, or an empty one if the node is deleted.
pub async fn show(zk: &dyn Connection, output: &mut Output<'_>, id: &NodeId, outcome: &str) -> anyhow::Result<()> {
    let rows: Vec<NodeRow> = read(zk, id).await?.into_iter().map(|entry| row(entry, clock::now())).collect();
    let columns = Detail::Brief.columns();
    output.print(list::table(columns, &rows))?;
    Ok(output.outcome(json!({"outcome": outcome, "id": id, "nodes": Objects(NODE_COLUMNS, &rows)}))?)
}

pub fn not_found(output: &mut Output<'_>, id: &NodeId) -> anyhow::Result<()> {
    let message = format!("Node id {id} not found");
    output.print(&message)?;
    Ok(output.outcome(json!({"outcome": "not found", "id": id, "message": message}))?)
}

fn row(entry: NodeEntry, now: Timestamp) -> NodeRow {
    let locked = !entry.contenders.is_empty();
    NodeRow { id: entry.id, node: entry.stored.record, locked, now }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::testing::{CommandOutput, TestStore, capture, config};

    const READY: &str =
        r#"{"state": "ready", "state_time": 1.0, "provider": "p", "type": ["a", "标签"], "later": {"x": 1}}"#;

    async fn run_hold(store: &TestStore, id: &str) -> CommandOutput {
        capture(OutputFormat::Table, async |output| hold(&store.zk, output, &id.into()).await).await
    }

    #[tokio::test]
    async fn a_list_is_sorted_creates_nothing_and_reports_skipped_records() {
        let store = TestStore::new();
        store.put_node("0000000002", READY).await;
        store.put_node("0000000001", READY).await;
        store.put("/nodepool/nodes/0000000003", b"\xff\xfe").await;
        let before = store.server.last_zxid();
        let captured =
            capture(OutputFormat::Table, async |output| list(store.zk.as_ref(), output, Detail::Brief).await).await;
        let ids: Vec<&str> =
            captured.out.lines().filter_map(|line| line.strip_prefix("| 0")).map(|line| &line[..9]).collect();
        assert_eq!(ids, ["000000001", "000000002"], "{}", captured.out);
        assert!(captured.notes.contains("/nodepool/nodes/0000000003 is skipped"), "{}", captured.notes);
        assert!(captured.result.is_none() && store.server.last_zxid() == before);
    }

    #[tokio::test]
    async fn hold_changes_the_state_only_and_shows_the_node_unlocked() {
        let store = TestStore::new();
        store.put_node("0000000001", READY).await;
        let captured = run_hold(&store, "0000000001").await;
        assert!(captured.out.contains("hold") && captured.out.contains("| unlocked |"), "{}", captured.out);
        let node = store.node("0000000001").await;
        assert_eq!(node.state, NodeState::Hold);
        assert!(node.state_time.0 > 1e9 && node.extra.contains_key("later"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_in_use_cannot_be_held_and_stays_unchanged() {
        let store = TestStore::new();
        store.put_node("0000000001", r#"{"state": "in-use"}"#).await;
        let (zk, directory) = (store.connect_other(), "/nodepool/nodes/0000000001/lock");
        let _lock = lock::try_lock(&zk, directory, "").await.unwrap().unwrap();
        let started = tokio::time::Instant::now();
        let captured = run_hold(&store, "0000000001").await;
        assert_eq!(captured.error(), format!("Timeout trying to acquire lock {directory}"));
        assert_eq!(started.elapsed().as_secs(), 5);
        assert_eq!(store.node("0000000001").await.state, NodeState::InUse);
        assert_eq!(store.zk.children(directory).await.unwrap().0.len(), 1);
    }

    #[tokio::test]
    async fn a_deleted_node_is_marked_and_left_to_its_launcher() {
        let store = TestStore::new();
        store.put_node("0000000001", READY).await;
        let captured =
            capture(OutputFormat::Json, async |output| delete(&store.zk, output, &"0000000001".into()).await).await;
        assert_eq!(captured.json()["outcome"], "deleting");
        assert_eq!(captured.json()["nodes"][0]["state"], "deleting");
        assert_eq!(store.node("0000000001").await.state, NodeState::Deleting);
    }

    #[tokio::test]
    async fn unknown_ids_are_not_found_and_nothing_is_created() {
        let store = TestStore::new();
        // A znode that the lock of a deleted node left behind.
        store.put("/nodepool/nodes/0000000001", b"").await;
        let before = store.server.last_zxid();
        for id in ["0000000001", "0000000009", "", ".", "../requests", "a/b", "0000000009/lock", "\u{7}"] {
            let captured = capture(OutputFormat::Json, async |output| hold(&store.zk, output, &id.into()).await).await;
            assert!(captured.result.is_none(), "{id}: {}", captured.error());
            assert_eq!(captured.json()["outcome"], "not found", "{id}");
            let captured = run_hold(&store, id).await;
            assert_eq!(captured.out, format!("Node id {id} not found\n").replace('\u{7}', "\\x07"));
        }
        assert_eq!(store.server.last_zxid(), before);
    }

    async fn run_delete_now(store: &TestStore, config: &Config) -> CommandOutput {
        let id = "0000000001".into();
        capture(OutputFormat::Json, async |output| delete_now(&store.zk, config, output, &id).await).await
    }

    #[tokio::test]
    async fn delete_now_removes_a_static_node_and_its_lock_in_one_transaction() {
        let store = TestStore::new();
        store.put_node("0000000001", READY).await;
        store.put("/nodepool/nodes/0000000001/lock", "").await;
        let config = config("{labels: [], providers: [{name: p, driver: static, pools: []}]}").await;
        let before = store.server.last_zxid();
        let captured = run_delete_now(&store, &config).await;
        assert!(captured.result.is_none(), "{}", captured.error());
        assert_eq!((&captured.json()["outcome"], &captured.json()["nodes"]), (&json!("deleted"), &json!([])));
        assert!(!store.exists("/nodepool/nodes/0000000001").await);
        // One write for the contender, one for the deletion.
        assert_eq!(store.server.last_zxid(), before + 2);
    }

    #[tokio::test]
    async fn a_node_whose_instance_cannot_be_deleted_is_left_to_its_launcher() {
        let store = TestStore::new();
        store.put_node("0000000001", &READY.replace("1.0", r#"1.0, "external_id": "server-1""#)).await;
        let text = "{labels: [], providers: [{name: p, driver: openstack, cloud: no-such-cloud, pools: []}]}";
        let captured = run_delete_now(&store, &*config(text).await).await;
        assert!(captured.error().contains("provider p"), "{}", captured.error());
        let node = store.node("0000000001").await;
        let external_id = ExternalId::of(&node.external_id).map(|id| id.to_string());
        assert_eq!((node.state, external_id.as_deref()), (NodeState::Deleting, Some("server-1")));
        assert_eq!(store.zk.children("/nodepool/nodes/0000000001/lock").await.unwrap().0, Vec::<String>::new());
    }

    #[tokio::test]
    async fn a_node_that_cannot_be_deleted_now_is_left_unlocked() {
        let store = TestStore::new();
        store.put_node("0000000001", READY).await;
        let captured = run_delete_now(&store, &*config("{labels: [], providers: []}").await).await;
        assert_eq!(captured.json()["message"], "Provider p for node 0000000001 not defined on this launcher");
        let fake = config("{labels: [], providers: [{name: p, driver: fake, cloud: c, pools: []}]}").await;
        let captured = run_delete_now(&store, &fake).await;
        assert!(captured.error().contains("without --now"), "{}", captured.error());
        assert_eq!(store.node("0000000001").await.state, NodeState::Ready);
        assert_eq!(store.zk.children("/nodepool/nodes/0000000001/lock").await.unwrap().0, Vec::<String>::new());
    }
}
