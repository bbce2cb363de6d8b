//! Converts rows to types and back.
//!
//! Numbers beyond SQLite's range saturate: they are times after the year 290,000.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, Row, RowIndex};
use serde::{Deserialize, Serialize};
use weir_common::time::{UnixTime, micros};

use crate::domain::attempt::Attempt;
use crate::domain::delivery::{Delivery, DeliveryState, QueuedDelivery};
use crate::domain::event::{EventSet, EventType};
use crate::domain::health::Health;
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::outcome::{Outcome, OutcomeClass};
use crate::domain::trace::Trace;
use crate::domain::transcript::Transcript;
use crate::domain::webhook::client_certificate::ClientCertificate;
use crate::domain::webhook::headers::CustomHeaders;
use crate::domain::webhook::options::{Labels, WebhookOptions};
use crate::domain::webhook::secrets::{Secrets, SigningSecret};
use crate::domain::webhook::signing_key::SigningKey;
use crate::domain::webhook::{Probe, Webhook, WebhookState};
use crate::store::encryption::{Content, Sealer};
use crate::store::sqlite::error::Fault;

/// A time for a column.
pub(super) fn at(time: UnixTime) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

/// A span of time for a column.
pub(super) fn span(duration: Duration) -> i64 {
    i64::try_from(micros(duration)).unwrap_or(i64::MAX)
}

/// A count for a `LIMIT`.
pub(super) fn count(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// A non-negative number from a column; negative ones count as 0.
pub(super) fn unsigned(row: &Row<'_>, column: impl RowIndex) -> rusqlite::Result<u64> {
    row.get(column).map(|number: i64| number.max(0).cast_unsigned())
}

/// A time from a column.
pub(super) fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<UnixTime> {
    unsigned(row, column).map(UnixTime)
}

/// A time from a column that may be empty.
pub(super) fn time_or(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<UnixTime>> {
    Ok(row.get::<_, Option<i64>>(column)?.map(|time| UnixTime(time.max(0).cast_unsigned())))
}

pub(super) fn duration(row: &Row<'_>, column: &str) -> rusqlite::Result<Duration> {
    unsigned(row, column).map(Duration::from_micros)
}

/// The code of a type, which is registered if it is new.
pub(super) fn code_of(conn: &Connection, kind: EventType) -> rusqlite::Result<i64> {
    let sql = "SELECT code FROM event_types WHERE name = ?1";
    let known = conn.prepare_cached(sql)?.query_row([kind.name()], |row| row.get(0)).optional()?;
    if let Some(code) = known {
        return Ok(code);
    }
    conn.prepare_cached("INSERT INTO event_types (name) VALUES (?1)")?.execute([kind.name()])?;
    Ok(conn.last_insert_rowid())
}

/// Every type that was ever used, the oldest first.
pub(super) fn types(conn: &Connection) -> Result<Vec<EventType>, Fault> {
    let mut query = conn.prepare_cached("SELECT name AS kind FROM event_types ORDER BY code")?;
    let (mut found, mut types) = (query.query([])?, Vec::new());
    while let Some(row) = found.next()? {
        types.push(kind(row)?);
    }
    Ok(types)
}

/// A type from the column with its name.
pub(super) fn kind(row: &Row<'_>) -> Result<EventType, Fault> {
    let name = row.get_ref("kind")?.as_str().map_err(rusqlite::Error::from)?;
    EventType::intern(name).ok_or_else(too_many_types)
}

fn too_many_types() -> Fault {
    Fault::Damaged("it has more event types than a process can hold".to_owned())
}

/// The types that a webhook subscribes to, from the column `subscribed`.
pub(super) fn subscribed(row: &Row<'_>) -> Result<EventSet, Fault> {
    let names = row.get_ref("subscribed")?.as_str().map_err(rusqlite::Error::from)?;
    EventSet::of_names(names).ok_or_else(too_many_types)
}

/// A state from its column.
pub(super) fn state(row: &Row<'_>) -> Result<DeliveryState, Fault> {
    let code = row.get("state")?;
    DeliveryState::of_code(code).ok_or_else(|| Fault::Damaged(format!("there is no state {code}")))
}

/// Selects the columns of a webhook.
macro_rules! select_webhooks {
    ($rest:literal) => {
        concat!(
            "SELECT w.id, s.name AS workspace, l.url, w.endpoint, w.subscribed, w.created_at, \
             w.secret, w.secret_created_at, w.secrets_before, w.paused_at, w.paused_total, \
             w.probing, w.reordering, w.health, w.last_outcome, w.look_at, w.description, \
             w.metadata, w.headers, w.all_answers, w.disabled_at, w.requests_per_minute, \
             w.signing_key, w.client_certificate, w.secret_lost_at FROM webhooks w \
             JOIN workspaces s ON s.id = w.workspace JOIN endpoints l ON l.id = w.endpoint ",
            $rest
        )
    };
}
pub(super) use select_webhooks;

/// A webhook from its row.
pub(super) fn webhook(row: &Row<'_>, sealer: &Sealer) -> Result<Webhook, Fault> {
    let id = WebhookId(row.get("id")?);
    Ok(Webhook {
        id,
        workspace: row.get("workspace")?,
        url: row.get("url")?,
        endpoint: EndpointId(row.get("endpoint")?),
        events: subscribed(row)?,
        created_at: time(row, "created_at")?,
        options: options(row, id, sealer)?,
        secrets: Arc::new(opened_secrets(row, id, sealer)?),
        paused_at: time_or(row, "paused_at")?,
        disabled_at: time_or(row, "disabled_at")?,
        paused_total: duration(row, "paused_total")?,
        probing: probe(row.get("probing")?),
        reordering: row.get("reordering")?,
        health: health(row, id)?,
        last_outcome: last_outcome(row)?,
    })
}

/// The state of a webhook from its row, without the rest of it.
pub(super) fn webhook_state(row: &Row<'_>) -> Result<WebhookState, Fault> {
    let disabled = [time_or(row, "disabled_at")?, time_or(row, "secret_lost_at")?];
    let health = health(row, WebhookId(row.get("id")?))?;
    Ok(WebhookState::of(disabled, time_or(row, "paused_at")?, &health))
}

fn health(row: &Row<'_>, id: WebhookId) -> Result<Health, Fault> {
    let stored = row.get_ref("health")?.as_str().map_err(rusqlite::Error::from)?;
    let damaged = |error| Fault::Damaged(format!("health of webhook {}: {error}", id.0));
    serde_json::from_str(stored).map_err(damaged)
}

fn opened_secrets(row: &Row<'_>, id: WebhookId, sealer: &Sealer) -> Result<Secrets, Fault> {
    let signing_key = signing_key(row, id, sealer)?;
    if let Some(at) = time_or(row, "secret_lost_at")? {
        return Ok(Secrets { signing_key, ..Secrets::lost(at) });
    }
    let open = |one: SealedSecret| {
        let secret = sealer.open((id, Content::Secret), &one.sealed)?;
        Ok(SigningSecret { secret, created_at: one.created_at, until: one.until })
    };
    let mut all = secrets(row)?.into_iter().map(open);
    let current = all
        .next()
        .unwrap_or_else(|| Err(Fault::Damaged(format!("no secret of webhook {}", id.0))))?;
    let others = all.collect::<Result<_, Fault>>()?;
    Ok(Secrets { current, others, signing_key })
}

fn signing_key(row: &Row<'_>, id: WebhookId, sealer: &Sealer) -> Result<Option<SigningKey>, Fault> {
    let sealed = row.get_ref("signing_key")?.as_blob_or_null().map_err(rusqlite::Error::from)?;
    let Some(sealed) = sealed else { return Ok(None) };
    let stored = sealer.open((id, Content::SigningKey), sealed)?;
    let key = SigningKey::of_stored(stored.expose());
    key.map(Some).ok_or_else(|| Fault::Damaged(format!("the signing key of webhook {}", id.0)))
}

fn options(row: &Row<'_>, id: WebhookId, sealer: &Sealer) -> Result<WebhookOptions, Fault> {
    let damaged = |what: &str| Fault::Damaged(format!("{what} of webhook {}", id.0));
    let description: Option<String> = row.get("description")?;
    let metadata: Option<String> = row.get("metadata")?;
    let metadata = metadata.map_or(Ok(BTreeMap::new()), |text| {
        serde_json::from_str(&text).map_err(|_| damaged("metadata"))
    })?;
    let labels = Labels { description, metadata };
    let headers = match row.get_ref("headers")?.as_blob_or_null().map_err(rusqlite::Error::from)? {
        Some(sealed) => {
            let stored = sealer.open((id, Content::Headers), sealed)?;
            CustomHeaders::of_stored(stored.expose()).ok_or_else(|| damaged("headers"))?
        }
        None => CustomHeaders::default(),
    };
    let sealed = row.get_ref("client_certificate")?.as_blob_or_null();
    let client_certificate = match sealed.map_err(rusqlite::Error::from)? {
        Some(sealed) => {
            let stored = sealer.open((id, Content::ClientCertificate), sealed)?;
            let certificate = ClientCertificate::of_stored(stored.expose());
            Some(certificate.ok_or_else(|| damaged("the client certificate"))?)
        }
        None => None,
    };
    Ok(WebhookOptions {
        labels: (labels != Labels::default()).then(|| Box::new(labels)),
        headers,
        all_answers: row.get("all_answers")?,
        requests_per_minute: row.get("requests_per_minute")?,
        client_certificate,
    })
}

/// A secret of a webhook, as it is on disk.
pub(super) struct SealedSecret {
    pub(super) sealed: Vec<u8>,
    pub(super) created_at: Option<UnixTime>,
    /// In steady time.
    pub(super) until: Option<UnixTime>,
}

/// An entry of the column `secrets_before`: the end of a secret, the secret sealed and in hex, and
/// when it was made, which entries of earlier versions do not have.
#[derive(Serialize, Deserialize)]
struct Entry(Option<u64>, String, #[serde(default)] Option<u64>);

/// The secrets of a webhook from their columns, the current one first.
pub(super) fn secrets(row: &Row<'_>) -> Result<Vec<SealedSecret>, Fault> {
    let damaged = |why: String| Fault::Damaged(format!("secrets of a webhook: {why}"));
    let created_at = time_or(row, "secret_created_at")?;
    let mut secrets = vec![SealedSecret { sealed: row.get("secret")?, created_at, until: None }];
    let column: Option<String> = row.get("secrets_before")?;
    let Some(column) = column else { return Ok(secrets) };
    let entries: Vec<Entry> =
        serde_json::from_str(&column).map_err(|error| damaged(error.to_string()))?;
    for Entry(until, sealed, created_at) in entries {
        let sealed = hex::decode(sealed).map_err(|error| damaged(error.to_string()))?;
        let (created_at, until) = (created_at.map(UnixTime), until.map(UnixTime));
        secrets.push(SealedSecret { sealed, created_at, until });
    }
    Ok(secrets)
}

/// Secrets for the column `secrets_before`.
pub(super) fn secrets_column(
    secrets: impl Iterator<Item = SealedSecret>,
) -> Result<Option<String>, Fault> {
    let entry = |one: SealedSecret| {
        let (until, created_at) = (one.until.map(|at| at.0), one.created_at.map(|at| at.0));
        Entry(until, hex::encode(one.sealed), created_at)
    };
    let entries: Vec<Entry> = secrets.map(entry).collect();
    if entries.is_empty() {
        return Ok(None);
    }
    let column = serde_json::to_string(&entries);
    column.map(Some).map_err(|error| Fault::Damaged(error.to_string()))
}

fn probe(column: Option<i64>) -> Option<Probe> {
    column.map(|number| match number {
        0 => Probe::Any,
        number => Probe::This(DeliveryId(number)),
    })
}

/// A probe for its column.
pub(super) fn probe_column(probe: Option<Probe>) -> Option<i64> {
    probe.map(|probe| match probe {
        Probe::Any => 0,
        Probe::This(delivery) => delivery.0,
    })
}

/// Selects the columns of a waiting delivery.
macro_rules! select_ready {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.due, d.created_at, e.name, e.body, d.attempts, d.step, \
             (SELECT t.name FROM event_types t WHERE t.code = d.kind) AS kind, \
             d.first_attempt_at, d.since, d.paused_before, d.redeliveries \
             FROM deliveries d CROSS JOIN events e ON e.id = d.event ",
            $rest
        )
    };
}
pub(super) use select_ready;

/// A waiting delivery from its row.
pub(super) fn queued_delivery(row: &Row<'_>) -> Result<QueuedDelivery, Fault> {
    Ok(QueuedDelivery {
        id: DeliveryId(row.get("id")?),
        due: time(row, "due")?,
        created_at: time(row, "created_at")?,
        event_id: row.get("name")?,
        kind: kind(row)?,
        body: Bytes::from(row.get::<_, Vec<u8>>("body")?),
        attempts: row.get("attempts")?,
        step: row.get("step")?,
        first_attempt_at: time_or(row, "first_attempt_at")?,
        since: time_or(row, "since")?,
        paused_before: duration(row, "paused_before")?,
        redeliveries: row.get("redeliveries")?,
        fresh_connection: false,
    })
}

/// Selects the columns of a delivery, as the API shows it.
macro_rules! select_deliveries {
    ($rest:literal) => {
        concat!(
            "SELECT d.id, d.event, d.webhook, d.state, d.attempts, d.created_at, d.due, \
             (SELECT t.name FROM event_types t WHERE t.code = d.kind) AS kind, \
             d.first_attempt_at, d.paused_before, d.ended_at, d.last_outcome, \
             d.tenant FROM deliveries d ",
            $rest
        )
    };
}
pub(super) use select_deliveries;

/// A delivery from its row and its event's identifier.
pub(super) fn delivery(row: &Row<'_>, event_id: Arc<str>) -> Result<Delivery, Fault> {
    Ok(Delivery {
        id: DeliveryId(row.get("id")?),
        event_id,
        webhook: WebhookId(row.get("webhook")?),
        kind: kind(row)?,
        state: state(row)?,
        attempts: row.get("attempts")?,
        created_at: time(row, "created_at")?,
        due: time(row, "due")?,
        first_attempt_at: time_or(row, "first_attempt_at")?,
        paused_before: duration(row, "paused_before")?,
        ended_at: time_or(row, "ended_at")?,
        last_outcome: last_outcome(row)?,
    })
}

/// The outcome of the last attempt, from its column.
pub(super) fn last_outcome(row: &Row<'_>) -> Result<Option<Outcome>, Fault> {
    let name: Option<String> = row.get("last_outcome")?;
    name.as_deref().map(outcome).transpose()
}

fn outcome(name: &str) -> Result<Outcome, Fault> {
    Outcome::of_name(name).ok_or_else(|| Fault::Damaged(format!("there is no outcome {name}")))
}

/// A class of outcomes from its column.
pub(super) fn outcome_class(name: &str) -> Result<OutcomeClass, Fault> {
    let damaged = || Fault::Damaged(format!("there is no class of outcomes {name}"));
    OutcomeClass::of_name(name).ok_or_else(damaged)
}

/// What an attempt came across, from its column.
pub(super) fn trace(row: &Row<'_>) -> Result<Trace, Fault> {
    let Some(stored) = row.get_ref("trace")?.as_blob_or_null().map_err(rusqlite::Error::from)?
    else {
        return Ok(Trace::default());
    };
    Trace::of_stored(stored).ok_or_else(|| Fault::Damaged("the trace of an attempt".to_owned()))
}

/// A transcript from its column.
pub(super) fn transcript(row: &Row<'_>) -> Result<Transcript, Fault> {
    let record: Vec<u8> = row.get("record")?;
    let damaged = || Fault::Damaged("the transcript of an attempt".to_owned());
    Transcript::of_stored(&record).ok_or_else(damaged)
}

/// An attempt from its row.
pub(super) fn attempt(row: &Row<'_>) -> Result<Attempt, Fault> {
    let name: String = row.get("outcome")?;
    Ok(Attempt {
        number: row.get("number")?,
        started_at: time(row, "started_at")?,
        took: duration(row, "took")?,
        outcome: outcome(&name)?,
        trace: trace(row)?,
    })
}

/// The number of a workspace; `None` if nothing was ever stored for it.
pub(super) fn workspace_of(conn: &Connection, name: &str) -> rusqlite::Result<Option<i64>> {
    let sql = "SELECT id FROM workspaces WHERE name = ?1";
    conn.prepare_cached(sql)?.query_row([name], |row| row.get(0)).optional()
}

/// The number of a workspace, which is created if there is none.
pub(super) fn workspace(conn: &Connection, name: &str) -> rusqlite::Result<i64> {
    if let Some(id) = workspace_of(conn, name)? {
        return Ok(id);
    }
    conn.prepare_cached("INSERT INTO workspaces (name) VALUES (?1)")?.execute([name])?;
    Ok(conn.last_insert_rowid())
}
