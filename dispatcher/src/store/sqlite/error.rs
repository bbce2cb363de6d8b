//! Errors of SQLite and of stored data, and the [`StoreError`] that callers get for them.

use std::path::PathBuf;

use log::Level;
use rusqlite::ErrorCode;
use weir_common::log::events;

use crate::store::StoreError;
use crate::store::encryption::Unopened;

/// An error within the store.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// An error of SQLite.
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    /// A file of the open database was removed, moved or replaced.
    #[error(
        "{} was removed, moved away or replaced while it is in use: put it back, \
         or stop the program and start it anew",
        .0.display()
    )]
    Lost(PathBuf),
    /// Stored data is invalid.
    #[error("{0}")]
    Damaged(String),
    /// A webhook's secret cannot be decrypted.
    #[error("a secret {0}")]
    Sealed(#[from] Unopened),
}

impl Fault {
    /// Whether the next call would fail for the same reason: such an error fails the whole batch.
    pub(super) fn is_disk_failure(&self) -> bool {
        let error = match self {
            Self::Sql(rusqlite::Error::SqliteFailure(error, _)) => error,
            Self::Lost(_) => return true,
            Self::Sql(_) | Self::Damaged(_) | Self::Sealed(_) => return false,
        };
        match error.code {
            ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::TooBig
            | ErrorCode::ApiMisuse
            | ErrorCode::ParameterOutOfRange
            | ErrorCode::Unknown => false,
            // Errors of the disk and the database fail the batch, and so do variants yet to come.
            _ => true,
        }
    }

    /// Logs why a row is skipped; a failure of the disk is returned.
    pub(super) fn skip(self, event: &str, (kind, id): (&str, i64)) -> Result<(), Self> {
        if self.is_disk_failure() {
            return Err(self);
        }
        let fields = [(kind, id.into()), ("cause", self.to_string().into())];
        events::event(Level::Error, event, &fields);
        Ok(())
    }

    /// The error that callers get.
    pub(super) fn store_error(&self) -> StoreError {
        let corrupt = matches!(
            self,
            Self::Sql(rusqlite::Error::SqliteFailure(error, _))
                if matches!(error.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        );
        let cause = self.to_string().into();
        if self.is_disk_failure() && !corrupt {
            StoreError::Unavailable(cause)
        } else {
            StoreError::Damaged(cause)
        }
    }
}
