//! The world: its clock, its receivers, a process that comes and goes, and what befalls them.
//!
//! Time goes from one moment at which something happens to the next. At each, everything is let
//! come to rest, step by step, and a crash may come between any two steps.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::PathBuf;
use std::time::Duration;

use tokio::sync::oneshot;
use weir_common::time::{Clock, Moment, Tick, UnixTime, micros};

use super::books::{Books, Tally, violated};
use super::dice::Dice;
use super::ledger::Read;
use super::orders::Order;
use super::process::{Machine, Process, breathe};
use super::receivers::{Mood, Reaction, Receiver};
use crate::deliver::Answered;
use crate::model::DeliveryId;
use crate::outcome::{Failure, Outcome};
use crate::store::Store;

/// In the middle of a minute, and a whole millisecond: tokio's timers know no less.
pub(super) const START: UnixTime = UnixTime(1_790_000_017_345_000);

/// More steps than this within one moment, and it never comes to rest.
const STEPS_MAX: u32 = 50_000;

/// What a crash found under way goes on at its receiver: who is to hear of it.
struct Pending {
    process: u64,
    delivery: DeliveryId,
    reaction: Reaction,
    answer: Option<oneshot::Sender<Answered>>,
}

/// What keeps the disk from taking anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disk {
    Well,
    /// Nothing can be written.
    Broken,
    /// There is no room for more.
    Full,
}

pub(super) struct World {
    pub(super) dice: Dice,
    pub(super) machine: Machine,
    pub(super) process: Option<Process>,
    pub(super) books: Books,
    pub(super) receivers: Vec<Receiver>,
    pub(super) disk: Disk,
    pub(super) stopping: bool,
    /// After so many steps the process is killed.
    pub(super) crash_in: Option<u32>,
    processes: u64,
    ends: BinaryHeap<Reverse<(Tick, u64)>>,
    pending: std::collections::BTreeMap<u64, Pending>,
    numbers: u64,
    /// Whether the store takes its time now and then, and until when it does.
    is_slow: bool,
    slow_until: Tick,
}

impl World {
    pub(super) fn new(folder: PathBuf, config: &str, urls: Vec<String>, dice: Dice) -> Self {
        let mut dice = dice;
        let is_slow = dice.chance(50);
        let machine = Machine::new(folder, config, Clock::manual(START));
        let trace = std::env::var_os("WEIR_SEED").is_some();
        let books = Books::new(urls.clone(), machine.settings.clone(), trace);
        let receiver = |url| Receiver { url, mood: Mood::Well, poisons: false };
        Self {
            dice,
            machine,
            process: None,
            books,
            receivers: urls.into_iter().map(receiver).collect(),
            disk: Disk::Well,
            stopping: false,
            crash_in: None,
            processes: 0,
            ends: BinaryHeap::new(),
            pending: std::collections::BTreeMap::new(),
            numbers: 0,
            is_slow,
            slow_until: Tick(0),
        }
    }

    pub(super) fn now(&self) -> Moment {
        self.machine.clock.now()
    }

    pub(super) fn tally(&self) -> Tally {
        self.books.tally
    }

    /// Starts a process over what the last one left.
    pub(super) async fn start(&mut self) {
        self.processes += 1;
        let process = self.machine.start().await;
        let now = self.now();
        self.books.note(now, || "starts".to_owned());
        let store = process.store.clone();
        self.books.reconcile(process.conn(), &*store, now);
        // Who reads everything knows everything.
        self.books.settle_news();
        self.books.observe(process.conn(), Read::so_far(process.conn()), now);
        self.books.audit(process.conn(), now);
        self.books.read_anew(now);
        let window = self.books.settings.egress.window;
        let doubts = &mut self.books.doubts;
        doubts.extend((!store.ended_in_order()).then_some(now.tick));
        doubts.retain(|at| now.tick.since(*at) < window);
        if self.books.clock_set {
            self.books.slow_until = now.tick.plus(window);
        }
        if self.books.clock_set && now.tick.since(self.books.set_at) < 2 * window {
            // Starts are on disk by the time of day: a clock that was set tells them wrongly.
            self.books.starts.iter_mut().for_each(std::collections::VecDeque::clear);
        }
        self.process = Some(process);
        // No process reads its store within no time at all.
        self.pass(Duration::from_millis(1)).await;
        (self.stopping, self.disk) = (false, Disk::Well);
    }

    /// Ends the process without a word.
    pub(super) async fn crash(&mut self) {
        self.crash_in = None;
        let Some(process) = self.process.take() else { return };
        let now = self.now();
        logged_nothing_secret(&process);
        self.books.note(now, || "is killed".to_owned());
        self.books.tally.crashes += 1;
        process.kill().await;
        // What had been handed to the network may or may not have gone out.
        let calls = std::mem::take(&mut *self.machine.calls.lock().unwrap());
        drop(calls);
        self.books.forget_flights();
    }

    pub(super) fn order(&mut self, order: Order) {
        let Some(process) = &mut self.process else { return };
        if self.stopping {
            return;
        }
        self.numbers += 1;
        process.order(self.numbers, order.clone());
        let now = self.now();
        self.books.orders.insert(self.numbers, (order, now));
    }

    /// The disk fails, or recovers.
    pub(super) fn set_disk(&mut self, disk: Disk) {
        let Some(process) = &self.process else { return };
        let conn = process.conn();
        conn.pragma_update(None, "query_only", disk == Disk::Broken).unwrap();
        let pages: i64 = conn.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
        let most = if disk == Disk::Full { pages } else { 1 << 30 };
        conn.pragma_update_and_check(None, "max_page_count", most, |_| Ok(())).unwrap();
        self.disk = disk;
    }

    pub(super) fn set_clock(&mut self, unix: UnixTime) {
        self.machine.clock.set(unix);
        self.books.clock_was_set(self.now());
    }

    /// Lets everything come to rest, or the process be killed on the way.
    pub(super) async fn settle(&mut self) {
        self.end_attempts();
        if self.is_slow && self.now().tick >= self.slow_until && self.dice.chance(5) {
            let by = self.dice.span(Duration::from_millis(1), Duration::from_secs(2));
            self.slow_until = self.now().tick.plus(by);
        }
        let mut quiet = 0;
        for _ in 0..STEPS_MAX {
            if self.process.is_none() {
                return;
            }
            if self.crashes_now() {
                return self.crash().await;
            }
            quiet = if self.step().await { 0 } else { quiet + 1 };
            if self.process.as_ref().is_some_and(|process| process.over.is_some()) {
                return self.end_in_order().await;
            }
            if quiet == 2 {
                return self.rest();
            }
        }
        violated("rest", "it never comes to rest")
    }

    fn crashes_now(&mut self) -> bool {
        match &mut self.crash_in {
            Some(0) => true,
            Some(steps) => {
                *steps -= 1;
                false
            }
            None => false,
        }
    }

    /// One step: tasks go on, the worker takes a turn, or the store commits. Says whether
    /// anything was done.
    async fn step(&mut self) -> bool {
        self.books.tally.steps += 1;
        breathe().await;
        let now = self.now();
        let mut busy = self.take_calls(now);
        let process = self.process.as_mut().unwrap();
        for (number, reply) in process.replies() {
            busy = true;
            self.books.answered(number, reply, &*process.store, now);
        }
        busy |= process.turn();
        breathe().await;
        busy |= self.take_calls(now);
        let process = self.process.as_mut().unwrap();
        if process.over.is_some() || self.crash_in == Some(0) {
            return true;
        }
        let before = Read::so_far(process.conn());
        if now.tick >= self.slow_until && process.write() {
            busy = true;
            self.books.tally.commits += 1;
            if self.crash_in == Some(1) {
                // Written, and nobody hears of it.
                self.crash_in = Some(0);
                let (conn, store) = (process.conn(), &*process.store);
                self.books.reconcile(conn, store, now);
                self.books.observe(conn, before, now);
                return true;
            }
            breathe().await;
            let process = self.process.as_mut().unwrap();
            for (number, reply) in process.replies() {
                self.books.answered(number, reply, &*process.store, now);
            }
            self.books.observe(process.conn(), before, now);
        }
        busy
    }

    /// Takes what has reached the network, and plans what comes of it.
    fn take_calls(&mut self, now: Moment) -> bool {
        let calls = std::mem::take(&mut *self.machine.calls.lock().unwrap());
        let any = !calls.is_empty();
        for call in calls {
            let receiver = self.receivers.iter().find(|one| one.url == call.parcel.url.as_str());
            let event = call.parcel.headers["webhook-id"].to_str().unwrap();
            let mut reaction = receiver.unwrap().react(event, &mut self.dice);
            let heard = !matches!(reaction.outcome, Outcome::Internal(_));
            let delivery = self.books.started(&call.parcel, heard, now);
            let deadline = self.books.settings.egress.deadline;
            let mut answer = Some(call.answer);
            if reaction.after > deadline {
                let outcome = Outcome::Failed(Failure::Timeout);
                reaction = Reaction { after: deadline, outcome, retry_after: None };
                // It is told at the deadline, by a timer of the dispatcher's own.
                answer = None;
            }
            self.numbers += 1;
            self.ends.push(Reverse((now.tick.plus(reaction.after), self.numbers)));
            let process = self.processes;
            let pending = Pending { process, delivery, reaction, answer };
            self.pending.insert(self.numbers, pending);
        }
        any
    }

    /// Ends the attempts whose time it is.
    fn end_attempts(&mut self) {
        let now = self.now();
        while let Some(Reverse((at, number))) = self.ends.peek().copied() {
            if at > now.tick {
                return;
            }
            self.ends.pop();
            let Some(pending) = self.pending.remove(&number) else { continue };
            let Pending { process, delivery, reaction, answer } = pending;
            if process != self.processes || self.process.is_none() {
                // Whoever asked is gone. Its receiver may have taken it all the same.
                let taken = matches!(reaction.outcome, Outcome::Delivered { .. });
                let delivery = self.books.deliveries.get_mut(&delivery).unwrap();
                delivery.taken |= taken && delivery.state.is_some();
                continue;
            }
            if let Some(answer) = answer {
                let _ = answer.send(reaction.answer());
            }
            let status = reaction.outcome.status();
            let believed = status.is_some_and(|status| (400..600).contains(&status));
            let retry_after = reaction.retry_after.filter(|_| believed);
            self.books.ended(delivery, &reaction.outcome, retry_after, now);
        }
    }

    /// Everything has come to rest: is all as it must be?
    fn rest(&mut self) {
        let now = self.now();
        let Some(process) = &self.process else { return };
        let (in_flight, lanes, held) = process.held();
        self.books.small(lanes, held);
        let slow = now.tick < self.slow_until;
        if !slow && self.disk == Disk::Well && !self.stopping && !process.waits_for_store() {
            self.books.at_rest(now);
            let seen = self.books.in_flight(None);
            if in_flight != seen {
                violated("caps", format!("{in_flight} are said to be under way, {seen} are"));
            }
        }
    }

    async fn end_in_order(&mut self) {
        let now = self.now();
        self.books.note(now, || "has stopped".to_owned());
        self.books.tally.stops += 1;
        self.books.stopped();
        self.books.forget_flights();
        let Some(process) = self.process.take() else { return };
        logged_nothing_secret(&process);
        process.close().await;
    }

    pub(super) fn stop(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.stop();
        self.stopping = true;
    }

    /// Goes on to the next moment at which something happens, but no further than `until`.
    pub(super) async fn go_on(&mut self, until: Tick) {
        let now = self.now();
        let mut next = until;
        if let Some(Reverse((at, _))) = self.ends.peek() {
            next = next.min(*at);
        }
        if let Some(process) = &self.process {
            next = next.min(process.wake.unwrap_or(until));
            if now.tick < self.slow_until {
                next = next.min(self.slow_until);
            }
            if process.waits_for_store() || self.stopping {
                next = next.min(now.tick.plus(Duration::from_millis(500)));
            }
        }
        // Whole milliseconds, and at least one.
        let by = micros(next.since(now.tick)).div_ceil(1_000).max(1);
        self.pass(Duration::from_millis(by)).await;
    }

    async fn pass(&self, by: Duration) {
        self.machine.clock.advance(by);
        tokio::time::advance(by).await;
    }
}

/// Neither a secret, nor a body, nor a path stands in the log of attempts (invariant 12).
fn logged_nothing_secret(process: &Process) {
    let mut text = Vec::new();
    process.log.close(Duration::ZERO);
    process.log.write_out(&mut text);
    let text = String::from_utf8_lossy(&text);
    for secret in ["whsec_", "canary", "/in/"] {
        if text.contains(secret) {
            violated("12 log", format!("`{secret}` stands in the log"));
        }
    }
}
