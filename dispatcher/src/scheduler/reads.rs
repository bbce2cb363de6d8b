//! The queue of reads from the store. (core)
//!
//! A hundred thousand webhooks may need a read at one time. A queued read is a few words of memory;
//! it becomes a task, which is ten times as large, only when it starts.
//!
//! # Invariants
//!
//! 1. At most [`READS_MAX`] reads are with the store.
//! 2. Reads of webhooks and reads of deliveries alternate, so that a webhook's first delivery does
//!    not wait for a hundred thousand other webhooks. Each kind is first in, first out.
//! 3. A failed read is repeated after a pause, and uses no slot until then.

use std::collections::VecDeque;
use std::time::Duration;

use weir_common::time::Tick;

use crate::domain::delivery::{Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::webhook::Queue;

/// Reads with the store at a time: each is a task, and a step of a reactivation waits in the queue
/// of the store's writer.
const READS_MAX: usize = 256;

/// The pause after a failed read or write.
pub const STORE_PAUSE: Duration = Duration::from_millis(500);

/// A read from the store.
#[derive(Debug, PartialEq, Eq)]
pub enum StoreRead {
    /// This webhook, and when its first delivery is due.
    Load(WebhookId),
    /// The next step of ordering a reactivated webhook's deliveries.
    Reorder(WebhookId),
    /// The waiting deliveries of a webhook.
    Fetch {
        /// The webhook.
        webhook: WebhookId,
        /// At most this many.
        limit: usize,
        /// Excluded deliveries: they are in flight.
        but: Vec<DeliveryId>,
        /// Returned with the result.
        round: u64,
    },
    /// The probe of a webhook.
    FetchOne {
        /// The webhook.
        webhook: WebhookId,
        /// The delivery.
        delivery: DeliveryId,
        /// Returned with the result.
        round: u64,
    },
}

/// The result of a [`StoreRead`].
#[derive(Debug)]
pub enum StoreAnswer {
    /// Of [`StoreRead::Load`]: the webhook, unless it was deleted.
    Loaded(Option<Box<Queue>>),
    /// Of [`StoreRead::Load`]: the read failed.
    NotLoaded,
    /// Of [`StoreRead::Reorder`]: all deliveries are in order.
    Reordered,
    /// Of [`StoreRead::Reorder`]: more steps are needed.
    ReorderedSome,
    /// Of [`StoreRead::Fetch`], with its round.
    Fetched(u64, Fetched),
    /// Of [`StoreRead::FetchOne`], with its round: the delivery, if it waits.
    FetchedOne(u64, Option<QueuedDelivery>),
    /// Of all but [`StoreRead::Load`]: the read failed.
    Failed,
}

/// A hundred thousand reads may be queued, so each is small.
const _: () = assert!(size_of::<StoreRead>() <= 64);

/// The kind that is read next.
#[derive(Debug, Default)]
enum Next {
    #[default]
    Work,
    Load,
}

/// The queued reads.
#[derive(Debug, Default)]
pub(super) struct StoreReads {
    /// Webhooks to read, each at most once.
    loads: VecDeque<WebhookId>,
    /// All other reads.
    work: VecDeque<StoreRead>,
    next: Next,
    /// Failed reads with the time of their repetition; the pause is constant, so they are in order.
    delayed: VecDeque<(Tick, StoreRead)>,
    /// The number of reads with the store.
    with_store: usize,
}

impl StoreReads {
    /// Queues a read.
    pub(super) fn push(&mut self, read: StoreRead) {
        match read {
            StoreRead::Load(webhook) => self.loads.push_back(webhook),
            work => self.work.push_back(work),
        }
    }

    /// Queues a failed read.
    pub(super) fn push_later(&mut self, read: StoreRead, now: Tick) {
        self.delayed.push_back((now.plus(STORE_PAUSE), read));
    }

    /// The next read to start; it is with the store until [`Self::answered`].
    pub(super) fn next(&mut self, now: Tick) -> Option<StoreRead> {
        while let Some((_, read)) = self.delayed.pop_front_if(|(at, _)| *at <= now) {
            self.push(read);
        }
        if self.with_store >= READS_MAX {
            return None;
        }
        let read = self.first()?;
        self.with_store += 1;
        Some(read)
    }

    /// Counts a finished read.
    pub(super) fn answered(&mut self) {
        self.with_store = self.with_store.saturating_sub(1);
    }

    fn first(&mut self) -> Option<StoreRead> {
        let load_is_next = matches!(std::mem::take(&mut self.next), Next::Load);
        if (load_is_next || self.work.is_empty())
            && let Some(webhook) = self.loads.pop_front()
        {
            shrink(&mut self.loads);
            return Some(StoreRead::Load(webhook));
        }
        self.next = Next::Load;
        let read = self.work.pop_front();
        shrink(&mut self.work);
        read
    }

    /// Whether any read is with the store or will be repeated.
    pub(super) fn are_waited_for(&self) -> bool {
        self.with_store > 0 || !self.delayed.is_empty()
    }

    /// When the next failed read is repeated.
    pub(super) fn next_at(&self) -> Option<Tick> {
        self.delayed.front().map(|(at, _)| *at)
    }
}

/// Releases the capacity of an earlier burst.
fn shrink<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() {
        queue.shrink_to(READS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(id: usize) -> StoreRead {
        StoreRead::Load(WebhookId(i64::try_from(id).expect("it is small")))
    }

    fn work(id: usize) -> StoreRead {
        StoreRead::Reorder(WebhookId(i64::try_from(id).expect("it is small")))
    }

    #[test]
    fn reads_are_bounded_and_first_in_first_out() {
        for read in [load, work] {
            let mut reads = StoreReads::default();
            (0..3 * READS_MAX).for_each(|id| reads.push(read(id)));
            for id in 0..3 * READS_MAX {
                if id >= READS_MAX {
                    assert!(reads.next(Tick(0)).is_none());
                    reads.answered();
                }
                assert_eq!(reads.next(Tick(0)), Some(read(id)));
            }
            (0..READS_MAX).for_each(|_| reads.answered());
            assert!(reads.next(Tick(0)).is_none() && !reads.are_waited_for());
            let kept = reads.loads.capacity() + reads.work.capacity();
            assert!(kept <= 2 * READS_MAX, "{kept} are kept of what it once took");
        }
    }

    #[test]
    fn reads_of_webhooks_and_of_deliveries_alternate() {
        let mut reads = StoreReads::default();
        (0..3).for_each(|id| reads.push(load(id)));
        assert_eq!(reads.next(Tick(0)), Some(load(0)));
        (0..3).for_each(|id| reads.push(work(id)));
        let read: Vec<StoreRead> = std::iter::from_fn(|| reads.next(Tick(0))).collect();
        assert_eq!(read, [work(0), load(1), work(1), load(2), work(2)]);
    }

    #[test]
    fn a_failed_read_delays_no_other_and_is_repeated_in_time() {
        let mut reads = StoreReads::default();
        let (now, then) = (Tick(1), Tick(1).plus(STORE_PAUSE));
        (0..2 * READS_MAX).for_each(|id| reads.push_later(load(id), now));
        reads.push(load(7_000));
        assert_eq!(reads.next_at(), Some(then));
        let before = Tick(then.0 - 1);
        assert_eq!(reads.next(before), Some(load(7_000)), "it is not delayed");
        assert_eq!(reads.next(before), None);
        assert_eq!((reads.next(then), reads.next_at()), (Some(load(0)), None));
    }
}
