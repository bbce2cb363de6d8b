//! What an operator may set: the values of `gateway.toml`.
//!
//! What the values mean together (a route that names a limit, a plan that overrides one) is checked
//! where they are put together, in `rules`.
//!
//! Not here: how they are read (`settings::read`), the directory (`weir_common::directory`).

mod cors;
mod directory;
mod edge;
mod identity;
mod limit;
mod read;
mod server;
pub mod spellings;
mod trusted;
mod upstream;
mod values;

use std::net::SocketAddr;
use std::time::Duration;

use crate::settings::spellings::Spellings;
use ipnet::IpNet;
use log::LevelFilter;
use weir_common::config::document::Spanned;
use weir_common::directory::Values;
use weir_common::identifier::IdForm;

pub use crate::settings::cors::Cors;
pub use crate::settings::directory::{DirectorySource, Lookups, Source, Unknown};
pub use crate::settings::edge::{ClientCertificates, Https};
pub use crate::settings::identity::{Identity, Introspection, Jwt, Verify};
pub use crate::settings::read::read;
pub use crate::settings::trusted::{TrustedHeaders, folded};
pub use crate::settings::upstream::{Ejection, Health, Speaks, Tls, Upstream};

/// Everything in `gateway.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Sockets, threads, deadlines.
    pub server: Server,
    /// Where limits are kept.
    pub store: Store,
    /// What clients are told beside the contract's headers.
    pub headers: Headers,
    /// What is written down.
    pub log: Log,
    /// How a client proves who it is.
    pub identity: Identity,
    /// What identifiers of workspaces look like.
    pub workspaces: IdForm,
    /// Who belongs to whom.
    pub directory: DirectorySource,
    /// Planes, each a set of hosts.
    pub planes: Vec<(Spanned<String>, Plane)>,
    /// Upstreams, each a set of servers.
    pub upstreams: Vec<(Spanned<String>, Upstream)>,
    /// Limits.
    pub limits: Vec<(Spanned<String>, Limit)>,
    /// Plans.
    pub plans: Vec<(Spanned<String>, Plan)>,
    /// Routes, in the order of the file.
    pub routes: Vec<Route>,
}

impl Settings {
    /// A sentence for each setting that means what nobody is likely to mean.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let everybody = |networks: &[IpNet]| networks.iter().any(|net| net.prefix_len() == 0);
        let Server { trusted_proxies, proxy_protocol_from, .. } = &self.server;
        let mut warnings = Vec::new();
        if everybody(trusted_proxies) {
            warnings.push(
                "server.trusted_proxies is every network there is: any client may write another's \
                 address into X-Forwarded-For, and have as many connections as it likes"
                    .to_owned(),
            );
        }
        if everybody(proxy_protocol_from) {
            warnings.push(
                "server.proxy_protocol_from is every network there is: whoever can connect says \
                 itself which address it has"
                    .to_owned(),
            );
        }
        warnings
    }
}

/// `[server]`: what a reload cannot change, and the deadlines, which it can.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Addresses that clients call.
    pub http: Vec<SocketAddr>,
    /// Addresses that clients call by TLS, each with a certificate.
    pub https: Vec<Https>,
    /// The operator's address.
    pub admin: SocketAddr,
    /// Where that stands in the file.
    pub admin_at: usize,
    /// A file with the admin listener's bearer token.
    pub admin_token_file: Option<Spanned<String>>,
    /// Worker threads; 0 is one per core.
    pub threads: usize,
    /// Networks whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Headers that only these may send.
    pub trusted_headers: TrustedHeaders,
    /// Networks whose connections begin with a PROXY header, which is believed.
    pub proxy_protocol_from: Vec<IpNet>,
    /// What comes before the first request: a PROXY header, a TLS handshake.
    pub handshake_timeout: Duration,
    /// A whole request head.
    pub head_timeout: Duration,
    /// Between two reads of a request body.
    pub body_timeout: Duration,
    /// A connection without a request.
    pub idle_timeout: Duration,
    /// How much of everything.
    pub caps: Caps,
    /// How long a stop goes on accepting, for balancers to look elsewhere.
    pub shutdown_delay: Duration,
    /// How long a stop waits for requests in flight.
    pub shutdown_grace: Duration,
}

/// The caps of `[server]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The largest request head.
    pub head_bytes_max: u64,
    /// Batch bodies held back at one time, together.
    pub held_bytes_max: u64,
    /// Connections at one time.
    pub connections_max: u64,
    /// Connections at one time from one address, or one IPv6 /64.
    pub connections_per_address_max: u64,
    /// Requests on one connection.
    pub requests_per_connection_max: u32,
    /// Requests at one time on one HTTP/2 connection.
    pub streams_max: u32,
}

/// `[store]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Keys that the directory does not know, at most.
    pub max_keys: u64,
    /// Where counters are kept while the process is not running; empty keeps none.
    pub snapshot: Option<String>,
}

/// `[headers]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Whether to send `RateLimit` and `RateLimit-Policy` too.
    pub ratelimit: bool,
}

/// `[log]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The least level that is written to standard error.
    pub level: LevelFilter,
    /// Whether each request is written to standard output.
    pub access: bool,
}

/// `[planes.<name>]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Host names, or patterns whose first label is `{instance}`.
    pub hosts: Vec<Spanned<String>>,
    /// Who may read its answers in a browser; nobody is told so where not given.
    pub cors: Option<Cors>,
}

/// What a limit is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKey {
    /// A workspace.
    Workspace,
    /// An organisation.
    Organisation,
    /// An instance.
    Instance,
    /// A client's address.
    Address,
}

impl LimitKey {
    /// The word that settings have for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Organisation => "organisation",
            Self::Instance => "instance",
            Self::Address => "address",
        }
    }
}

/// `[limits.<name>]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// What it is kept for.
    pub key: LimitKey,
    /// How much it allows.
    pub quota: crate::limit::Quota,
    /// Whether it refuses, or only says what it would have refused.
    pub enforced: bool,
}

/// `[plans.<name>]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether an instance of a workspace on this plan may have limits of its own.
    pub per_instance_limits: bool,
    /// The plan's values of limits.
    pub limits: Vec<(Spanned<String>, Values)>,
}

/// `[[routes]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where the route starts in the file.
    pub at: usize,
    /// On which plane.
    pub plane: Option<Spanned<String>>,
    /// For which methods; all where empty.
    pub methods: Vec<Spanned<String>>,
    /// For which paths.
    pub path: Option<Spanned<String>>,
    /// The spellings of a path that it takes beyond those that every route takes.
    pub spellings: Spellings,
    /// Whether no limit applies.
    pub exempt: bool,
    /// Whether it needs no token, whatever its plane says.
    pub anonymous: bool,
    /// The limits that apply.
    pub limits: Vec<Spanned<String>>,
    /// Where requests go.
    pub upstream: Option<Spanned<String>>,
    /// The most items of a batch, which makes this a batch route.
    pub batch_items_max: Option<Spanned<u64>>,
    /// The largest body of a batch.
    pub body_bytes_max: u64,
}
