//! Secrets of webhooks: replaces, adds and removes them.
//!
//! Invariant: a webhook keeps one without an end, which is in the column `secret`.
//!
//! Not here: how they are read with their webhook (`rows`).

use weir_common::time::UnixTime;

use crate::domain::id::WebhookId;
use crate::domain::webhook::Webhook;
use crate::domain::webhook::secrets::SigningSecret;
use crate::store::encryption::{Content, NONCE_BYTES};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, SealedSecret};
use crate::store::sqlite::webhooks;
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::types::{Rotated, Rotation, SECRETS_BEFORE_MAX, SecretRemoval};

const SECRETS: &str =
    "SELECT secret, secret_created_at, secrets_before FROM webhooks WHERE id = ?1";

/// Makes another secret the current one. The others sign until each one's own end.
pub(super) fn rotate(
    session: &WriteSession,
    (workspace, id): (&str, WebhookId),
    rotation: &Rotation,
    nonce: [u8; NONCE_BYTES],
    now: UnixTime,
) -> Result<Rotated, Fault> {
    let (conn, sealer) = (&session.conn, &session.sealer);
    let Some(webhook) = webhooks::of_workspace(conn, sealer, workspace, id)? else {
        return Ok(Rotated::Absent);
    };
    let steady = session.steady.now();
    let mut active = active(session, &webhook, steady)?;
    if active.iter().any(|(one, _)| one.secret == rotation.secret) {
        return Ok(Rotated::Known);
    }
    if active.len() > SECRETS_BEFORE_MAX {
        let first = active.iter().filter_map(|(one, _)| one.until).min();
        return Ok(Rotated::TooMany { free_in: first.map(|until| until.since(steady)) });
    }
    if let (Some(overlap), Some((_, current))) = (rotation.overlap, active.first_mut()) {
        current.until = Some(steady.plus(overlap));
    }
    let sealed = sealer.seal((id, Content::Secret), rotation.secret.expose(), nonce);
    let current = SealedSecret { sealed, created_at: Some(now), until: None };
    put(session, id, std::iter::once(current).chain(active.into_iter().map(|(_, sealed)| sealed)))?;
    webhooks::secret_found(session, &webhook, now)?;
    let made = webhooks::load(conn, sealer, id)?;
    Ok(made.map_or(Rotated::Absent, |made| Rotated::Webhook(Box::new(made))))
}

/// Removes a secret; it signs nothing more.
pub(super) fn remove(
    session: &WriteSession,
    workspace: &str,
    id: WebhookId,
    fingerprint: &str,
) -> Result<SecretRemoval, Fault> {
    let (conn, sealer) = (&session.conn, &session.sealer);
    let Some(webhook) = webhooks::of_workspace(conn, sealer, workspace, id)? else {
        return Ok(SecretRemoval::Absent);
    };
    let mut active = active(session, &webhook, session.steady.now())?;
    let Some(at) = active.iter().position(|(one, _)| one.fingerprint() == fingerprint) else {
        return Ok(SecretRemoval::Absent);
    };
    active.remove(at);
    let Some(current) = active.iter().position(|(one, _)| one.until.is_none()) else {
        return Ok(SecretRemoval::Last);
    };
    let current = active.remove(current);
    let all = std::iter::once(current).chain(active);
    put(session, id, all.map(|(_, sealed)| sealed))?;
    Ok(SecretRemoval::Removed)
}

/// The secrets that sign now, the current one first, each with what is on disk.
fn active(
    session: &WriteSession,
    webhook: &Webhook,
    now: UnixTime,
) -> Result<Vec<(SigningSecret, SealedSecret)>, Fault> {
    let mut query = session.conn.prepare_cached(SECRETS)?;
    let mut found = query.query([webhook.id.0])?;
    let sealed = found.next()?.map(rows::secrets).transpose()?.unwrap_or_default();
    let secrets = &webhook.secrets;
    let all = std::iter::once(&secrets.current).chain(&secrets.others).cloned().zip(sealed);
    Ok(all.filter(|(one, _)| one.signs_at(now)).collect())
}

/// Stores secrets, the current one first.
fn put(
    session: &WriteSession,
    id: WebhookId,
    mut secrets: impl Iterator<Item = SealedSecret>,
) -> Result<(), Fault> {
    let current = secrets.next().ok_or_else(|| Fault::Damaged("no secret".to_owned()))?;
    let others = rows::secrets_column(secrets)?;
    let sql = "UPDATE webhooks SET secret = ?2, secret_created_at = ?3, secrets_before = ?4 \
        WHERE id = ?1";
    let row = (id.0, current.sealed, current.created_at.map(rows::at), others);
    session.conn.prepare_cached(sql)?.execute(row)?;
    Ok(())
}
