//! Reads how long queues are, and shows when the last of some deliveries is sent.
//!
//! Invariant: only queues of the caller's workspace count. Others may share an endpoint: their
//! deliveries delay these, which an estimate does not show.
//!
//! Not here: the estimate itself (`domain::estimate`).

use std::time::Duration;

use weir_common::time::UnixTime;

use crate::api::ApiRequest;
use crate::api::deliveries::WORKER_DEADLINE;
use crate::api::dto::Time;
use crate::api::dto::redelivery::EstimateView;
use crate::api::pace::{pace_in_words, start_limits};
use crate::api::wait_reason::AHEAD_MAX;
use crate::domain::delivery::{DeliveryState, DeliveryStatus};
use crate::domain::estimate::{Estimate, QueueLength, estimate};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::webhook::Webhook;
use crate::store::StoreError;
use crate::store::types::{Job, JobScope, Matches};

/// Webhooks whose queues one estimate reads, at most; more make it a lower bound still.
const WEBHOOKS_MAX: usize = 100;

/// The deliveries of one webhook that are meant.
struct Share {
    webhook: WebhookId,
    /// Those that wait.
    waiting: u64,
    /// Those that will wait, too.
    joining: u64,
}

/// The estimate for deliveries that would be redelivered now.
pub(super) async fn of_matches(
    request: &ApiRequest<'_>,
    matches: &Matches,
) -> Result<Option<EstimateView>, StoreError> {
    let shares = matches.webhooks.iter().map(|one| Share {
        webhook: one.webhook,
        waiting: one.due,
        joining: one.count.saturating_sub(one.due),
    });
    of_shares(request, shares.collect(), request.now).await
}

/// The estimate for a job's deliveries that wait, or will.
pub(super) async fn of_job(
    request: &ApiRequest<'_>,
    job: &Job,
) -> Result<Option<EstimateView>, StoreError> {
    let waits_anyway = match &job.scope {
        JobScope::Matching(filter) => filter.state == Some(DeliveryState::Waiting),
        JobScope::Named(_) => false,
    };
    let runs = job.ended_at.is_none() && !waits_anyway;
    let shares = job.webhooks.iter().map(|one| Share {
        webhook: one.webhook,
        waiting: one.waiting,
        joining: if runs { one.matching.saturating_sub(one.redelivered) } else { 0 },
    });
    of_shares(request, shares.collect(), job.ended_at.unwrap_or(request.now)).await
}

async fn of_shares(
    request: &ApiRequest<'_>,
    mut shares: Vec<Share>,
    until: UnixTime,
) -> Result<Option<EstimateView>, StoreError> {
    shares.retain(|share| share.waiting + share.joining > 0);
    shares.truncate(WEBHOOKS_MAX);
    if shares.is_empty() {
        return Ok(None);
    }
    let of = shares.iter().map(|share| (share.webhook, DeliveryId::NONE)).collect();
    let reply = request.state.mailbox.statuses(of);
    let statuses = tokio::time::timeout(WORKER_DEADLINE, reply).await.unwrap_or_default();
    let mut queues = Vec::new();
    for (nth, share) in shares.iter().enumerate() {
        // What waits for a deleted webhook is never sent.
        let webhook = request.store().webhook(request.workspace, share.webhook).await?;
        let Some(webhook) = webhook else { continue };
        let status = statuses.get(nth).copied().unwrap_or_default();
        queues.push(queue_length(request, share, &webhook, status, until).await?);
    }
    Ok(view(estimate(&queues), request.now))
}

/// How many deliveries of a webhook wait, up to [`AHEAD_MAX`].
pub(super) async fn waiting(
    request: &ApiRequest<'_>,
    webhook: WebhookId,
) -> Result<usize, StoreError> {
    let end = UnixTime(i64::MAX as u64);
    request.store().ahead_of(webhook, end, DeliveryId::NONE, AHEAD_MAX).await
}

/// When all that waits for a webhook is sent if its receiver answers at once, and its owner ends a
/// pause now; with how many wait, up to [`AHEAD_MAX`].
pub(super) async fn of_queue(
    request: &ApiRequest<'_>,
    webhook: &Webhook,
) -> Result<(usize, Option<EstimateView>), StoreError> {
    let (store, id) = (request.store(), webhook.id);
    let waiting = waiting(request, id).await?;
    let Some(others) = waiting.checked_sub(1) else { return Ok((0, None)) };
    // A reactivation makes all due at once.
    let last = match webhook.stopped_since() {
        Some(_) => None,
        None => store.nth_due(id, others).await?,
    };
    let reply = request.state.mailbox.statuses(vec![(id, DeliveryId::NONE)]);
    let statuses = tokio::time::timeout(WORKER_DEADLINE, reply).await.unwrap_or_default();
    let status = statuses.first().copied().unwrap_or_default();
    let queue = QueueLength {
        limits: start_limits(&request.active.settings.egress, webhook),
        deliveries: waiting as u64,
        due_in: last.map_or(Duration::ZERO, |last| last.since(request.now)),
        free_in: status.blocked_until.map_or(Duration::ZERO, |until| until.since(request.now)),
        paused: false,
    };
    Ok((waiting, view(estimate(&[queue]), request.now)))
}

/// The queue of a webhook, up to the last of its share; `until` is when that last one was queued.
async fn queue_length(
    request: &ApiRequest<'_>,
    share: &Share,
    webhook: &Webhook,
    status: DeliveryStatus,
    until: UnixTime,
) -> Result<QueueLength, StoreError> {
    let after = until.plus(Duration::from_micros(1));
    let due =
        request.store().ahead_of(webhook.id, after, DeliveryId::NONE, AHEAD_MAX).await? as u64;
    let mut due_in = Duration::ZERO;
    if let Some(others) = share.waiting.checked_sub(1) {
        let nth = usize::try_from(others).unwrap_or(AHEAD_MAX).min(AHEAD_MAX);
        let last = request.store().nth_due(webhook.id, nth).await?;
        due_in = last.map_or(Duration::ZERO, |last| last.since(request.now));
    }
    Ok(QueueLength {
        limits: start_limits(&request.active.settings.egress, webhook),
        deliveries: due.max(share.waiting) + share.joining,
        due_in,
        free_in: status.blocked_until.map_or(Duration::ZERO, |until| until.since(request.now)),
        paused: webhook.stopped_since().is_some(),
    })
}

fn view(estimate: Estimate, now: UnixTime) -> Option<EstimateView> {
    let (within, slowest) = match estimate {
        Estimate::Empty => return None,
        Estimate::Within(within, limit) => (within, limit),
        Estimate::Paused { webhooks } => {
            let are = if webhooks == 1 { "webhook is" } else { "webhooks are" };
            let text =
                format!("{webhooks} {are} paused or disabled: nothing is sent until that ends.");
            return Some(EstimateView { sent_at: None, seconds: None, text });
        }
    };
    let seconds = u64::try_from(within.as_micros().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    let text = match (seconds, slowest) {
        (0, _) => "All can be sent at once.".to_owned(),
        (_, None) => format!("The last is sent in {seconds} s at the earliest."),
        (_, Some(limit)) => {
            let pace = pace_in_words(&limit);
            format!("The last is sent in {seconds} s at the earliest: {pace}.")
        }
    };
    Some(EstimateView { sent_at: Some(Time(now.plus(within))), seconds: Some(seconds), text })
}

#[cfg(test)]
mod tests {
    use weir_common::limit::rolling::RollingQuota;

    use super::*;
    use crate::domain::estimate::{LimitScope, StartLimit};
    use crate::domain::id::EndpointId;

    #[test]
    fn an_estimate_has_a_time_or_a_reason_for_none() {
        let endpoint = || {
            let quota = RollingQuota { requests: 100, window: Duration::from_secs(60) };
            StartLimit { scope: LimitScope::Endpoint(EndpointId(1)), quota }
        };
        let now = UnixTime(1_000_000);
        let shown = |estimate| {
            let view = view(estimate, now);
            view.map(|view| (view.sent_at.map(|at| at.0.0), view.seconds, view.text))
        };
        assert_eq!(shown(Estimate::Empty), None);
        let pace = "an endpoint is called at most 100 times in 1m.";
        let at_once = "All can be sent at once.".to_owned();
        let expected = Some((Some(1_000_000), Some(0), at_once));
        assert_eq!(shown(Estimate::Within(Duration::ZERO, None)), expected);
        let due = "The last is sent in 2 s at the earliest.".to_owned();
        let expected = Some((Some(3_000_000), Some(2), due));
        assert_eq!(shown(Estimate::Within(Duration::from_secs(2), None)), expected);
        // Seconds are rounded up, so that the text promises nothing too early.
        let later = format!("The last is sent in 721 s at the earliest: {pace}");
        assert_eq!(
            shown(Estimate::Within(Duration::from_millis(720_001), Some(endpoint()))),
            Some((Some(721_001_000), Some(721), later))
        );
        for (webhooks, are) in [(1, "1 webhook is"), (2, "2 webhooks are")] {
            let text = format!("{are} paused or disabled: nothing is sent until that ends.");
            assert_eq!(shown(Estimate::Paused { webhooks }), Some((None, None, text)));
        }
    }
}
