//! The simulated world: its clock, its receivers, a process that starts and ends, and faults.
//!
//! Time advances from one event to the next. At each, everything runs step by step until it is
//! idle, and a crash may come between any two steps.

mod wire;

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;
use weir_common::time::{Clock, Moment, Tick, UnixTime, micros};
use weir_dispatcher::store::DeliveryQueue;
use weir_dispatcher::worker::InMemory;
use weir_tests::promises::When;
use weir_tests::promises::pace::Pace;
use weir_tests::rng::SeededRng;

use crate::checks::ledger::Read;
use crate::checks::secrets::logged_nothing_secret;
use crate::faults::Disk;
use crate::model::{Model, Trace, violated};
use crate::orders::Order;
use crate::process::{Machine, Process, run_tasks};
use crate::receivers::{Mood, Receiver};
use crate::world::wire::Wire;

/// In the middle of a minute, at a whole millisecond, the resolution of tokio's timers.
pub(crate) const START: UnixTime = UnixTime(1_790_000_017_345_000);

/// The most steps at one instant: after more, it counts as never becoming idle.
const STEPS_MAX: u32 = 50_000;

pub(crate) struct World {
    pub(crate) rng: SeededRng,
    pub(crate) machine: Machine,
    pub(crate) process: Option<Process>,
    pub(crate) model: Model,
    pub(crate) receivers: Vec<Receiver>,
    pub(crate) disk: Disk,
    pub(crate) lock: Option<Connection>,
    pub(crate) stopping: bool,
    /// After so many steps the process is killed.
    pub(crate) crash_in: Option<u32>,
    /// After so many steps, but no fewer than one, the process stands still for this long.
    pub(crate) stands_in: Option<(u32, Duration)>,
    pub(crate) processes: u64,
    pub(crate) wire: Wire,
    numbers: u64,
    /// Whether the store is slow at times, and until when it now is.
    is_slow: bool,
    slow_until: Tick,
    /// Until then each commit is slow.
    pub(crate) sluggish_until: Tick,
    /// Until then each read is slow, and writes are not.
    pub(crate) leisurely_until: Tick,
    /// No caller gets the result of a read before then.
    tells_at: Tick,
    /// Whether the worker gets the results of tasks in random order.
    jumbled: bool,
    /// Whether some bodies are so large that the store returns few at a time.
    large: bool,
}

impl World {
    pub(crate) fn new(
        folder: PathBuf,
        config: &str,
        urls: Vec<String>,
        rng: SeededRng,
        trace: Trace,
    ) -> Self {
        let mut rng = rng;
        let (is_slow, jumbled, large) = (rng.chance(50), rng.chance(50), rng.chance(15));
        let memory = [64 << 20, 40 << 10, 4 << 10];
        let memory = [(); 2].map(|()| *rng.pick(&memory).unwrap());
        let machine = Machine::new(folder, config, Clock::manual(START), memory);
        let model = Model::new(urls.clone(), machine.settings.clone(), memory[0], trace);
        let receiver = |url| Receiver { url, mood: Mood::Well, poisons: false };
        Self {
            rng,
            machine,
            process: None,
            model,
            receivers: urls.into_iter().map(receiver).collect(),
            disk: Disk::Well,
            lock: None,
            stopping: false,
            crash_in: None,
            stands_in: None,
            processes: 0,
            wire: Wire::default(),
            numbers: 0,
            is_slow,
            slow_until: Tick(0),
            sluggish_until: Tick(0),
            leisurely_until: Tick(0),
            tells_at: Tick(0),
            jumbled,
            large,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.machine.clock.now()
    }

    /// Whether mails wait to be sent; true without a process, when it is not known.
    pub(crate) fn mails_wait(&mut self) -> bool {
        self.process.as_ref().is_none_or(|process| self.model.mails_wait(process.conn()))
    }

    /// Starts a process on the files that the last one left.
    pub(crate) async fn start(&mut self) {
        self.processes += 1;
        self.lock = None;
        let mut process = self.machine.start().await;
        process.jumbled = self.jumbled;
        let now = self.now();
        self.model.note(now, || "the process starts".to_owned());
        let store = process.store.clone();
        self.model.meets_operators(process.conn(), &*store);
        self.model.reconcile(process.conn(), &*store, now);
        // A process that starts reads everything, and so knows every change.
        self.model.settle_changes();
        self.model.observe(process.conn(), Read::so_far(process.conn()), now);
        self.model.audit(process.conn(), now);
        self.model.audit_mails(process.conn());
        self.model.kept(process.conn());
        self.model.read_anew(now);
        let (window, longest) = (self.model.counted_window(), self.model.longest_counted_window());
        let places = self.model.settings.egress.in_flight_per_endpoint();
        let doubts = &mut self.model.doubts;
        doubts.extend((!store.clean_shutdown()).then_some((now.tick, places)));
        doubts.retain(|(at, _)| now.tick.since(*at) < longest);
        // Each counts for as many attempts as the settings of the new process allow.
        doubts.iter_mut().for_each(|(_, count)| *count = places);
        if self.model.clock_set {
            self.model.slow_until = now.tick.plus(window);
        }
        if self.model.clock_set && now.tick.since(self.model.set_at) < 2 * window {
            // Starts are on disk in wall-clock time, which is wrong after the clock was set.
            self.model.starts.iter_mut().for_each(Pace::forget);
        }
        self.process = Some(process);
        // Reading the store takes some time.
        self.pass(Duration::from_millis(1)).await;
        (self.stopping, self.disk) = (false, Disk::Well);
    }

    /// Kills the process.
    pub(crate) async fn crash(&mut self) {
        self.crash_in = None;
        let Some(process) = self.process.take() else { return };
        let now = self.now();
        logged_nothing_secret(&process.log);
        self.model.note(now, || "the process is killed".to_owned());
        self.model.counts.crashes += 1;
        self.model.promises.process_ended(When::exactly(now.tick.0));
        process.kill().await;
        // Attempts that had reached the network may or may not have been sent.
        let calls = std::mem::take(&mut *self.machine.calls.lock().unwrap());
        drop(calls);
        self.model.forget_flights();
    }

    pub(crate) fn order(&mut self, order: Order) {
        let Some(process) = &mut self.process else { return };
        let creates = |order: &Order| matches!(order, Order::Create { .. });
        // Two creations without a reply could not be told apart.
        let two = creates(&order) && self.model.orders.values().any(creates);
        if self.stopping || two {
            return;
        }
        self.numbers += 1;
        let rng = &mut self.rng;
        let mut steps = || if rng.chance(60) { 0 } else { rng.below(40) };
        let ways = [steps(), steps()];
        process.order(self.numbers, order.clone(), ways);
        self.model.ordered(self.numbers, order, process.conn());
    }

    /// The extra bytes of a body.
    pub(crate) fn padding(&mut self) -> usize {
        if self.large && self.rng.chance(50) { self.rng.below(100_000) as usize } else { 0 }
    }

    /// Activates other settings.
    pub(crate) fn reload(&mut self, config: &str) {
        self.machine.set(config, self.process.as_ref());
        self.model.reloaded(self.machine.settings.clone(), self.now());
    }

    /// Lets the disk fail, or recover.
    pub(crate) fn set_disk(&mut self, disk: Disk) {
        let now = self.now();
        self.model.note(now, || format!("disk: {disk:?}"));
        let Some(process) = &self.process else { return };
        // The lock of the earlier state is released first.
        self.lock = None;
        self.lock = disk.set(process);
        self.disk = disk;
        self.model.outbox.doubt = true;
    }

    pub(crate) fn set_clock(&mut self, unix: UnixTime) {
        self.machine.clock.set(unix);
        self.model.clock_was_set(self.now());
    }

    /// Slows the store down from now on.
    pub(crate) fn slow(&mut self, by: Duration) {
        self.slow_until = self.slow_until.max(self.now().tick.plus(by));
    }

    /// Runs until everything is idle, or the process is killed on the way.
    pub(crate) async fn settle(&mut self) {
        self.end_attempts();
        if self.is_slow && self.now().tick >= self.slow_until && self.rng.chance(5) {
            let by = self.rng.span(Duration::from_millis(1), Duration::from_secs(2));
            self.slow(by);
        }
        let mut quiet = 0;
        for _ in 0..STEPS_MAX {
            if self.process.is_none() {
                return;
            }
            if self.crashes_now() {
                return self.crash().await;
            }
            if let Some(by) = self.stands_now() {
                self.stand_still(by).await;
                quiet = 0;
            }
            quiet = if self.step().await { 0 } else { quiet + 1 };
            if self.process.as_ref().is_some_and(|process| process.over.is_some()) {
                return self.end_in_order().await;
            }
            if quiet == 2 {
                return self.idle().await;
            }
        }
        violated("rest", format!("not idle after {STEPS_MAX} steps at one instant"))
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

    fn stands_now(&mut self) -> Option<Duration> {
        let (steps, by) = self.stands_in.take()?;
        if steps == 0 {
            return Some(by);
        }
        self.stands_in = Some((steps - 1, by));
        None
    }

    /// Stops the process and continues it: time passes, and the process does not notice.
    async fn stand_still(&mut self, by: Duration) {
        let now = self.now();
        self.model.note(now, || format!("the process is suspended for {by:?}"));
        self.model.counts.stalls += 1;
        self.pass(by).await;
        self.model.stood_still(now, self.now());
    }

    /// One step: tasks run, the worker takes a turn, or the store reads or commits. Returns whether
    /// anything was done.
    async fn step(&mut self) -> bool {
        self.model.counts.steps += 1;
        run_tasks().await;
        let now = self.now();
        let mut busy = self.take_calls(now);
        let process = self.process.as_mut().unwrap();
        self.model.handed(&self.machine.letters);
        for answer in process.replies() {
            busy = true;
            self.model.answered(answer, &*process.store, now);
        }
        busy |= process.turn(&mut self.rng);
        run_tasks().await;
        busy |= self.take_calls(now);
        let process = self.process.as_mut().unwrap();
        if process.over.is_some() || self.crash_in == Some(0) {
            return true;
        }
        let tells = now.tick >= self.tells_at;
        if now.tick >= self.slow_until && process.read(&mut self.rng, tells) {
            busy = true;
            if now.tick < self.leisurely_until {
                let by = self.rng.span(Duration::from_millis(20), Duration::from_secs(1));
                self.tells_at = now.tick.plus(by);
            }
        }
        let before = Read::so_far(process.conn());
        if now.tick >= self.slow_until && process.write() {
            busy = true;
            self.model.counts.commits += 1;
            if now.tick < self.sluggish_until {
                let by = self.rng.span(Duration::from_millis(20), Duration::from_secs(1));
                self.slow_until = now.tick.plus(by);
            }
            if self.crash_in == Some(1) {
                // Committed, but no caller gets its reply.
                self.crash_in = Some(0);
                let (conn, store) = (process.conn(), &*process.store);
                self.model.reconcile(conn, store, now);
                self.model.observe(conn, before, now);
                return true;
            }
            run_tasks().await;
            let process = self.process.as_mut().unwrap();
            for answer in process.replies() {
                self.model.answered(answer, &*process.store, now);
            }
            self.model.observe(process.conn(), before, now);
        }
        busy
    }

    /// Checks the state at a moment at which everything is idle.
    async fn idle(&mut self) {
        let now = self.now();
        let Some(process) = &self.process else { return };
        let InMemory { in_flight, endpoints, cached } = process.held();
        self.model.small(endpoints, cached);
        let slow = now.tick < self.slow_until;
        if slow || self.disk != Disk::Well || self.stopping || process.waits_for_store() {
            self.model.turns.reset();
        } else {
            if self.model.upkeep.take_swept() {
                self.model.kept(process.conn());
            }
            self.model.at_rest(now);
            let seen = self.model.in_flight(None);
            if in_flight != seen {
                violated(
                    "caps",
                    format!("the worker reports {in_flight} attempts in flight, expected {seen}"),
                );
            }
            if self.model.orders.is_empty() && self.rng.chance(2) {
                let store = process.store.clone();
                self.model.read_pages(&store, &mut self.rng, now).await;
            }
        }
    }

    async fn end_in_order(&mut self) {
        let now = self.now();
        self.model.note(now, || "the process has stopped".to_owned());
        self.model.counts.stops += 1;
        self.model.stopped();
        self.model.forget_flights();
        let Some(process) = self.process.take() else { return };
        logged_nothing_secret(&process.log);
        process.close().await;
    }

    pub(crate) fn stop(&mut self) {
        let Some(process) = &mut self.process else { return };
        process.stop();
        self.stopping = true;
    }

    /// Advances to the next event, at most to `until`.
    pub(crate) async fn go_on(&mut self, until: Tick) {
        let now = self.now();
        let mut next = until;
        next = next.min(self.wire.next().unwrap_or(next));
        if let Some(process) = &self.process {
            next = next.min(process.wake.unwrap_or(until));
            for at in [self.slow_until, self.tells_at] {
                next = if now.tick < at { next.min(at) } else { next };
            }
            if process.waits_for_store() || self.stopping {
                next = next.min(now.tick.plus(Duration::from_millis(500)));
            }
        }
        // Whole milliseconds, and at least one.
        let by = micros(next.since(now.tick)).div_ceil(1_000).max(1);
        self.pass(Duration::from_millis(by)).await;
    }

    async fn pass(&mut self, by: Duration) {
        self.machine.clock.advance(by);
        // Answers arrive before the timers of those that wait for them.
        self.end_attempts();
        tokio::time::advance(by).await;
        run_tasks().await;
    }
}
