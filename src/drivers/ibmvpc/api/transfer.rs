//! Transfer of an image to Cloud Object Storage in parts, several at a time.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

use super::calls::{HttpRequest, Reply};
use super::client::Connection;
use super::errors::failed;
use crate::common::object_store::FilePart;

/// Parts that are sent at a time.
const CONCURRENT_PARTS: usize = 10;

/// Sends parts of an object; returns the tags of those that were stored, and the first error of the others. If none was
/// stored, the error is the result.
pub async fn send_parts(
    connection: &Connection,
    requests: &[(u32, HttpRequest)],
    guard: &CallGuard,
) -> Result<Reply, CloudError> {
    let send = async |number: u32, request: &HttpRequest| {
        let stored = connection.store(request, guard).await;
        let tag = |headers: reqwest::header::HeaderMap| {
            headers.get("etag").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
        };
        (number, stored.map(tag))
    };
    let sending = stream::iter(requests).map(|(number, request)| send(*number, request));
    let results: Vec<(u32, Result<String, CloudError>)> = sending.buffer_unordered(CONCURRENT_PARTS).collect().await;
    let (mut stored, mut first_error) = (BTreeMap::new(), None);
    for (number, result) in results {
        match result {
            Ok(tag) => drop(stored.insert(number, tag)),
            Err(error) => drop(first_error.get_or_insert(error)),
        }
    }
    match first_error {
        Some(error) if stored.is_empty() => Err(error),
        error => Ok(Reply::Sent(stored, error.map(|error| error.to_string()))),
    }
}

pub async fn read_part(part: &FilePart) -> Result<Bytes, CloudError> {
    let read = async {
        let mut file = tokio::fs::File::open(&part.file).await?;
        file.seek(std::io::SeekFrom::Start(part.from)).await?;
        let mut content = vec![0; part.length as usize];
        file.read_exact(&mut content).await?;
        Ok::<_, std::io::Error>(content)
    };
    let read = read.await.map_err(|error| failed(format!("cannot read {}: {error}", part.file.display())));
    read.map(Bytes::from)
}
