//! HTTP server: receives calls, delays them, and responds or closes the connection.

use std::any::Any;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Mutex;
use std::time::Duration;

use actix_web::dev::{Extensions, Server};
use actix_web::http::StatusCode;
use actix_web::{App, HttpRequest, HttpResponse, HttpServer, web};
use bytes::Bytes;
use futures::StreamExt;

use crate::call::Call;
use crate::cloud::simulation::{CallOutcome, Simulation};
use crate::response::Response;
use crate::services::image::ContentHasher;

/// Time from a response until the knob `close_connections` closes its connection. A client that sends its next call at
/// once loses it now and then, as on real clouds.
const CLOSE_DELAY: Duration = Duration::from_millis(2);

/// Maximum size of a body, except for image contents.
const MAX_BODY_SIZE: usize = 4 << 20;

pub type SharedSimulation = web::Data<Mutex<Simulation>>;

/// Whether SIGTERM and SIGINT stop a server.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Signals {
    Stop,
    Ignore,
}

/// Serves on a listener with one thread, so that equal sequences of calls have equal results.
pub fn run(listener: TcpListener, simulation: &SharedSimulation, signals: Signals) -> std::io::Result<Server> {
    let simulation = simulation.clone();
    let app = move || App::new().app_data(simulation.clone()).default_service(web::to(serve));
    let server = HttpServer::new(app).workers(1).on_connect(store_connection).shutdown_timeout(1).listen(listener)?;
    Ok(match signals {
        Signals::Stop => server.run(),
        Signals::Ignore => server.disable_signals().run(),
    })
}

/// A second handle of a connection, to close it without a response.
struct Connection(Option<TcpStream>);

fn store_connection(io: &dyn Any, extensions: &mut Extensions) {
    let stream = io.downcast_ref::<actix_web::rt::net::TcpStream>();
    let handle = stream.and_then(|stream| stream.as_fd().try_clone_to_owned().ok());
    extensions.insert(Connection(handle.map(TcpStream::from)));
}

async fn serve(simulation: SharedSimulation, request: HttpRequest, payload: web::Payload) -> HttpResponse {
    let call = Call::from_request(&request);
    let (delay, outcome) = simulation.lock().expect("no call panics").receive(&call);
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let answer = match outcome {
        CallOutcome::Respond(answer) => Some(answer),
        CallOutcome::Disconnect(after) => {
            tokio::time::sleep(after).await;
            None
        }
        CallOutcome::Execute(faults) => {
            let (upload, breaks_at) = {
                let mut simulation = simulation.lock().expect("no call panics");
                (simulation.uploadable_image(&call), simulation.upload_break_at())
            };
            if let Some(image) = upload {
                let Some(content) = receive_upload(payload, breaks_at).await else { return disconnect(&request) };
                simulation.lock().expect("no call panics").finish_upload(&call, image, content, &faults)
            } else {
                let Some(body) = read(payload).await else { return HttpResponse::PayloadTooLarge().finish() };
                simulation.lock().expect("no call panics").execute(&call, &body, &faults)
            }
        }
    };
    if call.service.is_some() && simulation.lock().expect("no call panics").closes_connections() {
        close_later(&request);
    }
    match answer {
        Some(answer) => http_response(answer),
        None => disconnect(&request),
    }
}

/// Closes the connection. The returned response is never delivered.
fn disconnect(request: &HttpRequest) -> HttpResponse {
    if let Some(Connection(Some(stream))) = request.conn_data::<Connection>() {
        // The peer may have closed the connection already.
        let _ = stream.shutdown(Shutdown::Both);
    }
    HttpResponse::InternalServerError().force_close().finish()
}

/// Ends the input of the connection soon: the server sends the response completely, and then closes the connection like
/// one that the client has closed.
fn close_later(request: &HttpRequest) {
    let Some(Connection(Some(stream))) = request.conn_data::<Connection>() else { return };
    let Ok(stream) = stream.try_clone() else { return };
    // The task ends after the delay, so the rate of calls bounds the number of tasks.
    actix_web::rt::spawn(async move {
        tokio::time::sleep(CLOSE_DELAY).await;
        // The peer may have closed the connection already.
        let _ = stream.shutdown(Shutdown::Read);
    });
}

async fn read(payload: web::Payload) -> Option<Bytes> {
    payload.to_bytes_limited(MAX_BODY_SIZE).await.ok()?.ok()
}

/// Receives and hashes the content of an upload; `None` if the peer stops in the middle, or if the knob
/// `uploads_break_at` breaks the connection.
async fn receive_upload(
    mut payload: web::Payload,
    breaks_at: Option<u64>,
) -> Option<crate::services::image::ImageContent> {
    let mut hasher = ContentHasher::new();
    while let Some(piece) = payload.next().await {
        hasher.update(&piece.ok()?);
        if breaks_at.is_some_and(|at| hasher.size() >= at) {
            return None;
        }
    }
    Some(hasher.finish())
}

fn http_response(answer: Response) -> HttpResponse {
    let status = StatusCode::from_u16(answer.status).expect("responses have valid HTTP statuses");
    let mut response = HttpResponse::build(status);
    response.content_type(answer.content_type);
    for (name, value) in answer.headers {
        response.insert_header((name, value));
    }
    response.body(answer.body)
}
