//! Turns of workspaces that share a URL, and effects of a reload.

use crate::domain::delivery::DeliveryStatus;
use crate::domain::webhook::Queue;
use crate::scheduler::tests::*;

/// The starts of each workspace on one endpoint, whose rate limit is `requests` a second. `posts`
/// has each webhook's number of events a second; webhook `id` is of workspace `id / 10_000`.
fn shares(requests: u32, seconds: u64, posts: &[(i64, u64)]) -> BTreeMap<i64, usize> {
    let hooks: Vec<(i64, i64)> = posts.iter().map(|(id, _)| (*id, 1)).collect();
    let mut world = World::new(limits(requests, 1_000, 100, 1_000), &hooks);
    for second in 0..seconds {
        world.now = second * 1_000;
        for (id, count) in posts {
            for _ in 0..*count {
                world.arrive(*id, world.now, true);
            }
        }
        for _ in 0..20 {
            world.run(1);
            world.answer();
            world.now += 1;
            world.end(None);
        }
    }
    world.check_pace();
    let mut shares = BTreeMap::new();
    for (_, _, webhook, _) in &world.starts {
        *shares.entry(webhook.0 / 10_000).or_default() += 1;
    }
    shares
}

#[test]
fn a_workspace_with_any_number_of_webhooks_at_a_url_has_one_turn() {
    let mut posts = vec![(0, 6)];
    posts.extend((0..20).map(|nth| (10_000 + nth, 10)));
    let shares = shares(10, 36, &posts);
    assert_eq!(shares[&0] + shares[&1], 360);
    assert!(shares[&0] >= 178, "it has half of the pace, not {} of 360", shares[&0]);
}

#[test]
fn an_unused_share_goes_to_the_others() {
    let shares = shares(12, 30, &[(0, 2), (10_000, 100), (10_001, 100), (20_000, 100)]);
    assert!(shares[&0] >= 58, "{shares:?}");
    assert!(shares[&1].abs_diff(shares[&2]) <= 4, "{shares:?}");
    assert_eq!(shares.values().sum::<usize>(), 360);
}

#[test]
fn a_workspace_keeps_its_turn_while_its_deliveries_are_read() {
    let mut hooks = vec![(0, 1)];
    hooks.extend((0..20).map(|nth| (10_000 + nth, 1)));
    // The memory limit allows one delivery of each of the 21 webhooks.
    let mut world = World::with_memory(4_096, limits(12, 1_000, 100, 1_000), &hooks);
    for (id, _) in &hooks {
        (0..200).for_each(|_| world.arrive(*id, 0, true));
    }
    for second in 0..10 {
        world.now = second * 1_000;
        for _ in 0..40 {
            world.run(1);
            world.answer();
        }
        world.now += 1;
        world.end(None);
    }
    let of = |ws| world.starts.iter().filter(|(_, _, id, _)| id.0 / 10_000 == ws).count();
    assert_eq!((of(0), of(1)), (60, 60));
}

#[test]
fn deliveries_stay_in_memory_while_another_turn_is_read() {
    let mut hooks = vec![(0, 1)];
    hooks.extend((0..8).map(|nth| (10_000 + nth, 1)));
    let mut world = World::with_memory(4_096, limits(100, 60_000, 100, 100), &hooks);
    world.arrive(0, 60_000, true);
    for (id, _) in &hooks[1..] {
        (0..3).for_each(|_| world.arrive(*id, 0, true));
    }
    // The store answers one read at a time, the newest first.
    let mut answers = 0;
    world.run(1);
    while let Some(last) = world.reads.pop() {
        let others = std::mem::replace(&mut world.reads, vec![last]);
        world.answer();
        world.reads = others;
        world.run(1);
        answers += 1;
        assert!(answers < 200, "{} have started", world.starts.len());
    }
    assert_eq!(world.starts.len(), 24);
}

#[test]
fn an_endpoint_continues_when_the_read_of_another_turn_fails() {
    let none = Fetched { deliveries: Vec::new(), more: false };
    let leave = |endpoints: &mut Scheduler, webhook: i64, round| match webhook {
        0 => endpoints.close(WebhookId(20_000), at(0).tick),
        1 => {
            let due = Some(at(0).tick);
            endpoints.restored(hook(20_000, 9, Flow::Open), due, at(0).tick);
        }
        2 => endpoints.restored(hook(20_000, 1, Flow::Stopped), None, at(0).tick),
        _ => endpoints.fetched(WebhookId(20_000), round, none.clone(), at(0)),
    };
    for way in 0..4 {
        let mut endpoints = scheduler(limits(12, 1_000, 100, 1_000));
        let first = Some(at(0).tick);
        endpoints.restored(hook(20_000, 1, Flow::Open), first, at(0).tick);
        let Pick::Read(StoreRead::Fetch { round, .. }) = endpoints.next(at(0)) else {
            panic!("it is not asked")
        };
        endpoints.restored(hook(1, 1, Flow::Open), None, at(0).tick);
        endpoints.arrives(WebhookId(1), queued(1, 0), at(0));
        assert!(matches!(endpoints.next(at(0)), Pick::Wait(_)), "it is not its turn");
        leave(&mut endpoints, way, round);
        let starts = |step| matches!(step, Pick::Start(..));
        let steps = std::iter::repeat_with(|| endpoints.next(at(0)));
        assert!(steps.take(3).any(starts), "way {way}");
    }
}

#[test]
fn webhooks_of_one_workspace_share_its_turn_evenly() {
    let hooks = [(0, 1), (1, 1), (2, 1), (10_000, 1)];
    let mut world = World::new(limits(12, 1_000, 100, 1_000), &hooks);
    for (id, _) in hooks {
        (0..12).for_each(|_| world.arrive(id, 0, true));
    }
    world.run(1);
    let of = |id| world.starts.iter().filter(|(_, _, webhook, _)| webhook.0 == id).count();
    assert_eq!([of(0), of(1), of(2), of(10_000)], [2, 2, 2, 6]);
}

#[test]
fn a_webhook_that_is_read_again_gains_no_turn() {
    let mut world = World::new(limits(4, 1_000, 100, 1_000), &[(0, 1), (10_000, 1)]);
    for id in [0, 10_000] {
        (0..40).for_each(|_| world.arrive(id, 0, true));
    }
    for second in 0..10 {
        world.now = second * 1_000;
        // It changes every second: its queue is closed and opened again.
        world.endpoints.close(WebhookId(10_000), at(world.now).tick);
        world.end(None);
        let first = at(world.now).tick;
        world.endpoints.restored(hook(10_000, 1, Flow::Open), Some(first), first);
        world.run(1);
        world.answer();
        world.run(1);
    }
    let of = |ws| world.starts.iter().filter(|(_, _, id, _)| id.0 / 10_000 == ws).count();
    assert!(of(0) >= 18, "{} of 40", of(0));
}

#[test]
fn a_reload_keeps_the_low_limit_of_an_unresponsive_endpoint() {
    let mut endpoints = scheduler(limits(100, 1_000, 8, 100));
    endpoints.restored(hook(1, 1, Flow::Open), None, at(0).tick);
    for id in 0..40 {
        endpoints.arrives(WebhookId(1), queued(id, 0), at(0));
    }
    let mut rooms = Vec::new();
    for (per_endpoint, answered) in [
        (8, Responsiveness::TimedOut),
        (8, Responsiveness::TimedOut),
        (17, Responsiveness::Prompt),
        (17, Responsiveness::Prompt),
        (17, Responsiveness::Prompt),
        (3, Responsiveness::Prompt),
        (3, Responsiveness::Prompt),
    ] {
        endpoints.set_limits(limits(100, 1_000, per_endpoint, 100));
        let mut ids = Vec::new();
        while let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(0)) {
            ids.push(delivery.id);
        }
        rooms.push(ids.len());
        for id in ids {
            endpoints.recorded(WebhookId(1), ended(id, None, answered), at(0));
        }
    }
    assert_eq!(rooms, [2, 1, 1, 2, 8, 3, 3]);
}

#[test]
fn an_endpoint_whose_name_does_not_resolve_backs_off_longer_each_time() {
    let mut endpoints = scheduler(limits(1_000, 1_000, 8, 100));
    for id in [1, 2] {
        endpoints.restored(hook(id, id, Flow::Open), None, at(0).tick);
    }
    for id in 0..4 {
        endpoints.arrives(WebhookId(1), queued(id, 0), at(0));
    }
    let mut now = 0;
    let mut waits = Vec::new();
    for round in 0..9 {
        let mut ids = Vec::new();
        while let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(now)) {
            ids.push(delivery);
        }
        assert_eq!(ids.len(), 2, "what it may have under way is as it was");
        // Two attempts that end one after another cause one backoff, not two.
        for one in ids {
            let again = Some(one.clone());
            endpoints.recorded(
                WebhookId(1),
                ended(one.id, again, Responsiveness::Unresolved),
                at(now),
            );
        }
        let id = 100 + round;
        endpoints.arrives(WebhookId(2), queued(id, now), at(now));
        let Pick::Start(StartedAttempt { webhook, .. }, _) = endpoints.next(at(now)) else {
            panic!("it waits")
        };
        assert_eq!(webhook, WebhookId(2));
        endpoints.recorded(webhook, ended(DeliveryId(id), None, Responsiveness::Prompt), at(now));
        let Pick::Wait(Some(until)) = endpoints.next(at(now)) else { panic!("it starts at once") };
        waits.push(until.since(at(now).tick).as_secs());
        let status = |id| endpoints.status(WebhookId(id), DeliveryId(3), at(now));
        let blocked_until = Some(UnixTime(until.0));
        let alone = DeliveryStatus { blocked_until, unresolved: true, ..Default::default() };
        assert_eq!(status(1), alone);
        assert_eq!(status(2), DeliveryStatus::default(), "the other was found");
        now += waits.last().unwrap() * 1_000;
    }
    assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60, 60]);
    let Pick::Start(StartedAttempt { delivery: one, .. }, _) = endpoints.next(at(now)) else {
        panic!("it never starts")
    };
    endpoints.recorded(WebhookId(1), ended(one.id, None, Responsiveness::Prompt), at(now));
    let Pick::Start(StartedAttempt { delivery: one, .. }, _) = endpoints.next(at(now)) else {
        panic!("it waits")
    };
    endpoints.recorded(
        WebhookId(1),
        ended(one.id, Some(one.clone()), Responsiveness::Unresolved),
        at(now),
    );
    while let Pick::Start(..) = endpoints.next(at(now)) {}
    let Pick::Wait(Some(until)) = endpoints.next(at(now)) else { panic!("it starts at once") };
    assert_eq!(until.since(at(now).tick).as_secs(), 1, "it begins anew");
}

#[test]
fn a_webhook_whose_reads_fail_stops_no_other_of_its_url() {
    let mut scheduler = scheduler(limits(100, 60_000, 20, 1_000));
    for webhook in 0..3 {
        scheduler.restored(hook(webhook, 1, Flow::Open), Some(at(0).tick), at(0).tick);
    }
    scheduler.restored(hook(10_000, 1, Flow::Open), None, at(0).tick);
    for id in 1..=4 {
        scheduler.arrives(WebhookId(10_000), queued(id, 0), at(0));
    }
    let (mut started, mut failed) = (Vec::new(), 0);
    for step in 0..20 {
        let now = at(step * 100);
        loop {
            let (webhook, answer) = match scheduler.poll(now) {
                Action::Start(attempt, _) => {
                    started.push((attempt.webhook, step, failed));
                    continue;
                }
                Action::Read(StoreRead::Load(one)) => {
                    let webhook = hook(one.0, 1, Flow::Open);
                    let queue = Box::new(Queue { webhook, due: Some(at(0).unix) });
                    (one, StoreAnswer::Loaded(Some(queue)))
                }
                Action::Read(StoreRead::Fetch { webhook, .. }) => {
                    failed += 1;
                    (webhook, StoreAnswer::Failed)
                }
                _ => break,
            };
            scheduler.handle(Input::Read(webhook, answer), now);
        }
    }
    let other = |failed| (WebhookId(10_000), 0, failed);
    assert_eq!(started, [1, 2, 3, 3].map(other), "at once: one after each read that failed");
    assert_eq!(failed, 3 * 4, "each is read again after a pause");
}
