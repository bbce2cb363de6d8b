//! Caches what a directory answers for as long as it is valid.
//!
//! # Invariants
//!
//! 1. Both parts, `known` and `absent`, are bounded. Invented names are only in `absent`, so they
//!    never evict an entry.
//! 2. An entry is used until `good_until`; after that, until `stale_until`, only while the
//!    directory cannot be asked. So is the answer that there is none. An entry that a newer one
//!    contradicts is looked up again.
//!
//! # Not here
//!
//! Fetching entries (`server`), reading them (`response`), what of them is kept: a program bounds
//! the size of a value, and the cache their number.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use moka::future::Cache;

use crate::directory::breaker::PAUSE;
use crate::time::Tick;

/// The cache of a directory's responses, by the keys of tenants.
pub struct EntryCache<K, V> {
    known: Cache<K, Arc<Entry<V>>>,
    absent: Cache<K, Absent>,
    /// How many of `absent` no answer is known of: their lookups have all failed.
    failed: Arc<AtomicU64>,
    /// How often a tenant was removed: a response requested before a removal is not cached.
    forgotten: AtomicU64,
}

/// A tenant that the directory knows.
#[derive(Debug)]
pub struct Entry<V> {
    /// What is kept of its entry.
    pub value: V,
    requested: Tick,
    /// In ticks.
    good_until: AtomicU64,
    stale_until: Tick,
    /// It is not fetched again before this time, in ticks.
    again_at: AtomicU64,
    /// Whether the one before it was contradicted: no other entry lets this one expire.
    is_renewed: AtomicBool,
}

/// A tenant without an entry. The default is one of which nothing is known.
#[derive(Clone, Copy, Debug, Default)]
pub struct Absent {
    /// Until when it is not looked up again.
    pub until: Tick,
    /// Until when the directory's last answer, that there is no entry, may be used.
    stale_until: Tick,
}

impl Absent {
    /// The directory answered a request of `requested` that it has no entry: this holds for
    /// `negative_ttl`, and is stale for `stale_for` after that.
    #[must_use]
    pub fn new(requested: Tick, [negative_ttl, stale_for]: [Duration; 2]) -> Self {
        let until = requested.plus(negative_ttl);
        Self { until, stale_until: until.plus(stale_for) }
    }

    /// A lookup at `now` failed, and the next may come after [`PAUSE`].
    fn failed(self, now: Tick) -> Self {
        Self { until: now.plus(PAUSE), ..self }
    }

    /// Whether the directory reported this at any time; false if its lookups have all failed.
    #[must_use]
    pub fn was_reported(&self) -> bool {
        self.stale_until > Tick::default()
    }

    /// Whether the directory reported this, not too long ago; false if it was unavailable.
    #[must_use]
    pub fn is_certain(&self, now: Tick) -> bool {
        now < self.stale_until
    }
}

/// The cached state of a tenant.
#[derive(Debug)]
pub enum Cached<V> {
    /// A fresh entry.
    Entry(Arc<Entry<V>>),
    /// It has no entry, or its lookup has just failed.
    Absent(Absent),
    /// It is to be looked up.
    Expired(Last<V>),
}

/// What was known last of a tenant, for use only while the directory cannot be asked.
#[derive(Debug)]
pub enum Last<V> {
    /// Its entry.
    Entry(Arc<Entry<V>>),
    /// It had no entry, or its lookup failed.
    Absent(Absent),
    /// Nothing.
    Nothing,
}

impl<K, V> EntryCache<K, V>
where
    K: Hash + Eq + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// A cache of at most `entries_max` tenants that exist, and as many that do not.
    #[must_use]
    pub fn new(entries_max: usize) -> Self {
        let most = u64::try_from(entries_max).unwrap_or(u64::MAX);
        let failed = Arc::new(AtomicU64::default());
        let left = failed.clone();
        let leaves = move |_, absent: Absent, _| {
            left.fetch_sub(u64::from(!absent.was_reported()), Ordering::Relaxed);
        };
        let absent = Cache::builder().max_capacity(most).eviction_listener(leaves).build();
        Self { known: Cache::new(most), absent, failed, forgotten: AtomicU64::default() }
    }

    /// The cached state of a tenant at `now`.
    pub async fn get(&self, key: &K, now: Tick) -> Cached<V> {
        let entry = self.known.get(key).await;
        match entry {
            Some(entry) if entry.is_good(now) => Cached::Entry(entry),
            Some(entry) if now < entry.stale_until => Cached::Expired(Last::Entry(entry)),
            Some(_) => Cached::Expired(Last::Nothing),
            None => match self.absent.get(key).await {
                Some(absent) if now < absent.until => Cached::Absent(absent),
                Some(absent) => Cached::Expired(Last::Absent(absent)),
                None => Cached::Expired(Last::Nothing),
            },
        }
    }

    /// Read before a request is sent, for [`Self::keep`] and [`Self::keep_absent`].
    pub fn mark(&self) -> u64 {
        self.forgotten.load(Ordering::Acquire)
    }

    /// Caches an entry, unless a tenant was removed since `mark`.
    pub async fn keep(&self, key: K, entry: Arc<Entry<V>>, mark: u64) {
        if self.mark() == mark {
            let before = self.known.get(&key).await;
            entry.is_renewed.store(before.is_some_and(|own| own.is_expired()), Ordering::Relaxed);
            self.absent.invalidate(&key).await;
            self.known.insert(key, entry).await;
        }
    }

    /// Caches that there is no entry, unless a tenant was removed since `mark`.
    pub async fn keep_absent(&self, key: K, absent: Absent, mark: u64) {
        if self.mark() == mark {
            self.known.invalidate(&key).await;
            self.failed.fetch_add(u64::from(!absent.was_reported()), Ordering::Relaxed);
            self.absent.insert(key, absent).await;
        }
    }

    /// Records that a fetch failed at `now`: the tenant is not fetched again for [`PAUSE`]. What
    /// was known `last` is kept, unless a tenant was removed since `mark`.
    pub async fn keep_failed(&self, key: K, last: &Last<V>, now: Tick, mark: u64) {
        let absent = match last {
            Last::Entry(entry) => return entry.failed(now),
            Last::Absent(absent) => absent.failed(now),
            Last::Nothing => Absent::default().failed(now),
        };
        self.keep_absent(key, absent, mark).await;
    }

    /// Lets the next request fetch a tenant, if its entry is older than that of `other`; not again
    /// while what was fetched so is good. Until the directory answers, the entry is what was known
    /// last.
    pub async fn expire_if_older(&self, key: &K, other: &K) {
        if let (Some(entry), Some(other)) = (self.known.get(key).await, self.known.get(other).await)
            && entry.requested < other.requested
            && !entry.is_renewed.load(Ordering::Relaxed)
        {
            entry.expire();
        }
    }

    /// Removes a tenant, so that the next request fetches it.
    pub async fn forget(&self, key: &K) {
        self.forgotten.fetch_add(1, Ordering::AcqRel);
        self.known.invalidate(key).await;
        self.absent.invalidate(key).await;
    }

    /// How many tenants are cached: those that exist, those that do not, and those whose lookups
    /// have all failed.
    pub async fn fill(&self) -> [u64; 3] {
        self.known.run_pending_tasks().await;
        self.absent.run_pending_tasks().await;
        let (absent, failed) = (self.absent.entry_count(), self.failed.load(Ordering::Relaxed));
        [self.known.entry_count(), absent.saturating_sub(failed), failed]
    }
}

impl<V> Last<V> {
    /// Whether it may be used at `now` while the directory cannot be asked.
    pub fn is_usable(&self, now: Tick) -> bool {
        match self {
            Self::Entry(_) => true,
            Self::Absent(absent) => absent.is_certain(now),
            Self::Nothing => false,
        }
    }

    /// Whether a fetch of its entry failed less than [`PAUSE`] ago.
    pub fn has_just_failed(&self, now: Tick) -> bool {
        matches!(self, Self::Entry(entry) if entry.has_just_failed(now))
    }
}

impl<V> Entry<V> {
    /// An entry as of `requested`, fresh for `ttl` and stale for `stale_for` after that.
    #[must_use]
    pub fn new(value: V, requested: Tick, [ttl, stale_for]: [Duration; 2]) -> Self {
        let good_until = requested.plus(ttl);
        let stale_until = good_until.plus(stale_for);
        let good_until = AtomicU64::new(good_until.0);
        let (again_at, is_renewed) = (AtomicU64::default(), AtomicBool::default());
        Self { value, requested, good_until, stale_until, again_at, is_renewed }
    }

    fn is_good(&self, now: Tick) -> bool {
        now.0 < self.good_until.load(Ordering::Relaxed)
    }

    fn expire(&self) {
        self.good_until.store(0, Ordering::Relaxed);
    }

    fn is_expired(&self) -> bool {
        self.good_until.load(Ordering::Relaxed) == 0
    }

    fn failed(&self, now: Tick) {
        self.again_at.store(now.plus(PAUSE).0, Ordering::Relaxed);
    }

    fn has_just_failed(&self, now: Tick) -> bool {
        now.0 < self.again_at.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(test);
    }

    fn entry() -> Arc<Entry<()>> {
        let spans = [Duration::from_secs(60), Duration::from_secs(3_600)];
        Arc::new(Entry::new((), Tick(0), spans))
    }

    #[test]
    fn an_entry_is_fresh_then_stale_then_evicted() {
        run(async {
            let cache = EntryCache::new(10);
            cache.keep("a", entry(), cache.mark()).await;
            for (second, good, stale) in [
                (0, true, false),
                (59, true, false),
                (60, false, true),
                (3_659, false, true),
                (3_660, false, false),
            ] {
                let found = cache.get(&"a", Tick(second * 1_000_000)).await;
                assert_eq!(matches!(found, Cached::Entry(_)), good, "{second}");
                let is_stale = matches!(found, Cached::Expired(Last::Entry(_)));
                assert_eq!(is_stale, stale, "{second}");
            }
        });
    }

    #[test]
    fn the_older_of_two_entries_is_fetched_again_and_stays_usable() {
        run(async {
            let cache = EntryCache::new(10);
            let spans = [Duration::from_secs(60), Duration::from_secs(60)];
            for (name, second) in [("old", 1), ("new", 2), ("as new", 2)] {
                let entry = Arc::new(Entry::new((), Tick(second * 1_000_000), spans));
                cache.keep(name, entry, cache.mark()).await;
            }
            let now = Tick(3_000_000);
            for (name, other, is_fresh) in [
                ("new", "old", true),
                ("new", "as new", true),
                ("old", "none", true),
                ("old", "new", false),
            ] {
                cache.expire_if_older(&name, &other).await;
                let found = cache.get(&name, now).await;
                assert_eq!(matches!(found, Cached::Entry(_)), is_fresh, "{name}, {other}");
                let is_kept = matches!(found, Cached::Expired(Last::Entry(_)));
                assert_eq!(is_kept, !is_fresh, "{name}, {other}");
            }
            // What was fetched so stays for its time, whatever is newer.
            for (second, is_fresh) in [(3, true), (70, false)] {
                for (name, after) in [("old", 0), ("new", 1)] {
                    let entry = Arc::new(Entry::new((), Tick((second + after) * 1_000_000), spans));
                    cache.keep(name, entry, cache.mark()).await;
                }
                cache.expire_if_older(&"old", &"new").await;
                let found = cache.get(&"old", Tick((second + 2) * 1_000_000)).await;
                assert_eq!(matches!(found, Cached::Entry(_)), is_fresh, "{second}");
            }
        });
    }

    #[test]
    fn that_there_is_no_entry_expires_as_an_entry_does_and_a_failure_makes_it_no_newer() {
        run(async {
            let cache = EntryCache::<_, ()>::new(10);
            let absent = Absent::new(Tick(0), [Duration::from_secs(10), Duration::from_secs(60)]);
            cache.keep_absent("a", absent, cache.mark()).await;
            for (second, is_fresh, is_certain) in
                [(9, true, true), (10, false, true), (69, false, true), (70, false, false)]
            {
                let now = Tick(second * 1_000_000);
                match cache.get(&"a", now).await {
                    Cached::Absent(found) => assert!(is_fresh && found.is_certain(now)),
                    Cached::Expired(Last::Absent(found)) => {
                        assert_eq!((false, found.is_certain(now)), (is_fresh, is_certain));
                    }
                    found => panic!("{second}: {found:?}"),
                }
            }
            assert!(absent.was_reported() && !Absent::default().failed(Tick(1)).was_reported());
            let failed = absent.failed(Tick(69_500_000));
            assert_eq!(failed.until, Tick(70_500_000));
            assert!(!failed.is_certain(Tick(70_000_000)));
        });
    }

    #[test]
    fn what_was_requested_before_it_was_forgotten_is_not_kept() {
        run(async {
            let cache = EntryCache::new(10);
            let mark = cache.mark();
            cache.forget(&"a").await;
            cache.keep("a", entry(), mark).await;
            let absent = Absent::new(Tick(0), [Duration::from_secs(9); 2]);
            cache.keep_absent("b", absent, mark).await;
            for name in ["a", "b"] {
                let found = cache.get(&name, Tick(0)).await;
                assert!(matches!(found, Cached::Expired(Last::Nothing)), "{found:?}");
            }
        });
    }

    #[test]
    fn names_without_number_push_out_no_entry() {
        run(async {
            let cache = EntryCache::new(100);
            for n in 0..50 {
                cache.keep(format!("ws_{n}"), entry(), cache.mark()).await;
            }
            for n in 0..20_000 {
                let absent = Absent::new(Tick(0), [Duration::MAX; 2]);
                cache.keep_absent(format!("invented_{n}"), absent, cache.mark()).await;
            }
            let [known, absent, failed] = cache.fill().await;
            assert_eq!((known, failed), (50, 0));
            assert!(absent <= 100, "{absent}");
        });
    }

    #[test]
    fn tenants_that_do_not_exist_and_failed_lookups_are_counted_apart() {
        run(async {
            let cache = EntryCache::<_, ()>::new(100);
            let keep = async |name: &'static str, absent: Absent| {
                cache.keep_absent(name, absent, cache.mark()).await;
            };
            let fails = async |name: &'static str, last: Last<()>| {
                cache.keep_failed(name, &last, Tick(1), cache.mark()).await;
            };
            let absent = Absent::new(Tick(0), [Duration::MAX; 2]);
            keep("absent", absent).await;
            keep("later away", absent).await;
            fails("later away", Last::Absent(absent)).await;
            for _ in 0..3 {
                fails("away", Last::Nothing).await;
                fails("later absent", Last::Nothing).await;
                fails("later known", Last::Nothing).await;
                fails("forgotten", Last::Nothing).await;
            }
            assert_eq!(cache.fill().await, [0, 2, 4]);
            keep("later absent", absent).await;
            cache.keep("later known", entry(), cache.mark()).await;
            cache.forget(&"forgotten").await;
            assert_eq!(cache.fill().await, [1, 3, 1]);
            let many = EntryCache::<_, ()>::new(100);
            for n in 0..1_000 {
                many.keep_failed(n, &Last::Nothing, Tick(1), many.mark()).await;
            }
            let [known, absent, failed] = many.fill().await;
            assert_eq!((known, absent), (0, 0));
            assert!((1..=100).contains(&failed), "{failed}");
        });
    }
}
