//! The lists of the view with their columns, each built from one snapshot.

use std::collections::BTreeMap;

use nodepool_model::records::image_build::BuildState;
use nodepool_model::records::image_upload::UploadState;
use nodepool_model::records::node::NodeState;
use nodepool_model::records::request::NodeRequest;
use nodepool_model::records::time::Timestamp;
use nodepool_model::report::image_status::{self, AgeFormat, BUILD_COLUMNS, UPLOAD_COLUMNS};
use nodepool_model::report::list::{self, Column};
use nodepool_model::report::status::{self, NODE_COLUMNS, NODE_COLUMNS_BRIEF, NodeRow};
use nodepool_model::snapshot::Snapshot;
use python_yaml::text::printable;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    Labels,
    Nodes,
    Requests,
    Images,
    Builds,
    Uploads,
}

impl Pane {
    pub const ALL: [Pane; 6] = [Pane::Labels, Pane::Nodes, Pane::Requests, Pane::Images, Pane::Builds, Pane::Uploads];

    pub fn title(self) -> &'static str {
        match self {
            Pane::Labels => "Labels",
            Pane::Nodes => "Nodes",
            Pane::Requests => "Requests",
            Pane::Images => "Images",
            Pane::Builds => "Builds",
            Pane::Uploads => "Uploads",
        }
    }

    pub fn next(self) -> Pane {
        Pane::ALL[(self as usize + 1) % Pane::ALL.len()]
    }

    pub fn previous(self) -> Pane {
        Pane::ALL[(self as usize + Pane::ALL.len() - 1) % Pane::ALL.len()]
    }

    pub fn list(self, snapshot: &Snapshot, now: Timestamp) -> List {
        let ages = AgeFormat::Elapsed(now);
        match self {
            Pane::Labels => labels(snapshot),
            Pane::Nodes => nodes(snapshot, now),
            Pane::Requests => requests(snapshot, now),
            Pane::Images => images(snapshot, now),
            Pane::Builds => List::of(BUILD_COLUMNS, &image_status::builds(&snapshot.images, ages)),
            Pane::Uploads => List::of(UPLOAD_COLUMNS, &image_status::uploads(&snapshot.images, ages)),
        }
    }
}

/// Headers and rows of text that is safe to show, each on one line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct List {
    pub headers: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
}

impl List {
    fn new(headers: &[&'static str]) -> Self {
        Self { headers: headers.to_vec(), rows: Vec::new() }
    }

    fn of<R>(columns: &[Column<R>], rows: &[R]) -> Self {
        let mut list = List { headers: columns.iter().map(|column| column.header).collect(), rows: Vec::new() };
        for row in rows {
            list.push(list::cells(columns, row));
        }
        list
    }

    fn push(&mut self, cells: impl IntoIterator<Item = String>) {
        let row: Vec<String> = cells.into_iter().map(|cell| printable(cell).replace('\n', " ")).collect();
        assert_eq!(row.len(), self.headers.len(), "a row has a cell for every header");
        self.rows.push(row);
    }
}

/// Columns of the labels pane with the node states that each counts.
const GROUPS: [(&str, &[NodeState]); 7] = [
    ("Building", &[NodeState::Init, NodeState::Building, NodeState::Testing]),
    ("Ready", &[NodeState::Ready]),
    ("In Use", &[NodeState::InUse]),
    ("Used", &[NodeState::Used]),
    ("Hold", &[NodeState::Hold]),
    ("Deleting", &[NodeState::Deleting, NodeState::Deleted]),
    ("Failed", &[NodeState::Failed, NodeState::Aborted]),
];

/// Counts nodes by provider, label and state. A node with several labels counts for the first.
fn labels(snapshot: &Snapshot) -> List {
    let mut counts: BTreeMap<(String, String), [usize; GROUPS.len()]> = BTreeMap::new();
    for (_, stored) in snapshot.nodes() {
        let node = &stored.record;
        let provider = node.provider.as_ref().map(ToString::to_string).unwrap_or_default();
        let label = node.labels.first().map(ToString::to_string).unwrap_or_default();
        let groups = counts.entry((provider, label)).or_default();
        for (count, (_, states)) in groups.iter_mut().zip(GROUPS) {
            *count += usize::from(states.contains(&node.state));
        }
    }
    let mut list = List::new(&["Provider", "Label", "Nodes"]);
    list.headers.extend(GROUPS.map(|(header, _)| header));
    for ((provider, label), groups) in counts {
        let all = groups.iter().sum::<usize>().to_string();
        list.push([provider, label, all].into_iter().chain(groups.map(blank_if_zero)));
    }
    list
}

fn blank_if_zero(count: usize) -> String {
    if count == 0 { String::new() } else { count.to_string() }
}

fn nodes(snapshot: &Snapshot, now: Timestamp) -> List {
    let rows: Vec<NodeRow> = snapshot
        .nodes()
        .map(|(id, stored)| NodeRow {
            id: id.clone(),
            node: stored.record.clone(),
            locked: snapshot.is_node_locked(id),
            now,
        })
        .collect();
    List::of(&NODE_COLUMNS[..NODE_COLUMNS_BRIEF], &rows)
}

fn requests(snapshot: &Snapshot, now: Timestamp) -> List {
    let mut list =
        List::new(&["Request ID", "State", "Age", "Requestor", "Node Types", "Nodes", "Declined By", "Event ID"]);
    for (id, stored) in snapshot.requests() {
        let request: &NodeRequest = &stored.record;
        let types: Vec<&str> = request.node_types.iter().map(|label| label.as_str()).collect();
        let decliners: Vec<&str> = request.declined_by.iter().map(|launcher| launcher.as_str()).collect();
        list.push([
            id.to_string(),
            request.state.as_str().to_owned(),
            status::age(request.state_time, now),
            request.requestor.clone().unwrap_or_default(),
            types.join(","),
            format!("{}/{}", snapshot.nodes_allocated_to(id).count(), types.len()),
            decliners.join(","),
            request.event_id.clone().unwrap_or_default(),
        ]);
    }
    list
}

fn images(snapshot: &Snapshot, now: Timestamp) -> List {
    let headers = ["Image", "Paused", "Build Request", "Newest Build", "Ready", "Building", "Failed", "Uploads"];
    let mut list = List::new(&headers);
    for row in image_status::images(&snapshot.images, AgeFormat::Elapsed(now)) {
        let Some(image) = snapshot.images.image(&row.name) else { continue };
        let in_state = |state| image.builds.values().filter(|stored| stored.record.state == state).count();
        let requested = row.requested_ms.map(|ms| {
            let state = if row.is_building { "building" } else { "pending" };
            format!("{state} {}", status::age(Timestamp(ms as f64 / 1000.0), now))
        });
        let newest = image.ready().first().map(|(_, stored)| status::age(stored.record.state_time, now));
        let uploads = snapshot.images.uploads().filter(|(key, _)| key.image == row.name);
        let (ready, all) = uploads.fold((0, 0), |(ready, all), (_, stored)| {
            (ready + usize::from(stored.record.state == UploadState::Ready), all + 1)
        });
        list.push([
            row.name.to_string(),
            (if row.paused { "paused" } else { "" }).to_owned(),
            requested.unwrap_or_default(),
            newest.unwrap_or_default(),
            blank_if_zero(in_state(BuildState::Ready)),
            blank_if_zero(in_state(BuildState::Building)),
            blank_if_zero(in_state(BuildState::Failed)),
            format!("{ready}/{all}"),
        ]);
    }
    list
}
