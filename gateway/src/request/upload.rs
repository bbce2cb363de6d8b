//! Says whether a server is late, or whether it is its client that is waited for.
//!
//! Pingora times a server from the head of a request on. While the request's body is still coming
//! a silent server owes nothing: the time of its answer begins with the last byte of the request.
//! It may defer its timeouts.
//!
//! # Invariants
//!
//! 1. While a client is waited for no server is late; how long that may take is `body_timeout`.
//! 2. A server has its whole `read_timeout` after the last byte that came for it, be that the end
//!    of the request or not: one that takes no more of a body is late, too.
//! 3. A client that waits for a `100 Continue` owes nothing until it has one.
//!
//! # Not here
//!
//! How a timeout is put off (`third_party/pingora-timeout`), how long a client has (`session`,
//! and Pingora's own).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_common::time::{Clock, Tick};

/// Marks the timeouts that may be put off: settings know no nanoseconds, so no other has one.
const MARK: Duration = Duration::from_nanos(1);

tokio::task_local! {
    /// The body of the request that this task works on.
    static CURRENT: Arc<Upload>;
}

/// The body of a request on its way to a server.
#[derive(Debug)]
pub struct Upload {
    clock: Clock,
    /// Whether the client is to send more, and has not.
    awaits_client: AtomicBool,
    /// Whether the client waits for `100 Continue`.
    awaits_invitation: AtomicBool,
    /// When something came last, in ticks.
    from: AtomicU64,
}

impl Upload {
    /// A body of which nothing has come.
    #[must_use]
    pub fn new(clock: Clock) -> Arc<Self> {
        let from = AtomicU64::new(clock.now().tick.0);
        let (awaits_client, awaits_invitation) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { clock, awaits_client, awaits_invitation, from })
    }

    /// Runs `work`, whose timeouts this body may defer.
    pub async fn within<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Another request begins, whose client may wait for `100 Continue`.
    fn begin(&self, awaits_invitation: bool) {
        self.received();
        self.awaits_invitation.store(awaits_invitation, Ordering::Relaxed);
    }

    /// More of the body is waited for.
    pub fn awaited(&self) {
        self.awaits_client.store(true, Ordering::Relaxed);
    }

    /// Some of it came, or its end.
    pub fn received(&self) {
        self.from.store(self.clock.now().tick.0, Ordering::Relaxed);
        self.awaits_client.store(false, Ordering::Relaxed);
        self.awaits_invitation.store(false, Ordering::Relaxed);
    }

    /// How much longer a server has whose `timeout` is over; nothing where it is late.
    fn left(&self, timeout: Duration) -> Option<Duration> {
        let owes = self.awaits_client.load(Ordering::Relaxed)
            && !self.awaits_invitation.load(Ordering::Relaxed);
        if owes {
            return Some(timeout);
        }
        let late_at = Tick(self.from.load(Ordering::Relaxed)).plus(timeout);
        Some(late_at.since(self.clock.now().tick)).filter(|left| !left.is_zero())
    }
}

/// The current request begins, whose client may wait for `100 Continue`.
pub fn begin(awaits_invitation: bool) {
    let _outside = CURRENT.try_with(|upload| upload.begin(awaits_invitation));
}

/// The client of the current request gets `100 Continue`.
pub fn invited() {
    let _outside =
        CURRENT.try_with(|upload| upload.awaits_invitation.store(false, Ordering::Relaxed));
}

/// `timeout`, marked so that [`install`] may defer its end.
#[must_use]
pub fn deferrable(timeout: Duration) -> Duration {
    timeout + MARK
}

/// From now on marked timeouts are deferred while an upload continues.
pub fn install() {
    pingora_timeout::put_off_with(|timeout| {
        let checks = timeout.subsec_nanos() % 1_000 == MARK.subsec_nanos();
        // A task without a request, as a health check's, waits for no client.
        CURRENT.try_with(|upload| upload.left(timeout)).ok().flatten().filter(|_| checks)
    });
}

#[cfg(test)]
mod tests {
    use weir_common::time::UnixTime;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Plays `second what`: what comes, is waited for, or is said, and in how many seconds the
    /// server is late by then: `0` is late.
    #[track_caller]
    fn check(awaits_invitation: bool, story: &str) {
        let clock = Clock::manual(UnixTime(0));
        let upload = Upload::new(clock.clone());
        upload.begin(awaits_invitation);
        let mut second = 0;
        for step in story.split("  ") {
            let (then, what) = step.split_once(' ').unwrap();
            let then: u64 = then.parse().unwrap();
            clock.advance(Duration::from_secs(then - second));
            second = then;
            match what {
                "waits" => upload.awaited(),
                "comes" => upload.received(),
                "invited" => upload.awaits_invitation.store(false, Ordering::Relaxed),
                _ => {
                    let left = upload.left(TIMEOUT).map_or(0, |left| left.as_secs());
                    assert_eq!(left.to_string(), what, "{step} in {story}");
                }
            }
        }
    }

    #[test]
    fn a_servers_timeout_counts_from_the_last_received_byte() {
        check(false, "0 2  1 1  2 0  9 0");
        check(false, "1 comes  2 1  3 0  4 comes  4 2  6 0");
    }

    #[test]
    fn no_server_times_out_while_its_client_is_waited_for() {
        check(false, "0 waits  9 2  90 2  99 comes  99 2  100 1  101 0");
    }

    #[test]
    fn a_client_that_waits_for_100_continue_does_not_time_out_before_it() {
        check(true, "0 waits  1 1  2 0");
        check(true, "0 waits  1 invited  9 2");
        check(true, "0 waits  1 comes  1 waits  9 2");
    }
}
