//! What goes wrong between us and SQLite, and what those are told who asked.

use rusqlite::ErrorCode;

use crate::seal::Unopened;
use crate::store::StoreError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// SQLite says so.
    #[error(transparent)]
    Sql(#[from] rusqlite::Error),
    /// What is stored makes no sense.
    #[error("{0}")]
    Damaged(String),
    /// A webhook's secret does not open.
    #[error("a secret {0}")]
    Sealed(#[from] Unopened),
}

impl Fault {
    /// Whether it is an error that whoever comes next would meet as well.
    pub(super) fn is_the_disks(&self) -> bool {
        let Self::Sql(rusqlite::Error::SqliteFailure(error, _)) = self else { return false };
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

    /// What those are told who asked.
    pub(super) fn told(&self) -> StoreError {
        let corrupt = matches!(
            self,
            Self::Sql(rusqlite::Error::SqliteFailure(error, _))
                if matches!(error.code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        );
        let cause = self.to_string().into();
        if self.is_the_disks() && !corrupt {
            StoreError::Unavailable(cause)
        } else {
            StoreError::Damaged(cause)
        }
    }
}
