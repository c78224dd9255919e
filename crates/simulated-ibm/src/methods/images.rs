//! Operations of images: lists, imports from object storage, changes and deletions.

use std::borrow::Cow;

use serde_json::json;

use crate::api::lists::{List, ListQuery};
use crate::faults::outcome_fault::Creation;
use crate::methods::boot_volume::not_unique;
use crate::methods::fields::{Fields, parsed};
use crate::methods::references::referenced_name;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::fixtures::{Image, NewImage};
use crate::state::table::Entry;
use crate::state::work::Step;
use crate::state::world::World;

const FILTERS: [&str; 6] =
    ["resource_group.id", "name", "status", "visibility", "user_data_format", "remote.account.id"];

impl World {
    pub fn list_images(&self, call: &Call) -> ApiResult<Response> {
        let query = ListQuery::new(call, &FILTERS, self.knobs.page)?;
        let page = query.page(&self.images);
        let list = List { key: "images", path: "images" };
        Ok(list.respond(self, call, &query, &page, |image| self.shown_image(image, true)))
    }

    /// The JSON of an image, in a list or alone.
    fn shown_image<'a>(&self, image: &'a Entry<Image>, is_listed: bool) -> Cow<'a, str> {
        let is_unnamed = is_listed && self.knobs.unnamed_groups;
        if !is_unnamed && !self.knobs.legacy_fields {
            return Cow::Borrowed(image.text());
        }
        let mut value = image.value().clone();
        if self.knobs.legacy_fields {
            value["owner_type"] = json!(if image.details.is_own { "user" } else { "provider" });
        }
        if is_unnamed && let Some(group) = value["resource_group"].as_object_mut() {
            group.shift_remove("name");
        }
        Cow::Owned(value.to_string())
    }

    fn image(&self, id: &str) -> ApiResult<&Entry<Image>> {
        self.images.get(id).ok_or_else(|| ApiError::not_found("image", id))
    }

    fn image_response(&self, status: u16, id: &str) -> ApiResult<Response> {
        Ok(Response::json_text(status, self.shown_image(self.image(id)?, false).into_owned()))
    }

    pub fn get_image(&self, call: &Call) -> ApiResult<Response> {
        self.image_response(200, call.id(0))
    }

    /// Imports an image from a file in object storage. The simulation does not read the file.
    pub fn create_image(&mut self, call: &Call) -> ApiResult<Response> {
        let body = parsed(&call.body)?;
        let known = [
            "allowed_use",
            "deprecation_at",
            "encrypted_data_key",
            "encryption_key",
            "file",
            "name",
            "obsolescence_at",
            "operating_system",
            "resource_group",
        ];
        let fields = Fields::new(&body, "", &known)?;
        let name = fields.name()?;
        if let Some(name) = name {
            if name.starts_with("ibm-") {
                let message = "Names that begin with ibm- are reserved for system images.";
                return Err(fields.invalid("name", "validation_invalid_name", message));
            }
            if self.images.by_name(name).is_some() {
                return Err(not_unique(&fields));
            }
        }
        let file = Fields::new(fields.required("file")?, "file", &["href"])?;
        let href = file.text("href")?.ok_or_else(|| file.missing("href"))?;
        if !is_object_href(href) {
            return Err(file.invalid("href", "validation_invalid_ref", "The value is not a valid HREF."));
        }
        let system = referenced_name(&self.operating_systems, &fields, "operating_system", "operating system")?;
        let system = system.ok_or_else(|| fields.missing("operating_system"))?;
        let system = self.operating_systems.get(&system).expect("the operating system was found").value().clone();
        if system["allow_user_image_creation"] != json!(true) {
            return Err(ApiError::new("operating_system_restricted"));
        }
        let group = self.referenced_group(&fields)?;
        self.check_quotas(&[("images", self.own_images() as u64, 1)])?;
        let name = name.map_or_else(|| self.new_name(), str::to_owned);
        let image = NewImage {
            name: &name,
            operating_system: &system,
            size_gb: 0,
            group: &group,
            visibility: "private",
            status: "pending",
        };
        let fate = self.image_fault();
        let id = self.add_image(&image, Image { is_own: true, fate });
        self.record("images", &id, &name, "");
        let time = self.duration(self.knobs.image_s);
        self.schedule(time, Step::FinishImport(id.clone()));
        self.image_response(201, &id)
    }

    /// The reason for which the next import fails.
    fn image_fault(&mut self) -> Option<String> {
        let (faults, counts) = (&self.knobs.image_faults, &mut self.stats.image_faults_struck);
        counts.strike(faults, &Creation::Image).first().map(|fault| fault.code.clone())
    }

    /// Checks that an image is the user's own and is not being deleted, and returns its id.
    fn changeable_image(&self, call: &Call) -> ApiResult<String> {
        let image = self.image(call.id(0))?;
        if !image.details.is_own {
            return Err(ApiError::new("invalid_action_for_public_image"));
        }
        match image.status() {
            "deleting" => Err(ApiError::new("invalid_state")),
            _ => Ok(image.id.clone()),
        }
    }

    pub fn update_image(&mut self, call: &Call) -> ApiResult<Response> {
        let (id, body) = (self.changeable_image(call)?, parsed(&call.body)?);
        if let Some(name) = self.new_unique_name(&self.images, &body, &id)? {
            self.images.rename(&id, &name);
        }
        self.image_response(200, &id)
    }

    pub fn delete_image(&mut self, call: &Call) -> ApiResult<Response> {
        let id = self.changeable_image(call)?;
        if self.image(&id)?.status() == "pending" {
            return Err(ApiError::new("invalid_state"));
        }
        self.begin_delete_image(&id);
        Ok(Response::empty(202))
    }
}

/// Whether this is the address of an object, such as `cos://us-south/bucket/file.qcow2`.
fn is_object_href(href: &str) -> bool {
    let parts: Vec<&str> = href.strip_prefix("cos://").unwrap_or_default().splitn(3, '/').collect();
    parts.len() == 3 && parts.iter().all(|part| !part.is_empty())
}
