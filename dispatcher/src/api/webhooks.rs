//! Webhooks: register, list, show, change, delete, reactivate, rotate the secret, test.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use weir_common::identifier::IdForm;
use weir_common::secret::Secret;

use crate::api::dto::{
    self, CreatedWebhook, NewWebhook, Nothing, RotatedSecret, Subscribed, Time, WebhookPage,
    WebhookPatch, WebhookView,
};
use crate::api::{Asked, bad_query, deliveries, json, random};
use crate::domain::delivery::{Delivery, DeliveryState};
use crate::domain::id::WebhookId;
use crate::domain::webhook::Webhook;
use crate::http_errors::{self, Flaw, Flaws};
use crate::http_server::{Reply, problems};
use crate::ingest::event;
use crate::store::{
    self, Created, Rotated, Rotation, SECRETS_BEFORE_MAX, StoreError, WebhookChange,
};

/// Bytes of a secret: as many as SHA-256 gives back.
const SECRET_BYTES: usize = 32;

/// What stands before a secret (CONTRACT §2.1).
const SECRET_PREFIX: &str = "whsec_";

pub(super) async fn create(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let form = &asked.active.settings.identifiers.workspaces;
    if !form.allows(asked.workspace) {
        return Err(no_workspace(asked.workspace, form));
    }
    let body: NewWebhook = asked.body(|value, flaws| check_url(asked, value, flaws))?;
    let url = canonical(asked, &body.url)?;
    let secret = new_secret()?;
    let new = store::NewWebhook {
        workspace: asked.workspace.into(),
        url,
        events: dto::set_of(&body.events),
        secret: Secret::new(secret.clone()),
        webhooks_max: asked.active.settings.webhooks.per_workspace_max,
    };
    let created = asked.store().create_webhook(new, asked.now).await;
    let webhook = match created.map_err(|error| asked.failed(&error))? {
        Created::Webhook(webhook) => webhook,
        Created::TooMany => return Err(too_many(asked)),
    };
    let id = asked.store().ids().webhook(webhook.id);
    let location = format!("/v1/workspaces/{}/webhooks/{id}", asked.workspace);
    let shown = CreatedWebhook {
        id,
        url: webhook.url.to_string(),
        secret,
        events: webhook.events.types().map(Subscribed).collect(),
        created_at: Time(webhook.created_at),
        state: webhook.state(),
    };
    Ok(json(201, &shown).with("location", location))
}

pub(super) async fn list(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let ids = asked.store().ids();
    let (after, limit) = asked.query.webhooks(ids).map_err(bad_query)?;
    let page = asked.store().webhooks(asked.workspace, after, limit).await;
    let page = page.map_err(|error| asked.failed(&error))?;
    let data = page.items.iter().map(|webhook| WebhookView::of(ids, webhook)).collect();
    Ok(json(200, &WebhookPage { data, next_cursor: page.next.map(|id| ids.webhook(id)) }))
}

pub(super) async fn read(asked: &Asked<'_>) -> Result<Reply, Reply> {
    shown(asked, asked.store().webhook(asked.workspace, id_of(asked)?).await)
}

pub(super) async fn change(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let id = id_of(asked)?;
    let body: WebhookPatch = asked.body(|value, flaws| {
        check_url(asked, value, flaws);
        if flaws.is_empty() && ["url", "events"].iter().all(|name| value[name].is_null()) {
            flaws.at("", "must have `url`, `events` or both");
        }
    })?;
    let url = match &body.url {
        Some(url) => Some(canonical(asked, url)?),
        None => None,
    };
    let events = body.events.as_deref().map(dto::set_of);
    let change = WebhookChange { url, events };
    let changed = asked.store().change_webhook(asked.workspace, id, change).await;
    asked.state.mailbox.changed(id);
    shown(asked, changed)
}

pub(super) async fn delete(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let id = id_of(asked)?;
    let deleted = asked.store().delete_webhook(asked.workspace, id).await;
    if !deleted.map_err(|error| asked.failed(&error))? {
        return Err(problems::not_found());
    }
    asked.state.mailbox.changed(id);
    Ok(Reply { status: 204, headers: Vec::new(), body: bytes::Bytes::new() })
}

pub(super) async fn reactivate(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let id = id_of(asked)?;
    let Nothing {} = asked.body(|_, _| {})?;
    let reactivated = asked.store().reactivate(asked.workspace, id, asked.now).await;
    asked.state.mailbox.changed(id);
    shown(asked, reactivated)
}

pub(super) async fn rotate_secret(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let id = id_of(asked)?;
    let Nothing {} = asked.body(|_, _| {})?;
    let secret = new_secret()?;
    let overlap = asked.active.settings.secrets.rotation_overlap;
    let rotation = Rotation { secret: Secret::new(secret.clone()), overlap };
    let rotated = asked.store().rotate(asked.workspace, id, rotation).await;
    match rotated.map_err(|error| asked.failed(&error))? {
        Rotated::Webhook(_) => asked.state.mailbox.changed(id),
        Rotated::TooMany { free_in } => return Err(too_many_secrets(free_in)),
        Rotated::Absent => return Err(problems::not_found()),
    }
    let until = asked.now.plus(overlap);
    let id = asked.store().ids().webhook(id);
    Ok(json(200, &RotatedSecret { id, secret, previous_valid_until: Time(until) }))
}

pub(super) async fn ping(asked: &Asked<'_>) -> Result<Reply, Reply> {
    let id = id_of(asked)?;
    let Nothing {} = asked.body(|_, _| {})?;
    let webhook = found(asked, asked.store().webhook(asked.workspace, id).await)?;
    if webhook.paused_at.is_some() {
        let detail = "The webhook is paused, so no test is sent to it: reactivate it first.";
        let title = "The webhook is paused";
        return Err(Reply::problem(&problems::plain(409, "webhook-paused", title, detail)));
    }
    if webhook.probing.is_some() && waits(asked, id).await? {
        let detail = "One delivery is on its way to see whether the endpoint is back; a test would \
            wait for it. See the deliveries that wait.";
        let title = "The webhook was reactivated, and has not answered yet";
        return Err(Reply::problem(&problems::plain(409, "webhook-probing", title, detail)));
    }
    let event = event::ping(asked.workspace, &random::<{ event::ID_RANDOM_BYTES }>()?, asked.now);
    let sent = asked.store().ping(asked.workspace, id, event, asked.now).await;
    let arrival = found(asked, sent)?;
    let ready = &arrival.ready;
    let delivery = Delivery {
        id: ready.id,
        event_id: Arc::clone(&ready.event_id),
        webhook: id,
        kind: ready.kind,
        state: DeliveryState::Waiting,
        attempts: 0,
        created_at: ready.created_at,
        due: ready.due,
        first_attempt_at: None,
        paused_before: ready.paused_before,
        ended_at: None,
        last_outcome: None,
    };
    asked.state.mailbox.arrived(vec![arrival]);
    Ok(json(202, &deliveries::shown(asked, &delivery).await?))
}

/// Whether a delivery waits for a webhook, or is on its way. After a reactivation the oldest goes
/// first; where there is none, a test may be it.
async fn waits(asked: &Asked<'_>, id: WebhookId) -> Result<bool, Reply> {
    let queue = asked.state.store.load(id).await.map_err(|error| asked.failed(&error))?;
    Ok(queue.is_some_and(|queue| queue.due.is_some()))
}

/// The webhook that the path names.
fn id_of(asked: &Asked<'_>) -> Result<WebhookId, Reply> {
    asked.store().ids().webhook_of(asked.id).ok_or_else(problems::not_found)
}

fn found<T>(asked: &Asked<'_>, answer: Result<Option<T>, StoreError>) -> Result<T, Reply> {
    answer.map_err(|error| asked.failed(&error))?.ok_or_else(problems::not_found)
}

fn shown(asked: &Asked<'_>, answer: Result<Option<Webhook>, StoreError>) -> Result<Reply, Reply> {
    Ok(json(200, &WebhookView::of(asked.store().ids(), &found(asked, answer)?)))
}

/// What is wrong with the URL of a body, beside what its schema says.
fn check_url(asked: &Asked<'_>, body: &Value, flaws: &mut Flaws) {
    if let Some(text) = body.get("url").and_then(Value::as_str)
        && let Err(why) = asked.active.egress.canonical(text)
    {
        flaws.at("/url", why);
    }
}

/// The canonical form of a URL that may be called. What its host's name leads to is looked at when
/// it is called: see [`crate::delivery::egress`].
fn canonical(asked: &Asked<'_>, text: &str) -> Result<Arc<str>, Reply> {
    let url = asked.active.egress.canonical(text);
    let url = url.map_err(|why| http_errors::unprocessable(&Flaw::at("/url", why).into()))?;
    Ok(url.as_str().into())
}

fn new_secret() -> Result<String, Reply> {
    Ok(format!("{SECRET_PREFIX}{}", STANDARD.encode(random::<SECRET_BYTES>()?)))
}

/// A webhook there would wait for ever: no event can name its workspace.
fn no_workspace(name: &str, form: &IdForm) -> Reply {
    let detail = format!(
        "`{name}` is not a workspace id, which is {form} (identifiers.workspace_prefix sets \
         another prefix): no event can name it."
    );
    Reply::problem(&problems::plain(422, "invalid-workspace", "Not a workspace id", detail))
}

/// As many earlier secrets sign as may: to stop one early would cut its receiver off.
fn too_many_secrets(free_in: Duration) -> Reply {
    let seconds = free_in.as_secs().saturating_add(1);
    let detail = format!(
        "{SECRETS_BEFORE_MAX} earlier secrets of this webhook still sign, and none of them is \
         stopped early; rotate again in {seconds} s."
    );
    let title = "Too many rotations";
    Reply::problem(&problems::plain(429, "too-many-rotations", title, detail))
        .with("retry-after", seconds.to_string())
}

fn too_many(asked: &Asked<'_>) -> Reply {
    let most = asked.active.settings.webhooks.per_workspace_max;
    let detail = format!("A workspace has at most {most} webhooks; delete one first.");
    Reply::problem(&problems::plain(409, "too-many-webhooks", "Too many webhooks", detail))
}
