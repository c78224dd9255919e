//! How a driver's multi-step work is written down: a machine is told what came of its last call and names the next one.

use std::fmt;

use crate::error::CloudError;
use crate::instance::Inventory;
use crate::job::Outcome;
use nodepool_model::records::ids::ExternalId;
use nodepool_model::records::time::Seconds;

/// One job on its way. Pure: it does no I/O, it only says which API call comes next.
pub trait StateMachine {
    type Call;
    type Reply;

    fn step(&mut self, input: Input<'_, Self::Reply>) -> Next<Self::Call>;
    /// Known as soon as anything may exist in the cloud, so that it is recorded before the machine can go wrong.
    fn external_id(&self) -> Option<&ExternalId>;
    /// What it is waiting for, in a word: for dump and log.
    fn label(&self) -> &'static str;
}

/// What a machine is told. The first input is `Start`; each later one answers what the machine asked for last.
#[derive(Debug)]
pub enum Input<'a, R> {
    Start,
    Reply(Result<R, CloudError>),
    /// The inventory that followed `Next::Observe`.
    Observed(&'a Inventory),
}

/// What a machine wants next.
#[derive(Debug, PartialEq)]
pub enum Next<C> {
    Call(C),
    /// Wake me with the next inventory; all machines that wait share one listing.
    Observe,
    Done(Outcome),
    Failed(CloudError),
}

/// Who a call competes with: lanes are served in turn, so that listing cannot starve deleting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Changes something, or somebody waits for it right now.
    Change,
    Read,
    /// Long transfers: spaced as all calls are, but not counted as in flight.
    Bulk,
}

/// How fast a provider may be called.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimits {
    /// Between the starts of two calls.
    pub spacing: Seconds,
    pub in_flight: InFlightLimit,
    /// Machines that wait for an inventory share one listing, which begins so long after the first of them asked.
    pub listing_delay: Seconds,
    /// From one survey to the next; `None` where nothing changes by itself.
    pub refresh: Option<Seconds>,
}

/// How old limits and what others use of them may become, in Nodepool 11 as well.
pub const REFRESH_INTERVAL: Seconds = Seconds(300.0);

/// How many calls may run at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InFlightLimit {
    /// The driver knows best, e.g. 1 for a client that is not safe to use concurrently.
    Fixed(usize),
    /// The operator may set it.
    Configurable,
}

/// The machine for every job that is a single request, and for jobs whose end needs none.
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

    /// A job whose end is known without asking anybody.
    pub fn finished(result: Result<Outcome, CloudError>) -> Self {
        Self { state: OneCallState::Immediate(result), label: "ended" }
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
            _ => unreachable!("a machine of one call is told `Start` and then at most one reply"),
        };
        match result {
            Ok(outcome) => Next::Done(outcome),
            Err(error) => Next::Failed(error),
        }
    }

    fn external_id(&self) -> Option<&ExternalId> {
        None
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
            _ => Err(CloudError::NotFound),
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
        let mut machine: OneCall<&str, u16> = OneCall::finished(Err(CloudError::NotFound));
        assert_eq!(machine.step(Input::Start), Next::Failed(CloudError::NotFound));
    }
}
