//! The context of one request, which Pingora carries from phase to phase.
//!
//! Not here: any decision. Each field is set by the file that decides it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use http::header;
use http::uri::Authority;
use pingora_http::RequestHeader;
use prometheus::IntGauge;
use weir_common::time::{Moment, Tick};

use crate::admission::facts::RequestFacts;
use crate::config::active::ActiveConfig;
use crate::config::shared::Shared;
use crate::edge::exchange::Exchange;
use crate::limit::key::hex;
use crate::request::body_budget::BudgetPermit;
use crate::request::cors::Cors;
use crate::request::route::Index;
use crate::response::grpc::{self, Dialect};
use crate::response::refusal::Refusal;
use crate::upstream::{Pick, Upstream};

/// The maximum number of tries for one request, whatever the settings are.
pub const TRIES_MAX: usize = 16;

/// One request.
pub struct RequestContext {
    /// When its head had been read.
    pub arrived_at: Moment,
    /// The same, or the end of its wait for a permit: decisions at admission use this reading of
    /// the clock, except after a wait (`admission`), and limits that `Limiter::check_waiting`
    /// checks later.
    pub started_at: Moment,
    /// The configuration at its start, which it keeps after a reload; once admitted, without the
    /// tenants.
    pub config: Arc<ActiveConfig>,
    /// Its id, which cannot be guessed.
    pub id: u128,
    /// Its number in this process.
    pub nth: u64,
    /// The facts that admission has found.
    pub facts: RequestFacts,
    /// The servers that were tried, and the results.
    pub upstream: UpstreamFacts,
    /// Its response.
    pub response: ResponseFacts,
    /// Its buffered body.
    pub buffered: Option<Replayed>,
    /// How many bytes of its body a server was sent.
    pub body_bytes: u64,
    /// What its session is to do.
    pub exchange: Arc<Exchange>,
    /// The plane whose CORS rules its response follows.
    cors_plane: Option<Index>,
    /// Counts it as in flight, however it ends.
    _in_flight: InFlight,
}

/// The servers that were tried for a request, and the results.
#[derive(Default)]
pub struct UpstreamFacts {
    /// Their addresses, in order.
    pub tried: ArrayVec<SocketAddr, TRIES_MAX>,
    /// The last of them, by its index in the upstream.
    pub server: Option<Index>,
    /// When the first of them was picked.
    pub picked_at: Option<Tick>,
    /// When the head of a response had arrived.
    pub answered_at: Option<Tick>,
    /// Whether any of them may have received the request.
    pub sent: bool,
    /// Whether the last one has failed the request.
    pub failed: bool,
    /// Whether the last one has started to respond.
    pub answered: bool,
    /// Whether connecting to the last one failed.
    pub unconnected: bool,
    /// The number of interim responses (1xx).
    pub interims: u32,
}

/// The response to a request.
#[derive(Default)]
pub struct ResponseFacts {
    /// The status that was sent to the client.
    pub status: Option<u16>,
    /// The refusal, where the request was refused.
    pub refusal: Option<Refusal>,
    /// The length of the body, where `Connection` writes the response in place of Pingora.
    pub bytes: usize,
}

/// Counts a request as in flight until dropped.
struct InFlight(IntGauge);

impl InFlight {
    /// Increments the gauge.
    fn new(gauge: &IntGauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// A buffered body on its way to the upstream.
pub struct Replayed {
    /// The length of the body.
    pub bytes: usize,
    /// Its share of the budget, released on drop.
    pub permit: BudgetPermit,
}

impl RequestContext {
    /// A request from `peer` whose head has just been read. Made in place: it is large to move.
    #[inline(always)]
    #[must_use]
    pub fn new(shared: &Shared, peer: IpAddr, exchange: Arc<Exchange>) -> Self {
        let (id, nth) = shared.next_request();
        let now = shared.clock.now();
        Self {
            arrived_at: now,
            started_at: now,
            config: shared.active.load_full(),
            id,
            nth,
            facts: RequestFacts::of(peer),
            upstream: UpstreamFacts::default(),
            response: ResponseFacts::default(),
            buffered: None,
            body_bytes: 0,
            exchange,
            cors_plane: None,
            _in_flight: InFlight::new(&shared.metrics.in_flight),
        }
    }

    /// Keeps of the configuration what a request needs after admission: what follows may outlast
    /// many reloads. `head` is that of the request.
    pub fn end_admission(&mut self, head: &RequestHeader) {
        self.cors_plane = self.facts.tenant.plane.or_else(|| self.plane_of_host(head));
        self.config = self.config.admitted();
    }

    /// Whether a limit counts the request as in flight.
    #[must_use]
    pub fn holds_slot(&self) -> bool {
        self.facts.limits.held.is_some()
    }

    /// Counts the request no longer as in flight under its limits: what remains of its response is
    /// about to be written, and a client that has read it may send the next request at once.
    pub fn release(&mut self) {
        self.facts.limits.held = None;
    }

    /// The upstream, and the server and address of it that were tried last.
    #[must_use]
    pub fn last_try(&self) -> Option<(&Upstream, Pick)> {
        let (server, address) = (self.upstream.server?, *self.upstream.tried.last()?);
        Some((self.upstream_of_route()?, Pick { server, address }))
    }

    /// The request id in logs and headers.
    #[must_use]
    pub fn request_id(&self) -> Cow<'_, str> {
        match &self.facts.given_id {
            Some(given) => Cow::Borrowed(given),
            None => Cow::Owned(hex(self.id, 32).to_string()),
        }
    }

    /// The largest body that the request's route accepts, in bytes.
    #[must_use]
    pub fn body_bytes_max(&self) -> Option<u64> {
        self.config.rules.routes.get(self.facts.tenant.route?)?.body_bytes_max
    }

    /// The upstream of the request's route.
    #[must_use]
    pub fn upstream_of_route(&self) -> Option<&Arc<Upstream>> {
        let route = self.config.rules.routes.get(self.facts.tenant.route?)?;
        self.config.upstreams.get(route.upstream)
    }

    /// The CORS rules of the request's plane, or of that of its host where it has none. Known once
    /// admission has ended.
    #[must_use]
    pub fn cors(&self) -> Option<&Cors> {
        self.config.rules.cors(self.cors_plane?)
    }

    /// The CORS header lines of a response, each with its CRLF, where its plane has rules. `head`
    /// is that of the request.
    #[must_use]
    pub fn cors_lines(&self, head: &RequestHeader) -> Option<String> {
        let is_grpc = || Dialect::of(&head.method, &head.headers).is_some();
        let cors = self.cors()?;
        Some(cors.lines(&head.headers, if is_grpc() { grpc::EXPOSED } else { &[] }))
    }

    fn plane_of_host(&self, head: &RequestHeader) -> Option<Index> {
        let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| head.uri.authority().map(Authority::as_str))?;
        let port_at = host.rfind(':').filter(|_| !host.ends_with(']'));
        let name = host.get(..port_at.unwrap_or(host.len()))?.to_ascii_lowercase();
        self.config.rules.plane_of(&name)
    }
}
