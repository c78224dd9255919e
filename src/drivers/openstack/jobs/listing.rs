//! Listings of servers (shared by all state machines that observe a server), of server ids, and of images.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::Value;

use super::upload;
use crate::openstack::api_types::{IdOnly, Server};
use crate::openstack::calls::{Call, IMAGES, Reply};
use crate::openstack::catalog::shared::{ListingAccumulator, ProviderContext};
use crate::openstack::errors::failed;
use crate::openstack::pagination::{PageResult, Pages};
use nodepool_driver::job::Outcome;
use nodepool_driver::state_machine::{Input, Next, StateMachine};

pub struct ListServers {
    context: Arc<ProviderContext>,
    pages: Option<Pages<Server>>,
    accumulator: ListingAccumulator,
}

impl StateMachine for ListServers {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, self.pages.take()) {
            (Input::Start, _) => {
                let (pages, call) = Pages::servers();
                self.pages = Some(pages);
                Next::Call(call)
            }
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (Input::Reply(Ok(Reply::Servers(page))), Some(pages)) => match pages.add_servers_page(page) {
                Err(error) => Next::Failed(error),
                Ok(PageResult::Next(mut pages, call)) => {
                    self.accumulate(pages.drain());
                    self.pages = Some(pages);
                    Next::Call(call)
                }
                Ok(PageResult::Complete(servers)) => {
                    self.accumulate(servers);
                    let inventory = self.context.inventory(std::mem::take(&mut self.accumulator));
                    Next::Done(Outcome::Listed(Arc::new(inventory)))
                }
            },
            (input, _) => Next::Failed(failed(format!("unexpected {input:?} while listing servers"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing servers"
    }
}

impl ListServers {
    pub fn new(context: Arc<ProviderContext>) -> Self {
        Self { context, pages: None, accumulator: ListingAccumulator::default() }
    }

    fn accumulate(&mut self, servers: Vec<Server>) {
        let catalog = self.context.catalog();
        self.accumulator.add(servers, &self.context.instance_mapper(&catalog), &HashMap::new());
    }
}

/// Lists the ids of all servers, which takes a fifth of the bytes of the detailed listing.
pub struct ListServerIds {
    pages: Option<Pages<IdOnly>>,
}

impl StateMachine for ListServerIds {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, self.pages.take()) {
            (Input::Start, _) => {
                let (pages, call) = Pages::server_ids();
                self.pages = Some(pages);
                Next::Call(call)
            }
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (Input::Reply(Ok(Reply::ServerIds(page))), Some(pages)) => match pages.add_server_ids_page(page) {
                Err(error) => Next::Failed(error),
                Ok(PageResult::Next(pages, call)) => {
                    self.pages = Some(pages);
                    Next::Call(call)
                }
                Ok(PageResult::Complete(servers)) => {
                    Next::Done(Outcome::ServerIds(servers.into_iter().map(|server| server.id).collect()))
                }
            },
            (input, _) => Next::Failed(failed(format!("unexpected {input:?} while listing server ids"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing server ids"
    }
}

impl ListServerIds {
    pub fn new() -> Self {
        Self { pages: None }
    }
}

/// Lists all images that are visible to the project.
pub struct ListImages {
    pages: Option<Pages<Value>>,
}

impl StateMachine for ListImages {
    type Call = Call;
    type Reply = Reply;

    fn step(&mut self, input: Input<'_, Reply>) -> Next<Call> {
        match (input, self.pages.take()) {
            (Input::Start, _) => {
                let (pages, call) = Pages::begin(IMAGES);
                self.pages = Some(pages);
                Next::Call(call)
            }
            (Input::Reply(Err(error)), _) => Next::Failed(error),
            (Input::Reply(Ok(Reply::Json(answer))), Some(pages)) => match pages.add_json_page(&answer) {
                Err(error) => Next::Failed(error),
                Ok(PageResult::Next(pages, call)) => {
                    self.pages = Some(pages);
                    Next::Call(call)
                }
                Ok(PageResult::Complete(images)) => {
                    Next::Done(Outcome::Images(images.iter().filter_map(upload::stored_image).collect()))
                }
            },
            (input, _) => Next::Failed(failed(format!("unexpected {input:?} while listing images"))),
        }
    }

    fn label(&self) -> &'static str {
        "listing images"
    }
}

impl ListImages {
    pub fn new() -> Self {
        Self { pages: None }
    }
}
