//! What an operator may set, raw and checked.
//!
//! Not here: how a file is read (`config::read`), what the values are for.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use log::LevelFilter;
use weir_common::config::document::Spanned;
use weir_common::identifier::IdForm;
use weir_common::secret::Secret;

use crate::config::allowed_fields::Allowed;
use crate::domain::health::Policy;
use crate::domain::retry::Schedule;

/// All of `dispatcher.toml`.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Sockets.
    pub server: Server,
    /// Where everything is kept.
    pub store: Store,
    /// Who may call.
    pub auth: Auth,
    /// What identifiers look like.
    pub identifiers: Identifiers,
    /// What secrets are sealed with.
    pub secrets: Secrets,
    /// What may be sent to us.
    pub ingest: Ingest,
    /// What workspaces may have.
    pub webhooks: Webhooks,
    /// How deliveries are signed.
    pub signature: Signature,
    /// Whom we call, and how fast.
    pub egress: Egress,
    /// When we call again.
    pub retry: Schedule,
    /// When owners are told, and deliveries paused.
    pub health: Policy,
    /// How owners are told.
    pub mail: Option<Mail>,
    /// Who the owners are.
    pub directory: Directory,
    /// How long what has ended is kept.
    pub retention: Retention,
    /// What is written down.
    pub log: Log,
}

impl Settings {
    /// The file of the mail server's password.
    #[must_use]
    pub fn password_file(&self) -> Option<&Spanned<String>> {
        self.mail.as_ref().and_then(|mail| mail.password_file.as_ref())
    }
}

/// Sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Where customers' calls come in, through the gateway.
    pub api: SocketAddr,
    /// Where events come in.
    pub ingest: SocketAddr,
    /// The operator's.
    pub admin: SocketAddr,
    /// Where `api`, `ingest` and `admin` stand in the file.
    pub at: [usize; 3],
    /// A file whose first line is the admin listener's bearer token.
    pub admin_token_file: Option<Spanned<String>>,
    /// Worker threads; 0: one per core.
    pub threads: usize,
    /// Connections to each listener at one time; more are closed at once.
    pub connections_max: usize,
    /// A whole request head.
    pub head_timeout: Duration,
    /// A whole request body.
    pub body_timeout: Duration,
    /// A connection without a request.
    pub idle_timeout: Duration,
    /// The longest a stop waits for what is in flight.
    pub shutdown_grace: Duration,
}

/// Where everything is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// The file of the SQLite database.
    pub path: PathBuf,
    /// Where that stands in the file.
    pub path_at: usize,
}

/// Who may call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Auth {
    /// The file of hashed tokens.
    pub tokens: Spanned<String>,
}

/// What identifiers look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identifiers {
    /// Those of workspaces.
    pub workspaces: IdForm,
    /// Those of tenants.
    pub tenants: IdForm,
}

impl Default for Identifiers {
    fn default() -> Self {
        Self { workspaces: IdForm::workspace(), tenants: IdForm::tenant() }
    }
}

/// What secrets are sealed with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Secrets {
    /// The file of the key, made on the first start.
    pub key_file: PathBuf,
    /// Where that stands in the file.
    pub key_file_at: usize,
    /// How long a secret goes on signing after another has taken its place.
    pub rotation_overlap: Duration,
}

/// What may be sent to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ingest {
    /// Events in one call.
    pub events_max: usize,
    /// Bytes of one event.
    pub event_bytes_max: usize,
    /// Bytes of one call.
    pub body_bytes_max: usize,
    /// Calls that wait to be written; more are 503.
    pub waiting_max: usize,
    /// Fields that only sound or look like secrets.
    pub allowed: Allowed,
}

/// What workspaces may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhooks {
    /// Webhooks of one workspace.
    pub per_workspace_max: u64,
}

/// How deliveries are signed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The header of CONTRACT §5.2.
    pub header: http::HeaderName,
    /// Whether the headers of Standard Webhooks are sent as well.
    pub standard_webhooks: bool,
}

/// Whom we call, and how fast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// From the start of an attempt to the headers of its answer.
    pub deadline: Duration,
    /// Attempts that may start at one receiving endpoint within the window.
    pub requests: u32,
    /// The window.
    pub window: Duration,
    /// Attempts in flight at one time, all together.
    pub in_flight_max: usize,
    /// Whether `http://` is allowed as well.
    pub allow_http: bool,
    /// Networks that are private but permitted.
    pub allow_networks: Vec<IpNet>,
    /// Ports that are called; any, where empty.
    pub ports: Vec<u16>,
    /// A file of certificates that are trusted beside the system's.
    pub extra_ca: Option<Spanned<String>>,
}

impl Egress {
    /// Attempts in flight at one time towards one endpoint: as many as start within a deadline.
    #[must_use]
    pub fn in_flight_per_endpoint(&self) -> usize {
        let starts = u128::from(self.requests) * self.deadline.as_micros();
        let starts = starts.div_ceil(self.window.as_micros().max(1));
        usize::try_from(starts).unwrap_or(usize::MAX).clamp(1, self.requests as usize)
    }
}

/// How owners are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mail {
    /// `smtps://`, `smtp+starttls://` or `smtp://`, perhaps with user and password: a secret.
    pub smtp: Secret<String>,
    /// The password, where it stands in a file of its own.
    pub password: Option<Secret<String>>,
    /// That file.
    pub password_file: Option<Spanned<String>>,
    /// Who it is from.
    pub from: String,
    /// Where the dashboard is: the beginning of the link in a mail.
    pub link: Option<String>,
    /// How long after a failure a mail is tried again; twice as long after each further one.
    pub retry_after: Duration,
}

/// Who the owners are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    /// The file.
    pub path: Spanned<String>,
}

/// How long what has ended is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retention {
    /// What was delivered.
    pub delivered: Duration,
    /// What was given up.
    pub failed: Duration,
}

/// What is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    /// The program's own log, to standard error.
    pub level: LevelFilter,
    /// Whether each attempt is a line on standard output.
    pub attempts: bool,
}
