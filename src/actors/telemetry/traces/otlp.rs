//! OTLP export of traces over HTTP. Each node request has one trace: the request, the launch of each node, its boots
//! and its key scans.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use opentelemetry::trace::{
    Span as _, SpanContext, SpanId, SpanKind, Status, TraceContextExt, TraceFlags, TraceId, TraceState, Tracer as _,
    TracerProvider,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request as HttpRequest, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span};
use reqwest::{Certificate, Identity, StatusCode};
use tokio::runtime::Handle;
use tracing::{info, warn};

use nodepool_model::records::ids::{NodeId, PoolId, ProviderName, RequestId};
use nodepool_model::records::request::{NodeRequest, SpanInfo};
use nodepool_model::records::time::Timestamp;

/// Time limit for sending the remaining spans at shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Default timeout of a request to the collector.
const DEFAULT_EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Trace export; `None` without a collector.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<ExportPipeline>>);

struct ExportPipeline {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
}

impl Tracer {
    /// Reads the environment variables of OpenTelemetry. Without an endpoint nothing is sent: the default endpoint
    /// would fail all the time without a local collector. `runtime` runs the requests.
    pub fn from_environment(runtime: &Handle) -> Self {
        let given = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let endpoints = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
        let endpoint = endpoints.into_iter().find_map(|name| Some((name, given(name)?)));
        let is_off = given("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"))
            || given("OTEL_TRACES_EXPORTER").is_some_and(|value| value != "otlp");
        let Some((variable, endpoint)) = endpoint.filter(|_| !is_off) else { return Self(None) };
        let timeout = given("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT").or_else(|| given("OTEL_EXPORTER_OTLP_TIMEOUT"));
        let timeout = timeout.and_then(|text| text.parse().ok()).map_or(DEFAULT_EXPORT_TIMEOUT, Duration::from_millis);
        let checked = if is_address(&endpoint) { Ok(()) } else { Err(format!("{variable} is not a valid URL")) };
        let exporter = match checked.and_then(|()| exporter(runtime, timeout)) {
            Ok(exporter) => exporter,
            Err(error) => {
                warn!(target: "nodepool.NodePool", %error, "tracing export disabled");
                return Self(None);
            }
        };
        let named = given("OTEL_SERVICE_NAME").is_some()
            || given("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|attributes| attributes.contains("service.name="));
        let resource = if named { Resource::builder() } else { Resource::builder().with_service_name("nodepool") };
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        info!(target: "nodepool.NodePool", endpoint = without_secrets(&endpoint), "sending traces");
        Self(Some(Arc::new(ExportPipeline { tracer: provider.tracer("nodepool"), provider })))
    }

    pub fn traces(&self) -> Traces {
        Traces { pipeline: self.0.clone(), requests: BTreeMap::new(), nodes: BTreeMap::new() }
    }

    /// Sends the remaining spans. Blocks for at most `SHUTDOWN_TIMEOUT`.
    pub fn shutdown(&self) {
        if let Some(pipeline) = &self.0
            && let Err(error) = pipeline.provider.shutdown_with_timeout(SHUTDOWN_TIMEOUT)
        {
            warn!(target: "nodepool.NodePool", %error, "failed to export the last traces");
        }
    }
}

/// Exporter of spans as the environment variables configure it. The error is a text for the log.
fn exporter(runtime: &Handle, timeout: Duration) -> Result<SpanExporter, String> {
    let mut builder = reqwest::Client::builder().timeout(timeout);
    if let Some((path, pem)) = file_named("CERTIFICATE")? {
        let unusable = |error| format!("{path} contains no certificates: {error}");
        let authorities = Certificate::from_pem_bundle(&pem).map_err(unusable)?;
        builder = builder.tls_built_in_root_certs(false);
        builder = authorities.into_iter().fold(builder, |builder, one| builder.add_root_certificate(one));
    }
    if let Some((path, mut pem)) = file_named("CLIENT_CERTIFICATE")? {
        pem.push(b'\n');
        pem.extend(file_named("CLIENT_KEY")?.map(|(_, key)| key).unwrap_or_default());
        let unusable = |error| format!("{path} and its key cannot be used: {error}");
        builder = builder.identity(Identity::from_pem(&pem).map_err(unusable)?);
    }
    let client = builder.build().map_err(|error| error.to_string())?;
    let client = Client { client, runtime: runtime.clone(), is_unavailable: Arc::default() };
    SpanExporter::builder().with_http().with_http_client(client).build().map_err(|error| error.to_string())
}

/// Path and contents of the file that a variable names; the variable for traces precedes the general one.
fn file_named(suffix: &str) -> Result<Option<(String, Vec<u8>)>, String> {
    let given = |name: String| std::env::var(name).ok().filter(|value| !value.is_empty());
    let own = given(format!("OTEL_EXPORTER_OTLP_TRACES_{suffix}"));
    let Some(path) = own.or_else(|| given(format!("OTEL_EXPORTER_OTLP_{suffix}"))) else { return Ok(None) };
    let bytes = std::fs::read(&path).map_err(|error| format!("cannot read {path}: {error}"))?;
    Ok(Some((path, bytes)))
}

/// Text of an error with its causes.
fn with_causes(error: &reqwest::Error) -> String {
    let first: &dyn std::error::Error = error;
    let causes: Vec<String> =
        std::iter::successors(Some(first), |error| error.source()).map(ToString::to_string).collect();
    causes.join(": ")
}

/// Whether an endpoint is a valid URL. This is checked here, because the exporter would quote an invalid URL, which may
/// contain a password.
fn is_address(endpoint: &str) -> bool {
    let has_host = reqwest::Url::parse(endpoint).is_ok_and(|url| url.has_host());
    has_host && HttpRequest::builder().uri(endpoint).body(()).is_ok()
}

/// The endpoint without user name, password and query.
fn without_secrets(endpoint: &str) -> String {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("http", endpoint));
    let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
    let host = host.rsplit('@').next().unwrap_or_default();
    format!("{scheme}://{host}/{}", path.split('?').next().unwrap_or_default())
}

/// HTTP client of the exporter, with a runtime: the SDK sends from a thread without one.
#[derive(Clone, Debug)]
struct Client {
    client: reqwest::Client,
    runtime: Handle,
    /// Whether the last export failed.
    is_unavailable: Arc<AtomicBool>,
}

impl Client {
    /// Logs each change between failure and success once, because the SDK does not log them.
    fn log_outcome(&self, outcome: Result<StatusCode, String>) {
        let failure = match outcome {
            Ok(status) if status.is_success() => None,
            Ok(status) => Some(format!("status {status}")),
            Err(error) => Some(error),
        };
        let was_unavailable = self.is_unavailable.swap(failure.is_some(), Ordering::Relaxed);
        match failure {
            Some(failure) if !was_unavailable => {
                warn!(target: "nodepool.NodePool", "trace export failing, spans are dropped: {failure}");
            }
            None if was_unavailable => info!(target: "nodepool.NodePool", "trace export resumed"),
            _ => {}
        }
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: HttpRequest<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.clone();
        let send = async move {
            let result = client.client.execute(request.try_into()?).await;
            // The URL may contain a password.
            let result = result.map_err(reqwest::Error::without_url);
            client.log_outcome(result.as_ref().map(reqwest::Response::status).map_err(with_causes));
            let mut reply = result?;
            let mut response = Response::builder().status(reply.status());
            if let Some(headers) = response.headers_mut() {
                headers.extend(std::mem::take(reply.headers_mut()));
            }
            Ok::<_, HttpError>(response.body(reply.bytes().await?)?)
        };
        self.runtime.spawn(send).await?
    }
}

/// The open spans of one pool's requests.
pub struct Traces {
    pipeline: Option<Arc<ExportPipeline>>,
    requests: BTreeMap<RequestId, Span>,
    nodes: BTreeMap<NodeId, Launch>,
}

struct Launch {
    request: RequestId,
    span: Span,
    /// Boot of the current attempt.
    boot: Option<Span>,
    scan: Option<Span>,
}

impl Traces {
    /// A copy of the record for a later call with the result; `None` without trace export.
    pub fn clone_if_traced(&self, record: &NodeRequest) -> Option<NodeRequest> {
        self.pipeline.as_ref().map(|_| record.clone())
    }

    /// Starts the span of a request, at the creation time of the request, so that a trace shows how long the request
    /// waited.
    pub fn request_accepted(&mut self, id: &RequestId, record: Option<&NodeRequest>, pool: &PoolId) {
        let Some(span) = self.begin_request(id, record, pool) else { return };
        self.requests.insert(id.clone(), span);
    }

    pub fn request_declined(
        &mut self,
        id: &RequestId,
        record: Option<&NodeRequest>,
        pool: &PoolId,
        reasons: &[String],
    ) {
        let Some(mut span) = self.begin_request(id, record, pool) else { return };
        span.set_attribute(KeyValue::new("result", "declined"));
        span.set_attribute(KeyValue::new("reason", reasons.join("; ")));
    }

    /// Ends the span of the request, and the open spans of its launches.
    pub fn request_ended(&mut self, id: &RequestId, result: &str) {
        let open_launches: Vec<NodeId> =
            self.nodes.iter().filter(|(_, launch)| launch.request == *id).map(|(node, _)| node.clone()).collect();
        open_launches.iter().for_each(|node| self.launch_abandoned(node));
        let Some(mut span) = self.requests.remove(id) else { return };
        span.set_attribute(KeyValue::new("result", result.to_owned()));
        if result != "fulfilled" {
            span.set_status(Status::error(result.to_owned()));
        }
    }

    pub fn launch_started(&mut self, request: &RequestId, node: &NodeId, provider: &ProviderName) {
        let Some(pipeline) = &self.pipeline else { return };
        let Some(parent) = self.requests.get(request) else { return };
        let attributes = [("node_request", request.as_str()), ("node", node.as_str()), ("provider", provider.as_str())];
        let span = pipeline.child("launch", parent, &attributes);
        self.nodes.insert(node.clone(), Launch { request: request.clone(), span, boot: None, scan: None });
    }

    pub fn boot_started(&mut self, node: &NodeId) {
        if let (Some(pipeline), Some(launch)) = (&self.pipeline, self.nodes.get_mut(node)) {
            launch.boot = Some(pipeline.child("boot", &launch.span, &[("node", node.as_str())]));
        }
    }

    pub fn boot_ended(&mut self, node: &NodeId, error: Option<&str>) {
        end_span(self.nodes.get_mut(node).and_then(|launch| launch.boot.take()), error);
    }

    pub fn keyscan_started(&mut self, node: &NodeId) {
        if let (Some(pipeline), Some(launch)) = (&self.pipeline, self.nodes.get_mut(node)) {
            launch.scan = Some(pipeline.child("keyscan", &launch.span, &[("node", node.as_str())]));
        }
    }

    pub fn keyscan_ended(&mut self, node: &NodeId, error: Option<&str>) {
        end_span(self.nodes.get_mut(node).and_then(|launch| launch.scan.take()), error);
    }

    /// Ends the launch if the node is ready; otherwise another attempt may follow.
    pub fn attempt_ended(&mut self, node: &NodeId, result: &str) {
        if let Some(launch) = self.nodes.get_mut(node) {
            launch.span.add_event("attempt ended", vec![KeyValue::new("result", result.to_owned())]);
        }
        if result == "ready"
            && let Some(mut launch) = self.nodes.remove(node)
        {
            launch.span.set_attribute(KeyValue::new("result", "ready"));
        }
    }

    pub fn launch_abandoned(&mut self, node: &NodeId) {
        if let Some(mut launch) = self.nodes.remove(node) {
            // Spans end when they are dropped, the inner ones first.
            drop((launch.boot.take(), launch.scan.take()));
            launch.span.set_status(Status::error("not ready"));
        }
    }

    fn begin_request(&self, id: &RequestId, record: Option<&NodeRequest>, pool: &PoolId) -> Option<Span> {
        let (pipeline, record) = (self.pipeline.as_ref()?, record?);
        let labels: Vec<&str> = record.node_types.iter().map(|label| label.as_str()).collect();
        let mut attributes = vec![
            KeyValue::new("node_request", id.to_string()),
            KeyValue::new("labels", labels.join(",")),
            KeyValue::new("provider", pool.provider.to_string()),
            KeyValue::new("pool", pool.to_string()),
        ];
        let more = [
            ("event", record.event_id.clone()),
            ("requestor", record.requestor.clone()),
            ("tenant", record.tenant_name.as_ref().map(ToString::to_string)),
        ];
        attributes.extend(more.into_iter().filter_map(|(key, value)| Some(KeyValue::new(key, value?))));
        let created = record.created_time.unwrap_or(record.state_time);
        let builder = pipeline.tracer.span_builder("request").with_kind(SpanKind::Consumer).with_attributes(attributes);
        let builder = match system_time(created) {
            Some(time) => builder.with_start_time(time),
            None => builder,
        };
        let parent = record
            .span()
            .map_or_else(Context::new, |span| Context::new().with_remote_span_context(parent_context(span)));
        Some(pipeline.tracer.build_with_context(builder, &parent))
    }
}

impl ExportPipeline {
    fn child(&self, name: &'static str, parent: &Span, attributes: &[(&'static str, &str)]) -> Span {
        let attributes: Vec<KeyValue> =
            attributes.iter().map(|(key, value)| KeyValue::new(*key, (*value).to_owned())).collect();
        let context = Context::new().with_remote_span_context(parent.span_context().clone());
        let builder = self.tracer.span_builder(name).with_kind(SpanKind::Internal).with_attributes(attributes);
        self.tracer.build_with_context(builder, &context)
    }
}

fn end_span(span: Option<Span>, error: Option<&str>) {
    let Some(mut span) = span else { return };
    if let Some(error) = error {
        span.set_status(Status::error(error.to_owned()));
    }
    span.end();
}

/// Span context of the requestor, which becomes the parent.
fn parent_context(span: SpanInfo) -> SpanContext {
    let (trace, id) =
        (TraceId::from_bytes(span.trace_id.to_be_bytes()), SpanId::from_bytes(span.span_id.to_be_bytes()));
    SpanContext::new(trace, id, TraceFlags::new(span.trace_flags), true, TraceState::NONE)
}

/// `None` for a time out of range: records come from other programs.
fn system_time(time: Timestamp) -> Option<SystemTime> {
    let since = Duration::try_from_secs_f64(time.0).ok().filter(|since| !since.is_zero())?;
    SystemTime::UNIX_EPOCH.checked_add(since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_endpoints_are_detected() {
        for address in ["http://127.0.0.1:4318", "https://me:secret@collector.example.org/otlp?key=secret"] {
            assert!(is_address(address), "{address}");
        }
        for other in ["", "collector", "collector:4318", "http://", "http://me:pass word@collector", "http://h:port"] {
            assert!(!is_address(other), "{other}");
        }
    }
}
