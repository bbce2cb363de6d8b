//! Finds the owners of mails that are due, sends the mails, and records the result of each.
//!
//! # Invariants
//!
//! 1. A mail is claimed when it is sent and counts as sent from then on, so that a crash sends none
//!    twice. A shutdown begins no more, and can lose only those in flight.
//! 2. Of a workspace one mail is in flight at once, so that one whose owners' mail servers stall
//!    does not delay the mails of the others.
//! 3. A mail whose owners cannot be found now waits, for days. Looking for owners does not stop
//!    the mails that have an address.
//!
//! Not here: the texts (`templates`), the SMTP client (`smtp`), when a mail is written (`health`,
//! `worker`).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use log::Level;
use serde_json::Value;
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::sleep;
use weir_common::log::events;
use weir_common::time::{Clock, UnixTime};

use crate::config::settings;
use crate::email::smtp::{SendResult, SmtpSender};
use crate::live_config::ActiveConfig;
use crate::metrics::Metrics;
use crate::store::mail::{Addressing, Mail, NewMail, Posted, UnaddressedMail};
use crate::store::{MailQueue, StoreError};

/// The most mails in flight, and the most whose owners are looked for between two checks.
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
        Self { store, clock, active, metrics }
    }

    /// Sends due mails until shutdown. Without `[mail]` the mails stay in the queue.
    pub async fn run(self, stopping: watch::Receiver<bool>) {
        tokio::join!(self.find_owners(stopping.clone()), self.send(stopping));
    }

    /// Finds the owners of due mails.
    async fn find_owners(&self, mut stopping: watch::Receiver<bool>) {
        loop {
            let mail = self.active.load().settings.mail.clone();
            let wait = match mail {
                None => CHECK_INTERVAL,
                Some(mail) => match self.address_due(mail.retry_after, &stopping).await {
                    // More may be due.
                    Ok(CLAIM_MAX) => Duration::ZERO,
                    Ok(_) => CHECK_INTERVAL,
                    Err(error) => after_error(&error),
                },
            };
            tokio::select! {
                () = stopped(&mut stopping) => return,
                () = sleep(wait) => {}
            }
        }
    }

    /// Sends due mails. At shutdown it begins no more, and waits for those in flight.
    async fn send(&self, mut stopping: watch::Receiver<bool>) {
        let (mut sender, mut in_flight) = (None, InFlight::default());
        loop {
            let mail = self.active.load().settings.mail.clone();
            let wait = match mail {
                None => CHECK_INTERVAL,
                Some(mail) => self.begin_by(&mail, &mut sender, &mut in_flight).await,
            };
            tokio::select! {
                () = stopped(&mut stopping) => break,
                Some(ended) = in_flight.ended() => self.record(ended).await,
                () = sleep(wait) => {}
            }
        }
        while let Some(ended) = in_flight.ended().await {
            self.record(ended).await;
        }
    }

    /// Begins due mails through the server of these settings; returns the wait before the next
    /// check.
    async fn begin_by(
        &self,
        mail: &settings::MailSettings,
        sender: &mut Option<(settings::MailSettings, Arc<SmtpSender>)>,
        in_flight: &mut InFlight,
    ) -> Duration {
        if sender.as_ref().is_none_or(|(settings, _)| settings != mail) {
            match SmtpSender::new(mail) {
                Ok(new) => *sender = Some((mail.clone(), Arc::new(new))),
                Err(error) => {
                    let fields = [("error", error.to_string().into())];
                    events::event(Level::Error, "mail disabled", &fields);
                    return ERROR_INTERVAL;
                }
            }
        }
        let Some((_, sender)) = sender else {
            return ERROR_INTERVAL;
        };
        let send = |mail: NewMail| {
            let sender = sender.clone();
            async move { sender.send(&mail).await }
        };
        match self.begin(in_flight, send, mail.retry_after).await {
            Ok(()) => CHECK_INTERVAL,
            Err(error) => after_error(&error),
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
    pub async fn send_due<P: Future<Output = SendResult> + Send + 'static>(
        &self,
        send: impl Fn(NewMail) -> P,
        retry_after: Duration,
        stopping: &watch::Receiver<bool>,
    ) -> Result<(), StoreError> {
        let mut in_flight = InFlight::default();
        loop {
            if !*stopping.borrow() {
                self.begin(&mut in_flight, &send, retry_after).await?;
            }
            match in_flight.ended().await {
                Some(ended) => self.record(ended).await,
                None => return Ok(()),
            }
        }
    }

    /// Claims as many due mails as may be in flight, one of each workspace, and begins each.
    async fn begin<P: Future<Output = SendResult> + Send + 'static>(
        &self,
        in_flight: &mut InFlight,
        send: impl Fn(NewMail) -> P,
        retry_after: Duration,
    ) -> Result<(), StoreError> {
        let now = self.clock.now().unix;
        let room = CLAIM_MAX.saturating_sub(in_flight.mails.len());
        if room == 0 || self.store.mail_due().await?.is_none_or(|due| due > now) {
            return Ok(());
        }
        let busy = in_flight.mails.values().filter_map(|mail| mail.workspace.clone()).collect();
        for mail in self.store.claim_mails(room, now, busy).await? {
            let (sending, failures) = (send(mail.mail.clone()), mail.failures);
            let clock = self.clock.clone();
            let task = in_flight.tasks.spawn(async move {
                next_state(sending.await, failures, retry_after, clock.now().unix)
            });
            in_flight.mails.insert(task.id(), mail);
        }
        Ok(())
    }

    /// Records the result of a mail.
    async fn record(&self, (mail, posted, why): Ended) {
        self.metrics.mails.with_label_values(&[outcome(posted)]).inc();
        match self.store.posted(mail.id, posted).await {
            Ok(true) => log_result(&mail, posted, why),
            Ok(false) if posted == Posted::Sent => log_result(&mail, posted, why),
            Ok(false) => {
                let why = why.unwrap_or_default();
                log_mail(Level::Info, "mail withdrawn", &mail, &[("error", why.into())]);
            }
            // The mail counts as sent; if it was not, it is lost.
            Err(error) => {
                let fields =
                    [("result", outcome(posted).into()), ("error", error.to_string().into())];
                log_mail(Level::Error, "mail result not recorded", &mail, &fields);
            }
        }
    }
}

/// A mail whose attempt has ended, its next state, and the cause.
type Ended = (Mail, Posted, Option<String>);

/// The mails that are being sent.
#[derive(Default)]
struct InFlight {
    tasks: JoinSet<(Posted, Option<String>)>,
    mails: HashMap<Id, Mail>,
}

impl InFlight {
    /// The next mail whose attempt ends; none if none is in flight.
    async fn ended(&mut self) -> Option<Ended> {
        let (id, (posted, why)) = match self.tasks.join_next_with_id().await? {
            Ok(ended) => ended,
            // It may have been sent.
            Err(error) => (error.id(), (Posted::Abandoned, Some(error.to_string()))),
        };
        self.mails.remove(&id).map(|mail| (mail, posted, why))
    }
}

/// Waits for the shutdown.
async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // A dropped sender means shutdown as well.
    let _ = stopping.wait_for(|stop| *stop).await;
}

/// Logs an error of the store; returns the wait.
fn after_error(error: &StoreError) -> Duration {
    let fields = [("error", error.to_string().into())];
    events::event(Level::Error, "outbox read failed", &fields);
    ERROR_INTERVAL
}

/// Logs the result of a mail, without its address.
fn log_result(mail: &Mail, posted: Posted, why: Option<String>) {
    let error = ("error", why.unwrap_or_default().into());
    match posted {
        Posted::Sent => log_mail(Level::Info, "mail sent", mail, &[]),
        Posted::Abandoned => log_mail(Level::Error, "mail abandoned", mail, &[error]),
        Posted::Again(at) => {
            log_mail(Level::Warn, "mail retried", mail, &[("until", at.rfc3339().into()), error]);
        }
    }
}

/// Logs what happened to a mail, and what it is about.
fn log_mail(level: Level, message: &str, mail: &Mail, more: &[(&'static str, Value)]) {
    let fields: Vec<(&str, Value)> = about(mail).into_iter().chain(more.iter().cloned()).collect();
    events::event(level, message, &fields);
}

/// What a mail is about, as its log line names it.
fn about(mail: &Mail) -> Vec<(&'static str, Value)> {
    let mut fields = vec![("mail", mail.id.0.into())];
    // The key is the kind, the webhook, the beginning of the episode and the owner.
    if let (Some(workspace), Some(webhook)) = (&mail.workspace, mail.mail.key.split(':').nth(1)) {
        fields.extend([("workspace", (&**workspace).into()), ("webhook", webhook.into())]);
    }
    fields
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
    let error = ("error", found.as_ref().err().map(String::as_str).into());
    let (mail, workspace) = (("mail", id.0.into()), ("workspace", workspace.as_str().into()));
    match (to, found) {
        (Addressing::Abandoned, Err(_)) => {
            events::event(
                Level::Error,
                "mail abandoned: owners not found",
                &[mail, workspace, error],
            );
        }
        (_, Err(_)) if *failures == 0 => {
            events::event(Level::Warn, "mail waits: owners not found", &[mail, workspace, error]);
        }
        (_, Ok(owners)) if owners.is_empty() => {
            events::event(Level::Warn, "mail dropped: no owners", &[mail, workspace]);
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

    use std::fs;
    use std::sync::Mutex;

    use crate::store::sqlite::tests::Folder;
    use tokio::sync::Notify;
    use tokio::time::timeout;
    use weir_common::secret::Secret;

    use crate::domain::event::EventSet;
    use crate::domain::id::{MailId, WebhookId};
    use crate::store::Management;
    use crate::store::types::{Created, NewWebhook};
    use crate::worker::tests::{open_store, state_of};

    const MINUTE: Duration = Duration::from_secs(60);
    const NOW: UnixTime = UnixTime(1_700_000_000_000_000);

    /// A store with mails, each to the owner of a new webhook of a workspace.
    async fn outbox_with(mails: [(&str, &str); 4]) -> (Folder, Arc<dyn MailQueue>, Outbox) {
        let (folder, clock) = (Folder::new(), Clock::manual(NOW));
        let config = format!(
            "[auth]\ntokens = {:?}\n[directory]\nsource = \"file\"\npath = {:?}\n",
            folder.path("tokens.toml"),
            folder.path("directory.toml"),
        );
        for (name, text) in
            [("dispatcher.toml", &*config), ("tokens.toml", ""), ("directory.toml", "")]
        {
            fs::write(folder.path(name), text).unwrap();
        }
        let store = open_store(&folder, &clock);
        let state = state_of(&folder, &clock, store.clone()).0;
        for (workspace, to) in mails {
            let new = NewWebhook {
                workspace: workspace.into(),
                url: format!("https://{to}.example/").into(),
                events: EventSet::of([]),
                options: Default::default(),
                secret: Secret::new("whsec_a".to_owned()),
                webhooks_max: 9,
                signing_key: None,
            };
            let Created::Webhook(webhook) = store.create_webhook(new, NOW).await.unwrap() else {
                panic!("there is room");
            };
            let (to, text) = (to.to_owned(), String::new());
            let key = format!("paused:{:?}:{to}", webhook.id);
            let mail = NewMail { webhook: webhook.id, to, subject: text.clone(), text, key };
            let queue: &dyn crate::store::DeliveryQueue = &*store;
            queue.record(vec![], vec![], vec![mail.into()], vec![]).await.unwrap();
        }
        (folder, store, state.outbox())
    }

    #[tokio::test]
    async fn a_mail_that_stalls_delays_its_workspace_alone_and_a_stop_loses_none_that_waits() {
        let worst = "ws_worst";
        let mails = [(worst, "a"), (worst, "b"), (worst, "c"), ("ws_other", "d")];
        let (_folder, store, outbox) = outbox_with(mails).await;
        let (stop, stopping) = watch::channel(false);
        let (end, arrived) = (Arc::new(Notify::new()), Arc::new(Mutex::new(Vec::new())));
        let send = |mail: NewMail| {
            let (end, arrived) = (end.clone(), arrived.clone());
            async move {
                arrived.lock().unwrap().push(mail.to.clone());
                match &*mail.to {
                    "d" => SendResult::Sent,
                    _ => {
                        end.notified().await;
                        SendResult::Failed("it timed out".to_owned())
                    }
                }
            }
        };
        let stopped = async {
            while arrived.lock().unwrap().len() < 2 {
                sleep(Duration::from_millis(5)).await;
            }
            stop.send_replace(true);
            end.notify_waiters();
        };
        let both = async { tokio::join!(outbox.send_due(send, MINUTE, &stopping), stopped) };
        timeout(Duration::from_secs(10), both).await.expect("no mail waits for others").0.unwrap();
        let mut arrived = arrived.lock().unwrap().clone();
        arrived.sort();
        assert_eq!(arrived, ["a", "d"]);
        // The one that timed out goes behind.
        let mut left = Vec::new();
        for _ in 0..3 {
            let claimed = store.claim_mails(9, NOW.plus(MINUTE), BTreeSet::new()).await.unwrap();
            left.extend(claimed.into_iter().map(|mail| mail.mail.to));
        }
        assert_eq!(left, ["b", "c", "a"]);
    }

    #[test]
    fn a_mails_log_line_names_its_webhook_and_workspace_and_no_address() {
        let mail = NewMail {
            webhook: WebhookId(1),
            to: "a@x.example".to_owned(),
            subject: String::new(),
            text: String::new(),
            key: "paused:wh_1:17:a@x.example".to_owned(),
        };
        let mut mail = Mail { id: MailId(1), mail, workspace: Some("ws_a".into()), failures: 0 };
        let number = ("mail", 1.into());
        let expected = [number.clone(), ("workspace", "ws_a".into()), ("webhook", "wh_1".into())];
        assert_eq!(about(&mail), expected);
        mail.workspace = None;
        assert_eq!(about(&mail), [number]);
    }

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
