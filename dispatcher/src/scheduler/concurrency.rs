//! Whose turn it is when places for attempts are scarce.
//!
//! A place is taken from the start of an attempt until its outcome is on disk: a moment where the
//! receiver answers, up to the whole deadline where it does not. So places go by how long an
//! endpoint's last attempt took, and the bytes of bodies under way by the same rules as places. An
//! endpoint that is refused waits until there is a place for such as it is, first come, first
//! served; none of another kind waits with it.
//!
//! # Invariants
//!
//! 1. Endpoints whose last attempt was slow, or timed out, have no more than half of the places
//!    under
//!    way, and together with endpoints that nothing is known of no more than seven eighths: those
//!    that answer without delay have an eighth to themselves.
//! 2. An endpoint that has something under way is refused the last quarter.
//! 3. Who waits for a place of a kind has the next such place before whoever comes later.
//! 4. An endpoint is in each queue once at most.
//!
//! Not here: what one workspace may have of them (`workspace_share`).

use std::collections::VecDeque;
use std::sync::Arc;

use crate::domain::id::EndpointId;
use crate::scheduler::load::{Load, PARTS};
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::workspace_share::Shares;

/// Of [`PARTS`], so many are for endpoints whose last attempt was slow or timed out. With half of
/// 4,096 places and ten seconds an attempt, five thousand unresponsive endpoints are each tried
/// every 25 seconds.
const SLOW: usize = 4;

/// For endpoints that nothing is known of, and those: whoever is new waits for no black hole that
/// is known to be one, and takes nothing from those that are known to answer.
const UNKNOWN: usize = 7;

/// For endpoints that have something under way.
const SECOND: usize = 6;

/// Why an endpoint is refused a place, and what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// Its last attempt was slow or timed out, and such endpoints have their share.
    Slow,
    /// Nothing is known of it, and such endpoints have theirs.
    Unknown,
    /// It has something under way, and few places are left.
    Second,
}

/// Which queues an endpoint waits in.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parked(u8);

impl Parked {
    /// Notes that it waits for this; says whether it did not already.
    fn begin(&mut self, why: Refused) -> bool {
        let before = self.0;
        self.0 |= 1 << why as u8;
        self.0 != before
    }

    /// Notes that it does not wait for this any more.
    pub(super) fn over(&mut self, why: Refused) {
        self.0 &= !(1 << why as u8);
    }
}

/// What an endpoint counts for: how its last attempt ended, and what is under way.
pub(super) type Occupancy = (Option<Responsiveness>, Load);

/// The places of all endpoints together.
#[derive(Debug)]
pub(super) struct InFlightSlots {
    most: Load,
    taken: Load,
    /// Those of endpoints that are not known to answer without delay.
    doubtful: Load,
    shares: Shares,
    /// Endpoints that were refused. One that is forgotten in the meantime is passed over.
    slow: VecDeque<EndpointId>,
    unknown: VecDeque<EndpointId>,
    second: VecDeque<EndpointId>,
}

impl InFlightSlots {
    /// So many, all free.
    pub(super) fn new(most: Load) -> Self {
        let [slow, unknown, second] = [const { VecDeque::new() }; 3];
        let (taken, doubtful) = (Load::default(), Load::default());
        Self { most, taken, doubtful, shares: Shares::default(), slow, unknown, second }
    }

    /// There are more, or fewer, from now on.
    pub(super) fn set_most(&mut self, most: Load) {
        self.most = most;
    }

    /// What is taken.
    pub(super) fn taken(&self) -> Load {
        self.taken
    }

    /// Whether nothing may start.
    pub(super) fn are_taken(&self) -> bool {
        self.taken.reaches(PARTS, self.most)
    }

    /// Takes into account that an endpoint has come to stand otherwise.
    pub(super) fn changed(&mut self, from: Occupancy, to: Occupancy) {
        let swap = |sum: &mut Load, from: Load, to: Load| {
            sum.attempts = sum.attempts + to.attempts - from.attempts;
            sum.bytes = sum.bytes + to.bytes - from.bytes;
        };
        let doubtful = |(last, load)| {
            if last == Some(Responsiveness::Prompt) { Load::default() } else { load }
        };
        swap(&mut self.taken, from.1, to.1);
        swap(&mut self.doubtful, doubtful(from), doubtful(to));
    }

    /// Notes that an attempt of a workspace has started: the first of its webhook, or one more.
    pub(super) fn started(&mut self, workspace: &Arc<str>, bytes: usize, first: bool) {
        self.shares.started(workspace, bytes, first);
    }

    /// Notes that an attempt of a workspace has ended: the last of its webhook, or one of several.
    pub(super) fn ended(&mut self, workspace: &Arc<str>, bytes: usize, last: bool) {
        self.shares.ended(workspace, bytes, last);
    }

    fn free(&self) -> Load {
        Load {
            attempts: self.most.attempts.saturating_sub(self.taken.attempts),
            bytes: self.most.bytes.saturating_sub(self.taken.bytes),
        }
    }

    /// Whether a workspace may start another attempt for a webhook that has one under way. Where it
    /// may not, its endpoint is left out until it may.
    pub(super) fn has_room(&mut self, workspace: &Arc<str>, endpoint: EndpointId) -> bool {
        let used_up = self.shares.is_used_up(workspace, self.free());
        if used_up {
            self.shares.park(workspace, endpoint);
        }
        !used_up
    }

    /// Why an endpoint that stands so may start nothing now, or `None` where it may. Whoever was
    /// not called back lines up behind those that wait.
    pub(super) fn refused(
        &self,
        last: Option<Responsiveness>,
        in_flight: usize,
        called_back: Option<Refused>,
    ) -> Option<Refused> {
        let own = match last {
            Some(Responsiveness::Prompt) => None,
            Some(Responsiveness::Slow | Responsiveness::TimedOut) => Some(Refused::Slow),
            Some(Responsiveness::Unresolved) | None => Some(Refused::Unknown),
        };
        let second = Some(Refused::Second).filter(|_| in_flight > 0);
        let waits = |why| called_back != Some(why) && !self.queue(why).is_empty();
        [own, second].into_iter().flatten().find(|why| self.is_scarce(*why) || waits(*why))
    }

    fn is_scarce(&self, why: Refused) -> bool {
        let (taken, parts) = match why {
            Refused::Slow => (self.doubtful, SLOW),
            Refused::Unknown => (self.doubtful, UNKNOWN),
            Refused::Second => (self.taken, SECOND),
        };
        taken.reaches(parts, self.most)
    }

    /// Leaves an endpoint out until there are such places again.
    pub(super) fn park(&mut self, id: EndpointId, why: Refused, parked: &mut Parked) {
        if parked.begin(why) {
            self.queue_mut(why).push_back(id);
        }
    }

    /// Gives an endpoint that there may be a place for again, and what it waited for unless that
    /// was its workspace's share.
    pub(super) fn unpark(&mut self) -> Option<(EndpointId, Option<Refused>)> {
        if self.are_taken() {
            return None;
        }
        // Those first that are sure to be done soon.
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

    /// So many, with room for bodies without end.
    fn places(attempts: usize) -> InFlightSlots {
        InFlightSlots::new(Load { attempts, bytes: usize::MAX / PARTS })
    }

    fn many(attempts: usize) -> Load {
        Load { attempts, bytes: 0 }
    }

    /// Of so many places, how many endpoints of this kind get one each after those before.
    fn shares(total: usize, kinds: &[Option<Responsiveness>]) -> Vec<usize> {
        let mut places = places(total);
        let share = |last: &Option<Responsiveness>| {
            let mut started = 0;
            while !places.are_taken() && places.refused(*last, 0, None).is_none() {
                places.changed((*last, many(0)), (*last, many(1)));
                started += 1;
            }
            started
        };
        kinds.iter().map(share).collect()
    }

    #[test]
    fn endpoints_that_time_out_have_half_strangers_more_and_those_that_answer_all() {
        assert_eq!(shares(4_096, &[NO, None, YES]), [2_048, 1_536, 512]);
        assert_eq!(shares(4_096, &[None, NO, YES]), [3_584, 0, 512]);
        assert_eq!(shares(4_096, &[YES, NO, None]), [4_096, 0, 0]);
    }

    #[test]
    fn of_few_places_everybody_has_one() {
        for total in 1..20 {
            for kind in [YES, NO, None] {
                assert!(shares(total, &[kind])[0] > 0, "{kind:?} of {total}");
            }
        }
    }

    #[test]
    fn an_endpoint_that_has_something_under_way_is_refused_the_last_quarter() {
        let mut places = places(100);
        for taken in 0..100 {
            let expected = (taken >= 75).then_some(Refused::Second);
            assert_eq!(places.refused(YES, 1, None), expected, "{taken} taken");
            assert_eq!(places.refused(YES, 0, None), None);
            places.changed((YES, many(taken)), (YES, many(taken + 1)));
        }
        assert!(places.are_taken());
    }

    #[test]
    fn what_an_endpoint_has_under_way_counts_by_how_its_last_attempt_ended() {
        let mut places = places(8);
        places.changed((None, many(0)), (None, many(5)));
        assert_eq!(places.refused(NO, 0, None), Some(Refused::Slow));
        // One of the five is answered: no doubt is left of the four.
        places.changed((None, many(5)), (YES, many(4)));
        assert_eq!(places.refused(NO, 0, None), None);
        places.changed((YES, many(4)), (NO, many(3)));
        assert_eq!((places.taken().attempts, places.refused(NO, 0, None)), (3, None));
        places.changed((NO, many(3)), (NO, many(4)));
        assert_eq!(
            (places.taken().attempts, places.refused(NO, 0, None)),
            (4, Some(Refused::Slow))
        );
    }

    #[test]
    fn whoever_was_left_out_is_called_back_once_when_there_are_such_places() {
        let mut places = places(8);
        let mut aside = Parked::default();
        places.changed((NO, many(0)), (NO, many(4)));
        for _ in 0..3 {
            places.park(EndpointId(1), Refused::Slow, &mut aside);
        }
        places.park(EndpointId(1), Refused::Second, &mut aside);
        assert_eq!(places.unpark(), Some((EndpointId(1), Some(Refused::Second))));
        assert_eq!(places.unpark(), None, "half of the places are taken");
        places.changed((NO, many(4)), (NO, many(3)));
        assert_eq!(places.unpark(), Some((EndpointId(1), Some(Refused::Slow))));
        assert_eq!(places.unpark(), None, "it was called back");
        aside.over(Refused::Slow);
        places.park(EndpointId(1), Refused::Slow, &mut aside);
        assert_eq!(places.unpark(), Some((EndpointId(1), Some(Refused::Slow))));
    }

    #[test]
    fn whoever_comes_later_lines_up_behind_those_that_wait() {
        let mut places = places(8);
        let mut aside = Parked::default();
        places.park(EndpointId(1), Refused::Slow, &mut aside);
        assert_eq!(places.refused(NO, 0, None), Some(Refused::Slow));
        assert_eq!(places.refused(NO, 0, Some(Refused::Slow)), None);
        assert_eq!(places.refused(None, 0, None), None, "it waits for something else");
    }
}
