//! Opening of the watches: a list of all objects unless an earlier watch can be continued, and one watch per source.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::listing::{ListNodes, Purpose};
use crate::kubernetes::calls::{self, Call, Reply, Source};
use crate::kubernetes::context::ProviderContext;
use crate::kubernetes::errors::{Rejection, failed};
use nodepool_driver::error::CloudError;
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};

pub struct WatchNodes {
    context: Arc<ProviderContext>,
    /// The watch begins with all objects and cannot continue a list, so the list follows it: what ends in between would
    /// be missed otherwise.
    lists_last: bool,
    /// The number of open watches, the projects that may not be watched, and the last refusal.
    open: usize,
    unwatched: BTreeSet<String>,
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

impl StateMachine for WatchNodes {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (std::mem::replace(&mut self.step, Step::Finished), input) {
            (Step::Begin, Input::Start) => self.open(0),
            (Step::Listing(mut lists), input) => match lists.step(input) {
                Next::Done(_) if self.lists_last => self.finish(),
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
            (Step::Opening(index), Input::Reply(Err(error @ CloudError::Denied(_)))) => self.on_refused(index, error),
            (_, Input::Reply(Err(error))) => Next::Failed(error),
            (_, input) => Next::Failed(failed(format!("unexpected {input:?} while a watch is opened"))),
        }
    }

    fn label(&self) -> &'static str {
        "opening the watches"
    }
}

impl WatchNodes {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        let lists_last = !context.settings.sources.iter().all(Source::has_versions);
        Self { context, lists_last, open: 0, unwatched: BTreeSet::new(), refusal: None, step: Step::Begin }
    }

    /// One of several projects may not be ours, or may not be watched. Its pods are looked at one by one.
    fn on_refused(&mut self, index: usize, error: CloudError) -> Next<Call> {
        let Some(source @ Source::PodsOf(project)) = self.context.settings.sources.get(index) else {
            return Next::Failed(error);
        };
        self.unwatched.insert(project.clone());
        self.context.objects().forget(source);
        self.refusal = Some(error);
        self.open(index + 1)
    }

    fn open(&mut self, index: usize) -> Next<Call> {
        let context = self.context.clone();
        let Some(source) = context.settings.sources.get(index) else {
            return match (self.open, self.refusal.take()) {
                (0, Some(refusal)) => Next::Failed(refusal),
                _ if self.lists_last => self.list(),
                _ => self.finish(),
            };
        };
        let version = self.context.objects().version(source).map(str::to_owned);
        let version = if source.has_versions() { version } else { Some("0".to_owned()) };
        match version {
            Some(version) => {
                self.step = Step::Opening(index);
                Next::Call(calls::watch(source, &self.context.selector(), &version, self.open == 0))
            }
            None => self.list(),
        }
    }

    fn list(&mut self) -> Next<Call> {
        if !self.lists_last {
            (self.open, self.refusal) = (0, None);
        }
        let mut lists = ListNodes::new(self.context.clone(), Purpose::Watch);
        let next = lists.step(Input::Start);
        self.step = Step::Listing(Box::new(lists));
        next
    }

    fn finish(&mut self) -> Next<Call> {
        self.context.set_unwatched(std::mem::take(&mut self.unwatched));
        let inventory = self.context.objects().inventory(&self.context);
        Next::Done(Outcome::Listed(Arc::new(inventory)))
    }
}
