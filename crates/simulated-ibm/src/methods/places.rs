//! Operations of regions, zones and other resources that only have a list and an object.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::api::lists::{List, ListQuery};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::table::Table;
use crate::state::world::World;

impl World {
    fn region(&self) -> Value {
        let name = &self.options.region;
        json!({
            "endpoint": self.base, "href": self.href(&format!("regions/{name}")), "name": name, "status": "available",
        })
    }

    fn zone(&self, name: &str) -> Value {
        let region = &self.options.region;
        json!({
            "href": self.href(&format!("regions/{region}/zones/{name}")), "name": name,
            "region": {"href": self.href(&format!("regions/{region}")), "name": region}, "status": "available",
            "universal_name": format!("{name}-universal"), "data_center": "DAL10",
        })
    }

    pub fn list_regions(&self) -> Response {
        Response::json(200, &json!({"regions": [self.region()]}))
    }

    pub fn get_region(&self, call: &Call) -> ApiResult<Response> {
        self.check_region(call)?;
        Ok(Response::json(200, &self.region()))
    }

    fn check_region(&self, call: &Call) -> ApiResult<()> {
        match call.id(0) == self.options.region {
            true => Ok(()),
            false => Err(ApiError::not_found("region", call.id(0))),
        }
    }

    pub fn list_zones(&self, call: &Call) -> ApiResult<Response> {
        self.check_region(call)?;
        let zones: Vec<Value> = self.zones().map(|zone| self.zone(&zone)).collect();
        Ok(Response::json(200, &json!({"zones": zones})))
    }

    pub fn get_zone(&self, call: &Call) -> ApiResult<Response> {
        self.check_region(call)?;
        match self.zone_number(call.id(1)) {
            Some(_) => Ok(Response::json(200, &self.zone(call.id(1)))),
            None => Err(ApiError::not_found("zone", call.id(1))),
        }
    }

    /// The list of a table whose rows are shown as they are.
    pub fn list_table<T>(&self, call: &Call, list: &List, filters: &[&str], table: &Table<T>) -> ApiResult<Response> {
        let query = ListQuery::new(call, filters, self.knobs.page)?;
        let page = query.page(table);
        Ok(list.respond(self, call, &query, &page, |row| Cow::Borrowed(row.text())))
    }

    /// A list of resources that the simulation has none of.
    pub fn empty_list(&self, call: &Call, path: &'static str) -> ApiResult<Response> {
        let query = ListQuery::without_filters(call)?;
        let (list, table) = (List { key: path, path }, Table::<()>::default());
        let page = query.page(&table);
        Ok(list.respond(self, call, &query, &page, |row| Cow::Borrowed(row.text())))
    }
}

/// The object of a table whose rows are shown as they are.
pub fn found<T>(call: &Call, table: &Table<T>, kind: &str) -> ApiResult<Response> {
    let id = call.id(0);
    let row = table.get(id).ok_or_else(|| ApiError::not_found(kind, id))?;
    Ok(Response::json_text(200, row.text().to_owned()))
}
