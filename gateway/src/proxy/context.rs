//! What we learn about one request on its way: the context that Pingora carries from phase to
//! phase.
//!
//! Not here: any decision. Each field is filled by the file that decides it.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use arrayvec::ArrayVec;
use prometheus::IntGauge;
use weir_common::decision::Decision;
use weir_common::time::{Moment, Tick};

use crate::config::active::Force;
use crate::edge::session::Slot;
use crate::limit::ASKS_MAX;
use crate::limit::report::Told;
use crate::proxy::body::Taken;
use crate::request::route::Index;
use crate::response::refusal::Refusal;
use crate::upstream::Pick;

/// More servers than this are never tried for one request.
pub const TRIES_MAX: usize = 16;

/// One request.
pub struct Exchange {
    /// When its head had been read: the one look at the clock that everything is decided by.
    pub began: Moment,
    /// The settings it began with, and keeps.
    pub force: Arc<Force>,
    /// Its own name, which nobody can guess.
    pub id: u128,
    /// What a trusted proxy called it before us, and what it is called then.
    pub given_id: Option<Box<str>>,
    /// Its place among the requests of this process.
    pub nth: u64,
    /// The origin form of a target that came in absolute form.
    pub absolute: Option<String>,
    /// Whether it came over a proxy that we trust.
    pub trusts_peer: bool,
    /// The other end of its connection.
    pub peer: Option<IpAddr>,
    /// Whether it came over TLS.
    pub secure: bool,
    /// What the upstream is told of the client's certificate, where it has shown one.
    pub client_certificate: Option<Arc<str>>,
    /// Its client, behind any proxy that we trust.
    pub client: Option<IpAddr>,
    /// Whom it is for.
    pub whose: Whose,
    /// What each limit said.
    pub said: ArrayVec<Said, ASKS_MAX>,
    /// What the client is told of its allowance.
    pub told: Option<Told>,
    /// The values of `RateLimit-Policy` and `RateLimit`, where they are sent.
    pub ietf: Option<(String, String)>,
    /// The answer we gave ourselves, where we did.
    pub refusal: Option<Refusal>,
    /// The servers that were tried, the last one last.
    pub tried: ArrayVec<SocketAddr, TRIES_MAX>,
    /// The last of them, by its place in the upstream.
    pub server: Option<Index>,
    /// When the first of them was picked.
    pub asked_at: Option<Tick>,
    /// When the head of an answer had come.
    pub answered_at: Option<Tick>,
    /// Whether any of them may have seen the request.
    pub sent: bool,
    /// Whether that one has failed the request.
    pub failed: bool,
    /// Whether that one has begun to answer.
    pub answered: bool,
    /// How many interim answers (1xx) there have been.
    pub interims: u32,
    /// A body that was held back, and the session behind it.
    pub held: Option<Replayed>,
    /// How long the body of an answer of our own is, where Pingora did not write it.
    pub answered_bytes: usize,
    /// Whether the last server that was tried did not let us connect.
    pub unconnected: bool,
    /// The status of the answer that went to the client.
    pub status: Option<u16>,
    /// However the request ends, it is no longer in flight.
    _in_flight: InFlight,
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

/// Whom a request is for, as far as it got.
#[derive(Default)]
pub struct Whose {
    /// The plane.
    pub plane: Option<Index>,
    /// The route.
    pub route: Option<Index>,
    /// The workspace.
    pub workspace: Option<Arc<str>>,
    /// The organisation.
    pub organisation: Option<Arc<str>>,
    /// The instance.
    pub instance: Option<Arc<str>>,
}

/// What one limit said.
pub struct Said {
    /// Which limit.
    pub limit: Index,
    /// Whose allowance.
    pub name: Arc<str>,
    /// Whether it would admit the request.
    pub decision: Decision,
    /// What is left.
    pub remaining: u32,
}

/// A held body on its way to the upstream.
pub struct Replayed {
    /// Where the real session comes back to.
    pub slot: Slot,
    /// How long the body is.
    pub bytes: usize,
    /// The room it takes.
    pub taken: Taken,
}

impl Exchange {
    /// A request that has just been read.
    #[must_use]
    pub fn new(began: Moment, force: Arc<Force>, id: u128, nth: u64, in_flight: InFlight) -> Self {
        Self {
            began,
            force,
            id,
            given_id: None,
            nth,
            absolute: None,
            trusts_peer: false,
            peer: None,
            secure: false,
            client_certificate: None,
            client: None,
            whose: Whose::default(),
            said: ArrayVec::new(),
            told: None,
            ietf: None,
            refusal: None,
            tried: ArrayVec::new(),
            server: None,
            asked_at: None,
            answered_at: None,
            sent: false,
            failed: false,
            answered: false,
            interims: 0,
            held: None,
            answered_bytes: 0,
            unconnected: false,
            status: None,
            _in_flight: in_flight,
        }
    }

    /// The address that was tried last.
    #[must_use]
    pub fn picked(&self) -> Option<Pick> {
        let (server, address) = (self.server?, *self.tried.last()?);
        Some(Pick { server, address })
    }

    /// What the request is called in logs and headers.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        match &self.given_id {
            Some(given) => Cow::Borrowed(given),
            None => Cow::Owned(format!("{:032x}", self.id)),
        }
    }
}
