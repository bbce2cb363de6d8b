//! What goes wrong between us and SQLite, and the error that callers get.

use std::path::PathBuf;

use rusqlite::ErrorCode;

use crate::store::StoreError;
use crate::store::encryption::Unopened;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// An error of SQLite.
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    /// A file is not at its name any more.
    #[error(
        "{} was removed, moved away or replaced while it is in use: put it back, \
         or stop the program and start it anew",
        .0.display()
    )]
    Lost(PathBuf),
    /// What is stored makes no sense.
    #[error("{0}")]
    Damaged(String),
    /// A webhook's secret does not open.
    #[error("a secret {0}")]
    Sealed(#[from] Unopened),
}

impl Fault {
    /// Whether it is an error that the next caller would meet as well.
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
            // The list grows with SQLite; whatever is new had better stop a batch than pass.
            _ => true,
        }
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
