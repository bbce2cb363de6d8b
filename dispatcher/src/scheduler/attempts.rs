//! The consequences of an attempt for its delivery, its webhook and its endpoint. (core)
//!
//! Not here: when a failed delivery is retried (`retry`), how one is sent (`worker`).

use std::sync::Arc;
use std::time::Duration;

use weir_common::time::{Moment, Tick};

use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::{NextState, QueuedDelivery};
use crate::domain::event::EventType;
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::outcome::{Fault, Outcome};
use crate::domain::trace::Trace;
use crate::domain::transcript::Transcript;
use crate::domain::webhook::Webhook;
use crate::scheduler::pace::HostKey;
use crate::scheduler::queues::Ended;
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::starts::SentAttempt;
use crate::scheduler::target::Target;
use crate::scheduler::transition::{self, Evidence, Verdict};
use crate::scheduler::writes::{AttemptReport, Exhausted, PendingWrite};
use crate::scheduler::{Notification, Scheduler};

/// The retry delay after a fault of the dispatcher. After resolver faults the endpoint backs off
/// longer each time.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// A started attempt.
#[derive(Debug)]
pub struct StartedAttempt {
    /// The webhook.
    pub webhook: WebhookId,
    /// The endpoint.
    pub endpoint: EndpointId,
    /// The delivery.
    pub delivery: QueuedDelivery,
    /// The start.
    pub started: Moment,
    /// The part of the webhook that it needs.
    pub target: Arc<Target>,
}

/// The request of an attempt, which was sent.
#[derive(Clone, Debug)]
pub struct SentRequest {
    /// The webhook.
    pub webhook: WebhookId,
    /// The endpoint.
    pub endpoint: EndpointId,
    /// The part of the webhook that it needed.
    pub target: Arc<Target>,
    /// The start of the attempt.
    pub started: Tick,
    /// The latest possible time of the request.
    pub sent: Tick,
}

impl StartedAttempt {
    /// Its request, sent at this time at the latest.
    #[must_use]
    pub fn sent_at(&self, sent: Tick) -> SentRequest {
        let Self { webhook, endpoint, started, ref target, .. } = *self;
        let (target, started) = (Arc::clone(target), started.tick);
        SentRequest { webhook, endpoint, target, started, sent }
    }
}

/// The result of an attempt.
#[derive(Debug)]
pub struct AttemptResult {
    /// The attempt.
    pub attempt: StartedAttempt,
    /// Whether [`Input::Sent`](crate::scheduler::Input::Sent) reports its request.
    pub reported: bool,
    /// The outcome.
    pub outcome: Outcome,
    /// The receiver's `Retry-After`.
    pub retry_after: Option<Duration>,
    /// What it came across.
    pub trace: Trace,
    /// What was sent and answered, if it is kept.
    pub transcript: Option<Transcript>,
    /// The end.
    pub ended: Moment,
}

impl AttemptResult {
    fn attempt(&self) -> Attempt {
        let StartedAttempt { delivery, started, .. } = &self.attempt;
        Attempt {
            number: delivery.attempts.saturating_add(1),
            started_at: started.unix,
            took: self.ended.tick.since(started.tick),
            outcome: self.outcome.clone(),
            trace: self.trace,
        }
    }

    fn evidence(&self) -> Evidence<'_> {
        Evidence {
            delivery: &self.attempt.delivery,
            started_at: self.attempt.started.unix,
            ended_at: self.ended.unix,
            outcome: &self.outcome,
            retry_after: self.retry_after,
        }
    }

    fn report(&self, attempt: &Attempt, after: Option<NextState>) -> Box<AttemptReport> {
        let StartedAttempt { webhook, ref delivery, ref target, .. } = self.attempt;
        Box::new(AttemptReport {
            webhook,
            workspace: target.workspace.clone(),
            delivery: delivery.id,
            event_id: delivery.event_id.clone(),
            kind: delivery.kind,
            attempt: attempt.clone(),
            after,
        })
    }
}

/// The delivery of an attempt, if it failed permanently; neither a test nor the operator's own.
fn exhausted(
    report: &AttemptReport,
    (webhook, target): (&Webhook, &Target),
    verdict: &Verdict,
) -> Option<Exhausted> {
    let is_reported = report.kind != EventType::PING && !webhook.is_operators();
    let is_over = verdict.after == NextState::FailedPermanent;
    (is_reported && is_over).then(|| Exhausted {
        at: report.attempt.started_at.plus(report.attempt.took),
        webhook: report.webhook,
        workspace: report.workspace.clone(),
        url: target.url.as_str().into(),
        delivery: report.delivery,
        event_id: report.event_id.clone(),
        kind: report.kind,
        attempts: report.attempt.number,
        first_attempt_at: verdict.first_attempt_at,
        last_outcome: report.attempt.outcome.clone(),
    })
}

impl Scheduler {
    /// Counts an attempt at the time of its request, from now on.
    pub(super) fn sent(&mut self, request: &SentRequest, now: Tick) {
        let SentRequest { webhook, endpoint, ref target, started, sent } = *request;
        let host = self.paces.key(&target.workspace, &target.url);
        self.sent_in_limits((webhook, endpoint, host), SentAttempt { started, sent }, now);
    }

    /// Counts an attempt at the time of its request in all limits that count it.
    pub(super) fn sent_in_limits(
        &mut self,
        (webhook, endpoint, host): (WebhookId, EndpointId, HostKey),
        attempt: SentAttempt,
        now: Tick,
    ) {
        let limits = self.policies.limits;
        self.endpoint(endpoint).starts.sent(limits.quota, attempt, now);
        self.paces.sent(webhook, attempt, now);
        self.paces.sent_to_host(host, &limits, attempt, now);
    }

    /// Counts an attempt that sent no request no longer, in any limit.
    fn take_back(&mut self, attempt: &StartedAttempt, now: Tick) {
        let StartedAttempt { webhook, endpoint, started, ref target, .. } = *attempt;
        let host = self.paces.key(&target.workspace, &target.url);
        self.endpoint(endpoint).starts.take_back(started.tick);
        self.paces.take_back((webhook, host), &self.policies.limits, started.tick, now);
    }

    /// Wakes the endpoints that wait for a host whose limit counts an attempt no longer.
    pub(super) fn wake_at_freed_hosts(&mut self, now: Tick) {
        let freed = self.paces.take_freed();
        if freed.is_empty() {
            return;
        }
        for endpoint in self.webhooks.endpoints_at(&freed) {
            if self.endpoints.contains_key(&endpoint) {
                self.put(endpoint, now);
            }
        }
    }

    /// Decides the consequences of an attempt, and queues the write.
    pub(super) fn attempted(&mut self, result: AttemptResult, now: Moment) {
        let StartedAttempt { webhook, started, .. } = result.attempt;
        let took = result.ended.tick.since(started.tick);
        if !result.reported && result.outcome.is_unsent() {
            self.take_back(&result.attempt, now.tick);
        } else if !result.reported {
            let sent = started.tick.plus(result.trace.sent_within(took));
            self.sent(&result.attempt.sent_at(sent), now.tick);
        }
        let responsiveness = Responsiveness::of(&result.outcome, took, self.policies.deadline);
        let known = self.webhooks.webhook(webhook);
        let verdict = known.and_then(|known| {
            let schedule = &self.policies.retry;
            Some((known, transition::verdict(known, schedule, &result.evidence())?))
        });
        let Some((known, verdict)) = verdict else {
            return self.nothing_follows(result, responsiveness, now);
        };
        let attempt = result.attempt();
        let report = result.report(&attempt, Some(verdict.after));
        let exhausted = exhausted(&report, (known, &result.attempt.target), &verdict);
        let exhausted = exhausted.map(Box::new);
        // What an earlier URL answered shows nothing about the health of the present one.
        let is_current = known.endpoint == result.attempt.endpoint;
        let AttemptResult {
            attempt: StartedAttempt { endpoint, delivery, target, .. },
            outcome,
            transcript,
            ended,
            ..
        } = result;
        let alert = transition::observation(delivery.kind, &outcome)
            .filter(|_| is_current)
            .and_then(|observation| self.observe(webhook, observation, &outcome, ended));
        self.probed(webhook, delivery.id, verdict.after);
        let transcript = transcript.map(|kept| Transcript {
            // It may repeat what its owner has set meanwhile, which nothing has masked.
            answer: kept.answer.filter(|_| self.webhooks.has_secrets_of(webhook, &target)),
            ..kept
        });
        let Verdict { after, first_attempt_at, since, paused_before } = verdict;
        let record = AttemptRecord {
            delivery: delivery.id,
            webhook,
            workspace: Arc::clone(&target.workspace),
            endpoint,
            attempt,
            transcript: transcript.map(Arc::new),
            redeliveries: delivery.redeliveries,
            after,
            first_attempt_at: Some(first_attempt_at),
            since: Some(since),
            paused_before,
        };
        let (delivery, again) = (delivery.id, transition::again(delivery, &verdict));
        let attempt = Some((Ended { delivery, again, responsiveness }, record));
        self.keep(PendingWrite { webhook, attempt, report: Some(report), alert, exhausted });
    }

    /// Ends an attempt after a fault of the dispatcher, or of a deleted webhook.
    fn nothing_follows(
        &mut self,
        result: AttemptResult,
        responsiveness: Responsiveness,
        now: Moment,
    ) {
        let attempt = result.attempt();
        self.notifications.push_back(Notification::Attempt(result.report(&attempt, None)));
        let StartedAttempt { webhook, endpoint, delivery, target, .. } = result.attempt;
        // After a stale connection it is sent again, on a new one, once the rate limit allows.
        let fresh_connection = attempt.outcome == Outcome::Internal(Fault::StaleConnection);
        let due = if fresh_connection { delivery.due } else { now.unix.plus(AFTER_FAULT) };
        let (id, first_attempt_at) = (delivery.id, delivery.first_attempt_at);
        let (since, paused_before) = (delivery.since, delivery.paused_before);
        let redeliveries = delivery.redeliveries;
        let known = self.webhooks.webhook(webhook);
        let again = known.map(|_| QueuedDelivery { due, fresh_connection, ..delivery });
        let ended = Ended { delivery: id, again, responsiveness };
        if attempt.outcome.is_unsent() {
            return self.end(webhook, ended, now);
        }
        // The start still counts in the rate limit, also after a restart, so only it is written.
        let record = AttemptRecord {
            delivery: DeliveryId::NONE,
            webhook,
            workspace: Arc::clone(&target.workspace),
            endpoint,
            attempt,
            transcript: None,
            redeliveries,
            after: NextState::FailedPermanent,
            first_attempt_at,
            since,
            paused_before,
        };
        let attempt = Some((ended, record));
        let pending = PendingWrite { webhook, attempt, report: None, alert: None, exhausted: None };
        self.keep(pending);
    }
}
