//! Seeded runs, one after the other.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use tokio::runtime::Builder;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep};
use weir_tests::rng::SeededRng;

use super::faults;
use super::fleet::{Clocks, Fleet};
use super::history::{Broken, Outcome};
use super::network::Network;
use super::plan::{Plan, SITUATIONS, Situation};
use super::scripts::Mutant;

/// November 2026, in microseconds since 1970.
const START: u64 = 1_795_000_000_000_000;

/// How many runs `./test` makes; `WEIR_RUNS` makes others.
const RUNS: u64 = 300;

/// Runs within which each mutant of the script must be found.
const MUTANT_RUNS: u64 = 400;

/// What one run was.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    situation: Situation,
    admitted: usize,
    refused: usize,
    unavailable: usize,
    digest: u64,
    broken: Option<Broken>,
}

/// Executes the run of a seed.
fn run(seed: u64, mutant: Option<Mutant>) -> Ran {
    let mut rng = SeededRng::new(seed);
    let situation = SITUATIONS[(seed % SITUATIONS.len() as u64) as usize];
    let plan = Plan::new(situation, &mut rng);
    let (clocks, epoch) = (Clocks::default(), Arc::new(OnceLock::new()));
    let runtime = Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .on_thread_unpark(following(clocks.clone(), epoch.clone()))
        .build()
        .unwrap();
    LocalSet::new().block_on(&runtime, async {
        epoch.set(Instant::now()).unwrap();
        let network = Network::start(rng, START, plan.delay, mutant);
        let fleet = Fleet::new(plan, network.clone(), clocks, seed);
        for place in 0..fleet.plan.gateways {
            fleet.start(place);
        }
        let failing = tokio::task::spawn_local(faults::run(fleet.clone()));
        sleep(fleet.plan.lasts).await;
        failing.abort();
        (0..fleet.plan.gateways).for_each(|place| fleet.kill(place));
        let history = fleet.history.borrow();
        let count = |outcome| history.sent.iter().filter(|one| one.outcome == outcome).count();
        Ran {
            situation,
            admitted: count(Outcome::Admitted),
            refused: count(Outcome::Refused),
            unavailable: count(Outcome::Unavailable),
            digest: network.digest.get(),
            broken: {
                if number("WEIR_SEED").is_some() {
                    println!("{:?}", fleet.plan);
                    for one in &history.sent {
                        if one.outcome == Outcome::Admitted {
                            println!("{one:?}");
                        }
                    }
                    println!("{:?} {:?} {:?}", history.losses, history.killed, history.steps);
                }
                fleet.plan.check(&history).err()
            },
        }
    })
}

/// Lets all clocks go on with the runtime's, before anything runs at a new time.
fn following(clocks: Clocks, epoch: Arc<OnceLock<Instant>>) -> impl Fn() + Send + Sync + 'static {
    let known = Mutex::new(Duration::ZERO);
    move || {
        let Some(epoch) = epoch.get() else { return };
        let mut known = known.lock().unwrap();
        let now = epoch.elapsed();
        let passed = now - *known;
        *known = now;
        for clock in &*clocks.lock().unwrap() {
            clock.advance(passed);
        }
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn hundreds_of_seeded_runs_break_no_promise() {
    let base = number("WEIR_BASE").unwrap_or(1);
    let seeds = match number("WEIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => base..base + number("WEIR_RUNS").unwrap_or(RUNS),
    };
    let mut totals: BTreeMap<Situation, [usize; 4]> = BTreeMap::new();
    let mut broken = Vec::new();
    for seed in seeds {
        let ran = run(seed, None);
        let total = totals.entry(ran.situation).or_default();
        let one = [1, ran.admitted, ran.refused, ran.unavailable];
        total.iter_mut().zip(one).for_each(|(sum, one)| *sum += one);
        if let Some(why) = ran.broken {
            broken.push(format!("seed {seed}, {:?}: {why}", ran.situation));
        }
    }
    for (situation, [runs, admitted, refused, unavailable]) in &totals {
        println!(
            "{situation:?}: {runs} runs, {admitted} admitted, {refused} refused, {unavailable} unavailable"
        );
        assert!(*admitted > 0, "{situation:?} admits nothing");
    }
    assert!(broken.is_empty(), "{} runs\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    let differ: Vec<u64> = (1..=20).filter(|seed| run(*seed, None) != run(*seed, None)).collect();
    assert!(differ.is_empty(), "{differ:?}");
}
