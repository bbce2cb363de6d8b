//! A request's way, phase by phase: the table of contents of the gateway.
//!
//! Each Pingora phase is one short method that asks another file and does what it says. Pingora
//! answers with `bool`, and not always the same way round; that is translated here and nowhere
//! else.
//!
//! # Not here
//!
//! Decisions (`admission`), the words of refusals (`refusal`), headers (`report`, `forwarding`).

pub mod body;
pub mod buffering;
pub mod context;
pub mod forwarding;
pub mod retry;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Version, header};
use pingora_core::modules::http::HttpModules;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};

use crate::admission::{self, Next};
use crate::config::shared::Parts;
use crate::edge::connection::Connection;
use crate::proxy::body::Unread;
use crate::proxy::context::{Exchange, InFlight, Replayed};
use crate::request::target::Malformed;
use crate::request::{batch, upload};
use crate::response::grpc::{self, Dialect};
use crate::response::refusal::Refusal;
use crate::response::reply;
use crate::rules::Batch;
use crate::telemetry::access_log::Facts;

/// What Pingora calls.
pub struct Proxy {
    /// What all requests share.
    pub parts: Arc<Parts>,
}

#[async_trait]
impl ProxyHttp for Proxy {
    type CTX = Exchange;

    fn new_ctx(&self) -> Exchange {
        let parts = &self.parts;
        let (id, nth) = parts.next_request();
        let in_flight = InFlight::new(&parts.metrics.in_flight);
        Exchange::new(parts.clock.now(), parts.force.load_full(), id, nth, in_flight)
    }

    /// No modules: the one that Pingora would add compresses, which we never do.
    fn init_downstream_modules(&self, _modules: &mut HttpModules) {}

    async fn early_request_filter(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
    ) -> Result<()> {
        let requests_max = exchange.force.rules.settings.server.caps.requests_per_connection_max;
        let mut is_last = !self.parts.ready.load(Ordering::Relaxed);
        if let Some(connection) = Connection::of(session.stream()) {
            connection.head_is_read(session.downstream_session.as_http1());
            is_last |= connection.requests() >= requests_max;
        }
        if is_last {
            session.set_keepalive(None);
        }
        let body_timeout = exchange.force.rules.settings.server.body_timeout;
        // Where protocols are switched, silence is no body that fails to come.
        let switches = may_switch(session);
        session.set_read_timeout(Some(body_timeout).filter(|_| !switches));
        upload::begin(session.req_header().headers.contains_key(header::EXPECT));
        if session.req_header().version == Version::HTTP_2 {
            // A stream that its client opens no window for; of others the connection has one.
            session.set_write_timeout(Some(body_timeout));
        }
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, exchange: &mut Exchange) -> Result<bool> {
        let next = admission::judge(&self.parts, session, exchange).await;
        let refusal = match next {
            Next::Forward => return Ok(false), // Pingora: go on.
            Next::Hold(batch) => match self.hold(session, exchange, batch).await {
                Ok(()) => return Ok(false),
                Err(Unread::Refused(refusal)) => refusal,
                Err(Unread::Broken(error)) => return Err(error),
            },
            Next::Preflight(reply) => {
                exchange.status = Some(reply.status);
                reply.send(session, exchange).await?;
                return Ok(true);
            }
            Next::Refuse(refusal) => refusal,
        };
        self.refuse(session, exchange, refusal).await?;
        Ok(true) // Pingora: an answer was written, stop here.
    }

    async fn upstream_peer(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
    ) -> Result<Box<HttpPeer>> {
        let upstream = admission::upstream(exchange).ok_or_else(retry::no_server)?.clone();
        let now = self.parts.clock.now().tick;
        exchange.asked_at.get_or_insert(now);
        let pick = upstream.pick(&exchange.tried, now).ok_or_else(retry::no_server)?;
        if exchange.tried.is_full() {
            exchange.tried.remove(0);
        }
        exchange.tried.push(pick.address);
        exchange.server = Some(pick.server);
        exchange.failed = false;
        exchange.unconnected = false;
        let switches = may_switch(session);
        if let Some(connection) = Connection::of(session.stream()).filter(|_| switches) {
            connection.bear_silence(upstream.settings.read_timeout, now);
        }
        Ok(upstream.peer(pick, switches))
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        head: &mut RequestHeader,
        exchange: &mut Exchange,
    ) -> Result<()> {
        forwarding::to_upstream(session.req_header(), head, exchange)
    }

    async fn request_body_filter(
        &self,
        session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        _exchange: &mut Exchange,
    ) -> Result<()> {
        if Connection::of(session.stream()).is_some_and(Connection::has_broken_body) {
            return Err(retry::broken_body());
        }
        // cloudflare/pingora#935: an empty last chunk would end a chunked body twice, and the
        // second end would be taken for the start of the next request.
        if end && body.as_ref().is_some_and(Bytes::is_empty) {
            *body = None;
        }
        Ok(())
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        head: &mut ResponseHeader,
        exchange: &mut Exchange,
    ) -> Result<()> {
        forwarding::check_size(head)?;
        if retry::is_interim(head.status) {
            retry::interim(exchange)?;
            upload::invited();
            forwarding::remove_limits_of(head);
            return Ok(());
        }
        if head.status == StatusCode::SWITCHING_PROTOCOLS && !session.is_upgrade_req() {
            return Error::e_explain(ErrorType::InvalidHTTPHeader, "a 101 that nobody asked for")
                .map_err(|error: Box<Error>| error.into_up());
        }
        if !self.parts.ready.load(Ordering::Relaxed) {
            // A stop has begun, and this connection ends with this answer.
            session.set_keepalive(None);
        }
        exchange.status = Some(head.status.as_u16());
        exchange.answered_at = Some(self.parts.clock.now().tick);
        retry::answered(&self.parts, exchange, head.status);
        if head.status == StatusCode::SWITCHING_PROTOCOLS
            && let Some(connection) = Connection::of(session.stream())
            && let Some(upstream) = admission::upstream(exchange)
        {
            let now = self.parts.clock.now().tick;
            connection.bear_silence(upstream.settings.tunnel_timeout, now);
            connection.follow_frames(session.downstream_session.as_http1(), head);
        }
        // The version is this hop's own, whatever the upstream speaks (RFC 9110, 2.5).
        head.set_version(Version::HTTP_11);
        let client = session.req_header().version;
        forwarding::end_hop(head, client);
        forwarding::to_client(Connection::of(session.stream()), client, head, exchange)
    }

    async fn response_trailer_filter(
        &self,
        _session: &mut Session,
        trailers: &mut HeaderMap,
        _exchange: &mut Exchange,
    ) -> Result<Option<Bytes>> {
        forwarding::remove_limits(trailers);
        Ok(None)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        exchange: &mut Exchange,
        mut error: Box<Error>,
    ) -> Box<Error> {
        // Nothing was sent: another server may be tried, whatever the method.
        let again = exchange.tried.len() < retry::tries(exchange);
        retry::unconnected(&self.parts, exchange, &error, again);
        error.set_retry(again);
        error
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        mut error: Box<Error>,
        exchange: &mut Exchange,
        reused: bool,
    ) -> Box<Error> {
        exchange.sent = true;
        retry::connected(exchange);
        let facts = retry::Facts {
            reused,
            idempotent: session.req_header().method.is_idempotent(),
            replayable: !session.as_ref().retry_buffer_truncated(),
            begun: exchange.answered,
        };
        let tries = retry::tries_after(&error, facts, retry::tries(exchange));
        let again = retry::may_repeat(&error, facts) && exchange.tried.len() < tries;
        let silent = Connection::of(session.stream()).is_some_and(Connection::was_silent);
        if retry::is_fault(&error, facts) || (silent && !exchange.answered) {
            retry::failed(&self.parts, exchange);
        }
        // Pingora panics where this is left to be decided by whether the connection was kept.
        error.set_retry(again);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        exchange: &mut Exchange,
    ) -> FailToProxy {
        let silent = Connection::of(session.stream()).is_some_and(Connection::was_silent)
            && !exchange.answered;
        let broken = Connection::of(session.stream()).is_some_and(Connection::has_broken_body);
        let refusal = match broken {
            true => Some(Refusal::Malformed(Malformed::Framing)),
            false => retry::refusal(error, exchange, silent),
        };
        let of_server = matches!(refusal, Some(Refusal::BadGateway(_) | Refusal::GatewayTimeout))
            && !exchange.unconnected;
        if let Some(upstream) = admission::upstream(exchange).filter(|_| of_server) {
            let failures = &self.parts.metrics.upstream_failures;
            failures.with_label_values(&[upstream.name.as_str(), "answer"]).inc();
        }
        let is_answer = |status: StatusCode| !retry::is_interim(status);
        let begun = session.response_written().is_some_and(|head| is_answer(head.status));
        if let Some(held) = exchange.held.take() {
            buffering::unwrap(&mut session.downstream_session, &held.slot);
        }
        let Some(refusal) = refusal.filter(|_| !begun) else {
            return FailToProxy { error_code: 0, can_reuse_downstream: false };
        };
        let error_code = refusal.status();
        // Pingora closes the connection after a failure on the way; the answer says so.
        session.set_keepalive(None);
        let mut written = self.refuse(session, exchange, refusal).await;
        if written.is_ok() {
            written = session.downstream_session.finish_body().await;
        }
        FailToProxy {
            error_code: if written.is_ok() { error_code } else { 0 },
            can_reuse_downstream: false,
        }
    }

    async fn logging(&self, session: &mut Session, error: Option<&Error>, exchange: &mut Exchange) {
        if let Some(held) = exchange.held.take() {
            buffering::unwrap(&mut session.downstream_session, &held.slot);
        }
        retry::ended(&self.parts, exchange);
        let now = self.parts.clock.now();
        if let Some(connection) = Connection::of(session.stream()) {
            connection.request_is_over(now.tick);
        }
        let seconds = now.tick.since(exchange.began.tick).as_secs_f64();
        if let Some(meter) = exchange.whose.plane.and_then(|plane| exchange.force.planes.get(plane))
        {
            meter.count(exchange.status.unwrap_or(499), seconds);
        }
        if let Some(log) = &self.parts.access_log {
            log.add(exchange, &Facts::of(session, error), now);
        }
        if error.is_none() || exchange.refusal.is_some() {
            reply::close(session).await; // An answer that broke off does not end in order.
        }
    }

    fn suppress_error_log(&self, _session: &Session, _exchange: &Exchange, _error: &Error) -> bool {
        true // The access log has it, without the query.
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _exchange: &Exchange,
        _error: &Error,
        _context: ProxyWarnLogContext,
    ) -> bool {
        true
    }
}

impl Proxy {
    /// Reads a batch's body, counts its items, and lets it play to the upstream.
    async fn hold(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        batch: Batch,
    ) -> Result<(), Unread> {
        let head = session.req_header();
        let mut codings = head.headers.get_all(header::CONTENT_ENCODING).iter();
        if !codings.all(|coding| coding.as_bytes().eq_ignore_ascii_case(b"identity")) {
            return Err(Unread::Refused(Refusal::EncodedBatch));
        }
        let mut types = head.headers.get_all(header::CONTENT_TYPE).iter();
        if !types.all(|media_type| batch::is_countable(media_type.as_bytes())) {
            return Err(Unread::Refused(Refusal::EncodedBatch));
        }
        let server = &exchange.force.rules.settings.server;
        let limits = body::Limits {
            bytes_max: batch.bytes_max,
            held_bytes_max: server.caps.held_bytes_max,
            timeout: server.body_timeout,
        };
        let downstream = &mut *session.downstream_session;
        let held = body::read(downstream, &self.parts.room, limits).await?;
        let items_max = batch.items_max;
        batch::count(&held.body, items_max)
            .map_err(|miscount| Unread::Refused(Refusal::Batch { miscount, items_max }))?;
        let bytes = held.body.len();
        let slot = buffering::wrap(downstream, held.body, &self.parts);
        exchange.held = Some(Replayed { slot, bytes, taken: held.taken });
        Ok(())
    }

    /// Says no, in the words of the protocol that the client speaks, and so that its page hears it.
    async fn refuse(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        refusal: Refusal,
    ) -> Result<()> {
        self.parts.metrics.refusals.with_label_values(&[refusal.reason()]).inc();
        exchange.status = Some(refusal.status());
        let head = session.req_header();
        let dialect = Dialect::of(&head.method, &head.headers);
        let mut reply = dialect.map_or_else(|| refusal.reply(), |d| grpc::reply(d, &refusal));
        if let Some(cors) = admission::cors(exchange, head) {
            let exposed = if dialect.is_some() { grpc::EXPOSED } else { &[] };
            reply.lines.push_str(&cors.lines(&head.headers, exposed));
        }
        reply.closes = refusal.closes();
        reply.send(session, exchange).await?;
        exchange.refusal = Some(refusal);
        Ok(())
    }
}

/// Whether a request asks for another protocol, and has no body that could fail to come: one that
/// has is timed as any other, for a client that withholds it is no server that is silent.
fn may_switch(session: &Session) -> bool {
    let headers = &session.req_header().headers;
    let length = headers.get(header::CONTENT_LENGTH).map(|length| length.as_bytes());
    let has_body = headers.contains_key(header::TRANSFER_ENCODING)
        || length.is_some_and(|length| length.iter().any(|digit| *digit != b'0'));
    session.is_upgrade_req() && !has_body
}
