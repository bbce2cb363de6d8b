//! Reads that are shared and kept.
//!
//! # Invariants
//!
//! 1. Of identical reads at one time, one is sent; the others get its answer, a failure included.
//!    If it gave up waiting, the next is sent that may still wait.
//! 2. A list's outcome serves the same call for five seconds, and no longer; a failure, too, so
//!    that a server in trouble is not asked for lists without pause.
//! 3. After a change by the same client, nothing is served that was read before the change ended.
//! 4. If the call that is sent is cancelled, the next one that waits for it is sent.
//!
//! One cache belongs to one client, and so to one token.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;
use moka::ops::compute::Op;
use weir_common::time::Tick;

use crate::call::{Answer, Call, CallError, CallKind};

/// How long the answer to a list serves the same call: the contract's.
pub(crate) const LIST_TTL: Duration = Duration::from_secs(5);

/// What an entry takes apart from its target and its body.
const ENTRY_BYTES: usize = 256;

/// What a call led to.
pub(crate) type Outcome = Result<Answer, CallError>;

#[derive(Debug)]
struct Entry {
    outcome: Outcome,
    /// When it was there.
    at: Tick,
}

impl Entry {
    /// Whether it serves a call that came at `started`, now.
    fn serves(&self, kind: CallKind, started: Tick, now: Tick) -> bool {
        let gave_up = matches!(self.outcome, Err(CallError::Busy { .. }));
        let is_shared = self.at > started && !gave_up;
        let is_fresh = !gave_up && now.since(self.at) < LIST_TTL;
        is_shared || (kind == CallKind::List && is_fresh)
    }
}

/// The number of changes so far, and the text of the call.
type Key = (u64, String);

#[derive(Debug)]
pub(crate) struct SharedReads {
    entries: Cache<Key, Arc<Entry>>,
    /// Counts changes: what was read before one has an older key.
    changes: AtomicU64,
}

impl SharedReads {
    /// Keeps at most so many bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        let weight = |key: &Key, entry: &Arc<Entry>| {
            let body = entry.outcome.as_ref().map_or(0, |answer| answer.body.len());
            u32::try_from(ENTRY_BYTES + key.1.len() + body).unwrap_or(u32::MAX)
        };
        let entries =
            Cache::builder().weigher(weight).max_capacity(bytes_max).time_to_live(LIST_TTL);
        Self { entries: entries.build(), changes: AtomicU64::new(0) }
    }

    /// Notes that a change ended, however it ended.
    pub(crate) fn changed(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.entries.invalidate_all();
    }

    /// The outcome of a read: kept, shared, or fetched by `fetch`. `now` reads the clock.
    pub(crate) async fn outcome(
        &self,
        call: &Call,
        now: impl Fn() -> Tick,
        fetch: impl Future<Output = Outcome>,
    ) -> Outcome {
        let (kind, started) = (call.kind, now());
        let key = (self.changes.load(Ordering::SeqCst), call.text());
        let kept = self.entries.get(&key).await;
        if let Some(entry) = kept.filter(|entry| entry.serves(kind, started, started)) {
            return entry.outcome.clone();
        }
        let compute = async |found: Option<moka::Entry<Key, Arc<Entry>>>| {
            if found.is_some_and(|entry| entry.value().serves(kind, started, now())) {
                return Op::Nop;
            }
            let outcome = fetch.await;
            Op::Put(Arc::new(Entry { outcome, at: now() }))
        };
        let computed = self.entries.entry(key).and_compute_with(compute).await;
        // Without this it would hold more than its bytes until there is much to tidy up.
        self.entries.run_pending_tasks().await;
        let entry = computed.into_entry().expect("it was kept or has just been put");
        entry.into_value().outcome.clone()
    }
}
