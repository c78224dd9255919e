//! Calls that consist of several requests: terminations, of which one that fails must not hold up the others, and
//! transfers of images in parts.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream;
use nodepool_driver::call_guard::CallGuard;
use nodepool_driver::error::CloudError;
use sha2::{Digest, Sha256};

use super::calls::{self, HttpRequest, Reply, Request, Terminated};
use super::client::{self, Connection};
use super::errors::{ApiError, failed};
use crate::common::object_store::FilePart;

/// Parts of an image that are sent at a time.
const CONCURRENT_PARTS: usize = 10;
/// Bytes of a block of a snapshot.
const BLOCK_SIZE: u64 = 512 * 1024;

/// The blocks of a file, by their index.
pub fn blocks(file: &Path, size: u64) -> BTreeMap<u32, FilePart> {
    let block = |index: u64| {
        let from = index * BLOCK_SIZE;
        (index as u32, FilePart { file: file.to_owned(), from, length: BLOCK_SIZE.min(size - from) })
    };
    (0..size.div_ceil(BLOCK_SIZE)).map(block).collect()
}

/// Terminates instances. EC2 terminates all or none, and names those that hold up the others.
pub async fn terminate(connection: &Connection, ids: &[String], guard: &CallGuard) -> Result<Reply, CloudError> {
    let mut result = Terminated::default();
    let mut batches = vec![ids.to_vec()];
    let mut is_first = true;
    while let Some(batch) = batches.pop().filter(|batch| !batch.is_empty()) {
        if !std::mem::take(&mut is_first) {
            guard.wait_until_allowed().await;
        }
        let call = calls::terminate_all(&batch);
        let Request::Http(request) = &call.request else { return Err(failed("a termination is one request")) };
        match connection.send(&call, request, guard).await? {
            Reply::Done => {}
            Reply::Refused(error) => sort_out(&mut result, &mut batches, batch, error),
            reply @ Reply::Lost(_) => return Ok(reply),
            reply => return Err(failed(format!("unexpected reply {reply:?}"))),
        }
    }
    Ok(Reply::Terminated(Arc::new(result)))
}

/// Takes those out of a refused batch that the error names; without names, each half is sent again.
fn sort_out(result: &mut Terminated, batches: &mut Vec<Vec<String>>, batch: Vec<String>, error: ApiError) {
    let is_gone = error.code.starts_with("InvalidInstanceID");
    let (named, others): (Vec<String>, Vec<String>) = match batch.len() {
        1 => (batch, Vec::new()),
        _ => batch.into_iter().partition(|id| error.message.contains(id.as_str())),
    };
    if named.is_empty() {
        let (one, other) = others.split_at(others.len() / 2);
        return batches.extend([one.to_vec(), other.to_vec()]);
    }
    for id in named {
        match is_gone {
            true => drop(result.gone.insert(id)),
            false => drop(result.refused.insert(id, error.clone())),
        }
    }
    if !others.is_empty() {
        batches.push(others);
    }
}

/// Sends parts of an object; returns the tags of those that were stored.
pub async fn send_parts(
    connection: &Connection,
    requests: &[(u32, HttpRequest)],
    guard: &CallGuard,
) -> Result<Reply, CloudError> {
    let send = async |number: u32, request: &HttpRequest| {
        let stored = connection.store(request, guard).await;
        (number, stored.map(|headers| header(&headers, "etag")))
    };
    let sending = stream::iter(requests).map(|(number, request)| send(*number, request));
    sent(sending.buffer_unordered(CONCURRENT_PARTS).collect().await)
}

/// Writes blocks of a snapshot; returns those that were written.
pub async fn send_blocks(
    connection: &Connection,
    snapshot: &str,
    blocks: &[(u32, FilePart)],
    guard: &CallGuard,
) -> Result<Reply, CloudError> {
    let send = async |index: u32, part: &FilePart| {
        let content = match client::read_part(part).await {
            Ok(content) => padded(content),
            Err(error) => return (index, Err(error)),
        };
        let checksum = STANDARD.encode(Sha256::digest(&content));
        let request = calls::block(snapshot, index, content, &checksum);
        let stored =
            connection.store(&request, guard).await.and_then(|headers| match header(&headers, "x-amz-checksum") {
                there if there.is_empty() || there == checksum => Ok(checksum),
                _ => Err(failed(format!("block {index} was corrupted in transit"))),
            });
        (index, stored)
    };
    let sending = stream::iter(blocks).map(|(index, part)| send(*index, part));
    sent(sending.buffer_unordered(CONCURRENT_PARTS).collect().await)
}

fn header(headers: &reqwest::header::HeaderMap, name: &str) -> String {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// The last block of an image is filled with zeros.
fn padded(content: Bytes) -> Bytes {
    let mut content = content.to_vec();
    content.resize(BLOCK_SIZE as usize, 0);
    content.into()
}

/// Parts that were stored, and the first error of the others. If none was stored, the error is the result.
fn sent(results: Vec<(u32, Result<String, CloudError>)>) -> Result<Reply, CloudError> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use reqwest::StatusCode;

    fn refused(code: &str, message: &str) -> ApiError {
        ApiError { status: StatusCode::BAD_REQUEST, code: code.to_owned(), message: message.to_owned() }
    }

    fn ids(ids: &[&str]) -> Vec<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn instances_that_vanished_do_not_hold_up_the_others() {
        let (mut result, mut batches) = (Terminated::default(), Vec::new());
        let error = refused("InvalidInstanceID.NotFound", "The instance IDs 'i-1, i-3' do not exist");
        sort_out(&mut result, &mut batches, ids(&["i-0", "i-1", "i-2", "i-3"]), error);
        assert_eq!((batches, result.gone), (vec![ids(&["i-0", "i-2"])], ["i-1".to_owned(), "i-3".to_owned()].into()));
    }

    #[test]
    fn an_error_without_names_is_searched_for_by_halves() {
        let (mut result, mut batches) = (Terminated::default(), Vec::new());
        let error = || refused("OperationNotPermitted", "it is protected");
        sort_out(&mut result, &mut batches, ids(&["i-0", "i-1", "i-2"]), error());
        assert_eq!(batches, [ids(&["i-0"]), ids(&["i-1", "i-2"])]);
        sort_out(&mut result, &mut batches, ids(&["i-9"]), error());
        assert_eq!(result.refused.keys().collect::<Vec<_>>(), ["i-9"]);
    }
}
