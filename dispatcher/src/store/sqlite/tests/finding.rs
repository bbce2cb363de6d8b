//! Lists of deliveries, page by page, against a plain list of the same rows; and what a page costs,
//! of webhooks too.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::domain::attempt::{Attempt, AttemptRecord};
use crate::domain::delivery::{Cursor, Delivery, DeliveryState, NextState};
use crate::domain::id::{DeliveryId, EndpointId};
use crate::domain::outcome::{Failure, Outcome, OutcomeClass};
use crate::domain::trace::Trace;
use crate::domain::webhook::filter::WebhookFilter;
use crate::store::sqlite::finding::EXAMINED_MAX;
use crate::store::sqlite::tests::*;
use crate::store::sqlite::webhooks::{self, Nonces};
use crate::store::sqlite::writer::session::WriteSession;
use crate::store::types::Order;

/// A change of the store between two pages.
#[derive(Clone, Debug)]
enum Change {
    /// Events of a tenant arrive, at this second.
    Arrive {
        count: usize,
        tenant: u8,
        second: u64,
    },
    /// An attempt of a delivery ends.
    End {
        nth: usize,
        after: NextState,
    },
    Redeliver {
        nth: usize,
    },
    /// Those that ended are dropped.
    Sweep,
}

fn second(seconds: u64) -> UnixTime {
    NOW.plus(Duration::from_secs(seconds))
}

fn change() -> impl Strategy<Value = Change> {
    let arrive = (1..6_usize, 0..2_u8, 0..5_u64)
        .prop_map(|(count, tenant, second)| Change::Arrive { count, tenant, second });
    let after = prop_oneof![
        Just(NextState::Delivered),
        Just(NextState::FailedPermanent),
        Just(NextState::Again { due: second(60), step: 1 }),
    ];
    prop_oneof![
        4 => arrive,
        5 => (any::<usize>(), after).prop_map(|(nth, after)| Change::End { nth, after }),
        2 => any::<usize>().prop_map(|nth| Change::Redeliver { nth }),
        1 => Just(Change::Sweep),
    ]
}

fn filter() -> impl Strategy<Value = Filter> {
    let state = proptest::option::of(proptest::sample::select(DeliveryState::ALL.to_vec()));
    let tenant = proptest::option::of((0..2_u8).prop_map(|nth| format!("tn_{nth}").into()));
    let class = OutcomeClass::of_name("status_5xx");
    let outcome = prop_oneof![3 => Just(None), 1 => Just(class)];
    let status = prop_oneof![3 => Just(None), 1 => Just(Some(204))];
    let since = proptest::option::of((0..3_u64).prop_map(second));
    let until = proptest::option::of((3..6_u64).prop_map(second));
    (state, tenant, outcome, status, since, until).prop_map(
        |(state, tenant, outcome, status, since, until)| Filter {
            state,
            tenant,
            outcome,
            status,
            since,
            until,
            ..Filter::default()
        },
    )
}

/// A store, and the deliveries that were ever in it, with their tenants.
struct World {
    store: SqliteStore,
    webhook: WebhookId,
    tenants: BTreeMap<DeliveryId, String>,
    events: usize,
}

impl World {
    async fn apply(&mut self, change: Change) {
        match change {
            Change::Arrive { count, tenant, second: at } => {
                let tenant = format!("tn_{tenant}");
                let one = |nth| NewEvent {
                    tenant: Some(tenant.as_str().into()),
                    ..event(&format!("evt_{nth}"))
                };
                let events = (self.events..self.events + count).map(one).collect();
                self.events += count;
                let accepted = self.store.accept(events, second(at)).await.unwrap();
                let Accepted::Stored { arrivals, .. } = accepted else { panic!("all are new") };
                let ids = arrivals.iter().map(|one| (one.delivery.id, tenant.clone()));
                self.tenants.extend(ids);
            }
            Change::End { nth, after } => {
                let Some(id) = self.nth(nth) else { return };
                let outcome = match after {
                    NextState::Delivered => Outcome::of_status(204),
                    NextState::FailedPermanent => Outcome::of_status(503),
                    NextState::Again { .. } => Outcome::Failed(Failure::Timeout),
                };
                self.store
                    .record(vec![self.ended(id, after, outcome)], vec![], vec![], vec![])
                    .await
                    .unwrap();
            }
            Change::Redeliver { nth } => {
                let Some(id) = self.nth(nth) else { return };
                self.store.redeliver(WS, id, second(9)).await.unwrap();
            }
            Change::Sweep => {
                self.store.sweep(&kept(Duration::ZERO), second(99), 1_000).await.unwrap();
            }
        }
    }

    fn nth(&self, nth: usize) -> Option<DeliveryId> {
        self.tenants.keys().nth(nth % self.tenants.len().max(1)).copied()
    }

    fn ended(&self, delivery: DeliveryId, after: NextState, outcome: Outcome) -> AttemptRecord {
        let started_at = second(5);
        let took = Duration::from_millis(1);
        AttemptRecord {
            delivery,
            webhook: self.webhook,
            workspace: "ws_1".into(),
            endpoint: EndpointId(1),
            attempt: Attempt { number: 1, started_at, took, outcome, trace: Trace::default() },
            transcript: None,
            redeliveries: 0,
            after,
            first_attempt_at: Some(started_at),
            since: Some(started_at),
            paused_before: Duration::ZERO,
        }
    }

    /// The deliveries that match now, found without the list.
    async fn matching(&self, filter: &Filter) -> BTreeSet<DeliveryId> {
        let mut matching = BTreeSet::new();
        for (id, tenant) in &self.tenants {
            if let Some((delivery, _)) = self.store.delivery(WS, *id).await.unwrap()
                && selects(filter, &delivery, tenant)
            {
                matching.insert(*id);
            }
        }
        matching
    }
}

fn selects(filter: &Filter, delivery: &Delivery, tenant: &str) -> bool {
    let last = delivery.last_outcome.as_ref();
    filter.state.is_none_or(|state| state == delivery.state)
        && filter.tenant.as_deref().is_none_or(|one| one == tenant)
        && filter.outcome.is_none_or(|one| last.is_some_and(|last| last.class() == one.name()))
        && filter.status.is_none_or(|one| last.and_then(Outcome::status) == Some(one))
        && filter.since.is_none_or(|since| delivery.created_at >= since)
        && filter.until.is_none_or(|until| delivery.created_at < until)
}

async fn list_beside_a_plain_list(
    before: Vec<Change>,
    between: Vec<Change>,
    filter: Filter,
    order: Order,
) {
    let (_folder, store) = fresh();
    let webhook = webhook(&store).await;
    let mut world = World { store, webhook, tenants: BTreeMap::new(), events: 0 };
    for change in before {
        world.apply(change).await;
    }
    let mut all_the_time = world.matching(&filter).await;
    let (mut seen, mut after): (Vec<Cursor>, _) = (Vec::new(), None);
    let mut changes = between.into_iter();
    loop {
        let matching = world.matching(&filter).await;
        let paging = Paging { order, after, limit: 3 };
        let page = world.store.deliveries(WS, &filter, paging).await.unwrap();
        for one in &page.items {
            assert!(matching.contains(&one.id), "{one:?} does not match {filter:?}");
            seen.push(Cursor { created_at: Some(one.created_at), id: one.id });
        }
        after = page.next;
        if after.is_none() {
            break;
        }
        if let Some(change) = changes.next() {
            world.apply(change).await;
            let matching = world.matching(&filter).await;
            all_the_time.retain(|id| matching.contains(id));
        }
    }
    let sorted = seen.is_sorted_by(|one, next| match order {
        Order::Newest => (one.created_at, one.id) > (next.created_at, next.id),
        Order::Oldest => (one.created_at, one.id) < (next.created_at, next.id),
    });
    assert!(sorted, "out of order, or twice: {seen:?}");
    let seen: BTreeSet<DeliveryId> = seen.iter().map(|one| one.id).collect();
    let missing: Vec<_> = all_the_time.difference(&seen).collect();
    assert!(missing.is_empty(), "{missing:?} of {filter:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_list_has_what_matches_all_the_time_once_whatever_changes(
        before in proptest::collection::vec(change(), 4..30),
        between in proptest::collection::vec(change(), 0..12),
        filter in filter(),
        oldest in any::<bool>(),
    ) {
        let order = if oldest { Order::Oldest } else { Order::Newest };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(list_beside_a_plain_list(before, between, filter, order));
    }
}

/// Stores 100,000 deliveries of events of one tenant, then one of another's.
async fn haystack(store: &SqliteStore) {
    for call in 0..100 {
        let all = (0..1_000).map(|nth| event(&format!("evt_{call}_{nth}"))).collect();
        store.accept(all, second(call)).await.unwrap();
    }
    let needle = NewEvent { tenant: Some("tn_needle".into()), ..event("evt_needle") };
    store.accept(vec![needle], second(0)).await.unwrap();
}

#[tokio::test]
async fn a_call_reads_few_of_many_rows_and_a_list_ends_at_the_last() {
    let watch = Watch::default();
    let (_folder, store) = watched(&watch);
    webhook(&store).await;
    haystack(&store).await;
    let of_tenant = Filter { tenant: Some("tn_needle".into()), ..Filter::default() };
    let of_event = Filter { event: Some("evt_needle".into()), ..Filter::default() };
    for (filter, calls_max, order) in [
        (&of_tenant, 21, Order::Newest),
        (&of_tenant, 21, Order::Oldest),
        // Deliveries of one call have one time, and only those are read.
        (&of_event, 1, Order::Newest),
        (&of_event, 1, Order::Oldest),
    ] {
        let (mut found, mut after, mut calls) = (0, None, 0);
        loop {
            watch.drain();
            let paging = Paging { order, after, limit: 100 };
            let page = store.deliveries(WS, filter, paging).await.unwrap();
            let rows: u64 = watch
                .drain()
                .iter()
                .filter(|(sql, _)| sql.contains("FROM deliveries d WHERE d.id"))
                .map(|(_, seen)| seen.runs)
                .sum();
            assert!((1..=5_000).contains(&rows), "{rows} rows in one call");
            (found, after, calls) = (found + page.items.len(), page.next, calls + 1);
            if after.is_none() {
                break;
            }
        }
        assert_eq!((found, calls), (1, calls_max), "{filter:?} {order:?}");
    }
}

#[tokio::test]
async fn a_page_reads_a_bounded_number_of_rows_and_has_a_cursor() {
    let (_folder, store) = fresh();
    webhook(&store).await;
    for call in 0..6 {
        let events = (0..1_000).map(|number| event(&format!("evt_{call}_{number}"))).collect();
        store.accept(events, NOW).await.unwrap();
    }
    let rare = Filter { kind: Some(EventType::new("plan.changed")), ..Filter::default() };
    let first = store.deliveries(WS, &rare, Paging::first(10)).await.unwrap();
    assert_eq!(first.items, []);
    let next = first.next.expect("there are rows it has not looked at");
    assert_eq!(next.id.0, 1_001);
    let last = store
        .deliveries(WS, &rare, Paging { after: Some(next), ..Paging::first(10) })
        .await
        .unwrap();
    assert_eq!(last, Page { items: vec![], next: None });
}

#[tokio::test]
async fn one_paused_webhook_among_many_is_found_by_calls_that_examine_a_part() {
    let (_folder, store) = fresh();
    let many = EXAMINED_MAX as i64 + 1;
    let created = move |session: &mut WriteSession| {
        for _ in 0..many {
            let new = NewWebhook {
                workspace: WS.into(),
                url: "https://hooks.example.com/in".into(),
                events: EventSet::default(),
                options: Default::default(),
                secret: Secret::new("whsec_secret".to_owned()),
                webhooks_max: u64::MAX,
                signing_key: None,
            };
            webhooks::create(session, new, Nonces::random().unwrap(), NOW)?;
        }
        session.conn.execute("UPDATE webhooks SET paused_at = 1 WHERE id = ?1", [many])?;
        Ok(())
    };
    store.writer.run(created).await.unwrap();
    for workspace in [None, Some(WS.into())] {
        let filter = WebhookFilter { workspace, ..WebhookFilter::default() };
        let first = store.find_webhooks(&filter, None, 10).await.unwrap();
        assert_eq!((first.items, first.next), (vec![], Some(WebhookId(many - 1))), "{filter:?}");
        let last = store.find_webhooks(&filter, first.next, 10).await.unwrap();
        let found: Vec<WebhookId> = last.items.iter().map(|webhook| webhook.id).collect();
        assert_eq!((found, last.next), (vec![WebhookId(many)], None), "{filter:?}");
    }
}
