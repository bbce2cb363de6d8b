//! One HTTP attempt, with a deadline.
//!
//! # Invariants
//!
//! 1. From DNS to the last response header, an attempt ends within `egress.deadline`. If the
//!    process was suspended past it, a response that arrived meanwhile counts; without one the
//!    outcome is `Fault::Stalled`.
//! 2. A URL is checked again before each attempt.
//!
//! 3. Neither the trace nor what is kept shows more of a name without an allowed address than its
//!    outcome, or of a private network than the operator permits.
//!
//! Not here: what is sent and read (`transport`), what an outcome means (`outcome`), which
//! addresses may be called (`egress`).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use tokio::time::{Sleep, sleep, timeout};
use weir_common::time::Clock;

use crate::config::settings::{AttemptSettings, Egress, KeptAnswers};
use crate::delivery::classify;
use crate::delivery::connection::AttemptRequest;
use crate::delivery::egress::{Rules, address};
use crate::delivery::http_client::ClientError;
use crate::delivery::transport::{Answer, BodyStart, HttpTransport, OnSent, Progress, Transport};
use crate::domain::challenge::{ECHO_BYTES_MAX, is_echoed};
use crate::domain::outcome::{Failure, Fault, Outcome};
use crate::domain::trace::Trace;
use crate::domain::transcript::BODY_BYTES_MORE;

/// A deadline that fires this much too late means that the process was suspended.
const STALL: Duration = Duration::from_secs(1);

/// How long to wait for a response that arrived during a suspension.
const STALL_GRACE: Duration = Duration::from_millis(500);

/// Makes attempts.
pub struct DeliveryClient {
    deadline: Duration,
    rules: Arc<Rules>,
    clock: Clock,
    transport: Arc<dyn Transport>,
}

/// The result of an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptResponse {
    /// What the receiver did.
    pub outcome: Outcome,
    /// The receiver's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// What it came across.
    pub trace: Trace,
    /// What is kept for a transcript, if it should have one.
    pub kept: Option<Kept>,
}

/// What is kept of an attempt whose request was sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// The response, if its headers arrived and may be kept.
    pub answer: Option<(HeaderMap, BodyStart)>,
}

/// What is read of a response's body.
#[derive(Clone, Copy, Debug)]
enum Reading<'a> {
    /// What these settings keep.
    Kept(AttemptSettings),
    /// The echo of this challenge; the settings decide what is shown of the rest.
    Challenge(AttemptSettings, &'a str),
}

/// Whether an answer repeats a challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Echo {
    /// It does.
    Correct,
    /// It does not, or is too long.
    Absent,
}

impl Echo {
    fn of(challenge: &str, start: &BodyStart) -> Self {
        match !start.cut && is_echoed(challenge, &start.bytes) {
            true => Self::Correct,
            false => Self::Absent,
        }
    }
}

impl AttemptResponse {
    /// A response of which nothing but the outcome is known.
    #[must_use]
    pub fn of(outcome: Outcome) -> Self {
        Self { outcome, retry_after: None, trace: Trace::default(), kept: None }
    }
}

impl DeliveryClient {
    /// A client for these settings and rules.
    pub fn new(egress: &Egress, rules: Arc<Rules>, clock: Clock) -> Result<Self, ClientError> {
        let transport = HttpTransport::new(egress, rules.clone(), clock.clone())?;
        Ok(Self::over(Arc::new(transport), egress.deadline, rules, clock))
    }

    /// A client over another transport.
    pub fn over(
        transport: Arc<dyn Transport>,
        deadline: Duration,
        rules: Arc<Rules>,
        clock: Clock,
    ) -> Self {
        Self { deadline, rules, clock, transport }
    }

    /// Makes one attempt; ends within the deadline, plus [`STALL_GRACE`] after a suspension.
    pub async fn deliver(&self, request: AttemptRequest) -> AttemptResponse {
        self.deliver_reporting(request, None).await
    }

    /// Makes one attempt in the same way, and reports when its request was sent.
    pub async fn deliver_reporting(
        &self,
        request: AttemptRequest,
        on_sent: Option<OnSent>,
    ) -> AttemptResponse {
        let reading = Reading::Kept(request.keep);
        self.attempt(request, reading, on_sent).await.0
    }

    /// Sends a challenge, and reports when. Whether its answer repeats the value is all that is
    /// told of the answer's body, which may be of a private network.
    pub async fn challenge(
        &self,
        request: AttemptRequest,
        value: &str,
        on_sent: OnSent,
    ) -> (AttemptResponse, Echo) {
        let reading = Reading::Challenge(request.keep, value);
        self.attempt(request, reading, Some(on_sent)).await
    }

    async fn attempt(
        &self,
        request: AttemptRequest,
        reading: Reading<'_>,
        on_sent: Option<OnSent>,
    ) -> (AttemptResponse, Echo) {
        // An address in a URL is never resolved, and the rules may have changed since the URL was
        // registered, so the URL is checked again.
        if self.rules.check(&request.url).is_err() {
            let blocked = Outcome::Failed(Failure::BlockedAddress);
            return (AttemptResponse::of(blocked), Echo::Absent);
        }
        let (keep, tls) = (request.keep, request.url.scheme() == "https");
        let mut over = std::pin::pin!(sleep(self.deadline));
        let mut progress = Progress::new(on_sent);
        let sent = self.transport.send(request, &mut progress);
        match self.wait(sent, over.as_mut()).await {
            Ok(answer) => self.answered(answer, progress.trace, reading, over).await,
            Err(outcome) => (failed(outcome, &progress, keep, tls), Echo::Absent),
        }
    }

    async fn wait(
        &self,
        mut sent: impl Future<Output = Result<Answer, Outcome>> + Unpin,
        over: Pin<&mut Sleep>,
    ) -> Result<Answer, Outcome> {
        let started_at = self.clock.now().tick;
        tokio::select! {
            biased;
            answer = &mut sent => answer,
            () = over => {
                if self.clock.now().tick.since(started_at) < self.deadline + STALL {
                    return Err(Outcome::Failed(Failure::Timeout));
                }
                let answer = timeout(STALL_GRACE, sent).await;
                answer.unwrap_or(Err(Outcome::Internal(Fault::Stalled)))
            }
        }
    }

    /// Reads the body of a response, as far as it is kept or compared.
    async fn answered(
        &self,
        mut answer: Answer,
        mut trace: Trace,
        reading: Reading<'_>,
        over: Pin<&mut Sleep>,
    ) -> (AttemptResponse, Echo) {
        let outcome = Outcome::of_status(answer.status);
        let now = self.clock.now().unix;
        let retry_after = classify::retry_after(answer.status, &answer.headers, now);
        let keep = match reading {
            Reading::Kept(keep) => keep,
            Reading::Challenge(keep, value) => {
                show(&mut trace, keep);
                let start = answer.finish(over, ECHO_BYTES_MAX).await;
                let echo = Echo::of(value, &start);
                return (AttemptResponse { outcome, retry_after, trace, kept: None }, echo);
            }
        };
        let (is_kept, is_shown) = (is_kept(&outcome, keep), show(&mut trace, keep));
        let most = match keep.answer_bytes_max {
            bytes @ 1.. if is_kept && is_shown => bytes + BODY_BYTES_MORE,
            _ => 0,
        };
        let headers = std::mem::take(&mut answer.headers);
        let start = answer.finish(over, most).await;
        let kept = is_kept.then(|| Kept { answer: is_shown.then_some((headers, start)) });
        (AttemptResponse { outcome, retry_after, trace, kept }, Echo::Absent)
    }
}

/// The result of an attempt without a response.
fn failed(
    outcome: Outcome,
    progress: &Progress,
    keep: AttemptSettings,
    tls: bool,
) -> AttemptResponse {
    let mut trace = match outcome {
        Outcome::Failed(Failure::Dns | Failure::BlockedAddress) | Outcome::Internal(_) => {
            return AttemptResponse::of(outcome);
        }
        Outcome::Failed(_) | Outcome::Delivered { .. } => progress.trace,
    };
    if outcome == Outcome::Failed(Failure::Timeout) {
        trace.reason = Some(trace.timed_out(tls, progress.received()));
    }
    show(&mut trace, keep);
    let kept = trace.is_sent(tls).then(Kept::default);
    AttemptResponse { outcome, retry_after: None, trace, kept }
}

fn is_kept(outcome: &Outcome, keep: AttemptSettings) -> bool {
    match (outcome, keep.answers) {
        (Outcome::Failed(_), _) | (Outcome::Delivered { .. }, KeptAnswers::All) => true,
        (Outcome::Delivered { .. }, KeptAnswers::Failed) | (Outcome::Internal(_), _) => false,
    }
}

/// Whether owners may see the address and what it answered; removes the address if not.
fn show(trace: &mut Trace, keep: AttemptSettings) -> bool {
    let is_public = |address| address::forbidden(address, &[]).is_none();
    trace.address = trace.address.filter(|one| keep.private_answers || is_public(*one));
    keep.private_answers || trace.address.is_some()
}

#[cfg(test)]
mod tests {
    mod families;
    mod handshakes;
    mod proxied;
    mod read_limit;
    mod recorded;
    mod shared;

    use std::future::Future;
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bytes::Bytes;
    use http::HeaderMap;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::task::JoinSet;
    use url::Url;
    use weir_common::config::document::Spanned;
    use weir_common::time::UnixTime;

    use super::*;
    use crate::delivery::client::tests::read_limit::FIXTURES;
    use crate::delivery::egress::dns::tests::Scripted;
    use crate::delivery::egress::tests::rules;
    use crate::delivery::pool::Pool;

    /// A receiver, and the number of connections it accepted.
    struct Receiver {
        address: SocketAddr,
        accepted: Arc<AtomicUsize>,
        _task: JoinSet<()>,
    }

    impl Receiver {
        async fn on<F>(host: &str, answer: impl Fn(TcpStream) -> F + Send + 'static) -> Self
        where
            F: Future<Output = ()> + Send + 'static,
        {
            let listener = TcpListener::bind((host, 0)).await.expect("a free port");
            let address = listener.local_addr().expect("it is bound");
            let accepted = Arc::new(AtomicUsize::new(0));
            let count = accepted.clone();
            let mut task = JoinSet::new();
            task.spawn(async move {
                let mut connections = JoinSet::new();
                while let Ok((stream, _)) = listener.accept().await {
                    count.fetch_add(1, Ordering::SeqCst);
                    connections.spawn(answer(stream));
                }
            });
            Self { address, accepted, _task: task }
        }

        /// Answers every request on a connection with these bytes.
        async fn answering(answer: impl Into<Vec<u8>>) -> Self {
            let answer = answer.into();
            Self::on("127.0.0.1", move |mut stream| {
                let answer = answer.clone();
                async move {
                    while read_request(&mut stream).await.is_some() {
                        let _ = stream.write_all(&answer).await;
                    }
                }
            })
            .await
        }

        fn url(&self, scheme: &str) -> String {
            format!("{scheme}://{}/hook", self.address)
        }

        fn accepted(&self) -> usize {
            self.accepted.load(Ordering::SeqCst)
        }
    }

    /// Reads a request with a body of `hello`.
    async fn read_request(stream: &mut TcpStream) -> Option<String> {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\r\n\r\nhello") {
            let mut more = [0; 1024];
            let count = stream.read(&mut more).await.ok().filter(|count| *count > 0)?;
            bytes.extend_from_slice(&more[..count]);
        }
        String::from_utf8(bytes).ok()
    }

    fn client(names: &[(&str, &str)], deadline: u64) -> (DeliveryClient, Clock) {
        let (client, _, clock) = pooled(names, deadline);
        (client, clock)
    }

    /// A client, its pool of idle connections, and its clock.
    fn pooled(names: &[(&str, &str)], deadline: u64) -> (DeliveryClient, Arc<Pool>, Clock) {
        build(names, egress_of(deadline))
    }

    fn egress_of(deadline: u64) -> Egress {
        Egress {
            deadline: Duration::from_millis(deadline),
            allow_http: true,
            ports: vec![],
            extra_ca: Some(Spanned { value: format!("{FIXTURES}/ca.pem"), at: 0 }),
            ..crate::delivery::egress::tests::egress(&["127.0.0.1/32", "127.0.0.2/32"])
        }
    }

    fn build(names: &[(&str, &str)], egress: Egress) -> (DeliveryClient, Arc<Pool>, Clock) {
        let clock = Clock::manual(UnixTime(1_700_000_000_000_000));
        let rules = Arc::new(rules(egress.clone(), Scripted::table(names)));
        let transport = HttpTransport::new(&egress, rules.clone(), clock.clone());
        let transport = Arc::new(transport.expect("it builds"));
        let pool = Arc::clone(&transport.pool);
        (DeliveryClient::over(transport, egress.deadline, rules, clock.clone()), pool, clock)
    }

    fn request(url: &str) -> AttemptRequest {
        let url = Url::parse(url).expect("a URL");
        let (headers, body) = (HeaderMap::new(), Bytes::from_static(b"hello"));
        AttemptRequest {
            url,
            headers,
            body,
            fresh_connection: false,
            client_certificate: None,
            keep: AttemptSettings::default(),
        }
    }

    /// The outcome of an attempt; ten seconds allow for a busy machine.
    async fn outcome(url: &str) -> Outcome {
        client(&[], 10_000).0.deliver(request(url)).await.outcome
    }

    const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

    const SILENT: Outcome = Outcome::Failed(Failure::Timeout);
    const BROKEN: Outcome = Outcome::Failed(Failure::Connection);
    const NO_NAME: Outcome = Outcome::Failed(Failure::Dns);
    const BLOCKED: Outcome = Outcome::Failed(Failure::BlockedAddress);
    const DELIVERED: Outcome = Outcome::Delivered { status: 200 };

    #[tokio::test]
    async fn only_a_2xx_is_delivered() {
        for (line, expected) in [
            ("HTTP/1.1 200 OK", DELIVERED),
            ("HTTP/1.0 200 OK", DELIVERED),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Accepted", Outcome::of_status(202)),
            ("HTTP/1.1 204 No Content", Outcome::of_status(204)),
            ("HTTP/1.1 304 Not Modified", Outcome::Failed(Failure::Status(304))),
            ("HTTP/1.1 410 Gone", Outcome::Failed(Failure::Status(410))),
            ("HTTP/1.1 500 Oh", Outcome::Failed(Failure::Status(500))),
        ] {
            let receiver =
                Receiver::answering(format!("{line}\r\nContent-Length: 0\r\n\r\n")).await;
            assert_eq!(outcome(&receiver.url("http")).await, expected, "{line}");
        }
    }

    #[tokio::test]
    async fn a_redirect_is_not_followed() {
        let other = Receiver::answering(OK).await;
        let location = other.url("http");
        let answer =
            format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n");
        let receiver = Receiver::answering(answer).await;
        let expected = Outcome::Failed(Failure::Status(302));
        assert_eq!(outcome(&receiver.url("http")).await, expected);
        assert_eq!(other.accepted(), 0);
    }

    #[tokio::test]
    async fn a_request_is_a_post_with_our_user_agent_and_without_accept_encoding() {
        let (head, mut heads) = tokio::sync::mpsc::unbounded_channel();
        let receiver = Receiver::on("127.0.0.1", move |mut stream| {
            let head = head.clone();
            async move {
                let _ = head.send(read_request(&mut stream).await);
                let _ = stream.write_all(OK.as_bytes()).await;
            }
        })
        .await;
        assert_eq!(outcome(&receiver.url("http")).await, DELIVERED);
        let head = heads.recv().await.flatten().expect("it was called").to_lowercase();
        assert!(head.starts_with("post /hook http/1.1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nhost: {}\r\n", receiver.address)), "{head}");
        assert!(head.contains("\r\nuser-agent: weir/"), "{head}");
        assert!(head.contains("\r\ncontent-length: 5\r\n"), "{head}");
        assert!(!head.contains("accept-encoding") && !head.contains("referer"), "{head}");
    }

    #[tokio::test]
    async fn a_connection_is_reused_until_it_is_four_minutes_old() {
        let receiver = Receiver::answering(OK).await;
        let (client, clock) = client(&[], 10_000);
        for turn in 0..=120 {
            let response = client.deliver(request(&receiver.url("http"))).await;
            assert_eq!(response.outcome, DELIVERED);
            let connections = if turn < 80 { 1 } else { 2 };
            assert_eq!(receiver.accepted(), connections, "after {} s", 3 * turn);
            clock.advance(Duration::from_secs(3));
        }
    }

    #[tokio::test]
    async fn without_free_descriptors_idle_connections_are_closed() {
        let receiver = Receiver::answering(OK).await;
        let (client, _) = client(&[("short.example", "no-files")], 10_000);
        for connections in 1..=2 {
            let response = client.deliver(request(&receiver.url("http"))).await;
            assert_eq!((response.outcome, receiver.accepted()), (DELIVERED, connections));
            let short = client.deliver(request("http://short.example/")).await;
            assert_eq!(short.outcome, Outcome::Internal(Fault::Resources));
        }
    }

    #[tokio::test]
    async fn an_endless_body_is_not_read_to_its_end() {
        for head in ["Content-Length: 1000000000000", "Transfer-Encoding: chunked", "X: y"] {
            let (sent, mut closed) = tokio::sync::mpsc::unbounded_channel();
            let receiver = Receiver::on("127.0.0.1", move |mut stream| {
                let sent = sent.clone();
                async move {
                    read_request(&mut stream).await;
                    let head = format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n");
                    let _ = stream.write_all(head.as_bytes()).await;
                    let chunk = [b"10000\r\n", &[b'x'; 0x10000][..], b"\r\n"].concat();
                    let mut chunks = 0;
                    while stream.write_all(&chunk).await.is_ok() {
                        chunks += 1;
                    }
                    let _ = sent.send(chunks);
                }
            })
            .await;
            assert_eq!(outcome(&receiver.url("http")).await, DELIVERED, "{head}");
            let chunks = closed.recv().await.expect("the connection was closed");
            // The buffers of two sockets hold a few MiB.
            assert!(chunks < 256, "{head}: {chunks} chunks of 64 KiB");
        }
    }

    #[tokio::test]
    async fn a_missing_body_neither_fails_nor_delays_a_delivery() {
        let receiver = Receiver::answering("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n").await;
        let url = receiver.url("http");
        assert_eq!(client(&[], 300).0.deliver(request(&url)).await.outcome, DELIVERED);
        let (patient, _) = client(&[], 60_000);
        let attempt = patient.deliver(request(&url));
        let response = timeout(Duration::from_secs(20), attempt).await;
        assert_eq!(response.expect("it does not wait a minute").outcome, DELIVERED);
    }

    #[tokio::test]
    async fn a_compressed_body_is_not_decompressed() {
        // Not gzip: decompressing it would fail.
        let head = "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n";
        let receiver = Receiver::answering([head.as_bytes(), b"\x1f\x8bxx"].concat()).await;
        let (client, _) = client(&[], 10_000);
        for _ in 0..2 {
            assert_eq!(client.deliver(request(&receiver.url("http"))).await.outcome, DELIVERED);
        }
        assert_eq!(receiver.accepted(), 1, "the body was read to its end");
    }

    #[tokio::test]
    async fn the_deadline_applies_however_slowly_headers_arrive() {
        let hanging = Receiver::on("127.0.0.1", |stream| async move {
            let _open = stream;
            std::future::pending::<()>().await;
        });
        let dripping = Receiver::on("127.0.0.1", |mut stream| async move {
            let mut beat = tokio::time::interval(Duration::from_millis(20));
            for byte in OK.bytes().take(30).chain(std::iter::repeat(b'x')) {
                beat.tick().await;
                if stream.write_all(&[byte]).await.is_err() {
                    return;
                }
            }
        });
        let (client, _) = client(&[("slow.example", "silence")], 300);
        let (hanging, dripping) = (hanging.await, dripping.await);
        for url in [hanging.url("http"), hanging.url("https"), dripping.url("http")] {
            let attempt = client.deliver(request(&url));
            let response = timeout(Duration::from_secs(5), attempt).await;
            assert_eq!(response.expect("it keeps its deadline").outcome, SILENT, "{url}");
        }
        let unanswered = client.deliver(request("http://slow.example/")).await.outcome;
        assert_eq!(unanswered, Outcome::Internal(Fault::Resolver));
    }

    #[tokio::test]
    async fn a_response_during_a_suspension_counts_and_a_missing_one_is_no_failure() {
        let (late, hanging) = (
            Receiver::on("127.0.0.1", |mut stream| async move {
                let _ = read_request(&mut stream).await;
                sleep(Duration::from_millis(200)).await;
                let _ = stream.write_all(OK.as_bytes()).await;
            }),
            Receiver::on("127.0.0.1", |stream| async move {
                let _open = stream;
                std::future::pending::<()>().await;
            }),
        );
        let stalled = Outcome::Internal(Fault::Stalled);
        for (receiver, expected) in [(late.await, DELIVERED), (hanging.await, stalled)] {
            let (client, clock) = client(&[], 100);
            let attempt = client.deliver(request(&receiver.url("http")));
            // Only the clock advances.
            let standstill = async { clock.advance(Duration::from_secs(60)) };
            let (response, ()) = tokio::join!(attempt, standstill);
            assert_eq!(response.outcome, expected);
        }
    }

    #[tokio::test]
    async fn a_folded_header_line_is_read_as_one() {
        let folded = "HTTP/1.1 503 Busy\r\nX-Note: one\r\n two\r\nRetry-After: 7\r\n\
            Content-Length: 0\r\n\r\n";
        let receiver = Receiver::answering(folded).await;
        let response = client(&[], 10_000).0.deliver(request(&receiver.url("http"))).await;
        assert_eq!(response.outcome, Outcome::Failed(Failure::Status(503)));
        assert_eq!(response.retry_after, Some(Duration::from_secs(7)));
    }

    #[tokio::test]
    async fn a_response_that_is_no_http_is_a_connection_failure() {
        let flood = (0..200).map(|n| format!("X-{n}: y\r\n")).collect::<String>();
        let line = format!("X: {}\r\n", "y".repeat(1024 * 1024));
        for answer in [
            "SSH-2.0-OpenSSH_9.6\r\n\r\n".to_owned(),
            "HTTP/1.1 2x0 OK\r\n\r\n".to_owned(),
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n".to_owned(),
            format!("HTTP/1.1 200 OK\r\n{flood}\r\n"),
            format!("HTTP/1.1 200 OK\r\n{line}\r\n"),
        ] {
            let start: String = answer.chars().take(40).collect();
            let receiver = Receiver::answering(answer).await;
            assert_eq!(outcome(&receiver.url("http")).await, BROKEN, "{start}");
        }
    }

    #[tokio::test]
    async fn a_broken_connection_is_a_tls_failure_during_the_handshake_alone() {
        let resetting = Receiver::on("127.0.0.1", |mut stream| async move {
            let mut one = [0; 1];
            let _ = stream.read(&mut one).await;
            let _ = stream.set_zero_linger();
        });
        let closing = Receiver::on("127.0.0.1", |mut stream| async move {
            read_request(&mut stream).await;
        });
        let closing_at_once = Receiver::on("127.0.0.1", |mut stream| async move {
            let _ = stream.read(&mut [0; 4096]).await;
        });
        let (resetting, closing) = (resetting.await, closing.await);
        assert_eq!(outcome(&resetting.url("http")).await, BROKEN);
        assert_eq!(outcome(&closing.url("http")).await, BROKEN);
        let tls = Outcome::Failed(Failure::Tls);
        assert_eq!(outcome(&resetting.url("https")).await, tls);
        assert_eq!(outcome(&closing_at_once.await.url("https")).await, tls);
        let plain = Receiver::on("127.0.0.1", |mut stream| async move {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
            let _ = stream.read(&mut [0; 4096]).await;
        });
        assert_eq!(outcome(&plain.await.url("https")).await, tls);
    }

    #[tokio::test]
    async fn a_closed_port_is_refused() {
        let closed = Receiver::answering(OK).await.address;
        let there = || async { TcpStream::connect(closed).await.is_ok() };
        while there().await {
            tokio::task::yield_now().await;
        }
        let refused = Outcome::Failed(Failure::Refused);
        assert_eq!(outcome(&format!("http://{closed}/")).await, refused);
        assert_eq!(outcome(&format!("https://{closed}/")).await, refused);
    }

    #[tokio::test]
    async fn dns_rebinding_leads_to_no_forbidden_address() {
        let closing = Receiver::on("127.0.0.1", |mut stream| async move {
            read_request(&mut stream).await;
            let answer = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer).await;
        })
        .await;
        let port = closing.address.port();
        // The forbidden address, 127.0.0.3, listens on the same port.
        let forbidden = TcpListener::bind(("127.0.0.3", port)).await.expect("a free port");
        let script = [("rebinding.example", "127.0.0.1 then 127.0.0.3 then 10.0.0.1 127.0.0.3")];
        let (client, _) = client(&script, 10_000);
        let url = format!("http://rebinding.example:{port}/");
        let mut outcomes = Vec::new();
        for _ in 0..3 {
            outcomes.push(client.deliver(request(&url)).await.outcome);
        }
        assert_eq!(outcomes, [DELIVERED, NO_NAME, NO_NAME]);
        assert_eq!(closing.accepted(), 1);
        let arrival = timeout(Duration::from_millis(1), forbidden.accept()).await;
        assert!(arrival.is_err(), "no connection arrived");
    }

    #[tokio::test]
    async fn an_address_in_a_url_is_checked_at_each_attempt() {
        let forbidden = Receiver::on("127.0.0.3", |_| async {}).await;
        assert_eq!(outcome(&forbidden.url("http")).await, BLOCKED);
        assert_eq!(outcome("https://[::1]/").await, BLOCKED);
        assert_eq!(outcome("https://[::ffff:10.0.0.1]/").await, BLOCKED);
        assert_eq!(outcome("ftp://127.0.0.1/").await, BLOCKED, "no rule allows it any more");
        assert_eq!(forbidden.accepted(), 0);
    }

    #[tokio::test]
    async fn an_unresolvable_name_is_the_receivers_failure_and_a_shortage_is_internal() {
        let names =
            [("empty.example", ""), ("short.example", "no-files"), ("again.example", "again")];
        let (client, _) = client(&names, 10_000);
        for (host, expected) in [
            ("empty.example", Outcome::Failed(Failure::Dns)),
            ("unknown.example", Outcome::Failed(Failure::Dns)),
            ("short.example", Outcome::Internal(Fault::Resources)),
            ("again.example", Outcome::Internal(Fault::Resolver)),
        ] {
            let response = client.deliver(request(&format!("https://{host}/"))).await;
            assert_eq!(response.outcome, expected, "{host}");
        }
    }

    #[tokio::test]
    async fn retry_after_counts_on_errors_only() {
        for (status, expected) in [(429, Some(7)), (503, Some(7)), (200, None), (301, None)] {
            let answer =
                format!("HTTP/1.1 {status} X\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n");
            let receiver = Receiver::answering(answer).await;
            let response = client(&[], 10_000).0.deliver(request(&receiver.url("http"))).await;
            assert_eq!(response.retry_after, expected.map(Duration::from_secs), "{status}");
        }
    }
}
