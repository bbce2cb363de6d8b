//! Looks up the tenants that a request names in a directory over HTTP, and caches the responses.
//!
//! `GET {url}/instances/{id}`, then its workspace, then that workspace's organisation: each is
//! requested once for all requests that wait for it, and then cached. A tenant that a cached entry
//! references exists: a 404 for it means that it has no values of its own.
//!
//! # Invariants
//!
//! 1. Every wait has a deadline, and a lookup waits for its turn ([`LookupTurns`]).
//! 2. An address that invents names is limited by its [`UnknownBudget`]; a cached name costs no
//!    request.
//! 3. While the directory cannot be asked, its last good answer about a tenant is used until it is
//!    too old; then the tenant's requests are refused. Nothing is guessed.
//!
//! # Not here
//!
//! How a response is parsed, how long it is valid, when requests are not sent
//! (`weir_common::directory`), which quotas a tenant has (`rules`), which of them its workspace's
//! plan allows (`own_values`).

mod compiled;
mod own_values;
mod turns;
pub mod unknown_budget;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use log::Level;
use serde_json::json;
use tokio::time::timeout;
use weir_common::directory::cache::{self, Absent, Cached, EntryCache, Last};
use weir_common::directory::client::DirectoryClient;
use weir_common::directory::error_log;
use weir_common::directory::response::{self, RawEntry, TenantKind};
use weir_common::directory::server::{DirectoryServer, EntryRequest, FetchedEntry};
use weir_common::directory::settings::HttpDirectory;
use weir_common::log::events;
use weir_common::log::limiter::LogLimiter;
use weir_common::time::{Clock, Tick};

use crate::identity::directory::compiled::TenantEntry;
use crate::identity::directory::turns::{LookupTurns, Party};
use crate::identity::directory::unknown_budget::{Fruitless, UnknownBudget};
use crate::limit::key::{Key, Owner, Scope};
use crate::rules::Rules;
use crate::rules::tenant::{Tenant, TenantEntries, TenantRefs};
use crate::telemetry::metrics::Metrics;

/// How long a request waits until its tenant, of which nothing is cached, is looked up. After a
/// restart many are, and clients wait for longer than this.
const QUEUE_MAX: Duration = Duration::from_secs(10);

/// Time between two log lines about an entry that stays invalid, or an address that invents names.
const LOG_EVERY: Duration = Duration::from_secs(600);

/// The directory is unavailable, or its entry is invalid, so a tenant cannot be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryUnavailable;

/// A directory over HTTP, and its cache.
pub struct RemoteDirectory {
    client: DirectoryClient,
    shared: Arc<SharedLookup>,
    /// The number of this configuration: cached entries are compiled again for another one.
    version: u64,
}

/// State that survives a reload, if the directory's settings stay the same.
struct SharedLookup {
    settings: HttpDirectory,
    server: DirectoryServer,
    metrics: Arc<Metrics>,
    cache: EntryCache<Owner, TenantEntry>,
    unusable_log: LogLimiter<Owner>,
    ignored_log: LogLimiter<Owner>,
    refused_log: LogLimiter<Key>,
    queue_log: LogLimiter<IpAddr>,
    turns: LookupTurns,
}

/// The lookup of one tenant that a request names.
#[derive(Clone, Copy)]
struct Lookup<'l> {
    rules: &'l Rules,
    budget: &'l UnknownBudget<'l>,
    kind: TenantKind,
    name: &'l str,
    owner: Owner,
    /// Whether a cached entry references it, so that it exists.
    referenced: bool,
    /// When the request arrived, and after it has waited when that ended.
    now: Tick,
}

type Entry = cache::Entry<TenantEntry>;
type LastKnown = Last<TenantEntry>;
type Found = Result<Option<Arc<Tenant>>, DirectoryUnavailable>;

/// The scope of the counters of a tenant of this kind.
fn scope(kind: TenantKind) -> Scope {
    match kind {
        TenantKind::Organisation => Scope::Organisation,
        TenantKind::Workspace => Scope::Workspace,
        TenantKind::Instance => Scope::Instance,
    }
}

impl<'l> Lookup<'l> {
    fn new(
        rules: &'l Rules,
        budget: &'l UnknownBudget<'l>,
        kind: TenantKind,
        name: &'l str,
    ) -> Self {
        let owner = rules.seed().owner(scope(kind), name.as_bytes());
        Self { rules, budget, kind, name, owner, referenced: false, now: budget.now }
    }

    /// Whether its name, of which no entry is cached, may be looked up.
    fn is_allowed(self, last: &LastKnown) -> bool {
        match last {
            // A name that an entry has, or references, is not invented.
            Last::Entry(_) => true,
            _ if self.referenced => true,
            Last::Absent(absent) if absent.was_reported() => self.budget.allows_again(self.now),
            Last::Absent(_) => self.budget.allows_after_failure(self.now),
            Last::Nothing => self.budget.allows(self.now),
        }
    }

    /// The address that may have invented the name, and its network.
    fn caller(self, last: &LastKnown) -> Option<(Key, IpAddr)> {
        let is_known = self.referenced || matches!(last, Last::Entry(_));
        self.budget.caller().filter(|_| !is_known)
    }

    fn request(self, last: &LastKnown) -> EntryRequest<'l> {
        ((self.kind, self.name), self.caller(last).map(|(key, _)| key.bits()))
    }
}

impl RemoteDirectory {
    /// A directory. Keeps the cache of the `earlier` one if the settings are the same.
    #[must_use]
    pub fn new(
        client: DirectoryClient,
        earlier: Option<&Self>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Self {
        let settings = client.settings();
        let kept = earlier.filter(|earlier| earlier.shared.settings == *settings);
        let (requests, seconds) = (&metrics.directory_requests, &metrics.directory_seconds);
        let shared = kept.map(|earlier| earlier.shared.clone()).unwrap_or_else(|| {
            Arc::new(SharedLookup {
                settings: settings.clone(),
                server: DirectoryServer::new(requests, seconds, clock),
                metrics: metrics.clone(),
                cache: EntryCache::new(settings.entries_max),
                unusable_log: LogLimiter::new(LOG_EVERY),
                ignored_log: LogLimiter::new(LOG_EVERY),
                refused_log: LogLimiter::new(LOG_EVERY),
                queue_log: LogLimiter::new(LOG_EVERY),
                turns: LookupTurns::new(),
            })
        });
        let version = earlier.map_or(0, |earlier| earlier.version + 1);
        Self { client, shared, version }
    }

    /// The entries of the tenants that a request names; the organisation's only if wanted.
    pub async fn find(
        &self,
        rules: &Rules,
        names: &TenantRefs<'_>,
        with_organisation: bool,
        budget: &UnknownBudget<'_>,
    ) -> Result<TenantEntries, DirectoryUnavailable> {
        let mut known = TenantEntries::default();
        if let Some(name) = names.instance {
            known.instance =
                self.one(Lookup::new(rules, budget, TenantKind::Instance, name)).await?;
        }
        let of_instance = known.instance.as_ref().and_then(|instance| instance.parent.as_deref());
        if let Some(name) = names.workspace.or(of_instance) {
            let referenced = names.workspace.is_none();
            let lookup = Lookup::new(rules, budget, TenantKind::Workspace, name);
            known.workspace = self.one(Lookup { referenced, ..lookup }).await?;
        }
        self.check_own_values(rules, &mut known, budget).await?;
        let of_workspace = known.workspace.as_ref().and_then(|tenant| tenant.parent.as_deref());
        let organisation = names.organisation.or(of_workspace).or(names.claimed_organisation);
        if let Some(name) = organisation.filter(|_| with_organisation) {
            let referenced = names.organisation.is_none() && of_workspace.is_some();
            let lookup = Lookup::new(rules, budget, TenantKind::Organisation, name);
            known.organisation = self.one(Lookup { referenced, ..lookup }).await?;
        }
        Ok(known)
    }

    /// One tenant, from the cache if its entry is fresh, otherwise from the directory.
    async fn one(&self, lookup: Lookup<'_>) -> Found {
        match self.cached(lookup).await {
            Ok(found) => found,
            // Boxed: this is rare, and inline it would make every request's future larger.
            Err(last) => Box::pin(self.wait(lookup, last)).await,
        }
    }

    /// The cached result, if it is fresh. `Err` has what was known last, to fall back on.
    async fn cached(&self, lookup: Lookup<'_>) -> Result<Found, LastKnown> {
        match self.shared.cache.get(&lookup.owner, lookup.now).await {
            Cached::Entry(entry) => Ok(self.tenant(lookup, &entry, lookup.now)),
            Cached::Absent(absent) => Ok(self.absent(lookup, absent).await),
            Cached::Expired(last) => Err(last),
        }
    }

    /// Waits for permits and fetches, unless another request has cached the result meanwhile.
    async fn wait(&self, mut lookup: Lookup<'_>, last: LastKnown) -> Found {
        let shared = &*self.shared;
        if !self.may_fetch(lookup, &last) {
            return self.fall_back(lookup, last).await;
        }
        let is_usable = last.is_usable(lookup.now);
        let patience = if is_usable { Duration::ZERO } else { QUEUE_MAX };
        let caller = lookup.caller(&last);
        let party = caller.map_or(Party::Known, |(key, network)| Party::Caller(key, network));
        let turn = async {
            let mut again = false;
            loop {
                let turn = shared.turns.next(lookup.owner, party, again).await;
                again = true;
                lookup.now = shared.server.now();
                match (self.cached(lookup).await, turn) {
                    (Ok(found), _) => break Err(found),
                    (Err(last), Some(turn)) => break Ok((turn, last)),
                    (Err(_), None) => {}
                }
            }
        };
        let (_turn, last) = match timeout(patience.max(shared.settings.timeout), turn).await {
            Ok(Ok(turn)) => turn,
            Ok(Err(found)) => return found,
            Err(_) => {
                if let Some((_, network)) = caller.filter(|_| !is_usable) {
                    unknown_budget::log_queue(&shared.queue_log, network, shared.server.now());
                }
                return self.fall_back(lookup, last).await;
            }
        };
        let request = lookup.request(&last);
        if self.may_fetch(lookup, &last) && shared.server.may_send(request, lookup.now) {
            self.fetch(lookup, last).await
        } else {
            self.fall_back(lookup, last).await
        }
    }

    /// Whether a tenant may be looked up, if the directory responds.
    fn may_fetch(&self, lookup: Lookup<'_>, last: &LastKnown) -> bool {
        let (shared, now) = (&self.shared, lookup.now);
        let is_allowed = lookup.is_allowed(last);
        if !is_allowed {
            lookup.budget.log_refusal(&shared.refused_log, now);
        }
        is_allowed && !last.has_just_failed(now) && !shared.server.is_paused(now)
    }

    /// Fetches an entry, and caches it.
    async fn fetch(&self, lookup: Lookup<'_>, last: LastKnown) -> Found {
        let shared = &*self.shared;
        let mark = shared.cache.mark();
        let request = lookup.request(&last);
        let read = |body: &[u8]| self.read(lookup, body);
        let (fetched, now) = shared.server.fetch(&self.client, request, read).await;
        match fetched {
            FetchedEntry::Known(entry) => {
                let entry = Arc::new(entry);
                shared.cache.keep(lookup.owner, entry.clone(), mark).await;
                shared.unusable_log.recovered(&lookup.owner);
                return self.tenant(lookup, &entry, lookup.now);
            }
            FetchedEntry::Unknown => {
                let HttpDirectory { negative_ttl, stale_for, .. } = shared.settings;
                let absent = Absent::new(lookup.now, [negative_ttl, stale_for]);
                shared.cache.keep_absent(lookup.owner, absent, mark).await;
                if !lookup.referenced {
                    lookup.budget.charge(Fruitless::Absent, lookup.now);
                }
                return self.absent(lookup, absent).await;
            }
            FetchedEntry::Unusable(why) => _ = self.unusable(lookup, &why, now),
            FetchedEntry::Unanswered(_) if self.is_out() => {}
            FetchedEntry::Unanswered(why) => self.log(lookup, &why, now, unanswered),
        }
        if request.1.is_some() {
            lookup.budget.charge(Fruitless::failed(matches!(last, Last::Nothing)), now);
        }
        shared.cache.keep_failed(lookup.owner, &last, now, mark).await;
        self.fall_back(lookup, last).await
    }

    fn read(&self, lookup: Lookup<'_>, body: &[u8]) -> Result<Entry, String> {
        let raw = response::read(lookup.kind, body, &lookup.rules.workspaces)?;
        let settings = &self.shared.settings;
        self.entry(lookup, raw, lookup.now, [settings.ttl, settings.stale_for])
    }

    fn entry(
        &self,
        lookup: Lookup<'_>,
        raw: RawEntry,
        from: Tick,
        spans: [Duration; 2],
    ) -> Result<Entry, String> {
        let entry = TenantEntry::new((lookup.rules, self.version), lookup.name, raw)?;
        Ok(Entry::new(entry, from, spans))
    }

    /// A tenant that has no entry: it is as good as one if a cached entry references it.
    async fn absent(&self, lookup: Lookup<'_>, absent: Absent) -> Found {
        if !absent.is_certain(lookup.now) {
            return Err(DirectoryUnavailable);
        }
        if !lookup.referenced {
            return Ok(None);
        }
        let spans = [Duration::ZERO, self.shared.settings.stale_for];
        let entry = self.entry(lookup, lookup.kind.bare(), absent.until, spans);
        let entry = Arc::new(entry.map_err(|_| DirectoryUnavailable)?);
        self.shared.cache.keep(lookup.owner, entry.clone(), self.shared.cache.mark()).await;
        self.tenant(lookup, &entry, absent.until)
    }

    /// The last good answer, if there is one that is not too old.
    async fn fall_back(&self, lookup: Lookup<'_>, last: LastKnown) -> Found {
        match last {
            Last::Entry(entry) => {
                self.shared.metrics.directory_stale.inc();
                self.tenant(lookup, &entry, lookup.now)
            }
            Last::Absent(absent) => self.absent(lookup, absent).await,
            Last::Nothing => Err(DirectoryUnavailable),
        }
    }

    fn tenant(&self, lookup: Lookup<'_>, entry: &Entry, now: Tick) -> Found {
        match entry.value.tenant(lookup.rules, self.version) {
            Ok(tenant) => Ok(Some(tenant)),
            Err(why) => Err(self.unusable(lookup, &why, now)),
        }
    }

    /// Counts and logs an invalid response or entry.
    fn unusable(&self, lookup: Lookup<'_>, why: &str, now: Tick) -> DirectoryUnavailable {
        self.shared.metrics.directory_unusable.inc();
        self.log(lookup, why, now, error_log::unusable);
        DirectoryUnavailable
    }

    fn log(&self, lookup: Lookup<'_>, why: &str, now: Tick, line: fn(TenantKind, &str, &str)) {
        if self.shared.unusable_log.due(lookup.owner, now).is_some() {
            line(lookup.kind, lookup.name, why);
        }
    }

    /// Whether the circuit breaker is open: the last requests had no response.
    pub fn is_out(&self) -> bool {
        self.shared.server.is_out()
    }

    /// Tries whether the directory responds.
    ///
    /// # Errors
    ///
    /// What is wrong.
    pub async fn try_out(&self) -> Result<(), String> {
        self.client.try_out("weir-gateway-check").await
    }

    /// Removes a tenant from the cache.
    pub async fn forget(&self, rules: &Rules, kind: TenantKind, name: &str) {
        self.shared.cache.forget(&rules.seed().owner(scope(kind), name.as_bytes())).await;
    }

    /// How many tenants are cached: those that exist, those that do not, and those whose lookups
    /// have all failed.
    pub async fn fill(&self) -> [u64; 3] {
        self.shared.cache.fill().await
    }
}

/// Logs that the directory did not answer for an entry, while there is no outage.
fn unanswered(kind: TenantKind, name: &str, why: &str) {
    let fields = [("entry", json!(kind.path(name))), ("error", json!(why))];
    events::event(Level::Error, "directory lookup unanswered", &fields);
}
