//! A receiver for developers: verifies and prints deliveries, answers a set status or forwards. And
//! `send-test`: one example delivery to try a receiver.
//!
//! # Invariants
//!
//! 1. Only deliveries with a valid signature are forwarded; all others are answered 400, but a
//!    challenge: it comes before its owner can know the secret.
//! 2. No byte of a delivery reaches the terminal as a control character.
//!
//! Not here: the flags (`cli`), signatures (`signature`).

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use url::Url;
use weir_common::http_server::body::BODIES_BYTES_MAX;
use weir_common::http_server::reply::Reply;
use weir_common::http_server::{
    self, Acceptance, Bounds, Call, ConnectionBounds, HEAD_BYTES_MAX, Handler, Listening,
};
use weir_common::log::visible;
use weir_common::secret::Secret;
use weir_common::time::Clock;

use crate::config::settings::{AttemptSettings, Signature};
use crate::delivery::client::{AttemptResponse, DeliveryClient};
use crate::delivery::connection::AttemptRequest;
use crate::delivery::http_client;
use crate::delivery::signature::{
    self, Signed, StandardHeaders, WEBHOOK_ID, WEBHOOK_SIGNATURE, WEBHOOK_TIMESTAMP,
};
use crate::domain::challenge;
use crate::domain::event::EventType;
use crate::domain::webhook::headers::CustomHeaders;
use crate::domain::webhook::signing_key::PublicKey;

/// The tolerance between the signature's time and the receiver's clock.
const TOLERANCE_SECONDS: u64 = 300;

/// Four times the default limit of an event.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// A browser and one dispatcher need fewer.
const CONNECTIONS_MAX: usize = 64;

/// The default timeout of an attempt: a slower head or body is not from a dispatcher.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The default timeout of an attempt.
const FORWARD_TIMEOUT: Duration = Duration::from_secs(10);

/// Events remembered to detect duplicates.
const SEEN_MAX: usize = 1_000;

/// The longest type or identifier that is printed; real ones are shorter.
const SHOWN_CHARS_MAX: usize = 100;

/// A receiver to start.
pub struct Listen {
    /// The address to listen on; port 0 is any free port.
    pub address: SocketAddr,
    /// What verifies deliveries.
    pub key: ReceiverKey,
    /// The name of the signature header.
    pub header: String,
    /// The answer to verified deliveries.
    pub answer: Answering,
    /// The time before each answer.
    pub delay: Duration,
    /// The clock.
    pub clock: Clock,
}

/// What a receiver verifies deliveries with.
pub enum ReceiverKey {
    /// The secret: the signature header.
    Secret(Secret<String>),
    /// The public key: `v1a` of Standard Webhooks.
    Public(PublicKey),
}

/// The answer to verified deliveries.
pub enum Answering {
    /// This status.
    Status(u16),
    /// What this URL answers, to which they are forwarded.
    Forward(Url),
}

impl Listen {
    /// Receives until the process ends.
    pub async fn run(self) -> io::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        print(&format!("listening on http://{}", listener.local_addr()?));
        let receiver = Arc::new(self.receiver(Box::new(print))?);
        let each = ConnectionBounds {
            head_bytes_max: HEAD_BYTES_MAX,
            head_timeout: READ_TIMEOUT,
            idle_timeout: READ_TIMEOUT,
            body_timeout: READ_TIMEOUT,
        };
        let bounds = Bounds {
            connection: Arc::new(move || each),
            connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            bodies_bytes_max: BODIES_BYTES_MAX,
        };
        // Not dropped before the end: that would close the listener.
        let listening = watch::Sender::new(Listening::Open);
        http_server::serve(listener, receiver, bounds, listening.subscribe()).await;
        Ok(())
    }

    fn receiver(self, print: Box<dyn Fn(&str) + Send + Sync>) -> io::Result<Receiver> {
        let header = HeaderName::try_from(&self.header)
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "not a header's name"))?;
        let answer = match self.answer {
            Answering::Status(status) => Answerer::Status(status),
            Answering::Forward(url) => {
                let tls = http_client::tls().map_err(io::Error::other)?;
                let client = http_client::builder(tls, FORWARD_TIMEOUT).timeout(FORWARD_TIMEOUT);
                Answerer::Forward(client.build().map_err(io::Error::other)?, url)
            }
        };
        let Self { key, delay, clock, .. } = self;
        Ok(Receiver { key, header, answer, delay, clock, seen: Mutex::default(), print })
    }
}

/// Prints lines; a closed terminal does not stop the receiver.
fn print(text: &str) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

struct Receiver {
    key: ReceiverKey,
    header: HeaderName,
    answer: Answerer,
    delay: Duration,
    clock: Clock,
    seen: Mutex<VecDeque<String>>,
    print: Box<dyn Fn(&str) + Send + Sync>,
}

enum Answerer {
    Status(u16),
    Forward(reqwest::Client, Url),
}

#[async_trait]
impl Handler for Receiver {
    async fn handle(&self, call: Call) -> Reply {
        let now = self.clock.now().unix;
        let body: Option<Value> = serde_json::from_slice(&call.body).ok();
        let name = |field: &str| shown(body.as_ref().and_then(|body| body.get(field)?.as_str()));
        let (kind, id) = (name("type"), name("id"));
        let verified = self.verify(&call, now.0 / 1_000_000);
        let verdict = match &verified {
            Err(why) => format!("NOT VERIFIED: {why}"),
            Ok(()) if self.remember(&id) => "verified, duplicate".to_owned(),
            Ok(()) => "verified".to_owned(),
        };
        let pretty = body.as_ref().and_then(|body| serde_json::to_string_pretty(body).ok());
        let pretty =
            pretty.map(|text| text.replace(|c: char| visible::is_unsafe(c) && c != '\n', "?"));
        let pretty = pretty.unwrap_or_else(|| format!("({} bytes, no JSON)", call.body.len()));
        let headers = listed(&call.headers);
        (self.print)(&format!("{} {kind} {id} {verdict}\n{headers}\n{pretty}", now.rfc3339()));
        tokio::time::sleep(self.delay).await;
        match (challenge_of(body.as_ref()), verified, &self.answer) {
            (Some(value), _, Answerer::Status(200..=299) | Answerer::Forward(..)) => echo(value),
            (_, Err(_), _) => answer(400),
            (_, Ok(()), Answerer::Status(status)) => answer(*status),
            (_, Ok(()), Answerer::Forward(client, url)) => {
                answer(self.pass_on(client, url, call).await)
            }
        }
    }

    fn body_bytes_max(&self, _: &str, _: Acceptance) -> usize {
        BODY_BYTES_MAX
    }
}

impl Receiver {
    fn verify(&self, call: &Call, now_seconds: u64) -> Result<(), String> {
        let value = |name: &HeaderName| {
            let value = call.headers.get(name).and_then(|value| value.to_str().ok());
            value.ok_or_else(|| format!("there is no header {name}"))
        };
        let body = &call.body;
        let verified = match &self.key {
            ReceiverKey::Secret(secret) => {
                let header = value(&self.header)?;
                signature::verify(secret.expose(), header, body, now_seconds, TOLERANCE_SECONDS)
            }
            ReceiverKey::Public(key) => {
                let received = StandardHeaders {
                    id: value(&WEBHOOK_ID)?,
                    timestamp: value(&WEBHOOK_TIMESTAMP)?,
                    signatures: value(&WEBHOOK_SIGNATURE)?,
                    body,
                };
                signature::verify_ed25519(key, received, now_seconds, TOLERANCE_SECONDS)
            }
        };
        verified.map_err(|why| why.to_string())
    }

    /// Remembers an event; returns whether it is a duplicate.
    fn remember(&self, id: &str) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.iter().any(|one| one == id) {
            return true;
        }
        if seen.len() == SEEN_MAX {
            seen.pop_front();
        }
        seen.push_back(id.to_owned());
        false
    }

    /// Forwards a delivery, and returns the status to answer.
    async fn pass_on(&self, client: &reqwest::Client, url: &Url, call: Call) -> u16 {
        let request = client.post(url.clone()).headers(end_to_end(call.headers)).body(call.body);
        match request.send().await {
            Ok(response) => {
                let status = response.status().as_u16();
                (self.print)(&format!("passed on, answered {status}"));
                status
            }
            Err(error) => {
                (self.print)(&format!("not passed on: {}", chain(&error)));
                502
            }
        }
    }
}

/// The headers without hop-by-hop ones.
fn end_to_end(mut headers: HeaderMap) -> HeaderMap {
    for name in [
        header::HOST,
        header::CONNECTION,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::TE,
        header::TRAILER,
        header::UPGRADE,
        header::EXPECT,
    ] {
        headers.remove(name);
    }
    headers
}

/// An error with its causes, in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let texts = std::iter::successors(Some(error), |e| e.source()).map(ToString::to_string);
    texts.collect::<Vec<_>>().join(": ")
}

/// The headers of a delivery, a printable line each.
fn listed(headers: &HeaderMap) -> String {
    let plain = |c: char| if visible::is_unsafe(c) { '?' } else { c };
    let line = |(name, value): (&HeaderName, &HeaderValue)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        format!("{name}: {}\n", value.chars().map(plain).collect::<String>())
    };
    headers.iter().map(line).collect()
}

/// A part of a body, as one printable line.
fn shown(text: Option<&str>) -> String {
    let Some(text) = text.filter(|text| !text.is_empty()) else {
        return "?".to_owned();
    };
    let plain = |c: char| if visible::is_unsafe(c) || c.is_whitespace() { '?' } else { c };
    text.chars().take(SHOWN_CHARS_MAX).map(plain).collect()
}

/// The value of a challenge.
fn challenge_of(body: Option<&Value>) -> Option<&str> {
    let body = body.filter(|body| body["type"] == EventType::CHALLENGE.name())?;
    body.get("data")?.get(challenge::MEMBER)?.as_str()
}

/// The answer to a challenge.
fn echo(value: &str) -> Reply {
    let answer = json!({ challenge::MEMBER: value });
    Reply::new(200, "application/json", answer.to_string().into_bytes())
}

fn answer(status: u16) -> Reply {
    Reply { status, headers: Vec::new(), body: Bytes::new(), rest: None }
}

/// A webhook for a test delivery; it has no row in the store.
pub struct TestWebhook {
    /// The receiver.
    pub url: Url,
    /// The signing key.
    pub secret: Secret<String>,
}

/// An example event.
pub struct TestEvent {
    /// The type.
    pub kind: EventType,
    /// The data.
    pub data: Value,
}

impl TestEvent {
    /// A ping.
    #[must_use]
    pub fn ping() -> Self {
        Self { kind: EventType::PING, data: json!({}) }
    }
}

/// Sends one signed example event, like the dispatcher.
pub async fn send_test(
    webhook: TestWebhook,
    client: &DeliveryClient,
    signature: &Signature,
    event: &TestEvent,
    clock: &Clock,
) -> AttemptResponse {
    let now = clock.now().unix;
    let event_id = format!("evt_test_{}", now.0);
    let envelope = json!({
        "id": event_id,
        "type": event.kind.name(),
        "workspace_id": "ws_example",
        "tenant_id": "tn_example",
        "created_at": now.rfc3339(),
        "data": event.data,
    });
    let body = Bytes::from(envelope.to_string());
    let unix_seconds = now.0 / 1_000_000;
    let signed = Signed { event_id: &event_id, body: &body, unix_seconds, is_test: true };
    let secrets = std::iter::once(webhook.secret.expose().as_str());
    let headers = signature::headers(signature, &signed, &CustomHeaders::default(), secrets, None);
    let url = webhook.url;
    client
        .deliver(AttemptRequest {
            url,
            headers,
            body,
            fresh_connection: false,
            client_certificate: None,
            keep: AttemptSettings::default(),
        })
        .await
}

#[cfg(test)]
mod tests {
    use http::Method;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinSet;
    use tokio::time::timeout;
    use weir_common::time::UnixTime;

    use super::*;
    use crate::domain::webhook::signing_key::SigningKey;

    const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";

    /// A receiver, and its printed lines.
    struct Setup {
        receiver: Receiver,
        printed: Arc<Mutex<Vec<String>>>,
        clock: Clock,
    }

    fn setup(forward: Option<Url>) -> Setup {
        answering(forward.map_or(Answering::Status(204), Answering::Forward), Duration::ZERO)
    }

    fn answering(answer: Answering, delay: Duration) -> Setup {
        verifying(ReceiverKey::Secret(Secret::new(SECRET.to_owned())), answer, delay)
    }

    fn verifying(key: ReceiverKey, answer: Answering, delay: Duration) -> Setup {
        let clock = Clock::manual(UnixTime(1_700_000_000_000_000));
        let listen = Listen {
            address: ([127, 0, 0, 1], 0).into(),
            key,
            header: "Service-Signature".to_owned(),
            answer,
            delay,
            clock: clock.clone(),
        };
        let printed = Arc::new(Mutex::new(Vec::new()));
        let lines = printed.clone();
        let print = move |text: &str| lines.lock().expect("no panic").push(text.to_owned());
        let receiver = listen.receiver(Box::new(print)).expect("it can be one");
        Setup { receiver, printed, clock }
    }

    fn signature() -> Signature {
        let header = HeaderName::from_static("service-signature");
        Signature { header, standard_webhooks: true }
    }

    impl Setup {
        /// The status for this body, signed now with this secret, and the printed line.
        async fn receive(&self, secret: &str, body: &str) -> (u16, String) {
            let body = Bytes::from(body.to_owned());
            let unix_seconds = self.clock.now().unix.0 / 1_000_000;
            let signed = Signed { event_id: "evt_1", body: &body, unix_seconds, is_test: false };
            let headers = signature::headers(
                &signature(),
                &signed,
                &CustomHeaders::default(),
                std::iter::once(secret),
                None,
            );
            self.post(headers, body).await
        }

        async fn post(&self, headers: HeaderMap, body: Bytes) -> (u16, String) {
            let (method, path) = (Method::POST, "/".to_owned());
            let call = Call { method, path, query: None, headers, body };
            let reply = self.receiver.handle(call).await;
            let printed: Vec<String> = self.printed.lock().expect("no panic").drain(..).collect();
            (reply.status, printed.join("\n"))
        }
    }

    #[tokio::test]
    async fn a_verified_delivery_is_printed_and_answered_204_and_a_second_one_is_a_duplicate() {
        let setup = setup(None);
        let body = r#"{"id":"evt_1","type":"user.created","data":{}}"#;
        let pretty = "{\n  \"id\": \"evt_1\",\n  \"type\": \"user.created\",\n  \"data\": {}\n}";
        let line = "2023-11-14T22:13:20.000Z user.created evt_1 verified";
        for line in [line.to_owned(), format!("{line}, duplicate")] {
            let (status, printed) = setup.receive(SECRET, body).await;
            assert_eq!(status, 204);
            let headers =
                printed.strip_prefix(&format!("{line}\ncontent-type: application/json\n"));
            let headers = headers.and_then(|rest| rest.strip_suffix(&format!("\n\n{pretty}")));
            let headers = headers.unwrap_or_else(|| panic!("{printed}"));
            assert!(headers.contains("\nwebhook-id: evt_1\n"), "{printed}");
        }
    }

    #[tokio::test]
    async fn with_a_public_key_the_signatures_of_that_key_are_verified() {
        let (key, other) = (SigningKey::of_seed([7; 32]), SigningKey::of_seed([8; 32]));
        for (signing, status) in [(Some(&key), 204), (Some(&other), 400), (None, 400)] {
            let public = PublicKey::of_text(&key.public()).expect("it is one");
            let public = ReceiverKey::Public(public);
            let setup = verifying(public, Answering::Status(204), Duration::ZERO);
            let body = Bytes::from_static(b"{}");
            let unix_seconds = setup.clock.now().unix.0 / 1_000_000;
            let signed = Signed { event_id: "evt_1", body: &body, unix_seconds, is_test: false };
            let none = CustomHeaders::default();
            let secrets = std::iter::once(SECRET);
            let headers = signature::headers(&signature(), &signed, &none, secrets, signing);
            assert_eq!(setup.post(headers, body).await.0, status);
        }
    }

    #[tokio::test]
    async fn a_challenge_is_answered_with_any_signature() {
        let body = r#"{"type":"webhook.challenge","data":{"challenge":"c7"}}"#;
        for (status, secret, answered) in
            [(204, SECRET, 200), (204, "whsec_new", 200), (500, SECRET, 500), (500, "x", 400)]
        {
            let setup = answering(Answering::Status(status), Duration::ZERO);
            assert_eq!(setup.receive(secret, body).await.0, answered);
        }
        let value = serde_json::from_str(body).expect("JSON");
        let reply = echo(challenge_of(Some(&value)).expect("it is one"));
        assert!(challenge::is_echoed("c7", &reply.body));
    }

    #[tokio::test(start_paused = true)]
    async fn a_verified_delivery_gets_the_status_and_the_delay_that_were_set() {
        let delay = Duration::from_secs(3);
        let setup = answering(Answering::Status(500), delay);
        for (secret, status) in [(SECRET, 500), ("whsec_other", 400)] {
            let early = delay - Duration::from_millis(1);
            assert!(timeout(early, setup.receive(secret, "{}")).await.is_err());
            let answered = timeout(delay, setup.receive(secret, "{}")).await;
            assert_eq!(answered.expect("it is time").0, status);
        }
    }

    #[tokio::test]
    async fn a_header_controls_no_terminal() {
        let mut headers = HeaderMap::new();
        headers.insert("x", HeaderValue::from_bytes(b"a\xc2\x9bb\xff").expect("a value"));
        let printed = setup(None).post(headers, Bytes::new()).await.1;
        assert!(printed.contains("\nx: a?b\u{fffd}\n"), "{printed:?}");
    }

    #[tokio::test]
    async fn an_invalid_signature_is_answered_400_and_the_reason_printed() {
        let setup = setup(None);
        let body = r#"{"id":"evt_1"}"#;
        let (status, printed) = setup.receive("whsec_other", body).await;
        assert_eq!(status, 400);
        assert!(printed.contains("? evt_1 NOT VERIFIED: no v1 matches"), "{printed}");
        let (status, printed) = setup.post(HeaderMap::new(), Bytes::from(body)).await;
        assert_eq!(status, 400);
        assert!(printed.contains("there is no header service-signature"), "{printed}");
        let (status, printed) = setup.receive(SECRET, body).await;
        assert_eq!(status, 204);
        assert!(!printed.contains("duplicate"), "an invalid delivery is not remembered: {printed}");
    }

    #[tokio::test]
    async fn no_delivery_controls_the_terminal() {
        let setup = setup(None);
        let body = r#"{"id":"evt\u001b[2J\n1","type":"a\u0007","x":"\u001b\u009b","y":1}"#;
        for body in [body, "\u{1b}[2J", "{\"x\":\"\u{9b}\u{2028}\u{202e}\"}"] {
            let (_, printed) = setup.receive(SECRET, body).await;
            assert!(!printed.contains(|c: char| visible::is_unsafe(c) && c != '\n'), "{printed:?}");
        }
        assert!(setup.receive(SECRET, "no").await.1.contains("(2 bytes, no JSON)"));
    }

    #[tokio::test]
    async fn the_number_of_remembered_events_is_bounded() {
        let setup = setup(None);
        for n in 0..=SEEN_MAX {
            assert!(!setup.receiver.remember(&n.to_string()));
        }
        assert_eq!(setup.receiver.seen.lock().expect("no panic").len(), SEEN_MAX);
        assert!(setup.receiver.remember("1") && !setup.receiver.remember("0"));
    }

    #[tokio::test]
    async fn a_verified_delivery_is_forwarded_whole_and_its_answer_returned() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let mut task = JoinSet::new();
        task.spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("it comes");
            let mut request = Vec::new();
            while !request.ends_with(b"{\"id\":\"evt_1\"}") {
                request.push(stream.read_u8().await.expect("there is more"));
            }
            let _ = stream.write_all(b"HTTP/1.1 418 T\r\nContent-Length: 0\r\n\r\n").await;
            String::from_utf8(request).expect("it is text")
        });
        let url = Url::parse(&format!("http://{address}/local")).expect("a URL");
        let setup = setup(Some(url));
        assert_eq!(setup.receive("whsec_other", r#"{"id":"evt_1"}"#).await.0, 400);
        let body = Bytes::from(r#"{"id":"evt_1"}"#);
        let unix_seconds = 1_700_000_000;
        let signed = Signed { event_id: "evt_1", body: &body, unix_seconds, is_test: false };
        let mut headers = signature::headers(
            &signature(),
            &signed,
            &CustomHeaders::default(),
            std::iter::once(SECRET),
            None,
        );
        headers.insert(header::HOST, "weir.example".parse().expect("a value"));
        let (status, printed) = setup.post(headers, body).await;
        assert!(status == 418 && printed.ends_with("passed on, answered 418"), "{printed}");
        let request = task.join_next().await.and_then(Result::ok).expect("it was passed on");
        let request = request.to_lowercase();
        assert!(request.starts_with("post /local http/1.1\r\n"), "{request}");
        assert!(request.contains("\r\nservice-signature: t=1700000000,v1="), "{request}");
        assert!(request.contains("\r\nwebhook-id: evt_1\r\n"), "{request}");
        assert!(request.contains(&format!("\r\nhost: {address}\r\n")), "{request}");

        let (status, printed) = setup.receive(SECRET, r#"{"id":"evt_2"}"#).await;
        assert_eq!(status, 502, "the listener is closed");
        assert!(printed.contains("not passed on: "), "{printed}");
    }

    /// The next request to this listener: headers and body.
    async fn next_request(listener: &TcpListener) -> (HeaderMap, Bytes) {
        let (mut stream, _) = listener.accept().await.expect("it comes");
        let mut request = Vec::new();
        while !request.ends_with(b"}") || serde_json::from_slice::<Value>(body(&request)).is_err() {
            request.push(stream.read_u8().await.expect("there is more"));
        }
        let _ = stream.write_all(b"HTTP/1.1 204 X\r\nConnection: close\r\n\r\n").await;
        let head = String::from_utf8_lossy(&request).into_owned();
        let lines = head.lines().skip(1).take_while(|line| !line.is_empty());
        let pair = |line: &str| {
            let (name, value) = line.split_once(": ").expect("a field");
            (name.parse::<HeaderName>().expect("a name"), value.parse().expect("a value"))
        };
        (lines.map(pair).collect(), Bytes::copy_from_slice(body(&request)))
    }

    fn body(request: &[u8]) -> &[u8] {
        let at = request.windows(4).position(|four| four == b"\r\n\r\n");
        at.map_or(&[], |at| &request[at + 4..])
    }

    #[tokio::test]
    async fn an_example_of_every_type_verifies_at_a_receiver() {
        let egress = crate::config::settings::Egress {
            allow_http: true,
            ports: vec![],
            ..crate::delivery::egress::tests::egress(&["127.0.0.0/8"])
        };
        let setup = setup(None);
        let rules = Arc::new(crate::delivery::egress::Rules::system(egress.clone()));
        let client = DeliveryClient::new(&egress, rules, setup.clock.clone()).expect("it builds");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let catalogue = crate::catalogue::Catalogue::shipped();
        let examples = catalogue.types().iter();
        let examples =
            examples.map(|entry| TestEvent { kind: entry.kind, data: entry.example.clone() });
        for event in examples.chain([TestEvent::ping()]) {
            setup.clock.advance(Duration::from_secs(1));
            let url = Url::parse(&format!("http://{address}/")).expect("a URL");
            let webhook = TestWebhook { url, secret: Secret::new(SECRET.to_owned()) };
            let signature = signature();
            let sending = send_test(webhook, &client, &signature, &event, &setup.clock);
            let (response, (headers, body)) = tokio::join!(sending, next_request(&listener));
            assert_eq!(response.outcome, crate::domain::outcome::Outcome::of_status(204));
            let envelope: Value = serde_json::from_slice(&body).expect("it is JSON");
            let fields = ["id", "type", "workspace_id", "tenant_id", "created_at", "data"];
            assert!(envelope.as_object().expect("an object").keys().eq(fields), "{envelope}");
            let (status, printed) = setup.post(headers, body).await;
            assert_eq!(status, 204, "{printed}");
            assert!(printed.contains(&format!("Z {} evt_test_", event.kind.name())), "{printed}");
        }
    }
}
