//! A fault of operations: the call is accepted, and its operation ends with an error.

use simulated_service::faults::{Fault, FaultRule, Selection};

/// One line of the knob `operation_faults`.
pub type OperationFault = Fault<OperationRule>;

#[derive(Clone, Debug)]
pub struct OperationRule {
    pub code: String,
    /// The message of the error, if it is not that of the code.
    pub message: Option<String>,
    kind: String,
    instances: Selection,
}

/// An operation that starts.
pub struct StartedOperation<'a> {
    /// `insert` or `delete`.
    pub kind: &'a str,
    pub zone: &'a str,
    pub machine_type: &'a str,
}

impl FaultRule for OperationRule {
    type Subject<'a> = StartedOperation<'a>;
    const KEYS: &'static str = "operation=insert, operation=delete, zone, type or message";

    fn of_kind(code: &str) -> Result<Self, String> {
        if !code.starts_with(|first: char| first.is_ascii_uppercase()) {
            return Err(format!("{code} is not the code of an operation's error, such as QUOTA_EXCEEDED"));
        }
        let (code, kind) = (code.to_owned(), "insert".to_owned());
        Ok(Self { code, message: None, kind, instances: Selection::default() })
    }

    fn set(&mut self, key: &str, value: &str) -> Result<bool, String> {
        match (key, value) {
            ("operation", "insert" | "delete") => value.clone_into(&mut self.kind),
            ("message", _) => self.message = Some(value.to_owned()),
            _ => return self.instances.set(&["zone", "type"], key, value),
        }
        Ok(true)
    }

    fn concerns(&self, operation: &StartedOperation<'_>) -> bool {
        let is = |key: &str, wanted: &str| {
            let value = if key == "zone" { operation.zone } else { operation.machine_type };
            value == wanted
        };
        self.kind == operation.kind && self.instances.matches("", is)
    }
}
