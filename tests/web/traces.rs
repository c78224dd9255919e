//! Traces: one per request, within the trace of Zuul. The tests check the spans that an OTLP collector receives from a
//! real launcher. Needs the feature `otel`.
#![cfg(feature = "otel")]

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;

/// A collector that records the paths and bodies it receives.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Value)>>>);

impl Collector {
    async fn start(self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(self.clone().serve(stream));
            }
        });
        format!("http://{address}")
    }

    /// Starts the collector with TLS, and returns its address and its self-signed certificate as PEM.
    async fn start_tls(self) -> (String, String) {
        let certified = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_no_client_auth().with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
        let (acceptor, listener) =
            (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (acceptor, collector) = (acceptor.clone(), self.clone());
                tokio::spawn(async move {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        collector.serve(stream).await;
                    }
                });
            }
        });
        (format!("https://localhost:{port}"), certified.cert.pem())
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin) {
        let mut stream = BufReader::new(stream);
        loop {
            let (mut head, mut line) = (Vec::new(), String::new());
            while stream.read_line(&mut line).await.is_ok_and(|length| length > 2) {
                head.push(std::mem::take(&mut line));
            }
            let Some(first) = head.first() else { return };
            let path = first.split(' ').nth(1).unwrap().to_owned();
            let length =
                head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
            let mut body = vec![0; length.unwrap_or(0)];
            stream.read_exact(&mut body).await.unwrap();
            self.0.lock().unwrap().push((path, serde_json::from_slice(&body).unwrap()));
            let answer = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    }

    fn spans(&self) -> Vec<Value> {
        let got = self.0.lock().unwrap();
        assert!(got.iter().all(|(path, _)| path == "/v1/traces"), "{got:?}");
        let lists = |value: &Value, key: &str| value[key].as_array().unwrap().clone();
        let resources = got.iter().flat_map(|(_, body)| lists(body, "resourceSpans"));
        let scopes = resources.flat_map(|resource| {
            assert_eq!(attribute(&resource["resource"], "service.name"), "nodepool", "{resource}");
            lists(&resource, "scopeSpans")
        });
        scopes.flat_map(|scope| lists(&scope, "spans")).collect()
    }
}

fn attribute(of: &Value, key: &str) -> String {
    let attributes = of["attributes"].as_array().unwrap();
    let found = attributes.iter().find(|attribute| attribute["key"] == key);
    found.and_then(|found| found["value"]["stringValue"].as_str()).unwrap_or_default().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_spans_belong_to_zuuls_trace() {
    let collector = Collector::default();
    let endpoint = collector.clone().start().await;
    let environment =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
    let run = testkit::request_lifecycle::run_one_request(&["-f"], &environment).await;
    assert!(run.record.contains(&testkit::request_lifecycle::requestor_data()), "{}", run.record);
    let spans = collector.spans();
    let trace = format!("{:032x}", testkit::request_lifecycle::TRACE);
    assert!(spans.iter().all(|span| span["traceId"] == trace.as_str()), "{spans:#?}");
    assert!(run.log.contains("sending traces"), "{}", run.log);
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
    let [request] = named("request")[..] else { panic!("{spans:#?}") };
    assert_eq!(request["parentSpanId"], format!("{:016x}", testkit::request_lifecycle::SPAN).as_str(), "{request}");
    let about = ["node_request", "event", "provider", "result"].map(|key| attribute(request, key));
    assert_eq!(about, [run.request.as_str(), testkit::request_lifecycle::EVENT, "lab", "fulfilled"]);
    assert_eq!(request["startTimeUnixNano"], "1706933106250000000", "{request}");

    let launches = named("launch");
    let mut nodes: Vec<String> = launches.iter().map(|launch| attribute(launch, "node")).collect();
    let mut expected = run.nodes.clone();
    nodes.sort();
    expected.sort();
    assert_eq!(nodes, expected);
    assert!(launches.iter().all(|launch| launch["parentSpanId"] == request["spanId"]), "{spans:#?}");
    // Every second server of the fake cloud fails.
    let (boots, scans) = (named("boot"), named("keyscan"));
    assert_eq!((boots.len(), scans.len()), (3, 2), "{spans:#?}");
    assert_eq!(boots.iter().filter(|boot| boot["status"]["code"] == 2).count(), 1, "{spans:#?}");
    for part in boots.iter().chain(&scans) {
        assert!(launches.iter().any(|launch| launch["spanId"] == part["parentSpanId"]), "{part}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tls_collector_is_verified_by_its_authority() {
    let collector = Collector::default();
    let (endpoint, authority) = collector.clone().start_tls().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, authority).unwrap();
    let mut environment = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", file.to_str().unwrap()),
    ];
    testkit::request_lifecycle::run_one_request(&["-f"], &environment).await;
    assert!(collector.spans().iter().any(|span| span["name"] == "request"));
    // Without the authority no traces are exported, but requests are served.
    let others = Collector::default();
    let (endpoint, _) = others.clone().start_tls().await;
    environment[0].1 = endpoint.as_str();
    let run = testkit::request_lifecycle::run_one_request(&["-f"], &environment).await;
    assert!(others.spans().is_empty() && run.log.contains("trace export failing, spans are dropped"), "{}", run.log);
    assert!(run.log.contains("invalid peer certificate: "), "{}", run.log);
    environment[2].1 = "/nowhere/ca.pem";
    let run = testkit::request_lifecycle::run_one_request(&["-f"], &environment).await;
    assert!(run.log.contains("tracing export disabled error=cannot read /nowhere/ca.pem: No such file"), "{}", run.log);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_collector_only_loses_traces() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoints = [&silent, &closed].map(|listener| format!("http://{}", listener.local_addr().unwrap()));
    // The kernel accepts connections for the other listener, which never replies.
    drop(closed);
    // Each process exits cleanly, which every run checks, and reports the lost traces.
    for (endpoint, expected) in endpoints.iter().zip(["failed to export the last traces error=", "Connection refused"])
    {
        let run =
            testkit::request_lifecycle::run_one_request(&["-f"], &[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]).await;
        assert!(run.log.contains(expected), "{endpoint}: {}", run.log);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_endpoint_is_not_printed() {
    let environment = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:pass word@collector.example.org")];
    let log = testkit::request_lifecycle::run_one_request(&["-f"], &environment).await.log;
    let expected = "tracing export disabled error=OTEL_EXPORTER_OTLP_ENDPOINT is not a valid URL";
    assert!(log.contains(expected) && !log.contains("pass word"), "{log}");
}
