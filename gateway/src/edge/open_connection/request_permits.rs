//! Permits for the requests in progress on one HTTP/2 connection.
//!
//! One in progress has its connection's; each other one counts as a connection. Requests that wait
//! get permits in the order in which they came.

use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus::IntGauge;
use tokio::sync::{Mutex, Notify};
use tokio::time::sleep;

use crate::edge::open_connection::{AdditionalPermit, OpenConnection};

/// How long a request waits that has no permit, before it first looks for one that was given back
/// on another connection; then twice as long each time, up to [`RETRY_MAX`].
pub(in crate::edge) const RETRY: Duration = Duration::from_millis(50);

/// With 20,000 connections that wait, a core is busy with looking for a twentieth of the time.
const RETRY_MAX: Duration = Duration::from_secs(1);

/// Permits of one connection's requests.
#[derive(Debug)]
pub(in crate::edge) struct RequestPermits {
    open: Arc<OpenConnection>,
    /// Connections of its address, and requests that count as one.
    per_address_max: u64,
    in_progress: std::sync::Mutex<InProgress>,
    /// Held by the request that waits longest.
    turn: Mutex<()>,
    /// A request has ended.
    ended: Notify,
    /// The metric of requests that wait.
    waiting: IntGauge,
}

/// The requests in progress, and the permits of all but one.
#[derive(Debug, Default)]
struct InProgress {
    requests: usize,
    additional: Vec<AdditionalPermit>,
}

/// Permits a request until dropped.
#[derive(Debug)]
pub(in crate::edge) struct RequestPermit(Arc<RequestPermits>);

impl RequestPermits {
    pub(in crate::edge) fn new(
        open: Arc<OpenConnection>,
        per_address_max: u64,
        waiting: IntGauge,
    ) -> Arc<Self> {
        let (in_progress, turn, ended) = Default::default();
        Arc::new(Self { open, per_address_max, in_progress, turn, ended, waiting })
    }

    /// A permit for a request that has arrived, where none waits and there is room.
    pub(in crate::edge) fn try_enter(self: &Arc<Self>) -> Option<RequestPermit> {
        let _turn = self.turn.try_lock().ok()?;
        self.free()
    }

    /// Waits for a permit, after those that came before.
    pub(in crate::edge) async fn enter(self: &Arc<Self>) -> RequestPermit {
        let _waits = Waits::new(&self.waiting);
        let _turn = self.turn.lock().await;
        let mut pause = RETRY;
        loop {
            if let Some(permit) = self.free() {
                return permit;
            }
            tokio::select! {
                () = self.ended.notified() => {}
                () = sleep(pause) => pause = (pause * 2).min(RETRY_MAX),
            }
        }
    }

    fn free(self: &Arc<Self>) -> Option<RequestPermit> {
        let mut all = self.in_progress();
        if all.requests > 0 {
            all.additional.push(self.open.enter_additional(self.per_address_max)?);
        }
        all.requests += 1;
        Some(RequestPermit(self.clone()))
    }

    fn in_progress(&self) -> MutexGuard<'_, InProgress> {
        self.in_progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut all = self.0.in_progress();
        all.requests -= 1;
        // The last one had its connection's.
        drop(all.additional.pop());
        drop(all);
        self.0.ended.notify_one();
    }
}

/// Counts a request as waiting until dropped.
struct Waits<'a>(&'a IntGauge);

impl<'a> Waits<'a> {
    fn new(gauge: &'a IntGauge) -> Self {
        gauge.inc();
        Self(gauge)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.dec();
    }
}
