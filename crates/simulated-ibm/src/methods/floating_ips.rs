//! Operations of floating IPs.

use std::borrow::Cow;

use crate::api::lists::{List, ListQuery};
use crate::methods::boot_volume::not_unique;
use crate::methods::fields::{Fields, parsed};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::floating_ip_steps::FloatingIp;
use crate::state::table::Entry;
use crate::state::world::World;

const FILTERS: [&str; 5] = ["resource_group.id", "target.id", "target.crn", "target.name", "target.resource_type"];

impl World {
    pub fn list_floating_ips(&self, call: &Call) -> ApiResult<Response> {
        let query = ListQuery::new(call, &FILTERS, self.knobs.page)?;
        let page = query.page(&self.floating_ips);
        let list = List { key: "floating_ips", path: "floating_ips" };
        Ok(list.respond(self, call, &query, &page, |one| Cow::Borrowed(one.text())))
    }

    pub fn get_floating_ip(&self, call: &Call) -> ApiResult<Response> {
        self.floating_ip_response(200, &self.floating_ip(call.id(0))?.id)
    }

    pub fn floating_ip(&self, id: &str) -> ApiResult<&Entry<FloatingIp>> {
        self.floating_ips.get(id).ok_or_else(|| ApiError::not_found("floating IP", id))
    }

    pub fn floating_ip_response(&self, status: u16, id: &str) -> ApiResult<Response> {
        Ok(Response::json_text(status, self.floating_ip(id)?.text().to_owned()))
    }

    pub fn create_floating_ip(&mut self, call: &Call) -> ApiResult<Response> {
        let body = parsed(&call.body)?;
        let fields = Fields::new(&body, "", &["name", "resource_group", "target", "zone"])?;
        let name = fields.name()?;
        if name.is_some_and(|name| self.floating_ips.by_name(name).is_some()) {
            return Err(not_unique(&fields));
        }
        let group = self.referenced_group(&fields)?;
        let target = self.referenced_target(&fields)?;
        let zone = match (&target, self.referenced_zone(&fields, "zone")?) {
            (Some(_), Some(_)) => {
                let message = "The value must match one of the subschemas.";
                return Err(fields.invalid("zone", "validation_only_one", message));
            }
            (Some(target), None) => self.interface_zone(target),
            (None, Some(zone)) => zone,
            (None, None) => return Err(fields.missing("zone")),
        };
        if target.as_ref().is_some_and(|target| self.attached.contains_key(target)) {
            return Err(ApiError::new("target_in_use"));
        }
        self.check_quotas(&[("floating_ips", self.floating_ips.len() as u64, 1)])?;
        let name = name.map_or_else(|| self.new_name(), str::to_owned);
        let Some(id) = self.add_floating_ip(&name, &zone, &group) else {
            return Err(ApiError::with_message("over_quota", "No floating IP addresses are left in the zone."));
        };
        if let Some(target) = target {
            self.attach(&id, &target);
        }
        self.floating_ip_response(201, &id)
    }

    /// Changes the name of a floating IP, or its target, which null removes.
    pub fn update_floating_ip(&mut self, call: &Call) -> ApiResult<Response> {
        let (id, body) = (self.floating_ip(call.id(0))?.id.clone(), parsed(&call.body)?);
        let name = self.new_unique_name(&self.floating_ips, &body, &id)?;
        let fields = Fields::new(&body, "", &["name", "target"])?;
        match (self.referenced_target(&fields)?, fields.has("target")) {
            (Some(target), _) => self.checked_attach(&id, &target)?,
            (None, true) => self.detach(&id),
            (None, false) => {}
        }
        if let Some(name) = name {
            self.floating_ips.rename(&id, &name);
        }
        self.floating_ip_response(200, &id)
    }

    pub fn delete_floating_ip(&mut self, call: &Call) -> ApiResult<Response> {
        let floating_ip = self.floating_ip(call.id(0))?;
        if matches!(floating_ip.status(), "pending" | "deleting") {
            return Err(ApiError::new("invalid_state"));
        }
        let id = floating_ip.id.clone();
        self.begin_delete_floating_ip(&id);
        Ok(Response::empty(204))
    }
}
