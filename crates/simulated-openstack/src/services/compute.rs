//! Nova's other calls: get and delete servers, consoles, flavors, zones, limits, keys.

use serde_json::{Value, json};
use simulated_service::knobs::is_nth;

use crate::call::{Call, MAX_MICROVERSION, MIN_MICROVERSION, Microversion, NOVA_V2, Service};
use crate::cloud::cloud::{Cloud, Kind, PROJECT_ID, ServerEvent, number_of};
use crate::cloud::fixtures::Flavor;
use crate::response::Response;
use crate::services::listing;
use crate::services::server::{Stage, Status};

/// From this microversion on, a server contains its flavor instead of the flavor's id.
const FLAVOR_EMBEDDED: u32 = 47;

impl Cloud {
    pub fn compute(&mut self, call: &Call, body: &[u8]) -> Response {
        let Microversion::Minor(minor) = call.microversion else {
            let message = format!(
                "Version is not supported by the API. Minimum is 2.{MIN_MICROVERSION} and maximum is 2.{MAX_MICROVERSION}."
            );
            return Response::json(406, &json!({"computeFault": {"code": 406, "message": message}}));
        };
        let parts = call.below_version();
        let rest = match self.knobs.compute_address.has_project() {
            true => parts.strip_prefix(&[PROJECT_ID]),
            false => Some(&parts[..]),
        };
        let Some(rest) = rest else { return Response::not_found(Service::Compute) };
        let answer = match (call.method.as_str(), rest) {
            ("POST", ["servers"]) => self.create_servers(call, body),
            ("GET", ["servers"] | ["servers", "detail"]) => self.list_servers(call),
            ("GET", ["servers", id]) => self.show_server(id, minor),
            ("DELETE", ["servers", id]) => self.delete_server(id),
            ("POST", ["servers", id, "action"]) => self.server_action(id, body),
            ("GET", ["servers", id, what]) => self.server_subresource(id, what),
            ("GET", ["flavors"] | ["flavors", "detail"]) => self.list_flavors(call, minor),
            ("GET", ["flavors", id]) => match self.fixtures.flavors.iter().find(|flavor| flavor.id == *id) {
                Some(flavor) => Response::ok(&json!({"flavor": flavor.to_json(&self.base, minor)})),
                None => not_found(&format!("Flavor {id} could not be found.")),
            },
            ("GET", ["flavors", _, "os-extra_specs"]) => Response::ok(&json!({"extra_specs": {}})),
            ("GET", ["os-availability-zone"]) => self.zones(),
            ("GET", ["limits"]) => self.compute_limits(minor),
            ("GET", ["os-quota-sets", _, ..]) => self.compute_quotas(),
            ("GET", ["os-keypairs"]) => {
                let keys = self.fixtures.keys.iter().map(|name| json!({"keypair": keypair(name)}));
                Response::ok(&json!({"keypairs": keys.collect::<Vec<_>>()}))
            }
            ("GET", ["os-keypairs", name]) => match self.fixtures.keys.contains(name) {
                true => Response::ok(&json!({"keypair": keypair(name)})),
                false => not_found(&format!("Keypair {name} not found for user")),
            },
            ("GET", ["extensions"]) => Response::ok(&json!({"extensions": []})),
            _ => Response::not_found(Service::Compute),
        };
        if call.version() == NOVA_V2 {
            return answer;
        }
        answer
            .with("OpenStack-API-Version", format!("compute 2.{minor}"))
            .with("X-OpenStack-Nova-API-Version", format!("2.{minor}"))
    }

    fn number_of_server(&self, id: &str) -> Result<u64, Response> {
        let number = number_of(Kind::Server, id).filter(|number| self.servers.contains_key(number));
        number.ok_or_else(|| not_found(&format!("Instance {id} could not be found.")))
    }

    fn show_server(&mut self, id: &str, minor: u32) -> Response {
        let number = match self.number_of_server(id) {
            Ok(number) => number,
            Err(answer) => return answer,
        };
        let rendered = self.rendered_json(number, minor).expect("the server was just found");
        let mut body = Vec::with_capacity(rendered.len() + 12);
        body.extend_from_slice(b"{\"server\":");
        body.extend_from_slice(&rendered);
        body.push(b'}');
        Response::rendered(200, body)
    }

    fn delete_server(&mut self, id: &str) -> Response {
        let number = match self.number_of_server(id) {
            Ok(number) => number,
            Err(answer) => return answer,
        };
        let now = self.now;
        let server = self.servers.get_mut(&number).expect("the server was just found");
        let stage = server.stage();
        if stage.deleting {
            return Response::empty(204);
        }
        self.stats.deletes_accepted += 1;
        self.history.record_delete_requested(number, now);
        if is_nth(self.knobs.delete_ignored_every, self.stats.deletes_accepted) {
            return Response::empty(204);
        }
        let on_no_host = stage.status == Status::Error && server.launched_at.is_none() && server.delete_failures == 0;
        server.enter(now, Stage { deleting: true, ..stage });
        let time = server.seconds("loopback:delete_seconds").unwrap_or(self.knobs.delete_time_s);
        if is_nth(self.knobs.delete_sticks_every, self.stats.deletes_accepted) {
            return Response::empty(204);
        }
        if on_no_host {
            // No host has to delete it, so it is removed at once.
            self.remove_server(number);
        } else {
            self.schedule(time, number, ServerEvent::Deleted);
        }
        Response::empty(204)
    }

    fn server_action(&mut self, id: &str, body: &[u8]) -> Response {
        let number = match self.number_of_server(id) {
            Ok(number) => number,
            Err(answer) => return answer,
        };
        let action: Value = serde_json::from_slice(body).unwrap_or_default();
        let server = &self.servers[&number];
        if action.get("os-getConsoleOutput").is_none() {
            return Response::error(Service::Compute, 400, "There is no such action");
        }
        if server.launched_at.is_none() {
            return Response::error(Service::Compute, 409, &format!("Instance {id} is not ready"));
        }
        let default_output = "FAKE CONSOLE OUTPUT\nANOTHER\nLAST LINE";
        let output = server.metadata.get("loopback:console").and_then(Value::as_str).unwrap_or(default_output);
        Response::ok(&json!({"output": output}))
    }

    fn server_subresource(&mut self, id: &str, subresource: &str) -> Response {
        let number = match self.number_of_server(id) {
            Ok(number) => number,
            Err(answer) => return answer,
        };
        let server = &self.servers[&number];
        match subresource {
            "os-volume_attachments" => {
                let shown = |(volume, delete_on_termination): &(u64, bool)| {
                    let volume = crate::services::volume::id_of(*volume);
                    json!({"id": volume, "volumeId": volume, "serverId": id, "device": "/dev/sda",
                        "delete_on_termination": delete_on_termination})
                };
                Response::ok(&json!({"volumeAttachments": server.volumes.iter().map(shown).collect::<Vec<_>>()}))
            }
            "os-interface" => {
                let ports = server.ports.iter().map(|port| self.interface_json(*port));
                Response::ok(&json!({"interfaceAttachments": ports.collect::<Vec<_>>()}))
            }
            "os-security-groups" => {
                let groups = server.security_groups.iter().map(|name| json!({"name": name}));
                Response::ok(&json!({"security_groups": groups.collect::<Vec<_>>()}))
            }
            "metadata" => Response::ok(&json!({"metadata": server.metadata})),
            "ips" => Response::ok(&json!({"addresses": self.addresses(server)})),
            _ => Response::not_found(Service::Compute),
        }
    }

    fn list_flavors(&self, call: &Call, minor: u32) -> Response {
        let detailed = call.parts.last().is_some_and(|part| part == "detail");
        let shown = |flavor: &Flavor| match detailed {
            true => flavor.to_json(&self.base, minor),
            false => json!({"id": flavor.id, "name": flavor.name, "links": flavor.links(&self.base)}),
        };
        let all: Vec<Value> = self.fixtures.flavors.iter().map(shown).collect();
        match listing::page(call, all, self.knobs.page_size) {
            Ok(page) => Response::ok(&page.linked("flavors", &self.base, call)),
            Err(marker) => Response::error(Service::Compute, 400, &format!("marker [{marker}] not found")),
        }
    }

    fn zones(&self) -> Response {
        let zone = |name: &String| json!({"zoneName": name, "zoneState": {"available": true}, "hosts": null});
        Response::ok(&json!({"availabilityZoneInfo": self.knobs.zones.iter().map(zone).collect::<Vec<_>>()}))
    }

    fn compute_limits(&self, minor: u32) -> Response {
        let mut absolute = json!({
            "maxTotalInstances": self.knobs.quota_servers, "maxTotalCores": self.knobs.quota_cores,
            "maxTotalRAMSize": self.knobs.quota_ram_mib, "maxServerMeta": 128, "maxTotalKeypairs": 1000,
            "maxServerGroups": 100, "maxServerGroupMembers": 10, "totalRAMUsed": self.usage.ram_mib,
            "totalCoresUsed": self.usage.cores, "totalInstancesUsed": self.usage.servers, "totalServerGroupsUsed": 0,
        });
        if minor < 57 {
            for (key, value) in [("maxImageMeta", 128), ("maxPersonality", 5), ("maxPersonalitySize", 10240)] {
                absolute[key] = json!(value);
            }
        }
        if minor < 36 {
            for key in ["maxTotalFloatingIps", "maxSecurityGroups", "maxSecurityGroupRules"] {
                absolute[key] = json!(-1);
            }
        }
        Response::ok(&json!({"limits": {"rate": [], "absolute": absolute}}))
    }

    fn compute_quotas(&self) -> Response {
        Response::ok(&json!({"quota_set": {
            "id": PROJECT_ID, "cores": self.knobs.quota_cores, "instances": self.knobs.quota_servers,
            "ram": self.knobs.quota_ram_mib, "key_pairs": 1000, "metadata_items": 128, "server_groups": 100,
            "server_group_members": 10,
        }}))
    }
}

fn not_found(message: &str) -> Response {
    Response::error(Service::Compute, 404, message)
}

fn keypair(name: &str) -> Value {
    json!({
        "name": name, "public_key": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIN7apjF4fDLrmIj12uMU5aEAkNmjj6JeQ/IQhQIQcJ/R simulated",
        "fingerprint": "be:c6:db:74:b3:06:c0:55:5d:32:ff:06:45:1b:6d:62", "type": "ssh",
    })
}

impl Flavor {
    fn links(&self, base: &str) -> Value {
        json!([
            {"rel": "self", "href": format!("{base}/compute/v2.1/flavors/{}", self.id)},
            {"rel": "bookmark", "href": format!("{base}/compute/flavors/{}", self.id)},
        ])
    }

    fn extra_specs(&self) -> Value {
        self.extra.iter().map(|(key, value)| ((*key).to_owned(), json!(value))).collect()
    }

    fn to_json(&self, base: &str, minor: u32) -> Value {
        let swap = if minor < 75 { json!("") } else { json!(0) };
        let mut shown = json!({
            "id": self.id, "name": self.name, "ram": self.ram_mib, "disk": self.disk_gb, "swap": swap,
            "OS-FLV-EXT-DATA:ephemeral": 0, "OS-FLV-DISABLED:disabled": false, "vcpus": self.vcpus,
            "os-flavor-access:is_public": true, "rxtx_factor": 1.0, "links": self.links(base),
        });
        if minor >= 55 {
            shown["description"] = Value::Null;
        }
        if minor >= 61 {
            shown["extra_specs"] = self.extra_specs();
        }
        shown
    }

    /// The flavor as a part of a server's JSON.
    pub fn embedded_json(&self, base: &str, minor: u32) -> Value {
        if minor >= FLAVOR_EMBEDDED {
            return json!({
                "vcpus": self.vcpus, "ram": self.ram_mib, "disk": self.disk_gb, "ephemeral": 0, "swap": 0,
                "original_name": self.name, "extra_specs": self.extra_specs(),
            });
        }
        json!({"id": self.id, "links": [{"rel": "bookmark", "href": format!("{base}/compute/flavors/{}", self.id)}]})
    }
}
