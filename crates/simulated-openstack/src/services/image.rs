//! Glance: images, whose contents are counted and hashed but not stored.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use crate::call::{Call, Service};
use crate::cloud::cloud::{Cloud, Kind, PROJECT_ID, SimTime, id, number_of};
use crate::cloud::fixtures::Duplicate;
use crate::response::Response;
use crate::services::listing;

/// Read-only properties, which Glance sets.
const READ_ONLY: [&str; 12] = [
    "status",
    "size",
    "virtual_size",
    "checksum",
    "os_hash_algo",
    "os_hash_value",
    "owner",
    "created_at",
    "updated_at",
    "self",
    "file",
    "schema",
];
const FORMATS: [&str; 11] = ["ami", "ari", "aki", "vhd", "vhdx", "vmdk", "raw", "qcow2", "vdi", "iso", "ploop"];

/// Name and format of the first image, which the knob `duplicates` doubles.
const FIRST_IMAGE: (&str, &str) = ("raw-1M", "raw");
/// Number of its duplicate: no other object has it, because numbers start at 1.
const DUPLICATE_IMAGE: u64 = 0;

pub struct Image {
    /// Properties that the owner has set.
    properties: Map<String, Value>,
    content: Option<ImageContent>,
    created: SimTime,
    updated: SimTime,
}

impl Image {
    pub fn is_active(&self) -> bool {
        self.content.is_some()
    }
}

#[derive(Clone)]
pub struct ImageContent {
    pub size: u64,
    md5: String,
    sha512: String,
}

/// Counts and hashes the content of an image chunk by chunk.
pub struct ContentHasher {
    size: u64,
    md5: md5::Context,
    sha512: Sha512,
}

impl ContentHasher {
    pub fn new() -> Self {
        Self { size: 0, md5: md5::Context::new(), sha512: Sha512::new() }
    }

    pub fn update(&mut self, chunk: &[u8]) {
        self.size += chunk.len() as u64;
        self.md5.consume(chunk);
        self.sha512.update(chunk);
    }

    pub fn size(&self) -> u64 {
        self.size
    }

    pub fn finish(self) -> ImageContent {
        let sha512: String = self.sha512.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        ImageContent { size: self.size, md5: format!("{:x}", self.md5.finalize()), sha512 }
    }
}

/// Properties and content of an image that exists from the start.
fn public_image(name: &str, format: &str) -> (Map<String, Value>, ImageContent) {
    let mut hasher = ContentHasher::new();
    hasher.update(name.as_bytes());
    let properties = [("name", name), ("disk_format", format), ("container_format", "bare"), ("visibility", "public")];
    let properties = properties.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    (properties, hasher.finish())
}

impl Cloud {
    pub fn add_standard_images(&mut self) {
        for (name, format) in [FIRST_IMAGE, ("qcow2-empty", "qcow2")] {
            let (properties, content) = public_image(name, format);
            self.add_image(properties, Some(content));
        }
    }

    /// Creates or deletes the second image with the name of the first, as the knob `duplicates` says.
    pub fn update_duplicate_image(&mut self) {
        if self.knobs.duplicates.contains(&Duplicate::Image) {
            let (properties, content) = public_image(FIRST_IMAGE.0, FIRST_IMAGE.1);
            self.insert_image(DUPLICATE_IMAGE, properties, Some(content));
        } else {
            self.images.remove(&DUPLICATE_IMAGE);
        }
    }

    fn add_image(&mut self, properties: Map<String, Value>, content: Option<ImageContent>) -> u64 {
        let number = self.next_number();
        self.insert_image(number, properties, content);
        number
    }

    fn insert_image(&mut self, number: u64, properties: Map<String, Value>, content: Option<ImageContent>) {
        self.history.record_image_created(number, &properties, self.now);
        if content.is_some() {
            self.history.record_image_uploaded(number, self.now);
        }
        self.images.insert(number, Image { properties, content, created: self.now, updated: self.now });
    }

    pub fn image(&self, id: &str) -> Option<&Image> {
        number_of(Kind::Image, id).and_then(|number| self.images.get(&number))
    }

    pub fn image_service(&mut self, call: &Call, body: &[u8]) -> Response {
        match (call.method.as_str(), &call.below_version()[..]) {
            ("GET", ["images"]) => self.list_images(call),
            ("POST", ["images"]) => self.create_image(body),
            ("GET", ["images", id]) => {
                match number_of(Kind::Image, id).and_then(|number| Some((number, self.images.get(&number)?))) {
                    Some((number, image)) => Response::ok(&self.image_json(number, image)),
                    None => Response::error(Service::Image, 404, &format!("No image found with ID {id}")),
                }
            }
            ("DELETE", ["images", id]) => {
                let known = number_of(Kind::Image, id).filter(|number| self.images.remove(number).is_some());
                match known {
                    Some(number) => {
                        self.history.record_image_deleted(number, self.now);
                        Response::empty(204)
                    }
                    None => Response::error(Service::Image, 404, &format!("Failed to find image {id} to delete")),
                }
            }
            ("GET", ["schemas", "image"]) => Response::ok(&json!({"name": "image", "properties": {}})),
            _ => Response::not_found(Service::Image),
        }
    }

    fn list_images(&self, call: &Call) -> Response {
        let modifiers = ["limit", "marker", "sort", "sort_key", "sort_dir", "member_status"];
        let passes = |image: &Value| {
            let mut filters = call.query.iter().filter(|(key, _)| !modifiers.contains(&key.as_str()));
            filters.all(|(key, wanted)| match key.as_str() {
                "name" | "status" if wanted.starts_with("in:") => {
                    let mut names = wanted["in:".len()..].split(',').map(|name| name.trim_matches('"'));
                    names.any(|name| image[key] == name)
                }
                _ => listing::matches(&image[key], wanted),
            })
        };
        let all = self.images.iter().rev().map(|(number, image)| self.image_json(*number, image));
        let page = match listing::page(call, all.filter(passes).collect(), self.knobs.page_size) {
            Ok(page) => page,
            Err(marker) => return Response::error(Service::Image, 400, &format!("No image found with ID {marker}")),
        };
        let first = match call.query_string.is_empty() {
            true => "/v2/images".to_owned(),
            false => format!("/v2/images?{}", call.query_string),
        };
        let mut shown = json!({"images": page.items, "first": first, "schema": "/v2/schemas/images"});
        if let Some(marker) = page.next {
            // Glance's links are relative to its own root.
            let next = listing::next_page("", call, &marker);
            shown["next"] = json!(next.trim_start_matches(crate::call::REDIRECT_PREFIX).trim_start_matches("/image"));
        }
        Response::ok(&shown)
    }

    fn create_image(&mut self, body: &[u8]) -> Response {
        let bad = |message: &str| Response::error(Service::Image, 400, message);
        let Ok(Value::Object(properties)) = serde_json::from_slice(body) else {
            return bad("Malformed JSON in request body.");
        };
        for (key, value) in &properties {
            let is_valid = match key.as_str() {
                "disk_format" => value.is_null() || FORMATS.iter().any(|format| value == format),
                "min_disk" | "min_ram" => value.is_i64(),
                "protected" | "os_hidden" => value.is_boolean(),
                "tags" => value.is_array(),
                _ => value.is_string() || value.is_null(),
            };
            if !is_valid {
                return bad(&format!("Provided object does not match schema 'image': {key}: {value}"));
            }
            if READ_ONLY.contains(&key.as_str()) {
                return Response::error(Service::Image, 403, &format!("Attribute '{key}' is read-only."));
            }
        }
        let number = self.add_image(properties, None);
        let location = format!("{}/image/v2/images/{}", self.base, id(Kind::Image, number));
        Response::json(201, &self.image_json(number, &self.images[&number])).with("Location", location)
    }

    /// Returns the number of an image that awaits its content; called before the content is received.
    pub fn check_upload(&self, id: &str) -> Result<u64, Response> {
        let number = number_of(Kind::Image, id).unwrap_or_default();
        match self.images.get(&number) {
            None => Err(Response::error(Service::Image, 404, &format!("No image found with ID {id}"))),
            Some(image) if image.is_active() => Err(Response::error(
                Service::Image,
                409,
                "Image status transition from active to saving is not allowed",
            )),
            Some(_) => Ok(number),
        }
    }

    pub fn finish_upload(&mut self, number: u64, content: ImageContent) -> Response {
        self.stats.images_uploaded += 1;
        self.stats.bytes_uploaded += content.size;
        let now = self.now;
        let Some(image) = self.images.get_mut(&number) else {
            return Response::error(Service::Image, 410, "Image was deleted during the upload");
        };
        image.content = Some(content);
        image.updated = now;
        self.history.record_image_uploaded(number, now);
        Response::empty(204)
    }

    fn image_json(&self, number: u64, image: &Image) -> Value {
        let id = id(Kind::Image, number);
        let content = image.content.as_ref();
        let mut shown = json!({
            "disk_format": null, "container_format": null, "visibility": "shared",
            "size": content.map(|content| content.size), "virtual_size": content.map(|content| content.size),
            "status": if content.is_some() { "active" } else { "queued" },
            "checksum": content.map(|content| &content.md5), "protected": false, "min_ram": 0, "min_disk": 0,
            "owner": PROJECT_ID, "os_hidden": false, "os_hash_algo": content.map(|_| "sha512"),
            "os_hash_value": content.map(|content| &content.sha512), "id": id,
            "created_at": self.timestamp(image.created), "updated_at": self.timestamp(image.updated), "tags": [],
            "self": format!("/v2/images/{id}"), "file": format!("/v2/images/{id}/file"), "schema": "/v2/schemas/image",
        });
        for (key, value) in &image.properties {
            shown[key] = value.clone();
        }
        shown
    }
}
