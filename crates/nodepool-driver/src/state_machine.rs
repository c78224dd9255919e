//! State machine of a job: receives the result of its last call and names the next one.

use std::fmt;

use crate::error::CloudError;
use crate::instance::Inventory;
use crate::job::Outcome;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// One job in progress. Pure: it performs no I/O and only names the next API call.
pub trait StateMachine {
    type Call;
    type Reply;

    fn step(&mut self, input: Input<'_, Self::Reply>) -> Next<Self::Call>;
    /// Set as soon as an instance may exist in the cloud, so that it is recorded before the machine can fail. Set to
    /// `None` again if there is none, or another owner has it: then it is not deleted with its node. An id that is only
    /// a name, which others may use, is set once the instance is known to be ours.
    fn external_id(&self) -> Option<&ExternalId> {
        None
    }
    /// Current step of the machine, in a few words, for dumps and logs.
    fn label(&self) -> &'static str;
    /// The obstacle that holds the machine up, in the cloud's own words, if the cloud has told.
    fn obstacle(&self) -> Option<String> {
        None
    }
}

/// Input of a machine. The first one is `Start`; each later one answers the previous `Next`.
#[derive(Debug)]
pub enum Input<'a, R> {
    Start,
    Reply(Result<R, CloudError>),
    /// The inventory that followed `Next::Observe`.
    Observed(&'a Inventory),
}

/// The next action of a machine.
#[derive(Debug, PartialEq)]
pub enum Next<C> {
    Call(C),
    /// Continue with the next inventory; all waiting machines share one listing.
    Observe,
    Done(Outcome),
    Failed(CloudError),
}

/// Group of calls that compete with each other. Lanes are served in turn, so that listing cannot starve deleting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Calls that change something, or are urgent.
    Change,
    Read,
    /// Long transfers: spaced like all calls, but not counted as in flight.
    Bulk,
}

/// Rate limits of a provider.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimits {
    pub spacing: Spacing,
    pub in_flight: InFlightLimit,
    /// Delay from the first machine that waits for an inventory to the start of its listing. Machines that begin to
    /// wait during the delay share the listing.
    pub listing_delay: Seconds,
    /// Interval of refreshes; `None` if nothing changes by itself.
    pub refresh: Option<Seconds>,
}

/// Minimum intervals between the starts of two calls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Spacing {
    /// For all calls together.
    Shared(Seconds),
    /// For mutating calls and reads apart; bulk transfers are not spaced.
    Apart { changes: Seconds, reads: Seconds },
}

impl Spacing {
    pub const NONE: Spacing = Spacing::Shared(Seconds::ZERO);
}

/// Maximum age of limits and of their usage by others; the same as in Nodepool 11.
pub const REFRESH_INTERVAL: Seconds = Seconds(300.0);

/// Maximum number of calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightLimit {
    /// Defined by the driver, e.g. 1 for a client that is not safe to use concurrently.
    Fixed(usize),
    /// The operator may configure it.
    Configurable,
}

/// State machine of a job that needs a single call, or whose result is known without a call.
pub struct OneCall<C, R> {
    state: OneCallState<C, R>,
    label: &'static str,
}

type Finish<R> = Box<dyn FnOnce(R) -> Result<Outcome, CloudError> + Send>;

enum OneCallState<C, R> {
    Ready(C, Finish<R>),
    Calling(Finish<R>),
    Immediate(Result<Outcome, CloudError>),
    Finished,
}

impl<C, R> OneCall<C, R> {
    pub fn new(
        label: &'static str,
        call: C,
        finish: impl FnOnce(R) -> Result<Outcome, CloudError> + Send + 'static,
    ) -> Self {
        Self { state: OneCallState::Ready(call, Box::new(finish)), label }
    }

    /// A job whose result is known without a call.
    pub fn finished(result: Result<Outcome, CloudError>) -> Self {
        Self { state: OneCallState::Immediate(result), label: "ended" }
    }

    /// A job for something that a cloud does not have.
    pub fn unsupported() -> Self {
        Self::finished(Err(CloudError::unsupported()))
    }
}

impl<C, R> StateMachine for OneCall<C, R> {
    type Call = C;
    type Reply = R;

    fn step(&mut self, input: Input<'_, R>) -> Next<C> {
        let state = std::mem::replace(&mut self.state, OneCallState::Finished);
        let result = match (state, input) {
            (OneCallState::Ready(call, finish), Input::Start) => {
                self.state = OneCallState::Calling(finish);
                return Next::Call(call);
            }
            (OneCallState::Calling(finish), Input::Reply(reply)) => reply.and_then(finish),
            (OneCallState::Immediate(result), Input::Start) => result,
            _ => unreachable!("OneCall receives `Start` and then at most one reply"),
        };
        match result {
            Ok(outcome) => Next::Done(outcome),
            Err(error) => Next::Failed(error),
        }
    }

    fn label(&self) -> &'static str {
        self.label
    }
}

impl<C, R> fmt::Debug for OneCall<C, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OneCall").field("label", &self.label).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_call_calls_once_and_ends_with_its_outcome() {
        let mut machine = OneCall::new("deleting", "DELETE", |code: u16| match code {
            204 => Ok(Outcome::Deleted),
            _ => Err(CloudError::not_found("gone")),
        });
        assert_eq!(machine.step(Input::Start), Next::Call("DELETE"));
        assert_eq!(machine.label(), "deleting");
        assert_eq!(machine.step(Input::Reply(Ok(204))), Next::Done(Outcome::Deleted));
    }

    #[test]
    fn a_failed_call_fails_the_job() {
        let mut machine = OneCall::new("deleting", "DELETE", |_: u16| Ok(Outcome::Deleted));
        machine.step(Input::Start);
        assert_eq!(machine.step(Input::Reply(Err(CloudError::Deadline))), Next::Failed(CloudError::Deadline));
    }

    #[test]
    fn an_immediate_result_needs_no_call() {
        let mut machine: OneCall<&str, u16> = OneCall::finished(Err(CloudError::not_found("gone")));
        assert_eq!(machine.step(Input::Start), Next::Failed(CloudError::not_found("gone")));
    }
}
