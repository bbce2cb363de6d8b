//! The keys that verify tokens (JWKS): fetched in the background, kept while fetches fail.
//!
//! # Invariants
//!
//! 1. One task ([`Jwks::keep_fresh`]) fetches, one fetch at a time; [`Jwks::first`] may before it
//!    starts. A request never fetches; it waits for the task, for at most `identity.timeout`.
//! 2. Keys are replaced only by keys: an invalid response changes nothing.
//!
//! Not here: when a fetch is due (`jwks_schedule`), what a key is (`token`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::log::events;
use crate::time::Moment;
use crate::token::keys::KeySet;
use arc_swap::ArcSwapOption;
use log::Level;
use serde_json::json;
use tokio::sync::{Notify, watch};

use crate::http_client;
use crate::identity::identity_server::IdentityServer;
use crate::identity::jwks_schedule::{FetchChange, Outlook, Schedule};

/// The issuer's keys.
pub(super) struct Jwks {
    url: String,
    server: IdentityServer,
    every: Duration,
    keys: ArcSwapOption<Keys>,
    schedule: Mutex<Schedule>,
    /// Wakes the task when a request needs a missing key.
    wanted: Notify,
    /// The number of the last fetch that has ended.
    ended: watch::Sender<u64>,
}

/// Keys that were fetched.
#[derive(Debug)]
pub(super) struct Keys {
    /// The keys.
    pub(super) set: KeySet,
    /// Changes with the keys: tokens verified by earlier keys are verified again.
    pub(super) edition: u64,
}

impl Jwks {
    /// Keys still to be fetched; until then those of `earlier` are used, if its URL is the same.
    pub(super) fn new(
        url: &str,
        server: IdentityServer,
        every: Duration,
        earlier: Option<&Self>,
    ) -> Self {
        let kept =
            earlier.filter(|earlier| earlier.url == url).and_then(|jwks| jwks.keys.load_full());
        Self {
            url: url.to_owned(),
            server,
            every,
            keys: ArcSwapOption::from(kept),
            schedule: Mutex::default(),
            wanted: Notify::new(),
            ended: watch::Sender::new(0),
        }
    }

    /// The keys, once there are any.
    pub(super) fn keys(&self) -> Option<Arc<Keys>> {
        self.keys.load_full()
    }

    /// The edition of the keys; 0 without keys.
    pub(super) fn edition(&self) -> u64 {
        self.keys.load().as_ref().map_or(0, |keys| keys.edition)
    }

    /// Waits for keys newer than `had`; `None` if they cannot be fetched now.
    pub(super) async fn newer(&self, had: Option<&Keys>) -> Option<Arc<Keys>> {
        let mut ended = self.ended.subscribe();
        // Without keys, a fetch in progress is enough; newer keys need one that has not started.
        let over = *ended.borrow();
        let (outlook, started) = {
            let mut schedule = lock(&self.schedule);
            (schedule.want(), schedule.started())
        };
        self.wanted.notify_one();
        if outlook == Outlook::Failing {
            return None;
        }
        let needed = if had.is_none() { over } else { started } + 1;
        let fetched = ended.wait_for(|ended| *ended >= needed);
        match tokio::time::timeout(self.server.timeout, fetched).await {
            Ok(Ok(_)) if !lock(&self.schedule).is_failing() => self.keys(),
            _ => None,
        }
    }

    /// Fetches the keys whenever a fetch is due; never returns.
    pub(super) async fn keep_fresh(&self) {
        loop {
            let now = self.server.clock.now();
            let due = lock(&self.schedule).due(self.every);
            if now.tick >= due {
                self.fetch(now).await;
                continue;
            }
            let pause = tokio::time::sleep(due.since(now.tick));
            tokio::select! { () = pause => {}, () = self.wanted.notified() => {} }
        }
    }

    /// Fetches the first keys; nothing where there are some.
    pub(super) async fn first(&self) -> Result<(), String> {
        match self.keys() {
            Some(_) => Ok(()),
            None => self.fetched(self.server.clock.now()).await.1,
        }
    }

    /// Fetches once, and logs what that changes.
    async fn fetch(&self, now: Moment) {
        let (change, fetched) = self.fetched(now).await;
        match fetched {
            Ok(()) if change == FetchChange::Recovered => {
                events::event(Level::Info, "JWKS fetch recovered", &[]);
            }
            Err(why) if change == FetchChange::Failed => {
                let kept = self.keys.load().is_some();
                let url = json!(http_client::shown(&self.url));
                let fields = [("url", url), ("error", json!(why)), ("earlier_keys", json!(kept))];
                events::event(Level::Warn, "JWKS fetch failed", &fields);
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Fetches once.
    async fn fetched(&self, now: Moment) -> (FetchChange, Result<(), String>) {
        let nth = lock(&self.schedule).begin(now.tick);
        let fetched = self.server.count("keys", now.tick, self.request()).await;
        let change = lock(&self.schedule).end(fetched.is_ok());
        let fetched = fetched.map(|set| {
            self.server.metrics.fetched(set.len(), now.unix);
            self.put(set);
        });
        self.ended.send_replace(nth);
        (change, fetched)
    }

    /// Requests the keys without storing them.
    pub(super) async fn request(&self) -> Result<KeySet, String> {
        let request = self.server.client.get(&self.url).header("accept", "application/json");
        let response = http_client::send(request).await.map_err(|why| why.to_string())?;
        if response.status != 200 {
            return Err(format!("the answer is {}", response.status));
        }
        KeySet::read(&response.body).map_err(|why| why.to_string())
    }

    fn put(&self, set: KeySet) {
        let earlier = self.keys.load_full();
        if earlier.as_ref().is_none_or(|earlier| earlier.set != set) {
            let edition = earlier.map_or(0, |earlier| earlier.edition) + 1;
            self.keys.store(Some(Arc::new(Keys { set, edition })));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
