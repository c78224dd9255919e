//! Long operations, in both styles of Azure: with a status, or with 202 until the end.

use reqwest::StatusCode;
use serde_json::Value;

use crate::azure::api::api_types::OperationStatus;
use crate::azure::api::calls::{self, Answer, Call, OperationLink, Reply};
use crate::azure::api::errors::{ApiError, failed};
use nodepool_driver::error::CloudError;
use nodepool_model::records::time::Seconds;

/// Pause between two looks at an operation, unless Azure says another.
const POLL_INTERVAL: Seconds = Seconds(2.0);
const MAX_POLL_INTERVAL: f64 = 60.0;
/// An operation that takes longer has failed.
const MAX_POLLS: u32 = 900;
/// Looks in a row that may fail.
const MAX_FAILURES: u32 = 5;

/// State of an operation.
#[derive(Debug)]
pub enum State {
    Running,
    /// With its output, or with the resource.
    Succeeded(Value),
    Failed(ApiError),
}

/// Reads the answer to a look at an operation.
pub fn state(link: &OperationLink, reply: Reply) -> Result<State, CloudError> {
    let answer = match (link, reply) {
        (_, Reply::Answer(answer)) => answer,
        // The operation of the style `Location` answers with its error.
        (OperationLink::Location(_), Reply::Refused(error)) if !error.is_refused_look() => {
            return Ok(State::Failed(error));
        }
        (_, reply) => return Err(reply.answer().err().unwrap_or_else(|| failed("no state of an operation"))),
    };
    match link {
        OperationLink::Location(_) if answer.status == StatusCode::ACCEPTED => Ok(State::Running),
        OperationLink::Location(_) => Ok(State::Succeeded(answer.value())),
        OperationLink::Status(_) => {
            let status: OperationStatus = answer.read()?;
            match status.status.as_str() {
                "Succeeded" => Ok(State::Succeeded(status.properties["output"].clone())),
                "Failed" | "Canceled" => {
                    let error = status.error.unwrap_or_default();
                    Ok(State::Failed(ApiError::of(StatusCode::CONFLICT, error)))
                }
                _ => Ok(State::Running),
            }
        }
    }
}

/// The wait for the end of an operation.
#[derive(Debug)]
pub struct Await {
    link: OperationLink,
    polls: u32,
    failures: u32,
}

/// The next action of a wait.
#[derive(Debug)]
pub enum Awaited {
    Poll(Call),
    Ended(Result<Value, CloudError>),
}

impl Await {
    /// Begins with the answer that started the operation. Some calls end at once.
    pub fn begin(answer: Answer) -> (Option<Self>, Awaited) {
        match answer.operation {
            Some(link) if answer.status != StatusCode::NO_CONTENT => {
                let wait = Self { link, polls: 0, failures: 0 };
                let poll = wait.poll(answer.retry_after);
                (Some(wait), poll)
            }
            _ => (None, Awaited::Ended(Ok(answer.value()))),
        }
    }

    fn poll(&self, pause: Option<Seconds>) -> Awaited {
        let pause = Seconds(pause.unwrap_or(POLL_INTERVAL).0.min(MAX_POLL_INTERVAL));
        Awaited::Poll(calls::operation(&self.link).after(pause))
    }

    pub fn step(&mut self, reply: Result<Reply, CloudError>) -> Awaited {
        let pause = if let Ok(Reply::Answer(answer)) = &reply { answer.retry_after } else { None };
        let state = match reply.and_then(|reply| state(&self.link, reply)) {
            // A look that fails says nothing about the operation.
            Err(_) if self.failures < MAX_FAILURES => {
                self.failures += 1;
                return self.poll(None);
            }
            state => state,
        };
        self.failures = 0;
        match state {
            Ok(State::Running) if self.polls >= MAX_POLLS => Awaited::Ended(Err(failed("the operation does not end"))),
            Ok(State::Running) => {
                self.polls += 1;
                self.poll(pause)
            }
            Ok(State::Succeeded(output)) => Awaited::Ended(Ok(output)),
            Ok(State::Failed(error)) => Awaited::Ended(Err(error.into_error())),
            Err(error) => Awaited::Ended(Err(error)),
        }
    }
}
