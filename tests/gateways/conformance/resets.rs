//! A key that is reset has used nothing, and what is admitted from then on counts.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;
use weir_gateway::limit::LimitCheck;
use weir_gateway::limit::limiter::Limiter;

use super::subject::{Kind, SETTLES, Subject};
use super::{DAY, HOUR, check, each_of, for_each_store, window};
use crate::gateway::decide;
use crate::virtual_time::{self, Clocks};

#[test]
fn a_reset_key_has_used_nothing_and_others_have() {
    for_each_store(async |store| {
        let limiter = &store.gateways[0].limiter;
        for (nth, quota) in (1..).step_by(2).zip(each_of(3)) {
            let (own, other) = (check(nth, quota), check(nth + 1, quota));
            assert_eq!(store.admitted(&[own, other], 4).await, 3);
            limiter.reset(&[&own]).await.unwrap();
            sleep(SETTLES).await;
            assert_eq!((store.left(&own).await, store.left(&other).await), (3, 0));
            assert_eq!(store.admitted(&[own], 4).await, 3);
        }
    });
}

#[test]
fn what_is_admitted_right_after_a_reset_counts_although_the_store_forgets_it() {
    let clocks = Clocks::default();
    virtual_time::run(&clocks.clone(), async {
        let store = Subject::start(Kind::SharedByOne, &clocks, DAY).await;
        for (nth, quota) in (1..).zip(each_of(3)) {
            let own = check(nth, quota);
            assert_eq!(store.admitted(&[own], 4).await, 3);
            store.gateways[0].limiter.reset(&[&own]).await.unwrap();
            assert_eq!(store.admitted(&[own], 3).await, 3);
            sleep(SETTLES).await;
            store.network.servers[0].data.borrow_mut().flush();
            assert_eq!(store.admitted(&[own], 3).await, 0, "{quota:?}");
        }
    });
}

#[test]
fn many_keys_are_reset_as_fast_as_one() {
    for_each_store(async |store| {
        let own: Vec<LimitCheck> = (1..=20).map(|nth| check(nth, window(1, HOUR))).collect();
        for check in &own {
            assert_eq!(store.admitted(&[*check], 2).await, 1);
        }
        let began = store.now();
        let limiter = &store.gateways[0].limiter;
        limiter.reset(&own.iter().collect::<Vec<_>>()).await.unwrap();
        assert!(store.now().since(began) < Duration::from_secs(1));
        sleep(SETTLES).await;
        for check in &own {
            assert_eq!(store.admitted(&[*check], 2).await, 1);
        }
    });
}

#[test]
fn a_reset_under_load_gives_one_more_allowance() {
    for_each_store(async |store| {
        let own = check(1, window(3, HOUR));
        let mut admitted = store.admitted(&[own], 4).await;
        let (mut resetting, limiter) = (JoinSet::new(), store.gateways[0].limiter.clone());
        resetting.spawn_local(async move { limiter.reset(&[&own]).await });
        for _ in 0..300 {
            sleep(Duration::from_millis(10)).await;
            admitted += store.admitted(&[own], 1).await;
        }
        resetting.join_next().await.unwrap().unwrap().unwrap();
        assert_eq!(admitted, 6);
    });
}

#[test]
fn what_was_admitted_before_a_reset_returned_counts_no_more() {
    for_each_store(async |store| {
        let limiter = &store.gateways[0].limiter;
        for (nth, quota) in (1..).zip(each_of(3)) {
            let own = check(nth, quota);
            assert_eq!(store.admitted(&[own], 1).await, 1);
            let (mut resetting, resets) = (JoinSet::new(), limiter.clone());
            resetting.spawn_local(async move { resets.reset(&[&own]).await });
            let ask = async || decide(limiter, &mut [own], store.now()).await.unwrap();
            if limiter.shared.is_some() {
                sleep(Duration::from_millis(400)).await;
                assert!(ask().await.is_admitted());
            }
            resetting.join_next().await.unwrap().unwrap().unwrap();
            let verdicts = [ask().await, ask().await, ask().await, ask().await];
            let admitted = verdicts.map(|verdict| verdict.is_admitted());
            assert_eq!(admitted, [true, true, true, false], "{quota:?}");
        }
    });
}

#[test]
fn what_was_refused_before_a_reset_returned_is_not_remembered() {
    let clocks = Clocks::default();
    virtual_time::run(&clocks.clone(), async {
        let store = Subject::start(Kind::SharedByTwo, &clocks, DAY).await;
        let [one, other] = [0, 1].map(|nth| store.gateways[nth].limiter.clone());
        let own = check(1, window(3, HOUR));
        let is_admitted = async |limiter: &Arc<Limiter>| {
            decide(limiter, &mut [own], store.now()).await.unwrap().is_admitted()
        };
        let (mut resetting, limiter) = (JoinSet::new(), one.clone());
        resetting.spawn_local(async move { limiter.reset(&[&own]).await });
        // The other gateway has heard of it, and the allowance is used up again.
        sleep(Duration::from_millis(400)).await;
        for _ in 0..3 {
            assert!(is_admitted(&one).await);
        }
        assert!(!is_admitted(&other).await);
        resetting.join_next().await.unwrap().unwrap().unwrap();
        sleep(SETTLES).await;
        assert!(is_admitted(&other).await);
    });
}
