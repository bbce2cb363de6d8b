//! The active configuration: rules, upstreams, verifier and directory, replaced as one.
//!
//! # Invariant
//!
//! A reload activates all of a new configuration or nothing of it.
//!
//! # Not here
//!
//! When a reload runs (`app`, `operations`), what it is read from (`checked`).

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

use weir_common::config::document::Diagnostic;
use weir_common::time::{Clock, Tick};

use crate::config::checked::{CheckedConfig, Origin};
use crate::identity::auth::Verifier;
use crate::identity::auth::authorization::{ClaimNames, Claims};
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::identity::directory::{DirectoryUnavailable, RemoteDirectory};
use crate::rules::Rules;
use crate::rules::tenant::{TenantEntries, TenantRefs};
use crate::settings::Settings;
use crate::settings::upstream::UpstreamSettings;
use crate::telemetry::metrics::{LimitMeter, Metrics, PlaneMeter};
use crate::tls::Listeners;
use crate::upstream::credentials::Credentials;
use crate::upstream::names::{self, ResolvedNames};
use crate::upstream::{Server, Upstream};
use weir_common::identity::verifier::VerifierSource;

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
    /// What of it an admitted request needs.
    admitted: OnceLock<Arc<Self>>,
}

impl CheckedConfig {
    /// The names of servers that `earlier` has no address for.
    #[must_use]
    pub fn names_to_resolve(&self, earlier: &ActiveConfig) -> BTreeSet<String> {
        let known: BTreeSet<&str> = earlier.servers_by_name().map(|server| &*server.name).collect();
        let names = self.settings.upstreams.iter().flat_map(|upstream| &upstream.servers);
        let is_name = |name: &&String| name.parse::<SocketAddr>().is_err();
        names.filter(is_name).filter(|name| !known.contains(&***name)).cloned().collect()
    }

    /// Reports servers that `earlier` does not have and that do not resolve.
    #[must_use]
    pub fn unresolved(
        &self,
        file: &str,
        earlier: &ActiveConfig,
        resolved: &ResolvedNames,
    ) -> Vec<Diagnostic> {
        let document = self.origin.document(file);
        let known = earlier.names();
        for (path, server) in self.settings.upstreams.iter().flat_map(UpstreamSettings::servers) {
            if let Some(Err(why)) = resolved.get(server).filter(|_| !known.contains(server)) {
                document.fault_in(&path, format!("`{server}` does not resolve: {why}"));
            }
        }
        document.diagnostics()
    }

    /// What verifies tokens: the verifier of `earlier`, where nothing of it has changed.
    #[must_use]
    pub fn verifier(
        &self,
        earlier: Option<&ActiveConfig>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Option<Arc<Verifier>> {
        let identity = &self.settings.identity;
        let of = VerifierSource {
            settings: self.origin.effective.get("identity").cloned().unwrap_or_default(),
            files: self.origin.identity.clone(),
            more_claims: self.rules.key_claims(),
        };
        let earlier = earlier.and_then(|earlier| earlier.verifier.as_ref());
        let names = ClaimNames {
            workspace: identity.workspace_claim.clone(),
            organisation: identity.organisation_claim.clone(),
            keys: of.more_claims.clone(),
        };
        let read = Box::new(move |claims: &_| Claims::of(claims, &names));
        Verifier::new(identity, of, read, earlier, (metrics.of_identity(), clock))
    }
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
        let verifier = checked.verifier(earlier, metrics, clock);
        Self::with_verifier(checked, verifier, earlier, metrics, clock)
    }

    /// The same, with a verifier that has been built, and may have fetched its keys.
    #[must_use]
    pub fn with_verifier(
        checked: CheckedConfig,
        verifier: Option<Arc<Verifier>>,
        earlier: Option<&Self>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Self {
        let CheckedConfig { rules, settings, mut origin } = checked;
        let none = Credentials::default();
        let upstream = |(nth, settings): (usize, &UpstreamSettings)| {
            let known = |active: &'_ Self| {
                active.upstreams.iter().find(|known| known.name == settings.name).cloned()
            };
            let known = earlier.and_then(known);
            let credentials = origin.credentials.get(nth).unwrap_or(&none);
            let upstream = Upstream::new(settings, credentials, known.as_deref());
            upstream.start_counters(metrics);
            Arc::new(upstream)
        };
        let upstreams = settings.upstreams.iter().enumerate().map(upstream).collect();
        let planes = rules.planes.iter().map(|plane| metrics.plane(&plane.name)).collect();
        let limits = rules.limits.iter().map(|limit| metrics.limit(&limit.name)).collect();
        let nothing = Listeners::default();
        let tls = origin.tls.keeping(earlier.map_or(&nothing, |earlier| &earlier.origin.tls));
        metrics.certificate_expires.set(tls.expires().map_or(0.0, |at| at.seconds_up() as f64));
        let before = earlier.and_then(|earlier| earlier.remote_directory.as_ref());
        let remote_directory = origin.client.clone();
        let remote_directory =
            remote_directory.map(|client| RemoteDirectory::new(client, before, metrics, clock));
        origin.tls = tls;
        let admitted = OnceLock::new();
        Self {
            rules,
            settings,
            upstreams,
            verifier,
            planes,
            limits,
            remote_directory,
            origin,
            admitted,
        }
    }

    /// What of it an admitted request needs: nothing that grows with the number of tenants. A
    /// stream may last for days, through many reloads, and keeps the configuration of its start.
    #[must_use]
    pub fn admitted(&self) -> Arc<Self> {
        let without_tenants = || {
            Arc::new(Self {
                rules: self.rules.without_tenants(),
                settings: self.settings.clone(),
                upstreams: self.upstreams.clone(),
                verifier: None,
                planes: self.planes.clone(),
                limits: self.limits.clone(),
                remote_directory: None,
                origin: Origin::default(),
                admitted: OnceLock::new(),
            })
        };
        self.admitted.get_or_init(without_tenants).clone()
    }

    fn servers(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.upstreams.iter().flat_map(|upstream| &upstream.servers)
    }

    /// The servers that have an address.
    fn servers_by_name(&self) -> impl Iterator<Item = &Arc<Server>> {
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
    pub fn set_addresses(&self, resolved: &ResolvedNames) {
        for server in self.servers() {
            if let Some(Ok(sockets)) = resolved.get(&server.name) {
                server.found_at(sockets.clone());
            }
        }
        for (name, found) in resolved {
            if let Err(why) = found {
                names::warn(name, why);
            }
        }
    }

    /// Copies the addresses of servers of the same name from `earlier`, to those without any.
    pub fn copy_addresses(&self, earlier: &Self) {
        for server in self.servers().filter(|server| server.addresses().is_empty()) {
            if let Some(known) = earlier.servers_by_name().find(|known| known.name == server.name) {
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
