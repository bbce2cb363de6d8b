//! One attempt, from its signature to its result.
//!
//! Not here: the consequences of the result (`scheduler`).

use std::pin::pin;
use std::sync::Arc;

use crate::config::settings::KeptAnswers;
use crate::delivery::client::AttemptResponse;
use crate::delivery::connection::AttemptRequest;
use crate::delivery::signature::{self, Signed};
use crate::delivery::{egress, recording};
use crate::domain::event::EventType;
use crate::domain::outcome::{Fault, Outcome};
use crate::domain::transcript::Transcript;
use crate::live_config::ActiveConfig;
use crate::scheduler::Input;
use crate::scheduler::attempts::{AttemptResult, StartedAttempt};
use crate::worker::Resources;
use crate::worker::panics::caught;

/// Signs and sends an attempt; the signature has this attempt's time.
pub(super) async fn send(attempt: StartedAttempt, resources: Arc<Resources>) -> Input {
    let active = resources.active.load_full();
    // A panic ends the attempt as a fault of the dispatcher.
    let sent = caught(pin!(sent(&attempt, &resources, &active))).await;
    let (response, transcript) =
        sent.unwrap_or_else(|| (AttemptResponse::of(Outcome::Internal(Fault::Broken)), None));
    let AttemptResponse { outcome, retry_after, trace, .. } = response;
    let ended = resources.clock.now();
    Input::Attempted(Box::new(AttemptResult {
        attempt,
        outcome,
        retry_after,
        trace,
        transcript,
        ended,
    }))
}

async fn sent(
    attempt: &StartedAttempt,
    resources: &Resources,
    active: &ActiveConfig,
) -> (AttemptResponse, Option<Transcript>) {
    let StartedAttempt { delivery, started, target, .. } = attempt;
    let signed = Signed {
        event_id: &delivery.event_id,
        body: &delivery.body,
        unix_seconds: started.unix.0 / 1_000_000,
        is_test: delivery.kind == EventType::PING,
    };
    let now = resources.store.steady(started.tick);
    let scheme = &active.settings.signature;
    let custom = &target.headers;
    let mut keep = active.settings.attempts;
    if target.all_answers {
        keep.answers = KeptAnswers::All;
    }
    let (secrets, key) = (|| target.secrets.signing(now), target.secrets.signing_key.as_ref());
    let request = || AttemptRequest {
        url: target.url.clone(),
        headers: signature::headers(scheme, &signed, custom, secrets(), key),
        body: delivery.body.clone(),
        fresh_connection: delivery.fresh_connection,
        client_certificate: target.client_certificate.clone(),
        keep,
    };
    // Boxed: the runtime moves the task around it several times.
    let sending = Box::pin(active.client.deliver(request()));
    let mut response = egress::on_behalf_of(target.workspace.clone(), sending).await;
    // Few attempts have a transcript: making the request once more for it costs the others nothing.
    let transcript = response.kept.take().map(|kept| {
        let request = request();
        let mask = signature::mask(scheme, &request.headers, custom, secrets());
        recording::transcript(request, kept, custom, &mask)
    });
    (response, transcript)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn future_size<F>(_: impl FnOnce(StartedAttempt, Arc<Resources>) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn an_attempts_task_is_small() {
        let size = future_size(send);
        assert!(size <= 1_024, "{size} bytes, which the runtime moves several times");
    }
}
