//! One server: its lifecycle stages, and its JSON in each microversion.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};

use crate::cloud::cloud::{Cloud, PROJECT_ID, SimTime, USER_ID};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    Build,
    Active,
    Error,
}

impl Status {
    pub fn name(self) -> &'static str {
        match self {
            Self::Build => "BUILD",
            Self::Active => "ACTIVE",
            Self::Error => "ERROR",
        }
    }
}

/// A server that is being deleted keeps its status, as in Nova.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    pub status: Status,
    pub deleting: bool,
}

pub struct Server {
    pub id: String,
    pub name: String,
    /// Index in the list of flavors.
    pub flavor: usize,
    /// `None` if it was booted from a volume.
    pub image: Option<String>,
    pub key_name: Option<String>,
    pub metadata: Map<String, Value>,
    pub config_drive: bool,
    pub zone: String,
    pub security_groups: Vec<String>,
    pub ports: Vec<u64>,
    /// Volumes, and whether they are deleted with the server.
    pub volumes: Vec<(u64, bool)>,
    pub created_at: SimTime,
    pub launched_at: Option<SimTime>,
    pub deleted_at: Option<SimTime>,
    /// The fault with which the boot will fail.
    pub boot_failure: Option<String>,
    /// Number of deletions that will fail.
    pub delete_failures: u64,
    /// `nodepool_node_id` of the metadata.
    pub node: Option<String>,
    /// Time and text of the last fault.
    fault: Option<(SimTime, String)>,
    /// The stages with their start times; never empty.
    stages: Vec<(SimTime, Stage)>,
    /// JSON of the current stage, by shape of the microversion.
    pub rendered_json: Vec<(usize, Bytes)>,
}

/// Specification of a new server.
pub struct ServerOrder {
    pub name: String,
    pub flavor: usize,
    pub image: Option<String>,
    pub key_name: Option<String>,
    pub metadata: Map<String, Value>,
    pub config_drive: bool,
    pub zone: Option<String>,
    pub security_groups: Vec<String>,
    /// Indexes in the list of networks.
    pub networks: Vec<usize>,
    pub volume: Option<VolumeOrder>,
}

#[derive(Clone, Copy)]
pub struct VolumeOrder {
    pub size_gb: i64,
    pub delete_on_termination: bool,
}

/// The microversions that add fields to a server.
const SHAPE_MICROVERSIONS: [u32; 7] = [9, 19, 26, 47, 63, 73, 90];

/// Number of a server's JSON format; equal for microversions with the same fields.
pub fn shape(minor: u32) -> usize {
    SHAPE_MICROVERSIONS.iter().filter(|since| minor >= **since).count()
}

impl Server {
    pub fn new(id: String, order: &ServerOrder, name: String, zone: String, created: SimTime) -> Self {
        let node = order.metadata.get("nodepool_node_id").and_then(Value::as_str).map(str::to_owned);
        Self {
            id,
            name,
            flavor: order.flavor,
            image: order.image.clone(),
            key_name: order.key_name.clone(),
            metadata: order.metadata.clone(),
            config_drive: order.config_drive,
            zone,
            security_groups: order.security_groups.clone(),
            ports: Vec::new(),
            volumes: Vec::new(),
            created_at: created,
            launched_at: None,
            deleted_at: None,
            boot_failure: None,
            delete_failures: 0,
            node,
            fault: None,
            stages: vec![(created, Stage { status: Status::Build, deleting: false })],
            rendered_json: Vec::new(),
        }
    }

    pub fn stage(&self) -> Stage {
        self.stages.last().expect("a server is always in a stage").1
    }

    /// The stage at a time; `None` before the creation and after the deletion.
    pub fn stage_at(&self, moment: SimTime) -> Option<Stage> {
        if self.deleted_at.is_some_and(|deleted| deleted <= moment) {
            return None;
        }
        self.stages.iter().rev().find(|(since, _)| *since <= moment).map(|(_, stage)| *stage)
    }

    pub fn enter(&mut self, now: SimTime, stage: Stage) {
        assert!(self.deleted_at.is_none(), "a deleted server does not change");
        self.stages.push((now, stage));
        self.rendered_json.clear();
    }

    pub fn fail(&mut self, now: SimTime, message: String) {
        self.fault = Some((now, message));
        self.enter(now, Stage { status: Status::Error, deleting: false });
    }

    /// A metadata value in seconds, which replaces a knob for this server.
    pub fn seconds(&self, key: &str) -> Option<f64> {
        seconds(self.metadata.get(key)?.as_str()?)
    }

    pub fn links(&self, base: &str) -> Value {
        json!([
            {"rel": "self", "href": format!("{base}/compute/v2.1/servers/{}", self.id)},
            {"rel": "bookmark", "href": format!("{base}/compute/servers/{}", self.id)},
        ])
    }
}

/// Seconds of a metadata value; `None` if it is not a valid duration.
pub fn seconds(text: &str) -> Option<f64> {
    text.parse().ok().filter(|seconds: &f64| *seconds >= 0.0 && *seconds < Duration::from_secs(1 << 30).as_secs_f64())
}

impl Cloud {
    /// The current server as JSON, rendered once for each stage and shape.
    pub fn rendered_json(&mut self, number: u64, minor: u32) -> Option<Bytes> {
        let server = self.servers.get(&number)?;
        let wanted = shape(minor);
        if server.stage().status == Status::Active {
            self.history.record_shown_active(number, self.now);
        }
        if let Some((_, bytes)) = server.rendered_json.iter().find(|(shape, _)| *shape == wanted) {
            return Some(bytes.clone());
        }
        let bytes = Bytes::from(self.server_json(server, server.stage(), minor).to_string());
        let server = self.servers.get_mut(&number).expect("the server was just found");
        server.rendered_json.push((wanted, bytes.clone()));
        Some(bytes)
    }

    /// A server's JSON in a stage.
    pub fn server_json(&self, server: &Server, stage: Stage, minor: u32) -> Value {
        let (base, id) = (&self.base, &server.id);
        let flavor = self.flavor(server);
        let up = stage.status == Status::Active;
        let changed = server.stages.last().expect("a server is always in a stage").0;
        let image = match &server.image {
            Some(image) => {
                let href = format!("{base}/compute/images/{image}");
                json!({"id": image, "links": [{"rel": "bookmark", "href": href}]})
            }
            None => json!(""),
        };
        let volumes = server.volumes.iter().map(|(volume, _)| json!({"id": crate::services::volume::id_of(*volume)}));
        let groups = server.security_groups.iter().map(|name| json!({"name": name}));
        let mut shown = json!({
            "id": id, "name": server.name, "status": stage.status.name(), "tenant_id": PROJECT_ID, "user_id": USER_ID,
            "metadata": server.metadata, "hostId": if up { HOST_ID } else { "" }, "image": image,
            "flavor": flavor.embedded_json(base, minor), "created": self.timestamp(server.created_at),
            "updated": self.timestamp(changed),
            "addresses": if up { self.addresses(server) } else { json!({}) }, "accessIPv4": "", "accessIPv6": "",
            "links": server.links(base), "OS-DCF:diskConfig": "MANUAL",
            "OS-EXT-AZ:availability_zone": if up { server.zone.as_str() } else { "" },
            "config_drive": if server.config_drive { "True" } else { "" }, "key_name": server.key_name,
            "OS-SRV-USG:launched_at": server.launched_at.filter(|_| up).map(|at| self.timestamp_micros(at)),
            "OS-SRV-USG:terminated_at": null, "OS-EXT-STS:task_state": task_state(stage),
            "OS-EXT-STS:vm_state": vm_state(stage.status), "OS-EXT-STS:power_state": u8::from(up),
            "os-extended-volumes:volumes_attached": volumes.collect::<Vec<_>>(),
        });
        match (stage.status, &server.fault) {
            (Status::Error, Some((since, message))) => {
                shown["fault"] = json!({"code": 500, "created": self.timestamp(*since), "message": message});
            }
            (Status::Build | Status::Active, _) | (Status::Error, None) => shown["progress"] = json!(0),
        }
        if up {
            shown["security_groups"] = groups.collect();
        }
        let later = [
            (9, "locked", json!(false)),
            (19, "description", json!(server.name)),
            (26, "tags", json!([])),
            (63, "trusted_image_certificates", Value::Null),
            (73, "locked_reason", Value::Null),
            (90, "OS-EXT-SRV-ATTR:hostname", json!(server.name)),
        ];
        for (since, key, value) in later.into_iter().filter(|(since, _, _)| minor >= *since) {
            assert!(SHAPE_MICROVERSIONS.contains(&since), "{key} requires a separate shape");
            shown[key] = value;
        }
        shown
    }
}

const HOST_ID: &str = "48867bd7760f9ffcca024b39aa1e36146c4454355674fe6f9b210a8a";

fn task_state(stage: Stage) -> Value {
    match stage {
        Stage { deleting: true, .. } => json!("deleting"),
        Stage { status: Status::Build, .. } => json!("spawning"),
        Stage { status: Status::Active | Status::Error, .. } => Value::Null,
    }
}

fn vm_state(status: Status) -> &'static str {
    match status {
        Status::Build => "building",
        Status::Active => "active",
        Status::Error => "error",
    }
}
