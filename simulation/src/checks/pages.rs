//! Reads lists as customers do, page by page, and compares them with the model.

use std::collections::BTreeMap;
use std::time::Duration;

use weir_common::time::{Moment, UnixTime};
use weir_dispatcher::domain::attempt::RecordedAttempt;
use weir_dispatcher::domain::delivery::{Delivery, DeliveryState};
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};
use weir_dispatcher::domain::outcome::{Failure, Outcome};
use weir_dispatcher::domain::webhook::Webhook;
use weir_dispatcher::store::sqlite::SqliteStore;
use weir_dispatcher::store::types::{Filter, Paging};
use weir_dispatcher::store::{Management, StoreError};
use weir_tests::rng::SeededRng;

use crate::model::{self, Model, violated};
use crate::orders::{TYPES, WORKSPACES};
use crate::spans::{DAY, MINUTE};

/// A list with more pages than entries, and these, has no end: a page without an entry means that
/// many rows were scanned.
const EMPTY_PAGES_MAX: usize = 100;

/// The latest attempts of a delivery whose transcripts are shown.
const SHOWN_MAX: usize = 32;

impl Model {
    /// Reads lists as a customer does. To be called when everything is idle: nothing changes.
    pub(crate) async fn read_pages(
        &mut self,
        store: &SqliteStore,
        rng: &mut SeededRng,
        now: Moment,
    ) {
        let ws = *rng.pick(&WORKSPACES).unwrap();
        let limit = 1 + rng.below(30) as usize;
        let filter = filter(self, rng, now.unix);
        let (mut all, mut after) = (Vec::new(), None);
        let mut left = self.deliveries.len() + EMPTY_PAGES_MAX;
        loop {
            left = left.checked_sub(1).unwrap_or_else(|| violated("page", "a list does not end"));
            let page =
                read(store.deliveries(ws, &filter, Paging { after, ..Paging::first(limit) }).await);
            if page.items.len() > limit {
                let found = page.items.len();
                violated("page", format!("a page has {found} entries, expected at most {limit}"));
            }
            let residual = filter.kind.is_some()
                || filter.state.is_some_and(|state| state != DeliveryState::FailedPermanent);
            if page.items.len() < limit && page.next.is_some() && !residual {
                let found = page.items.len();
                violated("page", format!("page before the last: expected {limit}, found {found}"));
            }
            all.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.listed(ws, &filter, &all, now);
        let (mut hooks, mut after) = (Vec::new(), None);
        let mut left = self.hooks.len() + EMPTY_PAGES_MAX;
        loop {
            left = left.checked_sub(1).unwrap_or_else(|| violated("page", "a list does not end"));
            let page = read(store.webhooks(ws, after, 1 + limit / 4).await);
            hooks.extend(page.items);
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        self.listed_hooks(ws, &hooks);
        if let Some(one) = rng.pick(&all) {
            let found = read(store.delivery(ws, one.id).await);
            let ahead = read(store.ahead_of(one.webhook, one.due, one.id, 20).await);
            let Some((delivery, attempts)) = found else {
                violated("page", format!("{:?} is listed, and a read does not find it", one.id))
            };
            self.shown(&delivery, &attempts, ahead);
            self.recorded(&delivery, &attempts, now);
        }
        self.counts.pages += 1;
    }
}

/// The result of a store that works: everything on disk must be readable.
fn read<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|error| violated("page", format!("a read fails: {error}")))
}

/// A filter that a customer may use.
fn filter(model: &Model, rng: &mut SeededRng, now: UnixTime) -> Filter {
    let hooks: Vec<WebhookId> = model.hooks.keys().copied().collect();
    let webhook = rng.pick(&hooks).copied().filter(|_| rng.chance(40));
    let state = rng.pick(&DeliveryState::ALL).copied().filter(|_| rng.chance(40));
    let kind = rng.chance(30).then(|| TYPES[rng.below(4) as usize]);
    let ago = |rng: &mut SeededRng| UnixTime(now.0 - rng.span(MINUTE, 30 * DAY).as_micros() as u64);
    let since = rng.chance(20).then(|| ago(rng));
    let until = rng.chance(20).then(|| ago(rng));
    Filter { state, webhook, kind, since, until, ..Filter::default() }
}

impl Model {
    fn listed(&self, ws: &str, filter: &Filter, all: &[Delivery], now: Moment) {
        let mut right: BTreeMap<DeliveryId, &model::Delivery> = self
            .deliveries
            .values()
            .filter(|one| *self.hooks[&one.hook].ws == *ws && !self.hooks[&one.hook].deleted)
            .filter(|one| {
                one.state.is_some() && filter.state.is_none_or(|of| one.state == Some(of))
            })
            .filter(|one| filter.webhook.is_none_or(|of| one.hook == of))
            .filter(|one| filter.kind.is_none_or(|of| one.kind == of))
            .filter(|one| filter.since.is_none_or(|since| since <= one.created_at))
            .filter(|one| filter.until.is_none_or(|until| one.created_at < until))
            .map(|one| (one.id, one))
            .collect();
        if !all.is_sorted_by(|one, next| (one.created_at, one.id) > (next.created_at, next.id)) {
            violated("page", "a list is not sorted from the newest to the oldest");
        }
        for found in all {
            let Some(one) = right.remove(&found.id) else {
                violated(
                    "page",
                    format!("{:?} is listed twice or without a match of {filter:?}", found.id),
                )
            };
            self.same(found, one);
        }
        for (id, one) in right {
            let kept = &self.settings.retention;
            let over = |kept: Duration| one.ended_at.plus(kept) <= now.unix || self.clock_set;
            let swept = match one.state {
                Some(DeliveryState::Delivered) => over(kept.delivered),
                Some(DeliveryState::FailedPermanent) => over(kept.failed),
                Some(DeliveryState::Waiting) | None => false,
            };
            if !swept {
                violated("page", format!("{id:?} matches {filter:?}, and is not listed"));
            }
        }
    }

    /// Checks that a delivery is shown as it is in the model.
    fn same(&self, found: &Delivery, one: &model::Delivery) {
        let waits = one.state == Some(DeliveryState::Waiting);
        let due = !waits || self.hooks[&one.hook].reordering || found.due == one.due;
        let same = *found.event_id == *one.event
            && (found.webhook, found.kind, found.created_at)
                == (one.hook, one.kind, one.created_at)
            && (Some(found.state), found.attempts) == (one.state, one.attempts)
            && due;
        if !same {
            let right = (one.state, one.attempts, one.due);
            violated("page", format!("expected {right:?}, found {found:?}"));
        }
    }

    fn listed_hooks(&self, ws: &str, all: &[Webhook]) {
        let right = self.hooks.values().filter(|hook| !hook.deleted && *hook.ws == *ws);
        let right: Vec<_> = right.collect();
        let same = right.len() == all.len()
            && right.iter().zip(all).all(|(hook, found)| {
                hook.id == found.id
                    && *self.urls[hook.url] == *found.url
                    && hook.events == found.events
                    && hook.paused_at == found.stopped_since()
                    && hook.disabled == found.disabled_at.is_some()
                    && hook.secret == *found.secrets.current.secret.expose()
            });
        if !same {
            let (right, all) = (right.iter().map(|hook| hook.id), all.iter().map(|one| one.id));
            let (right, all): (Vec<_>, Vec<_>) = (right.collect(), all.collect());
            violated("page", format!("webhooks of {ws}: expected {right:?}, found {all:?}"));
        }
    }

    /// Checks what is recorded of attempts: the answers to failures, without signatures, while
    /// their retention lasts.
    fn recorded(&self, delivery: &Delivery, attempts: &[RecordedAttempt], now: Moment) {
        for RecordedAttempt { attempt, transcript, .. } in attempts.iter().rev().take(SHOWN_MAX) {
            let expected = match attempt.outcome {
                Outcome::Failed(Failure::Status(_)) => true,
                Outcome::Delivered { .. } => self.hooks[&delivery.webhook].options.all_answers,
                Outcome::Failed(_) | Outcome::Internal(_) => false,
            };
            let ended = attempt.started_at.plus(attempt.took);
            let over = ended.plus(self.settings.retention.answers) <= now.unix || self.clock_set;
            let answer = transcript.as_ref().and_then(|transcript| transcript.answer.as_ref());
            let text = answer.and_then(|answer| answer.text());
            let is_masked = |text: &str| {
                text.contains(&*delivery.event_id)
                    && text.contains(",v1=***\n")
                    && text.contains("\nv1,***")
            };
            let right = match text {
                Some(text) => expected && is_masked(text),
                None if transcript.is_some() => self.unanswered.contains(&delivery.id),
                None => !expected || over,
            };
            if !right {
                violated("recorded", format!("{:?}: {attempt:?}: {transcript:?}", delivery.id));
            }
        }
    }

    fn shown(&self, found: &Delivery, attempts: &[RecordedAttempt], ahead: usize) {
        let one = &self.deliveries[&found.id];
        self.same(found, one);
        let numbers = attempts.iter().map(|one| one.attempt.number);
        if !numbers.eq(1..=one.attempts) {
            let (id, right, found) = (found.id, one.attempts, attempts.len());
            violated("page", format!("{id:?}: expected attempts 1 to {right}, found {found}"));
        }
        let before = |other: &&model::Delivery| (other.due, other.id) < (found.due, found.id);
        let right = self.waiting(one.hook).filter(before).count().min(20);
        if ahead != right && !self.hooks[&one.hook].reordering {
            violated(
                "page",
                format!("deliveries ahead of {:?}: expected {right}, found {ahead}", one.id),
            );
        }
    }
}
