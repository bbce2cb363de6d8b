//! Which endpoints start when in-flight slots are scarce.

use crate::scheduler::tests::*;

/// A scheduler with `total` slots, and endpoints of this history with 16 waiting deliveries each.
fn known(
    total: usize,
    endpoints: impl IntoIterator<Item = (i64, Option<Responsiveness>)>,
) -> Scheduler {
    let mut all = scheduler(limits(100, 1_000, 16, total));
    for (id, last) in endpoints {
        all.restored(hook(id, id, Flow::Open), None, at(0).tick);
        last.into_iter().for_each(|last| all.remember(WebhookId(id), last));
        for nth in 0..16 {
            all.arrives(WebhookId(id), queued(id * 100 + nth, 0), at(0));
        }
    }
    all
}

/// Starts all attempts that may start now; returns how many are on endpoints of this range.
fn started(endpoints: &mut Scheduler, of: std::ops::Range<i64>) -> usize {
    let mut count = 0;
    while let Pick::Start(StartedAttempt { endpoint, .. }, _) = endpoints.next(at(0)) {
        count += usize::from(of.contains(&endpoint.0));
    }
    count
}

#[test]
fn a_responsive_and_a_new_endpoint_start_at_once_beside_any_number_of_unresponsive_ones() {
    let dark = (0..100).map(|id| (id, Some(Responsiveness::TimedOut)));
    let mut endpoints = known(40, dark);
    assert_eq!(started(&mut endpoints, 0..100), 20, "half of the slots");
    for (id, last) in [(100, Some(Responsiveness::Prompt)), (101, None)] {
        endpoints.restored(hook(id, id, Flow::Open), None, at(0).tick);
        last.into_iter().for_each(|last| endpoints.remember(WebhookId(id), last));
        endpoints.arrives(WebhookId(id), queued(id * 100, 0), at(0));
        assert_eq!(started(&mut endpoints, id..id + 1), 1, "endpoint {id}");
    }
}

#[test]
fn unresponsive_endpoints_take_turns_in_their_shared_slots() {
    let mut endpoints = known(8, (0..6).map(|id| (id, Some(Responsiveness::TimedOut))));
    let mut times = [0; 6];
    let mut under_way = Vec::new();
    for _ in 0..30 {
        while let Pick::Start(StartedAttempt { webhook, delivery, .. }, _) = endpoints.next(at(0)) {
            times[webhook.0 as usize] += 1;
            under_way.push((webhook, delivery.id));
        }
        assert_eq!(under_way.len(), 4);
        let (webhook, id) = under_way.remove(0);
        endpoints.recorded(webhook, ended(id, None, Responsiveness::TimedOut), at(0));
    }
    assert!(times.iter().all(|times| (4..=7).contains(times)), "{times:?}");
}

#[test]
fn the_history_of_an_endpoint_in_memory_is_newer_than_a_read_one() {
    let mut endpoints = known(8, (0..6).map(|id| (id, Some(Responsiveness::TimedOut))));
    for id in 0..6 {
        endpoints.remember(WebhookId(id), Responsiveness::Prompt);
    }
    assert_eq!(started(&mut endpoints, 0..6), 4);
}

/// The most attempts in flight within a minute of ten workspaces, each with twenty endpoints that
/// always have more to send. `took` is the duration of an endpoint's nth attempt in milliseconds.
fn in_flight_of_ten(took: impl Fn(u64) -> u64) -> usize {
    const DEADLINE: Duration = Duration::from_secs(10);
    let mut endpoints = scheduler(limits(100, 60_000, 17, 4_096));
    let hooks: Vec<i64> = (0..10).flat_map(|ws| (0..20).map(move |n| ws * 10_000 + n)).collect();
    let mut ends: BTreeMap<(u64, DeliveryId), (WebhookId, QueuedDelivery, u64)> = BTreeMap::new();
    let (mut numbers, mut next_id, mut most) = (vec![0; 200], 0, 0);
    for id in &hooks {
        endpoints.restored(hook(*id, *id, Flow::Open), None, at(0).tick);
    }
    for now in (0..60_000).step_by(100) {
        while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
            let (webhook, delivery, took) = end.remove();
            let well = Outcome::of_status(200);
            let answered = Responsiveness::of(&well, Duration::from_millis(took), DEADLINE);
            endpoints.recorded(webhook, ended(delivery.id, None, answered), at(now));
        }
        for id in hooks.iter().filter(|_| now % 1_000 == 0) {
            for _ in 0..if now == 0 { 20 } else { 2 } {
                next_id += 1;
                endpoints.arrives(WebhookId(*id), queued(next_id, now), at(now));
            }
        }
        loop {
            match endpoints.next(at(now)) {
                Pick::Start(StartedAttempt { webhook, endpoint, delivery, .. }, _) => {
                    let place = hooks.iter().position(|id| *id == endpoint.0).unwrap();
                    numbers[place] += 1;
                    let took = took(numbers[place]);
                    ends.insert((now + took, delivery.id), (webhook, delivery, took));
                }
                Pick::Read(StoreRead::Fetch { webhook, round, .. }) => {
                    let none = Fetched { deliveries: Vec::new(), more: false };
                    endpoints.fetched(webhook, round, none, at(now));
                }
                step => {
                    assert!(matches!(step, Pick::Wait(_)), "{step:?}");
                    break;
                }
            }
        }
        most = most.max(endpoints.in_flight());
    }
    most
}

#[test]
fn ten_workspaces_with_slow_receivers_leave_most_slots_to_others() {
    let half = 4_096 / 2;
    assert!(in_flight_of_ten(|_| 9_900) <= half, "they share what slow endpoints have");
    // Each receiver responds to some attempts at once, and to the next 17 near the deadline.
    for quick in [5, 20, 60] {
        let most = in_flight_of_ten(|nth| if nth % (quick + 17) < quick { 10 } else { 9_900 });
        assert!(most < 4_096 * 5 / 8, "{most} after {quick} quick ones");
    }
}

#[test]
fn a_workspace_alone_keeps_all_of_its_slots() {
    let mut endpoints = known(40, (0..40).map(|id| (id, Some(Responsiveness::Prompt))));
    assert_eq!(started(&mut endpoints, 0..40), 40);
    let mut endpoints = known(40, (0..4).map(|id| (id, Some(Responsiveness::Prompt))));
    assert_eq!(started(&mut endpoints, 0..4), 16, "four each, which is a quarter of sixteen");
    // Once another workspace has an attempt in flight, each has an eighth of the free slots.
    let mut endpoints =
        known(40, [(10_000, Some(Responsiveness::Prompt)), (0, Some(Responsiveness::Prompt))]);
    let (mut first, mut other) = (0, 0);
    while let Pick::Start(StartedAttempt { endpoint, .. }, _) = endpoints.next(at(0)) {
        *(if endpoint.0 == 0 { &mut first } else { &mut other }) += 1;
    }
    assert!((1..=5).contains(&first) && (1..=5).contains(&other), "{first} and {other}");
}

#[test]
fn a_parked_workspace_continues_when_attempts_of_others_end() {
    let answered = Some(Responsiveness::Prompt);
    let mut endpoints = known(40, [(10_000, answered), (0, answered)]);
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let start = |endpoints: &mut Scheduler, own: &mut Vec<_>, others: &mut Vec<_>| {
        while let Pick::Start(StartedAttempt { webhook, delivery, .. }, _) = endpoints.next(at(0)) {
            if webhook.0 == 0 { own.push(delivery.id) } else { others.push(delivery.id) }
        }
    };
    start(&mut endpoints, &mut own, &mut others);
    // After one response the endpoint's limit is eight, but its workspace's share is smaller.
    endpoints.recorded(WebhookId(0), ended(own.remove(0), None, Responsiveness::Prompt), at(0));
    start(&mut endpoints, &mut own, &mut others);
    assert!(own.len() < 8, "{} beside {}", own.len(), others.len());
    endpoints.close(WebhookId(10_000), at(0).tick);
    for id in others {
        endpoints.recorded(WebhookId(10_000), ended(id, None, Responsiveness::Prompt), at(0));
    }
    assert_eq!(own.len() + started(&mut endpoints, 0..1), 8);
}

#[test]
fn bodies_in_flight_count_in_the_memory_limit() {
    const BODY: usize = 256 << 10;
    let body = Bytes::from(vec![b'x'; BODY]);
    let large = |id| QueuedDelivery { body: body.clone(), ..queued(id, 0) };
    let mut endpoints = scheduler(limits(100, 60_000, 16, 4_096));
    for id in 0..600 {
        let last = if id < 300 { Responsiveness::TimedOut } else { Responsiveness::Prompt };
        endpoints.restored(hook(id, id, Flow::Open), None, at(0).tick);
        endpoints.remember(WebhookId(id), last);
        endpoints.arrives(WebhookId(id), large(id), at(0));
    }
    let mut under_way = Vec::new();
    while let Pick::Start(StartedAttempt { webhook, delivery, .. }, _) = endpoints.next(at(0)) {
        under_way.push((webhook, delivery.id));
    }
    assert_eq!(under_way.len() * BODY, CACHED_BYTES_ALL / 2, "half of memory is what waits");
    let silent = under_way.iter().filter(|(webhook, _)| webhook.0 < 300).count();
    assert_eq!(silent, under_way.len() / 2, "they share half");
    // Further deliveries start as attempts end.
    let mut count = 0;
    while let Some((webhook, id)) = under_way.pop() {
        count += 1;
        endpoints.recorded(webhook, ended(id, None, Responsiveness::Prompt), at(1));
        while let Pick::Start(StartedAttempt { webhook, delivery, .. }, _) = endpoints.next(at(1)) {
            under_way.push((webhook, delivery.id));
        }
        assert!(under_way.len() * BODY <= CACHED_BYTES_ALL / 2);
    }
    assert_eq!(count, 600);
}

#[test]
fn the_outcome_of_the_last_attempt_is_known_after_a_restart() {
    let timed_out = Some(Outcome::Failed(Failure::Timeout));
    // Unresponsive endpoints may use one of two slots.
    for (last, expected) in [(None, 2), (timed_out, 1), (Some(Outcome::of_status(500)), 2)] {
        let mut all = scheduler(Limits { total: 2, ..limits(100, 60_000, 16, 2) });
        for id in 1..=2 {
            let known = Webhook { last_outcome: last.clone(), ..hook(id, id, Flow::Open) };
            all.restored(known, None, at(0).tick);
            all.arrives(WebhookId(id), queued(id, 0), at(0));
        }
        assert_eq!(started(&mut all, 1..3), expected, "{last:?}");
    }
}

#[test]
fn a_webhook_at_another_url_does_not_have_the_outcome_of_the_earlier_one() {
    let mut all = scheduler(limits(100, 60_000, 16, 2));
    let mut last_at = |webhook, last_outcome: Option<Outcome>| {
        let known = Webhook { last_outcome, ..webhook };
        all.restored(known, None, at(0).tick);
        all.webhooks.update(WebhookId(1)).unwrap().last_outcome
    };
    let timed_out = Some(Outcome::Failed(Failure::Timeout));
    let here = || hook(1, 1, Flow::Open);
    assert_eq!(last_at(here(), timed_out.clone()), timed_out);
    assert_eq!(last_at(here(), None), timed_out, "memory is newer than the store");
    assert_eq!(last_at(moved(1, 2), None), None);
}

#[test]
fn a_status_has_the_limit_that_timeouts_lowered_while_it_is_reached() {
    let mut endpoints = known(100, [(1, Some(Responsiveness::TimedOut))]);
    let slots =
        |endpoints: &Scheduler| endpoints.status(WebhookId(1), DeliveryId(115), at(0)).slots;
    assert_eq!(slots(&endpoints), None, "nothing is in flight");
    let mut under_way = Vec::new();
    for (answered, shown) in [
        (Responsiveness::TimedOut, Some(4)),
        (Responsiveness::TimedOut, Some(1)),
        (Responsiveness::Prompt, None),
    ] {
        for id in under_way.drain(..) {
            endpoints.recorded(WebhookId(1), ended(id, None, answered), at(0));
        }
        while let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(0)) {
            under_way.push(delivery.id);
        }
        assert_eq!(slots(&endpoints), shown);
    }
}
