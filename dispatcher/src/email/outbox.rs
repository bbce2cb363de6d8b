//! Finds the owners of mails that are due, sends the mails, and records the result of each.
//!
//! # Invariants
//!
//! 1. A mail is claimed before it is sent and counts as sent from then on, so that a crash sends
//!    none twice. A clean shutdown returns the claimed mails that were not sent.
//! 2. A mail whose owners cannot be found now waits, for days.
//! 3. Of mails that wait for their owners at most [`CLAIM_MAX`] come between two checks for mails
//!    to send: a slow directory does not stop those that have an address.
//!
//! Not here: the texts (`templates`), the SMTP client (`smtp`), when a mail is written (`health`,
//! `worker`).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tokio::time::sleep;
use weir_common::time::{Clock, UnixTime};

use crate::config::settings;
use crate::email::smtp::{SendResult, SmtpSender};
use crate::live_config::ActiveConfig;
use crate::metrics::Metrics;
use crate::store::mail::{Addressing, Mail, NewMail, Posted, UnaddressedMail};
use crate::store::{MailQueue, StoreError};

/// Mails claimed at a time, and the most that a shutdown returns.
const CLAIM_MAX: usize = 10;

/// The interval between checks of the queue.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The wait after an error of the store or of the settings.
const ERROR_INTERVAL: Duration = Duration::from_secs(30);

/// The longest wait between two attempts.
const WAIT_MAX: Duration = Duration::from_secs(60 * 60);

/// Attempts per mail; with the waits between them about 15 hours.
const ATTEMPTS_MAX: u32 = 20;

/// The longest wait until the owners of a mail are looked for again: soon after an outage of the
/// directory, a warning is worth something still.
const LOOKUP_WAIT_MAX: Duration = Duration::from_secs(5 * 60);

/// How often the owners of a mail are looked for; with the waits between them about a week.
const LOOKUPS_MAX: u32 = 2_000;

/// The queue of mails, and the client that sends them.
pub struct Outbox {
    store: Arc<dyn MailQueue>,
    clock: Clock,
    active: Arc<ArcSwap<ActiveConfig>>,
    metrics: Arc<Metrics>,
    /// The client, with the settings it was made from.
    sender: Option<(settings::MailSettings, SmtpSender)>,
}

impl Outbox {
    /// An outbox; it connects when it sends the first mail.
    #[must_use]
    pub fn new(
        store: Arc<dyn MailQueue>,
        clock: Clock,
        active: Arc<ArcSwap<ActiveConfig>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { store, clock, active, metrics, sender: None }
    }

    /// Sends due mails until shutdown. Without `[mail]` the mails stay in the queue.
    pub async fn run(mut self, mut stopping: watch::Receiver<bool>) {
        loop {
            let mail = self.active.load().settings.mail.clone();
            let wait = match mail {
                None => CHECK_INTERVAL,
                Some(mail) => self.round(&mail, &stopping).await,
            };
            tokio::select! {
                // A dropped sender means shutdown as well.
                _ = stopping.wait_for(|stop| *stop) => return,
                () = sleep(wait) => {}
            }
        }
    }

    /// Sends due mails, and returns the wait before the next check.
    async fn round(
        &mut self,
        mail: &settings::MailSettings,
        stopping: &watch::Receiver<bool>,
    ) -> Duration {
        if self.sender.as_ref().is_none_or(|(settings, _)| settings != mail) {
            match SmtpSender::new(mail) {
                Ok(sender) => self.sender = Some((mail.clone(), sender)),
                Err(error) => {
                    log::error!("mail disabled: {error}");
                    return ERROR_INTERVAL;
                }
            }
        }
        let Some((_, sender)) = &self.sender else {
            return ERROR_INTERVAL;
        };
        let send = |mail: NewMail| async move { sender.send(&mail).await };
        let done = async {
            let addressed = self.address_due(mail.retry_after, stopping).await?;
            self.send_due(send, mail.retry_after, stopping).await?;
            Ok::<_, StoreError>(addressed)
        };
        match done.await {
            // More may be due.
            Ok(CLAIM_MAX) => Duration::ZERO,
            Ok(_) => CHECK_INTERVAL,
            Err(error) => {
                log::error!("outbox read failed: {error}");
                ERROR_INTERVAL
            }
        }
    }

    /// Finds the owners of a few due mails; returns of how many.
    async fn address_due(
        &self,
        retry_after: Duration,
        stopping: &watch::Receiver<bool>,
    ) -> Result<usize, StoreError> {
        let mails = self.store.unaddressed_mails(CLAIM_MAX, self.clock.now().unix).await?;
        let active = self.active.load_full();
        for mail in &mails {
            if *stopping.borrow() {
                break;
            }
            let found = active.owners(&mail.workspace).await;
            let to = recipients(&found, mail.failures, retry_after, self.clock.now().unix);
            self.store.address_mail(mail.id, to.clone()).await?;
            log_recipients(&found, mail, &to);
        }
        Ok(mails.len())
    }

    /// Sends every due mail with `send`, and records each result.
    pub async fn send_due<P: Future<Output = SendResult>>(
        &self,
        send: impl Fn(NewMail) -> P,
        retry_after: Duration,
        stopping: &watch::Receiver<bool>,
    ) -> Result<(), StoreError> {
        let Self { store, clock, metrics, .. } = self;
        while !*stopping.borrow() {
            let now = clock.now().unix;
            if store.mail_due().await?.is_none_or(|due| due > now) {
                return Ok(());
            }
            let mails = store.claim_mails(CLAIM_MAX, now).await?;
            if mails.is_empty() {
                return Ok(());
            }
            for mail in mails {
                let posted = if *stopping.borrow() {
                    Posted::Again(now)
                } else {
                    let result = send(mail.mail.clone()).await;
                    let (posted, why) =
                        next_state(result, mail.failures, retry_after, clock.now().unix);
                    metrics.mails.with_label_values(&[outcome(posted)]).inc();
                    log_result(&mail, posted, why)
                };
                if let Err(error) = store.posted(mail.id, posted).await {
                    // The mail counts as sent; if it was not, it is lost.
                    log::error!("mail {}: result {posted:?} not recorded: {error}", mail.id.0);
                }
            }
        }
        Ok(())
    }
}

/// Logs the result of a mail, without its address.
fn log_result(mail: &Mail, posted: Posted, why: Option<String>) -> Posted {
    let (id, why) = (mail.id.0, why.unwrap_or_default());
    match posted {
        Posted::Sent => log::info!("mail {id} sent"),
        Posted::Abandoned => log::error!("mail {id} abandoned: {why}"),
        Posted::Again(at) => log::warn!("mail {id} retried at {}: {why}", at.rfc3339()),
    }
    posted
}

/// Where a mail to owners goes, after `failures` earlier lookups.
fn recipients(
    found: &Result<BTreeSet<String>, String>,
    failures: u32,
    retry_after: Duration,
    now: UnixTime,
) -> Addressing {
    match found {
        Ok(owners) => Addressing::To(owners.clone()),
        Err(_) if failures.saturating_add(1) >= LOOKUPS_MAX => Addressing::Abandoned,
        Err(_) => {
            let wait = retry_after.saturating_mul(2_u32.saturating_pow(failures));
            Addressing::Again(now.plus(wait.min(LOOKUP_WAIT_MAX)))
        }
    }
}

/// Logs, once, that a mail waits for its owners, and that there are none.
fn log_recipients(
    found: &Result<BTreeSet<String>, String>,
    mail: &UnaddressedMail,
    to: &Addressing,
) {
    let UnaddressedMail { id, workspace, failures } = mail;
    let id = id.0;
    match (to, found) {
        (Addressing::Abandoned, Err(why)) => {
            log::error!("mail {id} abandoned: owners of {workspace} not found: {why}");
        }
        (_, Err(why)) if *failures == 0 => {
            log::warn!("mail {id} waits: owners of {workspace} not found: {why}");
        }
        (_, Ok(owners)) if owners.is_empty() => {
            log::warn!("mail {id} dropped: {workspace} has no owners in the directory");
        }
        _ => {}
    }
}

/// The metric's label of a result.
fn outcome(posted: Posted) -> &'static str {
    match posted {
        Posted::Sent => "sent",
        Posted::Abandoned => "dropped",
        Posted::Again(_) => "failed",
    }
}

/// The next state of a mail after `failures` earlier failures, and the cause.
fn next_state(
    result: SendResult,
    failures: u32,
    retry_after: Duration,
    now: UnixTime,
) -> (Posted, Option<String>) {
    match result {
        SendResult::Sent => (Posted::Sent, None),
        SendResult::Abandoned(why) => (Posted::Abandoned, Some(why)),
        SendResult::Failed(why) if failures.saturating_add(1) >= ATTEMPTS_MAX => {
            (Posted::Abandoned, Some(why))
        }
        SendResult::Failed(why) => {
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
        let expected = expected.map_or(Posted::Abandoned, |minutes| {
            Posted::Again(NOW.plus(Duration::from_secs(minutes * 60)))
        });
        let (posted, why) = next_state(SendResult::Failed("no".to_owned()), failures, MINUTE, NOW);
        assert_eq!((posted, why.as_deref()), (expected, Some("no")), "{failures}");
    }

    #[test]
    fn the_wait_doubles_with_each_failure_and_ends_after_twenty_attempts() {
        for (failures, minutes) in [(0, 1), (1, 2), (2, 4), (5, 32), (6, 60), (18, 60)] {
            check(failures, Some(minutes));
        }
        check(19, None);
        check(u32::MAX, None);
    }

    #[test]
    fn owners_are_looked_for_at_least_every_five_minutes_for_a_week() {
        let lookup = |failures| recipients(&Err("no".to_owned()), failures, MINUTE, NOW);
        for (failures, minutes) in [(0, 1), (1, 2), (2, 4), (3, 5), (1_998, 5)] {
            let expected = Addressing::Again(NOW.plus(MINUTE * minutes));
            assert_eq!(lookup(failures), expected, "{failures}");
        }
        assert_eq!(lookup(LOOKUPS_MAX - 1), Addressing::Abandoned);
        assert_eq!(lookup(u32::MAX), Addressing::Abandoned);
    }

    #[test]
    fn a_mail_that_was_sent_or_refused_permanently_is_not_retried() {
        assert_eq!(next_state(SendResult::Sent, 3, MINUTE, NOW), (Posted::Sent, None));
        let refused = next_state(SendResult::Abandoned("no".to_owned()), 0, MINUTE, NOW);
        assert_eq!(refused, (Posted::Abandoned, Some("no".to_owned())));
    }
}
