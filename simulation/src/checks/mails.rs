//! Checks what the mail server sees: no mail twice, none before its time, and none without a cause.
//! A mail is lost only if a process ended, or a disk failed, between its claim and its outcome.

use std::time::Duration;

use rusqlite::Connection;
use weir_dispatcher::domain::id::WebhookId;
use weir_dispatcher::email::smtp::SendResult;

use crate::mail_server::{Handed, Letters};
use crate::model::outbox::Letter;
use crate::model::{Model, violated};
use crate::orders::Order;

/// The longest wait between two tries, and the most tries: as `outbox` promises.
const WAIT_MAX: Duration = Duration::from_secs(3_600);
const TRIES_MAX: u32 = 20;

impl Model {
    /// Checks the mails that have reached the server.
    pub(crate) fn handed(&mut self, letters: &Letters) {
        let retry_after = self.settings.mail.as_ref().unwrap().retry_after;
        for Handed { key, posting, at } in std::mem::take(&mut *letters.lock().unwrap()) {
            let Some(letter) = self.outbox.letters.get_mut(&key) else {
                violated("mail", format!("mail {key} is sent, and was never queued"))
            };
            if letter.over || letter.lost {
                violated("one mail", format!("mail {key} is sent again after its final outcome"));
            }
            if at < letter.next && !self.clock_set {
                let next = letter.next.rfc3339();
                violated("mail", format!("mail {key} is sent before {next}, its next attempt"));
            }
            match posting {
                SendResult::Sent | SendResult::Abandoned(_) => letter.over = true,
                SendResult::Failed(_) => {
                    let wait = retry_after.saturating_mul(1 << letter.tries.min(20)).min(WAIT_MAX);
                    letter.tries += 1;
                    letter.next = at.plus(wait);
                    letter.over = letter.tries >= TRIES_MAX;
                }
            }
            self.counts.mails += u64::from(posting == SendResult::Sent);
        }
    }

    /// Checks that each pause has one mail.
    pub(crate) fn were_mailed(&self, mails: &[String], paused: &[WebhookId]) {
        for hook in paused {
            let public = self.hooks[hook].public.as_str();
            let told = mails.iter().filter(|key| key.contains(public)).count();
            if told != 1 {
                violated("one mail", format!("pause of {hook:?}: expected 1 mail, found {told}"));
            }
        }
    }

    /// Checks lost mails at a start: those that the earlier process claimed without an outcome.
    pub(crate) fn audit_mails(&mut self, conn: &Connection) {
        let mut query = conn.prepare_cached("SELECT key FROM mails WHERE state = 4").unwrap();
        let keys = query.query_map([], |row| row.get::<_, String>(0)).unwrap();
        for key in keys.map(Result::unwrap) {
            let letter = self.outbox.letters.entry(key.clone()).or_default();
            if !letter.lost && !self.outbox.doubt {
                violated(
                    "mail",
                    format!("mail {key} is lost without an interrupted send or a disk fault"),
                );
            }
            letter.lost = true;
        }
        self.outbox.doubt = false;
        self.note_withdrawn(conn);
    }

    /// Notes an order that the process has received.
    pub(crate) fn ordered(&mut self, number: u64, order: Order, conn: &Connection) {
        if matches!(order, Order::Sweep) {
            self.note_withdrawn(conn);
        }
        self.orders.insert(number, order);
    }

    /// Notes the mails that what is newer of their webhooks has withdrawn: they are not sent again.
    /// Retention drops their rows.
    fn note_withdrawn(&mut self, conn: &Connection) {
        let mut query = conn.prepare_cached("SELECT key FROM mails WHERE state = 7").unwrap();
        let keys = query.query_map([], |row| row.get::<_, String>(0)).unwrap();
        for key in keys.map(Result::unwrap) {
            self.outbox.letters.entry(key).or_default().withdrawn = true;
        }
    }

    /// Whether a mail waits. If none does, checks that none is missing.
    pub(crate) fn mails_wait(&mut self, conn: &Connection) -> bool {
        self.note_withdrawn(conn);
        let posts = self.orders.values().any(|order| matches!(order, Order::Post(_)));
        let sql = "SELECT count(*) FROM mails WHERE state = 0";
        let waiting: i64 = conn.query_row(sql, [], |row| row.get(0)).unwrap();
        if waiting > 0 || posts {
            return true;
        }
        let open = |letter: &&Letter| !letter.over && !letter.lost && !letter.withdrawn;
        let open = self.outbox.letters.values().filter(open).count();
        if open > 0 && !self.outbox.doubt {
            violated("mail", format!("{open} mails are not sent, and none waits on disk"));
        }
        false
    }
}
