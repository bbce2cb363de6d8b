//! Seeded runs: one after another on a few threads, or a single one again.

use std::any::Any;
use std::fmt;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weir_common::time::{Clock, Tick};
use weir_tests::rng::SeededRng;

use crate::model::Trace;
use crate::model::counts::Counts;
use crate::orders::OPERATOR_URL;
use crate::scenarios::settings::{config, window};
use crate::scenarios::{Life, Tempo};
use crate::world::{START, World};

/// Runs at a time: as many as the smallest machine has cores.
const THREADS: usize = 2;

/// The totals of runs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    runs: u64,
    lived: Duration,
    counts: Counts,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.lived.as_secs() / 86_400;
        write!(f, "{} runs, {days} virtual days, {}", self.runs, self.counts)
    }
}

/// Executes one run again; prints its last steps if it breaks a promise, or with `each` all of
/// them as they happen. The error is the broken promise.
pub fn again(seed: u64, each: bool) -> Result<Figures, String> {
    let trace = if each { Trace::Each } else { Trace::Last };
    catch_unwind(AssertUnwindSafe(|| live(seed, trace, &|| false))).map_err(|why| said(&*why))
}

/// Executes runs from the seed `base` on, for `within`. The error is the broken promise, the seed,
/// and how to repeat the run.
pub fn many(base: u64, within: Duration) -> Result<Figures, String> {
    let clock = Clock::system();
    let until = clock.now().tick.plus(within);
    let (next, all) = (AtomicU64::new(base), Mutex::new(Figures::default()));
    let broken: Mutex<Option<(u64, String)>> = Mutex::default();
    let over = || clock.now().tick >= until;
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while !over() && broken.lock().unwrap().is_none() {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    match catch_unwind(AssertUnwindSafe(|| live(seed, Trace::Nothing, &over))) {
                        Ok(one) => {
                            let mut all = all.lock().unwrap();
                            all.runs += 1;
                            all.lived += one.lived;
                            all.counts += one.counts;
                        }
                        Err(why) => *broken.lock().unwrap() = Some((seed, said(&*why))),
                    }
                }
            });
        }
    });
    match broken.into_inner().unwrap() {
        None => Ok(all.into_inner().unwrap()),
        Some((seed, why)) => Err(format!(
            "run {}, seed {seed}: {why}\nrepeat: WEIR_SEED={seed} cargo run -p weir-simulation",
            seed - base + 1
        )),
    }
}

fn said(why: &(dyn Any + Send)) -> String {
    let text = why.downcast_ref::<String>().map(String::as_str);
    text.or(why.downcast_ref::<&str>().copied()).unwrap_or("a panic without a message").to_owned()
}

/// A temporary folder, in memory if there is such a file system.
struct Place(PathBuf);

impl Place {
    fn new(seed: u64) -> Self {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let path = parent.join(format!("weir-run-{}-{seed}", std::process::id()));
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

/// One run, to its end or until `over`.
fn live(seed: u64, trace: Trace, over: &dyn Fn() -> bool) -> Figures {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_time().start_paused(true).build().unwrap();
    let place = Place::new(seed);
    let mut rng = SeededRng::new(seed);
    let tempo = Tempo::of(&mut rng);
    let window = window(&mut rng);
    let config = config(&mut rng, window);
    let hosts = 1 + rng.below(4);
    let url = |n: u64| format!("https://r{}.example/in/linnet/{n}", n % hosts);
    let own = std::iter::once(OPERATOR_URL.to_owned());
    let urls = (0..1 + rng.below(4)).map(url).chain(own).collect();
    let mut world = World::new(place.0.clone(), &config, urls, rng, trace);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            world.start().await;
            let mut life = Life::new(tempo, world.now().tick, &mut world.rng);
            let end = world.now().tick.plus(tempo.horizon);
            while world.now().tick < end {
                if over() {
                    return;
                }
                life.run_due(&mut world).await;
                world.settle().await;
                world.go_on(life.next(&world).min(end)).await;
            }
            life.end_well(&mut world, over).await;
        });
    }));
    if let Err(why) = outcome {
        for note in world.model.notes.iter().flatten() {
            println!("{note}");
        }
        std::panic::resume_unwind(why);
    }
    Figures { runs: 1, lived: world.now().tick.since(Tick(START.0)), counts: world.model.counts }
}
