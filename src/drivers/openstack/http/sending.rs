//! Sending: follows redirects as keystoneauth does, and repeats requests on connections that the server has closed.

use reqwest::header::LOCATION;
use reqwest::{Client, Request, RequestBuilder, Response, Url};

/// Maximum number of redirects of one request, as in keystoneauth.
const MAX_REDIRECTS: usize = 30;
/// Maximum number of times that a request is sent again because a kept connection turned out to be closed.
const MAX_CLOSED_CONNECTIONS: usize = 2;

/// Whether a request has the same effect if it is executed twice.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Repeatable {
    Yes,
    No,
}

/// Sends a request and follows redirects with the same method, headers and body, while a browser would turn a POST into
/// a GET. The server that redirects has not executed the request.
pub async fn send(builder: RequestBuilder, repeatable: Repeatable) -> reqwest::Result<Response> {
    let (client, request) = builder.build_split();
    let mut request = request?;
    for _ in 0..MAX_REDIRECTS {
        let Some(attempt) = request.try_clone() else { break };
        let answer = send_once(&client, attempt, repeatable).await?;
        let Some(target) = redirect_target(&answer) else { return Ok(answer) };
        *request.url_mut() = target;
    }
    send_once(&client, request, repeatable).await
}

/// If a kept connection ends without a byte of a response, a repeatable request is sent again at once on another one:
/// some servers close connections after each response without announcing it.
async fn send_once(client: &Client, request: Request, repeatable: Repeatable) -> reqwest::Result<Response> {
    for _ in 0..MAX_CLOSED_CONNECTIONS {
        let Some(attempt) = request.try_clone().filter(|_| repeatable == Repeatable::Yes) else { break };
        match client.execute(attempt).await {
            Err(error) if error.is_request() && !error.is_connect() && !error.is_timeout() => {}
            result => return result,
        }
    }
    client.execute(request).await
}

/// The address that a response redirects to.
fn redirect_target(answer: &Response) -> Option<Url> {
    if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 305 | 307 | 308) {
        return None;
    }
    let location = answer.headers().get(LOCATION)?.to_str().ok()?;
    answer.url().join(location).ok().filter(|url| matches!(url.scheme(), "http" | "https"))
}
