//! Owners get one mail per reason, through a real SMTP server (aiosmtpd).

use std::time::Duration;

use serde_json::Value;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::dispatcher::Dispatcher;
use weir_tests::mailbox::Mailbox;
use weir_tests::receiver::Receiver;
use weir_tests::wait;

use super::Stage;
use super::health::{pause, reactivate, scaled};
use super::tls::certificates;

/// A longer `pause_after`: also on a busy machine the warning must come well before the pause.
pub(super) fn mailed(config: Config, smtp: &str) -> Config {
    scaled(config).with("[health]", "pause_after = \"5s\"").with(
        "[mail]",
        &format!(
            "smtp = \"{smtp}\"\nfrom = \"weir@example.com\"\nlink = \"https://weir.example.com\"\n\
             retry_after = \"500ms\""
        ),
    )
}

#[test]
fn owners_get_one_warning_and_one_mail_about_the_pause() {
    let mailbox = Mailbox::start();
    let smtp = format!("smtp://{}", mailbox.address());
    let mut stage = Stage::with(|config| mailed(config, &smtp));
    stage.receiver.status(500);
    let url = stage.receiver.url("/hidden-path?hidden=query");
    let webhook = stage.dispatcher.create_webhook(&url, &["user.created"]);
    stage.dispatcher.post_events("user.created", 3);
    let acme = stage.dispatcher.acme();
    acme.wait_for_state(&webhook.id, "paused");
    let mails = mailbox.wait(2);
    for mail in &mails {
        assert_eq!(mail["to"], serde_json::json!(["owner@acme.example"]), "{mail}");
        assert_eq!(mail["from"], "weir@example.com");
        let content = content(mail);
        let address = stage.receiver.upstream().address();
        for word in [address.as_str(), "500", "https://weir.example.com", &webhook.id] {
            assert!(content.contains(word), "{word} is not in\n{content}");
        }
        for word in ["hidden", &webhook.secret, "ada@example.com"] {
            assert!(!content.contains(word), "{word} is in\n{content}");
        }
    }
    assert!(content(&mails[1]).to_lowercase().contains("paused"), "{}", mails[1]);
    assert_ne!(mails[0]["headers"]["Subject"], mails[1]["headers"]["Subject"]);

    stage.dispatcher.kill();
    stage.dispatcher.start_again();
    wait::pass(Duration::from_secs(1));
    assert_eq!(mailbox.mails().len(), 2, "{:#?}", mailbox.mails());
}

#[test]
fn a_second_pause_sends_a_second_mail() {
    let mailbox = Mailbox::start();
    let smtp = format!("smtp://{}", mailbox.address());
    let stage = Stage::with(|config| mailed(config, &smtp));
    let webhook = pause(&stage);
    let pauses = |mails: &[Value]| {
        let paused = |mail: &&Value| {
            let subject = mail["headers"]["Subject"].as_str().unwrap_or_default();
            subject.to_lowercase().contains("paused")
        };
        mails.iter().filter(paused).count()
    };
    assert_eq!(pauses(&mailbox.wait(2)), 1);
    reactivate(&stage, &webhook);
    stage.dispatcher.acme().wait_for_state(&webhook.id, "paused");
    wait::until("the second mail of a pause", || (pauses(&mailbox.mails()) == 2).then_some(()));
}

#[test]
fn a_deferred_mail_is_sent_later_and_once_even_after_a_kill() {
    let mailbox = Mailbox::start_with(&["--refuse", "1"]);
    let smtp = format!("smtp://{}", mailbox.address());
    let mut stage = Stage::with(|config| mailed(config, &smtp));
    pause(&stage);
    wait::until("a mail that is put off", || (mailbox.refused() == 1).then_some(()));
    mailbox.wait(1);
    stage.dispatcher.kill();
    stage.dispatcher.start_again();
    wait::until("the mail that was put off", || (mailbox.mails().len() >= 2).then_some(()));
    let mut subjects: Vec<String> =
        mailbox.mails().iter().map(|mail| mail["headers"]["Subject"].to_string()).collect();
    subjects.sort();
    subjects.dedup();
    assert_eq!((subjects.len(), mailbox.mails().len()), (2, 2), "{subjects:?}");
}

#[test]
fn mails_use_starttls_and_login_where_the_server_requires_them() {
    let folder = certificates();
    let path = |name: &str| folder.path(name);
    let (certificate, key) = (path("server.crt"), path("server.key"));
    let mailbox = Mailbox::start_with(&["--auth", "weir:pass%word", "--tls", &certificate, &key]);
    let smtp = format!("smtp://weir:pass%25word@{}", mailbox.address());
    let config = mailed(weir_tests::dispatcher::config(), &smtp);
    let trust = [("SSL_CERT_FILE", path("ca.crt"))];
    let dispatcher = Dispatcher::start_with(&trust, &config, DIRECTORY);
    let stage = Stage { receiver: Receiver::start(), dispatcher };
    pause(&stage);
    for mail in mailbox.wait(2) {
        assert_eq!((&mail["tls"], &mail["user"]), (&true.into(), &"weir".into()), "{mail}");
    }
    assert!(!stage.dispatcher.log().text().contains("pass%"), "{}", stage.dispatcher.log().text());
}

#[test]
fn a_password_is_sent_only_to_a_server_with_a_valid_certificate() {
    let folder = certificates();
    let path = |name: &str| folder.path(name);
    folder.write("password", "pass%word\n");
    // Both cases run in parallel: they mostly wait.
    let check = |name: &str, is_valid: bool| {
        let (certificate, key) = (path(&format!("{name}.crt")), path(&format!("{name}.key")));
        let flags = ["--auth", "weir:pass%word", "--tls", &certificate, &key];
        let mailbox = Mailbox::start_with(&flags);
        let smtp = format!("smtp+starttls://weir@{}", mailbox.address());
        let config = mailed(weir_tests::dispatcher::config(), &smtp)
            .with("[mail]", &format!("password_file = \"{}\"", path("password")));
        let trust = [("SSL_CERT_FILE", path("ca.crt"))];
        let dispatcher = Dispatcher::start_with(&trust, &config, DIRECTORY);
        let stage = Stage { receiver: Receiver::start(), dispatcher };
        pause(&stage);
        if is_valid {
            for mail in mailbox.wait(2) {
                assert_eq!((&mail["tls"], &mail["user"]), (&true.into(), &"weir".into()), "{mail}");
            }
        } else {
            let failed = "weir_dispatcher_mails_total{outcome=\"failed\"}";
            wait::until("a mail that cannot be sent", || {
                (stage.dispatcher.metric(failed) > 0.0).then_some(())
            });
            assert_eq!(mailbox.mails().len(), 0, "{:#?}", mailbox.mails());
        }
        let log = stage.dispatcher.log().text();
        assert!(!log.contains("pass%"), "{log}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check("server", true));
        scope.spawn(|| check("elsewhere", false));
    });
}

#[test]
fn a_forecast_promises_a_mail_only_where_there_are_owners() {
    let config = mailed(weir_tests::dispatcher::config(), "smtp://127.0.0.1:1");
    let ownerless = DIRECTORY.replace("\"owner@acme.example\"", "");
    for (directory, promised) in [(DIRECTORY, true), (&ownerless, false)] {
        let dispatcher = Dispatcher::start_with(&[], &config, directory);
        let stage = Stage { receiver: Receiver::start(), dispatcher };
        stage.receiver.status(500);
        let webhook = stage.webhook("/hook", &["user.created"]);
        stage.dispatcher.post_event("user.created");
        let path = format!("/webhooks/{}", webhook.id);
        let text = wait::until("a forecast of a warning", || {
            let shown = stage.dispatcher.acme().get(&path).expect(200).json();
            let if_down = &shown["forecast"]["if_down"];
            if_down["warned_at"].is_string().then(|| if_down["text"].to_string())
        });
        assert_eq!(text.contains("its owners get a mail"), promised, "{text}");
        assert_eq!(text.contains("it counts as failing"), !promised, "{text}");
    }
}

/// The headers and the text of a mail.
fn content(mail: &Value) -> String {
    format!("{}\n{}", mail["headers"], mail["text"].as_str().unwrap())
}
