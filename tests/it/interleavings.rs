//! Runs every interleaving of two threads on the store's locks with a model checker (loom).
//!
//! Not here: the store itself; `weir_tests::modelled` compiles it with loom's locks.

use std::time::Duration;

use loom::sync::Arc;
use loom::thread;
use weir_common::limit::rolling;
use weir_common::time::Tick;

use weir_tests::modelled::limit::key::{Key, Scope, Seed};
use weir_tests::modelled::limit::memory::MemoryStore;
use weir_tests::modelled::limit::{LimitCheck, Quota};

/// A check of `name` under the limit `limit`, which allows `requests` a minute.
fn limit_check(limit: &str, requests: u32, name: &str) -> LimitCheck {
    let seed = Seed::new([3; 16]);
    let quota = Quota::Rolling(rolling::RollingQuota { requests, window: Duration::from_secs(60) });
    let limit = seed.limit(limit);
    let key = Key::new(seed.owner(Scope::Workspace, name.as_bytes()), limit);
    LimitCheck::new(key, limit, quota)
}

/// 1 if `judge` admits, 0 otherwise, also if the counters have moved to another owner.
fn admitted(store: &MemoryStore, checks: &[LimitCheck]) -> usize {
    store.judge(checks, Tick(1)).map_or(0, |verdict| usize::from(verdict.is_admitted()))
}

/// Runs every interleaving of two threads that each check their own list; passes to `then` how
/// often `judge` admitted.
fn check(
    shards: usize,
    left: Vec<LimitCheck>,
    right: Vec<LimitCheck>,
    also: fn(&MemoryStore),
    then: fn(&MemoryStore, usize),
) {
    loom::model(move || {
        let store = Arc::new(MemoryStore::with_shards(1_000, shards));
        let thread = {
            let (store, right) = (store.clone(), right.clone());
            thread::spawn(move || {
                also(&store);
                admitted(&store, &right)
            })
        };
        let here = admitted(&store, &left);
        let there = thread.join().expect("the other thread ends");
        then(&store, here + there);
    });
}

#[test]
fn two_requests_in_opposite_orders_neither_wait_for_ever_nor_get_too_much() {
    let (a, b) = (limit_check("a", 1, "x"), limit_check("b", 1, "y"));
    check(4, vec![a, b], vec![b, a], |_| {}, |_, admitted| assert_eq!(admitted, 1));
}

#[test]
fn all_or_nothing_holds_in_every_interleaving() {
    let (own, other, shared) =
        (limit_check("w", 1, "one"), limit_check("w", 1, "two"), limit_check("o", 1, "org"));
    check(
        2,
        vec![own, shared],
        vec![other, shared],
        |_| {},
        |store, admitted| {
            assert_eq!(admitted, 1);
            let left =
                |limit_check: &LimitCheck| store.usage(limit_check, Tick(1)).unwrap().remaining;
            let (own, other) = (limit_check("w", 1, "one"), limit_check("w", 1, "two"));
            assert_eq!(left(&own) + left(&other), 1, "the refused workspace was charged nothing");
        },
    );
}

#[test]
fn a_sweep_beside_a_request_splits_no_state() {
    let a = limit_check("a", 1, "x");
    let sweep = |store: &MemoryStore| (0..2).for_each(|nth| store.sweep(nth, Tick(1)));
    check(2, vec![a], vec![a], sweep, |_, admitted| assert_eq!(admitted, 1));
}

/// Closes every shard, and restores its entries in another store, as an upgrade does.
fn moved(store: &MemoryStore) -> MemoryStore {
    let other = MemoryStore::with_shards(1_000, store.shards());
    for nth in 0..store.shards() {
        let closed = store.close(nth).expect("the shard exists");
        closed.each(Tick(1)).for_each(|kept| other.restore(kept.clone()));
    }
    other
}

#[test]
fn a_check_beside_a_move_is_charged_once_at_one_owner() {
    let a = limit_check("a", 2, "x");
    let shard = |limit_check: &LimitCheck| limit_check.key.bits() >> 96 & 1;
    let names = ["y", "z", "u", "v", "w"].map(|name| limit_check("b", 3, name));
    let b = names.into_iter().find(|b| shard(b) != shard(&a)).expect("one is in the other shard");
    for checks in [vec![a, b], vec![b, a]] {
        loom::model(move || {
            let store = Arc::new(MemoryStore::with_shards(1_000, 2));
            assert_eq!(admitted(&store, &checks), 1);
            let mover = {
                let store = store.clone();
                thread::spawn(move || moved(&store))
            };
            let here = store.judge(&checks, Tick(1));
            let there = mover.join().expect("the move ends");
            // A check that meets the move is repeated at the new owner, as for a request.
            let decided =
                here.or_else(|_| there.judge(&checks, Tick(1))).expect("it has not moved");
            assert!(decided.is_admitted(), "neither limit was used up");
            let left = |limit_check: &LimitCheck| {
                there.usage(limit_check, Tick(1)).expect("it is here").remaining
            };
            assert_eq!([left(&a), left(&b)], [0, 1], "each limit was charged twice");
            assert!(store.judge(&checks, Tick(1)).is_err(), "nothing is decided at the old owner");
        });
    }
}

#[test]
fn a_move_that_is_undone_has_cost_nothing() {
    let a = limit_check("a", 1, "x");
    loom::model(move || {
        let store = Arc::new(MemoryStore::with_shards(1_000, 2));
        let mover = {
            let store = store.clone();
            thread::spawn(move || {
                let closed: Vec<_> = (0..2).filter_map(|nth| store.close(nth)).collect();
                for (nth, closed) in closed.into_iter().enumerate() {
                    store.reopen(nth, closed);
                }
            })
        };
        let here = admitted(&store, &[a]);
        mover.join().expect("the move ends");
        assert_eq!(here + admitted(&store, &[a]), 1);
        assert_eq!(admitted(&store, &[a]), 0);
    });
}
