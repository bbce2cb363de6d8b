//! Detects secrets: keys that name one, and values that have the format of one. (core)
//!
//! Not here: where they are in a body (`ingest::sensitive_data`).

pub(crate) mod keys;
pub(crate) mod never_allowed;
mod normalize;
pub(crate) mod values;
mod word_matcher;

/// Whether a key imitates another one: it mixes Latin letters and look-alikes.
pub(crate) fn is_disguised(key: &str) -> bool {
    normalize::plain(key).is_none()
}
