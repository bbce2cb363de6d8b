//! Compares what the dispatcher has written to disk with what the model has seen.

use std::time::Duration;

use rusqlite::{Connection, Row};
use weir_common::time::{Moment, Tick, UnixTime};
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::event::EventType;
use weir_dispatcher::domain::id::{DeliveryId, WebhookId};
use weir_dispatcher::domain::outcome::Outcome;

use crate::model::flight::{Flight, Landed};
use crate::model::{Delivery, Hook, Model, violated};

const ATTEMPTS: &str = "SELECT a.delivery, a.number, a.started_at, a.took, a.outcome, d.state, \
    d.due, d.step, d.first_attempt_at, d.paused_before, d.ended_at, d.since, a.id FROM attempts a \
    JOIN deliveries d ON d.id = a.delivery WHERE a.id > ?1 ORDER BY a.id";

const HOOKS: &str = "SELECT id, coalesce(min(paused_at, disabled_at), paused_at, disabled_at), \
    paused_total, reordering, probing FROM webhooks WHERE deleted_up_to IS NULL";

const MAILS: &str = "SELECT key FROM mails WHERE id > ?1 ORDER BY id";

/// The longest failure of a disk, and a margin.
const LATE_MAX: Duration = Duration::from_secs(150);

/// An attempt and its delivery, as they are on disk.
struct Written {
    attempt: i64,
    delivery: DeliveryId,
    number: u32,
    started_at: UnixTime,
    took: Duration,
    outcome: Outcome,
    state: DeliveryState,
    due: UnixTime,
    step: usize,
    first: Option<UnixTime>,
    paused_before: Duration,
    ended_at: Option<UnixTime>,
    since: Option<UnixTime>,
}

impl Delivery {
    /// Records whether a reactivation has set its due time back.
    fn was_set_back(&mut self, conn: &Connection, now: Moment) {
        let sql = "SELECT due, step FROM deliveries WHERE id = ?1 AND state = 0";
        let mut query = conn.prepare_cached(sql).unwrap();
        let Some(row) = query
            .query([self.id.0])
            .unwrap()
            .next()
            .unwrap()
            .map(|row| (unix(row, 0).unwrap(), row.get::<_, i64>(1).unwrap()))
        else {
            return;
        };
        if row == (self.created_at, 0) {
            (self.step, self.since) = (0, None);
            self.waits_until(row.0, now);
        }
    }
}

impl Written {
    /// Checks that a written attempt is as its receiver saw it.
    fn is_true(&self, started: Moment, landed: &Landed) {
        let took = landed.at.tick.since(started.tick);
        let same = (self.started_at, self.took) == (started.unix, took);
        if !same || self.outcome != landed.outcome {
            let found = (self.started_at, self.took, &self.outcome);
            let id = self.delivery;
            violated("true", format!("{id:?}: expected {started:?} {landed:?}, found {found:?}"));
        }
    }
}

pub(crate) fn unix(row: &Row<'_>, column: usize) -> Option<UnixTime> {
    row.get::<_, Option<i64>>(column).unwrap().map(|micros| UnixTime(micros.cast_unsigned()))
}

fn span(row: &Row<'_>, column: usize) -> Duration {
    Duration::from_micros(row.get::<_, i64>(column).unwrap().cast_unsigned())
}

fn state(row: &Row<'_>, column: usize) -> DeliveryState {
    DeliveryState::of_code(row.get(column).unwrap()).unwrap()
}

/// How far the tables were read.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Read {
    attempts: i64,
    mails: i64,
}

impl Read {
    /// The present end of the tables. To be called before the store writes, since numbers of
    /// attempts may be used again.
    pub(crate) fn so_far(conn: &Connection) -> Self {
        let max = |sql| {
            let mut query = conn.prepare_cached(sql).unwrap();
            query.query_row([], |row| row.get::<_, Option<i64>>(0)).unwrap().unwrap_or(0)
        };
        Self {
            attempts: max("SELECT max(id) FROM attempts"),
            mails: max("SELECT max(id) FROM mails"),
        }
    }
}

impl Hook {
    /// Records the end of an attempt that may be the probe.
    fn was_probed(&mut self, id: DeliveryId, state: DeliveryState) {
        match state {
            _ if self.probe != Some(id) => {}
            DeliveryState::Delivered if self.probes => {
                (self.probes, self.drained_to) = (false, None);
            }
            DeliveryState::FailedPermanent => self.probe = None,
            DeliveryState::Delivered => {}
            DeliveryState::Waiting => self.probe_is_recorded = true,
        }
    }

    /// Forgets what only the process knew that has ended.
    pub(crate) fn forget_unwritten(&mut self) {
        self.record.forget_unwritten();
        if !self.probe_is_recorded {
            self.probe = None;
        }
    }
}

impl Model {
    /// Checks what was written since.
    pub(crate) fn observe(&mut self, conn: &Connection, since: Read, now: Moment) {
        let mut query = conn.prepare_cached(ATTEMPTS).unwrap();
        let rows = query.query_map([since.attempts], |row| {
            let outcome: String = row.get(4)?;
            Ok(Written {
                attempt: row.get(12)?,
                delivery: DeliveryId(row.get(0)?),
                number: row.get(1)?,
                started_at: unix(row, 2).unwrap(),
                took: span(row, 3),
                outcome: Outcome::of_name(&outcome).unwrap(),
                state: state(row, 5),
                due: unix(row, 6).unwrap(),
                step: row.get::<_, i64>(7)? as usize,
                first: unix(row, 8),
                paused_before: span(row, 9),
                ended_at: unix(row, 10),
                since: unix(row, 11),
            })
        });
        let told = self.told_operators(conn, now);
        let mut given_up = Vec::new();
        for written in rows.unwrap() {
            let written = written.unwrap();
            self.is_as_sent(conn, written.attempt, written.delivery, &written.outcome);
            self.written(&written, now);
            given_up.extend(
                (written.state == DeliveryState::FailedPermanent).then_some(written.delivery),
            );
        }
        let paused = self.observe_hooks(conn, now);
        let mails = self.observe_mails(conn, since, now);
        self.were_told(&told, &paused, &given_up);
        self.were_mailed(&mails, &paused);
        self.adopt_redelivered(conn, now);
    }

    /// Checks a written attempt: it must have happened, and what follows must be right.
    fn written(&mut self, written: &Written, now: Moment) {
        let id = written.delivery;
        self.note(now, || {
            format!("recorded {id:?} #{} {} {:?}", written.number, written.outcome, written.state)
        });
        let Some(delivery) = self.deliveries.get_mut(&id) else {
            violated("kept", format!("an attempt of the unknown delivery {id:?} is on disk"))
        };
        let Some(flight) = delivery.flight.take() else {
            violated("true", format!("an attempt of {id:?} is on disk that no receiver saw"))
        };
        let Flight { started, url, ended: Some(landed), loose, .. } = flight else {
            violated("true", format!("an attempt of {id:?} is on disk before its end"))
        };
        written.is_true(started, &landed);
        if written.number != delivery.attempts + 1 {
            let right = delivery.attempts + 1;
            violated("number", format!("{id:?}: expected {right}, found {}", written.number));
        }
        delivery.attempts = written.number;
        let hook = self.hooks.get_mut(&delivery.hook).unwrap();
        hook.record.written(id);
        if loose {
            (delivery.first, delivery.paused_before) = (written.first, written.paused_before);
        } else {
            if delivery.first.is_none() {
                delivery.first = Some(started.unix);
                delivery.paused_before = hook.paused_total;
            }
            let due = landed.state == DeliveryState::Waiting;
            if written.state != landed.state || (due && written.due != landed.due) {
                let found = (written.state, written.due.rfc3339());
                let right = (landed.state, landed.due.rfc3339());
                violated("schedule", format!("{id:?}: expected {right:?}, found {found:?}"));
            }
            let since = delivery.since.or(Some(started.unix));
            let right = (delivery.step + 1, delivery.first, since);
            let found = (written.step, written.first, written.since);
            if due && found != right {
                violated("schedule", format!("{id:?}: expected {right:?}, found {found:?}"));
            }
        }
        let (pair, is_ping) = (delivery.pair(), delivery.kind == EventType::PING);
        self.promises.recorded(pair.clone(), now.tick.0);
        delivery.state = Some(written.state);
        delivery.waits_until(written.due, now);
        (delivery.step, delivery.put_off) = (written.step, Default::default());
        delivery.since = written.since;
        delivery.ended_at = written.ended_at.unwrap_or_default();
        if hook.reordering {
            delivery.soonest = Tick(0);
            hook.set_back.push(id);
        }
        hook.was_probed(id, written.state);
        match written.state {
            DeliveryState::Waiting => self.counts.again += 1,
            DeliveryState::Delivered => self.counts.delivered += 1,
            DeliveryState::FailedPermanent => self.counts.failed += 1,
        }
        if written.state != DeliveryState::Waiting {
            self.open.remove(&(delivery.hook, id));
        }
        self.under_way.remove(&id);
        self.freed(url, &written.outcome, written.took, now.tick);
        if written.state == DeliveryState::FailedPermanent {
            // Even if something changed while it was in flight, none is given up before its time.
            let judged = self.promises.given_up(pair, landed.at.tick.0);
            self.judge(judged.or_else(|early| if is_ping { Ok(()) } else { Err(early) }));
        }
    }

    /// Checks the webhooks, and returns those that were paused.
    fn observe_hooks(&mut self, conn: &Connection, now: Moment) -> Vec<WebhookId> {
        let (mut seen, mut paused) = (0, Vec::new());
        let mut query = conn.prepare_cached(HOOKS).unwrap();
        let mut rows = query.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let Some(hook) = self.hooks.get_mut(&WebhookId(row.get(0).unwrap())) else { continue };
            let id = hook.id;
            seen += 1;
            if hook.deleted {
                violated("deleted", format!("{id:?} is deleted, and on disk it is not"));
            }
            let total = span(row, 2);
            if total != hook.paused_total {
                let right = hook.paused_total;
                violated("paused time", format!("{id:?}: expected {right:?}, found {total:?}"));
            }
            if hook.reordering && !row.get::<_, bool>(3).unwrap() {
                hook.reordering = false;
                for id in std::mem::take(&mut hook.set_back) {
                    let delivery = self.deliveries.get_mut(&id).unwrap();
                    delivery.was_set_back(conn, now);
                }
            }
            let probing = row.get::<_, Option<i64>>(4).unwrap().is_some();
            match (unix(row, 1), hook.paused_at) {
                (at, before) if at == before => {}
                // A pause that was decided before its owner disabled it, and written after.
                (Some(at), Some(before)) if hook.disabled && at < before => {
                    hook.paused_at = Some(at);
                }
                (Some(at), None) => paused.push((id, at)),
                (at, before) => {
                    violated("paused", format!("{id:?}: expected {before:?}, found {at:?}"))
                }
            }
            let pauses = hook.paused_at.is_some() || paused.iter().any(|(paused, _)| *paused == id);
            if hook.probes && !probing && !pauses {
                violated("probe", format!("{id:?} ends probing before its probe is delivered"));
            }
        }
        let alive = self.hooks.values().filter(|hook| !hook.deleted).count();
        if seen != alive {
            violated("kept", format!("{seen} webhooks are on disk, expected {alive}"));
        }
        for (id, at) in &paused {
            self.paused(*id, *at, now);
        }
        paused.into_iter().map(|(id, _)| id).collect()
    }

    fn paused(&mut self, id: WebhookId, at: UnixTime, now: Moment) {
        self.counts.pauses += 1;
        self.note(now, || format!("{id:?} is paused at {}", at.rfc3339()));
        let hook = self.hooks.get_mut(&id).unwrap();
        (hook.paused_at, hook.probes, hook.probe) = (Some(at), false, None);
        self.just_paused.push(id);
        let hook = &self.hooks[&id];
        let mut right = self.decided_by().map(|by| hook.record.paused_at(&by.health, at));
        let wrong = right.all(|right| right.is_none_or(|right| at < right));
        if !hook.record.vague && !hook.moves() && !self.clock_set && wrong {
            violated("pause", format!("{id:?} is paused at {at:?}, before its failures allow it"));
        }
    }

    /// Checks new mails, and returns the keys of those that report a pause.
    fn observe_mails(&mut self, conn: &Connection, since: Read, now: Moment) -> Vec<String> {
        let mut query = conn.prepare_cached(MAILS).unwrap();
        let keys = query.query_map([since.mails], |row| row.get::<_, String>(0)).unwrap();
        let mut pauses = Vec::new();
        for key in keys {
            let key = key.unwrap();
            self.outbox.written(key.clone());
            if key.starts_with("paused:") {
                pauses.push(key);
                continue;
            }
            self.counts.warnings += 1;
            let hook = self.hooks.values_mut().find(|hook| key.contains(&hook.public));
            let Some(hook) = hook else { continue };
            if let Some(notes) = &mut self.notes {
                notes.push_back(format!("{} {:?} gets a warning", now.unix.rfc3339(), hook.id));
            }
            let moves = hook.moves();
            let record = &mut hook.record;
            let policy = &self.settings.health;
            // A store that is slow, or fails, writes later what was decided in time. So does a
            // process that stood still, for what became due meanwhile.
            let recent = |until: UnixTime| now.unix.since(until) < LATE_MAX;
            let stood = self.stood.filter(|(_, until)| recent(*until));
            let from = stood.map_or(now.unix, |(since, _)| since.min(now.unix));
            let from = UnixTime(from.0 - LATE_MAX.as_micros() as u64);
            let right = record.warns_rightly(policy, from, now.unix, stood.is_some());
            let why = record.warns_wrongly(policy, now.unix).filter(|_| right.is_none());
            let why = why.filter(|_| !record.vague && !moves && !self.clock_set);
            if let Some(why) = why {
                violated("warning", format!("{:?} gets a wrong warning: {why}", hook.id));
            }
            // The window may have become calm since: the next warning is of another episode then.
            record.warned = right.or(Some(now.unix));
        }
        pauses
    }

    /// Compares every delivery on disk with the model.
    pub(crate) fn audit(&mut self, conn: &Connection, now: Moment) {
        let sql = "SELECT id, webhook, state, due, step, attempts, ended_at FROM deliveries";
        let mut query = conn.prepare_cached(sql).unwrap();
        let mut rows = query.query([]).unwrap();
        let (mut found, mut waiting) = (std::collections::BTreeSet::new(), 0_i64);
        while let Some(row) = rows.next().unwrap() {
            let (id, on_disk) = (DeliveryId(row.get(0).unwrap()), state(row, 2));
            waiting += i64::from(on_disk == DeliveryState::Waiting);
            let Some(delivery) = self.deliveries.get(&id) else {
                violated("kept", format!("{id:?} is on disk, and no call created it"))
            };
            found.insert(id);
            let hook = &self.hooks[&delivery.hook];
            if hook.deleted || delivery.flight.is_some() {
                continue;
            }
            let due = unix(row, 3).unwrap();
            let same = delivery.state == Some(on_disk)
                && row.get::<_, u32>(5).unwrap() == delivery.attempts
                && (on_disk != DeliveryState::Waiting || hook.reordering || due == delivery.due);
            if !same {
                let right = (delivery.state, delivery.attempts, delivery.due.rfc3339());
                let found = (Some(on_disk), row.get::<_, u32>(5).unwrap(), due.rfc3339());
                violated("kept", format!("{id:?}: expected {right:?}, found {found:?}"));
            }
        }
        let counted = "SELECT waiting FROM counters";
        let counted = conn.query_row(counted, [], |row| row.get::<_, i64>(0)).unwrap();
        if counted != waiting {
            violated("count", format!("counters.waiting: expected {waiting}, found {counted}"));
        }
        let kept = self.settings.retention;
        for (id, delivery) in &mut self.deliveries {
            if found.contains(id) || self.hooks[&delivery.hook].deleted {
                continue;
            }
            let kept = match delivery.state {
                None => continue,
                Some(DeliveryState::Delivered) => Some(kept.delivered),
                Some(DeliveryState::FailedPermanent) => Some(kept.failed),
                Some(DeliveryState::Waiting) => None,
            };
            let over = kept.is_some_and(|kept| delivery.ended_at.plus(kept) <= now.unix);
            if !over && (kept.is_none() || !self.clock_set) {
                violated("lost", format!("{id:?} in state {:?} is not on disk", delivery.state));
            }
            delivery.state = None;
        }
    }
}
