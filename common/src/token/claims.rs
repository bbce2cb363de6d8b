//! The claims of a token (RFC 7519), which token introspection returns in the same form (RFC 7662).
//!
//! Not here: which of them a token must have (`token`), what they permit (the gateway).

use std::time::Duration;

use serde_json::{Map, Value};

use crate::identifier::is_identifier;
use crate::json;
use crate::time::{UnixTime, micros};
use crate::token::Flaw;

/// The most names read from one claim: a token of 8 KiB has room for more only if they are short.
pub const NAMES_MAX: usize = 256;

/// A token's claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims(Map<String, Value>);

impl Claims {
    /// Parses claims; `None` if they are not an object, or have a duplicate member.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        json::object(bytes).ok().map(Self)
    }

    /// Whether a claim is present and `true`.
    #[must_use]
    pub fn is_true(&self, claim: &str) -> bool {
        self.0.get(claim) == Some(&Value::Bool(true))
    }

    /// Whether a claim is present and `true` or `false`.
    #[must_use]
    pub fn has_flag(&self, claim: &str) -> bool {
        self.0.get(claim).is_some_and(Value::is_boolean)
    }

    /// Checks the issuer.
    ///
    /// # Errors
    ///
    /// If `iss` is another issuer, or missing.
    pub fn check_issuer(&self, issuer: &str) -> Result<(), Flaw> {
        let found = self.0.get("iss").and_then(Value::as_str);
        if found == Some(issuer) { Ok(()) } else { Err(Flaw::Issuer) }
    }

    /// Checks that the token is meant for one of `audience`.
    ///
    /// # Errors
    ///
    /// If `aud` has none of them, is missing, or is malformed.
    pub fn check_audience(&self, audience: &[String]) -> Result<(), Flaw> {
        let is_meant =
            |name: &Value| name.as_str().is_some_and(|name| audience.iter().any(|a| a == name));
        let meant = match self.0.get("aud") {
            Some(Value::Array(all)) => all.iter().all(Value::is_string) && all.iter().any(is_meant),
            Some(one) => is_meant(one),
            None => false,
        };
        if meant { Ok(()) } else { Err(Flaw::Audience) }
    }

    /// Checks that the token is valid now, and returns when it expires, leeway included; `None`
    /// without `exp`.
    ///
    /// # Errors
    ///
    /// If it is not valid, or one of its times is malformed.
    pub fn check_time(&self, now: UnixTime, leeway: Duration) -> Result<Option<UnixTime>, Flaw> {
        let expires = self.check_end(now, leeway)?;
        self.check_start(now, leeway)?;
        Ok(expires)
    }

    /// Checks that the token has not expired, and returns when it does, leeway included; `None`
    /// without `exp`.
    ///
    /// # Errors
    ///
    /// If it has expired, or `exp` is malformed.
    pub fn check_end(&self, now: UnixTime, leeway: Duration) -> Result<Option<UnixTime>, Flaw> {
        let expires = self.date("exp", false)?.map(|expires| expires.plus(leeway));
        if expires.is_some_and(|expires| now >= expires) { Err(Flaw::Expired) } else { Ok(expires) }
    }

    /// When the token expires, if it does, without leeway.
    #[must_use]
    pub fn expires_at(&self) -> Option<UnixTime> {
        self.date("exp", false).ok().flatten()
    }

    /// Checks `nbf` and `iat` by a clock that may be behind by `leeway`.
    ///
    /// # Errors
    ///
    /// If one of them is later, or malformed.
    pub fn check_start(&self, now: UnixTime, leeway: Duration) -> Result<(), Flaw> {
        let latest = now.plus(leeway);
        for claim in ["nbf", "iat"] {
            if self.date(claim, true)?.is_some_and(|from| from > latest) {
                return Err(Flaw::Early);
            }
        }
        Ok(())
    }

    /// A NumericDate: seconds since 1970; a fraction is rounded against the token.
    fn date(&self, claim: &str, up: bool) -> Result<Option<UnixTime>, Flaw> {
        let Some(value) = self.0.get(claim) else { return Ok(None) };
        if let Some(seconds) = value.as_u64() {
            return Ok(Some(UnixTime(micros(Duration::from_secs(seconds)))));
        }
        let exact = value.as_f64().ok_or(Flaw::Malformed)? * 1e6;
        // The cast saturates: a date beyond the range is its end, one before 1970 its start.
        Ok(Some(UnixTime(if up { exact.ceil() } else { exact.floor() } as u64)))
    }

    /// The identifiers in a claim: one, or a list of them. `None` if the claim is missing; an empty
    /// list if it is present without an identifier, as `null`, `""` and `[]` are.
    ///
    /// `path` is the whole name of a claim, or else leads into objects by its dots. If it ends
    /// early, at something that is not an object, the claim is present without an identifier.
    #[must_use]
    pub fn names(&self, path: &str) -> Option<Vec<Box<str>>> {
        let name = |value: &Value| value.as_str().filter(|name| is_identifier(name)).map(Box::from);
        Some(match self.find(path)? {
            Value::Array(all) => all.iter().filter_map(name).take(NAMES_MAX).collect(),
            one => name(one).into_iter().collect(),
        })
    }

    /// The words in a claim: separated by spaces in a text (RFC 8693, 4.2), or each text of a list;
    /// at most [`NAMES_MAX`]. `path` is as in [`Self::names`].
    #[must_use]
    pub fn words(&self, path: &str) -> Vec<&str> {
        match self.find(path) {
            Some(Value::String(text)) => text.split_ascii_whitespace().take(NAMES_MAX).collect(),
            Some(Value::Array(all)) => {
                all.iter().filter_map(Value::as_str).take(NAMES_MAX).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The text, number or boolean in a claim, as text of 1 to `bytes_max` bytes. `None` if the
    /// claim is missing or is anything else. `path` is as in [`Self::names`].
    #[must_use]
    pub fn scalar(&self, path: &str, bytes_max: usize) -> Option<Box<str>> {
        let text: Box<str> = match self.find(path)? {
            Value::String(text) if text.len() <= bytes_max => text.as_str().into(),
            Value::Number(number) => number.to_string().into(),
            Value::Bool(flag) => flag.to_string().into(),
            _ => return None,
        };
        (1..=bytes_max).contains(&text.len()).then_some(text)
    }

    fn find(&self, path: &str) -> Option<&Value> {
        if let Some(value) = self.0.get(path) {
            return Some(value);
        }
        let (first, steps) = path.split_once('.')?;
        let mut value = self.0.get(first)?;
        for step in steps.split('.') {
            match value {
                Value::Object(members) => value = members.get(step)?,
                _ => return Some(&Value::Null),
            }
        }
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the names in the claim at `path`; "nothing" if it is missing.
    #[track_caller]
    fn check(claims: &str, path: &str, expected: &str) {
        let claims = Claims::read(claims.as_bytes()).unwrap();
        let names = claims.names(path).map(|names| names.join(" "));
        assert_eq!(names.as_deref().unwrap_or("nothing"), expected, "{path} in {claims:?}");
    }

    #[test]
    fn a_claim_without_an_identifier_names_no_tenant() {
        for value in ["null", "\"\"", "[]", "[null]", "[[\"ws_a\"]]", "7", "true", "{}", "\"a b\""]
        {
            check(&format!("{{\"ws\": {value}}}"), "ws", "");
            check(&format!("{{\"of\": {{\"ws\": {value}}}}}"), "of.ws", "");
        }
        check("{}", "ws", "nothing");
        check("{\"ws\": [\"ws_a\", null, 7, \"ws_b\"]}", "ws", "ws_a ws_b");
    }

    #[test]
    fn a_scalar_is_a_short_text_a_number_or_a_boolean() {
        let scalar = |value: &str| {
            let claims = format!("{{\"of\": {{\"sub\": {value}}}}}");
            Claims::read(claims.as_bytes()).unwrap().scalar("of.sub", 8)
        };
        for (value, text) in [
            ("\"user 7\"", Some("user 7")),
            ("\"12345678\"", Some("12345678")),
            ("\"123456789\"", None),
            ("123456789", None),
            ("7", Some("7")),
            ("-1.5", Some("-1.5")),
            ("true", Some("true")),
            ("\"\"", None),
            ("null", None),
            ("[\"a\"]", None),
            ("{\"a\": 1}", None),
        ] {
            assert_eq!(scalar(value).as_deref(), text, "{value}");
        }
        assert_eq!(Claims::read(b"{}").unwrap().scalar("of.sub", 8), None);
    }

    #[test]
    fn a_path_that_ends_early_in_what_is_no_object_names_no_tenant() {
        for value in ["null", "\"ws_a\"", "[]", "[{\"ws\": \"ws_a\"}]", "7"] {
            check(&format!("{{\"of\": {value}}}"), "of.ws", "");
            check(&format!("{{\"of\": {{\"my\": {value}}}}}"), "of.my.ws", "");
        }
        check("{\"of\": {}}", "of.ws", "nothing");
        check("{\"of\": {\"ws\": \"ws_a\"}, \"of.ws\": \"ws_b\"}", "of.ws", "ws_b");
        check("{\"of\": {\"ws\": \"ws_a\"}}", "of.ws", "ws_a");
    }
}
