//! Measures weir-dispatcher from the post of an event to the record of its delivery: throughput,
//! latency, and resources used. Other files measure the effect of unresponsive endpoints on the
//! others (`unresponsive`), the effect of one workspace's burst (`burst`), the commits (`curve`),
//! and what the store reaches alone (`statements`).
//!
//! Every endpoint has its own URL, and is called no faster than the shipped rate limit allows. The
//! database is in the folder for temporary files, and every run of `speed` and `curve` ends with no
//! waiting delivery. Load, receivers and dispatcher share the machine; the table of `speed` shows
//! the share of CPU time that load and receivers used.

mod burst;
mod curve;
mod statements;
mod unresponsive;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weir_benches::arrivals::Arrivals;
use weir_benches::dispatched::{Dispatcher, PER_WORKSPACE};
use weir_benches::flags::{Flags, fail, sibling};
use weir_benches::lab::{Folder, Usage, own_usage};
use weir_benches::post::{Aim, Answered, Line, Load, flood, seconds, steadily};
use weir_benches::report::{Series, quantile, sorted, table};
use weir_common::time::{Clock, Tick, micros};

const USAGE: &str = "usage: deliver [--dispatcher PATH] [--rounds 3] [--endpoints 6000] \
    [--ports 16] [--events 60000] [--connections 64] [--rate 0] [--seconds 10] [--idle 400] \
    [--only speed|unresponsive|burst|curve] [--deadlines 2s,10s] [--shares 10,50,90] \
    [--kinds silent,deaf,dripping] [--burst 1000000] [--before PATH] [--no-log]";

/// The longest wait without an arrival, and for the last outcome to be on disk.
const PATIENCE: Duration = Duration::from_secs(15);

/// The interval between checks whether all outcomes are on disk.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The pause between two single events; an idle dispatcher records the outcome within it.
const REST: Duration = Duration::from_millis(5);

/// The limit of file descriptors to set: each attempt's connection needs one at either end.
const DESCRIPTORS: u64 = 16_384;

/// Events per second with unresponsive endpoints, unless `--rate` is given.
const RATE_BESIDE: u64 = 5_000;

/// The parts of an event's latency. An event may arrive before its sender has read the 202.
const PARTS: [&str; 3] = ["post to arrival", "post to 202", "202 to arrival"];

struct Plan {
    dispatcher: PathBuf,
    rounds: usize,
    endpoints: usize,
    ports: usize,
    events: u64,
    connections: u64,
    /// Events per second of the open loops; 0 for each loop's own rate.
    rate: u64,
    seconds: u64,
    idle: usize,
    only: String,
    deadlines: String,
    shares: String,
    kinds: String,
    burst: u64,
    /// An earlier dispatcher to measure as well; empty for none.
    before: PathBuf,
    log: bool,
}

fn main() {
    let plan = plan();
    let descriptors = weir_common::rlimit::raise_descriptors(DESCRIPTORS);
    if descriptors < DESCRIPTORS {
        eprintln!("only {descriptors} files may be open; unresponsive endpoints need more");
    }
    let clock = Clock::system();
    let arrivals = Arrivals::receive(plan.ports, &clock);
    let lab = Lab { plan, clock, arrivals };
    if lab.plan.wants("speed") {
        lab.speed();
    }
    if lab.plan.wants("unresponsive") {
        lab.unresponsive();
    }
    if lab.plan.wants("burst") {
        lab.burst();
    }
    if lab.plan.wants("curve") {
        lab.curve();
    }
}

fn plan() -> Plan {
    let mut flags = Flags::from_env(USAGE);
    let plan = Plan {
        dispatcher: flags.value("--dispatcher", sibling("weir-dispatcher")),
        rounds: flags.value("--rounds", 3),
        endpoints: flags.value("--endpoints", 6_000),
        ports: flags.value("--ports", 16),
        events: flags.value("--events", 60_000),
        connections: flags.value("--connections", 64),
        rate: flags.value("--rate", 0),
        seconds: flags.value("--seconds", 10),
        idle: flags.value("--idle", 400),
        only: flags.value("--only", String::new()),
        deadlines: flags.value("--deadlines", "2s,10s".to_owned()),
        shares: flags.value("--shares", "10,50,90".to_owned()),
        kinds: flags.value("--kinds", "silent,deaf,dripping".to_owned()),
        burst: flags.value("--burst", 1_000_000),
        before: flags.value("--before", PathBuf::new()),
        log: !flags.has("--no-log"),
    };
    let [] = flags.rest();
    plan
}

impl Plan {
    /// The rate of the open loops with unresponsive endpoints.
    fn rate_beside(&self) -> u64 {
        if self.rate > 0 { self.rate } else { RATE_BESIDE }
    }

    fn wants(&self, part: &str) -> bool {
        self.only.is_empty() || self.only == part
    }

    /// The dispatchers to measure, with their names in a table.
    fn programs(&self) -> Vec<(&'static str, &Path)> {
        let now = ("", self.dispatcher.as_path());
        let earlier = ("before: ", self.before.as_path());
        [earlier, now].into_iter().filter(|(_, path)| !path.as_os_str().is_empty()).collect()
    }
}

/// One kind of load, and its measurements, one value per round.
struct Row {
    name: &'static str,
    per_call: u64,
    /// Endpoints that each event is delivered to.
    fan: u64,
    accepted: Series,
    delivered: Series,
    commits: Series,
    user: Series,
    system: Series,
    written: Series,
    bench: Series,
    /// Deliveries per second that the store reaches alone.
    alone: Series,
}

fn row(name: &'static str, per_call: u64, fan: usize) -> Row {
    let [accepted, delivered, commits, user, system, written, bench, alone] =
        std::array::from_fn(|_| Series::default());
    let fan = fan as u64;
    Row { name, per_call, fan, accepted, delivered, commits, user, system, written, bench, alone }
}

struct Lab {
    plan: Plan,
    clock: Clock,
    arrivals: Arc<Arrivals>,
}

impl Lab {
    fn speed(&self) {
        let mut rows = [
            row("one endpoint, one event a call", 1, 1),
            row("one endpoint, fifty events a call", 50, 1),
            row("five endpoints, one event a call", 1, PER_WORKSPACE),
            row("five endpoints, fifty events a call", 50, PER_WORKSPACE),
        ];
        let [mut idle, mut quarter] =
            [const { [const { [const { Series(Vec::new()) }; 3] }; 3] }; 2];
        let [mut resident, mut rates] = [const { Series(Vec::new()) }; 2];
        for round in 0..self.plan.rounds {
            let folder = Folder::new("deliver");
            let mut dispatcher = self.start(&folder, &self.plan.dispatcher, "10s");
            self.warm(&mut dispatcher, self.plan.endpoints);
            let answered = self.one_by_one(&dispatcher.one_each("h"), || true);
            self.record_parts(&mut idle, &answered);
            for row in &mut rows {
                self.flood(&dispatcher, row);
                row.alone.0.push(self.alone(row));
            }
            let rate = self.quarter_of(&rows);
            rates.0.push(rate as f64);
            let load = self.load(rate * self.plan.seconds, 1);
            let answered = self.steadily(&dispatcher.one_each("h"), load, rate);
            self.record_parts(&mut quarter, &answered);
            self.settle(&dispatcher);
            resident.0.push(dispatcher.process.resident_mib());
            eprintln!("speed: round {} of {}", round + 1, self.plan.rounds);
        }
        let cells: Vec<_> = rows.iter().map(cells).collect();
        let head = [
            "",
            "events accepted/s",
            "deliveries/s",
            "commits/s",
            "CPU ms/delivery (user/sys)",
            "KiB written/delivery",
            "bench's share of the CPU used",
            "the store alone: deliveries/s",
            "÷ the store alone",
        ];
        println!("{}", table("As fast as it goes", &head, &cells));
        let steady = format!("{:.0} a second", rates.median());
        let loads = [("idle, one at a time", &idle), (steady.as_str(), &quarter)];
        let rows = loads.iter().flat_map(|(load, parts)| {
            let named = PARTS.iter().zip(*parts);
            named.map(move |(part, series)| latency(&format!("{load}: {part}"), series))
        });
        let rows: Vec<_> = rows.collect();
        println!("{}", table("An event's way", &["", "p50 ms", "p99 ms", "max ms"], &rows));
        let ([[idle, ..], ..], [[_, p99, _], ..]) = (&idle, &quarter);
        println!("p99 at {steady} ÷ idle p50: {:.1}", p99.ratio_to(idle));
        println!("Resident at the end: {} MiB", resident.range(0));
    }

    /// The rate of the open loop: `--rate`, or a quarter of what the first row reached last.
    fn quarter_of(&self, rows: &[Row]) -> u64 {
        let reached = rows.first().and_then(|row| row.accepted.0.last().copied());
        let quarter = reached.unwrap_or_default() as u64 / 4;
        if self.plan.rate > 0 { self.plan.rate } else { quarter.max(1) }
    }

    /// What the store reaches alone with a row's load.
    fn alone(&self, row: &Row) -> f64 {
        let load = self.load(self.plan.events / row.fan, row.per_call);
        statements::measure(self.plan.endpoints, row.fan, load, &self.clock)
    }

    /// Records the duration of each part of the latency, for all events that have arrived.
    fn record_parts(&self, parts: &mut [[Series; 3]; 3], answered: &[Answered]) {
        let arrived: HashMap<Tick, Tick> = self.arrivals.drain().into_iter().collect();
        let [arrivals, answers, between] = parts;
        record(arrivals, &sorted(arrived.iter().map(|(due, at)| micros(at.since(*due)))));
        record(answers, &sorted(answered.iter().map(|one| micros(one.at.since(one.due)))));
        let both = answered.iter().filter_map(|one| Some((one.at, arrived.get(&one.due)?)));
        record(between, &sorted(both.map(|(answer, at)| micros(at.since(answer)))));
    }

    fn start(&self, folder: &Folder, program: &Path, deadline: &str) -> Dispatcher {
        Dispatcher::start(folder, program, deadline, self.plan.log)
    }

    /// Registers `endpoints` responsive endpoints, and calls each once.
    fn warm(&self, dispatcher: &mut Dispatcher, endpoints: usize) {
        dispatcher.register("h", &urls(&self.arrivals.addresses, "r", endpoints));
        let before = self.arrivals.count();
        self.call_each(dispatcher, "h");
        self.arrivals.wait_for(before + endpoints as u64, PATIENCE);
        self.settle(dispatcher);
        let _ = self.arrivals.drain_latencies();
    }

    /// Calls each endpoint of the workspaces with `prefix` once.
    fn call_each(&self, dispatcher: &Dispatcher, prefix: &str) {
        let aim = dispatcher.all_of_each(prefix);
        let _ = flood(&aim, self.load(aim.kinds.len() as u64, 1), &self.clock);
    }

    fn load(&self, events: u64, per_call: u64) -> Load {
        Load { events, per_call, connections: self.plan.connections }
    }

    /// Posts each event after the previous one arrived, while `on` is true.
    fn one_by_one(&self, aim: &Aim, on: impl Fn() -> bool) -> Vec<Answered> {
        let (mut line, mut answered) = (Line::connect(aim), Vec::new());
        for nth in 0..self.plan.idle {
            if !on() {
                break;
            }
            let (before, due) = (self.arrivals.count(), self.clock.now().tick);
            line.post(aim, nth as u64, 1, due);
            answered.push(Answered { due, at: self.clock.now().tick });
            self.arrivals.wait_for(before + 1, PATIENCE);
            std::thread::sleep(REST);
        }
        answered
    }

    fn flood(&self, dispatcher: &Dispatcher, row: &mut Row) {
        let aim = if row.fan == 1 { dispatcher.one_each("h") } else { dispatcher.all_of_each("h") };
        let events = self.plan.events / row.fan;
        let deliveries = events * row.fan;
        let (commits, before) = (dispatcher.metric("store_commits"), self.arrivals.count());
        let (theirs, ours) = (dispatcher.process.usage(), own_usage());
        let written = dispatcher.process.written();
        let began = self.clock.now().tick;
        let accepting = flood(&aim, self.load(events, row.per_call), &self.clock);
        self.arrivals.wait_for(before + deliveries, PATIENCE);
        let took = seconds(self.arrivals.last().since(began));
        let ours = spent(ours, own_usage());
        self.settle(dispatcher);
        let used = spent(theirs, dispatcher.process.usage());
        let each = |micros: f64| micros / 1_000.0 / deliveries as f64;
        row.accepted.0.push(events as f64 / seconds(accepting));
        row.delivered.0.push(deliveries as f64 / took);
        row.commits.0.push((dispatcher.metric("store_commits") - commits) / took);
        let written = dispatcher.process.written() - written;
        row.written.0.push(written / 1_024.0 / deliveries as f64);
        row.user.0.push(each(used.user));
        row.system.0.push(each(used.system));
        let (ours, theirs) = (ours.user + ours.system, used.user + used.system);
        row.bench.0.push(100.0 * ours / (ours + theirs));
        if self.arrivals.count() > before + deliveries {
            fail("more was delivered than was asked for");
        }
        let _ = self.arrivals.drain_latencies();
    }

    /// Posts at `rate` a second, waits until all have arrived, and returns the responses' times.
    fn steadily(&self, aim: &Aim, load: Load, rate: u64) -> Vec<Answered> {
        let before = self.arrivals.count();
        let answered = steadily(aim, load, rate, &self.clock);
        self.arrivals.wait_for(before + load.events, PATIENCE);
        answered
    }

    /// Waits until the dispatcher reports no waiting delivery: every outcome is on disk.
    fn settle(&self, dispatcher: &Dispatcher) {
        let began = self.clock.now().tick;
        while dispatcher.metric("deliveries_waiting") > 0.0 {
            if self.clock.now().tick.since(began) > PATIENCE {
                fail("deliveries still wait that arrived");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// A URL for each endpoint, on these ports in turn.
fn urls(ports: &[SocketAddr], folder: &str, count: usize) -> Vec<String> {
    let ports = (0..count).zip(ports.iter().cycle());
    ports.map(|(nth, at)| format!("http://{at}/{folder}/{nth}")).collect()
}

fn record(series: &mut [Series; 3], latencies: &[u64]) {
    for (series, share) in series.iter_mut().zip([0.5, 0.99, 1.0]) {
        series.0.push(quantile(latencies, share) as f64 / 1_000.0);
    }
}

fn latency(name: &str, series: &[Series; 3]) -> Vec<String> {
    let ranges = series.iter().map(|series| series.range(2));
    std::iter::once(name.to_owned()).chain(ranges).collect()
}

fn spent(from: Usage, to: Usage) -> Usage {
    Usage { user: to.user - from.user, system: to.system - from.system }
}

fn cells(row: &Row) -> Vec<String> {
    let total = row.user.0.iter().zip(&row.system.0).map(|(user, system)| user + system);
    let total = Series(total.collect()).range(3);
    let (user, system) = (row.user.median(), row.system.median());
    vec![
        row.name.to_owned(),
        row.accepted.range(0),
        row.delivered.range(0),
        row.commits.range(0),
        format!("{total} ({user:.3}/{system:.3})"),
        row.written.range(1),
        format!("{} %", row.bench.range(0)),
        row.alone.range(0),
        format!("{:.2}", row.delivered.ratio_to(&row.alone)),
    ]
}
