//! Looks names up for all workspaces, so that none keeps the others' from being looked up.
//!
//! The system's resolver cannot be told to give up: a name whose servers are silent holds a thread
//! for half a minute, though its attempt has long ended. So lookups have places, of which each
//! workspace has a share; and what a name led to a moment ago needs none.
//!
//! # Invariants
//!
//! 1. No more than [`LOOKUPS_MAX`] lookups are under way, and [`SHARE`] for one workspace.
//! 2. A name is looked up once at a time, for all that ask. None waits for a place of another
//!    workspace: it joins what is under way alone.
//! 3. An answer is good for [`FRESH`]; where nothing answers, the last one is for [`STALE`].
//! 4. What is remembered takes bounded memory, and what is in use is never dropped for new names.
//! 5. A name that finds no answer is our fault, until it has found none for [`SILENT_MAX`] while
//!    others do.
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

/// Lookups under way, each of which is a thread that mostly sleeps: half of those that the runtime
/// starts at most.
const LOOKUPS_MAX: usize = 256;

/// Of one workspace: all twenty webhooks of one that has just begun are looked up in a moment, and
/// it takes 64 workspaces of silent names to keep others waiting.
const SHARE: usize = 4;

/// `getaddrinfo` tells no time to live. Servers that are moved by DNS have one of half a minute or
/// more; connections are used again for longer than this anyway.
const FRESH: Duration = Duration::from_secs(10);

/// An address of a while ago is better than none while our resolver is out of order.
const STALE: Duration = Duration::from_secs(5 * 60);

/// Ten megabytes of names. With more in use at one time, some are looked up for each connection.
const NAMES_MAX: usize = 50_000;

/// An outage of our own is mended within this, or noticed; a zone that is broken is so for longer.
const SILENT_MAX: Duration = Duration::from_secs(3_600);

/// Our resolver works if it has answered anything within this.
const WORKS: Duration = Duration::from_secs(60);

type Answer = Result<Vec<IpAddr>, LookupError>;
type Flight = watch::Receiver<Option<Answer>>;
type Place = [OwnedSemaphorePermit; 2];

/// Names, what they led to, and who may look them up.
#[derive(Debug)]
pub struct Names {
    lookup: Arc<dyn Lookup>,
    clock: Clock,
    fresh: Duration,
    places: Arc<Semaphore>,
    shares: Mutex<HashMap<Option<Arc<str>>, Weak<Semaphore>>>,
    known: Arc<Mutex<Known>>,
    flights: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Known {
    names: HashMap<Box<str>, Entry>,
    /// When any name was last answered.
    answered: Option<Tick>,
    /// When old names were last dropped.
    swept: Tick,
}

#[derive(Debug, Default)]
struct Entry {
    /// What it led to, and when.
    found: Option<(Tick, Vec<IpAddr>)>,
    /// Since when it has found no answer.
    silent_since: Option<Tick>,
    /// The lookup that is under way.
    flight: Option<Flight>,
    used: Tick,
}

/// Where a question stands.
enum Stand {
    Known(Vec<IpAddr>),
    UnderWay(Flight),
    NeedsPlace,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Names {
    /// Names that the system looks up.
    #[must_use]
    pub fn system() -> Arc<Self> {
        Arc::new(Self::new(Arc::new(System), Clock::system(), FRESH))
    }

    /// Names that are looked up there, whose answers are good for so long.
    pub(super) fn new(lookup: Arc<dyn Lookup>, clock: Clock, fresh: Duration) -> Self {
        Self {
            lookup,
            clock,
            fresh,
            places: Arc::new(Semaphore::new(LOOKUPS_MAX)),
            shares: Mutex::default(),
            known: Arc::default(),
            flights: Mutex::default(),
        }
    }

    /// The addresses of a name, for a workspace that waits no longer than this. A lookup that has
    /// begun goes on: who asks again joins it.
    pub async fn addresses(
        &self,
        workspace: Option<Arc<str>>,
        name: &str,
        wait: Duration,
    ) -> Answer {
        match timeout(wait, self.asked(workspace, name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(LookupError::NoSuchName)) => Err(LookupError::NoSuchName),
            Ok(Err(LookupError::Shortage)) => self.last_known(name).ok_or(LookupError::Shortage),
            Ok(Err(LookupError::Unanswered)) | Err(_) => {
                self.last_known(name).ok_or_else(|| self.unanswered(name))
            }
        }
    }

    async fn asked(&self, workspace: Option<Arc<str>>, name: &str) -> Answer {
        let stand = match self.stand(name, None) {
            Stand::NeedsPlace => {
                let share = self.share(workspace);
                let place = async { [share.acquire_owned().await, self.place().await] }.await;
                let [Ok(own), Ok(one)] = place else { return Err(LookupError::Shortage) };
                // It may have been looked up for another in the meantime.
                self.stand(name, Some([own, one]))
            }
            stand => stand,
        };
        match stand {
            Stand::Known(found) => Ok(found),
            Stand::UnderWay(mut flight) => match flight.wait_for(Option::is_some).await {
                Ok(answer) => answer.clone().unwrap_or(Err(LookupError::Unanswered)),
                // Its task broke.
                Err(_) => Err(LookupError::Shortage),
            },
            Stand::NeedsPlace => Err(LookupError::Shortage),
        }
    }

    async fn place(&self) -> Result<OwnedSemaphorePermit, tokio::sync::AcquireError> {
        self.places.clone().acquire_owned().await
    }

    /// The places of a workspace, for as long as it uses any.
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

    /// What is known of a name, or under way; with a place, it is under way from now on.
    fn stand(&self, name: &str, place: Option<Place>) -> Stand {
        let now = self.clock.now().tick;
        let mut known = lock(&self.known);
        if let Some(entry) = known.names.get_mut(name) {
            let fresh = |at: Tick| now.since(at) < self.fresh;
            if let Some((_, found)) = entry.found.as_ref().filter(|(at, _)| fresh(*at)) {
                return Stand::Known(found.clone());
            }
            // One that broke is closed.
            let goes_on = |flight: &&Flight| flight.has_changed().is_ok();
            if let Some(flight) = entry.flight.as_ref().filter(goes_on) {
                return Stand::UnderWay(flight.clone());
            }
        }
        let Some(place) = place else { return Stand::NeedsPlace };
        known.sweep(now, self.fresh);
        let (tell, flight) = watch::channel(None);
        known.names.entry(name.into()).or_default().flight = Some(flight.clone());
        drop(known);
        let (lookup, clock, known) = (self.lookup.clone(), self.clock.clone(), self.known.clone());
        let name: Box<str> = name.into();
        let mut flights = lock(&self.flights);
        while flights.try_join_next().is_some() {}
        flights.spawn(async move {
            let answer = lookup.addresses(&name).await;
            lock(&known).landed(&name, &answer, clock.now().tick);
            drop(place);
            tell.send_replace(Some(answer));
        });
        Stand::UnderWay(flight)
    }

    /// Where a name led to a while ago.
    fn last_known(&self, name: &str) -> Option<Vec<IpAddr>> {
        let now = self.clock.now().tick;
        let known = lock(&self.known);
        let (at, found) = known.names.get(name)?.found.as_ref()?;
        (now.since(*at) < STALE).then(|| found.clone())
    }

    /// Whose fault it is that a name found no answer.
    fn unanswered(&self, name: &str) -> LookupError {
        let now = self.clock.now().tick;
        let mut known = lock(&self.known);
        let works = known.answered.is_some_and(|at| now.since(at) < WORKS);
        // One that never had a place says nothing of its servers.
        let Some(entry) = known.names.get_mut(name) else { return LookupError::Unanswered };
        let last = std::mem::replace(&mut entry.used, now);
        let since = entry.silent_since.filter(|_| now.since(last) < STALE).unwrap_or(now);
        entry.silent_since = Some(since);
        let for_long = now.since(since) >= SILENT_MAX;
        if works && for_long { LookupError::NoSuchName } else { LookupError::Unanswered }
    }
}

impl Known {
    /// Takes in what a lookup came to.
    fn landed(&mut self, name: &str, answer: &Answer, now: Tick) {
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

    /// Drops what is good for nothing any more, where there is much.
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

    /// Answers by a name's beginning: `silent` never, `again` that nothing answers, `gone` that
    /// there is none, and of all others an address, after a while where they are `slow`.
    #[derive(Debug, Default)]
    struct Fake {
        asked: Mutex<HashMap<String, usize>>,
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
            *lock(&self.asked).entry(name.to_owned()).or_default() += 1;
            let now = self.under_way.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(now, Ordering::SeqCst);
            let _leaves = Leaves(&self.under_way);
            if self.out_of_order.load(Ordering::SeqCst) > 0 || name.starts_with("again") {
                return Err(LookupError::Unanswered);
            }
            match name.split(['-', '.']).next() {
                Some("silent") => std::future::pending().await,
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

    /// How long a workspace waits for a name that has an address.
    #[expect(clippy::disallowed_methods, reason = "tokio's clock, which a test turns")]
    async fn waits(names: &Names, workspace: &str, name: &str) -> Duration {
        let since = Instant::now();
        let found = names.addresses(ws(workspace), name, WAIT).await;
        assert!(found.is_ok(), "{name}: {found:?}");
        since.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_workspace_of_silent_names_that_change_each_second_delays_no_other() {
        let (fake, names, _) = names();
        let mut asking = JoinSet::new();
        for second in 0..120 {
            for hook in 0..20 {
                // One a second leads elsewhere than before.
                let round = (second + 19 - hook) / 20;
                let (names, name) = (names.clone(), format!("silent-{hook}-{round}.example"));
                asking.spawn(async move { names.addresses(ws("ws_bad"), &name, WAIT).await });
            }
            sleep(Duration::from_secs(1)).await;
            let name = format!("fine-{second}.example");
            assert_eq!(waits(&names, "ws_good", &name).await, Duration::ZERO, "{second}");
            assert!(fake.under_way.load(Ordering::SeqCst) <= SHARE);
        }
        while let Some(answer) = asking.join_next().await {
            assert_eq!(answer.unwrap(), Err(LookupError::Unanswered), "it does not wait longer");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_more_are_looked_up_at_a_time_than_there_are_places() {
        let (fake, names, _) = names();
        let mut asking = JoinSet::new();
        for nth in 0..5 * LOOKUPS_MAX {
            let (names, name) = (names.clone(), format!("slow-{nth}.example"));
            let workspace = ws(&format!("ws_{}", nth / 10));
            asking.spawn(async move { names.addresses(workspace, &name, 60 * WAIT).await });
        }
        while let Some(answer) = asking.join_next().await {
            assert!(answer.unwrap().is_ok());
        }
        assert_eq!(fake.most.load(Ordering::SeqCst), LOOKUPS_MAX);
        assert!(lock(&names.shares).len() <= 2 * LOOKUPS_MAX + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_name_is_looked_up_once_for_all_that_ask_and_no_workspace_waits_in_anothers_line() {
        let (fake, names, _) = names();
        let mut asking = JoinSet::new();
        // All places of one workspace are taken; it waits for one more, for a name of another's.
        for name in ["silent-1", "silent-2", "silent-3", "silent-4", "slow.example"] {
            let names = names.clone();
            asking.spawn(async move { names.addresses(ws("ws_bad"), name, WAIT).await });
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
        assert_eq!(lock(&fake.asked)["slow.example"], 1);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_is_good_for_a_while_and_for_longer_while_nothing_answers() {
        let (fake, names, clock) = names();
        let asked = || lock(&fake.asked)["fine.example"];
        for (passes, times) in [(0, 1), (9, 1), (1, 2), (9, 2)] {
            clock.advance(Duration::from_secs(passes));
            waits(&names, "ws_a", "fine.example").await;
            assert_eq!(asked(), times, "after {passes} s more");
        }
        fake.out_of_order.store(1, Ordering::SeqCst);
        for (passes, is_known) in [(280, true), (10, true), (2, false)] {
            clock.advance(Duration::from_secs(passes));
            let found = names.addresses(ws("ws_a"), "fine.example", WAIT).await;
            assert_eq!(found.is_ok(), is_known, "{found:?} after {passes} s more");
        }
        assert_eq!(asked(), 5);
        fake.out_of_order.store(0, Ordering::SeqCst);
        waits(&names, "ws_a", "fine.example").await;
        let gone = names.addresses(ws("ws_a"), "gone.example", WAIT).await;
        assert_eq!(gone, Err(LookupError::NoSuchName));
    }

    /// What a name that finds no answer comes to, asked for each minute of so many.
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
    async fn a_name_without_an_answer_is_our_fault_unless_it_alone_has_none_for_an_hour() {
        for name in ["again.example", "silent.example"] {
            assert_eq!(after(59, name, true).await, LookupError::Unanswered, "{name}");
            assert_eq!(after(63, name, true).await, LookupError::NoSuchName, "{name}");
            assert_eq!(after(3_000, name, false).await, LookupError::Unanswered, "{name}");
        }
        // What was so yesterday says nothing of today.
        let (_, names, clock) = names();
        for _ in 0..2 {
            waits(&names, "ws_b", "fine.example").await;
            let today = names.addresses(ws("ws_a"), "again.example", WAIT).await;
            assert_eq!(today, Err(LookupError::Unanswered));
            clock.advance(Duration::from_secs(86_400));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn however_many_names_there_are_what_is_remembered_is_bounded() {
        let (fake, names, clock) = names();
        for nth in 0..NAMES_MAX + 100 {
            waits(&names, "ws_a", &format!("fine-{nth}.example")).await;
        }
        assert_eq!(lock(&names.known).names.len(), NAMES_MAX);
        // Those that are in use stay; a new one is looked up each time.
        waits(&names, "ws_a", "fine-0.example").await;
        assert_eq!(lock(&fake.asked)["fine-0.example"], 1);
        clock.advance(STALE);
        waits(&names, "ws_a", "new.example").await;
        assert_eq!(lock(&names.known).names.len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lookup_that_breaks_is_our_fault_and_is_begun_anew() {
        let (_, names, _) = names();
        let (tell, flight) = watch::channel(None);
        lock(&names.known).names.entry("fine.example".into()).or_default().flight = Some(flight);
        drop(tell);
        waits(&names, "ws_a", "fine.example").await;
    }
}
