//! The transport of attempts: the network, or a simulation.
//!
//! # Invariants
//!
//! 1. A response is bounded: all its bytes by `connection::ANSWER_BYTES_MAX`, interim responses,
//!    chunk framing and trailers included, and the body by [`BODY_BYTES_MAX`]. The body is never
//!    decompressed, stored or logged.
//! 2. No redirect is followed, proxy settings of the environment are ignored, and an attempt sends
//!    one request.
//! 3. A connection is reused up to an age of `pool::AGE_MAX`, so that DNS changes take effect.
//! 4. A reused connection that closes before the first byte of the response counts as no attempt:
//!    the outcome is `Fault::StaleConnection`, which a new connection never has.
//!
//! Not here: the deadline of an attempt (`client`), which addresses may be called (`egress`).

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::HeaderMap;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsConnector;
use weir_common::time::Clock;

use crate::config::settings::Egress;
use crate::delivery::classify;
use crate::delivery::connection::{self, AttemptRequest, ConnectError, Connection, Origin};
use crate::delivery::egress::Rules;
use crate::delivery::http_client::{self, ClientError};
use crate::delivery::pool::Pool;
use crate::domain::outcome::{Failure, Fault, Outcome};

/// The most of a body that is read so that its connection can be reused.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// The longest time that a body is read: meanwhile the attempt occupies an in-flight slot.
const BODY_WAIT_MAX: Duration = Duration::from_secs(1);

/// Sends attempts to receivers.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a request and waits for the response headers, without a deadline.
    async fn send(&self, request: AttemptRequest) -> Result<Answer, Outcome>;
}

/// The head of a response, with its unread body.
pub struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    rest: Option<Rest>,
}

/// An unread body, and its connection.
struct Rest {
    body: Incoming,
    connection: Connection,
    origin: Origin,
    pool: Arc<Pool>,
}

impl Answer {
    /// A response without a body.
    #[must_use]
    pub fn bare(status: u16, headers: HeaderMap) -> Self {
        Self { status, headers, rest: None }
    }

    /// Reads the rest of a small response and returns its connection to the pool; closes the
    /// connection of a long or slow one, or one that is not read before `over`.
    pub(super) async fn finish(self, over: Pin<&mut Sleep>) {
        let Some(Rest { body, mut connection, origin, pool }) = self.rest else { return };
        let reading = async { is_read(body).await && connection.is_ready().await };
        let kept = tokio::select! {
            kept = reading => kept,
            () = over => false,
            () = sleep(BODY_WAIT_MAX) => false,
        };
        if kept {
            pool.keep(origin, connection);
        }
    }
}

/// HTTP/1.1 over TCP and TLS, with pooled connections.
pub(crate) struct HttpTransport {
    deadline: Duration,
    rules: Arc<Rules>,
    tls: TlsConnector,
    clock: Clock,
    pub(super) pool: Arc<Pool>,
}

impl HttpTransport {
    /// A transport for these settings and rules.
    pub(super) fn new(
        egress: &Egress,
        rules: Arc<Rules>,
        clock: Clock,
    ) -> Result<Self, ClientError> {
        let tls = http_client::tls(egress.extra_ca.as_ref().map(|path| path.value.as_str()))?;
        let tls = TlsConnector::from(Arc::new(tls));
        let pool = Arc::new(Pool::new(clock.clone()));
        Ok(Self { deadline: egress.deadline, rules, tls, clock, pool })
    }

    fn answer(
        &self,
        response: http::Response<Incoming>,
        connection: Connection,
        origin: Origin,
    ) -> Answer {
        let (head, body) = response.into_parts();
        let rest = Some(Rest { body, connection, origin, pool: Arc::clone(&self.pool) });
        Answer { status: head.status.as_u16(), headers: head.headers, rest }
    }

    fn explained(&self, error: &ConnectError) -> Outcome {
        let handshaking = matches!(error, ConnectError::Handshake(_));
        let outcome = classify::outcome_of(error as &(dyn Error + 'static), handshaking);
        if outcome == Outcome::Internal(Fault::Resources) {
            self.pool.clear();
        }
        outcome
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(&self, request: AttemptRequest) -> Result<Answer, Outcome> {
        let broken = Outcome::Failed(Failure::Connection);
        let origin = Origin::of(&request.url).ok_or_else(|| broken.clone())?;
        let fresh = request.fresh_connection;
        let mut request = connection::request(request).map_err(|_| broken)?;
        while !fresh && let Some(mut connection) = self.pool.checkout(&origin) {
            match connection.post(request).await {
                Ok(response) => return Ok(self.answer(response, connection, origin)),
                Err(mut failed) => match failed.take_message() {
                    // The connection had closed before anything was sent: try another one.
                    Some(unsent) => request = unsent,
                    None if connection.is_silent() => {
                        return Err(Outcome::Internal(Fault::StaleConnection));
                    }
                    None => return Err(self.explained(&ConnectError::Http(failed.into_error()))),
                },
            }
        }
        // Boxed, so that lookups, connects and handshakes do not enlarge the future of the whole
        // attempt.
        let opening = Connection::open(&origin, &self.rules, &self.tls, self.deadline, &self.clock);
        let mut connection = Box::pin(opening).await.map_err(|error| self.explained(&error))?;
        match connection.post(request).await {
            Ok(response) => Ok(self.answer(response, connection, origin)),
            Err(failed) => Err(self.explained(&ConnectError::Http(failed.into_error()))),
        }
    }
}

/// Reads a body to its end; false if it exceeds its bound or fails.
async fn is_read(mut body: Incoming) -> bool {
    let mut left = BODY_BYTES_MAX;
    loop {
        let bytes = match body.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
        };
        match left.checked_sub(bytes) {
            Some(less) => left = less,
            None => return false,
        }
    }
}
