//! Results of reads and new deliveries, in any order.

use crate::domain::webhook::Queue;
use crate::scheduler::queues::Ended;
use crate::scheduler::tests::*;

/// A scheduler with one webhook, whose waiting deliveries are all in the store.
fn unread() -> Scheduler {
    let mut endpoints = scheduler(limits(100, 1_000, 100, 100));
    endpoints.restored(hook(1, 1, Flow::Open), Some(at(0).tick), at(0).tick);
    endpoints
}

/// Answers the read that is due now; returns the deliveries that it excludes.
fn answer(
    endpoints: &mut Scheduler,
    now: u64,
    deliveries: &[QueuedDelivery],
    more: bool,
) -> Vec<DeliveryId> {
    let Pick::Read(StoreRead::Fetch { webhook, but, round, .. }) = endpoints.next(at(now)) else {
        panic!("not asked")
    };
    endpoints.fetched(webhook, round, Fetched { deliveries: deliveries.to_vec(), more }, at(now));
    but
}

/// Starts all deliveries that may start now.
fn started(endpoints: &mut Scheduler, now: u64) -> Vec<i64> {
    let mut ids = Vec::new();
    while let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(now)) {
        ids.push(delivery.id.0);
    }
    ids
}

#[test]
fn a_delivery_that_arrives_during_a_read_is_kept() {
    let mut endpoints = unread();
    answer(&mut endpoints, 0, &[], false);
    endpoints.arrives(WebhookId(1), queued(1, 0), at(0));
    // A read that began before the delivery arrived returns it after it was reported.
    endpoints.restored(hook(1, 1, Flow::Open), None, at(0).tick);
    answer(&mut endpoints, 0, &[queued(1, 0)], false);
    assert_eq!(started(&mut endpoints, 0), [1]);
}

#[test]
fn a_webhook_that_has_changed_starts_nothing_until_it_is_read() {
    let mut endpoints = unread();
    let waiting = [queued(1, 0), queued(2, 0)];
    answer(&mut endpoints, 0, &waiting, false);
    let read = || {
        let queue = Queue { webhook: hook(1, 1, Flow::Open), due: Some(at(0).unix) };
        Input::Read(WebhookId(1), StoreAnswer::Loaded(Some(Box::new(queue))))
    };
    // It changes again during the read, so the result of that read is stale as well.
    for _ in 0..2 {
        endpoints.handle(Input::Changed(WebhookId(1)), at(0));
        assert_eq!(started(&mut endpoints, 0), Vec::<i64>::new());
    }
    endpoints.handle(read(), at(0));
    assert_eq!(started(&mut endpoints, 0), Vec::<i64>::new());
    endpoints.handle(read(), at(0));
    answer(&mut endpoints, 0, &waiting, false);
    assert_eq!(started(&mut endpoints, 0), [1, 2]);
}

#[test]
fn after_a_closed_connection_a_delivery_that_was_evicted_opens_another() {
    let mut endpoints = unread();
    answer(&mut endpoints, 0, &[queued(1, 0)], true);
    assert!(matches!(endpoints.next(at(0)), Pick::Start(..)));
    // More are on disk, so this one is evicted and read again with them.
    let again = Some(QueuedDelivery { fresh_connection: true, ..queued(1, 0) });
    let responsiveness = Responsiveness::Prompt;
    let closed = Ended { delivery: DeliveryId(1), again, responsiveness };
    endpoints.end(WebhookId(1), closed, at(0));
    answer(&mut endpoints, 0, &[queued(1, 0), queued(2, 0)], false);
    let mut fresh = Vec::new();
    while let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(0)) {
        fresh.push((delivery.id.0, delivery.fresh_connection));
    }
    assert_eq!(fresh, [(1, true), (2, false)]);
}

#[test]
fn arrivals_during_the_first_read_of_a_webhook_do_not_stop_it() {
    let mut endpoints = scheduler(limits(100, 1_000, 100, 100));
    let arrives =
        |id| Input::Arrived(vec![Arrival { webhook: WebhookId(1), delivery: queued(id, 0) }]);
    // The second delivery arrives during the read of the webhook, which is therefore repeated.
    endpoints.handle(arrives(1), at(0));
    endpoints.handle(arrives(2), at(0));
    let queue = Queue { webhook: hook(1, 1, Flow::Open), due: Some(at(0).unix) };
    let loaded = StoreAnswer::Loaded(Some(Box::new(queue)));
    endpoints.handle(Input::Read(WebhookId(1), loaded), at(0));
    answer(&mut endpoints, 0, &[queued(1, 0)], false);
    assert_eq!(started(&mut endpoints, 0), [1]);
}

#[test]
fn a_delivery_that_arrives_during_a_read_waits_for_older_ones() {
    let mut endpoints = unread();
    let Pick::Read(StoreRead::Fetch { round, .. }) = endpoints.next(at(0)) else {
        panic!("not asked")
    };
    endpoints.arrives(WebhookId(1), queued(2, 0), at(0));
    assert_eq!(started(&mut endpoints, 0), Vec::<i64>::new());
    let fetched = Fetched { deliveries: vec![queued(1, 0), queued(2, 0)], more: false };
    endpoints.fetched(WebhookId(1), round, fetched, at(0));
    assert_eq!(started(&mut endpoints, 0), [1, 2]);
}

/// The result of the read lacks a delivery that arrived since and was evicted.
#[test]
fn a_delivery_that_was_evicted_during_a_read_is_overtaken_by_none() {
    let mut endpoints = unread();
    let Pick::Read(StoreRead::Fetch { round, .. }) = endpoints.next(at(0)) else {
        panic!("not asked")
    };
    let large = |id| QueuedDelivery { body: vec![b'x'; 200 << 10].into(), ..queued(id, 0) };
    endpoints.arrives(WebhookId(1), large(1), at(0));
    // Both do not fit: this one is evicted, and there is room for the next.
    endpoints.arrives(WebhookId(1), large(2), at(0));
    endpoints.arrives(WebhookId(1), queued(3, 0), at(0));
    let fetched = Fetched { deliveries: Vec::new(), more: false };
    endpoints.fetched(WebhookId(1), round, fetched, at(0));
    assert!(matches!(endpoints.next(at(0)), Pick::Start(..)));
    answer(&mut endpoints, 0, &[large(2), queued(3, 0)], false);
    assert_eq!(started(&mut endpoints, 0), [2, 3]);
}

#[test]
fn deliveries_in_flight_are_not_read_again() {
    let mut endpoints = unread();
    answer(&mut endpoints, 0, &[queued(1, 0)], true);
    let Pick::Start(..) = endpoints.next(at(0)) else { panic!("does not start") };
    let but = answer(&mut endpoints, 0, &[queued(2, 0)], false);
    assert_eq!(but, [DeliveryId(1)]);
    assert_eq!(started(&mut endpoints, 0), [2]);
}

#[test]
fn a_delivery_that_was_sent_before_it_was_reported_is_sent_once() {
    let mut endpoints = unread();
    answer(&mut endpoints, 0, &[queued(1, 0)], false);
    assert_eq!(started(&mut endpoints, 0), [1]);
    endpoints.recorded(WebhookId(1), ended(DeliveryId(1), None, Responsiveness::Prompt), at(1));
    endpoints.arrives(WebhookId(1), queued(1, 0), at(2));
    endpoints.arrives(WebhookId(1), queued(2, 0), at(2));
    assert_eq!(started(&mut endpoints, 2), [2]);
}

#[test]
fn a_delivery_delayed_in_memory_is_not_added_again() {
    let mut endpoints = unread();
    let nine: Vec<QueuedDelivery> =
        (1..=9).map(|id| queued(id, if id < 9 { 0 } else { 10 })).collect();
    answer(&mut endpoints, 0, &nine, true);
    let Pick::Start(StartedAttempt { webhook, delivery: mut first, .. }, _) = endpoints.next(at(0))
    else {
        panic!("none")
    };
    let Pick::Read(StoreRead::Fetch { round, .. }) = endpoints.next(at(0)) else {
        panic!("it runs low")
    };
    endpoints.fetched(webhook, round, Fetched { deliveries: nine.clone(), more: true }, at(0));
    // After a fault of the dispatcher the delivery is due later in memory, but not on disk.
    first.due = at(5).unix;
    endpoints.recorded(webhook, ended(first.id, Some(first), Responsiveness::Prompt), at(0));
    let Pick::Start(StartedAttempt { delivery: second, .. }, _) = endpoints.next(at(0)) else {
        panic!("none")
    };
    assert_eq!(second.id, DeliveryId(2));
    answer(&mut endpoints, 0, &nine, false);
    let mut all = started(&mut endpoints, 5);
    all.sort_unstable();
    assert_eq!(all, [1, 3, 4, 5, 6, 7, 8]);
    assert_eq!(started(&mut endpoints, 10), [9]);
}

#[test]
fn a_wall_clock_set_forward_leaves_no_delivery_behind_a_retry() {
    let retry = queued(1, 3_600_000);
    let day = 86_400_000_000;
    let later = Moment { tick: at(1).tick, unix: UnixTime(at(1).unix.0 + day) };
    let fresh = QueuedDelivery { due: later.unix, created_at: later.unix, ..queued(2, 0) };
    for all_are_cached in [true, false] {
        let mut endpoints = unread();
        answer(&mut endpoints, 0, std::slice::from_ref(&retry), !all_are_cached);
        let next = endpoints.next(at(0));
        assert!(
            matches!(next, Pick::Wait(Some(_)) | Pick::Read(StoreRead::Fetch { .. })),
            "{next:?}"
        );
        if let Pick::Read(StoreRead::Fetch { webhook, round, .. }) = next {
            // Few are in memory, so more are fetched; this read returns no others.
            let again = Fetched { deliveries: vec![retry.clone()], more: true };
            endpoints.fetched(webhook, round, again, at(0));
        }
        endpoints.arrives(WebhookId(1), fresh.clone(), later);
        if !all_are_cached {
            let Pick::Read(StoreRead::Fetch { webhook, round, .. }) = endpoints.next(later) else {
                panic!("not asked")
            };
            let both = Fetched { deliveries: vec![retry.clone(), fresh.clone()], more: false };
            endpoints.fetched(webhook, round, both, later);
            // By the wall clock the retry is due as well, and comes first.
            let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(later) else {
                panic!("it waits")
            };
            assert_eq!(delivery.id, DeliveryId(1));
        }
        let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(later) else {
            panic!("it waits for another")
        };
        assert_eq!(delivery.id, DeliveryId(2));
    }
}

#[test]
fn earlier_starts_count_in_the_rate_limit() {
    let mut endpoints = scheduler(limits(3, 1_000, 8, 100));
    endpoints.started_before(1, None, 0);
    endpoints.started_before(1, None, 100);
    endpoints.restored(hook(1, 1, Flow::Open), None, at(200).tick);
    for id in 0..3 {
        endpoints.arrives(WebhookId(1), queued(id, 0), at(200));
    }
    assert!(matches!(endpoints.next(at(200)), Pick::Start(..)));
    assert!(matches!(endpoints.next(at(200)), Pick::Wait(Some(tick)) if tick == at(1_000).tick));
}

#[test]
fn unrecorded_starts_count_on_every_endpoint() {
    let mut endpoints = scheduler(limits(3, 1_000, 8, 100));
    endpoints.started_before(1, None, 0);
    endpoints.seed_unrecorded(2, at(100).tick);
    for id in [1, 2] {
        endpoints.restored(hook(id, id, Flow::Open), None, at(100).tick);
        endpoints.arrives(WebhookId(id), queued(id, 0), at(100));
    }
    endpoints.arrives(WebhookId(2), queued(3, 0), at(100));
    assert_eq!(started(&mut endpoints, 999), [2], "each endpoint has two unseen ones");
    assert_eq!(started(&mut endpoints, 1_000), [1]);
    assert_eq!(started(&mut endpoints, 1_100), [3]);
}

#[test]
fn a_high_rate_is_sustained_with_a_slow_store() {
    const STORE_MS: u64 = 10;
    let mut world = World::new(limits(4_000, 1_000, 10_000, 10_000), &[(1, 1)]);
    for _ in 0..12_000 {
        world.arrive(1, 0, false);
    }
    let mut answers = std::collections::VecDeque::new();
    while world.starts.len() < 12_000 {
        world.run(1);
        world.read();
        answers.extend(world.read.drain(..).map(|answer| (world.now + STORE_MS, answer)));
        world.now += 1;
        world.end(None);
        while answers.front().is_some_and(|(at, _)| *at <= world.now) {
            let (_, (webhook, round, fetched)) = answers.pop_front().unwrap();
            world.endpoints.fetched(webhook, round, fetched, at(world.now));
        }
        // Without any delay by the store, 12,000 at this rate limit take two seconds.
        assert!(world.now < 2_500, "{} have started", world.starts.len());
    }
    world.check_pace();
}
