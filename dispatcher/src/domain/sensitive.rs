//! Detects secrets: keys that name one, and values that have the format of one. (core)
//!
//! Not here: the search of a body for them (`catalogue::sensitive_data`).

pub(crate) mod keys;
pub(crate) mod never_allowed;
mod normalize;
pub(crate) mod values;
mod within;
mod word_matcher;

/// Whether a key mixes Latin letters and look-alikes, to imitate another key.
pub(crate) fn is_disguised(key: &str) -> bool {
    normalize::plain(key).is_none()
}
