//! A request's way, phase by phase: the table of contents of the gateway.
//!
//! Each Pingora phase is one short method that asks another file and does what it says. Pingora
//! answers with `bool`, and not always the same way round; that is translated here and nowhere
//! else.
//!
//! # Not here
//!
//! Decisions (`judge`), the words of refusals (`refuse`), headers (`headers`, `relay`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Method, StatusCode, Version, header};
use pingora_core::modules::http::HttpModules;
use pingora_core::protocols::http::date::get_cached_date;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::{Error, ErrorSource, ErrorType, Result};
use pingora_http::{RequestHeader, ResponseHeader};
use pingora_proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use weir_common::problem::MEDIA_TYPE;

use crate::access_log::Facts;
use crate::body::Unread;
use crate::exchange::{Exchange, InFlight, Replayed, TRIES_MAX};
use crate::hold;
use crate::judge::{self, Next};
use crate::parts::Parts;
use crate::refuse::Refusal;
use crate::rules::Batch;
use crate::wire::Connection;
use crate::{batch, body, relay};

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
        if let Some(connection) = Connection::of(session.stream()) {
            connection.head_is_read();
        }
        if !self.parts.ready.load(Ordering::Relaxed) {
            session.set_keepalive(None);
        }
        let body_timeout = exchange.force.rules.settings.server.body_timeout;
        // Where protocols are switched, silence is no body that fails to come.
        let switches = session.is_upgrade_req();
        session.set_read_timeout(Some(body_timeout).filter(|_| !switches));
        if session.req_header().version == Version::HTTP_2 {
            // A stream that its client opens no window for; of others the connection has one.
            session.set_write_timeout(Some(body_timeout));
        }
        Ok(())
    }

    async fn request_filter(&self, session: &mut Session, exchange: &mut Exchange) -> Result<bool> {
        let next = judge::judge(&self.parts, session, exchange).await;
        let refusal = match next {
            Next::Forward => return Ok(false), // Pingora: go on.
            Next::Hold(batch) => match self.hold(session, exchange, batch).await {
                Ok(()) => return Ok(false),
                Err(Unread::Refused(refusal)) => refusal,
                Err(Unread::Broken(error)) => return Err(error),
            },
            Next::Refuse(refusal) => refusal,
        };
        self.refuse(session, exchange, refusal).await?;
        Ok(true) // Pingora: an answer was written, stop here.
    }

    async fn upstream_peer(
        &self,
        _session: &mut Session,
        exchange: &mut Exchange,
    ) -> Result<Box<HttpPeer>> {
        let upstream = judge::upstream(exchange).ok_or_else(no_server)?.clone();
        let (_, address) = upstream.pick(&exchange.tried).ok_or_else(no_server)?;
        if exchange.tried.is_full() {
            exchange.tried.remove(0);
        }
        exchange.tried.push(address);
        exchange.unconnected = false;
        Ok(upstream.peer(address))
    }

    async fn upstream_request_filter(
        &self,
        _session: &mut Session,
        head: &mut RequestHeader,
        exchange: &mut Exchange,
    ) -> Result<()> {
        relay::to_upstream(head, exchange)
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end: bool,
        _exchange: &mut Exchange,
    ) -> Result<()> {
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
        if is_interim(head.status) {
            relay::remove_limits_of(head);
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
        // The version is this hop's own, whatever the upstream speaks (RFC 9110, 2.5).
        head.set_version(Version::HTTP_11);
        relay::end_hop(head, session.req_header().version);
        relay::to_client(Connection::of(session.stream()), head, exchange)
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        exchange: &mut Exchange,
        mut error: Box<Error>,
    ) -> Box<Error> {
        let upstream = judge::upstream(exchange);
        let tries = upstream.map_or(1, |upstream| upstream.settings.tries).min(TRIES_MAX);
        if let Some(upstream) = upstream {
            let failures = &self.parts.metrics.upstream_failures;
            failures.with_label_values(&[upstream.name.as_str(), "connect"]).inc();
        }
        exchange.unconnected = true;
        // Nothing was sent: another server may be tried, whatever the method.
        error.set_retry(exchange.tried.len() < tries);
        error
    }

    async fn fail_to_proxy(
        &self,
        session: &mut Session,
        error: &Error,
        exchange: &mut Exchange,
    ) -> FailToProxy {
        let refusal = refusal_of(error);
        let of_server = matches!(refusal, Some(Refusal::BadGateway | Refusal::GatewayTimeout))
            && !exchange.unconnected;
        if let Some(upstream) = judge::upstream(exchange).filter(|_| of_server) {
            let failures = &self.parts.metrics.upstream_failures;
            failures.with_label_values(&[upstream.name.as_str(), "answer"]).inc();
        }
        let is_answer = |status: StatusCode| !is_interim(status);
        let begun = session.response_written().is_some_and(|head| is_answer(head.status));
        if let Some(held) = exchange.held.take() {
            hold::unwrap(&mut session.downstream_session, &held.slot);
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
            hold::unwrap(&mut session.downstream_session, &held.slot);
        }
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
            log.add(exchange, &facts(session, error, exchange.answered_bytes), now);
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
        let slot = hold::wrap(downstream, held.body);
        exchange.held = Some(Replayed { slot, bytes, taken: held.taken });
        Ok(())
    }

    /// Answers for ourselves, and keeps the connection where what follows on it can be told apart.
    async fn refuse(
        &self,
        session: &mut Session,
        exchange: &mut Exchange,
        refusal: Refusal,
    ) -> Result<()> {
        self.parts.metrics.refusals.with_label_values(&[refusal.reason()]).inc();
        if refusal.closes() {
            session.set_keepalive(None);
        } else {
            body::drain(&mut session.downstream_session).await;
        }
        exchange.status = Some(refusal.status());
        let with_body = session.req_header().method != Method::HEAD;
        let whole = session.downstream_session.is_body_done();
        if !whole {
            session.set_keepalive(None);
        }
        if let Some(connection) = Connection::of(session.stream()) {
            let keep = session.downstream_session.as_http1().is_some_and(|h1| h1.will_keepalive());
            let date = get_cached_date();
            let date = date.to_str().unwrap_or_default();
            let answer = refusal.answer(date, &relay::lines(exchange), keep, with_body);
            exchange.answered_bytes = answer.body_bytes;
            connection.answer(answer.bytes);
        } else {
            self.refuse_through(session, exchange, &refusal, with_body).await?;
        }
        exchange.refusal = Some(refusal);
        Ok(())
    }

    /// Answers through Pingora, where there is no connection of our own below it.
    async fn refuse_through(
        &self,
        session: &mut Session,
        exchange: &Exchange,
        refusal: &Refusal,
        with_body: bool,
    ) -> Result<()> {
        let body = refusal.problem().body();
        let mut head = ResponseHeader::build(refusal.status(), Some(12))?;
        head.insert_header(header::CONTENT_TYPE, MEDIA_TYPE)?;
        head.insert_header(header::CONTENT_LENGTH, body.len())?;
        head.insert_header(header::CACHE_CONTROL, "no-store")?;
        if let Some((name, value)) = refusal.header() {
            head.insert_header(name, value)?;
        }
        relay::to_client(None, &mut head, exchange)?;
        session.write_response_header(Box::new(head), !with_body).await?;
        if with_body {
            session.write_response_body(Some(body.into()), true).await?;
        }
        Ok(())
    }
}

/// Whether an answer is followed by another: 1xx, but for the 101 that ends HTTP.
fn is_interim(status: StatusCode) -> bool {
    status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS
}

fn no_server() -> Box<Error> {
    Error::explain(ErrorType::HTTPStatus(503), "no server is well")
}

/// What a failure is answered with; nothing where there is nobody left to answer.
fn refusal_of(error: &Error) -> Option<Refusal> {
    match (error.etype(), error.esource()) {
        (ErrorType::HTTPStatus(503), _) => Some(Refusal::NoServer),
        (ErrorType::ReadTimedout, ErrorSource::Downstream) => Some(Refusal::BodyTimeout),
        (
            ErrorType::WriteError
            | ErrorType::ReadError
            | ErrorType::ConnectionClosed
            | ErrorType::H2Error
            | ErrorType::WriteTimedout,
            ErrorSource::Downstream,
        ) => None,
        (_, ErrorSource::Downstream) => Some(Refusal::NotHttp),
        (ErrorType::ReadTimedout | ErrorType::ConnectTimedout | ErrorType::WriteTimedout, _) => {
            Some(Refusal::GatewayTimeout)
        }
        (_, ErrorSource::Upstream) => Some(Refusal::BadGateway),
        _ => Some(Refusal::Internal),
    }
}

/// What the access log writes of a session.
fn facts<'s>(session: &'s Session, error: Option<&Error>, answered: usize) -> Facts<'s> {
    let head = session.req_header();
    let target = std::str::from_utf8(head.raw_path()).unwrap_or("(not UTF-8)");
    let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
    Facts {
        method: head.method.as_str(),
        host: host.or_else(|| head.uri.authority().map(|host| host.as_str())),
        path: target.split(['?', '#']).next().unwrap_or_default(),
        version: match head.version {
            Version::HTTP_10 => "HTTP/1.0",
            Version::HTTP_2 => "HTTP/2.0",
            _ => "HTTP/1.1",
        },
        bytes_sent: session.body_bytes_sent().max(answered),
        error: error.map(|error| format!("{:?} {:?}", error.esource(), error.etype())),
    }
}
