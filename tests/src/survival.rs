//! Whether weir-dispatcher keeps its word while it is killed, stopped, starved of disk and has its
//! clock set: the real program under load, and books of what was acknowledged and what arrived.
//!
//! `tests/it/dispatching/faults.rs` runs it for seconds, `benches/src/bin/survive.rs` for hours.
//!
//! # Invariants
//!
//! 1. The checker (`books`, `receivers`, `judge`) believes nothing that the dispatcher says of
//!    itself, but for what it gave up, which is judged too, and for timeouts on a slow machine,
//!    which are counted apart (`logs`).
//! 2. What is done to the process is in the books before it is done.
//! 3. At the end every receiver is healthy, and everything must have arrived.

pub mod books;
pub mod cast;
pub mod clients;
pub mod disk;
pub mod events;
pub mod fate;
pub mod judge;
pub mod logs;
pub mod receivers;
pub mod victim;
pub mod wall_clock;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::books::Books;
use self::clients::{GivenUp, Owner, backend};
use self::disk::Disk;
use self::fate::{Fate, Part, Scale};
use self::judge::Verdict;
use self::receivers::Receivers;
use self::victim::Victim;
use self::wall_clock::WallClock;
use crate::dice::Dice;
use crate::wait::Deadline;

/// Backends that post at one time.
const BACKENDS: u64 = 4;

/// How long it may take until nothing waits, once every receiver is healthy: as many deliveries as
/// may be outstanding at one endpoint take seven windows of its pace.
const DRAIN_MAX: Duration = Duration::from_secs(600);

/// Further ahead than any clock is set meanwhile.
const AHEAD_SECONDS: i64 = 5 * 86_400;

/// What a run is.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The dispatcher.
    pub program: PathBuf,
    /// Where its files and the books go. There is nothing of an earlier run.
    pub folder: PathBuf,
    /// What it is about.
    pub part: Part,
    /// How long blows are dealt, at least.
    pub time: Duration,
    /// How many blows are dealt, at least.
    pub blows: u64,
    /// How much there is of everything.
    pub scale: Scale,
    /// What decides what happens.
    pub seed: u64,
}

/// Why a run did not take place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// There is no libfaketime: Debian's package `faketime`.
    NoFaketime,
}

/// What came of a run, and how it was done.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What came of it.
    pub verdict: Verdict,
    /// How the disk was filled.
    pub disk: &'static str,
}

/// Runs it: load and blows, then peace until nothing waits, then judgement. `told` hears of each
/// blow how many there were so far.
pub fn run(plan: &Plan, told: &dyn Fn(&Books)) -> Result<Ran, Skipped> {
    let Plan { folder, part, seed, .. } = plan;
    std::fs::create_dir_all(folder).unwrap();
    let clock = match part {
        Part::Clock => Some(WallClock::find(folder).ok_or(Skipped::NoFaketime)?),
        _ => None,
    };
    let clock_holds = clock.is_none();
    let disk = match part {
        Part::Full => Disk::small(folder),
        Part::Refuse => Disk::limited(folder),
        _ => Disk::plain(folder),
    };
    let books = Arc::new(Books::open(folder, *seed));
    let receivers = Receivers::start(&books, clock_holds);
    let environment = clock.as_ref().map(WallClock::environment).unwrap_or_default();
    // So short that much is dropped while it goes on; where days pass at once, nothing may be.
    let retention = if clock_holds { "2m" } else { "365d" };
    let mut victim = Victim::new(&plan.program, folder, disk, environment, &books, retention);
    let how = victim.disk.how();
    victim.start();
    let left = live(plan, &books, &receivers, &mut victim, clock.as_ref(), told);
    victim.stop_in_order();
    drop(victim);
    drop(receivers);
    let said = logs::read(&folder.join("attempts.log"), &left.webhooks);
    let verdict = judge::judge(&books, &left.given_up, &said, clock_holds);
    for fault in &verdict.faults {
        books.note(format_args!("JUDGED {fault}"));
    }
    books.flush();
    Ok(Ran { verdict, disk: how })
}

/// What is known at the end beside the books.
struct Left {
    /// What had been given up before everything was sent again.
    given_up: Vec<GivenUp>,
    /// The webhooks' ids, in the order of [`cast::HOOKS`].
    webhooks: Vec<String>,
}

/// Sets it when it goes, also where something panics: others wait for it.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Load and blows, then peace.
fn live(
    plan: &Plan,
    books: &Books,
    receivers: &Receivers,
    victim: &mut Victim,
    clock: Option<&WallClock>,
    told: &dyn Fn(&Books),
) -> Left {
    let addresses = victim.addresses.clone();
    let (mut owner, secrets) = Owner::register(books, receivers, &addresses);
    receivers.know(secrets);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over_at_last = Sets(&over);
        for stream in 0..BACKENDS {
            let (over, addresses, burst) = (&over, &addresses, plan.scale.burst);
            scope.spawn(move || backend(books, addresses, 10 + stream, burst, over));
        }
        scope.spawn(|| owner.work(&over));
        let deadline = Deadline::after(plan.time);
        let dice = Dice::new(plan.seed, 0);
        let mut fate = Fate { part: plan.part, scale: plan.scale, dice, victim, clock };
        let mut blows = 0;
        while deadline.left().is_some() || blows < plan.blows {
            fate.strike();
            blows += 1;
            told(books);
        }
        drop(over_at_last);
    });
    receivers.heal();
    victim.expect_alive();
    if let Some(clock) = clock {
        // What was put off while it went ahead is due by then, once it is read from disk.
        clock.set(AHEAD_SECONDS);
        victim.clock_was_set(AHEAD_SECONDS);
        victim.stop_in_order();
        victim.start();
    }
    if !owner.drain(DRAIN_MAX) {
        books.fault(format!("something still waits after {DRAIN_MAX:?} of peace"));
    }
    let given_up = owner.given_up();
    owner.redeliver_all();
    if !owner.drain(DRAIN_MAX) {
        books.fault(format!("what was given up still waits after {DRAIN_MAX:?}"));
    }
    Left { given_up, webhooks: owner.webhooks }
}

/// A folder of this name for a run, in another.
pub fn folder_of(root: &Path, part: Part) -> PathBuf {
    root.join(part.name())
}
