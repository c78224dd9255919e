//! Opening of the watches: a list of all objects unless an earlier watch can be continued, then one watch per kind.

use std::sync::Arc;

use super::listing::{ListNodes, Purpose};
use crate::kubernetes::calls::{self, Call, Kind, Reply};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};

pub struct WatchNodes {
    context: Arc<ProviderContext>,
    step: Step,
}

enum Step {
    Begin,
    Listing(Box<ListNodes>),
    Opening(Kind),
    Finished,
}

impl WatchNodes {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self { context, step: Step::Begin }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.open(Kind::Namespaces),
            (Step::Listing(mut lists), input) => match lists.step(input) {
                Next::Done(_) => self.open(Kind::Namespaces),
                next => {
                    self.step = Step::Listing(lists);
                    next
                }
            },
            (Step::Opening(Kind::Namespaces), Input::Reply(Ok(Reply::Watching)))
                if self.context.settings.has_pods() =>
            {
                self.open(Kind::Pods)
            }
            (Step::Opening(_), Input::Reply(Ok(Reply::Watching))) => {
                let inventory = self.context.objects().inventory(&self.context);
                Next::Done(Outcome::Listed(Arc::new(inventory)))
            }
            // The version is too old.
            (Step::Opening(_), Input::Reply(Ok(Reply::Rejected(Rejection::Gone)))) => {
                self.context.objects().forget_versions();
                self.list()
            }
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (_, input) => Next::Failed(failed(format!("unexpected {input:?} while a watch is opened"))),
        }
    }

    fn open(&mut self, kind: Kind) -> Next<Call> {
        let version = self.context.objects().version(kind).map(str::to_owned);
        match version {
            Some(version) => {
                self.step = Step::Opening(kind);
                Next::Call(calls::watch(kind, &self.context.selector(), &version))
            }
            None => self.list(),
        }
    }

    fn list(&mut self) -> Next<Call> {
        let mut lists = ListNodes::new(self.context.clone(), Purpose::Watch);
        let next = lists.step(Input::Start);
        self.step = Step::Listing(Box::new(lists));
        next
    }
}
