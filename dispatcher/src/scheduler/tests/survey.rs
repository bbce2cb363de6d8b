//! What operators are shown of the queues.

use crate::scheduler::survey::WaitsFor;
use crate::scheduler::tests::*;

fn waiting(scheduler: &Scheduler, now: u64) -> Vec<(WaitsFor, usize)> {
    let survey = scheduler.survey(at(now).tick);
    let all = WaitsFor::ALL.into_iter().zip(survey.waiting);
    all.filter(|(_, count)| *count > 0).collect()
}

#[test]
fn each_webhook_waits_for_one_thing() {
    // Two starts an hour, and one attempt in flight at an endpoint.
    let mut scheduler = scheduler(limits(2, 3_600_000, 1, 100));
    for (id, flow) in [(1, Flow::Open), (2, Flow::Open), (3, Flow::Stopped)] {
        scheduler.restored(hook(id, id, flow), None, at(0).tick);
    }
    assert_eq!(waiting(&scheduler, 0), [], "nothing waits of those without deliveries");
    scheduler.arrives(WebhookId(1), queued(1, 0), at(0));
    scheduler.arrives(WebhookId(2), queued(2, 60_000), at(0));
    scheduler.arrives(WebhookId(3), queued(3, 0), at(0));
    let first = [(WaitsFor::Turn, 1), (WaitsFor::Later, 1), (WaitsFor::Webhook, 1)];
    assert_eq!(waiting(&scheduler, 0), first);
    assert!(matches!(scheduler.next(at(0)), Pick::Start(..)));
    scheduler.arrives(WebhookId(1), queued(4, 0), at(0));
    let started = [(WaitsFor::InFlight, 1), (WaitsFor::Later, 1), (WaitsFor::Webhook, 1)];
    assert_eq!(waiting(&scheduler, 0), started);
    for id in [1, 4] {
        let _ = scheduler.next(at(1));
        let end = ended(DeliveryId(id), None, Responsiveness::Prompt);
        scheduler.end(WebhookId(1), end, at(1));
        let _ = scheduler.next(at(1));
    }
    scheduler.arrives(WebhookId(1), queued(5, 0), at(1));
    let paced = [(WaitsFor::Pace, 1), (WaitsFor::Later, 1), (WaitsFor::Webhook, 1)];
    assert_eq!(waiting(&scheduler, 1), paced);
}

#[test]
fn the_longest_queues_come_first_and_those_on_disk_before_them() {
    let mut scheduler = scheduler(limits(2, 3_600_000, 1, 100));
    for (id, count) in [(1, 1), (2, 3), (3, 0)] {
        scheduler.restored(hook(id, id, Flow::Open), None, at(0).tick);
        for nth in 0..count {
            scheduler.arrives(WebhookId(id), queued(10 * id + nth, 60_000), at(0));
        }
    }
    scheduler.restored(hook(4, 4, Flow::Open), Some(at(60_000).tick), at(0).tick);
    let longest = scheduler.survey(at(0).tick).longest;
    let found: Vec<_> = longest.iter().map(|one| one.webhook.0).collect();
    assert_eq!(found, [4, 2, 1]);
}

/// A survey of many webhooks examines some, and takes the others to be like them.
#[test]
fn the_reasons_of_many_webhooks_are_estimated() {
    let mut scheduler = scheduler(limits(2, 3_600_000, 1, 100));
    for id in 1..=12_000 {
        scheduler.restored(hook(id, id, Flow::Open), None, at(0).tick);
        scheduler.arrives(WebhookId(id), queued(id, 60_000), at(0));
    }
    assert_eq!(waiting(&scheduler, 0), [(WaitsFor::Later, 12_000)]);
    assert_eq!(scheduler.survey(at(0).tick).longest.len(), 20);
}
