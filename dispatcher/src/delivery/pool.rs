//! The pool of idle connections, by origin: no workspace uses another's.
//!
//! # Invariants
//!
//! 1. A connection idle for [`IDLE_MAX`] is closed.
//! 2. A connection older than [`AGE_MAX`], or closed by the receiver, is not reused.
//! 3. For [`NEW_FOR`] after a receiver was silent on a reused connection until the deadline, no
//!    connection to its origin is reused.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_common::time::{Clock, Tick};

use crate::delivery::connection::{Connection, Origin};

/// Common servers close idle connections after 5 s, some after 2.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4);

/// After this age a connection is not reused, so that DNS changes take effect.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(4 * 60);

/// Idle connections to one origin. An endpoint needs a few; a host with thousands of endpoints
/// needs as many as run in parallel, or local ports run out in TIME_WAIT.
const IDLE_PER_ORIGIN_MAX: usize = 128;

/// A receiver that works after its answer holds the next request on that connection for as long.
pub(crate) const NEW_FOR: Duration = Duration::from_secs(3_600);

/// The most origins without reuse that are remembered: a few megabytes.
const SILENT_MAX: usize = 20_000;

/// The idle connections.
pub(crate) struct Pool {
    clock: Clock,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    connections: HashMap<Origin, Vec<(Tick, Connection)>>,
    /// Origins whose receivers were silent on a reused connection, and when they were.
    silent: HashMap<Origin, Tick>,
    /// Closes expired connections; runs while any are idle.
    sweeper: JoinSet<()>,
    sweeping: bool,
}

impl Pool {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, idle: Mutex::default() }
    }

    /// Removes the connection that was idle for the shortest time.
    pub(crate) fn checkout(&self, origin: &Origin) -> Option<Connection> {
        let now = self.clock.now().tick;
        let mut idle = self.lock();
        if idle.needs_new(origin, now) {
            return None;
        }
        let waiting = idle.connections.get_mut(origin)?;
        while let Some((since, connection)) = waiting.pop() {
            let young = now.since(connection.opened) < AGE_MAX;
            if young && now.since(since) < IDLE_MAX && !connection.is_closed() {
                return Some(connection);
            }
        }
        idle.connections.remove(origin);
        None
    }

    /// Adds a connection for the next attempt.
    pub(crate) fn keep(self: &Arc<Self>, origin: Origin, connection: Connection) {
        let now = self.clock.now().tick;
        let mut idle = self.lock();
        if idle.needs_new(&origin, now) {
            return;
        }
        let waiting = idle.connections.entry(origin).or_default();
        if waiting.len() < IDLE_PER_ORIGIN_MAX {
            waiting.push((now, connection));
        }
        if !idle.sweeping {
            idle.sweeping = true;
            while idle.sweeper.try_join_next().is_some() {}
            idle.sweeper.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Records that a receiver was silent on a reused connection until the deadline.
    pub(crate) fn was_silent(&self, origin: &Origin) {
        let now = self.clock.now().tick;
        let mut idle = self.lock();
        idle.connections.remove(origin);
        if idle.silent.len() >= SILENT_MAX {
            idle.silent.retain(|_, since| now.since(*since) < NEW_FOR);
        }
        if idle.silent.len() < SILENT_MAX {
            idle.silent.insert(origin.clone(), now);
        }
    }

    /// Closes all idle connections.
    pub(crate) fn clear(&self) {
        self.lock().connections.clear();
    }

    /// Closes expired connections, and returns when to check again; `None` if none are left.
    pub(crate) fn close_idle(&self) -> Option<Duration> {
        let now = self.clock.now().tick;
        let mut idle = self.lock();
        idle.connections.retain(|_, waiting| {
            waiting.retain(|(since, _)| now.since(*since) < IDLE_MAX);
            !waiting.is_empty()
        });
        let first = idle.connections.values().flatten().map(|(since, _)| *since).min();
        idle.sweeping = first.is_some();
        first.map(|since| since.plus(IDLE_MAX).since(now))
    }

    fn lock(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Idle {
    /// Whether connections to an origin are not reused.
    fn needs_new(&mut self, origin: &Origin, now: Tick) -> bool {
        let Some(since) = self.silent.get(origin) else { return false };
        let needs_new = now.since(*since) < NEW_FOR;
        if !needs_new {
            self.silent.remove(origin);
        }
        needs_new
    }
}

async fn sweep(pool: Weak<Pool>) {
    let mut wait = IDLE_MAX;
    loop {
        sleep(wait).await;
        let Some(pool) = pool.upgrade() else { return };
        match pool.close_idle() {
            Some(next) => wait = next,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Pool {
        /// Whether any idle connection could be reused.
        pub(crate) fn has_open(&self) -> bool {
            self.lock().connections.values().flatten().any(|(_, one)| !one.is_closed())
        }
    }
}
