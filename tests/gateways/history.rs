//! What clients were answered in one run, and the model that checks it in both directions.
//!
//! A request was charged between the moment it was sent and that of its answer, if it was. What is
//! counted here is what must have been so at any moment in between.
//!
//! Not here: what may be admitted beyond a limit when (`plan`).

use weir_common::time::micros;
use weir_gateway::limit::Quota;

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    Refused,
    /// 503: the store is away, or has not answered in time.
    Unavailable,
    /// None: its gateway was killed, or the run is over.
    Nothing,
}

/// One request. Times are microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Sent {
    pub(crate) gateway: usize,
    /// The gateways that were started before its own in its place: together they name one process.
    pub(crate) process: usize,
    /// The limits that were checked, and those that refused it.
    pub(crate) limits: Vec<usize>,
    pub(crate) refused_by: Vec<usize>,
    pub(crate) cost: u32,
    pub(crate) outcome: Outcome,
    pub(crate) sent: u64,
    /// When it was answered, or can have been charged at the latest.
    pub(crate) answered: u64,
    /// When it was in flight no more.
    pub(crate) ended: u64,
}

/// The store lost what it had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loss {
    /// What was charged from then on may be lost.
    pub(crate) since: u64,
    /// When it was lost.
    pub(crate) at: u64,
    /// For how long after that another gateway may not have told what it was given.
    pub(crate) untold: u64,
    /// A gateway that was killed before is no witness.
    pub(crate) survivable: u64,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) sent: Vec<Sent>,
    pub(crate) losses: Vec<Loss>,
    /// When which process was killed or ended.
    pub(crate) killed: Vec<(usize, usize, u64)>,
    /// When the clock of the server was set, and by how much.
    pub(crate) steps: Vec<(u64, i64)>,
}

/// A promise that was broken.
pub(crate) type Broken = String;

impl History {
    /// The same by the clock of the server.
    pub(crate) fn by_server(&self) -> Self {
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

    fn admitted(&self, limit: usize) -> Vec<&Sent> {
        let was = |one: &&Sent| one.outcome == Outcome::Admitted && one.limits.contains(&limit);
        let mut all: Vec<&Sent> = self.sent.iter().filter(was).collect();
        all.sort_by_key(|one| one.sent);
        all
    }

    /// Checks that no window admitted more than `most`.
    pub(crate) fn check_windows(&self, limit: usize, window: u64, most: u64) -> Result<(), Broken> {
        let admitted = self.admitted(limit);
        for (nth, first) in admitted.iter().enumerate() {
            let within = |one: &&&Sent| one.answered < first.sent + window;
            let sum: u64 = admitted[nth..].iter().filter(within).map(|one| cost(one)).sum();
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
    pub(crate) fn check_bucket(&self, limit: usize, quota: &Quota) -> Result<(), Broken> {
        let Quota::Bucket(quota) = quota else { return Ok(()) };
        let per_second = f64::from(quota.rate.tokens()) / quota.rate.period().as_secs_f64();
        let admitted = self.admitted(limit);
        for (nth, first) in admitted.iter().enumerate() {
            let mut rest: Vec<&&Sent> = admitted[nth..].iter().collect();
            rest.sort_by_key(|one| one.answered);
            let mut sum = 0;
            for one in rest {
                sum += cost(one);
                let lasted = (one.answered - first.sent) as f64 / 1e6;
                let most = f64::from(quota.burst) + per_second * lasted + 1.0;
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
    pub(crate) fn check_in_flight(&self, limit: usize, most: u64) -> Result<(), Broken> {
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
    pub(crate) fn check_told(&self, limit: usize, window: u64, most: u64) -> Result<(), Broken> {
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
                    "over: limit {limit} admitted a request at {} beside {sum} of {most}",
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
        is_lost && later.answered >= loss.at && (is_dead || is_untold)
    }

    /// Checks that no request was refused that fits, whatever became of calls without an answer.
    /// Each charge may count so often.
    pub(crate) fn check_refused(
        &self,
        limit: usize,
        window: u64,
        (most, times): (u64, u64),
    ) -> Result<(), Broken> {
        let is_checked = |one: &&Sent| one.limits.contains(&limit);
        for one in self.sent.iter().filter(|one| one.refused_by.contains(&limit)) {
            let counts = |other: &&Sent| {
                other.outcome != Outcome::Refused
                    && other.sent <= one.answered
                    && other.answered + window + 1_000 > one.sent
            };
            let all = self.sent.iter().filter(is_checked).filter(counts);
            let sum: u64 = all.map(|one| cost(one) * times).sum();
            if sum + cost(one) <= most {
                return Err(format!(
                    "refused although it fits: limit {limit} refused {} at {} beside {sum} of \
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

/// The window of a quota, in microseconds.
pub(crate) fn window(quota: &Quota) -> Option<u64> {
    match quota {
        Quota::Rolling(quota) => Some(micros(quota.window)),
        _ => None,
    }
}
