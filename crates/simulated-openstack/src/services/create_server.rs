//! `POST /servers`: Nova's checks in Nova's order and with Nova's messages, and the creation of servers.

use serde_json::{Map, Value, json};
use simulated_service::knobs::is_nth;

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, Kind, ServerEvent, id};
use crate::response::Response;
use crate::services::server::{Server, ServerOrder, VolumeOrder, seconds};

/// Keys that Nova's schema allows in a creation.
const SERVER_KEYS: [&str; 24] = [
    "name",
    "imageRef",
    "flavorRef",
    "adminPass",
    "metadata",
    "networks",
    "OS-DCF:diskConfig",
    "accessIPv4",
    "accessIPv6",
    "personality",
    "availability_zone",
    "block_device_mapping",
    "block_device_mapping_v2",
    "config_drive",
    "min_count",
    "max_count",
    "return_reservation_id",
    "security_groups",
    "user_data",
    "key_name",
    "description",
    "tags",
    "trusted_image_certificates",
    "hostname",
];

/// From this microversion on, `networks` is required, and may be `auto` or `none`.
const NETWORKS_REQUIRED: u32 = 37;

/// One resource of the quota that servers use.
struct QuotaRow {
    name: &'static str,
    each: i64,
    used: i64,
    limit: i64,
}

impl QuotaRow {
    /// Number of servers that this row allows.
    fn capacity(&self) -> i64 {
        if self.limit < 0 { i64::MAX } else { (self.limit - self.used).max(0) / self.each }
    }
}

fn bad_request(message: impl AsRef<str>) -> Response {
    Response::error(Service::Compute, 400, message.as_ref())
}

fn invalid(field: &str, value: &Value, reason: &str) -> Response {
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    bad_request(format!("Invalid input for field/attribute {field}. Value: {value}. {reason}"))
}

impl Cloud {
    pub fn create_servers(&mut self, call: &Call, body: &[u8]) -> Response {
        match self.parse_order(call, body) {
            Ok((order, least, most)) => match self.count_within_quota(&order, least, most) {
                Ok(count) => self.create_all(&order, count),
                Err(answer) => {
                    self.stats.quota_refusals += 1;
                    answer
                }
            },
            Err(answer) => answer,
        }
    }

    /// The order, with its minimum and maximum number of servers.
    fn parse_order(&self, call: &Call, body: &[u8]) -> Result<(ServerOrder, i64, i64), Response> {
        let body: Value = serde_json::from_slice(body).map_err(|_| bad_request("Malformed request body"))?;
        let Some(server) = body["server"].as_object() else {
            return Err(invalid("server", &body, "'server' is a required property"));
        };
        validate_body(server, call.minor())?;
        let min_count = count(server.get("min_count")).unwrap_or(1);
        let max_count = count(server.get("max_count")).unwrap_or(min_count).max(min_count);
        let text = |key: &str| server.get(key).and_then(Value::as_str);
        let wanted = text("flavorRef").unwrap_or_default();
        let flavor = self.fixtures.flavors.iter().position(|flavor| flavor.id == wanted);
        let flavor = flavor.ok_or_else(|| bad_request(format!("Flavor {wanted} could not be found.")))?;
        let (image, volume) = self.boot_source(server)?;
        let zone = text("availability_zone").map(str::to_owned);
        if zone.as_ref().is_some_and(|zone| !self.knobs.zones.contains(zone)) {
            return Err(bad_request("The requested availability zone is not available"));
        }
        let key_name = text("key_name").map(str::to_owned);
        if key_name.as_deref().is_some_and(|name| !self.fixtures.keys.contains(&name)) {
            return Err(bad_request("Invalid key_name provided."));
        }
        let security_groups = self.requested_groups(server.get("security_groups"))?;
        let order = ServerOrder {
            name: text("name").unwrap_or_default().to_owned(),
            flavor,
            image,
            key_name,
            metadata: server.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default(),
            config_drive: server.get("config_drive").is_some_and(|drive| *drive == json!(true) || *drive == "True"),
            zone,
            security_groups,
            networks: self.requested_networks(server.get("networks"))?,
            volume,
        };
        Ok((order, min_count, max_count))
    }

    /// The image, or the volume that a block device mapping creates from an image.
    fn boot_source(&self, server: &Map<String, Value>) -> Result<(Option<String>, Option<VolumeOrder>), Response> {
        let image = server.get("imageRef").and_then(Value::as_str).unwrap_or_default();
        let mapping = server.get("block_device_mapping_v2").and_then(|mappings| mappings.get(0));
        let Some(mapping) = mapping else {
            if image.is_empty() {
                return Err(bad_request("Missing imageRef attribute"));
            }
            self.check_image(image)?;
            return Ok((Some(image.to_owned()), None));
        };
        if !image.is_empty() {
            self.check_image(image)?;
        }
        if mapping["source_type"] == "image" {
            self.check_image(mapping["uuid"].as_str().unwrap_or_default())?;
        }
        if mapping["destination_type"] != "volume" {
            return Ok((Some(image.to_owned()), None));
        }
        if !self.options.has(Service::Volume) {
            return Err(Response::error(Service::Compute, 500, "The volume service is not available."));
        }
        let Some(size_gb) = count(mapping.get("volume_size")) else {
            return Err(bad_request("Block Device Mapping is Invalid: volume_size is missing or no number."));
        };
        Ok((None, Some(VolumeOrder { size_gb, delete_on_termination: mapping["delete_on_termination"] == true })))
    }

    fn check_image(&self, image: &str) -> Result<(), Response> {
        if !crate::call::is_id(image) {
            let reason = format!("'{image}' is not valid under any of the given schemas");
            return Err(invalid("imageRef", &json!(image), &reason));
        }
        let found = self.image(image).ok_or_else(|| bad_request("Can not find requested image"))?;
        match found.is_active() {
            true => Ok(()),
            false => Err(bad_request(format!("Image {image} is not active."))),
        }
    }

    fn requested_groups(&self, groups: Option<&Value>) -> Result<Vec<String>, Response> {
        let Some(groups) = groups.and_then(Value::as_array) else { return Ok(vec!["default".to_owned()]) };
        let mut wanted = Vec::new();
        for group in groups {
            let name = group["name"].as_str().unwrap_or_default();
            let known: Vec<_> = self.security_groups().filter(|known| known.name == name || known.id == name).collect();
            match known[..] {
                [known] => wanted.push(known.name.to_owned()),
                [] => return Err(bad_request(format!("Unable to find security_group with name or id '{name}'"))),
                _ => {
                    let message = format!(
                        "Multiple security_group matches found for name '{name}', use an ID to be more specific."
                    );
                    return Err(Response::error(Service::Compute, 409, &message));
                }
            }
        }
        Ok(wanted)
    }

    fn requested_networks(&self, networks: Option<&Value>) -> Result<Vec<usize>, Response> {
        let own = self.networks().filter(|(_, network)| !network.external).count();
        let automatic = match networks {
            None => true,
            Some(Value::String(word)) if word == "none" => return Ok(Vec::new()),
            Some(Value::String(_)) => true,
            Some(networks) => networks.as_array().is_none_or(Vec::is_empty),
        };
        if automatic {
            return match own {
                0 | 1 => Ok((0..own).collect()),
                _ => {
                    let message = "Multiple possible networks found, use a Network ID to be more specific.";
                    Err(Response::error(Service::Compute, 409, message))
                }
            };
        }
        let mut wanted = Vec::new();
        for network in networks.and_then(Value::as_array).into_iter().flatten() {
            let uuid = network["uuid"].as_str().unwrap_or_default();
            if !crate::call::is_id(uuid) {
                let message = format!("Bad networks format: network uuid is not in proper format ({uuid})");
                return Err(bad_request(message));
            }
            let known = self.networks().find(|(_, known)| known.id == uuid && !known.external);
            wanted.push(known.ok_or_else(|| bad_request(format!("Network {uuid} could not be found.")))?.0);
        }
        Ok(wanted)
    }

    /// Number of servers within the quota. Nova creates fewer than the maximum before it rejects the request.
    fn count_within_quota(&self, order: &ServerOrder, min_count: i64, max_count: i64) -> Result<i64, Response> {
        let flavor = &self.fixtures.flavors[order.flavor];
        let row = |name, each, used, limit| QuotaRow { name, each, used, limit };
        let rows = [
            row("cores", flavor.vcpus, self.usage.cores, self.knobs.quota_cores),
            row("instances", 1, self.usage.servers, self.knobs.quota_servers),
            row("ram", flavor.ram_mib, self.usage.ram_mib, self.knobs.quota_ram_mib),
        ];
        let count = rows.iter().map(QuotaRow::capacity).min().expect("there are three").min(max_count);
        if count < min_count {
            let exceeded: Vec<&QuotaRow> = rows.iter().filter(|row| row.capacity() < min_count).collect();
            let join = |shown: &dyn Fn(&QuotaRow) -> String| {
                exceeded.iter().map(|row| shown(row)).collect::<Vec<_>>().join(", ")
            };
            let names = join(&|row| row.name.to_owned());
            let message = format!(
                "Quota exceeded for {names}: Requested {}, but already used {} of {} {names}",
                join(&|row| (row.each * min_count).to_string()),
                join(&|row| row.used.to_string()),
                join(&|row| row.limit.to_string()),
            );
            return Err(Response::error(Service::Compute, 403, &message));
        }
        let ports = self.ports.len() as i64 + count * order.networks.len() as i64;
        if self.knobs.quota_ports >= 0 && ports > self.knobs.quota_ports && !order.networks.is_empty() {
            return Err(Response::error(Service::Compute, 403, "Maximum number of ports exceeded"));
        }
        let hidden = self.knobs.hidden_quota_servers;
        if hidden >= 0 && self.usage.servers + count > hidden {
            return Err(Response::error(Service::Compute, 403, &self.knobs.hidden_quota_refusal));
        }
        Ok(count)
    }

    fn create_all(&mut self, order: &ServerOrder, count: i64) -> Response {
        let mut first = None;
        for index in 1..=count {
            let name = if count == 1 { order.name.clone() } else { format!("{}-{index}", order.name) };
            let number = self.add_server(order, name);
            first.get_or_insert(number);
        }
        let first = &self.servers[&first.expect("at least one was granted")];
        let groups: Vec<Value> = first.security_groups.iter().map(|name| json!({"name": name})).collect();
        let location = format!("{}/compute/v2.1/servers/{}", self.base, first.id);
        let body = json!({"server": {
            "id": first.id, "links": first.links(&self.base), "OS-DCF:diskConfig": "MANUAL",
            "security_groups": groups, "adminPass": "5ZRropFLxa5o",
        }});
        Response::json(202, &body).with("Location", location)
    }

    fn add_server(&mut self, order: &ServerOrder, name: String) -> u64 {
        let number = self.next_number();
        let zone = order.zone.clone().unwrap_or_else(|| self.knobs.zones[0].clone());
        let mut server = Server::new(id(Kind::Server, number), order, name, zone, self.now);
        let flavor = &self.fixtures.flavors[order.flavor];
        self.usage.servers += 1;
        self.usage.cores += flavor.vcpus;
        self.usage.ram_mib += flavor.ram_mib;
        let at_once = u64::try_from(self.usage.servers).expect("a count of servers is not negative");
        self.stats.server_created(server.node.as_deref(), at_once);

        let of_flavor = |key: &str| flavor.extra.iter().find(|(extra, _)| *extra == key).map(|(_, value)| *value);
        let error = server.metadata.get("loopback:spawn_error").and_then(Value::as_str);
        if let Some(error) = error.or(of_flavor("loopback:spawn_error")) {
            server.boot_failure = Some(format!("Build of instance {} aborted: {error}", server.id));
        } else if is_nth(self.knobs.boot_fails_every, self.stats.servers_created) {
            server.boot_failure = Some(self.knobs.boot_failure.clone());
        }
        let of_flavor = of_flavor("loopback:spawn_seconds").and_then(seconds);
        let boot_time = server.seconds("loopback:spawn_seconds").or(of_flavor).unwrap_or(self.knobs.boot_time_s);
        if server.metadata.contains_key("loopback:delete_error") {
            server.delete_failures = count(server.metadata.get("loopback:delete_failures")).unwrap_or(1) as u64;
        }
        for network in &order.networks {
            server.ports.extend(self.add_port(*network, number, &server.zone));
        }
        if let Some(volume) = order.volume {
            match self.add_volume(volume, number) {
                Ok(volume_number) => server.volumes.push((volume_number, volume.delete_on_termination)),
                Err(error) => {
                    server.boot_failure = Some(format!("Build of instance {} aborted: {error}", server.id));
                }
            }
        }
        self.history.record_created(number, &server, self.now);
        self.servers.insert(number, server);
        if !is_nth(self.knobs.boot_sticks_every, self.stats.servers_created) {
            self.schedule(boot_time, number, ServerEvent::BootCompleted);
        }
        if is_nth(self.knobs.vanish_every, self.stats.servers_created) {
            self.schedule(self.knobs.vanish_after_s, number, ServerEvent::Vanished);
        }
        number
    }
}

/// A number, which may be written as a string.
fn count(value: Option<&Value>) -> Option<i64> {
    let value = value?;
    let number = value.as_i64().or_else(|| value.as_str()?.parse().ok())?;
    (0..=100_000).contains(&number).then_some(number)
}

fn validate_body(server: &Map<String, Value>, minor: u32) -> Result<(), Response> {
    let whole = Value::Object(server.clone());
    for key in ["name", "flavorRef"] {
        if !server.contains_key(key) {
            return Err(invalid("server", &whole, &format!("'{key}' is a required property")));
        }
    }
    if let Some(key) = server.keys().find(|key| !SERVER_KEYS.contains(&key.as_str())) {
        let reason = format!("Additional properties are not allowed ('{key}' was unexpected)");
        return Err(invalid("server", &whole, &reason));
    }
    match server.get("networks") {
        None if minor >= NETWORKS_REQUIRED => {
            return Err(invalid("server", &whole, "'networks' is a required property"));
        }
        Some(Value::String(word)) if minor < NETWORKS_REQUIRED => {
            return Err(invalid("networks", &json!(word), &format!("'{word}' is not of type 'array'")));
        }
        Some(Value::String(word)) if word != "auto" && word != "none" => {
            let reason = format!("'{word}' is not valid under any of the given schemas");
            return Err(invalid("networks", &json!(word), &reason));
        }
        None | Some(_) => {}
    }
    for (key, value) in server.get("metadata").and_then(Value::as_object).into_iter().flatten() {
        match value.as_str() {
            None => return Err(invalid(key, value, &format!("{value} is not of type 'string'"))),
            Some(text) if text.len() > 255 => return Err(invalid(key, value, &format!("'{text}' is too long"))),
            Some(_) => {}
        }
    }
    if server.get("name").and_then(Value::as_str).is_none_or(str::is_empty) {
        return Err(invalid("name", server.get("name").unwrap_or(&Value::Null), "'' is too short"));
    }
    Ok(())
}
