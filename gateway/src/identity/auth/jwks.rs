//! The keys that tokens are signed with: fetched in the background, kept while nobody can be asked.
//!
//! # Invariants
//!
//! 1. One fetch at a time, by one task ([`Jwks::keep_fresh`]): a request never fetches, it waits
//!    for the task, and no longer than `identity.timeout`.
//! 2. Keys are replaced only by keys: an answer that cannot be used changes nothing.
//!
//! Not here: when a fetch is due (`jwks_schedule`), what a key is (`weir_common::token`).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use log::Level;
use serde_json::json;
use tokio::sync::{Notify, watch};
use weir_common::logging;
use weir_common::time::Moment;
use weir_common::token::KeySet;

use crate::identity::auth::identity_server::IdentityServer;
use crate::identity::auth::jwks_schedule::{Hope, Refresh, Turn};
use crate::identity::http_client;

/// The keys of the issuer.
pub(super) struct Jwks {
    url: String,
    server: IdentityServer,
    every: Duration,
    keys: ArcSwapOption<Keys>,
    refresh: Mutex<Refresh>,
    /// Wakes the task where a request needs a key that is missing.
    wanted: Notify,
    /// The number of the last fetch that is over.
    ended: watch::Sender<u64>,
}

/// What was fetched.
#[derive(Debug)]
pub(super) struct Keys {
    /// The keys.
    pub(super) set: KeySet,
    /// Another number for other keys: what was verified by earlier ones is verified again.
    pub(super) edition: u64,
}

/// What came of waiting for newer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Renewed {
    /// They have been fetched since.
    Yes,
    /// They cannot be had now.
    No,
}

impl Jwks {
    /// A ring whose keys are still to be fetched; until then `earlier` ones of the same server do.
    pub(super) fn new(
        url: &str,
        server: IdentityServer,
        every: Duration,
        earlier: Option<&Self>,
    ) -> Self {
        let kept =
            earlier.filter(|earlier| earlier.url == url).and_then(|ring| ring.keys.load_full());
        Self {
            url: url.to_owned(),
            server,
            every,
            keys: ArcSwapOption::from(kept),
            refresh: Mutex::default(),
            wanted: Notify::new(),
            ended: watch::Sender::new(0),
        }
    }

    /// The keys, where there are any.
    pub(super) fn keys(&self) -> Option<Arc<Keys>> {
        self.keys.load_full()
    }

    /// Which keys these are.
    pub(super) fn edition(&self) -> u64 {
        self.keys.load().as_ref().map_or(0, |keys| keys.edition)
    }

    /// Waits for keys that are newer than `had`.
    pub(super) async fn renewed(&self, had: Option<&Keys>) -> Renewed {
        let mut ended = self.ended.subscribe();
        // The first keys do, wherever they come from; newer ones are those of a fetch to come.
        let over = *ended.borrow();
        let (hope, begun) = {
            let mut refresh = lock(&self.refresh);
            (refresh.want(), refresh.begun())
        };
        self.wanted.notify_one();
        if hope == Hope::Lost {
            return Renewed::No;
        }
        let needed = if had.is_none() { over } else { begun } + 1;
        let fetched = ended.wait_for(|ended| *ended >= needed);
        match tokio::time::timeout(self.server.timeout, fetched).await {
            Ok(Ok(_)) if lock(&self.refresh).is_well() => Renewed::Yes,
            _ => Renewed::No,
        }
    }

    /// Fetches the keys whenever that is due; never ends.
    pub(super) async fn keep_fresh(&self) {
        loop {
            let now = self.server.clock.now();
            let due = lock(&self.refresh).due(self.every);
            if now.tick >= due {
                self.fetch(now).await;
                continue;
            }
            let pause = tokio::time::sleep(due.since(now.tick));
            tokio::select! { () = pause => {}, () = self.wanted.notified() => {} }
        }
    }

    /// Fetches once.
    async fn fetch(&self, now: Moment) {
        let nth = lock(&self.refresh).begin(now.tick);
        let metrics = &self.server.metrics;
        let fetched = self.server.count("keys", now.tick, self.ask()).await;
        let turn = lock(&self.refresh).end(fetched.is_ok());
        match fetched {
            Ok(set) => {
                metrics.jwks_keys.set(i64::try_from(set.len()).unwrap_or(i64::MAX));
                metrics.jwks_fetched.set(seconds(now));
                self.put(set);
                if turn == Turn::Recovered {
                    logging::event(Level::Info, "keys of tokens are fetched again", &[]);
                }
            }
            Err(why) if turn == Turn::Failed => {
                let kept = self.keys.load().is_some();
                let url = json!(http_client::shown(&self.url));
                let fields = [("url", url), ("error", json!(why)), ("earlier_keys", json!(kept))];
                logging::event(Level::Warn, "keys of tokens cannot be fetched", &fields);
            }
            Err(_) => {}
        }
        self.ended.send_replace(nth);
    }

    /// Asks for the keys, and changes nothing.
    pub(super) async fn ask(&self) -> Result<KeySet, String> {
        let question = self.server.client.get(&self.url).header("accept", "application/json");
        let answer = http_client::ask(question).await.map_err(|why| why.to_string())?;
        if answer.status != 200 {
            return Err(format!("the answer is {}", answer.status));
        }
        KeySet::read(&answer.body).map_err(|why| why.to_string())
    }

    fn put(&self, set: KeySet) {
        let earlier = self.keys.load_full();
        if earlier.as_ref().is_none_or(|earlier| earlier.set != set) {
            let edition = earlier.map_or(0, |earlier| earlier.edition) + 1;
            self.keys.store(Some(Arc::new(Keys { set, edition })));
        }
    }
}

fn seconds(now: Moment) -> f64 {
    Duration::from_micros(now.unix.0).as_secs_f64()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
