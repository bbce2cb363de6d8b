//! Simulated receivers: one for each URL, with a behaviour that changes, and its responses.
//!
//! A receiver knows only the requests that reach it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http::HeaderMap;
use http::header::RETRY_AFTER;
use tokio::sync::oneshot;
use weir_common::time::Clock;
use weir_dispatcher::delivery::connection::AttemptRequest;
use weir_dispatcher::delivery::transport::{Answer, Progress, Transport};
use weir_dispatcher::domain::outcome::{Failure, Fault, Outcome};
use weir_tests::rng::SeededRng;

use crate::orders::OPERATOR_URL;

/// An attempt that has reached the network.
pub(crate) struct Call {
    pub(crate) request: AttemptRequest,
    pub(crate) answer: oneshot::Sender<Result<Answer, Outcome>>,
}

/// Attempts that have reached the network and are not processed yet.
pub(crate) type Calls = Arc<Mutex<Vec<Call>>>;

/// Queues every attempt, and returns its answer once the world sends one.
pub(crate) struct Network(pub(crate) Calls, pub(crate) Clock);

#[async_trait]
impl Transport for Network {
    async fn send(
        &self,
        request: AttemptRequest,
        progress: &mut Progress,
    ) -> Result<Answer, Outcome> {
        progress.sent(self.1.now().tick);
        let (answer, answered) = oneshot::channel();
        self.0.lock().unwrap().push(Call { request, answer });
        match answered.await {
            Ok(answer) => answer,
            // This one is never answered.
            Err(_) => std::future::pending().await,
        }
    }
}

/// How a receiver behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mood {
    Well,
    /// Answers shortly before, at, or after the deadline.
    Late,
    /// Answers 200, up to three deadlines after the deadline.
    Tardy,
    Slow,
    Refusing,
    Silent,
    Erring,
    /// Answers 429 or 503, with `Retry-After`.
    Limiting,
    Redirecting,
    /// Behaves as any of these, chosen anew for each attempt.
    Flapping,
    /// Answers 2xx, but some attempts find no free socket.
    Scarce,
    /// DNS does not answer for its name.
    Nameless,
    /// Answers 2xx, but some attempts find that the kept connection is closed.
    Parting,
}

pub(crate) const MOODS: [Mood; 17] = [
    Mood::Well,
    Mood::Well,
    Mood::Well,
    Mood::Well,
    Mood::Late,
    Mood::Tardy,
    Mood::Slow,
    Mood::Refusing,
    Mood::Refusing,
    Mood::Silent,
    Mood::Erring,
    Mood::Limiting,
    Mood::Redirecting,
    Mood::Flapping,
    Mood::Scarce,
    Mood::Nameless,
    Mood::Parting,
];

#[derive(Debug)]
pub(crate) struct Receiver {
    pub(crate) url: String,
    pub(crate) mood: Mood,
    /// Whether it rejects some events each time.
    pub(crate) poisons: bool,
}

/// A receiver's reaction to an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Reaction {
    /// How long after its start; beyond the deadline, the attempt times out first.
    pub(crate) after: Duration,
    pub(crate) outcome: Outcome,
    pub(crate) retry_after: Option<u64>,
    /// It repeats the headers of the request.
    pub(crate) body: Vec<u8>,
}

impl Reaction {
    /// The answer on the wire.
    pub(crate) fn answer(&self) -> Result<Answer, Outcome> {
        let Some(status) = self.outcome.status() else { return Err(self.outcome.clone()) };
        let mut headers = HeaderMap::new();
        headers.extend(self.retry_after.map(|seconds| (RETRY_AFTER, seconds.into())));
        Ok(Answer::simulated(status, headers, self.body.clone()))
    }
}

impl Receiver {
    /// Its reaction to this attempt.
    pub(crate) fn react(
        &self,
        request: &AttemptRequest,
        deadline: Duration,
        rng: &mut SeededRng,
    ) -> Reaction {
        let event = request.headers["webhook-id"].to_str().unwrap();
        let ms = Duration::from_millis;
        // Identifiers of events for operators depend on random keys that no seed decides.
        let poisoned = self.poisons && self.url != OPERATOR_URL && event.ends_with('7');
        let mood = match self.mood {
            Mood::Flapping => *rng.pick(&MOODS).unwrap(),
            mood => mood,
        };
        let status = |status| Outcome::of_status(status);
        let (after, outcome) = match mood {
            Mood::Scarce if rng.chance(25) => (ms(0), Outcome::Internal(Fault::Resources)),
            Mood::Parting if !request.fresh_connection && rng.chance(40) => {
                (ms(rng.below(100)), Outcome::Internal(Fault::StaleConnection))
            }
            Mood::Well | Mood::Flapping | Mood::Scarce | Mood::Parting if poisoned => {
                (ms(rng.below(2) * rng.below(50)), status(422))
            }
            Mood::Well | Mood::Flapping | Mood::Scarce | Mood::Parting => {
                (ms(rng.below(300)), status(200 + rng.below(7) as u16))
            }
            Mood::Late => (deadline.saturating_sub(ms(2)) + ms(rng.below(5)), status(200)),
            Mood::Tardy => (deadline + deadline / 100 * rng.below(300) as u32, status(200)),
            Mood::Slow => (ms(2_000 + rng.below(7_000)), status(if poisoned { 500 } else { 200 })),
            Mood::Refusing => (ms(rng.below(3)), Outcome::Failed(Failure::Refused)),
            Mood::Nameless => {
                (ms(rng.below(2) * rng.below(2_000)), Outcome::Internal(Fault::Resolver))
            }
            Mood::Silent => (Duration::MAX, Outcome::Failed(Failure::Timeout)),
            Mood::Erring => (ms(rng.below(2_000)), status([500, 404, 410][rng.below(3) as usize])),
            Mood::Limiting => (ms(rng.below(20)), status([429, 503][rng.below(2) as usize])),
            Mood::Redirecting => (ms(rng.below(20)), status(302)),
        };
        let says = mood == Mood::Limiting || (mood == Mood::Redirecting && rng.chance(50));
        let retry_after = says.then(|| [0, 1, 30, 90, 3_600, 100_000][rng.below(6) as usize]);
        let headers = request.headers.values().map(|value| value.as_bytes());
        let body = headers.collect::<Vec<_>>().join(&b'\n');
        Reaction { after, outcome, retry_after, body }
    }
}
