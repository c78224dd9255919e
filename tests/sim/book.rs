//! What was seen, in its order, held to the promises as it happens; and a digest of it, by which two runs are told apart.

use std::collections::BTreeMap;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use nodepool::actors::clock;
use nodepool::model::ids::{NodeId, ProviderName, RequestId};
use nodepool::model::json;
use nodepool::model::node::Node;
use nodepool::model::request::NodeRequest;
use nodepool::policy::invariants::{Sight, Violation, Watcher};

/// Clones are the same book.
#[derive(Clone, Default)]
pub struct Book(Arc<Mutex<Pages>>);

#[derive(Default)]
struct Pages {
    watcher: Watcher,
    data: BTreeMap<String, Bytes>,
    limits: BTreeMap<ProviderName, usize>,
    violations: Vec<String>,
    digest: DefaultHasher,
    changes: u64,
    tale: Option<Vec<String>>,
}

impl Book {
    /// One that remembers every line, to be read by people.
    pub fn with_tale() -> Self {
        let book = Self::default();
        book.0.lock().unwrap().tale = Some(Vec::new());
        book
    }

    pub fn see(&self, sight: Sight<'_>) {
        let mut pages = self.0.lock().unwrap();
        if pages.tale.is_some() && !matches!(sight, Sight::Node(..) | Sight::Request(..)) {
            pages.tell(&format!("{sight:?}"));
        }
        let found = pages.watcher.see(sight);
        pages.note(found);
    }

    /// Of what no watcher sees.
    pub fn accuse(&self, violation: Violation) {
        self.0.lock().unwrap().note(vec![violation]);
    }

    /// A change of a znode, or of its children.
    pub fn znode(&self, path: &str, data: Option<&Bytes>) {
        let mut pages = self.0.lock().unwrap();
        if pages.data.get(path) == data {
            return;
        }
        match data {
            Some(data) => pages.data.insert(path.to_owned(), data.clone()),
            None => pages.data.remove(path),
        };
        pages.changes += 1;
        (path, data.map(|data| &data[..])).hash(&mut pages.digest);
        let Some(rest) = path.strip_prefix("/nodepool/") else { return };
        if pages.tale.is_some() {
            let text = data.map_or("gone".into(), |data| String::from_utf8_lossy(data).into_owned());
            pages.tell(&format!("{rest} {text}"));
        }
        let parts: Vec<&str> = rest.split('/').collect();
        let found = match parts[..] {
            ["nodes", id] => {
                let record: Option<Node> = data.map(|data| json::from_bytes(data).expect("a node can be read"));
                pages.watcher.see(Sight::Node(&NodeId::from(id), record.as_ref()))
            }
            ["requests", id] => {
                let record: Option<NodeRequest> =
                    data.map(|data| json::from_bytes(data).expect("a request can be read"));
                pages.watcher.see(Sight::Request(&RequestId::from(id), record.as_ref()))
            }
            _ => Vec::new(),
        };
        pages.note(found);
    }

    /// From now on no more servers than that; where it falls, a while later.
    pub fn limit(&self, provider: &ProviderName, limit: usize, patience: Duration) {
        let earlier = self.0.lock().unwrap().limits.insert(provider.clone(), limit);
        if earlier.is_none_or(|earlier| earlier <= limit) {
            return self.see(Sight::Limit(provider, limit));
        }
        let (book, provider) = (self.clone(), provider.clone());
        actix_rt::spawn(async move {
            tokio::time::sleep(patience).await;
            let last = book.0.lock().unwrap().limits.get(&provider).copied();
            if last == Some(limit) {
                book.see(Sight::Limit(&provider, limit));
            }
        });
    }

    pub fn remark(&self, text: &str) {
        self.0.lock().unwrap().tell(text);
    }

    pub fn violations(&self) -> Vec<String> {
        self.0.lock().unwrap().violations.clone()
    }

    /// What keeps all from being at rest.
    pub fn unrest(&self) -> Vec<Violation> {
        self.0.lock().unwrap().watcher.at_rest()
    }

    pub fn digest(&self) -> (u64, u64) {
        let pages = self.0.lock().unwrap();
        (pages.changes, pages.digest.finish())
    }

    pub fn tale(&self) -> Vec<String> {
        self.0.lock().unwrap().tale.clone().unwrap_or_default()
    }
}

impl Pages {
    fn note(&mut self, found: Vec<Violation>) {
        for violation in found {
            self.tell(&format!("VIOLATION {violation}"));
            self.violations.push(format!("{:.3}: {violation}", clock::now().0));
        }
    }

    fn tell(&mut self, text: &str) {
        if let Some(tale) = &mut self.tale {
            tale.push(format!("{:.3} {text}", clock::now().0));
        }
    }
}
