//! One attempt, from its signature to its result.
//!
//! Not here: the consequences of the result (`scheduler`).

use std::sync::Arc;

use crate::delivery::client::AttemptResponse;
use crate::delivery::connection::AttemptRequest;
use crate::delivery::egress;
use crate::delivery::signature::{self, Signed};
use crate::domain::outcome::{Fault, Outcome};
use crate::scheduler::Input;
use crate::scheduler::attempts::{AttemptResult, StartedAttempt};
use crate::worker::Resources;
use crate::worker::panics::caught;

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
    // A panic ends the attempt as a fault of the dispatcher.
    let broken = AttemptResponse { outcome: Outcome::Internal(Fault::Broken), retry_after: None };
    let AttemptResponse { outcome, retry_after } = caught(sent).await.unwrap_or(broken);
    let ended = resources.clock.now();
    Input::Attempted(Box::new(AttemptResult { attempt, outcome, retry_after, ended }))
}
