//! Requests that wait for the same checks are one call: how many calls there are, what each request
//! is told, and what becomes of those that wait.
//!
//! Not here: that the allowances hold (`conformance`, `runs`).

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep};
use weir_common::limit::decision::Decision;
use weir_common::limit::rolling::RollingQuota;
use weir_common::time::Clock;
use weir_gateway::limit::key::{Key, LimitTag};
use weir_gateway::limit::{LimitCheck, Quota, Verdict};
use weir_tests::rng::SeededRng;

use super::gateway::{Gateway, config, decide};
use super::network::Network;
use super::runs::START;
use super::virtual_time::{self, Clocks};

/// How long a command or a reply travels, in milliseconds.
const WAY: u64 = 5;

/// A call there and back.
const TRIP: Duration = Duration::from_millis(2 * WAY);

/// What has become of a request, and after which time.
type Ended = (usize, Duration, Option<Verdict>);

/// One gateway on one server, and requests that have come to it.
struct Scene {
    clock: Clock,
    network: Rc<Network>,
    gateway: Gateway,
    requests: RefCell<JoinSet<Ended>>,
}

impl Scene {
    fn play(act: impl AsyncFn(&Self)) {
        let clocks = Clocks::default();
        virtual_time::run(&clocks.clone(), async {
            let clock = virtual_time::clock_at(START);
            clocks.lock().unwrap().push(clock.clone());
            let network = Network::start(SeededRng::new(1), START, (WAY, WAY), None);
            let gateway = Gateway::start(&clock, Some((config(0, 1), network.way(0))));
            // Apart from heartbeats, which come every 250 ms.
            sleep(Duration::from_millis(1_100)).await;
            let scene = Self { clock, network, gateway, requests: RefCell::default() };
            // The first call brings the script.
            scene.comes(0, &[window(9, 1)]);
            scene.end().await;
            act(&scene).await;
        });
    }

    /// A request comes.
    fn comes(&self, nth: usize, checks: &[LimitCheck]) -> AbortHandle {
        let (limiter, now) = (self.gateway.limiter.clone(), self.clock.now().tick);
        let (mut checks, started) = (checks.to_vec(), Instant::now());
        self.requests.borrow_mut().spawn_local(async move {
            let verdict = decide(&limiter, &mut checks, now).await.ok();
            (nth, started.elapsed(), verdict)
        })
    }

    /// Waits for all requests but those that were given up; in the order in which they came.
    async fn end(&self) -> Vec<Ended> {
        let mut requests = self.requests.take();
        let mut ended = Vec::new();
        while let Some(one) = requests.join_next().await {
            ended.extend(one);
        }
        ended.sort_by_key(|(nth, ..)| *nth);
        ended
    }

    /// The calls that were answered, but the first one, and the decisions by a call of their own
    /// and by that of another.
    fn counts(&self) -> [u64; 3] {
        let counts = &self.gateway.limiter.shared.as_ref().unwrap().counts;
        let [answered, called] =
            [&counts.answered, &counts.called].map(|own| own.load(Relaxed) - 1);
        [answered, called, counts.together.load(Relaxed)]
    }
}

/// A check of the key of this number.
fn window(nth: u128, requests: u32) -> LimitCheck {
    let window = Duration::from_secs(3_600);
    check(nth, Quota::Rolling(RollingQuota { requests, window }))
}

fn check(nth: u128, quota: Quota) -> LimitCheck {
    let key = Key::from_bits(nth << 96 | nth);
    LimitCheck { known: true, slot: 1, ..LimitCheck::new(key, LimitTag::from_bits(nth), quota) }
}

/// What the first limit has left after each request that was admitted.
fn left(ended: &[Ended]) -> Vec<u32> {
    let verdicts = ended.iter().filter_map(|(_, _, verdict)| verdict.as_ref());
    let admitted = verdicts.filter(|verdict| verdict.is_admitted());
    admitted.map(|verdict| verdict.answers().next().unwrap().usage.remaining).collect()
}

#[test]
fn requests_at_once_are_two_calls_and_each_is_told_what_is_left_after_it() {
    Scene::play(async |scene| {
        let checks = [window(1, 100), window(2, 1_000)];
        (0..60).for_each(|nth| drop(scene.comes(nth, &checks)));
        let ended = scene.end().await;
        assert_eq!(left(&ended), (40..100).rev().collect::<Vec<u32>>());
        assert_eq!(scene.counts(), [2, 2, 58]);
        assert!(ended.iter().all(|(_, took, _)| *took <= 2 * TRIP));
        // One that comes alone does not wait for anybody.
        scene.comes(60, &checks);
        assert_eq!(scene.end().await[0].1, TRIP);
    });
}

#[test]
fn what_fits_is_admitted_and_the_others_are_refused_with_few_calls() {
    Scene::play(async |scene| {
        let checks = [window(1, 1_000), window(2, 40)];
        (0..100).for_each(|nth| drop(scene.comes(nth, &checks)));
        let ended = scene.end().await;
        let admitted = |(_, _, verdict): &Ended| verdict.as_ref().unwrap().is_admitted();
        // In the order in which they came, with the numbers of what each was charged.
        assert!(ended[..40].iter().all(admitted) && !ended[40..].iter().any(admitted));
        assert_eq!(left(&ended), (960..1_000).rev().collect::<Vec<u32>>());
        for (_, _, verdict) in &ended[40..] {
            let own = *verdict.as_ref().unwrap().answers().nth(1).unwrap();
            assert!(matches!(own.decision, Decision::Refuse { .. }), "{own:?}");
            assert_eq!(own.usage.remaining, 0);
        }
        // The first, the others, as many of them as fit, and the next one.
        assert_eq!(scene.counts()[0], 4);
        assert!(ended.iter().all(|(_, took, _)| *took <= 3 * TRIP));
    });
}

#[test]
fn other_checks_of_the_same_key_do_not_wait() {
    Scene::play(async |scene| {
        let of = |cost| [LimitCheck { cost, ..window(1, 100) }];
        let observed = [window(1, 100), LimitCheck { enforced: false, ..window(2, 0) }];
        scene.comes(0, &of(1));
        scene.comes(1, &of(2));
        scene.comes(2, &[window(1, 100), window(3, 100)]);
        scene.comes(3, &observed);
        scene.comes(4, &observed);
        scene.comes(5, &of(1));
        scene.comes(6, &of(2));
        let ended = scene.end().await;
        let took: Vec<u32> =
            ended.iter().map(|one| (one.1.as_millis() / TRIP.as_millis()) as u32).collect();
        assert_eq!(took, [1, 1, 1, 1, 1, 2, 2]);
        assert_eq!(left(&ended), [99, 97, 96, 95, 94, 93, 91]);
    });
}

#[test]
fn a_client_that_chooses_many_costs_has_a_few_groups_and_the_others_call_alone() {
    Scene::play(async |scene| {
        for nth in 0..40 {
            scene.comes(nth, &[LimitCheck { cost: 1 + nth as u32 % 20, ..window(1, 1_000) }]);
        }
        let ended = scene.end().await;
        assert_eq!(left(&ended).iter().min(), Some(&(1_000 - 2 * 210)));
        let waited = ended.iter().filter(|(_, took, _)| *took > TRIP).count();
        assert_eq!(waited, 8);
    });
}

#[test]
fn a_request_that_is_given_up_leaves_its_turn_to_the_next() {
    Scene::play(async |scene| {
        let checks = [window(1, 100)];
        let requests: Vec<AbortHandle> = (0..10).map(|nth| scene.comes(nth, &checks)).collect();
        sleep(Duration::from_millis(1)).await;
        requests[0].abort();
        requests[3].abort();
        sleep(Duration::from_millis(1)).await;
        // It calls now, for the others as well: their call is lost with it.
        requests[1].abort();
        let ended = scene.end().await;
        assert_eq!(ended.len(), 7);
        assert!(ended.iter().all(|(_, took, _)| *took <= TRIP));
        // The next one begins anew.
        scene.comes(10, &checks);
        assert_eq!(scene.end().await[0].1, TRIP);
    });
}

#[test]
fn where_a_call_has_no_reply_those_that_wait_for_it_wait_no_longer() {
    Scene::play(async |scene| {
        let checks = [window(1, 100)];
        scene.network.servers[0].set_runs(false);
        (0..5).for_each(|nth| drop(scene.comes(nth, &checks)));
        sleep(Duration::from_millis(600)).await;
        (5..10).for_each(|nth| drop(scene.comes(nth, &checks)));
        let ended = scene.end().await;
        let timeout = Duration::from_secs(1);
        assert!(ended.iter().all(|(_, took, _)| *took <= timeout));
        assert_eq!(left(&ended).len(), 10, "decided alone");
        // Three calls without a reply make it unavailable, one by one.
        for nth in 10..12 {
            scene.comes(nth, &checks);
            assert_eq!(scene.end().await[0].1, timeout);
        }
        scene.comes(12, &checks);
        assert_eq!(scene.end().await[0].1, Duration::ZERO);
    });
}

#[test]
fn no_request_waits_for_a_second_turn_however_many_come() {
    Scene::play(async |scene| {
        // Half of them fit, and at each moment others do.
        let length = Duration::from_millis(95);
        let quota = Quota::Rolling(RollingQuota { requests: 95, window: length });
        let checks = [check(1, quota)];
        for nth in 0..1_000 {
            scene.comes(2 * nth, &checks);
            scene.comes(2 * nth + 1, &checks);
            sleep(Duration::from_millis(1)).await;
        }
        let ended = scene.end().await;
        let longest = ended.iter().map(|(_, took, _)| *took).max().unwrap();
        assert!(longest <= 5 * TRIP, "{longest:?}");
        let admitted = left(&ended).len();
        assert!((900..=1_100).contains(&admitted), "{admitted}");
    });
}

#[test]
fn a_tenant_has_one_call_under_way_however_many_requests_it_sends() {
    Scene::play(async |scene| {
        let (busy, quiet) = ([window(1, 100_000)], [window(2, 10)]);
        // It has sent 20,000 requests by the time that the other sends one.
        for nth in 0..20 {
            (0..1_000).for_each(|one| drop(scene.comes(1_000 * nth + one, &busy)));
            sleep(Duration::from_millis(1)).await;
        }
        let [before, ..] = scene.counts();
        scene.comes(20_000, &quiet);
        let ended = scene.end().await;
        assert_eq!(ended[20_000].1, TRIP);
        assert!(before <= 2, "{before} calls");
        assert_eq!(left(&ended).len(), 20_001);
        let [calls, ..] = scene.counts();
        assert!(calls <= 5, "{calls} calls");
    });
}
