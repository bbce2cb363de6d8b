//! The active configuration: rules, upstreams, verifier and directory, replaced as one.
//!
//! # Invariants
//!
//! 1. A reload activates all of a new configuration or nothing of it.
//! 2. A reload that changes a setting which needs a restart is refused, not applied in part.
//!
//! # Not here
//!
//! When a reload runs (`app`, `operations`), which settings there are (`settings`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::Value;
use weir_common::config::document::{Diagnostic, Document, Parsed, Spanned};
use weir_common::config::file::ConfigFile;
use weir_common::config::{files, reload};
use weir_common::directory::Directory;
use weir_common::directory::client::DirectoryClient;
use weir_common::secret::Secret;
use weir_common::time::{Clock, Tick};

use crate::identity::auth::Verifier;
use crate::identity::auth::authorization::{ClaimNames, Claims};
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::identity::directory::{DirectoryUnavailable, RemoteDirectory};
use crate::limit::key::Seed;
use crate::limit::shared::login::fault_in_ca;
use crate::rules::Rules;
use crate::rules::tenant::{TenantEntries, TenantRefs};
use crate::settings::Settings;
use crate::settings::directory::DirectorySource;
use crate::settings::edge::Https;
use crate::settings::store::StoreSettings;
use crate::settings::upstream::UpstreamSettings;
use crate::telemetry::metrics::{LimitMeter, Metrics, PlaneMeter};
use crate::tls::{self, Listeners};
use crate::upstream::credentials::{self, Credentials};
use crate::upstream::names::{self, Places};
use crate::upstream::{Server, Upstream};
use weir_common::identity::identity_server::IdentityMetrics;
use weir_common::identity::verifier::{IdentityFiles, VerifierSource};

/// The example settings and directory, compiled into the program.
const SHIPPED: &str = include_str!("../../../config/gateway.toml");
const SHIPPED_DIRECTORY: &str = include_str!("../../../config/directory.toml");

/// The path of the settings without `--config`.
pub const USUAL: &str = "config/gateway.toml";

/// One configuration, with what it needs at run time: upstreams, verifier, directory, metrics.
pub struct ActiveConfig {
    /// Routes, limits, plans and tenants.
    pub rules: Rules,
    /// The values of all settings.
    pub settings: Settings,
    /// The upstreams, in the order of the settings.
    pub upstreams: Vec<Arc<Upstream>>,
    /// Verifies tokens; none with `identity.verify = "none"`.
    pub verifier: Option<Arc<Verifier>>,
    /// The metrics of each plane, in the order of the settings.
    pub planes: Vec<PlaneMeter>,
    /// The metrics of each limit, in the order of the settings.
    pub limits: Vec<LimitMeter>,
    /// The directory, where its source is `http`.
    pub remote_directory: Option<RemoteDirectory>,
    /// What the configuration was read from; a reload that reads the same changes nothing.
    pub origin: Origin,
}

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
    credentials: Vec<Credentials>,
    identity: IdentityFiles,
    /// The client of the directory, where its source is `http`.
    client: Option<DirectoryClient>,
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

impl CheckedConfig {
    /// The names of servers that `earlier` has no address for.
    #[must_use]
    pub fn unplaced(&self, earlier: &ActiveConfig) -> BTreeSet<String> {
        let placed: BTreeSet<&str> = earlier.placed().map(|server| &*server.name).collect();
        let names = self.settings.upstreams.iter().flat_map(|upstream| &upstream.servers);
        let is_name = |name: &&String| name.parse::<SocketAddr>().is_err();
        names.filter(is_name).filter(|name| !placed.contains(&***name)).cloned().collect()
    }

    /// Reports servers that `earlier` does not have and that do not resolve.
    #[must_use]
    pub fn unresolved(
        &self,
        file: &str,
        earlier: &ActiveConfig,
        places: &Places,
    ) -> Vec<Diagnostic> {
        let document = self.origin.document(file);
        let known = earlier.names();
        for (path, server) in self.settings.upstreams.iter().flat_map(UpstreamSettings::servers) {
            if let Some(Err(why)) = places.get(server).filter(|_| !known.contains(server)) {
                document.fault_in(&path, format!("`{server}` does not resolve: {why}"));
            }
        }
        document.diagnostics()
    }
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

impl ActiveConfig {
    /// Builds what `checked` needs at run time. Servers that `earlier` has keep their state.
    #[must_use]
    pub fn new(
        checked: CheckedConfig,
        earlier: Option<&Self>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Self {
        let CheckedConfig { rules, settings, origin } = checked;
        let none = Credentials::default();
        let upstream = |(nth, settings): (usize, &UpstreamSettings)| {
            let known = |active: &'_ Self| {
                active.upstreams.iter().find(|known| known.name == settings.name).cloned()
            };
            let known = earlier.and_then(known);
            let credentials = origin.credentials.get(nth).unwrap_or(&none);
            let upstream = Upstream::new(settings, credentials, known.as_deref());
            upstream.show(metrics);
            Arc::new(upstream)
        };
        let upstreams = settings.upstreams.iter().enumerate().map(upstream).collect();
        let planes = rules.planes.iter().map(|plane| metrics.plane(&plane.name)).collect();
        let limits = rules.limits.iter().map(|limit| metrics.limit(&limit.name)).collect();
        let nothing = Listeners::default();
        let tls = origin.tls.keeping(earlier.map_or(&nothing, |earlier| &earlier.origin.tls));
        metrics.certificate_expires.set(tls.expires().map_or(0.0, |seconds| seconds as f64));
        let before = earlier.and_then(|earlier| earlier.remote_directory.as_ref());
        let remote_directory = origin.client.clone();
        let remote_directory =
            remote_directory.map(|client| RemoteDirectory::new(client, before, metrics, clock));
        let of_identity = origin.effective.get("identity").cloned().unwrap_or_default();
        let of = VerifierSource {
            settings: of_identity,
            files: origin.identity.clone(),
            more_claims: rules.key_claims(),
        };
        let earlier = earlier.and_then(|earlier| earlier.verifier.as_ref());
        let names = ClaimNames {
            workspace: settings.identity.workspace_claim.clone(),
            organisation: settings.identity.organisation_claim.clone(),
            keys: of.more_claims.clone(),
        };
        let read = Box::new(move |claims: &_| Claims::of(claims, &names));
        let shell = (metrics.clone() as Arc<dyn IdentityMetrics>, clock);
        let verifier = Verifier::new(&settings.identity, of, read, earlier, shell);
        let origin = Origin { tls, ..origin };
        Self { rules, settings, upstreams, verifier, planes, limits, remote_directory, origin }
    }

    fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.upstreams.iter().flat_map(|upstream| &upstream.servers)
    }

    /// The servers that have an address.
    fn placed(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers().filter(|server| !server.addresses().is_empty())
    }

    /// The names of servers that must be resolved.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        let named = self.servers().filter(|server| server.is_named());
        named.map(|server| server.name.clone()).collect()
    }

    /// Records the addresses of servers. A server whose name does not resolve keeps its addresses,
    /// and the failure is logged.
    pub fn place(&self, places: &Places) {
        for server in self.servers() {
            if let Some(Ok(sockets)) = places.get(&server.name) {
                server.found_at(sockets.clone());
            }
        }
        for (name, found) in places {
            if let Err(why) = found {
                names::warn(name, why);
            }
        }
    }

    /// Copies the addresses of servers of the same name from `earlier`, to those without any.
    pub fn place_as(&self, earlier: &Self) {
        for server in self.servers().filter(|server| server.addresses().is_empty()) {
            if let Some(known) = earlier.placed().find(|known| known.name == server.name) {
                server.found_at(known.addresses().iter().map(|a| a.socket).collect());
            }
        }
    }

    /// The upstreams none of whose servers has an address: requests for them are refused.
    #[must_use]
    pub fn unreachable(&self) -> Vec<&str> {
        let is_nowhere = |upstream: &&Arc<Upstream>| {
            upstream.servers.iter().all(|server| server.addresses().is_empty())
        };
        self.upstreams.iter().filter(is_nowhere).map(|upstream| &*upstream.name).collect()
    }

    /// The entries of `names` for an operator, where the directory is remote.
    pub async fn known(
        &self,
        names: &TenantRefs<'_>,
        now: Tick,
    ) -> Result<Option<TenantEntries>, DirectoryUnavailable> {
        let Some(remote_directory) = &self.remote_directory else { return Ok(None) };
        let operator = UnknownBudget::unlimited(now);
        remote_directory.find(&self.rules, names, true, &operator).await.map(Some)
    }
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

impl Origin {
    /// The settings' text as a document called `name`, for reporting further problems.
    #[must_use]
    pub fn document(&self, name: &str) -> Document {
        Document::new(name, &self.settings)
    }

    /// The changed settings that a process with the `earlier` values cannot apply by a reload, each
    /// at its position in the file `name`.
    #[must_use]
    pub fn restart_needed(&self, name: &str, earlier: &Value) -> Vec<Diagnostic> {
        let keys = reload::changed(&RESTART_KEYS, earlier, &self.effective);
        reload::restart_needed(&self.document(name), &keys, "a restart or an upgrade (SIGUSR2)")
    }
}
