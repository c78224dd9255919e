//! Other launchers on the same ZooKeeper: their figures come from their web ports; what is not to be had is said.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::actors::shared::Shared;
use crate::model::component::ComponentKind;

/// They are asked at most this often.
const PAUSE: Duration = Duration::from_secs(5);
const DEADLINE: Duration = Duration::from_secs(2);
/// More than the figures of hundreds of providers.
const MOST_BYTES: usize = 4 << 20;

#[derive(Clone, Default)]
pub struct Neighbours(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    asked: Option<Instant>,
    /// By the address of the web port, or the name of the host where there is none.
    answers: BTreeMap<String, Value>,
}

impl Neighbours {
    pub fn figures(&self) -> Vec<Value> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).answers.values().cloned().collect()
    }

    /// Begins to ask all of them, unless that was just done. Nobody waits for the answers.
    pub fn look_around(&self, shared: &Shared) {
        let Some(snapshot) = shared.pictures.latest() else { return };
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.asked.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        state.asked = Some(Instant::now());
        let launchers = snapshot.components().filter(|((kind, _), _)| *kind == ComponentKind::Launcher);
        let others: BTreeMap<String, (String, Option<String>)> = launchers
            .filter(|(_, stored)| stored.record.webapp != shared.webapp)
            .map(|(_, stored)| {
                let record = &stored.record;
                let key = record.webapp.clone().unwrap_or_else(|| record.hostname.clone());
                (key, (record.hostname.clone(), record.webapp.clone()))
            })
            .collect();
        state.answers.retain(|key, _| others.contains_key(key));
        drop(state);
        for (key, (hostname, address)) in others {
            let state = self.0.clone();
            actix_rt::spawn(async move {
                let answer = match address {
                    Some(address) => ask(&address).await,
                    None => Err("it has no web port".to_owned()),
                };
                let answer = answer.unwrap_or_else(|missing| json!({"launcher": hostname, "missing": missing}));
                state.lock().unwrap_or_else(PoisonError::into_inner).answers.insert(key, answer);
            });
        }
    }
}

/// The reason for there being no figures is for people.
async fn ask(address: &str) -> Result<Value, String> {
    let client = reqwest::Client::builder()
        .timeout(DEADLINE)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .build()
        .map_err(|error| error.to_string())?;
    let asking = client.get(format!("http://{address}/api/providers")).send();
    let mut response = asking.await.map_err(|_| format!("http://{address} does not answer"))?;
    if response.status() == reqwest::StatusCode::NOT_FOUND {
        return Err(format!("http://{address} has no such figures; it may be a Nodepool 11"));
    }
    if !response.status().is_success() {
        return Err(format!("http://{address} answers {}", response.status()));
    }
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|_| format!("http://{address} breaks off"))? {
        body.extend_from_slice(&piece);
        if body.len() > MOST_BYTES {
            return Err(format!("http://{address} answers too much"));
        }
    }
    let answer: Value = serde_json::from_slice(&body).map_err(|_| format!("http://{address} answers no JSON"))?;
    let is_right = answer["launcher"].is_string() && answer["providers"].is_array();
    is_right.then_some(answer).ok_or_else(|| format!("http://{address} answers something else"))
}
