//! Limits how many queries of an identity server the tokens of an address can cause.
//!
//! A token that is not cached costs the server a query. One that turns out not to be valid is
//! charged to the address that sent it, so that it can cause no more of them than `limits.refused`
//! allows. Valid ones are not charged, and neither are refusals for other reasons: an office behind
//! one address is refused for neither.

use std::sync::Arc;

use weir_common::identity::QueryTurns;
use weir_common::time::Tick;

use crate::identity::keyed_semaphore::{KeyedPermit, KeyedSemaphore};
use crate::limit::LimitCheck;
use crate::limit::key::Owner;
use crate::limit::limiter::Limiter;

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
#[derive(Debug)]
pub struct AddressTurns<'s> {
    /// The queries of all addresses.
    pub in_flight: &'s QueriesInFlight,
    /// The address.
    pub address: Owner,
    /// Has what the address is charged.
    pub limiter: &'s Arc<Limiter>,
    /// What a token that is not valid charges; none where they are not limited.
    pub invalid: Option<LimitCheck>,
    /// When the request arrived.
    pub now: Tick,
}

impl AddressTurns<'_> {
    fn is_used_up(&self) -> bool {
        self.invalid.is_some_and(|check| {
            let (store, now) = self.limiter.own(self.now);
            store.usage(&check, now).is_ok_and(|usage| usage.remaining == 0)
        })
    }
}

impl<'s> QueryTurns for AddressTurns<'s> {
    type Turn = KeyedPermit<'s, Owner>;

    async fn turn(&self) -> Option<Self::Turn> {
        if self.is_used_up() {
            return None;
        }
        let permit = self.in_flight.0.acquire(self.address).await;
        // Those before it may have used up the rest.
        (!self.is_used_up()).then_some(permit)
    }

    fn charge(&self) {
        if let Some(check) = &self.invalid {
            let (store, now) = self.limiter.own(self.now);
            // Of concurrent queries the last may not fit: they are no more than are in flight.
            let _ = store.judge(&[*check], now);
        }
    }
}
