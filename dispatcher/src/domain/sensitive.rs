//! Detects secrets: keys that name one, and values that have the format of one. (core)
//!
//! Not here: the search of a body for them (`catalogue::sensitive_data`).

mod embedded_json;
pub(crate) mod keys;
pub(crate) mod never_allowed;
mod normalize;
mod values;
mod within;
mod word_matcher;

/// The kind of secret that a text is, or that it contains; `None` if there is none.
pub(crate) fn secret(text: &str) -> Option<&'static str> {
    values::secret(text).or_else(|| within::secret(text))
}

/// Whether a key mixes Latin letters and look-alikes, to imitate another key.
pub(crate) fn is_disguised(key: &str) -> bool {
    normalize::plain(key).is_none()
}
