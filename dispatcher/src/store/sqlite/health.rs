//! The health of webhooks on disk.
//!
//! Not here: how attempts change it (`domain::health`), the pauses that follow (`webhooks`).

use crate::domain::health::Health;
use crate::domain::webhook::Webhook;
use crate::store::mail::MailKind;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::outbox;
use crate::store::sqlite::writer::session::WriteSession;

/// A webhook's health for its column.
pub(super) fn json(health: &Health) -> Result<String, Fault> {
    serde_json::to_string(health).map_err(|error| Fault::Damaged(error.to_string()))
}

/// Forgets what attempts at a webhook's earlier URL have shown: it says nothing of the present one.
/// A webhook that is paused stays so until its owner reactivates it; one that probes begins anew,
/// as after a reactivation.
pub(super) fn begin_anew(session: &WriteSession, webhook: &Webhook) -> Result<(), Fault> {
    // `paused_total` must change, so that updates from before are ignored.
    let sql = "UPDATE webhooks SET health = ?2, look_at = NULL, last_outcome = NULL, \
        paused_total = paused_total + 1, probing = iif(probing IS NULL, NULL, 0), \
        reordering = reordering OR probing IS NOT NULL WHERE id = ?1";
    let health = json(&webhook.health.reactivated())?;
    session.conn.prepare_cached(sql)?.execute((webhook.id.0, health))?;
    if webhook.paused_at.is_none() {
        let steady = session.steady.now();
        outbox::withdraw(&session.conn, webhook.id, &MailKind::OF_HEALTH, "", steady)?;
    }
    Ok(())
}
