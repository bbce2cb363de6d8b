//! Calls a URL before events are sent to it: the check of a URL, and the challenge of a webhook
//! that is created, or whose URL changes.
//!
//! # Invariants
//!
//! 1. Each call counts in its workspace's limit of tests, and in the rate limits of its endpoint
//!    and of its workspace at the host.
//! 2. A host with only private addresses, one that does not resolve and one that refuses
//!    connections read alike, in words and in time: a customer cannot look into the operator's
//!    network.
//!
//! Not here: the limit of tests (`test_limit`), which addresses may be called (`delivery::egress`),
//! the comparison of an echo (`domain::challenge`).

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;
use url::Url;
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;

use crate::api::dto::check::{CheckBody, CheckView};
use crate::api::{ApiRequest, json, random, secrets, test_limit};
use crate::config::settings::AttemptSettings;
use crate::delivery::client::{AttemptResponse, Echo};
use crate::delivery::connection::AttemptRequest;
use crate::delivery::egress::on_behalf_of;
use crate::delivery::signature::{self, Signed};
use crate::delivery::transport::OnSent;
use crate::domain::attempt::Attempt;
use crate::domain::challenge::CHALLENGE_BYTES;
use crate::domain::outcome::{Failure, Fault, Outcome};
use crate::domain::public_id::ID_RANDOM_BYTES;
use crate::domain::webhook::options::WebhookOptions;
use crate::domain::webhook::signing_key::SigningKey;
use crate::http_errors::{self, ValidationError, ValidationErrors, validation_problem};
use crate::ingest::event::{self, Sample};
use crate::mailbox::Charged;
use crate::scheduler::checks::CheckedUrl;

/// How long it takes at least to find that a receiver cannot be reached: as long as an attempt
/// waits for a name's lookup, so that neither a quick answer of the resolver nor a refused
/// connection shows by the time it takes.
const UNREACHABLE_MIN: Duration = Duration::from_secs(2);

/// What is known of a receiver that cannot be reached.
pub(super) const UNREACHABLE: &str = "no connection: the host name does not resolve, has no public \
    address, or the connection is refused";

/// Whom to call, and who calls.
pub(super) struct Callee<'a> {
    pub(super) url: &'a str,
    /// Each signs.
    pub(super) secrets: &'a [&'a str],
    pub(super) signing_key: Option<&'a SigningKey>,
    pub(super) options: &'a WebhookOptions,
}

/// What a call came across.
enum Called {
    /// Nothing: all that may be known is [`UNREACHABLE`].
    Unreachable,
    /// The receiver answered, or failed after it was reached.
    Reached(Attempt, Echo),
}

/// Adds an error if the URL of a body may not be called.
pub(super) fn check_url(request: &ApiRequest<'_>, body: &Value, errors: &mut ValidationErrors) {
    if let Some(text) = body.get("url").and_then(Value::as_str)
        && let Err(why) = request.active.egress.canonical(text)
    {
        errors.at("/url", why);
    }
}

/// The canonical form of a URL that may be called. Its host name is resolved and checked at each
/// attempt: see [`crate::delivery::egress`].
pub(super) fn canonical(request: &ApiRequest<'_>, text: &str) -> Result<Arc<str>, Reply> {
    let url = request.active.egress.canonical(text);
    let url =
        url.map_err(|why| http_errors::unprocessable(&ValidationError::at("/url", why).into()))?;
    Ok(url.as_str().into())
}

/// Sends a signed ping to a URL, and tells what happened. Stores nothing.
pub(super) async fn check(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let body: CheckBody = request.body(|value, errors| {
        check_url(request, value, errors);
        secrets::check(value, errors);
    })?;
    let url = canonical(request, &body.url)?;
    let secret = body.secret.map_or_else(secrets::new, Ok)?;
    let callee = Callee {
        url: &url,
        secrets: &[&secret],
        signing_key: None,
        options: &WebhookOptions::default(),
    };
    Ok(json(
        200,
        &match call(request, &callee, None).await? {
            Called::Unreachable => CheckView::unreachable(UNREACHABLE),
            Called::Reached(attempt, _) => CheckView::of(&attempt),
        },
    ))
}

/// Sends a challenge to the URL that a webhook is to have; refuses it unless the receiver answers.
pub(super) async fn verify(request: &ApiRequest<'_>, callee: &Callee<'_>) -> Result<(), Reply> {
    let challenge = hex::encode(random::<CHALLENGE_BYTES>()?);
    let why = match call(request, callee, Some(&challenge)).await? {
        Called::Unreachable => UNREACHABLE.to_owned(),
        Called::Reached(attempt, echo) => match (attempt.error(), echo) {
            (Some(why), _) => why,
            (None, Echo::Correct) => return Ok(()),
            (None, Echo::Absent) => format!(
                "it answered {}, but not with a JSON object whose `challenge` is that of the \
                 request's `data`",
                attempt.outcome.status().unwrap_or_default()
            ),
        },
    };
    let error = ValidationError::at("/url", format!("did not answer the challenge: {why}"));
    let title = "The URL is not verified";
    Err(validation_problem(422, "unverified-url", title, &error.into()))
}

/// Sends a challenge, or else a ping.
async fn call(
    request: &ApiRequest<'_>,
    callee: &Callee<'_>,
    challenge: Option<&str>,
) -> Result<Called, Reply> {
    let sample = challenge.map_or_else(Sample::ping, Sample::challenge);
    let random = random::<{ ID_RANDOM_BYTES }>()?;
    let event = event::test(request.workspace, &sample, &random, request.now);
    let (client, workspace) = (&request.active.client, Arc::<str>::from(request.workspace));
    let url = Url::parse(callee.url).map_err(|_| problems::broken())?;
    let _permit = request.test_limit.permit(request.workspace)?;
    let charged = charge(request, &url, &workspace).await?;
    let started = request.state.clock.now();
    let signed = Signed {
        event_id: &event.id,
        body: &event.body,
        unix_seconds: started.unix.0 / 1_000_000,
        is_test: true,
    };
    let secrets = callee.secrets.iter().copied();
    let scheme = &request.active.settings.signature;
    let custom = &callee.options.headers;
    let headers = signature::headers(scheme, &signed, custom, secrets, callee.signing_key);
    let keep = AttemptSettings { answer_bytes_max: 0, ..request.active.settings.attempts };
    let body = event.body.clone();
    let client_certificate = callee.options.client_certificate.clone();
    let attempt =
        AttemptRequest { url, headers, body, fresh_connection: true, client_certificate, keep };
    let on_sent = OnSent::new(move |_| drop(charged));
    let challenge = challenge.unwrap_or_default();
    let (response, echo) =
        on_behalf_of(workspace, client.challenge(attempt, challenge, on_sent)).await;
    let took = request.state.clock.now().tick.since(started.tick);
    let AttemptResponse { outcome, trace, .. } = response;
    match outcome {
        Outcome::Failed(Failure::Dns | Failure::BlockedAddress | Failure::Refused)
        | Outcome::Internal(Fault::Resolver) => {
            sleep(UNREACHABLE_MIN.saturating_sub(took)).await;
            Ok(Called::Unreachable)
        }
        Outcome::Internal(_) => {
            Err(problems::busy("The dispatcher could not make the call; try again."))
        }
        Outcome::Delivered { .. } | Outcome::Failed(_) => {
            let started_at = started.unix;
            Ok(Called::Reached(Attempt { number: 1, started_at, took, outcome, trace }, echo))
        }
    }
}

/// Counts a call in all limits.
async fn charge(
    request: &ApiRequest<'_>,
    url: &Url,
    workspace: &Arc<str>,
) -> Result<Charged, Reply> {
    test_limit::charged(request)?;
    let endpoint = request.store().endpoint_of(url.as_str()).await;
    let endpoint = endpoint.map_err(|error| request.failed(&error))?;
    let check = CheckedUrl { endpoint, workspace: Arc::clone(workspace), url: url.clone() };
    match request.state.mailbox.charge(check).await {
        Some(Ok(charged)) => Ok(charged),
        Some(Err(wait)) => Err(test_limit::receiver_limited(wait)),
        None => Err(problems::busy("The dispatcher is stopping.")),
    }
}
