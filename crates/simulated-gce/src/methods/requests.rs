//! Ids of requests: a repeated call gets the operation of the first one.

use uuid::Uuid;

use crate::server::call::Call;
use crate::server::response::{ApiError, ApiResult, Response};
use crate::state::project::{Compute, RememberedRequest};
use crate::state::work::Step;

impl Compute<'_> {
    /// The response for a call whose request id is known. `target` is the name of the instance.
    pub fn repeated(&mut self, call: &Call, zone: &'static str, target: &str) -> ApiResult<Option<Response>> {
        let Some(id) = call.parameter("requestId") else { return Ok(None) };
        // The form with hyphens only; the zero UUID is not supported.
        let is_valid = id.len() == 36 && Uuid::try_parse(id).is_ok_and(|uuid| !uuid.is_nil());
        if !is_valid {
            return Err(ApiError::invalid("requestId", id, "The request ID must be a valid UUID."));
        }
        let Some(known) = self.project.requests.get(&id.to_ascii_lowercase()) else { return Ok(None) };
        if known.call != described(call, target) || known.zone != zone {
            return Err(ApiError::invalid("requestId", id, "The request ID was used by a different request."));
        }
        let Some(operation) = self.project.zones[zone].operations.get(&known.operation) else { return Ok(None) };
        self.world.stats.requests_repeated += 1;
        Ok(Some(Response::json(200, operation.value(&self.place(zone)))))
    }

    /// Answers a call that was accepted, and remembers the id of its request.
    pub fn accepted(&mut self, call: &Call, zone: &'static str, target: &str, operation: String) -> Response {
        let place = self.place(zone);
        let response = Response::json(200, self.project.zone(zone).operations[&operation].value(&place));
        if let Some(id) = call.parameter("requestId") {
            let id = id.to_ascii_lowercase();
            let known = RememberedRequest { call: described(call, target), zone, operation };
            self.project.requests.insert(id.clone(), known);
            self.world.schedule(self.world.knobs.requests_kept_s, &place, Step::ForgetRequest(id));
        }
        response
    }
}

fn described(call: &Call, target: &str) -> String {
    format!("{} {target}", call.action)
}
