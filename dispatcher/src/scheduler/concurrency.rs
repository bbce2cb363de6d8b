//! Allocates in-flight slots to endpoints when they are scarce. (core)
//!
//! A slot is in use from the start of an attempt until its outcome is on disk: for a moment if the
//! receiver responds, up to the whole deadline if it does not. So slots are allocated by the
//! duration of an endpoint's last attempt, and the bytes of bodies in flight by the same rules. A
//! refused endpoint waits in a queue for its kind, first come, first served.
//!
//! # Invariants
//!
//! 1. Endpoints whose last attempt was slow or timed out use at most half of the slots, and
//!    together with endpoints without a history at most seven eighths: an eighth is for endpoints
//!    that respond without delay.
//! 2. An endpoint with an attempt in flight is refused the last quarter.
//! 3. An endpoint in a queue gets the next slot of its kind before later ones.
//! 4. An endpoint is in each queue at most once.
//!
//! Not here: the share of one workspace (`workspace_share`).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::domain::id::EndpointId;
use crate::scheduler::load::{Load, PARTS};
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::workspace_share::Shares;

/// The parts of [`PARTS`] for endpoints whose last attempt was slow or timed out. With half of
/// 4,096 slots and ten seconds an attempt, five thousand unresponsive endpoints each get an attempt
/// every 25 seconds.
const SLOW: usize = 4;

/// The parts for these and for endpoints without a history: a new endpoint does not wait for known
/// unresponsive ones, and cannot use the slots reserved for responsive ones.
const UNKNOWN: usize = 7;

/// The parts up to which an endpoint with an attempt in flight may start another.
const SECOND: usize = 6;

/// Why an endpoint gets no slot, and which queue it waits in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its last attempt was slow or timed out, and the share of such endpoints is used up.
    Slow,
    /// It has no history, and the share of such endpoints is used up.
    Unknown,
    /// It has an attempt in flight, and few slots are left.
    Second,
}

/// The queues that an endpoint waits in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parked(u8);

impl Parked {
    /// Adds a queue; returns whether the endpoint was not in it yet.
    fn insert(&mut self, why: Refused) -> bool {
        let before = self.0;
        self.0 |= 1 << why as u8;
        self.0 != before
    }

    /// Whether it waits in any queue.
    pub(super) fn is_somewhere(self) -> bool {
        self.0 != 0
    }

    /// Removes a queue.
    pub(super) fn remove(&mut self, why: Refused) {
        self.0 &= !(1 << why as u8);
    }
}

/// An endpoint's part of the totals: how its last attempt ended, and its load in flight.
pub(super) type Occupancy = (Option<Responsiveness>, Load);

/// The slots of all endpoints.
#[derive(Debug)]
pub(super) struct InFlightSlots {
    most: Load,
    used: Load,
    /// The load of endpoints that are not known to respond without delay.
    doubtful: Load,
    shares: Shares,
    /// Refused endpoints; evicted ones are skipped.
    slow: VecDeque<EndpointId>,
    unknown: VecDeque<EndpointId>,
    second: VecDeque<EndpointId>,
}

impl InFlightSlots {
    /// All slots free.
    pub(super) fn new(most: Load) -> Self {
        let [slow, unknown, second] = [const { VecDeque::new() }; 3];
        let (used, doubtful) = (Load::default(), Load::default());
        Self { most, used, doubtful, shares: Shares::default(), slow, unknown, second }
    }

    /// Changes the number of slots.
    pub(super) fn set_most(&mut self, most: Load) {
        self.most = most;
    }

    /// The load in flight.
    pub(super) fn used(&self) -> Load {
        self.used
    }

    /// Whether no slot is free.
    pub(super) fn are_full(&self) -> bool {
        self.used.reaches(PARTS, self.most)
    }

    /// Updates the totals after a change of one endpoint.
    pub(super) fn changed(&mut self, from: Occupancy, to: Occupancy) {
        let swap = |sum: &mut Load, from: Load, to: Load| {
            sum.attempts = sum.attempts + to.attempts - from.attempts;
            sum.bytes = sum.bytes + to.bytes - from.bytes;
        };
        let doubtful = |(last, load)| {
            if last == Some(Responsiveness::Prompt) { Load::default() } else { load }
        };
        swap(&mut self.used, from.1, to.1);
        swap(&mut self.doubtful, doubtful(from), doubtful(to));
    }

    /// Counts a started attempt of a workspace: the first of its webhook, or a further one.
    pub(super) fn started(&mut self, workspace: &Arc<str>, bytes: usize, first: bool) {
        self.shares.started(workspace, bytes, first);
    }

    /// Counts an ended attempt of a workspace: the last of its webhook, or one of several.
    pub(super) fn ended(&mut self, workspace: &Arc<str>, bytes: usize, last: bool) {
        self.shares.ended(workspace, bytes, last);
    }

    fn free(&self) -> Load {
        Load {
            attempts: self.most.attempts.saturating_sub(self.used.attempts),
            bytes: self.most.bytes.saturating_sub(self.used.bytes),
        }
    }

    /// Whether a workspace may start another attempt for a webhook that has one in flight. If not,
    /// parks the endpoint until it may.
    pub(super) fn admit_further_or_park(
        &mut self,
        workspace: &Arc<str>,
        endpoint: EndpointId,
    ) -> bool {
        let used_up = self.shares.is_used_up(workspace, self.free());
        if used_up {
            self.shares.park(workspace, endpoint);
        }
        !used_up
    }

    /// Why an endpoint gets no slot now; `None` if it gets one. Unless it was `unparked_from` the
    /// queue, it waits behind the endpoints there.
    pub(super) fn refused(
        &self,
        last: Option<Responsiveness>,
        in_flight: usize,
        unparked_from: Option<Refused>,
    ) -> Option<Refused> {
        let own = match last {
            Some(Responsiveness::Prompt) => None,
            Some(Responsiveness::Slow | Responsiveness::TimedOut) => Some(Refused::Slow),
            Some(Responsiveness::Unresolved) | None => Some(Refused::Unknown),
        };
        let second = Some(Refused::Second).filter(|_| in_flight > 0);
        let waits = |why| unparked_from != Some(why) && !self.queue(why).is_empty();
        [own, second].into_iter().flatten().find(|why| self.is_scarce(*why) || waits(*why))
    }

    fn is_scarce(&self, why: Refused) -> bool {
        let (used, parts) = match why {
            Refused::Slow => (self.doubtful, SLOW),
            Refused::Unknown => (self.doubtful, UNKNOWN),
            Refused::Second => (self.used, SECOND),
        };
        used.reaches(parts, self.most)
    }

    /// Parks an endpoint until such slots are free.
    pub(super) fn park(&mut self, id: EndpointId, why: Refused, parked: &mut Parked) {
        if parked.insert(why) {
            self.queue_mut(why).push_back(id);
        }
    }

    /// Unparks an endpoint that may get a slot, and returns the queue that it was in; `None` if it
    /// waited for its workspace's share.
    pub(super) fn unpark(&mut self) -> Option<(EndpointId, Option<Refused>)> {
        if self.are_full() {
            return None;
        }
        // Endpoints that respond fast come first.
        let why = [Refused::Second, Refused::Unknown, Refused::Slow];
        let why = why.into_iter().find(|why| !self.is_scarce(*why) && !self.queue(*why).is_empty());
        match why {
            Some(why) => self.queue_mut(why).pop_front().map(|id| (id, Some(why))),
            None => self.shares.unpark(self.free()).map(|id| (id, None)),
        }
    }

    fn queue(&self, why: Refused) -> &VecDeque<EndpointId> {
        match why {
            Refused::Slow => &self.slow,
            Refused::Unknown => &self.unknown,
            Refused::Second => &self.second,
        }
    }

    fn queue_mut(&mut self, why: Refused) -> &mut VecDeque<EndpointId> {
        match why {
            Refused::Slow => &mut self.slow,
            Refused::Unknown => &mut self.unknown,
            Refused::Second => &mut self.second,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const YES: Option<Responsiveness> = Some(Responsiveness::Prompt);
    const NO: Option<Responsiveness> = Some(Responsiveness::TimedOut);

    /// Slots with unlimited bytes.
    fn with_slots(attempts: usize) -> InFlightSlots {
        InFlightSlots::new(Load { attempts, bytes: usize::MAX / PARTS })
    }

    fn many(attempts: usize) -> Load {
        Load { attempts, bytes: 0 }
    }

    /// How many endpoints of each kind get one of `total` slots, in turn.
    fn shares(total: usize, kinds: &[Option<Responsiveness>]) -> Vec<usize> {
        let mut slots = with_slots(total);
        let share = |last: &Option<Responsiveness>| {
            let mut started = 0;
            while !slots.are_full() && slots.refused(*last, 0, None).is_none() {
                slots.changed((*last, many(0)), (*last, many(1)));
                started += 1;
            }
            started
        };
        kinds.iter().map(share).collect()
    }

    #[test]
    fn unresponsive_endpoints_get_half_new_ones_more_and_responsive_ones_all() {
        assert_eq!(shares(4_096, &[NO, None, YES]), [2_048, 1_536, 512]);
        assert_eq!(shares(4_096, &[None, NO, YES]), [3_584, 0, 512]);
        assert_eq!(shares(4_096, &[YES, NO, None]), [4_096, 0, 0]);
    }

    #[test]
    fn of_few_slots_every_kind_gets_one() {
        for total in 1..20 {
            for kind in [YES, NO, None] {
                assert!(shares(total, &[kind])[0] > 0, "{kind:?} of {total}");
            }
        }
    }

    #[test]
    fn an_endpoint_with_an_attempt_in_flight_is_refused_the_last_quarter() {
        let mut slots = with_slots(100);
        for used in 0..100 {
            let expected = (used >= 75).then_some(Refused::Second);
            assert_eq!(slots.refused(YES, 1, None), expected, "{used} taken");
            assert_eq!(slots.refused(YES, 0, None), None);
            slots.changed((YES, many(used)), (YES, many(used + 1)));
        }
        assert!(slots.are_full());
    }

    #[test]
    fn attempts_in_flight_count_by_how_the_endpoints_last_attempt_ended() {
        let mut slots = with_slots(8);
        slots.changed((None, many(0)), (None, many(5)));
        assert_eq!(slots.refused(NO, 0, None), Some(Refused::Slow));
        // One of the five gets a response: the other four count as responsive.
        slots.changed((None, many(5)), (YES, many(4)));
        assert_eq!(slots.refused(NO, 0, None), None);
        slots.changed((YES, many(4)), (NO, many(3)));
        assert_eq!((slots.used().attempts, slots.refused(NO, 0, None)), (3, None));
        slots.changed((NO, many(3)), (NO, many(4)));
        assert_eq!((slots.used().attempts, slots.refused(NO, 0, None)), (4, Some(Refused::Slow)));
    }

    #[test]
    fn a_parked_endpoint_is_unparked_once_when_such_slots_are_free() {
        let mut slots = with_slots(8);
        let mut aside = Parked::default();
        slots.changed((NO, many(0)), (NO, many(4)));
        for _ in 0..3 {
            slots.park(EndpointId(1), Refused::Slow, &mut aside);
        }
        slots.park(EndpointId(1), Refused::Second, &mut aside);
        assert_eq!(slots.unpark(), Some((EndpointId(1), Some(Refused::Second))));
        assert_eq!(slots.unpark(), None, "half of the slots are in use");
        slots.changed((NO, many(4)), (NO, many(3)));
        assert_eq!(slots.unpark(), Some((EndpointId(1), Some(Refused::Slow))));
        assert_eq!(slots.unpark(), None, "it was unparked");
        aside.remove(Refused::Slow);
        slots.park(EndpointId(1), Refused::Slow, &mut aside);
        assert_eq!(slots.unpark(), Some((EndpointId(1), Some(Refused::Slow))));
    }

    #[test]
    fn a_later_endpoint_waits_behind_those_in_the_queue() {
        let mut slots = with_slots(8);
        let mut aside = Parked::default();
        slots.park(EndpointId(1), Refused::Slow, &mut aside);
        assert_eq!(slots.refused(NO, 0, None), Some(Refused::Slow));
        assert_eq!(slots.refused(NO, 0, Some(Refused::Slow)), None);
        assert_eq!(slots.refused(None, 0, None), None, "it waits for another kind");
    }
}
