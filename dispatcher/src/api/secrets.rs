//! Secrets of a webhook: add, list, rotate, remove.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::secret::Secret;

use crate::api::dto::secret::{AddedSecret, NewSecretBody, RotatedSecret, SecretList, SecretView};
use crate::api::dto::{EmptyBody, Time};
use crate::api::{ApiRequest, json, no_content, random};
use crate::delivery::signature::{SECRET_FORM, SECRET_PREFIX, is_secret};
use crate::domain::id::WebhookId;
use crate::domain::webhook::Webhook;
use crate::domain::webhook::secrets::SigningSecret;
use crate::http_errors::{self, ValidationErrors};
use crate::store::types::{Rotated, Rotation, SECRETS_BEFORE_MAX, SecretRemoval};

/// Bytes of a secret: as many as an SHA-256 hash has.
const BYTES: usize = 32;

pub(super) async fn rotate(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let EmptyBody {} = request.body(|_, _| {})?;
    let (secret, overlap) = (new()?, request.active.settings.secrets.rotation_overlap);
    let webhook = replaced(request, id, &secret, Some(overlap)).await?;
    // A lost key has taken the previous secrets with it.
    let previous = webhook.secrets.others.first();
    let previous_valid_until = previous.map(|_| Time(request.now.plus(overlap)));
    let id = request.store().ids().webhook(id);
    Ok(json(200, &RotatedSecret { id, secret, previous_valid_until }))
}

pub(super) async fn add(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let body: NewSecretBody = request.body(check)?;
    let secret = body.secret.map_or_else(new, Ok)?;
    let webhook = replaced(request, id, &secret, None).await?;
    Ok(json(201, &AddedSecret { secret, view: shown(request, &webhook.secrets.current) }))
}

pub(super) async fn list(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let webhook = request.found(request.store().webhook(request.workspace, id).await)?;
    let now = request.state.store.steady(request.state.clock.now().tick);
    let data = webhook.secrets.active(now).map(|one| shown(request, one)).collect();
    Ok(json(200, &SecretList { data }))
}

pub(super) async fn remove(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let removal = request.store().remove_secret(request.workspace, id, request.fingerprint).await;
    match removal.map_err(|error| request.failed(&error))? {
        SecretRemoval::Removed => {
            request.state.mailbox.changed(id);
            Ok(no_content())
        }
        SecretRemoval::Last => {
            let detail = "No other secret signs without an end: add one first, or rotate.";
            Err(problems::refusal(409, "last-secret", "The last secret", detail))
        }
        SecretRemoval::Absent => Err(http_errors::not_found()),
    }
}

/// Adds an error if a body brings a secret along that cannot sign in both schemes, or is short.
pub(super) fn check(body: &Value, errors: &mut ValidationErrors) {
    if body["secret"].as_str().is_some_and(|secret| !is_secret(secret)) {
        errors.at("/secret", SECRET_FORM);
    }
}

/// A new secret.
pub(super) fn new() -> Result<String, Reply> {
    Ok(format!("{SECRET_PREFIX}{}", STANDARD.encode(random::<BYTES>()?)))
}

/// Makes a secret the current one. The one before it signs for `overlap`, or until it is removed.
async fn replaced(
    request: &ApiRequest<'_>,
    id: WebhookId,
    secret: &str,
    overlap: Option<Duration>,
) -> Result<Box<Webhook>, Reply> {
    let rotation = Rotation { secret: Secret::new(secret.to_owned()), overlap };
    let rotated = request.store().rotate(request.workspace, id, rotation, request.now).await;
    match rotated.map_err(|error| request.failed(&error))? {
        Rotated::Webhook(webhook) => {
            request.state.mailbox.changed(id);
            Ok(webhook)
        }
        Rotated::TooMany { free_in } => Err(too_many(free_in)),
        Rotated::Known => {
            let detail = "This secret of the webhook signs already.";
            Err(problems::refusal(409, "known-secret", "The secret signs already", detail))
        }
        Rotated::Absent => Err(http_errors::not_found()),
    }
}

fn shown(request: &ApiRequest<'_>, secret: &SigningSecret) -> SecretView {
    let now = request.state.store.steady(request.state.clock.now().tick);
    SecretView {
        fingerprint: secret.fingerprint(),
        created_at: secret.created_at.map(Time),
        until: secret.until.map(|until| Time(request.now.plus(until.since(now)))),
    }
}

/// Refuses one more secret: receivers that verify with one of the others would fail if it expired
/// early.
fn too_many(free_in: Option<Duration>) -> Reply {
    let most = SECRETS_BEFORE_MAX + 1;
    let Some(free_in) = free_in else {
        let detail = format!("{most} secrets of this webhook sign, none of them with an end.");
        return problems::refusal(409, "too-many-secrets", "Too many secrets", detail);
    };
    let seconds = free_in.as_secs().saturating_add(1);
    let detail = format!(
        "{most} secrets of this webhook sign, and none of them expires early; remove one, or try \
         again in {seconds} s."
    );
    problems::refusal(429, "too-many-rotations", "Too many rotations", detail)
        .with("retry-after", seconds.to_string())
}
