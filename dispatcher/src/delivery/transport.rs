//! What carries an attempt: the network, or what a simulation puts in its place.
//!
//! # Invariants
//!
//! 1. What a receiver sends is bounded: everything on the wire by `connection::ANSWER_BYTES_MAX`,
//!    interim answers, chunk framing and trailers included, and the body by [`BODY_BYTES_MAX`];
//!    nothing of it is decompressed, kept or written down.
//! 2. No redirect is followed, no proxy of the environment is asked, and nothing is sent twice
//!    within one attempt.
//! 3. A connection is used for no longer than `pool::AGE_MAX` and an attempt, so that a change of
//!    DNS is followed.
//! 4. A reused connection that dies before a byte of the answer costs no attempt: its outcome is
//!    `Fault::StaleConnection`, which a new connection never has.
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
use crate::delivery::connection::{self, AttemptRequest, Connection, OpenError, Origin};
use crate::delivery::egress::Rules;
use crate::delivery::http_client::{self, ClientError};
use crate::delivery::pool::Pool;
use crate::domain::outcome::{Failure, Fault, Outcome};

/// So much of an answer's body is read, so that its connection can be used again.
const BODY_BYTES_MAX: usize = 16 * 1024;

/// And for so long: what comes later is not worth the slot that the attempt takes.
const BODY_WAIT_MAX: Duration = Duration::from_secs(1);

/// Carries attempts to their receivers.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends, and waits for the head of an answer, for as long as that takes.
    async fn send(&self, request: AttemptRequest) -> Result<Answer, Outcome>;
}

/// The head of an answer, and where its body comes from.
pub struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    rest: Option<Rest>,
}

/// A body that was not read yet, and the connection that it comes on.
struct Rest {
    body: Incoming,
    connection: Connection,
    origin: Origin,
    pool: Arc<Pool>,
}

impl Answer {
    /// An answer without a body.
    #[must_use]
    pub fn bare(status: u16, headers: HeaderMap) -> Self {
        Self { status, headers, rest: None }
    }

    /// Reads what is left of a small answer and keeps its connection; closes that of an answer
    /// that is long or slow, or not read by the time that this is `over`.
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

/// HTTP/1.1 over TCP and TLS, on connections that are kept for the next attempt.
pub(crate) struct HttpTransport {
    deadline: Duration,
    rules: Arc<Rules>,
    tls: TlsConnector,
    clock: Clock,
    pub(super) pool: Arc<Pool>,
}

impl HttpTransport {
    /// As these settings have it, to where these rules allow.
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

    fn explained(&self, error: &OpenError) -> Outcome {
        let handshaking = matches!(error, OpenError::Handshake(_));
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
        while !fresh && let Some(mut connection) = self.pool.take(&origin) {
            match connection.post(request).await {
                Ok(response) => return Ok(self.answer(response, connection, origin)),
                Err(mut failed) => match failed.take_message() {
                    // It had been closed before: nothing was sent, so another may be used.
                    Some(unsent) => request = unsent,
                    None if connection.is_silent() => {
                        return Err(Outcome::Internal(Fault::StaleConnection));
                    }
                    None => return Err(self.explained(&OpenError::Http(failed.into_error()))),
                },
            }
        }
        // Names, races of addresses and handshakes take memory while they last, not as long as
        // the attempt does.
        let opening = Connection::open(&origin, &self.rules, &self.tls, self.deadline, &self.clock);
        let mut connection = Box::pin(opening).await.map_err(|error| self.explained(&error))?;
        match connection.post(request).await {
            Ok(response) => Ok(self.answer(response, connection, origin)),
            Err(failed) => Err(self.explained(&OpenError::Http(failed.into_error()))),
        }
    }
}

/// Reads a body to its end; says whether there was one within bounds.
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
