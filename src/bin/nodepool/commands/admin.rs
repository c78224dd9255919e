//! Commands about requests and the ZooKeeper data of a provider: `request-list`, `info`, `erase`.

use std::io::BufRead;

use anyhow::{Context, bail};
use nodepool::actors::runtime::clock;
use nodepool::actors::web::live_view::{CloudCondition, ProviderStats};
use nodepool_model::config::Config;
use nodepool_model::records::ids::ProviderName;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::status::{REQUEST_COLUMNS, RequestRow, age};
use nodepool_model::report::table::{Table, python_text};
use nodepool_zk::tools::scan::{self, NodeEntry, ProviderBuild};
use nodepool_zk::txn::delete_tree;
use nodepool_zk::{Connection, paths};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::commands::{backing, clouds, launchers};
use crate::output::Output;

pub async fn request_list(zk: &dyn Connection, output: &mut Output<'_>) -> anyhow::Result<()> {
    let scan = scan::requests(zk).await?;
    output.note_unreadable(&scan.unreadable)?;
    let row = |entry: scan::RequestEntry| RequestRow { id: entry.id, request: entry.stored.record };
    let rows: Vec<RequestRow> = scan.found.into_iter().map(row).collect();
    Ok(output.list(REQUEST_COLUMNS, &rows)?)
}

pub async fn info(
    zk: &dyn Connection,
    config: &Config,
    output: &mut Output<'_>,
    provider: &ProviderName,
) -> anyhow::Result<()> {
    let (builds, nodes) = data_of(zk, output, provider).await?;
    output.print(format_args!("ZooKeeper data for provider {provider}\n"))?;
    output.print("Image data:")?;
    let mut table = Table::new(["Image Name", "Build ID", "Upload IDs"]);
    for ProviderBuild { image, build, uploads } in &builds {
        let uploads: Vec<&str> = uploads.iter().map(|id| id.as_str()).collect();
        table.push([image.to_string(), build.to_string(), uploads.join(",")]);
    }
    output.print(table)?;
    output.print("\nNodes:")?;
    let mut table = Table::new(["ID", "Server ID"]);
    for node in &nodes {
        table.push([node.id.to_string(), python_text(&node.stored.record.external_id)]);
    }
    output.print(table)?;
    // The cloud may take minutes to respond.
    output.flush()?;
    let outcome = if builds.is_empty() && nodes.is_empty() { "not found" } else { "found" };
    let mut shown = document(outcome, provider, &builds, &nodes);
    let used: Vec<_> = nodes.iter().map(|node| node.stored.record.clone()).collect();
    if let Some(resources) = clouds::resources(config, output, provider, &used).await? {
        shown["cloud"] = resources;
    }
    let launchers = provider_stats(zk, provider).await?;
    let backing_nodes = backing::of_provider(zk, provider).await?;
    if !backing_nodes.is_empty() {
        let stats: Vec<ProviderStats> = launchers.iter().map(|(_, stats)| stats.clone()).collect();
        shown["backing_nodes"] = backing::show(output, &backing_nodes, &stats)?;
    }
    let conditions = conditions_of(launchers);
    for (launcher, CloudCondition { since, text }) in &conditions {
        let age = age(Timestamp(*since), clock::now());
        output.print(format_args!("\nFor {age}, says launcher {launcher}: {text}"))?;
    }
    if !conditions.is_empty() {
        let shown_of = |(launcher, condition): &(String, CloudCondition)| json!({"launcher": launcher, "since": condition.since, "text": condition.text});
        shown["conditions"] = conditions.iter().map(shown_of).collect();
    }
    Ok(output.outcome(shown)?)
}

/// Outage and refusals of a provider's cloud, according to its launchers.
fn conditions_of(launchers: Vec<(String, ProviderStats)>) -> Vec<(String, CloudCondition)> {
    let conditions = launchers
        .into_iter()
        .flat_map(|(launcher, stats)| stats.conditions.into_iter().map(move |condition| (launcher.clone(), condition)));
    conditions.collect()
}

/// State of a provider, according to the launchers that run it. Launchers without an answer are skipped.
async fn provider_stats(zk: &dyn Connection, provider: &ProviderName) -> anyhow::Result<Vec<(String, ProviderStats)>> {
    /// Reply of a launcher, as far as it is needed.
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Providers {
        providers: Vec<ProviderStats>,
    }
    let (addresses, _) = launchers::addresses(zk, &[]).await?;
    let replies = launchers::query::<Providers>(addresses, "/api/providers").await?;
    let mut found = Vec::new();
    for (launcher, reply) in replies {
        let providers = reply.map(|reply| reply.providers).unwrap_or_default();
        let ours = providers.into_iter().filter(|stats| stats.name == provider.as_str());
        found.extend(ours.map(|stats| (launcher.clone(), stats)));
    }
    Ok(found)
}

/// Whether `erase` asks for confirmation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confirmation {
    Prompt,
    Forced,
}

pub async fn erase(
    zk: &dyn Connection,
    output: &mut Output<'_>,
    answers: &mut dyn BufRead,
    provider: &ProviderName,
    confirmation: Confirmation,
) -> anyhow::Result<()> {
    let (builds, nodes) = data_of(zk, output, provider).await?;
    if confirmation == Confirmation::Prompt {
        output.prompt("\nWARNING! This action is not reversible!\n")?;
        output.prompt(&format!("Erase ZooKeeper data for provider {provider}? [N/y] "))?;
        let mut answer = String::new();
        if answers.read_line(&mut answer).context("cannot read the answer")? == 0 {
            // Ends the line of the question.
            output.prompt("\n")?;
            bail!("no answer on standard input, no data erased; --force erases without asking");
        }
        if !answer.trim_end_matches(['\r', '\n']).eq_ignore_ascii_case("y") {
            output.print("Aborting. No data erased.")?;
            return Ok(output.outcome(json!({"outcome": "aborted", "provider": provider}))?);
        }
    }
    output.print(format_args!("Erasing build data for {provider}..."))?;
    for ProviderBuild { image, build, .. } in &builds {
        let path = paths::image_provider(image, build, provider);
        delete_tree::delete_tree(zk, &path).await.with_context(|| format!("cannot remove {path}"))?;
    }
    output.print(format_args!("Erasing node data for {provider}..."))?;
    for node in &nodes {
        let path = paths::node(&node.id);
        delete_tree::delete_tree(zk, &path).await.with_context(|| format!("cannot remove {path}"))?;
    }
    Ok(output.outcome(document("erased", provider, &builds, &nodes))?)
}

async fn data_of(
    zk: &dyn Connection,
    output: &mut Output<'_>,
    provider: &ProviderName,
) -> anyhow::Result<(Vec<ProviderBuild>, Vec<NodeEntry>)> {
    let builds = scan::builds_of_provider(zk, provider).await?;
    let mut scan = scan::nodes(zk).await?;
    output.note_unreadable(&scan.unreadable)?;
    scan.found.retain(|node| node.stored.record.provider.as_ref() == Some(provider));
    Ok((builds, scan.found))
}

fn document(outcome: &str, provider: &ProviderName, builds: &[ProviderBuild], nodes: &[NodeEntry]) -> Value {
    let mut images: Map<String, Value> = Map::new();
    for ProviderBuild { image, build, uploads } in builds {
        images.entry(image.as_str()).or_insert_with(|| json!({}))[build.as_str()] = json!(uploads);
    }
    let server = |node: &NodeEntry| json!({"id": node.id, "server_id": node.stored.record.external_id});
    let nodes: Vec<Value> = nodes.iter().map(server).collect();
    json!({"outcome": outcome, "provider": provider, "images": images, "nodes": nodes})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::OutputFormat;
    use crate::testing::{CommandOutput, TestStore, capture};

    const BUILDS: &str = "/nodepool/images/debian/builds";

    async fn store() -> TestStore {
        let store = TestStore::new();
        for (id, provider) in [("0000000001", "p"), ("0000000002", "other")] {
            let record = format!(r#"{{"state": "ready", "provider": "{provider}", "external_id": null}}"#);
            store.put_node(id, &record).await;
            store.put(&format!("/nodepool/nodes/{id}/lock"), "").await;
            store.put(&format!("{BUILDS}/b1/providers/{provider}/images/{id}"), "{}").await;
        }
        store
    }

    async fn run_erase(store: &TestStore, answer: &str, confirmation: Confirmation) -> CommandOutput {
        let mut answers = answer.as_bytes();
        let provider = ProviderName::from("p");
        capture(OutputFormat::Table, async |output| {
            erase(store.zk.as_ref(), output, &mut answers, &provider, confirmation).await
        })
        .await
    }

    #[tokio::test]
    async fn requests_are_listed_with_their_relative_priority() {
        let store = TestStore::new();
        let record = r#"{"state": "requested", "node_types": ["a", "b"], "relative_priority": 3, "requestor": "z"}"#;
        store.put("/nodepool/requests/200-0000000007", record).await;
        store.put("/nodepool/requests/200-0000000008", "").await;
        let captured = capture(OutputFormat::Table, async |output| request_list(store.zk.as_ref(), output).await).await;
        assert!(
            captured.out.contains("| 200-0000000007 | 3        | requested | z         | a,b        |"),
            "{}",
            captured.out
        );
        assert!(captured.notes.contains("200-0000000008 is skipped"), "{}", captured.notes);
    }

    #[tokio::test]
    async fn erase_removes_exactly_the_data_that_info_shows() {
        let store = store().await;
        let config = crate::testing::config("{labels: [], providers: [{name: p, driver: static, pools: []}]}").await;
        let captured =
            capture(OutputFormat::Table, async |output| info(store.zk.as_ref(), &config, output, &"p".into()).await)
                .await;
        let expected = "\
ZooKeeper data for provider p

Image data:
+------------+----------+------------+
| Image Name | Build ID | Upload IDs |
+------------+----------+------------+
| debian     | b1       | 0000000001 |
+------------+----------+------------+

Nodes:
+------------+-----------+
| ID         | Server ID |
+------------+-----------+
| 0000000001 | None      |
+------------+-----------+
";
        assert_eq!(captured.out, expected);
        let captured = run_erase(&store, "", Confirmation::Forced).await;
        assert_eq!(captured.out, "Erasing build data for p...\nErasing node data for p...\n");
        assert!(!store.exists("/nodepool/nodes/0000000001").await);
        assert!(!store.exists(&format!("{BUILDS}/b1/providers/p")).await);
        assert!(store.exists("/nodepool/nodes/0000000002/lock").await);
        assert!(store.exists(&format!("{BUILDS}/b1/providers/other/images/0000000002")).await);
        let captured =
            capture(OutputFormat::Json, async |output| info(store.zk.as_ref(), &config, output, &"p".into()).await)
                .await;
        assert_eq!(captured.json()["outcome"], "not found");
    }

    #[tokio::test]
    async fn erase_without_confirmation_removes_nothing() {
        let store = store().await;
        let question = "\nWARNING! This action is not reversible!\nErase ZooKeeper data for provider p? [N/y] ";
        for answer in ["n\n", "\n", "yes\n", " y\n"] {
            let captured = run_erase(&store, answer, Confirmation::Prompt).await;
            assert_eq!(captured.out, format!("{question}Aborting. No data erased.\n"));
            assert!(captured.result.is_none());
        }
        let captured = run_erase(&store, "", Confirmation::Prompt).await;
        assert!(captured.out.ends_with("[N/y] \n") && captured.error().contains("no data erased"), "{}", captured.out);
        assert!(store.exists("/nodepool/nodes/0000000001").await);
        for answer in ["Y\n", "y"] {
            let captured = run_erase(&store, answer, Confirmation::Prompt).await;
            assert_eq!(captured.out, format!("{question}Erasing build data for p...\nErasing node data for p...\n"));
        }
        assert!(!store.exists("/nodepool/nodes/0000000001").await);
    }
}
