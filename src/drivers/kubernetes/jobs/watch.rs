//! Opening of the watches: a list of all objects unless an earlier watch can be continued, then one watch per source.

use std::sync::Arc;

use super::listing::{ListNodes, Purpose};
use crate::kubernetes::calls::{self, Call, Reply, Source};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};

pub struct WatchNodes {
    context: Arc<ProviderContext>,
    /// The number of open watches, and the last refusal of one.
    open: usize,
    refusal: Option<CloudError>,
    step: Step,
}

enum Step {
    Begin,
    Listing(Box<ListNodes>),
    /// Opens the watch on the source of this index.
    Opening(usize),
    Finished,
}

impl WatchNodes {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self { context, open: 0, refusal: None, step: Step::Begin }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => match self.context.settings.sources.iter().all(Source::has_versions) {
                true => self.open(0),
                false => self.list(),
            },
            (Step::Listing(mut lists), input) => match lists.step(input) {
                Next::Done(_) => self.open(0),
                next => {
                    self.step = Step::Listing(lists);
                    next
                }
            },
            (Step::Opening(index), Input::Reply(Ok(Reply::Watching))) => {
                self.open += 1;
                self.open(index + 1)
            }
            // The version is too old.
            (Step::Opening(_), Input::Reply(Ok(Reply::Rejected(Rejection::Gone)))) => {
                self.context.objects().forget_versions();
                self.list()
            }
            // One of several projects is not ours.
            (Step::Opening(index), Input::Reply(Err(error @ CloudError::Denied(_))))
                if self.context.settings.sources.get(index).is_some_and(Source::is_one_of_several) =>
            {
                self.refusal = Some(error);
                self.open(index + 1)
            }
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (_, input) => Next::Failed(failed(format!("unexpected {input:?} while a watch is opened"))),
        }
    }

    fn open(&mut self, index: usize) -> Next<Call> {
        let context = self.context.clone();
        let Some(source) = context.settings.sources.get(index) else {
            if let (0, Some(refusal)) = (self.open, self.refusal.take()) {
                return Next::Failed(refusal);
            }
            let inventory = self.context.objects().inventory(&self.context);
            return Next::Done(Outcome::Listed(Arc::new(inventory)));
        };
        let version = self.context.objects().version(source).map(str::to_owned);
        match version {
            Some(version) => {
                self.step = Step::Opening(index);
                Next::Call(calls::watch(source, &self.context.selector(), &version, self.open == 0))
            }
            None => self.list(),
        }
    }

    fn list(&mut self) -> Next<Call> {
        let mut lists = ListNodes::new(self.context.clone(), Purpose::Watch);
        (self.open, self.refusal) = (0, None);
        let next = lists.step(Input::Start);
        self.step = Step::Listing(Box::new(lists));
        next
    }
}
