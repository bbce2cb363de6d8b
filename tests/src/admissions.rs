//! What clients of several gateways were answered, and the model that checks it in both directions.
//!
//! A request was charged between the moment it was sent and that of its answer, if it was. What is
//! counted here is what must have been so at any moment in between.
//!
//! Not here: the runs, in virtual time (`gateways`) and on a real server (`it/shared/replay`), nor
//! what may be admitted beyond a limit when.

use std::collections::BTreeMap;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The upstream gets it.
    Admitted,
    /// 429: a limit refuses it.
    Refused,
    /// 503: the store is away, or has not answered in time.
    Unavailable,
    /// None: its gateway was killed, or the run is over.
    Nothing,
}

/// One request. Times are microseconds.
#[derive(Clone, Debug)]
pub struct Sent {
    /// The place of its gateway.
    pub gateway: usize,
    /// The gateways that were started before its own in its place: together they name one process.
    pub process: usize,
    /// The limits that were checked.
    pub limits: Vec<usize>,
    /// Those that refused it.
    pub refused_by: Vec<usize>,
    /// What it costs.
    pub cost: u32,
    /// How it ended.
    pub outcome: Outcome,
    /// When it was sent.
    pub sent: u64,
    /// When it was answered, or can have been charged at the latest.
    pub answered: u64,
    /// When it was in flight no more.
    pub ended: u64,
}

/// The store lost what it had.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    /// What was charged from then on may be lost.
    pub since: u64,
    /// When it was lost: not before,
    pub began: u64,
    /// and not after.
    pub at: u64,
    /// For how long after that another gateway may not have told what it was given.
    pub untold: u64,
    /// A gateway that was killed before is no witness.
    pub survivable: u64,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Admissions {
    /// All requests, by their numbers.
    pub sent: Vec<Sent>,
    /// What the store lost.
    pub losses: Vec<Loss>,
    /// When which process was killed or ended.
    pub killed: Vec<(usize, usize, u64)>,
    /// When the clock of the server was set, and by how much.
    pub steps: Vec<(u64, i64)>,
}

impl Admissions {
    /// The same by the clock of the server.
    pub fn by_server(&self) -> Self {
        let by_server = |at: u64| {
            let steps = self.steps.iter().filter(|(from, _)| *from <= at);
            at.saturating_add_signed(steps.map(|(_, by)| by).sum())
        };
        let mut own = self.clone();
        for one in &mut own.sent {
            (one.sent, one.answered) = (by_server(one.sent), by_server(one.answered));
        }
        own
    }

    /// Checks the answers against when the upstream saw which requests: what was admitted once, and
    /// nothing else. What was not answered was admitted where the upstream saw it.
    pub fn match_seen(&mut self, seen: &BTreeMap<usize, Vec<u64>>) -> Result<(), String> {
        for (number, one) in self.sent.iter_mut().enumerate() {
            let seen = seen.get(&number).map_or(&[][..], Vec::as_slice);
            match (one.outcome, seen) {
                (Outcome::Admitted | Outcome::Nothing, [at]) => {
                    one.outcome = Outcome::Admitted;
                    one.answered = one.answered.min(*at);
                }
                (Outcome::Refused | Outcome::Unavailable | Outcome::Nothing, []) => {}
                (outcome, seen) => {
                    let times = seen.len();
                    return Err(format!("{outcome:?}, and at the upstream {times} times: {one:?}"));
                }
            }
        }
        Ok(())
    }

    fn admitted(&self, limit: usize) -> Vec<&Sent> {
        let was = |one: &&Sent| one.outcome == Outcome::Admitted && one.limits.contains(&limit);
        let mut all: Vec<&Sent> = self.sent.iter().filter(was).collect();
        all.sort_by_key(|one| one.sent);
        all
    }

    /// Checks that no window admitted more than `most`.
    pub fn check_windows(&self, limit: usize, window: u64, most: u64) -> Result<(), String> {
        let admitted = self.admitted(limit);
        for (nth, first) in admitted.iter().enumerate() {
            let end = first.sent + window;
            let near = admitted[nth..].iter().take_while(|one| one.sent < end);
            let within = |one: &&&Sent| one.answered < end;
            let sum: u64 = near.filter(within).map(|one| cost(one)).sum();
            if sum > most {
                return Err(format!(
                    "over: limit {limit} admitted {sum} of {most} from {} on within {window} us",
                    first.sent
                ));
            }
        }
        Ok(())
    }

    /// Checks that a bucket never admitted more than its burst and what came back.
    pub fn check_bucket(
        &self,
        limit: usize,
        (burst, per_second): (u32, f64),
    ) -> Result<(), String> {
        let admitted = self.admitted(limit);
        let mut by_end = admitted.clone();
        by_end.sort_by_key(|one| one.answered);
        for first in &admitted {
            let mut sum = 0;
            for one in by_end.iter().filter(|one| one.sent >= first.sent) {
                sum += cost(one);
                let lasted = (one.answered - first.sent) as f64 / 1e6;
                let most = f64::from(burst) + per_second * lasted + 1.0;
                if sum as f64 > most {
                    return Err(format!(
                        "over: bucket {limit} admitted {sum}, and at most {most:.1}, from {} to {}",
                        first.sent, one.answered
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that at no moment more than `most` requests were in flight.
    pub fn check_in_flight(&self, limit: usize, most: u64) -> Result<(), String> {
        let admitted = self.admitted(limit);
        for one in &admitted {
            let at = one.answered;
            let is_in_flight = |other: &&&Sent| other.answered <= at && other.ended > at;
            let sum: u64 = admitted.iter().filter(is_in_flight).map(|one| cost(one)).sum();
            if sum > most {
                return Err(format!("over: limit {limit} had {sum} of {most} in flight at {at}"));
            }
        }
        Ok(())
    }

    /// Checks each admission against what its gateway and the store must have known: all that was
    /// admitted before, but for what a loss excuses.
    pub fn check_told(&self, limit: usize, window: u64, most: u64) -> Result<(), String> {
        let admitted = self.admitted(limit);
        for one in &admitted {
            let counts = |other: &&&Sent| {
                other.answered <= one.sent
                    && other.sent + window > one.answered
                    && !std::ptr::eq(**other, *one)
                    && !self.losses.iter().any(|loss| self.excuses(loss, other, one))
            };
            let sum: u64 = admitted.iter().filter(counts).map(|one| cost(one)).sum();
            if sum + cost(one) > most {
                return Err(format!(
                    "over: limit {limit} admitted a request at {} on top of {sum} of {most}",
                    one.sent
                ));
            }
        }
        Ok(())
    }

    /// Whether a loss excuses that `earlier` was not counted for `later`.
    fn excuses(&self, loss: &Loss, earlier: &Sent, later: &Sent) -> bool {
        let is_lost = earlier.sent <= loss.at && earlier.answered >= loss.since;
        let process = |one: &Sent| (one.gateway, one.process);
        let is_dead = self.killed.iter().any(|(gateway, nth, at)| {
            (*gateway, *nth) == process(earlier) && *at <= loss.survivable
        });
        let is_untold = later.sent < loss.at + loss.untold && process(earlier) != process(later);
        is_lost && later.answered >= loss.began && (is_dead || is_untold)
    }

    /// Checks that no request was refused that fits, whatever became of calls without an answer.
    /// Each charge may count so often.
    pub fn check_refused(
        &self,
        limit: usize,
        window: u64,
        (most, times): (u64, u64),
    ) -> Result<(), String> {
        let is_checked = |one: &&Sent| one.limits.contains(&limit);
        let all: Vec<&Sent> = self.sent.iter().filter(is_checked).collect();
        for one in all.iter().filter(|one| one.refused_by.contains(&limit)) {
            let counts = |other: &&&Sent| {
                other.outcome != Outcome::Refused
                    && other.sent <= one.answered
                    && other.answered + window + 1_000 > one.sent
            };
            let sum: u64 = all.iter().filter(counts).map(|one| cost(one) * times).sum();
            if sum + cost(one) <= most {
                return Err(format!(
                    "refused although it fits: limit {limit} refused {} at {} on top of {sum} of \
                     {most}",
                    one.cost, one.sent
                ));
            }
        }
        Ok(())
    }
}

fn cost(one: &Sent) -> u64 {
    one.cost.into()
}
