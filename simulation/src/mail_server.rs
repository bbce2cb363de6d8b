//! A simulated mail server, which accepts mails, defers them, or rejects them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use weir_common::time::UnixTime;
use weir_dispatcher::email::smtp::SendResult;
use weir_dispatcher::state::State;
use weir_dispatcher::store::StoreError;
use weir_dispatcher::store::mail::NewMail;
use weir_tests::rng::SeededRng;

use crate::model::{SECRETS, violated};

/// A mail that reached the server, and the server's response.
#[derive(Clone, Debug)]
pub(crate) struct Handed {
    pub(crate) key: String,
    pub(crate) posting: SendResult,
    pub(crate) at: UnixTime,
}

/// Mails that have reached the server and are not checked yet.
pub(crate) type Letters = Arc<Mutex<Vec<Handed>>>;

/// Sends due mails, as `outbox` does; without `luck`, the server accepts everything.
pub(crate) async fn post(
    state: &State,
    luck: Option<u64>,
    letters: &Letters,
    stopping: &watch::Receiver<bool>,
) -> Result<(), StoreError> {
    let posted = AtomicU64::new(0);
    let says = |mail: NewMail| {
        for secret in SECRETS {
            if mail.text.contains(secret) || mail.subject.contains(secret) {
                violated("secret in mail", format!("mail {} contains `{secret}`", mail.key));
            }
        }
        // Not by the mail's key, which depends on random keys that no seed decides.
        let nth = luck.unwrap_or(0).wrapping_add(posted.fetch_add(1, Ordering::Relaxed));
        let posting = match SeededRng::new(nth).below(100) {
            _ if luck.is_none() => SendResult::Sent,
            0..=9 => SendResult::Abandoned("there is no such mailbox".to_owned()),
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
