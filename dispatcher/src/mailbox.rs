//! The way to the worker: what others tell it and ask it.
//!
//! Invariant: what it has not heard yet takes bounded memory. Deliveries beyond that are on disk;
//! of them it is told only which webhooks they are for.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::domain::delivery::{Arrival, DeliveryStatus};
use crate::domain::id::{DeliveryId, WebhookId};

/// Deliveries that wait to be heard of, in bytes: more than a second's at full speed.
const UNHEARD_BYTES_MAX: usize = 16 << 20;

/// What one of them takes beside its body.
const ARRIVAL_COST: usize = 512;

/// What the worker is told.
#[derive(Debug)]
pub enum Command {
    /// Deliveries have come to wait.
    Arrived(Vec<Arrival>),
    /// So many have come that only their webhooks are told: see [`Mailbox::missed`].
    Missed,
    /// A webhook was changed, deleted or reactivated, or deliveries of it were put back.
    Changed(WebhookId),
    /// Other settings are in force.
    Reloaded,
    /// Somebody wants to know why deliveries wait.
    Asked(Vec<(WebhookId, DeliveryId)>, oneshot::Sender<Vec<DeliveryStatus>>),
}

/// The way to the worker.
#[derive(Clone, Debug)]
pub struct Mailbox {
    news: mpsc::UnboundedSender<Command>,
    unheard: Arc<Unheard>,
}

/// What the worker has not heard yet.
#[derive(Debug)]
struct Unheard {
    /// Of deliveries told one by one.
    bytes: AtomicUsize,
    bytes_max: usize,
    /// Those that have deliveries beyond that.
    missed: Mutex<BTreeSet<WebhookId>>,
}

impl Unheard {
    fn missed(&self) -> MutexGuard<'_, BTreeSet<WebhookId>> {
        self.missed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn weight(arrivals: &[Arrival]) -> usize {
    arrivals.iter().map(|one| ARRIVAL_COST + one.ready.body.len()).sum()
}

impl Mailbox {
    /// The way, and where it leads.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Command>) {
        Self::with_room(UNHEARD_BYTES_MAX)
    }

    /// The same, where deliveries of so many bytes may wait to be heard of.
    #[must_use]
    pub fn with_room(bytes_max: usize) -> (Self, mpsc::UnboundedReceiver<Command>) {
        let (news, inbox) = mpsc::unbounded_channel();
        let unheard = Unheard { bytes: AtomicUsize::new(0), bytes_max, missed: Mutex::default() };
        (Self { news, unheard: Arc::new(unheard) }, inbox)
    }

    /// Tells of deliveries that are on disk and wait.
    pub fn arrived(&self, arrivals: Vec<Arrival>) {
        let bytes = weight(&arrivals);
        let before = self.unheard.bytes.fetch_add(bytes, Ordering::Relaxed);
        // A worker that has ended leaves them for the next one, on disk.
        if before + bytes <= self.unheard.bytes_max {
            let _ = self.news.send(Command::Arrived(arrivals));
            return;
        }
        self.unheard.bytes.fetch_sub(bytes, Ordering::Relaxed);
        let mut missed = self.unheard.missed();
        let first = missed.is_empty();
        missed.extend(arrivals.iter().map(|one| one.webhook));
        if first && !missed.is_empty() {
            let _ = self.news.send(Command::Missed);
        }
    }

    /// Notes that the worker has heard of these.
    pub(crate) fn heard(&self, arrivals: &[Arrival]) {
        self.unheard.bytes.fetch_sub(weight(arrivals), Ordering::Relaxed);
    }

    /// The webhooks that have deliveries on disk which nobody told of.
    pub(crate) fn missed(&self) -> BTreeSet<WebhookId> {
        std::mem::take(&mut *self.unheard.missed())
    }

    /// Tells that a webhook, or what waits for it, has changed on disk.
    pub fn changed(&self, webhook: WebhookId) {
        let _ = self.news.send(Command::Changed(webhook));
    }

    /// Tells that other settings are in force.
    pub fn reloaded(&self) {
        let _ = self.news.send(Command::Reloaded);
    }

    /// What the worker knows of these, in their order; nothing where it has ended.
    pub async fn statuses(&self, of: Vec<(WebhookId, DeliveryId)>) -> Vec<DeliveryStatus> {
        let count = of.len();
        let (answer, answered) = oneshot::channel();
        let _ = self.news.send(Command::Asked(of, answer));
        answered.await.unwrap_or_else(|_| vec![DeliveryStatus::default(); count])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_common::time::UnixTime;

    use super::*;
    use crate::domain::delivery::QueuedDelivery;
    use crate::domain::event::EventType;

    fn arrival(webhook: i64) -> Arrival {
        let ready = QueuedDelivery {
            id: DeliveryId(1),
            due: UnixTime(0),
            created_at: UnixTime(0),
            event_id: "evt_1".into(),
            kind: EventType::UserCreated,
            body: vec![b'x'; 488].into(),
            attempts: 0,
            step: 0,
            first_attempt_at: None,
            since: None,
            paused_before: Duration::ZERO,
            fresh_connection: false,
        };
        Arrival { webhook: WebhookId(webhook), ready }
    }

    #[test]
    fn what_is_not_heard_takes_bounded_memory_and_no_webhook_is_forgotten() {
        let (handle, mut inbox) = Mailbox::with_room(10_000);
        for nth in 0..1_000 {
            handle.arrived(vec![arrival(nth % 7)]);
        }
        let mut heard = 0;
        let mut missed = Vec::new();
        while let Ok(news) = inbox.try_recv() {
            match news {
                Command::Arrived(arrivals) => {
                    handle.heard(&arrivals);
                    heard += arrivals.len();
                }
                Command::Missed => missed.push(handle.missed()),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(heard, 10);
        assert_eq!(missed, [(0..7).map(WebhookId).collect()]);
        // There is room again, and news of what is missed.
        handle.arrived(vec![arrival(8)]);
        assert!(matches!(inbox.try_recv(), Ok(Command::Arrived(_))));
        handle.arrived((0..11).map(arrival).collect());
        assert!(matches!(inbox.try_recv(), Ok(Command::Missed)));
        handle.arrived((11..22).map(arrival).collect());
        assert!(inbox.try_recv().is_err(), "it was told that there is something");
        assert_eq!(handle.missed().len(), 22);
    }
}
