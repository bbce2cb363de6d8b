//! The way to the worker: what others tell it and ask it.

use tokio::sync::{mpsc, oneshot};
use weir_common::time::UnixTime;

use crate::model::{Arrival, DeliveryId, WebhookId};

/// What the worker is told.
#[derive(Debug)]
pub enum News {
    /// Deliveries have come to wait.
    Arrived(Vec<Arrival>),
    /// A webhook was changed, deleted or reactivated, or deliveries of it were put back.
    Changed(WebhookId),
    /// Other settings are in force.
    Reloaded,
    /// Somebody wants to know why deliveries wait.
    Asked(Vec<(WebhookId, DeliveryId)>, oneshot::Sender<Vec<Standing>>),
}

/// What the worker knows of a delivery that waits on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whether an attempt is under way.
    pub in_flight: bool,
    /// When the pace of its endpoint, or the failures of a probe, allow the next attempt, where
    /// that is later than now.
    pub held_until: Option<UnixTime>,
}

/// The way to the worker.
#[derive(Clone, Debug)]
pub struct Handle {
    news: mpsc::UnboundedSender<News>,
}

impl Handle {
    /// The way, and where it leads.
    #[must_use]
    pub fn new() -> (Self, mpsc::UnboundedReceiver<News>) {
        let (news, inbox) = mpsc::unbounded_channel();
        (Self { news }, inbox)
    }

    /// Tells of deliveries that are on disk and wait.
    pub fn arrived(&self, arrivals: Vec<Arrival>) {
        // A worker that has ended leaves them for the next one, on disk.
        let _ = self.news.send(News::Arrived(arrivals));
    }

    /// Tells that a webhook, or what waits for it, has changed on disk.
    pub fn changed(&self, webhook: WebhookId) {
        let _ = self.news.send(News::Changed(webhook));
    }

    /// Tells that other settings are in force.
    pub fn reloaded(&self) {
        let _ = self.news.send(News::Reloaded);
    }

    /// What the worker knows of these, in their order; nothing where it has ended.
    pub async fn standings(&self, of: Vec<(WebhookId, DeliveryId)>) -> Vec<Standing> {
        let count = of.len();
        let (answer, answered) = oneshot::channel();
        let _ = self.news.send(News::Asked(of, answer));
        answered.await.unwrap_or_else(|_| vec![Standing::default(); count])
    }
}
