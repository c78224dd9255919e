//! Commands that query a provider's cloud: its resources, its unused instances, and deletions in this process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use nodepool::actors::provider::one_shot_provider::{self, LeakCandidate, OneShotProvider, orphaned_uploads, orphans};
use nodepool_driver::cloud_resource::{CloudResource, ResourceKind, ResourceOwner, UnusedResources, UploadMark};
use nodepool_driver::error::CloudError;
use nodepool_driver::facts::ProviderFacts;
use nodepool_driver::instance::Inventory;
use nodepool_driver::job::{Job, Outcome};
use nodepool_model::config::{Config, ProviderConfig};
use nodepool_model::records::ids::{ExternalId, NodeId, ProviderName, UploadId};
use nodepool_model::records::node::Node;
use nodepool_model::records::resources::Resources;
use nodepool_model::report::table::Table;
use nodepool_zk::Connection;
use nodepool_zk::tools::scan;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::output::Output;

/// Timeout for a cloud that does not respond.
const CLOUD_TIMEOUT: Duration = Duration::from_secs(60);
/// The same timeout as that of a launcher's deletion.
const DELETION_TIMEOUT: Duration = Duration::from_secs(600);

/// Opens a provider's driver.
pub async fn open(section: &Arc<ProviderConfig>) -> anyhow::Result<OneShotProvider> {
    OneShotProvider::open(section.clone()).await.map_err(|problems| {
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        anyhow!("provider {} cannot be used: {}", section.name, texts.join("; "))
    })
}

async fn with_timeout<T>(call: impl Future<Output = Result<T, CloudError>>, limit: Duration) -> anyhow::Result<T> {
    match timeout(limit, call).await {
        Ok(reply) => Ok(reply?),
        Err(_) => Err(anyhow!("no reply within {} s", limit.as_secs())),
    }
}

/// Deletes an instance, and waits until it no longer exists.
pub async fn delete(section: &Arc<ProviderConfig>, id: ExternalId) -> anyhow::Result<()> {
    let provider = open(section).await?;
    match timeout(DELETION_TIMEOUT, provider.run(Job::Delete(id.clone()))).await {
        Ok(Ok(_) | Err(CloudError::NotFound(_))) => Ok(()),
        Ok(Err(error)) => Err(anyhow!("cannot delete instance {id} of provider {}: {error}", section.name)),
        Err(_) => Err(anyhow!(
            "instance {id} of provider {} still exists after {} s",
            section.name,
            DELETION_TIMEOUT.as_secs()
        )),
    }
}

/// Shows the resources of a provider's cloud and its unavailable labels. Shows nothing for a provider that launches no
/// nodes, and a note if the cloud cannot be queried.
pub async fn resources(
    config: &Config,
    output: &mut Output<'_>,
    provider: &ProviderName,
    used: &[Arc<Node>],
) -> anyhow::Result<Option<Value>> {
    let Some(section) = config.providers.get(provider).filter(|section| section.driver != "static") else {
        return match config.out_of_service.get(provider) {
            Some(reason) => {
                output.note(format_args!("provider {provider} is out of service: {reason}"))?;
                Ok(Some(json!({"out_of_service": reason})))
            }
            None => Ok(None),
        };
    };
    let facts = match refresh(section).await {
        Ok(facts) => facts,
        Err(error) => {
            output.note(format_args!("cannot query the cloud of provider {provider}: {error:#}"))?;
            return Ok(Some(json!({"error": format!("{error:#}")})));
        }
    };
    let mut own = Resources::none();
    for node in used {
        let recorded = node.resources.iter().flat_map(|resources| resources.iter());
        let need = recorded.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?)));
        own.add(&need.collect());
        if let (Some(pool), Some(label)) = (&node.pool, node.labels.first()) {
            own.add(&facts.need(pool, label).recorded(false));
        }
    }
    show(output, &facts, &own)
}

async fn refresh(section: &Arc<ProviderConfig>) -> anyhow::Result<Arc<ProviderFacts>> {
    let provider = open(section).await?;
    with_timeout(provider.refresh(), CLOUD_TIMEOUT).await
}

fn show(output: &mut Output<'_>, facts: &ProviderFacts, own: &Resources) -> anyhow::Result<Option<Value>> {
    let mut names: Vec<&str> = facts.limits.names().chain(facts.unmanaged.names()).chain(own.names()).collect();
    names.sort_unstable();
    names.dedup();
    let number = |amount: f64| if amount.is_finite() { amount.to_string() } else { "unlimited".to_owned() };
    let mut table = Table::new(["Resource", "Limit", "Used By Nodes", "Used By Others", "Free"]);
    let mut resources = serde_json::Map::new();
    for name in names {
        let (limit, nodes, others) = (facts.limits.get(name), own.get(name), facts.unmanaged.get(name));
        let free = (limit - nodes - others).max(0.0);
        table.push([name.to_owned(), number(limit), number(nodes), number(others), number(free)]);
        let shown = |amount: f64| amount.is_finite().then_some(amount);
        resources.insert(
            name.to_owned(),
            json!({"limit": shown(limit), "nodes": nodes, "others": others, "free": shown(free)}),
        );
    }
    output.print("\nResources:")?;
    output.print(table)?;
    let mut table = Table::new(["Pool", "Label", "Reason"]);
    let mut unavailable_labels = Vec::new();
    for (pool, labels) in facts.launch_config.iter().flat_map(|config| &config.labels) {
        for (label, known) in labels {
            if let Some(unavailable) = &known.unavailable {
                table.push([pool.to_string(), label.to_string(), unavailable.reason().to_owned()]);
                unavailable_labels.push(json!({"pool": pool, "label": label, "reason": unavailable.reason()}));
            }
        }
    }
    if !unavailable_labels.is_empty() {
        output.print("\nUnavailable labels:")?;
        output.print(table)?;
    }
    Ok(Some(json!({"resources": resources, "unavailable_labels": unavailable_labels})))
}

/// Shows unused resources that a launcher would delete, with the reason: instances with our metadata that belong to no
/// node, and floating IPs and ports, which have no metadata. Deletes nothing.
pub async fn alien_list(
    zk: &dyn Connection,
    config: &Config,
    output: &mut Output<'_>,
    only: Option<&ProviderName>,
) -> anyhow::Result<()> {
    if let Some(name) = only
        && !config.providers.contains_key(name)
    {
        let reason = config.out_of_service.get(name).map_or("it is not configured", String::as_str);
        return Err(anyhow!("cannot query the cloud of provider {name}: {reason}"));
    }
    let mut instances = Table::new(["Provider", "Server ID", "Node ID", "Reason"]);
    let mut others = Table::new(["Provider", "Kind", "ID", "Reason"]);
    let mut found = Vec::new();
    for (name, section) in &config.providers {
        if section.driver == "static" || only.is_some_and(|wanted| wanted != name) {
            continue;
        }
        if section.driver == "fake" {
            output.note(format_args!("the cloud of provider {name} is in the memory of its launcher"))?;
            continue;
        }
        // A cloud that does not respond does not hide the other clouds, as in the list of alien images.
        let (candidates, unused) = match find_aliens(zk, section).await {
            Ok(found) => found,
            Err(error) => {
                output.note(format_args!("WARNING: cannot list the instances of {name}: {error:#}"))?;
                continue;
            }
        };
        for LeakCandidate { external_id, node, reason } in candidates {
            instances.push([name.to_string(), external_id.to_string(), node.to_string(), reason.text().to_owned()]);
            found.push(json!({"provider": name, "server_id": external_id, "node_id": node, "reason": reason}));
        }
        let mut unused = unused.unwrap_or_else(|error| Unused {
            failed: BTreeMap::from([("all", format!("{error:#}"))]),
            found: Vec::new(),
        });
        for (kind, error) in std::mem::take(&mut unused.failed) {
            output.note(format_args!("WARNING: cannot list unused resources of {name} ({kind}): {error}"))?;
        }
        for (CloudResource { kind, id, .. }, reason) in unused.found {
            others.push([name.to_string(), kind.to_owned(), id.to_string(), reason.to_owned()]);
            found.push(json!({"provider": name, "kind": kind, "id": id, "reason": reason}));
        }
    }
    output.print(instances)?;
    if found.iter().any(|entry| entry.get("kind").is_some()) {
        output.print("\nUnused resources:")?;
        output.print(others)?;
    }
    Ok(output.outcome(json!(found))?)
}

/// Leaked instances, and other unused resources.
type Aliens = (Vec<LeakCandidate>, anyhow::Result<Unused>);

/// Resources that a launcher would delete, each with its state, and the kinds that could not be listed.
struct Unused {
    found: Vec<(CloudResource, &'static str)>,
    failed: BTreeMap<&'static str, String>,
}

async fn find_aliens(zk: &dyn Connection, section: &Arc<ProviderConfig>) -> anyhow::Result<Aliens> {
    let provider = open(section).await?;
    let inventory = list(&provider).await?;
    let unused = listed_twice(&provider).await;
    // The nodes are read after the listings, because their records were written before anything was created for them.
    let nodes = nodes(zk).await?;
    let builds = scan::builds_of_provider(zk, &section.name).await.context("cannot read images")?;
    let of_build = |build: &scan::ProviderBuild| {
        let mark = |upload: &UploadId| UploadMark { build: build.build.to_string(), upload: upload.to_string() };
        build.uploads.iter().map(mark).collect::<Vec<_>>()
    };
    let uploads: BTreeSet<UploadMark> = builds.iter().flat_map(of_build).collect();
    let of = |id: &NodeId| nodes.get(id).map(|node| &**node);
    let candidates = one_shot_provider::leak_candidates(&section.name, &inventory, of);
    let unused = unused.map(|(kinds, listing)| {
        let of_kind = |kind: &ResourceKind| {
            let found: Vec<&CloudResource> = listing.found.iter().filter(|one| one.kind == kind.name).collect();
            let exists = |node: &NodeId| nodes.contains_key(node);
            let has_upload = |mark: &UploadMark| uploads.contains(mark);
            let unused: Vec<&CloudResource> = match kind.owner {
                ResourceOwner::Node => {
                    orphans(found.into_iter(), &section.name, &exists).into_iter().map(|(one, _)| one).collect()
                }
                ResourceOwner::Upload => orphaned_uploads(found.into_iter(), &section.name, &has_upload),
                ResourceOwner::Unmarked => found,
            };
            unused.into_iter().map(|resource| (resource.clone(), kind.unused)).collect::<Vec<_>>()
        };
        let found = kinds.iter().flat_map(of_kind);
        Unused { found: found.collect(), failed: listing.failed.clone() }
    });
    Ok((candidates, unused))
}

/// The resources that two listings show, of the kinds that the provider's launcher deletes.
async fn listed_twice(provider: &OneShotProvider) -> anyhow::Result<(Vec<ResourceKind>, UnusedResources)> {
    let facts = with_timeout(provider.refresh(), CLOUD_TIMEOUT).await?;
    let kinds = facts.launch_config.as_ref().map(|config| config.resource_kinds.clone()).unwrap_or_default();
    if kinds.is_empty() {
        return Ok((kinds, UnusedResources::default()));
    }
    let names: Vec<&'static str> = kinds.iter().map(|kind| kind.name).collect();
    let mut listings = Vec::new();
    for _ in 0..2 {
        match with_timeout(provider.run(Job::ListUnused(names.clone())), CLOUD_TIMEOUT).await? {
            Outcome::Unused(listing) => listings.push(listing),
            _ => return Err(anyhow!("the driver does not list {}", names.join(", "))),
        }
    }
    let (mut second, first) = (listings.pop().unwrap_or_default(), listings.pop().unwrap_or_default());
    second.found.retain(|resource| first.found.contains(resource));
    Ok((kinds, second))
}

async fn list(provider: &OneShotProvider) -> anyhow::Result<Arc<Inventory>> {
    match with_timeout(provider.run(Job::List), CLOUD_TIMEOUT).await? {
        Outcome::Listed(inventory) => Ok(inventory),
        _ => Err(anyhow!("the driver does not list instances")),
    }
}

/// All nodes of ZooKeeper.
async fn nodes(zk: &dyn Connection) -> anyhow::Result<BTreeMap<NodeId, Arc<Node>>> {
    zk.sync(nodepool_zk::paths::NODES).await.context("cannot read nodes")?;
    let scan = scan::nodes(zk).await?;
    let mut nodes: BTreeMap<NodeId, Arc<Node>> =
        scan.found.into_iter().map(|entry| (entry.id, entry.stored.record)).collect();
    // A record that cannot be read still counts as a node.
    for unreadable in &scan.unreadable {
        if let Some(id) = unreadable.path.rsplit('/').next() {
            let placeholder = Node::new(nodepool_model::records::node::NodeState::Init, Default::default());
            nodes.insert(NodeId::from(id.to_owned()), Arc::new(placeholder));
        }
    }
    Ok(nodes)
}
