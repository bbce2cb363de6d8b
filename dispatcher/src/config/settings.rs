//! The settings of `dispatcher.toml`, checked. `config/dispatcher.toml` documents each option.
//!
//! Not here: parsing and bounds (`config::read`).

#![expect(missing_docs, reason = "plain data: each option is documented in the schema")]

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use lettre::message::Mailbox;
use log::LevelFilter;
use rustls::pki_types::ServerName;
use weir_common::config::document::Spanned;
use weir_common::directory::settings::HttpDirectory;
use weir_common::identity::settings::IdentitySettings;
use weir_common::limit::rolling::{EXACT_MAX, RollingQuota};
use weir_common::secret::Secret;

use crate::domain::contrast::Color;
use crate::domain::health::Policy;
use crate::domain::retry::Schedule;

/// All of `dispatcher.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub server: Server,
    pub store: StoreSettings,
    pub auth: Auth,
    pub identity: Identity,
    pub events: EventSettings,
    pub secrets: SecretSettings,
    pub ingest: IngestSettings,
    pub webhooks: WebhookSettings,
    pub signature: Signature,
    pub egress: Egress,
    pub retry: Schedule,
    pub attempts: AttemptSettings,
    pub health: Policy,
    pub mail: Option<MailSettings>,
    pub operator: Option<OperatorSettings>,
    pub dashboard: Option<DashboardSettings>,
    pub directory: DirectorySource,
    pub retention: Retention,
    pub log: Log,
}

impl Settings {
    #[must_use]
    pub fn password_file(&self) -> Option<&Spanned<String>> {
        self.mail.as_ref().and_then(|mail| mail.password_file.as_ref())
    }

    /// The prefix of the links in mails.
    #[must_use]
    pub fn mail_link(&self) -> Option<&str> {
        let own = self.mail.as_ref().and_then(|mail| mail.link.as_deref());
        own.or_else(|| self.dashboard.as_ref().map(|dashboard| dashboard.url.as_str()))
    }

    /// The files that `[dashboard]` names: the logo, and the token for the gateway.
    #[must_use]
    pub fn dashboard_files(&self) -> [Option<&Spanned<String>>; 2] {
        let logo = self.dashboard.as_ref().and_then(|dashboard| dashboard.logo.as_ref());
        [logo, self.limits().and_then(|limits| limits.token_file.as_ref())]
    }

    /// Where the limits of workspaces are read.
    #[must_use]
    pub fn limits(&self) -> Option<&LimitsSettings> {
        self.dashboard.as_ref().and_then(|dashboard| dashboard.limits.as_ref())
    }

    #[must_use]
    pub fn operator_endpoint(&self) -> Option<&OperatorEndpoint> {
        self.operator.as_ref().and_then(|operator| operator.endpoint.as_ref())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    pub api: SocketAddr,
    pub ingest: SocketAddr,
    pub admin: SocketAddr,
    /// The positions of `api`, `ingest` and `admin` in the file.
    pub at: [usize; 3],
    pub admin_token_file: Option<Spanned<String>>,
    /// 0 means one per core.
    pub threads: usize,
    pub connections_max: usize,
    pub head_timeout: Duration,
    pub body_timeout: Duration,
    pub idle_timeout: Duration,
    pub shutdown_grace: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    pub path: PathBuf,
    /// Its place in the file.
    pub path_at: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    pub tokens: Spanned<String>,
}

/// How access tokens are verified, and which values of `scope_claim` permit what.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub settings: IdentitySettings,
    pub scope_claim: String,
    pub webhooks_read: Vec<String>,
    pub webhooks_write: Vec<String>,
    pub events_write: Vec<String>,
    /// The values with which a token reaches every workspace.
    pub all_workspaces: Vec<String>,
}

/// The event catalogue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventSettings {
    /// The file; `None` means the built-in one.
    pub file: Option<Spanned<String>>,
}

/// The pages for customers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DashboardSettings {
    /// Where browsers reach it, without a slash at the end.
    pub url: String,
    /// Scheme, host and port of `url`.
    pub origin: String,
    pub session_expires: Duration,
    pub link_expires: Duration,
    /// Origins whose pages may show it in a frame.
    pub frame_origins: Vec<String>,
    /// Of links and buttons, on light pages and on dark ones.
    pub accent: Color,
    pub accent_dark: Color,
    /// A picture above each page.
    pub logo: Option<Spanned<String>>,
    pub limits: Option<LimitsSettings>,
}

/// Stands for the workspace in [`LimitsSettings::url`].
pub const LIMITS_WORKSPACE: &str = "{workspace}";

/// Where the limits of a workspace are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitsSettings {
    /// With `{workspace}` in its path.
    pub url: String,
    pub token_file: Option<Spanned<String>>,
    /// The first line of `token_file`.
    pub token: Option<Secret<String>>,
}

impl LimitsSettings {
    /// The URL of a workspace, whose name is an identifier and so needs no escapes.
    #[must_use]
    pub fn url_of(&self, workspace: &str) -> String {
        self.url.replace(LIMITS_WORKSPACE, workspace)
    }
}

impl DashboardSettings {
    /// Whether browsers reach it by TLS only.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.origin.starts_with("https://")
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretSettings {
    pub key_file: PathBuf,
    /// Its place in the file.
    pub key_file_at: usize,
    pub rotation_overlap: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngestSettings {
    pub events_max: usize,
    pub event_bytes_max: usize,
    pub body_bytes_max: usize,
    pub waiting_max: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookSettings {
    pub per_workspace_max: u64,
    pub checks_per_minute: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub header: http::HeaderName,
    pub standard_webhooks: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    pub deadline: Duration,
    pub requests: u32,
    pub window: Duration,
    pub host_multiple: u32,
    pub in_flight_max: usize,
    pub allow_http: bool,
    pub allow_networks: Vec<IpNet>,
    /// Empty means any.
    pub ports: Vec<u16>,
    pub extra_ca: Option<Spanned<String>>,
    /// The addresses to call from; empty lets the system choose.
    pub source: Vec<IpAddr>,
    pub proxy: Option<ProxyAddress>,
    /// The first line of `proxy_credentials_file`.
    pub proxy_credentials: Option<Secret<String>>,
    pub proxy_credentials_file: Option<Spanned<String>>,
    pub client_certificate: Option<Spanned<String>>,
    pub client_key: Option<Spanned<String>>,
}

/// An HTTP proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyAddress {
    /// A name or an address.
    pub host: String,
    pub port: u16,
}

impl Egress {
    /// Its files, each with its option.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Spanned<String>)> {
        let all = [
            ("egress.extra_ca", &self.extra_ca),
            ("egress.client_certificate", &self.client_certificate),
            ("egress.client_key", &self.client_key),
            ("egress.proxy_credentials_file", &self.proxy_credentials_file),
        ];
        all.into_iter().filter_map(|(key, file)| Some((key, file.as_ref()?)))
    }

    /// Where the file of this option is named; 0 if it is not.
    #[must_use]
    pub fn place_of(&self, key: &str) -> usize {
        self.files().find(|(named, _)| *named == key).map_or(0, |(_, file)| file.at)
    }

    /// The rate limit of an endpoint.
    #[must_use]
    pub fn per_endpoint(&self) -> RollingQuota {
        RollingQuota { requests: self.requests, window: self.window }
    }

    /// The rate limit of a workspace at one host, of which every start is counted.
    #[must_use]
    pub fn per_host(&self) -> RollingQuota {
        let requests = self.requests.saturating_mul(self.host_multiple).min(EXACT_MAX);
        RollingQuota { requests, window: self.window }
    }

    /// The limit of attempts in flight to one endpoint: as many as may start within one deadline.
    #[must_use]
    pub fn in_flight_per_endpoint(&self) -> usize {
        let starts = u128::from(self.requests) * self.deadline.as_micros();
        let starts = starts.div_ceil(self.window.as_micros().max(1));
        let most = self.in_flight_max.max(self.requests as usize);
        usize::try_from(starts).unwrap_or(usize::MAX).clamp(1, most)
    }
}

/// What is kept of attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptSettings {
    pub answers: KeptAnswers,
    /// Of a response's body.
    pub answer_bytes_max: usize,
    /// Whether addresses and answers of private networks are kept, which owners can then read.
    pub private_answers: bool,
}

impl Default for AttemptSettings {
    fn default() -> Self {
        Self { answers: KeptAnswers::Failed, answer_bytes_max: 1024, private_answers: false }
    }
}

/// The attempts whose headers and answers are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAnswers {
    Failed,
    All,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailSettings {
    pub server: MailServer,
    /// The first line of `password_file`.
    pub password: Option<Secret<String>>,
    pub password_file: Option<Spanned<String>>,
    /// Its domain is ASCII.
    pub from: Mailbox,
    /// The dashboard's URL, prefix of the links in mails.
    pub link: Option<String>,
    /// The wait after the first failure; doubled after each further one.
    pub retry_after: Duration,
}

/// A mail server, from its URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MailServer {
    /// In ASCII; an IPv6 address without brackets.
    pub host: String,
    /// The host, as a certificate names it.
    pub name: ServerName<'static>,
    pub port: u16,
    pub start_of_tls: StartOfTls,
    /// A user, and a password unless it is in a file.
    pub login: Option<Secret<(String, String)>>,
}

/// When a connection to a mail server becomes TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartOfTls {
    AtOnce,
    BeforeAll,
    IfOffered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorSettings {
    /// As it is written.
    pub url: Spanned<String>,
    /// The canonical URL, and the first line of `secret_file`; set once both were checked.
    pub endpoint: Option<OperatorEndpoint>,
    pub secret_file: Spanned<String>,
    /// Workspaces that no event is about.
    pub opt_out: Vec<Spanned<String>>,
}

/// Where events for operators are sent, and how they are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperatorEndpoint {
    /// The canonical URL.
    pub url: Arc<str>,
    /// The key.
    pub secret: Secret<String>,
}

/// Where organisations and owners of workspaces come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectorySource {
    File(Spanned<String>),
    /// It is asked for owners; it tells no organisation.
    Http(HttpDirectory),
}

impl DirectorySource {
    /// The files that it names.
    pub fn files(&self) -> impl Iterator<Item = &String> {
        let (file, http) = match self {
            Self::File(path) => (Some(&path.value), None),
            Self::Http(http) => (None, Some(http)),
        };
        file.into_iter().chain(http.into_iter().flat_map(HttpDirectory::files))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    pub delivered: Duration,
    pub failed: Duration,
    /// Of headers and answers of attempts; they go with their delivery at the latest.
    pub answers: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub level: LevelFilter,
    /// Whether each attempt is logged to standard output.
    pub attempts: bool,
}
