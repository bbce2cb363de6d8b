//! A store of limits under test: a gateway's memory, or a store that one gateway has alone or that
//! two share.
//!
//! Not here: what it promises (`conformance`).

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;
use weir_common::time::{Clock, Tick};
use weir_gateway::limit::limiter::Limiter;
use weir_gateway::limit::{LimitCheck, Verdict};
use weir_tests::rng::SeededRng;

use crate::gateway::{Gateway, config, decide};
use crate::network::Network;
use crate::virtual_time::{Clocks, clock_at};

/// After this every gateway knows of a change, and has returned what it does not use.
pub(super) const SETTLES: Duration = Duration::from_secs(1);

/// A store.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Memory,
    SharedByOne,
    SharedByTwo,
}

/// A store as requests and operators use it.
pub(super) struct Subject {
    pub(super) gateways: Vec<Gateway>,
    pub(super) network: Rc<Network>,
    clock: Clock,
    /// The requests so far.
    requests: Cell<usize>,
}

impl Subject {
    pub(super) async fn start(kind: Kind, clocks: &Clocks, start: u64) -> Self {
        let clock = clock_at(start);
        clocks.lock().unwrap().push(clock.clone());
        let network = Network::start(SeededRng::new(1), start, (0, 0), None);
        let gateways = |count: usize| {
            let sharing = |nth: usize| Some((config(nth, count), network.way(nth)));
            (0..count).map(|nth| Gateway::start(&clock, sharing(nth))).collect()
        };
        let gateways = match kind {
            Kind::Memory => vec![Gateway::start(&clock, None)],
            Kind::SharedByOne => gateways(1),
            Kind::SharedByTwo => gateways(2),
        };
        sleep(SETTLES).await;
        Self { gateways, network, clock, requests: Cell::new(0) }
    }

    pub(super) fn now(&self) -> Tick {
        self.clock.now().tick
    }

    /// The gateway of the next request.
    pub(super) fn next(&self) -> &Arc<Limiter> {
        let nth = self.requests.replace(self.requests.get() + 1);
        &self.gateways[nth % self.gateways.len()].limiter
    }

    pub(super) async fn decide(&self, checks: &[LimitCheck]) -> Verdict {
        decide(self.next(), &mut checks.to_vec(), self.now()).await.unwrap()
    }

    /// How many of so many requests are admitted.
    pub(super) async fn admitted(&self, checks: &[LimitCheck], times: usize) -> usize {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += usize::from(self.decide(checks).await.is_admitted());
        }
        admitted
    }

    /// The calls that a shared store has answered.
    pub(super) fn calls(&self) -> u64 {
        let shared = self.gateways.iter().filter_map(|gateway| gateway.limiter.shared.as_ref());
        shared.map(|shared| shared.counts.answered.load(Ordering::Relaxed)).sum()
    }

    /// What is left of a check's key, as an operator sees it when no gateway holds a part of it.
    pub(super) async fn left(&self, check: &LimitCheck) -> u32 {
        sleep(SETTLES).await;
        self.next().usage(check, self.now()).await.unwrap().remaining
    }
}
