//! A compact list of deliveries, ordered by due time. (core)
//!
//! A node of a B-tree has space for eleven entries: with one or two deliveries for each of
//! thousands of webhooks it would use ten times the memory.
//!
//! Invariant: the capacity is at most twice the length, except shortly after a shrink.

use std::collections::VecDeque;

use weir_common::time::{Tick, UnixTime};

use crate::domain::delivery::QueuedDelivery;
use crate::domain::id::DeliveryId;

/// The order of a delivery in its webhook's queue.
pub(super) type Key = (UnixTime, DeliveryId);

/// A delivery in memory.
#[derive(Debug)]
pub(super) struct Queued {
    /// When it may start, by the monotonic clock.
    pub(super) at: Tick,
    pub(super) delivery: QueuedDelivery,
}

impl Queued {
    pub(super) fn key(&self) -> Key {
        (self.delivery.due, self.delivery.id)
    }

    /// The bytes of its body.
    pub(super) fn bytes(&self) -> usize {
        self.delivery.body.len()
    }
}

/// Deliveries in order.
#[derive(Debug, Default)]
pub(super) struct ReadyList(VecDeque<Queued>);

impl ReadyList {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.0.iter()
    }

    pub(super) fn last(&self) -> Option<Key> {
        self.0.back().map(Queued::key)
    }

    /// Inserts a delivery; returns the one with the same key.
    pub(super) fn insert(&mut self, queued: Queued) -> Option<Queued> {
        match self.0.binary_search_by_key(&queued.key(), Queued::key) {
            Ok(place) => self.0.get_mut(place).map(|there| std::mem::replace(there, queued)),
            Err(place) => {
                if self.0.len() == self.0.capacity() {
                    self.0.reserve_exact(self.0.len().max(1));
                }
                self.0.insert(place, queued);
                None
            }
        }
    }

    pub(super) fn remove(&mut self, key: Key) -> Option<Queued> {
        let place = self.0.binary_search_by_key(&key, Queued::key).ok()?;
        let queued = self.0.remove(place);
        self.fit();
        queued
    }

    pub(super) fn pop_last(&mut self) -> Option<Queued> {
        let last = self.0.pop_back();
        self.fit();
        last
    }

    /// Removes all after `key`.
    pub(super) fn after(&mut self, key: Key) -> VecDeque<Queued> {
        let place = self.0.partition_point(|queued| queued.key() <= key);
        let after = self.0.split_off(place);
        self.fit();
        after
    }

    pub(super) fn clear(&mut self) {
        self.0 = VecDeque::new();
    }

    fn fit(&mut self) {
        if self.0.len() * 4 <= self.0.capacity() {
            self.0.shrink_to(self.0.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::domain::event::EventType;

    fn queued(due: u64, id: i64) -> Queued {
        let delivery = QueuedDelivery {
            id: DeliveryId(id),
            due: UnixTime(due),
            created_at: UnixTime(0),
            event_id: "evt_1".into(),
            kind: EventType::new("user.created"),
            body: bytes::Bytes::new(),
            attempts: 0,
            step: 0,
            first_attempt_at: None,
            since: None,
            paused_before: Duration::ZERO,
            redeliveries: 0,
            fresh_connection: false,
        };
        Queued { at: Tick(due), delivery }
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_sorted_map_with_little_capacity(
            steps in proptest::collection::vec((0..5_u8, 0..6_u64, 0..6_i64), 0..200),
        ) {
            let (mut line, mut map) = (ReadyList::default(), BTreeMap::new());
            for (what, due, id) in steps {
                let key = (UnixTime(due), DeliveryId(id));
                match what {
                    0 | 1 => assert_eq!(
                        line.insert(queued(due, id)).map(|one| one.key()),
                        map.insert(key, ()).map(|()| key)
                    ),
                    2 => assert_eq!(
                        line.remove(key).map(|one| one.key()),
                        map.remove(&key).map(|()| key)
                    ),
                    3 => assert_eq!(
                        line.pop_last().map(|one| one.key()),
                        map.pop_last().map(|(key, ())| key)
                    ),
                    _ => {
                        let next = (UnixTime(due), DeliveryId(id + 1));
                        let after = map.split_off(&next);
                        let removed = line.after(key);
                        assert!(removed.iter().map(Queued::key).eq(after.keys().copied()));
                    }
                }
                assert!(line.iter().map(Queued::key).eq(map.keys().copied()));
                assert_eq!((line.len(), line.is_empty()), (map.len(), map.is_empty()));
                assert_eq!(line.last(), map.last_key_value().map(|(key, ())| *key));
                assert!(line.0.capacity() <= 4 * line.len().max(1));
            }
            line.clear();
            assert_eq!((line.len(), line.0.capacity()), (0, 0));
        }
    }
}
