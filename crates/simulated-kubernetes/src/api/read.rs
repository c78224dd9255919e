//! Reading objects: single ones, and lists in pages.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::api::scope::{Scope, View};
use crate::cluster::cluster::Cluster;
use crate::cluster::resources::Kind;
use crate::server::call::Call;
use crate::server::response::{ApiResult, Cause, Response, failure_object};

/// Contents of `continue`.
#[derive(Serialize, Deserialize)]
struct Continue {
    v: String,
    /// The resource version of the first page.
    rv: u64,
    /// Namespace and name of the last object.
    start: String,
}

impl Cluster {
    pub fn read(&self, kind: Kind, namespace: &str, name: &str, view: View) -> ApiResult<Response> {
        let object = self.store.get(kind, namespace, name);
        let object = object.ok_or_else(|| Response::not_found(kind.resource(), name))?;
        Ok(Response::rendered(200, view.body(object)))
    }

    pub fn list(&self, call: &Call, scope: &Scope) -> ApiResult<Response> {
        let asked = version_parameter(call)?;
        if asked > self.store.version() {
            return Err(too_large_version(asked, self.store.version()));
        }
        if call.parameter("resourceVersionMatch") == Some("Exact") && asked < self.store.oldest() {
            return Err(Response::gone("The resourceVersion for the provided list is too old."));
        }
        let position = call.parameter("continue").map(|token| self.position(token)).transpose()?;
        let version = position.as_ref().map_or(self.store.version(), |position| position.rv);
        let after = position.map(|position| position.start).unwrap_or_default();
        let limit = call.parameter("limit").and_then(|limit| limit.parse::<usize>().ok()).unwrap_or(0);
        let limits = [limit, self.knobs.page_limit].into_iter().filter(|limit| *limit > 0);
        let limit = limits.min().unwrap_or(usize::MAX);

        let key = |namespace: &str, name: &str| format!("{namespace}/{name}");
        let is_later = |namespace: &str, name: &str| match after.split_once('/') {
            Some((last_namespace, last_name)) => (namespace, name) > (last_namespace, last_name),
            None => true,
        };
        let mut objects = scope.objects(self).filter(|object| is_later(&object.namespace, &object.name));
        let page: Vec<_> = objects.by_ref().take(limit).collect();
        let remaining = objects.count();
        let mut metadata = json!({"resourceVersion": version.to_string()});
        if let Some(last) = page.last().filter(|_| remaining > 0) {
            let start = key(&last.namespace, &last.name);
            let token = Continue { v: "meta.k8s.io/v1".to_owned(), rv: version, start };
            let token = serde_json::to_string(&token).expect("the position is plain data");
            metadata["continue"] = json!(URL_SAFE_NO_PAD.encode(token));
            if scope.selector.is_empty() {
                metadata["remainingItemCount"] = json!(remaining);
            }
        }
        let (kind, api_version) = scope.view.kind(scope.kind);
        let mut body =
            format!("{{\"kind\":\"{kind}List\",\"apiVersion\":\"{api_version}\",\"metadata\":{metadata},\"items\":[");
        for (index, object) in page.into_iter().enumerate() {
            if index > 0 {
                body.push(',');
            }
            body.push_str(&scope.view.item(object));
        }
        body.push_str("]}\n");
        Ok(Response::rendered(200, body))
    }

    fn position(&self, token: &str) -> ApiResult<Continue> {
        let bytes = URL_SAFE_NO_PAD.decode(token.trim_end_matches('=')).map_err(|error| error.to_string());
        let position = bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
        let position: Continue = position.map_err(|error| {
            Response::bad_request(format!("invalid continue token: continue key is not valid: {error}"))
        })?;
        if position.rv < self.store.oldest() {
            return Err(Response::gone(
                "The provided continue parameter is too old to display a consistent list result. You can start a new \
                 list without the continue parameter.",
            ));
        }
        Ok(position)
    }
}

/// The parameter `resourceVersion`; 0 if it is absent.
pub fn version_parameter(call: &Call) -> ApiResult<u64> {
    let Some(text) = call.parameter("resourceVersion") else { return Ok(0) };
    text.parse().map_err(|_| {
        let error = format!("strconv.ParseUint: parsing \"{text}\": invalid syntax");
        Response::internal(format!("resourceVersion: Invalid value: \"{text}\": {error}"))
    })
}

fn too_large_version(asked: u64, current: u64) -> Response {
    let cause = Cause::new("ResourceVersionTooLarge", "", "Too large resource version".to_owned());
    let causes = json!([{"reason": cause.reason, "message": cause.message}]);
    let text = format!("Timeout: Too large resource version: {asked}, current: {current}");
    let details = json!({"causes": causes, "retryAfterSeconds": 1});
    Response::json(504, &failure_object(504, "Timeout", text, details)).with("Retry-After", "1")
}
