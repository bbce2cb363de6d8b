//! Reads the configuration from its files, with every problem in them.
//!
//! # Invariant
//!
//! A reload that changes a setting which needs a restart is refused, not applied in part.
//!
//! # Not here
//!
//! Which settings there are (`settings`), what runs by them (`active`).

use std::net::SocketAddr;

use serde_json::Value;
use weir_common::config::document::{Diagnostic, Document, Parsed, Spanned};
use weir_common::config::file::ConfigFile;
use weir_common::config::shown_certificate::ShownCertificate;
use weir_common::config::{files, reload};
use weir_common::directory::Directory;
use weir_common::directory::client::DirectoryClient;
use weir_common::identity::verifier::IdentityFiles;
use weir_common::secret::Secret;

use crate::limit::key::Seed;
use crate::limit::shared::servers::login::fault_in_ca;
use crate::rules::Rules;
use crate::settings::Settings;
use crate::settings::directory::DirectorySource;
use crate::settings::edge::Https;
use crate::settings::store::StoreSettings;
use crate::tls::{self, Listeners};
use crate::upstream::credentials::{self, Credentials};

/// The example settings and directory, compiled into the program.
const SHIPPED: &str = include_str!("../../../config/gateway.toml");
const SHIPPED_DIRECTORY: &str = include_str!("../../../config/directory.toml");

/// The path of the settings without `--config`.
pub const USUAL: &str = "config/gateway.toml";

/// What a configuration was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    settings: String,
    directory: String,
    /// The bearer token of the admin listener, where there is one.
    pub admin_token: Option<Secret<String>>,
    /// The secret of the keys of limits, where gateways share a store.
    pub shared_secret: Option<Secret<String>>,
    /// The credentials of each upstream, in the order of the settings.
    pub credentials: Vec<Credentials>,
    /// The keys and secrets of the identity settings.
    pub identity: IdentityFiles,
    /// The client of the directory, where its source is `http`.
    pub client: Option<DirectoryClient>,
    /// The active value of each key, configured or default.
    pub effective: Value,
    /// The TLS listeners' certificates and keys.
    pub tls: Listeners,
}

/// A configuration that was read and has no errors, and is not active yet.
pub struct CheckedConfig {
    /// Routes, limits, plans and tenants.
    pub rules: Rules,
    /// The values of all settings.
    pub settings: Settings,
    /// What it was read from.
    pub origin: Origin,
}

/// Where the configuration is read from.
#[derive(Clone, Debug)]
pub struct Config {
    /// The settings file, or the built-in example.
    pub file: ConfigFile,
}

impl Config {
    /// The example that is compiled into the program.
    #[must_use]
    pub fn built_in() -> Self {
        Self { file: ConfigFile::built_in(USUAL) }
    }

    /// Reads and checks all files; the error is a list of all problems in them.
    pub fn load(&self, seed: Seed) -> Result<CheckedConfig, Vec<Diagnostic>> {
        let text = self.file.read(SHIPPED).map_err(|diagnostic| vec![diagnostic])?;
        let document = Document::new(&self.file.name(), &text);
        let Parsed { made: raw, effective, .. } = crate::settings::read::read(&document);
        let settings = &raw.settings;
        let token = settings.server.admin_token_file.as_ref();
        let token =
            token.and_then(|file| files::bearer_token(file, "server.admin_token_file", &document));
        let tls = tls::load(&settings.server.https, &document);
        let of_upstream = |upstream| credentials::read(upstream, &document);
        let credentials = settings.upstreams.iter().map(of_upstream).collect();
        let identity = IdentityFiles::read(&settings.identity, &document);
        let shared_secret = shared_secret(&settings.store, &document);
        let (path, directory_text, client) = match &settings.directory.source {
            DirectorySource::File(path) => {
                let at = document.value_place("directory.path");
                let named = Spanned { value: path.clone(), at };
                let text = self.file.beside(&document, &named, "directory.path", SHIPPED_DIRECTORY);
                (path.as_str(), text.unwrap_or_default(), None)
            }
            DirectorySource::Http(http) => {
                let client = DirectoryClient::new(http);
                let fault = |(key, why)| document.fault_in(&format!("directory.{key}"), why);
                ("", String::new(), client.map_err(fault).ok())
            }
        };
        let of_directory = Document::new(path, &directory_text);
        let directory = Directory::read(&of_directory, &settings.workspaces);
        let rules =
            crate::rules::compile::check((&raw, &document), (&directory, &of_directory), seed);
        let diagnostics: Vec<Diagnostic> =
            document.diagnostics().into_iter().chain(of_directory.diagnostics()).collect();
        let origin = Origin {
            settings: text,
            directory: directory_text,
            admin_token: token,
            shared_secret,
            credentials,
            identity,
            client,
            effective,
            tls,
        };
        let checked = CheckedConfig { rules, settings: raw.settings, origin };
        if diagnostics.is_empty() { Ok(checked) } else { Err(diagnostics) }
    }
}

/// The least length of a shared secret: keys must not be guessed.
const SECRET_BYTES_MIN: usize = 32;

/// Reads the secret that gateways with a shared store have in common.
fn shared_secret(store: &StoreSettings, document: &Document) -> Option<Secret<String>> {
    let redis = store.redis.as_ref().filter(|redis| !redis.secret_file.is_empty())?;
    if let Some(path) = &redis.address.login.password_file {
        drop(files::secret(path, "store.password_file", document));
    }
    if let Some(why) = redis.address.login.ca.as_deref().and_then(fault_in_ca) {
        document.fault_in("store.ca", why);
    }
    if let Some(path) = &redis.address.sentinel_password_file {
        drop(files::secret(path, "store.sentinel_password_file", document));
    }
    let path = &redis.secret_file;
    let secret = files::secret(path, "store.secret_file", document)?;
    let long_enough = secret.expose().len() >= SECRET_BYTES_MIN;
    if !long_enough {
        let why = format!(
            "the first line of `{path}` must have {SECRET_BYTES_MIN} characters or more, as \
             `openssl rand -hex 32` writes them"
        );
        document.fault_in("store.secret_file", why);
    }
    long_enough.then_some(secret)
}

/// The addresses of TLS listeners, without duplicates.
pub(crate) fn addresses(https: &[Https]) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = https.iter().map(|entry| entry.address).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

/// The settings that only a new process can apply. A reload reads certificates again, but another
/// address needs another socket.
const RESTART_KEYS: [&str; 7] = [
    "server.http",
    "server.https.address",
    "server.admin",
    "server.threads",
    "server.connections_max",
    "store",
    "log.access",
];

/// Those of the store that an upgrade cannot apply: its counters are under other keys.
const STOP_KEYS: [&str; 2] = ["store.kind", "store.secret_file"];

impl Origin {
    /// The settings' text as a document called `name`, for reporting further problems.
    #[must_use]
    pub fn document(&self, name: &str) -> Document {
        Document::new(name, &self.settings)
    }

    /// The certificates that the gateway shows: to its clients, and to upstreams.
    pub fn certificates(&self) -> impl Iterator<Item = &ShownCertificate> {
        let of_upstreams = self.credentials.iter().filter_map(Credentials::certificate);
        self.tls.certificates().chain(of_upstreams)
    }

    /// The changed settings that a process with the `earlier` values cannot apply by a reload, each
    /// at its position in the file `name`.
    #[must_use]
    pub fn restart_needed(&self, name: &str, earlier: &Value) -> Vec<Diagnostic> {
        let document = self.document(name);
        let stops = reload::changed(&STOP_KEYS, earlier, &self.effective);
        let mut keys = reload::changed(&RESTART_KEYS, earlier, &self.effective);
        keys.retain(|key| *key != "store" || stops.is_empty());
        drop(reload::restart_needed(&document, &stops, "a restart"));
        reload::restart_needed(&document, &keys, "a restart or an upgrade (SIGUSR2)")
    }
}
