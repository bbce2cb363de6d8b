//! Transfers the listening sockets and the counters to a process that replaces this one.
//!
//! SIGUSR2 starts the program again, with one end of a socket as its standard input. The new
//! process loads the configuration, receives the listening sockets and reports that it is ready;
//! only then are the counters sent, and after them it accepts. The old process drains its
//! connections, each with one more response at most, and sends their checks to the new one.
//!
//! ```text
//!   old  ── Sockets, Offer ──▶  new      nothing has changed: a failure has no effect
//!   old  ◀───── Ready ────────  new
//!   old  ── States …, Moved ─▶  new      checks wait; a failure opens the old store again
//!   old  ◀─── Received ───────  new      the new one accepts, the old one no longer does
//!   old  ───── Check … ──────▶  new      until the old one's last connection has closed
//! ```
//!
//! # Invariants
//!
//! 1. One process has the counters: a shard is closed before its states are sent, and opened again
//!    only after the process that they were sent to has been killed.
//! 2. Until `Received`, the old process continues to serve after any failure. After it, the new
//!    process needs nothing from the old one.
//! 3. A request that arrives during the transfer waits for its end, at most `CHECK_WAIT`; if the
//!    new process is lost, the request is refused, because the counters are unknown.
//!
//! # Not here
//!
//! When an upgrade starts and what follows it (`app`), how an operator starts one
//! (`docs/gateway/operations.md`).

pub mod init;
pub mod new_process;
pub mod old_process;
pub mod protocol;
pub mod sockets;

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

/// The environment variable of a process whose standard input is connected to its predecessor.
pub const TAKE_OVER: &str = "WEIR_TAKE_OVER";

/// How long a new process may take to be ready: it resolves names and reads large files.
const READY_WAIT: Duration = Duration::from_secs(30);

/// How long the transfer of the states may take. Requests wait for it; after this time the old
/// process continues to serve them.
const MOVE_WAIT: Duration = Duration::from_secs(10);

/// Requests whose checks wait to be sent. Every connection has one more request at most.
const REMOTE_CHECKS_MAX: usize = 1_024;

/// Why an upgrade failed.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The program cannot be started, or the connection to it is lost.
    #[error("{doing}: {source}")]
    Broken {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The new process ended by itself.
    #[error("the new process ended before it was ready: {0}")]
    Ended(ExitStatus),
    /// The new process reports why it cannot take over.
    #[error("the new process cannot take over: {0}")]
    Failed(String),
    /// The new process took too long.
    #[error("the new process was not ready within {READY_WAIT:?}")]
    Late,
    /// The states took too long.
    #[error("the counters did not move within {MOVE_WAIT:?}")]
    Slow,
    /// The other process sent another message than the protocol requires.
    #[error("unexpected message from the other process: expected {0}")]
    Unexpected(&'static str),
    /// The new program has another version of the protocol.
    #[error(
        "the new program speaks upgrade protocol {theirs}, this one {}: restart instead of \
         upgrading",
        protocol::PROTOCOL
    )]
    OtherProtocol {
        /// The version of the new program.
        theirs: u32,
    },
    /// The process was not started by an upgrade.
    #[error(
        "{TAKE_OVER} is set, but standard input is not the upgrade socket; only an upgrade starts \
         the program this way"
    )]
    NoSocket,
    /// More sockets than fit into one message.
    #[error("more than {} listeners cannot be handed over", sockets::SOCKETS_MAX)]
    TooManySockets,
}

fn broken(doing: &'static str) -> impl FnOnce(io::Error) -> UpgradeError {
    move |source| UpgradeError::Broken { doing, source }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::time::Duration;

    use weir_common::directory::values::Values;
    use weir_common::limit::decision::Usage;
    use weir_common::time::{Clock, UnixTime};

    use super::new_process::Predecessor;
    use super::{old_process, protocol};
    use crate::config::shared::Shared;
    use crate::limit::boost::Boost;
    use crate::limit::key::{Key, Scope};
    use crate::limit::shared::servers::address::{
        ServerAddress, StoreAddress, StoreLogin, Topology,
    };
    use crate::limit::shared::servers::login::Tcp;
    use crate::limit::shared::sync_state::{SyncedKey, SyncedKeys};
    use crate::limit::shared::{SharedConfig, SharedStore};
    use crate::limit::{LimitCheck, Quota};
    use crate::operations::persistence::tests::shared;
    use crate::rules::retention::Retention;

    /// Transfers the counters of `old` to `new`, by the messages between two processes.
    fn transfer(old: &Shared, new: &Shared) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let offer =
            protocol::Offer { seed: old.seed.bytes(), is_shared: false, sockets: Vec::new() };
        let mut predecessor =
            Predecessor { stream: ours, offer, sockets: Vec::new(), in_flight: HashMap::new() };
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| predecessor.receive_counters(new).unwrap());
            assert_eq!(protocol::read(&mut theirs).unwrap().0, protocol::Kind::Ready);
            let sent = old_process::send_states(&mut theirs, old, &mut Vec::new()).unwrap();
            assert_eq!(receiving.join().unwrap(), sent);
        });
    }

    fn check(shared: &Shared, limit: &str, name: &str) -> LimitCheck {
        let active = shared.active.load();
        let (_, limit) = active.rules.limit(limit).unwrap();
        let key = Key::new(shared.seed.owner(Scope::Workspace, name.as_bytes()), limit.tag);
        let quota = limit.quota;
        LimitCheck { known: true, ..LimitCheck::new(key, limit.tag, quota) }
    }

    #[test]
    fn a_window_that_a_reload_has_lengthened_is_whole_after_an_upgrade() {
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let (earlier, old) = (shared("1s", 200, &clock), shared("5m", 200, &clock));
        for _ in 0..4 {
            let _ =
                old.limiter.store.judge(&[check(&earlier, "workspace", "ws")], clock.now().tick);
        }
        // What a reload from `earlier` to `old` does.
        let rules = &old.active.load().rules;
        Retention::of(&earlier.active.load().rules).retain_in(
            &old.limiter.store,
            rules,
            clock.now().tick,
        );
        clock.advance(Duration::from_secs(2));
        let new = shared("5m", 200, &clock);
        transfer(&old, &new);
        let left =
            |now| new.limiter.store.usage(&check(&new, "workspace", "ws"), now).unwrap().remaining;
        assert_eq!(left(clock.now().tick), 56);
        clock.advance(Duration::from_secs(297));
        (0..new.limiter.store.shards())
            .for_each(|nth| new.limiter.store.sweep(nth, clock.now().tick));
        assert_eq!(left(clock.now().tick), 56, "nor is it swept there");
        clock.advance(Duration::from_secs(1));
        assert_eq!(left(clock.now().tick), 60);
    }

    /// Makes counters those of a shared store, which nothing reaches.
    fn sharing(shared: Shared, clock: &Clock) -> Shared {
        let address = StoreAddress {
            topology: Topology::Single,
            servers: vec![ServerAddress { host: "store".to_owned(), port: 1 }],
            login: StoreLogin::default(),
            sentinel_password_file: None,
            acknowledge: 0,
        };
        let (fingerprint, id) = ("f".to_owned(), "0".to_owned());
        let timeout = Duration::from_millis(20);
        let config = SharedConfig { address, timeout, gateways_min: 1, fingerprint, id };
        shared.sharing(Some(SharedStore::new(config, clock.clone(), Arc::<Tcp>::default())))
    }

    #[test]
    fn keys_that_a_shared_store_counts_are_transferred() {
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let [old, new, longer] =
            ["5m", "5m", "10m"].map(|window| sharing(shared(window, 200, &clock), &clock));
        let now = old.limiter.moment(clock.now()).tick;
        let key = |nth: u32| {
            let check = check(&old, "workspace", &format!("ws{nth}"));
            let horizon = old.active.load().rules.limit("workspace").unwrap().1.horizon;
            let usage =
                Usage { limit: 60, remaining: 1, full_at: now.plus(Duration::from_secs(9)) };
            SyncedKey { check: LimitCheck { horizon, slot: nth.into(), ..check }, usage }
        };
        // Some are sent in pieces.
        let synced: Vec<SyncedKey> = (0..5_000).map(key).collect();
        old.limiter.restore_synced(&SyncedKeys { resets: 7, keys: synced.clone() });
        transfer(&old, &new);
        let of = |shared: &Shared| {
            let SyncedKeys { resets, keys } = shared.limiter.synced();
            let mut all: Vec<SyncedKey> = keys.collect();
            all.sort_by_key(|own| own.check.slot);
            assert_eq!(resets, 7);
            all
        };
        assert_eq!(of(&new), synced);
        transfer(&new, &longer);
        let own = check(&longer, "workspace", "ws0").quota;
        assert!(of(&longer).iter().all(|synced| synced.check.quota == own));
        clock.advance(Duration::from_secs(9));
        assert_eq!(of(&new), [], "their usage has ended");
    }

    #[test]
    fn a_boost_is_transferred_as_values_and_uses_the_new_processs_window() {
        let clock = Clock::manual(UnixTime(1_000_000_000));
        let (old, new) = (shared("1s", 200, &clock), shared("5m", 200, &clock));
        let now = clock.now().tick;
        let raised = Values { requests: Some(90), ..Values::default() };
        let boost = Boost { raised, until: now.plus(Duration::from_secs(600)) };
        old.limiter.boosts.set(check(&old, "workspace", "ws").key, boost, now).unwrap();
        transfer(&old, &new);
        let mut checks = [check(&new, "workspace", "ws")];
        new.limiter.boosts.apply(&mut checks, now);
        let Quota::Rolling(quota) = checks[0].quota else { panic!("it has a window") };
        assert_eq!((quota.requests, quota.window), (90, Duration::from_secs(300)));
    }
}
