//! Request body of many gigabytes: read from a file in chunks while it is sent, and aborted if the transfer stalls.

use std::io::SeekFrom;
use std::path::PathBuf;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, Stream};
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE};
use reqwest::{Body, RequestBuilder, Response};
use tokio::fs::File;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::time::Instant;

use nodepool_model::config::upload_config::Progress;

/// Bytes per chunk.
const CHUNK_SIZE: usize = 256 * 1024;
/// A transfer without progress for this long has stalled.
const STALL_TIMEOUT: Duration = Duration::from_secs(120);
/// Time for the cloud to store the content after the last byte.
const STORE_TIMEOUT: Duration = Duration::from_secs(3600);
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of the whole request, instead of the timeout of other requests.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(86_400 * 7);

/// A range of a file, usually the whole file.
#[derive(Clone, Debug)]
pub struct Content {
    pub file: PathBuf,
    pub from: u64,
    pub size: u64,
    /// Position in the file, counted from its beginning.
    pub progress: Progress,
}

pub enum ContentError {
    Http(reqwest::Error),
    /// The file could not be read; nothing was sent.
    Local(String),
    Stalled(String),
}

impl Content {
    /// Sends a request with this content. Waits as long as the transfer makes progress.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response, ContentError> {
        let unreadable =
            |error: std::io::Error| ContentError::Local(format!("cannot read {}: {error}", self.file.display()));
        let mut file = File::open(&self.file).await.map_err(unreadable)?;
        file.seek(SeekFrom::Start(self.from)).await.map_err(unreadable)?;
        self.progress.set(self.from);
        let request = request.header(CONTENT_TYPE, "application/octet-stream").header(CONTENT_LENGTH, self.size);
        let sending = request.timeout(REQUEST_TIMEOUT).body(Body::wrap_stream(self.chunks(file))).send();
        tokio::select! {
            answer = sending => answer.map_err(ContentError::Http),
            text = self.stalled() => Err(ContentError::Stalled(text)),
        }
    }

    fn chunks(&self, file: File) -> impl Stream<Item = std::io::Result<Bytes>> + Send + use<> {
        let (progress, remaining) = (self.progress.clone(), self.size);
        stream::try_unfold((file, remaining, BytesMut::new()), move |(mut file, left, mut buffer)| {
            let progress = progress.clone();
            async move {
                if left == 0 {
                    return Ok(None);
                }
                buffer.reserve(CHUNK_SIZE);
                let mut limited = (&mut file).take(left.min(CHUNK_SIZE as u64));
                let read = limited.read_buf(&mut buffer).await?;
                if read == 0 {
                    return Err(std::io::Error::other("the file was truncated while it was sent"));
                }
                progress.set(progress.get() + read as u64);
                Ok(Some((buffer.split().freeze(), (file, left - read as u64, buffer))))
            }
        })
    }

    /// Resolves when the transfer has stalled.
    async fn stalled(&self) -> String {
        let (mut last_position, mut last_progress) = (self.progress.get(), Instant::now());
        let end = self.from + self.size;
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            let now = self.progress.get();
            if now != last_position {
                (last_position, last_progress) = (now, Instant::now());
            }
            let (limit, what) = match last_position >= end {
                true => (STORE_TIMEOUT, "all bytes were sent, but no response arrived"),
                false => (STALL_TIMEOUT, "no progress"),
            };
            if last_progress.elapsed() >= limit {
                return format!("the upload stalled: {what} for {} s, at byte {last_position}", limit.as_secs());
            }
        }
    }
}
