//! Renews the slots of requests in flight that are in use, and returns the others, by calls.
//!
//! Not here: which slots these are (`shared::slot_leasing`), when heartbeats are sent
//! (`shared::connecting`).

use std::time::Duration;

use weir_common::time::Tick;

use super::super::memory::Store;
use super::super::{CHECKS_MAX, LimitCheck};
use super::SharedStore;
use super::call::{CallMode, SharedCheck, SlotRequest};
use super::connecting::is_on;
use super::remote::{self, Over, RemoteError};
use super::servers::errors::CallError;
use super::servers::nodes::NodeSet;

/// How long a heartbeat renews leases.
const RENEW_MAX: Duration = Duration::from_millis(250);

impl SharedStore {
    /// Renews the slots that a server's keys have in use, and returns the others; all of them where
    /// no `store` is given.
    pub(super) async fn renew_slots(
        &self,
        (known, over): (&NodeSet, Over<'_>),
        store: Option<&Store>,
    ) -> Result<(), RemoteError> {
        let started_at = self.clock.now().tick;
        let [_, now] = over.node.time.range(started_at);
        let there = |check: &LimitCheck| is_on(known, over.node, check.slot);
        let mut due = self.slots.renew((store, self.id_bits), now, there);
        due.sort_by_key(|(check, _)| check.slot);
        // The keys of one call have one slot.
        for one_slot in due.chunk_by(|(one, _), (other, _)| one.slot == other.slot) {
            for some in one_slot.chunks(CHECKS_MAX) {
                let call = |(check, request): &(LimitCheck, SlotRequest)| SharedCheck {
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
                if self.clock.now().tick.since(started_at) > RENEW_MAX {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}
