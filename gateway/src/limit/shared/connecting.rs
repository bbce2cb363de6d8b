//! Keeps the connection to the store by heartbeats, and decides when requests ask it again.
//!
//! Invariant: after the store was away, a gateway asks it only once the others have had the time to
//! tell it what they admitted meanwhile.
//!
//! Not here: when heartbeats are sent (`operations::background`), the connection itself
//! (`shared::connection`).

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_common::time::micros;

use super::super::boost::Boosts;
use super::super::memory::Store;
use super::connection::{ConnectError, StoreConnection};
use super::heartbeat::{self, Heartbeat};
use super::{SharedStore, packed};

/// How often [`SharedStore::beat`] must be called.
pub const BEAT_EVERY: Duration = heartbeat::EVERY;

/// How long the store must answer before it is asked again: other gateways find it within two
/// heartbeats.
const HOLD_OFF: Duration = Duration::from_millis(600);

/// What a heartbeat has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beat {
    /// The store answers, as before.
    Steady,
    /// It answers again, after it had been away, and is asked from now on.
    Recovered,
    /// It answers again, and is not asked yet: gateways tell it what they have admitted alone.
    Recovering,
    /// It does not answer any more.
    Lost(ConnectError),
    /// It does not answer, as before.
    Away(ConnectError),
}

impl SharedStore {
    pub(super) fn connection(&self) -> Option<StoreConnection> {
        if !self.availability.is_available() {
            return None;
        }
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sends a heartbeat, over a new connection where there is none. Applies what other gateways
    /// have changed to `own`, where it is given.
    pub async fn beat(&self, own: Option<(&Store, &Boosts)>) -> Beat {
        let beaten = match self.connect().await {
            Ok(connection) => self.beat_over(&connection, own).await,
            Err(error) => Err(error),
        };
        let missed = match beaten {
            Err(ConnectError::Silent) => self.missed.fetch_add(1, Ordering::Relaxed) + 1,
            _ => self.missed.swap(0, Ordering::Relaxed),
        };
        match beaten {
            Ok(()) if self.is_available() => Beat::Steady,
            // One that is late alone, as where a machine stands still, is no reason to reconnect.
            Err(ConnectError::Silent) if missed == 1 && self.is_available() => Beat::Steady,
            Ok(()) if self.is_settled() => {
                self.availability.recovered();
                Beat::Recovered
            }
            Ok(()) => Beat::Recovering,
            Err(error) => {
                self.answers_since.store(0, Ordering::Relaxed);
                *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
                // Resets and boosts of other gateways may be missed from now on.
                self.standings.forget_refusals();
                if self.availability.lost() { Beat::Lost(error) } else { Beat::Away(error) }
            }
        }
    }

    /// Tells the others that this gateway ends.
    pub async fn end(&self) {
        let connection = self.connection();
        if let Some(connection) = connection {
            // Where this fails, they notice by themselves, and leases end.
            let _ = self.return_leases(&connection, true).await;
            let (keys, arguments) = heartbeat::call(&self.config.id, Duration::ZERO);
            let _ = connection.evaluate(&self.heartbeat, &keys, &arguments).await;
        }
    }

    async fn connect(&self) -> Result<StoreConnection, ConnectError> {
        let known = self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(connection) = known {
            return Ok(connection);
        }
        let number = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let opened = StoreConnection::open(&self.config.address, &self.config.fingerprint, number);
        let opened = opened.await?;
        // It may be another server than before, or the same without its data.
        self.standings.owe_all();
        self.leases.forget_all();
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = Some(opened.clone());
        Ok(opened)
    }

    async fn beat_over(
        &self,
        connection: &StoreConnection,
        own: Option<(&Store, &Boosts)>,
    ) -> Result<(), ConnectError> {
        let (keys, arguments) = heartbeat::call(&self.config.id, heartbeat::LASTS);
        let sent = self.clock.now().tick;
        let called = connection.evaluate(&self.heartbeat, &keys, &arguments);
        let unreachable = |why: String| ConnectError::Unreachable(why);
        // A store that is as slow as requests may wait for is still used.
        let wait = heartbeat::EVERY.max(self.config.timeout);
        let reply = tokio::time::timeout(wait, called).await;
        let reply = reply.map_err(|_| ConnectError::Silent)?;
        let reply = reply.map_err(|error| unreachable(error.to_string()))?;
        let texts: Vec<String> = redis::from_redis_value(reply).unwrap_or_default();
        let heard = Heartbeat::read(&texts, &self.config.id, self.config.gateways_min)
            .ok_or_else(|| unreachable("its answer to a heartbeat has another form".to_owned()))?;
        self.learn_time(heard.time, (sent, self.clock.now().tick));
        self.place.store(packed(heard.place), Ordering::Relaxed);
        if heard.is_new {
            // A store that has lost its data has no fingerprint either, nor what was admitted.
            connection.check_fingerprint(&self.config.fingerprint).await?;
            self.standings.owe_all();
            self.leases.forget_all();
        }
        match own {
            None => Ok(()),
            Some(own) => {
                let followed = self.follow(connection, own, heard.changes).await;
                followed.map_err(|error| unreachable(error.to_string()))?;
                let told = self.testify(connection, own.0).await;
                told.map_err(|error| unreachable(error.to_string()))?;
                let returned = self.return_leases(connection, false).await;
                returned.map_err(|error| unreachable(error.to_string()))
            }
        }
    }

    /// Whether the store has answered for so long that other gateways have told it what they have
    /// admitted alone. The first answer of all is enough: there is nothing to tell.
    fn is_settled(&self) -> bool {
        let now = self.clock.now().tick.0.max(1);
        if self.connections.load(Ordering::Relaxed) <= 1 && !self.was_away() {
            return true;
        }
        let since = match self.answers_since.load(Ordering::Relaxed) {
            0 => now,
            since => since,
        };
        self.answers_since.store(since, Ordering::Relaxed);
        now >= since + micros(HOLD_OFF)
    }

    fn was_away(&self) -> bool {
        self.counts.alone.load(Ordering::Relaxed) > 0
    }
}
