//! Records what really happened: how calls were answered, which deliveries arrived where and when,
//! and which faults were injected. None of it is the dispatcher's own statement.
//!
//! Everything is in memory, for `judge`, and in a file, for a reader who investigates a violation.
//! Times are microseconds of the monotonic clock since the start of the run.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Arguments;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::cast;
use super::events::{Event, Mark};
use crate::promises::same::Same;
use crate::wait::{self, Deadline};

/// A span of time, in microseconds since the start of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its start.
    pub from: u64,
    /// Its end; `u64::MAX` while it lasts.
    pub to: u64,
}

impl Span {
    /// Its length.
    pub fn length(self) -> u64 {
        self.to.saturating_sub(self.from)
    }
}

/// How a call was answered. Of a repeated call the greatest variant counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answered {
    /// With this error status, each time.
    Refused(u16),
    /// At least once not at all, and never with 202.
    CutOff,
    /// At least once with 202.
    Taken {
        /// Whether any of its events was new and had to be stored.
        new: bool,
    },
}

/// A call that posts events.
#[derive(Clone, Debug)]
pub struct Call {
    /// The number of its events.
    pub count: u64,
    /// Whether it has event ids, and is therefore repeated until it is accepted.
    pub given_ids: bool,
    /// How it was answered; `None` if it was never sent.
    pub answered: Option<Answered>,
    /// How often it was sent.
    pub sent: u32,
    /// The ids of its events, if it was accepted.
    pub ids: Vec<String>,
}

/// A delivery that arrived whole.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When its head had arrived.
    pub at: u64,
    /// The Unix second of its signature.
    pub signed: u64,
    /// When the response began to be written; `u64::MAX` before that.
    pub answered: u64,
    /// The status of the response; `None` if the connection was closed instead.
    pub status: Option<u16>,
    /// Whether its connection had carried an earlier request.
    pub reused: bool,
}

impl Arrival {
    /// Whether its receiver answered 2xx.
    pub fn is_taken(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}

/// A start of an attempt, as its endpoint saw it.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// When its head had arrived: it started then, or before.
    pub at: u64,
    /// The Unix second of its signature: it started then, or later.
    pub signed: u64,
    /// Whether its connection had carried an earlier request.
    pub reused: bool,
}

/// A ping that an owner requested.
#[derive(Clone, Debug, Default)]
pub struct Ping {
    /// Whether the call was answered 202.
    pub taken: bool,
    /// When it arrived.
    pub arrived: Vec<u64>,
}

/// An owner's call to redeliver an event.
#[derive(Clone, Copy, Debug)]
pub struct Redelivered {
    /// When the call was made.
    pub at: u64,
    /// Whether it was answered 202; otherwise it may or may not have been executed.
    pub taken: bool,
}

/// Everything recorded so far.
#[derive(Debug, Default)]
pub struct State {
    /// Calls, by their numbers.
    pub calls: BTreeMap<u64, Call>,
    /// The arrivals of each event at each endpoint, in order.
    pub arrivals: HashMap<(Mark, usize), Vec<Arrival>>,
    /// The id of each event that arrived or was acknowledged.
    pub ids: Same<Mark, String>,
    /// The hash of the body of each event that arrived.
    pub bodies: Same<Mark, u64>,
    /// The mark of each event id.
    pub marks: HashMap<String, Mark>,
    /// All attempts at each endpoint.
    pub starts: Vec<Vec<Start>>,
    /// Pings, by their event ids.
    pub pings: HashMap<String, Ping>,
    /// The redeliveries that owners requested, by event and endpoint.
    pub redelivered: HashMap<(Mark, usize), Vec<Redelivered>>,
    /// Crashes and kills: from before the kill until the process had ended.
    pub ends: Vec<Span>,
    /// Stops by SIGTERM with exit code 0.
    pub orderly: Vec<Span>,
    /// When the process was suspended.
    pub stops: Vec<Span>,
    /// When its disk was being filled or full.
    pub fulls: Vec<Span>,
    /// When the wall clock was set, and to how many seconds ahead of the real time.
    pub sets: Vec<(u64, i64)>,
    /// Starts that failed because of a full disk.
    pub failed_starts: u64,
    /// Since when the disk has been full to the last byte.
    pub no_room_since: Option<u64>,
    /// Calls that were made and answered while the disk was full: 202 where all events were already
    /// stored, 202 with new events, and every other status.
    pub while_full: [u64; 3],
    /// The violations, in words.
    pub violations: Vec<String>,
    /// Pairs of an event and an endpoint that were acknowledged.
    pub owed: u64,
    /// Pairs that were answered 2xx at least once.
    pub settled: u64,
}

/// The history of one run.
#[derive(Debug)]
pub struct History {
    began: Instant,
    /// The wall clock at the start, in microseconds since 1970.
    pub unix_began: u64,
    /// The seed that events are derived from.
    pub seed: u64,
    state: Mutex<State>,
    file: Mutex<BufWriter<File>>,
    /// Calls that were answered 202, counted before the response is parsed.
    acknowledged: AtomicU64,
}

/// Further violations are only in the file.
const VIOLATIONS_MAX: usize = 200;

impl History {
    /// Starts a history, with a file in this folder.
    pub fn open(folder: &Path, seed: u64) -> Self {
        let file = File::create(folder.join("history.log")).unwrap();
        let starts = vec![Vec::new(); cast::ENDPOINTS.len()];
        Self {
            began: wait::now(),
            unix_began: wait::unix_millis() * 1_000,
            seed,
            state: Mutex::new(State { starts, ..State::default() }),
            file: Mutex::new(BufWriter::new(file)),
            acknowledged: AtomicU64::new(0),
        }
    }

    /// The time since the start, in microseconds.
    pub fn now(&self) -> u64 {
        self.elapsed().as_micros() as u64
    }

    /// The time since the start.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Everything recorded so far.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // The panic of a thread that had the lock is reported elsewhere; the history stays usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line into the file.
    pub fn note(&self, what: Arguments<'_>) {
        let now = self.now() as f64 / 1e6;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed write is ignored: only the history in memory is checked.
        let _ = writeln!(file, "{now:.6} {what}");
    }

    /// Flushes all lines to the file.
    pub fn flush(&self) {
        let _ = self.file.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }

    /// Records a violation.
    pub fn violation(&self, what: String) {
        self.note(format_args!("VIOLATION {what}"));
        let mut state = self.state();
        if state.violations.len() < VIOLATIONS_MAX {
            state.violations.push(what);
        }
    }

    /// Records that a call has just been answered 202.
    pub fn count_202(&self) {
        self.acknowledged.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits in a busy loop for the next 202, at most for `most`.
    pub fn wait_for_202(&self, most: Duration) {
        let before = self.acknowledged.load(Ordering::SeqCst);
        let deadline = Deadline::after(most);
        while self.acknowledged.load(Ordering::SeqCst) == before && deadline.left().is_some() {
            std::thread::yield_now();
        }
    }

    /// Records a call before it is made for the first time, and returns its number.
    pub fn call(&self, count: u64, given_ids: bool) -> u64 {
        let mut state = self.state();
        let number = state.calls.last_key_value().map_or(1, |(last, _)| last + 1);
        let call = Call { count, given_ids, answered: None, sent: 0, ids: Vec::new() };
        state.calls.insert(number, call);
        number
    }

    /// Records the result of a call that was sent at `sent_at`; `ids` if it was accepted.
    pub fn answered(&self, number: u64, sent_at: u64, answered: Answered, ids: Vec<String>) {
        let state = &mut *self.state();
        let Some(call) = state.calls.get_mut(&number) else { return };
        call.sent += 1;
        if state.no_room_since.is_some_and(|since| since < sent_at) {
            match answered {
                Answered::Taken { new } => state.while_full[usize::from(new)] += 1,
                Answered::Refused(_) => state.while_full[2] += 1,
                Answered::CutOff => {}
            }
        }
        call.answered = call.answered.max(Some(answered));
        for (nth, id) in ids.iter().enumerate() {
            let mark = Mark { call: number, nth: nth as u64 };
            let event = Event::new(self.seed, mark);
            let endpoints: Vec<usize> = cast::reached(event.workspace, event.kind).collect();
            state.owed += endpoints.len() as u64;
            self.note(format_args!("acknowledged {mark} {id} for {endpoints:?}"));
            state.marks.insert(id.clone(), mark);
            let same = state.ids.is(&mark, id);
            state.violations.extend(same.err().map(|broken| broken.to_string()));
        }
        if !matches!(answered, Answered::Taken { .. }) {
            self.note(format_args!("call {number}: {answered:?}"));
        }
        call.ids = ids;
    }

    /// Records the start of an attempt at an endpoint.
    pub fn started(&self, endpoint: usize, start: Start) {
        self.state().starts[endpoint].push(start);
    }

    /// Records a complete and correct delivery, and returns its index among those of its pair.
    pub fn arrived(
        &self,
        (mark, endpoint): (Mark, usize),
        start: Start,
        id: &str,
        hash: u64,
    ) -> usize {
        let state = &mut *self.state();
        let same = state.ids.is(&mark, &id.to_owned()).and(state.bodies.is(&mark, &hash));
        state.violations.extend(same.err().map(|broken| broken.to_string()));
        state.marks.entry(id.to_owned()).or_insert(mark);
        let arrivals = state.arrivals.entry((mark, endpoint)).or_default();
        let Start { at, signed, reused } = start;
        arrivals.push(Arrival { at, signed, answered: u64::MAX, status: None, reused });
        arrivals.len() - 1
    }

    /// Records the response to a delivery, before it is written.
    pub fn responded(&self, (mark, endpoint): (Mark, usize), nth: usize, status: Option<u16>) {
        let now = self.now();
        let state = &mut *self.state();
        let Some(arrivals) = state.arrivals.get_mut(&(mark, endpoint)) else { return };
        let already = arrivals.iter().any(Arrival::is_taken);
        if let Some(arrival) = arrivals.get_mut(nth) {
            (arrival.answered, arrival.status) = (now, status);
            state.settled += u64::from(arrival.is_taken() && !already);
            let took = now - arrival.at;
            self.note(format_args!("e{endpoint} responds to {mark}: {status:?} after {took} us"));
        }
    }
}
