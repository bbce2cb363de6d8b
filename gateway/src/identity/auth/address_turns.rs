//! Limits how many queries of an identity server the tokens of an address can cause.
//!
//! A token that is not cached costs the server a query. One that turns out not to be valid, or that
//! the server has not answered, is charged to the address that sent it, so that it can cause no
//! more of them than `limits.refused` allows. Valid ones are not charged, and neither are refusals
//! for other reasons: an office behind one address is refused for neither.
//!
//! # Invariants
//!
//! 1. Of one address at most [`QUERIES_PER_ADDRESS_MAX`] queries are in flight.
//! 2. Introspections, each of which occupies the server, are shared by network ([`FairSemaphore`]):
//!    however slowly the server answers the tokens of some, those of others get a turn.
//!
//! Not here: requests with one token of one address share a turn (`weir_common::identity`).

use std::net::IpAddr;
use std::sync::Arc;

use weir_common::identity::{Fruitless, Query, QueryTurns};
use weir_common::time::{Clock, Tick};

use crate::identity::fair_semaphore::{FairPermit, FairSemaphore};
use crate::identity::keyed_semaphore::{KeyedPermit, KeyedSemaphore};
use crate::limit::key::Owner;
use crate::limit::limiter::Limiter;
use crate::request::client_address::prefix_48;
use crate::rules::Rules;
use crate::rules::charges::TokenChecks;
use crate::rules::tenant::Subject;

/// Queries of one address in flight.
const QUERIES_PER_ADDRESS_MAX: u32 = 16;

/// Introspections in flight: as many as a client of the server sends at once.
const INTROSPECTIONS_MAX: usize = 64;

/// The queries in flight.
#[derive(Debug)]
pub struct QueriesInFlight {
    /// By the address whose tokens caused them.
    by_address: KeyedSemaphore<Owner>,
    /// Introspections, by the network of the address.
    by_network: FairSemaphore<IpAddr>,
}

impl Default for QueriesInFlight {
    fn default() -> Self {
        Self {
            by_address: KeyedSemaphore::new(QUERIES_PER_ADDRESS_MAX as usize),
            by_network: FairSemaphore::new(INTROSPECTIONS_MAX),
        }
    }
}

/// The turns of the tokens of one address.
pub struct AddressTurns<'s> {
    /// The queries of all addresses.
    pub in_flight: &'s QueriesInFlight,
    /// The address.
    pub address: IpAddr,
    /// Has what the address is charged.
    pub limiter: &'s Arc<Limiter>,
    /// Has how much that is.
    pub rules: &'s Rules,
    /// Read only here, where a token is not cached.
    pub clock: &'s Clock,
}

/// A turn, which ends when dropped.
pub struct AddressTurn<'s> {
    _of_address: KeyedPermit<'s, Owner>,
    _of_network: Option<FairPermit<'s, IpAddr>>,
}

impl AddressTurns<'_> {
    /// What a token that is not valid charges now; none where they are not limited.
    fn checks(&self) -> Option<(TokenChecks, Tick)> {
        let now = self.clock.now();
        Some((self.rules.token_checks(self.address, now)?, now.tick))
    }

    fn is_used_up(&self) -> bool {
        self.checks().is_some_and(|(checks, now)| {
            !checks.each().iter().all(|check| self.limiter.has_local_room(check, 0, now))
        })
    }

    fn owner(&self) -> Owner {
        Subject::address(self.rules.seed(), self.address).owner
    }
}

impl<'s> QueryTurns for AddressTurns<'s> {
    type Turn = AddressTurn<'s>;

    fn caller(&self) -> u128 {
        self.owner().bits()
    }

    async fn turn(&self, query: Query) -> Option<Self::Turn> {
        if self.is_used_up() {
            return None;
        }
        let of_address = self.in_flight.by_address.acquire(self.owner()).await;
        let of_network = match query {
            Query::Keys => None,
            Query::Introspection => {
                Some(self.in_flight.by_network.acquire(prefix_48(self.address)).await)
            }
        };
        let turn = AddressTurn { _of_address: of_address, _of_network: of_network };
        // Those before it may have used up the rest.
        (!self.is_used_up()).then_some(turn)
    }

    fn charge(&self, why: Fruitless) {
        if let Some((checks, now)) = self.checks() {
            let check = match why {
                Fruitless::Invalid => checks.invalid,
                Fruitless::Unanswered => checks.unanswered,
            };
            // What concurrent queries exceed it by is no more than may be in flight.
            self.limiter.charge_local(&check, now);
        }
    }
}
