//! Measures one decision of the in-memory store: time, allocations, memory.
//!
//! A seed decides the random order of keys, so that a run can be repeated. Ticks are counted up
//! rather than read: the store checks every key about every three seconds of simulated time, which
//! keeps a log of sixty a minute a third full and admits every request. Refusals are measured
//! at one tick.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_benches::counted::{Counted, Counts};
use weir_benches::flags::{Flags, fail};
use weir_benches::lab::resident_kib;
use weir_benches::report::{Series, table};
use weir_common::limit::calendar::{Calendar, CalendarQuota, CalendarUnit, parse_zone};
use weir_common::limit::concurrency::ConcurrencyQuota;
use weir_common::limit::{rolling, token_bucket};
use weir_common::time::{Clock, Moment, Tick, UnixTime, micros};
use weir_gateway::limit::key::{Key, Owner, Scope, Seed};
use weir_gateway::limit::memory::MemoryStore;
use weir_gateway::limit::{LimitCheck, Quota};

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const USAGE: &str = "usage: decide [--rounds 7] [--decisions 2000000] [--only time|memory]";
const MINUTE: Duration = Duration::from_secs(60);
/// Workspaces of one organisation.
const SIBLINGS: usize = 10;
/// The time between two checks of one key, in microseconds of the store's time.
const PAUSE: u64 = 3_000_000;
/// Decisions of a thread between two synchronisations of its clock with the other thread's: fewer
/// than any limit admits at one tick.
const AGREE_EVERY: usize = 16;
/// Requests and keys of [`be_counted`]; counts do not depend on what is cached.
const COUNTED: u64 = 10_000;
const COUNTED_KEYS: usize = 100;
const INVENTED: u64 = 10_000_000;
/// When the store's time starts.
const START: u64 = 1_000_000_000;

fn main() {
    let mut flags = Flags::from_env(USAGE);
    let rounds = flags.value("--rounds", 7);
    let decisions = flags.value("--decisions", 2_000_000);
    let only = flags.value("--only", String::new());
    let weighed = flags.value("--weigh", usize::MAX);
    let counted = flags.value("--counted", 0_u64);
    let [] = flags.rest();
    if weighed != usize::MAX {
        return weigh(weighed);
    }
    if counted > 0 {
        return be_counted(counted);
    }
    if only != "memory" {
        println!("{}", time(rounds, decisions));
    }
    if only != "time" {
        println!("{}", memory());
    }
}

/// The checks of each request.
#[derive(Clone, Copy)]
enum Workload {
    /// One token bucket.
    Bucket,
    /// One rolling window.
    Window,
    /// One rolling window that counts in slots.
    Slots,
    /// One day of a calendar.
    Day,
    /// One limit of requests in flight, each released at once.
    InFlight,
    /// A workspace's window and its organisation's, all or nothing.
    Both,
    /// The same two windows; the first one refuses.
    Refused,
}

impl Workload {
    fn name(self) -> &'static str {
        match self {
            Self::Bucket => "one token bucket",
            Self::Window => "one rolling window",
            Self::Slots => "one rolling window of 100,000",
            Self::Day => "one calendar day",
            Self::InFlight => "one in flight, and its release",
            Self::Both => "two windows, all or nothing",
            Self::Refused => "two windows, refused",
        }
    }

    fn quotas(self) -> [Quota; 2] {
        let window = |requests| Quota::Rolling(rolling::RollingQuota { requests, window: MINUTE });
        match self {
            Self::Bucket => {
                [Quota::Bucket(token_bucket::BucketQuota {
                    rate: token_bucket::Rate::per_second(50),
                    burst: 200,
                }); 2]
            }
            Self::Window | Self::Both => [window(60), window(60 * 10)],
            Self::Refused => [window(1), window(60 * 10)],
            Self::Slots => [window(100_000); 2],
            Self::Day => {
                let zone = parse_zone("UTC").unwrap_or_else(|why| fail(&why));
                let calendar = Calendar { unit: CalendarUnit::Day, zone };
                let quota = Quota::Calendar(CalendarQuota::new(1_000_000_000, calendar));
                // The store's time starts at midnight.
                [quota.at(Moment { tick: Tick(START), unix: UnixTime(0) }); 2]
            }
            Self::InFlight => [Quota::Concurrency(ConcurrencyQuota { requests: 1_000 }); 2],
        }
    }

    fn count(self) -> usize {
        match self {
            Self::Bucket | Self::Window | Self::Slots | Self::Day | Self::InFlight => 1,
            Self::Both | Self::Refused => 2,
        }
    }
}

/// A store, and the keys to check in it.
struct World {
    store: MemoryStore,
    seed: Seed,
    workload: Workload,
    workspaces: Vec<[u8; 12]>,
    /// Precomputed, as in the directory's cache.
    organisations: Vec<Owner>,
    /// A check by each limit, with its horizon, which the gateway computes when it reads its files.
    limits: [LimitCheck; 2],
    /// The store's time; threads synchronise with it every [`AGREE_EVERY`] decisions.
    now: AtomicU64,
    step: u64,
}

impl World {
    fn new(workload: Workload, keys: usize) -> Self {
        let seed = Seed::new(*b"sixteen bytes ok");
        let name = |n: usize| {
            let text = format!("ws_{n:09}");
            text.as_bytes().try_into().unwrap_or_else(|_| fail("a name of twelve bytes"))
        };
        let refused = matches!(workload, Workload::Refused);
        let [workspace, organisation] = workload.quotas();
        let limit = |tag, quota| LimitCheck {
            known: true,
            ..LimitCheck::new(Key::from_bits(0), tag, quota)
        };
        Self {
            store: MemoryStore::new(1_000_000),
            limits: [
                limit(seed.limit("workspace"), workspace),
                limit(seed.limit("organisation"), organisation),
            ],
            workspaces: (0..keys).map(name).collect(),
            organisations: (0..keys.div_ceil(SIBLINGS) as u64)
                .map(|n| seed.owner(Scope::Organisation, &n.to_be_bytes()))
                .collect(),
            step: if refused { 0 } else { PAUSE.div_ceil(keys as u64) },
            now: AtomicU64::new(START),
            seed,
            workload,
        }
    }

    /// Decides one request, starting from the workspace's name; returns whether it is admitted.
    fn decide(&self, nth: usize, now: Tick) -> bool {
        let checks = self.checks(nth);
        self.judge(checks.get(..self.workload.count()).unwrap_or(&checks), now)
    }

    fn judge(&self, checks: &[LimitCheck], now: Tick) -> bool {
        let verdict = black_box(self.store.decide(checks, now, true));
        let is_admitted = verdict.is_ok_and(|verdict| verdict.is_admitted());
        if matches!(self.workload, Workload::InFlight) {
            let released = checks.iter().all(|check| self.store.release(check.key).is_ok());
            return is_admitted && released;
        }
        is_admitted
    }

    fn checks(&self, nth: usize) -> [LimitCheck; 2] {
        let name = self.workspaces.get(nth).map_or(&b""[..], |name| name);
        let owner = self.seed.owner(Scope::Workspace, name);
        let organisation = self.organisations.get(nth / SIBLINGS).copied().unwrap_or(owner);
        let check = |owner, of: LimitCheck| LimitCheck { key: Key::new(owner, of.limit), ..of };
        let [workspace, wider] = self.limits;
        [check(owner, workspace), check(organisation, wider)]
    }

    /// Makes `decisions` checks in random order, `step` apart, and counts admissions.
    fn decide_many(&self, decisions: usize, random: &mut u64, step: u64) -> usize {
        let keys = self.workspaces.len();
        let mut now = 0;
        let mut admitted = 0;
        for nth in 0..decisions {
            if nth % AGREE_EVERY == 0 {
                now = self.now.fetch_max(now, Ordering::Relaxed).max(now);
            }
            now += step;
            admitted += usize::from(self.decide(next(random, keys), Tick(now)));
        }
        self.now.fetch_max(now, Ordering::Relaxed);
        admitted
    }
}

/// The next number of a seeded xorshift, below `bound`.
fn next(random: &mut u64, bound: usize) -> usize {
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    usize::try_from(*random % bound as u64).unwrap_or_default()
}

fn time(rounds: usize, decisions: usize) -> String {
    let workloads = [
        Workload::Both,
        Workload::Refused,
        Workload::Window,
        Workload::Slots,
        Workload::Bucket,
        Workload::Day,
        Workload::InFlight,
    ];
    let mut rows = Vec::new();
    for workload in workloads {
        for keys in [1, 10_000, 1_000_000] {
            let world = World::new(workload, keys);
            warm_up(&world, decisions);
            let (one, allocations) = nanos(&world, 1, rounds, decisions);
            let (two, _) = nanos(&world, 2, rounds, decisions);
            let name = workload.name().to_owned();
            let allocations = format!("{allocations:.4}");
            let [one, two] = [one.range(0), two.range(0)];
            eprintln!("{name}, {keys} keys: {one} ns, two threads {two} ns");
            rows.push(vec![name, keys.to_string(), one, two, allocations]);
        }
    }
    rows.push(vec![
        "reading the clock".into(),
        String::new(),
        clock(decisions),
        "".into(),
        "".into(),
    ]);
    let head = ["", "keys", "ns, one thread", "ns, two threads", "allocations"];
    table("One decision, from a name to a verdict", &head, &rows)
}

/// Checks every key once, which uses up the refusing limit, then often enough to fill the logs.
fn warm_up(world: &World, decisions: usize) {
    for nth in 0..world.workspaces.len() {
        let _ = world.decide(nth, Tick(world.now.load(Ordering::Relaxed)));
    }
    let times = (world.workspaces.len() * 40).max(decisions);
    let _ = world.decide_many(times, &mut 88_172_645_463_325_252, world.step);
}

/// Nanoseconds between two decisions of one thread, per round, and allocations per decision.
fn nanos(world: &World, threads: u64, rounds: usize, decisions: usize) -> (Series, f64) {
    let clock = Clock::system();
    let (mut series, mut allocations) = (Series::default(), 0);
    for round in 0..rounds as u64 {
        let before = Counts::now();
        let begun = clock.now().tick;
        let admitted: usize = std::thread::scope(|scope| {
            let work = |thread: u64| {
                let mut random = (round * 31 + thread) * 0x9E37_79B9;
                scope.spawn(move || world.decide_many(decisions, &mut random, world.step * threads))
            };
            let workers: Vec<_> = (1..=threads).map(work).collect();
            workers.into_iter().filter_map(|worker| worker.join().ok()).sum()
        });
        let elapsed = micros(clock.now().tick.since(begun)) as f64 * 1_000.0;
        series.0.push(elapsed / decisions as f64);
        allocations += Counts::now().allocations - before.allocations;
        let decided = decisions * usize::try_from(threads).unwrap_or(1);
        let wanted = if matches!(world.workload, Workload::Refused) { 0 } else { decided };
        if admitted != wanted {
            fail(&format!("{}: {admitted} of {decided} admitted", world.workload.name()));
        }
    }
    (series, allocations as f64 / (rounds * decisions) as f64)
}

/// Decides each request so many times, on two windows, for `instructions`: it counts this process
/// with `times` 1 and 2, and the difference is the store's alone.
fn be_counted(times: u64) {
    let world = World::new(Workload::Both, COUNTED_KEYS);
    warm_up(&world, 0);
    let (mut now, mut random) = (world.now.load(Ordering::Relaxed), 88_172_645_463_325_252);
    for _ in 0..COUNTED {
        let checks = world.checks(next(&mut random, COUNTED_KEYS));
        for _ in 0..times {
            now += world.step;
            if !world.judge(&checks, Tick(now)) {
                fail("a decision that is counted should admit");
            }
        }
    }
}

fn clock(times: usize) -> String {
    let clock = Clock::system();
    let begun = clock.now().tick;
    (0..times).for_each(|_| {
        black_box(clock.now());
    });
    let elapsed = micros(clock.now().tick.since(begun)) as f64 * 1_000.0;
    format!("{:.0}", elapsed / times as f64)
}

/// Builds the store of a memory measurement.
type Make = fn() -> World;

/// The memory measurements. Each runs in its own process: memory freed by one would hide the
/// growth of the next.
const LOADS: [(&str, Make); 3] = [
    ("100,000 workspaces, 60 requests in the last minute each", || busy(100_000, 60)),
    ("100,000 workspaces, one request each", || busy(100_000, 1)),
    ("10,000,000 invented names, one request each", invented),
];

fn memory() -> String {
    let rows: Vec<Vec<String>> = (0..LOADS.len()).map(weigh_apart).collect();
    table("Memory", &["", "states kept", "bytes per state", "RSS grown by, MiB"], &rows)
}

fn weigh_apart(nth: usize) -> Vec<String> {
    let program = std::env::current_exe().unwrap_or_else(|error| fail(&error.to_string()));
    let child = std::process::Command::new(program).args(["--weigh", &nth.to_string()]).output();
    let child = child.unwrap_or_else(|error| fail(&error.to_string()));
    String::from_utf8_lossy(&child.stdout).trim().split('|').map(str::to_owned).collect()
}

fn weigh(nth: usize) {
    let Some((name, load)) = LOADS.get(nth) else { fail(USAGE) };
    let (counts, resident) = (Counts::now(), resident_kib("self"));
    let world = load();
    let bytes = Counts::now().live_bytes.saturating_sub(counts.live_bytes);
    let names = world.workspaces.capacity() * size_of::<[u8; 12]>()
        + world.organisations.capacity() * size_of::<Owner>();
    let kept = world.store.fill().keys;
    let each = bytes.saturating_sub(names) as f64 / kept.max(1) as f64;
    let grown = (resident_kib("self") - resident) / 1024.0;
    println!("{name}|{kept}|{each:.0}|{grown:.0}");
}

fn busy(keys: usize, requests: u64) -> World {
    let world = World::new(Workload::Window, keys);
    for request in 0..requests {
        for nth in 0..keys {
            let _ = world.decide(nth, Tick(1_000_000_000 + request));
        }
    }
    world
}

/// Ten million names that no directory knows, in ten seconds of the store's time.
fn invented() -> World {
    let world = World::new(Workload::Window, 1);
    let [of, _] = world.limits;
    for nth in 0..INVENTED {
        let owner = world.seed.owner(Scope::Workspace, &nth.to_be_bytes());
        let check = LimitCheck { key: Key::new(owner, of.limit), known: false, ..of };
        let _ = black_box(world.store.judge(&[check], Tick(1_000_000_000 + nth)));
    }
    world
}
