//! Slots of static hosts from one plan to the next: the slots that other launchers freed, and when these may be filled
//! again.

use std::collections::{BTreeMap, HashMap};

use crate::inputs::Inputs;
use nodepool_model::records::ids::{NodeId, ProviderName};
use nodepool_model::records::node::Node;
use nodepool_model::records::static_host::HostIdentity;
use nodepool_model::records::time::{MonotonicTime, Seconds, Timestamp};
use nodepool_model::snapshot::Versioned;

/// The launcher that freed a slot has at least this time to fill it.
const MIN_COOLDOWN: Seconds = Seconds(5.0);
/// Additional time, depending on the name of the waiting launcher.
const MAX_COOLDOWN_JITTER_MS: u32 = 5_000;

pub type NodeRef<'a> = (&'a NodeId, &'a Versioned<Node>);

/// A slot that a write of this launcher fills or frees.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotRef {
    pub provider: ProviderName,
    pub host: HostIdentity,
    pub slot: usize,
}

/// Slots of one provider's hosts as of the last plan.
#[derive(Debug, Default)]
pub struct Slots {
    filled: HashMap<HostIdentity, Vec<bool>>,
    /// Nodes in other slots than their records say.
    actual_slots: HashMap<NodeId, usize>,
    free_slots: FreeSlots,
    /// Time up to which ended cooldowns have been reported.
    cooldowns_checked_at: MonotonicTime,
}

/// Conditions that delay filling free slots.
#[derive(Clone, Debug, Default)]
pub struct FreeSlots {
    /// Slots that other launchers freed, and the end of each cooldown. An entry remains until the host has been checked
    /// after that end.
    cooldowns: BTreeMap<HostIdentity, BTreeMap<usize, MonotonicTime>>,
    /// Time at which a slot of each host was last freed. A check from before that time does not count.
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

    /// Detects slots that another launcher freed, and starts their cooldown, which leaves them to that launcher.
    /// Without it, two launchers that fill the same slots, or disagree about a host, would undo each other's writes
    /// without pause.
    pub fn observe<'a>(
        &mut self,
        hosts: impl Iterator<Item = (&'a HostIdentity, &'a [Option<NodeRef<'a>>])>,
        cooldown: Seconds,
        inputs: &Inputs<'_>,
    ) {
        let mut before = std::mem::take(&mut self.filled);
        self.actual_slots.clear();
        for (host, slots) in hosts {
            let (host, previously_filled) = before.remove_entry(host).unwrap_or_else(|| (host.clone(), Vec::new()));
            for (slot, entry) in slots.iter().enumerate() {
                match entry {
                    Some(entry) => self.fill(&host, slot, *entry),
                    None if previously_filled.get(slot) == Some(&true) => {
                        self.start_cooldown(&host, slot, cooldown, inputs)
                    }
                    None => {}
                }
            }
            self.filled.insert(host, slots.iter().map(Option::is_some).collect());
        }
        self.free_slots.cooldowns.retain(|host, _| self.filled.contains_key(host));
        self.free_slots.freed.retain(|host, freed| {
            // If the wall clock was set back, no check would be late enough for a long time.
            *freed = inputs.now.min(*freed);
            self.filled.contains_key(host)
        });
    }

    fn fill(&mut self, host: &HostIdentity, slot: usize, (id, node): NodeRef<'_>) {
        if node.record.slot != Some(slot as i64) {
            self.actual_slots.insert(id.clone(), slot);
        }
        self.end_cooldown(host, slot);
    }

    fn start_cooldown(&mut self, host: &HostIdentity, slot: usize, cooldown: Seconds, inputs: &Inputs<'_>) {
        self.free_slots.cooldowns.entry(host.clone()).or_default().insert(slot, inputs.monotonic_now + cooldown);
        self.free(host.clone(), inputs.now);
    }

    fn end_cooldown(&mut self, host: &HostIdentity, slot: usize) {
        if let Some(cooldowns) = self.free_slots.cooldowns.get_mut(host) {
            cooldowns.remove(&slot);
            if cooldowns.is_empty() {
                self.free_slots.cooldowns.remove(host);
            }
        }
    }

    /// Records that a slot was freed: the host is checked again before one of its slots is filled.
    pub fn free(&mut self, host: HostIdentity, now: Timestamp) {
        self.free_slots.freed.insert(host, now);
    }

    /// The slot of a node.
    pub fn slot_of(&self, id: &NodeId, node: &Node) -> Option<usize> {
        self.actual_slots.get(id).copied().or_else(|| usize::try_from(node.slot?).ok())
    }

    /// This launcher freed the slot, so it may fill it at once.
    pub fn freed(&mut self, slot: &SlotRef) {
        self.set_filled(slot, false);
        self.end_cooldown(&slot.host, slot.slot);
    }

    /// Records that a slot was filled before a plan observes the node, which may be deleted by then.
    pub fn registered(&mut self, slot: &SlotRef) {
        self.set_filled(slot, true);
    }

    fn set_filled(&mut self, slot: &SlotRef, is_filled: bool) {
        if let Some(filled) = self.filled.get_mut(&slot.host).and_then(|slots| slots.get_mut(slot.slot)) {
            *filled = is_filled;
        }
    }

    /// A check opens the slots whose cooldown had ended when it started. True if any slot was waiting for it.
    pub fn inspected(&mut self, host: &HostIdentity, started_at: MonotonicTime) -> bool {
        let Some(cooldowns) = self.free_slots.cooldowns.get_mut(host) else { return false };
        cooldowns.retain(|_, until| *until > started_at);
        if cooldowns.is_empty() {
            self.free_slots.cooldowns.remove(host);
        }
        true
    }

    /// Whether a cooldown has ended since the last call.
    pub fn has_cooldown_ended(&mut self, now: MonotonicTime) -> bool {
        let since = std::mem::replace(&mut self.cooldowns_checked_at, now);
        self.cooldown_ends().any(|until| until > since && until <= now)
    }

    pub fn next_cooldown_end(&self, now: MonotonicTime) -> Option<MonotonicTime> {
        self.cooldown_ends().filter(|until| *until > now).min()
    }

    fn cooldown_ends(&self) -> impl Iterator<Item = MonotonicTime> {
        self.free_slots.cooldowns.values().flat_map(|cooldowns| cooldowns.values().copied())
    }
}

/// Cooldown of a launcher for slots that others freed. It differs by name, so that two launchers that wait for the same
/// slot do not fill it at the same time.
pub fn cooldown_for(launcher: &str) -> Seconds {
    // FNV-1a: similar names get very different values.
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
        assert!(cooldowns.iter().all(|cooldown| (5.0..10.0).contains(&cooldown.0)), "{cooldowns:?}");
    }
}
