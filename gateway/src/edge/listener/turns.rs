//! Lets the TLS handshakes of a worker compute in turn, so that many of them delay no other task.
//!
//! A signature takes a core up to a millisecond, and a worker has one thread: without turns a
//! request would wait for all handshakes that are ready.
//!
//! # Invariants
//!
//! 1. While all other tasks together need less time than handshakes, one step of a handshake runs
//!    between two runs of those that are ready.
//! 2. While they need more, handshakes have up to as much, in [`TURNS_MAX`] turns at one time.
//! 3. Networks with handshakes take turns, however many of them one has.
//!
//! # Not here
//!
//! What a handshake does (`tls`), how long it may take (`listener`).

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use weir_common::time::Clock;

use crate::identity::fair_semaphore::FairSemaphore;
use crate::request::client_address::network_of;

/// Turns at one time, at most. One network has a quarter of them at most.
const TURNS_MAX: usize = 64;

/// The turns of one worker.
#[derive(Debug)]
pub(super) struct HandshakeTurns {
    of_network: FairSemaphore<IpAddr>,
    clock: Clock,
}

impl HandshakeTurns {
    /// One turn at a time, at first.
    pub(super) fn new(clock: Clock) -> Self {
        Self { of_network: FairSemaphore::new(1), clock }
    }

    /// Runs a handshake with a client at `address`; each of its steps waits for a turn.
    pub(super) async fn run<T>(&self, address: IpAddr, handshake: impl Future<Output = T>) -> T {
        let mut handshake = pin!(handshake);
        loop {
            let mut turn = Some(self.of_network.acquire(network_of(address)).await);
            let began = self.clock.now().tick;
            // Other tasks run, and sockets are polled.
            tokio::task::yield_now().await;
            let yielded = self.clock.now().tick;
            let step = poll_fn(|context| match turn {
                // Something has arrived.
                None => Poll::Ready(None),
                Some(_) => {
                    let polled = handshake.as_mut().poll(context).map(Some);
                    let step = self.clock.now().tick.since(yielded);
                    self.adapt(yielded.since(began), step);
                    turn = None;
                    polled
                }
            });
            if let Some(done) = step.await {
                return done;
            }
        }
    }

    /// After a step that took `step`, while between two of them `all` went by, other handshakes
    /// included: turns become more while handshakes need less than half of the time.
    fn adapt(&self, all: Duration, step: Duration) {
        self.of_network.resize(|turns, taken| {
            let of_handshakes = step.saturating_mul(u32::try_from(taken).unwrap_or(u32::MAX));
            if all > of_handshakes.saturating_mul(2) {
                turns.saturating_add(1).min(TURNS_MAX)
            } else {
                turns.saturating_sub(1).max(1)
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::sync::oneshot;
    use tokio::task::{LocalSet, yield_now};
    use weir_common::time::UnixTime;

    use super::*;

    /// What ran, in order.
    #[derive(Clone, Default)]
    struct Trace(Rc<RefCell<Vec<&'static str>>>);

    impl Trace {
        fn add(&self, what: &'static str) {
            self.0.borrow_mut().push(what);
        }
    }

    fn run(test: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        LocalSet::new().block_on(&runtime, test);
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn turns() -> HandshakeTurns {
        HandshakeTurns::new(Clock::manual(UnixTime(0)))
    }

    #[test]
    fn handshakes_get_as_much_time_as_other_tasks_and_no_more() {
        const STEP: Duration = Duration::from_millis(1);
        run(async {
            let (turns, trace) = (Rc::new(turns()), Trace::default());
            let handshakes = (0..200).map(|nth| {
                let (turns, trace) = (turns.clone(), trace.clone());
                tokio::task::spawn_local(async move {
                    let step = async {
                        turns.clock.advance(STEP);
                        trace.add("step");
                    };
                    turns.run(address(nth), step).await;
                })
            });
            let handshakes: Vec<_> = handshakes.collect();
            while handshakes.iter().any(|task| !task.is_finished()) {
                turns.clock.advance(20 * STEP);
                trace.add("requests");
                yield_now().await;
            }
            let trace = trace.0.take();
            let rounds = trace.split(|what| *what == "requests");
            let steps: Vec<usize> = rounds.map(<[_]>::len).collect();
            assert!(steps.len() < 60 && steps.iter().all(|steps| *steps <= 40), "{steps:?}");
        });
    }

    #[test]
    fn a_task_runs_between_any_two_handshakes_of_a_flood() {
        run(async {
            let (turns, trace) = (Rc::new(turns()), Trace::default());
            let of_flood = (0..100).map(|_| {
                let (turns, trace) = (turns.clone(), trace.clone());
                tokio::task::spawn_local(async move {
                    turns.run(address(1), async { trace.add("flood") }).await;
                })
            });
            let of_flood: Vec<_> = of_flood.collect();
            let other = tokio::task::spawn_local({
                let (turns, trace) = (turns.clone(), trace.clone());
                async move { turns.run(address(2), async { trace.add("other") }).await }
            });
            while of_flood.iter().any(|task| !task.is_finished()) {
                trace.add("request");
                yield_now().await;
            }
            other.await.unwrap();
            let trace = trace.0.take();
            let in_a_row = |pair: &[&str]| pair.iter().all(|what| *what != "request");
            assert!(!trace.windows(2).any(in_a_row), "{trace:?}");
            let before = trace.iter().take_while(|what| **what != "other");
            assert!(before.filter(|what| **what == "flood").count() <= 2, "{trace:?}");
        });
    }

    #[test]
    fn a_handshake_goes_on_when_its_client_has_answered() {
        run(async {
            let turns = turns();
            let (answer, answered) = oneshot::channel();
            let waiting = turns.run(address(1), async {
                yield_now().await;
                answered.await.unwrap()
            });
            let other = async {
                // While one waits for its client, another one of its address is served.
                turns.run(address(1), async {}).await;
                answer.send(7).unwrap();
            };
            assert_eq!(tokio::join!(waiting, other).0, 7);
        });
    }
}
