//! The queue of mails.
//!
//! # Invariants
//!
//! 1. A mail is claimed once. A claimed mail is lost in a crash rather than sent twice.
//! 2. What is newer of a webhook takes the place of what it makes untrue: no mail is sent that is
//!    no longer true, and none after one that is newer. What stays true stays.
//! 3. A mail whose recipients are to be found is replaced by theirs in one commit, so that a crash
//!    loses none of them.

use std::collections::BTreeSet;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension};
use weir_common::time::UnixTime;

use crate::domain::id::{MailId, WebhookId};
use crate::store::mail::{
    Addressing, Mail, MailKind, NewMail, Posted, QueuedMail, UnaddressedMail,
};
use crate::store::sqlite::SqliteStore;
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rows::{self, at};
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::{MailQueue, StoreError};

const DUE: &str = "SELECT m.id, m.key, m.recipient, m.subject, m.text, m.failures, \
    coalesce(m.webhook, 0) AS webhook, s.name AS workspace FROM mails m \
    LEFT JOIN webhooks w ON w.id = m.webhook LEFT JOIN workspaces s ON s.id = w.workspace \
    WHERE m.state = 0 AND m.due <= ?1 ORDER BY m.due, m.id";

const NEXT: &str = "SELECT due FROM mails WHERE state = 0 ORDER BY due, id LIMIT 1";

const UNADDRESSED: &str = "SELECT id, recipient, failures FROM mails \
    WHERE state = 5 AND due <= ?1 ORDER BY due, id LIMIT ?2";

#[async_trait]
impl MailQueue for SqliteStore {
    async fn claim_mails(
        &self,
        limit: usize,
        now: UnixTime,
        but: BTreeSet<Box<str>>,
    ) -> Result<Vec<Mail>, StoreError> {
        self.writer.run(move |session| claim(session, limit, now, but)).await
    }

    async fn posted(&self, id: MailId, posted: Posted) -> Result<bool, StoreError> {
        self.writer.run(move |session| self::posted(session, id, posted)).await
    }

    async fn unaddressed_mails(
        &self,
        limit: usize,
        now: UnixTime,
    ) -> Result<Vec<UnaddressedMail>, StoreError> {
        self.writer.run(move |session| unaddressed(&session.conn, limit, now)).await
    }

    async fn address_mail(&self, id: MailId, to: Addressing) -> Result<(), StoreError> {
        self.writer.run(move |session| address(session, id, &to)).await
    }

    async fn mail_due(&self) -> Result<Option<UnixTime>, StoreError> {
        self.writer.run(|session| due(&session.conn)).await
    }
}

/// Stores a mail, unless one with its key is stored, and withdraws what it takes the place of.
pub(super) fn store(conn: &Connection, mail: &QueuedMail, now: UnixTime) -> Result<(), Fault> {
    let (mail, to, state) = match mail {
        QueuedMail::Addressed(mail) => (mail, &*mail.to, 0),
        QueuedMail::ToOwners(workspace, mail) => (mail, &**workspace, 5),
        QueuedMail::Withdrawn(webhook) => {
            return withdraw(conn, *webhook, &MailKind::OF_HEALTH, "", now);
        }
    };
    // Each owner's mail has the same key, up to the address.
    let notice = mail.key.strip_suffix(&*mail.to).unwrap_or(&mail.key);
    let replaced = MailKind::of(&mail.key).map_or(&[][..], MailKind::replaces);
    withdraw(conn, mail.webhook, replaced, notice, now)?;
    let sql = "INSERT INTO mails (key, recipient, subject, text, state, webhook) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (key) DO NOTHING";
    let row = (&mail.key, to, &mail.subject, &mail.text, state, mail.webhook.0);
    conn.prepare_cached(sql)?.execute(row)?;
    Ok(())
}

/// Withdraws the mails of these kinds about a webhook that wait, except those whose key begins with
/// `but`, if it is not empty. One that is being sent may arrive, and is not sent again.
pub(super) fn withdraw(
    conn: &Connection,
    webhook: WebhookId,
    kinds: &[MailKind],
    but: &str,
    now: UnixTime,
) -> Result<(), Fault> {
    let sql = "UPDATE mails SET state = 7, over_at = ?3, recipient = '', subject = '', text = '' \
        WHERE webhook = ?1 AND over_at IS NULL \
        AND substr(key, 1, instr(key, ':') - 1) = ?4 \
        AND (?2 = '' OR substr(key, 1, length(?2)) <> ?2)";
    let mut withdraw = conn.prepare_cached(sql)?;
    for kind in kinds {
        withdraw.execute((webhook.0, but, at(now), kind.name()))?;
    }
    Ok(())
}

/// Due mails whose recipients are to be found.
fn unaddressed(
    conn: &Connection,
    limit: usize,
    now: UnixTime,
) -> Result<Vec<UnaddressedMail>, Fault> {
    let mut query = conn.prepare_cached(UNADDRESSED)?;
    let found = query.query_map((at(now), rows::count(limit)), |row| {
        let (id, workspace) = (MailId(row.get("id")?), row.get("recipient")?);
        Ok(UnaddressedMail { id, workspace, failures: row.get("failures")? })
    })?;
    Ok(found.collect::<rusqlite::Result<_>>()?)
}

/// Records the recipients of a mail, or that they were not found.
fn address(session: &WriteSession, id: MailId, to: &Addressing) -> Result<(), Fault> {
    let conn = &session.conn;
    let over = |state: i64| -> Result<(), Fault> {
        let sql = "UPDATE mails SET state = ?2, over_at = ?3, recipient = '', subject = '', \
            text = '' WHERE id = ?1 AND state = 5";
        conn.prepare_cached(sql)?.execute((id.0, state, at(session.steady.now())))?;
        Ok(())
    };
    match to {
        Addressing::To(owners) => {
            let sql = "INSERT INTO mails (key, recipient, subject, text, webhook) \
                SELECT key || ?2, ?2, subject, text, webhook FROM mails \
                WHERE id = ?1 AND state = 5 \
                ON CONFLICT (key) DO NOTHING";
            for owner in owners {
                conn.prepare_cached(sql)?.execute((id.0, owner))?;
            }
            over(6)
        }
        Addressing::Abandoned => over(3),
        Addressing::Again(due) => {
            let sql = "UPDATE mails SET failures = failures + 1, due = ?2 \
                WHERE id = ?1 AND state = 5";
            conn.prepare_cached(sql)?.execute((id.0, at(*due)))?;
            Ok(())
        }
    }
}

/// Claims due mails: one of each workspace, and none of those in `but`.
pub(super) fn claim(
    session: &WriteSession,
    limit: usize,
    now: UnixTime,
    mut but: BTreeSet<Box<str>>,
) -> Result<Vec<Mail>, Fault> {
    let mut query = session.conn.prepare_cached(DUE)?;
    let mut claim = session.conn.prepare_cached("UPDATE mails SET state = 1 WHERE id = ?1")?;
    let mut found = query.query([at(now)])?;
    let mut mails = Vec::new();
    while mails.len() < limit
        && let Some(row) = found.next()?
    {
        let workspace: Option<Box<str>> = row.get("workspace")?;
        if workspace.clone().is_some_and(|workspace| !but.insert(workspace)) {
            continue;
        }
        let mail = NewMail {
            webhook: WebhookId(row.get("webhook")?),
            to: row.get("recipient")?,
            subject: row.get("subject")?,
            text: row.get("text")?,
            key: row.get("key")?,
        };
        let failures = row.get("failures")?;
        mails.push(Mail { id: MailId(row.get("id")?), mail, workspace, failures });
    }
    drop(found);
    for mail in &mails {
        claim.execute([mail.id.0])?;
    }
    Ok(mails)
}

/// Records the result of a mail, unless it was withdrawn meanwhile. Once it was sent or abandoned,
/// only its key is kept.
pub(super) fn posted(session: &WriteSession, id: MailId, posted: Posted) -> Result<bool, Fault> {
    let over = "UPDATE mails SET state = ?2, over_at = ?3, recipient = '', subject = '', \
        text = '' WHERE id = ?1 AND state = 1";
    let now = at(session.steady.now());
    let changed = match posted {
        Posted::Sent => session.conn.prepare_cached(over)?.execute((id.0, 2, now))?,
        Posted::Abandoned => session.conn.prepare_cached(over)?.execute((id.0, 3, now))?,
        Posted::Again(due) => {
            let sql = "UPDATE mails SET state = 0, failures = failures + 1, due = ?2 \
                WHERE id = ?1 AND state = 1";
            session.conn.prepare_cached(sql)?.execute((id.0, at(due)))?
        }
    };
    Ok(changed > 0)
}

/// When the next mail is due.
pub(super) fn due(conn: &Connection) -> Result<Option<UnixTime>, Fault> {
    let mut query = conn.prepare_cached(NEXT)?;
    Ok(query.query_row([], |row| rows::time(row, "due")).optional()?)
}
