//! The last step of admission: every limit of a request is checked, and what came of it noted.
//!
//! Invariant: a refused request is charged by none of its limits.
//!
//! Not here: which limits a request meets (`rules`), how they are checked (`limit`), what a client
//! is told of them (`limit::report`).

use weir_common::decision::Decision;
use weir_common::time::Moment;

use crate::admission::facts::{LimitFacts, LimitOutcome};
use crate::config::active::Force;
use crate::config::shared::Parts;
use crate::limit::Verdict;
use crate::limit::limiter::OwnerLost;
use crate::limit::report::{self, Named};
use crate::response::refusal::Refusal;
use crate::rules::Charges;

/// What the limits decided.
pub(super) enum LimitCheck {
    /// All admit, and are charged.
    Admitted,
    /// One refuses, and none is charged.
    Refused(Refusal),
    /// The counters are in another process: [`check_at_owner`] asks there.
    Moved(Box<Charges>),
}

/// A request that limits are checked for.
pub(super) struct Checked<'r> {
    pub(super) parts: &'r Parts,
    pub(super) config: &'r Force,
    /// When it began.
    pub(super) now: Moment,
    /// Its number in this process.
    pub(super) nth: u64,
}

impl Checked<'_> {
    /// Checks the limits of a request in this process.
    pub(super) fn check(&self, mut charges: Charges, facts: &mut LimitFacts) -> LimitCheck {
        if charges.asks.is_empty() {
            return LimitCheck::Admitted;
        }
        match self.parts.limiter.check(&mut charges.asks, self.now.tick) {
            Ok(verdict) => self.settle(&charges, &verdict, facts),
            Err(_moved) => LimitCheck::Moved(Box::new(charges)),
        }
    }

    /// Checks the limits of a request in the process that owns the counters.
    pub(super) async fn check_at_owner(
        &self,
        mut charges: Charges,
        facts: &mut LimitFacts,
    ) -> LimitCheck {
        match self.parts.limiter.check_at_owner(&mut charges.asks).await {
            Ok(verdict) => self.settle(&charges, &verdict, facts),
            Err(OwnerLost) => LimitCheck::Refused(Refusal::LimitsUnavailable),
        }
    }

    /// Notes what the limits decided, in metrics and in what is told of the request.
    fn settle(
        &self,
        Charges { asks, charges }: &Charges,
        verdict: &Verdict,
        facts: &mut LimitFacts,
    ) -> LimitCheck {
        let (rules, top) = (&self.config.rules, &self.parts.top);
        for ((ask, charge), answer) in asks.iter().zip(charges).zip(verdict.answers()) {
            let meter = self.config.limits.get(charge.limit);
            let Some(limit) = rules.limits.get(charge.limit) else { continue };
            match answer.decision {
                Decision::Admit if verdict.is_admitted() => {
                    meter.inspect(|meter| meter.admit.inc());
                    top.admitted(ask.key, &limit.name, &charge.name, self.nth);
                }
                Decision::Admit => {}
                _ => {
                    meter.inspect(|meter| {
                        if ask.enforced { meter.refuse.inc() } else { meter.would_refuse.inc() }
                    });
                    top.refused(ask.key, &limit.name, &charge.name);
                }
            }
            facts.outcomes.push(LimitOutcome {
                limit: charge.limit,
                name: charge.name.clone(),
                decision: answer.decision,
                remaining: answer.standing.remaining,
            });
        }
        let name_of = |limit: usize| rules.limits.get(limit).map_or("", |limit| &*limit.name);
        facts.report = report::told(asks, verdict, self.now);
        if rules.settings.headers.ratelimit {
            let pairs = asks.iter().zip(charges);
            let named: Vec<Named<'_>> =
                pairs.map(|(ask, charge)| Named { name: name_of(charge.limit), ask }).collect();
            facts.ietf = Some(report::ietf(&named, verdict, self.now));
        }
        match facts.report.clone().filter(|_| !verdict.is_admitted()) {
            None => LimitCheck::Admitted,
            Some(told) => {
                let binding = charges.get(told.binding);
                let resource = binding.map_or("", |charge| name_of(charge.limit)).to_owned();
                LimitCheck::Refused(Refusal::RateLimited { resource, told })
            }
        }
    }
}
