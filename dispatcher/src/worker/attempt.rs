//! One attempt, from its signature to its result.
//!
//! Not here: the consequences of the result (`scheduler`).

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::settings::KeptAnswers;
use crate::delivery::client::AttemptResponse;
use crate::delivery::connection::AttemptRequest;
use crate::delivery::signature::{self, Signed};
use crate::delivery::transport::OnSent;
use crate::delivery::{egress, recording};
use crate::domain::event::EventType;
use crate::domain::outcome::{Fault, Outcome};
use crate::domain::pace::{counted, shortest_window};
use crate::domain::transcript::Transcript;
use crate::live_config::ActiveConfig;
use crate::scheduler::Input;
use crate::scheduler::attempts::{AttemptResult, SentRequest, StartedAttempt};
use crate::worker::Resources;
use crate::worker::panics::caught;

/// Signs and sends an attempt; the signature has this attempt's time.
pub(super) async fn send(attempt: StartedAttempt, resources: Arc<Resources>) -> Input {
    let active = resources.active.load_full();
    let reported = reports(&active).then(Arc::<AtomicBool>::default);
    // A panic ends the attempt as a fault of the dispatcher.
    let sent = caught(pin!(sent(&attempt, &resources, &active, reported.as_ref()))).await;
    let (response, transcript) =
        sent.unwrap_or_else(|| (AttemptResponse::of(Outcome::Internal(Fault::Broken)), None));
    let AttemptResponse { outcome, retry_after, trace, .. } = response;
    let ended = resources.clock.now();
    let reported = reported.is_some_and(|reported| reported.load(Ordering::Relaxed));
    Input::Attempted(Box::new(AttemptResult {
        attempt,
        reported,
        outcome,
        retry_after,
        trace,
        transcript,
        ended,
    }))
}

/// Whether an attempt reports when its request was sent: it may last longer than a limit counts it.
fn reports(active: &ActiveConfig) -> bool {
    let egress = &active.settings.egress;
    shortest_window(counted(egress.per_endpoint())) < egress.deadline
}

async fn sent(
    attempt: &StartedAttempt,
    resources: &Resources,
    active: &ActiveConfig,
    reported: Option<&Arc<AtomicBool>>,
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
    let on_sent = reported.map(|reported| {
        let (reported, mailbox) = (Arc::clone(reported), resources.mailbox.clone());
        let sent = attempt.sent_at(started.tick);
        OnSent::new(move |at| {
            reported.store(true, Ordering::Relaxed);
            mailbox.sent(SentRequest { sent: at, ..sent });
        })
    });
    // Boxed: the runtime moves the task around it several times.
    let sending = Box::pin(active.client.deliver_reporting(request(), on_sent));
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
