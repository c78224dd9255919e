//! The listing of all servers, for machines that wait for theirs.

use std::collections::HashMap;
use std::sync::Arc;

use super::calls::{Call, Reply};
use super::http::failed;
use super::pages::{Pages, Step};
use super::shared::Shared;
use super::wire::Server;
use crate::model::cloud::Outcome;
use crate::policy::machine::{Input, Next};

pub struct ListServers {
    shared: Arc<Shared>,
    pages: Option<Pages<Server>>,
}

impl ListServers {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, pages: None }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, self.pages.take()) {
            (Input::Start, _) => {
                let (pages, call) = Pages::servers();
                self.pages = Some(pages);
                Next::Call(call)
            }
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (Input::Reply(Ok(Reply::Servers(page))), Some(pages)) => match pages.take_servers(page) {
                Err(error) => Next::Failed(error),
                Ok(Step::Next(pages, call)) => {
                    self.pages = Some(pages);
                    Next::Call(call)
                }
                Ok(Step::Complete(servers)) => {
                    let inventory = self.shared.inventory(&servers, &self.shared.stock(), &HashMap::new());
                    Next::Done(Outcome::Listed(Arc::new(inventory)))
                }
            },
            (input, _) => Next::Failed(failed(format!("{input:?} does not answer a listing"))),
        }
    }
}
