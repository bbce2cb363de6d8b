//! Seeded runs of endpoints, compared with a model that remembers everything.

mod alerts;
mod answers;
mod checks;
mod pace;
mod probing;
mod scarce;
mod sharing;
mod survey;
mod world;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use weir_common::time::{Moment, UnixTime};

use crate::domain::delivery::{Arrival, Fetched, NextState, QueuedDelivery};
use crate::domain::id::{DeliveryId, EndpointId, WebhookId};
use crate::domain::operator_event::Recorded;
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::webhook::{Probe, Webhook};
use crate::scheduler::attempts::{AttemptResult, StartedAttempt};
use crate::scheduler::pick::Pick;
use crate::scheduler::rate_limit::Limits;
use crate::scheduler::reads::{StoreAnswer, StoreRead};
use crate::scheduler::responsiveness::Responsiveness;
use crate::scheduler::tests::world::{World, at, ended, hook, limits, moved, queued, scheduler};
use crate::scheduler::webhooks::Flow;
use crate::scheduler::{Action, CACHED_BYTES_ALL, Input, Scheduler};

#[test]
fn a_backlog_drains_at_exactly_the_rate_limit_and_in_order() {
    let mut world = World::new(limits(5, 1_000, 100, 100), &[(1, 1)]);
    for due in 0..23 {
        world.arrive(1, due, true);
    }
    world.now = 100;
    world.drain();
    let when: Vec<u64> = world.starts.iter().map(|(when, ..)| *when).collect();
    let expected: Vec<u64> = (0..23).map(|nth| 100 + nth / 5 * 1_000).collect();
    assert_eq!(when, expected);
    assert!(world.starts.is_sorted_by_key(|(.., id)| *id));
}

#[test]
fn webhooks_of_one_endpoint_share_its_rate_limit_and_alternate() {
    let mut world = World::new(limits(4, 1_000, 100, 100), &[(1, 1), (2, 1)]);
    for _ in 0..50 {
        world.arrive(1, 0, true);
    }
    world.run(1);
    for _ in 0..2 {
        world.arrive(2, 0, true);
    }
    world.drain();
    world.check_pace();
    let second: Vec<u64> =
        world.starts.iter().filter(|(_, _, w, _)| *w == WebhookId(2)).map(|(t, ..)| *t).collect();
    assert_eq!(second, [1_000, 1_000], "the second webhook waits for a turn, not for the first");
}

#[test]
fn an_endpoint_with_a_backlog_does_not_delay_another() {
    let mut world = World::new(limits(1_000, 1_000, 1_000, 10), &[(1, 1), (2, 2)]);
    for _ in 0..500 {
        world.arrive(1, 0, true);
    }
    world.arrive(2, 0, true);
    world.run(50);
    let of_second = world.starts.iter().position(|(_, endpoint, ..)| *endpoint == EndpointId(2));
    assert!(of_second.is_some_and(|nth| nth <= 2), "{of_second:?}");
}

#[test]
fn attempts_in_flight_are_bounded_per_endpoint_and_in_total() {
    let mut world = World::new(limits(100, 1_000, 12, 5), &[(1, 1), (2, 2)]);
    for _ in 0..20 {
        world.arrive(1, 0, true);
        world.arrive(2, 0, true);
    }
    world.run(1_000);
    // The fifth slot is reserved for an endpoint without an attempt in flight.
    assert_eq!(world.ends.len(), 4);
    let first = world.starts.iter().filter(|(_, endpoint, ..)| *endpoint == EndpointId(1)).count();
    assert!((1..=3).contains(&first), "{first}");
}

#[test]
fn a_parked_endpoint_continues_when_others_have_ended() {
    // The last two of eight slots are reserved for endpoints without an attempt in flight.
    let mut world = World::new(limits(100, 60_000, 12, 8), &[(1, 1), (2, 2), (3, 3)]);
    for endpoint in [1, 1, 2, 2, 3, 3, 3] {
        world.arrive(endpoint, 0, true);
    }
    world.run(1_000);
    assert_eq!(world.starts.len(), 6, "{:?}", world.starts);
    // Attempts on the second endpoint end, and none on the third.
    for end in &mut world.ends {
        end.0 = if end.1 == WebhookId(2) { 10 } else { 1_000 };
    }
    world.now = 10;
    world.end(None);
    world.run(1_000);
    let last = world.starts.last().unwrap();
    assert_eq!((last.0, last.1), (10, EndpointId(3)), "slots are free, and it may start");
}

#[test]
fn unresponsive_endpoints_leave_slots_for_others() {
    let dark: Vec<(i64, i64)> = (1..=4).map(|one| (one, one)).collect();
    let mut world = World::new(limits(100, 1_000, 20, 20), &[dark, vec![(5, 5)]].concat());
    for id in 0..80 {
        world.arrive(id % 4 + 1, 0, true);
    }
    world.run(1_000);
    assert_eq!(world.ends.len(), 15);
    for _ in 0..9 {
        world.arrive(5, 0, true);
        world.run(0);
        assert_eq!(world.starts.last().map(|(_, endpoint, ..)| *endpoint), Some(EndpointId(5)));
        world.now += 1;
        world.end(None);
    }
}

#[test]
fn the_limit_of_an_endpoint_grows_with_responses_and_falls_to_one_with_timeouts() {
    let mut endpoints = scheduler(limits(100, 1_000, 8, 100));
    endpoints.restored(hook(1, 1, Flow::Open), None, at(0).tick);
    for id in 0..40 {
        endpoints.arrives(WebhookId(1), queued(id, 0), at(0));
    }
    let starts = |endpoints: &mut Scheduler| {
        let mut ids = Vec::new();
        while let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(0)) {
            ids.push(delivery.id);
        }
        ids
    };
    // Each limit results from the responses before it.
    let answers = [
        Responsiveness::Prompt,
        Responsiveness::Prompt,
        Responsiveness::TimedOut,
        Responsiveness::Prompt,
    ];
    for (room, answered) in [2, 8, 8, 1].into_iter().zip(answers) {
        let under_way = starts(&mut endpoints);
        assert_eq!(under_way.len(), room);
        for id in &under_way {
            endpoints.recorded(WebhookId(1), ended(*id, None, answered), at(0));
        }
    }
    assert_eq!(starts(&mut endpoints).len(), 2);
}

#[test]
fn a_paused_webhook_starts_nothing_and_another_on_its_endpoint_continues() {
    let mut world = World::new(limits(100, 1_000, 100, 100), &[(1, 1), (2, 1)]);
    world.endpoints.restored(hook(1, 1, Flow::Stopped), None, at(0).tick);
    world.arrive(1, 0, true);
    world.arrive(2, 0, true);
    world.run(1);
    assert_eq!(world.starts.len(), 1);
    assert_eq!(world.starts[0].2, WebhookId(2));
}

#[test]
fn the_earliest_due_delivery_waits_for_no_other() {
    let mut endpoints = scheduler(limits(100, 1_000, 8, 100));
    // One webhook's deliveries are all in memory, the other's are in the store.
    for (webhook, due) in [(1, None), (2, Some(at(900).tick))] {
        endpoints.restored(hook(webhook, webhook, Flow::Open), due, at(0).tick);
    }
    endpoints.arrives(WebhookId(1), queued(1, 800), at(0));
    assert!(matches!(endpoints.next(at(0)), Pick::Wait(Some(tick)) if tick == at(800).tick));
    endpoints.arrives(WebhookId(1), queued(2, 20), at(0));
    endpoints.arrives(WebhookId(2), queued(3, 10), at(0));
    assert!(matches!(endpoints.next(at(9)), Pick::Wait(Some(tick)) if tick == at(10).tick));
    assert!(matches!(
        endpoints.next(at(10)),
        Pick::Read(StoreRead::Fetch { webhook: WebhookId(2), .. })
    ));
    let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(at(20)) else {
        panic!("kept waiting")
    };
    assert_eq!(delivery.id, DeliveryId(2));
}

#[test]
fn memory_has_few_of_many_deliveries_and_none_is_skipped() {
    let mut world = World::new(limits(1_000, 1_000, 100, 100), &[(1, 1)]);
    world.arrive(1, 0, false);
    world.run(5);
    // The delivery is deleted before the read. During the read more arrive than fit in memory.
    world.stored.clear();
    world.read();
    for _ in 0..100 {
        world.arrive(1, 0, true);
    }
    world.drain();
    assert_eq!(world.starts.len(), 100);
}

#[test]
fn waiting_deliveries_use_bounded_memory_for_any_number_of_webhooks() {
    const WEBHOOKS: i64 = 4_000;
    const HOUR: u64 = 3_600_000;
    let mut endpoints = scheduler(limits(1, HOUR, 17, 10_000));
    let body = Bytes::from_static(&[b'x'; 2_000]);
    for id in 0..WEBHOOKS {
        endpoints.restored(hook(id, id, Flow::Open), None, at(0).tick);
        for nth in 0..20 {
            let one = QueuedDelivery { body: body.clone(), ..queued(id * 20 + nth, 0) };
            endpoints.arrives(WebhookId(id), one, at(0));
        }
    }
    let first = steps(&mut endpoints, at(0));
    assert_eq!(first, (WEBHOOKS as usize, 0), "one of each starts");
    // No endpoint may start another for an hour; most have nothing in memory until then.
    assert!(endpoints.cached_bytes <= CACHED_BYTES_ALL / 2, "{}", endpoints.cached_bytes);
    for id in 0..WEBHOOKS {
        endpoints.recorded(
            WebhookId(id),
            ended(DeliveryId(id * 20), None, Responsiveness::Prompt),
            at(1),
        );
    }
    assert_eq!(steps(&mut endpoints, at(2)), (0, 0));
    let (started, reads) = steps(&mut endpoints, at(HOUR));
    assert_eq!(started + reads, WEBHOOKS as usize, "{started} start, {reads} are read");
    assert!(reads > 0);
}

/// The numbers of attempts and of reads that start now.
fn steps(endpoints: &mut Scheduler, now: Moment) -> (usize, usize) {
    let (mut started, mut reads) = (0, 0);
    loop {
        match endpoints.next(now) {
            Pick::Start(..) => started += 1,
            Pick::Read(_) => reads += 1,
            Pick::Wait(_) => return (started, reads),
        }
    }
}

#[test]
fn a_delivery_in_flight_is_not_started_again_though_it_waits_in_the_store() {
    let mut world = World::new(limits(100, 1_000, 100, 100), &[(1, 1)]);
    world.arrive(1, 0, true);
    world.arrive(1, 0, true);
    world.run(5);
    // The webhook changed: everything is read again.
    world.arrive(1, 0, false);
    world.run(5);
    world.answer();
    world.run(5);
    assert_eq!(world.starts.len(), 3);
}

#[test]
fn events_that_pass_a_distant_retry_leave_no_stale_entries() {
    let mut endpoints = scheduler(limits(1_000, 1_000, 8, 100));
    // The other endpoint's entry is earlier, so stale entries of the first do not reach the top.
    for (id, due) in [(1, 86_400_000), (2, 3_600_000)] {
        endpoints.restored(hook(id, id, Flow::Open), None, at(0).tick);
        endpoints.arrives(WebhookId(id), queued(-id, due), at(0));
    }
    for id in 1..2_000 {
        let now = at(id * 2);
        endpoints.arrives(WebhookId(1), queued(id as i64, id * 2), now);
        let Pick::Start(StartedAttempt { delivery, .. }, _) = endpoints.next(now) else {
            panic!("kept waiting")
        };
        endpoints.recorded(WebhookId(1), ended(delivery.id, None, Responsiveness::Prompt), now);
        assert!(matches!(endpoints.next(now), Pick::Wait(Some(_))));
    }
    assert!(endpoints.heap.len() < 100, "{} entries for two endpoints", endpoints.heap.len());
}

#[test]
fn a_stale_read_starts_nothing_twice() {
    let mut world = World::new(limits(100, 1_000, 100, 100), &[(1, 1)]);
    for _ in 0..40 {
        world.arrive(1, 0, false);
    }
    world.run(1);
    let Some(StoreRead::Fetch { webhook, round, .. }) = world.reads.pop() else {
        panic!("not asked")
    };
    let all: Vec<QueuedDelivery> = world.stored[&webhook].values().cloned().collect();
    let first = Fetched { deliveries: all[..32].to_vec(), more: true };
    world.endpoints.fetched(webhook, round, first, at(0));
    world.run(1);
    // The queue runs low and reads more. All attempts in flight end before the result arrives.
    let Some(StoreRead::Fetch { round, .. }) = world.reads.pop() else { panic!("not asked again") };
    world.now = 1;
    world.end(None);
    let stale = Fetched { deliveries: all, more: false };
    world.endpoints.fetched(webhook, round, stale, at(1));
    world.drain();
    let mut ids: Vec<DeliveryId> = world.starts.iter().map(|(.., id)| *id).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), world.starts.len(), "a delivery was started twice");
    assert_eq!(ids.len(), 40);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_delivery_ends_within_the_rate_limit(
        requests in 1_u32..6,
        per_endpoint in 1_usize..5,
        total in 1_usize..8,
        story in prop::collection::vec((0_u64..40, 1_i64..5, 0_u64..30, 0_u8..12), 1..250),
        connects in prop::collection::vec(prop_oneof![Just(0), 0_u64..120], 1..6),
    ) {
        // Webhooks 1 and 2 share an endpoint; 3 and 4 have their own.
        let hooks = [(1, 1), (2, 1), (3, 3), (4, 4)];
        let mut world = World::new(limits(requests, 50, per_endpoint, total), &hooks);
        world.connects = connects;
        let mut count = 0;
        for (pass, webhook, later, what) in story {
            world.now += pass;
            match what {
                0 => world.answer(),
                1 => world.end(Some(later)),
                2 => world.end(None),
                3 => world.run(later),
                4 => {
                    world.endpoints.forget_idle(at(world.now).tick);
                }
                5 => {
                    count += 1;
                    world.arrive(webhook, world.now + later, false);
                }
                6 => world.read(),
                _ => {
                    count += 1;
                    world.arrive(webhook, world.now + later, true);
                }
            }
        }
        world.drain();
        world.check_pace();
        let mut ids: Vec<DeliveryId> = world.starts.iter().map(|(.., id)| *id).collect();
        ids.sort();
        ids.dedup();
        prop_assert_eq!(ids.len(), count, "everything was started");
    }
}
