//! The listing of all servers, for machines that wait for theirs.

use std::collections::HashMap;
use std::sync::Arc;

use super::calls::{Call, Reply};
use super::http::failed;
use super::pages::{Pages, Step};
use super::shared::{Gathered, Shared};
use super::wire::Server;
use crate::model::cloud::Outcome;
use crate::policy::machine::{Input, Next};

pub struct ListServers {
    shared: Arc<Shared>,
    pages: Option<Pages<Server>>,
    gathered: Gathered,
}

impl ListServers {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, pages: None, gathered: Gathered::default() }
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
                Ok(Step::Next(mut pages, call)) => {
                    self.gather(pages.drain());
                    self.pages = Some(pages);
                    Next::Call(call)
                }
                Ok(Step::Complete(servers)) => {
                    self.gather(servers);
                    let inventory = self.shared.inventory(std::mem::take(&mut self.gathered));
                    Next::Done(Outcome::Listed(Arc::new(inventory)))
                }
            },
            (input, _) => Next::Failed(failed(format!("{input:?} does not answer a listing"))),
        }
    }

    fn gather(&mut self, servers: Vec<Server>) {
        let stock = self.shared.stock();
        self.gathered.add(servers, &self.shared.view(&stock), &HashMap::new());
    }
}
