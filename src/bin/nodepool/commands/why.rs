//! `why`: the last decision of every launcher about a request, and the state of its records, in sentences.

use std::collections::BTreeSet;

use nodepool::actors::runtime::clock;
use nodepool_model::records::component::PoolComponent;
use nodepool_model::records::ids::{LabelName, LauncherId, RequestId};
use nodepool_model::records::request::{NodeRequest, RequestState, summarize_labels};
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::status::{PoolVerdict, VerdictKind, age};
use nodepool_zk::Zk;
use nodepool_zk::tools::scan;
use serde_json::{Value, json};

use super::{backing, launchers};
use crate::output::Output;

pub async fn why(zk: &Zk, output: &mut Output<'_>, id: &RequestId) -> anyhow::Result<()> {
    let found = match crate::commands::nodes::is_path_element(id.as_str()) {
        true => scan::request(zk.as_ref(), id).await?,
        false => None,
    };
    match found {
        None => {
            let message = format!("Request {id} not found");
            output.print(&message)?;
            Ok(output.outcome(json!({"outcome": "not found", "request": id, "message": message}))?)
        }
        Some(Err(unreadable)) => {
            anyhow::bail!("{} cannot be read: {}", unreadable.path, unreadable.reason)
        }
        Some(Ok(entry)) => {
            let explanation = explain(zk, id, &entry.stored.record).await?;
            for sentence in explanation.sentences() {
                output.print(sentence)?;
            }
            Ok(output.outcome(explanation.document())?)
        }
    }
}

/// The records and verdicts that explain the state of a request.
pub struct Explanation {
    id: RequestId,
    request: NodeRequest,
    now: Timestamp,
    pools: Vec<PoolComponent>,
    verdicts: Vec<PoolVerdict>,
    /// Sentences about the slots of its nodes.
    slots: Vec<String>,
    /// Launchers without a reply: name and reason.
    unanswered: Vec<(String, String)>,
}

/// Queries all launchers that have a web port.
pub async fn explain(zk: &Zk, id: &RequestId, request: &NodeRequest) -> anyhow::Result<Explanation> {
    let pools: Vec<PoolComponent> =
        scan::pools(zk.as_ref()).await?.found.into_iter().map(|stored| (*stored.record).clone()).collect();
    let (addresses, mut unanswered) = launchers::addresses(zk.as_ref(), &pools).await?;
    let mut verdicts = Vec::new();
    for (name, reply) in launchers::query::<Vec<PoolVerdict>>(addresses, &format!("/why/{id}")).await? {
        match reply {
            Ok(received) => verdicts.extend(received),
            Err(reason) => unanswered.push((name, reason)),
        }
    }
    verdicts.sort_by(|a: &PoolVerdict, b: &PoolVerdict| (&a.provider, &a.pool).cmp(&(&b.provider, &b.pool)));
    let slots = backing::slots(zk.as_ref(), &request.nodes).await?;
    Ok(Explanation { id: id.clone(), request: request.clone(), now: clock::now(), pools, verdicts, slots, unanswered })
}

impl Explanation {
    pub fn sentences(&self) -> Vec<String> {
        let mut sentences = vec![self.state()];
        sentences.extend(self.candidates());
        for verdict in &self.verdicts {
            sentences.push(self.verdict(verdict));
        }
        sentences.extend(self.slots.iter().cloned());
        for launcher in &self.request.declined_by {
            if !self.verdicts.iter().any(|verdict| &verdict.launcher == launcher) {
                sentences.push(format!("{} declined it", self.name(launcher)));
            }
        }
        for (name, reason) in &self.unanswered {
            sentences.push(format!("launcher {name}: {reason}"));
        }
        sentences
    }

    fn state(&self) -> String {
        let Self { id, request, now, .. } = self;
        let labels = summarize_labels(&request.node_types);
        let since = age(request.state_time, *now);
        let requestor = request.requestor.as_deref().unwrap_or("an unknown requestor");
        let outcome = match request.state {
            RequestState::Requested => "waits for a launcher to accept it",
            RequestState::Pending => "is accepted by a launcher, which provides its nodes",
            RequestState::Fulfilled => "is fulfilled, and waits for its requestor to lock its nodes",
            RequestState::Failed => "failed, because no pool could serve it",
        };
        let state = request.state.as_str();
        format!("{id} of {requestor} for {labels} {outcome} ({state} for {since})")
    }

    /// Pools that could still serve the request, or labels that no launcher offers.
    fn candidates(&self) -> Option<String> {
        if !matches!(self.request.state, RequestState::Requested) {
            return None;
        }
        let labels = &self.request.node_types;
        let serves = |pool: &&PoolComponent| labels.iter().all(|label| pool.supported_labels.contains(label));
        let is_unoffered = |label: &&LabelName| !self.pools.iter().any(|pool| pool.supported_labels.contains(*label));
        let unoffered: BTreeSet<LabelName> = labels.iter().filter(is_unoffered).cloned().collect();
        if !unoffered.is_empty() {
            return Some(format!(
                "no launcher offers {}",
                summarize_labels(&unoffered.into_iter().collect::<Vec<_>>())
            ));
        }
        let open = |pool: &&PoolComponent| pool.id.as_ref().is_some_and(|id| !self.request.declined_by.contains(id));
        let pools: Vec<String> = self.pools.iter().filter(serves).filter(open).map(pool_name).collect();
        Some(match pools.is_empty() {
            true => "no pool that has not declined it offers all of its labels".to_owned(),
            false => format!("could be served by {}", pools.join(", ")),
        })
    }

    fn verdict(&self, verdict: &PoolVerdict) -> String {
        let phrase = match verdict.verdict {
            VerdictKind::Ignore => "ignores it",
            VerdictKind::Yield => "yields to another pool",
            VerdictKind::Defer => "cannot serve it yet",
            VerdictKind::Decline => "cannot serve it",
            VerdictKind::Accept => "serves it",
        };
        let reason = if verdict.reason.is_empty() { String::new() } else { format!(": {}", verdict.reason) };
        let since = age(verdict.since, self.now);
        format!("{}-{} {phrase}{reason} (for {since})", verdict.provider, verdict.pool)
    }

    /// Name of the pool with this launcher id.
    fn name(&self, launcher: &LauncherId) -> String {
        match self.pools.iter().find(|pool| pool.id.as_ref() == Some(launcher)) {
            Some(pool) => pool_name(pool),
            None => format!("{launcher}, which is offline,"),
        }
    }

    pub fn document(&self) -> Value {
        let entry = |(name, reason): &(String, String)| json!({"launcher": name, "reason": reason});
        json!({
            "outcome": "found",
            "request": self.id,
            "state": self.request.state,
            "age": age(self.request.state_time, self.now),
            "requestor": self.request.requestor,
            "node_types": self.request.node_types,
            "nodes": self.request.nodes,
            "declined_by": self.request.declined_by,
            "explanation": self.sentences(),
            "verdicts": self.verdicts,
            "unanswered": self.unanswered.iter().map(entry).collect::<Vec<_>>(),
        })
    }
}

fn pool_name(pool: &PoolComponent) -> String {
    let provider = pool.provider_name.as_ref().map_or("?", |name| name.as_str());
    let name = pool.name.as_ref().map_or("?", |name| name.as_str());
    format!("{provider}-{name} on {}", pool.hostname)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::testing::{CommandOutput, TestStore, capture};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    const ID: &str = "200-0000000007";

    async fn store(record: &str) -> TestStore {
        let store = TestStore::new();
        store.put(&format!("/nodepool/requests/{ID}"), record).await;
        store
    }

    async fn run_why(store: &TestStore, format: OutputFormat, id: &str) -> CommandOutput {
        capture(format, async |output| why(&store.zk, output, &id.into()).await).await
    }

    /// A web port that sends the same reply to every request; returns its address and the first line of the first
    /// request.
    async fn launcher(status: &'static str, body: String) -> (String, tokio::task::JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serve = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // A client that has read enough closes the connection.
            let _ = stream.write_all((head + &body).as_bytes()).await;
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            request.lines().next().unwrap().to_owned()
        };
        (address, tokio::spawn(serve))
    }

    #[tokio::test]
    async fn the_verdicts_of_all_launchers_are_shown_with_their_reasons() {
        let store = store(r#"{"state": "requested", "state_time": 1.0, "node_types": ["a"], "requestor": "z"}"#).await;
        let verdict = PoolVerdict {
            launcher: "l".into(),
            provider: "p".into(),
            pool: "main".into(),
            verdict: VerdictKind::Defer,
            reason: "all 2 hosts of a are busy".to_owned(),
            since: clock::now(),
        };
        let (address, request_line) = launcher("200 OK", serde_json::to_string(&[verdict]).unwrap()).await;
        store.register_pool(&["a"], Some(&address)).await;
        let captured = run_why(&store, OutputFormat::Table, ID).await;
        assert!(
            captured.out.contains("p-main cannot serve it yet: all 2 hosts of a are busy (for 00:00:00:0"),
            "{}",
            captured.out
        );
        assert!(captured.out.contains("could be served by p-main on nl01"), "{}", captured.out);
        assert_eq!(request_line.await.unwrap(), format!("GET /why/{ID} HTTP/1.1"));
    }

    #[tokio::test]
    async fn launchers_without_a_valid_reply_are_named_with_the_reason() {
        let endless = "[".repeat(launchers::MAX_REPLY_BYTES + 2);
        let cases = [
            ("500 Internal Server Error", String::new(), "returned status 500"),
            ("200 OK", "nonsense".to_owned(), "invalid reply"),
            ("200 OK", endless, "reply too large"),
        ];
        for (status, body, reason) in cases {
            let store = store(r#"{"state": "requested", "node_types": ["a"]}"#).await;
            let (address, _request_line) = launcher(status, body).await;
            store.register_pool(&["a"], Some(&address)).await;
            let document = run_why(&store, OutputFormat::Json, ID).await.json();
            let reported = document["unanswered"][0]["reason"].as_str().unwrap();
            assert!(reported.contains(reason), "{document}");
        }
    }

    #[tokio::test]
    async fn unreachable_launchers_and_launchers_without_address_are_named() {
        let store = store(r#"{"state": "requested", "node_types": ["a", "b"], "declined_by": ["nl09"]}"#).await;
        // Bound and dropped: no process listens there.
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
        store.register_pool(&["a"], Some(&free)).await;
        let python = r#"{"kind": "launcher", "hostname": "nl02", "version": "11.0.0", "state": "running"}"#;
        store.put("/nodepool/components/launcher/nl020000000000", python).await;
        let odd = r#"{"kind": "launcher", "hostname": "nl03", "webapp": "u@h:1/x?"}"#;
        store.put("/nodepool/components/launcher/nl030000000001", odd).await;
        store.put("/nodepool/components/launcher/nl040000000002", b"\xff").await;
        let out = run_why(&store, OutputFormat::Table, ID).await.out;
        for expected in [
            "no launcher offers b",
            "nl09, which is offline, declined it",
            "launcher nl02: version 11.0.0 does not report verdicts",
            &format!("launcher nl01 ({free}): does not respond: "),
            "launcher nl03 (u@h:1/x?): its record names no usable web address",
        ] {
            assert!(out.contains(expected), "{expected} is not in {out}");
        }
    }

    #[tokio::test]
    async fn missing_and_unreadable_requests_are_distinguished() {
        let store = store("nonsense").await;
        for id in ["200-0000000008", "", "../nodes", "x/y"] {
            let captured = run_why(&store, OutputFormat::Json, id).await;
            assert_eq!(
                (captured.json()["outcome"].as_str(), captured.result.is_none()),
                (Some("not found"), true),
                "{id}"
            );
        }
        let error = run_why(&store, OutputFormat::Table, ID).await.error();
        assert!(error.contains(ID) && error.contains("cannot be read"), "{error}");
    }
}
