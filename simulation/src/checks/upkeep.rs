//! Checks redelivery jobs and sweeps.
//!
//! A job redelivers all deliveries that had failed when it was created, and no others; one that was
//! cancelled redelivers nothing more. A sweep
//! keeps every row that another row needs, and no row that no statement finds again.

use rusqlite::{Connection, Row};
use weir_common::time::Moment;
use weir_dispatcher::domain::delivery::DeliveryState;
use weir_dispatcher::domain::event::EventType;
use weir_dispatcher::domain::id::{DeliveryId, JobId};
use weir_dispatcher::store::types::{Job, JobCreated};

use crate::checks::ledger::unix;
use crate::model::{Model, violated};
use crate::orders::Order;

/// Deliveries whose event is gone: they can be neither sent nor shown.
const BODILESS: &str = "SELECT d.id FROM deliveries d LEFT JOIN events e ON e.id = d.event \
    WHERE e.id IS NULL LIMIT 1";

/// Deliveries that wait for a webhook whose row is gone, with its mark of deletion.
const ORPHANS: &str = "SELECT d.id FROM deliveries d LEFT JOIN webhooks w ON w.id = d.webhook \
    WHERE d.state = 0 AND w.id IS NULL LIMIT 1";

/// Events whose count of deliveries is wrong.
const MISCOUNTED: &str = "SELECT e.id FROM events e LEFT JOIN deliveries d ON d.event = e.id \
    GROUP BY e.id HAVING count(d.id) <> e.delivery_refs LIMIT 1";

/// Jobs whose count of waiting deliveries is wrong.
const JOBS_MISCOUNTED: &str = "SELECT c.job FROM job_webhooks c WHERE c.waiting <> \
    (SELECT count(*) FROM deliveries d \
     WHERE d.job = c.job AND d.webhook = c.webhook AND d.state = 0) LIMIT 1";

/// Webhooks whose endpoint is gone.
const NOWHERE: &str = "SELECT w.id FROM webhooks w LEFT JOIN endpoints l ON l.id = w.endpoint \
    WHERE l.id IS NULL LIMIT 1";

impl Model {
    /// Records that a job was accepted: all failed deliveries of a workspace are to start anew.
    pub(crate) fn job_made(&mut self, ws: &str, made: &JobCreated) {
        if *made == JobCreated::TooMany {
            return;
        }
        self.upkeep.job = true;
        let failed = self.deliveries.values().filter(|one| {
            let hook = &self.hooks[&one.hook];
            one.state == Some(DeliveryState::FailedPermanent)
                && one.kind != EventType::PING
                && *hook.ws == *ws
        });
        self.upkeep.asked.extend(failed.map(|one| (one.id, one.attempts)));
    }

    /// Checks that a job that was cancelled has ended.
    pub(crate) fn job_cancelled(&mut self, job: Option<Job>) {
        let Some(job) = job else { return };
        if job.ended_at.is_none() {
            violated("cancel", format!("{:?} is cancelled, and has not ended", job.id));
        }
        self.counts.cancelled += u64::from(job.cancelled);
        self.upkeep.cancelled.insert(job.id, false);
    }

    /// Records what jobs have redelivered. Once none runs, checks that they redelivered everything.
    pub(crate) fn adopt_redelivered(&mut self, conn: &Connection, now: Moment) {
        // The job of one who regrets it may begin before the reply.
        let regrets = |order: &Order| matches!(order, Order::Regret { .. });
        let regretted = self.orders.values().any(regrets);
        if !self.upkeep.job && !regretted {
            return;
        }
        let failed = |id: &DeliveryId| {
            let delivery = &self.deliveries[id];
            delivery.state == Some(DeliveryState::FailedPermanent)
                && !self.hooks[&delivery.hook].deleted
        };
        let failed: Vec<DeliveryId> = self.deliveries.keys().copied().filter(failed).collect();
        for id in failed {
            let sql = "SELECT due, job FROM deliveries WHERE id = ?1 AND state = 0";
            let mut query = conn.prepare_cached(sql).unwrap();
            let row = |row: &Row<'_>| (unix(row, 0), row.get::<_, Option<i64>>(1).unwrap());
            let Some((due, job)) = query.query([id.0]).unwrap().next().unwrap().map(row) else {
                continue;
            };
            let cancelled = |job| self.upkeep.cancelled.get(&JobId(job)) == Some(&true);
            if let Some(job) = job.filter(|job| cancelled(*job)) {
                violated("cancel", format!("job {job} was cancelled, and redelivers {id:?}"));
            }
            if self.deliveries[&id].kind == EventType::PING {
                violated("redeliver", format!("a job redelivers {id:?}, which is a ping"));
            }
            self.begins_anew(id, now, due.unwrap());
        }
        let sql = "SELECT count(*) FROM jobs WHERE ended_at IS NULL";
        let open = conn.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
        self.upkeep.job = open > 0 || regretted;
        self.upkeep.cancelled.values_mut().for_each(|is_known| *is_known = true);
        if self.upkeep.job {
            return;
        }
        self.upkeep.cancelled.clear();
        for (id, attempts) in std::mem::take(&mut self.upkeep.asked) {
            let one = &self.deliveries[&id];
            let kept = self.settings.retention.failed;
            let young = now.unix < one.ended_at.plus(kept) && !self.clock_set;
            let same = one.state == Some(DeliveryState::FailedPermanent)
                && one.attempts == attempts
                && !self.hooks[&one.hook].deleted;
            if same && young {
                violated("redeliver", format!("a job ends without redelivering {id:?}"));
            }
        }
    }

    /// Checks that all needed rows exist, and none that no sweep deletes.
    pub(crate) fn kept(&self, conn: &Connection) {
        let any = |sql| {
            let mut query = conn.prepare_cached(sql).unwrap();
            let mut found = query.query([]).unwrap();
            found.next().unwrap().map(|row| row.get::<_, i64>(0).unwrap())
        };
        if let Some(id) = any(BODILESS) {
            violated("lost", format!("delivery {id} has no event on disk"));
        }
        if let Some(id) = any(NOWHERE) {
            violated("lost", format!("webhook {id} has no endpoint on disk"));
        }
        self.none_left_over(conn);
        if let Some(id) = any(ORPHANS) {
            violated("memory", format!("delivery {id} waits, and has no webhook on disk"));
        }
        if let Some(id) = any(JOBS_MISCOUNTED) {
            violated("redeliver", format!("job {id} counts other deliveries than wait for it"));
        }
        if let Some(id) = any(MISCOUNTED) {
            violated("memory", format!("event {id}: `delivery_refs` differs from its deliveries"));
        }
    }
}
