//! What a token says of itself and of whoever carries it (RFC 7519; RFC 7662 says it alike).
//!
//! Not here: which of them a token must have (`token`), whom they let in (the gateway's `caller`).

use std::time::Duration;

use serde_json::{Map, Value};

use super::Flaw;
use crate::ids::is_identifier;
use crate::json;
use crate::time::{UnixTime, micros};

/// Names that one claim may hold: a token of 8 KiB has room for more only where they are short.
pub const NAMES_MAX: usize = 256;

/// A token's claims.
#[derive(Clone, Debug, PartialEq)]
pub struct Claims(Map<String, Value>);

impl Claims {
    /// Reads them; nothing where they are no object, or say something twice.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        json::object(bytes).ok().map(Self)
    }

    /// Whether a claim is there and `true`.
    #[must_use]
    pub fn is_true(&self, claim: &str) -> bool {
        self.0.get(claim) == Some(&Value::Bool(true))
    }

    /// Whether a claim is there and says yes or no.
    #[must_use]
    pub fn has_flag(&self, claim: &str) -> bool {
        self.0.get(claim).is_some_and(Value::is_boolean)
    }

    /// Checks who issued it.
    ///
    /// # Errors
    ///
    /// Where it was somebody else, or it does not say.
    pub fn check_issuer(&self, issuer: &str) -> Result<(), Flaw> {
        let says = self.0.get("iss").and_then(Value::as_str);
        if says == Some(issuer) { Ok(()) } else { Err(Flaw::Issuer) }
    }

    /// Checks whom it is meant for: one of `audience`.
    ///
    /// # Errors
    ///
    /// Where it is meant for others only, or does not say.
    pub fn check_audience(&self, audience: &[String]) -> Result<(), Flaw> {
        let ours =
            |says: &Value| says.as_str().is_some_and(|says| audience.iter().any(|a| a == says));
        let meant = match self.0.get("aud") {
            Some(Value::Array(all)) => all.iter().all(Value::is_string) && all.iter().any(ours),
            Some(one) => ours(one),
            None => false,
        };
        if meant { Ok(()) } else { Err(Flaw::Audience) }
    }

    /// Checks that it holds now, and says until when, leeway included; nothing where it does not
    /// say.
    ///
    /// # Errors
    ///
    /// Where it does not hold, or one of its times is none.
    pub fn check_time(&self, now: UnixTime, leeway: Duration) -> Result<Option<UnixTime>, Flaw> {
        let expires = self.check_end(now, leeway)?;
        self.check_start(now, leeway)?;
        Ok(expires)
    }

    /// Checks that it is not over, and says when it will be, leeway included; nothing where it
    /// does not say.
    ///
    /// # Errors
    ///
    /// Where it is over, or its end is no time.
    pub fn check_end(&self, now: UnixTime, leeway: Duration) -> Result<Option<UnixTime>, Flaw> {
        let expires = self.date("exp", false)?.map(|expires| expires.plus(leeway));
        if expires.is_some_and(|expires| now >= expires) { Err(Flaw::Expired) } else { Ok(expires) }
    }

    /// Checks that it has begun to hold, by a clock that may be behind by `leeway`.
    ///
    /// # Errors
    ///
    /// Where it has not, or one of its times is none.
    pub fn check_start(&self, now: UnixTime, leeway: Duration) -> Result<(), Flaw> {
        let latest = now.plus(leeway);
        for claim in ["nbf", "iat"] {
            if self.date(claim, true)?.is_some_and(|from| from > latest) {
                return Err(Flaw::Early);
            }
        }
        Ok(())
    }

    /// A NumericDate: seconds since 1970, with a fraction that is rounded against the token.
    fn date(&self, claim: &str, up: bool) -> Result<Option<UnixTime>, Flaw> {
        let Some(value) = self.0.get(claim) else { return Ok(None) };
        if let Some(seconds) = value.as_u64() {
            return Ok(Some(UnixTime(micros(Duration::from_secs(seconds)))));
        }
        let exact = value.as_f64().ok_or(Flaw::Malformed)? * 1e6;
        // What does not fit is the end of time, and what lies before 1970 its beginning.
        Ok(Some(UnixTime(if up { exact.ceil() } else { exact.floor() } as u64)))
    }

    /// The identifiers that a claim holds: one, or a list of them. Nothing where the claim is not
    /// there; an empty list where it is, and holds none.
    ///
    /// `path` is the whole name of a claim, or else leads into objects by its dots.
    #[must_use]
    pub fn names(&self, path: &str) -> Option<Vec<Box<str>>> {
        let name = |value: &Value| value.as_str().filter(|name| is_identifier(name)).map(Box::from);
        match self.find(path)? {
            Value::Null => None,
            Value::Array(all) => Some(all.iter().filter_map(name).take(NAMES_MAX).collect()),
            one => Some(name(one).into_iter().collect()),
        }
    }

    fn find(&self, path: &str) -> Option<&Value> {
        self.0.get(path).or_else(|| {
            let mut steps = path.split('.');
            let first = self.0.get(steps.next()?)?;
            steps.try_fold(first, |value, step| value.as_object()?.get(step))
        })
    }
}
