//! Says what may name a workspace, an organisation or an instance.
//!
//! One spelling, no escapes: what is compared, hashed, logged and shown is always the same text.

/// The longest identifier; a DNS label, which an instance's name has to fit, allows 63.
pub const LENGTH_MAX: usize = 64;

/// Whether `text` is an identifier: `[A-Za-z0-9_-]{1,64}` (DESIGN §3, Targets).
#[must_use]
pub fn is_identifier(text: &str) -> bool {
    (1..=LENGTH_MAX).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_digits_underscores_and_hyphens_make_an_identifier() {
        for text in ["ws_acme", "A", "0-9", "_", &"x".repeat(64)] {
            assert!(is_identifier(text), "{text}");
        }
    }

    #[test]
    fn anything_else_does_not() {
        for text in ["", "a.b", "a b", "a/b", "ä", "a%20", "a;b", "a:b", &"x".repeat(65)] {
            assert!(!is_identifier(text), "{text}");
        }
    }
}
