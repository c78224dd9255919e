//! Diagnosis of failed connections: probes each server directly, because the client crate only reports that none is
//! usable.

use std::io;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::options::{ConnectOptions, ServerAddress};
use super::tls::{self, Tls, TlsPem};

/// Enough for a server on another continent; a probe delays only a message.
const STEP_TIMEOUT: Duration = Duration::from_secs(2);
/// A four-letter word that every server answers, if only with a refusal.
const PROBE_COMMAND: &[u8] = b"srvr";

/// One sentence for each server, in the order of the configuration.
pub async fn explain(options: &ConnectOptions) -> String {
    let answers = options.servers.iter().map(|server| async move {
        let finding = probe_server(server, options.tls.as_ref()).await;
        format!("{server}: {finding}")
    });
    futures::future::join_all(answers).await.join("; ")
}

async fn probe_server(server: &ServerAddress, tls: Option<&Tls>) -> String {
    let stream = match open(server).await {
        Ok(stream) => stream,
        Err(reason) => return reason,
    };
    match tls {
        None => send_probe(stream, None).await,
        Some(tls) => handshake(server, stream, tls).await,
    }
}

async fn open(server: &ServerAddress) -> Result<TcpStream, String> {
    let addresses = match timeout(STEP_TIMEOUT, tokio::net::lookup_host((server.host.as_str(), server.port))).await {
        Err(_) => return Err("no answer from the name service".to_owned()),
        Ok(Err(error)) => return Err(format!("host name not found ({error})")),
        Ok(Ok(addresses)) => addresses.collect::<Vec<_>>(),
    };
    let mut reason = "host name has no address".to_owned();
    for address in addresses {
        reason = match timeout(STEP_TIMEOUT, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
                "connection refused; is ZooKeeper running there?".to_owned()
            }
            Ok(Err(error)) => format!("cannot connect ({error})"),
            Err(_) => format!("no answer within {} s", STEP_TIMEOUT.as_secs()),
        };
    }
    Err(reason)
}

async fn handshake(server: &ServerAddress, stream: TcpStream, tls: &Tls) -> String {
    let config = match TlsPem::read(tls).and_then(|pem| pem.probe_config()) {
        Ok(config) => config,
        Err(error) => return error.to_string(),
    };
    let Ok(name) = ServerName::try_from(server.host.clone()) else {
        return "not a valid host name for TLS".to_owned();
    };
    let connector = tokio_rustls::TlsConnector::from(config);
    match timeout(STEP_TIMEOUT, connector.connect(name, stream)).await {
        Ok(Ok(stream)) => send_probe(stream, Some(tls)).await,
        Ok(Err(error)) => failure(&error, Some(tls)),
        Err(_) => "accepts the connection but does not answer the TLS handshake; is this the plain port?".to_owned(),
    }
}

/// Requests the server's own status. With TLS 1.3, a refused client certificate causes an error only here.
async fn send_probe(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, tls: Option<&Tls>) -> String {
    let mut answer = Vec::new();
    let exchange = async {
        stream.write_all(PROBE_COMMAND).await?;
        stream.flush().await?;
        (&mut stream).take(4096).read_to_end(&mut answer).await
    };
    match timeout(STEP_TIMEOUT, exchange).await {
        Ok(Ok(_)) => describe_answer(&answer, tls),
        Ok(Err(_)) if !answer.is_empty() => describe_answer(&answer, tls),
        Ok(Err(error)) => failure(&error, tls),
        Err(_) if !answer.is_empty() => describe_answer(&answer, tls),
        Err(_) if tls.is_none() => {
            "accepts the connection but does not answer; does it hang, or is this the TLS port?".to_owned()
        }
        Err(_) => "accepts the connection but does not answer".to_owned(),
    }
}

fn describe_answer(answer: &[u8], tls: Option<&Tls>) -> String {
    let text = String::from_utf8_lossy(answer);
    if text.contains("not currently serving requests") {
        return "the server is up but not serving: its ensemble has no quorum or is electing a leader".to_owned();
    }
    if text.contains("Mode: read-only") {
        return "the server is read-only: it has lost its ensemble".to_owned();
    }
    if text.starts_with("Zookeeper version") || text.contains("not in the whitelist") {
        return "the server answers, but did not establish a session in time".to_owned();
    }
    match (answer, tls) {
        ([], _) => "the server closes the connection without an answer; is it ZooKeeper?".to_owned(),
        // An alert record of TLS: type 21, major version 3.
        ([0x15, 0x03, ..], None) => "the server wants TLS, and zookeeper-tls is not configured".to_owned(),
        _ => "the answer is not from ZooKeeper".to_owned(),
    }
}

fn failure(error: &io::Error, tls: Option<&Tls>) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match (inner, tls) {
        (Some(reason), Some(tls)) => tls::handshake_reason(reason, tls),
        (None, Some(_)) if matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            "the server closed the connection during the TLS handshake; it refuses our client certificate, or this is \
             the plain port"
                .to_owned()
        }
        (None, None) if error.kind() == io::ErrorKind::ConnectionReset => {
            "the server closed the connection; is this the TLS port?".to_owned()
        }
        _ => format!("connection broken ({error})"),
    }
}
