//! Cinder: volumes that servers are booted from, and limits.

use serde_json::{Value, json};

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, Kind, PROJECT_ID, SimTime, USER_ID, id, number_of};
use crate::response::Response;
use crate::services::listing;
use crate::services::server::VolumeOrder;

pub struct Volume {
    size_gb: i64,
    /// The server that the volume is attached to.
    pub server: Option<u64>,
    created: SimTime,
}

pub fn id_of(number: u64) -> String {
    id(Kind::Volume, number)
}

impl Cloud {
    pub fn volume(&mut self, call: &Call, body: &[u8]) -> Response {
        // The project id after the version may be missing.
        let parts = call.below_version();
        let rest = match &parts[..] {
            [project, rest @ ..] if *project == PROJECT_ID => rest,
            rest => rest,
        };
        let answer = match (call.method.as_str(), rest) {
            ("GET", ["limits"]) => self.volume_limits(),
            ("GET", ["os-quota-sets", _]) => self.volume_quotas(call),
            ("GET", ["volumes"] | ["volumes", "detail"]) => self.list_volumes(call),
            ("GET", ["os-availability-zone"]) => {
                let zone = |name: &String| json!({"zoneName": name, "zoneState": {"available": true}});
                Response::ok(&json!({"availabilityZoneInfo": self.knobs.zones.iter().map(zone).collect::<Vec<_>>()}))
            }
            ("POST", ["volumes"]) => {
                let body: Value = serde_json::from_slice(body).unwrap_or_default();
                match body["volume"]["size"].as_i64() {
                    Some(size_gb) => self.create_volume(size_gb),
                    None => Response::error(Service::Volume, 400, "Invalid input for field/attribute size."),
                }
            }
            ("GET", ["volumes", id]) => match self.volume_number(id) {
                Some(number) => Response::ok(&json!({"volume": self.volume_json(number, &self.volumes[&number])})),
                None => not_found(id),
            },
            ("DELETE", ["volumes", id]) => self.delete_volume(id),
            _ => Response::not_found(Service::Volume),
        };
        match call.version() {
            "v3" => answer.with("OpenStack-API-Version", "volume 3.0"),
            _ => answer,
        }
    }

    fn volume_number(&self, id: &str) -> Option<u64> {
        number_of(Kind::Volume, id).filter(|number| self.volumes.contains_key(number))
    }

    fn gigabytes(&self) -> i64 {
        self.volumes.values().map(|volume| volume.size_gb).sum()
    }

    /// Creates a volume for a server, or returns the reason of the failure.
    pub fn add_volume(&mut self, order: VolumeOrder, server: u64) -> Result<u64, String> {
        self.check_volume_quota(order.size_gb).map_err(|error| format!("{error} (HTTP 413)"))?;
        let number = self.next_number();
        let volume = Volume { size_gb: order.size_gb, server: Some(server), created: self.now };
        self.volumes.insert(number, volume);
        Ok(number)
    }

    fn check_volume_quota(&self, size_gb: i64) -> Result<(), String> {
        let (limit, limit_gb, used_gb) = (self.knobs.quota_volumes, self.knobs.quota_gigabytes, self.gigabytes());
        if limit >= 0 && self.volumes.len() as i64 >= limit {
            return Err(format!(
                "VolumeLimitExceeded: Maximum number of volumes allowed ({limit}) exceeded for quota 'volumes'."
            ));
        }
        if limit_gb >= 0 && used_gb + size_gb > limit_gb {
            return Err(format!(
                "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota. \
                 Requested {size_gb}G, quota is {limit_gb}G and {used_gb}G has been consumed."
            ));
        }
        Ok(())
    }

    fn create_volume(&mut self, size_gb: i64) -> Response {
        if let Err(message) = self.check_volume_quota(size_gb) {
            self.stats.quota_refusals += 1;
            return Response::error(Service::Volume, 413, &message).with("Retry-After", "0");
        }
        let number = self.next_number();
        self.volumes.insert(number, Volume { size_gb, server: None, created: self.now });
        Response::json(202, &json!({"volume": self.volume_json(number, &self.volumes[&number])}))
    }

    fn delete_volume(&mut self, id: &str) -> Response {
        let Some(number) = self.volume_number(id) else { return not_found(id) };
        if self.volumes[&number].server.is_some() {
            let message = "Invalid volume: Volume status must be available or error or error_restoring or \
                           error_extending or error_managing and must not be migrating, attached, belong to a group, \
                           have snapshots, awaiting a transfer, or be disassociated from snapshots after volume \
                           transfer.";
            return Response::error(Service::Volume, 400, message);
        }
        self.volumes.remove(&number);
        Response::empty(202)
    }

    fn list_volumes(&self, call: &Call) -> Response {
        let detailed = call.parts.last().is_some_and(|part| part == "detail");
        let shown = |(number, volume): (&u64, &Volume)| {
            let shown = self.volume_json(*number, volume);
            if detailed { shown } else { json!({"id": shown["id"], "name": shown["name"], "links": shown["links"]}) }
        };
        let all = self.volumes.iter().rev().map(shown).collect();
        match listing::page(call, all, self.knobs.page_size) {
            Ok(page) => Response::ok(&page.linked("volumes", &self.base, call)),
            Err(marker) => Response::error(Service::Volume, 404, &format!("Volume {marker} could not be found.")),
        }
    }

    fn volume_json(&self, number: u64, volume: &Volume) -> Value {
        let id = id_of(number);
        let at = self.timestamp_micros(volume.created);
        let attachment = volume.server.map(|server| {
            json!({
                "id": id, "attachment_id": id, "volume_id": id, "server_id": crate::cloud::cloud::id(Kind::Server, server),
                "host_name": null, "device": "/dev/sda", "attached_at": at,
            })
        });
        json!({
            "id": id, "status": if volume.server.is_some() { "in-use" } else { "available" }, "size": volume.size_gb,
            "availability_zone": self.knobs.zones[0], "created_at": at, "updated_at": at, "name": "",
            "description": "", "volume_type": "__DEFAULT__", "snapshot_id": null, "source_volid": null, "metadata": {},
            "links": [{"rel": "self", "href": format!("{}/volume/v3/{PROJECT_ID}/volumes/{id}", self.base)}],
            "user_id": USER_ID, "bootable": if volume.server.is_some() { "true" } else { "false" }, "encrypted": false,
            "replication_status": null, "consistencygroup_id": null, "multiattach": false,
            "attachments": attachment.into_iter().collect::<Vec<_>>(), "os-vol-tenant-attr:tenant_id": PROJECT_ID,
        })
    }

    fn volume_limits(&self) -> Response {
        Response::ok(&json!({"limits": {"rate": [], "absolute": {
            "maxTotalVolumes": self.knobs.quota_volumes, "maxTotalSnapshots": 10,
            "maxTotalVolumeGigabytes": self.knobs.quota_gigabytes, "maxTotalBackups": 10,
            "maxTotalBackupGigabytes": 1000, "totalVolumesUsed": self.volumes.len(),
            "totalGigabytesUsed": self.gigabytes(), "totalSnapshotsUsed": 0, "totalBackupsUsed": 0,
            "totalBackupGigabytesUsed": 0,
        }}}))
    }

    fn volume_quotas(&self, call: &Call) -> Response {
        let with_usage = call.parameter("usage").is_some_and(|usage| usage.eq_ignore_ascii_case("true"));
        let row = |limit: i64, used: i64| match with_usage {
            true => json!({"limit": limit, "in_use": used, "reserved": 0}),
            false => json!(limit),
        };
        Response::ok(&json!({"quota_set": {
            "id": PROJECT_ID, "volumes": row(self.knobs.quota_volumes, self.volumes.len() as i64),
            "gigabytes": row(self.knobs.quota_gigabytes, self.gigabytes()), "snapshots": row(10, 0),
            "per_volume_gigabytes": row(-1, 0), "backups": row(10, 0), "backup_gigabytes": row(1000, 0),
            "groups": row(10, 0),
        }}))
    }
}

fn not_found(id: &str) -> Response {
    Response::error(Service::Volume, 404, &format!("Volume {id} could not be found."))
}
