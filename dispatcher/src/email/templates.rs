//! What a mail says: to whom, of which webhook, since when, why, and what happens next.
//!
//! # Invariant
//!
//! Of a URL a mail names scheme, host and port: path and query may be credentials.
//!
//! Not here: when owners are told (`health`), how a mail is sent (`smtp`).

use url::Url;
use weir_common::time::UnixTime;

use crate::domain::outcome::Outcome;
use crate::store::NewMail;

/// What a mail is about.
#[derive(Clone, Debug)]
pub struct About<'a> {
    /// The webhook's public identifier.
    pub webhook: &'a str,
    /// Whose it is.
    pub workspace: &'a str,
    /// Its URL, whole.
    pub url: &'a str,
    /// When the episode began; two mails about one episode and one owner are one mail.
    pub since: UnixTime,
    /// What the last attempt came to, where that is known.
    pub last: Option<&'a Outcome>,
    /// Where the dashboard is, where there is one.
    pub link: Option<&'a str>,
}

/// Tells an owner that too many deliveries fail.
#[must_use]
pub fn warning(about: &About<'_>, to: &str) -> NewMail {
    let origin = origin(about.url);
    let subject = format!("Webhook deliveries to {origin} are failing");
    let text = format!(
        "Too many deliveries to one of your webhooks fail.\n\n{}\n\
         What happens next: a delivery that fails is tried again, later and later. If none\n\
         succeeds for long, deliveries pause until you reactivate the webhook; events stay\n\
         queued. There is no further mail unless deliveries pause, or recover and fail anew.\n{}",
        facts(about, &origin, "Failing since"),
        link(about),
    );
    NewMail { to: to.to_owned(), subject, text, key: key("warning", about, to) }
}

/// Tells an owner that deliveries are paused.
#[must_use]
pub fn paused(about: &About<'_>, to: &str) -> NewMail {
    let origin = origin(about.url);
    let subject = format!("Webhook deliveries to {origin} are paused");
    let text = format!(
        "No delivery to one of your webhooks has succeeded for so long that deliveries are\n\
         paused.\n\n{}\n\
         What happens next: nothing is sent until you reactivate the webhook. Events stay\n\
         queued, none are dropped, and are delivered in order once it is reactivated.\n{}{}",
        facts(about, &origin, "Down since"),
        how(about),
        link(about),
    );
    NewMail { to: to.to_owned(), subject, text, key: key("paused", about, to) }
}

fn facts(about: &About<'_>, origin: &str, since: &str) -> String {
    let last = about.last.map(|outcome| format!("Last attempt: {}\n", outcome.in_words()));
    format!(
        "Endpoint: {origin}\nWebhook: {}\nWorkspace: {}\n{since}: {}\n{}",
        about.webhook,
        about.workspace,
        about.since.rfc3339(),
        last.unwrap_or_default(),
    )
}

/// How an owner reactivates a webhook by the API, whose calls are counted with the workspace's.
fn how(about: &About<'_>) -> String {
    format!(
        "\nTo reactivate it, mend the endpoint first, then call\n\
         POST /v1/workspaces/{}/webhooks/{}:reactivate\n\
         If the answer is 429, your workspace has used up its calls for the moment: wait as\n\
         many seconds as Retry-After says, and call again. Nothing is lost by waiting.\n",
        about.workspace, about.webhook,
    )
}

fn link(about: &About<'_>) -> String {
    let Some(link) = about.link else {
        return String::new();
    };
    let link = link.trim_end_matches('/');
    format!("\n{link}/workspaces/{}/webhooks/{}\n", about.workspace, about.webhook)
}

fn key(kind: &str, about: &About<'_>, to: &str) -> String {
    format!("{kind}:{}:{}:{to}", about.webhook, about.since.0)
}

/// Scheme, host and port.
fn origin(url: &str) -> String {
    Url::parse(url).map_or_else(|_| "?".to_owned(), |url| url.origin().ascii_serialization())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::outcome::Failure;

    const ABOUT: About<'static> = About {
        webhook: "wh_1",
        workspace: "ws_acme",
        url: "https://hooks.example:8443/secret/path?token=hunter2",
        since: UnixTime(1_700_000_000_000_000),
        last: Some(&Outcome::Failed(Failure::Status(503))),
        link: Some("https://dash.example/"),
    };

    fn both(about: &About<'_>, to: &str) -> [NewMail; 2] {
        [warning(about, to), paused(about, to)]
    }

    #[test]
    fn a_mail_names_the_endpoint_the_webhook_since_when_why_and_where_to_look() {
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
    fn the_mail_of_a_pause_says_how_it_ends_and_what_to_do_at_429() {
        let [warning, paused] = both(&ABOUT, "a@example.com");
        for part in ["\nPOST /v1/workspaces/ws_acme/webhooks/wh_1:reactivate\n", "Retry-After"] {
            assert!(paused.text.contains(part), "{part} in {}", paused.text);
            assert!(!warning.text.contains(part), "{part} in {}", warning.text);
        }
    }

    #[test]
    fn a_mail_never_holds_a_path_or_a_query() {
        for mail in both(&ABOUT, "a@example.com") {
            let all = format!("{} {} {}", mail.subject, mail.text, mail.key);
            assert!(!all.contains("secret") && !all.contains("hunter2"), "{all}");
        }
    }

    #[test]
    fn the_key_tells_episodes_owners_webhooks_and_kinds_apart_and_nothing_else() {
        let later = About { since: UnixTime(1), ..ABOUT };
        let other = About { webhook: "wh_2", ..ABOUT };
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
        let same = About { last: None, link: None, url: "https://x.example/", ..ABOUT };
        let key = |about: &About<'_>| warning(about, "a@example.com").key;
        assert_eq!(key(&same), key(&ABOUT));
    }

    #[test]
    fn what_is_not_known_is_left_out() {
        let bare = About { last: None, link: None, ..ABOUT };
        for mail in both(&bare, "a@example.com") {
            assert!(!mail.text.contains("Last attempt") && !mail.text.contains("dash"));
        }
    }
}
