//! Methods of projects, regions, zones, machine types and disk types.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::lists::{List, ListQuery};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::machine_types::{self, MachineType};
use crate::state::places::{BASE, REGIONS, region, region_of, zone, zones};
use crate::state::project::Compute;
use crate::state::quotas::ALL_REGIONS;

/// Disk types of each zone.
pub const DISK_TYPES: [&str; 4] = ["pd-balanced", "pd-extreme", "pd-ssd", "pd-standard"];

const CREATED: &str = "1969-12-31T16:00:00.000-08:00";

impl Compute<'_> {
    pub fn get_project(&self) -> Response {
        let name = &self.project.name;
        Response::json(
            200,
            &json!({
                "kind": "compute#project", "id": self.project.number.to_string(), "creationTimestamp": CREATED,
                "name": name, "selfLink": format!("{BASE}projects/{name}"),
                "xpnProjectStatus": "UNSPECIFIED_XPN_PROJECT_STATUS",
                "commonInstanceMetadata": {"kind": "compute#metadata", "fingerprint": "42WmSpB8rSM="},
                "quotas": self.project.usage.json(&self.world.knobs, ALL_REGIONS), "defaultNetworkTier": "PREMIUM",
                "defaultServiceAccount": self.project.default_account(), "vmDnsSetting": "ZONAL_ONLY",
            }),
        )
    }

    pub fn list_regions(&self, call: &Call) -> ApiResult<Response> {
        let rows = REGIONS.iter().map(|(name, _)| ((*name).to_owned(), self.region_json(name)));
        self.list(call, "compute#regionList", "regions", &rows.collect())
    }

    pub fn get_region(&self, call: &Call) -> ApiResult<Response> {
        match region(&call.location) {
            Some((name, _)) => Ok(Response::json(200, &self.region_json(name))),
            None => Err(ApiError::not_found(&self.path(&format!("regions/{}", call.location)))),
        }
    }

    fn region_json(&self, name: &str) -> Value {
        let base = format!("{BASE}projects/{}", self.project.name);
        let zones: Vec<String> =
            zones().filter(|zone| region_of(zone) == name).map(|zone| format!("{base}/zones/{zone}")).collect();
        json!({
            "kind": "compute#region", "id": machine_types::id(name).to_string(), "creationTimestamp": CREATED,
            "name": name, "description": name, "status": "UP", "zones": zones,
            "quotas": self.project.usage.json(&self.world.knobs, name), "selfLink": format!("{base}/regions/{name}"),
            "supportsPzs": false,
        })
    }

    pub fn list_zones(&self, call: &Call) -> ApiResult<Response> {
        let rows = zones().map(|zone| (zone.to_owned(), self.zone_json(zone)));
        self.list(call, "compute#zoneList", "zones", &rows.collect())
    }

    pub fn get_zone(&self, call: &Call) -> ApiResult<Response> {
        match zone(&call.location) {
            Some(zone) => Ok(Response::json(200, &self.zone_json(zone))),
            None => Err(ApiError::not_found(&self.path(&format!("zones/{}", call.location)))),
        }
    }

    fn zone_json(&self, name: &str) -> Value {
        let base = format!("{BASE}projects/{}", self.project.name);
        json!({
            "kind": "compute#zone", "id": machine_types::id(name).to_string(), "creationTimestamp": CREATED,
            "name": name, "description": name, "status": "UP", "region": format!("{base}/regions/{}", region_of(name)),
            "selfLink": format!("{base}/zones/{name}"), "supportsPzs": false,
            "availableCpuPlatforms": ["Intel Broadwell", "Intel Cascade Lake", "AMD Milan"],
        })
    }

    pub fn list_machine_types(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        let all = MachineType::all(zone).into_iter();
        let rows = all.map(|one| (one.name.clone(), one.json(&self.project.name, zone)));
        self.list(call, "compute#machineTypeList", &format!("zones/{zone}/machineTypes"), &rows.collect())
    }

    pub fn get_machine_type(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        match MachineType::find(zone, &call.name) {
            Some(found) => Ok(Response::json(200, &found.json(&self.project.name, zone))),
            None => Err(ApiError::not_found(&self.path(&format!("zones/{zone}/machineTypes/{}", call.name)))),
        }
    }

    pub fn get_disk_type(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        let name = call.name.as_str();
        let path = self.path(&format!("zones/{zone}/diskTypes/{name}"));
        if !DISK_TYPES.contains(&name) {
            return Err(ApiError::not_found(&path));
        }
        Ok(Response::json(
            200,
            &json!({
                "kind": "compute#diskType", "creationTimestamp": CREATED, "name": name, "description": name,
                "id": machine_types::id(name).to_string(), "validDiskSize": "10GB-65536GB", "defaultDiskSizeGb": "100",
                "zone": format!("{BASE}projects/{}/zones/{zone}", self.project.name),
                "selfLink": format!("{BASE}{path}"),
            }),
        ))
    }

    /// A path below this project.
    pub fn path(&self, path: &str) -> String {
        format!("projects/{}/{path}", self.project.name)
    }

    fn list(&self, call: &Call, kind: &str, path: &str, rows: &BTreeMap<String, Value>) -> ApiResult<Response> {
        let query = ListQuery::new(call, self.world.knobs.page)?;
        Ok(query.respond(&List { kind, path: self.path(path) }, rows))
    }
}
