//! Resolves names for all workspaces, with a cache, single flight, and a share for each workspace.
//!
//! The system's resolver cannot be cancelled: a name whose servers do not reply occupies a thread
//! for half a minute, long after its attempt ended. So the number of lookups is limited, in total
//! and per workspace.
//!
//! # Invariants
//!
//! 1. At most [`LOOKUPS_MAX`] lookups run at a time, and [`SHARE`] for one workspace.
//! 2. A name has one lookup at a time, which all callers share. No caller waits for a permit of
//!    another workspace: it joins a lookup only once that is running.
//! 3. A result is cached for [`FRESH`]; while lookups get no reply, the last one is used for
//!    [`STALE`].
//! 4. The cache is bounded, and names in use are never evicted for new ones.
//! 5. A lookup without a reply is our fault, until the name has had none for [`SILENT_MAX`] while
//!    other names had.
//!
//! Not here: which addresses may be called (`egress`).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_common::time::{Clock, Tick};

use crate::delivery::egress::dns::{Lookup, LookupError, System};

/// Lookups at a time, each in a thread that mostly sleeps: half of the runtime's limit.
const LOOKUPS_MAX: usize = 256;

/// Lookups of one workspace: twenty webhooks resolve within moments, and only 64 workspaces with
/// unresponsive names together delay others.
const SHARE: usize = 4;

/// `getaddrinfo` returns no time to live. Services that move by DNS use half a minute or more, and
/// connections are reused for longer than this anyway.
const FRESH: Duration = Duration::from_secs(10);

/// While the resolver fails, an old address is better than none.
const STALE: Duration = Duration::from_secs(5 * 60);

/// Ten megabytes of names. Names beyond it are resolved for each connection.
const NAMES_MAX: usize = 50_000;

/// An outage of our resolver is corrected or noticed within this; a broken zone lasts longer.
const SILENT_MAX: Duration = Duration::from_secs(3_600);

/// The resolver works if it answered any lookup within this.
const WORKS: Duration = Duration::from_secs(60);

type Answer = Result<Vec<IpAddr>, LookupError>;
type Flight = watch::Receiver<Option<Answer>>;
type Permits = [OwnedSemaphorePermit; 2];

/// The cache of names, and the limits of lookups.
#[derive(Debug)]
pub struct Names {
    lookup: Arc<dyn Lookup>,
    clock: Clock,
    fresh: Duration,
    permits: Arc<Semaphore>,
    shares: Mutex<HashMap<Option<Arc<str>>, Weak<Semaphore>>>,
    cache: Arc<Mutex<NameCache>>,
    flights: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct NameCache {
    names: HashMap<Box<str>, Entry>,
    /// When any lookup was last answered.
    answered: Option<Tick>,
    /// When old names were last evicted.
    swept: Tick,
}

#[derive(Debug, Default)]
struct Entry {
    /// The last result, and its time.
    found: Option<(Tick, Vec<IpAddr>)>,
    /// Since when lookups have had no reply.
    silent_since: Option<Tick>,
    /// The running lookup.
    flight: Option<Flight>,
    used: Tick,
}

/// What the cache has for a name.
enum CacheState {
    Fresh(Vec<IpAddr>),
    Running(Flight),
    NeedsPermits,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Names {
    /// A cache over the system's resolver.
    #[must_use]
    pub fn system() -> Arc<Self> {
        Arc::new(Self::new(Arc::new(System), Clock::system(), FRESH))
    }

    /// A cache over `lookup`, whose results are cached for `fresh`.
    pub(super) fn new(lookup: Arc<dyn Lookup>, clock: Clock, fresh: Duration) -> Self {
        Self {
            lookup,
            clock,
            fresh,
            permits: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            shares: Mutex::default(),
            cache: Arc::default(),
            flights: Mutex::default(),
        }
    }

    /// The addresses of a name, within `wait`. A running lookup continues after it: a later caller
    /// joins it.
    pub async fn addresses(
        &self,
        workspace: Option<Arc<str>>,
        name: &str,
        wait: Duration,
    ) -> Answer {
        match timeout(wait, self.lookup_once(workspace, name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(LookupError::NoSuchName)) => Err(LookupError::NoSuchName),
            Ok(Err(LookupError::Shortage)) => self.last_known(name).ok_or(LookupError::Shortage),
            Ok(Err(LookupError::Unanswered)) | Err(_) => {
                self.last_known(name).ok_or_else(|| self.unanswered(name))
            }
        }
    }

    async fn lookup_once(&self, workspace: Option<Arc<str>>, name: &str) -> Answer {
        let state = match self.state(name, None) {
            CacheState::NeedsPermits => {
                let share = self.share(workspace);
                let permits = async { [share.acquire_owned().await, self.permit().await] }.await;
                let [Ok(own), Ok(one)] = permits else { return Err(LookupError::Shortage) };
                // Another caller may have looked it up in the meantime.
                self.state(name, Some([own, one]))
            }
            state => state,
        };
        match state {
            CacheState::Fresh(found) => Ok(found),
            CacheState::Running(mut flight) => match flight.wait_for(Option::is_some).await {
                Ok(answer) => answer.clone().unwrap_or(Err(LookupError::Unanswered)),
                // The lookup panicked.
                Err(_) => Err(LookupError::Shortage),
            },
            CacheState::NeedsPermits => Err(LookupError::Shortage),
        }
    }

    async fn permit(&self) -> Result<OwnedSemaphorePermit, tokio::sync::AcquireError> {
        self.permits.clone().acquire_owned().await
    }

    /// The permits of a workspace, kept while any is in use.
    fn share(&self, workspace: Option<Arc<str>>) -> Arc<Semaphore> {
        let mut shares = lock(&self.shares);
        if let Some(share) = shares.get(&workspace).and_then(Weak::upgrade) {
            return share;
        }
        if shares.len() > 2 * LOOKUPS_MAX {
            shares.retain(|_, share| share.strong_count() > 0);
        }
        let share = Arc::new(Semaphore::new(SHARE));
        shares.insert(workspace, Arc::downgrade(&share));
        share
    }

    /// The cached result or the running lookup; with permits, starts a lookup otherwise.
    fn state(&self, name: &str, permits: Option<Permits>) -> CacheState {
        let now = self.clock.now().tick;
        let mut cache = lock(&self.cache);
        if let Some(entry) = cache.names.get_mut(name) {
            let fresh = |at: Tick| now.since(at) < self.fresh;
            if let Some((_, found)) = entry.found.as_ref().filter(|(at, _)| fresh(*at)) {
                return CacheState::Fresh(found.clone());
            }
            // The channel of a lookup that panicked is closed.
            let is_running = |flight: &&Flight| flight.has_changed().is_ok();
            if let Some(flight) = entry.flight.as_ref().filter(is_running) {
                return CacheState::Running(flight.clone());
            }
        }
        let Some(permits) = permits else { return CacheState::NeedsPermits };
        cache.sweep(now, self.fresh);
        let (sender, flight) = watch::channel(None);
        cache.names.entry(name.into()).or_default().flight = Some(flight.clone());
        drop(cache);
        let (lookup, clock, cache) = (self.lookup.clone(), self.clock.clone(), self.cache.clone());
        let name: Box<str> = name.into();
        let mut flights = lock(&self.flights);
        while flights.try_join_next().is_some() {}
        flights.spawn(async move {
            let answer = lookup.addresses(&name).await;
            lock(&cache).store_result(&name, &answer, clock.now().tick);
            drop(permits);
            sender.send_replace(Some(answer));
        });
        CacheState::Running(flight)
    }

    /// The last result, up to [`STALE`] old.
    fn last_known(&self, name: &str) -> Option<Vec<IpAddr>> {
        let now = self.clock.now().tick;
        let cache = lock(&self.cache);
        let (at, found) = cache.names.get(name)?.found.as_ref()?;
        (now.since(*at) < STALE).then(|| found.clone())
    }

    /// The error of a lookup without a reply: ours, or the name's ([`SILENT_MAX`]).
    fn unanswered(&self, name: &str) -> LookupError {
        let now = self.clock.now().tick;
        let mut cache = lock(&self.cache);
        let works = cache.answered.is_some_and(|at| now.since(at) < WORKS);
        // Without an entry no lookup has run, which proves nothing about the name's servers.
        let Some(entry) = cache.names.get_mut(name) else { return LookupError::Unanswered };
        let last = std::mem::replace(&mut entry.used, now);
        let since = entry.silent_since.filter(|_| now.since(last) < STALE).unwrap_or(now);
        entry.silent_since = Some(since);
        let for_long = now.since(since) >= SILENT_MAX;
        if works && for_long { LookupError::NoSuchName } else { LookupError::Unanswered }
    }
}

impl NameCache {
    /// Stores the result of a lookup.
    fn store_result(&mut self, name: &str, answer: &Answer, now: Tick) {
        let many = self.names.len() > NAMES_MAX;
        let Some(entry) = self.names.get_mut(name) else { return };
        entry.flight = None;
        match answer {
            Ok(found) => entry.found = Some((now, found.clone())),
            Err(LookupError::NoSuchName) => entry.found = None,
            Err(LookupError::Unanswered | LookupError::Shortage) => return,
        }
        (entry.silent_since, entry.used) = (None, now);
        self.answered = Some(now);
        if many {
            self.names.remove(name);
        }
    }

    /// Evicts stale names once the cache is full.
    fn sweep(&mut self, now: Tick, every: Duration) {
        if self.names.len() >= NAMES_MAX && now.since(self.swept) >= every {
            self.swept = now;
            let used = |entry: &Entry| entry.flight.is_some() || now.since(entry.used) < STALE;
            self.names.retain(|_, entry| used(entry));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use tokio::time::{Instant, sleep};
    use weir_common::time::UnixTime;

    use super::*;

    const WAIT: Duration = Duration::from_secs(2);

    /// A resolver that replies by prefix. `silent`: never; `again`: no answer; `gone`: no such
    /// name; `slow`: an address after a second; `faulty`: a panic, then an address; others: an
    /// address.
    #[derive(Debug, Default)]
    struct Fake {
        lookups: Mutex<HashMap<String, usize>>,
        under_way: AtomicUsize,
        most: AtomicUsize,
        out_of_order: AtomicUsize,
    }

    struct Leaves<'a>(&'a AtomicUsize);

    impl Drop for Leaves<'_> {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[async_trait]
    impl Lookup for Fake {
        async fn addresses(&self, name: &str) -> Answer {
            let is_first = {
                let mut lookups = lock(&self.lookups);
                let count = lookups.entry(name.to_owned()).or_default();
                *count += 1;
                *count == 1
            };
            let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            let _leaves = Leaves(&self.under_way);
            if self.out_of_order.load(Ordering::SeqCst) > 0 || name.starts_with("again") {
                return Err(LookupError::Unanswered);
            }
            match name.split(['-', '.']).next() {
                Some("silent") => std::future::pending().await,
                Some("faulty") if is_first => panic!("a lookup panics"),
                Some("gone") => Err(LookupError::NoSuchName),
                Some("slow") => {
                    sleep(Duration::from_secs(1)).await;
                    Ok(vec![IpAddr::from([8, 8, 4, 4])])
                }
                _ => Ok(vec![IpAddr::from([8, 8, 8, 8])]),
            }
        }
    }

    fn names() -> (Arc<Fake>, Arc<Names>, Clock) {
        let (fake, clock) = (Arc::new(Fake::default()), Clock::manual(UnixTime(1 << 50)));
        (fake.clone(), Arc::new(Names::new(fake, clock.clone(), FRESH)), clock)
    }

    fn ws(name: &str) -> Option<Arc<str>> {
        Some(Arc::from(name))
    }

    /// How long a workspace waits for a name with an address.
    #[expect(clippy::disallowed_methods, reason = "tokio's clock, which a test turns")]
    async fn waits(names: &Names, workspace: &str, name: &str) -> Duration {
        let since = Instant::now();
        let found = names.addresses(ws(workspace), name, WAIT).await;
        assert!(found.is_ok(), "{name}: {found:?}");
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_workspace_with_unresponsive_names_delays_no_other() {
        let (fake, names, _) = names();
        let mut lookups = JoinSet::new();
        for second in 0..120 {
            for hook in 0..20 {
                // Each second one of the names is new.
                let round = (second + 19 - hook) / 20;
                let (names, name) = (names.clone(), format!("silent-{hook}-{round}.example"));
                lookups.spawn(async move { names.addresses(ws("ws_bad"), &name, WAIT).await });
            }
            sleep(Duration::from_secs(1)).await;
            let name = format!("fine-{second}.example");
            assert_eq!(waits(&names, "ws_good", &name).await, Duration::ZERO, "{second}");
            assert!(fake.under_way.load(Ordering::SeqCst) <= SHARE);
        }
        while let Some(answer) = lookups.join_next().await {
            assert_eq!(answer.unwrap(), Err(LookupError::Unanswered), "it does not wait longer");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_lookups_at_a_time_is_bounded() {
        let (fake, names, _) = names();
        let mut lookups = JoinSet::new();
        for nth in 0..5 * LOOKUPS_MAX {
            let (names, name) = (names.clone(), format!("slow-{nth}.example"));
            let workspace = ws(&format!("ws_{}", nth / 10));
            lookups.spawn(async move { names.addresses(workspace, &name, 60 * WAIT).await });
        }
        while let Some(answer) = lookups.join_next().await {
            assert!(answer.unwrap().is_ok());
        }
        assert_eq!(fake.most.load(Ordering::SeqCst), LOOKUPS_MAX);
        assert!(lock(&names.shares).len() <= 2 * LOOKUPS_MAX + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_share_one_lookup_and_wait_in_no_other_workspaces_queue() {
        let (fake, names, _) = names();
        let mut lookups = JoinSet::new();
        // One workspace has used up its share, and queues a name that another one needs as well.
        for name in ["silent-1", "silent-2", "silent-3", "silent-4", "slow.example"] {
            let names = names.clone();
            lookups.spawn(async move { names.addresses(ws("ws_bad"), name, WAIT).await });
            tokio::task::yield_now().await;
        }
        let second = Duration::from_secs(1);
        let mut all = JoinSet::new();
        for _ in 0..50 {
            let names = names.clone();
            all.spawn(async move { waits(&names, "ws_good", "slow.example").await });
        }
        while let Some(waited) = all.join_next().await {
            assert_eq!(waited.unwrap(), second);
        }
        assert_eq!(lock(&fake.lookups)["slow.example"], 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_result_is_cached_and_for_longer_while_the_resolver_fails() {
        let (fake, names, clock) = names();
        let lookups = || lock(&fake.lookups)["fine.example"];
        for (passes, times) in [(0, 1), (9, 1), (1, 2), (9, 2)] {
            clock.advance(Duration::from_secs(passes));
            waits(&names, "ws_a", "fine.example").await;
            assert_eq!(lookups(), times, "after {passes} s more");
        }
        fake.out_of_order.store(1, Ordering::SeqCst);
        for (passes, is_known) in [(280, true), (10, true), (2, false)] {
            clock.advance(Duration::from_secs(passes));
            let found = names.addresses(ws("ws_a"), "fine.example", WAIT).await;
            assert_eq!(found.is_ok(), is_known, "{found:?} after {passes} s more");
        }
        assert_eq!(lookups(), 5);
        fake.out_of_order.store(0, Ordering::SeqCst);
        waits(&names, "ws_a", "fine.example").await;
        let absent = names.addresses(ws("ws_a"), "gone.example", WAIT).await;
        assert_eq!(absent, Err(LookupError::NoSuchName));
    }

    /// The error of a name without a reply, looked up once a minute for `minutes`.
    async fn after(minutes: u64, name: &str, others_are_answered: bool) -> LookupError {
        let (_, names, clock) = names();
        let mut last = LookupError::Unanswered;
        for minute in 0..=minutes {
            last = names.addresses(ws("ws_a"), name, WAIT).await.expect_err("it has none");
            if others_are_answered {
                waits(&names, "ws_b", &format!("fine-{minute}.example")).await;
            }
            clock.advance(Duration::from_secs(59));
        }
        last
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_reply_is_our_fault_unless_one_name_alone_has_none_for_an_hour() {
        for name in ["again.example", "silent.example"] {
            assert_eq!(after(59, name, true).await, LookupError::Unanswered, "{name}");
            assert_eq!(after(63, name, true).await, LookupError::NoSuchName, "{name}");
            assert_eq!(after(3_000, name, false).await, LookupError::Unanswered, "{name}");
        }
        // An earlier period without replies does not count.
        let (_, names, clock) = names();
        for _ in 0..2 {
            waits(&names, "ws_b", "fine.example").await;
            let today = names.addresses(ws("ws_a"), "again.example", WAIT).await;
            assert_eq!(today, Err(LookupError::Unanswered));
            clock.advance(Duration::from_secs(86_400));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_cache_is_bounded_however_many_names_there_are() {
        let (fake, names, clock) = names();
        for nth in 0..NAMES_MAX + 100 {
            waits(&names, "ws_a", &format!("fine-{nth}.example")).await;
        }
        assert_eq!(lock(&names.cache).names.len(), NAMES_MAX);
        // Names in use stay; a new one is looked up each time.
        waits(&names, "ws_a", "fine-0.example").await;
        assert_eq!(lock(&fake.lookups)["fine-0.example"], 1);
        clock.advance(STALE);
        waits(&names, "ws_a", "new.example").await;
        assert_eq!(lock(&names.cache).names.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_panics_is_our_fault_and_is_repeated() {
        let (fake, names, _) = names();
        let panicked = names.addresses(ws("ws_a"), "faulty.example", WAIT).await;
        assert_eq!(panicked, Err(LookupError::Shortage));
        waits(&names, "ws_a", "faulty.example").await;
        assert_eq!(lock(&fake.lookups)["faulty.example"], 2);
    }
}
