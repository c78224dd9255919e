//! An operation of a zone and its JSON.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::faults::codes;
use crate::state::places::BASE;
use crate::state::work::Place;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationStatus {
    Pending,
    Running,
    Done,
}

impl OperationStatus {
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "PENDING",
            Self::Running => "RUNNING",
            Self::Done => "DONE",
        }
    }

    fn progress(self) -> u8 {
        match self {
            Self::Pending => 0,
            Self::Running => 50,
            Self::Done => 100,
        }
    }
}

/// The error of an operation.
#[derive(Clone, Debug)]
pub struct OperationError {
    pub code: String,
    pub message: String,
    /// `errorDetails`, if the code has any.
    pub details: Option<Value>,
}

/// A change of an instance that takes time.
pub struct Operation {
    pub name: String,
    pub id: u64,
    /// `insert`, `delete`, or an event such as `compute.instances.preempted`.
    pub kind: &'static str,
    pub user: String,
    /// Name and id of the instance.
    pub target: String,
    pub target_id: u64,
    pub status: OperationStatus,
    pub inserted: String,
    pub started: Option<String>,
    pub ended: Option<String>,
    pub error: Option<OperationError>,
    /// The error with which the operation will end.
    pub fate: Option<OperationError>,
    /// Notified when the operation is DONE.
    pub done: Rc<Notify>,
    /// The JSON, which is kept until a change: filters of lists need that of all operations.
    pub cache: OnceCell<Value>,
}

impl Operation {
    /// The name of a new operation. Names sort by time, because lists of operations are ordered by name.
    pub fn new_name(epoch: Duration, random: u64) -> String {
        let (micros, low) = (epoch.as_micros(), random & 0xffff_ffff);
        format!("operation-{}-{:013x}-{:08x}-{low:08x}", epoch.as_millis(), micros & 0xf_ffff_ffff_ffff, random >> 32)
    }

    pub fn is_done(&self) -> bool {
        self.status == OperationStatus::Done
    }

    pub fn value(&self, place: &Place) -> &Value {
        self.cache.get_or_init(|| self.json(place))
    }

    fn json(&self, place: &Place) -> Value {
        let Place { project, zone } = place;
        let zone_link = format!("{BASE}projects/{project}/zones/{zone}");
        let mut operation = json!({
            "kind": "compute#operation", "id": self.id.to_string(), "name": self.name, "zone": zone_link,
            "operationType": self.kind, "targetLink": format!("{zone_link}/instances/{}", self.target),
            "targetId": self.target_id.to_string(), "status": self.status.name(), "user": self.user,
            "progress": self.status.progress(), "insertTime": self.inserted,
        });
        let times = [("startTime", &self.started), ("endTime", &self.ended)];
        for (name, time) in times.into_iter().filter_map(|(name, time)| Some((name, time.as_ref()?))) {
            operation[name] = json!(time);
        }
        if let Some(error) = &self.error {
            let (status, text) = codes::operation_status(&error.code);
            let mut detail = json!({"code": error.code, "message": error.message});
            if let Some(details) = &error.details {
                detail["errorDetails"] = details.clone();
            }
            operation["error"] = json!({"errors": [detail]});
            operation["httpErrorStatusCode"] = json!(status);
            operation["httpErrorMessage"] = json!(text);
        }
        operation["selfLink"] = json!(format!("{zone_link}/operations/{}", self.name));
        operation
    }
}
