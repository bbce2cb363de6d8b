//! Looks up the tenants that a request names in a directory over HTTP, and caches its responses.
//!
//! `GET {url}/instances/{id}`, then its workspace, then the organisation of that: each is requested
//! once for all who wait for it, and then cached. A tenant that a cached entry names exists: a 404
//! for it says that it has no values of its own.
//!
//! # Invariants
//!
//! 1. Every wait has a deadline, and at most [`REQUESTS_MAX`] requests are in flight; for one
//!    name, one.
//! 2. An address that invents names is bounded by its [`UnknownBudget`] and waits in a queue of
//!    its own; a name that is cached costs no request.
//! 3. Where the directory is unavailable, a tenant is judged by its last good entry until that is
//!    too old; then it is refused, never guessed.
//!
//! # Not here
//!
//! What a response says (`response`), how long it holds (`cache`), when requests are spared
//! (`breaker`), what a request may use (`rules`).

mod breaker;
mod cache;
pub mod client;
mod error_log;
pub mod response;
mod single_flight;
pub mod unknown_budget;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;
use weir_common::time::{Clock, Tick};

use crate::identity::directory::breaker::{Breaker, PAUSE};
use crate::identity::directory::cache::{Absent, Cached, Entry, EntryCache};
use crate::identity::directory::client::DirectoryClient;
use crate::identity::directory::response::{RawEntry, TenantKind};
use crate::identity::directory::single_flight::KeyedSemaphore;
use crate::identity::directory::unknown_budget::UnknownBudget;
use crate::identity::http_client::{self, RequestError, Response};
use crate::identity::log_limiter::LogLimiter;
use crate::limit::key::{Key, Owner};
use crate::rules::Rules;
use crate::rules::compile::tenants::own_values_refused;
use crate::rules::tenant::{Tenant, TenantEntries, TenantRefs};
use crate::settings::directory::HttpDirectory;
use crate::telemetry::metrics::Metrics;

/// Requests in flight: with a directory that takes a millisecond each, sixty thousand a second.
const REQUESTS_MAX: usize = 64;

/// Of those, for names that are not cached, from one address: seven others get through beside one
/// that invents names.
const REQUESTS_PER_ADDRESS_MAX: usize = 8;

/// Between two log lines on one entry that stays unusable.
const UNUSABLE_LOG_EVERY: Duration = Duration::from_secs(600);

/// The directory cannot say for whom a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryUnavailable;

/// A directory over HTTP, and what is cached of it.
pub struct RemoteDirectory {
    client: DirectoryClient,
    shared: Arc<SharedLookup>,
    /// Of the rules that entries are looked up in.
    version: u64,
}

/// What a reload leaves as it is.
struct SharedLookup {
    settings: HttpDirectory,
    clock: Clock,
    metrics: Arc<Metrics>,
    cache: EntryCache,
    breaker: Breaker,
    unusable_log: LogLimiter<Owner>,
    /// One request for each name at a time.
    flights: KeyedSemaphore<Owner>,
    /// So many for each address.
    addresses: KeyedSemaphore<Key>,
    in_flight: Semaphore,
}

/// The lookup of one tenant that a request names.
#[derive(Clone, Copy)]
struct Lookup<'l> {
    rules: &'l Rules,
    budget: &'l UnknownBudget<'l>,
    kind: TenantKind,
    name: &'l str,
    owner: Owner,
    /// Whether a cached entry names it, so that it exists.
    vouched: bool,
}

type Found = Result<Option<Arc<Tenant>>, DirectoryUnavailable>;

impl<'l> Lookup<'l> {
    fn new(
        rules: &'l Rules,
        budget: &'l UnknownBudget<'l>,
        kind: TenantKind,
        name: &'l str,
    ) -> Self {
        let owner = rules.seed().owner(kind.scope(), name.as_bytes());
        Self { rules, budget, kind, name, owner, vouched: false }
    }

    /// When the request came.
    fn now(self) -> Tick {
        self.budget.now
    }
}

impl RemoteDirectory {
    /// A directory. The cache of an `earlier` one stays where the settings are the same.
    #[must_use]
    pub fn new(
        client: DirectoryClient,
        earlier: Option<&Self>,
        metrics: &Arc<Metrics>,
        clock: &Clock,
    ) -> Self {
        let settings = client.settings();
        let kept = earlier.filter(|earlier| earlier.shared.settings == *settings);
        let shared = kept.map(|earlier| earlier.shared.clone()).unwrap_or_else(|| {
            Arc::new(SharedLookup {
                settings: settings.clone(),
                clock: clock.clone(),
                metrics: metrics.clone(),
                cache: EntryCache::new(settings.entries_max),
                breaker: Breaker::default(),
                unusable_log: LogLimiter::new(UNUSABLE_LOG_EVERY),
                flights: KeyedSemaphore::new(1),
                addresses: KeyedSemaphore::new(REQUESTS_PER_ADDRESS_MAX),
                in_flight: Semaphore::new(REQUESTS_MAX),
            })
        });
        let version = earlier.map_or(0, |earlier| earlier.version + 1);
        Self { client, shared, version }
    }

    /// The entries of the tenants that a request names; the organisation's only where it is wanted.
    pub async fn find(
        &self,
        rules: &Rules,
        names: &TenantRefs<'_>,
        with_organisation: bool,
        budget: &UnknownBudget<'_>,
    ) -> Result<TenantEntries, DirectoryUnavailable> {
        let mut known = TenantEntries::default();
        if let Some(name) = names.instance {
            let lookup = Lookup::new(rules, budget, TenantKind::Instance, name);
            known.instance = self.one(lookup).await?;
        }
        let of_instance = known.instance.as_ref().and_then(|instance| instance.parent.as_deref());
        if let Some(name) = names.workspace.or(of_instance) {
            let vouched = names.workspace.is_none();
            let lookup = Lookup::new(rules, budget, TenantKind::Workspace, name);
            known.workspace = self.one(Lookup { vouched, ..lookup }).await?;
        }
        let of_workspace = known.workspace.as_ref().and_then(|tenant| tenant.parent.as_deref());
        let organisation = names.organisation.or(of_workspace).or(names.claimed_organisation);
        let organisation = organisation.filter(|_| with_organisation);
        if let Some(name) = organisation {
            let vouched = names.organisation.is_none() && of_workspace.is_some();
            let lookup = Lookup::new(rules, budget, TenantKind::Organisation, name);
            known.organisation = self.one(Lookup { vouched, ..lookup }).await?;
        }
        self.check(rules, &known, budget)?;
        Ok(known)
    }

    /// Checks an instance's own values against its workspace's plan.
    fn check(
        &self,
        rules: &Rules,
        known: &TenantEntries,
        budget: &UnknownBudget<'_>,
    ) -> Result<(), DirectoryUnavailable> {
        let own = |instance: &&Arc<Tenant>| !instance.quotas.is_empty();
        let Some(instance) = known.instance.as_ref().filter(own) else { return Ok(()) };
        let is_parent = |tenant: &&Arc<Tenant>| Some(&*tenant.name) == instance.parent.as_deref();
        let workspace = known.workspace.as_ref().filter(is_parent);
        let plan = workspace.and_then(|workspace| workspace.plan);
        let plan = plan.and_then(|plan| rules.plans.get(plan));
        let Some(why) = own_values_refused(&instance.name, plan) else { return Ok(()) };
        let lookup = Lookup::new(rules, budget, TenantKind::Instance, &instance.name);
        Err(self.unusable(lookup, &why, lookup.now()))
    }

    /// One tenant: from the cache where its entry is good, or else from the directory.
    async fn one(&self, lookup: Lookup<'_>) -> Found {
        match self.cached(lookup).await {
            Ok(found) => found,
            // In a box: this is rare, and would make every request's state larger.
            Err(stale) => Box::pin(self.wait(lookup, stale)).await,
        }
    }

    /// What the cache has, where that is enough; or else what is there to fall back on.
    async fn cached(&self, lookup: Lookup<'_>) -> Result<Found, Option<Arc<Entry>>> {
        match self.shared.cache.get(lookup.owner, lookup.now()).await {
            Cached::Entry(entry) => Ok(self.tenant(lookup, &entry, lookup.now())),
            Cached::Absent(absent) if !absent.is_certain => Ok(Err(DirectoryUnavailable)),
            Cached::Absent(absent) if lookup.vouched => {
                Ok(self.vouched(lookup, absent.until).await)
            }
            Cached::Absent(_) => Ok(Ok(None)),
            Cached::Stale(entry) => Err(entry),
        }
    }

    /// Waits for a turn and fetches, unless another request has meanwhile.
    async fn wait(&self, lookup: Lookup<'_>, stale: Option<Arc<Entry>>) -> Found {
        let (shared, now) = (&*self.shared, lookup.now());
        let spared =
            |entry: &Arc<Entry>| entry.has_just_failed(now) || shared.breaker.is_ejected(now);
        if stale.as_ref().is_some_and(spared) {
            return self.fall_back(lookup, stale);
        }
        let turn = async {
            let address = match lookup.budget.key() {
                Some(key) if stale.is_none() => Some(shared.addresses.acquire(key).await),
                _ => None,
            };
            (address, shared.flights.acquire(lookup.owner).await)
        };
        let Ok(_turn) = timeout(shared.settings.timeout, turn).await else {
            return self.fall_back(lookup, stale);
        };
        let stale = match self.cached(lookup).await {
            Ok(found) => return found,
            Err(stale) => stale,
        };
        // What is or was cached is not invented, nor what an entry names.
        let may_fetch = stale.is_some() || lookup.vouched || lookup.budget.allows();
        if stale.as_ref().is_some_and(spared) || !may_fetch || !shared.breaker.may_send(now) {
            return self.fall_back(lookup, stale);
        }
        match timeout(shared.settings.timeout, shared.in_flight.acquire()).await {
            Ok(Ok(_permit)) => self.fetch(lookup, stale).await,
            _ => self.fall_back(lookup, stale),
        }
    }

    /// Fetches an entry, and caches it.
    async fn fetch(&self, lookup: Lookup<'_>, stale: Option<Arc<Entry>>) -> Found {
        let shared = &*self.shared;
        let mark = shared.cache.mark();
        let timer = shared.metrics.directory_seconds.start_timer();
        let response = http_client::send(self.client.request(lookup.kind, lookup.name)).await;
        timer.observe_duration();
        // The pause counts from now on, however long the request took to fail.
        let after = shared.clock.now().tick;
        self.note_outage(&response, after);
        let (outcome, why) = match response {
            Ok(response) if response.status == 200 => match self.read(lookup, &response.body) {
                Ok(entry) => {
                    self.count("known");
                    let entry = Arc::new(entry);
                    shared.cache.keep(lookup.owner, entry.clone(), mark).await;
                    shared.unusable_log.recovered(&lookup.owner);
                    return self.tenant(lookup, &entry, lookup.now());
                }
                Err(why) => ("invalid", why),
            },
            Ok(response) if response.status == 404 => {
                self.count("unknown");
                return self.unknown(lookup, mark).await;
            }
            Ok(response) => ("failed", format!("the directory answered {}", response.status)),
            Err(why) => ("unanswered", format!("the directory did not answer: {why}")),
        };
        self.count(outcome);
        // An outage is logged once for all names.
        if outcome != "unanswered" {
            self.unusable(lookup, &why, after);
        }
        match &stale {
            Some(entry) => entry.failed(after),
            None => {
                let absent = Absent { until: after.plus(PAUSE), is_certain: false };
                shared.cache.keep_absent(lookup.owner, absent, mark).await;
            }
        }
        self.fall_back(lookup, stale)
    }

    fn read(&self, lookup: Lookup<'_>, body: &[u8]) -> Result<Entry, String> {
        let raw = response::read(lookup.kind, body, &lookup.rules.workspaces)?;
        let settings = &self.shared.settings;
        self.entry(lookup, raw, lookup.now(), [settings.ttl, settings.stale_for])
    }

    fn entry(
        &self,
        lookup: Lookup<'_>,
        raw: RawEntry,
        from: Tick,
        spans: [Duration; 2],
    ) -> Result<Entry, String> {
        Entry::new((lookup.rules, self.version), lookup.name, raw, from, spans)
    }

    /// The directory does not know a tenant.
    async fn unknown(&self, lookup: Lookup<'_>, mark: u64) -> Found {
        let until = lookup.now().plus(self.shared.settings.negative_ttl);
        let absent = Absent { until, is_certain: true };
        self.shared.cache.keep_absent(lookup.owner, absent, mark).await;
        if lookup.vouched {
            return self.vouched(lookup, until).await;
        }
        lookup.budget.charge();
        Ok(None)
    }

    /// A tenant that a cached entry names, and that has no entry.
    async fn vouched(&self, lookup: Lookup<'_>, until: Tick) -> Found {
        let entry = self.entry(lookup, lookup.kind.bare(), until, [Duration::ZERO; 2]);
        let entry = Arc::new(entry.map_err(|_| DirectoryUnavailable)?);
        let cache = &self.shared.cache;
        cache.keep(lookup.owner, entry.clone(), cache.mark()).await;
        self.tenant(lookup, &entry, until)
    }

    /// The last good entry, where there is one that is not too old.
    fn fall_back(&self, lookup: Lookup<'_>, stale: Option<Arc<Entry>>) -> Found {
        let entry = stale.ok_or(DirectoryUnavailable)?;
        self.shared.metrics.directory_stale.inc();
        self.tenant(lookup, &entry, lookup.now())
    }

    fn tenant(&self, lookup: Lookup<'_>, entry: &Entry, now: Tick) -> Found {
        match entry.tenant(lookup.rules, self.version) {
            Ok(tenant) => Ok(Some(tenant)),
            Err(why) => Err(self.unusable(lookup, &why, now)),
        }
    }

    fn count(&self, outcome: &str) {
        self.shared.metrics.directory_requests.with_label_values(&[outcome]).inc();
    }

    /// Counts and logs an entry that cannot be used.
    fn unusable(&self, lookup: Lookup<'_>, why: &str, now: Tick) -> DirectoryUnavailable {
        self.shared.metrics.directory_unusable.inc();
        if self.shared.unusable_log.due(lookup.owner, now).is_some() {
            error_log::unusable(lookup.kind, lookup.name, why);
        }
        DirectoryUnavailable
    }

    /// Notes whether there was a response, and logs where an outage begins or ends.
    fn note_outage(&self, response: &Result<Response, RequestError>, now: Tick) {
        match response {
            Ok(_) if self.shared.breaker.answered() => error_log::outage_over(),
            Ok(_) => {}
            Err(why) if self.shared.breaker.unanswered(now) => {
                error_log::outage(self.client.url(), &why.to_string());
            }
            Err(_) => {}
        }
    }

    /// Whether the directory has not answered lately.
    pub fn is_out(&self) -> bool {
        self.shared.breaker.is_open()
    }

    /// A request whose response says no more than that there is one.
    pub fn probe(&self) -> reqwest::RequestBuilder {
        self.client.request(TenantKind::Workspace, "weir-gateway-check")
    }

    /// Forgets what is cached of a tenant.
    pub async fn forget(&self, rules: &Rules, kind: TenantKind, name: &str) {
        self.shared.cache.forget(rules.seed().owner(kind.scope(), name.as_bytes())).await;
    }

    /// How many entries are cached of tenants that exist, and that do not.
    pub async fn fill(&self) -> [u64; 2] {
        self.shared.cache.fill().await
    }
}
