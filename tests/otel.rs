//! One trace per request, in the trace of Zuul: what a collector gets by OTLP over HTTP. Needs the feature `otel`.
#![cfg(feature = "otel")]

mod daemon;
mod life;
mod support;

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A collector that keeps what it gets: paths and bodies.
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

    async fn serve(self, stream: TcpStream) {
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
async fn a_request_is_a_part_of_zuuls_trace() {
    let collector = Collector::default();
    let endpoint = collector.clone().start().await;
    let environment =
        [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()), ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")];
    let life = life::of_one_request(&["-f"], &environment).await;
    assert!(life.record.contains(&life::requestor_data()), "{}", life.record);
    let spans = collector.spans();
    let trace = format!("{:032x}", life::TRACE);
    assert!(spans.iter().all(|span| span["traceId"] == trace.as_str()), "{spans:#?}");
    assert!(life.log.contains("sending traces"), "{}", life.log);
    let named = |name: &str| spans.iter().filter(|span| span["name"] == name).collect::<Vec<_>>();
    let [request] = named("request")[..] else { panic!("{spans:#?}") };
    assert_eq!(request["parentSpanId"], format!("{:016x}", life::SPAN).as_str(), "{request}");
    let about = ["node_request", "event", "provider", "result"].map(|key| attribute(request, key));
    assert_eq!(about, [life.request.as_str(), life::EVENT, "lab", "fulfilled"]);
    assert_eq!(request["startTimeUnixNano"], "1706933106250000000", "{request}");

    let launches = named("launch");
    let mut nodes: Vec<String> = launches.iter().map(|launch| attribute(launch, "node")).collect();
    let mut expected = life.nodes.clone();
    nodes.sort();
    expected.sort();
    assert_eq!(nodes, expected);
    assert!(launches.iter().all(|launch| launch["parentSpanId"] == request["spanId"]), "{spans:#?}");
    // Every second server fails.
    let (boots, scans) = (named("boot"), named("keyscan"));
    assert_eq!((boots.len(), scans.len()), (3, 2), "{spans:#?}");
    assert_eq!(boots.iter().filter(|boot| boot["status"]["code"] == 2).count(), 1, "{spans:#?}");
    for part in boots.iter().chain(&scans) {
        assert!(launches.iter().any(|launch| launch["spanId"] == part["parentSpanId"]), "{part}");
    }
}
