//! Decides whether a server has timed out, or whether the gateway still waits for the client.
//!
//! Pingora's read timeout for a server starts with the head of a request. While the request body
//! still arrives, a silent server is not late: its time to respond starts with the last byte of the
//! request. So Pingora's timeouts are deferred here.
//!
//! # Invariants
//!
//! 1. While the gateway waits for a client no server times out; `body_timeout` limits that wait.
//! 2. A server has its whole `read_timeout` after the last byte from the client, whether or not
//!    that byte ends the request: a server that stops reading a body times out, too.
//! 3. While a client waits for `100 Continue` the server's timeout is not deferred.
//!
//! # Not here
//!
//! How a timeout is deferred (`third_party/pingora-timeout`), a client's own timeouts
//! (`edge::http1::session`, `edge::session`).

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use weir_common::time::{Clock, Tick};

/// Marks the timeouts that may be deferred: timeouts in settings have no nanoseconds.
const MARK: Duration = Duration::from_nanos(1);

tokio::task_local! {
    /// The body of the request that this task handles.
    static CURRENT: Arc<Upload>;
}

/// The body of a request on its way to a server.
#[derive(Debug)]
pub struct Upload {
    clock: Clock,
    /// Whether the gateway waits for the client to send more.
    awaits_client: AtomicBool,
    /// Whether the client waits for `100 Continue`.
    awaits_continue: AtomicBool,
    /// When bytes last arrived from the client, or the request started, in ticks.
    from: AtomicU64,
}

impl Upload {
    /// A body of which nothing has arrived.
    #[must_use]
    pub fn new(clock: Clock) -> Arc<Self> {
        let from = AtomicU64::new(clock.now().tick.0);
        let (awaits_client, awaits_continue) = (AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { clock, awaits_client, awaits_continue, from })
    }

    /// Runs `work`, whose timeouts this body may defer.
    pub async fn within<T>(self: Arc<Self>, work: impl Future<Output = T>) -> T {
        CURRENT.scope(self, work).await
    }

    /// Records the start of another request, whose client may wait for `100 Continue`.
    fn begin(&self, awaits_continue: bool) {
        self.received();
        self.awaits_continue.store(awaits_continue, Ordering::Relaxed);
    }

    /// Records that the gateway waits for more of the body.
    pub fn awaited(&self) {
        self.awaits_client.store(true, Ordering::Relaxed);
    }

    /// Records that a part of the body arrived, or its end.
    pub fn received(&self) {
        self.from.store(self.clock.now().tick.0, Ordering::Relaxed);
        self.awaits_client.store(false, Ordering::Relaxed);
        self.awaits_continue.store(false, Ordering::Relaxed);
    }

    /// How much longer a server has when its `timeout` has expired; `None` if it is late.
    fn left(&self, timeout: Duration) -> Option<Duration> {
        let owes = self.awaits_client.load(Ordering::Relaxed)
            && !self.awaits_continue.load(Ordering::Relaxed);
        if owes {
            return Some(timeout);
        }
        let late_at = Tick(self.from.load(Ordering::Relaxed)).plus(timeout);
        Some(late_at.since(self.clock.now().tick)).filter(|left| !left.is_zero())
    }
}

/// Records the start of the current request, whose client may wait for `100 Continue`.
pub fn begin(awaits_continue: bool) {
    let _outside = CURRENT.try_with(|upload| upload.begin(awaits_continue));
}

/// Records that the client of the current request no longer waits for `100 Continue`.
pub fn invited() {
    let _outside =
        CURRENT.try_with(|upload| upload.awaits_continue.store(false, Ordering::Relaxed));
}

/// Whether the gateway waits for the client of the current request to send more of it.
#[must_use]
pub fn is_owed() -> bool {
    CURRENT.try_with(|upload| upload.awaits_client.load(Ordering::Relaxed)).unwrap_or_default()
}

/// `timeout`, marked so that the hook of [`install`] may defer it.
#[must_use]
pub fn deferrable(timeout: Duration) -> Duration {
    timeout + MARK
}

/// Installs the hook that defers marked timeouts while an upload continues.
pub fn install() {
    pingora_timeout::put_off_with(|timeout| {
        let checks = timeout.subsec_nanos() % 1_000 == MARK.subsec_nanos();
        // A task without a request, such as a health check, waits for no client.
        CURRENT.try_with(|upload| upload.left(timeout)).ok().flatten().filter(|_| checks)
    });
}

#[cfg(test)]
mod tests {
    use weir_common::time::UnixTime;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(2);

    /// Runs steps `second what`: an event of the upload, or the expected number of seconds that the
    /// server has left at that second; at `0` it is late.
    #[track_caller]
    fn check(awaits_continue: bool, story: &str) {
        let clock = Clock::manual(UnixTime(0));
        let upload = Upload::new(clock.clone());
        upload.begin(awaits_continue);
        let mut second = 0;
        for step in story.split("  ") {
            let (then, what) = step.split_once(' ').unwrap();
            let then: u64 = then.parse().unwrap();
            clock.advance(Duration::from_secs(then - second));
            second = then;
            match what {
                "waits" => upload.awaited(),
                "comes" => upload.received(),
                "invited" => upload.awaits_continue.store(false, Ordering::Relaxed),
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
