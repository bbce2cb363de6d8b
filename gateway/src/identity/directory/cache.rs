//! Caches a directory's responses for as long as they are valid.
//!
//! # Invariants
//!
//! 1. Both parts, `known` and `absent`, are bounded. Invented names are only in `absent`, so they
//!    never evict an entry.
//! 2. An entry is used until `good_until`; after that, until `stale_until`, only while the
//!    directory is unavailable.
//!
//! An entry has at most one set of values for each limit in the settings. Its size is bounded, so
//! the cache limits the number of entries, not their bytes.
//!
//! # Not here
//!
//! Fetching entries (`directory`), reading them (`response`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use moka::future::Cache;
use weir_common::config::document::Document;
use weir_common::time::Tick;

use crate::identity::directory::breaker::PAUSE;
use crate::identity::directory::response::{RawEntry, faults};
use crate::limit::key::Owner;
use crate::rules::Rules;
use crate::rules::compile::tenants::Entries;
use crate::rules::tenant::Tenant;

/// The cache of a directory's responses.
#[derive(Debug)]
pub(super) struct EntryCache {
    known: Cache<Owner, Arc<Entry>>,
    absent: Cache<Owner, Absent>,
    /// How often a tenant was removed: a response requested before a removal is not cached.
    forgotten: AtomicU64,
}

/// A tenant that the directory knows.
#[derive(Debug)]
pub(super) struct Entry {
    name: Box<str>,
    raw: RawEntry,
    good_until: Tick,
    stale_until: Tick,
    /// It is not fetched again before this time, in ticks.
    again_at: AtomicU64,
    compiled: ArcSwap<Compiled>,
}

/// An entry as compiled by one configuration.
#[derive(Debug)]
struct Compiled {
    version: u64,
    tenant: Result<Arc<Tenant>, String>,
}

/// A tenant without an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Absent {
    /// Until when it is not looked up again.
    pub(super) until: Tick,
    /// Whether the directory reported this; false if it was unavailable.
    pub(super) is_certain: bool,
}

/// The cached state of a tenant.
#[derive(Debug)]
pub(super) enum Cached {
    /// A fresh entry.
    Entry(Arc<Entry>),
    /// It has no entry.
    Absent(Absent),
    /// Nothing, or an entry for use only while the directory is unavailable.
    Stale(Option<Arc<Entry>>),
}

impl EntryCache {
    /// A cache of at most `entries_max` tenants that exist, and as many that do not.
    #[must_use]
    pub(super) fn new(entries_max: usize) -> Self {
        let most = u64::try_from(entries_max).unwrap_or(u64::MAX);
        Self { known: Cache::new(most), absent: Cache::new(most), forgotten: AtomicU64::default() }
    }

    /// The cached state of `owner` at `now`.
    pub(super) async fn get(&self, owner: Owner, now: Tick) -> Cached {
        let entry = self.known.get(&owner).await;
        match entry {
            Some(entry) if now < entry.good_until => Cached::Entry(entry),
            Some(entry) => Cached::Stale(Some(entry).filter(|e| now < e.stale_until)),
            None => match self.absent.get(&owner).await {
                Some(absent) if now < absent.until => Cached::Absent(absent),
                _ => Cached::Stale(None),
            },
        }
    }

    /// Read before a request is sent, for [`Self::keep`] and [`Self::keep_absent`].
    pub(super) fn mark(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Caches an entry, unless a tenant was removed since `mark`.
    pub(super) async fn keep(&self, owner: Owner, entry: Arc<Entry>, mark: u64) {
        if self.mark() == mark {
            self.known.insert(owner, entry).await;
            self.absent.invalidate(&owner).await;
        }
    }

    /// Caches that there is no entry, unless a tenant was removed since `mark`.
    pub(super) async fn keep_absent(&self, owner: Owner, absent: Absent, mark: u64) {
        if self.mark() == mark {
            self.known.invalidate(&owner).await;
            self.absent.insert(owner, absent).await;
        }
    }

    /// Removes a tenant, so that the next request fetches it.
    pub(super) async fn forget(&self, owner: Owner) {
        self.forgotten.fetch_add(1, Ordering::AcqRel);
        self.known.invalidate(&owner).await;
        self.absent.invalidate(&owner).await;
    }

    /// How many tenants are cached: those that exist, and those that do not.
    pub(super) async fn fill(&self) -> [u64; 2] {
        self.known.run_pending_tasks().await;
        self.absent.run_pending_tasks().await;
        [self.known.entry_count(), self.absent.entry_count()]
    }
}

impl Entry {
    /// An entry as of `requested`, fresh for `ttl` and stale for `stale_for` after that; or why it
    /// is invalid by these rules.
    pub(super) fn new(
        (rules, version): (&Rules, u64),
        name: &str,
        raw: RawEntry,
        requested: Tick,
        [ttl, stale_for]: [Duration; 2],
    ) -> Result<Self, String> {
        let tenant = Arc::new(tenant(rules, name, &raw)?);
        let good_until = requested.plus(ttl);
        Ok(Self {
            name: name.into(),
            raw,
            good_until,
            stale_until: good_until.plus(stale_for),
            again_at: AtomicU64::default(),
            compiled: ArcSwap::from_pointee(Compiled { version, tenant: Ok(tenant) }),
        })
    }

    /// The tenant of this entry, compiled again if `version` has changed since the last call.
    pub(super) fn tenant(&self, rules: &Rules, version: u64) -> Result<Arc<Tenant>, String> {
        let compiled = self.compiled.load();
        if compiled.version == version {
            return compiled.tenant.clone();
        }
        let tenant = tenant(rules, &self.name, &self.raw).map(Arc::new);
        self.compiled.store(Arc::new(Compiled { version, tenant: tenant.clone() }));
        tenant
    }

    /// Records that a fetch of it failed: it is not fetched again for [`PAUSE`].
    pub(super) fn failed(&self, now: Tick) {
        self.again_at.store(now.plus(PAUSE).0, Ordering::Relaxed);
    }

    /// Whether a fetch of it failed less than [`PAUSE`] ago.
    pub(super) fn has_just_failed(&self, now: Tick) -> bool {
        now.0 < self.again_at.load(Ordering::Relaxed)
    }
}

/// Compiles an entry into a tenant by the rules for the directory file.
fn tenant(rules: &Rules, name: &str, raw: &RawEntry) -> Result<Tenant, String> {
    let document = Document::new("", "");
    let entries = Entries {
        document: &document,
        limits: &rules.limits,
        plans: &rules.plans,
        seed: *rules.seed(),
    };
    let tenant = match raw {
        RawEntry::Organisation(entry) => entries.organisation(name, entry),
        RawEntry::Workspace(entry) => entries.workspace(name, entry),
        RawEntry::Instance(entry) => entries.instance(name, entry),
    };
    faults(&document).map_or(Ok(tenant), Err)
}

#[cfg(test)]
mod tests {
    use weir_common::directory::Directory;
    use weir_common::identifier::IdForm;

    use super::*;
    use crate::identity::directory::response::{TenantKind, read};
    use crate::limit::key::{Scope, Seed};

    const SEED: Seed = Seed::new([3; 16]);
    const SHIPPED: &str = include_str!("../../../../config/gateway.toml");

    fn rules(text: &str) -> Rules {
        let (document, nothing) = (Document::new("g", text), Document::new("d", ""));
        let raw = crate::settings::read::read(&document).made;
        crate::rules::compile::check((&raw, &document), (&Directory::default(), &nothing), SEED)
    }

    fn entry(body: &str) -> Result<Entry, String> {
        let raw = read(TenantKind::Workspace, body.as_bytes(), &IdForm::workspace())?;
        let spans = [Duration::from_secs(60), Duration::from_secs(3_600)];
        Entry::new((&rules(SHIPPED), 1), "ws_a", raw, Tick(0), spans)
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    fn owner(name: &str) -> Owner {
        SEED.owner(Scope::Workspace, name.as_bytes())
    }

    #[test]
    fn an_answer_is_checked_as_the_file_is() {
        for (body, wrong) in [
            (r#"{"plan": "por"}"#, "unknown plan `por`; did you mean `pro`?"),
            (r#"{"limits": {"wrokspace": {"requests": 1}}}"#, "unknown limit `wrokspace`"),
            (r#"{"limits": {"instance": {"rate": 1}}}"#, "is kept by instance, not by workspace"),
            (r#"{"limits": {"workspace": {"rate": 1}}}"#, "only with algorithm"),
            (r#"{"limits": {"workspace": {}}}"#, "takes requests and window: none"),
        ] {
            let found = entry(body).err().unwrap_or_default();
            assert!(found.contains(wrong), "{body}: {found}");
        }
        let entry = entry(r#"{"plan": "pro", "limits": {"workspace": {"requests": 7}}}"#).unwrap();
        let tenant = entry.tenant(&rules(SHIPPED), 1).unwrap();
        assert_eq!(tenant.quotas.len(), 1);
    }

    #[test]
    fn other_rules_look_an_entry_up_again() {
        let entry = entry(r#"{"plan": "pro"}"#).unwrap();
        let plan = |text: &str, version| {
            let rules = rules(text);
            let tenant = entry.tenant(&rules, version)?;
            Ok::<_, String>(rules.plans[tenant.plan.unwrap()].name.clone())
        };
        assert_eq!(plan(SHIPPED, 1).as_deref(), Ok("pro"));
        // Another plan precedes it, so its index changes.
        let more = SHIPPED.replace("[plans.free]", "[plans.free]\n[plans.basic]");
        assert_eq!(plan(&more, 2).as_deref(), Ok("pro"));
        let fewer = SHIPPED.replace("[plans.pro]", "[plans.plus]");
        assert!(plan(&fewer, 3).unwrap_err().contains("unknown plan `pro`"));
        assert_eq!(plan(SHIPPED, 4).as_deref(), Ok("pro"));
    }

    #[test]
    fn an_entry_is_fresh_then_stale_then_evicted() {
        run(async {
            let cache = EntryCache::new(10);
            cache.keep(owner("a"), Arc::new(entry("{}").unwrap()), cache.mark()).await;
            for (second, good, stale) in [
                (0, true, false),
                (59, true, false),
                (60, false, true),
                (3_659, false, true),
                (3_660, false, false),
            ] {
                let found = cache.get(owner("a"), Tick(second * 1_000_000)).await;
                assert_eq!(matches!(found, Cached::Entry(_)), good, "{second}");
                assert_eq!(matches!(found, Cached::Stale(Some(_))), stale, "{second}");
            }
        });
    }

    #[test]
    fn what_was_requested_before_it_was_forgotten_is_not_kept() {
        run(async {
            let cache = EntryCache::new(10);
            let mark = cache.mark();
            cache.forget(owner("a")).await;
            cache.keep(owner("a"), Arc::new(entry("{}").unwrap()), mark).await;
            let absent = Absent { until: Tick(9), is_certain: true };
            cache.keep_absent(owner("b"), absent, mark).await;
            for name in ["a", "b"] {
                let found = cache.get(owner(name), Tick(0)).await;
                assert!(matches!(found, Cached::Stale(None)), "{found:?}");
            }
        });
    }

    #[test]
    fn names_without_number_push_out_no_entry() {
        run(async {
            let cache = EntryCache::new(100);
            for n in 0..50 {
                let entry = Arc::new(entry("{}").unwrap());
                cache.keep(owner(&format!("ws_{n}")), entry, cache.mark()).await;
            }
            for n in 0..20_000 {
                let absent = Absent { until: Tick(u64::MAX), is_certain: true };
                cache.keep_absent(owner(&format!("invented_{n}")), absent, cache.mark()).await;
            }
            let [known, absent] = cache.fill().await;
            assert_eq!(known, 50);
            assert!(absent <= 100, "{absent}");
        });
    }
}
