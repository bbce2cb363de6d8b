//! Simulates days of steady traffic: the store and its retention run on a simulated clock. Prints
//! the size of the files after each day.

use std::sync::Arc;
use std::time::Duration;

use weir_benches::flags::fail;
use weir_benches::lab::Folder;
use weir_benches::post::seconds;
use weir_benches::report::table;
use weir_common::secret::Secret;
use weir_common::time::{Clock, UnixTime};
use weir_dispatcher::config::settings::Retention;
use weir_dispatcher::domain::attempt::{Attempt, AttemptRecord};
use weir_dispatcher::domain::delivery::NextState;
use weir_dispatcher::domain::event::{EventSet, EventType};
use weir_dispatcher::domain::id::{DeliveryId, EndpointId, WebhookId};
use weir_dispatcher::domain::outcome::{Failure, Outcome};
use weir_dispatcher::domain::trace::Trace;
use weir_dispatcher::domain::transcript::{Headers, RecordedAnswer, Transcript};
use weir_dispatcher::store::sqlite::SqliteStore;
use weir_dispatcher::store::types::{Accepted, Created, NewEvent, NewWebhook};
use weir_dispatcher::store::{DeliveryQueue, Intake, Management, StoreError, Upkeep};

const DAY: Duration = Duration::from_secs(86_400);
const KEPT: Retention = Retention {
    delivered: Duration::from_secs(2 * 86_400),
    failed: Duration::from_secs(3 * 86_400),
    answers: Duration::from_secs(86_400),
};

/// Turns per day, and events per turn.
const TURNS: u32 = 48;
const EVENTS: u32 = 1_000;

/// Webhooks of the only workspace; each event is delivered to all of them.
const WEBHOOKS: u32 = 2;

/// 2026-09-21.
const BEGAN: UnixTime = UnixTime(1_790_000_000_000_000);

/// Simulates `days` days, and prints the table.
pub(crate) fn run(days: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| fail(&format!("no runtime: {error}")));
    let lived = runtime.block_on(live(days));
    let rows = lived.unwrap_or_else(|error| fail(&format!("the store: {error}")));
    let title = format!(
        "Days of {} deliveries each, kept for two days, or three if given up",
        TURNS * EVENTS * WEBHOOKS
    );
    println!("{}", table(&title, &["day", "database MiB", "log MiB", "took s"], &rows));
}

async fn live(days: u32) -> Result<Vec<Vec<String>>, StoreError> {
    let (folder, clock, real) = (Folder::new("churn"), Clock::manual(BEGAN), Clock::system());
    let (path, key) = (folder.path("dispatcher.db"), folder.path("secrets.key"));
    let store = SqliteStore::open(&path, &key, clock.clone());
    let store = store.unwrap_or_else(|error| fail(&error.to_string()));
    for nth in 0..WEBHOOKS {
        register(&store, nth).await?;
    }
    let mut rows = Vec::new();
    for day in 0..days {
        let began = real.now().tick;
        for turn in 0..TURNS {
            clock.advance(DAY / TURNS);
            let now = clock.now().unix;
            let first = (day * TURNS + turn) * EVENTS;
            let events = (first..first + EVENTS).map(event).collect();
            let Accepted::Stored { arrivals, .. } = store.accept(events, now).await? else {
                fail("events are in conflict");
            };
            let ended =
                arrivals.iter().map(|one| ended(one.webhook, one.delivery.id, now)).collect();
            store.record(ended, Vec::new(), Vec::new(), Vec::new()).await?;
            while store.sweep(&KEPT, now, 500).await? {}
        }
        let (bytes, log) = crate::sizes(&folder);
        let took = seconds(real.now().tick.since(began));
        let row = [f64::from(day + 1), bytes, log, took];
        rows.push(row.iter().map(|figure| format!("{figure:.0}")).collect());
    }
    store.close().await?;
    Ok(rows)
}

async fn register(store: &SqliteStore, nth: u32) -> Result<(), StoreError> {
    let new = NewWebhook {
        workspace: "ws_churn".into(),
        url: format!("https://hooks.example.com/{nth}").into(),
        events: EventSet::of([EventType::new("session.started")]),
        options: Default::default(),
        secret: Secret::new("whsec_secret".to_owned()),
        webhooks_max: 20,
        signing_key: None,
    };
    match store.create_webhook(new, BEGAN).await? {
        Created::Webhook(_) => Ok(()),
        Created::TooMany => fail("there is no room for a webhook"),
    }
}

/// An event of 512 bytes, with a pseudo-random identifier.
fn event(nth: u32) -> NewEvent {
    let name = u64::from(nth).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    NewEvent {
        id: format!("evt_{name:016x}").into(),
        workspace: "ws_churn".into(),
        kind: EventType::new("session.started"),
        tenant: Some("tn_churn".into()),
        body: vec![b'x'; 512].into(),
        digest: [7; 32],
    }
}

/// What an attempt over an earlier connection comes across.
fn trace() -> Trace {
    let first_byte = Some(Duration::from_millis(19));
    Trace { address: Some([203, 0, 113, 7].into()), reused: true, first_byte, ..Trace::default() }
}

/// A failure with a page of text.
fn transcript() -> Transcript {
    let body = vec![b'x'; 1024];
    let answer = RecordedAnswer { headers: Headers::default(), body, cut: true };
    Transcript { request: Headers::default(), answer: Some(answer) }
}

fn ended(webhook: WebhookId, delivery: DeliveryId, now: UnixTime) -> AttemptRecord {
    let failed = delivery.0 % 10 == 0;
    let outcome = if failed {
        Outcome::Failed(Failure::Status(500))
    } else {
        Outcome::Delivered { status: 204 }
    };
    AttemptRecord {
        delivery,
        webhook,
        workspace: "ws_1".into(),
        endpoint: EndpointId(webhook.0),
        attempt: Attempt {
            number: 1,
            started_at: now,
            took: Duration::from_millis(20),
            outcome,
            trace: trace(),
        },
        transcript: failed.then(|| Arc::new(transcript())),
        redeliveries: 0,
        after: if failed { NextState::FailedPermanent } else { NextState::Delivered },
        first_attempt_at: Some(now),
        since: Some(now),
        paused_before: Duration::ZERO,
    }
}
