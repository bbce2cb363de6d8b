//! Serves HTTP/1.1: one listener, one handler, everything bounded.
//!
//! # Invariants
//!
//! 1. A request that a handler has begun is carried to its end, though its client be gone: what
//!    is on disk by then is told to the worker all the same.
//! 2. A handler that panics costs its own connection and nothing else.
//! 3. Told to stop, it answers what it has, closes the rest, and returns.
//!
//! Not here: what is answered (`api`, `ingest`, `admin`), how often one may ask (the gateway).

pub(crate) mod refuse;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use log::Level;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::{JoinError, JoinSet};
use weir_common::logging;
use weir_common::problem::Problem;

/// A request head. The gateway in front of us takes as much.
const HEAD_BYTES_MAX: usize = 32 * 1024;

/// After a failed accept (no file descriptors, mostly): long enough for some to come free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long we go on reading what was refused: closing at once would destroy our answer on its
/// way to a client that is still sending.
const LINGER: Duration = Duration::from_secs(2);

/// A request, read whole.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method.
    pub method: Method,
    /// Its path, as it was sent.
    pub path: String,
    /// What stood behind the `?`.
    pub query: Option<String>,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Its status.
    pub status: u16,
    /// Its header fields; `Content-Type` among them, where there is a body.
    pub headers: Vec<(&'static str, String)>,
    /// Its body.
    pub body: Bytes,
}

impl Reply {
    /// JSON, with this status.
    #[must_use]
    pub fn json(status: u16, value: &Value) -> Self {
        let headers = vec![("content-type", "application/json".to_owned())];
        Self { status, headers, body: value.to_string().into() }
    }

    /// A problem, with its status.
    #[must_use]
    pub fn problem(problem: &Problem) -> Self {
        let headers = vec![("content-type", weir_common::problem::MEDIA_TYPE.to_owned())];
        Self { status: problem.status, headers, body: problem.body().into() }
    }

    /// The same with one more header field.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }
}

/// Who answers.
#[async_trait::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answers one request. Nobody waits longer for it than the client does.
    async fn handle(&self, call: Call) -> Reply;

    /// The largest body of a request to `path`; more is 413.
    fn body_bytes_max(&self, path: &str) -> usize;
}

/// What a listener allows.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// A whole request head.
    pub head_timeout: Duration,
    /// A whole request body.
    pub body_timeout: Duration,
    /// Connections that may be open; shared between listeners.
    pub connections: Arc<Semaphore>,
}

/// Serves until told to stop, then finishes the requests it has.
pub async fn serve(
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    bounds: Bounds,
    mut stopping: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = told_to_stop(&mut stopping) => break,
            Some(ended) = open.join_next() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Over the bound the stream is dropped: closed before a byte is read.
                    if let Ok(permit) = Arc::clone(&bounds.connections).try_acquire_owned() {
                        let of = Connection {
                            handler: Arc::clone(&handler),
                            bounds: bounds.clone(),
                            stopping: stopping.clone(),
                            permit,
                        };
                        open.spawn(of.run(stream));
                    }
                }
                Err(error) => {
                    let fields = [("error", error.to_string().into())];
                    logging::event(Level::Warn, "a connection could not be accepted", &fields);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while let Some(ended) = open.join_next().await {
        report(ended);
    }
}

/// Returns once we are to stop, or whoever could say so is gone.
async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        let fields = [("error", error.to_string().into())];
        logging::event(Level::Error, "a connection ended in a panic", &fields);
    }
}

struct Connection {
    handler: Arc<dyn Handler>,
    bounds: Bounds,
    stopping: watch::Receiver<bool>,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        let Self { handler, bounds, mut stopping, permit } = self;
        // Answers are small and waited for. A socket that refuses is slower, not wrong.
        let _ = stream.set_nodelay(true);
        let refused = Arc::new(AtomicBool::new(false));
        let service = service_fn(|request| -> Answering {
            let (handler, refused) = (Arc::clone(&handler), Arc::clone(&refused));
            Box::pin(answer(handler, bounds.body_timeout, refused, request))
        });
        let mut connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head_timeout)
            .max_buf_size(HEAD_BYTES_MAX)
            // Without this the handler is dropped in mid-work when its client hangs up.
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        let ended = tokio::select! {
            ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
            () = told_to_stop(&mut stopping) => {
                Pin::new(&mut connection).graceful_shutdown();
                poll_fn(|cx| connection.poll_without_shutdown(cx)).await
            }
        };
        // What goes wrong with a connection its client sees; there is nothing to be done here.
        if ended.is_ok() {
            let stream = connection.into_parts().io.into_inner();
            part(stream, refused.load(Ordering::Relaxed)).await;
        }
        drop(permit);
    }
}

/// Closes a connection, and where a body was refused unread, reads on for a while.
async fn part(mut stream: TcpStream, refused: bool) {
    let closed = stream.shutdown().await;
    if refused && closed.is_ok() {
        let mut ignored = vec![0; 64 * 1024];
        let reading = async { while let Ok(1..) = stream.read(&mut ignored).await {} };
        // Whoever still sends after that has had its answer or never reads it.
        let _ = tokio::time::timeout(LINGER, reading).await;
    }
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send>>;

async fn answer(
    handler: Arc<dyn Handler>,
    body_timeout: Duration,
    refused: Arc<AtomicBool>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let most = handler.body_bytes_max(head.uri.path());
    let is_head = head.method == Method::HEAD;
    let reply = match read(body, most, body_timeout).await {
        Ok(body) => {
            let call = Call {
                method: if is_head { Method::GET } else { head.method },
                path: head.uri.path().to_owned(),
                query: head.uri.query().map(str::to_owned),
                headers: head.headers,
                body,
            };
            handler.handle(call).await
        }
        Err(problem) => {
            refused.store(true, Ordering::Relaxed);
            Reply::problem(&problem).with("connection", "close")
        }
    };
    Ok(written(reply, is_head))
}

async fn read(body: Incoming, most: usize, within: Duration) -> Result<Bytes, Problem> {
    if body.size_hint().lower() > most as u64 {
        return Err(refuse::body_too_large(most));
    }
    match tokio::time::timeout(within, Limited::new(body, most).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(refuse::body_too_large(most)),
        Ok(Err(_)) => Err(refuse::body_broken()),
        Err(_) => Err(refuse::body_too_slow(within)),
    }
}

/// The answer as it is sent: with what every answer carries, and to HEAD without its body.
fn written(reply: Reply, is_head: bool) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() =
        StatusCode::from_u16(reply.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert("cache-control", HeaderValue::from_static("no-store"));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    for (name, value) in reply.headers {
        // A value that no header can hold is left out rather than sent as something else.
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    if is_head {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(reply.body.len()));
    } else {
        *response.body_mut() = Full::new(reply.body);
    }
    response
}
