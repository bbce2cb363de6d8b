//! The signature of a delivery (CONTRACT §5.2), and how a receiver checks it.

use bytes::Bytes;
use http::HeaderMap;

use crate::settings::Signature;

/// What is signed.
#[derive(Clone, Debug)]
pub struct Signed<'a> {
    /// The event's identifier.
    pub event_id: &'a str,
    /// The envelope.
    pub body: &'a Bytes,
    /// Seconds since 1970, of this attempt.
    pub unix_seconds: u64,
}

/// The header fields that a delivery carries: one signature for each secret.
#[must_use]
pub fn headers<'s>(
    signature: &Signature,
    signed: &Signed<'_>,
    secrets: impl Iterator<Item = &'s str>,
) -> HeaderMap {
    let _ = (signature, signed, secrets);
    HeaderMap::new()
}
