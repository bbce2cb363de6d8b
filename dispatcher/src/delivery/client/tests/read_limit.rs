//! Limits of what is read from receivers, over HTTP and TLS, and the outcomes.

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::delivery::connection::ANSWER_BYTES_MAX;
use crate::delivery::pool::IDLE_MAX;

/// More than the buffers of two sockets hold, which is a few MiB.
const ON_THE_WAY: usize = 16 << 20;

/// What a receiver sends: a prefix, then the same part endlessly or not at all.
#[derive(Clone)]
struct Flood {
    before: String,
    each: String,
    times: usize,
}

fn once(text: impl Into<String>) -> Flood {
    Flood { before: text.into(), each: String::new(), times: 0 }
}

fn endless(before: &str, each: impl Into<String>) -> Flood {
    Flood { before: before.to_owned(), each: each.into(), times: usize::MAX }
}

impl Flood {
    /// Answers one request, and returns how many bytes the client accepted.
    async fn answer<S: AsyncRead + AsyncWrite + Unpin>(self, mut stream: S) -> usize {
        if !has_request(&mut stream).await {
            return 0;
        }
        let each = self.each.repeat(1 + 8_192 / (1 + self.each.len()));
        let mut bytes = self.before.len();
        if stream.write_all(self.before.as_bytes()).await.is_err() {
            return 0;
        }
        for _ in 0..self.times {
            if stream.write_all(each.as_bytes()).await.is_err() {
                break;
            }
            bytes += each.len();
        }
        let _ = stream.read(&mut [0; 1]).await;
        bytes
    }
}

/// Whether a whole request arrived.
pub(super) async fn has_request<S: AsyncRead + Unpin>(stream: &mut S) -> bool {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\nhello") {
        if !matches!(stream.read_buf(&mut request).await, Ok(1..)) {
            return false;
        }
    }
    true
}

/// The outcome of an attempt at such a receiver, and the number of bytes the receiver sent.
async fn attempt(flood: &Flood, tls: bool) -> (Outcome, usize) {
    let (sent, mut bytes) = mpsc::unbounded_channel();
    let flood = flood.clone();
    let receiver = Receiver::on("127.0.0.1", move |stream| {
        let (flood, sent) = (flood.clone(), sent.clone());
        async move {
            let count = if tls {
                match acceptor().accept(stream).await {
                    Ok(stream) => flood.answer(stream).await,
                    Err(_) => 0,
                }
            } else {
                flood.answer(stream).await
            };
            let _ = sent.send(count);
        }
    })
    .await;
    let (client, _) = client(&[], 20_000);
    let url = receiver.url(if tls { "https" } else { "http" });
    let outcome = client.deliver(request(&url)).await.outcome;
    drop(client);
    (outcome, bytes.recv().await.expect("the connection ended"))
}

pub(super) fn acceptor() -> TlsAcceptor {
    let file = |name: &str| format!("{FIXTURES}/{name}");
    let chain = CertificateDer::pem_file_iter(file("server.pem")).expect("it is there");
    let chain = chain.collect::<Result<Vec<_>, _>>().expect("it has one");
    let key = PrivateKeyDer::from_pem_file(file("server.key")).expect("it is there");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ring has them")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .expect("they belong together");
    TlsAcceptor::from(Arc::new(config))
}

/// A folder with a root certificate, and one for 127.0.0.1 signed by it, valid for a hundred years.
pub(super) const FIXTURES: &str = "src/delivery/fixtures";

async fn check(flood: Flood, expected: Outcome) {
    for tls in [false, true] {
        let start: String = flood.before.chars().take(40).collect();
        let (outcome, sent) = attempt(&flood, tls).await;
        assert_eq!(outcome, expected, "{start}, tls: {tls}");
        assert!(sent < ON_THE_WAY, "{start}, tls: {tls}: {sent} bytes");
    }
}

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
const INTERIM: &str = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";

#[tokio::test]
async fn a_header_is_read_up_to_64_kib_and_no_further() {
    let head = |bytes: usize| format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(bytes));
    check(once(head(60 << 10)), DELIVERED).await;
    check(once(head(ANSWER_BYTES_MAX)), BROKEN).await;
    check(once(head(380 << 10)), BROKEN).await;
    check(endless("HTTP/1.1 200 OK\r\nX: ", "y"), BROKEN).await;
}

#[tokio::test]
async fn a_header_of_very_many_fields_is_refused() {
    check(endless("HTTP/1.1 200 OK\r\n", "a: b\r\n"), BROKEN).await;
    check(endless("HTTP/1.1 200 OK\r\n", "a:\n"), BROKEN).await;
}

#[tokio::test]
async fn interim_responses_count_with_the_final_one() {
    check(once(INTERIM.repeat(20) + OK), DELIVERED).await;
    check(once(INTERIM.repeat(ANSWER_BYTES_MAX / INTERIM.len()) + OK), BROKEN).await;
    // These end long before the deadline.
    check(endless(INTERIM, INTERIM), BROKEN).await;
    check(endless("", "HTTP/1.1 100 Continue\r\n\r\n"), BROKEN).await;
}

#[tokio::test]
async fn chunk_framing_and_trailers_count_with_the_body() {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    check(endless(chunked, "1;name=value-without-a-meaning\r\nx\r\n"), DELIVERED).await;
    check(endless(&format!("{chunked}1;"), "extension"), DELIVERED).await;
    check(endless(&format!("{chunked}0\r\n"), "trailer: x\r\n"), DELIVERED).await;
    check(endless(&format!("{chunked}0\r\ntrailer: "), "x"), DELIVERED).await;
}

#[tokio::test]
async fn slow_interim_responses_end_at_the_deadline() {
    let dripping = Receiver::on("127.0.0.1", |mut stream| async move {
        let mut beat = tokio::time::interval(Duration::from_millis(20));
        loop {
            beat.tick().await;
            if stream.write_all(INTERIM.as_bytes()).await.is_err() {
                return;
            }
        }
    });
    let (client, _) = client(&[], 300);
    let response = client.deliver(request(&dripping.await.url("http"))).await;
    assert_eq!(response.outcome, Outcome::Failed(Failure::Timeout));
}

/// Answers the first request on a connection, and the second one with `words`; then closes it.
async fn hangs_up(tls: bool, words: &'static str) -> Receiver {
    Receiver::on("127.0.0.1", move |stream| async move {
        if tls {
            let Ok(stream) = acceptor().accept(stream).await else { return };
            hang_up(stream, words).await;
        } else {
            hang_up(stream, words).await;
        }
    })
    .await
}

async fn hang_up<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, words: &str) {
    for answer in [OK, words] {
        if !has_request(&mut stream).await {
            return;
        }
        let _ = stream.write_all(answer.as_bytes()).await;
    }
    let _ = stream.shutdown().await;
}

#[tokio::test]
async fn a_reused_connection_that_closes_before_a_response_is_not_the_receivers_failure() {
    let stale = Outcome::Internal(Fault::StaleConnection);
    for (tls, words, second) in [(false, "", &stale), (true, "", &stale), (false, "H", &BROKEN)] {
        let receiver = hangs_up(tls, words).await;
        let url = receiver.url(if tls { "https" } else { "http" });
        let (client, _) = client(&[], 20_000);
        assert_eq!(client.deliver(request(&url)).await.outcome, DELIVERED);
        assert_eq!(client.deliver(request(&url)).await.outcome, *second, "tls: {tls}, {words:?}");
        assert_eq!(receiver.accepted(), 1, "nothing is sent twice within one attempt");
        // The next attempt opens a new connection, though another one is idle.
        assert_eq!(client.deliver(request(&url)).await.outcome, DELIVERED);
        let fresh = AttemptRequest { fresh_connection: true, ..request(&url) };
        assert_eq!(client.deliver(fresh).await.outcome, DELIVERED);
        assert_eq!(receiver.accepted(), 3);
    }
}

#[tokio::test]
async fn a_connection_that_closed_while_idle_is_not_reused() {
    let receiver = Receiver::on("127.0.0.1", |mut stream| async move {
        if has_request(&mut stream).await {
            let _ = stream.write_all(OK.as_bytes()).await;
        }
    })
    .await;
    let (client, pool, _) = pooled(&[], 20_000);
    for connections in 1..=5 {
        assert_eq!(client.deliver(request(&receiver.url("http"))).await.outcome, DELIVERED);
        // The close arrives before the next attempt.
        while pool.has_open() {
            tokio::task::yield_now().await;
        }
        assert_eq!(receiver.accepted(), connections);
    }
}

#[tokio::test]
async fn a_connection_is_closed_after_four_idle_seconds() {
    let receiver = Receiver::answering(OK).await;
    let (client, pool, clock) = pooled(&[], 20_000);
    for (turn, connections) in [(0, 1), (3_999, 1), (3_999, 1), (4_000, 2)] {
        clock.advance(Duration::from_millis(turn));
        assert_eq!(client.deliver(request(&receiver.url("http"))).await.outcome, DELIVERED);
        assert_eq!(receiver.accepted(), connections, "after {turn} ms more");
    }
    assert!(pool.has_open());
    assert_eq!(pool.close_idle(), Some(IDLE_MAX));
    clock.advance(IDLE_MAX);
    assert_eq!(pool.close_idle(), None);
    assert!(!pool.has_open());
}
