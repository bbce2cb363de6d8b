//! One client's HTTP/2 connection: takes its requests, and sees each to its end.
//!
//! Pingora has such a loop, but it detaches what it spawns, does not count, and waits for ever
//! for a client's first bytes. This one owns every request's task.
//!
//! # Invariants
//!
//! 1. No more than `streams_max` requests of one connection are worked on at one time, whatever
//!    its client resets (CVE-2023-44487): one is over when its task is.
//! 2. A connection ends after `requests_max` requests, when it has been idle for too long, and on
//!    a stop; what is in flight by then is finished, and no request is lost.
//! 3. A panic ends the request it happened in, and no other.
//! 4. What a connection may make us keep is bounded: by windows, a send buffer, a head's size.
//!
//! # Not here
//!
//! Frames and their faults (`h2`), requests (`proxy`), a client that takes nothing (`connection`).

use std::future::{pending, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, server};
use pingora_core::apps::HttpServerApp;
use pingora_core::protocols::http::ServerSession;
use pingora_core::protocols::http::v2::server::{
    H2Accept, H2Options, HttpSession, default_h2_options, handshake,
};
use pingora_core::protocols::{Digest, Stream};
use pingora_core::server::ShutdownWatch;
use prometheus::IntCounter;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use weir_common::time::{Clock, Tick};

use crate::edge::listener;
use crate::edge::session::SessionOverride;
use crate::request::upload::Upload;

/// What a client may send of one body before any of it is taken: an upload of 5 MB/s over 50 ms.
const STREAM_WINDOW: u32 = 256 * 1024;

/// The same of all bodies of one connection together.
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// What of one answer waits for the socket: four frames of the usual size.
const SEND_BUFFER: usize = 64 * 1024;

/// The smallest that the protocol allows: larger frames gain nothing, and are buffered whole.
const FRAME_BYTES: u32 = 16 * 1024;

/// A field counts 32 bytes more here than on the wire of HTTP/1.1 (RFC 9113, 6.5.2): what one
/// takes the other must, and the rest is refused with an answer that says why.
const HEAD_FACTOR: u64 = 2;

/// Requests that were reset before we came to them, at most. h2's default, which browsers keep to.
const RESETS_UNSEEN_MAX: usize = 20;

/// Streams that we reset because of what a client sent (CVE-2025-8671), at most.
const FAULTS_MAX: usize = 1_024;

/// Requests that are none, in a connection's life, at most; Pingora's own loop has this number.
const REJECTED_MAX: u32 = 32;

/// How long a client without requests may take to say goodbye.
pub const GOODBYE_TIME: Duration = Duration::from_secs(2);

/// What a connection may take.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Until the client has said that it speaks HTTP/2.
    pub preface_timeout: Duration,
    /// Without a request.
    pub idle_timeout: Duration,
    /// Without a request, for a client that was told to go.
    pub goodbye_time: Duration,
    /// Bytes of a request head, as HTTP/1.1 would write it.
    pub head_bytes_max: u64,
    /// Requests, in all.
    pub requests_max: u32,
    /// Requests at one time.
    pub streams_max: u32,
}

impl Bounds {
    /// After how many requests a client has had every chance to see that it should go: a stream
    /// takes a round trip at least, so two times `streams_max` may cross the notice on its way.
    fn cut_off_at(&self) -> u32 {
        self.requests_max.saturating_add(self.streams_max.saturating_mul(4))
    }

    fn options(&self) -> H2Options {
        let head = u32::try_from(self.head_bytes_max * HEAD_FACTOR).unwrap_or(u32::MAX);
        // An early answer makes us forget a body that is still on its way; so many at one time.
        let resets = (self.streams_max as usize).saturating_mul(2);
        let mut options = default_h2_options();
        options
            .max_concurrent_streams(self.streams_max)
            .max_header_list_size(head)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_frame_size(FRAME_BYTES)
            .max_send_buffer_size(SEND_BUFFER)
            .max_concurrent_reset_streams(resets)
            .max_pending_accept_reset_streams(RESETS_UNSEEN_MAX)
            .max_local_error_reset_streams(Some(FAULTS_MAX));
        options
    }
}

/// What all connections share.
pub struct Http2<A> {
    /// What requests go through.
    pub app: Arc<A>,
    /// The clock.
    pub clock: Clock,
    /// Requests that are none.
    pub rejected: IntCounter,
}

/// Serves a connection until it is over, and all of its requests are.
pub async fn serve<A: HttpServerApp + Send + Sync + 'static>(
    http2: Http2<A>,
    stream: Stream,
    bounds: Bounds,
    stop: ShutdownWatch,
) {
    let digest = Arc::new(Digest {
        ssl_digest: stream.get_ssl_digest(),
        timing_digest: stream.get_timing_digest(),
        proxy_digest: stream.get_proxy_digest(),
        socket_digest: stream.get_socket_digest(),
    });
    let shaken = timeout(bounds.preface_timeout, handshake(stream, Some(bounds.options()))).await;
    let Ok(Ok(connection)) = shaken else { return };
    let driver = Driver {
        patience_ends: Some(http2.clock.now().tick.plus(bounds.idle_timeout)),
        http2,
        connection,
        digest,
        bounds,
        requests: JoinSet::new(),
        served: 0,
        faults: 0,
        leaving: false,
    };
    let mut requests = driver.drive(stop).await;
    // The connection is gone, of which each of them learns by itself and writes its log line.
    while let Some(ended) = requests.join_next().await {
        listener::note(ended);
    }
}

struct Driver<A> {
    http2: Http2<A>,
    connection: server::Connection<Stream, Bytes>,
    digest: Arc<Digest>,
    bounds: Bounds,
    requests: JoinSet<()>,
    served: u32,
    faults: u32,
    /// Whether the client has been told to go.
    leaving: bool,
    /// While there is no request: until when we wait for one, or for a goodbye.
    patience_ends: Option<Tick>,
}

/// What happens next.
enum Event {
    Stop,
    Ended(Result<(), JoinError>),
    Stream(Box<HttpSession>),
    /// A request that is none, and was answered so.
    Rejected,
    /// The connection is over, or broken.
    Closed,
    OutOfPatience,
}

impl<A: HttpServerApp + Send + Sync + 'static> Driver<A> {
    /// Goes on until the connection is to be closed. What is left of its requests comes back.
    async fn drive(mut self, mut stop: ShutdownWatch) -> JoinSet<()> {
        loop {
            match self.next(&mut stop).await {
                Event::Closed => break,
                // What a slow client has yet to take of its answers is seen out. Should it take
                // nothing, the connection ends by itself.
                Event::OutOfPatience if self.leaving && self.connection.has_streams() => {
                    self.wait_if_idle();
                }
                Event::OutOfPatience if self.leaving => {
                    self.close(Reason::NO_ERROR, self.bounds.idle_timeout).await;
                    break;
                }
                Event::OutOfPatience | Event::Stop => self.leave(),
                Event::Ended(ended) => {
                    listener::note(ended);
                    self.wait_if_idle();
                }
                Event::Stream(session) => {
                    self.served = self.served.saturating_add(1);
                    self.patience_ends = None;
                    let (app, stop) = (self.http2.app.clone(), stop.clone());
                    let upload = Upload::new(self.http2.clock.clone());
                    let session = ServerSession::new_http2(*session);
                    let session = SessionOverride::paced(session, upload.clone());
                    self.requests.spawn(upload.within(async move {
                        app.process_new_http(session, &stop).await;
                    }));
                }
                Event::Rejected => {
                    self.faults += 1;
                    self.http2.rejected.inc();
                }
            }
            // Who does not go when told, or sends what is no request, is not listened to.
            if self.served >= self.bounds.cut_off_at() || self.faults >= REJECTED_MAX {
                self.close(Reason::ENHANCE_YOUR_CALM, self.bounds.goodbye_time).await;
                break;
            }
            if self.served >= self.bounds.requests_max && !self.leaving {
                self.leave();
            }
        }
        self.requests
    }

    async fn next(&mut self, stop: &mut ShutdownWatch) -> Event {
        let has_room = self.requests.len() < self.bounds.streams_max as usize;
        let left = self.patience_ends.map(|ends| ends.since(self.http2.clock.now().tick));
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop), if !self.leaving => Event::Stop,
            Some(ended) = self.requests.join_next() => Event::Ended(ended),
            event = accept(&mut self.connection, &self.digest, has_room) => event,
            () = wait(left) => Event::OutOfPatience,
        }
    }

    /// Tells the client to open no more streams. Those that are on their way are still served.
    fn leave(&mut self) {
        self.connection.graceful_shutdown();
        self.leaving = true;
        self.wait_if_idle();
    }

    fn wait_if_idle(&mut self) {
        if self.requests.is_empty() {
            let Bounds { goodbye_time, idle_timeout, .. } = self.bounds;
            let wait = if self.leaving { goodbye_time } else { idle_timeout };
            self.patience_ends = Some(self.http2.clock.now().tick.plus(wait));
        }
    }

    /// Says which requests were the last to be begun, so that others can be sent elsewhere.
    async fn close(&mut self, reason: Reason, within: Duration) {
        self.connection.abrupt_shutdown(reason);
        let closed = poll_fn(|cx| self.connection.poll_closed(cx));
        // However it goes: the connection is dropped next.
        let _ = timeout(within, closed).await;
    }
}

/// Waits that long, or for ever; a timer is made only where there is something to wait for.
async fn wait(left: Option<Duration>) {
    match left {
        Some(left) => sleep(left).await,
        None => pending().await,
    }
}

/// The next request, where there is room for one; moves the connection on in any case.
async fn accept(
    connection: &mut server::Connection<Stream, Bytes>,
    digest: &Arc<Digest>,
    has_room: bool,
) -> Event {
    if !has_room {
        // Either way it is over; only the other end knows why.
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
    use async_trait::async_trait;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use h2::client::{self, ResponseFuture, SendRequest};
    use pingora_core::apps::ReusedHttpStream;
    use pingora_http::ResponseHeader;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, duplex, split};
    use tokio::sync::{Semaphore, watch};
    use tokio::task::yield_now;
    use weir_common::time::UnixTime;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        preface_timeout: Duration::from_secs(60),
        idle_timeout: Duration::from_secs(60),
        goodbye_time: Duration::from_millis(5),
        head_bytes_max: 1_000,
        requests_max: 1_000,
        streams_max: 2,
    };

    /// More than goes into the pipe of a test, and less than the window of a client.
    const LARGE: usize = 60_000;

    /// Panics, or waits to be let through and does not mind who has gone, or answers.
    struct App {
        started: AtomicUsize,
        ended: AtomicUsize,
        gate: Semaphore,
    }

    #[async_trait]
    impl HttpServerApp for App {
        async fn process_new_http(
            self: &Arc<Self>,
            mut session: ServerSession,
            _stop: &ShutdownWatch,
        ) -> Option<ReusedHttpStream> {
            self.started.fetch_add(1, Ordering::Relaxed);
            let mut body = Bytes::new();
            match session.req_header().raw_path() {
                b"/panic" => panic!("on purpose"),
                b"/wait" => self.gate.acquire().await.unwrap().forget(),
                b"/large" => body = Bytes::from_static(&[b'x'; LARGE]),
                _ => {}
            }
            let head = ResponseHeader::build(200, None).unwrap();
            session.write_response_header(Box::new(head)).await.ok()?;
            session.write_response_body(body, true).await.ok()?;
            self.ended.fetch_add(1, Ordering::Relaxed);
            None
        }
    }

    struct World {
        app: Arc<App>,
        client: SendRequest<Bytes>,
        stop: watch::Sender<bool>,
        /// Whether what we send arrives.
        arrives: watch::Sender<bool>,
        /// The connection's two ends.
        ends: JoinSet<()>,
    }

    impl World {
        async fn new() -> Self {
            let app = App { started: 0.into(), ended: 0.into(), gate: Semaphore::new(0) };
            let app = Arc::new(app);
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
            let http2 = Http2 {
                app: app.clone(),
                clock: Clock::manual(UnixTime(0)),
                rejected: IntCounter::new("rejected", "rejected").unwrap(),
            };
            ends.spawn(serve(http2, Box::new(ours), BOUNDS, stopping));
            let (client, connection) = client::handshake(theirs).await.unwrap();
            ends.spawn(async move { drop(connection.await) });
            Self { app, client, stop, arrives, ends }
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

        /// Lets everything happen that can happen by itself.
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
        let World { app, client, mut ends, stop: _stop, arrives: _arrives } = world;
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
        // Many times as long as a client may take that has taken everything.
        sleep(BOUNDS.goodbye_time * 20).await;
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
