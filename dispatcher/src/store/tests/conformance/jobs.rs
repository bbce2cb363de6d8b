//! Promises about redelivery jobs.

use crate::domain::outcome::OutcomeClass;
use crate::store::tests::conformance::*;
use crate::store::types::{
    JOBS_OPEN_MAX, Job, JobCreated, JobScope, JobStep, JobWebhook, Matches, NewJob, WebhookMatches,
};

const FAILED: DeliveryState = DeliveryState::FailedPermanent;

/// A job of a workspace.
async fn job_of(store: &dyn Store, workspace: &str, filter: Filter, now: UnixTime) -> Job {
    match store.create_job(workspace, filter.into(), now).await.unwrap() {
        JobCreated::Job(job) => job,
        JobCreated::TooMany => panic!("{workspace} has few jobs"),
    }
}

/// Runs all jobs to their ends in steps of `limit`, and returns the results of the steps.
async fn run_jobs(store: &dyn Store, limit: usize, now: UnixTime) -> Vec<JobStep> {
    let mut steps = Vec::new();
    loop {
        steps.push(store.step_job(limit, now).await.unwrap());
        if steps.last().is_some_and(|step| !step.more) {
            return steps;
        }
        assert!(steps.len() < 100, "a job has no end");
    }
}

pub(super) async fn a_job_redelivers_failed_deliveries_in_steps(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut failed = Vec::new();
    for number in 0..5 {
        let name = format!("evt_{number}");
        failed.push(over(store, &made, &name, t(number), NextState::FailedPermanent).await);
    }
    let well = over(store, &made, "evt_well", t(9), NextState::Delivered).await;
    let job = job_of(store, WS, Filter::default(), t(10)).await;
    assert_eq!((job.created_at, job.ended_at, job.redelivered), (t(10), None, 0));
    assert_eq!(store.job(WS, job.id).await.unwrap(), Some(job.clone()));
    let first = store.step_job(2, t(11)).await.unwrap();
    assert_eq!(first, JobStep { webhooks: vec![made.id], more: true });
    assert_eq!(store.job(WS, job.id).await.unwrap().unwrap().redelivered, 2);
    run_jobs(store, 2, t(12)).await;
    let done = store.job(WS, job.id).await.unwrap().unwrap();
    assert_eq!((done.ended_at, done.redelivered, done.examined), (Some(t(12)), 5, 5));
    assert!(!done.cancelled);
    for id in failed {
        assert_eq!(delivery(store, id).await.state, DeliveryState::Waiting);
    }
    assert_eq!(delivery(store, well).await.state, DeliveryState::Delivered);
    assert_eq!(store.figures().await.unwrap().waiting, 5);
    assert_eq!(store.step_job(2, t(13)).await.unwrap(), JobStep::default());
}

pub(super) async fn a_job_redelivers_what_its_filter_selects(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let early = over(store, &made, "evt_1", t(10), NextState::Delivered).await;
    let late = over(store, &made, "evt_2", t(20), NextState::Delivered).await;
    let other = over(store, &made, "evt_4", t(20), NextState::Delivered).await;
    let failed = over(store, &made, "evt_3", t(21), NextState::FailedPermanent).await;
    let filter = Filter {
        state: Some(DeliveryState::Delivered),
        webhook: Some(made.id),
        kind: Some(EventType::new("user.created")),
        event: Some("evt_2".into()),
        tenant: Some("tn_1".into()),
        outcome: OutcomeClass::of_name("status_2xx"),
        status: Some(204),
        since: Some(t(20)),
        until: Some(t(30)),
    };
    let job = job_of(store, WS, filter.clone(), t(40)).await;
    assert_eq!(store.job(WS, job.id).await.unwrap().unwrap().scope, JobScope::Matching(filter));
    run_jobs(store, 100, t(41)).await;
    assert_eq!(delivery(store, early).await.state, DeliveryState::Delivered);
    assert_eq!(delivery(store, late).await.state, DeliveryState::Waiting);
    assert_eq!(delivery(store, other).await.state, DeliveryState::Delivered);
    assert_eq!(delivery(store, failed).await.state, FAILED);
}

pub(super) async fn a_job_redelivers_no_ping_unless_its_filter_includes_pings(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let ping = NewEvent { kind: EventType::PING, ..event("evt_ping") };
    let ping = store.ping(WS, made.id, ping, t(1)).await.unwrap().unwrap().delivery.id;
    let failed = ended(&made, ping, t(1), NextState::FailedPermanent);
    store.record(vec![failed], vec![], vec![], vec![]).await.unwrap();
    for (kind, state) in [(None, FAILED), (Some(EventType::PING), DeliveryState::Waiting)] {
        store.create_job(WS, Filter { kind, ..Filter::default() }.into(), t(2)).await.unwrap();
        run_jobs(store, 100, t(3)).await;
        assert_eq!(delivery(store, ping).await.state, state, "{kind:?}");
    }
}

pub(super) async fn a_job_skips_deliveries_that_arrived_after_it(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let before = over(store, &made, "evt_1", t(1), NextState::FailedPermanent).await;
    store.create_job(WS, Filter::default().into(), t(2)).await.unwrap();
    store.create_job(WS, Filter::default().into(), t(2)).await.unwrap();
    let after = over(store, &made, "evt_2", t(3), NextState::FailedPermanent).await;
    run_jobs(store, 1, t(4)).await;
    assert_eq!(delivery(store, before).await.state, DeliveryState::Waiting);
    assert_eq!(delivery(store, after).await.state, FAILED);
}

pub(super) async fn a_job_from_after_a_clock_was_set_back_passes_newer_deliveries(
    store: &dyn Store,
) {
    let made = webhook(store, "one").await;
    let fails =
        async |name: String, at| over(store, &made, &name, t(at), NextState::FailedPermanent).await;
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for nth in 0..3 {
        before.push(fails(format!("evt_before_{nth}"), 1_000 + nth).await);
    }
    let job = job_of(store, WS, Filter::default(), t(1)).await;
    // Accepted later, by a clock that was set back; and when it was there again.
    for nth in 0..5 {
        after.push(fails(format!("evt_after_{nth}"), 2 + nth).await);
        after.push(fails(format!("evt_long_after_{nth}"), 2_000 + nth).await);
    }
    run_jobs(store, 2, t(9)).await;
    let done = store.job(WS, job.id).await.unwrap().unwrap();
    assert_eq!((done.redelivered, done.examined, done.ended_at), (3, 8, Some(t(9))));
    for id in before {
        assert_eq!(delivery(store, id).await.state, DeliveryState::Waiting);
    }
    for id in after {
        assert_eq!(delivery(store, id).await.state, FAILED);
    }
}

pub(super) async fn jobs_of_workspaces_take_turns(store: &dyn Store) {
    let made = webhook(store, "large").await;
    for number in 0..20 {
        over(store, &made, &format!("evt_{number}"), t(1), NextState::FailedPermanent).await;
    }
    let theirs = webhook_of(store, OTHER_WS, URL).await;
    let other = NewEvent { workspace: OTHER_WS.into(), ..event("evt_1") };
    let (_, arrivals) = accept(store, vec![other], t(1)).await;
    let failed = ended(&theirs, arrivals[0].delivery.id, t(1), NextState::FailedPermanent);
    record(store, vec![failed]).await;
    for _ in 0..JOBS_OPEN_MAX {
        job_of(store, WS, Filter::default(), t(2)).await;
    }
    let small = job_of(store, OTHER_WS, Filter::default(), t(3)).await;
    for _ in 0..2 {
        assert!(store.step_job(5, t(4)).await.unwrap().more);
    }
    let small = store.job(OTHER_WS, small.id).await.unwrap().unwrap();
    assert_eq!((small.redelivered, small.ended_at), (1, Some(t(4))), "it waited for a large one");
}

pub(super) async fn a_workspace_has_a_few_jobs_under_way(store: &dyn Store) {
    webhook(store, "one").await;
    for _ in 0..JOBS_OPEN_MAX {
        job_of(store, WS, Filter::default(), t(1)).await;
    }
    let refused = store.create_job(WS, Filter::default().into(), t(1)).await.unwrap();
    assert_eq!(refused, JobCreated::TooMany);
    job_of(store, OTHER_WS, Filter::default(), t(1)).await;
    assert!(store.step_job(10, t(2)).await.unwrap().more);
    job_of(store, WS, Filter::default(), t(3)).await;
}

/// A job of [`WS`] that names deliveries.
async fn job_naming(store: &dyn Store, ids: &[DeliveryId], now: UnixTime) -> Job {
    let new = NewJob { scope: JobScope::Named(ids.to_vec()), matches: None };
    match store.create_job(WS, new, now).await.unwrap() {
        JobCreated::Job(job) => job,
        JobCreated::TooMany => panic!("there are few"),
    }
}

async fn job(store: &dyn Store, id: JobId) -> Job {
    store.job(WS, id).await.unwrap().expect("it was created")
}

/// What became of a job's deliveries: redelivered, then by state waiting, delivered and failed.
async fn became(store: &dyn Store, id: JobId) -> [u64; 4] {
    let job = job(store, id).await;
    let of_all = |of: fn(&JobWebhook) -> u64| job.sum(of);
    assert_eq!(job.redelivered, of_all(|one| one.redelivered));
    let [waiting, delivered] = [of_all(|one| one.waiting), of_all(|one| one.delivered)];
    [job.redelivered, waiting, delivered, of_all(|one| one.failed_permanent)]
}

pub(super) async fn a_workspace_sees_no_other_ones_jobs(store: &dyn Store) {
    let made = webhook(store, "one").await;
    webhook_of(store, OTHER_WS, URL).await;
    let id = over(store, &made, "evt_1", t(1), NextState::FailedPermanent).await;
    let theirs = job_of(store, OTHER_WS, Filter::default(), t(3)).await;
    let named = NewJob { scope: JobScope::Named(vec![id]), matches: None };
    store.create_job(OTHER_WS, named.clone(), t(3)).await.unwrap();
    let matches = store.matches(OTHER_WS, &named.scope, t(3)).await.unwrap();
    assert_eq!((matches.unknown, matches.webhooks), (vec![id], vec![]));
    run_jobs(store, 10, t(4)).await;
    assert_eq!(store.job(OTHER_WS, theirs.id).await.unwrap().unwrap().redelivered, 0);
    assert_eq!(store.job(WS, theirs.id).await.unwrap(), None);
    assert_eq!(store.cancel_job(WS, theirs.id, t(5)).await.unwrap(), None);
    assert_eq!(store.jobs(WS, None, 9).await.unwrap().items, []);
    assert_eq!(delivery(store, id).await.state, FAILED);
}

pub(super) async fn a_job_redelivers_the_deliveries_that_it_names(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut ids = Vec::new();
    for (nth, after) in [NextState::Delivered, NextState::FailedPermanent].into_iter().enumerate() {
        ids.push(over(store, &made, &format!("evt_{nth}"), t(1), after).await);
    }
    let later = NextState::Again { due: t(900), step: 4 };
    ids.push(over(store, &made, "evt_later", t(1), later).await);
    let ping = NewEvent { kind: EventType::PING, ..event("evt_ping") };
    let ping = store.ping(WS, made.id, ping, t(1)).await.unwrap().unwrap().delivery.id;
    record(store, vec![ended(&made, ping, t(1), NextState::FailedPermanent)]).await;
    ids.push(ping);
    let other = over(store, &made, "evt_other", t(1), NextState::FailedPermanent).await;
    let made_job = job_naming(store, &ids, t(10)).await;
    assert_eq!(made_job.scope, JobScope::Named(ids.clone()));
    let steps = run_jobs(store, 3, t(11)).await;
    assert_eq!(steps.len(), 2, "{steps:?}");
    for id in ids {
        let again = store.fetch_one(id).await.unwrap().expect("it waits");
        assert_eq!((again.due, again.step), (t(11), 0));
    }
    assert_eq!(delivery(store, other).await.state, FAILED);
    let done = job(store, made_job.id).await;
    assert_eq!((done.examined, done.redelivered, done.ended_at), (4, 4, Some(t(11))));
    assert_eq!(store.figures().await.unwrap().waiting, 4);
}

pub(super) async fn a_named_delivery_that_is_gone_is_skipped(store: &dyn Store) {
    let [made, gone] = [webhook(store, "one").await, webhook(store, "gone").await];
    let (_, arrivals) = accept(store, vec![event("evt_1")], t(1)).await;
    let of = |webhook: &Webhook| {
        arrivals.iter().find(|one| one.webhook == webhook.id).expect("it arrived").delivery.id
    };
    let (kept, hidden) = (of(&made), of(&gone));
    for (webhook, id) in [(&made, kept), (&gone, hidden)] {
        record(store, vec![ended(webhook, id, t(1), NextState::FailedPermanent)]).await;
    }
    store.delete_webhook(WS, gone.id).await.unwrap();
    let mut ids = vec![kept, hidden, DeliveryId(4_711)];
    ids.sort_unstable();
    let matches = store.matches(WS, &JobScope::Named(ids.clone()), t(2)).await.unwrap();
    assert_eq!(matches.unknown.len(), 2, "{matches:?}");
    assert!(!matches.unknown.contains(&kept));
    let named = job_naming(store, &ids, t(2)).await;
    run_jobs(store, 100, t(3)).await;
    assert_eq!(became(store, named.id).await, [1, 1, 0, 0]);
    assert_eq!(delivery(store, kept).await.state, DeliveryState::Waiting);
}

pub(super) async fn a_job_for_delivered_ones_does_not_disturb_waiting_ones(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let delivered = over(store, &made, "evt_1", t(1), NextState::Delivered).await;
    let again = NextState::Again { due: t(900), step: 4 };
    let waits = over(store, &made, "evt_2", t(2), again).await;
    let before = store.fetch_one(waits).await.unwrap();
    let filter = Filter { since: Some(t(0)), ..in_state(DeliveryState::Delivered) };
    job_of(store, WS, filter, t(10)).await;
    run_jobs(store, 1, t(11)).await;
    assert_eq!(store.fetch_one(waits).await.unwrap(), before);
    let sent = store.fetch_one(delivered).await.unwrap().expect("it waits again");
    assert_eq!((&*sent.event_id, sent.due), ("evt_1", t(11)));
}

pub(super) async fn a_job_counts_what_became_of_its_deliveries(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut ids = Vec::new();
    for nth in 0..4 {
        ids.push(over(store, &made, &format!("evt_{nth}"), t(1), NextState::FailedPermanent).await);
    }
    let first = job_of(store, WS, Filter::default(), t(2)).await.id;
    run_jobs(store, 3, t(3)).await;
    assert_eq!(became(store, first).await, [4, 4, 0, 0]);
    let again = NextState::Again { due: t(900), step: 1 };
    for (id, after) in ids.iter().zip([NextState::Delivered, NextState::FailedPermanent, again]) {
        let since = AttemptRecord { redeliveries: 1, ..ended(&made, *id, t(4), after) };
        record(store, vec![since]).await;
    }
    assert_eq!(became(store, first).await, [4, 2, 1, 1]);
    // An attempt of a delivery that has ended changes nothing.
    record(store, vec![ended(&made, ids[0], t(5), NextState::FailedPermanent)]).await;
    assert_eq!(became(store, first).await, [4, 2, 1, 1]);
    // One that is redelivered again counts for the later job, or for none.
    let second = job_naming(store, &[ids[1], ids[2]], t(6)).await.id;
    run_jobs(store, 100, t(7)).await;
    assert_eq!(became(store, first).await, [4, 1, 1, 0]);
    assert_eq!(became(store, second).await, [2, 2, 0, 0]);
    store.redeliver(WS, ids[2], t(8)).await.unwrap();
    assert_eq!(became(store, second).await, [2, 1, 0, 0]);
    record(store, vec![ended(&made, ids[2], t(9), NextState::Delivered)]).await;
    record(store, vec![ended(&made, ids[1], t(9), NextState::Delivered)]).await;
    assert_eq!(became(store, second).await, [2, 0, 1, 0]);
    // What retention drops ended as it did; what a deleted webhook leaves is never sent.
    assert!(!sweep(store, t(100), t(0), 100).await);
    assert_eq!(became(store, first).await, [4, 1, 1, 0]);
    store.delete_webhook(WS, made.id).await.unwrap();
    assert!(!sweep(store, t(100), t(0), 100).await);
    assert_eq!(became(store, first).await, [4, 0, 1, 0]);
}

pub(super) async fn a_cancelled_job_queues_nothing_more(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let mut ids = Vec::new();
    for nth in 0..4 {
        ids.push(over(store, &made, &format!("evt_{nth}"), t(1), NextState::FailedPermanent).await);
    }
    let id = job_of(store, WS, Filter::default(), t(2)).await.id;
    assert!(store.step_job(2, t(3)).await.unwrap().more);
    let cancelled = store.cancel_job(WS, id, t(4)).await.unwrap().expect("it is there");
    assert_eq!((cancelled.cancelled, cancelled.ended_at), (true, Some(t(4))));
    assert_eq!(store.step_job(2, t(5)).await.unwrap(), JobStep::default());
    assert_eq!(became(store, id).await, [2, 2, 0, 0], "what it queued stays queued");
    assert_eq!(listed(store, in_state(FAILED)).await, ["evt_3", "evt_2"]);
    // What has ended stays as it is.
    assert_eq!(store.cancel_job(WS, id, t(6)).await.unwrap(), Some(cancelled));
    let done = job_of(store, WS, Filter::default(), t(7)).await.id;
    run_jobs(store, 100, t(8)).await;
    let done = job(store, done).await;
    assert_eq!(store.cancel_job(WS, done.id, t(9)).await.unwrap(), Some(done.clone()));
    assert_eq!((done.cancelled, done.ended_at), (false, Some(t(8))));
    assert_eq!(store.cancel_job(WS, JobId(4_711), t(9)).await.unwrap(), None);
}

pub(super) async fn jobs_are_listed_newest_first_page_by_page(store: &dyn Store) {
    let mut made = Vec::new();
    for nth in 0..5 {
        made.insert(0, job_of(store, WS, Filter::default(), t(nth)).await.id);
        job_of(store, OTHER_WS, Filter::default(), t(nth)).await;
    }
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let page = store.jobs(WS, after, 2).await.unwrap();
        seen.extend(page.items.iter().map(|one| one.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, made);
    let open = store.open_jobs(7).await.unwrap();
    let workspaces: Vec<&str> = open.iter().map(|one| &*one.workspace).collect();
    assert_eq!(workspaces, [WS, WS, WS, WS, WS, OTHER_WS, OTHER_WS]);
    assert_eq!(open[0].job.id, made[4], "oldest first");
    run_jobs(store, 10, t(9)).await;
    assert_eq!(store.open_jobs(7).await.unwrap(), []);
    assert_eq!(store.jobs(WS, None, 9).await.unwrap().items.len(), 5);
}

pub(super) async fn matches_are_counted_before_a_job_redelivers_them(store: &dyn Store) {
    let one = webhook(store, "one").await;
    for nth in 0..3 {
        over(store, &one, &format!("evt_{nth}"), t(1), NextState::FailedPermanent).await;
    }
    let two = webhook(store, "two").await;
    let (_, arrivals) = accept(store, vec![event("evt_both")], t(5)).await;
    let failed = arrivals.iter().find(|arrival| arrival.webhook == two.id).unwrap().delivery.id;
    record(store, vec![ended(&two, failed, t(6), NextState::FailedPermanent)]).await;
    let count = |webhook: &Webhook, count, due| WebhookMatches { webhook: webhook.id, count, due };
    let of = async |filter| store.matches(WS, &JobScope::Matching(filter), t(7)).await.unwrap();
    let matches = of(Filter::default()).await;
    let webhooks = vec![count(&one, 3, 0), count(&two, 1, 0)];
    assert_eq!(matches, Matches { webhooks, complete: true, unknown: vec![] });
    let waiting = of(in_state(DeliveryState::Waiting)).await;
    assert_eq!(waiting.webhooks, [count(&one, 1, 1)]);
    let new = NewJob { scope: JobScope::Matching(Filter::default()), matches: Some(matches) };
    let JobCreated::Job(made) = store.create_job(WS, new, t(7)).await.unwrap() else {
        panic!("there are few");
    };
    assert_eq!((made.counted, made.sum(|one| one.matching)), (Some(true), 4));
    run_jobs(store, 2, t(8)).await;
    let done = job(store, made.id).await;
    for webhook in &done.webhooks {
        assert_eq!((webhook.redelivered, webhook.waiting), (webhook.matching, webhook.matching));
    }
    assert_eq!(became(store, made.id).await, [4, 4, 0, 0]);
}

pub(super) async fn the_nth_delivery_is_found_in_the_order_of_due_times(store: &dyn Store) {
    let made = webhook(store, "one").await;
    let again = NextState::Again { due: t(900), step: 1 };
    over(store, &made, "evt_1", t(1), again).await;
    arrival(store, "evt_2", t(5)).await;
    over(store, &made, "evt_3", t(6), NextState::Delivered).await;
    for (nth, due) in [Some(t(5)), Some(t(900)), None].into_iter().enumerate() {
        assert_eq!(store.nth_due(made.id, nth).await.unwrap(), due);
    }
    let upcoming = store.upcoming(made.id, 9).await.unwrap();
    let dues: Vec<_> = upcoming.iter().map(|one| (one.due, one.step)).collect();
    assert_eq!(dues, [(t(5), 0), (t(900), 1)]);
    assert_eq!(upcoming[0].first_attempt_at, None);
    assert!(upcoming[1].first_attempt_at.is_some() && upcoming[1].since.is_some());
    assert_eq!(store.upcoming(made.id, 1).await.unwrap(), upcoming[..1]);
}
