//! Webhooks: creates, reads, changes, deletes and reactivates them.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, named_params};
use weir_common::time::UnixTime;

use crate::domain::event::EventSet;
use crate::domain::health::Health;
use crate::domain::id::{EndpointId, WebhookId};
use crate::domain::webhook::Webhook;
use crate::domain::webhook::client_certificate::ClientCertificate;
use crate::domain::webhook::options::WebhookOptions;
use crate::domain::webhook::signing_key::SigningKey;
use crate::domain::webhook::stop::Stop;
use crate::store::StoreError;
use crate::store::encryption::{Content, NONCE_BYTES, Sealer};
use crate::store::mail::MailKind;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at, select_webhooks};
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::sqlite::{health, outbox, stops};
use crate::store::types::{Changed, Created, KeyChange, NewWebhook, Page, WebhookChange};

const ONE: &str = select_webhooks!("WHERE w.id = ?1 AND w.deleted_up_to IS NULL");

const PAGE: &str = select_webhooks!(
    "WHERE w.workspace = ?1 AND w.id > ?2 AND w.deleted_up_to IS NULL ORDER BY w.id LIMIT ?3"
);

/// As [`PAGE`], of all workspaces: nothing is `?1`.
const PAGE_OF_ALL: &str =
    select_webhooks!("WHERE w.id > ?2 AND w.deleted_up_to IS NULL ORDER BY w.id LIMIT ?3");

const HOW_MANY: &str = "SELECT count(*) FROM webhooks \
    WHERE workspace = (SELECT id FROM workspaces WHERE name = ?1) AND deleted_up_to IS NULL";

/// Registers a webhook, unless its workspace has the maximum.
pub(super) fn create(
    session: &mut WriteSession,
    new: NewWebhook,
    nonces: Nonces,
    now: UnixTime,
) -> Result<Created, Fault> {
    let mut query = session.conn.prepare_cached(HOW_MANY)?;
    let there = query.query_row([&*new.workspace], |row| rows::unsigned(row, 0))?;
    drop(query);
    if there >= new.webhooks_max {
        return Ok(Created::TooMany);
    }
    register_types(&session.conn, &new.events)?;
    let workspace = rows::workspace(&session.conn, &new.workspace)?;
    let endpoint = endpoint(&session.conn, &new.url)?;
    session.counters.webhooks_made += 1;
    session.counters.webhooks += 1;
    let id = WebhookId(session.counters.webhooks_made);
    let health = health::json(&Health::default())?;
    let sql = "INSERT INTO webhooks \
        (id, workspace, endpoint, subscribed, created_at, secret_created_at, secret, health) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6, ?7)";
    let sealed = session.sealer.seal((id, Content::Secret), new.secret.expose(), nonces.secret);
    let row = (id.0, workspace, endpoint, new.events.to_string(), at(now), sealed, health);
    session.conn.prepare_cached(sql)?.execute(row)?;
    if new.options != WebhookOptions::default() {
        set_options(session, id, &new.options, &nonces)?;
    }
    if new.signing_key.is_some() {
        set_signing_key(session, id, new.signing_key.as_ref(), nonces.signing_key)?;
    }
    let made = load(&session.conn, &session.sealer, id)?;
    made.map(|made| Created::Webhook(Box::new(made)))
        .ok_or_else(|| Fault::Damaged("a new webhook is not there".into()))
}

/// Registers the types of a set, so that they are known also once no event may have them.
fn register_types(conn: &Connection, set: &EventSet) -> rusqlite::Result<()> {
    set.types().try_for_each(|one| rows::code_of(conn, one).map(drop))
}

fn set_options(
    session: &WriteSession,
    id: WebhookId,
    options: &WebhookOptions,
    nonces: &Nonces,
) -> Result<(), Fault> {
    let damaged = |error: serde_json::Error| Fault::Damaged(error.to_string());
    let labels = options.labels.as_deref();
    let metadata = labels.map(|labels| &labels.metadata).filter(|metadata| !metadata.is_empty());
    let metadata = metadata.map(serde_json::to_string).transpose().map_err(damaged)?;
    let seal = |content, plain: Option<String>, nonce| {
        plain.map(|plain| session.sealer.seal((id, content), &plain, nonce))
    };
    let headers = seal(Content::Headers, options.headers.stored(), nonces.headers);
    let certificate = options.client_certificate.as_ref().and_then(ClientCertificate::stored);
    let certificate = seal(Content::ClientCertificate, certificate, nonces.certificate);
    let sql = "UPDATE webhooks SET description = :description, metadata = :metadata, \
        headers = :headers, all_answers = :all_answers, \
        requests_per_minute = :requests_per_minute, client_certificate = :certificate \
        WHERE id = :id";
    session.conn.prepare_cached(sql)?.execute(named_params! {
        ":description": labels.and_then(|labels| labels.description.as_deref()),
        ":metadata": metadata,
        ":headers": headers,
        ":all_answers": options.all_answers,
        ":requests_per_minute": options.requests_per_minute,
        ":certificate": certificate,
        ":id": id.0,
    })?;
    Ok(())
}

fn set_signing_key(
    session: &WriteSession,
    id: WebhookId,
    key: Option<&SigningKey>,
    nonce: [u8; NONCE_BYTES],
) -> Result<(), Fault> {
    let seal = |key: &SigningKey| {
        session.sealer.seal((id, Content::SigningKey), key.stored().expose(), nonce)
    };
    let sql = "UPDATE webhooks SET signing_key = ?2 WHERE id = ?1";
    session.conn.prepare_cached(sql)?.execute((id.0, key.map(seal)))?;
    Ok(())
}

/// The number of a URL's endpoint, which is created if there is none.
fn endpoint(conn: &Connection, url: &str) -> rusqlite::Result<i64> {
    if let Some(EndpointId(id)) = endpoint_of(conn, url)? {
        let sql =
            "UPDATE endpoints SET unused_since = NULL WHERE id = ?1 AND unused_since IS NOT NULL";
        conn.prepare_cached(sql)?.execute([id])?;
        return Ok(id);
    }
    conn.prepare_cached("INSERT INTO endpoints (url) VALUES (?1)")?.execute([url])?;
    Ok(conn.last_insert_rowid())
}

/// The endpoint of a URL, if there is one.
pub(super) fn endpoint_of(conn: &Connection, url: &str) -> rusqlite::Result<Option<EndpointId>> {
    let sql = "SELECT id FROM endpoints WHERE url = ?1";
    conn.prepare_cached(sql)?.query_row([url], |row| row.get(0).map(EndpointId)).optional()
}

/// Records since when an endpoint is unused, if no webhook names it.
pub(super) fn mark_unused(session: &WriteSession, endpoint: i64) -> rusqlite::Result<()> {
    let sql = "UPDATE endpoints SET unused_since = ?2 WHERE id = ?1 AND unused_since IS NULL \
        AND NOT EXISTS (SELECT 1 FROM webhooks WHERE endpoint = ?1)";
    session.conn.prepare_cached(sql)?.execute((endpoint, at(session.steady.now()))).map(drop)
}

/// A webhook of any workspace.
pub(super) fn load(
    conn: &Connection,
    sealer: &Sealer,
    id: WebhookId,
) -> Result<Option<Webhook>, Fault> {
    let mut query = conn.prepare_cached(ONE)?;
    let mut found = query.query([id.0])?;
    found.next()?.map(|row| rows::webhook(row, sealer)).transpose()
}

/// A webhook of a workspace.
pub(super) fn of_workspace(
    conn: &Connection,
    sealer: &Sealer,
    workspace: &str,
    id: WebhookId,
) -> Result<Option<Webhook>, Fault> {
    Ok(load(conn, sealer, id)?.filter(|webhook| *webhook.workspace == *workspace))
}

/// A page of a workspace's webhooks, or of those of all, oldest first: of `limit` rows, those that
/// `read` makes something of.
pub(super) fn page(
    conn: &Connection,
    workspace: Option<&str>,
    after: Option<WebhookId>,
    limit: usize,
    read: impl Fn(&Row<'_>) -> Result<Option<Webhook>, Fault>,
) -> Result<Page<Webhook, WebhookId>, Fault> {
    let (sql, workspace) = match workspace {
        None => (PAGE_OF_ALL, 0),
        Some(name) => match rows::workspace_of(conn, name)? {
            Some(number) => (PAGE, number),
            None => return Ok(Page { items: Vec::new(), next: None }),
        },
    };
    let mut query = conn.prepare_cached(sql)?;
    let after = after.map_or(0, |id| id.0);
    let one_more = rows::count(limit.saturating_add(1));
    let mut found = query.query((workspace, after, one_more))?;
    let (mut items, mut examined, mut last) = (Vec::new(), 0, None);
    while let Some(row) = found.next()? {
        if examined == limit {
            return Ok(Page { items, next: last });
        }
        examined += 1;
        last = Some(WebhookId(row.get("id")?));
        items.extend(read(row)?);
    }
    Ok(Page { items, next: None })
}

/// Changes a webhook.
pub(super) fn change(
    session: &mut WriteSession,
    (workspace, id): (&str, WebhookId),
    change: WebhookChange,
    nonces: Nonces,
    now: UnixTime,
) -> Result<Changed, Fault> {
    let conn = &session.conn;
    let Some(before) = of_workspace(conn, &session.sealer, workspace, id)? else {
        return Ok(Changed::Absent);
    };
    if change.seen.is_some_and(|seen| !seen.has_settings_of(&before)) {
        return Ok(Changed::Overtaken);
    }
    let options = match before.options.changed(change.options) {
        Ok(options) => options,
        Err(limit) => return Ok(Changed::Refused(limit)),
    };
    if options != before.options {
        set_options(session, id, &options, &nonces)?;
    }
    match change.signing_key {
        KeyChange::Keep => {}
        KeyChange::Have(key) if before.secrets.signing_key.is_none() => {
            set_signing_key(session, id, Some(&key), nonces.signing_key)?;
        }
        KeyChange::Have(_) => {}
        KeyChange::Remove => set_signing_key(session, id, None, nonces.signing_key)?,
    }
    if let Some(url) = change.url {
        let endpoint = endpoint(conn, &url)?;
        let sql = "UPDATE webhooks SET endpoint = ?2 WHERE id = ?1";
        conn.prepare_cached(sql)?.execute((id.0, endpoint))?;
        mark_unused(session, before.endpoint.0)?;
        if endpoint != before.endpoint.0 {
            health::begin_anew(session, &before)?;
        }
    }
    if let Some(events) = change.events {
        register_types(conn, &events)?;
        let sql = "UPDATE webhooks SET subscribed = ?2 WHERE id = ?1";
        conn.prepare_cached(sql)?.execute((id.0, events.to_string()))?;
    }
    match change.disabled {
        Some(true) => {
            let sql = "UPDATE webhooks SET disabled_at = coalesce(disabled_at, ?2) WHERE id = ?1";
            conn.prepare_cached(sql)?.execute((id.0, at(now)))?;
            // A pause outlives it, but nothing that is sent fails any more.
            outbox::withdraw(conn, id, &[MailKind::Warning], "", session.steady.now())?;
        }
        Some(false) => enable(session, &before, now)?,
        None => {}
    }
    let after = load(&session.conn, &session.sealer, id)?;
    Ok(after.map_or(Changed::Absent, |after| Changed::Webhook(Box::new(after))))
}

/// Random bytes to encrypt with, other ones for each part of a webhook.
#[derive(Clone, Copy)]
pub(super) struct Nonces {
    pub(super) secret: [u8; NONCE_BYTES],
    pub(super) headers: [u8; NONCE_BYTES],
    pub(super) signing_key: [u8; NONCE_BYTES],
    pub(super) certificate: [u8; NONCE_BYTES],
}

impl Nonces {
    pub(super) fn random() -> Result<Self, StoreError> {
        Ok(Self {
            secret: nonce()?,
            headers: nonce()?,
            signing_key: nonce()?,
            certificate: nonce()?,
        })
    }
}

/// Random bytes to encrypt with.
pub(super) fn nonce() -> Result<[u8; NONCE_BYTES], StoreError> {
    let mut nonce = [0; NONCE_BYTES];
    let failed = |error: getrandom::Error| StoreError::Unavailable(error.to_string().into());
    getrandom::fill(&mut nonce).map_err(failed)?;
    Ok(nonce)
}

/// Deletes a webhook. `retention` drops its waiting deliveries in steps.
pub(super) fn delete(
    session: &mut WriteSession,
    workspace: &str,
    id: WebhookId,
) -> Result<bool, Fault> {
    let Some(workspace) = rows::workspace_of(&session.conn, workspace)? else { return Ok(false) };
    // The sweep needs the row; the secrets are removed at once.
    let sql = "UPDATE webhooks SET deleted_up_to = ?3, secret = x'', secrets_before = NULL, \
        headers = NULL, signing_key = NULL, client_certificate = NULL \
        WHERE id = ?1 AND workspace = ?2 AND deleted_up_to IS NULL";
    let newest = session.counters.deliveries_made;
    let gone = session.conn.prepare_cached(sql)?.execute((id.0, workspace, newest))? > 0;
    if gone {
        session.counters.webhooks = session.counters.webhooks.saturating_sub(1);
        outbox::withdraw(&session.conn, id, &MailKind::ALL, "", session.steady.now())?;
    }
    Ok(gone)
}

/// Ends a webhook's pause.
pub(super) fn reactivate(
    session: &mut WriteSession,
    workspace: &str,
    id: WebhookId,
    now: UnixTime,
) -> Result<Option<Webhook>, Fault> {
    let Some(webhook) = of_workspace(&session.conn, &session.sealer, workspace, id)? else {
        return Ok(None);
    };
    if webhook.paused_at.is_none() {
        return Ok(Some(webhook));
    }
    resume(session, &webhook, now)?;
    // What else stops it does so from now on: the time before counts as the pause's.
    let sql = "UPDATE webhooks SET disabled_at = ?2, secret_lost_at = ?3 WHERE id = ?1";
    let again = |since: Option<UnixTime>| since.map(|_| at(now));
    let row = (id.0, again(webhook.disabled_at), again(webhook.secret_lost_at()));
    session.conn.prepare_cached(sql)?.execute(row)?;
    load(&session.conn, &session.sealer, id)
}

/// Ends the disabling of a webhook by its owner.
fn enable(session: &WriteSession, webhook: &Webhook, now: UnixTime) -> Result<(), Fault> {
    if webhook.disabled_at.is_none() {
        return Ok(());
    }
    let Some(since) = webhook.stopped_since() else { return Ok(()) };
    // It stays stopped for another reason, from when nothing was sent any more.
    let sql = if webhook.paused_at.is_some() {
        "UPDATE webhooks SET disabled_at = NULL, paused_at = ?2 WHERE id = ?1"
    } else if webhook.secret_lost_at().is_some() {
        "UPDATE webhooks SET disabled_at = NULL, secret_lost_at = ?2 WHERE id = ?1"
    } else {
        return resume(session, webhook, now);
    };
    session.conn.prepare_cached(sql)?.execute((webhook.id.0, at(since)))?;
    Ok(())
}

/// Ends the stop of a webhook whose secrets were lost: it has a new one.
pub(super) fn secret_found(
    session: &WriteSession,
    webhook: &Webhook,
    now: UnixTime,
) -> Result<(), Fault> {
    if webhook.secret_lost_at().is_none() {
        return Ok(());
    }
    let steady = session.steady.now();
    outbox::withdraw(&session.conn, webhook.id, &[MailKind::SecretLost], "", steady)?;
    let Some(since) = webhook.stopped_since() else { return Ok(()) };
    let sql = if webhook.disabled_at.is_some() {
        "UPDATE webhooks SET secret_lost_at = NULL, disabled_at = ?2 WHERE id = ?1"
    } else if webhook.paused_at.is_some() {
        "UPDATE webhooks SET secret_lost_at = NULL, paused_at = ?2 WHERE id = ?1"
    } else {
        return resume(session, webhook, now);
    };
    session.conn.prepare_cached(sql)?.execute((webhook.id.0, at(since)))?;
    Ok(())
}

/// Ends the time without deliveries: the health starts anew, and so do the waiting deliveries, in
/// order, one of them first.
fn resume(session: &WriteSession, webhook: &Webhook, now: UnixTime) -> Result<(), Fault> {
    let steady = session.steady.now();
    outbox::withdraw(&session.conn, webhook.id, &MailKind::OF_HEALTH, "", steady)?;
    if let Some(from) = webhook.stopped_since().filter(|from| *from < now) {
        stops::record(&session.conn, webhook.id, Stop { from, until: now })?;
    }
    let stopped = webhook.stopped_since().map_or(Duration::ZERO, |since| now.since(since));
    // At least 1 µs, however the clock was set: `paused_total` must change, so that updates from
    // before are ignored.
    let total = webhook.paused_total + stopped.max(Duration::from_micros(1));
    let sql = "UPDATE webhooks SET paused_at = NULL, disabled_at = NULL, secret_lost_at = NULL, \
        paused_total = :total, health = :health, look_at = NULL, probing = 0, reordering = 1 \
        WHERE id = :id";
    session.conn.prepare_cached(sql)?.execute(named_params! {
        ":total": rows::span(total),
        ":health": health::json(&webhook.health.reactivated())?,
        ":id": webhook.id.0,
    })?;
    Ok(())
}

/// The webhooks of a workspace that are not deleted.
pub(super) fn alive(conn: &Connection, workspace: i64) -> rusqlite::Result<Vec<i64>> {
    let sql = "SELECT id FROM webhooks WHERE workspace = ?1 AND deleted_up_to IS NULL ORDER BY id";
    conn.prepare_cached(sql)?.query_map([workspace], |row| row.get(0))?.collect()
}
