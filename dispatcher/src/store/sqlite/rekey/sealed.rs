//! All that is sealed of each webhook: read, sealed with another key, written.
//!
//! Invariant: memory grows with a page of webhooks, not with all of them.

use rusqlite::{Connection, Row, named_params};

use crate::domain::id::WebhookId;
use crate::store::encryption::{Content, Sealer};
use crate::store::sqlite::error::Fault;
use crate::store::sqlite::rekey::{LockedDatabase, RekeyError};
use crate::store::sqlite::rows::{self, SealedSecret};
use crate::store::sqlite::webhooks;

/// Webhooks that are read at a time.
const PAGE: usize = 256;

const ROWS: &str = "SELECT w.id, s.name AS workspace, l.url, w.secret, w.secret_created_at, \
    w.secrets_before, w.headers, w.signing_key, w.client_certificate, \
    w.secret_lost_at FROM webhooks w \
    JOIN workspaces s ON s.id = w.workspace JOIN endpoints l ON l.id = w.endpoint \
    WHERE w.id > ?1 AND w.deleted_up_to IS NULL ORDER BY w.id LIMIT ?2";

/// What is sealed of a webhook.
pub(super) struct SealedRow {
    pub(super) id: WebhookId,
    pub(super) workspace: String,
    pub(super) url: String,
    /// The current one first; none if they were lost.
    secrets: Vec<SealedSecret>,
    pub(super) headers: Option<Vec<u8>>,
    pub(super) signing_key: Option<Vec<u8>>,
    pub(super) certificate: Option<Vec<u8>>,
}

impl SealedRow {
    fn of(row: &Row<'_>) -> Result<Self, Fault> {
        let is_lost = rows::time_or(row, "secret_lost_at")?.is_some();
        Ok(Self {
            id: WebhookId(row.get("id")?),
            workspace: row.get("workspace")?,
            url: row.get("url")?,
            secrets: if is_lost { Vec::new() } else { rows::secrets(row)? },
            headers: row.get("headers")?,
            signing_key: row.get("signing_key")?,
            certificate: row.get("client_certificate")?,
        })
    }

    /// Whether everything opens with a key.
    pub(super) fn opens(&self, sealer: &Sealer) -> bool {
        let secrets = self.secrets.iter().map(|one| (Content::Secret, &one.sealed));
        let headers = self.headers.iter().map(|sealed| (Content::Headers, sealed));
        let keys = self.signing_key.iter().map(|sealed| (Content::SigningKey, sealed));
        let certificates =
            self.certificate.iter().map(|sealed| (Content::ClientCertificate, sealed));
        let mut all = secrets.chain(headers).chain(keys).chain(certificates);
        all.all(|(content, sealed)| sealer.open((self.id, content), sealed).is_ok())
    }

    /// Seals everything with another key.
    pub(super) fn seal_anew(&mut self, old: &Sealer, new: &Sealer) -> Result<(), Fault> {
        let id = self.id;
        let anew = |content, sealed: &mut Vec<u8>| -> Result<(), Fault> {
            let plain = old.open((id, content), sealed)?;
            let nonce = webhooks::nonce().map_err(|error| Fault::Damaged(error.to_string()))?;
            *sealed = new.seal((id, content), plain.expose(), nonce);
            Ok(())
        };
        let mut secrets = self.secrets.iter_mut();
        secrets.try_for_each(|one| anew(Content::Secret, &mut one.sealed))?;
        self.headers.iter_mut().try_for_each(|sealed| anew(Content::Headers, sealed))?;
        self.signing_key.iter_mut().try_for_each(|sealed| anew(Content::SigningKey, sealed))?;
        let mut certificate = self.certificate.iter_mut();
        certificate.try_for_each(|sealed| anew(Content::ClientCertificate, sealed))
    }

    /// Writes what is sealed.
    pub(super) fn write(self, conn: &Connection) -> Result<(), Fault> {
        let mut secrets = self.secrets.into_iter();
        let current = secrets.next().map(|current| current.sealed).unwrap_or_default();
        let sql = "UPDATE webhooks SET secret = :secret, secrets_before = :before, \
            headers = :headers, signing_key = :signing_key, \
            client_certificate = :certificate WHERE id = :id";
        conn.prepare_cached(sql)?.execute(named_params! {
            ":secret": current,
            ":before": rows::secrets_column(secrets)?,
            ":headers": self.headers,
            ":signing_key": self.signing_key,
            ":certificate": self.certificate,
            ":id": self.id.0,
        })?;
        Ok(())
    }
}

/// Calls `act` with each webhook that is not deleted.
pub(super) fn each(
    database: &LockedDatabase,
    mut act: impl FnMut(SealedRow) -> Result<(), RekeyError>,
) -> Result<(), RekeyError> {
    let mut last = 0;
    loop {
        let page = page(&database.conn, last).map_err(|fault| database.failed(fault))?;
        let Some(end) = page.last().map(|row| row.id.0) else { return Ok(()) };
        last = end;
        page.into_iter().try_for_each(&mut act)?;
    }
}

fn page(conn: &Connection, after: i64) -> Result<Vec<SealedRow>, Fault> {
    let mut query = conn.prepare_cached(ROWS)?;
    let mut found = query.query((after, rows::count(PAGE)))?;
    let mut page = Vec::new();
    while let Some(row) = found.next()? {
        page.push(SealedRow::of(row)?);
    }
    Ok(page)
}
