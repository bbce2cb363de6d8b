//! The gateways of a run, and their clients.
//!
//! Not here: a gateway itself (`gateway`), the network (`network`), what fails when (`plan`).

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::time::sleep;
use weir_common::limit::decision::Decision;
use weir_common::time::{Tick, UnixTime, micros};
use weir_gateway::limit::key::{Key, LimitTag};
use weir_gateway::limit::limiter::Limiter;
use weir_gateway::limit::shared::{BEAT_EVERY, SharedConfig};
use weir_gateway::limit::{LimitCheck, Quota};
use weir_tests::admissions::{Admissions, Outcome, Sent};
use weir_tests::rng::SeededRng;

use super::gateway::{Gateway, address, decide};
use super::network::Network;
use super::plan::Plan;
use super::virtual_time::{BOOTED, Clocks, clock_at};

/// The gateways of a run.
pub(crate) struct Fleet {
    pub(crate) plan: Plan,
    pub(crate) network: Rc<Network>,
    pub(crate) history: RefCell<Admissions>,
    clocks: Clocks,
    places: Vec<RefCell<Option<Gateway>>>,
    processes: Vec<Cell<usize>>,
    seed: u64,
    streams: Cell<u64>,
}

impl Fleet {
    pub(crate) fn new(plan: Plan, network: Rc<Network>, clocks: Clocks, seed: u64) -> Rc<Self> {
        let places = (0..plan.gateways).map(|_| RefCell::new(None)).collect();
        let processes = (0..plan.gateways).map(|_| Cell::new(0)).collect();
        let (history, streams) = (RefCell::default(), Cell::new(100));
        Rc::new(Self { plan, network, history, clocks, places, processes, seed, streams })
    }

    /// Random numbers that no other part of the run has.
    pub(crate) fn rng(&self) -> SeededRng {
        self.streams.set(self.streams.get() + 1);
        SeededRng::stream(self.seed, self.streams.get())
    }

    /// Starts a gateway at this place, with clients, as the program does.
    pub(crate) fn start(self: &Rc<Self>, place: usize) {
        let mut rng = self.rng();
        let now = self.network.now();
        let clock = clock_at(now);
        // Its machine's clock may be wrong.
        clock.set(UnixTime(now + rng.below(4_000_000) - 2_000_000));
        self.clocks.lock().unwrap().push(clock.clone());
        let config = SharedConfig {
            address: address(self.plan.has_sentinel(), self.plan.acknowledge()),
            timeout: self.plan.timeout,
            gateways_min: self.plan.gateways as u32,
            fingerprint: "f".to_owned(),
            id: format!("{:016x}", rng.next()),
        };
        let mut gateway = Gateway::start(&clock, Some((config, self.network.way(place))));
        for _ in 0..self.plan.clients {
            let (fleet, limiter) = (self.clone(), gateway.limiter.clone());
            let started = gateway.started.clone();
            gateway.tasks.spawn_local(async move {
                started.notified().await;
                fleet.client(place, limiter).await;
            });
        }
        *self.places[place].borrow_mut() = Some(gateway);
    }

    /// Kills a gateway: its requests end without an answer, and it is no witness any more.
    pub(crate) fn kill(&self, place: usize) {
        let gateway = self.places[place].borrow_mut().take();
        let Some(Gateway { mut tasks, .. }) = gateway else { return };
        tasks.abort_all();
        let (now, process) = (self.network.now(), self.processes[place].get());
        self.processes[place].set(process + 1);
        let mut history = self.history.borrow_mut();
        history.killed.push((place, process, now));
        self.end_requests(&mut history, place, now);
    }

    /// Ends a gateway as an operator does.
    pub(crate) async fn stop(&self, place: usize) {
        let gateway = self.places[place].borrow_mut().take();
        let Some(Gateway { limiter, mut tasks, .. }) = gateway else { return };
        tasks.abort_all();
        while tasks.join_next().await.is_some() {}
        let (now, process) = (self.network.now(), self.processes[place].get());
        self.processes[place].set(process + 1);
        self.history.borrow_mut().killed.push((place, process, now));
        self.end_requests(&mut self.history.borrow_mut(), place, now);
        if let Some(shared) = &limiter.shared {
            shared.end().await;
        }
    }

    fn end_requests(&self, history: &mut Admissions, place: usize, now: u64) {
        let own = history.sent.iter_mut().filter(|one| one.gateway == place);
        own.for_each(|one| one.ended = one.ended.min(now));
    }

    /// Makes requests one after the other: many at once, then some time none.
    async fn client(&self, place: usize, limiter: Arc<Limiter>) {
        let mut rng = self.rng();
        loop {
            let burst = 1 + rng.below(12);
            for _ in 0..burst {
                self.request(place, &limiter, &mut rng).await;
                sleep(rng.millis(1, self.plan.pause)).await;
            }
            sleep(rng.millis(5, 900)).await;
        }
    }

    async fn request(&self, place: usize, limiter: &Arc<Limiter>, rng: &mut SeededRng) {
        let tenant = rng.below(2) as usize;
        let limits = self.plan.limits_of(tenant);
        let cost = if self.plan.counts_in_flight() { 1 } else { 1 + rng.below(2) as u32 };
        let sent = self.network.now();
        let nth = self.history.borrow().sent.len();
        self.history.borrow_mut().sent.push(Sent {
            gateway: place,
            process: self.processes[place].get(),
            limits: limits.clone(),
            refused_by: Vec::new(),
            cost,
            outcome: Outcome::Nothing,
            sent,
            // A call is sent within its time, and charges within that from then on by the gateway's
            // estimate of the server's time: that is ahead by what a heartbeat took at most.
            answered: sent + micros(2 * self.plan.timeout + BEAT_EVERY) + 10_000,
            ended: u64::MAX,
        });
        let mut checks: Vec<LimitCheck> =
            limits.iter().map(|limit| self.check(*limit, cost)).collect();
        // The monotonic clocks of all machines agree: none of them is shown to another.
        let now = Tick(self.network.now() - BOOTED);
        let verdict = decide(limiter, &mut checks, now).await;
        let answered = self.network.now();
        let verdict = {
            let mut history = self.history.borrow_mut();
            let own = &mut history.sent[nth];
            let Ok(verdict) = verdict else {
                own.outcome = Outcome::Unavailable;
                if answered == sent {
                    // It made no call, so it is charged nowhere.
                    own.limits.clear();
                }
                return;
            };
            own.answered = answered;
            own.outcome = if verdict.is_admitted() { Outcome::Admitted } else { Outcome::Refused };
            let refuses = verdict.answers().zip(&limits);
            let refuses = refuses.filter(|(answer, _)| answer.decision != Decision::Admit);
            own.refused_by = refuses.map(|(_, limit)| *limit).collect();
            verdict
        };
        if verdict.is_admitted() && self.plan.counts_in_flight() {
            sleep(rng.millis(1, 400)).await;
            let now = self.network.now();
            let mut history = self.history.borrow_mut();
            history.sent[nth].ended = now;
        }
        drop(verdict);
    }

    fn check(&self, limit: usize, cost: u32) -> LimitCheck {
        let quota: Quota = self.plan.limits[limit];
        let bits = limit as u128 + 1;
        // Each key is in a shard of its own, so that no order of a hash map matters.
        let key = Key::from_bits(bits << 96 | bits);
        LimitCheck {
            cost,
            known: true,
            slot: 1,
            on_failure: self.plan.on_failure,
            ..LimitCheck::new(key, LimitTag::from_bits(bits), quota)
        }
    }
}
