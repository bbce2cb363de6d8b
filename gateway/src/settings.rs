//! What an operator may set: the values of `gateway.toml`.
//!
//! What the values mean together (a route that names a limit, a plan that overrides one) is checked
//! where they are put together, in `rules`.
//!
//! Not here: how they are read (`settings::read`), the directory (`weir_common::directory`).

mod limit;
mod read;

use std::net::SocketAddr;
use std::time::Duration;

use ipnet::IpNet;
use log::LevelFilter;
use weir_common::directory::Values;
use weir_common::reader::At;

pub use self::read::read;

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
    /// Who belongs to whom.
    pub directory: DirectorySource,
    /// Planes, each a set of hosts.
    pub planes: Vec<(At<String>, Plane)>,
    /// Upstreams, each a set of servers.
    pub upstreams: Vec<(At<String>, Upstream)>,
    /// Limits.
    pub limits: Vec<(At<String>, Limit)>,
    /// Plans.
    pub plans: Vec<(At<String>, Plan)>,
    /// Routes, in the order of the file.
    pub routes: Vec<Route>,
}

/// `[server]`: what a reload cannot change, and the deadlines, which it can.
#[derive(Clone, Debug, PartialEq)]
pub struct Server {
    /// Addresses that clients call.
    pub http: Vec<SocketAddr>,
    /// The operator's address.
    pub admin: SocketAddr,
    /// Where that stands in the file.
    pub admin_at: usize,
    /// A file with the admin listener's bearer token.
    pub admin_token_file: Option<At<String>>,
    /// Worker threads; 0 is one per core.
    pub threads: usize,
    /// Networks whose `X-Forwarded-For` is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// A whole request head.
    pub head_timeout: Duration,
    /// The largest request head.
    pub head_bytes_max: u64,
    /// Between two reads of a request body.
    pub body_timeout: Duration,
    /// Batch bodies held back at one time, together.
    pub held_bytes_max: u64,
    /// A connection without a request.
    pub idle_timeout: Duration,
    /// Connections at one time.
    pub connections_max: u64,
    /// How long a stop waits for requests in flight.
    pub shutdown_grace: Duration,
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

/// `[directory]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectorySource {
    /// The file.
    pub path: At<String>,
    /// What a tenant that the directory does not know is charged to.
    pub unknown: Unknown,
    /// Limits by address, for requests that no tenant can be charged with.
    pub unknown_limits: Vec<At<String>>,
}

/// What an identifier that the directory does not know is charged to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    /// To itself, as if it were known.
    OwnKey,
    /// To the client's address.
    ByAddress,
}

/// `[planes.<name>]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plane {
    /// Host names, or patterns whose first label is `{instance}`.
    pub hosts: Vec<At<String>>,
}

/// `[upstreams.<name>]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// `host:port`, each.
    pub servers: Vec<At<String>>,
    /// To open a connection.
    pub connect_timeout: Duration,
    /// Between two reads of an answer, the first of which waits for its head.
    pub read_timeout: Duration,
    /// Between two writes of a request.
    pub write_timeout: Duration,
    /// How long a connection is kept for the next request.
    pub idle_timeout: Duration,
    /// Servers tried when one does not let us connect.
    pub tries: usize,
    /// How servers are asked whether they are well; nothing is sent where not given.
    pub health: Option<Health>,
}

/// `[upstreams.<name>.health]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// What is asked for.
    pub path: String,
    /// How often.
    pub interval: Duration,
    /// How long an answer may take.
    pub timeout: Duration,
    /// Bad answers in a row after which a server gets no requests.
    pub unhealthy_after: u32,
    /// Good answers in a row after which it does again.
    pub healthy_after: u32,
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
    pub limits: Vec<(At<String>, Values)>,
}

/// `[[routes]]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Where the route starts in the file.
    pub at: usize,
    /// On which plane.
    pub plane: Option<At<String>>,
    /// For which methods; all where empty.
    pub methods: Vec<At<String>>,
    /// For which paths.
    pub path: Option<At<String>>,
    /// Whether no limit applies.
    pub exempt: bool,
    /// The limits that apply.
    pub limits: Vec<At<String>>,
    /// Where requests go.
    pub upstream: Option<At<String>>,
    /// The most items of a batch, which makes this a batch route.
    pub batch_items_max: Option<At<u64>>,
    /// The largest body of a batch.
    pub body_bytes_max: u64,
}
