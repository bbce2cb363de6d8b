//! The outbox and its server, which takes mails, puts them off, or wants none of them.
//!
//! Judged is what the server sees: no mail twice, none before its time, and none of nothing; and
//! that a mail is lost only where a process ended, or a disk failed, between its being taken and
//! what came of that.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::watch;
use weir_common::time::UnixTime;

use crate::email::smtp::SendResult;
use crate::state::State;
use crate::store::{NewMail, StoreError};
use crate::worker::simulation::books::{Books, violated};
use crate::worker::simulation::dice::Dice;
use crate::worker::simulation::orders::Order;
use crate::worker::simulation::world::SECRETS;

/// The longest between two tries, and the most of them: as `outbox` promises.
const WAIT_MAX: Duration = Duration::from_secs(3_600);
const TRIES_MAX: u32 = 20;

/// A mail that reached the server, and what that said.
#[derive(Clone, Debug)]
pub(super) struct Handed {
    key: String,
    posting: SendResult,
    at: UnixTime,
}

/// What has reached the server and was not looked at yet.
pub(super) type Letters = Arc<Mutex<Vec<Handed>>>;

/// Sends what is due, as `outbox` does: to a server that, without luck, takes everything.
pub(super) async fn post(
    state: &State,
    luck: Option<u64>,
    letters: &Letters,
    stopping: &watch::Receiver<bool>,
) -> Result<(), StoreError> {
    let posted = AtomicU64::new(0);
    let says = |mail: NewMail| {
        for secret in SECRETS {
            if mail.text.contains(secret) || mail.subject.contains(secret) {
                violated("12 mail", format!("`{secret}` stands in {}", mail.key));
            }
        }
        // The key would tell of keys that no seed decides.
        let nth = luck.unwrap_or(0).wrapping_add(posted.fetch_add(1, Ordering::Relaxed));
        let posting = match Dice::new(nth).roll(100) {
            _ if luck.is_none() => SendResult::Sent,
            0..=9 => SendResult::Abandoned("nobody is there".to_owned()),
            10..=54 => SendResult::Failed("later".to_owned()),
            _ => SendResult::Sent,
        };
        let handed = Handed { key: mail.key, posting: posting.clone(), at: state.clock.now().unix };
        letters.lock().unwrap().push(handed);
        async move {
            tokio::task::yield_now().await;
            posting
        }
    };
    let retry_after = state.active.load().settings.mail.as_ref().unwrap().retry_after;
    state.outbox().send_due(says, retry_after, stopping).await
}

/// A mail, as its server knows it.
#[derive(Clone, Copy, Debug, Default)]
struct Letter {
    tries: u32,
    /// Not before then.
    next: UnixTime,
    over: bool,
    lost: bool,
}

/// All mails that were ever to be sent.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    letters: BTreeMap<String, Letter>,
    /// Some of them may be lost by now.
    pub(super) doubt: bool,
}

impl Outbox {
    pub(super) fn written(&mut self, key: String) {
        self.letters.entry(key).or_default();
    }
}

impl Books {
    /// Mails have reached the server.
    pub(super) fn handed(&mut self, letters: &Letters) {
        let retry_after = self.settings.mail.as_ref().unwrap().retry_after;
        for Handed { key, posting, at } in std::mem::take(&mut *letters.lock().unwrap()) {
            let Some(letter) = self.outbox.letters.get_mut(&key) else {
                violated("mail", format!("{key} tells of nothing"))
            };
            if letter.over || letter.lost {
                violated("one mail", format!("{key} is sent once more"));
            }
            if at < letter.next && !self.clock_set {
                violated("mail", format!("{key} was put off until {}", letter.next.rfc3339()));
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
            self.tally.mails += u64::from(posting == SendResult::Sent);
        }
    }

    /// A process has begun: what the one before had taken, and did not say what came of, is lost.
    pub(super) fn audit_mails(&mut self, conn: &Connection) {
        let mut query = conn.prepare_cached("SELECT key FROM mails WHERE state = 4").unwrap();
        let keys = query.query_map([], |row| row.get::<_, String>(0)).unwrap();
        for key in keys.map(Result::unwrap) {
            let letter = self.outbox.letters.entry(key.clone()).or_default();
            if !letter.lost && !self.outbox.doubt {
                violated("mail", format!("{key} is lost, and nothing was amiss"));
            }
            letter.lost = true;
        }
        self.outbox.doubt = false;
    }

    /// Whether a mail waits. Of what was to be sent nothing else may be missing.
    pub(super) fn mails_wait(&self, conn: &Connection) -> bool {
        let posts = self.orders.values().any(|order| matches!(order, Order::Post(_)));
        let sql = "SELECT count(*) FROM mails WHERE state = 0";
        let waiting: i64 = conn.query_row(sql, [], |row| row.get(0)).unwrap();
        if waiting > 0 || posts {
            return true;
        }
        let open = |letter: &&Letter| !letter.over && !letter.lost;
        let open = self.outbox.letters.values().filter(open).count();
        if open > 0 && !self.outbox.doubt {
            violated("mail", format!("{open} mails wait, and none is to be sent"));
        }
        false
    }
}
