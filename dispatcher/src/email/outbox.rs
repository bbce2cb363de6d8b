//! Empties the outbox: takes the mails that are due, posts them, and writes down what came of it.
//!
//! A mail is taken before it is sent and counts as sent from then on, so that a crash sends none
//! twice; what was taken and not sent in an orderly stop is put back.
//!
//! Not here: what a mail says (`templates`), how it is sent (`smtp`), when one is written
//! (`health`, `worker`).

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::sleep;
use weir_common::time::{Clock, UnixTime};

use crate::config::settings;
use crate::email::smtp::{Posting, SmtpSender};
use crate::live_config::ActiveConfig;
use crate::metrics::Metrics;
use crate::store::{Mail, MailQueue, NewMail, Posted, StoreError};

/// Mails taken at one time: as many as a stop puts back.
const TAKE_MAX: usize = 10;

/// A mail that is written is seen so soon.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A store that fails, or settings that cannot send, are asked again so soon.
const LOOK_AGAIN: Duration = Duration::from_secs(30);

/// The longest wait between two tries.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// More tries than this, three quarters of a day, are not made.
const TRIES_MAX: u32 = 20;

/// The mails that wait, and what sends them.
pub struct Outbox {
    store: Arc<dyn MailQueue>,
    clock: Clock,
    active: Arc<ArcSwap<ActiveConfig>>,
    metrics: Arc<Metrics>,
    /// The postman of the active settings.
    sender: Option<(settings::Mail, SmtpSender)>,
}

impl Outbox {
    /// Over this store; nothing is connected yet.
    #[must_use]
    pub fn new(
        store: Arc<dyn MailQueue>,
        clock: Clock,
        active: Arc<ArcSwap<ActiveConfig>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { store, clock, active, metrics, sender: None }
    }

    /// Sends what is due until told to stop. Without `[mail]` the mails stay where they are.
    pub async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        loop {
            let mail = self.active.load().settings.mail.clone();
            let wait = match mail {
                None => LOOK_EVERY,
                Some(mail) => self.round(&mail, &stopping).await,
            };
            tokio::select! {
                // A sender that is gone is a stop as well.
                _ = stopping.wait_for(|stop| *stop) => return,
                () = sleep(wait) => {}
            }
        }
    }

    /// Sends what is due, and says how long to wait before the next look.
    async fn round(&mut self, mail: &settings::Mail, stopping: &watch::Receiver<bool>) -> Duration {
        if self.sender.as_ref().is_none_or(|(settings, _)| settings != mail) {
            match SmtpSender::new(mail) {
                Ok(sender) => self.sender = Some((mail.clone(), sender)),
                Err(error) => {
                    log::error!("no mail is sent: {error}");
                    return LOOK_AGAIN;
                }
            }
        }
        let Some((_, sender)) = &self.sender else {
            return LOOK_AGAIN;
        };
        let post = |mail: NewMail| async move { sender.post(&mail).await };
        match self.send_due(post, mail.retry_after, stopping).await {
            Ok(()) => LOOK_EVERY,
            Err(error) => {
                log::error!("the outbox cannot be read: {error}");
                LOOK_AGAIN
            }
        }
    }

    /// Has every mail posted that is due, and writes down what came of it.
    pub(crate) async fn send_due<P: Future<Output = Posting>>(
        &self,
        post: impl Fn(NewMail) -> P,
        retry_after: Duration,
        stopping: &watch::Receiver<bool>,
    ) -> Result<(), StoreError> {
        let Self { store, clock, metrics, .. } = self;
        while !*stopping.borrow() {
            let now = clock.now().unix;
            if store.mail_due().await?.is_none_or(|due| due > now) {
                return Ok(());
            }
            let mails = store.take_mails(TAKE_MAX, now).await?;
            if mails.is_empty() {
                return Ok(());
            }
            for mail in mails {
                let posted = if *stopping.borrow() {
                    Posted::Again(now)
                } else {
                    let posting = post(mail.mail.clone()).await;
                    let (posted, why) =
                        after(posting, mail.failures, retry_after, clock.now().unix);
                    metrics.mails.with_label_values(&[outcome(posted)]).inc();
                    told(&mail, posted, why)
                };
                if let Err(error) = store.posted(mail.id, posted).await {
                    // It counts as sent, which for one that was not is a mail lost.
                    log::error!(
                        "mail {}: {posted:?} could not be written down: {error}",
                        mail.id.0
                    );
                }
            }
        }
        Ok(())
    }
}

/// Logs what came of a mail, without its address.
fn told(mail: &Mail, posted: Posted, why: Option<String>) -> Posted {
    let (id, why) = (mail.id.0, why.unwrap_or_default());
    match posted {
        Posted::Sent => log::info!("mail {id} was sent"),
        Posted::GivenUp => log::error!("mail {id} was given up: {why}"),
        Posted::Again(at) => log::warn!("mail {id} is tried again at {}: {why}", at.rfc3339()),
    }
    posted
}

/// What a try came to, as a label.
fn outcome(posted: Posted) -> &'static str {
    match posted {
        Posted::Sent => "sent",
        Posted::GivenUp => "dropped",
        Posted::Again(_) => "failed",
    }
}

/// What becomes of a mail that had failed so often before, and why.
fn after(
    posting: Posting,
    failures: u32,
    retry_after: Duration,
    now: UnixTime,
) -> (Posted, Option<String>) {
    match posting {
        Posting::Sent => (Posted::Sent, None),
        Posting::GivenUp(why) => (Posted::GivenUp, Some(why)),
        Posting::Failed(why) if failures.saturating_add(1) >= TRIES_MAX => {
            (Posted::GivenUp, Some(why))
        }
        Posting::Failed(why) => {
            let wait = retry_after.saturating_mul(2_u32.saturating_pow(failures)).min(WAIT_MAX);
            (Posted::Again(now.plus(wait)), Some(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);
    const NOW: UnixTime = UnixTime(1_700_000_000_000_000);

    fn check(failures: u32, expected: Option<u64>) {
        let expected = expected.map_or(Posted::GivenUp, |minutes| {
            Posted::Again(NOW.plus(Duration::from_secs(minutes * 60)))
        });
        let (posted, why) = after(Posting::Failed("no".to_owned()), failures, MINUTE, NOW);
        assert_eq!((posted, why.as_deref()), (expected, Some("no")), "{failures}");
    }

    #[test]
    fn a_mail_that_fails_waits_twice_as_long_each_time_and_twenty_times_at_most() {
        for (failures, minutes) in [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (18, 60)] {
            check(failures, Some(minutes));
        }
        check(19, None);
        check(u32::MAX, None);
    }

    #[test]
    fn what_is_sent_or_refused_for_good_is_not_tried_again() {
        assert_eq!(after(Posting::Sent, 3, MINUTE, NOW), (Posted::Sent, None));
        let refused = after(Posting::GivenUp("no".to_owned()), 0, MINUTE, NOW);
        assert_eq!(refused, (Posted::GivenUp, Some("no".to_owned())));
    }
}
