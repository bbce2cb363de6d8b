//! Seeded runs, one after the other.

use std::collections::BTreeMap;

use tokio::time::sleep;
use weir_gateway::limit::shared::call::SCRIPT;
use weir_tests::admissions::Outcome;
use weir_tests::rng::SeededRng;

use super::faults;
use super::fleet::Fleet;
use super::network::Network;
use super::plan::Situation::{FailedOver, Flushed, InTime, Restarted, Unanswered, Unreachable};
use super::plan::{Plan, SITUATIONS, Situation};
use super::scripts::Mutant::{self, Repeats, Script};
use super::virtual_time::{self, Clocks};

/// November 2026, in microseconds since 1970.
pub(crate) const START: u64 = 1_795_000_000_000_000;

/// How many runs `./test` makes; `WEIR_RUNS` makes others.
const RUNS: u64 = 120;

/// Runs within which each fault that is planted must be found.
const MUTANT_RUNS: usize = 400;

/// What one run was.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    situation: Situation,
    admitted: usize,
    refused: usize,
    unavailable: usize,
    digest: u64,
    broken: Option<String>,
}

/// Executes the run of a seed.
fn run(seed: u64, mutant: Option<Mutant>) -> Ran {
    let mut rng = SeededRng::new(seed);
    let situation = situation_of(seed);
    let plan = Plan::new(situation, &mut rng);
    let clocks = Clocks::default();
    virtual_time::run(&clocks.clone(), async {
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
        if number("WEIR_TRACE").is_some() {
            println!("{:?}", fleet.plan);
            history.sent.iter().for_each(|one| println!("{one:?}"));
        }
        let count = |outcome| history.sent.iter().filter(|one| one.outcome == outcome).count();
        Ran {
            situation,
            admitted: count(Outcome::Admitted),
            refused: count(Outcome::Refused),
            unavailable: count(Outcome::Unavailable),
            digest: network.digest.get(),
            broken: fleet.plan.check(&history).err(),
        }
    })
}

/// Faults that are planted: what each is, the situations that show it, and where it is.
const MUTANTS: [(&str, &[Situation], Mutant); 9] = [
    ("no witness", &[Flushed, Restarted], Script("forgot, outcome = 1, 2", "forgot = 0")),
    (
        "leased tokens refill",
        &[InTime, Unreachable],
        Script("      if whole < leased then\n", "      if whole < 0 then\n"),
    ),
    (
        "leased tokens are not debited",
        &[InTime, Unreachable],
        Script("whole, counted, leased = whole + granted,", "whole, counted, leased = whole,"),
    ),
    (
        "refusals last too long",
        &[InTime],
        Script("% 2^32 * unit + span\n", "% 2^32 * unit + span * 1.5\n"),
    ),
    (
        "a part of a refused request is charged",
        &[InTime],
        Script("  if outcome > 0 or decision", "  if decision"),
    ),
    (
        "what is told again counts twice",
        &[Flushed, Restarted, FailedOver],
        Script("whole = max(count, added[stamp])", "whole = count + added[stamp]"),
    ),
    (
        "slots of others are free",
        &[InTime],
        Script("retry_at = requests - others,", "retry_at = requests,"),
    ),
    (
        "late calls charge",
        &[Unanswered],
        Script("if not_after > 0 and time > not_after then", "if false then"),
    ),
    ("calls without a reply are repeated", &[Unanswered], Repeats),
];

/// The situation of a seed's run.
fn situation_of(seed: u64) -> Situation {
    SITUATIONS[(seed % SITUATIONS.len() as u64) as usize]
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn seeded_runs_break_no_promise() {
    let base = number("WEIR_BASE").unwrap_or(1);
    let seeds = match number("WEIR_SEED") {
        Some(seed) => seed..seed + 1,
        None => base..base + number("WEIR_RUNS").unwrap_or(RUNS),
    };
    let only = std::env::var_os("WEIR_SITUATION");
    let wanted = |seed: &u64| {
        only.as_ref().is_none_or(|name| *name == *format!("{:?}", situation_of(*seed)))
    };
    let mut totals: BTreeMap<Situation, [usize; 4]> = BTreeMap::new();
    let mut broken = Vec::new();
    for seed in seeds.filter(wanted) {
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
            "{situation:?}: {runs} runs, {admitted} admitted, {refused} refused, \
             {unavailable} unavailable"
        );
        assert!(*admitted > 0, "{situation:?} admits nothing");
    }
    assert!(!totals.is_empty(), "no run has the situation {only:?}");
    assert!(broken.is_empty(), "{} runs\n{}", broken.len(), broken.join("\n"));
}

#[test]
fn each_fault_that_is_planted_is_found() {
    let mut missed: Vec<&str> = Vec::new();
    for (name, situations, mutant) in MUTANTS {
        if let Script(text, _) = mutant {
            assert_eq!(SCRIPT.matches(text).count(), 1, "{name}");
        }
        let seeds = (1..).filter(|seed| situations.contains(&situation_of(*seed)));
        let found = seeds.take(MUTANT_RUNS).enumerate().find_map(|(nth, seed)| {
            let why = run(seed, Some(mutant)).broken?;
            Some(format!("run {}, seed {seed}, {:?}: {why}", nth + 1, situation_of(seed)))
        });
        println!("{name}: {}", found.as_deref().unwrap_or("not found"));
        if found.is_none() {
            missed.push(name);
        }
    }
    assert!(missed.is_empty(), "{missed:?}");
}

#[test]
fn a_seed_gives_the_same_run_twice() {
    let differ: Vec<u64> = (1..=20).filter(|seed| run(*seed, None) != run(*seed, None)).collect();
    assert!(differ.is_empty(), "{differ:?}");
}
