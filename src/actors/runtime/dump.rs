//! State dumps: all registered actors are queried at once, and one JSON line per actor is logged.

use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;
use tracing::debug;

use super::messages::Dump;
use super::profile::{self, Profile};
use super::registry::{ActorId, NoAnswer};

/// Actors that answer `Dump`.
pub type DumpRegistry = super::registry::ActorRegistry<Dump>;

/// Timeout of an answer. An actor that needs longer is blocked, and the dump reports that.
pub const DUMP_TIMEOUT: Duration = Duration::from_millis(300);

/// The answers of all actors, one JSON object each. An actor that does not answer is named.
pub async fn collect(registry: &DumpRegistry) -> Vec<Value> {
    let answers = registry.request_all(Dump, DUMP_TIMEOUT).await;
    answers.into_iter().map(|(actor_id, answer)| object(actor_id, answer)).collect()
}

/// Handles SIGUSR2: logs the state of all actors, and starts a profile at one signal and logs it at the next one. The
/// lines have their own log target, so that they can be sent elsewhere.
#[derive(Default)]
pub struct DumpWriter {
    profile: Option<(Profile, Instant)>,
}

impl DumpWriter {
    pub async fn write(&mut self, registry: &DumpRegistry) {
        debug!(target: "nodepool.stack_dump", "Beginning debug handler");
        for view in collect(registry).await {
            debug!(target: "nodepool.stack_dump", "{view}");
        }
        match self.profile.take() {
            Some((profile, _)) => {
                debug!(target: "nodepool.stack_dump", "Stopping profile");
                for line in profile.finish().await {
                    debug!(target: "nodepool.stack_dump", "{line}");
                }
            }
            // No profile is recorded if its lines would not be logged.
            None if !tracing::enabled!(target: "nodepool.stack_dump", tracing::Level::DEBUG) => {}
            None => {
                let max_duration = profile::MAX_DURATION;
                self.profile = Profile::start(registry.clone()).map(|profile| (profile, Instant::now() + max_duration));
                match self.profile.is_some() {
                    true => {
                        debug!(target: "nodepool.stack_dump", "Starting profile; the next signal within {} s writes it", max_duration.as_secs())
                    }
                    false => debug!(target: "nodepool.stack_dump", "a profile is already being recorded"),
                }
            }
        }
        debug!(target: "nodepool.stack_dump", "End debug handler");
    }

    /// Resolves when a profile has expired without being collected.
    pub async fn profile_expired(&mut self) {
        match &self.profile {
            Some((_, end)) => tokio::time::sleep_until(*end).await,
            None => std::future::pending().await,
        }
    }

    pub async fn discard_profile(&mut self) {
        if let Some((profile, _)) = self.profile.take() {
            drop(profile.finish().await);
            debug!(target: "nodepool.stack_dump", "profile discarded: not collected in time");
        }
    }
}

fn object(actor_id: ActorId, answer: Result<Option<Value>, NoAnswer>) -> Value {
    let mut view = Map::new();
    view.insert("actor".to_owned(), actor_id.actor.into());
    view.insert("name".to_owned(), actor_id.name.into());
    match answer {
        Ok(Some(Value::Object(state))) => view.extend(state),
        Ok(Some(other)) => drop(view.insert("state".to_owned(), other)),
        Ok(None) => drop(view.insert("answer".to_owned(), "no state".into())),
        Err(NoAnswer::Stopped) => drop(view.insert("answer".to_owned(), "stopped".into())),
        Err(NoAnswer::Deadline) => {
            view.insert("answer".to_owned(), format!("none within {} ms", DUMP_TIMEOUT.as_millis()).into());
            view.insert("thread".to_owned(), actor_id.thread.into());
        }
    }
    Value::Object(view)
}

#[cfg(test)]
mod tests {
    use super::*;
    use actix::{Actor, Arbiter, Context, Handler, ResponseFuture};
    use serde_json::json;

    struct Worker {
        answers_after: Duration,
    }

    impl Actor for Worker {
        type Context = Context<Self>;
    }

    impl Handler<Dump> for Worker {
        type Result = ResponseFuture<Option<Value>>;

        fn handle(&mut self, _: Dump, _: &mut Self::Context) -> Self::Result {
            let wait = self.answers_after;
            Box::pin(async move {
                tokio::time::sleep(wait).await;
                Some(json!({"paused": false}))
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_actor_that_does_not_answer_is_named() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let registry = DumpRegistry::default();
                let quick = Worker { answers_after: Duration::ZERO }.start();
                let slow = Worker { answers_after: Duration::from_secs(3600) }.start();
                let _first = registry.register("PoolWorker", "cloud-b/main", slow.clone());
                let _second = registry.register("PoolWorker", "cloud-a/main", quick.clone());
                let mut views = collect(&registry).await;
                assert!(views[1].as_object_mut().unwrap().remove("thread").is_some());
                let expected = [
                    json!({"actor": "PoolWorker", "name": "cloud-a/main", "paused": false}),
                    json!({"actor": "PoolWorker", "name": "cloud-b/main", "answer": "none within 300 ms"}),
                ];
                assert_eq!(views, expected);
            })
            .await;
    }

    #[test]
    fn blocked_thread_is_named_and_delays_no_other() {
        actix::System::new().block_on(async {
            let registry = DumpRegistry::default();
            let (well, stuck) = (Arbiter::new(), Arbiter::new());
            let (sender, started) = std::sync::mpsc::channel();
            for (arbiter, name) in [(&well, "well"), (&stuck, "stuck")] {
                let (registry, sender) = (registry.clone(), sender.clone());
                arbiter.spawn_fn(move || {
                    let worker = Worker { answers_after: Duration::ZERO }.start();
                    let registration = registry.register("PoolWorker", name, worker.clone());
                    sender.send((worker, registration, std::thread::current().name().map(str::to_owned))).unwrap();
                });
            }
            let workers: Vec<_> = (0..2).map(|_| started.recv().unwrap()).collect();
            let (release, blocked) = std::sync::mpsc::channel::<()>();
            stuck.spawn_fn(move || {
                let _ = blocked.recv();
            });
            let views = collect(&registry).await;
            drop(release);
            assert_eq!(views[0]["name"], "stuck");
            assert!(workers.iter().any(|(_, _, thread)| views[0]["thread"] == json!(thread)), "{views:?}");
            assert_eq!(views[1], json!({"actor": "PoolWorker", "name": "well", "paused": false}));
        });
    }

    #[tokio::test]
    async fn a_dropped_registration_is_not_queried() {
        let local = tokio::task::LocalSet::new();
        local
            .run_until(async {
                let registry = DumpRegistry::default();
                let worker = Worker { answers_after: Duration::ZERO }.start();
                let registration = registry.register("PoolWorker", "a", worker.clone());
                assert_eq!(collect(&registry).await.len(), 1);
                drop(registration);
                assert!(collect(&registry).await.is_empty() && registry.is_empty());
            })
            .await;
    }
}
