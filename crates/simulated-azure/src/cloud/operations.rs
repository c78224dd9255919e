//! Long operations: their effect at the end, their status until then, and the headers that name them.

use std::time::Duration;

use serde_json::{Value, json};

use crate::cloud::cloud::Cloud;
use crate::cloud::table::Table;
use crate::cloud::work::Step;
use crate::faults::values::OperationStyle;
use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::server::target::Kind;

/// Number of operations that are known; earlier ones are forgotten.
const MAX_KNOWN: usize = 100_000;

/// The change at the end of an operation. Texts are keys of resources.
#[derive(Clone, Debug)]
pub enum Effect {
    CreateVm(String),
    DeleteVm(String),
    CreateDisk(String),
    DeleteDisk(String),
    GrantAccess { disk: String, seconds: f64, may_write: bool },
    RevokeAccess(String),
    CreateImage(String),
    DeleteImage(String),
    DeleteNic(String),
    DeleteIp(String),
}

impl Effect {
    fn kind(&self) -> Kind {
        match self {
            Self::CreateVm(_) | Self::DeleteVm(_) => Kind::Vm,
            Self::CreateDisk(_) | Self::DeleteDisk(_) | Self::GrantAccess { .. } | Self::RevokeAccess(_) => Kind::Disk,
            Self::CreateImage(_) | Self::DeleteImage(_) => Kind::Image,
            Self::DeleteNic(_) => Kind::Nic,
            Self::DeleteIp(_) => Kind::Ip,
        }
    }

    fn is_creation(&self) -> bool {
        matches!(self, Self::CreateVm(_) | Self::CreateDisk(_) | Self::CreateImage(_))
    }
}

#[derive(Clone, Debug)]
pub enum Outcome {
    Running,
    Succeeded,
    Failed(ApiError),
    Canceled(ApiError),
}

pub struct Operation {
    pub id: String,
    pub location: String,
    pub effect: Effect,
    started: Duration,
    due: Duration,
    pub ended: Option<Duration>,
    /// The error that it will end with.
    pub failure: Option<ApiError>,
    pub outcome: Outcome,
    /// The result of an action on a resource.
    pub output: Value,
}

#[derive(Default)]
pub struct Operations {
    pub table: Table<Operation>,
    order: std::collections::VecDeque<String>,
}

impl Operations {
    fn insert(&mut self, operation: Operation) {
        self.order.push_back(operation.id.clone());
        self.table.insert(operation.id.clone(), operation);
        if self.order.len() > MAX_KNOWN
            && let Some(oldest) = self.order.pop_front()
        {
            self.table.remove(&oldest);
        }
    }

    pub fn is_running(&self, id: &str) -> bool {
        self.table.get(id).is_some_and(|operation| matches!(operation.outcome, Outcome::Running))
    }
}

impl Cloud {
    /// Starts an operation that ends after this time, with the error of a fault if one hit the call.
    pub fn start_operation(&mut self, effect: Effect, location: &str, seconds: f64) -> String {
        let id = self.new_guid();
        let operation = Operation {
            id: id.clone(),
            location: location.to_owned(),
            effect,
            started: self.now,
            due: self.now + Duration::from_secs_f64(seconds),
            ended: None,
            failure: self.planned_failure.take(),
            outcome: Outcome::Running,
            output: Value::Null,
        };
        self.operations.insert(operation);
        self.after(seconds, Step::Finish(id.clone()));
        id
    }

    /// Starts an operation of the usual time.
    pub fn start_usual_operation(&mut self, effect: Effect, location: &str) -> String {
        let random = self.random();
        let seconds = self.knobs.operation_s.at(random);
        self.start_operation(effect, location, seconds)
    }

    /// Ends a running operation before its time.
    pub fn cancel_operation(&mut self, id: &str) {
        let now = self.now;
        let Some(operation) = self.operations.table.get_mut(id) else { return };
        if matches!(operation.outcome, Outcome::Running) {
            let text = "The operation has been preempted by a more recent operation.";
            operation.outcome = Outcome::Canceled(ApiError::new("OperationPreempted", text));
            operation.ended = Some(now);
        }
    }

    /// Adds the headers of an operation to the response of the call that started it.
    pub fn with_operation(&self, response: Response, call: &Call, id: &str) -> Response {
        let operation = self.operations.table.get(id).expect("the operation was started");
        let kind = operation.effect.kind();
        let folder = if kind == Kind::Disk { "DiskOperations" } else { "operations" };
        let (subscription, location) = (&self.options.subscription, &operation.location);
        let provider = kind.provider();
        let url = format!(
            "{}/subscriptions/{subscription}/providers/{provider}/locations/{location}/{folder}/{id}?",
            self.base
        );
        let (version, style) = (call.version(), self.knobs.operation_style);
        let has_location = match style {
            OperationStyle::Async => false,
            OperationStyle::Location => true,
            OperationStyle::Both => !operation.effect.is_creation(),
        };
        let mut response = response;
        if style != OperationStyle::Location {
            response = response.with("Azure-AsyncOperation", format!("{url}api-version={version}"));
        }
        if has_location {
            response = response.with("Location", format!("{url}monitor=true&api-version={version}"));
        }
        self.with_poll_after(response)
    }

    fn with_poll_after(&self, response: Response) -> Response {
        match self.knobs.poll_after_s {
            0 => response,
            seconds => response.with("Retry-After", seconds.to_string()),
        }
    }

    /// The response to a poll of an operation.
    pub fn operation_response(&self, call: &Call, id: &str) -> ApiResult<Response> {
        let Some(operation) = self.operations.table.get(id) else {
            return Err(ApiError::new("NotFound", format!("The operation '{id}' was not found.")));
        };
        match call.parameter("monitor") {
            Some(_) => self.location_response(call, operation),
            None => Ok(self.status_response(operation)),
        }
    }

    /// The answer to `Azure-AsyncOperation`: always 200, with a status.
    fn status_response(&self, operation: &Operation) -> Response {
        let (status, error) = match &operation.outcome {
            Outcome::Running => (self.running_status(operation), None),
            Outcome::Succeeded => ("Succeeded", None),
            Outcome::Failed(error) => ("Failed", Some(error)),
            Outcome::Canceled(error) => ("Canceled", Some(error)),
        };
        let mut json = json!({"startTime": self.timestamp(operation.started)});
        if let Some(ended) = operation.ended {
            json["endTime"] = json!(self.timestamp(ended));
        }
        json["status"] = json!(status);
        if matches!(operation.outcome, Outcome::Succeeded) {
            let output = self.output(operation);
            if !output.is_null() {
                json["properties"] = json!({"output": output});
            }
        }
        if let Some(error) = error {
            json["error"] = error.json();
        }
        json["name"] = json!(operation.id);
        match operation.ended {
            Some(_) => Response::json(200, &json),
            None => self.with_poll_after(Response::json(200, &json)),
        }
    }

    /// One of the knob's statuses, in the course of the operation's time.
    fn running_status(&self, operation: &Operation) -> &str {
        let statuses = &self.knobs.operation_statuses;
        let total = (operation.due - operation.started).as_secs_f64().max(1e-9);
        let passed = self.now.saturating_sub(operation.started).as_secs_f64() / total;
        let index = (passed * statuses.len() as f64) as usize;
        &statuses[index.min(statuses.len() - 1)]
    }

    /// The answer to `Location`: 202 until the end, then that of the operation itself, without a status.
    fn location_response(&self, call: &Call, operation: &Operation) -> ApiResult<Response> {
        match &operation.outcome {
            Outcome::Running => {
                let response = Response::empty(202);
                let url = format!("{}{}?monitor=true&api-version={}", self.base, call.path, call.version());
                Ok(self.with_poll_after(response.with("Location", url)))
            }
            Outcome::Succeeded => match self.output_or_resource(operation) {
                Value::Null => Ok(Response::empty(204)),
                json => Ok(Response::json(200, &json)),
            },
            Outcome::Failed(error) | Outcome::Canceled(error) => Err(error.clone()),
        }
    }

    /// The result within a status. Azure shows one for disks and images only.
    fn output(&self, operation: &Operation) -> Value {
        match &operation.effect {
            Effect::CreateVm(_) => Value::Null,
            _ => self.output_or_resource(operation),
        }
    }

    fn output_or_resource(&self, operation: &Operation) -> Value {
        match &operation.effect {
            Effect::CreateVm(key) => self.vms.get(key).map(|one| self.resource_json(one)).unwrap_or_default(),
            Effect::CreateDisk(key) => self.disks.get(key).map(|one| self.resource_json(one)).unwrap_or_default(),
            Effect::CreateImage(key) => self.images.get(key).map(|one| self.resource_json(one)).unwrap_or_default(),
            _ => operation.output.clone(),
        }
    }
}
