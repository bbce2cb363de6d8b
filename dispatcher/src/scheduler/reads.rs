//! What is to be read from the store next, and how much of that at a time.
//!
//! A hundred thousand webhooks may have something to be read at one time: what waits for its turn
//! is kept as the few words that it is, and becomes a task, which takes ten times as much, when it
//! is read.
//!
//! # Invariants
//!
//! 1. No more than [`READS_MAX`] reads are with the store.
//! 2. Webhooks that are not known yet and work of those that are take turns: what is known of a
//!    webhook that was read leads to its first delivery before a hundred thousand others are read.
//!    Within each, what came first is read first.
//! 3. What failed comes again after a pause, and keeps no place from others in the meantime.

use std::collections::VecDeque;
use std::time::Duration;

use weir_common::time::Tick;

use crate::domain::delivery::{Fetched, QueuedDelivery};
use crate::domain::id::{DeliveryId, WebhookId};
use crate::domain::webhook::Queue;

/// Reads at a time: each is a task, and a step of a reactivation takes a place among what the
/// store's writer lets wait.
const READS_MAX: usize = 256;

/// How long after a failure the store is asked again.
pub const STORE_PAUSE: Duration = Duration::from_millis(500);

/// Something the store is asked.
#[derive(Debug, PartialEq, Eq)]
pub enum StoreRead {
    /// This webhook, and when its first delivery is due.
    Load(WebhookId),
    /// To put the next deliveries of a reactivated webhook into order.
    Reorder(WebhookId),
    /// What waits for a webhook.
    Fetch {
        /// For whom.
        webhook: WebhookId,
        /// For so many.
        limit: usize,
        /// Not for these, which are under way.
        but: Vec<DeliveryId>,
        /// To be handed back with the answer.
        round: u64,
    },
    /// This delivery, which probes.
    FetchOne {
        /// For whom.
        webhook: WebhookId,
        /// What.
        delivery: DeliveryId,
        /// To be handed back with the answer.
        round: u64,
    },
}

/// What the store answers.
#[derive(Debug)]
pub enum StoreAnswer {
    /// To [`StoreRead::Load`]: the webhook, unless it is deleted.
    Loaded(Option<Box<Queue>>),
    /// To [`StoreRead::Load`]: it could not be read.
    NotLoaded,
    /// To [`StoreRead::Reorder`]: all are in order.
    Reordered,
    /// To [`StoreRead::Reorder`]: there are more.
    ReorderedSome,
    /// To [`StoreRead::Fetch`], of this round.
    Fetched(u64, Fetched),
    /// To [`StoreRead::FetchOne`], of this round: the delivery, where it waits.
    FetchedOne(u64, Option<QueuedDelivery>),
    /// To all but [`StoreRead::Load`]: the store could not.
    Failed,
}

/// A hundred thousand may wait.
const _: () = assert!(size_of::<StoreRead>() <= 64);

/// Whose turn it is.
#[derive(Debug, Default)]
enum Next {
    #[default]
    Work,
    Load,
}

/// Reads that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct StoreReads {
    /// Webhooks to be read: one for each that there is, at most.
    loads: VecDeque<WebhookId>,
    /// All else.
    work: VecDeque<StoreRead>,
    next: Next,
    /// Those that are not to be read before then: all wait for as long, so they are in order.
    delayed: VecDeque<(Tick, StoreRead)>,
    /// How many are with the store.
    with_store: usize,
}

impl StoreReads {
    /// Lines a read up.
    pub(super) fn push(&mut self, read: StoreRead) {
        match read {
            StoreRead::Load(webhook) => self.loads.push_back(webhook),
            work => self.work.push_back(work),
        }
    }

    /// Lines a read up that failed a moment ago.
    pub(super) fn push_later(&mut self, read: StoreRead, now: Tick) {
        self.delayed.push_back((now.plus(STORE_PAUSE), read));
    }

    /// What is to be read now: it is with the store until [`Self::answered`].
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

    /// Notes that one of those with the store is answered.
    pub(super) fn answered(&mut self) {
        self.with_store = self.with_store.saturating_sub(1);
    }

    fn first(&mut self) -> Option<StoreRead> {
        let load_is_next = matches!(std::mem::take(&mut self.next), Next::Load);
        if (load_is_next || self.work.is_empty())
            && let Some(webhook) = self.loads.pop_front()
        {
            fit(&mut self.loads);
            return Some(StoreRead::Load(webhook));
        }
        self.next = Next::Load;
        let read = self.work.pop_front();
        fit(&mut self.work);
        read
    }

    /// Whether any is with the store, or is to be again.
    pub(super) fn are_waited_for(&self) -> bool {
        self.with_store > 0 || !self.delayed.is_empty()
    }

    /// When one that failed may be read again.
    pub(super) fn next_at(&self) -> Option<Tick> {
        self.delayed.front().map(|(at, _)| *at)
    }
}

/// Gives back what is only for the many that once waited.
fn fit<T>(line: &mut VecDeque<T>) {
    if line.is_empty() {
        line.shrink_to(READS_MAX);
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
    fn so_many_are_asked_at_a_time_and_all_in_their_order() {
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
    fn webhooks_to_be_read_and_work_of_those_that_are_known_take_turns() {
        let mut reads = StoreReads::default();
        (0..3).for_each(|id| reads.push(load(id)));
        assert_eq!(reads.next(Tick(0)), Some(load(0)));
        (0..3).for_each(|id| reads.push(work(id)));
        let read: Vec<StoreRead> = std::iter::from_fn(|| reads.next(Tick(0))).collect();
        assert_eq!(read, [work(0), load(1), work(1), load(2), work(2)]);
    }

    #[test]
    fn one_that_rests_holds_nobody_up_and_comes_when_it_is_time() {
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
