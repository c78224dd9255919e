//! Lists of resources and of values, and their pages.

use serde_json::{Map, Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::resources::{Disk, Image, Nic, PublicIp, Resource, Vm};
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;

impl Cloud {
    pub fn list(&self, call: &Call, kind: Kind, group: Option<&str>) -> ApiResult<Response> {
        match kind {
            Kind::Vm => self.list_of::<Vm>(call, group),
            Kind::Nic => self.list_of::<Nic>(call, group),
            Kind::Ip => self.list_of::<PublicIp>(call, group),
            Kind::Disk => self.list_of::<Disk>(call, group),
            Kind::Image => self.list_of::<Image>(call, group),
        }
    }

    fn list_of<R: Resource>(&self, call: &Call, group: Option<&str>) -> ApiResult<Response> {
        let after = skip_token(call)?;
        let limit = self.page_size();
        let (mut items, mut last, mut has_more) = (Vec::new(), after, false);
        for (number, one) in R::table(self).after(after) {
            if group.is_some_and(|group| !one.meta().group.eq_ignore_ascii_case(group)) {
                continue;
            }
            if items.len() == limit {
                has_more = true;
                break;
            }
            last = number;
            items.push(self.listed_json(one));
        }
        Ok(self.page(call, items, has_more.then_some(last)))
    }

    /// A page of values that are the same at each call.
    pub fn page_of_values(&self, call: &Call, mut values: Vec<Value>) -> ApiResult<Response> {
        let first = usize::try_from(skip_token(call)?).unwrap_or(usize::MAX).min(values.len());
        let last = first.saturating_add(self.page_size()).min(values.len());
        let next = (last < values.len()).then_some(last as u64);
        let items = values.drain(first..last).collect();
        Ok(self.page(call, items, next))
    }

    fn page_size(&self) -> usize {
        if self.knobs.page == 0 { usize::MAX } else { self.knobs.page }
    }

    fn page(&self, call: &Call, items: Vec<Value>, next: Option<u64>) -> Response {
        let mut json = json!({"value": items});
        if let Some(next) = next {
            let mut query = form_urlencoded::Serializer::new(String::new());
            for (name, value) in call.query.iter().filter(|(name, _)| name != "$skiptoken") {
                query.append_pair(name, value);
            }
            query.append_pair("$skiptoken", &next.to_string());
            json["nextLink"] = json!(format!("{}{}?{}", self.base, call.path, query.finish()));
        }
        Response::json(200, &json)
    }

    /// The JSON of a resource.
    pub fn resource_json<R: Resource>(&self, one: &R) -> Value {
        let meta = one.meta();
        let mut json = Map::new();
        json.insert("name".to_owned(), json!(meta.name));
        json.insert("id".to_owned(), json!(self.id_of(one)));
        json.insert("type".to_owned(), json!(R::KIND.type_name()));
        json.insert("location".to_owned(), json!(meta.location));
        // A resource without tags has no such member.
        if !meta.tags.is_empty() {
            json.insert("tags".to_owned(), Value::Object(meta.tags.clone()));
        }
        if !meta.zones.is_empty() {
            json.insert("zones".to_owned(), json!(meta.zones));
        }
        one.describe(self, &mut json);
        Value::Object(json)
    }

    fn listed_json<R: Resource>(&self, one: &R) -> Value {
        let mut json = self.resource_json(one);
        if self.knobs.upper_case_groups {
            let group = &one.meta().group;
            let id = self.id_of(one);
            let (old, new) =
                (format!("/resourceGroups/{group}/"), format!("/resourceGroups/{}/", group.to_ascii_uppercase()));
            json["id"] = json!(id.replacen(&old, &new, 1));
        }
        json
    }
}

fn skip_token(call: &Call) -> ApiResult<u64> {
    let Some(token) = call.parameter("$skiptoken") else { return Ok(0) };
    token.parse().map_err(|_| ApiError::new("InvalidSkipToken", format!("The skip token '{token}' is invalid.")))
}
