//! Unused resources of one provider besides instances: which kinds are listed when, and what is deleted.
//!
//! A resource without metadata is deleted if two listings in a row show it unused. One that carries the metadata of a
//! node needs the proof that an instance needs: a listing shows it, ZooKeeper has no record of the node, and the next
//! listing shows it, too. Kinds are in the order of deletion, because one resource of a node may hold another: it waits
//! for those of earlier kinds, and all wait for the leaked instance of their node.

use std::collections::{BTreeMap, BTreeSet};

use super::leaks::Proof;
use nodepool_driver::cloud_resource::{CloudResource, ResourceKind, ResourceOwner, UnusedResources, UploadMark};
use nodepool_model::records::ids::{NodeId, ProviderName};
use nodepool_model::records::time::MonotonicTime;

/// Maximum number of resources without metadata that one listing of a kind deletes.
const UNMARKED_BUDGET: usize = 100;

#[derive(Debug, Default)]
pub struct UnusedTracker {
    /// The kinds that are being listed.
    listing: Vec<&'static str>,
    kinds: BTreeMap<&'static str, KindState>,
}

#[derive(Debug, Default)]
struct KindState {
    listed_at: Option<MonotonicTime>,
    /// Keys of the last listing that may be deleted if the next one shows them, too: all of a kind without metadata,
    /// and those whose node is proven not to exist.
    deletable: BTreeSet<String>,
    /// Keys of resources whose node id had not been issued when it was checked. Later it may be issued to another node,
    /// which proves nothing about the resource.
    foreign: BTreeSet<String>,
    /// Resources of the last listing whose node must be proven not to exist.
    unproven: Vec<CloudResource>,
}

/// The result of a listing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    pub deletions: Vec<CloudResource>,
    /// Kinds of which none is deleted because there are too many, with their number and the budget.
    pub exceeded: Vec<(&'static str, usize, usize)>,
    /// Nodes whose records must be read.
    pub to_prove: Vec<NodeId>,
    /// Whether the uploads must be read.
    pub proves_uploads: bool,
}

/// The nodes that own the resources of a provider, and how many may be deleted.
pub struct Owners<'a> {
    pub provider: &'a ProviderName,
    /// Whether the node has a record.
    pub exists: &'a dyn Fn(&NodeId) -> bool,
    /// Whether an upload to the provider has these marks.
    pub upload_exists: &'a dyn Fn(&UploadMark) -> bool,
    /// Nodes with a leaked instance, whose other resources wait for it.
    pub leaked_instances: BTreeSet<NodeId>,
    /// Number of instances that are about to be deleted.
    pub proven_instances: usize,
    /// Number of deletions of things with metadata at once, instances included.
    pub budget: usize,
}

impl UnusedTracker {
    /// The kinds to list now; empty while a listing runs.
    pub fn due(&mut self, kinds: &[ResourceKind], now: MonotonicTime) -> Vec<&'static str> {
        self.kinds.retain(|name, _| kinds.iter().any(|kind| kind.name == *name));
        if !self.listing.is_empty() {
            return Vec::new();
        }
        for kind in kinds {
            let state = self.kinds.entry(kind.name).or_default();
            if state.listed_at.is_none_or(|last| (now - last).0 >= kind.interval.0) {
                state.listed_at = Some(now);
                self.listing.push(kind.name);
            }
        }
        self.listing.clone()
    }

    /// The connection to ZooKeeper was lost, so the proofs are void. Times are kept: two listings within one interval
    /// could see a resource twice that is in use a moment later.
    pub fn forget_proofs(&mut self, kinds: &[ResourceKind]) {
        for kind in kinds.iter().filter(|kind| kind.owner != ResourceOwner::Unmarked) {
            if let Some(state) = self.kinds.get_mut(kind.name) {
                (state.deletable, state.unproven) = (BTreeSet::new(), Vec::new());
            }
        }
    }

    /// The listing of the kinds that were due has ended; `None` if it failed.
    pub fn listed(
        &mut self,
        kinds: &[ResourceKind],
        listing: Option<&UnusedResources>,
        owners: &Owners<'_>,
    ) -> Findings {
        let listed = std::mem::take(&mut self.listing);
        let mut findings = Findings::default();
        let Some(listing) = listing else { return findings };
        let mut marked = Vec::new();
        let is_complete = |kind: &&ResourceKind| listed.contains(&kind.name) && !listing.failed.contains_key(kind.name);
        for kind in kinds.iter().filter(is_complete) {
            let Some(state) = self.kinds.get_mut(kind.name) else { continue };
            let found: Vec<&CloudResource> = listing.found.iter().filter(|one| one.kind == kind.name).collect();
            let confirmed = match kind.owner {
                ResourceOwner::Unmarked => {
                    state.unmarked_listed(kind.name, &found, &mut findings);
                    continue;
                }
                ResourceOwner::Node => state.marked_listed(&found, owners, &mut findings),
                ResourceOwner::Upload => state.uploads_listed(&found, owners, &mut findings),
            };
            // Earlier kinds first: one resource of a node may hold another.
            let holders: BTreeSet<String> = marked.iter().map(owner_of).collect();
            marked.extend(confirmed.into_iter().filter(|resource| !holders.contains(&owner_of(resource))));
        }
        let number = marked.len() + owners.proven_instances;
        match marked.first() {
            Some(first) if number > owners.budget => findings.exceeded.push((first.kind, number, owners.budget)),
            _ => findings.deletions.append(&mut marked),
        }
        findings
    }

    /// ZooKeeper was read for the nodes of `Findings::to_prove`. Returns the resources whose node ids it never issued.
    pub fn proven(&mut self, proof: &Proof, is_issued: impl Fn(&NodeId) -> bool) -> Vec<CloudResource> {
        let mut unissued = Vec::new();
        for state in self.kinds.values_mut() {
            for resource in state.unproven.drain(..) {
                let Some(node) = resource.node().map(NodeId::from) else {
                    if let Some((mark, uploads)) = resource.upload().zip(proof.uploads.as_ref())
                        && uploads.is_proven_absent(&mark)
                    {
                        state.deletable.insert(key_of(&resource));
                    }
                    continue;
                };
                if !matches!(proof.nodes.get(&node), Some(None)) {
                    continue;
                }
                match is_issued(&node) {
                    true => drop(state.deletable.insert(key_of(&resource))),
                    false => {
                        state.foreign.insert(key_of(&resource));
                        unissued.push(resource);
                    }
                }
            }
        }
        unissued
    }
}

impl KindState {
    fn unmarked_listed(&mut self, kind: &'static str, found: &[&CloudResource], findings: &mut Findings) {
        let before = std::mem::replace(&mut self.deletable, found.iter().map(|one| key_of(one)).collect());
        let unused: Vec<CloudResource> =
            found.iter().filter(|one| before.contains(&key_of(one))).map(|one| (*one).clone()).collect();
        match unused.len() > UNMARKED_BUDGET {
            true => findings.exceeded.push((kind, unused.len(), UNMARKED_BUDGET)),
            false => findings.deletions.extend(unused),
        }
    }

    /// Returns the resources that both listings and ZooKeeper show to belong to no node.
    fn marked_listed(
        &mut self,
        found: &[&CloudResource],
        owners: &Owners<'_>,
        findings: &mut Findings,
    ) -> Vec<CloudResource> {
        let shown: BTreeSet<String> = found.iter().map(|one| key_of(one)).collect();
        self.foreign.retain(|key| shown.contains(key));
        let ours = found.iter().copied().filter(|one| !self.foreign.contains(&key_of(one)));
        let unowned = orphans(ours, owners.provider, owners.exists);
        let before = std::mem::take(&mut self.deletable);
        self.unproven = unowned.iter().map(|(resource, _)| (*resource).clone()).collect();
        let nodes: BTreeSet<NodeId> = unowned.iter().map(|(_, node)| node.clone()).collect();
        findings.to_prove.extend(nodes);
        let confirmed = unowned
            .into_iter()
            .filter(|(resource, node)| before.contains(&key_of(resource)) && !owners.leaked_instances.contains(node));
        confirmed.map(|(resource, _)| resource.clone()).collect()
    }

    /// The same for resources of uploads.
    fn uploads_listed(
        &mut self,
        found: &[&CloudResource],
        owners: &Owners<'_>,
        findings: &mut Findings,
    ) -> Vec<CloudResource> {
        let unowned = orphaned_uploads(found.iter().copied(), owners.provider, owners.upload_exists);
        let before = std::mem::take(&mut self.deletable);
        self.unproven = unowned.iter().map(|resource| (*resource).clone()).collect();
        findings.proves_uploads |= !unowned.is_empty();
        unowned.into_iter().filter(|resource| before.contains(&key_of(resource))).cloned().collect()
    }
}

/// The uploads of a provider, read from ZooKeeper.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UploadProof {
    pub existing: BTreeSet<UploadMark>,
    /// Upper bound of the issued build ids of all images.
    pub issued_builds_below: u64,
}

impl UploadProof {
    /// Whether the upload was one of this ZooKeeper, and exists no more.
    fn is_proven_absent(&self, mark: &UploadMark) -> bool {
        let is_issued = mark.build.parse().is_ok_and(|build: u64| build < self.issued_builds_below);
        is_issued && !self.existing.contains(mark)
    }
}

/// Identifies a resource with its node: a name may be used again for another node.
fn key_of(resource: &CloudResource) -> String {
    format!("{} {}", resource.id, owner_of(resource))
}

/// The node or the upload of a resource.
fn owner_of(resource: &CloudResource) -> String {
    match (resource.node(), resource.upload()) {
        (Some(node), _) => node.to_owned(),
        (None, Some(mark)) => format!("{}/{}", mark.build, mark.upload),
        (None, None) => String::new(),
    }
}

/// The resources with our metadata whose node has no record.
pub fn orphans<'a>(
    found: impl Iterator<Item = &'a CloudResource>,
    provider: &ProviderName,
    exists: &dyn Fn(&NodeId) -> bool,
) -> Vec<(&'a CloudResource, NodeId)> {
    let ours = found.filter(|resource| resource.belongs_to(provider));
    ours.filter_map(|resource| Some((resource, NodeId::from(resource.node()?))))
        .filter(|(_, node)| !exists(node))
        .collect()
}

/// The resources with our marks whose upload has no record.
pub fn orphaned_uploads<'a>(
    found: impl Iterator<Item = &'a CloudResource>,
    provider: &ProviderName,
    exists: &dyn Fn(&UploadMark) -> bool,
) -> Vec<&'a CloudResource> {
    let ours = found.filter(|resource| resource.belongs_to(provider));
    ours.filter(|resource| resource.upload().is_some_and(|mark| !exists(&mark))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nodepool_model::records::time::Seconds;

    const PORTS: ResourceKind =
        ResourceKind { name: "ports", interval: Seconds(600.0), owner: ResourceOwner::Unmarked, unused: "down" };
    const NICS: ResourceKind = ResourceKind {
        name: "nics",
        interval: Seconds::ZERO,
        owner: ResourceOwner::Node,
        unused: "its node does not exist",
    };
    const DISKS: ResourceKind = ResourceKind { name: "disks", ..NICS };

    fn of_node(kind: &'static str, id: &str, provider: &str, node: &str) -> CloudResource {
        let metadata = [("nodepool_provider_name", provider), ("nodepool_node_id", node)];
        let metadata = metadata.map(|(key, value)| (key.to_owned(), value.to_owned()));
        CloudResource { metadata: BTreeMap::from(metadata), ..CloudResource::new(kind, id) }
    }

    fn listing(found: &[CloudResource]) -> UnusedResources {
        UnusedResources { found: found.to_vec(), failed: BTreeMap::new() }
    }

    fn mark(build: &str, upload: &str) -> UploadMark {
        UploadMark { build: build.to_owned(), upload: upload.to_owned() }
    }

    /// Owners that all exist.
    fn of_existing_nodes(provider: &ProviderName) -> Owners<'_> {
        Owners {
            provider,
            exists: &|_| true,
            upload_exists: &|_| true,
            leaked_instances: BTreeSet::new(),
            proven_instances: 0,
            budget: 10,
        }
    }

    /// A tracker with its kinds, and nodes that have records.
    struct Harness {
        tracker: UnusedTracker,
        now: MonotonicTime,
        kinds: Vec<ResourceKind>,
        nodes: Vec<&'static str>,
        leaked_instances: Vec<&'static str>,
        has_issued_all: bool,
        unissued: Vec<String>,
    }

    impl Harness {
        fn new(kinds: &[ResourceKind]) -> Self {
            Self {
                tracker: UnusedTracker::default(),
                now: MonotonicTime::default(),
                kinds: kinds.to_vec(),
                nodes: vec!["n1"],
                leaked_instances: vec![],
                has_issued_all: false,
                unissued: vec![],
            }
        }

        /// Lists these resources, and proves what must be proven.
        fn list(&mut self, found: &[CloudResource]) -> Findings {
            let exists = |node: &NodeId| self.nodes.contains(&node.as_str());
            let leaked_instances = self.leaked_instances.iter().map(|node| NodeId::from(*node)).collect();
            let owners = Owners {
                provider: &"p".into(),
                exists: &exists,
                upload_exists: &|mark| mark.build == "0000000001",
                proven_instances: self.leaked_instances.len(),
                leaked_instances,
                budget: 2,
            };
            self.now = self.now + Seconds(600.0);
            self.tracker.due(&self.kinds, self.now);
            let findings = self.tracker.listed(&self.kinds, Some(&listing(found)), &owners);
            let nodes = findings.to_prove.iter().map(|node| (node.clone(), None)).collect();
            let existing = BTreeSet::from([mark("0000000002", "0000000001")]);
            let uploads = findings.proves_uploads.then_some(UploadProof { existing, issued_builds_below: 10 });
            let proof = Proof { nodes, issued_ids_below: 0, uploads };
            let unissued = self.tracker.proven(&proof, |node| node.as_str() != "unissued" || self.has_issued_all);
            self.unissued.extend(unissued.iter().map(|resource| resource.id.to_string()));
            findings
        }

        fn deleted(&mut self, found: &[CloudResource]) -> Vec<String> {
            self.list(found).deletions.into_iter().map(|resource| resource.id.to_string()).collect()
        }
    }

    #[test]
    fn kinds_are_listed_at_their_intervals_and_one_listing_at_a_time() {
        let mut tracker = UnusedTracker::default();
        let at = |seconds: f64| MonotonicTime::default() + Seconds(seconds);
        assert_eq!(tracker.due(&[PORTS, NICS], at(0.0)), ["ports", "nics"]);
        assert!(tracker.due(&[PORTS, NICS], at(60.0)).is_empty());
        let provider = ProviderName::from("p");
        let owners = of_existing_nodes(&provider);
        tracker.listed(&[PORTS, NICS], None, &owners);
        assert_eq!(tracker.due(&[PORTS, NICS], at(120.0)), ["nics"]);
        tracker.listed(&[PORTS, NICS], None, &owners);
        assert_eq!(tracker.due(&[PORTS, NICS], at(600.0)), ["ports", "nics"]);
    }

    #[test]
    fn what_has_no_metadata_is_deleted_if_two_listings_show_it_unused() {
        let mut harness = Harness::new(&[PORTS]);
        let ports: Vec<CloudResource> = (0..101).map(|id| CloudResource::new("ports", format!("{id}"))).collect();
        assert!(harness.deleted(&ports[..2]).is_empty());
        assert_eq!(harness.deleted(&ports[1..3]), ["1"]);
        harness.list(&ports);
        let findings = harness.list(&ports);
        assert_eq!((findings.deletions.len(), findings.exceeded), (0, vec![("ports", 101, 100)]));
    }

    #[test]
    fn what_has_metadata_is_deleted_only_with_proof() {
        let mut harness = Harness::new(&[NICS]);
        let nics = [
            of_node("nics", "used", "p", "n1"),
            of_node("nics", "orphan", "p", "n2"),
            of_node("nics", "foreign", "q", "n2"),
            of_node("nics", "restored", "p", "unissued"),
            CloudResource::new("nics", "bare"),
        ];
        assert!(harness.deleted(&nics).is_empty());
        assert_eq!(harness.deleted(&nics), ["orphan"]);
        // An id that is issued later proves nothing about what had it before.
        harness.has_issued_all = true;
        assert_eq!(harness.deleted(&nics), ["orphan"]);
        assert_eq!(
            (harness.deleted(&nics), &harness.unissued),
            (vec!["orphan".to_owned()], &vec!["restored".to_owned()])
        );
        harness.tracker.forget_proofs(&[NICS]);
        assert!(harness.deleted(&nics).is_empty());
        // A node whose record appears again proves the opposite.
        harness.nodes.push("n2");
        assert!(harness.deleted(&nics).is_empty());
    }

    #[test]
    fn kinds_are_deleted_in_their_order_and_after_the_instance() {
        let mut harness = Harness::new(&[NICS, DISKS]);
        let (nic, disk) = (of_node("nics", "nic", "p", "n2"), of_node("disks", "disk", "p", "n2"));
        let both = [disk.clone(), nic, of_node("disks", "other", "p", "n3")];
        harness.leaked_instances = vec!["n2"];
        harness.list(&both);
        assert_eq!(harness.deleted(&both), ["other"]);
        harness.leaked_instances.clear();
        assert_eq!(harness.deleted(&both), ["nic", "other"]);
        assert_eq!(harness.deleted(&[disk]), ["disk"]);
    }

    #[test]
    fn instances_and_resources_share_one_budget() {
        let mut harness = Harness::new(&[NICS]);
        let nics = [of_node("nics", "a", "p", "n2"), of_node("nics", "b", "p", "n3")];
        harness.leaked_instances = vec!["n9"];
        harness.list(&nics);
        let findings = harness.list(&nics);
        assert_eq!((findings.deletions.len(), findings.exceeded), (0, vec![("nics", 3, 2)]));
        harness.leaked_instances.clear();
        assert_eq!(harness.deleted(&nics), ["a", "b"]);
    }

    #[test]
    fn a_kind_that_was_not_listed_keeps_what_is_known() {
        let mut harness = Harness::new(&[PORTS]);
        let port = [CloudResource::new("ports", "a")];
        harness.list(&port);
        harness.now = harness.now + Seconds(600.0);
        harness.tracker.due(&[PORTS], harness.now);
        let failed = UnusedResources { failed: BTreeMap::from([("ports", "503".to_owned())]), ..listing(&[]) };
        let provider = ProviderName::from("p");
        let owners = of_existing_nodes(&provider);
        for listing in [&failed, &listing(&[])] {
            // The second one is of other kinds.
            assert_eq!(harness.tracker.listed(&[PORTS], Some(listing), &owners), Findings::default());
        }
        assert_eq!(harness.deleted(&port), ["a"]);
    }

    #[test]
    fn what_an_upload_left_is_deleted_only_with_proof() {
        let amis = ResourceKind { name: "amis", owner: ResourceOwner::Upload, ..NICS };
        let mut harness = Harness::new(&[amis]);
        let of_build = |id: &str, provider: &str, build: &str| {
            let marks = [
                ("nodepool_provider_name", provider),
                ("nodepool_build_id", build),
                ("nodepool_upload_id", "0000000001"),
            ];
            let metadata = marks.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
            CloudResource { metadata, ..CloudResource::new("amis", id) }
        };
        let found = [
            // Its upload is in the snapshot, or only in ZooKeeper.
            of_build("known", "p", "0000000001"),
            of_build("new", "p", "0000000002"),
            of_build("left", "p", "0000000003"),
            of_build("of-others", "q", "0000000003"),
            // This ZooKeeper has not had so many builds.
            of_build("of-another-zookeeper", "p", "0000000010"),
            CloudResource::new("amis", "unmarked"),
        ];
        assert!(harness.deleted(&found).is_empty());
        assert_eq!(harness.deleted(&found), ["left"]);
        harness.tracker.forget_proofs(&[amis]);
        assert!(harness.deleted(&found).is_empty());
    }
}
