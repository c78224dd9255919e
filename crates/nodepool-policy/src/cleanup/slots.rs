//! Slots of static hosts from one plan to the next: which of them others emptied, and when those may be filled again.

use std::collections::{BTreeMap, HashMap};

use crate::inputs::Inputs;
use nodepool_model::records::ids::{NodeId, ProviderName};
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::Versioned;

/// Whoever emptied a slot has at least so long to fill it.
const MIN_COOLDOWN: Seconds = Seconds(5.0);
/// And up to so much longer, by who we are.
const MAX_COOLDOWN_JITTER_MS: u32 = 5_000;

pub type NodeRef<'a> = (&'a NodeId, &'a Versioned<Node>);

/// A slot that a write of ours fills or empties.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotRef {
    pub provider: ProviderName,
    pub host: HostIdentity,
    pub slot: usize,
}

/// Slots of one provider's hosts as the last plan saw them.
#[derive(Debug, Default)]
pub struct Slots {
    filled: HashMap<HostIdentity, Vec<bool>>,
    /// Nodes in other slots than their records say.
    actual_slots: HashMap<NodeId, usize>,
    free_slots: FreeSlots,
    /// Until when rests have been looked at.
    cooldowns_checked_at: MonotonicTime,
}

/// What stands in the way of filling slots.
#[derive(Clone, Debug, Default)]
pub struct FreeSlots {
    /// Slots that others emptied, and until when each is left to them. They stay until the host has been checked after that.
    cooldowns: BTreeMap<HostIdentity, BTreeMap<usize, MonotonicTime>>,
    /// When a slot of a host became free last: a check from before that moment does not count.
    freed: BTreeMap<HostIdentity, Timestamp>,
}

impl FreeSlots {
    pub fn cooldown_until(&self, host: &HostIdentity, slot: usize) -> Option<MonotonicTime> {
        self.cooldowns.get(host)?.get(&slot).copied()
    }

    pub fn freed(&self, host: &HostIdentity) -> Option<Timestamp> {
        self.freed.get(host).copied()
    }
}

impl Slots {
    pub fn free_slots(&self) -> &FreeSlots {
        &self.free_slots
    }

    /// Finds out who emptied what. Two launchers that fill the same slots, or do not agree about a host, would otherwise answer
    /// each other without a pause: what somebody else emptied rests, for him to fill.
    pub fn observe<'a>(
        &mut self,
        hosts: impl Iterator<Item = (&'a HostIdentity, &'a [Option<NodeRef<'a>>])>,
        cooldown: Seconds,
        world: &Inputs<'_>,
    ) {
        let mut before = std::mem::take(&mut self.filled);
        self.actual_slots.clear();
        for (host, slots) in hosts {
            let (host, previously_filled) = before.remove_entry(host).unwrap_or_else(|| (host.clone(), Vec::new()));
            for (slot, entry) in slots.iter().enumerate() {
                match entry {
                    Some(entry) => self.fill(&host, slot, *entry),
                    None if previously_filled.get(slot) == Some(&true) => {
                        self.start_cooldown(&host, slot, cooldown, world)
                    }
                    None => {}
                }
            }
            self.filled.insert(host, slots.iter().map(Option::is_some).collect());
        }
        self.free_slots.cooldowns.retain(|host, _| self.filled.contains_key(host));
        self.free_slots.freed.retain(|host, freed| {
            // By a clock that has been put back since, no check would be late enough for a long time.
            *freed = world.now.min(*freed);
            self.filled.contains_key(host)
        });
    }

    fn fill(&mut self, host: &HostIdentity, slot: usize, (id, node): NodeRef<'_>) {
        if node.record.slot != Some(slot as i64) {
            self.actual_slots.insert(id.clone(), slot);
        }
        self.end_cooldown(host, slot);
    }

    fn start_cooldown(&mut self, host: &HostIdentity, slot: usize, cooldown: Seconds, world: &Inputs<'_>) {
        self.free_slots.cooldowns.entry(host.clone()).or_default().insert(slot, world.monotonic_now + cooldown);
        self.free(host.clone(), world.now);
    }

    fn end_cooldown(&mut self, host: &HostIdentity, slot: usize) {
        if let Some(left) = self.free_slots.cooldowns.get_mut(host) {
            left.remove(&slot);
            if left.is_empty() {
                self.free_slots.cooldowns.remove(host);
            }
        }
    }

    /// The host is checked anew before a slot of it is filled again.
    pub fn free(&mut self, host: HostIdentity, now: Timestamp) {
        self.free_slots.freed.insert(host, now);
    }

    /// Which slot a node fills.
    pub fn slot_of(&self, id: &NodeId, node: &Node) -> Option<usize> {
        self.actual_slots.get(id).copied().or_else(|| usize::try_from(node.slot?).ok())
    }

    /// We have emptied it, so we fill it.
    pub fn freed(&mut self, slot: &SlotRef) {
        self.set_filled(slot, false);
        self.end_cooldown(&slot.host, slot.slot);
    }

    /// Known before any plan sees it: it may be gone by then.
    pub fn registered(&mut self, slot: &SlotRef) {
        self.set_filled(slot, true);
    }

    fn set_filled(&mut self, slot: &SlotRef, is_filled: bool) {
        if let Some(filled) = self.filled.get_mut(&slot.host).and_then(|slots| slots.get_mut(slot.slot)) {
            *filled = is_filled;
        }
    }

    /// A check opens the slots whose rest was over when it began. Whether any was waiting for it.
    pub fn inspected(&mut self, host: &HostIdentity, begun: MonotonicTime) -> bool {
        let Some(left) = self.free_slots.cooldowns.get_mut(host) else { return false };
        left.retain(|_, until| *until > begun);
        if left.is_empty() {
            self.free_slots.cooldowns.remove(host);
        }
        true
    }

    /// Whether a rest has ended since this was asked last.
    pub fn has_cooldown_ended(&mut self, now: MonotonicTime) -> bool {
        let since = std::mem::replace(&mut self.cooldowns_checked_at, now);
        self.cooldown_ends().any(|until| until > since && until <= now)
    }

    pub fn next_cooldown_end(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        self.cooldown_ends().filter(|until| *until > now).min()
    }

    fn cooldown_ends(&self) -> impl Iterator<Item = MonotonicTime> {
        self.free_slots.cooldowns.values().flat_map(|left| left.values().copied())
    }
}

/// How long a launcher leaves to others what they emptied: two that wait for the same slot do not fill it at the same time.
pub fn cooldown_for(launcher: &str) -> Seconds {
    // FNV-1a, by which names that are almost the same are far from each other.
    let sum = launcher.bytes().fold(0x811c_9dc5_u32, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    Seconds(MIN_COOLDOWN.0 + f64::from(sum % MAX_COOLDOWN_JITTER_MS) / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_on_one_machine_have_different_cooldowns() {
        let cooldowns = ["nl01-PoolWorker.lab-main-4f2a", "nl01-PoolWorker.lab-main-4f2b"].map(cooldown_for);
        assert_ne!(cooldowns[0], cooldowns[1]);
        assert!(cooldowns.iter().all(|rest| (5.0..10.0).contains(&rest.0)), "{cooldowns:?}");
    }
}
