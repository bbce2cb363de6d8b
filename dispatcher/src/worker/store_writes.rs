//! What an attempt came to: decided, kept, and handed to the store until that has written it.
//!
//! Not here: what follows (`scheduler::transition`), what it says of the webhook (`webhooks`).

use std::time::Duration;

use weir_common::time::Moment;

use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::{NextState, QueuedDelivery};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::outcome::{Fault, Outcome};
use crate::scheduler::Answered;
use crate::scheduler::transition::{again, sign, verdict};
use crate::store::NewMail;
use crate::worker::attempt::{self, Sent, Tried};
use crate::worker::{Told, Worker};

/// How long after a failure of our own a delivery is tried again. Where our resolver fails, its
/// endpoint is left alone for longer each time.
const AFTER_FAULT: Duration = Duration::from_secs(1);

/// In a delivery's place, of attempts of which nothing is to be known but when they started.
const NOBODYS: DeliveryId = DeliveryId(0);

/// An attempt that is over and not yet on disk, or a change of health without one.
pub(super) struct Open {
    pub(super) webhook: WebhookId,
    /// What was under way, and is so until this is on disk.
    pub(super) under_way: Option<DeliveryId>,
    pub(super) ended: Option<AttemptRecord>,
    pub(super) mails: Vec<NewMail>,
    /// The delivery, where it waits again.
    pub(super) again: Option<QueuedDelivery>,
    pub(super) answered: Answered,
}

/// An attempt for a webhook that is deleted, or one that nobody could watch: of what it says, the
/// store keeps when it started.
fn nobodys(
    sent: &Sent,
    attempt: Attempt,
    again: Option<QueuedDelivery>,
    answered: Answered,
) -> Open {
    let Sent { webhook, endpoint, ref ready, .. } = *sent;
    let ended = AttemptRecord {
        delivery: NOBODYS,
        webhook,
        endpoint,
        attempt,
        after: NextState::FailedPermanent,
        first_attempt_at: ready.first_attempt_at,
        since: ready.since,
        paused_before: ready.paused_before,
    };
    let (under_way, ended) = (Some(ready.id), Some(ended));
    Open { webhook, under_way, ended, mails: Vec::new(), again, answered }
}

impl Worker {
    /// Decides what follows from an attempt, and keeps it until it is written.
    pub(super) fn tried(&mut self, tried: Tried, now: Moment) {
        let Tried { ref sent, ref response, ended } = tried;
        let (webhook, started) = (sent.webhook, sent.started);
        let active = self.resources.active.load_full();
        let (took, deadline) = (ended.tick.since(started.tick), active.settings.egress.deadline);
        let answered = Answered::by(&response.outcome, took, deadline);
        let hook = self.hooks.webhook(webhook);
        let (schedule, hint) = (&active.settings.retry, response.retry_after);
        let verdict = hook.and_then(|hook| {
            let (ready, at) = (&sent.ready, started.unix);
            verdict(hook, schedule, ready, at, &response.outcome, hint, ended.unix)
        });
        let Some(verdict) = verdict else {
            let waits = hook.is_some();
            return self.nothing_follows(tried, waits, answered, now);
        };
        let Tried { sent: Sent { endpoint, ready, .. }, response, .. } = tried;
        let workspace = hook.map(|hook| hook.workspace.clone()).unwrap_or_default();
        let told = attempt::Told {
            ready: &ready,
            webhook,
            workspace: &workspace,
            response: &response,
            verdict: &verdict,
            started,
            ended,
        };
        told.tell(&self.resources);
        let mails = sign(ready.kind, &response.outcome).map(|sign| {
            self.hooks.fared(
                webhook,
                sign,
                &response.outcome,
                &mut self.endpoints,
                &self.resources,
                ended,
            )
        });
        self.hooks.probed(webhook, ready.id, verdict.after, &self.endpoints);
        let attempt = Attempt {
            number: ready.attempts.saturating_add(1),
            started_at: started.unix,
            took,
            outcome: response.outcome,
        };
        let record = AttemptRecord {
            delivery: ready.id,
            webhook,
            endpoint,
            attempt,
            after: verdict.after,
            first_attempt_at: Some(verdict.first_attempt_at),
            since: Some(verdict.since),
            paused_before: verdict.paused_before,
        };
        self.keep(Open {
            webhook,
            under_way: Some(record.delivery),
            ended: Some(record),
            mails: mails.unwrap_or_default(),
            again: again(ready, &verdict),
            answered,
        });
    }

    /// Ends an attempt that failed for a fault of ours, or whose webhook is deleted.
    fn nothing_follows(&mut self, tried: Tried, waits: bool, answered: Answered, now: Moment) {
        let Tried { sent, response, ended } = tried;
        let took = ended.tick.since(sent.started.tick);
        self.resources.metrics.attempt(&response.outcome, took);
        // On a connection of its own it is sent at once, as soon as the pace has a place for it.
        let fresh_connection = response.outcome == Outcome::Internal(Fault::StaleConnection);
        let due = if fresh_connection { sent.ready.due } else { now.unix.plus(AFTER_FAULT) };
        let again = waits.then(|| QueuedDelivery { due, fresh_connection, ..sent.ready.clone() });
        if let Outcome::Internal(Fault::Resources | Fault::Resolver) = response.outcome {
            // Its receiver has heard nothing of it.
            self.endpoints.recorded(sent.webhook, sent.ready.id, again, answered, now);
            return;
        }
        let number = sent.ready.attempts.saturating_add(1);
        let outcome = response.outcome;
        let attempt = Attempt { number, started_at: sent.started.unix, took, outcome };
        // That it started counts all the same, in the process to come as well.
        self.keep(nobodys(&sent, attempt, again, answered));
    }

    /// Keeps what is over until it is written.
    pub(super) fn keep(&mut self, open: Open) {
        self.hooks.keep(open.webhook);
        self.open.push(open);
    }

    /// Hands what is over to the store, unless that is busy with what was over before.
    pub(super) fn record(&mut self, now: Moment) {
        if self.recording || self.open.is_empty() || now.tick < self.store_rests_until {
            return;
        }
        let open = std::mem::take(&mut self.open);
        let ended = open.iter().filter_map(|open| open.ended.clone()).collect();
        let mails = open.iter().flat_map(|open| open.mails.iter().cloned()).collect();
        let mut webhooks: Vec<WebhookId> = open.iter().map(|open| open.webhook).collect();
        webhooks.sort();
        webhooks.dedup();
        let fared = webhooks.iter().filter_map(|id| self.hooks.record(*id)).collect();
        let store = self.resources.store.clone();
        self.recording = true;
        self.tasks.spawn(async move {
            let written = store.record(ended, fared, mails).await;
            Told::Recorded(open, written)
        });
    }

    pub(super) fn recorded(&mut self, open: Open, now: Moment) {
        let Open { webhook, under_way, again, answered, .. } = open;
        if let Some(delivery) = under_way {
            self.endpoints.recorded(webhook, delivery, again, answered, now);
        }
        self.hooks.settle(webhook, &mut self.endpoints, now);
    }
}
