//! Limits how many queries of an identity server the tokens of an address can cause.
//!
//! A token that is not cached costs the server a query. One that turns out not to be valid, or that
//! the server has not answered, is charged to the address that sent it, so that it can cause no
//! more of them than `limits.refused` allows. Valid ones are not charged, and neither are refusals
//! for other reasons: an office behind one address is refused for neither.

use std::net::IpAddr;
use std::sync::Arc;

use weir_common::identity::QueryTurns;
use weir_common::time::{Clock, Tick};

use crate::identity::keyed_semaphore::{KeyedPermit, KeyedSemaphore};
use crate::limit::LimitCheck;
use crate::limit::key::Owner;
use crate::limit::limiter::Limiter;
use crate::rules::Rules;
use crate::rules::tenant::Subject;

/// Queries of one address in flight: a quarter of all, so that no address delays the others'.
const QUERIES_PER_ADDRESS_MAX: usize = 16;

/// The queries in flight, by the address whose tokens caused them.
#[derive(Debug)]
pub struct QueriesInFlight(KeyedSemaphore<Owner>);

impl Default for QueriesInFlight {
    fn default() -> Self {
        Self(KeyedSemaphore::new(QUERIES_PER_ADDRESS_MAX))
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

impl AddressTurns<'_> {
    /// What a token that is not valid charges now; none where they are not limited.
    fn invalid(&self) -> Option<(LimitCheck, Tick)> {
        let now = self.clock.now();
        Some((self.rules.invalid_token(self.address, now)?, now.tick))
    }

    fn is_used_up(&self) -> bool {
        self.invalid().is_some_and(|(check, now)| !self.limiter.has_local_room(&check, 0, now))
    }
}

impl<'s> QueryTurns for AddressTurns<'s> {
    type Turn = KeyedPermit<'s, Owner>;

    async fn turn(&self) -> Option<Self::Turn> {
        if self.is_used_up() {
            return None;
        }
        let owner = Subject::address(self.rules.seed(), self.address).owner;
        let permit = self.in_flight.0.acquire(owner).await;
        // Those before it may have used up the rest.
        (!self.is_used_up()).then_some(permit)
    }

    fn charge(&self) {
        if let Some((check, now)) = self.invalid() {
            // What concurrent queries exceed it by is no more than may be in flight.
            self.limiter.charge_local(&check, now);
        }
    }
}
