//! Serves HTTP/1.1: one listener, one handler, everything bounded.
//!
//! # Invariants
//!
//! 1. A request that a handler has begun is carried to its end, though its client be gone: what
//!    is on disk by then is told to the worker all the same.
//! 2. A handler that panics costs its own connection and nothing else.
//! 3. Told to stop, it answers what it has, closes the rest, and returns.
//! 4. No body is read before the handler has seen its head and let it in.
//!
//! Not here: what is answered (`api`, `ingest`, `admin`), how often one may ask (the gateway).

pub mod body;
pub mod problems;
mod write_timeout;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::log::events;
use crate::problem::Problem;
use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
pub use http::request::Parts as Head;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use log::Level;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::task::{JoinError, JoinSet};

use crate::http_server::body::Held;
use crate::http_server::write_timeout::{Patience, Patient, Turns};

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
        let headers = vec![("content-type", crate::problem::MEDIA_TYPE.to_owned())];
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

    /// The answer where a head is enough to refuse a request: its body is not read then.
    fn refuses(&self, _head: &Head) -> Option<Reply> {
        None
    }

    /// The largest body of a request to `path`; more is 413.
    fn body_bytes_max(&self, path: &str) -> usize;
}

/// Those who are answering: they finish what they began, though its client has gone.
#[derive(Default)]
struct Hands(Mutex<JoinSet<()>>);

impl Hands {
    /// Has a request answered; nothing comes where that ended in a panic.
    fn take(
        &self,
        handler: Arc<dyn Handler>,
        call: Call,
        room: Option<OwnedSemaphorePermit>,
    ) -> oneshot::Receiver<Reply> {
        let (answer, answered) = oneshot::channel();
        let mut at_work = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ended) = at_work.try_join_next() {
            report(ended);
        }
        at_work.spawn(async move {
            let reply = handler.handle(call).await;
            drop(room);
            // Its client may have gone in the meantime.
            let _ = answer.send(reply);
        });
        answered
    }

    async fn ended(&self) {
        let mut at_work =
            std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        while let Some(ended) = at_work.join_next().await {
            report(ended);
        }
    }
}

/// What a listener allows.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// A whole request head.
    pub head_timeout: Duration,
    /// A connection without a request.
    pub idle_timeout: Duration,
    /// A whole request body; and for the client to take its answer.
    pub body_timeout: Duration,
    /// Connections that may be open.
    pub connections: Arc<Semaphore>,
    /// Bytes of bodies that may be held at one time.
    pub bodies_bytes_max: usize,
}

/// What the connections of a listener have in common.
struct Desk {
    handler: Arc<dyn Handler>,
    hands: Hands,
    bounds: Bounds,
    /// Bytes of bodies for which there is room.
    bodies: Arc<Semaphore>,
}

/// Serves until told to stop, then finishes the requests it has.
pub async fn serve(
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    bounds: Bounds,
    mut stopping: watch::Receiver<bool>,
) {
    let mut open = JoinSet::new();
    let bodies = Arc::new(Semaphore::new(bounds.bodies_bytes_max.min(Semaphore::MAX_PERMITS)));
    let desk = Arc::new(Desk { handler, hands: Hands::default(), bounds, bodies });
    loop {
        tokio::select! {
            biased;
            () = told_to_stop(&mut stopping) => break,
            Some(ended) = open.join_next() => report(ended),
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    // Over the bound the stream is dropped: closed before a byte is read.
                    if let Ok(permit) = Arc::clone(&desk.bounds.connections).try_acquire_owned() {
                        let of = Connection {
                            desk: Arc::clone(&desk),
                            stopping: stopping.clone(),
                            permit,
                        };
                        open.spawn(of.run(stream));
                    }
                }
                Err(error) => {
                    let fields = [("error", error.to_string().into())];
                    events::event(Level::Warn, "a connection could not be accepted", &fields);
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
        }
    }
    drop(listener);
    while let Some(ended) = open.join_next().await {
        report(ended);
    }
    desk.hands.ended().await;
}

/// Returns once we are to stop, or whoever could say so is gone.
async fn told_to_stop(stopping: &mut watch::Receiver<bool>) {
    let _ = stopping.wait_for(|stop| *stop).await;
}

fn report(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        let fields = [("error", error.to_string().into())];
        events::event(Level::Error, "a task ended in a panic", &fields);
    }
}

struct Connection {
    desk: Arc<Desk>,
    stopping: watch::Receiver<bool>,
    permit: OwnedSemaphorePermit,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        let Self { desk, mut stopping, permit } = self;
        // Answers are small and waited for. A socket that refuses is slower, not wrong.
        let _ = stream.set_nodelay(true);
        let refused = Arc::new(AtomicBool::new(false));
        let Bounds { head_timeout, idle_timeout, body_timeout, .. } = desk.bounds;
        let patience = Patience { head: head_timeout, idle: idle_timeout, answer: body_timeout };
        let turns = Arc::new(Turns::default());
        let stream = Patient::new(stream, patience, Arc::clone(&turns));
        let service = service_fn(|request| -> Answering {
            turns.next();
            let answering = answer(Arc::clone(&desk), Arc::clone(&refused), request);
            let turns = Arc::clone(&turns);
            Box::pin(async move {
                let answered = answering.await;
                turns.next();
                answered
            })
        });
        let mut connection = http1::Builder::new()
            // The stream has timers of its own, which tell an idle connection from a slow head.
            .header_read_timeout(None)
            .max_buf_size(HEAD_BYTES_MAX)
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
            let stream = connection.into_parts().io.into_inner().into_stream();
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
    desk: Arc<Desk>,
    refused: Arc<AtomicBool>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (mut head, body) = request.into_parts();
    let is_head = head.method == Method::HEAD;
    if is_head {
        head.method = Method::GET;
    }
    let has_body = !body.is_end_stream();
    let reply = match let_in(&desk, &head, body).await {
        Ok(Held { bytes, room }) => {
            let call = Call {
                method: head.method,
                path: head.uri.path().to_owned(),
                query: head.uri.query().map(str::to_owned),
                headers: head.headers,
                body: bytes,
            };
            let answered = desk.hands.take(Arc::clone(&desk.handler), call, room).await;
            answered.unwrap_or_else(|_| problems::broken())
        }
        Err(reply) if has_body => {
            refused.store(true, Ordering::Relaxed);
            reply.with("connection", "close")
        }
        Err(reply) => reply,
    };
    Ok(written(reply, is_head))
}

/// The body of a request whose head is good.
async fn let_in(desk: &Desk, head: &Head, body: Incoming) -> Result<Held, Reply> {
    if head_bytes(head) > HEAD_BYTES_MAX {
        return Err(Reply::problem(&problems::head_too_large(HEAD_BYTES_MAX)));
    }
    if let Some(reply) = desk.handler.refuses(head) {
        return Err(reply);
    }
    if is_encoded(&head.headers) {
        return Err(problems::encoding());
    }
    let most = desk.handler.body_bytes_max(head.uri.path());
    body::read(body, most, desk.bounds.body_timeout, &desk.bodies).await
}

/// Whether a body comes compressed: none is decompressed here.
fn is_encoded(headers: &HeaderMap) -> bool {
    let codings = headers.get_all(CONTENT_ENCODING).iter().flat_map(|value| {
        let text = value.as_bytes();
        text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
    });
    codings.into_iter().any(|one| !one.is_empty() && !one.eq_ignore_ascii_case(b"identity"))
}

/// What a head takes on its way, but for spaces that say nothing. The connection's own bound is on
/// what it has read and not understood yet: more may come in one piece.
fn head_bytes(head: &Head) -> usize {
    let first = head.method.as_str().len() + head.uri.to_string().len() + "  HTTP/1.1\r\n".len();
    let field = |(name, value): (&HeaderName, &HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    first + head.headers.iter().map(field).sum::<usize>() + "\r\n".len()
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
        // What no header can hold is left out rather than sent as something else.
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            headers.insert(name, value);
        }
    }
    if is_head {
        headers.insert(CONTENT_LENGTH, HeaderValue::from(reply.body.len()));
    } else {
        *response.body_mut() = Full::new(reply.body);
    }
    response
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    /// Far longer than anything here takes, far shorter than anybody waits.
    const SOON: Duration = Duration::from_secs(20);

    /// More than sockets hold for those who do not read.
    const LARGE_BYTES: usize = 32 << 20;

    #[derive(Default)]
    struct Echo {
        bodies: AtomicUsize,
        begun: Notify,
        go_on: Notify,
        ended: Notify,
    }

    #[async_trait::async_trait]
    impl Handler for Echo {
        async fn handle(&self, call: Call) -> Reply {
            self.bodies.fetch_add(call.body.len(), Ordering::Relaxed);
            match call.path.as_str() {
                "/large" => {
                    let body = vec![b'x'; LARGE_BYTES].into();
                    return Reply { status: 200, headers: Vec::new(), body };
                }
                "/panic" => panic!("as it was asked to"),
                "/wait" => {
                    self.begun.notify_one();
                    self.go_on.notified().await;
                    self.ended.notify_one();
                }
                _ => {}
            }
            let said = format!("{} {} {}", call.method, call.path, call.body.len());
            let headers = vec![("content-type", "text/plain".to_owned())];
            Reply { status: 200, headers, body: said.into() }
        }

        fn refuses(&self, head: &Head) -> Option<Reply> {
            (head.uri.path() == "/closed").then(problems::not_found)
        }

        fn body_bytes_max(&self, _path: &str) -> usize {
            10
        }
    }

    struct Server {
        address: SocketAddr,
        echo: Arc<Echo>,
        connections: Arc<Semaphore>,
        stop: watch::Sender<bool>,
        serving: JoinSet<()>,
    }

    async fn server(connections: usize) -> Server {
        server_with(connections, |bounds| bounds).await
    }

    async fn server_with(connections: usize, change: impl FnOnce(Bounds) -> Bounds) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopping) = watch::channel(false);
        let echo = Arc::new(Echo::default());
        let places = Arc::new(Semaphore::new(connections));
        let bounds = Bounds {
            head_timeout: Duration::from_millis(200),
            idle_timeout: Duration::from_secs(3_600),
            body_timeout: Duration::from_millis(200),
            connections: Arc::clone(&places),
            bodies_bytes_max: 15,
        };
        let bounds = change(bounds);
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&echo) as Arc<dyn Handler>, bounds, stopping));
        Server { address, echo, connections: places, stop, serving }
    }

    impl Server {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.expect("it listens")
        }

        /// What comes back until the connection closes.
        async fn told(&self, request: &str) -> String {
            let mut stream = self.connect().await;
            stream.write_all(request.as_bytes()).await.expect("it reads");
            rest_of(stream).await
        }
    }

    async fn rest_of(mut stream: TcpStream) -> String {
        let mut text = Vec::new();
        let reading = stream.read_to_end(&mut text);
        let read = tokio::time::timeout(SOON, reading).await.expect("it closes");
        read.expect("it closes in order");
        String::from_utf8(text).expect("it is text").to_ascii_lowercase()
    }

    async fn first_of(stream: &mut TcpStream) -> String {
        let mut text = vec![0; 4096];
        let reading = stream.read(&mut text);
        let count =
            tokio::time::timeout(SOON, reading).await.expect("it answers").expect("it reads");
        String::from_utf8_lossy(&text[..count]).to_ascii_lowercase()
    }

    const CLOSE: &str = "host: x\r\nconnection: close\r\n\r\n";

    #[tokio::test]
    async fn an_answer_says_that_nobody_is_to_keep_it() {
        let server = server(9).await;
        let told = server.told(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(told.starts_with("http/1.1 200 ok\r\n"), "{told}");
        for line in ["cache-control: no-store", "x-content-type-options: nosniff"] {
            assert!(told.contains(&format!("\r\n{line}\r\n")), "{told}");
        }
        assert!(told.ends_with("\r\n\r\nget /a 0"), "{told}");
    }

    #[tokio::test]
    async fn a_head_is_a_get_without_its_body() {
        let server = server(9).await;
        let told = server.told(&format!("HEAD /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(told.contains("\r\ncontent-length: 8\r\n"), "{told}");
        assert!(told.ends_with("\r\n\r\n"), "{told}");
    }

    #[tokio::test]
    async fn a_body_that_says_it_is_too_large_is_refused_unread() {
        let server = server(9).await;
        let head = "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n";
        let mut stream = server.connect().await;
        stream.write_all(head.as_bytes()).await.expect("it reads");
        let told = first_of(&mut stream).await;
        assert!(told.starts_with("http/1.1 413 "), "{told}");
        assert!(told.contains("\r\nconnection: close\r\n"), "{told}");
        assert!(told.contains("application/problem+json"), "{told}");
        let told = server
            .told(
                &head
                    .replace("11", "10")
                    .replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n0123456789"),
            )
            .await;
        assert!(told.ends_with("post /a 10"), "{told}");
    }

    #[tokio::test]
    async fn what_its_head_refuses_is_refused_before_its_body_is_asked_for() {
        let server = server(9).await;
        let expect = "host: x\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n";
        let mut stream = server.connect().await;
        let request = format!("POST /closed HTTP/1.1\r\n{expect}");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let told = first_of(&mut stream).await;
        assert!(told.starts_with("http/1.1 404 "), "{told}");
        assert!(told.contains("\r\nconnection: close\r\n"), "{told}");
        let mut stream = server.connect().await;
        let request = format!("POST /a HTTP/1.1\r\n{expect}");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        assert_eq!(first_of(&mut stream).await, "http/1.1 100 continue\r\n\r\n");
        // Where there is no body, there is no reason to part.
        let mut stream = server.connect().await;
        stream.write_all(b"GET /closed HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        let told = first_of(&mut stream).await;
        assert!(told.starts_with("http/1.1 404 ") && !told.contains("connection:"), "{told}");
    }

    #[tokio::test]
    async fn bodies_have_a_bound_together_and_give_back_what_they_took() {
        let server = server(9).await;
        let ten = "host: x\r\nconnection: close\r\ncontent-length: 10\r\n\r\n0123456789";
        let mut first = server.connect().await;
        let wait = format!("POST /wait HTTP/1.1\r\n{ten}");
        first.write_all(wait.as_bytes()).await.expect("it reads");
        server.echo.begun.notified().await;
        let told = server.told(&format!("POST /a HTTP/1.1\r\n{ten}")).await;
        assert!(told.starts_with("http/1.1 503 "), "{told}");
        assert!(told.contains("\r\nretry-after: 1\r\n"), "{told}");
        assert!(told.contains("\r\nconnection: close\r\n"), "{told}");
        assert_eq!(server.echo.bodies.load(Ordering::Relaxed), 10);
        server.echo.go_on.notify_one();
        assert!(rest_of(first).await.ends_with("post /wait 10"));
        let told = server.told(&format!("POST /a HTTP/1.1\r\n{ten}")).await;
        assert!(told.ends_with("post /a 10"), "{told}");
    }

    #[tokio::test]
    async fn whoever_sends_too_much_still_hears_why() {
        let server = server(9).await;
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(65_536));
        let request = format!(
            "POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n",
            chunk.repeat(64)
        );
        let told = server.told(&request).await;
        assert!(told.starts_with("http/1.1 413 "), "{}", told.len());
    }

    #[tokio::test]
    async fn slow_heads_and_slow_bodies_end() {
        let server = server(9).await;
        assert_eq!(server.told("GET /a HT").await, "");
        let told = server.told("POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab").await;
        assert!(told.starts_with("http/1.1 408 "), "{told}");
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_by_its_own_timeout_and_a_head_that_began_by_another() {
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(3_600));
        let request = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n";
        for (idle_timeout, head_timeout, next) in [(short, long, ""), (long, short, "GET /b")] {
            let server =
                server_with(9, |bounds| Bounds { idle_timeout, head_timeout, ..bounds }).await;
            let mut stream = server.connect().await;
            stream.write_all(request).await.expect("it reads");
            assert!(first_of(&mut stream).await.ends_with("get /a 0"));
            stream.write_all(next.as_bytes()).await.expect("it reads");
            assert_eq!(rest_of(stream).await, "", "idle {idle_timeout:?}, head {head_timeout:?}");
        }
    }

    #[tokio::test]
    async fn a_compressed_body_is_refused_with_what_would_be_taken() {
        let server = server(9).await;
        let ask = |coding: &str| {
            let body = "content-length: 2\r\nconnection: close\r\n\r\n{}";
            format!("POST /a HTTP/1.1\r\nhost: x\r\ncontent-encoding: {coding}\r\n{body}")
        };
        for coding in ["gzip", "zstd", "GZIP", "identity, gzip", "br\r\ncontent-encoding: identity"]
        {
            let told = server.told(&ask(coding)).await;
            assert!(told.starts_with("http/1.1 415 "), "{coding}: {told}");
            assert!(told.contains("\r\naccept-encoding: identity\r\n"), "{coding}: {told}");
            assert!(told.contains("unsupported-content-encoding"), "{coding}: {told}");
        }
        for coding in ["identity", "Identity", ""] {
            let told = server.told(&ask(coding)).await;
            assert!(told.ends_with("post /a 2"), "{coding}: {told}");
        }
    }

    #[tokio::test]
    async fn whoever_does_not_take_an_answer_makes_place() {
        let server = server(1).await;
        let mut idle = server.connect().await;
        idle.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        // Its answer has begun, so the place is taken.
        idle.readable().await.expect("it answers");
        let place = tokio::time::timeout(SOON, server.connections.acquire()).await;
        assert!(place.is_ok(), "its place is taken for ever");
        drop(place);
        let told = server.told(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(told.starts_with("http/1.1 200 "), "{told}");
    }

    #[tokio::test]
    async fn a_head_has_a_bound() {
        let server = server(9).await;
        let told = server.told(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_BYTES_MAX))).await;
        assert!(told.starts_with("http/1.1 431 ") || told.starts_with("http/1.1 414 "), "{told}");
        // Just above the bound, and just below it.
        let head = |count: usize| format!("GET /a HTTP/1.1\r\nx: {}\r\n{CLOSE}", "a".repeat(count));
        let around = head(0).len();
        let told = server.told(&head(HEAD_BYTES_MAX + 1 - around)).await;
        assert!(told.starts_with("http/1.1 431 "), "{told}");
        let told = server.told(&head(HEAD_BYTES_MAX - around)).await;
        assert!(told.starts_with("http/1.1 200 "), "{told}");
    }

    #[tokio::test]
    async fn a_panic_costs_its_own_request_and_nothing_else() {
        let server = server(9).await;
        let told = server.told(&format!("GET /panic HTTP/1.1\r\n{CLOSE}")).await;
        assert!(told.starts_with("http/1.1 500 "), "{told}");
        let told = server.told(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(told.starts_with("http/1.1 200 "), "{told}");
    }

    #[tokio::test]
    async fn a_request_that_was_begun_is_carried_to_its_end_though_its_client_is_gone() {
        let server = server(9).await;
        let mut stream = server.connect().await;
        stream.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        server.echo.begun.notified().await;
        stream.set_zero_linger().expect("a socket");
        drop(stream);
        // Another connection's answer: ours has been told of its end by then.
        let _ = server.told(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        server.echo.go_on.notify_one();
        let ended = tokio::time::timeout(SOON, server.echo.ended.notified()).await;
        assert!(ended.is_ok(), "it was dropped half way");
    }

    #[tokio::test]
    async fn a_stop_finishes_what_was_begun_and_closes_the_rest() {
        let mut server = server(9).await;
        let mut begun = server.connect().await;
        begun.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        server.echo.begun.notified().await;
        let mut idle = server.connect().await;
        idle.write_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        assert!(first_of(&mut idle).await.starts_with("http/1.1 200 "));
        server.stop.send(true).expect("somebody serves");
        assert_eq!(rest_of(idle).await, "");
        server.echo.go_on.notify_one();
        assert!(rest_of(begun).await.ends_with("get /wait 0"));
        let returned = tokio::time::timeout(SOON, server.serving.join_next()).await;
        assert!(matches!(returned, Ok(Some(Ok(())))), "{returned:?}");
        assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
    }

    #[tokio::test]
    async fn over_the_bound_a_connection_is_closed_at_once() {
        let server = server(1).await;
        let mut first = server.connect().await;
        first.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        server.echo.begun.notified().await;
        assert_eq!(rest_of(server.connect().await).await, "");
        server.echo.go_on.notify_one();
        assert!(first_of(&mut first).await.starts_with("http/1.1 200 "));
    }
}
