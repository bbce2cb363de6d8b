//! The values of `gateway.toml`.
//!
//! [`RawSettings`] has the shape of the file. `rules::compile` checks the references between tables
//! (a route that names a limit, a plan that overrides one) and compiles these tables into rules.
//! The other tables are [`Settings`]: plain values, each checked against its bounds. A problem with
//! a file that a setting names is reported by the setting's path, as `upstreams.control.ca`.
//!
//! Not here: how they are read (`settings::read`), the directory (`weir_common::directory`).

pub mod cors;
pub mod directory;
pub mod edge;
mod limit;
pub mod limit_key;
pub mod read;
mod server;
pub mod spellings;
pub mod store;
pub mod trusted;
pub mod upstream;
mod values;

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ipnet::IpNet;
use log::LevelFilter;
use weir_common::config::document::Spanned;
use weir_common::directory::values::Values;
use weir_common::identifier::IdForm;
use weir_common::limit::rolling;

use crate::limit::StoreFailure;
use crate::settings::cors::RawCors;
use crate::settings::directory::DirectorySettings;
use crate::settings::edge::Https;
use crate::settings::limit_key::{KeyPart, LimitKey};
use crate::settings::spellings::Spellings;
use crate::settings::store::StoreSettings;
use crate::settings::trusted::TrustedHeaders;
use crate::settings::upstream::UpstreamSettings;
use weir_common::identity::settings::IdentitySettings;

/// Everything in `gateway.toml`, in the shape of the file.
#[derive(Clone, Debug)]
pub struct RawSettings {
    /// The tables that refer to no other table.
    pub settings: Settings,
    /// The planes whose routes need a token.
    pub token_planes: Vec<Spanned<String>>,
    /// Limits by address for requests that cannot be charged to a tenant.
    pub unknown_limits: Vec<Spanned<String>>,
    /// `[planes]`
    pub planes: Vec<(Spanned<String>, RawPlane)>,
    /// `[limits]`
    pub limits: Vec<(Spanned<String>, RawLimit)>,
    /// `[plans]`
    pub plans: Vec<(Spanned<String>, RawPlan)>,
    /// `[[routes]]`, in the order of the file.
    pub routes: Vec<RawRoute>,
}

/// The settings that a running gateway reads.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Sockets, threads, deadlines.
    pub server: ServerSettings,
    /// Where the counters of limits are stored.
    pub store: StoreSettings,
    /// Which limit headers responses have in addition to `X-RateLimit-*`.
    pub headers: Headers,
    /// What is logged.
    pub log: Log,
    /// Where warnings of limits are posted.
    pub warnings_url: Option<String>,
    /// How clients authenticate.
    pub identity: IdentitySettings,
    /// What identifiers of workspaces look like.
    pub workspaces: IdForm,
    /// Where tenants are looked up.
    pub directory: DirectorySettings,
    /// Upstreams, each a set of servers.
    pub upstreams: Vec<UpstreamSettings>,
}

impl Settings {
    /// A sentence for each setting that is allowed and is probably an error.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let has_all = |networks: &[IpNet]| networks.iter().any(|net| net.prefix_len() == 0);
        let ServerSettings { trusted_proxies, proxy_protocol_from, .. } = &self.server;
        let mut warnings = Vec::new();
        if has_all(trusted_proxies) {
            warnings.push(
                "server.trusted_proxies is every network there is: any client may write another's \
                 address into X-Forwarded-For, and have as many connections as it likes"
                    .to_owned(),
            );
        }
        if has_all(proxy_protocol_from) {
            warnings.push(
                "server.proxy_protocol_from is every network there is: any client may claim any \
                 address"
                    .to_owned(),
            );
        }
        warnings
    }

    /// The files that settings name and the gateway reads.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let https = self.server.https.iter().flat_map(Https::files);
        let upstreams = self.upstreams.iter().flat_map(UpstreamSettings::files);
        let token = self.server.admin_token_file.iter();
        let files = self.directory.files().chain(https).chain(upstreams).chain(token);
        files.chain(self.identity.files()).map(Path::new)
    }
}

/// `[server]`: addresses and other keys that a reload cannot change, and deadlines, which it can.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerSettings {
    /// Addresses of listeners without TLS.
    pub http: Vec<SocketAddr>,
    /// Listeners with TLS, each with a certificate.
    pub https: Vec<Https>,
    /// The admin listener's address.
    pub admin: SocketAddr,
    /// A file with the admin listener's bearer token.
    pub admin_token_file: Option<String>,
    /// Worker threads; 0 is one per core.
    pub threads: usize,
    /// Networks whose `X-Forwarded-For` is trusted.
    pub trusted_proxies: Vec<IpNet>,
    /// Headers that only trusted proxies may send.
    pub trusted_headers: TrustedHeaders,
    /// Networks whose connections begin with a PROXY header.
    pub proxy_protocol_from: Vec<IpNet>,
    /// The deadline of a PROXY header and a TLS handshake together.
    pub handshake_timeout: Duration,
    /// The deadline of a whole request head.
    pub head_timeout: Duration,
    /// The longest time between two reads of a request body.
    pub body_timeout: Duration,
    /// How long a connection without a request is kept.
    pub idle_timeout: Duration,
    /// Sizes and numbers.
    pub caps: Caps,
    /// How long a shutdown continues to accept, so that load balancers notice it.
    pub shutdown_delay: Duration,
    /// How long a shutdown waits for requests in flight.
    pub shutdown_grace: Duration,
}

/// The caps of `[server]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caps {
    /// The largest request head.
    pub head_bytes_max: u64,
    /// All batch bodies buffered at one time.
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

/// `[headers]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// Whether to send `RateLimit` and `RateLimit-Policy` too.
    pub ratelimit: bool,
}

/// `[log]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Log {
    /// The lowest level written to standard error.
    pub level: LevelFilter,
    /// Whether a line per request is written to standard output.
    pub access: bool,
}

/// `[planes.<name>]`
#[derive(Clone, Debug)]
pub struct RawPlane {
    /// Host names, or patterns whose first label is `{instance}`.
    pub hosts: Vec<Spanned<String>>,
    /// Which origins may read its responses in a browser; none where not given.
    pub cors: Option<RawCors>,
}

/// `[limits.<name>]`
#[derive(Clone, Debug)]
pub struct RawLimit {
    /// What it counts by.
    pub key: LimitKey,
    /// How much it allows.
    pub quota: crate::limit::Quota,
    /// Whether it refuses, or only reports what it would have refused.
    pub enforced: bool,
    /// Whether the headers of responses may show it.
    pub shown: bool,
    /// At which share of the allowance to warn, in millionths; 0: never.
    pub warn_at: u32,
    /// What decides while a shared store is away.
    pub on_failure: StoreFailure,
}

impl RawLimit {
    /// `[limits.refused]` where the file has none.
    #[must_use]
    pub fn refused() -> Self {
        let window = Duration::from_secs(60);
        let quota = crate::limit::Quota::Rolling(rolling::RollingQuota { requests: 600, window });
        let key = LimitKey::of(KeyPart::Address);
        Self {
            key,
            quota,
            enforced: true,
            shown: true,
            warn_at: 0,
            on_failure: StoreFailure::LocalShare,
        }
    }
}

/// The name of the limit that the gateway's own refusals charge.
pub const REFUSED: &str = "refused";

/// `[plans.<name>]`
#[derive(Clone, Debug)]
pub struct RawPlan {
    /// Whether an instance of a workspace on this plan may have limits of its own.
    pub per_instance_limits: bool,
    /// The values of limits that the plan overrides.
    pub limits: Vec<(Spanned<String>, Values)>,
}

/// `[[routes]]`
#[derive(Clone, Debug)]
pub struct RawRoute {
    /// The position of the route in the file.
    pub at: usize,
    /// Its plane.
    pub plane: Option<Spanned<String>>,
    /// Its methods; all where empty.
    pub methods: Vec<Spanned<String>>,
    /// The pattern of its paths.
    pub path: Option<Spanned<String>>,
    /// The spellings of a path that it accepts beyond those that every route accepts.
    pub spellings: Spellings,
    /// Whether no limit applies.
    pub exempt: bool,
    /// Whether it needs no token, even if its plane does.
    pub anonymous: bool,
    /// The limits that apply.
    pub limits: Vec<Spanned<String>>,
    /// Its upstream.
    pub upstream: Option<Spanned<String>>,
    /// The most items of a batch, which makes this a batch route.
    pub batch_items_max: Option<Spanned<u64>>,
    /// The largest body.
    pub body_bytes_max: Option<Spanned<u64>>,
    /// What a request costs.
    pub cost: Option<Spanned<RouteCost>>,
    /// Whether the gateway itself answers, with the limits of the request's tenants.
    pub answers_limits: bool,
    /// Whether those may be read without a token.
    pub public: bool,
}

/// What a request costs in each of its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteCost {
    /// So much.
    Fixed(u32),
    /// As much as its batch has items; 1 at least.
    Items,
}
