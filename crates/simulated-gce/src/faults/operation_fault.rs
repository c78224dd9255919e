//! A fault of operations: the call is accepted, and its operation ends with an error.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use simulated_service::faults::{Limits, words};

/// One line of the knob `operation_faults`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OperationFault {
    text: String,
    pub code: String,
    /// The message of the error, if it is not that of the code.
    pub message: Option<String>,
    pub limits: Limits,
    operation: String,
    zone: Option<String>,
    machine_type: Option<String>,
}

impl OperationFault {
    /// Whether the fault applies to this operation, `insert` or `delete`.
    pub fn matches(&self, operation: &str, zone: &str, machine_type: &str) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        self.operation == operation && is(&self.zone, zone) && is(&self.machine_type, machine_type)
    }
}

impl FromStr for OperationFault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A message is the rest of the line, because it contains spaces.
        let (head, message) = match text.split_once(" message=") {
            Some((head, message)) => (head, Some(message.to_owned())),
            None => (text, None),
        };
        let (code, pairs) = words(head)?;
        if !code.starts_with(|first: char| first.is_ascii_uppercase()) {
            return Err(format!("{code} is not the code of an operation's error, such as QUOTA_EXCEEDED"));
        }
        let (text, code, operation) = (text.to_owned(), code.to_owned(), "insert".to_owned());
        let (limits, zone, machine_type) = (Limits::default(), None, None);
        let mut fault = Self { text, code, message, limits, operation, zone, machine_type };
        for (key, value) in pairs {
            match key {
                _ if fault.limits.set(key, value)? => {}
                "operation" if ["insert", "delete"].contains(&value) => value.clone_into(&mut fault.operation),
                "zone" => fault.zone = Some(value.to_owned()),
                "type" => fault.machine_type = Some(value.to_owned()),
                _ => {
                    let expected = "every, after, times, operation=insert, operation=delete, zone, type or message";
                    return Err(format!("unknown key {key}={value}: expected {expected}"));
                }
            }
        }
        Ok(fault)
    }
}

impl TryFrom<String> for OperationFault {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<OperationFault> for String {
    fn from(fault: OperationFault) -> Self {
        fault.text
    }
}
