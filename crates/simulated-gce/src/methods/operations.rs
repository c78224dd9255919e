//! Methods of zone operations.

use std::borrow::Cow;

use crate::api::lists::{List, ListQuery};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::project::Compute;

impl Compute<'_> {
    pub fn list_operations(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        let query = ListQuery::new(call, self.world.knobs.page)?;
        let place = self.place(zone);
        let page = query.page(&self.project.zones[zone].operations, |operation| Cow::Borrowed(operation.value(&place)));
        let items = page.rows.iter().map(|(_, operation)| operation.value(&place).to_string()).collect();
        let list = List { kind: "compute#operationList", path: self.path(&format!("zones/{zone}/operations")) };
        Ok(list.respond(items, page.next.as_deref()))
    }

    /// Answers an operation as it is. A call that waits for it has waited already.
    pub fn get_operation(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        match self.project.zones[zone].operations.get(&call.name) {
            Some(operation) => Ok(Response::json(200, operation.value(&self.place(zone)))),
            None => Err(ApiError::not_found(&self.path(&format!("zones/{zone}/operations/{}", call.name)))),
        }
    }
}
