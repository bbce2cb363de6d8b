//! An operator's session in a browser: a cookie that the admin listener's token signs. (core)
//!
//! Nothing of it is kept: only a process that knows the token can have made the cookie.
//!
//! # Invariants
//!
//! 1. A session ends when its time is over, and when the token changes.
//! 2. The cookie does not lead back to the token, and opens one program only.
//! 3. A form is accepted only with the token of its own session.
//!
//! Not here: which pages need one (`pages`).

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac::{HMAC_SHA256, Key, sign, verify};

use crate::time::UnixTime;

/// How long a session lasts: a night on call.
pub(super) const LASTS: Duration = Duration::from_secs(12 * 3_600);

/// Bytes that make each session another one.
pub(super) const NONCE_BYTES: usize = 16;

/// Signs the sessions of one program.
pub(super) struct SessionKey(Key);

impl SessionKey {
    /// The key of sessions that `secret` opens in `program`.
    pub(super) fn new(program: &str, secret: &[u8]) -> Self {
        let of_secret = Key::new(HMAC_SHA256, secret);
        let purpose = format!("session of an operator of {program}");
        Self(Key::new(HMAC_SHA256, sign(&of_secret, purpose.as_bytes()).as_ref()))
    }

    /// The cookie of a session that begins now.
    pub(super) fn open(&self, nonce: [u8; NONCE_BYTES], now: UnixTime) -> String {
        let ends = now.plus(LASTS).seconds_up();
        self.signed(&format!("{ends}.{}", URL_SAFE_NO_PAD.encode(nonce)))
    }

    fn signed(&self, content: &str) -> String {
        let tag = sign(&self.0, format!("cookie {content}").as_bytes());
        format!("{content}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    /// Whether a cookie is one of ours whose session has not ended.
    pub(super) fn is_open(&self, cookie: &str, now: UnixTime) -> bool {
        let Some((content, tag)) = cookie.rsplit_once('.') else { return false };
        let Ok(tag) = URL_SAFE_NO_PAD.decode(tag) else { return false };
        let signed = verify(&self.0, format!("cookie {content}").as_bytes(), &tag).is_ok();
        let ends = content.split_once('.').and_then(|(ends, _)| ends.parse::<u64>().ok());
        signed && ends.is_some_and(|ends| now.seconds_up() < ends)
    }

    /// What each form of a session has; without a session it is that of the process.
    pub(super) fn form_token(&self, cookie: &str) -> String {
        URL_SAFE_NO_PAD.encode(sign(&self.0, format!("form {cookie}").as_bytes()))
    }

    /// Whether a form was made for this session.
    pub(super) fn permits_form(&self, cookie: &str, token: &str) -> bool {
        let token = URL_SAFE_NO_PAD.decode(token);
        let content = format!("form {cookie}");
        token.is_ok_and(|token| verify(&self.0, content.as_bytes(), &token).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_000_000_000);

    fn key(secret: &str) -> SessionKey {
        SessionKey::new("weir", secret.as_bytes())
    }

    #[test]
    fn a_session_ends_in_time_and_with_the_token() {
        let cookie = key("a").open([1; 16], NOW);
        assert!(key("a").is_open(&cookie, NOW));
        let end = NOW.plus(LASTS);
        assert!(key("a").is_open(&cookie, UnixTime(end.0 - 1_000_000)));
        assert!(!key("a").is_open(&cookie, end));
        assert!(!key("b").is_open(&cookie, NOW));
        assert!(!SessionKey::new("other", b"a").is_open(&cookie, NOW));
    }

    #[test]
    fn no_other_cookie_opens_anything() {
        let cookie = key("a").open([1; 16], NOW);
        let (content, tag) = cookie.rsplit_once('.').unwrap();
        let later = content.replacen("4", "9", 1);
        for wrong in [
            "",
            ".",
            "..",
            content,
            tag,
            &format!("{later}.{tag}"),
            &format!("{content}."),
            &format!("{content}.{}", &tag[1..]),
            // The token of a form is no cookie.
            &format!("{content}.{}", key("a").form_token(content)),
        ] {
            assert!(!key("a").is_open(wrong, NOW), "{wrong}");
        }
    }

    #[test]
    fn a_form_belongs_to_its_session() {
        let (one, other) = (key("a").open([1; 16], NOW), key("a").open([2; 16], NOW));
        let token = key("a").form_token(&one);
        assert!(key("a").permits_form(&one, &token));
        for (cookie, token) in [(&other, &*token), (&one, ""), (&one, &one), (&one, "é")] {
            assert!(!key("a").permits_form(cookie, token), "{cookie} {token}");
        }
        assert!(!key("b").permits_form(&one, &token));
    }
}
