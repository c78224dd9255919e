//! Methods of instances, except the insert.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::api::lists::{List, ListQuery};
use crate::faults::codes;
use crate::faults::operation_fault::StartedOperation;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::instance::{Instance, Status};
use crate::state::operation::OperationError;
use crate::state::places::BASE;
use crate::state::project::Compute;
use crate::state::work::Step;

impl Compute<'_> {
    pub fn list_instances(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        let query = ListQuery::new(call, self.world.knobs.page)?;
        let page = query.page(&self.project.zones[zone].instances, |instance| Cow::Borrowed(instance.value()));
        let items = page.rows.iter().map(|(_, instance)| instance.text().to_owned()).collect();
        let list = List { kind: "compute#instanceList", path: self.path(&format!("zones/{zone}/instances")) };
        Ok(list.respond(items, page.next.as_deref()))
    }

    fn found(&self, zone: &'static str, name: &str) -> ApiResult<&Instance> {
        let instance = self.project.zones[zone].instances.get(name);
        instance.ok_or_else(|| ApiError::not_found(&self.path(&format!("zones/{zone}/instances/{name}"))))
    }

    pub fn get_instance(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        Ok(Response::json_text(200, self.found(zone, &call.name)?.text().to_owned()))
    }

    pub fn delete_instance(&mut self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        if let Some(response) = self.repeated(call, zone, &call.name)? {
            return Ok(response);
        }
        let instance = self.found(zone, &call.name)?;
        let (id, machine_type) = (instance.id, instance.machine_type.clone());
        if instance.delete.is_some() {
            let path = self.path(&format!("zones/{zone}/instances/{}", call.name));
            return Err(ApiError::new("resourceNotReady", format!("The resource '{path}' is not ready")));
        }
        let operation = self.add_operation(zone, "delete", (&call.name, id));
        let fate = self.operation_fault("delete", zone, &machine_type, &call.name);
        match fate {
            Some(fate) => self.doom(zone, &operation, fate),
            None => self.begin_delete(zone, &call.name, id),
        }
        let instance = self.project.zone(zone).instances.get_mut(&call.name).expect("the instance was found above");
        instance.delete = Some(operation.clone());
        Ok(self.accepted(call, zone, &call.name, operation))
    }

    /// Decides that an operation fails, after the knob's time.
    pub fn doom(&mut self, zone: &str, operation: &str, fate: OperationError) {
        let running = self.project.zone(zone).operations.get_mut(operation).expect("the operation was just added");
        running.fate = Some(fate);
        let time = self.world.duration(self.world.knobs.fail_s);
        self.world.schedule(time, &self.place(zone), Step::FailOperation(operation.to_owned()));
    }

    /// The fault that an operation of this kind meets.
    pub fn operation_fault(
        &mut self,
        kind: &str,
        zone: &str,
        machine_type: &str,
        name: &str,
    ) -> Option<OperationError> {
        let (faults, hits) = (&self.world.knobs.operation_faults, &mut self.world.stats.operation_faults_struck);
        let fault = *hits.strike(faults, &StartedOperation { kind, zone, machine_type }).first()?;
        let (zone_path, target) =
            (self.path(&format!("zones/{zone}")), self.path(&format!("zones/{zone}/instances/{name}")));
        let usual = || codes::operation_message(&fault.code, &zone_path, &target);
        let message = fault.message.clone().unwrap_or_else(usual);
        Some(OperationError { code: fault.code.clone(), message, details: None })
    }

    pub fn serial_port(&self, call: &Call, zone: &'static str) -> ApiResult<Response> {
        let instance = self.found(zone, &call.name)?;
        let port = call.parameter("port").unwrap_or("1");
        if !["1", "2", "3", "4"].contains(&port) {
            return Err(ApiError::invalid("port", port, "Must be between 1 and 4, inclusive."));
        }
        let text = match (instance.status(), port) {
            (Status::Provisioning, _) => {
                let path = self.path(&format!("zones/{zone}/instances/{}", call.name));
                return Err(ApiError::new("resourceNotReady", format!("The resource '{path}' is not ready")));
            }
            (Status::Staging, _) | (_, "2" | "3" | "4") => String::new(),
            _ => format!("SeaBIOS (version 1.8.2-google)\r\nBooting {0}\r\n{0} login: ", instance.name),
        };
        let start = call.parameter("start").unwrap_or("0");
        let from: usize = start.parse().map_err(|_| ApiError::invalid("start", start, "Must be a number."))?;
        let from = from.min(text.len());
        let link = format!("{BASE}{}/serialPort", self.path(&format!("zones/{zone}/instances/{}", call.name)));
        Ok(Response::json(
            200,
            &json!({
                "kind": "compute#serialPortOutput", "selfLink": link, "contents": text.get(from..).unwrap_or_default(),
                "start": from.to_string(), "next": text.len().to_string(),
            }),
        ))
    }

    /// The instances of all zones. Each page has all scopes; those without an instance on it have a warning.
    pub fn aggregated_list(&self, call: &Call) -> ApiResult<Response> {
        let query = ListQuery::new(call, self.world.knobs.page)?;
        let mut all: BTreeMap<String, &Instance> = BTreeMap::new();
        for (zone, content) in &self.project.zones {
            all.extend(content.instances.iter().map(|(name, instance)| (format!("{zone}/{name}"), instance)));
        }
        let page = query.scan(&all, |instance| Cow::Borrowed(instance.value()));
        let mut scopes: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        for (key, instance) in &page.rows {
            let zone = key.split('/').next().unwrap_or_default();
            scopes.entry(format!("zones/{zone}")).or_default().push(instance.value().clone());
        }
        let mut items = serde_json::Map::new();
        for zone in self.project.zones.keys() {
            let scope = format!("zones/{zone}");
            let content = match scopes.remove(&scope) {
                Some(instances) => json!({"instances": instances}),
                None => json!({"warning": no_results(&scope)}),
            };
            items.insert(scope, content);
        }
        let path = self.path("aggregated/instances");
        let link = format!("{BASE}{path}");
        let mut list = json!({"kind": "compute#instanceAggregatedList", "id": path, "items": items, "selfLink": link});
        if let Some(next) = page.next {
            list["nextPageToken"] = json!(next);
        }
        Ok(Response::json(200, &list))
    }
}

fn no_results(scope: &str) -> Value {
    json!({
        "code": "NO_RESULTS_ON_PAGE", "message": format!("There are no results for scope '{scope}' on this page."),
        "data": [{"key": "scope", "value": scope}],
    })
}
