//! Every interleaving of two threads on the store's locks, run by a model checker (loom).
//!
//! Not here: the store itself; `weir_tests::modelled` compiles it with loom's locks.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;
use weir_common::rolling;
use weir_common::time::Tick;

use weir_tests::modelled::limit::key::{Key, Scope, Seed};
use weir_tests::modelled::limit::memory::Store;
use weir_tests::modelled::limit::{Ask, Quota};

/// A question about `name` under the limit `limit`, of which `requests` a minute are allowed.
fn ask(limit: &str, requests: u32, name: &str) -> Ask {
    let seed = Seed::new([3; 16]);
    let quota = Quota::Rolling(rolling::Quota { requests, window: Duration::from_secs(60) });
    let limit = seed.limit(limit);
    let key = Key::new(seed.owner(Scope::Workspace, name.as_bytes()), limit);
    Ask { key, limit, quota, lasting: quota, enforced: true, known: false }
}

/// How often `judge` admitted when each thread asked its own list, in every interleaving.
fn check(
    shards: usize,
    left: Vec<Ask>,
    right: Vec<Ask>,
    also: fn(&Store),
    then: fn(&Store, usize),
) {
    loom::model(move || {
        let store = Arc::new(Store::with_shards(1_000, shards));
        let thread = {
            let (store, right) = (store.clone(), right.clone());
            thread::spawn(move || {
                also(&store);
                usize::from(store.judge(&right, Tick(1)).unwrap().is_admitted())
            })
        };
        let here = usize::from(store.judge(&left, Tick(1)).unwrap().is_admitted());
        let there = thread.join().expect("the other thread ends");
        then(&store, here + there);
    });
}

#[test]
fn two_requests_in_opposite_orders_neither_wait_for_ever_nor_get_too_much() {
    let (a, b) = (ask("a", 1, "x"), ask("b", 1, "y"));
    check(4, vec![a, b], vec![b, a], |_| {}, |_, admitted| assert_eq!(admitted, 1));
}

#[test]
fn all_or_nothing_holds_in_every_interleaving() {
    let (own, other, shared) = (ask("w", 1, "one"), ask("w", 1, "two"), ask("o", 1, "org"));
    check(
        2,
        vec![own, shared],
        vec![other, shared],
        |_| {},
        |store, admitted| {
            assert_eq!(admitted, 1);
            let left = |ask: &Ask| store.standing(ask, Tick(1)).unwrap().remaining;
            let (own, other) = (ask("w", 1, "one"), ask("w", 1, "two"));
            assert_eq!(left(&own) + left(&other), 1, "the refused workspace was charged nothing");
        },
    );
}

#[test]
fn a_sweep_beside_a_request_splits_no_state() {
    let a = ask("a", 1, "x");
    let sweep = |store: &Store| (0..2).for_each(|nth| store.sweep(nth, Tick(1)));
    check(2, vec![a], vec![a], sweep, |_, admitted| assert_eq!(admitted, 1));
}
