//! A customer's server: receives deliveries, verifies them with its own code, and answers by
//! script.
//!
//! Invariant: no code of the program under test takes part in verifying a signature.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::answer::{Answer, Gate};
use crate::http1::Head;
use crate::upstream::{Received, Upstream};
use crate::wait::{self, Deadline};

/// The name of the signature header in the tests' configuration.
pub const SIGNATURE: &str = "Service-Signature";

/// A delivery as it arrived.
#[derive(Clone, Debug)]
pub struct Delivered {
    /// Its request line and fields.
    pub head: Head,
    /// Its body, byte for byte.
    pub body: Vec<u8>,
    /// When it arrived, in milliseconds since 1970.
    pub at_ms: u64,
}

/// The values of a signature header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signed {
    /// The Unix second that was signed.
    pub t: u64,
    /// Every `v1`, in order.
    pub v1: Vec<String>,
}

impl Delivered {
    fn of(received: Received) -> Self {
        Self { head: received.head, body: received.body, at_ms: received.at_ms }
    }

    /// The path it was sent to.
    pub fn path(&self) -> &str {
        self.head.start.split(' ').nth(1).unwrap_or_default()
    }

    /// Its envelope.
    #[track_caller]
    pub fn envelope(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| {
            panic!("{error} in the body {:?}", String::from_utf8_lossy(&self.body))
        })
    }

    /// The event's id, by which a receiver deduplicates.
    #[track_caller]
    pub fn id(&self) -> String {
        self.envelope()["id"].as_str().unwrap().to_owned()
    }

    /// The value of a field that must occur exactly once.
    #[track_caller]
    pub fn field(&self, name: &str) -> String {
        let values = self.head.all(name);
        let [value] = values.as_slice() else {
            panic!("{name} is not there once: {:?}", self.head)
        };
        (*value).to_owned()
    }

    /// The values of the signature header.
    #[track_caller]
    pub fn signed(&self) -> Signed {
        let header = self.field(SIGNATURE);
        let pairs = header.split(',').map(|pair| pair.split_once('=').unwrap());
        let values = |name: &str| -> Vec<String> {
            let of_name = pairs.clone().filter(|(known, _)| *known == name);
            of_name.map(|(_, value)| value.to_owned()).collect()
        };
        let t = values("t");
        let [t] = t.as_slice() else { panic!("one t in {header}") };
        Signed { t: t.parse().unwrap(), v1: values("v1") }
    }

    /// Checks the signature as the documentation advises receivers: the HMAC, and its age.
    #[track_caller]
    pub fn verify(&self, secret: &str) {
        let signed = self.signed();
        let expected = sign(secret, signed.t, &self.body);
        assert!(signed.v1.contains(&expected), "{signed:?} has no {expected}");
        assert!((self.at_ms / 1_000).abs_diff(signed.t) <= 300, "{signed:?} is stale");
    }

    /// Checks the signature of Standard Webhooks, which a delivery has as well.
    #[track_caller]
    pub fn verify_standard(&self, secret: &str) {
        let [id, timestamp] = ["webhook-id", "webhook-timestamp"].map(|name| self.field(name));
        assert_eq!(id, self.id());
        let expected = sign_standard(secret, &id, timestamp.parse().unwrap(), &self.body);
        let signatures = self.field("webhook-signature");
        assert!(signatures.split(' ').any(|one| one == expected), "{signatures}: no {expected}");
    }
}

/// The `v1` of a body: hex of HMAC-SHA256 over `t.body`, keyed with the whole secret.
pub fn sign(secret: &str, t: u64, body: &[u8]) -> String {
    hex::encode(mac(secret.as_bytes(), &[format!("{t}.").as_bytes(), body].concat()))
}

/// The signature of Standard Webhooks: base64 over `id.t.body`, keyed with the decoded secret.
#[track_caller]
pub fn sign_standard(secret: &str, id: &str, t: u64, body: &[u8]) -> String {
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let message = [format!("{id}.{t}.").as_bytes(), body].concat();
    format!("v1,{}", STANDARD.encode(mac(&key, &message)))
}

/// The hex of a SHA-256, as in the file of tokens.
pub fn sha256(text: &str) -> String {
    hex::encode(Sha256::digest(text.as_bytes()))
}

fn mac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(message);
    mac.finalize().into_bytes().to_vec()
}

/// A receiver on a free port; any path on it is an endpoint.
pub struct Receiver {
    upstream: Upstream,
}

impl Receiver {
    /// Starts a receiver that answers everything with 200.
    pub fn start() -> Self {
        let receiver = Self { upstream: Upstream::start() };
        receiver.answer(|_| Answer::ok("thanks"));
        receiver
    }

    /// The URL of an endpoint on it.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.upstream.address())
    }

    /// The server underneath.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Refuses connections from now on.
    pub fn stop(&mut self) {
        self.upstream.stop();
    }

    /// Accepts connections again.
    pub fn start_again(&mut self) {
        self.upstream.start_again();
    }

    /// Answers by `script` from the next delivery on.
    pub fn answer(&self, script: impl Fn(&Received) -> Answer + Send + Sync + 'static) {
        self.upstream.answer(script);
    }

    /// Answers everything with this status from the next delivery on.
    pub fn status(&self, status: u16) {
        self.upstream.always(Answer::status(status));
    }

    /// The deliveries that have arrived whole.
    pub fn deliveries(&self) -> Vec<Delivered> {
        let whole = self.upstream.requests().into_iter().filter(|request| request.complete);
        whole.map(Delivered::of).collect()
    }

    /// The deliveries that have arrived whole at an endpoint.
    pub fn deliveries_at(&self, path: &str) -> Vec<Delivered> {
        self.deliveries().into_iter().filter(|delivery| delivery.path() == path).collect()
    }

    /// How many deliveries have arrived whole.
    pub fn count(&self) -> usize {
        self.upstream.look(|seen| seen.requests.iter().filter(|request| request.complete).count())
    }

    /// Waits until at least `count` deliveries have arrived whole.
    #[track_caller]
    pub fn wait(&self, count: usize) -> Vec<Delivered> {
        let enough = || (self.count() >= count).then(|| self.deliveries());
        wait::within(wait::PATIENCE, enough).unwrap_or_else(|| {
            panic!("timed out waiting for {count} deliveries; saw {}", self.count())
        })
    }

    /// Checks that nothing arrives for `time`.
    #[track_caller]
    pub fn assert_quiet(&self, time: std::time::Duration) {
        let seen = || self.upstream.look(|seen| seen.requests.len());
        let before = seen();
        let deadline = Deadline::after(time);
        while let Some(left) = deadline.left() {
            wait::pass(left.min(std::time::Duration::from_millis(20)));
            assert_eq!(seen(), before, "something was sent: {:?}", self.upstream.last());
        }
    }
}

/// Hostile responses, each with a name.
pub fn hostile() -> Vec<(&'static str, Answer)> {
    let second = std::time::Duration::from_secs(1);
    let hour = 3_600;
    let head = "HTTP/1.1 200 OK\r\n";
    vec![
        ("hangs", Answer::script().wait(&Gate::new())),
        ("hangs up", Answer::script().close()),
        ("resets", Answer::script().reset()),
        ("speaks no HTTP", Answer::script().send("SSH-2.0-OpenSSH_9.6\r\n").close()),
        ("never ends a head", Answer::script().send(head).send("X: ").flood(u64::MAX)),
        ("sends fields for ever", Answer::script().send(fields(200_000)).close()),
        ("drips a head", Answer::script().drip("H", hour, second)),
        ("redirects", Answer::status(302).field("Location", "http://169.254.169.254/latest/")),
        ("is busy", Answer::status(503).field("Retry-After", "0")),
    ]
}

/// Responses that are a success whatever their body does.
pub fn generous() -> Vec<(&'static str, Answer)> {
    let second = std::time::Duration::from_secs(1);
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n";
    vec![
        ("sends a body for ever", Answer::script().send(head).flood(u64::MAX)),
        ("sends a chunk for ever", Answer::script().send(chunked).flood(u64::MAX)),
        ("drips a body", Answer::script().send(head).drip("x", 3_600, second)),
        ("sends no body at all", Answer::status(204)),
        ("breaks a body off", Answer::script().send(head).send("half").reset()),
    ]
}

/// A head with `count` fields, without its end.
fn fields(count: usize) -> Vec<u8> {
    let mut bytes = b"HTTP/1.1 200 OK\r\n".to_vec();
    bytes.extend((0..count).flat_map(|number| format!("X-{number}: y\r\n").into_bytes()));
    bytes
}
