//! Lets lookups of tenants wait for their turns.
//!
//! # Invariants
//!
//! 1. At most one lookup of each name has a turn, and at most [`LOOKUPS_MAX`] of names that exist
//!    and as many of others: a name that may be invented delays none that exists.
//! 2. Those of others are shared by network ([`FairSemaphore`]), and at most [`PER_ADDRESS_MAX`]
//!    are of one address: however many names a network invents, those of others get a turn.
//! 3. A lookup that waits keeps the lookup of the same name from no other network.
//!
//! # Not here
//!
//! How long a request waits, what it does in its turn (`directory`).

use std::net::IpAddr;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::identity::fair_semaphore::{FairPermit, FairSemaphore};
use crate::identity::keyed_semaphore::{KeyedPermit, KeyedSemaphore};
use crate::limit::key::{Key, Owner};

/// Turns at one time: with a directory that takes 1 ms for each, 64,000 lookups a second.
const LOOKUPS_MAX: usize = 64;

/// Turns at one time of one address, for names that may be invented: an address leaves room to
/// others of its network.
const PER_ADDRESS_MAX: usize = 16;

/// The turns of all lookups.
pub(super) struct LookupTurns {
    by_name: KeyedSemaphore<Owner>,
    known: Semaphore,
    by_address: KeyedSemaphore<Key>,
    by_network: FairSemaphore<IpAddr>,
}

/// Whose lookup it is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Party {
    /// A name that exists.
    Known,
    /// A name that this address of this network may have invented.
    Caller(Key, IpAddr),
}

/// A turn, which ends when dropped.
pub(super) struct Turn<'t> {
    _of_name: KeyedPermit<'t, Owner>,
    _of_party: PartyTurn<'t>,
}

/// Held until it is dropped.
enum PartyTurn<'t> {
    Known { _one: Option<SemaphorePermit<'t>> },
    Caller { _of_address: KeyedPermit<'t, Key>, _of_network: FairPermit<'t, IpAddr> },
}

impl LookupTurns {
    pub(super) fn new() -> Self {
        Self {
            by_name: KeyedSemaphore::new(1),
            known: Semaphore::new(LOOKUPS_MAX),
            by_address: KeyedSemaphore::new(PER_ADDRESS_MAX),
            by_network: FairSemaphore::new(LOOKUPS_MAX),
        }
    }

    /// Waits for a turn; `None` if another lookup of this name has had one meanwhile. After that,
    /// `again` waits for it as the next of this name.
    pub(super) async fn next(&self, name: Owner, party: Party, again: bool) -> Option<Turn<'_>> {
        let of_party = match party {
            // The semaphore is never closed.
            Party::Known => PartyTurn::Known { _one: self.known.acquire().await.ok() },
            Party::Caller(address, network) => PartyTurn::Caller {
                _of_address: self.by_address.acquire(address).await,
                _of_network: self.by_network.acquire(network).await,
            },
        };
        let of_name = match self.by_name.try_acquire(name) {
            // Lookups that waited for another one would keep each other from a turn forever.
            None if again => Some(self.by_name.acquire(name).await),
            of_name => of_name,
        };
        if let Some(of_name) = of_name {
            return Some(Turn { _of_name: of_name, _of_party: of_party });
        }
        drop(of_party);
        drop(self.by_name.acquire(name).await);
        None
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::limit::key::{Scope, Seed};

    fn name(nth: usize) -> Owner {
        Seed::new([7; 16]).owner(Scope::Workspace, nth.to_string().as_bytes())
    }

    /// An address, the `nth` of a network.
    fn caller(network: u8, nth: usize) -> Party {
        let seed = Seed::new([7; 16]);
        let owner = seed.owner(Scope::Address, format!("{network} {nth}").as_bytes());
        Party::Caller(Key::new(owner, seed.limit("unknown names")), [192, 0, 2, network].into())
    }

    /// Whether one party's lookup of a name has a turn at once, while others wait and hold turns.
    fn check(before: impl Iterator<Item = (usize, Party)>, last: (usize, Party), expected: bool) {
        let turns = LookupTurns::new();
        let mut context = Context::from_waker(Waker::noop());
        let mut others = Vec::new();
        for (nth, party) in before {
            let mut turn = Box::pin(turns.next(name(nth), party, false));
            let polled = turn.as_mut().poll(&mut context);
            others.push((turn, polled));
        }
        let last = pin!(turns.next(name(last.0), last.1, false)).poll(&mut context);
        assert_eq!(matches!(last, Poll::Ready(Some(_))), expected);
    }

    #[test]
    fn invented_names_of_one_network_delay_no_other_and_those_of_all_no_known_name() {
        let of_one = || (0..1_500).map(|nth| (nth, caller(1, nth)));
        check(of_one(), (9_999, caller(1, 9_999)), false);
        check(of_one(), (9_999, caller(2, 0)), true);
        let of_all = || (0..200).map(|nth| (usize::from(nth), caller(nth, 0)));
        check(of_all(), (9_999, caller(201, 0)), false);
        check(of_all(), (9_999, Party::Known), true);
    }

    #[test]
    fn a_name_that_waits_in_one_network_has_its_turn_in_another_and_only_one_at_a_time() {
        let of_one = (0..1_500).map(|nth| (nth, caller(1, nth)));
        check(of_one, (1_400, caller(2, 0)), true);
        check([(7, caller(1, 0))].into_iter(), (7, caller(2, 0)), false);
        check([(7, caller(1, 0))].into_iter(), (7, Party::Known), false);
    }

    #[test]
    fn lookups_that_waited_for_one_that_was_given_up_have_their_turns_one_after_the_other() {
        let turns = LookupTurns::new();
        let first = pin!(turns.next(name(7), Party::Known, false));
        let mut context = Context::from_waker(Waker::noop());
        let first = first.poll(&mut context);
        let had_turns = Cell::new(0);
        let lookup = async || {
            assert!(turns.next(name(7), Party::Known, false).await.is_none());
            assert!(turns.next(name(7), Party::Known, true).await.is_some());
            had_turns.set(had_turns.get() + 1);
        };
        let mut others: Vec<_> = (0..10).map(|_| Some(Box::pin(lookup()))).collect();
        let mut poll_each = || {
            for own in &mut others {
                let polled = own.as_mut().map(|own| own.as_mut().poll(&mut context));
                if polled.is_some_and(|polled| polled.is_ready()) {
                    *own = None;
                }
            }
        };
        poll_each();
        drop(first);
        (0..30).for_each(|_| poll_each());
        assert_eq!(had_turns.get(), 10);
    }
}
