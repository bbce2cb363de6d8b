//! What really happened: which calls were answered how, what arrived where and when, and what was
//! done to the process meanwhile. Nothing here is believed that the dispatcher says of itself.
//!
//! Everything is in memory, for `judge`, and in a file, for a reader of a violation. Times
//! are microseconds since the beginning, of the monotonic clock.

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

/// A stretch of time, in microseconds since the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its first.
    pub from: u64,
    /// Its last; the end of time where it goes on.
    pub to: u64,
}

impl Span {
    /// How long it is.
    pub fn length(self) -> u64 {
        self.to.saturating_sub(self.from)
    }
}

/// How a call was answered: of several times the last in this order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Answered {
    /// With this error, each time.
    Refused(u16),
    /// Not at all, at least one time, and never with 202.
    CutOff,
    /// With 202: at least one time, if it was made again.
    Taken {
        /// Whether anything had to be stored for it.
        new: bool,
    },
}

/// A call that posts events.
#[derive(Clone, Debug)]
pub struct Call {
    /// How many.
    pub count: u64,
    /// Whether it gives ids, and is made again until it is taken.
    pub given_ids: bool,
    /// How it was answered; nothing where it was never sent.
    pub answered: Option<Answered>,
    /// How often it was sent.
    pub sent: u32,
    /// The ids of its events, where it was taken.
    pub ids: Vec<String>,
}

/// A delivery that arrived whole.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When its head had arrived.
    pub at: u64,
    /// The Unix second it was signed in.
    pub signed: u64,
    /// When its answer began to be written; the end of time until then.
    pub answered: u64,
    /// What it was answered; nothing where the connection was closed.
    pub status: Option<u16>,
    /// Whether others had come on its connection before.
    pub reused: bool,
}

impl Arrival {
    /// Whether its receiver said that it has it.
    pub fn is_taken(&self) -> bool {
        self.status.is_some_and(|status| (200..300).contains(&status))
    }
}

/// A start of an attempt, as its endpoint saw it.
#[derive(Clone, Copy, Debug)]
pub struct Start {
    /// When its head had arrived: it started then, or before.
    pub at: u64,
    /// The Unix second it was signed in: it started then, or later.
    pub signed: u64,
    /// Whether others had come on its connection before.
    pub reused: bool,
}

/// A test that an owner asked for.
#[derive(Clone, Debug, Default)]
pub struct Ping {
    /// Whether the call was answered 202.
    pub taken: bool,
    /// When it arrived.
    pub arrived: Vec<u64>,
}

/// An owner's call to send an event once more.
#[derive(Clone, Copy, Debug)]
pub struct Redelivered {
    /// When the call was made.
    pub at: u64,
    /// Whether it was answered 202; otherwise it may have been done, or not.
    pub taken: bool,
}

/// All that is known.
#[derive(Debug, Default)]
pub struct State {
    /// Calls, by their numbers.
    pub calls: BTreeMap<u64, Call>,
    /// What arrived of each event at each endpoint, in order.
    pub arrivals: HashMap<(Mark, usize), Vec<Arrival>>,
    /// The id of each event that arrived or was acknowledged.
    pub ids: Same<Mark, String>,
    /// The bytes of each event that arrived.
    pub bodies: Same<Mark, u64>,
    /// The mark of an id.
    pub marks: HashMap<String, Mark>,
    /// All starts at each endpoint.
    pub starts: Vec<Vec<Start>>,
    /// Tests, by their events' ids.
    pub pings: HashMap<String, Ping>,
    /// When owners asked for an event once more, at which endpoint.
    pub redelivered: HashMap<(Mark, usize), Vec<Redelivered>>,
    /// When the process ended other than in order: from before the kill until it was gone.
    pub ends: Vec<Span>,
    /// When it ended in order.
    pub orderly: Vec<Span>,
    /// When it stood still.
    pub stops: Vec<Span>,
    /// When its disk was full.
    pub fulls: Vec<Span>,
    /// When the wall clock was set, and to how many seconds ahead.
    pub sets: Vec<(u64, i64)>,
    /// Starts that came to nothing: the disk was full.
    pub failed_starts: u64,
    /// Since when there has been no room, to the last byte.
    pub no_room_since: Option<u64>,
    /// Calls that were made and answered while the disk was full: 202 to what was already stored,
    /// 202 to what was not, and anything else.
    pub while_full: [u64; 3],
    /// What must not be, in words.
    pub violations: Vec<String>,
    /// Pairs of an event and an endpoint that were acknowledged.
    pub owed: u64,
    /// Pairs that were taken.
    pub settled: u64,
}

/// The history of one run.
#[derive(Debug)]
pub struct History {
    began: Instant,
    /// The wall clock at the beginning, in microseconds since 1970.
    pub unix_began: u64,
    /// What decides what events are.
    pub seed: u64,
    state: Mutex<State>,
    file: Mutex<BufWriter<File>>,
    /// Calls that were answered 202, counted before anything else is done with the answer.
    heard: AtomicU64,
}

/// Faults beyond so many are counted in the file alone.
const VIOLATIONS_MAX: usize = 200;

impl History {
    /// Begins, with a file in this folder.
    pub fn open(folder: &Path, seed: u64) -> Self {
        let file = File::create(folder.join("history.log")).unwrap();
        let starts = vec![Vec::new(); cast::ENDPOINTS.len()];
        Self {
            began: wait::now(),
            unix_began: wait::unix_millis() * 1_000,
            seed,
            state: Mutex::new(State { starts, ..State::default() }),
            file: Mutex::new(BufWriter::new(file)),
            heard: AtomicU64::new(0),
        }
    }

    /// How long ago it began, in microseconds.
    pub fn now(&self) -> u64 {
        self.elapsed().as_micros() as u64
    }

    /// How long ago it began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// All that is known.
    pub fn state(&self) -> MutexGuard<'_, State> {
        // The thread that panicked has reported it; the history is as good as before.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line into the file.
    pub fn note(&self, what: Arguments<'_>) {
        let now = self.now() as f64 / 1e6;
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // The history in memory is the one that is judged.
        let _ = writeln!(file, "{now:.6} {what}");
    }

    /// Sees to it that all lines are in the file.
    pub fn flush(&self) {
        let _ = self.file.lock().unwrap_or_else(PoisonError::into_inner).flush();
    }

    /// What must not be.
    pub fn violation(&self, what: String) {
        self.note(format_args!("VIOLATION {what}"));
        let mut state = self.state();
        if state.violations.len() < VIOLATIONS_MAX {
            state.violations.push(what);
        }
    }

    /// A call was answered 202 just now.
    pub fn hears(&self) {
        self.heard.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits for the next 202, without a moment's delay, for so long at most.
    pub fn listen(&self, most: Duration) {
        let before = self.heard.load(Ordering::SeqCst);
        let deadline = Deadline::after(most);
        while self.heard.load(Ordering::SeqCst) == before && deadline.left().is_some() {
            std::thread::yield_now();
        }
    }

    /// A call is about to be made for the first time; gives its number.
    pub fn call(&self, count: u64, given_ids: bool) -> u64 {
        let mut state = self.state();
        let number = state.calls.last_key_value().map_or(1, |(last, _)| last + 1);
        let call = Call { count, given_ids, answered: None, sent: 0, ids: Vec::new() };
        state.calls.insert(number, call);
        number
    }

    /// A call was sent then, and came to this. `ids` where it was taken.
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
            self.note(format_args!("taken {mark} {id} for {endpoints:?}"));
            state.marks.insert(id.clone(), mark);
            let same = state.ids.is(&mark, id);
            state.violations.extend(same.err().map(|broken| broken.to_string()));
        }
        if !matches!(answered, Answered::Taken { .. }) {
            self.note(format_args!("call {number} {answered:?}"));
        }
        call.ids = ids;
    }

    /// An attempt began at an endpoint.
    pub fn started(&self, endpoint: usize, start: Start) {
        self.state().starts[endpoint].push(start);
    }

    /// An event arrived whole and as it should be; gives its number among those of its pair.
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

    /// What arrived is answered.
    pub fn replies(&self, (mark, endpoint): (Mark, usize), nth: usize, status: Option<u16>) {
        let now = self.now();
        let state = &mut *self.state();
        let Some(arrivals) = state.arrivals.get_mut(&(mark, endpoint)) else { return };
        let already = arrivals.iter().any(Arrival::is_taken);
        if let Some(arrival) = arrivals.get_mut(nth) {
            (arrival.answered, arrival.status) = (now, status);
            state.settled += u64::from(arrival.is_taken() && !already);
            let took = now - arrival.at;
            self.note(format_args!("at e{endpoint} {mark} answered {status:?} after {took} us"));
        }
    }
}
