//! The whole of the dispatcher's own work in worlds made by dice, years of it in seconds.
//!
//! What runs is what ships: the worker's turns, endpoints, schedule, health, records, the SQLite
//! store with its statements and batches, the deadline of an attempt. What is left out is what has
//! no decision in it: sockets, the store's thread, the loop that waits. The clock is turned by
//! hand, receivers are made up, and everything happens on one thread, so that a seed tells a whole
//! story and tells it again:
//!
//! ```text
//! WEIR_SEED=… cargo test -p weir-dispatcher simulation -- --nocapture
//! ```
//!
//! It stands here and not among the end-to-end tests, so that the worker's parts can stay private:
//! a child sees what its parent sees.
//!
//! `world` lets time pass, `life` says what befalls it, `stories` what follows from what, `plots`
//! does it in time; `receivers` answer over the `wire`; `process` is the one that is looked at, and
//! `orders` what is asked of it. `books` keeps what was promised: `gate` judges each start,
//! `replies` each answer, `turns` whose start it is, `ledger` what is on disk, `upkeep` what jobs
//! and sweeps leave there, `pages` what customers read of it, `posts` the mails, `judge` each
//! moment of rest.

mod books;
mod dice;
mod disk;
mod gate;
mod judge;
mod ledger;
mod life;
mod orders;
mod pages;
mod places;
mod plots;
mod posts;
mod process;
mod receivers;
mod record;
mod replies;
mod stories;
mod turns;
mod upkeep;
mod wire;
mod world;

use std::env::var_os;
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_common::time::Clock;

use crate::worker::simulation::books::Tally;
use crate::worker::simulation::dice::Dice;
use crate::worker::simulation::life::{Life, Tempo};
use crate::worker::simulation::world::{START, World};

/// For so long worlds are made, unless `WEIR_SECONDS` says otherwise.
const SECONDS: u64 = 15;

/// Worlds at a time: as many as the smallest machine has cores.
const THREADS: usize = 2;

/// What came of a world.
struct Told {
    tally: Tally,
    virtual_time: Duration,
}

fn number(name: &str) -> Option<u64> {
    var_os(name)?.to_str()?.parse().ok()
}

#[test]
fn worlds_made_by_dice_break_no_promise() {
    if let Some(seed) = number("WEIR_SEED") {
        let told = lived(seed, &|| false);
        println!("seed {seed}: {:?} over {:?}", told.tally, told.virtual_time);
        return;
    }
    let clock = Clock::system();
    let until =
        clock.now().tick.plus(Duration::from_secs(number("WEIR_SECONDS").unwrap_or(SECONDS)));
    let base = number("WEIR_BASE").unwrap_or(clock.now().unix.0 % 1_000_000_007);
    let (next, all) = (AtomicU64::new(base), Mutex::new(Vec::new()));
    let broken: Mutex<Option<(u64, String)>> = Mutex::default();
    let over = || clock.now().tick >= until;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over() && broken.lock().unwrap().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match catch_unwind(AssertUnwindSafe(|| lived(seed, &over))) {
                        Ok(told) => all.lock().unwrap().push(told),
                        Err(why) => *broken.lock().unwrap() = Some((seed, said(&*why))),
                    }
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    let days = all.iter().map(|told| told.virtual_time.as_secs()).sum::<u64>() / 86_400;
    let of = |what: fn(&Tally) -> u64| all.iter().map(|told| what(&told.tally)).sum::<u64>();
    // Past the harness's capture: figures of a run that went well are worth a line, too.
    let _ = writeln!(
        std::io::stderr(),
        "simulation: {} worlds from seed {base}, {days} virtual days, {} steps, {} events, \
         {} attempts, {} delivered, {} given up, {} twice, {} crashes, {} stops, {} stalls, \
         {} reloads, {} pauses, {} reactivations, {} warnings, {} mails, {} pages, {} commits",
        all.len(),
        of(|tally| tally.steps),
        of(|tally| tally.events),
        of(|tally| tally.starts),
        of(|tally| tally.delivered),
        of(|tally| tally.failed),
        of(|tally| tally.duplicates),
        of(|tally| tally.crashes),
        of(|tally| tally.stops),
        of(|tally| tally.stalls),
        of(|tally| tally.reloads),
        of(|tally| tally.pauses),
        of(|tally| tally.reactivations),
        of(|tally| tally.warnings),
        of(|tally| tally.mails),
        of(|tally| tally.pages),
        of(|tally| tally.commits),
    );
    if let Some((seed, why)) = broken.into_inner().unwrap() {
        let again = format!("WEIR_SEED={seed} cargo test -p weir-dispatcher simulation");
        panic!("world {}, seed {seed}: {why}\nagain: {again} -- --nocapture", seed - base + 1);
    }
}

fn said(why: &(dyn std::any::Any + Send)) -> String {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or(why.downcast_ref::<&str>().copied()).unwrap_or("it broke").to_owned()
}

/// A folder in memory where there is one: nothing here is kept.
struct Place(PathBuf);

impl Place {
    fn new(seed: u64) -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("weir-world-{}-{seed}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One world from its beginning to its end, or until time is over.
fn lived(seed: u64, over: &dyn Fn() -> bool) -> Told {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
    let place = Place::new(seed);
    let mut dice = Dice::new(seed);
    let tempo = Tempo::of(&mut dice);
    let config = config(&mut dice);
    let urls = (0..1 + dice.roll(4)).map(|n| format!("https://r{n}.example/in/linnet")).collect();
    let mut world = World::new(place.0.clone(), &config, urls, dice);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            world.start().await;
            let mut life = Life::new(tempo, world.now().tick, &mut world.dice);
            let end = world.now().tick.plus(tempo.horizon);
            while world.now().tick < end {
                if over() {
                    return;
                }
                life.befall(&mut world).await;
                world.settle().await;
                world.go_on(life.next(&world).min(end)).await;
            }
            life.end_well(&mut world, over).await;
        });
    }));
    if let Err(why) = outcome {
        for note in world.books.notes.iter().flatten() {
            println!("{note}");
        }
        std::panic::resume_unwind(why);
    }
    Told {
        tally: world.tally(),
        virtual_time: world.now().tick.since(weir_common::time::Tick(START.0)),
    }
}

/// The contract's settings, or nearly: what a pace, a cap or a patience of another size shows.
fn config(dice: &mut Dice) -> String {
    let requests: u32 = *dice.pick(&[100, 100, 20, 20, 6]).unwrap();
    let total = *dice.pick(&[4_096, 40, 20]).unwrap();
    let pause_after = dice.pick(&["24h", "24h", "3h", "20m"]).unwrap();
    let deadline = *dice.pick(&[10, 10, 4, 15]).unwrap();
    let mode = dice.pick(&["delay", "delay", "delay", "offset"]).unwrap();
    // One endpoint that does not answer may not hold them all.
    let total = total.max((requests * deadline).div_ceil(60) + 3);
    format!(
        "[auth]\ntokens = \"t\"\n[directory]\nsource = \"file\"\npath = \"d\"\n\
         [egress]\nrequests = {requests}\nin_flight_max = {total}\n\
         deadline = \"{deadline}s\"\n\
         [retry]\nmode = \"{mode}\"\n\
         [health]\npause_after = \"{pause_after}\"\n\
         [mail]\nsmtp = \"smtp://127.0.0.1\"\nfrom = \"weir@example.com\"\n"
    )
}
