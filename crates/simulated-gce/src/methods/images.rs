//! Methods of images.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::lists::{List, ListQuery};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::images::Image;
use crate::state::world::World;

impl World {
    pub fn list_images(&self, call: &Call) -> ApiResult<Response> {
        let images = self.images.of_project(&call.project);
        let images = images.ok_or_else(|| ApiError::not_found(&format!("projects/{}", call.project)))?;
        let rows: BTreeMap<String, Value> = images.iter().map(|(name, image)| (name.clone(), image.json())).collect();
        let path = format!("projects/{}/global/images", call.project);
        Ok(ListQuery::new(call, self.knobs.page)?.respond(&List { kind: "compute#imageList", path }, &rows))
    }

    pub fn get_image(&self, call: &Call) -> ApiResult<Response> {
        found(self.images.get(&call.project, &call.name), call, "")
    }

    pub fn get_image_of_family(&self, call: &Call) -> ApiResult<Response> {
        found(self.images.newest(&call.project, &call.name), call, "family/")
    }
}

fn found(image: Option<&Image>, call: &Call, kind: &str) -> ApiResult<Response> {
    match image {
        Some(image) => Ok(Response::json(200, &image.json())),
        None => {
            let path = format!("projects/{}/global/images/{kind}{}", call.project, call.name);
            Err(ApiError::not_found(&path))
        }
    }
}
