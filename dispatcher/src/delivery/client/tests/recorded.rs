//! What is recorded of attempts: reasons, addresses, timings, answers.

use super::*;
use crate::config::settings::KeptAnswers;
use crate::domain::trace::Reason;

/// Keeps the answers of receivers on this machine, too.
const KEEP: AttemptSettings =
    AttemptSettings { answers: KeptAnswers::Failed, answer_bytes_max: 8, private_answers: true };

async fn response(url: &str, keep: AttemptSettings) -> AttemptResponse {
    // Three seconds allow for a busy machine; silent receivers take as long.
    let (client, _) = client(&[("private.example", "10.0.0.1")], 3_000);
    client.deliver(AttemptRequest { keep, ..request(url) }).await
}

/// The reason why an attempt fails at a receiver that reads some bytes and acts.
async fn reason<F>(
    scheme: &str,
    act: impl Fn(TcpStream) -> F + Clone + Send + 'static,
) -> Option<Reason>
where
    F: Future<Output = ()> + Send + 'static,
{
    let receiver = Receiver::on("127.0.0.1", move |mut stream| {
        let act = act.clone();
        async move {
            let _ = stream.read(&mut [0; 4096]).await;
            act(stream).await;
        }
    })
    .await;
    response(&receiver.url(scheme), KEEP).await.trace.reason
}

/// Writes these bytes, and closes the connection once the client has.
async fn answering(answer: &str) -> Option<Reason> {
    let answer = answer.to_owned();
    let act = move |mut stream: TcpStream| {
        let answer = answer.clone();
        async move {
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
            let _ = stream.read(&mut [0; 1]).await;
        }
    };
    reason("http", act).await
}

async fn silent(stream: TcpStream) {
    let _open = stream;
    std::future::pending::<()>().await;
}

async fn closing(_: TcpStream) {}

async fn plain(mut stream: TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    let _ = stream.read(&mut [0; 4096]).await;
}

#[tokio::test]
async fn an_attempt_without_a_response_has_a_reason() {
    assert_eq!(answering("").await, Some(Reason::Closed(0)));
    assert_eq!(answering("HTTP/1.1 200 OK\r\nX: ").await, Some(Reason::Closed(20)));
    assert_eq!(answering("SSH-2.0-OpenSSH_9.6\r\n\r\n").await, Some(Reason::NotHttp));
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "y".repeat(1 << 20));
    assert_eq!(answering(&long).await, Some(Reason::TooLong));
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(10_000);
    assert_eq!(answering(&interim).await, Some(Reason::TooLong));
    let reset = |mut stream: TcpStream| async move {
        let _ = stream.write_all(b"HTTP/1.1").await;
        // The client has read these bytes when it is its turn again.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        let _ = stream.set_zero_linger();
    };
    assert_eq!(reason("http", reset).await, Some(Reason::Reset(8)));
    assert_eq!(reason("https", closing).await, Some(Reason::HandshakeBroken));
    assert_eq!(reason("https", plain).await, Some(Reason::NoTls));
}

#[tokio::test]
async fn a_timeout_names_the_phase_that_did_not_end() {
    let started = |mut stream: TcpStream| async move {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n").await;
        silent(stream).await;
    };
    let reasons =
        tokio::join!(reason("http", silent), reason("https", silent), reason("http", started));
    let expected = (Reason::NoAnswer(0), Reason::NoHandshake, Reason::NoAnswer(17));
    assert_eq!(reasons, (Some(expected.0), Some(expected.1), Some(expected.2)));
}

#[tokio::test]
async fn nothing_is_recorded_of_a_host_that_may_not_be_called_or_does_not_resolve() {
    for (url, outcome) in [
        ("https://private.example/", NO_NAME),
        ("https://unknown.example/", NO_NAME),
        ("https://10.0.0.1/", BLOCKED),
    ] {
        assert_eq!(response(url, KEEP).await, AttemptResponse::of(outcome), "{url}");
    }
}

#[tokio::test]
async fn the_answer_to_a_failure_is_kept_up_to_its_bound() {
    let answer = "HTTP/1.1 500 Oh\r\nX-Why: broken\r\nContent-Length: 12\r\n\r\nsorry, sorry";
    let receiver = Receiver::answering(answer).await;
    let AttemptResponse { trace, kept, .. } = response(&receiver.url("http"), KEEP).await;
    assert_eq!(trace.address, Some([127, 0, 0, 1].into()));
    assert!(trace.dns.is_some() && trace.connect.is_some() && trace.first_byte.is_some());
    assert_eq!((trace.tls, trace.reused, trace.reason), (None, false, None));
    let (headers, start) = kept.expect("it failed").answer.expect("it answered");
    assert_eq!(headers["x-why"], "broken");
    // What follows the bound is searched for secrets.
    assert_eq!((&*start.bytes, start.cut), (&b"sorry, sorry"[..], false));
    let none = AttemptSettings { answer_bytes_max: 0, ..KEEP };
    let kept = response(&receiver.url("http"), none).await.kept;
    let (_, start) = kept.expect("it failed").answer.expect("it answered");
    assert_eq!((&*start.bytes, start.cut), (&b""[..], true));
}

#[tokio::test]
async fn an_endless_answer_is_kept_up_to_its_bound() {
    let long = format!("HTTP/1.1 500 Oh\r\nConnection: close\r\n\r\n{}", "x".repeat(100_000));
    let receiver = Receiver::answering(long).await;
    let kept = response(&receiver.url("http"), KEEP).await.kept;
    let (_, start) = kept.expect("it failed").answer.expect("it answered");
    assert_eq!((start.bytes.len(), start.cut), (8 + BODY_BYTES_MORE, true));
}

#[tokio::test]
async fn the_answer_to_a_success_is_kept_on_request_alone() {
    let receiver = Receiver::answering(OK).await;
    let url = receiver.url("http");
    assert_eq!(response(&url, KEEP).await.kept, None);
    let all = AttemptSettings { answers: KeptAnswers::All, ..KEEP };
    let (_, start) = response(&url, all).await.kept.expect("on request").answer.expect("it came");
    assert_eq!((&*start.bytes, start.cut), (&b"ok"[..], false));
}

#[tokio::test]
async fn a_private_network_shows_neither_address_nor_answer_unless_the_operator_permits() {
    let receiver = Receiver::answering("HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno").await;
    let keep = AttemptSettings { private_answers: false, ..KEEP };
    let AttemptResponse { trace, kept, .. } = response(&receiver.url("http"), keep).await;
    assert_eq!((trace.address, kept), (None, Some(Kept { answer: None })));
}

#[tokio::test]
async fn a_reused_connection_has_no_phases_before_the_request() {
    let receiver = Receiver::answering(OK).await;
    let (client, _) = client(&[], 10_000);
    for reused in [false, true] {
        let deliver =
            client.deliver(AttemptRequest { keep: KEEP, ..request(&receiver.url("http")) });
        let trace = deliver.await.trace;
        assert_eq!((trace.reused, trace.connect.is_some()), (reused, !reused));
        assert_eq!(trace.address, Some([127, 0, 0, 1].into()));
    }
}
