//! Introspects tokens at the server that issued them (RFC 7662).
//!
//! Invariant: at most [`REQUESTS_MAX`] requests are in flight, and each ends within
//! `identity.timeout`. One that has not begun after as long is not sent.
//!
//! Not here: single flight and the cache of responses (`verifier`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::log::events;
use crate::secret::Secret;
use crate::time::{Moment, Tick, UnixTime};
use crate::token::Flaw;
use crate::token::claims::Claims;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use log::Level;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde_json::json;
use tokio::sync::Semaphore;

use crate::http_client::{self, RequestError};
use crate::identity::identity_server::IdentityServer;
use crate::identity::settings::Introspection;
use crate::log::limiter::LogLimiter;

/// Requests in flight: with 10 ms each, 6,400 new tokens a second.
const REQUESTS_MAX: usize = 64;

/// Encodes as `application/x-www-form-urlencoded`, except that a space becomes `%20`, not `+`.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'*').remove(b'-').remove(b'.').remove(b'_');

/// How far the issuer's clock may be ahead of ours. The issuer itself reports that the token is
/// active, and a token is often used right after it was issued.
const AHEAD_MAX: Duration = Duration::from_secs(30);

/// Time between two log lines about failed introspections.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// A token that no server has issued, to probe a server with.
const PROBE: &str = "weir.check";

/// Sends tokens to the introspection endpoint.
pub(super) struct IntrospectionClient {
    settings: Introspection,
    server: IdentityServer,
    authorization: Option<Secret<HeaderValue>>,
    in_flight: Semaphore,
    failure_log: LogLimiter<()>,
    /// True from a logged failure until introspection succeeds again.
    failing: AtomicBool,
    /// When the last introspection failed, in ticks from 1; 0 where it succeeded.
    failed_at: AtomicU64,
}

/// Why a token could not be introspected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum IntrospectionError {
    #[error("no turn within {0:?}: {REQUESTS_MAX} requests are in flight, and others waited")]
    Busy(Duration),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    BrokenOff(String),
    #[error("{0}")]
    Unreachable(String),
    #[error("our client_id and client_secret_file are refused with {0}")]
    Credentials(u16),
    #[error("the answer is {0}, where 200 was expected")]
    Status(u16),
    #[error("the answer is no JSON object with `active`")]
    Malformed,
}

impl IntrospectionError {
    /// Whether the server has the request, and may still work on it.
    pub(super) fn may_be_working(&self) -> bool {
        matches!(self, Self::Late(_) | Self::BrokenOff(_))
    }
}

/// The claims that the server reports for a token and until when they are valid, or its flaw.
pub(super) type Introspected = Result<(Claims, UnixTime), Flaw>;

impl IntrospectionClient {
    pub(super) fn new(
        settings: &Introspection,
        secret: Option<&Secret<String>>,
        server: IdentityServer,
    ) -> Self {
        let named = settings.client_id.as_deref();
        let authorization = named.zip(secret).map(|(id, secret)| basic(id, secret.expose()));
        Self {
            settings: settings.clone(),
            server,
            authorization,
            in_flight: Semaphore::new(REQUESTS_MAX),
            failure_log: LogLimiter::new(LOG_EVERY),
            failing: AtomicBool::new(false),
            failed_at: AtomicU64::new(0),
        }
    }

    /// Introspects a token for a call; also returns when the server was queried.
    pub(super) async fn introspect(
        &self,
        token: &str,
    ) -> Result<(Introspected, Moment), IntrospectionError> {
        let permit = tokio::time::timeout(self.server.timeout, self.in_flight.acquire()).await;
        let now = self.server.clock.now();
        let introspected = match permit {
            Ok(_permit) => {
                let attempt = self.try_once(token, now.unix);
                self.server.count("introspection", now.tick, attempt).await
            }
            Err(_) => Err(IntrospectionError::Busy(self.server.timeout)),
        };
        self.log(introspected.as_ref().err(), now.tick);
        introspected.map(|introspected| (introspected, now))
    }

    /// Introspects a token outside of any request: nothing is counted or logged.
    pub(super) async fn try_once(
        &self,
        token: &str,
        now: UnixTime,
    ) -> Result<Introspected, IntrospectionError> {
        let timeout = self.server.timeout;
        let response = tokio::time::timeout(timeout, self.request(token)).await;
        let claims = response.unwrap_or(Err(IntrospectionError::Late(timeout)))?;
        Ok(self.check(claims, now))
    }

    /// Tries whether the server answers, whatever it says of a token that it has not issued.
    pub(super) async fn probe(&self) -> Result<(), IntrospectionError> {
        self.try_once(PROBE, self.server.clock.now().unix).await.map(drop)
    }

    /// How long ago the last introspection failed; none where it succeeded. Nothing is known of the
    /// server since.
    pub(super) fn failed_since(&self) -> Option<Duration> {
        let failed_at = Some(self.failed_at.load(Ordering::Relaxed)).filter(|at| *at > 0)?;
        Some(self.server.clock.now().tick.since(Tick(failed_at)))
    }

    async fn request(&self, token: &str) -> Result<Claims, IntrospectionError> {
        let form = format!("token={}&token_type_hint=access_token", encoded(token));
        let mut request = self
            .server
            .client
            .post(&self.settings.url)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded");
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.expose());
        }
        let response = http_client::send(request.body(form)).await;
        let response = response.map_err(|why| match why {
            RequestError::BrokenOff(why) => IntrospectionError::BrokenOff(why),
            why => IntrospectionError::Unreachable(why.to_string()),
        })?;
        match response.status {
            200 => {}
            401 | 403 => return Err(IntrospectionError::Credentials(response.status)),
            other => return Err(IntrospectionError::Status(other)),
        }
        let claims = Claims::read(&response.body).ok_or(IntrospectionError::Malformed)?;
        if claims.has_flag("active") { Ok(claims) } else { Err(IntrospectionError::Malformed) }
    }

    /// Checks the server's claims against the settings.
    fn check(&self, claims: Claims, now: UnixTime) -> Introspected {
        if !claims.is_true("active") {
            return Err(Flaw::Inactive);
        }
        let Introspection { issuer, audience, ttl, .. } = &self.settings;
        if let Some(issuer) = issuer {
            claims.check_issuer(issuer)?;
        }
        if !audience.is_empty() {
            claims.check_audience(audience)?;
        }
        let expires = claims.check_end(now, Duration::ZERO)?;
        claims.check_start(now, AHEAD_MAX)?;
        let kept = now.plus(*ttl);
        Ok((claims, expires.map_or(kept, |expires| expires.min(kept))))
    }

    /// Logs when introspection fails, at most every [`LOG_EVERY`], and when it succeeds again.
    fn log(&self, failed: Option<&IntrospectionError>, now: Tick) {
        let is_failing = self.failing.load(Ordering::Relaxed);
        // `now` is when the request began.
        let failed_at = failed.map_or(0, |_| self.server.clock.now().tick.0.max(1));
        self.failed_at.store(failed_at, Ordering::Relaxed);
        match failed {
            Some(why) if self.failure_log.due((), now).is_some() => {
                self.failing.store(true, Ordering::Relaxed);
                let fields = [("error", json!(why.to_string()))];
                events::event(Level::Warn, "token introspection unavailable", &fields);
            }
            None if is_failing && self.failing.swap(false, Ordering::Relaxed) => {
                events::event(Level::Info, "token introspection available again", &[]);
            }
            _ => {}
        }
    }
}

/// Our credentials for HTTP Basic (RFC 6749, 2.3.1): both parts are form-encoded first.
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
    use crate::identity::identity_server::IdentityMetrics;
    use crate::metrics::Metric;
    use crate::time::Clock;

    #[test]
    fn a_failure_has_an_age_until_an_introspection_succeeds() {
        let clock = Clock::manual(UnixTime(1_700_000_000_000_000));
        let settings = Introspection {
            url: "http://127.0.0.1:9/".to_owned(),
            issuer: None,
            audience: Vec::new(),
            client_id: None,
            client_secret_file: None,
            ttl: Duration::ZERO,
            negative_ttl: Duration::ZERO,
        };
        // Another test may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let metrics = IdentityMetrics {
            requests: Metric::made("requests", "of a test", &["kind", "outcome"]),
            duration: Metric::made("duration", "of a test", &["kind"]),
            keys: Metric::made("keys", "of a test", &[]),
            fetched: Metric::made("fetched", "of a test", &[]),
        };
        let timeout = Duration::from_secs(5);
        let client = http_client::client(None, timeout).unwrap();
        let server = IdentityServer { client, timeout, clock: clock.clone(), metrics };
        let client = IntrospectionClient::new(&settings, None, server);
        assert_eq!(client.failed_since(), None);
        let late = IntrospectionError::Late(timeout);
        for _ in 0..2 {
            client.log(Some(&late), clock.now().tick);
            clock.advance(Duration::from_secs(7));
            assert_eq!(client.failed_since(), Some(Duration::from_secs(7)), "whatever is logged");
            client.log(None, clock.now().tick);
            assert_eq!(client.failed_since(), None);
        }
    }

    #[test]
    fn credentials_are_encoded_twice_as_rfc_6749_has_it() {
        let header = basic("weir:1", "p+q/% ä");
        let coded = header.expose().to_str().unwrap().strip_prefix("Basic ").unwrap().to_owned();
        let pair = String::from_utf8(STANDARD.decode(coded).unwrap()).unwrap();
        assert_eq!(pair, "weir%3A1:p%2Bq%2F%25%20%C3%A4");
        assert_eq!(format!("{header:?} {:?}", header.expose()), "*** Sensitive");
    }
}
