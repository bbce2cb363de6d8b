//! Rate limits in addition to an endpoint's: an owner's, and a workspace's at one host.

use std::num::NonZeroU32;

use weir_common::limit::rolling::RollingQuota;

use crate::domain::delivery::DeliveryStatus;
use crate::domain::outcome::Fault;
use crate::domain::trace::Trace;
use crate::scheduler::rate_limit::Limits;
use crate::scheduler::tests::*;

/// A webhook whose owner allows so many attempts a minute; 0 for any.
fn limited(id: i64, endpoint: i64, requests_per_minute: u32) -> Webhook {
    let mut webhook = hook(id, endpoint, Flow::Open);
    webhook.options.requests_per_minute = NonZeroU32::new(requests_per_minute);
    webhook
}

/// When each attempt of a webhook started.
fn starts_of(world: &World, webhook: i64) -> Vec<u64> {
    let own = world.starts.iter().filter(|(_, _, one, _)| *one == WebhookId(webhook));
    own.map(|(when, ..)| *when).collect()
}

#[test]
fn an_owners_limit_holds_its_webhook_and_no_other_of_the_endpoint() {
    let mut world = World::new(limits(20, 1_000, 100, 100), &[(1, 1), (2, 1)]);
    world.endpoints.restored(limited(1, 1, 3), None, at(0).tick);
    for _ in 0..8 {
        world.arrive(1, 0, true);
        world.arrive(2, 0, true);
    }
    world.drain();
    assert_eq!(starts_of(&world, 1), [0, 0, 0, 60_100, 60_100, 60_100, 120_200, 120_200]);
    assert_eq!(starts_of(&world, 2), [0; 8]);
}

#[test]
fn a_changed_owners_limit_applies_at_once_and_counts_what_was_sent() {
    let mut world = World::new(limits(20, 1_000, 100, 100), &[(1, 1)]);
    world.endpoints.restored(limited(1, 1, 2), None, at(0).tick);
    (0..9).for_each(|_| world.arrive(1, 0, true));
    world.run(1);
    world.answer();
    world.run(1);
    let change = |world: &mut World, most| {
        let due = Some(at(0).tick);
        world.endpoints.restored(limited(1, 1, most), due, at(world.now).tick);
        world.run(1);
        world.answer();
        world.run(1);
    };
    world.now = 10;
    world.end(None);
    change(&mut world, 5);
    assert_eq!(starts_of(&world, 1), [0, 0, 10, 10, 10]);
    world.now = 20;
    world.end(None);
    change(&mut world, 4);
    assert_eq!(starts_of(&world, 1).len(), 5, "it is above the limit");
    change(&mut world, 0);
    assert_eq!(starts_of(&world, 1).len(), 9, "only the endpoint's limit is left");
}

#[test]
fn starts_of_earlier_processes_count_in_an_owners_limit() {
    let mut world = World::new(limits(200, 1_000, 100, 100), &[]);
    world.on.insert(WebhookId(1), EndpointId(1));
    world.endpoints.started_before(1, Some(1), 0);
    world.endpoints.handle(Input::KilledBefore(at(100).tick), at(100));
    world.now = 200;
    // As many as may be in flight on an endpoint may have no record.
    world.endpoints.restored(limited(1, 1, 102), None, at(200).tick);
    (0..3).for_each(|_| world.arrive(1, 0, true));
    world.drain();
    assert_eq!(starts_of(&world, 1), [200, 60_100, 60_200]);
}

#[test]
fn what_a_kill_hid_counts_from_the_kill_on_whatever_was_started_since() {
    let mut world = World::new(limits(101, 1_000, 100, 100), &[]);
    world.on.insert(WebhookId(1), EndpointId(1));
    world.endpoints.handle(Input::KilledBefore(at(100).tick), at(900));
    world.endpoints.started_before(1, Some(1), 800);
    world.now = 900;
    world.endpoints.restored(limited(1, 1, 102), None, at(900).tick);
    (0..3).for_each(|_| world.arrive(1, 0, true));
    world.drain();
    // The endpoint's window ends after a second, the owner's after a minute.
    assert_eq!(starts_of(&world, 1), [1_100, 60_200, 60_200]);
}

#[test]
fn unrecorded_starts_count_for_a_webhook_without_recorded_ones() {
    let mut world = World::new(limits(20, 1_000, 100, 100), &[]);
    world.on.insert(WebhookId(1), EndpointId(1));
    world.endpoints.handle(Input::KilledBefore(at(100).tick), at(100));
    // Past the endpoint's window, and not past the owner's.
    world.now = 30_000;
    world.endpoints.handle(Input::Tidy, at(world.now));
    world.endpoints.restored(limited(1, 1, 101), None, at(world.now).tick);
    (0..2).for_each(|_| world.arrive(1, 0, true));
    world.drain();
    assert_eq!(starts_of(&world, 1), [30_000, 60_200]);
}

#[test]
fn a_receiver_sees_no_more_in_a_window_however_long_attempts_take_to_connect() {
    let mut world = World::new(limits(100, 60_000, 17, 100), &[(1, 1)]);
    (0..300).for_each(|_| world.arrive(1, 0, true));
    // Handshakes of eight seconds in the first window, and none later.
    world.connects = vec![8_000; 90];
    world.connects.extend([0; 210]);
    world.drain();
    world.check_pace();
    assert!(world.seen.iter().all(|(when, _)| *when < 190_000), "nor many fewer");
}

#[test]
fn attempts_in_flight_count_for_longer_than_the_window() {
    let mut world = World::new(limits(4, 1_000, 4, 100), &[(1, 1)]);
    (0..12).for_each(|_| world.arrive(1, 0, true));
    world.connects = vec![5_000, 10, 2_500, 0];
    world.drain();
    world.check_pace();
}

#[test]
fn a_receiver_gets_its_pace_also_where_answers_take_longer_than_the_window() {
    let ten = limits(10, 1_000, 200, 1_000);
    let mut world = World::new(Limits { per_host: ten.quota, ..ten }, &[(1, 1)]);
    world.endpoints.restored(limited(1, 1, 1_000), None, at(0).tick);
    (0..100).for_each(|_| world.arrive(1, 0, true));
    (world.connects, world.reports) = (vec![5, 20, 10], true);
    while world.starts.len() < 100 && world.now < 30_000 {
        world.run(3_000);
        world.answer();
        world.run(3_000);
        world.now += 1;
        world.end(None);
    }
    world.check_pace();
    assert!(world.now < 9_500, "{} ms for ten windows", world.now);
}

/// A world whose workspaces may start so many attempts a second at one host.
fn per_host(requests: u32, webhooks: &[(i64, i64)]) -> World {
    let mut limits = limits(4, 1_000, 100, 1_000);
    limits.per_host = RollingQuota { requests, ..limits.quota };
    World::new(limits, webhooks)
}

#[test]
fn a_workspace_with_many_urls_of_a_host_has_its_limit_there() {
    let mut hooks: Vec<(i64, i64)> = (1..=20).map(|id| (id, id)).collect();
    hooks.push((10_000, 21));
    let mut world = per_host(10, &hooks);
    for (id, _) in &hooks {
        (0..4).for_each(|_| world.arrive(*id, 0, true));
    }
    world.drain();
    world.check_pace();
    assert_eq!(starts_of(&world, 10_000), [0; 4], "another workspace has a limit of its own");
    let own = world.starts.iter().filter(|(_, _, id, _)| id.0 < 10_000);
    let when: Vec<u64> = own.clone().map(|(when, ..)| *when).collect();
    let expected: Vec<u64> = (0..80).map(|nth| nth / 10 * 1_000).collect();
    assert_eq!(when, expected);
    // Its webhooks take turns.
    let ids: Vec<i64> = own.map(|(_, _, id, _)| id.0).collect();
    for round in ids.chunks(20) {
        let mut round = round.to_vec();
        round.sort_unstable();
        assert!(round.iter().copied().eq(1..=20), "{ids:?}");
    }
}

#[test]
fn webhooks_at_another_host_have_a_limit_of_their_own() {
    let mut world = per_host(2, &[(1, 1), (2, 2), (3, 3)]);
    let elsewhere = Webhook { url: "https://other.example/".into(), ..hook(3, 3, Flow::Open) };
    world.endpoints.restored(elsewhere, None, at(0).tick);
    for id in 1..=3 {
        (0..2).for_each(|_| world.arrive(id, 0, true));
    }
    world.drain();
    assert_eq!(starts_of(&world, 3), [0, 0]);
    assert_eq!([1, 2].map(|id| starts_of(&world, id)), [[0, 1_000], [0, 1_000]]);
}

#[test]
fn starts_of_earlier_processes_count_at_their_workspaces_host() {
    let mut world = per_host(3, &[]);
    world.endpoints.started_before(1, Some(1), 0);
    world.endpoints.started_before(2, Some(2), 100);
    world.endpoints.started_before(2, None, 200);
    world.now = 300;
    for id in [3, 10_000] {
        world.on.insert(WebhookId(id), EndpointId(id));
        world.endpoints.restored(hook(id, id, Flow::Open), None, at(300).tick);
        (0..2).for_each(|_| world.arrive(id, 0, true));
    }
    world.drain();
    assert_eq!(starts_of(&world, 3), [300, 1_000]);
    assert_eq!(starts_of(&world, 10_000), [300, 300], "another workspace");
}

#[test]
fn a_status_has_the_time_at_which_all_limits_admit_a_start() {
    let mut world = per_host(3, &[(1, 1), (2, 2)]);
    world.endpoints.restored(limited(1, 1, 2), None, at(0).tick);
    for id in [1, 2] {
        (0..3).for_each(|_| world.arrive(id, 0, true));
        world.run(900);
        world.answer();
        world.run(900);
    }
    assert_eq!([1, 2].map(|id| starts_of(&world, id).len()), [2, 1]);
    let blocked = |webhook, delivery| {
        let status =
            world.endpoints.status(WebhookId(webhook), DeliveryId(delivery), at(world.now));
        status.blocked_until
    };
    assert_eq!(blocked(1, 3), Some(at(60_100).unix));
    assert_eq!(blocked(2, 6), Some(at(1_000).unix));
    world.now = 1_000;
    world.end(None);
    let free = world.endpoints.status(WebhookId(2), DeliveryId(6), at(world.now));
    assert_eq!(free, DeliveryStatus::default());
}

/// The attempts that start now.
fn started(scheduler: &mut Scheduler, now: Moment) -> Vec<StartedAttempt> {
    let mut started = Vec::new();
    while let Pick::Start(attempt, _) = scheduler.next(now) {
        started.push(attempt);
    }
    started
}

#[test]
fn an_attempt_that_sent_no_request_counts_in_no_limit() {
    for fault in Fault::ALL {
        let unsent = matches!(fault, Fault::Resources | Fault::Resolver | Fault::Proxy);
        let mut two = limits(2, 60_000, 100, 100);
        two.per_host = two.quota;
        let mut scheduler = scheduler(two);
        scheduler.restored(limited(1, 1, 2), None, at(0).tick);
        scheduler.restored(hook(2, 2, Flow::Open), None, at(0).tick);
        (1..=2).for_each(|id| scheduler.arrives(WebhookId(1), queued(id, 0), at(0)));
        let both = started(&mut scheduler, at(0));
        assert_eq!(both.len(), 2);
        // It waits for the workspace's limit at the host.
        scheduler.arrives(WebhookId(2), queued(3, 0), at(0));
        assert!(started(&mut scheduler, at(1)).is_empty());
        for attempt in both {
            let result = AttemptResult {
                attempt,
                reported: false,
                outcome: Outcome::Internal(fault),
                retry_after: None,
                trace: Trace::default(),
                transcript: None,
                ended: at(10),
            };
            scheduler.handle(Input::Attempted(Box::new(result)), at(10));
        }
        scheduler.handle(Input::Tidy, at(20));
        let mut at_once = |ms| {
            let started = started(&mut scheduler, at(ms));
            started.into_iter().map(|attempt| attempt.webhook.0).collect::<Vec<_>>()
        };
        if unsent {
            assert_eq!(at_once(20), [2], "{fault:?}");
            assert_eq!(at_once(1_010), [1], "{fault:?}");
        } else {
            assert_eq!([20, 1_010, 60_009].map(&mut at_once), [const { Vec::<i64>::new() }; 3]);
            assert_eq!(at_once(60_010), [2], "{fault:?}");
        }
    }
}

#[test]
fn webhooks_that_wait_for_their_owners_limits_are_not_read_again_and_again_in_scarce_memory() {
    // The memory limit allows one delivery, and each of two webhooks has several.
    let mut world = World::with_memory(64, limits(20, 1_000, 100, 100), &[(1, 1), (2, 1)]);
    for webhook in [1, 2] {
        world.endpoints.restored(limited(webhook, 1, 2), None, at(0).tick);
    }
    for _ in 0..6 {
        world.arrive(1, 0, true);
        world.arrive(2, 0, true);
    }
    let mut reads = 0;
    for _ in 0..100 {
        world.run(1);
        reads += world.reads.len();
        world.answer();
        world.end(None);
    }
    assert!(reads < 20, "{reads} reads at one instant");
    world.drain();
    assert_eq!([1, 2].map(|webhook| starts_of(&world, webhook).len()), [6, 6]);
}
