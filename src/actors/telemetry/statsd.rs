//! statsd client: resolves the server and sends the queued samples in batches.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::time::Duration;

use statsd::client::{Client, Pipeline};
use tokio::sync::mpsc;
use tracing::{info, warn};

use super::samples::SampleSink;
use nodepool_model::metrics::statsd_metrics::{Sample, SampleKind, StatsdAddress};

/// Retry interval for resolving the server name.
const RESOLVE_RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// Samples arrive in bursts from several threads. A wake-up and a datagram per sample would cost many times more than
/// writing it.
const BATCH_DELAY: Duration = Duration::from_millis(50);
/// Maximum number of samples per batch.
const MAX_BATCH: usize = 1000;
/// Maximum size of a datagram, as the Python client of statsd sends them: some servers read no more.
const MAX_DATAGRAM_BYTES: usize = 512;

/// Starts the task and returns its queue. Samples are queued until the server's name is resolved.
pub fn start(address: StatsdAddress) -> SampleSink {
    let (sink, samples) = SampleSink::channel();
    actix_rt::spawn(forward(address, samples));
    sink
}

async fn forward(address: StatsdAddress, mut samples: mpsc::Receiver<Sample>) {
    let Some(client) = connect(&address, &samples).await else { return };
    info!(host = address.host, port = address.port, "sending statistics");
    let mut batch = Vec::with_capacity(MAX_BATCH);
    while samples.recv_many(&mut batch, MAX_BATCH).await > 0 {
        if !samples.is_closed() {
            tokio::time::sleep(BATCH_DELAY).await;
        }
        while !batch.is_empty() {
            send(&client, &mut batch);
            tokio::task::yield_now().await;
            while batch.len() < MAX_BATCH
                && let Ok(sample) = samples.try_recv()
            {
                batch.push(sample);
            }
        }
    }
}

fn send(client: &Client, batch: &mut Vec<Sample>) {
    let mut pipeline = Pipeline::new();
    pipeline.set_max_udp_size(MAX_DATAGRAM_BYTES);
    for sample in batch.drain(..) {
        let name = printable(&sample.name);
        match sample.kind {
            SampleKind::Gauge => {
                // statsd reads a signed value as a change, so the gauge is reset to 0 first. If two datagrams arrive in
                // the wrong order, the next second's values are correct again.
                if sample.value < 0.0 {
                    pipeline.gauge(&name, 0.0);
                }
                pipeline.gauge(&name, sample.value);
            }
            SampleKind::Counter => pipeline.count(&name, sample.value),
            SampleKind::Timer => pipeline.timer(&name, sample.value),
        }
    }
    // Datagrams to an unavailable server are lost silently, as intended for statistics.
    pipeline.send(client);
}

/// Resolves the server, with retries; `None` when all senders are dropped.
async fn connect(address: &StatsdAddress, samples: &mpsc::Receiver<Sample>) -> Option<Client> {
    loop {
        match resolve(address).await.and_then(|server| Client::new(server, "").map_err(|error| error.to_string())) {
            Ok(client) => return Some(client),
            Err(error) if samples.is_closed() => {
                warn!(host = address.host, error, "cannot send statistics");
                return None;
            }
            Err(error) => warn!(host = address.host, error, "cannot send statistics yet; retrying"),
        }
        tokio::time::sleep(RESOLVE_RETRY_INTERVAL).await;
    }
}

/// Prefers an IPv4 address, on which statsd servers usually listen; otherwise the first address.
async fn resolve(address: &StatsdAddress) -> Result<SocketAddr, String> {
    let found = tokio::net::lookup_host((address.host.as_str(), address.port)).await;
    let found: Vec<SocketAddr> = found.map_err(|error| error.to_string())?.collect();
    let best = found.iter().find(|candidate| candidate.is_ipv4()).or_else(|| found.first());
    best.copied().ok_or_else(|| "the name has no address".to_owned())
}

/// Replaces the separators of the format, and control characters. Names contain values from records of other programs;
/// a line feed in one must not forge another sample.
fn printable(name: &str) -> Cow<'_, str> {
    let is_separator = |c: char| c.is_control() || matches!(c, ':' | '|');
    match name.contains(is_separator) {
        true => Cow::Owned(name.replace(is_separator, "_")),
        false => Cow::Borrowed(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn samples_use_the_statsd_format() {
        let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let (sink, samples) = SampleSink::channel();
        sink.send(Sample::gauge("nodepool.nodes.ready", 3.0));
        sink.send(Sample::counter("nodepool.launch.ready", 1.0));
        sink.send(Sample::timer("nodepool.launch.ready", 12.5));
        sink.send(Sample::gauge("nodepool.provider.p.max_servers", f64::INFINITY));
        sink.send(Sample::gauge("nodepool.label.a\nforged:1|c.nodes.ready", 0.0));
        sink.send(Sample::gauge("nodepool.dib_image_build.i.qcow2.rc", -9.0));
        drop(sink);
        forward(StatsdAddress { host: "127.0.0.1".to_owned(), port }, samples).await;
        let mut buffer = [0; 1024];
        let length = server.recv(&mut buffer).await.unwrap();
        let expected = "nodepool.nodes.ready:3|g\nnodepool.launch.ready:1|c\nnodepool.launch.ready:12.5|ms\n\
                        nodepool.provider.p.max_servers:inf|g\nnodepool.label.a_forged_1_c.nodes.ready:0|g\n\
                        nodepool.dib_image_build.i.qcow2.rc:0|g\nnodepool.dib_image_build.i.qcow2.rc:-9|g";
        assert_eq!(std::str::from_utf8(&buffer[..length]).unwrap(), expected);
    }

    #[tokio::test]
    async fn datagrams_are_no_larger_than_those_of_the_python_client() {
        let server = tokio::net::UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let (sink, samples) = SampleSink::channel();
        let names: Vec<String> = (100..140).map(|number| format!("nodepool.label.small{number}.ready")).collect();
        names.iter().for_each(|name| sink.send(Sample::gauge(name, 3.0)));
        drop(sink);
        forward(StatsdAddress { host: "127.0.0.1".to_owned(), port }, samples).await;
        let (mut buffer, mut lines) = ([0; 2048], Vec::new());
        while lines.len() < names.len() {
            let length = server.recv(&mut buffer).await.unwrap();
            assert!(length <= 512, "{length}");
            lines.extend(std::str::from_utf8(&buffer[..length]).unwrap().lines().map(str::to_owned));
        }
        assert_eq!(lines, names.iter().map(|name| format!("{name}:3|g")).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn unreachable_server_is_harmless() {
        let (sink, samples) = SampleSink::channel();
        for _ in 0..3 {
            sink.send(Sample::gauge("nodepool.nodes.ready", 3.0));
        }
        drop(sink);
        // No server listens on the port of a closed socket.
        let port = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        forward(StatsdAddress { host: "127.0.0.1".to_owned(), port }, samples).await;
    }
}
