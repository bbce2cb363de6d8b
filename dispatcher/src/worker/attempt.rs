//! One attempt, from its signature to its result.
//!
//! Not here: what follows from it (`scheduler`).

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use crate::delivery::client::AttemptResponse;
use crate::delivery::connection::AttemptRequest;
use crate::delivery::egress;
use crate::delivery::signature::{self, Signed};
use crate::domain::outcome::{Fault, Outcome};
use crate::scheduler::Input;
use crate::scheduler::attempts::{AttemptResult, StartedAttempt};
use crate::worker::Resources;

/// Signs and sends an attempt; the signature has this attempt's time.
pub(super) async fn send(attempt: StartedAttempt, resources: Arc<Resources>) -> Input {
    let active = resources.active.load_full();
    let StartedAttempt { delivery, started, target, .. } = &attempt;
    let signed = Signed {
        event_id: &delivery.event_id,
        body: &delivery.body,
        unix_seconds: started.unix.0 / 1_000_000,
    };
    let secrets = target.secrets.signing(resources.store.steady(started.tick));
    let request = AttemptRequest {
        url: target.url.clone(),
        headers: signature::headers(&active.settings.signature, &signed, secrets),
        body: delivery.body.clone(),
        fresh_connection: delivery.fresh_connection,
    };
    let sent = egress::on_behalf_of(target.workspace.clone(), active.client.deliver(request));
    let AttemptResponse { outcome, retry_after } = caught(sent).await;
    let ended = resources.clock.now();
    Input::Attempted(Box::new(AttemptResult { attempt, outcome, retry_after, ended }))
}

/// Runs an attempt; a panic ends it as a fault of the dispatcher.
async fn caught(attempt: impl Future<Output = AttemptResponse>) -> AttemptResponse {
    let mut attempt = pin!(attempt);
    let polled = poll_fn(|cx| {
        let poll = catch_unwind(AssertUnwindSafe(|| attempt.as_mut().poll(cx)));
        // The future is not polled again.
        poll.unwrap_or_else(|_| {
            let outcome = Outcome::Internal(Fault::Broken);
            Poll::Ready(AttemptResponse { outcome, retry_after: None })
        })
    });
    polled.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_attempt_that_panics_ends_as_our_fault() {
        let response = caught(async { panic!("on purpose") }).await;
        assert_eq!(response.outcome, Outcome::Internal(Fault::Broken));
    }
}
