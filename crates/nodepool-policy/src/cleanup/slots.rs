//! Slots of static hosts from one plan to the next: which of them others emptied, and when those may be filled again.

use std::collections::{BTreeMap, HashMap};

use crate::inputs::Inputs;
use nodepool_model::records::ids::{NodeId, ProviderName};
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::Versioned;

/// Whoever emptied a slot has at least so long to fill it.
const LEAST_REST: Seconds = Seconds(5.0);
/// And up to so much longer, by who we are.
const MOST_MORE_MS: u32 = 5_000;

pub type Entry<'a> = (&'a NodeId, &'a Versioned<Node>);

/// A slot that a write of ours fills or empties.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    pub provider: ProviderName,
    pub host: HostIdentity,
    pub slot: usize,
}

/// Slots of one provider's hosts as the last plan saw them.
#[derive(Debug, Default)]
pub struct Slots {
    filled: HashMap<HostIdentity, Vec<bool>>,
    /// Nodes in other slots than their records say.
    elsewhere: HashMap<NodeId, usize>,
    vacancies: Vacancies,
    /// Until when rests have been looked at.
    looked: MonotonicTime,
}

/// What stands in the way of filling slots.
#[derive(Clone, Debug, Default)]
pub struct Vacancies {
    /// Slots that others emptied, and until when each is left to them. They stay until the host has been checked after that.
    left: BTreeMap<HostIdentity, BTreeMap<usize, MonotonicTime>>,
    /// When a slot of a host became free last: a check from before that moment does not count.
    freed: BTreeMap<HostIdentity, Timestamp>,
}

impl Vacancies {
    pub fn left_until(&self, host: &HostIdentity, slot: usize) -> Option<MonotonicTime> {
        self.left.get(host)?.get(&slot).copied()
    }

    pub fn freed(&self, host: &HostIdentity) -> Option<Timestamp> {
        self.freed.get(host).copied()
    }
}

impl Slots {
    pub fn vacancies(&self) -> &Vacancies {
        &self.vacancies
    }

    /// Finds out who emptied what. Two launchers that fill the same slots, or do not agree about a host, would otherwise answer
    /// each other without a pause: what somebody else emptied rests, for him to fill.
    pub fn see<'a>(
        &mut self,
        hosts: impl Iterator<Item = (&'a HostIdentity, &'a [Option<Entry<'a>>])>,
        rest: Seconds,
        world: &Inputs<'_>,
    ) {
        let mut before = std::mem::take(&mut self.filled);
        self.elsewhere.clear();
        for (host, places) in hosts {
            let (host, was) = before.remove_entry(host).unwrap_or_else(|| (host.clone(), Vec::new()));
            for (slot, entry) in places.iter().enumerate() {
                match entry {
                    Some(entry) => self.fill(&host, slot, *entry),
                    None if was.get(slot) == Some(&true) => self.leave(&host, slot, rest, world),
                    None => {}
                }
            }
            self.filled.insert(host, places.iter().map(Option::is_some).collect());
        }
        self.vacancies.left.retain(|host, _| self.filled.contains_key(host));
        self.vacancies.freed.retain(|host, freed| {
            // By a clock that has been put back since, no check would be late enough for a long time.
            *freed = world.now.min(*freed);
            self.filled.contains_key(host)
        });
    }

    fn fill(&mut self, host: &HostIdentity, slot: usize, (id, node): Entry<'_>) {
        if node.record.slot != Some(slot as i64) {
            self.elsewhere.insert(id.clone(), slot);
        }
        self.open(host, slot);
    }

    fn leave(&mut self, host: &HostIdentity, slot: usize, rest: Seconds, world: &Inputs<'_>) {
        self.vacancies.left.entry(host.clone()).or_default().insert(slot, world.monotonic_now + rest);
        self.free(host.clone(), world.now);
    }

    fn open(&mut self, host: &HostIdentity, slot: usize) {
        if let Some(left) = self.vacancies.left.get_mut(host) {
            left.remove(&slot);
            if left.is_empty() {
                self.vacancies.left.remove(host);
            }
        }
    }

    /// The host is checked anew before a slot of it is filled again.
    pub fn free(&mut self, host: HostIdentity, now: Timestamp) {
        self.vacancies.freed.insert(host, now);
    }

    /// Which slot a node fills.
    pub fn slot_of(&self, id: &NodeId, node: &Node) -> Option<usize> {
        self.elsewhere.get(id).copied().or_else(|| usize::try_from(node.slot?).ok())
    }

    /// We have emptied it, so we fill it.
    pub fn emptied(&mut self, place: &Place) {
        self.set_filled(place, false);
        self.open(&place.host, place.slot);
    }

    /// Known before any plan sees it: it may be gone by then.
    pub fn registered(&mut self, place: &Place) {
        self.set_filled(place, true);
    }

    fn set_filled(&mut self, place: &Place, is_filled: bool) {
        if let Some(filled) = self.filled.get_mut(&place.host).and_then(|slots| slots.get_mut(place.slot)) {
            *filled = is_filled;
        }
    }

    /// A check opens the slots whose rest was over when it began. Whether any was waiting for it.
    pub fn inspected(&mut self, host: &HostIdentity, begun: MonotonicTime) -> bool {
        let Some(left) = self.vacancies.left.get_mut(host) else { return false };
        left.retain(|_, until| *until > begun);
        if left.is_empty() {
            self.vacancies.left.remove(host);
        }
        true
    }

    /// Whether a rest has ended since this was asked last.
    pub fn has_rested(&mut self, now: MonotonicTime) -> bool {
        let since = std::mem::replace(&mut self.looked, now);
        self.rests().any(|until| until > since && until <= now)
    }

    pub fn next_end(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        self.rests().filter(|until| *until > now).min()
    }

    fn rests(&self) -> impl Iterator<Item = MonotonicTime> {
        self.vacancies.left.values().flat_map(|left| left.values().copied())
    }
}

/// How long a launcher leaves to others what they emptied: two that wait for the same slot do not fill it at the same time.
pub fn rest_of(launcher: &str) -> Seconds {
    // FNV-1a, by which names that are almost the same are far from each other.
    let sum = launcher.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Seconds(LEAST_REST.0 + f64::from(sum % MOST_MORE_MS) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_on_one_machine_rest_for_different_times() {
        let rests = ["nl01-PoolWorker.lab-main-4f2a", "nl01-PoolWorker.lab-main-4f2b"].map(rest_of);
        assert_ne!(rests[0], rests[1]);
        assert!(rests.iter().all(|rest| (5.0..10.0).contains(&rest.0)), "{rests:?}");
    }
}
