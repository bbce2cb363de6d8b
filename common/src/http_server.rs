//! Serves HTTP/1.1 on one listener with one handler; connections, bytes and waits are bounded.
//!
//! # Invariants
//!
//! 1. A handler that has started runs to its end even if its client disconnects: stopping it could
//!    leave a change half done. The rest of a streamed body is made only while its client reads it.
//! 2. A handler that panics fails its own request with a 500, and no other.
//! 3. On a stop, requests in progress are finished, idle connections closed; then it returns.
//! 4. No body is read before the handler has accepted the request's head.
//! 5. A client without a verified credential takes no connection from one with it: its connection
//!    may be evicted, except while a request of it that was read whole is handled; of these there
//!    are half as many as connections. Nor does its body take a byte from the budget of those
//!    with one.
//!
//! Not here: which calls exist and their responses (the handlers of each program, `admin`).

pub mod body;
mod eviction;
mod head;
pub mod listeners;
pub mod problems;
pub mod reply;
mod request_tasks;
mod write_timeout;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
pub use http::request::Parts as Head;
use http::{HeaderMap, Method, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

use crate::http_server::body::{OPEN_PART, ReadBody};
use crate::http_server::eviction::{ConnectionHandle, EvictableConnections};
use crate::http_server::head::{head_bytes, is_encoded};
use crate::http_server::listeners::accept_failed;
use crate::http_server::reply::{Reply, ReplyBody};
use crate::http_server::request_tasks::{RequestTasks, report};
use crate::http_server::write_timeout::{RequestPhase, TimedStream, Timeouts};

/// The largest request head in bytes by default, in both programs.
pub const HEAD_BYTES_MAX: usize = 32 * 1024;

/// How long a lingering close reads and discards a refused body. Closing at once would send a TCP
/// reset to a client that still sends, and the reset can destroy our response on its way.
const LINGER: Duration = Duration::from_secs(2);

/// The smallest buffer that hyper accepts; a lower limit on heads is checked after parsing.
const BUFFER_BYTES_MIN: usize = 8 * 1024;

/// A request with its whole body.
#[derive(Clone, Debug)]
pub struct Call {
    /// Its method; `GET` for `HEAD`.
    pub method: Method,
    /// Its path, as it was sent.
    pub path: String,
    /// Everything after the `?`.
    pub query: Option<String>,
    /// Its header fields.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Bytes,
}

/// Whose request a handler accepted by its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// That of a caller with a verified credential, whose connection stays.
    Verified,
    /// One that needs no credential, or has it in its body: its connection may be evicted.
    Open,
}

/// Answers the requests of a listener.
#[async_trait::async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Answers one request, in a task of its own: no other request waits for it.
    async fn handle(&self, call: Call) -> Reply;

    /// Whether a request is accepted by its head alone; a refused one's body is not read.
    ///
    /// # Errors
    ///
    /// The refusal.
    async fn accepts(&self, _head: &Head) -> Result<Acceptance, Reply> {
        Ok(Acceptance::Open)
    }

    /// A permit of the caller's share of the connections, from the head of its request until its
    /// client has read the response; `Err` refuses the request, whose body is then not read.
    ///
    /// # Errors
    ///
    /// The refusal, if the share is used up.
    fn share(&self, _head: &Head) -> Result<Option<OwnedSemaphorePermit>, Reply> {
        Ok(None)
    }

    /// The largest body of an accepted request to `path`, in bytes; a larger one is refused with
    /// 413.
    fn body_bytes_max(&self, path: &str, acceptance: Acceptance) -> usize;
}

/// What a listener does with connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Listening {
    /// It accepts and serves them.
    #[default]
    Open,
    /// It accepts none: new ones wait in the kernel's queue.
    Paused,
    /// Its socket is closed; each connection is closed after its next response.
    Draining,
    /// Idle connections are closed at once, too.
    Closing,
}

/// Limits of a listener.
#[derive(Clone)]
pub struct Bounds {
    /// Limits of one connection, read when it is accepted because a reload may change them.
    pub connection: Arc<dyn Fn() -> ConnectionBounds + Send + Sync>,
    /// A permit for each connection that may be open; none is, before it serves.
    pub connections: Arc<Semaphore>,
    /// Bytes of request bodies in memory at one time, of verified callers; those of others have a
    /// quarter as many beside them.
    pub bodies_bytes_max: usize,
}

/// Limits of one connection.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionBounds {
    /// Bytes of a request head; a larger one is refused with 431.
    pub head_bytes_max: usize,
    /// The time for a whole request head.
    pub head_timeout: Duration,
    /// The time that a connection may be idle between requests.
    pub idle_timeout: Duration,
    /// The time for a whole request body; and for the client to read its response, or each piece
    /// of one that is streamed.
    pub body_timeout: Duration,
}

/// State that the connections of a listener share.
struct Server {
    handler: Arc<dyn Handler>,
    requests: RequestTasks,
    /// A permit for each byte of bodies of verified callers that may still be read.
    bodies: Arc<Semaphore>,
    /// The same for those of all others.
    open_bodies: Arc<Semaphore>,
    /// A permit for each request without a verified credential that may be handled: one may wait
    /// for another server for long.
    open_requests: Arc<Semaphore>,
}

/// Serves until `listening` is `Draining` or `Closing`, then finishes the requests in progress.
/// A dropped sender means `Closing`.
pub async fn serve(
    listener: TcpListener,
    handler: Arc<dyn Handler>,
    bounds: Bounds,
    mut listening: watch::Receiver<Listening>,
) {
    let mut open = JoinSet::new();
    let evictable = Arc::new(EvictableConnections::default());
    let budget = |bytes: usize| Arc::new(Semaphore::new(bytes.min(Semaphore::MAX_PERMITS)));
    let server = Arc::new(Server {
        handler,
        requests: RequestTasks::default(),
        bodies: budget(bounds.bodies_bytes_max),
        open_bodies: budget(bounds.bodies_bytes_max / OPEN_PART),
        open_requests: budget(bounds.connections.available_permits().div_ceil(2)),
    });
    loop {
        let now = *listening.borrow_and_update();
        if now >= Listening::Draining {
            break;
        }
        tokio::select! {
            biased;
            changed = listening.changed() => if changed.is_err() {
                break;
            },
            Some(ended) = open.join_next() => report(ended),
            accepted = listener.accept(), if now == Listening::Open => match accepted {
                Ok((stream, _)) => {
                    let admitted = evictable.admit(&bounds.connections);
                    // Not admitted, the stream is dropped: closed before a byte is read.
                    if let Some((handle, evicted)) = admitted {
                        let task = ConnectionTask {
                            server: Arc::clone(&server),
                            bounds: (bounds.connection)(),
                            listening: listening.clone(),
                            handle,
                            refused: AtomicBool::new(false),
                        };
                        open.spawn(async move {
                            tokio::select! {
                                () = run(Arc::new(task), stream) => {}
                                _ = evicted => {}
                            }
                        });
                    }
                }
                Err(error) => accept_failed(&error).await,
            },
        }
    }
    drop(listener);
    while let Some(ended) = open.join_next().await {
        report(ended);
    }
    server.requests.ended().await;
}

async fn closing(listening: &mut watch::Receiver<Listening>) {
    // An error means that the sender was dropped, which closes too.
    let _ = listening.wait_for(|now| *now == Listening::Closing).await;
}

/// State that the requests of one connection share.
struct ConnectionTask {
    server: Arc<Server>,
    bounds: ConnectionBounds,
    listening: watch::Receiver<Listening>,
    handle: ConnectionHandle,
    /// Whether a body was refused unread.
    refused: AtomicBool,
}

async fn run(task: Arc<ConnectionTask>, stream: TcpStream) {
    // Responses are small and clients wait for them; without TCP_NODELAY they are only slower.
    let _ = stream.set_nodelay(true);
    let ConnectionBounds { head_bytes_max, head_timeout, idle_timeout, body_timeout } = task.bounds;
    let timeouts = Timeouts { head: head_timeout, idle: idle_timeout, answer: body_timeout };
    let phase = Arc::new(RequestPhase::default());
    let stream = TimedStream::new(stream, timeouts, Arc::clone(&phase));
    let service = service_fn(|request| -> Answering {
        phase.next();
        let (task, phase) = (Arc::clone(&task), Arc::clone(&phase));
        Box::pin(async move {
            let response = task.answer(request, &phase).await;
            phase.next();
            Ok(response)
        })
    });
    let mut connection = http1::Builder::new()
        // `TimedStream` has the timers: it distinguishes an idle connection from a slow head.
        .header_read_timeout(None)
        .max_buf_size(head_bytes_max.max(BUFFER_BYTES_MIN))
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service);
    let mut listening = task.listening.clone();
    let ended = tokio::select! {
        ended = poll_fn(|cx| connection.poll_without_shutdown(cx)) => ended,
        () = closing(&mut listening) => {
            Pin::new(&mut connection).graceful_shutdown();
            poll_fn(|cx| connection.poll_without_shutdown(cx)).await
        }
    };
    // A failed connection needs no action here: its client sees the failure.
    if ended.is_ok() {
        let stream = connection.into_parts().io.into_inner().into_stream();
        close(stream, task.refused.load(Ordering::Relaxed)).await;
    }
}

/// Closes a connection; with a lingering close if a body was refused unread.
async fn close(mut stream: TcpStream, refused: bool) {
    let closed = stream.shutdown().await;
    if refused && closed.is_ok() {
        let mut ignored = vec![0; 64 * 1024];
        let reading = async { while let Ok(1..) = stream.read(&mut ignored).await {} };
        // A client that still sends after `LINGER` has read its response by now, or never will.
        let _ = tokio::time::timeout(LINGER, reading).await;
    }
}

/// A request that was read whole.
struct Accepted {
    acceptance: Acceptance,
    body: ReadBody,
    /// One of those that may be handled without a verified credential.
    place: Option<OwnedSemaphorePermit>,
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<ReplyBody>, Infallible>> + Send>>;

impl ConnectionTask {
    async fn answer(
        &self,
        request: Request<Incoming>,
        phase: &Arc<RequestPhase>,
    ) -> Response<ReplyBody> {
        let (mut head, body) = request.into_parts();
        let is_head = head.method == Method::HEAD;
        if is_head {
            head.method = Method::GET;
        }
        let has_body = !body.is_end_stream();
        let reply = match self.read(&head, body, phase).await {
            Ok(Accepted { acceptance, body: ReadBody { bytes, permit }, place }) => {
                let call = Call {
                    method: head.method,
                    path: head.uri.path().to_owned(),
                    query: head.uri.query().map(str::to_owned),
                    headers: head.headers,
                    body: bytes,
                };
                let Server { handler, requests, .. } = &*self.server;
                let answered = requests.spawn(Arc::clone(handler), call, (permit, place)).await;
                if acceptance == Acceptance::Open {
                    self.handle.unpin();
                }
                answered.unwrap_or_else(|_| problems::broken())
            }
            Err(reply) if has_body => {
                self.refused.store(true, Ordering::Relaxed);
                reply.with("connection", "close")
            }
            Err(reply) => reply,
        };
        let is_last = *self.listening.borrow() >= Listening::Draining;
        let reply = if is_last { reply.with("connection", "close") } else { reply };
        reply.into_response(is_head, Arc::clone(phase))
    }

    /// Checks a request's head, then reads its body.
    async fn read(
        &self,
        head: &Head,
        body: Incoming,
        phase: &RequestPhase,
    ) -> Result<Accepted, Reply> {
        let head_bytes_max = self.bounds.head_bytes_max;
        if head_bytes(head) > head_bytes_max {
            return Err(problems::head_too_large(head_bytes_max));
        }
        let handler = &self.server.handler;
        let acceptance = handler.accepts(head).await?;
        phase.hold(None);
        phase.hold(handler.share(head)?);
        let bodies = match acceptance {
            Acceptance::Verified => {
                self.pin()?;
                &self.server.bodies
            }
            Acceptance::Open => {
                self.handle.unpin();
                &self.server.open_bodies
            }
        };
        if is_encoded(&head.headers) {
            return Err(problems::encoding());
        }
        let most = handler.body_bytes_max(head.uri.path(), acceptance);
        let body = body::read(body, most, self.bounds.body_timeout, bodies).await?;
        let place = match acceptance {
            Acceptance::Verified => None,
            Acceptance::Open => Some(self.open_permit()?),
        };
        // While it is handled, none is evicted: so there are no more handlers than connections.
        self.pin()?;
        Ok(Accepted { acceptance, body, place })
    }

    fn open_permit(&self) -> Result<OwnedSemaphorePermit, Reply> {
        let busy = |_| problems::busy("Too many requests without a session or token at once.");
        Arc::clone(&self.server.open_requests).try_acquire_owned().map_err(busy)
    }

    fn pin(&self) -> Result<(), Reply> {
        let evicted = || problems::busy("The connection gives way to another.");
        self.handle.pin().then_some(()).ok_or_else(evicted)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;
    use crate::http_server::reply::{BrokenOff, Rest};

    /// Far longer than any step here takes, short enough to wait for a failing test.
    const SOON: Duration = Duration::from_secs(20);

    /// More than socket buffers hold for a client that does not read.
    const LARGE_BYTES: usize = 32 << 20;

    #[derive(Default)]
    struct Echo {
        bodies: AtomicUsize,
        begun: Notify,
        released: Notify,
        ended: Notify,
    }

    /// So many pieces, then a break.
    fn pieces(count: u64) -> Rest {
        Rest::new(async move {
            let left = count.checked_sub(1).ok_or(BrokenOff)?;
            let piece = format!(", {left} left").into();
            Ok((left > 0).then(|| (piece, pieces(left))))
        })
    }

    #[async_trait::async_trait]
    impl Handler for Echo {
        async fn handle(&self, call: Call) -> Reply {
            self.bodies.fetch_add(call.body.len(), Ordering::Relaxed);
            match call.path.as_str() {
                "/large" => {
                    let body = vec![b'x'; LARGE_BYTES];
                    return Reply::new(200, "text/plain", body);
                }
                "/pieces" => {
                    let count = call.query.and_then(|count| count.parse().ok()).unwrap_or(0);
                    let rest = Some(pieces(count));
                    return Reply { rest, ..Reply::new(200, "text/plain", "first") };
                }
                "/panic" => panic!("as it was asked to"),
                "/wait" | "/open/wait" => {
                    self.begun.notify_one();
                    self.released.notified().await;
                    self.ended.notify_one();
                }
                _ => {}
            }
            let text = format!("{} {} {}", call.method, call.path, call.body.len());
            Reply::new(200, "text/plain", text)
        }

        async fn accepts(&self, head: &Head) -> Result<Acceptance, Reply> {
            match head.uri.path() {
                "/closed" => Err(problems::refusal(404, "closed", "Closed", "")),
                path if path.starts_with("/open") => Ok(Acceptance::Open),
                _ => Ok(Acceptance::Verified),
            }
        }

        fn body_bytes_max(&self, _path: &str, _acceptance: Acceptance) -> usize {
            10
        }
    }

    /// One body, and a half.
    const BODIES_BYTES_MAX: usize = 15;

    struct Running {
        address: SocketAddr,
        echo: Arc<Echo>,
        connections: Arc<Semaphore>,
        listening: watch::Sender<Listening>,
        serving: JoinSet<()>,
    }

    async fn server(connections: usize) -> Running {
        server_with(connections, |bounds| bounds).await
    }

    async fn server_with(
        connections: usize,
        change: impl FnOnce(ConnectionBounds) -> ConnectionBounds,
    ) -> Running {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (listening, subscriber) = watch::channel(Listening::Open);
        let echo = Arc::new(Echo::default());
        let connections = Arc::new(Semaphore::new(connections));
        let each = change(ConnectionBounds {
            head_bytes_max: HEAD_BYTES_MAX,
            head_timeout: Duration::from_millis(200),
            idle_timeout: Duration::from_secs(3_600),
            body_timeout: Duration::from_millis(200),
        });
        let bounds = Bounds {
            connection: Arc::new(move || each),
            connections: Arc::clone(&connections),
            bodies_bytes_max: BODIES_BYTES_MAX,
        };
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, Arc::clone(&echo) as Arc<dyn Handler>, bounds, subscriber));
        Running { address, echo, connections, listening, serving }
    }

    impl Running {
        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.expect("it listens")
        }

        /// The response, read until the connection closes.
        async fn exchange(&self, request: &str) -> String {
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
    async fn a_response_is_not_cacheable() {
        let server = server(9).await;
        let response = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.starts_with("http/1.1 200 ok\r\n"), "{response}");
        for line in ["cache-control: no-store", "x-content-type-options: nosniff"] {
            assert!(response.contains(&format!("\r\n{line}\r\n")), "{response}");
        }
        assert!(response.ends_with("\r\n\r\nget /a 0"), "{response}");
    }

    #[tokio::test]
    async fn a_head_is_a_get_without_its_body() {
        let server = server(9).await;
        let response = server.exchange(&format!("HEAD /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.contains("\r\ncontent-length: 8\r\n"), "{response}");
        assert!(response.ends_with("\r\n\r\n"), "{response}");
    }

    #[tokio::test]
    async fn a_body_announced_too_large_is_refused_unread() {
        let server = server(9).await;
        let head = "POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\n";
        let mut stream = server.connect().await;
        stream.write_all(head.as_bytes()).await.expect("it reads");
        let response = first_of(&mut stream).await;
        assert!(response.starts_with("http/1.1 413 "), "{response}");
        assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
        assert!(response.contains("application/problem+json"), "{response}");
        let response = server
            .exchange(
                &head
                    .replace("11", "10")
                    .replace("\r\n\r\n", "\r\nconnection: close\r\n\r\n0123456789"),
            )
            .await;
        assert!(response.ends_with("post /a 10"), "{response}");
    }

    #[tokio::test]
    async fn a_request_refused_by_its_head_gets_no_100_continue_for_its_body() {
        let server = server(9).await;
        let expect = "host: x\r\ncontent-length: 5\r\nexpect: 100-continue\r\n\r\n";
        let mut stream = server.connect().await;
        let request = format!("POST /closed HTTP/1.1\r\n{expect}");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let response = first_of(&mut stream).await;
        assert!(response.starts_with("http/1.1 404 "), "{response}");
        assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
        let mut stream = server.connect().await;
        let request = format!("POST /a HTTP/1.1\r\n{expect}");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        assert_eq!(first_of(&mut stream).await, "http/1.1 100 continue\r\n\r\n");
        // Without a body there is no reason to close the connection.
        let mut stream = server.connect().await;
        stream.write_all(b"GET /closed HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        let response = first_of(&mut stream).await;
        assert!(
            response.starts_with("http/1.1 404 ") && !response.contains("connection:"),
            "{response}"
        );
    }

    #[tokio::test]
    async fn bodies_share_a_budget_and_return_what_they_used() {
        let server = server(9).await;
        let ten = "host: x\r\nconnection: close\r\ncontent-length: 10\r\n\r\n0123456789";
        let mut first = server.connect().await;
        let wait = format!("POST /wait HTTP/1.1\r\n{ten}");
        first.write_all(wait.as_bytes()).await.expect("it reads");
        server.echo.begun.notified().await;
        let response = server.exchange(&format!("POST /a HTTP/1.1\r\n{ten}")).await;
        assert!(response.starts_with("http/1.1 503 "), "{response}");
        assert!(response.contains("\r\nretry-after: 1\r\n"), "{response}");
        assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
        assert_eq!(server.echo.bodies.load(Ordering::Relaxed), 10);
        server.echo.released.notify_one();
        assert!(rest_of(first).await.ends_with("post /wait 10"));
        let response = server.exchange(&format!("POST /a HTTP/1.1\r\n{ten}")).await;
        assert!(response.ends_with("post /a 10"), "{response}");
    }

    #[tokio::test]
    async fn bodies_that_anyone_may_send_take_nothing_from_those_of_verified_callers() {
        let server = server(9).await;
        let post = |path: &str, bytes: usize| {
            let fields = format!("host: x\r\nconnection: close\r\ncontent-length: {bytes}");
            format!("POST {path} HTTP/1.1\r\n{fields}\r\n\r\n{}", "0".repeat(bytes))
        };
        let most = BODIES_BYTES_MAX / OPEN_PART;
        let mut first = server.connect().await;
        first.write_all(post("/open/wait", most).as_bytes()).await.expect("it reads");
        server.echo.begun.notified().await;
        let response = server.exchange(&post("/open", 1)).await;
        assert!(response.starts_with("http/1.1 503 "), "{response}");
        let response = server.exchange(&post("/a", 10)).await;
        assert!(response.ends_with("post /a 10"), "{response}");
        server.echo.released.notify_one();
        assert!(rest_of(first).await.ends_with(&format!("post /open/wait {most}")));
        let response = server.exchange(&post("/open", 1)).await;
        assert!(response.ends_with("post /open 1"), "{response}");
    }

    #[tokio::test]
    async fn a_client_that_sends_too_much_still_gets_its_413() {
        let server = server(9).await;
        let chunk = format!("10000\r\n{}\r\n", "x".repeat(65_536));
        let request = format!(
            "POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{}0\r\n\r\n",
            chunk.repeat(64)
        );
        let response = server.exchange(&request).await;
        assert!(response.starts_with("http/1.1 413 "), "{}", response.len());
    }

    #[tokio::test]
    async fn slow_heads_and_slow_bodies_end() {
        let server = server(9).await;
        assert_eq!(server.exchange("GET /a HT").await, "");
        let response =
            server.exchange("POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nab").await;
        assert!(response.starts_with("http/1.1 408 "), "{response}");
    }

    #[tokio::test]
    async fn an_idle_connection_is_closed_by_its_own_timeout_and_a_head_that_began_by_another() {
        let (short, long) = (Duration::from_millis(50), Duration::from_secs(3_600));
        let request = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n";
        for (idle_timeout, head_timeout, next) in [(short, long, ""), (long, short, "GET /b")] {
            let server =
                server_with(9, |bounds| ConnectionBounds { idle_timeout, head_timeout, ..bounds })
                    .await;
            let mut stream = server.connect().await;
            stream.write_all(request).await.expect("it reads");
            assert!(first_of(&mut stream).await.ends_with("get /a 0"));
            stream.write_all(next.as_bytes()).await.expect("it reads");
            assert_eq!(rest_of(stream).await, "", "idle {idle_timeout:?}, head {head_timeout:?}");
        }
    }

    #[tokio::test]
    async fn a_compressed_body_is_refused_with_the_accepted_encoding() {
        let server = server(9).await;
        let request = |coding: &str| {
            let body = "content-length: 2\r\nconnection: close\r\n\r\n{}";
            format!("POST /a HTTP/1.1\r\nhost: x\r\ncontent-encoding: {coding}\r\n{body}")
        };
        for coding in ["gzip", "zstd", "GZIP", "identity, gzip", "br\r\ncontent-encoding: identity"]
        {
            let response = server.exchange(&request(coding)).await;
            assert!(response.starts_with("http/1.1 415 "), "{coding}: {response}");
            assert!(response.contains("\r\naccept-encoding: identity\r\n"), "{coding}: {response}");
            assert!(response.contains("unsupported-content-encoding"), "{coding}: {response}");
        }
        for coding in ["identity", "Identity", ""] {
            let response = server.exchange(&request(coding)).await;
            assert!(response.ends_with("post /a 2"), "{coding}: {response}");
        }
    }

    #[tokio::test]
    async fn a_client_that_does_not_read_its_response_loses_its_connection() {
        let server = server(1).await;
        let mut idle = server.connect().await;
        idle.write_all(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        // Its response has started, so it has the only permit.
        idle.readable().await.expect("it answers");
        let place = tokio::time::timeout(SOON, server.connections.acquire()).await;
        assert!(place.is_ok(), "its place is taken for ever");
        drop(place);
        let response = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.starts_with("http/1.1 200 "), "{response}");
    }

    #[tokio::test]
    async fn a_streamed_body_has_all_its_pieces_or_no_end() {
        let server = server(9).await;
        let whole = server.exchange(&format!("GET /pieces?3 HTTP/1.1\r\n{CLOSE}")).await;
        assert!(whole.contains("\r\ntransfer-encoding: chunked\r\n"), "{whole}");
        let body = "5\r\nfirst\r\n8\r\n, 2 left\r\n8\r\n, 1 left\r\n0\r\n\r\n";
        assert!(whole.ends_with(body), "{whole}");
        let broken = server.exchange(&format!("GET /pieces HTTP/1.1\r\n{CLOSE}")).await;
        assert!(!broken.ends_with("0\r\n\r\n"), "{broken}");
        let head = server.exchange(&format!("HEAD /pieces?3 HTTP/1.1\r\n{CLOSE}")).await;
        assert!(head.ends_with("\r\n\r\n") && !head.contains("content-length"), "{head}");
    }

    #[tokio::test]
    async fn a_head_has_a_bound() {
        let server = server(9).await;
        let response =
            server.exchange(&format!("GET /{} HTTP/1.1\r\n", "a".repeat(HEAD_BYTES_MAX))).await;
        assert!(
            response.starts_with("http/1.1 431 ") || response.starts_with("http/1.1 414 "),
            "{response}"
        );
        // One byte above the limit, and exactly at it.
        let head = |count: usize| format!("GET /a HTTP/1.1\r\nx: {}\r\n{CLOSE}", "a".repeat(count));
        let around = head(0).len();
        let response = server.exchange(&head(HEAD_BYTES_MAX + 1 - around)).await;
        assert!(response.starts_with("http/1.1 431 "), "{response}");
        let response = server.exchange(&head(HEAD_BYTES_MAX - around)).await;
        assert!(response.starts_with("http/1.1 200 "), "{response}");
    }

    #[tokio::test]
    async fn a_panic_costs_its_own_request_and_nothing_else() {
        let server = server(9).await;
        let response = server.exchange(&format!("GET /panic HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.starts_with("http/1.1 500 "), "{response}");
        let response = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.starts_with("http/1.1 200 "), "{response}");
    }

    #[tokio::test]
    async fn a_request_is_finished_though_its_client_disconnected() {
        let server = server(9).await;
        let mut stream = server.connect().await;
        stream.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        server.echo.begun.notified().await;
        stream.set_zero_linger().expect("a socket");
        drop(stream);
        // Once another connection has its response, the server has noticed that ours has ended.
        let _ = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        server.echo.released.notify_one();
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
        server.listening.send(Listening::Closing).expect("it serves");
        assert_eq!(rest_of(idle).await, "");
        server.echo.released.notify_one();
        assert!(rest_of(begun).await.ends_with("get /wait 0"));
        let returned = tokio::time::timeout(SOON, server.serving.join_next()).await;
        assert!(matches!(returned, Ok(Some(Ok(())))), "{returned:?}");
        assert!(TcpStream::connect(server.address).await.is_err(), "the port is closed");
    }

    #[tokio::test]
    async fn while_it_pauses_a_connection_waits_and_is_served_afterwards() {
        let server = server(9).await;
        server.listening.send(Listening::Paused).expect("it serves");
        let mut stream = server.connect().await;
        stream.write_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it is open");
        let early = tokio::time::timeout(Duration::from_millis(100), stream.readable()).await;
        assert!(early.is_err(), "it is answered");
        server.listening.send(Listening::Open).expect("it serves");
        assert!(first_of(&mut stream).await.ends_with("get /a 0"));
    }

    #[tokio::test]
    async fn while_it_drains_an_idle_connection_has_one_more_answer_and_no_other_is_accepted() {
        let mut server = server(9).await;
        let request = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n";
        let mut idle = server.connect().await;
        idle.write_all(request).await.expect("it reads");
        assert!(!first_of(&mut idle).await.contains("connection:"));
        server.listening.send(Listening::Draining).expect("it serves");
        // The listener's socket is closed once it drains.
        while TcpStream::connect(server.address).await.is_ok() {}
        idle.write_all(request).await.expect("it reads");
        assert!(rest_of(idle).await.contains("\r\nconnection: close\r\n"));
        let returned = tokio::time::timeout(SOON, server.serving.join_next()).await;
        assert!(matches!(returned, Ok(Some(Ok(())))), "{returned:?}");
    }

    #[tokio::test]
    async fn over_the_bound_a_connection_is_closed_at_once() {
        let server = server(1).await;
        let mut first = server.connect().await;
        first.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        server.echo.begun.notified().await;
        assert_eq!(rest_of(server.connect().await).await, "");
        server.echo.released.notify_one();
        assert!(first_of(&mut first).await.starts_with("http/1.1 200 "));
        // Nor is a connection evicted that idles after a request was accepted.
        assert_eq!(rest_of(server.connect().await).await, "");
        first.write_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        assert!(first_of(&mut first).await.starts_with("http/1.1 200 "));
    }

    #[tokio::test]
    async fn over_the_bound_the_connection_that_has_waited_longest_to_be_accepted_is_evicted() {
        let long = Duration::from_secs(3_600);
        let server =
            server_with(2, |bounds| ConnectionBounds { head_timeout: long, ..bounds }).await;
        let mut refused = server.connect().await;
        let request = b"GET /closed HTTP/1.1\r\nhost: x\r\n\r\n";
        refused.write_all(request).await.expect("it reads");
        assert!(first_of(&mut refused).await.starts_with("http/1.1 404 "));
        let mut silent = server.connect().await;
        let third = server.connect().await;
        assert_eq!(rest_of(refused).await, "");
        let request = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n";
        silent.write_all(request).await.expect("it reads");
        assert!(first_of(&mut silent).await.ends_with("get /a 0"));
        let response = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.starts_with("http/1.1 200 "), "{response}");
        assert_eq!(rest_of(third).await, "");
    }

    /// Sends a request whose body never comes, and returns once the server waits for it.
    async fn stall(stream: &mut TcpStream, path: &str) {
        let fields = "host: x\r\ncontent-length: 9\r\nexpect: 100-continue\r\n\r\n";
        let request = format!("POST {path} HTTP/1.1\r\n{fields}");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        assert_eq!(first_of(stream).await, "http/1.1 100 continue\r\n\r\n");
    }

    #[tokio::test]
    async fn a_request_that_anyone_may_send_holds_no_connection_while_its_body_is_missing() {
        let long = Duration::from_secs(3_600);
        let server =
            server_with(1, |bounds| ConnectionBounds { body_timeout: long, ..bounds }).await;
        let mut stalled = server.connect().await;
        stall(&mut stalled, "/open").await;
        let mut known = server.connect().await;
        assert_eq!(rest_of(stalled).await, "");
        // Nor does it hold one that a verified caller used before: a proxy reuses connections.
        known.write_all(b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("it reads");
        assert!(first_of(&mut known).await.ends_with("get /a 0"));
        stall(&mut known, "/open").await;
        let response = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.ends_with("get /a 0"), "{response}");
        assert_eq!(rest_of(known).await, "");
    }

    #[tokio::test]
    async fn a_request_that_anyone_may_send_keeps_its_connection_while_it_is_handled() {
        let server = server(1).await;
        let mut first = server.connect().await;
        let request = b"GET /open/wait HTTP/1.1\r\nhost: x\r\n\r\n";
        first.write_all(request).await.expect("it reads");
        server.echo.begun.notified().await;
        assert_eq!(rest_of(server.connect().await).await, "");
        server.echo.released.notify_one();
        assert!(first_of(&mut first).await.ends_with("get /open/wait 0"));
        // Once it is answered, the connection may be evicted.
        let response = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.ends_with("get /a 0"), "{response}");
        assert_eq!(rest_of(first).await, "");
    }

    #[tokio::test]
    async fn requests_that_anyone_may_send_are_handled_on_half_of_the_connections_at_most() {
        let server = server(4).await;
        let mut handled = Vec::new();
        for _ in 0..2 {
            let mut client = server.connect().await;
            let request = b"GET /open/wait HTTP/1.1\r\nhost: x\r\n\r\n";
            client.write_all(request).await.expect("it reads");
            server.echo.begun.notified().await;
            handled.push(client);
        }
        for _ in 0..4 {
            let response = server.exchange(&format!("GET /open HTTP/1.1\r\n{CLOSE}")).await;
            assert!(response.starts_with("http/1.1 503 "), "{response}");
            assert!(response.contains("\r\nretry-after: 1\r\n"), "{response}");
        }
        // It is handled although its client is gone.
        drop(handled.pop());
        let response = server.exchange(&format!("GET /open HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.starts_with("http/1.1 503 "), "{response}");
        let response = server.exchange(&format!("GET /a HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.ends_with("get /a 0"), "{response}");
        server.echo.released.notify_one();
        server.echo.ended.notified().await;
        server.echo.released.notify_one();
        server.echo.ended.notified().await;
        let response = server.exchange(&format!("GET /open HTTP/1.1\r\n{CLOSE}")).await;
        assert!(response.ends_with("get /open 0"), "{response}");
    }
}
