//! Asks the server that issued a token whether it holds (RFC 7662).
//!
//! # Invariants
//!
//! 1. Only an answer is remembered: that nobody could be asked is no answer.
//! 2. No more than [`QUESTIONS_MAX`] questions are on their way, and each is over, its waiting
//!    included, within `identity.timeout`.
//!
//! Not here: single flight and memory of good answers (`verifier`).

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use log::Level;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::json;
use tokio::sync::Semaphore;
use weir_common::logging;
use weir_common::secret::Secret;
use weir_common::time::{Moment, Tick, UnixTime};
use weir_common::token::{Claims, Flaw};

use crate::identity::auth::identity_server::IdentityServer;
use crate::identity::http_client;
use crate::settings::Introspection;

/// Questions on their way at one time: a server that takes 10 ms answers 6,400 new tokens a second.
const QUESTIONS_MAX: usize = 64;

/// What `application/x-www-form-urlencoded` writes as it is, but for the space.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');

/// How far the clock of whoever issues tokens may be ahead of ours: it says itself that a token
/// holds, and one that was issued a moment ago is the one that is used next. As for keys.
const AHEAD_MAX: Duration = Duration::from_secs(30);

/// Between two lines of the log that say why there is no answer.
const TELL_EVERY: Duration = Duration::from_secs(10);

/// Whoever asks about tokens.
pub(super) struct Inspector {
    settings: Introspection,
    server: IdentityServer,
    authorization: Option<Secret<HeaderValue>>,
    room: Semaphore,
    /// When the log last told that there is no answer, until it tells that there is.
    told: Mutex<(Option<Tick>, bool)>,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum NoAnswer {
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    Unreachable(String),
    #[error("our client_id and client_secret_file are refused with {0}")]
    Credentials(u16),
    #[error("the answer is {0}, where 200 was expected")]
    Status(u16),
    #[error("the answer is no JSON object with `active`")]
    Malformed,
}

/// What the server says of a token; an error where nobody could be asked.
pub(super) type Inspected = Result<Result<(Claims, UnixTime), Flaw>, Unavailable>;

/// Nobody can be asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unavailable;

impl Inspector {
    pub(super) fn new(
        settings: &Introspection,
        secret: Option<&Secret<String>>,
        server: IdentityServer,
    ) -> Self {
        let named = settings.client_id.as_ref().map(|id| id.value.as_str());
        let authorization = named.zip(secret).map(|(id, secret)| basic(id, secret.expose()));
        Self {
            settings: settings.clone(),
            server,
            authorization,
            room: Semaphore::new(QUESTIONS_MAX),
            told: Mutex::default(),
        }
    }

    /// Asks about a token.
    pub(super) async fn ask(&self, token: &str, now: Moment) -> Inspected {
        let request = self.question_in_time(token);
        let answer = self.server.count("introspection", now.tick, request).await;
        self.tell(answer.as_ref().err(), now.tick);
        answer.map(|says| self.judge(says, now.unix)).map_err(|_| Unavailable)
    }

    /// Asks about a token outside of any request; an error says why there is no answer.
    pub(super) async fn try_once(
        &self,
        token: &str,
        now: UnixTime,
    ) -> Result<Result<(Claims, UnixTime), Flaw>, String> {
        let answer = self.question_in_time(token).await;
        answer.map(|says| self.judge(says, now)).map_err(|why| why.to_string())
    }

    /// Whether there was no answer when one was last needed.
    pub(super) fn is_failing(&self) -> bool {
        self.told.lock().unwrap_or_else(PoisonError::into_inner).1
    }

    async fn question_in_time(&self, token: &str) -> Result<Claims, NoAnswer> {
        let timeout = self.server.timeout;
        let answer = tokio::time::timeout(timeout, self.question(token)).await;
        answer.unwrap_or(Err(NoAnswer::Late(timeout)))
    }

    async fn question(&self, token: &str) -> Result<Claims, NoAnswer> {
        // The semaphore is never closed.
        let _room = self.room.acquire().await;
        let form = format!("token={}&token_type_hint=access_token", encoded(token));
        let mut question = self
            .server
            .client
            .post(&self.settings.url.value)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(authorization) = &self.authorization {
            question = question.header(AUTHORIZATION, authorization.expose());
        }
        let answer = http_client::ask(question.body(form)).await;
        let answer = answer.map_err(|why| NoAnswer::Unreachable(why.to_string()))?;
        match answer.status {
            200 => {}
            401 | 403 => return Err(NoAnswer::Credentials(answer.status)),
            other => return Err(NoAnswer::Status(other)),
        }
        let says = Claims::read(&answer.body).ok_or(NoAnswer::Malformed)?;
        if says.has_flag("active") { Ok(says) } else { Err(NoAnswer::Malformed) }
    }

    /// What is made of an answer, and until when it holds.
    fn judge(&self, says: Claims, now: UnixTime) -> Result<(Claims, UnixTime), Flaw> {
        if !says.is_true("active") {
            return Err(Flaw::Inactive);
        }
        let Introspection { issuer, audience, ttl, .. } = &self.settings;
        if let Some(issuer) = issuer {
            says.check_issuer(&issuer.value)?;
        }
        if !audience.is_empty() {
            let audience: Vec<String> = audience.iter().map(|one| one.value.clone()).collect();
            says.check_audience(&audience)?;
        }
        let expires = says.check_end(now, Duration::ZERO)?;
        says.check_start(now, AHEAD_MAX)?;
        let kept = now.plus(*ttl);
        Ok((says, expires.map_or(kept, |expires| expires.min(kept))))
    }

    /// Logs when it begins to fail, and when it works again; each at most every [`TELL_EVERY`].
    fn tell(&self, failed: Option<&NoAnswer>, now: Tick) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, failing) = *told;
        match failed {
            Some(why) if at.is_none_or(|at| now.since(at) >= TELL_EVERY) => {
                *told = (Some(now), true);
                let fields = [("error", json!(why.to_string()))];
                logging::event(Level::Warn, "nobody can be asked about tokens", &fields);
            }
            None if failing => {
                *told = (at, false);
                logging::event(Level::Info, "tokens can be asked about again", &[]);
            }
            _ => {}
        }
    }
}

/// How a client says who it is (RFC 6749, 2.3.1): both parts in the form's encoding.
fn basic(id: &str, secret: &str) -> Secret<HeaderValue> {
    let pair = STANDARD.encode(format!("{}:{}", encoded(id), encoded(secret)));
    let mut value = HeaderValue::try_from(format!("Basic {pair}"))
        .expect("base64 has only characters that a header may hold");
    value.set_sensitive(true);
    Secret::new(value)
}

fn encoded(text: &str) -> String {
    utf8_percent_encode(text, PLAIN).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_encoded_twice_as_rfc_6749_has_it() {
        let header = basic("weir:1", "p+q/% ä");
        let coded = header.expose().to_str().unwrap().strip_prefix("Basic ").unwrap().to_owned();
        let pair = String::from_utf8(STANDARD.decode(coded).unwrap()).unwrap();
        assert_eq!(pair, "weir%3A1:p%2Bq%2F%25%20%C3%A4");
        assert_eq!(format!("{header:?} {:?}", header.expose()), "*** Sensitive");
    }
}
