//! The last step of admission: checks every limit of a request and records the outcomes.
//!
//! Invariant: a request that a limit refuses is charged by none of them.
//!
//! Not here: which limits apply to a request (`rules`), how they are checked (`limit`), which
//! headers the client receives (`limit::report`).

use std::net::IpAddr;
use std::sync::Arc;

use weir_common::limit::decision::{Decision, Usage};
use weir_common::time::Moment;

use crate::admission::facts::{LimitFacts, LimitOutcome};
use crate::config::active::ActiveConfig;
use crate::config::shared::Shared;
use crate::limit::limiter::{NeedsWait, Unreachable, as_of};
use crate::limit::report::{self, Named};
use crate::limit::warnings::{Warning, is_reached, quiet_until};
use crate::limit::{LimitCheck, Verdict};
use crate::response::refusal::Refusal;
use crate::rules::Limit;
use crate::rules::charges::{Charge, Charges};

/// What the limits decided.
pub enum LimitDecision {
    /// All admit, and are charged.
    Admitted,
    /// One refuses, and none is charged.
    Refused(Refusal),
    /// The check must wait for the shared store, or for the process that owns the counters:
    /// [`CheckedRequest::check_waiting`].
    NeedsWait,
}

/// A request whose limits are checked, or a connection on which no request could be read.
pub struct CheckedRequest<'r> {
    /// The counters and metrics.
    pub shared: &'r Shared,
    /// The configuration of the request.
    pub config: &'r ActiveConfig,
    /// As of when they are checked: its head had been read, and it waits for nothing more.
    pub now: Moment,
    /// Its number in this process.
    pub nth: u64,
}

impl CheckedRequest<'_> {
    /// Checks the limits of a request in this process.
    pub(super) fn check(&self, charges: &mut Charges, facts: &mut LimitFacts) -> LimitDecision {
        if charges.checks.is_empty() {
            return LimitDecision::Admitted;
        }
        match self.shared.limiter.check(&mut charges.checks, self.now.tick) {
            Ok(mut verdict) => {
                self.shared.limiter.hold(&mut verdict, &charges.checks);
                self.settle(charges, &mut verdict, facts)
            }
            Err(NeedsWait) => LimitDecision::NeedsWait,
        }
    }

    /// Refuses a request that the limits would refuse even at the least cost; charges nothing.
    pub(super) fn preview(&self, charges: &mut Charges, facts: &mut LimitFacts) -> LimitDecision {
        match self.shared.limiter.preview(&mut charges.checks, self.now.tick) {
            Ok(mut verdict) if !verdict.is_admitted() => self.settle(charges, &mut verdict, facts),
            // Where the counters have moved, the charge itself decides.
            Ok(_) | Err(_) => LimitDecision::Admitted,
        }
    }

    /// Charges what a request costs, wherever the counters are. Its checks may be older.
    pub async fn charge(
        &self,
        charges: &mut Charges,
        facts: &mut LimitFacts,
    ) -> Result<(), Refusal> {
        as_of(&mut charges.checks, self.now);
        let decision = match self.check(charges, facts) {
            // Boxed: this is rare, and inline it would make every request's future larger.
            LimitDecision::NeedsWait => Box::pin(self.check_waiting(charges, facts)).await,
            decision => decision,
        };
        if let LimitDecision::Refused(refusal) = decision { Err(refusal) } else { Ok(()) }
    }

    /// Checks the limits of a request in the shared store, or in the process that owns the
    /// counters.
    pub(super) async fn check_waiting(
        &self,
        charges: &mut Charges,
        facts: &mut LimitFacts,
    ) -> LimitDecision {
        match self.shared.limiter.check_waiting(&mut charges.checks).await {
            Ok(mut verdict) => self.settle(charges, &mut verdict, facts),
            Err(Unreachable) => LimitDecision::Refused(Refusal::LimitsUnavailable),
        }
    }

    /// Charges a refusal to its address. The limit refuses nothing: a used-up one shows in the
    /// headers alone, so that no client blocks its neighbours behind the same NAT.
    pub async fn charge_refusal(&self, address: IpAddr, facts: &mut LimitFacts) {
        let charges = || {
            let mut charges = Charges::default();
            self.config.rules.add_of_refusal(address, self.now, &mut charges);
            charges
        };
        if matches!(self.check(&mut charges(), facts), LimitDecision::NeedsWait) {
            let elsewhere = async { self.check_waiting(&mut charges(), facts).await };
            // Boxed, for it is rare; a limit that cannot be reached now is not shown.
            drop(Box::pin(elsewhere).await);
        }
        facts.report.retry_after = None;
    }

    /// Passes a warning on that a key has nearly used a limit.
    #[cold]
    fn warn(&self, check: &LimitCheck, limit: &Arc<str>, name: &Arc<str>, usage: Usage) {
        let (key, quiet_until) = (check.key, quiet_until(&check.quota, self.now.tick));
        let warning = Warning { key, limit: limit.clone(), name: name.clone(), usage, quiet_until };
        if !self.shared.warnings.send(warning) {
            self.shared.metrics.warnings_lost.inc();
        }
    }

    /// Records what the limits decided, in the metrics and in the facts of the request.
    fn settle(
        &self,
        charges: &Charges,
        verdict: &mut Verdict,
        facts: &mut LimitFacts,
    ) -> LimitDecision {
        if verdict.held.is_some() {
            facts.held = verdict.held.take();
        }
        let earlier = facts.outcomes.len();
        let checked = charges.checks.iter().zip(&charges.charges);
        for ((check, charge), answer) in checked.zip(verdict.answers()) {
            let Some(limit) = self.config.rules.limits.get(charge.limit) else { continue };
            match answer.decision {
                Decision::Admit if !verdict.is_admitted() => {}
                Decision::Admit => self.count_admitted(check, limit, charge, answer.usage),
                _ => self.count_refused(check, limit, charge),
            }
            facts.outcomes.push(LimitOutcome {
                limit: charge.limit,
                name: charge.name.clone(),
                decision: answer.decision,
                remaining: answer.usage.remaining,
            });
        }
        facts.report = report::summary(&charges.checks, verdict, self.now);
        if let Some(binding) = &mut facts.report.binding {
            binding.index += earlier;
        }
        if self.config.settings.headers.ratelimit {
            facts.ietf = self.ietf_fields(charges, verdict);
        }
        self.decision(verdict, facts)
    }

    fn count_admitted(&self, check: &LimitCheck, limit: &Limit, charge: &Charge, usage: Usage) {
        if let Some(meter) = self.config.limits.get(charge.limit) {
            meter.admit.inc();
        }
        self.shared.top.admitted(check.key, &limit.name, &charge.name, self.nth);
        if limit.warn_at > 0 && is_reached(&usage, check.cost, limit.warn_at) {
            self.warn(check, &limit.name, &charge.name, usage);
        }
    }

    fn count_refused(&self, check: &LimitCheck, limit: &Limit, charge: &Charge) {
        if let Some(meter) = self.config.limits.get(charge.limit) {
            if check.enforced { meter.refuse.inc() } else { meter.would_refuse.inc() }
        }
        self.shared.top.refused(check.key, &limit.name, &charge.name);
        if !check.enforced {
            let plan = charge.plan.and_then(|plan| self.config.rules.plans.get(plan));
            let plan = plan.map_or("", |plan| &plan.name);
            let by_plan = &self.shared.metrics.would_refuse;
            by_plan.with_label_values(&[&*limit.name, plan]).inc();
        }
    }

    /// `RateLimit-Policy` and `RateLimit`: none where all limits are hidden or only observed.
    fn ietf_fields(&self, charges: &Charges, verdict: &Verdict) -> Option<(String, String)> {
        let checked = charges.checks.iter().zip(&charges.charges);
        let named: Vec<Named<'_>> = checked
            .map(|(check, charge)| {
                let limit = self.config.rules.limits.get(charge.limit);
                Named { name: limit.map_or("", |limit| &limit.name), check }
            })
            .collect();
        let fields = report::ietf(&named, verdict, self.now);
        Some(fields).filter(|(policy, _)| !policy.is_empty())
    }

    /// The decision, with the limit that a refusal names.
    fn decision(&self, verdict: &Verdict, facts: &LimitFacts) -> LimitDecision {
        if verdict.is_admitted() {
            return LimitDecision::Admitted;
        }
        let refusing = facts.report.binding.as_ref().filter(|binding| binding.refuses);
        let resource = refusing.and_then(|binding| {
            let outcome = facts.outcomes.get(binding.index)?;
            let limit = self.config.rules.limits.get(outcome.limit)?;
            Some((limit.name.clone(), binding.limit))
        });
        LimitDecision::Refused(match facts.report.is_too_costly {
            true => Refusal::TooCostly { resource },
            false => {
                let retry_after = facts.report.retry_after.unwrap_or(1);
                Refusal::RateLimited { resource, retry_after }
            }
        })
    }
}
