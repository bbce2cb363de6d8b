//! Webhooks: create, list, show, change, delete, reactivate, ping.
//!
//! Not here: their secrets (`secrets`).

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use http::{HeaderName, HeaderValue};
use serde_json::{Map, Value};
use weir_common::http_server::problems;
use weir_common::http_server::reply::Reply;
use weir_common::identifier::IdForm;
use weir_common::secret::Secret;

use crate::api::dto::forecast::{ForecastView, HealthView, IfDown, WebhookDetail};
use crate::api::dto::redelivery::MatchCount;
use crate::api::dto::webhook::{
    self, Answers, CertificateBody, CreatedWebhook, NewWebhookBody, OptionsView, WebhookPage,
    WebhookPatch, WebhookView,
};
use crate::api::dto::{EmptyBody, Subscribed, TestBody, Time};
use crate::api::url_checks::{self, Callee, canonical, check_url};
use crate::api::wait_reason::AHEAD_MAX;
use crate::api::{
    ApiRequest, bad_query, deliveries, entity_tag, estimates, json, no_content, random, secrets,
    test_limit,
};
use crate::delivery::client_certificate;
use crate::domain::delivery::{Delivery, DeliveryState};
use crate::domain::forecast::forecast;
use crate::domain::id::WebhookId;
use crate::domain::public_id::ID_RANDOM_BYTES;
use crate::domain::webhook::Webhook;
use crate::domain::webhook::headers::{self, HeaderError};
use crate::domain::webhook::options::{
    CertificateChange, OptionsChange, OptionsError, WebhookOptions,
};
use crate::domain::webhook::signing_key::{SEED_BYTES, SigningKey};
use crate::http_errors::{self, ValidationError, ValidationErrors, step};
use crate::ingest::event::{self, Sample};
use crate::store::StoreError;
use crate::store::types::{Changed, Created, KeyChange, WebhookChange};

/// Deliveries that a forecast plays, of those that are due first: what an endpoint is sent in a
/// minute.
const FORECAST_DELIVERIES: usize = 100;

pub(super) async fn create(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let form = &request.active.catalogue.identifiers.workspaces;
    if !form.allows(request.workspace) {
        return Err(no_workspace(request.workspace, form));
    }
    let body: NewWebhookBody = request.body(|value, errors| {
        check_url(request, value, errors);
        check_headers(request, value, errors);
        check_ed25519(request, value, errors);
        secrets::check(value, errors);
    })?;
    let url = canonical(request, &body.url)?;
    let change = OptionsChange {
        description: body.description,
        metadata: body.metadata,
        headers: headers_of(request, body.headers)?,
        all_answers: body.answers.map(|answers| answers == Answers::All),
        requests_per_minute: body.requests_per_minute,
        client_certificate: certificate_of(request, body.client_certificate.as_ref())?,
    };
    let options = WebhookOptions::default().changed(change).map_err(exceeded)?;
    let secret = body.secret.map_or_else(secrets::new, Ok)?;
    let signing_key = body.ed25519.unwrap_or(false).then(new_signing_key).transpose()?;
    if body.verify == Some(true) {
        let (signing_key, options) = (signing_key.as_ref(), &options);
        let secrets = [secret.as_str()];
        let callee = Callee { url: &url, secrets: &secrets, signing_key, options };
        url_checks::verify(request, &callee).await?;
    }
    let new = crate::store::types::NewWebhook {
        workspace: request.workspace.into(),
        url,
        events: webhook::set_of(&body.events),
        options,
        secret: Secret::new(secret.clone()),
        signing_key,
        webhooks_max: request.active.settings.webhooks.per_workspace_max,
    };
    let created = request.store().create_webhook(new, request.now).await;
    let webhook = match created.map_err(|error| request.failed(&error))? {
        Created::Webhook(webhook) => webhook,
        Created::TooMany => return Err(too_many(request)),
    };
    let id = request.store().ids().webhook(webhook.id);
    let location = format!("/v1/workspaces/{}/webhooks/{id}", request.workspace);
    let shown = CreatedWebhook {
        id,
        url: webhook.url.to_string(),
        secret,
        events: webhook.events.types().map(Subscribed).collect(),
        created_at: Time(webhook.created_at),
        state: webhook.state(),
        options: OptionsView::of(&webhook),
    };
    Ok(json(201, &shown).with("location", location))
}

pub(super) async fn list(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let ids = request.store().ids();
    let (after, limit) = request.query.webhooks(ids).map_err(bad_query)?;
    let page = request.store().webhooks(request.workspace, after, limit).await;
    let page = page.map_err(|error| request.failed(&error))?;
    let data = page.items.iter().map(|webhook| WebhookView::of(ids, webhook)).collect();
    Ok(json(200, &WebhookPage { data, next_cursor: page.next.map(|id| ids.webhook(id)) }))
}

pub(super) async fn read(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let webhook = request.found(request.store().webhook(request.workspace, id).await)?;
    let detail = detail(request, &webhook).await.map_err(|error| request.failed(&error))?;
    let tag = entity_tag::of_webhook(&detail.webhook)?;
    Ok(json(200, &detail).with("etag", tag))
}

/// A webhook with its health and its forecast.
async fn detail(request: &ApiRequest<'_>, webhook: &Webhook) -> Result<WebhookDetail, StoreError> {
    let settings = &request.active.settings;
    let upcoming = request.store().upcoming(webhook.id, FORECAST_DELIVERIES).await?;
    let forecast = forecast(webhook, &upcoming, &settings.health, &settings.retry, request.now);
    let (waiting, if_up) = estimates::of_queue(request, webhook).await?;
    let mails = request.active.mails_owners(request.workspace);
    Ok(WebhookDetail {
        webhook: WebhookView::of(request.store().ids(), webhook),
        health: HealthView::of(webhook),
        waiting: MatchCount { count: waiting as u64, at_least: waiting >= AHEAD_MAX },
        forecast: ForecastView { if_down: IfDown::of(webhook.state(), &forecast, mails), if_up },
    })
}

pub(super) async fn change(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let body: WebhookPatch = request.body(|value, errors| {
        check_url(request, value, errors);
        check_headers(request, value, errors);
        check_ed25519(request, value, errors);
        let changes = |(name, value): (&String, &Value)| name != "verify" && !value.is_null();
        let is_empty = |members: &Map<String, Value>| !members.iter().any(changes);
        if errors.is_empty() && value.as_object().is_none_or(is_empty) {
            errors.at("", "must change something");
        }
        if errors.is_empty() && value["verify"] == true && !value["url"].is_string() {
            errors.at("/verify", "needs a new `url`, which is what it proves");
        }
    })?;
    let url = match &body.url {
        Some(url) => Some(canonical(request, url)?),
        None => None,
    };
    let events = body.events.as_deref().map(webhook::set_of);
    let options = OptionsChange {
        description: body.description,
        metadata: body.metadata,
        headers: headers_of(request, body.headers)?,
        all_answers: body.answers.map(|answers| answers == Answers::All),
        requests_per_minute: body.requests_per_minute,
        client_certificate: certificate_of(request, body.client_certificate.as_ref())?,
    };
    let signing_key = match body.ed25519 {
        Some(true) => KeyChange::Have(new_signing_key()?),
        Some(false) => KeyChange::Remove,
        None => KeyChange::Keep,
    };
    let (disabled, seen) = (body.disabled, entity_tag::seen(request, id).await?);
    let change = WebhookChange { url, events, options, disabled, signing_key, seen };
    if body.verify == Some(true) {
        verify(request, id, &change).await?;
    }
    let changed = request.store().change_webhook(request.workspace, id, change, request.now).await;
    request.state.mailbox.changed(id);
    match changed.map_err(|error| request.failed(&error))? {
        Changed::Webhook(webhook) => {
            let shown = WebhookView::of(request.store().ids(), &webhook);
            Ok(json(200, &shown).with("etag", entity_tag::of_webhook(&shown)?))
        }
        Changed::Refused(limit) => Err(exceeded(limit)),
        Changed::Overtaken => Err(entity_tag::overtaken()),
        Changed::Absent => Err(http_errors::not_found()),
    }
}

/// Sends a challenge to the URL of a change, with the headers and by the keys that the webhook has
/// after it.
async fn verify(
    request: &ApiRequest<'_>,
    id: WebhookId,
    change: &WebhookChange,
) -> Result<(), Reply> {
    let webhook = request.found(request.store().webhook(request.workspace, id).await)?;
    let options = webhook.options.changed(change.options.clone()).map_err(exceeded)?;
    let now = request.state.store.steady(request.state.clock.now().tick);
    let secrets: Vec<&str> = webhook.secrets.signing(now).collect();
    if secrets.is_empty() {
        return Err(without_secret());
    }
    let own = webhook.secrets.signing_key.as_ref();
    let signing_key = match &change.signing_key {
        KeyChange::Keep => own,
        KeyChange::Have(new) => own.or(Some(new)),
        KeyChange::Remove => None,
    };
    let url = change.url.as_deref().unwrap_or(&webhook.url);
    let callee = Callee { url, secrets: &secrets, signing_key, options: &options };
    url_checks::verify(request, &callee).await
}

pub(super) async fn delete(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let deleted = request.store().delete_webhook(request.workspace, id).await;
    if !deleted.map_err(|error| request.failed(&error))? {
        return Err(http_errors::not_found());
    }
    request.state.mailbox.changed(id);
    Ok(no_content())
}

pub(super) async fn reactivate(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let EmptyBody {} = request.body(|_, _| {})?;
    let reactivated = request.store().reactivate(request.workspace, id, request.now).await;
    request.state.mailbox.changed(id);
    shown(request, reactivated)
}

pub(super) async fn ping(request: &ApiRequest<'_>) -> Result<Reply, Reply> {
    let id = request.webhook_id()?;
    let TestBody { kind } = request.body(|_, _| {})?;
    let webhook = request.found(request.store().webhook(request.workspace, id).await)?;
    if webhook.secret_lost_at().is_some() {
        return Err(without_secret());
    }
    if webhook.disabled_at.is_some() {
        let detail = "The webhook is disabled, so no test can be sent: enable it first.";
        return Err(problems::refusal(409, "webhook-disabled", "The webhook is disabled", detail));
    }
    if webhook.paused_at.is_some() {
        let detail = "The webhook is paused, so no test can be sent: reactivate it first.";
        let title = "The webhook is paused";
        return Err(problems::refusal(409, "webhook-paused", title, detail));
    }
    if webhook.probing.is_some() && waits(request, id).await? {
        let detail = "A probe delivery checks whether the endpoint has recovered; a test would \
            wait behind it. See the waiting deliveries.";
        let title = "The webhook was started again and has not answered 2xx yet";
        return Err(problems::refusal(409, "webhook-probing", title, detail));
    }
    test_limit::charged(request)?;
    let catalogue = &request.active.catalogue;
    let entry = kind.and_then(|kind| catalogue.find(kind.0.name()));
    let sample = entry.map_or_else(Sample::ping, |entry| Sample::of(entry, &catalogue.identifiers));
    let random = random::<{ ID_RANDOM_BYTES }>()?;
    let event = event::test(request.workspace, &sample, &random, request.now);
    let sent = request.store().ping(request.workspace, id, event, request.now).await;
    let arrival = request.found(sent)?;
    let queued = &arrival.delivery;
    let delivery = Delivery {
        id: queued.id,
        event_id: Arc::clone(&queued.event_id),
        webhook: id,
        kind: queued.kind,
        state: DeliveryState::Waiting,
        attempts: 0,
        created_at: queued.created_at,
        due: queued.due,
        first_attempt_at: None,
        paused_before: queued.paused_before,
        ended_at: None,
        last_outcome: None,
    };
    request.state.mailbox.arrived(vec![arrival]);
    Ok(json(202, &deliveries::shown(request, &delivery).await?))
}

/// Whether the webhook has a waiting delivery. After a reactivation the oldest one is the probe;
/// without any, a test may be the probe.
async fn waits(request: &ApiRequest<'_>, id: WebhookId) -> Result<bool, Reply> {
    let queue = request.state.store.load(id).await.map_err(|error| request.failed(&error))?;
    Ok(queue.is_some_and(|queue| queue.due.is_some()))
}

fn shown(
    request: &ApiRequest<'_>,
    answer: Result<Option<Webhook>, StoreError>,
) -> Result<Reply, Reply> {
    Ok(json(200, &WebhookView::of(request.store().ids(), &request.found(answer)?)))
}

/// Adds an error for each custom header that may not be sent. No error shows a value.
fn check_headers(request: &ApiRequest<'_>, body: &Value, errors: &mut ValidationErrors) {
    let signature = &request.active.settings.signature.header;
    let mut seen = HashSet::new();
    for (name, value) in body["headers"].as_object().into_iter().flatten() {
        let pointer = format!("/headers{}", step(name));
        match headers::name_of(name, signature) {
            Ok(name) if !seen.insert(name.clone()) => errors.at(&pointer, "appears twice"),
            Ok(_) => {}
            // It may have been allowed when it was set.
            Err(HeaderError::Reserved) if value.is_null() => {}
            Err(why) => errors.at(&pointer, why.to_string()),
        }
        if let Some(Err(why)) = value.as_str().map(headers::value_of) {
            errors.at(&pointer, why.to_string());
        }
    }
}

/// Adds an error if Ed25519 signatures are wanted and no header may have them.
fn check_ed25519(request: &ApiRequest<'_>, body: &Value, errors: &mut ValidationErrors) {
    if body["ed25519"] == true && !request.active.settings.signature.standard_webhooks {
        errors.at("/ed25519", "needs signature.standard_webhooks, which the operator turned off");
    }
}

/// The headers of a body that [`check_headers`] found valid.
fn headers_of(
    request: &ApiRequest<'_>,
    body: BTreeMap<String, Option<String>>,
) -> Result<Vec<(HeaderName, Option<HeaderValue>)>, Reply> {
    let signature = &request.active.settings.signature.header;
    let header = |(name, value): (String, Option<String>)| {
        let value = value.as_deref().map(headers::value_of).transpose()?;
        let found = match headers::name_of(&name, signature) {
            Err(HeaderError::Reserved) if value.is_none() => name.parse().ok(),
            found => Some(found?),
        };
        Ok((found.ok_or(HeaderError::Reserved)?, value))
    };
    let all: Result<Vec<_>, HeaderError> = body.into_iter().map(header).collect();
    all.map_err(|why| {
        http_errors::unprocessable(&ValidationError::at("/headers", why.to_string()).into())
    })
}

/// The client certificate of a body; an empty object removes it.
fn certificate_of(
    request: &ApiRequest<'_>,
    body: Option<&CertificateBody>,
) -> Result<CertificateChange, Reply> {
    let wrong = |member: &str, why: String| {
        let error = ValidationError::at(format!("/client_certificate/{member}"), why);
        http_errors::unprocessable(&error.into())
    };
    match body.map(|body| (&body.certificate, &body.key)) {
        None => Ok(CertificateChange::Keep),
        Some((None, None)) => Ok(CertificateChange::Remove),
        Some((Some(chain), Some(key))) => client_certificate::read(chain, key, request.now)
            .map(CertificateChange::Set)
            .map_err(|why| wrong(why.member(), why.to_string())),
        Some((None, Some(_))) => Err(wrong("certificate", "is missing".to_owned())),
        Some((Some(_), None)) => Err(wrong("key", "is missing".to_owned())),
    }
}

fn exceeded(limit: OptionsError) -> Reply {
    let pointer = format!("/{}", limit.member());
    http_errors::unprocessable(&ValidationError::at(pointer, limit.to_string()).into())
}

fn without_secret() -> Reply {
    let detail = "The webhook has no secret, so no test can be sent: make a new one first.";
    problems::refusal(409, "webhook-disabled", "The webhook is disabled", detail)
}

fn new_signing_key() -> Result<SigningKey, Reply> {
    Ok(SigningKey::of_seed(random::<SEED_BYTES>()?))
}

/// Refuses a workspace that no event can name: a webhook there would never receive one.
fn no_workspace(name: &str, form: &IdForm) -> Reply {
    let detail = format!(
        "`{name}` is not a workspace id, which is {form} (identifiers.workspace_prefix sets \
         another prefix): no event can name it."
    );
    problems::refusal(422, "invalid-workspace", "Not a workspace id", detail)
}

fn too_many(request: &ApiRequest<'_>) -> Reply {
    let most = request.active.settings.webhooks.per_workspace_max;
    let detail = format!("A workspace has at most {most} webhooks; delete one first.");
    problems::refusal(409, "too-many-webhooks", "Too many webhooks", detail)
}
