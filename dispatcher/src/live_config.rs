//! The active configuration: settings, event catalogue, tokens and directory, swapped as one by a
//! reload.
//!
//! # Invariants
//!
//! 1. A reload applies a new configuration as a whole, or not at all.
//! 2. A change that needs a restart is refused, not ignored.
//!
//! # Not here
//!
//! The files it is read from (`live_config::source`), what triggers a reload (`app`, `admin`), the
//! settings themselves (`config`).

pub(crate) mod descriptors;
pub mod directory;
pub mod limits_client;
pub mod source;
pub mod theme;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use serde_json::Value;
use weir_common::config::document::{Diagnostic, Document};
use weir_common::config::reload;
use weir_common::config::shown_certificate::ShownCertificate;
use weir_common::config::watch::Stamp;
use weir_common::directory::client::DirectoryClient;
use weir_common::identity::settings::Verify;
use weir_common::identity::verifier::{IdentityFiles, VerifierSource};
use weir_common::secret::Secret;
use weir_common::time::Clock;

use crate::auth::Callers;
use crate::auth::access_token::{self, Verifier};
use crate::catalogue::Catalogue;
use crate::config::settings::{OperatorEndpoint, Settings};
use crate::delivery::client::DeliveryClient;
use crate::delivery::egress::Rules;
use crate::live_config::directory::RemoteOwners;
use crate::live_config::limits_client::LimitsClient;
use crate::live_config::theme::Theme;
use crate::metrics::Metrics;
use crate::store::mail::{NewMail, QueuedMail};

/// Settings that need a restart.
const RESTART_KEYS: [&str; 12] = [
    "server.api",
    "server.ingest",
    "server.admin",
    "server.threads",
    "server.connections_max",
    "server.head_timeout",
    "server.body_timeout",
    "server.idle_timeout",
    "store.path",
    "secrets.key_file",
    "ingest.waiting_max",
    "log.attempts",
];

/// The active configuration; a reload replaces it as a whole.
pub struct ActiveConfig {
    /// The settings.
    pub settings: Settings,
    /// The event catalogue.
    pub catalogue: Catalogue,
    /// Who may call.
    pub callers: Callers,
    /// The egress rules.
    pub egress: Arc<Rules>,
    /// The client of attempts.
    pub client: Arc<DeliveryClient>,
    /// The platform's certificate, where deliveries show one.
    pub certificate: Option<ShownCertificate>,
    /// The owners of workspaces, if the directory is elsewhere; set with the verifier.
    pub remote_owners: Option<RemoteOwners>,
    /// Reads the limits of workspaces, if pages show them.
    pub limits: Option<LimitsClient>,
    /// The looks of the pages, if there are any.
    pub theme: Option<Theme>,
    /// Its source: a reload with the same source changes nothing.
    pub origin: ConfigOrigin,
}

impl ActiveConfig {
    /// The mail addresses in the file. An owner listed twice gets one mail.
    fn known_owners(&self, workspace: &str) -> BTreeSet<&str> {
        let workspace = self.callers.directory.workspaces.get(workspace);
        let owners = workspace.into_iter().flat_map(|workspace| &workspace.owners);
        owners.map(|owner| owner.value.as_str()).collect()
    }

    /// Whether a workspace's owners get mails: with `[mail]`, if the file knows any; a directory
    /// over HTTP may.
    pub(crate) fn mails_owners(&self, workspace: &str) -> bool {
        let known = self.origin.directory.is_some() || !self.known_owners(workspace).is_empty();
        self.settings.mail.is_some() && known
    }

    /// The mails to a workspace's owners, of which `mail` writes each. Without `[mail]` there is
    /// none, or the first setup would send a backlog of old mails.
    pub(crate) fn to_owners(
        &self,
        workspace: &str,
        mail: impl Fn(&str) -> NewMail,
    ) -> Vec<QueuedMail> {
        if !self.mails_owners(workspace) {
            return Vec::new();
        }
        if self.origin.directory.is_some() {
            return vec![QueuedMail::ToOwners(workspace.into(), mail(""))];
        }
        self.known_owners(workspace).into_iter().map(|owner| mail(owner).into()).collect()
    }

    /// The mail addresses of a workspace's owners.
    ///
    /// # Errors
    ///
    /// Why the directory does not tell them now.
    pub(crate) async fn owners(&self, workspace: &str) -> Result<BTreeSet<String>, String> {
        match &self.remote_owners {
            Some(remote) => remote.find(workspace).await,
            None => Ok(self.known_owners(workspace).into_iter().map(str::to_owned).collect()),
        }
    }
}

/// The source of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigOrigin {
    texts: [String; 4],
    /// The bearer token of the admin listener, if one is configured.
    pub admin_token: Option<Secret<String>>,
    egress_files: Vec<Stamp>,
    password: Stamp,
    dashboard_files: [Stamp; 2],
    operator: Option<OperatorEndpoint>,
    identity: IdentityFiles,
    /// The client of a directory over HTTP.
    pub(crate) directory: Option<DirectoryClient>,
    /// The active value of each option.
    pub effective: Value,
}

impl ConfigOrigin {
    /// The settings file, for errors in it; `name` is its path.
    pub(crate) fn document(&self, name: &str) -> Document {
        Document::new(name, &self.texts[0])
    }
}

impl ActiveConfig {
    /// Sets up the verification of access tokens, and the directory over HTTP; the keys and the
    /// caches of `earlier` are kept as far as their settings are the same.
    #[must_use]
    pub fn start(mut self, earlier: Option<&Self>, metrics: &Metrics, clock: &Clock) -> Self {
        let before = earlier.and_then(|earlier| earlier.remote_owners.as_ref());
        let remote = |client| RemoteOwners::new(client, before, metrics, clock);
        self.remote_owners = self.origin.directory.clone().map(remote);
        let identity = self.settings.identity.clone();
        let source = VerifierSource {
            settings: self.origin.effective.get("identity").cloned().unwrap_or_default(),
            files: self.origin.identity.clone(),
            more_claims: Vec::new(),
        };
        let settings = identity.settings.clone();
        let read = Box::new(move |claims: &_| access_token::token(claims, &identity));
        let earlier = earlier.and_then(|earlier| earlier.callers.verifier.as_ref());
        let shell = (metrics.of_identity(), clock);
        self.callers.verifies = settings.verify != Verify::Nothing;
        self.callers.verifier = Verifier::new(&settings, source, read, earlier, shell);
        self
    }

    /// Changes from `earlier` that need a restart, each with its place in the file `name`.
    #[must_use]
    pub fn restart_needed(&self, name: &str, earlier: &Self) -> Vec<Diagnostic> {
        let keys =
            reload::changed(&RESTART_KEYS, &earlier.origin.effective, &self.origin.effective);
        reload::restart_needed(&self.origin.document(name), &keys, "a restart")
    }

    /// The other files of the configuration.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let egress = self.settings.egress.files().map(|(_, file)| file);
        std::iter::once(&self.settings.auth.tokens)
            .chain(egress)
            .chain(self.settings.events.file.as_ref())
            .chain(self.settings.server.admin_token_file.as_ref())
            .chain(self.settings.password_file())
            .chain(self.settings.dashboard_files().into_iter().flatten())
            .chain(self.settings.operator.as_ref().map(|operator| &operator.secret_file))
            .map(|file| &file.value)
            .chain(self.settings.directory.files())
            .chain(self.settings.identity.settings.files())
            .map(Path::new)
    }
}
