//! One attempt, from its signature to its receipt; and the line that tells of it.
//!
//! Not here: bodies, secrets, paths and queries of URLs. They are never logged.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use weir_common::log::json_lines::{Added, Line};
use weir_common::time::{Moment, UnixTime, micros};

use crate::delivery::client::AttemptResponse;
use crate::delivery::connection::AttemptRequest;
use crate::delivery::egress;
use crate::delivery::signature::{self, Signed};
use crate::domain::delivery::{NextState, QueuedDelivery};
use crate::domain::id::{EndpointId, WebhookId};
use crate::domain::outcome::{Fault, Outcome};
use crate::scheduler::transition::Verdict;
use crate::worker::Resources;
use crate::worker::webhooks::Target;

/// An attempt that has started.
pub(super) struct Sent {
    pub(super) webhook: WebhookId,
    pub(super) endpoint: EndpointId,
    pub(super) ready: QueuedDelivery,
    pub(super) started: Moment,
    pub(super) target: Arc<Target>,
}

/// An attempt that is over.
pub(super) struct Tried {
    pub(super) sent: Sent,
    pub(super) response: AttemptResponse,
    pub(super) ended: Moment,
}

impl Sent {
    /// Signs and sends. The signature's time is that of this attempt.
    pub(super) async fn send(self, resources: &Resources) -> Box<Tried> {
        let active = resources.active.load_full();
        let at = self.started.unix;
        let signed = Signed {
            event_id: &self.ready.event_id,
            body: &self.ready.body,
            unix_seconds: at.0 / 1_000_000,
        };
        let secrets = self.target.secrets.signing(resources.store.steady(self.started.tick));
        let request = AttemptRequest {
            url: self.target.url.clone(),
            headers: signature::headers(&active.settings.signature, &signed, secrets),
            body: self.ready.body.clone(),
            fresh_connection: self.ready.fresh_connection,
        };
        let workspace = self.target.workspace.clone();
        let attempt = egress::on_behalf_of(workspace, active.client.deliver(request));
        let response = caught(attempt).await;
        Box::new(Tried { sent: self, response, ended: resources.clock.now() })
    }
}

/// Makes an attempt; a panic in it is a fault of ours, and no reason to leave it under way.
async fn caught(attempt: impl Future<Output = AttemptResponse>) -> AttemptResponse {
    let mut attempt = pin!(attempt);
    let polled = poll_fn(|cx| {
        let poll = catch_unwind(AssertUnwindSafe(|| attempt.as_mut().poll(cx)));
        // It is not polled again.
        poll.unwrap_or_else(|_| {
            let outcome = Outcome::Internal(Fault::Broken);
            Poll::Ready(AttemptResponse { outcome, retry_after: None })
        })
    });
    polled.await
}

/// What is told of an attempt.
pub(super) struct Told<'a> {
    pub(super) ready: &'a QueuedDelivery,
    pub(super) webhook: WebhookId,
    pub(super) workspace: &'a str,
    pub(super) response: &'a AttemptResponse,
    pub(super) verdict: &'a Verdict,
    pub(super) started: Moment,
    pub(super) ended: Moment,
}

impl Told<'_> {
    /// Counts the attempt and writes its line.
    pub(super) fn tell(&self, resources: &Resources) {
        let outcome = &self.response.outcome;
        let took = self.ended.tick.since(self.started.tick);
        let metrics = &resources.metrics;
        metrics.attempt(outcome, took);
        let state = match self.verdict.after {
            NextState::Delivered => Some("delivered"),
            NextState::FailedPermanent => Some("failed_permanent"),
            NextState::Again { .. } => None,
        };
        if let Some(state) = state {
            metrics.deliveries_ended.with_label_values(&[state]).inc();
        }
        let Some(log) = &resources.attempt_log else { return };
        let ids = &resources.ids;
        let mut line = Line::new();
        line.text("time", &self.started.unix.rfc3339());
        line.text("workspace", self.workspace);
        line.text("webhook", &ids.webhook(self.webhook));
        line.text("delivery", &ids.delivery(self.ready.id));
        line.text("event", &self.ready.event_id);
        line.text("type", self.ready.kind.name());
        line.number("attempt", u64::from(self.ready.attempts) + 1);
        line.text("outcome", &outcome.to_string());
        if let Some(status) = outcome.status() {
            line.number("status", status.into());
        }
        line.thousandths("duration_ms", micros(took));
        line.text("state", state.unwrap_or("waiting"));
        if let NextState::Again { due, .. } = self.verdict.after {
            line.text("next_attempt_at", &UnixTime(due.0).rfc3339());
        }
        if log.add(&line.end()) == Added::Dropped {
            metrics.log_dropped.inc();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_attempt_that_panics_is_over_and_a_fault_of_ours() {
        let response = caught(async { panic!("on purpose") }).await;
        assert_eq!(response.outcome, Outcome::Internal(Fault::Broken));
    }
}
