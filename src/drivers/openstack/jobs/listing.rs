//! The listing of all servers, for machines that wait for theirs; that of their ids alone; and that of images.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::upload;
use crate::openstack::api_types::{Called, Server};
use crate::openstack::calls::{Call, IMAGES, Reply};
use crate::openstack::catalog::shared::{Gathered, Shared};
use crate::openstack::errors::failed;
use crate::openstack::pagination::{Pages, Step};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next};

pub struct ListServers {
    shared: Arc<Shared>,
    pages: Option<Pages<Server>>,
    gathered: Gathered,
}

impl ListServers {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { context, pages: None, gathered: Gathered::default() }
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

/// The ids of all servers. Nova tells them in a fifth of the bytes of the whole listing.
pub struct CallTheRoll {
    pages: Option<Pages<Called>>,
}

impl CallTheRoll {
    pub fn new() -> Self {
        Self { pages: None }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, self.pages.take()) {
            (Input::Start, _) => {
                let (pages, call) = Pages::roll();
                self.pages = Some(pages);
                Next::Call(call)
            }
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (Input::Reply(Ok(Reply::Roll(page))), Some(pages)) => match pages.take_roll(page) {
                Err(error) => Next::Failed(error),
                Ok(Step::Next(pages, call)) => {
                    self.pages = Some(pages);
                    Next::Call(call)
                }
                Ok(Step::Complete(servers)) => {
                    Next::Done(Outcome::Called(servers.into_iter().map(|server| server.id).collect()))
                }
            },
            (input, _) => Next::Failed(failed(format!("{input:?} does not answer a roll call"))),
        }
    }
}

/// All images that the project may see.
pub struct ListImages {
    pages: Option<Pages<Value>>,
}

impl ListImages {
    pub fn new() -> Self {
        Self { pages: None }
    }

    pub fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, self.pages.take()) {
            (Input::Start, _) => {
                let (pages, call) = Pages::begin(IMAGES);
                self.pages = Some(pages);
                Next::Call(call)
            }
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (Input::Reply(Ok(Reply::Json(answer))), Some(pages)) => match pages.take_json(&answer) {
                Err(error) => Next::Failed(error),
                Ok(Step::Next(pages, call)) => {
                    self.pages = Some(pages);
                    Next::Call(call)
                }
                Ok(Step::Complete(images)) => {
                    Next::Done(Outcome::Images(images.iter().filter_map(upload::stored_image).collect()))
                }
            },
            (input, _) => Next::Failed(failed(format!("{input:?} does not answer a listing of images"))),
        }
    }
}
