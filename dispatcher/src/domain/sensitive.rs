//! What CONTRACT §6.4 forbids to send: keys that name a secret, and texts that are one.
//!
//! Not here: where in a body they stand (`ingest::sensitive_data`).

// core
pub(crate) mod keys;
// core
pub(crate) mod never_allowed;
// core
mod normalize;
// core
pub(crate) mod values;
// core
mod word_matcher;

/// Whether a key pretends to be another: it mixes letters that look alike.
pub(crate) fn is_disguised(key: &str) -> bool {
    normalize::plain(key).is_none()
}
