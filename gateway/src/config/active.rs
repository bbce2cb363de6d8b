//! What is active: the rules, and the upstreams they lead to, swapped as one.
//!
//! # Invariants
//!
//! 1. A reload takes all of a new configuration or nothing of it.
//! 2. What a reload cannot change is refused, not ignored.
//!
//! # Not here
//!
//! When a reload is asked for (`app`, `operations`), what a configuration may say (`settings`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use weir_common::config::document::{Diagnostic, Document, Parsed, Spanned};
use weir_common::config::file::ConfigFile;
use weir_common::config::{files, reload};
use weir_common::directory::Directory;
use weir_common::secret::Secret;
use weir_common::time::{Clock, Tick};

use crate::identity::auth::verifier::Verifier;
use crate::identity::directory::client::DirectoryClient;
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::identity::directory::{DirectoryUnavailable, RemoteDirectory};
use crate::identity::http_client;
use crate::limit::key::Seed;
use crate::rules::Rules;
use crate::rules::tenant::{TenantEntries, TenantRefs};
use crate::settings::Settings;
use crate::settings::directory::DirectorySource;
use crate::settings::edge::Https;
use crate::settings::identity::{IdentitySettings, Verify};
use crate::settings::upstream::UpstreamSettings;
use crate::telemetry::metrics::{LimitMeter, Metrics, PlaneMeter};
use crate::tls::{self, Listeners};
use crate::upstream::credentials::{self, Credentials};
use crate::upstream::names::{self, Places};
use crate::upstream::{Server, Upstream};

/// What a program runs with that was asked for its example: the ones that ship.
const SHIPPED: &str = include_str!("../../../config/gateway.toml");
const SHIPPED_DIRECTORY: &str = include_str!("../../../config/directory.toml");

/// Where a program without `--config` looks.
pub const USUAL: &str = "config/gateway.toml";

/// One configuration, with what it runs: upstreams, a verifier, a directory, counters.
pub struct ActiveConfig {
    /// What requests meet.
    pub rules: Rules,
    /// The values that were set.
    pub settings: Settings,
    /// The upstreams, in the order of the settings.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What verifies tokens, where they are verified.
    pub verifier: Option<Arc<Verifier>>,
    /// The counters of each plane and each limit, in the order of the settings.
    pub planes: Vec<PlaneMeter>,
    /// The counters of each limit.
    pub limits: Vec<LimitMeter>,
    /// The directory, where it is one over HTTP.
    pub remote_directory: Option<RemoteDirectory>,
    /// What the configuration was read from: a reload that finds the same has nothing to do.
    pub origin: Origin,
}

/// What a configuration was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    settings: String,
    directory: String,
    /// The bearer token of the admin listener, where there is one.
    pub admin_token: Option<Secret<String>>,
    /// Of each upstream, in the order of the settings.
    credentials: Vec<Credentials>,
    identity: crate::identity::auth::verifier::IdentityFiles,
    /// Who is asked, where the directory is no file.
    client: Option<DirectoryClient>,
    /// Each key's active value, as given or by default.
    pub effective: Value,
    /// Certificates and keys, as they are shown to clients.
    pub tls: Listeners,
}

/// A configuration that was read and has no problem, and is not active yet.
pub struct CheckedConfig {
    /// What requests meet.
    pub rules: Rules,
    /// The values that are set.
    pub settings: Settings,
    /// What it was read from.
    pub origin: Origin,
}

impl CheckedConfig {
    /// The names of servers that `earlier` has at no address.
    #[must_use]
    pub fn unplaced(&self, earlier: &ActiveConfig) -> BTreeSet<String> {
        let placed: BTreeSet<&str> = earlier.placed().map(|server| &*server.name).collect();
        let names = self.settings.upstreams.iter().flat_map(|upstream| &upstream.servers);
        let is_name = |name: &&String| name.parse::<SocketAddr>().is_err();
        names.filter(is_name).filter(|name| !placed.contains(&***name)).cloned().collect()
    }

    /// Servers that `earlier` does not have, and that do not resolve.
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

/// Where the configuration is.
#[derive(Clone, Debug)]
pub struct Config {
    /// The file that it starts with.
    pub file: ConfigFile,
}

impl Config {
    /// The example within the program.
    #[must_use]
    pub fn built_in() -> Self {
        Self { file: ConfigFile::built_in(USUAL) }
    }

    /// Reads all files and checks everything in them; or gives every problem there is.
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
        let identity = identity_files(&settings.identity, &document);
        let (path, directory_text, client) = match &settings.directory.source {
            DirectorySource::File(path) => {
                let at = document.value_place("directory.path");
                let named = Spanned { value: path.clone(), at };
                let text = self.file.beside(&document, &named, "directory.path", SHIPPED_DIRECTORY);
                (path.as_str(), text, None)
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

/// The files that `[identity]` names; what is wrong with one stays in the document.
fn identity_files(
    identity: &IdentitySettings,
    document: &Document,
) -> crate::identity::auth::verifier::IdentityFiles {
    let mut files = crate::identity::auth::verifier::IdentityFiles::default();
    if identity.verify == Verify::Nothing {
        return files;
    }
    if let Some(ca) = &identity.ca {
        if let Err(why) = http_client::client(Some(ca), identity.timeout) {
            document.fault_in("identity.ca", why);
        }
        files.ca = files::read(Path::new(ca)).ok();
    }
    if let Verify::Introspection(introspection) = &identity.verify
        && let Some(path) = &introspection.client_secret_file
    {
        let key = "identity.introspection.client_secret_file";
        files.client_secret = files::secret(path, key, document);
    }
    files
}

/// The addresses of TLS listeners, each once.
pub(crate) fn addresses(https: &[Https]) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = https.iter().map(|entry| entry.address).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

impl ActiveConfig {
    /// Starts what `checked` needs. Servers that `earlier` has go on as they are.
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
        let of = crate::identity::auth::verifier::VerifierSource {
            settings: of_identity,
            files: origin.identity.clone(),
        };
        let earlier = earlier.and_then(|earlier| earlier.verifier.as_ref());
        let verifier = Verifier::new(&settings.identity, of, earlier, metrics, clock);
        let origin = Origin { tls, ..origin };
        Self { rules, settings, upstreams, verifier, planes, limits, remote_directory, origin }
    }

    fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.upstreams.iter().flat_map(|upstream| &upstream.servers)
    }

    /// The servers that are at some address.
    fn placed(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers().filter(|server| !server.addresses().is_empty())
    }

    /// The names of servers.
    #[must_use]
    pub fn names(&self) -> BTreeSet<String> {
        let named = self.servers().filter(|server| server.is_named());
        named.map(|server| server.name.clone()).collect()
    }

    /// Takes note of where servers are. One that leads nowhere now stays where it was.
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

    /// Takes over where servers of the same names are, for those that are nowhere.
    pub fn place_as(&self, earlier: &Self) {
        for server in self.servers().filter(|server| server.addresses().is_empty()) {
            if let Some(known) = earlier.placed().find(|known| known.name == server.name) {
                server.found_at(known.addresses().iter().map(|a| a.socket).collect());
            }
        }
    }

    /// The upstreams none of whose servers is at any address: requests for them are refused.
    #[must_use]
    pub fn unreachable(&self) -> Vec<&str> {
        let is_nowhere = |upstream: &&Arc<Upstream>| {
            upstream.servers.iter().all(|server| server.addresses().is_empty())
        };
        self.upstreams.iter().filter(is_nowhere).map(|upstream| &*upstream.name).collect()
    }

    /// What the directory says of `names` to the operator, where it is one that is asked.
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

/// The settings that only another process can take up. Certificates are read again by a reload;
/// another address needs another socket.
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
    /// The settings' text, called `name`, for whatever else is found wrong in it.
    #[must_use]
    pub fn document(&self, name: &str) -> Document {
        Document::new(name, &self.settings)
    }

    /// What a process that runs with the `earlier` values of its settings cannot take up by a
    /// reload, each at its place in the file of this `name`.
    #[must_use]
    pub fn restart_needed(&self, name: &str, earlier: &Value) -> Vec<Diagnostic> {
        let keys = reload::changed(&RESTART_KEYS, earlier, &self.effective);
        reload::restart_needed(&self.document(name), &keys, "a restart or an upgrade (SIGUSR2)")
    }
}
