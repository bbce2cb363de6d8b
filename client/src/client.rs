//! A client: one server, one token, what it has read lately, and how long its calls wait.
//!
//! # Invariants
//!
//! 1. A call ends within its budget, and the deadline of one try.
//! 2. A change is sent again only if it was refused before anything was done.
//! 3. While a limit refuses the token, its other calls wait, too, and are not sent.
//!
//! A caller cancels a call by dropping it; a try of a change that is under way may still be
//! carried out. Not here: how long a wait is (`backoff`), the calls of the APIs (`methods`).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use weir_common::time::Tick;

use crate::backoff::{self, Next};
use crate::cache::{Outcome, SharedReads};
use crate::call::{Allowance, Answer, Call, CallError, CallKind, Problem, shortened};
use crate::transport::{SendError, Transport};

/// How long a call waits in all by default: one window of the shipped limits, and its jitter.
pub const BUDGET: Duration = Duration::from_secs(75);

/// Bytes of kept lists by default: hundreds of pages of 100 entries would not help more.
pub const CACHE_BYTES: u64 = 8 << 20;

/// The longest that one refusal holds up the token's other calls. A limit's window may be a month,
/// and a proxy's `Retry-After` wrong: a call in ten minutes finds out.
const REFUSED_MAX: Duration = Duration::from_secs(10 * 60);

/// A client. Clones share everything.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    transport: Box<dyn Transport>,
    budget: Duration,
    reads: SharedReads,
    /// Until when the token is refused.
    refused_until: Mutex<Tick>,
    allowance: Mutex<Option<Allowance>>,
    waits: AtomicU64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

impl Client {
    /// A client over `transport` whose calls wait at most for `budget`, and whose lists take at
    /// most `cache_bytes`.
    pub fn new(transport: impl Transport, budget: Duration, cache_bytes: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                transport: Box::new(transport),
                budget,
                reads: SharedReads::new(cache_bytes),
                refused_until: Mutex::new(Tick(0)),
                allowance: Mutex::new(None),
                waits: AtomicU64::new(0),
            }),
        }
    }

    /// The limit that bound the last call, as its headers showed it.
    #[must_use]
    pub fn allowance(&self) -> Option<Allowance> {
        self.shared.allowance.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The waits of all calls so far.
    #[must_use]
    pub fn waits(&self) -> u64 {
        self.shared.waits.load(Ordering::Relaxed)
    }

    /// The body of the answer to a call.
    ///
    /// # Errors
    ///
    /// If it is refused, or gets no usable answer within the budget.
    pub async fn send(&self, call: &Call) -> Result<Answer, CallError> {
        let Shared { reads, transport, budget, .. } = &*self.shared;
        let until = transport.now().tick.plus(*budget);
        let outcome = if call.kind == CallKind::Write {
            let _changed = Changed(reads);
            self.patient(call, until).await
        } else {
            let now = || transport.now().tick;
            reads.outcome(call, now, self.patient(call, until)).await
        };
        let answer = outcome?;
        match answer.status {
            200..=299 => Ok(answer),
            500.. if call.kind == CallKind::Write => {
                Err(CallError::MaybeDone(Problem::of(&answer).to_string()))
            }
            _ => Err(CallError::Refused(Box::new(Problem::of(&answer)))),
        }
    }

    /// The parsed body of the answer to a call.
    ///
    /// # Errors
    ///
    /// As [`Client::send`], or if the body is not as expected.
    pub async fn fetch<T: DeserializeOwned>(&self, call: &Call) -> Result<T, CallError> {
        let answer = self.send(call).await?;
        serde_json::from_slice(&answer.body).map_err(|why| {
            // A parser's words may quote the answer.
            let why = shortened(&why.to_string());
            let why =
                format!("the answer to {} {} is not as expected: {why}", call.method, call.target);
            match call.kind {
                CallKind::Write => CallError::MaybeDone(why),
                CallKind::List | CallKind::Read => CallError::NoAnswer(why),
            }
        })
    }

    /// Sends a call until it is not refused for now, or its budget ends at `until`.
    async fn patient(&self, call: &Call, until: Tick) -> Outcome {
        let transport = &self.shared.transport;
        let key = (call.kind == CallKind::Write)
            .then(|| format!("{:016x}{:016x}", transport.dice(), transport.dice()));
        let mut attempt = 0;
        loop {
            self.wait_until_admitted(until).await?;
            let answer = match transport.send(call, key.as_deref()).await {
                Ok(answer) => answer,
                Err(SendError::NotSent(why)) => return Err(CallError::Unreachable(why)),
                Err(SendError::Unknown(why)) if call.kind == CallKind::Write => {
                    return Err(CallError::MaybeDone(why));
                }
                Err(SendError::Unknown(why)) => return Err(CallError::NoAnswer(why)),
            };
            self.note(&answer);
            if !answer.is_unexecuted(call.kind) {
                return Ok(answer);
            }
            let (retry_after, dice) = (answer.retry_after.as_deref(), transport.dice());
            match backoff::next(attempt, retry_after, dice, transport.now(), until) {
                Next::Again(at) => {
                    if answer.is_rate_limited() {
                        let mut refused = self.refused_until();
                        *refused = at.max(*refused);
                    }
                    self.wait_until(at).await;
                }
                Next::GiveUp(wait) => {
                    let problem = Box::new(Problem::of(&answer));
                    if answer.is_rate_limited() {
                        let mut refused = self.refused_until();
                        let at = transport.now().tick.plus(wait.min(REFUSED_MAX));
                        *refused = at.max(*refused);
                    }
                    return Err(CallError::Busy { wait, problem });
                }
            }
            attempt += 1;
        }
    }

    /// Waits while a limit refuses the token.
    async fn wait_until_admitted(&self, until: Tick) -> Result<(), CallError> {
        loop {
            let now = self.shared.transport.now().tick;
            let at = *self.refused_until();
            if at <= now && now <= until {
                return Ok(());
            }
            if at.max(now) > until {
                let detail = "earlier calls of this token wait, too".to_owned();
                let problem = Box::new(Problem { status: 429, detail, ..Problem::default() });
                return Err(CallError::Busy { wait: at.since(now), problem });
            }
            self.wait_until(at).await;
        }
    }

    async fn wait_until(&self, at: Tick) {
        let Shared { transport, waits, .. } = &*self.shared;
        waits.fetch_add(1, Ordering::Relaxed);
        transport.wait(at.since(transport.now().tick)).await;
    }

    fn refused_until(&self) -> std::sync::MutexGuard<'_, Tick> {
        self.shared.refused_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note(&self, answer: &Answer) {
        if let Some(allowance) = &answer.allowance {
            let mut last = self.shared.allowance.lock().unwrap_or_else(PoisonError::into_inner);
            *last = Some(allowance.clone());
        }
    }
}

/// Notes a change once it has ended, or was cancelled.
struct Changed<'a>(&'a SharedReads);

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        self.0.changed();
    }
}

#[cfg(test)]
mod tests;
