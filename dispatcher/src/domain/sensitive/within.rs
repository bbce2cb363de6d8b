//! Finds the secrets that are unmistakable inside of a longer text. (core)
//!
//! 1. A JWT, wherever it stands: no other text has its header.
//! 2. In a URL, a password before the host, and a parameter of the query or the fragment with a
//!    name that no setting may allow, unless its value is a yes, a no or a placeholder. Others,
//!    such as `token`, are often those of links that expire.
//! 3. In a text that is JSON, a key with such a name whose value is a text; and 1 and 2 in its
//!    strings, whatever is escaped.
//!
//! Invariant: the work is linear in the length of the text, whatever it is made of. Each letter is
//! in one part and one word, a part is decoded at most four times, and the search for a header in
//! it ends once [`READS_MAX`] times its length was read. Strings are searched again only where an
//! escape was decoded.
//!
//! Not here: texts that are a secret as a whole (`sensitive::values`), JSON (`embedded_json`).

use std::borrow::Cow;
use std::cell::OnceCell;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::domain::sensitive::values::JWT;
use crate::domain::sensitive::{embedded_json, never_allowed};

/// Values of parameters that only describe a secret: `forgot_password=1`.
const ANSWERS: [&str; 6] = ["0", "1", "true", "false", "yes", "no"];

/// How often each byte of a part may be read, on average: the headers that can begin in one may lie
/// in each other.
const READS_MAX: usize = 8;

/// The kind of secret that the text contains.
pub(super) fn secret(text: &str) -> Option<&'static str> {
    secret_of_text(text).or_else(|| embedded_json::secret(text, secret_of_text))
}

/// The kind of secret that the text contains as it is written.
fn secret_of_text(text: &str) -> Option<&'static str> {
    if has_jwt(text, &mut 0) {
        return Some(JWT);
    }
    if !text.contains(':') {
        return None;
    }
    text.split(char::is_whitespace).find_map(secret_of_url)
}

/// The kind of secret in the URLs of a word.
fn secret_of_url(word: &str) -> Option<&'static str> {
    let (_, first) = word.split_once("://")?;
    // An authority ends before the next `://`.
    if word.split("://").skip(1).any(has_password) {
        return Some("a URL with a password");
    }
    let parameters = first.split(['?', '#', '&', ';']).skip(1);
    let mut secrets = parameters.filter_map(|pair| pair.split_once('=')).filter(|(name, value)| {
        !value.is_empty()
            && !ANSWERS.iter().any(|answer| value.eq_ignore_ascii_case(answer))
            && !value.starts_with('{')
            && never_allowed::is_never(&percent_decode_str(name).decode_utf8_lossy())
    });
    secrets.next().map(|_| "a URL with a secret")
}

/// Whether a URL has a password, from its authority on.
fn has_password(url: &str) -> bool {
    let authority = url.split(['/', '?', '#']).next().unwrap_or_default();
    let Some((user, _)) = authority.rsplit_once('@') else { return false };
    let Some((_, password)) = user.split_once(':') else { return false };
    // `https://a.test:443,bob@b.test` has a port, and an address after it.
    let after = password.trim_start_matches(|digit: char| digit.is_ascii_digit());
    let is_port =
        after.len() < password.len() && after.starts_with([',', ';', '"', '\'', '(', '|']);
    !password.is_empty() && !is_port
}

/// Whether a text contains a JWT. Adds the bytes of headers that it reads to `read`.
fn has_jwt(text: &str, read: &mut usize) -> bool {
    if !text.contains(['.', '%']) {
        return false;
    }
    let text = if text.contains("%2") {
        Cow::Owned(text.replace("%2E", ".").replace("%2e", "."))
    } else {
        Cow::Borrowed(text)
    };
    let is_part = |letter: &u8| letter.is_ascii_alphanumeric() || b"_-.".contains(letter);
    let runs = text.as_bytes().split(|letter| !is_part(letter));
    runs.filter(|run| starts_of_headers(run).next().is_some()).any(|run| {
        let parts: Vec<&[u8]> = run.split(|letter| *letter == b'.').collect();
        let mut followed = parts.iter().enumerate();
        followed.any(|(at, header)| {
            let after = parts.get(at + 1..).unwrap_or_default();
            is_rest(after) && ends_in_header(header, read)
        })
    })
}

/// Whether these can be the parts after a header: claims and a signature, or those of an encrypted
/// token, of which the first may be empty.
fn is_rest(parts: &[&[u8]]) -> bool {
    matches!(parts, [[], [_, ..], [_, ..], [_, ..], ..] | [[_, ..], _, ..])
}

/// Where a header may start: with `{` and a quote, a space or a line break.
fn starts_of_headers(part: &[u8]) -> impl Iterator<Item = usize> {
    let pairs = part.windows(2).enumerate();
    pairs.filter(|(_, pair)| matches!(pair, [b'e', b'y' | b'w'])).map(|(at, _)| at)
}

/// Whether the end of a part, from whichever letter on, is the header of a token.
fn ends_in_header(part: &[u8], read: &mut usize) -> bool {
    let decoded: [OnceCell<Option<Vec<u8>>>; 4] = Default::default();
    let mut headers = starts_of_headers(part).filter_map(|at| {
        let phase = at % 4;
        let of_phase = || URL_SAFE_NO_PAD.decode(part.get(phase..)?).ok();
        decoded.get(phase)?.get_or_init(of_phase).as_deref()?.get(at / 4 * 3..)
    });
    let most = *read + READS_MAX * part.len();
    headers.any(|json| *read <= most && is_header(json, read))
}

/// Whether a text is the header of a token (RFC 7515, 7516).
fn is_header(json: &[u8], read: &mut usize) -> bool {
    #[derive(Deserialize)]
    struct Header {
        #[serde(rename = "alg")]
        _algorithm: IgnoredAny,
    }
    let mut rest = json;
    let parsed = serde_json::from_reader::<_, Header>(&mut rest);
    *read += json.len() - rest.len();
    parsed.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNED: &str = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxIn0.\
        dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";

    #[test]
    fn a_token_is_found_wherever_it_stands_in_a_text() {
        let (_, rest) = SIGNED.split_once('.').unwrap();
        for text in [
            format!("https://a.test/cb#id_token={SIGNED}&state=1"),
            format!("session=abc; id_token={SIGNED}"),
            format!("{SIGNED} {SIGNED}"),
            format!("{{\"raw\":\"{SIGNED}\"}}"),
            format!("The token was {SIGNED}."),
            format!("/backup/{SIGNED}.json"),
            format!("It was {SIGNED}.Next"),
            format!("v1.{SIGNED}"),
            format!("https://a.test/cb?x={}", SIGNED.replace('.', "%2E")),
            format!("see eyAiYWxnIjoiSFMyNTYifQ.{rest}"),
            format!("see ewogImFsZyI6ICJub25lIgp9.{rest}"),
            "see eyJhbGciOiJkaXIiLCJlbmMiOiJBMTI4R0NNIn0..aXY.Y2lwaGVy.dGFn there".to_owned(),
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
            "https://a.test/ and https://a.test/?access_token=abc",
            "https://a.test/,postgres://user:443x@db/x",
            "https://a.test/?reset_password=1&password=hunter2",
            "https://a.test/?x=1;access%5Ftoken=abc",
        ] {
            assert!(secret(url).is_some(), "{url}");
        }
        for text in [
            "https://a.test/a?q=access_token&x=1",
            "https://a.test/a?access_token=",
            "https://a.test/invoice.pdf?token=abc",
            "https://user@a.test:8080/a",
            "https://a.test/?forgot_password=1&reset_password=true&has_password=No",
            "https://a.test:443,user@b.test",
            "https://a.test/?access_token={access_token}",
            "eyJhbGciOiJIUzI1NiJ9... and so on",
            "https://a.test/@user:name",
            "access_token=abc is how the call begins",
            "eyJ.eyJ.eyJ and eyJhbGciOiJIUzI1NiJ9",
            "://",
        ] {
            assert_eq!(secret(text), None, "{text}");
        }
    }

    #[test]
    fn escapes_in_a_text_of_json_hide_no_secret() {
        let php = r#"{"url":"https:\/\/u:hunter2@x.test\/cb"}"#;
        for text in [
            php.to_owned(),
            r#"{"url":"https://x.test/cb?state=1\u0026access_token=abc"}"#.to_owned(),
            r#"["https:\/\/x.test\/cb#state=1\u0026id_token=abc"]"#.to_owned(),
            format!("{{\"raw\":\"{}\"}}", SIGNED.replace('.', r"\u002e")),
            serde_json::json!({ "body": php }).to_string(),
            php.replace('\\', r"\\").replace('"', "\\\""),
        ] {
            assert!(secret(&text).is_some(), "{text}");
        }
        for text in [
            r#"{"url":"https:\/\/x.test\/cb?state=1\u0026token_type=bearer"}"#,
            r#"{"note":"\"password\" is no part of https:\/\/u@x.test\/a?q=1"}"#,
            r#"{"path":"C:\\users","hint":"a\/password:\/b@c"}"#,
        ] {
            assert_eq!(secret(text), None, "{text}");
        }
    }

    #[test]
    fn the_work_for_a_text_grows_with_its_length_alone() {
        const BYTES: usize = 250_000;
        let encoded = |json: &str| URL_SAFE_NO_PAD.encode(json);
        let nested = encoded(&format!("{}{}", "{\"\":".repeat(120), "[0,\n".repeat(BYTES / 4)));
        for (name, text) in [
            ("starts", "eyJ".repeat(BYTES / 3)),
            ("starts and dots", "eyJ.".repeat(BYTES / 4)),
            ("objects", encoded(&"{\"\":0}".repeat(BYTES / 6))),
            ("openings", encoded(&"{\"\":".repeat(BYTES / 4))),
            ("lists in objects", nested),
        ] {
            let (text, mut read) = (format!("{text}.e30.x"), 0);
            assert!(!has_jwt(&text, &mut read), "{name}");
            assert!(read <= (READS_MAX + 1) * text.len(), "{name}: {read} of {}", text.len());
        }
    }
}
