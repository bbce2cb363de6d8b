//! Finds the secrets that are unmistakable inside of a longer text. (core)
//!
//! 1. A JWT, wherever it stands: no other text has its header.
//! 2. In a URL, a password before the host, and a parameter of the query or the fragment with a
//!    name that no setting may allow. Others, such as `token`, are often those of links that
//!    expire.
//!
//! Not here: texts that are a secret as a whole (`sensitive::values`).

use crate::domain::sensitive::never_allowed;
use crate::domain::sensitive::values::{JWT, is_jwt};

/// How every JWT begins: the Base64 of `{"`.
const JWT_START: &str = "eyJ";

/// The kind of secret that the text contains.
pub(super) fn secret(text: &str) -> Option<&'static str> {
    if text.match_indices(JWT_START).any(|(at, _)| begins_with_jwt(text.get(at..))) {
        return Some(JWT);
    }
    let (_, rest) = text.split_once("://")?;
    let url = rest.split(char::is_whitespace).next().unwrap_or_default();
    let authority = url.split(['/', '?', '#']).next().unwrap_or_default();
    let password = authority.rsplit_once('@').and_then(|(user, _)| user.split_once(':'));
    if password.is_some_and(|(_, password)| !password.is_empty()) {
        return Some("a URL with a password");
    }
    let parameters = url.split(['?', '#', '&']).skip(1).filter_map(|pair| pair.split_once('='));
    let mut secrets =
        parameters.filter(|(name, value)| !value.is_empty() && never_allowed::is_never(name));
    secrets.next().map(|_| "a URL with a secret")
}

/// Whether a JWT is at the start of a text.
fn begins_with_jwt(text: Option<&str>) -> bool {
    let is_part = |letter: u8| letter.is_ascii_alphanumeric() || b"_-.".contains(&letter);
    let text = text.unwrap_or_default();
    let end = text.bytes().position(|letter| !is_part(letter)).unwrap_or(text.len());
    let run = text.get(..end).unwrap_or_default();
    is_jwt(run) || is_jwt(run.trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxIn0.\
        dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";

    #[test]
    fn a_token_is_found_wherever_it_stands_in_a_text() {
        for text in [
            format!("https://a.test/cb#id_token={SIGNED}&state=1"),
            format!("session=abc; id_token={SIGNED}"),
            format!("{SIGNED} {SIGNED}"),
            format!("{{\"raw\":\"{SIGNED}\"}}"),
            format!("The token was {SIGNED}."),
        ] {
            assert_eq!(secret(&text), Some(JWT), "{text}");
        }
    }

    #[test]
    fn a_url_carries_no_token_and_no_password() {
        for url in [
            "https://a.test/cb?access_token=abc",
            "see https://a.test/cb?x=1&password=hunter2 for it",
            "https://a.test/cb#state=1&id_token=abc",
            "postgres://user:hunter2@db/x",
        ] {
            assert!(secret(url).is_some(), "{url}");
        }
        for text in [
            "https://a.test/a?q=access_token&x=1",
            "https://a.test/a?access_token=",
            "https://a.test/invoice.pdf?token=abc",
            "https://user@a.test:8080/a",
            "https://a.test/@user:name",
            "access_token=abc is how the call begins",
            "eyJ.eyJ.eyJ and eyJhbGciOiJIUzI1NiJ9",
            "://",
        ] {
            assert_eq!(secret(text), None, "{text}");
        }
    }
}
