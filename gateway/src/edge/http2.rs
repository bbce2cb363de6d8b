//! Serves one client's HTTP/2 connection, and owns the task of each of its requests.
//!
//! Pingora's own loop detaches the tasks that it spawns, does not count them, and waits without
//! limit for a client's first bytes.
//!
//! # Invariants
//!
//! 1. At most `streams_max` requests of one connection are in progress, whatever its client resets
//!    (CVE-2023-44487): a request counts until its task has ended.
//! 2. A connection ends after `requests_max` requests, after `idle_timeout` without one, and on a
//!    stop. Requests in flight are finished, and none is lost.
//! 3. A panic ends the request it happened in, and no other.
//! 4. The memory of a connection is bounded: by windows, a send buffer and the size of a head.
//! 5. Each request in progress beyond the first counts as a connection (`open_connection`); where
//!    there is no room for it, it waits. One that its client cancels meanwhile is not handled.
//! 6. A client that sends many requests at once waits for those of others in between.
//!
//! # Not here
//!
//! Frames and protocol errors (`h2`), requests (`proxy`), clients that do not read (`connection`).

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, server};
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{
    H2Accept, H2Options, HttpSession, default_h2_options, handshake,
};
use pingora_core::protocols::{Digest, Stream};
use pingora_core::server::ShutdownWatch;
use prometheus::{IntCounter, IntGauge};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use weir_common::time::{Clock, Tick};

use crate::edge::connection::Client;
use crate::edge::exchange::Exchange;
use crate::edge::incoming::{Handler, Incoming};
use crate::edge::listener;
use crate::edge::open_connection::OpenConnection;
use crate::edge::open_connection::request_permits::{RequestPermit, RequestPermits};
use crate::edge::session::SessionOverride;
use crate::request::framing::Framing;
use crate::request::upload::Upload;

/// Bytes of one body that a client may send before we read any: 1.3 MB/s at a round trip of 50 ms.
/// Each frame of them that waits costs about 400 bytes, however small: a larger window would cost
/// more in frames than in bytes.
const STREAM_WINDOW: u32 = 64 * 1024;

/// Bytes of all bodies of one connection that its client may send before we read any.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// What small frames of bodies may cost beyond their bytes, by h2's count of 256 bytes each, before
/// it ends the connection: a stream may fill its window with frames of 16 bytes, for 1.5 MiB.
const SMALL_FRAMES_MAX: usize = 1 << 20;

/// Bytes of one response that may wait for the socket: four frames of the usual size.
const SEND_BUFFER: usize = 64 * 1024;

/// The smallest maximum that HTTP/2 allows: larger frames gain nothing, and are buffered whole.
const FRAME_BYTES: u32 = 16 * 1024;

/// HTTP/2 counts 32 bytes per field that HTTP/1.1 does not send (RFC 9113, 6.5.2). Twice the bytes
/// make up for that where header lines have 28 bytes on average. A larger head is refused.
const HEAD_FACTOR: u64 = 2;

/// Requests that were reset before we accepted them, at most: h2's default; browsers keep to it.
const RESETS_UNSEEN_MAX: usize = 20;

/// Streams that we reset for a client's protocol errors (CVE-2025-8671), at most.
const FAULTS_MAX: usize = 1_024;

/// Malformed requests in a connection's life, at most; Pingora's own loop has this number.
const REJECTED_MAX: u32 = 32;

/// Requests of one connection that are started before other clients get their turn. A turn writes
/// to the socket: fewer requests in one would cost more writes.
const REQUESTS_PER_TURN: u32 = 8;

/// How long a client without requests may take to close the connection after GOAWAY.
pub const GOAWAY_WAIT: Duration = Duration::from_secs(2);

/// The limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Http2Bounds {
    /// Time until the client has sent its connection preface.
    pub preface_timeout: Duration,
    /// Time without a request.
    pub idle_timeout: Duration,
    /// Time without a request, after GOAWAY.
    pub goaway_wait: Duration,
    /// Bytes of a request head, as HTTP/1.1 would write it.
    pub head_bytes_max: u64,
    /// Requests in total.
    pub requests_max: u32,
    /// Requests in progress at one time.
    pub streams_max: u32,
    /// Connections of its address, and requests in progress that count as one.
    pub per_address_max: u64,
}

impl Http2Bounds {
    /// After how many requests a client must have received GOAWAY: a stream takes at least a round
    /// trip, so up to 2 × `streams_max` may cross it on its way. Twice that, to be sure.
    fn cut_off_at(&self) -> u32 {
        self.requests_max.saturating_add(self.streams_max.saturating_mul(4))
    }

    fn options(&self) -> H2Options {
        let head = u32::try_from(self.head_bytes_max * HEAD_FACTOR).unwrap_or(u32::MAX);
        // How many streams we remember after an early response, while their bodies still arrive.
        let resets = (self.streams_max as usize).saturating_mul(2);
        let mut options = default_h2_options();
        options
            .max_concurrent_streams(self.streams_max)
            .max_header_list_size(head)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .data_frame_budget(SMALL_FRAMES_MAX)
            .max_send_buffer_size(SEND_BUFFER)
            .max_concurrent_reset_streams(resets)
            .max_pending_accept_reset_streams(RESETS_UNSEEN_MAX)
            .max_local_error_reset_streams(Some(FAULTS_MAX));
        options
    }
}

/// What all connections share.
pub struct Http2<H> {
    /// Handles each request.
    pub handler: Arc<H>,
    /// The client.
    pub client: Client,
    /// Where the connection counts as open.
    pub open: Arc<OpenConnection>,
    /// The clock.
    pub clock: Clock,
    /// Counts malformed requests.
    pub rejected: IntCounter,
    /// Shows requests that wait for a permit.
    pub waiting: IntGauge,
}

/// Serves a connection until it and all of its requests have ended.
pub async fn serve<H: Handler>(
    http2: Http2<H>,
    stream: Stream,
    bounds: Http2Bounds,
    stop: ShutdownWatch,
) {
    let digest = Arc::new(Digest {
        ssl_digest: stream.get_ssl_digest(),
        timing_digest: stream.get_timing_digest(),
        proxy_digest: stream.get_proxy_digest(),
        socket_digest: stream.get_socket_digest(),
    });
    let opened = timeout(bounds.preface_timeout, handshake(stream, Some(bounds.options()))).await;
    let Ok(Ok(connection)) = opened else { return };
    let driver = Driver {
        wait_ends: Some(http2.clock.now().tick.plus(bounds.idle_timeout)),
        permits: RequestPermits::new(
            http2.open.clone(),
            bounds.per_address_max,
            http2.waiting.clone(),
        ),
        http2,
        connection,
        digest,
        bounds,
        requests: JoinSet::new(),
        served: 0,
        faults: 0,
        draining: false,
    };
    let mut requests = driver.drive(stop).await;
    // The connection has ended. Each request detects that by itself, and writes its log line.
    while let Some(ended) = requests.join_next().await {
        listener::note(ended);
    }
}

struct Driver<H> {
    http2: Http2<H>,
    connection: server::Connection<Stream, Bytes>,
    digest: Arc<Digest>,
    bounds: Http2Bounds,
    requests: JoinSet<()>,
    permits: Arc<RequestPermits>,
    served: u32,
    faults: u32,
    /// Whether GOAWAY has been sent.
    draining: bool,
    /// Without a request in progress: how long we wait for one, or, after GOAWAY, for the close.
    wait_ends: Option<Tick>,
}

/// What ended a wait.
enum Event {
    Stop,
    Ended(Result<(), JoinError>),
    Stream(Box<HttpSession>),
    /// A malformed request, which was answered already.
    Rejected,
    /// The connection has ended or failed.
    Closed,
    TimedOut,
}

impl<H: Handler> Driver<H> {
    /// Runs until the connection has to close. Returns the tasks of its unfinished requests.
    async fn drive(mut self, mut stop: ShutdownWatch) -> JoinSet<()> {
        loop {
            match self.next(&mut stop).await {
                Event::Closed => break,
                // Responses that a slow client still reads are sent to their end. If it stops,
                // `Connection` fails after the write timeout.
                Event::TimedOut if self.draining && self.connection.has_streams() => {
                    self.wait_if_idle();
                }
                Event::TimedOut if self.draining => {
                    self.close(Reason::NO_ERROR, self.bounds.idle_timeout).await;
                    break;
                }
                Event::TimedOut | Event::Stop => self.send_goaway(),
                Event::Ended(ended) => {
                    listener::note(ended);
                    self.wait_if_idle();
                }
                Event::Stream(session) => {
                    self.served = self.served.saturating_add(1);
                    self.wait_ends = None;
                    self.start(session);
                    if self.served.is_multiple_of(REQUESTS_PER_TURN) {
                        tokio::task::yield_now().await;
                    }
                }
                Event::Rejected => {
                    self.faults += 1;
                    self.http2.rejected.inc();
                }
            }
            // Disconnects a client that ignores GOAWAY, or sends too many malformed requests.
            if self.served >= self.bounds.cut_off_at() || self.faults >= REJECTED_MAX {
                self.close(Reason::ENHANCE_YOUR_CALM, self.bounds.goaway_wait).await;
                break;
            }
            if self.served >= self.bounds.requests_max && !self.draining {
                self.send_goaway();
            }
        }
        self.requests
    }

    async fn next(&mut self, stop: &mut ShutdownWatch) -> Event {
        let has_room = self.requests.len() < self.bounds.streams_max as usize;
        let left = self.wait_ends.map(|ends| ends.since(self.http2.clock.now().tick));
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop), if !self.draining => Event::Stop,
            Some(ended) = self.requests.join_next() => Event::Ended(ended),
            event = accept(&mut self.connection, &self.digest, has_room) => event,
            () = wait(left) => Event::TimedOut,
        }
    }

    /// Starts the task of a request, which waits for its permit.
    fn start(&mut self, mut session: Box<HttpSession>) {
        let handler = self.http2.handler.clone();
        let upload = Upload::new(self.http2.clock.clone());
        let client = self.http2.client.clone();
        let (permits, permit) = (self.permits.clone(), self.permits.try_enter());
        let arrived_at = permit.is_none().then(|| self.http2.clock.now());
        self.requests.spawn(upload.clone().within(async move {
            let Some(permit) = permitted(permit, &permits, &mut session).await else { return };
            let exchange = Arc::new(Exchange::default());
            let session = ServerSession::new_http2(*session);
            let head = session.req_header();
            let malformed = Framing::of(&head.headers, head.version).err();
            let session = SessionOverride::wrap(session, upload, exchange.clone());
            let incoming =
                Incoming { session, exchange, client, length: None, arrived_at, malformed };
            handler.handle(incoming).await;
            drop(permit);
        }));
    }

    /// Sends GOAWAY. Streams that the client has opened meanwhile are still served.
    fn send_goaway(&mut self) {
        self.connection.graceful_shutdown();
        self.draining = true;
        self.wait_if_idle();
    }

    fn wait_if_idle(&mut self) {
        if self.requests.is_empty() {
            let Http2Bounds { goaway_wait, idle_timeout, .. } = self.bounds;
            let wait = if self.draining { goaway_wait } else { idle_timeout };
            self.wait_ends = Some(self.http2.clock.now().tick.plus(wait));
        }
    }

    /// Sends GOAWAY with the last stream that was accepted: later ones can be sent elsewhere.
    async fn close(&mut self, reason: Reason, within: Duration) {
        self.connection.abrupt_shutdown(reason);
        let closed = poll_fn(|cx| self.connection.poll_closed(cx));
        // The result does not matter: the connection is dropped next.
        let _ = timeout(within, closed).await;
    }
}

/// Waits that long, or without limit; only a limit needs a timer.
async fn wait(left: Option<Duration>) {
    match left {
        Some(left) => sleep(left).await,
        None => pending().await,
    }
}

/// A request's permit, which it may have already; none where its client cancels it meanwhile.
async fn permitted(
    permit: Option<RequestPermit>,
    permits: &Arc<RequestPermits>,
    session: &mut HttpSession,
) -> Option<RequestPermit> {
    if permit.is_some() {
        return permit;
    }
    tokio::select! {
        // Boxed, for it is rare.
        permit = Box::pin(permits.enter()) => Some(permit),
        // An error means that the connection has ended.
        _ = session.idle() => None,
    }
}

/// Waits for the next request, if one more may be in progress; drives the connection's I/O in any
/// case.
async fn accept(
    connection: &mut server::Connection<Stream, Bytes>,
    digest: &Arc<Digest>,
    has_room: bool,
) -> Event {
    if !has_room {
        // With or without an error the connection has ended.
        let _ = poll_fn(|cx| connection.poll_closed(cx)).await;
        return Event::Closed;
    }
    match HttpSession::from_h2_conn(connection, digest.clone()).await {
        Ok(Some(H2Accept::Session(session))) => Event::Stream(Box::new(session)),
        Ok(Some(H2Accept::Rejected)) => Event::Rejected,
        Ok(None) | Err(_) => Event::Closed,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use h2::client::{self, ResponseFuture, SendRequest};
    use pingora_http::ResponseHeader;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, duplex, split};
    use tokio::sync::{Semaphore, watch};
    use tokio::task::yield_now;
    use weir_common::time::UnixTime;

    use super::*;
    use crate::edge::incoming::Handling;
    use crate::edge::open_connection::ConnectionTotal;
    use crate::edge::open_connection::request_permits::RETRY;
    use crate::response::refusal::Refusal;
    use crate::response::reply::Reply;

    const BOUNDS: Http2Bounds = Http2Bounds {
        preface_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
        goaway_wait: Duration::from_millis(5),
        head_bytes_max: 1_000,
        requests_max: 1_000,
        streams_max: 2,
        per_address_max: 1_000,
    };

    /// More than fits a test's pipe, and less than a client's window.
    const LARGE: usize = 60_000;

    /// Panics, or waits for `gate` even if its client has gone, or answers at once.
    struct App {
        started: AtomicUsize,
        /// How many had waited for a permit.
        waited: AtomicUsize,
        ended: AtomicUsize,
        gate: Semaphore,
    }

    impl Handler for App {
        fn handle(&self, incoming: Incoming) -> Handling<'_> {
            Box::pin(self.answer(incoming))
        }

        fn refuse_unread<'h>(
            &'h self,
            _client: &Client,
            refusal: &'h Refusal,
        ) -> Pin<Box<dyn Future<Output = Reply> + Send + 'h>> {
            Box::pin(async { refusal.reply() })
        }
    }

    impl App {
        async fn answer(&self, incoming: Incoming) {
            let mut session = incoming.session;
            self.started.fetch_add(1, Ordering::Relaxed);
            self.waited.fetch_add(incoming.arrived_at.is_some().into(), Ordering::Relaxed);
            let mut body = Bytes::new();
            match session.req_header().raw_path() {
                b"/panic" => panic!("on purpose"),
                b"/wait" => self.gate.acquire().await.unwrap().forget(),
                b"/large" => body = Bytes::from_static(&[b'x'; LARGE]),
                _ => {}
            }
            let head = ResponseHeader::build(200, None).unwrap();
            let head = session.write_response_header(Box::new(head)).await;
            if head.is_ok() && session.write_response_body(body, true).await.is_ok() {
                self.ended.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// One more connection, where there is room.
    fn open(total: &Arc<ConnectionTotal>) -> Option<OpenConnection> {
        let gauge = IntGauge::new("open", "open").unwrap();
        Some(OpenConnection::new(total.enter()?, None, &Arc::default(), &gauge))
    }

    struct World {
        app: Arc<App>,
        client: SendRequest<Bytes>,
        stop: watch::Sender<bool>,
        /// While false, nothing that the server sends reaches the client.
        arrives: watch::Sender<bool>,
        /// The tasks of the pipe, the server and the client.
        ends: JoinSet<()>,
        /// Requests that wait for a permit.
        waiting: IntGauge,
    }

    impl World {
        async fn new() -> Self {
            Self::with(BOUNDS, &ConnectionTotal::new(1_000)).await
        }

        async fn with(bounds: Http2Bounds, total: &Arc<ConnectionTotal>) -> Self {
            let [started, waited, ended] = Default::default();
            let app = Arc::new(App { started, waited, ended, gate: Semaphore::new(0) });
            let (ours, far) = duplex(1 << 12);
            let (near, theirs) = duplex(1 << 12);
            let (stop, stopping) = watch::channel(false);
            let (arrives, mut flows) = watch::channel(true);
            let mut ends = JoinSet::new();
            ends.spawn(async move {
                let ((mut from, mut to), (mut back, mut forth)) = (split(far), split(near));
                let down = async {
                    let mut piece = [0; 1_024];
                    while let Ok(count @ 1..) = from.read(&mut piece).await {
                        flows.wait_for(|flows| *flows).await.unwrap();
                        forth.write_all(&piece[..count]).await.unwrap();
                    }
                    forth.shutdown().await
                };
                let up = async {
                    let _ = copy(&mut back, &mut to).await;
                    to.shutdown().await
                };
                let _ = tokio::join!(down, up);
            });
            let peer = [127, 0, 0, 1].into();
            let waiting = IntGauge::new("waiting", "waiting").unwrap();
            let http2 = Http2 {
                handler: app.clone(),
                client: Client { peer, is_secure: true, certificate: None },
                open: Arc::new(open(total).unwrap()),
                clock: Clock::manual(UnixTime(0)),
                rejected: IntCounter::new("rejected", "rejected").unwrap(),
                waiting: waiting.clone(),
            };
            ends.spawn(serve(http2, Box::new(ours), bounds, stopping));
            let (client, connection) = client::handshake(theirs).await.unwrap();
            ends.spawn(async move { drop(connection.await) });
            Self { app, client, stop, arrives, ends, waiting }
        }

        async fn get(&mut self, path: &str) -> ResponseFuture {
            let uri = format!("https://h.test{path}");
            let request = http::Request::builder().uri(uri).body(()).unwrap();
            let mut client = self.client.clone().ready().await.unwrap();
            client.send_request(request, true).unwrap().0
        }

        async fn started(&self, count: usize) {
            while self.app.started.load(Ordering::Relaxed) != count {
                yield_now().await;
            }
        }

        /// Yields until the other tasks have nothing left to do.
        async fn settle(&self) {
            for _ in 0..1_000 {
                yield_now().await;
            }
        }
    }

    #[tokio::test]
    async fn a_panic_ends_the_request_it_happened_in_and_no_other() {
        let mut world = World::new().await;
        let waits = world.get("/wait").await;
        assert!(world.get("/panic").await.await.unwrap_err().is_reset());
        world.app.gate.add_permits(1);
        assert_eq!(waits.await.unwrap().status(), 200);
        assert_eq!(world.get("/").await.await.unwrap().status(), 200);
    }

    #[tokio::test]
    async fn a_request_that_was_reset_has_its_place_until_it_is_over() {
        let mut world = World::new().await;
        for _ in 0..2 {
            drop(world.get("/wait").await);
        }
        world.started(2).await;
        let third = world.get("/").await;
        world.settle().await;
        assert_eq!(world.app.started.load(Ordering::Relaxed), 2, "two are worked on");
        world.app.gate.add_permits(1);
        assert_eq!(third.await.unwrap().status(), 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_beyond_the_first_waits_for_room_among_all_connections() {
        let (bounds, total) = (Http2Bounds { streams_max: 3, ..BOUNDS }, ConnectionTotal::new(2));
        let mut world = World::with(bounds, &total).await;
        let first = world.get("/wait").await;
        world.started(1).await;
        let another = open(&total).expect("one request is no second connection");
        let second = world.get("/wait").await;
        world.settle().await;
        assert_eq!(world.app.started.load(Ordering::Relaxed), 1, "there is no room");
        assert_eq!(world.waiting.get(), 1);
        for _ in 0..3 * RESETS_UNSEEN_MAX {
            drop(world.get("/wait").await);
            world.settle().await;
        }
        assert_eq!(world.waiting.get(), 1);
        drop(another);
        sleep(RETRY * 2).await;
        assert_eq!(
            world.app.started.load(Ordering::Relaxed),
            2,
            "but for those that are cancelled"
        );
        assert_eq!(world.app.waited.load(Ordering::Relaxed), 1, "when it arrived is known");
        assert!(open(&total).is_none(), "each counts as a connection");
        world.app.gate.add_permits(1);
        assert_eq!(first.await.unwrap().status(), 200);
        world.settle().await;
        assert!(open(&total).is_some(), "of one in progress none is beyond the first");
        world.app.gate.add_permits(1);
        assert_eq!(second.await.unwrap().status(), 200);
        world.settle().await;
        assert!(open(&total).is_some(), "an idle connection is one");
    }

    #[tokio::test]
    async fn many_requests_at_once_leave_turns_for_others() {
        let bounds = Http2Bounds { streams_max: 100, ..BOUNDS };
        let mut world = World::with(bounds, &ConnectionTotal::new(1_000)).await;
        let mut answers = Vec::new();
        for _ in 0..60 {
            answers.push(world.get("/wait").await);
        }
        // Of two tasks that give way, one may run last and then first.
        let (mut before, most) = (0, 2 * REQUESTS_PER_TURN as usize);
        while before < answers.len() {
            let started = world.app.started.load(Ordering::Relaxed);
            assert!(started - before <= most, "{} started at once", started - before);
            before = started;
            yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_stop_waits_for_what_is_in_flight_and_for_nothing_else() {
        let mut world = World::new().await;
        let waits = world.get("/wait").await;
        world.started(1).await;
        world.stop.send(true).unwrap();
        world.settle().await;
        assert_eq!(world.ends.len(), 3);
        assert!(world.ends.try_join_next().is_none(), "it has not waited");
        world.app.gate.add_permits(1);
        assert_eq!(waits.await.unwrap().status(), 200);
        while world.ends.join_next().await.is_some() {}
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_over_when_its_requests_are() {
        let mut world = World::new().await;
        drop(world.get("/wait").await);
        world.started(1).await;
        let World { app, client, mut ends, stop: _stop, .. } = world;
        drop(client);
        for _ in 0..2 {
            ends.join_next().await.unwrap().unwrap();
        }
        assert!(ends.try_join_next().is_none(), "a request has no owner");
        app.gate.add_permits(1);
        ends.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_stop_waits_for_a_response_that_is_being_sent() {
        let mut world = World::new().await;
        assert_eq!(world.get("/").await.await.unwrap().status(), 200);
        world.arrives.send(false).unwrap();
        let answer = world.get("/large").await;
        while world.app.ended.load(Ordering::Relaxed) != 2 {
            yield_now().await;
        }
        world.stop.send(true).unwrap();
        // Far longer than a client may take to close that has read everything.
        sleep(BOUNDS.goaway_wait * 20).await;
        world.arrives.send(true).unwrap();
        let mut body = answer.await.unwrap().into_body();
        let mut bytes = 0;
        while let Some(piece) = body.data().await {
            let count = piece.unwrap().len();
            bytes += count;
            body.flow_control().release_capacity(count).unwrap();
        }
        assert_eq!(bytes, LARGE);
        while world.ends.join_next().await.is_some() {}
    }
}
