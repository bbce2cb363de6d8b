//! The context of one request, which Pingora carries from phase to phase.
//!
//! Not here: any decision. Each field is filled by the file that decides it.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use http::header;
use http::uri::Authority;
use pingora_http::RequestHeader;
use prometheus::IntGauge;
use weir_common::time::{Moment, Tick};

use crate::admission::facts::RequestFacts;
use crate::config::active::ActiveConfig;
use crate::edge::session::Slot;
use crate::request::body_budget::BudgetPermit;
use crate::request::cors::Cors;
use crate::request::route::Index;
use crate::response::refusal::Refusal;
use crate::upstream::{Pick, Upstream};

/// More servers than this are never tried for one request.
pub const TRIES_MAX: usize = 16;

/// One request.
pub struct RequestContext {
    /// When its head had been read: the one look at the clock that everything is decided by.
    pub began: Moment,
    /// The configuration it began with, and keeps.
    pub config: Arc<ActiveConfig>,
    /// Its own id, which cannot be guessed.
    pub id: u128,
    /// Its number in this process.
    pub nth: u64,
    /// What admission found out about it.
    pub facts: RequestFacts,
    /// What came of the servers that were tried.
    pub upstream: UpstreamFacts,
    /// The answer to it.
    pub response: ResponseFacts,
    /// A body that was buffered, and the session behind it.
    pub buffered: Option<Replayed>,
    /// However the request ends, it is no longer in flight.
    _in_flight: InFlight,
}

/// What came of the servers that were tried for a request.
#[derive(Default)]
pub struct UpstreamFacts {
    /// Their addresses, the last one last.
    pub tried: ArrayVec<SocketAddr, TRIES_MAX>,
    /// The last of them, by its place in the upstream.
    pub server: Option<Index>,
    /// When the first of them was picked.
    pub picked_at: Option<Tick>,
    /// When the head of an answer had come.
    pub answered_at: Option<Tick>,
    /// Whether any of them may have seen the request.
    pub sent: bool,
    /// Whether the last one has failed the request.
    pub failed: bool,
    /// Whether the last one has begun to answer.
    pub answered: bool,
    /// Whether the last one did not let us connect.
    pub unconnected: bool,
    /// How many interim answers (1xx) there have been.
    pub interims: u32,
}

/// The answer to a request.
#[derive(Default)]
pub struct ResponseFacts {
    /// The status that went to the client.
    pub status: Option<u16>,
    /// Why it is an answer of our own, where it is one.
    pub refusal: Option<Refusal>,
    /// How long the body of an answer of our own is, where Pingora did not write it.
    pub bytes: usize,
}

/// Counts a request as being answered for as long as it is.
pub struct InFlight(IntGauge);

impl InFlight {
    /// One more.
    #[must_use]
    pub fn new(gauge: &IntGauge) -> Self {
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
    /// Where the real session comes back to.
    pub slot: Slot,
    /// How long the body is.
    pub bytes: usize,
    /// What it takes of the budget.
    pub permit: BudgetPermit,
}

impl RequestContext {
    /// A request that has just been read.
    #[must_use]
    pub fn new(
        began: Moment,
        config: Arc<ActiveConfig>,
        id: u128,
        nth: u64,
        in_flight: InFlight,
    ) -> Self {
        Self {
            began,
            config,
            id,
            nth,
            facts: RequestFacts::default(),
            upstream: UpstreamFacts::default(),
            response: ResponseFacts::default(),
            buffered: None,
            _in_flight: in_flight,
        }
    }

    /// The address that was tried last.
    #[must_use]
    pub fn picked(&self) -> Option<Pick> {
        let (server, address) = (self.upstream.server?, *self.upstream.tried.last()?);
        Some(Pick { server, address })
    }

    /// The request id in logs and headers.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        match &self.facts.given_id {
            Some(given) => Cow::Borrowed(given),
            None => Cow::Owned(format!("{:032x}", self.id)),
        }
    }

    /// The upstream that the request's route leads to.
    #[must_use]
    pub fn upstream_of_route(&self) -> Option<&Arc<Upstream>> {
        let route = self.config.rules.routes.get(self.facts.tenant.route?)?;
        self.config.upstreams.get(route.upstream)
    }

    /// What browsers are told where this request leads, or on its host where it leads nowhere.
    #[must_use]
    pub fn cors(&self, head: &RequestHeader) -> Option<&Cors> {
        let host = head.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = host.or_else(|| head.uri.authority().map(Authority::as_str))?;
        let port_at = host.rfind(':').filter(|_| !host.ends_with(']'));
        let name = host.get(..port_at.unwrap_or(host.len()))?.to_ascii_lowercase();
        self.config.rules.cors(self.facts.tenant.plane, Some(&name))
    }
}
