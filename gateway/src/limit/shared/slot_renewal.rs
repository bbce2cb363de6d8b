//! Renews the slots of requests in flight that are in use, and returns the others, by calls.
//!
//! Not here: which slots these are (`shared::slot_leasing`), when heartbeats are sent
//! (`shared::connecting`).

use std::time::Duration;

use weir_common::time::Tick;

use super::super::memory::MemoryStore;
use super::super::{CHECKS_MAX, LimitCheck};
use super::SharedStore;
use super::call::{CallMode, SharedCheck, SlotRequest};
use super::connecting::is_on;
use super::remote::{self, RemoteError};
use super::servers::errors::CallError;
use super::servers::join;
use super::servers::node::Over;
use super::servers::nodes::NodeSet;

/// How long a heartbeat renews leases.
const RENEW_MAX: Duration = Duration::from_millis(250);

/// How many calls travel at once: requests wait behind them for some milliseconds at most.
const AT_ONCE: usize = 32;

/// A check, and what is called for its key.
type Renewal = (LimitCheck, SlotRequest);

impl SharedStore {
    /// Renews the slots that a server's keys have in use, and returns the others; all of them where
    /// no `store` is given.
    pub(super) async fn renew_slots(
        &self,
        known: &NodeSet,
        over: Over<'_>,
        store: Option<&MemoryStore>,
    ) -> Result<(), RemoteError> {
        let started_at = self.clock.now().tick;
        let [_, now] = over.node.time.range(started_at);
        let there = |check: &LimitCheck| is_on(known, over.node, check.slot);
        let mut due = self.slots.renew((store, self.id_bits), now, there);
        due.sort_by_key(|(check, _)| check.slot);
        // The keys of one call have one slot in a Cluster.
        let is_one =
            |one: &Renewal, other: &Renewal| !self.nodes.is_cluster() || one.0.slot == other.0.slot;
        let calls = due.chunk_by(is_one).flat_map(|some| some.chunks(CHECKS_MAX));
        let calls: Vec<&[Renewal]> = calls.collect();
        for some in calls.chunks(AT_ONCE) {
            let renewed = some.iter().map(|keys| self.renew_some(over, keys));
            join::all(renewed).await.into_iter().collect::<Result<(), RemoteError>>()?;
            if self.clock.now().tick.since(started_at) > RENEW_MAX {
                break;
            }
        }
        Ok(())
    }

    /// Renews and returns the slots of a few keys with one call.
    async fn renew_some(&self, over: Over<'_>, some: &[Renewal]) -> Result<(), RemoteError> {
        let call = |(check, request): &Renewal| SharedCheck {
            cost: 0,
            slots: Some(*request),
            ..remote::unclaimed(check)
        };
        let calls: Vec<SharedCheck> = some.iter().map(call).collect();
        match self.call(over, &calls, CallMode::Charge).await {
            Ok((reply, _)) => {
                for ((check, request), found) in some.iter().zip(&reply.results) {
                    let renewed = (check.key, *request);
                    self.slots.renewed(renewed, found, Tick(reply.now.0));
                }
            }
            // It cannot read one of them: the leases end by themselves.
            Err(RemoteError::Call(CallError::Faulty(why))) => self.report_fault(&why),
            // The next heartbeat finds where they are.
            Err(RemoteError::Call(CallError::Moving)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }
}
