//! Who starts when there are fewer places than would be taken.

use crate::scheduler::tests::*;

/// Endpoints of which each has one webhook of the same number with this many deliveries that wait,
/// and what is known of it.
fn known(
    total: usize,
    endpoints: impl IntoIterator<Item = (i64, Option<Responsiveness>)>,
) -> Scheduler {
    let mut all = scheduler(limits(100, 1_000, 16, total));
    for (id, last) in endpoints {
        all.take_in(hook(id, id, Flow::Open), None, at(0).tick);
        last.into_iter().for_each(|last| all.remember(WebhookId(id), last));
        for nth in 0..16 {
            all.arrives(WebhookId(id), ready(id * 100 + nth, 0), at(0));
        }
    }
    all
}

/// How many of the endpoints in this range have what starts now.
fn started(endpoints: &mut Scheduler, of: std::ops::Range<i64>) -> usize {
    let mut count = 0;
    while let Pick::Start(StartedAttempt { endpoint, .. }, _) = endpoints.next(at(0)) {
        count += usize::from(of.contains(&endpoint.0));
    }
    count
}

#[test]
fn however_many_endpoints_time_out_one_that_answers_and_a_stranger_start_at_once() {
    let dark = (0..100).map(|id| (id, Some(Responsiveness::TimedOut)));
    let mut endpoints = known(40, dark);
    assert_eq!(started(&mut endpoints, 0..100), 20, "half of the places");
    for (id, last) in [(100, Some(Responsiveness::Prompt)), (101, None)] {
        endpoints.take_in(hook(id, id, Flow::Open), None, at(0).tick);
        last.into_iter().for_each(|last| endpoints.remember(WebhookId(id), last));
        endpoints.arrives(WebhookId(id), ready(id * 100, 0), at(0));
        assert_eq!(started(&mut endpoints, id..id + 1), 1, "lane {id}");
    }
}

#[test]
fn endpoints_that_time_out_take_turns_at_the_places_that_they_share() {
    let mut endpoints = known(8, (0..6).map(|id| (id, Some(Responsiveness::TimedOut))));
    let mut times = [0; 6];
    let mut under_way = Vec::new();
    for _ in 0..30 {
        while let Pick::Start(StartedAttempt { webhook, delivery: ready, .. }, _) =
            endpoints.next(at(0))
        {
            times[webhook.0 as usize] += 1;
            under_way.push((webhook, ready.id));
        }
        assert_eq!(under_way.len(), 4);
        let (webhook, id) = under_way.remove(0);
        endpoints.recorded(webhook, ended(id, None, Responsiveness::TimedOut), at(0));
    }
    assert!(times.iter().all(|times| (4..=7).contains(times)), "{times:?}");
}

#[test]
fn what_is_known_of_an_endpoint_here_is_newer_than_what_was_read() {
    let mut endpoints = known(8, (0..6).map(|id| (id, Some(Responsiveness::TimedOut))));
    for id in 0..6 {
        endpoints.remember(WebhookId(id), Responsiveness::Prompt);
    }
    assert_eq!(started(&mut endpoints, 0..6), 4);
}

/// The most that ten workspaces of twenty endpoints each hold in a minute, which always have more
/// to send. How long an attempt of theirs takes goes by its number on its endpoint.
fn held_by_ten(took: impl Fn(u64) -> u64) -> usize {
    const DEADLINE: Duration = Duration::from_secs(10);
    let mut endpoints = scheduler(limits(100, 60_000, 17, 4_096));
    let hooks: Vec<i64> = (0..10).flat_map(|ws| (0..20).map(move |n| ws * 10_000 + n)).collect();
    let mut ends: BTreeMap<(u64, DeliveryId), (WebhookId, QueuedDelivery, u64)> = BTreeMap::new();
    let (mut numbers, mut next_id, mut most) = (vec![0; 200], 0, 0);
    for id in &hooks {
        endpoints.take_in(hook(*id, *id, Flow::Open), None, at(0).tick);
    }
    for now in (0..60_000).step_by(100) {
        while let Some(end) = ends.first_entry().filter(|end| end.key().0 <= now) {
            let (webhook, ready, took) = end.remove();
            let well = Outcome::of_status(200);
            let answered = Responsiveness::of(&well, Duration::from_millis(took), DEADLINE);
            endpoints.recorded(webhook, ended(ready.id, None, answered), at(now));
        }
        for id in hooks.iter().filter(|_| now % 1_000 == 0) {
            for _ in 0..if now == 0 { 20 } else { 2 } {
                next_id += 1;
                endpoints.arrives(WebhookId(*id), ready(next_id, now), at(now));
            }
        }
        loop {
            match endpoints.next(at(now)) {
                Pick::Start(StartedAttempt { webhook, endpoint, delivery: ready, .. }, _) => {
                    let place = hooks.iter().position(|id| *id == endpoint.0).unwrap();
                    numbers[place] += 1;
                    let took = took(numbers[place]);
                    ends.insert((now + took, ready.id), (webhook, ready, took));
                }
                Pick::Read(StoreRead::Fetch { webhook, round, .. }) => {
                    let none = Fetched { ready: Vec::new(), more: false };
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
fn ten_workspaces_of_receivers_that_answer_late_leave_most_places_to_others() {
    let half = 4_096 / 2;
    assert!(held_by_ten(|_| 9_900) <= half, "they share what slow lanes have");
    // They answer at once until they are trusted, and then all together not at all.
    for quick in [5, 20, 60] {
        let most = held_by_ten(|nth| if nth % (quick + 17) < quick { 10 } else { 9_900 });
        assert!(most < 4_096 * 5 / 8, "{most} after {quick} quick ones");
    }
}

#[test]
fn a_workspace_beside_which_nobody_has_work_has_all_the_places_it_had() {
    let mut endpoints = known(40, (0..40).map(|id| (id, Some(Responsiveness::Prompt))));
    assert_eq!(started(&mut endpoints, 0..40), 40);
    let mut endpoints = known(40, (0..4).map(|id| (id, Some(Responsiveness::Prompt))));
    assert_eq!(started(&mut endpoints, 0..4), 16, "four each, which is a quarter of sixteen");
    // Another one's first attempt, and from then on an eighth of the rest.
    let mut endpoints =
        known(40, [(10_000, Some(Responsiveness::Prompt)), (0, Some(Responsiveness::Prompt))]);
    let (mut first, mut other) = (0, 0);
    while let Pick::Start(StartedAttempt { endpoint, .. }, _) = endpoints.next(at(0)) {
        *(if endpoint.0 == 0 { &mut first } else { &mut other }) += 1;
    }
    assert!((1..=5).contains(&first) && (1..=5).contains(&other), "{first} and {other}");
}

#[test]
fn what_a_workspace_may_have_again_starts_at_once_though_nothing_of_its_own_has_ended() {
    let answered = Some(Responsiveness::Prompt);
    let mut endpoints = known(40, [(10_000, answered), (0, answered)]);
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let start = |endpoints: &mut Scheduler, own: &mut Vec<_>, others: &mut Vec<_>| {
        while let Pick::Start(StartedAttempt { webhook, delivery: ready, .. }, _) =
            endpoints.next(at(0))
        {
            if webhook.0 == 0 { own.push(ready.id) } else { others.push(ready.id) }
        }
    };
    start(&mut endpoints, &mut own, &mut others);
    // One answer, and its endpoint has room for eight; its workspace has not.
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
fn bodies_under_way_count_in_what_memory_holds() {
    const BODY: usize = 256 << 10;
    let body = Bytes::from(vec![b'x'; BODY]);
    let large = |id| QueuedDelivery { body: body.clone(), ..ready(id, 0) };
    let mut endpoints = scheduler(limits(100, 60_000, 16, 4_096));
    for id in 0..600 {
        let last = if id < 300 { Responsiveness::TimedOut } else { Responsiveness::Prompt };
        endpoints.take_in(hook(id, id, Flow::Open), None, at(0).tick);
        endpoints.remember(WebhookId(id), last);
        endpoints.arrives(WebhookId(id), large(id), at(0));
    }
    let mut under_way = Vec::new();
    while let Pick::Start(StartedAttempt { webhook, delivery: ready, .. }, _) =
        endpoints.next(at(0))
    {
        under_way.push((webhook, ready.id));
    }
    assert_eq!(under_way.len() * BODY, HELD_BYTES_ALL / 2, "half of memory is what waits");
    let silent = under_way.iter().filter(|(webhook, _)| webhook.0 < 300).count();
    assert_eq!(silent, under_way.len() / 2, "they share half");
    // All of it goes on as what is under way ends.
    let mut count = 0;
    while let Some((webhook, id)) = under_way.pop() {
        count += 1;
        endpoints.recorded(webhook, ended(id, None, Responsiveness::Prompt), at(1));
        while let Pick::Start(StartedAttempt { webhook, delivery: ready, .. }, _) =
            endpoints.next(at(1))
        {
            under_way.push((webhook, ready.id));
        }
        assert!(under_way.len() * BODY <= HELD_BYTES_ALL / 2);
    }
    assert_eq!(count, 600);
}

#[test]
fn what_the_last_attempt_came_to_is_known_after_a_restart() {
    let timed_out = Some(Outcome::Failed(Failure::Timeout));
    // Of two slots those that time out have one.
    for (last, expected) in [(None, 2), (timed_out, 1), (Some(Outcome::of_status(500)), 2)] {
        let mut all = scheduler(Limits { total: 2, ..limits(100, 60_000, 16, 2) });
        for id in 1..=2 {
            let known = Webhook { last_outcome: last.clone(), ..hook(id, id, Flow::Open) };
            all.take_in(known, None, at(0).tick);
            all.arrives(WebhookId(id), ready(id, 0), at(0));
        }
        assert_eq!(started(&mut all, 1..3), expected, "{last:?}");
    }
}
