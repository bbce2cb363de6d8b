//! Tests that every store must pass: one function for each promise in [`Store`]'s documentation.
//!
//! Each runs on a new, empty store. Not here: promises of one kind of store (files, locks, full
//! disks).

mod all_workspaces;
mod attempts;
mod deliveries;
mod events;
mod jobs;
mod secrets;
mod sessions;
mod upkeep;
mod webhooks;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use weir_common::secret::Secret;
use weir_common::time::UnixTime;

use crate::config::settings::Retention;
use crate::domain::attempt::{Attempt, AttemptRecord, RecordedAttempt};
use crate::domain::delivery::{Arrival, Delivery, DeliveryState, NextState};
use crate::domain::event::{EventSet, EventType};
use crate::domain::health::Health;
use crate::domain::id::{DeliveryId, JobId, WebhookId};
use crate::domain::outcome::{Failure, Outcome};
use crate::domain::trace::Trace;
use crate::domain::transcript::{Headers, RecordedAnswer, Transcript};
use crate::domain::webhook::{Webhook, WebhookUpdate};
use crate::store::Store;
use crate::store::mail::NewMail;
use crate::store::types::{Accepted, Created, Filter, NewEvent, NewWebhook, Paging};

/// The test of a promise; panics if it is broken.
type Promise = for<'a> fn(&'a dyn Store) -> Pin<Box<dyn Future<Output = ()> + 'a>>;

macro_rules! promises {
    ($($group:ident :: $name:ident),+ $(,)?) => {
        /// All promises, by name.
        const PROMISES: &[(&str, Promise)] =
            &[$((stringify!($name), |store| Box::pin($group::$name(store)))),+];
    };
}

promises! {
    webhooks::a_webhook_is_read_back_as_it_was_registered,
    webhooks::a_workspace_has_no_more_webhooks_than_it_may,
    webhooks::a_workspace_sees_no_other_ones_webhooks,
    webhooks::webhooks_are_listed_oldest_first_page_by_page,
    webhooks::webhooks_of_one_url_share_an_endpoint,
    webhooks::what_is_not_changed_stays,
    webhooks::a_change_that_was_made_up_before_another_changes_nothing,
    webhooks::options_are_read_back_and_change_one_by_one,
    webhooks::a_signing_key_stays_until_it_is_removed,
    webhooks::a_disabled_webhook_resumes_like_a_paused_one,
    webhooks::a_webhook_is_paused_and_disabled_at_one_time,
    webhooks::the_latest_times_without_deliveries_are_kept,
    secrets::every_secret_signs_until_its_own_overlap_ends,
    secrets::a_secret_without_an_end_signs_until_it_is_removed,
    secrets::secrets_without_an_end_count_as_well,
    secrets::no_secret_is_stopped_to_make_room_for_another,
    webhooks::a_deleted_webhook_is_removed_with_its_waiting_deliveries,
    webhooks::a_reactivation_ends_the_pause_and_counts_it,
    webhooks::a_reactivation_counts_for_something_however_the_clock_was_set,
    webhooks::a_webhook_that_is_not_paused_is_not_reactivated,
    all_workspaces::webhooks_that_do_not_deliver_are_found_in_every_workspace,
    all_workspaces::paused_webhooks_that_match_are_reactivated_page_by_page,
    events::an_event_waits_for_every_webhook_that_subscribed_to_it,
    events::an_event_that_was_there_is_not_new_and_not_delivered_again,
    events::another_event_of_the_same_identifier_stops_its_whole_batch,
    events::an_event_may_be_in_a_batch_twice_and_is_stored_once,
    events::an_event_is_known_wherever_its_name_sorts,
    events::one_identifier_in_two_workspaces_is_two_events,
    events::an_event_without_subscribers_is_deduplicated_too,
    events::a_ping_is_for_one_webhook_alone,
    events::a_type_is_known_from_its_first_use_on,
    events::an_envelope_is_read_back_by_its_workspace_alone,
    attempts::deliveries_are_fetched_in_the_order_in_which_they_are_due,
    attempts::excluded_deliveries_do_not_count_toward_a_fetchs_limit,
    attempts::a_waiting_delivery_is_found_by_its_id_until_it_has_ended,
    attempts::a_failure_waits_and_remembers_its_schedule,
    attempts::what_has_ended_is_shown_with_its_attempts,
    attempts::the_trace_of_an_attempt_is_stored_with_it,
    attempts::the_latest_attempts_are_shown_with_their_transcripts,
    attempts::the_outcome_of_the_last_attempt_is_stored_with_the_delivery,
    attempts::the_outcome_of_the_last_attempt_is_stored_with_the_webhook,
    attempts::at_another_url_the_health_begins_anew_and_its_mails_are_not_sent,
    attempts::at_another_url_a_webhook_probes_anew_and_at_once,
    attempts::results_for_deleted_rows_are_skipped,
    attempts::a_record_pauses_and_never_ends_a_pause,
    attempts::health_from_before_a_reactivation_is_skipped,
    attempts::a_webhook_with_work_has_a_queue,
    attempts::starts_are_counted_by_endpoint_from_their_moment_on,
    attempts::a_reactivated_webhook_is_reordered_in_steps,
    deliveries::deliveries_are_listed_newest_first_page_by_page,
    deliveries::a_list_shows_what_its_filter_selects_and_nothing_else,
    deliveries::a_workspace_sees_no_other_ones_deliveries,
    deliveries::deliveries_ahead_are_counted_up_to_the_limit,
    deliveries::a_redelivered_delivery_restarts_its_schedule_and_keeps_its_attempts,
    deliveries::a_delivery_keeps_its_latest_attempts_however_often_it_is_redelivered,
    deliveries::a_waiting_delivery_is_due_at_once_when_it_is_redelivered,
    deliveries::a_failure_that_began_before_a_redelivery_decides_nothing,
    deliveries::a_failure_that_began_before_a_reactivation_keeps_its_delivery_due,
    deliveries::a_2xx_to_an_attempt_from_before_a_redelivery_delivers,
    deliveries::a_page_is_full_unless_it_is_the_last,
    deliveries::failed_deliveries_are_listed_on_full_pages,
    deliveries::a_list_is_ordered_by_when_events_were_accepted,
    jobs::a_job_redelivers_failed_deliveries_in_steps,
    jobs::a_job_redelivers_what_its_filter_selects,
    jobs::a_job_redelivers_no_ping_unless_its_filter_includes_pings,
    jobs::a_job_skips_deliveries_that_arrived_after_it,
    jobs::a_job_from_after_a_clock_was_set_back_passes_newer_deliveries,
    jobs::jobs_of_workspaces_take_turns,
    jobs::a_workspace_has_a_few_jobs_under_way,
    jobs::a_workspace_sees_no_other_ones_jobs,
    jobs::a_job_redelivers_the_deliveries_that_it_names,
    jobs::a_named_delivery_that_is_gone_is_skipped,
    jobs::a_job_for_delivered_ones_does_not_disturb_waiting_ones,
    jobs::a_job_counts_what_became_of_its_deliveries,
    jobs::a_cancelled_job_queues_nothing_more,
    jobs::jobs_are_listed_newest_first_page_by_page,
    jobs::matches_are_counted_before_a_job_redelivers_them,
    jobs::the_nth_delivery_is_found_in_the_order_of_due_times,
    sessions::one_session_more_ends_the_oldest_of_the_token_with_most,
    upkeep::a_mail_is_claimed_once_and_stored_once,
    upkeep::a_mail_that_was_not_sent_is_claimed_again_when_it_is_due,
    upkeep::a_mail_to_owners_waits_until_they_are_found_and_each_gets_one,
    upkeep::of_each_workspace_one_mail_is_claimed_at_a_time,
    upkeep::a_mail_that_is_no_longer_true_is_not_sent,
    upkeep::of_a_webhook_with_several_faults_each_has_its_mail,
    upkeep::what_ended_long_ago_is_dropped_with_its_event,
    upkeep::what_still_waits_is_never_dropped,
    upkeep::transcripts_have_a_retention_of_their_own,
    upkeep::transcripts_are_dropped_with_their_webhook_and_their_delivery,
    upkeep::an_event_stays_until_its_last_delivery_is_deleted,
    upkeep::a_sweep_drops_no_more_than_it_may_at_one_time,
    upkeep::a_deleted_webhooks_waiting_deliveries_are_deleted_at_once,
    upkeep::the_starts_of_a_deleted_webhook_count_until_they_are_old,
    upkeep::what_is_kept_of_one_deleted_webhook_delays_no_other,
    upkeep::a_sweep_has_a_share_for_everything_that_is_dropped,
    upkeep::figures_report_how_much_there_is,
    upkeep::a_closed_store_does_nothing_more,
}

/// Tests all promises; `make` returns a new, empty store, and a value that is dropped after it.
pub(crate) async fn all<K>(make: impl Fn() -> (K, Arc<dyn Store>)) {
    for (name, promise) in PROMISES {
        // Shown if the test fails: the broken promise.
        println!("{name}");
        let (_kept, store) = make();
        promise(&*store).await;
    }
}

const WS: &str = "ws_acme";
const OTHER_WS: &str = "ws_other";
const URL: &str = "https://hooks.example.com/in";

/// A time in 2026, `seconds` later.
fn t(seconds: u64) -> UnixTime {
    UnixTime((1_790_000_000 + seconds) * 1_000_000)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn new_webhook(workspace: &str, url: &str, types: &[EventType]) -> NewWebhook {
    NewWebhook {
        workspace: workspace.into(),
        url: url.into(),
        events: EventSet::of(types.iter().copied()),
        options: Default::default(),
        secret: Secret::new("whsec_first".to_owned()),
        webhooks_max: 20,
        signing_key: None,
    }
}

/// A webhook of [`WS`] that subscribes to new users, with a URL of its own.
async fn webhook(store: &dyn Store, name: &str) -> Webhook {
    webhook_of(store, WS, &format!("https://{name}.example.com/")).await
}

async fn webhook_of(store: &dyn Store, workspace: &str, url: &str) -> Webhook {
    let new = new_webhook(workspace, url, &[EventType::new("user.created")]);
    match store.create_webhook(new, t(0)).await.unwrap() {
        Created::Webhook(webhook) => *webhook,
        Created::TooMany => panic!("there was room for {url}"),
    }
}

/// An event of [`WS`]: a user was created.
fn event(id: &str) -> NewEvent {
    NewEvent {
        id: id.into(),
        workspace: WS.into(),
        kind: EventType::new("user.created"),
        tenant: Some("tn_1".into()),
        body: format!("{{\"id\":\"{id}\"}}").into_bytes().into(),
        digest: [7; 32],
    }
}

/// Accepts events; returns which are new, and the new deliveries.
async fn accept(
    store: &dyn Store,
    events: Vec<NewEvent>,
    now: UnixTime,
) -> (Vec<bool>, Vec<Arrival>) {
    match store.accept(events, now).await.unwrap() {
        Accepted::Stored { new, arrivals } => (new, arrivals),
        Accepted::Conflict(places) => panic!("conflicts at {places:?}"),
    }
}

/// Accepts one event, for which there is one webhook.
async fn arrival(store: &dyn Store, id: &str, now: UnixTime) -> Arrival {
    let (_, mut arrivals) = accept(store, vec![event(id)], now).await;
    assert_eq!(arrivals.len(), 1, "{id}");
    arrivals.remove(0)
}

/// A record of an attempt that started at `started_at` and took a second.
fn ended(
    webhook: &Webhook,
    delivery: DeliveryId,
    started_at: UnixTime,
    after: NextState,
) -> AttemptRecord {
    let outcome = match after {
        NextState::Delivered => Outcome::Delivered { status: 204 },
        NextState::Again { .. } => Outcome::Failed(Failure::Timeout),
        NextState::FailedPermanent => Outcome::Failed(Failure::Status(500)),
    };
    AttemptRecord {
        delivery,
        webhook: webhook.id,
        workspace: Arc::clone(&webhook.workspace),
        endpoint: webhook.endpoint,
        attempt: Attempt { number: 1, started_at, took: secs(1), outcome, trace: Trace::default() },
        transcript: None,
        redeliveries: 0,
        after,
        first_attempt_at: Some(started_at),
        since: Some(started_at),
        paused_before: Duration::ZERO,
    }
}

/// The record with a transcript: an answer with this body.
fn answered(record: AttemptRecord, body: &str) -> AttemptRecord {
    let headers = Headers { fields: vec![("a".to_owned(), "b".to_owned())], cut: true };
    let answer = RecordedAnswer { headers: headers.clone(), body: body.into(), cut: false };
    let transcript = Transcript { request: headers, answer: Some(answer) };
    AttemptRecord { transcript: Some(Arc::new(transcript)), ..record }
}

/// The bodies of the answers to a delivery's attempts.
async fn answers(store: &dyn Store, id: DeliveryId) -> Vec<Option<String>> {
    let attempts = store.delivery(WS, id).await.unwrap().expect("it was stored").1;
    let body = |one: RecordedAttempt| String::from_utf8(one.transcript?.answer?.body).ok();
    attempts.into_iter().map(body).collect()
}

async fn record(store: &dyn Store, ended: Vec<AttemptRecord>) {
    store.record(ended, Vec::new(), Vec::new(), Vec::new()).await.unwrap();
}

/// Accepts an event for one webhook, and records the attempt that ends it.
async fn over(
    store: &dyn Store,
    webhook: &Webhook,
    id: &str,
    now: UnixTime,
    after: NextState,
) -> DeliveryId {
    let arrival = arrival(store, id, now).await;
    record(store, vec![ended(webhook, arrival.delivery.id, now, after)]).await;
    arrival.delivery.id
}

fn webhook_update(webhook: &Webhook) -> WebhookUpdate {
    WebhookUpdate {
        webhook: webhook.id,
        paused_total: webhook.paused_total,
        last_outcome: None,
        health: Health::default(),
        look_at: None,
        paused_at: None,
        probing: None,
    }
}

async fn pause(store: &dyn Store, webhook: &Webhook, at: UnixTime) {
    let paused = WebhookUpdate { paused_at: Some(at), ..webhook_update(webhook) };
    store.record(Vec::new(), vec![paused], Vec::new(), Vec::new()).await.unwrap();
}

fn mail(key: &str) -> NewMail {
    NewMail {
        // A webhook of its own.
        webhook: WebhookId(-key.bytes().map(i64::from).sum::<i64>()),
        to: "owner@example.com".to_owned(),
        subject: "Webhook paused".to_owned(),
        text: "It is.".to_owned(),
        key: key.to_owned(),
    }
}

async fn delivery(store: &dyn Store, id: DeliveryId) -> Delivery {
    store.delivery(WS, id).await.unwrap().expect("it was stored").0
}

/// The webhooks that have work, and when their first delivery is due; reads small pages.
async fn queues(store: &dyn Store) -> Vec<(WebhookId, Option<UnixTime>)> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = store.queues(after, 2).await.unwrap();
        all.extend(page.items.into_iter().map(|queue| (queue.webhook.id, queue.due)));
        match page.next {
            next @ Some(_) => after = next,
            None => return all,
        }
    }
}

/// One sweep, with retentions that drop deliveries that ended before these times.
async fn sweep(
    store: &dyn Store,
    delivered_before: UnixTime,
    failed_before: UnixTime,
    limit: usize,
) -> bool {
    let now = delivered_before.max(failed_before);
    let (delivered, failed) = (now.since(delivered_before), now.since(failed_before));
    let retention = Retention { delivered, failed, answers: delivered.max(failed) };
    store.sweep(&retention, now, limit).await.unwrap()
}

/// The identifiers of the events on the first page that matches a filter.
async fn listed(store: &dyn Store, filter: Filter) -> Vec<String> {
    let page = store.deliveries(WS, &filter, Paging::first(100)).await.unwrap();
    page.items.iter().map(|one| one.event_id.to_string()).collect()
}

fn in_state(state: DeliveryState) -> Filter {
    Filter { state: Some(state), ..Filter::default() }
}
