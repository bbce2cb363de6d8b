//! What admission learns about one request: its client, its tenants, its limits. (core)
//!
//! Not here: any decision. Each field is filled by the step that decides it.

#![expect(missing_docs, reason = "plain data: the names of fields say what they are")]

use std::net::IpAddr;
use std::sync::Arc;

use arrayvec::ArrayVec;
use weir_common::limit::decision::Decision;

use crate::limit::CHECKS_MAX;
use crate::limit::held::Held;
use crate::limit::report::Report;
use crate::request::route::Index;

/// What is known of a request.
pub struct RequestFacts {
    /// The request id that a trusted proxy sent; it replaces the generated one.
    pub given_id: Option<Box<str>>,
    /// The origin form of a target that was sent in absolute form.
    pub origin_form: Option<String>,
    pub client: ClientFacts,
    pub tenant: TenantLabels,
    /// What the limits decided.
    pub limits: LimitFacts,
}

/// Where a request comes from.
pub struct ClientFacts {
    /// The peer address of its connection.
    pub peer: IpAddr,
    /// Whether the peer is a trusted proxy.
    pub is_trusted_proxy: bool,
    /// Whether the connection is TLS.
    pub secure: bool,
    /// The client's certificate as a header value, if it sent one.
    pub certificate: Option<Arc<str>>,
    /// The client's address, behind any trusted proxies.
    pub address: IpAddr,
}

impl RequestFacts {
    /// What a connection from `peer` shows before anything is read. Made in place: it is large to
    /// move.
    #[inline(always)]
    #[must_use]
    pub fn of(peer: IpAddr) -> Self {
        let (is_trusted_proxy, secure, certificate) = (false, false, None);
        Self {
            given_id: None,
            origin_form: None,
            client: ClientFacts { peer, is_trusted_proxy, secure, certificate, address: peer },
            tenant: TenantLabels::default(),
            limits: LimitFacts::default(),
        }
    }
}

/// The tenants of a request, as far as admission found them.
#[derive(Default)]
pub struct TenantLabels {
    pub plane: Option<Index>,
    pub route: Option<Index>,
    pub workspace: Option<Arc<str>>,
    /// Whether the directory has the workspace.
    pub has_entry: bool,
    pub organisation: Option<Arc<str>>,
    pub instance: Option<Arc<str>>,
}

/// What the limits of a request decided.
#[derive(Default)]
pub struct LimitFacts {
    /// One for each limit of the route, in its order; and one for that of refusals.
    pub outcomes: ArrayVec<LimitOutcome, { CHECKS_MAX + 1 }>,
    /// The limit headers.
    pub report: Report,
    /// Counts the request as in flight, where a limit does.
    pub held: Option<Box<Held>>,
    /// The values of `RateLimit-Policy` and `RateLimit`, if they are sent.
    pub ietf: Option<(String, String)>,
}

/// What one limit decided.
pub struct LimitOutcome {
    pub limit: Index,
    /// The name of the tenant or address that it was checked for.
    pub name: Arc<str>,
    /// Whether it would admit the request.
    pub decision: Decision,
    /// How many more requests it admits now.
    pub remaining: u32,
}
