//! The pool of idle connections, by origin.
//!
//! # Invariants
//!
//! 1. A connection idle for [`IDLE_MAX`] is closed.
//! 2. A connection older than [`AGE_MAX`], or closed by the receiver, is not reused.
//! 3. A workspace reuses its own connections first, then those of others that share (`sharing`).

pub(crate) mod sharing;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_common::time::{Clock, Tick};

use crate::delivery::connection::{Connection, Origin};
use crate::delivery::pool::sharing::{Sharing, Turn, TurnEnd, Workspace};

/// Common servers close idle connections after 5 s, some after 2.
pub(crate) const IDLE_MAX: Duration = Duration::from_secs(4);

/// After this age a connection is not reused, so that DNS changes take effect.
pub(crate) const AGE_MAX: Duration = Duration::from_secs(4 * 60);

/// Idle connections to one origin. An endpoint needs a few; a host with thousands of endpoints
/// needs as many as run in parallel, or local ports run out in TIME_WAIT.
const IDLE_PER_ORIGIN_MAX: usize = 128;

/// A receiver that closes an idle connection has done so before the request on it arrives.
pub(crate) const CLOSED_WITHIN: Duration = Duration::from_secs(1);

/// The most suspects that are remembered, at all origins: a few megabytes.
const SUSPECTS_MAX: usize = 20_000;

/// The idle connections.
pub(crate) struct Pool {
    clock: Clock,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    /// The one that became idle last is at the end.
    connections: HashMap<Origin, Vec<(Tick, Connection)>>,
    sharing: HashMap<Origin, Sharing>,
    /// Closes expired connections; runs while any are idle.
    sweeper: JoinSet<()>,
    sweeping: bool,
    /// Wait for receivers to close connections whose end they announced.
    closing: JoinSet<()>,
}

impl Pool {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, idle: Mutex::default() }
    }

    /// Removes an idle connection for an attempt of a workspace: of those that it may use the one
    /// that was idle for the shortest time, its own first.
    pub(crate) fn checkout<'a>(
        &'a self,
        origin: &'a Origin,
        user: &Workspace,
    ) -> Option<(Connection, Waiting<'a>)> {
        let now = self.clock.now().tick;
        let mut idle = self.lock();
        let Idle { connections, sharing, .. } = &mut *idle;
        let waiting = connections.get_mut(origin)?;
        let known = sharing.get(origin);
        if known.is_some_and(|sharing| !sharing.shares(user, now)) {
            return None;
        }
        waiting.retain(|(since, connection)| {
            let young = now.since(connection.opened) < AGE_MAX;
            young && now.since(*since) < IDLE_MAX && !connection.is_closed()
        });
        let turn_on =
            |connection: &Connection| Turn { before: connection.user.clone(), user: user.clone() };
        let is_own = |(_, one): &(Tick, Connection)| one.user == *user;
        let is_free = |(_, one): &(Tick, Connection)| {
            known.is_none_or(|sharing| sharing.admits(&turn_on(one)))
        };
        let own = waiting.iter().rposition(is_own);
        let at = own.or_else(|| waiting.iter().rposition(is_free))?;
        let (_, connection) = waiting.remove(at);
        let turn = turn_on(&connection);
        if !turn.is_own() {
            sharing.entry(origin.clone()).or_default().begin(&turn);
        }
        let end = TurnEnd::Unanswered;
        Some((connection, Waiting { pool: self, origin, turn, began: now, end }))
    }

    /// Adds a connection for the next attempt; too many close the one that was idle longest.
    pub(crate) fn keep(self: &Arc<Self>, origin: Origin, connection: Connection) {
        let now = self.clock.now().tick;
        let mut idle = self.lock();
        if let Some(sharing) = idle.sharing.get_mut(&origin) {
            sharing.answered(&connection.user, now);
            if !sharing.shares(&connection.user, now) {
                return;
            }
        }
        let waiting = idle.connections.entry(origin).or_default();
        if waiting.len() >= IDLE_PER_ORIGIN_MAX {
            waiting.remove(0);
        }
        waiting.push((now, connection));
        if !idle.sweeping {
            idle.sweeping = true;
            while idle.sweeper.try_join_next().is_some() {}
            idle.sweeper.spawn(sweep(Arc::downgrade(self)));
        }
    }

    /// Ends a connection whose end the receiver announced: it closes first, if it does soon.
    pub(crate) fn end_after_receiver(&self, connection: Connection) {
        let mut idle = self.lock();
        while idle.closing.try_join_next().is_some() {}
        idle.closing.spawn(connection.ended());
    }

    /// Ends a turn at an origin.
    fn end(&self, origin: &Origin, turn: &Turn, end: TurnEnd) {
        let now = self.clock.now().tick;
        let mut idle = self.lock();
        if end == TurnEnd::Unanswered {
            idle.suspect(origin, turn, now);
        } else if let Some(sharing) = idle.sharing.get_mut(origin) {
            sharing.end(turn, end, now);
            if sharing.is_empty() {
                idle.sharing.remove(origin);
            }
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
    /// Ends a turn without a response, and closes idle connections of suspects.
    fn suspect(&mut self, origin: &Origin, turn: &Turn, now: Tick) {
        let count = |sharing: &HashMap<_, Sharing>| sharing.values().map(Sharing::suspects).sum();
        let is_full = |count: usize| count >= SUSPECTS_MAX;
        if is_full(count(&self.sharing)) {
            self.sharing.values_mut().for_each(|one| one.forget(now));
            self.sharing.retain(|_, one| !one.is_empty());
        }
        let end = if is_full(count(&self.sharing)) { TurnEnd::Closed } else { TurnEnd::Unanswered };
        let sharing = self.sharing.entry(origin.clone()).or_default();
        sharing.end(turn, end, now);
        if let Some(waiting) = self.connections.get_mut(origin) {
            waiting.retain(|(_, connection)| sharing.shares(&connection.user, now));
        }
        if sharing.is_empty() {
            self.sharing.remove(origin);
        }
    }
}

/// An attempt that waits for its response on a reused connection, until dropped.
pub(crate) struct Waiting<'a> {
    pool: &'a Pool,
    origin: &'a Origin,
    turn: Turn,
    began: Tick,
    end: TurnEnd,
}

impl Waiting<'_> {
    /// Ends the wait with a response.
    pub(crate) fn answered(mut self) {
        self.end = TurnEnd::Answered;
    }

    /// Ends the wait at a connection that was closed before it sent anything.
    pub(crate) fn closed(mut self) {
        if self.pool.clock.now().tick.since(self.began) < CLOSED_WITHIN {
            self.end = TurnEnd::Closed;
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.pool.end(self.origin, &self.turn, self.end);
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
