//! Actor registry: weak recipients of one message, by actor and name. All are queried at once, with one deadline.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use actix::{Message, Recipient, WeakRecipient};
use futures::future::join_all;
use tokio::time::Instant;

/// Actors that answer `M`. They register when they start; dropping the registration removes them.
pub struct ActorRegistry<M: Message + Send>
where
    M::Result: Send,
{
    entries: Arc<Mutex<Entries<M>>>,
}

struct Entries<M: Message + Send>
where
    M::Result: Send,
{
    next: u64,
    by_number: BTreeMap<u64, Entry<M>>,
}

struct Entry<M: Message + Send>
where
    M::Result: Send,
{
    actor_id: ActorId,
    recipient: WeakRecipient<M>,
}

/// Identity of an actor: its type, its name, and the thread it registered on, which identifies a blocked arbiter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ActorId {
    pub actor: &'static str,
    pub name: String,
    pub thread: String,
}

/// Reason of a missing answer; shown in dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAnswer {
    Deadline,
    Stopped,
}

/// Keeps an actor registered; a field of the actor.
#[must_use = "the actor is registered only as long as this is kept"]
pub struct Registration {
    unregister: Option<Box<dyn FnOnce() + Send>>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(unregister) = self.unregister.take() {
            unregister();
        }
    }
}

impl<M> ActorRegistry<M>
where
    M: Message + Send + Clone + 'static,
    M::Result: Send,
{
    /// Registers an actor. Must be called on the actor's own arbiter, as in `started`.
    pub fn register(
        &self,
        actor: &'static str,
        name: impl Into<String>,
        recipient: impl Into<WeakRecipient<M>>,
    ) -> Registration {
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        let entry = Entry { actor_id: ActorId { actor, name: name.into(), thread }, recipient: recipient.into() };
        let mut entries = self.lock();
        let number = entries.next;
        entries.next += 1;
        entries.by_number.insert(number, entry);
        let shared = self.entries.clone();
        let unregister = move || {
            lock(&shared).by_number.remove(&number);
        };
        Registration { unregister: Some(Box::new(unregister)) }
    }

    /// Queries all actors at once. Returns when all have answered, at the latest at the deadline; sorted by actor and
    /// name.
    pub async fn request_all(&self, message: M, deadline: Duration) -> Vec<(ActorId, Result<M::Result, NoAnswer>)> {
        let pending = self.recipients().into_iter().map(|(actor_id, recipient)| {
            let message = message.clone();
            async move {
                let answer = match tokio::time::timeout(deadline, recipient.send(message)).await {
                    Ok(Ok(answer)) => Ok(answer),
                    Ok(Err(_)) => Err(NoAnswer::Stopped),
                    Err(_) => Err(NoAnswer::Deadline),
                };
                (actor_id, answer)
            }
        });
        join_all(pending).await
    }

    /// Measures the time until each actor answers; `None` without an answer.
    pub async fn time_all(&self, message: M, deadline: Duration) -> Vec<(ActorId, Option<Duration>)> {
        let pending = self.recipients().into_iter().map(|(actor_id, recipient)| {
            let message = message.clone();
            async move {
                let began = Instant::now();
                let answer = tokio::time::timeout(deadline, recipient.send(message)).await;
                (actor_id, answer.is_ok_and(|answer| answer.is_ok()).then(|| began.elapsed()))
            }
        });
        join_all(pending).await
    }

    pub fn len(&self) -> usize {
        self.lock().by_number.len()
    }

    /// Number of actors by type.
    pub fn by_actor(&self) -> BTreeMap<&'static str, usize> {
        let mut numbers = BTreeMap::new();
        for entry in self.lock().by_number.values() {
            *numbers.entry(entry.actor_id.actor).or_default() += 1;
        }
        numbers
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn recipients(&self) -> Vec<(ActorId, Recipient<M>)> {
        let entries = self.lock();
        let alive = entries.by_number.values();
        let mut found: Vec<(ActorId, Recipient<M>)> = alive
            .filter_map(|entry| entry.recipient.upgrade().map(|recipient| (entry.actor_id.clone(), recipient)))
            .collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        found
    }

    fn lock(&self) -> MutexGuard<'_, Entries<M>> {
        lock(&self.entries)
    }
}

/// A panic elsewhere cannot leave the map half changed, so a poisoned lock is used as it is.
fn lock<M: Message + Send>(entries: &Mutex<Entries<M>>) -> MutexGuard<'_, Entries<M>>
where
    M::Result: Send,
{
    entries.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Message + Send> Default for ActorRegistry<M>
where
    M::Result: Send,
{
    fn default() -> Self {
        Self { entries: Arc::new(Mutex::new(Entries { next: 0, by_number: BTreeMap::new() })) }
    }
}

impl<M: Message + Send> Clone for ActorRegistry<M>
where
    M::Result: Send,
{
    fn clone(&self) -> Self {
        Self { entries: self.entries.clone() }
    }
}
