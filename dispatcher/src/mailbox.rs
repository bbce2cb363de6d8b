//! The worker's queue of commands from listeners and background tasks.
//!
//! Invariant: queued deliveries use bounded memory. For deliveries beyond it, which are on disk,
//! only their webhooks are queued.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use weir_common::time::Tick;

use crate::domain::delivery::{Arrival, DELIVERY_OVERHEAD_BYTES, DeliveryStatus};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::scheduler::attempts::SentRequest;
use crate::scheduler::checks::CheckedUrl;
use crate::scheduler::survey::Survey;

/// Bytes of queued deliveries: more than a second of work at full speed.
const QUEUED_BYTES_MAX: usize = 16 << 20;

/// A command to the worker.
#[derive(Debug)]
pub enum Command {
    /// New deliveries are on disk.
    Arrived(Vec<Arrival>),
    /// More deliveries arrived than may be queued: see [`Mailbox::missed`].
    Missed,
    /// A webhook was changed, deleted or reactivated, or deliveries of it were requeued.
    Changed(WebhookId),
    /// The active settings changed.
    Reloaded,
    /// The API needs the status of deliveries.
    ReadStatus(Vec<(WebhookId, DeliveryId)>, oneshot::Sender<Vec<DeliveryStatus>>),
    /// The API sends a request of its own: counts it, or answers how long it has to wait.
    Charge(CheckedUrl, oneshot::Sender<Result<Charged, Duration>>),
    /// The request of an attempt was sent.
    Sent(SentRequest),
    /// A request of the API's own that started at this time was sent, or has ended without.
    Ended(CheckedUrl, Tick),
    /// Operators need to know what waits.
    Survey(oneshot::Sender<Survey>),
}

/// A handle to the queue.
#[derive(Clone, Debug)]
pub struct Mailbox {
    sender: mpsc::UnboundedSender<Command>,
    queued: Arc<QueuedArrivals>,
}

/// A request of the API's own, which counts as one that may still be sent until this is dropped.
#[derive(Debug)]
pub struct Charged {
    /// Taken when it is dropped.
    check: Option<CheckedUrl>,
    started: Tick,
    sender: mpsc::UnboundedSender<Command>,
}

impl Drop for Charged {
    fn drop(&mut self) {
        if let Some(check) = self.check.take() {
            let _ = self.sender.send(Command::Ended(check, self.started));
        }
    }
}

/// Deliveries that the worker has not processed yet.
#[derive(Debug)]
struct QueuedArrivals {
    /// Bytes of queued deliveries.
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Webhooks with deliveries that exceeded `bytes_max`.
    missed: Mutex<BTreeSet<WebhookId>>,
}

impl QueuedArrivals {
    fn missed(&self) -> MutexGuard<'_, BTreeSet<WebhookId>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weight(arrivals: &[Arrival]) -> usize {
    arrivals.iter().map(|one| DELIVERY_OVERHEAD_BYTES + one.delivery.body.len()).sum()
}

impl Mailbox {
    /// A mailbox, and the worker's end of it.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Command>) {
        Self::with_room(QUEUED_BYTES_MAX)
    }

    /// A mailbox with another limit.
    #[must_use]
    pub fn with_room(bytes_max: usize) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (sender, inbox) = mpsc::unbounded_channel();
        let queued =
            QueuedArrivals { bytes: AtomicUsize::new(0), bytes_max, missed: Mutex::default() };
        (Self { sender, queued: Arc::new(queued) }, inbox)
    }

    /// Reports new deliveries that are on disk.
    pub fn arrived(&self, arrivals: Vec<Arrival>) {
        let bytes = weight(&arrivals);
        let before = self.queued.bytes.fetch_add(bytes, Ordering::Relaxed);
        // Without a worker they stay on disk for the next one.
        if before + bytes <= self.queued.bytes_max {
            let _ = self.sender.send(Command::Arrived(arrivals));
            return;
        }
        self.queued.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut missed = self.queued.missed();
        let first = missed.is_empty();
        missed.extend(arrivals.iter().map(|one| one.webhook));
        if first && !missed.is_empty() {
            let _ = self.sender.send(Command::Missed);
        }
    }

    /// Releases the memory of processed deliveries.
    pub(crate) fn processed(&self, arrivals: &[Arrival]) {
        self.queued.bytes.fetch_sub(weight(arrivals), Ordering::Relaxed);
    }

    /// Removes and returns the webhooks whose deliveries were not queued.
    pub(crate) fn missed(&self) -> BTreeSet<WebhookId> {
        std::mem::take(&mut *self.queued.missed())
    }

    /// Reports that a webhook or its deliveries changed on disk.
    pub fn changed(&self, webhook: WebhookId) {
        let _ = self.sender.send(Command::Changed(webhook));
    }

    /// Reports that the active settings changed.
    pub fn reloaded(&self) {
        let _ = self.sender.send(Command::Reloaded);
    }

    /// Reports that the request of an attempt in flight was sent.
    pub(crate) fn sent(&self, request: SentRequest) {
        // A worker that has ended starts nothing that this could delay.
        let _ = self.sender.send(Command::Sent(request));
    }

    /// What waits; `None` if the worker has ended.
    pub async fn survey(&self) -> Option<Survey> {
        let (answer, answered) = oneshot::channel();
        let _ = self.sender.send(Command::Survey(answer));
        answered.await.ok()
    }

    /// The status of each delivery, in order; the default if the worker has ended.
    pub async fn statuses(&self, of: Vec<(WebhookId, DeliveryId)>) -> Vec<DeliveryStatus> {
        let count = of.len();
        let (answer, answered) = oneshot::channel();
        let _ = self.sender.send(Command::ReadStatus(of, answer));
        answered.await.unwrap_or_else(|_| vec![DeliveryStatus::default(); count])
    }

    /// Counts a request in the rate limits of its receiver, or returns the time until they admit
    /// it; `None` if the worker has ended.
    pub async fn charge(&self, check: CheckedUrl) -> Option<Result<Charged, Duration>> {
        let (answer, answered) = oneshot::channel();
        let _ = self.sender.send(Command::Charge(check, answer));
        answered.await.ok()
    }

    /// A request that was counted at `started`.
    pub(crate) fn charged(&self, check: CheckedUrl, started: Tick) -> Charged {
        Charged { check: Some(check), started, sender: self.sender.clone() }
    }
}

#[cfg(test)]
mod tests {
    use weir_common::time::UnixTime;

    use super::*;
    use crate::domain::delivery::QueuedDelivery;
    use crate::domain::event::EventType;

    fn arrival(webhook: i64) -> Arrival {
        let delivery = QueuedDelivery {
            id: DeliveryId(1),
            due: UnixTime(0),
            created_at: UnixTime(0),
            event_id: "evt_1".into(),
            kind: EventType::new("user.created"),
            body: vec![b'x'; 488].into(),
            attempts: 0,
            step: 0,
            first_attempt_at: None,
            since: None,
            paused_before: Duration::ZERO,
            redeliveries: 0,
            fresh_connection: false,
        };
        Arrival { webhook: WebhookId(webhook), delivery }
    }

    #[test]
    fn queued_deliveries_use_bounded_memory_and_no_webhook_is_missed() {
        let (handle, mut inbox) = Mailbox::with_room(10_000);
        for nth in 0..1_000 {
            handle.arrived(vec![arrival(nth % 7)]);
        }
        let mut received = 0;
        let mut missed = Vec::new();
        while let Ok(news) = inbox.try_recv() {
            match news {
                Command::Arrived(arrivals) => {
                    handle.processed(&arrivals);
                    received += arrivals.len();
                }
                Command::Missed => missed.push(handle.missed()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received, 10);
        assert_eq!(missed, [(0..7).map(WebhookId).collect()]);
        // Space is free again, and the missed webhooks were reported.
        handle.arrived(vec![arrival(8)]);
        assert!(matches!(inbox.try_recv(), Ok(Command::Arrived(_))));
        handle.arrived((0..11).map(arrival).collect());
        assert!(matches!(inbox.try_recv(), Ok(Command::Missed)));
        handle.arrived((11..22).map(arrival).collect());
        assert!(inbox.try_recv().is_err(), "one command reports all missed webhooks");
        assert_eq!(handle.missed().len(), 22);
    }
}
