//! Whether weir-dispatcher keeps its word while it is killed, stopped, starved of disk and has its
//! clock set: the real program under load, and a history of what was acknowledged and what arrived.
//!
//! `tests/it/dispatching/faults.rs` runs it for seconds, `benches/src/bin/survive.rs` for hours.
//!
//! # Invariants
//!
//! 1. The checker (`history`, `receivers`, `judge`) believes nothing that the dispatcher says of
//!    itself, but for what it gave up, which is judged too, and for timeouts on a slow machine,
//!    which are counted apart (`logs`).
//! 2. What is done to the process is in the history before it is done.
//! 3. At the end every receiver is healthy, and everything must have arrived.

pub mod cast;
pub mod clients;
pub mod disk;
pub mod events;
pub mod faults;
pub mod history;
pub mod judge;
pub mod logs;
pub mod receivers;
pub mod victim;
pub mod wall_clock;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use self::clients::{GivenUp, Owner, backend};
use self::disk::Disk;
use self::faults::{FaultInjector, Part, Scale};
use self::history::History;
use self::judge::Verdict;
use self::receivers::Receivers;
use self::victim::Victim;
use self::wall_clock::WallClock;
use crate::rng::SeededRng;
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
    /// Where its files and the history go. There is nothing of an earlier run.
    pub folder: PathBuf,
    /// What it is about.
    pub part: Part,
    /// How long faults are injected, at least.
    pub time: Duration,
    /// How many faults are injected, at least.
    pub faults: u64,
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

/// Runs it: load and faults, then peace until nothing waits, then judgement. `told` hears of each
/// fault what is known so far.
pub fn run(plan: &Plan, told: &dyn Fn(&History)) -> Result<Ran, Skipped> {
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
    let history = Arc::new(History::open(folder, *seed));
    let receivers = Receivers::start(&history, clock_holds);
    let mut victim = Victim::new(&plan.program, folder, disk, clock.as_ref(), &history);
    let how = victim.disk.how();
    victim.start();
    let left = live(plan, &receivers, &mut victim, clock.as_ref(), told);
    victim.stop_in_order();
    drop(victim);
    drop(receivers);
    let said = logs::read(&folder.join("attempts.log"), &left.webhooks);
    let verdict = judge::judge(&history, &left.given_up, &said, clock_holds);
    for violation in &verdict.violations {
        history.note(format_args!("JUDGED {violation}"));
    }
    history.flush();
    Ok(Ran { verdict, disk: how })
}

/// What is known at the end beside the history.
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

/// Load and faults, then peace.
fn live(
    plan: &Plan,
    receivers: &Receivers,
    victim: &mut Victim,
    clock: Option<&WallClock>,
    told: &dyn Fn(&History),
) -> Left {
    let history = &*Arc::clone(&victim.history);
    let addresses = victim.addresses.clone();
    let (mut owner, secrets) = Owner::register(history, receivers, &addresses);
    receivers.know(secrets);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over_at_last = Sets(&over);
        for stream in 0..BACKENDS {
            let (over, addresses, burst) = (&over, &addresses, plan.scale.burst);
            scope.spawn(move || backend(history, addresses, 10 + stream, burst, over));
        }
        scope.spawn(|| owner.work(&over));
        let deadline = Deadline::after(plan.time);
        let rng = SeededRng::stream(plan.seed, 0);
        let mut injector = FaultInjector { part: plan.part, scale: plan.scale, rng, victim, clock };
        let mut faults = 0;
        while deadline.left().is_some() || faults < plan.faults {
            injector.inject();
            faults += 1;
            told(history);
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
        history.violation(format!("something still waits after {DRAIN_MAX:?} of peace"));
    }
    let given_up = owner.given_up();
    owner.redeliver_all();
    if !owner.drain(DRAIN_MAX) {
        history.violation(format!("what was given up still waits after {DRAIN_MAX:?}"));
    }
    Left { given_up, webhooks: owner.webhooks }
}

/// A folder of this name for a run, in another.
pub fn folder_of(root: &Path, part: Part) -> PathBuf {
    root.join(part.name())
}
