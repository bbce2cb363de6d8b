//! Checks that weir-dispatcher keeps its promises while it is killed and suspended, its disk fills
//! up and its clock is set: the real program under load, and a history of the acknowledged events
//! and the deliveries that arrived.
//!
//! `tests/it/dispatching/faults.rs` runs this for seconds, `benches/src/bin/survive.rs` for hours.
//!
//! # Invariants
//!
//! 1. The checker (`history`, `receivers`, `judge`) trusts none of the dispatcher's own statements,
//!    with two exceptions: deliveries that were given up, which are checked too, and timeouts on a
//!    slow machine, which are counted separately (`logs`).
//! 2. The time of a fault in the history starts before the fault is injected.
//! 3. At the end every receiver is healthy, and every event must have arrived.

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

/// Backends that post at the same time.
const BACKENDS: u64 = 4;

/// How long the queue may take to empty once every receiver is healthy. If all outstanding
/// deliveries (about 6,000, `clients`) were at one endpoint, they would take twelve windows of its
/// rate limit: 240 s.
const DRAIN_MAX: Duration = Duration::from_secs(600);

/// Further ahead than any fault sets the clock.
const AHEAD_SECONDS: i64 = 5 * 86_400;

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The dispatcher's executable.
    pub program: PathBuf,
    /// For its files and the history; empty before the run.
    pub folder: PathBuf,
    /// Which kind of faults.
    pub part: Part,
    /// How long faults are injected, at least.
    pub time: Duration,
    /// How many faults are injected, at least.
    pub faults: u64,
    /// How long faults last, and how large bursts are.
    pub scale: Scale,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Why a run was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skipped {
    /// libfaketime is not installed (Debian's package `faketime`).
    NoFaketime,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What the checker found.
    pub verdict: Verdict,
    /// How the disk was filled, in words.
    pub disk: &'static str,
}

/// Runs load and faults, then waits without faults until the queue is empty, then checks the
/// history. Calls `told` with the history so far after each fault.
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
        history.note(format_args!("VERDICT {violation}"));
    }
    history.flush();
    Ok(Ran { verdict, disk: how })
}

/// The results that are not in the history.
struct Left {
    /// The deliveries that were given up, before all of them were redelivered.
    given_up: Vec<GivenUp>,
    /// The webhooks' ids, in the order of [`cast::HOOKS`].
    webhooks: Vec<String>,
}

/// Sets the flag on drop, also in a panic: other threads run until it is set.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs load and faults, then waits without faults until the queue is empty.
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
    receivers.set_secrets(secrets);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let over_at_last = SetOnDrop(&over);
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
        // Retries that were scheduled while the clock was ahead are due at that time, once the
        // restarted process has read them from disk.
        clock.set(AHEAD_SECONDS);
        victim.clock_was_set(AHEAD_SECONDS);
        victim.stop_in_order();
        victim.start();
    }
    if !owner.drain(DRAIN_MAX) {
        history.violation(format!("deliveries are outstanding after {DRAIN_MAX:?} without faults"));
    }
    let given_up = owner.given_up();
    owner.redeliver_all();
    if !owner.drain(DRAIN_MAX) {
        history.violation(format!("redelivered deliveries are outstanding after {DRAIN_MAX:?}"));
    }
    Left { given_up, webhooks: owner.webhooks }
}

/// The folder in `root` for runs of this part.
pub fn folder_of(root: &Path, part: Part) -> PathBuf {
    root.join(part.name())
}
