//! One-shot and persistent watches per session, and the choice of the sessions that receive an event.

use std::collections::{BTreeMap, BTreeSet};

use super::path::upwards;
use crate::types::{EventKind, WatchEvent};

/// The kinds of watch on a path. A session may have all of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WatchKind {
    /// One-shot: the znode's data, its creation and its removal.
    Data,
    /// One-shot: the set of children, and the znode's removal.
    Children,
    /// Both of the above; persistent.
    Persistent,
    /// Everything at and below the path except changes of child sets; persistent.
    Recursive,
}

/// Selection of the watches to remove or to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchFilter {
    Only(WatchKind),
    Any,
}

impl WatchFilter {
    fn admits(self, kind: WatchKind) -> bool {
        match self {
            WatchFilter::Only(only) => only == kind,
            WatchFilter::Any => true,
        }
    }
}

/// A watch event and the session it is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fired {
    pub session: i64,
    pub event: WatchEvent,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Watches {
    by_path: BTreeMap<String, BTreeSet<(WatchKind, i64)>>,
    by_session: BTreeMap<i64, BTreeSet<(String, WatchKind)>>,
    /// Sessions with recursive watches, by path. They are few, and each event checks all its ancestors.
    recursive: BTreeMap<String, BTreeSet<i64>>,
}

impl Watches {
    pub fn add(&mut self, session: i64, path: &str, kind: WatchKind) {
        if self.by_path.entry(path.to_owned()).or_default().insert((kind, session)) {
            let fresh = self.by_session.entry(session).or_default().insert((path.to_owned(), kind));
            assert!(fresh, "the two indexes of watches disagree at {path}");
            if kind == WatchKind::Recursive {
                self.recursive.entry(path.to_owned()).or_default().insert(session);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.by_session.values().map(BTreeSet::len).sum()
    }

    pub fn count_of(&self, session: i64) -> usize {
        self.by_session.get(&session).map_or(0, BTreeSet::len)
    }

    pub fn has(&self, session: i64, path: &str, filter: WatchFilter) -> bool {
        self.by_path
            .get(path)
            .is_some_and(|set| set.iter().any(|&(kind, owner)| owner == session && filter.admits(kind)))
    }

    /// Removes the selected watches; returns whether there were any.
    pub fn remove(&mut self, session: i64, path: &str, filter: WatchFilter) -> bool {
        let found: Vec<WatchKind> = self
            .by_path
            .get(path)
            .into_iter()
            .flatten()
            .copied()
            .filter(|&(kind, owner)| owner == session && filter.admits(kind))
            .map(|(kind, _)| kind)
            .collect();
        for &kind in &found {
            self.remove_one(session, path, kind);
        }
        !found.is_empty()
    }

    pub fn remove_all_of(&mut self, session: i64) {
        for (path, kind) in self.by_session.get(&session).cloned().unwrap_or_default() {
            self.remove_one(session, &path, kind);
        }
    }

    fn remove_one(&mut self, session: i64, path: &str, kind: WatchKind) {
        let set = self.by_path.get_mut(path).expect("only known watches are removed");
        assert!(set.remove(&(kind, session)), "no such watch at {path}");
        if set.is_empty() {
            self.by_path.remove(path);
        }
        let paths = self.by_session.get_mut(&session).expect("each watch is in both indexes");
        assert!(paths.remove(&(path.to_owned(), kind)), "the two indexes of watches disagree at {path}");
        if paths.is_empty() {
            self.by_session.remove(&session);
        }
        if kind == WatchKind::Recursive
            && let Some(sessions) = self.recursive.get_mut(path)
        {
            sessions.remove(&session);
            if sessions.is_empty() {
                self.recursive.remove(path);
            }
        }
    }

    /// Fires one event at a path. Each session receives it at most once, regardless of its number of watches there;
    /// one-shot watches are removed.
    pub fn fire(&mut self, kind: EventKind, path: &str, fired: &mut Vec<Fired>) {
        let mut sessions = BTreeSet::new();
        let mut used_up = Vec::new();
        for &(watch, session) in self.by_path.get(path).into_iter().flatten() {
            let (reached, one_shot) = match (watch, kind) {
                (WatchKind::Data, EventKind::ChildrenChanged) => (false, false),
                (WatchKind::Data, _) => (true, true),
                (WatchKind::Children, EventKind::ChildrenChanged | EventKind::Deleted) => (true, true),
                (WatchKind::Children, _) => (false, false),
                (WatchKind::Persistent, _) => (true, false),
                (WatchKind::Recursive, _) => (kind != EventKind::ChildrenChanged, false),
            };
            if reached {
                sessions.insert(session);
            }
            if one_shot {
                used_up.push((watch, session));
            }
        }
        for (watch, session) in used_up {
            self.remove_one(session, path, watch);
        }
        if !self.recursive.is_empty() && kind != EventKind::ChildrenChanged {
            for ancestor in upwards(path).skip(1) {
                sessions.extend(self.recursive.get(ancestor).into_iter().flatten());
            }
        }
        fired.extend(
            sessions.into_iter().map(|session| Fired { session, event: WatchEvent { kind, path: path.to_owned() } }),
        );
    }
}
