//! The keys that tokens are signed with: fetched in the background, kept while nobody can be asked.
//!
//! # Invariants
//!
//! 1. One fetch at a time, by one task ([`keep`]): a request never fetches, it waits for the task,
//!    and no longer than `identity.timeout`.
//! 2. Keys are replaced only by keys: an answer that cannot be used changes nothing.
//!
//! Not here: when a fetch is due (`jwks_schedule`), what a key is (`weir_common::token`).

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use log::Level;
use reqwest::Client;
use serde_json::json;
use tokio::sync::{Notify, watch};
use weir_common::logging;
use weir_common::time::{Moment, Tick};
use weir_common::token::KeySet;

use crate::config::shared::Parts;
use crate::identity::auth::jwks_schedule::{Hope, Refresh, Turn};
use crate::identity::auth::verifier::Verifier;
use crate::identity::http_client;

/// The keys of the issuer.
pub(crate) struct KeyRing {
    url: String,
    client: Client,
    every: Duration,
    patience: Duration,
    keys: ArcSwapOption<Keys>,
    refresh: Mutex<Refresh>,
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

impl KeyRing {
    /// A ring whose keys are still to be fetched; until then `earlier` ones of the same server do.
    pub(super) fn new(
        url: &str,
        client: Client,
        every: Duration,
        patience: Duration,
        earlier: Option<&Self>,
    ) -> Self {
        let kept =
            earlier.filter(|earlier| earlier.url == url).and_then(|ring| ring.keys.load_full());
        Self {
            url: url.to_owned(),
            client,
            every,
            patience,
            keys: ArcSwapOption::from(kept),
            refresh: Mutex::default(),
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
    pub(super) async fn renewed(&self, had: Option<&Keys>, wanted: &Notify) -> Renewed {
        let mut ended = self.ended.subscribe();
        // The first keys do, wherever they come from; newer ones are those of a fetch to come.
        let over = *ended.borrow();
        let (hope, begun) = {
            let mut refresh = lock(&self.refresh);
            (refresh.want(), refresh.begun())
        };
        wanted.notify_one();
        if hope == Hope::Lost {
            return Renewed::No;
        }
        let needed = if had.is_none() { over } else { begun } + 1;
        let fetched = ended.wait_for(|ended| *ended >= needed);
        match tokio::time::timeout(self.patience, fetched).await {
            Ok(Ok(_)) if lock(&self.refresh).is_well() => Renewed::Yes,
            _ => Renewed::No,
        }
    }

    /// When the next fetch is due.
    fn due(&self) -> Tick {
        lock(&self.refresh).due(self.every)
    }

    /// Fetches once.
    async fn fetch(&self, parts: &Parts, now: Moment) {
        let nth = lock(&self.refresh).begin(now.tick);
        let metrics = &parts.metrics;
        let fetched = self.ask().await;
        let took = parts.clock.now().tick.since(now.tick);
        metrics.identity_question("keys", fetched.is_ok(), took);
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
        let question = self.client.get(&self.url).header("accept", "application/json");
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

/// Keeps the keys of whatever configuration is in force.
pub async fn keep(parts: Arc<Parts>) {
    loop {
        let force = parts.force.load_full();
        let Some(ring) = force.verifier.as_ref().and_then(|verifier| verifier.ring()) else {
            parts.keys_wanted.notified().await;
            continue;
        };
        let now = parts.clock.now();
        let due = ring.due();
        if now.tick < due {
            // Woken by whoever wants a key, and by a reload.
            let pause = tokio::time::sleep(due.since(now.tick));
            tokio::select! { () = pause => {}, () = parts.keys_wanted.notified() => {} }
            continue;
        }
        let mut fetch = pin!(ring.fetch(&parts, now));
        loop {
            tokio::select! {
                () = &mut fetch => break,
                () = parts.keys_wanted.notified() => {
                    let same = |now: &Arc<Verifier>| force.verifier.as_ref().is_some_and(
                        |own| Arc::ptr_eq(own, now));
                    // A server that is no longer asked keeps nobody waiting.
                    if !parts.force.load().verifier.as_ref().is_some_and(same) {
                        break;
                    }
                }
            }
        }
    }
}

fn seconds(now: Moment) -> f64 {
    Duration::from_micros(now.unix.0).as_secs_f64()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
