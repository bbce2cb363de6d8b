//! What is done beside deliveries: jobs that redeliver, and sweeps.
//!
//! A job puts back what was given up when it was asked for, all of that and nothing else. A sweep
//! leaves all that something on disk still needs, and nothing that no statement finds again.

use rusqlite::Connection;
use weir_common::time::Moment;
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::event::EventType;
use weir_dispatcher::domain::id::DeliveryId;

use crate::checks::ledger::unix;
use crate::model::{Model, violated};

/// Deliveries whose event is gone: they can be neither sent nor shown.
const BODILESS: &str = "SELECT d.id FROM deliveries d LEFT JOIN events e ON e.id = d.event \
    WHERE e.id IS NULL LIMIT 1";

/// Deliveries that wait for a webhook of which there is not even the mark that it is deleted.
const ORPHANS: &str = "SELECT d.id FROM deliveries d LEFT JOIN webhooks w ON w.id = d.webhook \
    WHERE d.state = 0 AND w.id IS NULL LIMIT 1";

/// Events that more, or fewer, deliveries are said to need than there are.
const MISCOUNTED: &str = "SELECT e.id FROM events e LEFT JOIN deliveries d ON d.event = e.id \
    GROUP BY e.id HAVING count(d.id) <> e.delivery_refs LIMIT 1";

/// Webhooks whose endpoint is gone.
const NOWHERE: &str = "SELECT w.id FROM webhooks w LEFT JOIN endpoints l ON l.id = w.endpoint \
    WHERE l.id IS NULL LIMIT 1";

impl Model {
    /// The answer was that what was given up in a workspace begins anew.
    pub(crate) fn job_made(&mut self, ws: &str) {
        self.upkeep.job = true;
        let failed = self.deliveries.values().filter(|one| {
            let hook = &self.hooks[&one.hook];
            one.state == Some(DeliveryState::FailedPermanent)
                && one.kind != EventType::Ping
                && *hook.ws == *ws
        });
        self.upkeep.asked.extend(failed.map(|one| (one.id, one.attempts)));
    }

    /// Takes in what jobs have put back. When none is left, all that they were asked for is.
    pub(crate) fn adopt_redelivered(&mut self, conn: &Connection, now: Moment) {
        if !self.upkeep.job {
            return;
        }
        let failed = |id: &DeliveryId| {
            let delivery = &self.deliveries[id];
            delivery.state == Some(DeliveryState::FailedPermanent)
                && !self.hooks[&delivery.hook].deleted
        };
        let failed: Vec<DeliveryId> = self.deliveries.keys().copied().filter(failed).collect();
        for id in failed {
            let sql = "SELECT due FROM deliveries WHERE id = ?1 AND state = 0";
            let mut query = conn.prepare_cached(sql).unwrap();
            let Some(due) = query.query([id.0]).unwrap().next().unwrap().map(|row| unix(row, 0))
            else {
                continue;
            };
            if self.deliveries[&id].kind == EventType::Ping {
                violated("redeliver", format!("a job puts {id:?} back, which is a test"));
            }
            self.begins_anew(id, now, due.unwrap());
        }
        let sql = "SELECT count(*) FROM jobs WHERE ended_at IS NULL";
        self.upkeep.job = conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() > 0;
        if self.upkeep.job {
            return;
        }
        for (id, attempts) in std::mem::take(&mut self.upkeep.asked) {
            let one = &self.deliveries[&id];
            let kept = self.settings.retention.failed;
            let young = now.unix < one.ended_at.plus(kept) && !self.clock_set;
            let same = one.state == Some(DeliveryState::FailedPermanent)
                && one.attempts == attempts
                && !self.hooks[&one.hook].deleted;
            if same && young {
                violated("redeliver", format!("a job has passed {id:?} over"));
            }
        }
    }

    /// All that is needed is there, and nothing that no sweep drops.
    pub(crate) fn kept(&self, conn: &Connection) {
        let any = |sql| {
            let mut query = conn.prepare_cached(sql).unwrap();
            let mut found = query.query([]).unwrap();
            found.next().unwrap().map(|row| row.get::<_, i64>(0).unwrap())
        };
        if let Some(id) = any(BODILESS) {
            violated("lost", format!("the event of delivery {id} is gone"));
        }
        if let Some(id) = any(NOWHERE) {
            violated("lost", format!("the endpoint of webhook {id} is gone"));
        }
        if let Some(id) = any(ORPHANS) {
            violated("memory", format!("delivery {id} waits for no webhook, for ever"));
        }
        if let Some(id) = any(MISCOUNTED) {
            violated("memory", format!("event {id} is needed by others than there are"));
        }
    }
}
