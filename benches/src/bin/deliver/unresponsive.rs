//! Measures the effect of unresponsive endpoints on healthy ones: the latency of events to healthy
//! endpoints in three turns, with no other load, with other healthy endpoints, and with
//! unresponsive ones.
//!
//! The measured endpoints get the same rate in every turn: their share of `--rate`; the others get
//! the rest. Each turn has a new dispatcher and database, because indexes grow from turn to turn.

use weir_benches::dispatched::Dispatcher;
use weir_benches::lab::Folder;
use weir_benches::post::{Aim, Answered, steadily};
use weir_benches::report::{Series, sorted, table};
use weir_benches::unresponsive::{Kind, Unresponsive};
use weir_common::time::{Tick, micros};

use super::{Lab, PATIENCE, latency, record, urls};

/// Seconds added to the deadline of an attempt, until the first ones have certainly timed out.
const BEYOND: u64 = 1;

/// The other endpoints of a turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nothing,
    Healthy,
    Unresponsive,
}

const TURNS: [Beside; 3] = [Beside::Nothing, Beside::Healthy, Beside::Unresponsive];

/// The measurements of a program in one kind of turn, one value per round.
#[derive(Clone, Default)]
struct Shown {
    /// Latencies of events until the first attempts to unresponsive endpoints have timed out.
    first: [Series; 3],
    /// Latencies of later events.
    then: [Series; 3],
    /// Response times of later posts.
    answers: [Series; 3],
}

/// The parameters of one measurement.
struct Case<'a> {
    deadline: &'a str,
    /// The percentage of endpoints that are not measured: unresponsive, other healthy, or unused.
    share: u64,
    endpoints: &'a Unresponsive,
}

impl Lab {
    /// Measures the three turns for each share and deadline.
    pub(super) fn unresponsive(&self) {
        let kinds: Vec<Kind> = self.plan.kinds.split(',').map(Kind::of_name).collect();
        let endpoints = Unresponsive::open(&kinds, &self.clock);
        let mut rows = Vec::new();
        for deadline in self.plan.deadlines.split(',') {
            for share in self.plan.shares.split(',') {
                let share = share.parse().unwrap_or_default();
                rows.extend(self.case(&Case { deadline, share, endpoints: &endpoints }));
            }
        }
        let title = format!(
            "The healthy with unresponsive endpoints, at {} a second",
            self.plan.rate_beside()
        );
        let head = [
            "",
            "p50 ms",
            "p99 ms",
            "max ms",
            "p99 × alone",
            "p99 × with healthy",
            "202 p99 ms",
            "at first: p99 ms",
            "max ms",
        ];
        println!("{}", table(&title, &head, &rows));
    }

    fn case(&self, case: &Case<'_>) -> Vec<Vec<String>> {
        let programs = self.plan.programs();
        let mut shown =
            vec![[const { None::<Shown> }; 3].map(|_| Shown::default()); programs.len()];
        for round in 0..self.plan.rounds {
            // Each round starts with another turn, so a disturbance does not always hit the same.
            for nth in 0..TURNS.len() {
                let at = (round + nth) % TURNS.len();
                let Some(beside) = TURNS.get(at) else { continue };
                for ((_, program), shown) in programs.iter().zip(&mut shown) {
                    let folder = Folder::new("unresponsive");
                    let mut dispatcher = self.start(&folder, program, case.deadline);
                    let Some(shown) = shown.get_mut(at) else { continue };
                    self.turn(&mut dispatcher, case, *beside, shown);
                }
            }
            let Case { deadline, share, .. } = case;
            eprintln!(
                "unresponsive, {deadline}, {share} %: round {} of {}",
                round + 1,
                self.plan.rounds
            );
        }
        let named = programs.iter().zip(&shown);
        named.flat_map(|((name, _), shown)| rows(name, case, shown)).collect()
    }

    fn turn(
        &self,
        dispatcher: &mut Dispatcher,
        case: &Case<'_>,
        beside: Beside,
        shown: &mut Shown,
    ) {
        let plan = &self.plan;
        let others = plan.endpoints * case.share as usize / 100;
        self.warm(dispatcher, plan.endpoints - others);
        let healthy = dispatcher.one_each("h");
        let mut rate = plan.rate_beside() * (100 - case.share) / 100;
        let aim = match beside {
            Beside::Nothing => healthy,
            Beside::Healthy => {
                dispatcher.register("x", &urls(&self.arrivals.addresses, "x", others));
                let known = self.arrivals.background() + others as u64;
                self.call_each(dispatcher, "x");
                self.arrivals.wait_for_background(known, PATIENCE);
                self.settle(dispatcher);
                mixed(&healthy, &dispatcher.one_each("x"))
            }
            Beside::Unresponsive => {
                dispatcher.register("b", &urls(&case.endpoints.addresses, "b", others));
                mixed(&healthy, &dispatcher.one_each("b"))
            }
        };
        if beside != Beside::Nothing {
            rate = plan.rate_beside();
        }
        let deadline = case.deadline.trim_end_matches('s').parse().unwrap_or(10);
        let first = deadline + BEYOND;
        let to_healthy = plan.rate_beside() * (100 - case.share) / 100 * (first + plan.seconds);
        let load = self.load(rate * (first + plan.seconds), 1);
        let (before, began) = (self.arrivals.count(), self.clock.now().tick);
        let answers = steadily(&aim, load, rate, &self.clock);
        // A partial pass over the mixed list may have fewer healthy endpoints than their share.
        let apart = aim.kinds.len() as u64 / 100 + 1;
        self.arrivals.wait_for(before + to_healthy.saturating_sub(apart), PATIENCE);
        self.show(shown, &answers, Tick(began.0 + first * 1_000_000));
    }

    fn show(&self, shown: &mut Shown, answers: &[Answered], then: Tick) {
        let arrived = self.arrivals.drain();
        let (first, rest): (Vec<_>, Vec<_>) = arrived.iter().partition(|(due, _)| *due < then);
        let took = |(due, arrived): &(Tick, Tick)| micros(arrived.since(*due));
        record(&mut shown.first, &sorted(first.iter().map(took)));
        record(&mut shown.then, &sorted(rest.iter().map(took)));
        let answers = answers.iter().filter(|one| one.due >= then);
        record(&mut shown.answers, &sorted(answers.map(|one| micros(one.at.since(one.due)))));
    }
}

fn rows(program: &str, case: &Case<'_>, shown: &[Shown; 3]) -> Vec<Vec<String>> {
    let [alone, healthy, unresponsive] = shown;
    let p99 = |shown: &Shown| {
        let [_, p99, _] = &shown.then;
        p99.clone()
    };
    let row = |what: &str, shown: &Shown| {
        let Case { deadline, share, .. } = case;
        let name = format!("{program}deadline {deadline}, {share} %, {what}");
        let mut row = latency(&name, &shown.then);
        for other in [alone, healthy] {
            row.push(format!("{:.2}", p99(shown).ratio_to(&p99(other))));
        }
        let [_, answers, _] = &shown.answers;
        let [_, first_p99, first_max] = &shown.first;
        row.extend([answers, first_p99, first_max].map(|series| series.range(1)));
        row
    };
    vec![row("alone", alone), row("with healthy", healthy), row("with unresponsive", unresponsive)]
}

/// The kinds of both, evenly interleaved in proportion to their numbers.
fn mixed(healthy: &Aim, others: &Aim) -> Aim {
    let (most, few) = (healthy.kinds.len(), others.kinds.len());
    let all = most + few;
    let (mut healthy_ones, mut other_ones) = (healthy.kinds.iter(), others.kinds.iter());
    let kinds = (0..all).filter_map(|nth| {
        let other = (nth + 1) * few / all > nth * few / all;
        if other { other_ones.next() } else { healthy_ones.next() }
    });
    Aim { kinds: kinds.cloned().collect(), ..healthy.clone() }
}
