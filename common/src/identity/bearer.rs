//! Reads the bearer token of a request (RFC 6750, 2.1). (core)
//!
//! Tokens in a query or a body are not read: a query would be written to logs.
//!
//! Not here: whether the token is valid (`verifier`).

use crate::token::TOKEN_BYTES_MAX;
use http::{HeaderMap, header};

/// The content of `Authorization`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bearer<'h> {
    /// No token: no header, or another scheme.
    Missing,
    /// More than one header.
    Doubled,
    /// A header or token with invalid syntax.
    Malformed,
    /// A token.
    Token(&'h str),
}

/// The token of a request.
#[must_use]
pub fn read(headers: &HeaderMap) -> Bearer<'_> {
    let mut all = headers.get_all(header::AUTHORIZATION).iter();
    let Some(value) = all.next() else { return Bearer::Missing };
    if all.next().is_some() {
        return Bearer::Doubled;
    }
    let Ok(value) = value.to_str() else { return Bearer::Malformed };
    let (scheme, token) = value.trim().split_once(' ').unwrap_or((value.trim(), ""));
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Bearer::Missing;
    }
    let token = token.trim_start();
    let bare = token.trim_end_matches('=');
    let is_valid = !bare.is_empty()
        && token.len() <= TOKEN_BYTES_MAX
        && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte));
    if is_valid { Bearer::Token(token) } else { Bearer::Malformed }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[track_caller]
    fn check(values: &[&[u8]], read_as: Bearer<'_>) {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header::AUTHORIZATION, HeaderValue::from_bytes(value).unwrap());
        }
        assert_eq!(read(&headers), read_as, "{values:?}");
    }

    #[test]
    fn a_token_is_what_follows_bearer_in_the_one_header() {
        for value in
            ["Bearer a.b-c_d~e+f/g==", "bearer   a.b-c_d~e+f/g==", "BEARER a.b-c_d~e+f/g== "]
        {
            check(&[value.as_bytes()], Bearer::Token("a.b-c_d~e+f/g=="));
        }
        check(&[], Bearer::Missing);
        for other in ["Basic YTpi", "DPoP x", "", "Bear er", "Token Bearer", "Bearerx y"] {
            check(&[other.as_bytes()], Bearer::Missing);
        }
        let long = format!("Bearer {}", "x".repeat(TOKEN_BYTES_MAX + 1));
        for wrong in [
            "Bearer",
            "Bearer ",
            "Bearer =",
            "Bearer a b",
            "Bearer a,Basic b",
            "Bearer a\tb",
            "Bearer a, Bearer b",
            "Bearer \"a\"",
            &long,
        ] {
            check(&[wrong.as_bytes()], Bearer::Malformed);
        }
        check(&[b"Bearer \xc3\xa4"], Bearer::Malformed);
        check(&[b"Bearer a", b"Bearer a"], Bearer::Doubled);
        check(&[b"Basic a", b"Bearer a"], Bearer::Doubled);
    }
}
