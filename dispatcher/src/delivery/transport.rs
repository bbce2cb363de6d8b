//! The transport of attempts: the network, or a simulation.
//!
//! # Invariants
//!
//! 1. A response is bounded: all its bytes by `connection::ANSWER_BYTES_MAX`, interim responses,
//!    chunk framing and trailers included, and the body by [`BODY_BYTES_MAX`]. The body is never
//!    decompressed or logged.
//! 2. No redirect is followed, proxy settings of the environment are ignored, and an attempt sends
//!    one request.
//! 3. A connection is reused up to an age of `pool::AGE_MAX`, so that DNS changes take effect.
//! 4. Workspaces share connections, except those after which, or for which, a reused one was silent
//!    until the deadline (`pool`).
//! 5. A reused connection that closes before the first byte of the response counts as no attempt:
//!    the outcome is `Fault::StaleConnection`, which a new connection never has.
//!
//! Not here: the deadline of an attempt (`client`), which addresses may be called (`egress`).

use std::error::Error;
use std::fmt::{self, Debug};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::TrySendError;
use log::Level;
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsConnector;
use weir_common::log::events;
use weir_common::log::limiter::LogLimiter;
use weir_common::time::{Clock, Tick};

use crate::config::settings::Egress;
use crate::delivery::classify;
use crate::delivery::connection::{self, AttemptRequest, ConnectError, Connection, Dialer, Origin};
use crate::delivery::egress::{self, Rules};
use crate::delivery::http_client::{self, ClientError};
use crate::delivery::pool::Pool;
use crate::delivery::proxy::Proxy;
use crate::delivery::read_limit::Meter;
use crate::domain::outcome::{Failure, Fault, Outcome};
use crate::domain::trace::Trace;
use crate::domain::transcript;
use crate::domain::webhook::client_certificate::ClientCertificate;

/// The most of a body that is read so that its connection can be reused, and its start kept.
const BODY_BYTES_MAX: usize = transcript::BODY_BYTES_MAX + transcript::BODY_BYTES_MORE;

/// The longest time that a body is read: meanwhile the attempt occupies an in-flight slot.
const BODY_WAIT_MAX: Duration = Duration::from_secs(1);

/// How often the same fault is logged.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// Sends attempts to receivers.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    /// Sends a request and waits for the response headers, without a deadline. Notes in `progress`
    /// how far it came, for a caller that waits no longer.
    async fn send(
        &self,
        request: AttemptRequest,
        progress: &mut Progress,
    ) -> Result<Answer, Outcome>;
}

/// How far an attempt came.
#[derive(Debug, Default)]
pub struct Progress {
    /// The phases that have ended.
    pub trace: Trace,
    response: Option<Arc<Meter>>,
    on_sent: Option<OnSent>,
}

/// Is called with the time at which the request of an attempt was sent, at once; dropped at the end
/// of an attempt whose request was not.
pub struct OnSent(Box<dyn FnOnce(Tick) + Send>);

impl OnSent {
    /// Calls `report`.
    #[must_use]
    pub fn new(report: impl FnOnce(Tick) + Send + 'static) -> Self {
        Self(Box::new(report))
    }
}

impl Debug for OnSent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnSent")
    }
}

impl Progress {
    /// An attempt that has not begun.
    pub(super) fn new(on_sent: Option<OnSent>) -> Self {
        Self { on_sent, ..Self::default() }
    }

    /// Reports that the request was sent, to a caller that needs to know while it waits.
    pub fn sent(&mut self, at: Tick) {
        if let Some(OnSent(report)) = self.on_sent.take() {
            report(at);
        }
    }

    /// The bytes of the response that have arrived.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.response.as_ref().map_or(0, |meter| meter.count() as u64)
    }
}

/// The head of a response, with its unread body.
pub struct Answer {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    start: BodyStart,
    rest: Option<Rest>,
}

/// The start of a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BodyStart {
    /// Its first bytes.
    pub bytes: Vec<u8>,
    /// Whether it is longer, or its end did not arrive.
    pub cut: bool,
}

/// An unread body, and its connection.
struct Rest {
    body: Incoming,
    connection: Connection,
    origin: Origin,
    pool: Arc<Pool>,
}

impl Answer {
    /// A response that was read from no connection.
    #[must_use]
    pub fn simulated(status: u16, headers: HeaderMap, body: Vec<u8>) -> Self {
        Self { status, headers, start: BodyStart { bytes: body, cut: false }, rest: None }
    }

    /// Reads the rest of a small response and returns its connection to the pool; closes the
    /// connection of a long or slow one, or one that is not read before `over`. Returns the first
    /// `most` bytes of the body.
    pub(super) async fn finish(self, over: Pin<&mut Sleep>, most: usize) -> BodyStart {
        let mut start = self.start;
        let Some(Rest { body, mut connection, origin, pool }) = self.rest else {
            start.cut = start.bytes.len() > most;
            start.bytes.truncate(most);
            return start;
        };
        start.cut = true;
        let reading = async {
            let is_read = start.is_read(body, most).await;
            if is_read { Some(connection.is_ready().await) } else { None }
        };
        let is_ready = tokio::select! {
            is_ready = reading => is_ready,
            () = over => None,
            () = sleep(BODY_WAIT_MAX) => None,
        };
        match is_ready {
            Some(true) => pool.keep(origin, connection),
            Some(false) => pool.end_after_receiver(connection),
            None => drop(connection),
        }
        start
    }
}

impl BodyStart {
    /// Reads a body to its end, and keeps its first `most` bytes; false if it exceeds its bound or
    /// fails.
    async fn is_read(&mut self, mut body: Incoming, most: usize) -> bool {
        let mut left = BODY_BYTES_MAX;
        loop {
            let frame = match body.frame().await {
                None => {
                    self.cut = left < BODY_BYTES_MAX.saturating_sub(most);
                    return true;
                }
                Some(Err(_)) => return false,
                Some(Ok(frame)) => frame,
            };
            let bytes = frame.data_ref().map_or(&[][..], Bytes::as_ref);
            let room = most.saturating_sub(self.bytes.len());
            self.bytes.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
            match left.checked_sub(bytes.len()) {
                Some(less) => left = less,
                None => return false,
            }
        }
    }
}

/// HTTP/1.1 over TCP and TLS, with pooled connections.
pub(crate) struct HttpTransport {
    dialer: Dialer,
    pub(super) pool: Arc<Pool>,
    faults: LogLimiter<&'static str>,
}

impl HttpTransport {
    /// A transport for these settings and rules.
    pub(super) fn new(
        egress: &Egress,
        rules: Arc<Rules>,
        clock: Clock,
    ) -> Result<Self, ClientError> {
        let tls = TlsConnector::from(Arc::new(http_client::tls_of(egress)?));
        let pool = Arc::new(Pool::new(clock.clone()));
        let proxy = Proxy::of(egress);
        let (within, sources) = (egress.deadline, egress.source.clone());
        Ok(Self {
            dialer: Dialer { rules, tls, within, clock, sources, proxy },
            pool,
            faults: LogLimiter::new(LOG_EVERY),
        })
    }

    async fn post(
        &self,
        connection: &mut Connection,
        request: Request<Full<Bytes>>,
        progress: &mut Progress,
    ) -> Result<Response<Incoming>, TrySendError<Request<Full<Bytes>>>> {
        let began = self.dialer.clock.now().tick;
        let meter = connection.meter();
        let mut response = pin!(connection.post(request));
        let response = tokio::select! {
            // The request begins before `sent` waits for it.
            biased;
            response = &mut response => response,
            () = meter.sent(), if progress.on_sent.is_some() => {
                progress.sent(self.dialer.clock.now().tick);
                response.await
            }
        };
        if response.is_ok() {
            progress.trace.first_byte = Some(self.dialer.clock.now().tick.since(began));
        }
        response
    }

    fn answer(
        &self,
        response: Response<Incoming>,
        connection: Connection,
        origin: Origin,
    ) -> Answer {
        let (head, body) = response.into_parts();
        let rest = Some(Rest { body, connection, origin, pool: Arc::clone(&self.pool) });
        let (status, start) = (head.status.as_u16(), BodyStart::default());
        Answer { status, headers: head.headers, start, rest }
    }

    fn explained(
        &self,
        error: &ConnectError,
        certificate: Option<&ClientCertificate>,
        progress: &mut Progress,
    ) -> Outcome {
        let handshaking = matches!(error, ConnectError::Handshake(_));
        let received = progress.received();
        let (reason, now) = (classify::reason_of(error, received), self.dialer.clock.now().unix);
        progress.trace.reason = reason.map(|reason| match certificate {
            Some(own) => classify::of_certificate(reason, own.expires_at(), now),
            None => reason,
        });
        let outcome = classify::outcome_of(error as &(dyn Error + 'static), handshaking);
        let Outcome::Internal(fault) = outcome else { return outcome };
        let is_shortage = matches!(fault, Fault::Resources | Fault::Stalled);
        if is_shortage && classify::is_eased_by_closing(error) {
            self.pool.clear();
        }
        if is_shortage || fault == Fault::Proxy {
            self.log_fault(outcome.class(), error);
        }
        outcome
    }

    /// Logs a fault of this machine or of the proxy, now and then.
    fn log_fault(&self, class: &'static str, error: &ConnectError) {
        let now = self.dialer.clock.now().tick;
        let Some(times) = self.faults.due(class, now) else { return };
        let error = error as &dyn Error;
        let causes: Vec<String> = std::iter::successors(Some(error), |error| (*error).source())
            .map(|one| one.to_string())
            .collect();
        let fields = [
            ("outcome", class.into()),
            ("error", causes.join(": ").into()),
            ("times", times.into()),
        ];
        events::event(Level::Error, "attempts cannot be made", &fields);
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn send(
        &self,
        request: AttemptRequest,
        progress: &mut Progress,
    ) -> Result<Answer, Outcome> {
        let broken = Outcome::Failed(Failure::Connection);
        let certificate = request.client_certificate.clone();
        let origin = Origin::of(&request.url, certificate.as_ref());
        let origin = origin.ok_or_else(|| broken.clone())?;
        let fresh = request.fresh_connection;
        let mut request = connection::request(request).map_err(|_| broken)?;
        let user = egress::workspace();
        while !fresh && let Some((mut connection, waiting)) = self.pool.checkout(&origin, &user) {
            progress.trace =
                Trace { reused: true, address: connection.address, ..Trace::default() };
            progress.response = Some(connection.meter());
            let posted = self.post(&mut connection, request, progress).await;
            let mut failed = match posted {
                Ok(response) => {
                    waiting.answered();
                    return Ok(self.answer(response, connection, origin.clone()));
                }
                Err(failed) => failed,
            };
            match failed.take_message() {
                // The connection had closed before anything was sent: try another one.
                Some(unsent) => {
                    waiting.closed();
                    request = unsent;
                }
                None if connection.is_silent() => {
                    waiting.closed();
                    return Err(Outcome::Internal(Fault::StaleConnection));
                }
                None => {
                    let error = ConnectError::Http(failed.into_error());
                    return Err(self.explained(&error, certificate.as_ref(), progress));
                }
            }
        }
        *progress = Progress::new(progress.on_sent.take());
        // Boxed, so that lookups, connects and handshakes do not enlarge the future of the whole
        // attempt.
        let opened = self.dialer.open(&origin, certificate.as_ref(), &mut progress.trace);
        let opened = Box::pin(opened).await;
        let certificate = certificate.as_ref();
        let mut connection =
            opened.map_err(|error| self.explained(&error, certificate, progress))?;
        progress.response = Some(connection.meter());
        match self.post(&mut connection, request, progress).await {
            Ok(response) => Ok(self.answer(response, connection, origin)),
            Err(failed) => {
                let error = ConnectError::Http(failed.into_error());
                Err(self.explained(&error, certificate, progress))
            }
        }
    }
}
