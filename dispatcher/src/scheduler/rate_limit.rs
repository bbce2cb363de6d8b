//! How many attempts may start, and which earlier starts count: also those of other processes.
//!
//! Not here: when a start is admitted (`pick`), how starts are counted (`weir_common::limit`).

use weir_common::limit::rolling::{Log, Quota};
use weir_common::time::Tick;

use crate::domain::id::LaneId;
use crate::scheduler::{Lanes, most};

/// How fast deliveries may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Attempts that may start on one lane within a window.
    pub quota: Quota,
    /// Attempts under way on one lane.
    pub per_lane: usize,
    /// Attempts under way, all together.
    pub total: usize,
}

impl Lanes {
    /// Goes on at another pace.
    pub fn set_pace(&mut self, pace: Pace, now: Tick) {
        self.pace = pace;
        self.places.set_most(most(pace, self.held_bytes_max));
        let lanes: Vec<LaneId> = self.lanes.keys().copied().collect();
        for id in lanes {
            if let Some(lane) = self.lanes.get_mut(&id) {
                // One that times out keeps the little that it has; it grows with what is answered.
                lane.room = lane.room.min(pace.per_lane);
                lane.starts.fit(pace.quota, now);
            }
            self.put(id, now);
        }
    }

    /// Counts an attempt that started before this process did.
    pub fn seed(&mut self, lane: LaneId, started: Tick) {
        let quota = self.pace.quota;
        let _ = self.lane(lane).starts.charge(quota, 1, started);
    }

    /// Counts, on every lane, attempts that may have started before `at`, before this process did,
    /// and left no trace: which webhooks led where by then is not known any more. To be told last,
    /// and of the oldest first.
    pub fn suspect(&mut self, count: usize, at: Tick) {
        self.unseen.push((count, at));
        for lane in self.lanes.values_mut() {
            lane.starts = suspicious(std::mem::take(&mut lane.starts), self.pace.quota, count, at);
        }
    }
}

/// The log with so many more starts, as far as they change anything.
pub(super) fn suspicious(mut starts: Log, quota: Quota, count: usize, at: Tick) -> Log {
    for _ in 0..count {
        let _ = starts.charge(quota, 1, at);
    }
    starts
}
