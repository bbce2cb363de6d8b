//! The texts of mails to owners: warning, pause, lost secret.
//!
//! Invariant: a mail shows only scheme, host and port of a URL; path and query may be credentials.
//!
//! Not here: when a mail is due (`health`), how it is sent (`smtp`).

use url::Url;
use weir_common::time::UnixTime;

use crate::domain::id::WebhookId;
use crate::domain::outcome::Outcome;
use crate::store::mail::{MailKind, NewMail};

/// The incident that a mail reports.
#[derive(Clone, Debug)]
pub struct Incident<'a> {
    /// The webhook's number.
    pub id: WebhookId,
    /// The webhook's public identifier.
    pub webhook: &'a str,
    /// The workspace of the webhook.
    pub workspace: &'a str,
    /// The whole URL.
    pub url: &'a str,
    /// When the episode began. An owner gets one mail of each kind per episode.
    pub since: UnixTime,
    /// The outcome of the last attempt, if known.
    pub last: Option<&'a Outcome>,
    /// The dashboard's URL, if configured.
    pub link: Option<&'a str>,
}

/// The mail that warns an owner of failing deliveries.
#[must_use]
pub fn warning(incident: &Incident<'_>, to: &str) -> NewMail {
    let origin = origin(incident.url);
    let subject = format!("Webhook deliveries to {origin} are failing");
    let page = page(incident).map(|page| format!("\nIts deliveries and their answers:\n{page}\n"));
    let text = format!(
        "Too many deliveries to one of your webhooks fail.\n\n{}\n\
         What happens next: a delivery that fails is tried again, later and later. If none\n\
         succeeds for long, deliveries pause until you reactivate the webhook; events stay\n\
         queued. There is no further mail unless deliveries pause, or recover and fail anew.\n{}",
        facts(incident, &origin, "▲ Failing", "Failing since"),
        page.unwrap_or_default(),
    );
    incident.mail(MailKind::Warning, to, subject, text)
}

/// The mail that reports a pause.
#[must_use]
pub fn paused(incident: &Incident<'_>, to: &str) -> NewMail {
    let origin = origin(incident.url);
    let subject = format!("Webhook deliveries to {origin} are paused");
    let text = format!(
        "No delivery to one of your webhooks has succeeded for so long that deliveries are\n\
         paused.\n\n{}\n\
         What happens next: nothing is sent until you reactivate the webhook. Events stay\n\
         queued, none are dropped, and are delivered in order once it is reactivated.\n{}",
        facts(incident, &origin, "■ Paused", "Down since"),
        how(incident),
    );
    incident.mail(MailKind::Paused, to, subject, text)
}

/// The mail that asks for a new secret, because the key that sealed the earlier ones is lost;
/// `more` names what else was lost.
#[must_use]
pub fn secret_lost(incident: &Incident<'_>, more: &[&str], to: &str) -> NewMail {
    let origin = origin(incident.url);
    let subject = format!("Your webhook to {origin} needs a new secret");
    let lost = ["its secret"].iter().chain(more).copied().collect::<Vec<_>>().join(", ");
    let text = format!(
        "We have lost what signs the deliveries of one of your webhooks, by a fault of ours.\n\
         No other party has it.\n\n{}Lost: {lost}\n\n\
         What happens next: nothing is sent until the webhook has a new secret. Events stay\n\
         queued, none are dropped, and are delivered in order once it has one.\n{}",
        facts(incident, &origin, "○ Disabled", "Disabled since"),
        how_to_rotate(incident, !more.is_empty()),
    );
    incident.mail(MailKind::SecretLost, to, subject, text)
}

fn how_to_rotate(incident: &Incident<'_>, lost_more: bool) -> String {
    let Incident { workspace, webhook, .. } = incident;
    let first = if lost_more {
        format!(
            "\nFirst set what else was lost again:\n\
             PATCH /v1/workspaces/{workspace}/webhooks/{webhook}\n"
        )
    } else {
        String::new()
    };
    format!(
        "{first}{}\
         POST /v1/workspaces/{workspace}/webhooks/{webhook}:rotate-secret\n\
         and let your receiver accept it at once: deliveries begin within moments. To choose\n\
         the secret yourself, call POST …/webhooks/{webhook}/secrets instead.\n",
        open_or_call(incident, "To get a new secret,"),
    )
}

fn facts(incident: &Incident<'_>, origin: &str, state: &str, since: &str) -> String {
    let last = incident.last.map(|outcome| format!("Last attempt: {}\n", outcome.in_words()));
    format!(
        "State: {state}\nEndpoint: {origin}\nWebhook: {}\nWorkspace: {}\n{since}: {}\n{}",
        incident.webhook,
        incident.workspace,
        incident.since.rfc3339(),
        last.unwrap_or_default(),
    )
}

/// How an owner reactivates a webhook: on its page, or by the API within the workspace's limits.
fn how(incident: &Incident<'_>) -> String {
    let Incident { workspace, webhook, .. } = incident;
    format!(
        "{}\
         POST /v1/workspaces/{workspace}/webhooks/{webhook}:reactivate\n\
         If the answer is 429, your workspace has used up its rate limit: wait as many\n\
         seconds as Retry-After says, and call again. Nothing is lost by waiting.\n",
        open_or_call(incident, "To reactivate it, correct the endpoint first, then"),
    )
}

/// A sentence that goes on with the webhook's page, if it has one, or a call that follows.
fn open_or_call(incident: &Incident<'_>, sentence: &str) -> String {
    match page(incident) {
        Some(page) => format!("\n{sentence} open\n{page}\n\nor call\n"),
        None => format!("\n{sentence} call\n"),
    }
}

/// The URL of the webhook's page.
fn page(incident: &Incident<'_>) -> Option<String> {
    let Incident { link, workspace, webhook, .. } = incident;
    let link = link.as_ref()?.trim_end_matches('/');
    Some(format!("{link}/workspaces/{workspace}/webhooks/{webhook}"))
}

impl Incident<'_> {
    fn mail(&self, kind: MailKind, to: &str, subject: String, text: String) -> NewMail {
        let key = format!("{}:{}:{}:{to}", kind.name(), self.webhook, self.since.0);
        NewMail { webhook: self.id, to: to.to_owned(), subject, text, key }
    }
}

/// Scheme, host and port.
fn origin(url: &str) -> String {
    Url::parse(url).map_or_else(|_| "?".to_owned(), |url| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Failure;

    const ABOUT: Incident<'static> = Incident {
        id: WebhookId(1),
        webhook: "wh_1",
        workspace: "ws_acme",
        url: "https://hooks.example:8443/secret/path?token=hunter2",
        since: UnixTime(1_700_000_000_000_000),
        last: Some(&Outcome::Failed(Failure::Status(503))),
        link: Some("https://dash.example/"),
    };

    fn both(incident: &Incident<'_>, to: &str) -> [NewMail; 2] {
        [warning(incident, to), paused(incident, to)]
    }

    #[test]
    fn the_mail_of_a_lost_secret_has_what_was_lost_and_how_to_get_a_new_one() {
        let mail = secret_lost(&ABOUT, &["custom headers"], "a@example.com");
        for part in [
            "Lost: its secret, custom headers\n",
            "PATCH /v1/workspaces/ws_acme/webhooks/wh_1\n",
            "\nPOST /v1/workspaces/ws_acme/webhooks/wh_1:rotate-secret\n",
            "Events stay\nqueued",
        ] {
            assert!(mail.text.contains(part), "{part} in {}", mail.text);
        }
        let all = format!("{} {} {}", mail.subject, mail.text, mail.key);
        assert!(!all.contains("/path") && !all.contains("hunter2"), "{all}");
        let bare = secret_lost(&ABOUT, &[], "a@example.com");
        assert!(!bare.text.contains("PATCH"), "{}", bare.text);
        assert_ne!(bare.key, paused(&ABOUT, "a@example.com").key);
    }

    #[test]
    fn a_mail_has_the_endpoint_the_webhook_the_start_the_cause_and_a_link() {
        for mail in both(&ABOUT, "a@example.com") {
            assert_eq!(mail.to, "a@example.com");
            assert!(mail.subject.contains("https://hooks.example:8443"), "{}", mail.subject);
            for part in [
                "Endpoint: https://hooks.example:8443\n",
                "Webhook: wh_1\n",
                "since: 2023-11-14T22:13:20.000Z\n",
                "Last attempt: answered 503, which is not 2xx\n",
                "What happens next",
                "\nhttps://dash.example/workspaces/ws_acme/webhooks/wh_1\n",
            ] {
                assert!(mail.text.contains(part), "{part} in {}", mail.text);
            }
        }
    }

    #[test]
    fn the_mail_of_a_pause_explains_how_to_reactivate_and_what_429_means() {
        let [warning, paused] = both(&ABOUT, "a@example.com");
        let page = "then open\nhttps://dash.example/workspaces/ws_acme/webhooks/wh_1\n\nor call\n";
        assert!(paused.text.contains(page), "{}", paused.text);
        assert!(paused.text.contains("State: ■ Paused\n"), "{}", paused.text);
        assert!(warning.text.contains("State: ▲ Failing\n"), "{}", warning.text);
        for part in ["\nPOST /v1/workspaces/ws_acme/webhooks/wh_1:reactivate\n", "Retry-After"] {
            assert!(paused.text.contains(part), "{part} in {}", paused.text);
            assert!(!warning.text.contains(part), "{part} in {}", warning.text);
        }
    }

    #[test]
    fn a_mail_never_contains_a_path_or_a_query() {
        for mail in both(&ABOUT, "a@example.com") {
            let all = format!("{} {} {}", mail.subject, mail.text, mail.key);
            assert!(!all.contains("secret") && !all.contains("hunter2"), "{all}");
        }
    }

    #[test]
    fn the_key_differs_by_episode_owner_webhook_and_kind_alone() {
        let later = Incident { since: UnixTime(1), ..ABOUT };
        let other = Incident { webhook: "wh_2", ..ABOUT };
        let mut keys: Vec<String> = [
            both(&ABOUT, "a@example.com"),
            both(&ABOUT, "b@example.com"),
            both(&later, "a@example.com"),
            both(&other, "a@example.com"),
        ]
        .into_iter()
        .flatten()
        .map(|mail| mail.key)
        .collect();
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 8);
        let same = Incident { last: None, link: None, url: "https://x.example/", ..ABOUT };
        let key = |incident: &Incident<'_>| warning(incident, "a@example.com").key;
        assert_eq!(key(&same), key(&ABOUT));
    }

    #[test]
    fn unknown_parts_are_left_out() {
        let bare = Incident { last: None, link: None, ..ABOUT };
        for mail in both(&bare, "a@example.com") {
            assert!(!mail.text.contains("Last attempt") && !mail.text.contains("dash"));
        }
    }
}
