//! Lets the TLS handshakes of a worker compute in turn, so that many of them delay no other task.
//!
//! A signature takes a core up to a millisecond, and a worker has one thread: without turns a
//! request would wait for all handshakes that are ready.
//!
//! # Invariants
//!
//! 1. Between two steps of handshakes the worker runs every other task that is ready.
//! 2. Networks with handshakes take turns, however many of them one has.
//!
//! # Not here
//!
//! What a handshake does (`tls`), how long it may take (`listener`).

use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::task::Poll;

use tokio::sync::Semaphore;

use crate::identity::keyed_semaphore::KeyedSemaphore;
use crate::request::client_address::network_of;

/// The turns of one worker.
#[derive(Debug)]
pub(super) struct HandshakeTurns {
    of_network: KeyedSemaphore<IpAddr>,
    of_worker: Semaphore,
}

impl HandshakeTurns {
    /// One turn at a time.
    pub(super) fn new() -> Self {
        Self { of_network: KeyedSemaphore::new(1), of_worker: Semaphore::new(1) }
    }

    /// Runs a handshake with a client at `address`; each of its steps waits for a turn.
    pub(super) async fn run<T>(&self, address: IpAddr, handshake: impl Future<Output = T>) -> T {
        let mut handshake = pin!(handshake);
        loop {
            let of_network = self.of_network.acquire(network_of(address)).await;
            let of_worker = self.of_worker.acquire().await;
            // Other tasks run, and sockets are polled.
            tokio::task::yield_now().await;
            let mut turn = Some((of_network, of_worker));
            let step = poll_fn(|context| match turn {
                // Something has arrived.
                None => Poll::Ready(None),
                Some(_) => {
                    let polled = handshake.as_mut().poll(context).map(Some);
                    turn = None;
                    polled
                }
            });
            if let Some(done) = step.await {
                return done;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use tokio::sync::oneshot;
    use tokio::task::{LocalSet, yield_now};

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

    #[test]
    fn a_task_runs_between_any_two_handshakes_of_a_flood() {
        run(async {
            let (turns, trace) = (Rc::new(HandshakeTurns::new()), Trace::default());
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
            let turns = HandshakeTurns::new();
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
