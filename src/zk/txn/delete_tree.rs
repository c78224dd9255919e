//! Recursive delete of a znode, in as few transactions as ZooKeeper's size limit allows.

use std::collections::VecDeque;

use crate::Connection;
use zookeeper_server::types::{Op, ZkError};

/// Deletes per transaction; a transaction must stay below ZooKeeper's limit of 1 MiB.
const MAX_DELETES_PER_TRANSACTION: usize = 1000;
/// Maximum number of retries after the tree changed during its deletion.
const MAX_RETRIES: usize = 20;

/// Deletes the tree at a path. A missing tree is not an error.
pub async fn delete_tree(zk: &dyn Connection, path: &str) -> Result<(), ZkError> {
    delete_tree_after(zk, path, &[]).await
}

/// Deletes the tree at a path in the same transaction as the given operations, which come first. If one of them fails,
/// nothing is deleted. (The root of a tree with more than a thousand znodes is deleted in a later transaction.)
pub async fn delete_tree_after(zk: &dyn Connection, path: &str, first: &[Op]) -> Result<(), ZkError> {
    let (mut before, mut failures) = (first, 0);
    loop {
        let mut removals = removals_of(zk, path).await?;
        if removals.is_empty() {
            return Ok(());
        }
        let later = removals.split_off(removals.len().min(MAX_DELETES_PER_TRANSACTION));
        let given = before.len();
        let ops = before.iter().cloned().chain(removals).collect();
        match zk.multi(ops).await {
            Ok(_) if later.is_empty() => return Ok(()),
            Ok(_) => before = &[],
            // Children were created or deleted meanwhile: list them again.
            Err(ZkError::Multi { index, source })
                if index >= given && is_about_children(&source) && failures < MAX_RETRIES =>
            {
                failures += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_about_children(error: &ZkError) -> bool {
    matches!(error, ZkError::NotEmpty | ZkError::NoNode)
}

/// Delete operations for every znode at and below a path, the deepest first.
async fn removals_of(zk: &dyn Connection, path: &str) -> Result<Vec<Op>, ZkError> {
    let mut removals = Vec::new();
    let mut open = VecDeque::from([(path.to_owned(), zk.children(path))]);
    while let Some((path, reply)) = open.pop_front() {
        let names = match reply.await {
            Ok((names, _)) => names,
            Err(ZkError::NoNode) => continue,
            Err(error) => return Err(error),
        };
        open.extend(names.into_iter().map(|name| {
            let child = format!("{path}/{name}");
            let reply = zk.children(&child);
            (child, reply)
        }));
        removals.push(Op::delete(path, -1));
    }
    removals.reverse();
    Ok(removals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Zk;
    use crate::memory::MemoryZooKeeper;
    use zookeeper_server::types::CreateMode;

    async fn create_all(zk: &Zk, paths: &[&str]) {
        for path in paths {
            zk.create(path, Vec::new().into(), CreateMode::Persistent).await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_tree_is_deleted_in_one_transaction() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        create_all(&zk, &["/a", "/a/x", "/a/x/1", "/a/x/2", "/a/y", "/b"]).await;
        let before = server.last_zxid();
        delete_tree(zk.as_ref(), "/a").await.unwrap();
        assert_eq!(server.last_zxid(), before + 1);
        assert_eq!(zk.exists("/a").await, Ok(None));
        assert!(zk.exists("/b").await.unwrap().is_some());
        delete_tree(zk.as_ref(), "/a").await.unwrap();
    }

    #[tokio::test]
    async fn a_wide_tree_is_deleted_in_several_transactions() {
        let server = MemoryZooKeeper::new();
        let zk: Zk = server.connect();
        create_all(&zk, &["/a"]).await;
        let children: Vec<String> = (0..2500).map(|number| format!("/a/{number}")).collect();
        create_all(&zk, &children.iter().map(String::as_str).collect::<Vec<_>>()).await;
        delete_tree(zk.as_ref(), "/a").await.unwrap();
        assert_eq!(zk.exists("/a").await, Ok(None));
    }

    #[tokio::test]
    async fn nothing_is_deleted_when_a_condition_fails() {
        let zk: Zk = MemoryZooKeeper::new().connect();
        create_all(&zk, &["/a", "/a/x"]).await;
        let result = delete_tree_after(zk.as_ref(), "/a", &[Op::set("/a", "new", 7)]).await;
        assert_eq!(result.unwrap_err().root(), &ZkError::BadVersion);
        assert!(zk.exists("/a/x").await.unwrap().is_some());
    }
}
