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
use weir_common::time::{Clock, Tick};

use crate::identity::auth::{self, Verifier};
use crate::identity::directory::client::DirectoryClient;
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::identity::directory::{DirectoryUnavailable, RemoteDirectory};
use crate::identity::http_client;
use crate::limit::key::Seed;
use crate::rules::tenant::{TenantEntries, TenantRefs};
use crate::rules::{self, Rules};
use crate::settings::{self, Source};
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

/// The rules and the upstreams of one configuration.
pub struct ActiveConfig {
    /// What requests are judged by.
    pub rules: Rules,
    /// Where they go, in the order of the settings.
    pub upstreams: Vec<Arc<Upstream>>,
    /// What verifies tokens, where they are.
    pub verifier: Option<Arc<Verifier>>,
    /// The counters of each plane and each limit, in the order of the settings.
    pub planes: Vec<PlaneMeter>,
    /// The counters of each limit.
    pub limits: Vec<LimitMeter>,
    /// The directory, where it is one that is asked.
    pub lookups: Option<RemoteDirectory>,
    /// What the configuration was read from: a reload that finds the same has nothing to do.
    pub origin: Origin,
}

/// What a configuration was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    settings: String,
    directory: String,
    /// Of each upstream, in the order of the settings.
    credentials: Vec<Credentials>,
    identity: auth::IdentityFiles,
    /// Who is asked, where the directory is no file.
    asked: Option<DirectoryClient>,
    /// Each key's active value, as given or by default.
    pub effective: Value,
    /// Certificates and keys, as they are shown to clients.
    pub tls: Listeners,
}

/// A configuration that was read, and is not active yet.
pub struct New {
    /// What requests are to be judged by.
    pub rules: Rules,
    /// What it was read from.
    pub origin: Origin,
    /// What is active until then.
    pub earlier: Arc<ActiveConfig>,
}

impl New {
    fn servers(&self) -> impl Iterator<Item = &Spanned<String>> {
        self.rules.settings.upstreams.iter().flat_map(|(_, upstream)| &upstream.servers)
    }

    /// The names of servers that are at no address yet.
    #[must_use]
    pub fn unplaced(&self) -> BTreeSet<String> {
        let placed: BTreeSet<&str> = self.earlier.placed().map(|server| &*server.name).collect();
        let names = self.servers().map(|server| &server.value);
        let is_name = |name: &&String| name.parse::<SocketAddr>().is_err();
        names.filter(is_name).filter(|name| !placed.contains(&***name)).cloned().collect()
    }

    /// What is wrong with servers that are new and lead nowhere.
    #[must_use]
    pub fn misplaced(&self, file: &str, places: &Places) -> Vec<Diagnostic> {
        let document = Document::new(file, &self.origin.settings);
        let known = self.earlier.names();
        for server in self.servers().filter(|server| !known.contains(&server.value)) {
            if let Some(Err(why)) = places.get(&server.value) {
                let message = format!("`{}` does not resolve: {why}", server.value);
                document.fault(server.at, message);
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

    /// Reads both files and checks everything in them; or gives every mistake there is.
    pub fn load(&self, seed: Seed) -> Result<(Rules, Origin), Vec<Diagnostic>> {
        let text = self.file.read(SHIPPED).map_err(|diagnostic| vec![diagnostic])?;
        let document = Document::new(&self.file.name(), &text);
        let Parsed { made: settings, effective, .. } = settings::read(&document);
        let path = settings.directory.path().cloned();
        let read = |path: &Spanned<String>| {
            self.file.beside(&document, path, "directory.path", SHIPPED_DIRECTORY)
        };
        let directory_text = path.as_ref().map(read).unwrap_or_default();
        let token = &settings.server.admin_token_file;
        let _ = token.as_ref().map(|file| files::secret(file, &document));
        let tls = tls::load(&settings.server.https, &document);
        let of_upstream =
            |(_, upstream): &(Spanned<String>, _)| credentials::read(upstream, &document);
        let credentials = settings.upstreams.iter().map(of_upstream).collect();
        let identity = identity_files(&settings.identity, &document);
        let asked = match &settings.directory.source {
            Source::Http(lookups) => {
                DirectoryClient::new(lookups).map_err(|(at, why)| document.fault(at, why)).ok()
            }
            Source::File(_) => None,
        };
        let directory_name = path.map_or_else(String::new, |path| path.value);
        let of_directory = Document::new(&directory_name, &directory_text);
        let directory = Directory::read(&of_directory, &settings.workspaces);
        let rules = rules::check(settings, &document, &directory, &of_directory, seed);
        let diagnostics: Vec<Diagnostic> =
            document.diagnostics().into_iter().chain(of_directory.diagnostics()).collect();
        let origin = Origin {
            settings: text,
            directory: directory_text,
            credentials,
            identity,
            asked,
            effective,
            tls,
        };
        if diagnostics.is_empty() { Ok((rules, origin)) } else { Err(diagnostics) }
    }
}

/// The files that `[identity]` names; what is wrong with one is left in the document.
fn identity_files(identity: &settings::Identity, document: &Document) -> auth::IdentityFiles {
    let mut files = auth::IdentityFiles::default();
    if identity.verify == settings::Verify::Nothing {
        return files;
    }
    if let Some(ca) = &identity.ca {
        if let Err(why) = http_client::client(Some(&ca.value), identity.timeout) {
            document.fault(ca.at, why);
        }
        files.ca = files::read(Path::new(&ca.value)).ok();
    }
    if let settings::Verify::Introspection(asked) = &identity.verify
        && let Some(path) = &asked.client_secret_file
    {
        files.client_secret = files::secret(path, document);
    }
    files
}

/// The addresses of TLS listeners, each once.
pub(crate) fn addresses(https: &[settings::Https]) -> Vec<SocketAddr> {
    let mut addresses: Vec<SocketAddr> = https.iter().map(|entry| entry.address).collect();
    addresses.sort();
    addresses.dedup();
    addresses
}

impl ActiveConfig {
    /// Makes rules active. Servers that `earlier` knows go on as they are.
    #[must_use]
    pub fn new(
        rules: Rules,
        origin: Origin,
        earlier: Option<&Self>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Self {
        let none = Credentials::default();
        let upstream =
            |(nth, (name, settings)): (usize, &(Spanned<String>, settings::Upstream))| {
                let known = |active: &'_ Self| {
                    active.upstreams.iter().find(|u| u.name == name.value).cloned()
                };
                let known = earlier.and_then(known);
                let credentials = origin.credentials.get(nth).unwrap_or(&none);
                let upstream = Upstream::new(&name.value, settings, credentials, known.as_deref());
                upstream.show(metrics);
                Arc::new(upstream)
            };
        let upstreams = rules.settings.upstreams.iter().enumerate().map(upstream).collect();
        let planes =
            rules.settings.planes.iter().map(|(name, _)| metrics.plane(&name.value)).collect();
        let limits = rules.limits.iter().map(|limit| metrics.limit(&limit.name)).collect();
        let nothing = Listeners::default();
        let tls = origin.tls.keeping(earlier.map_or(&nothing, |earlier| &earlier.origin.tls));
        metrics.certificate_expires.set(tls.expires().map_or(0.0, |seconds| seconds as f64));
        let before = earlier.and_then(|earlier| earlier.lookups.as_ref());
        let lookups = origin.asked.clone();
        let lookups = lookups.map(|asked| RemoteDirectory::new(asked, before, metrics, clock));
        let of_identity = origin.effective.get("identity").cloned().unwrap_or_default();
        let of = auth::VerifierSource { settings: of_identity, files: origin.identity.clone() };
        let earlier = earlier.and_then(|earlier| earlier.verifier.as_ref());
        let verifier = Verifier::new(&rules.settings.identity, of, earlier, metrics, clock);
        let origin = Origin { tls, ..origin };
        Self { rules, upstreams, verifier, planes, limits, lookups, origin }
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
        let Some(lookups) = &self.lookups else { return Ok(None) };
        let operator = UnknownBudget::unlimited(now);
        lookups.find(&self.rules, names, true, &operator).await.map(Some)
    }
}

/// The settings that only another process can take up. Certificates are read again by a reload;
/// another address needs another socket.
const RESTART_KEYS: [&str; 8] = [
    "server.http",
    "server.https.address",
    "server.admin",
    "server.admin_token_file",
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
