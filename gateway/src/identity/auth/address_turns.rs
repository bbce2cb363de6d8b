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
//! 2. Of all addresses that have been charged as many, at most [`QUERIES_OF_SUSPECTS_MAX`] are:
//!    however slowly the server rejects their tokens, those of others get a turn.

use std::net::IpAddr;
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};
use weir_common::identity::{Fruitless, QueryTurns};
use weir_common::time::{Clock, Tick};

use crate::identity::keyed_semaphore::{KeyedPermit, KeyedSemaphore};
use crate::limit::key::Owner;
use crate::limit::limiter::Limiter;
use crate::rules::Rules;
use crate::rules::charges::TokenChecks;
use crate::rules::tenant::Subject;

/// Queries of one address in flight: a quarter of all, so that no address delays the others'.
const QUERIES_PER_ADDRESS_MAX: u32 = 16;

/// Queries in flight of all addresses that have been charged often: three quarters of all.
const QUERIES_OF_SUSPECTS_MAX: usize = 48;

/// The queries in flight.
#[derive(Debug)]
pub struct QueriesInFlight {
    /// By the address whose tokens caused them.
    by_address: KeyedSemaphore<Owner>,
    of_suspects: Semaphore,
}

impl Default for QueriesInFlight {
    fn default() -> Self {
        Self {
            by_address: KeyedSemaphore::new(QUERIES_PER_ADDRESS_MAX as usize),
            of_suspects: Semaphore::new(QUERIES_OF_SUSPECTS_MAX),
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
    _of_suspects: Option<SemaphorePermit<'s>>,
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

    /// Whether as many of its queries were charged as it may have in flight.
    fn is_suspect(&self) -> bool {
        self.checks().is_some_and(|(checks, now)| {
            checks.each().iter().any(|check| {
                let reserve = check.quota.limit().saturating_sub(QUERIES_PER_ADDRESS_MAX);
                !self.limiter.has_local_room(check, reserve, now)
            })
        })
    }
}

impl<'s> QueryTurns for AddressTurns<'s> {
    type Turn = AddressTurn<'s>;

    async fn turn(&self) -> Option<Self::Turn> {
        if self.is_used_up() {
            return None;
        }
        let owner = Subject::address(self.rules.seed(), self.address).owner;
        let of_address = self.in_flight.by_address.acquire(owner).await;
        let of_suspects = match self.is_suspect() {
            // The semaphore is never closed.
            true => self.in_flight.of_suspects.acquire().await.ok(),
            false => None,
        };
        let turn = AddressTurn { _of_address: of_address, _of_suspects: of_suspects };
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
