//! One HTTP attempt, with a deadline and a cap on the answer.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use url::Url;

use crate::outcome::Outcome;

/// Makes attempts.
pub struct Courier {}

/// One attempt to make.
#[derive(Clone, Debug)]
pub struct Parcel {
    /// Where to.
    pub url: Url,
    /// The signature and its company.
    pub headers: HeaderMap,
    /// The envelope.
    pub body: Bytes,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The outcome.
    pub outcome: Outcome,
    /// How long the receiver asks us to wait.
    pub retry_after: Option<Duration>,
}

impl Courier {
    /// Makes one attempt. Never takes longer than the deadline and a moment.
    pub async fn deliver(&self, parcel: Parcel) -> Receipt {
        let _ = parcel;
        unimplemented!()
    }
}
