//! Owners come from a directory over HTTP, which may be away, slow, or talk nonsense.

use std::time::Duration;

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::config::DIRECTORY;
use weir_tests::directory::Directory;
use weir_tests::dispatcher::{CONFIG, Dispatcher, config, run};
use weir_tests::folder::Folder;
use weir_tests::mailbox::Mailbox;
use weir_tests::receiver::Receiver;
use weir_tests::wait;

use super::Stage;
use super::health::pause;
use super::mailing::mailed;

const ENTRY: &str = "workspaces/ws_acme";
const OWNERS: &str = r#"{"organisation": "org_acme", "plan": 7,
    "owners": ["ada@acme.example", "bob@acme.example", "ada@acme.example"]}"#;

/// A dispatcher that finds owners in this directory, and sends mails there.
fn stage(directory: &Directory, mailbox: &Mailbox, lines: &str) -> Stage {
    let smtp = format!("smtp://{}", mailbox.address());
    let config = directory.within(mailed(config(), &smtp), lines);
    let dispatcher = Dispatcher::start(&config, DIRECTORY);
    Stage { receiver: Receiver::start(), dispatcher }
}

/// The recipients so far, and how many different mails each got.
fn recipients(mailbox: &Mailbox) -> Vec<(String, usize)> {
    let mut all: Vec<[String; 2]> = mailbox
        .mails()
        .iter()
        .map(|mail| [mail["to"].to_string(), mail["headers"]["Subject"].to_string()])
        .collect();
    all.sort();
    let total = all.len();
    all.dedup();
    assert_eq!(all.len(), total, "an owner got a mail twice: {all:?}");
    let mut counts: Vec<(String, usize)> = Vec::new();
    for [to, _] in all {
        match counts.last_mut().filter(|(last, _)| *last == to) {
            Some((_, count)) => *count += 1,
            None => counts.push((to, 1)),
        }
    }
    counts
}

fn both_owners(count: usize) -> Vec<(String, usize)> {
    ["ada", "bob"].map(|name| (json!([format!("{name}@acme.example")]).to_string(), count)).into()
}

/// The lines of the log that have this text.
fn lines(stage: &Stage, text: &str) -> Vec<Value> {
    let has = |line: &Value| line["message"].as_str().is_some_and(|found| found.contains(text));
    stage.dispatcher.log().json().into_iter().filter(has).collect()
}

#[test]
fn the_directory_is_asked_when_a_mail_is_due_and_each_owner_gets_one() {
    let (directory, mailbox) = (Directory::start(), Mailbox::start());
    directory.set(ENTRY, OWNERS);
    let stage = stage(&directory, &mailbox, "");
    stage.webhook("/good", &["user.deleted"]);
    stage.dispatcher.post_events("user.deleted", 20);
    stage.dispatcher.acme().wait_for_count("delivered", 20);
    assert_eq!(directory.fetched(), [] as [&str; 0], "for a delivery");
    pause(&stage);
    mailbox.wait(4);
    assert_eq!(recipients(&mailbox), both_owners(2));
    assert_eq!(directory.fetched(), [ENTRY], "an answer is kept for its TTL");
    let known = "weir_dispatcher_directory_requests_total{outcome=\"known\"}";
    assert_eq!(stage.dispatcher.metric(known), 1.0);
}

/// The mails wait while the directory is `broken`, also over a kill, and are sent once it is back.
fn wait_out(broken: impl Fn(&mut Directory), why: &str) {
    let (mut directory, mailbox) = (Directory::start(), Mailbox::start());
    directory.set(ENTRY, OWNERS);
    broken(&mut directory);
    let mut stage = stage(&directory, &mailbox, "timeout = \"300ms\"");
    pause(&stage);
    let both = wait::within(wait::PATIENCE, || {
        Some(lines(&stage, "mail waits: owners not found")).filter(|all| all.len() == 2)
    });
    let waiting = both.unwrap_or_else(|| panic!("{why}: {}", stage.dispatcher.log().text()));
    let reasons = waiting.iter().filter(|line| line.to_string().contains(why)).count();
    assert!(reasons >= 1, "{why}: {waiting:?}");
    stage.dispatcher.kill();
    stage.dispatcher.start_again();
    // Long enough for further lookups.
    wait::pass(Duration::from_secs(2));
    assert_eq!(mailbox.mails(), [] as [Value; 0], "{why}");
    assert!(lines(&stage, "mail waits: owners").is_empty(), "{why}: it is logged once");
    directory.server.start_again();
    directory.set(ENTRY, OWNERS);
    directory.recover();
    mailbox.wait(2);
    // The pause has taken the place of the warning.
    assert_eq!(recipients(&mailbox), both_owners(1), "{why}");
}

#[test]
fn a_mail_waits_while_the_directory_is_down_silent_or_talks_nonsense() {
    // In parallel: they mostly wait.
    std::thread::scope(|scope| {
        scope.spawn(|| wait_out(|directory| directory.server.stop(), "did not answer"));
        scope.spawn(|| {
            let silent = Answer::script().pause(Duration::from_secs(15));
            wait_out(|directory| directory.server.always(silent.clone()), "did not answer");
        });
        scope.spawn(|| {
            wait_out(|directory| directory.answer(ENTRY, Answer::status(500)), "answered 500");
        });
        scope.spawn(|| {
            wait_out(|directory| directory.set(ENTRY, r#"{"owners": ["ada"]}"#), "no mail address");
        });
    });
}

#[test]
fn while_the_directory_is_away_the_last_owners_are_used() {
    let (mut directory, mailbox) = (Directory::start(), Mailbox::start());
    directory.set(ENTRY, OWNERS);
    let stage = stage(&directory, &mailbox, "ttl = \"1ms\"\nstale_for = \"1h\"");
    stage.receiver.status(500);
    let webhook = stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    mailbox.wait(2);
    directory.server.stop();
    stage.dispatcher.acme().wait_for_state(&webhook.id, "paused");
    mailbox.wait(4);
    assert_eq!(recipients(&mailbox), both_owners(2));
    assert_eq!(lines(&stage, "waits").len(), 0);
}

#[test]
fn a_workspace_that_the_directory_does_not_know_gets_no_mail() {
    let (directory, mailbox) = (Directory::start(), Mailbox::start());
    directory.remove(ENTRY);
    let stage = stage(&directory, &mailbox, "");
    pause(&stage);
    wait::until("both mails to be dropped", || {
        (lines(&stage, "mail dropped: no owners").len() == 2).then_some(())
    });
    assert_eq!(directory.fetched(), [ENTRY], "a 404 is kept, too");
    assert_eq!(mailbox.mails(), [] as [Value; 0]);
}

#[test]
fn check_online_tries_the_directory() {
    let mut directory = Directory::start();
    let folder = Folder::new();
    let write = |config: &weir_tests::config::Config| folder.write(CONFIG, &config.to_string());
    folder.write("tokens.toml", "");
    let check = |flags: &[&str], code: i32| {
        run(&folder, &[&["check", "--config", CONFIG], flags].concat()).expect(code).output()
    };
    write(&directory.within(config(), ""));
    let output = check(&["--online"], 0);
    assert!(output.contains("no problems, and what it names works"), "{output}");
    assert_eq!(directory.fetched(), ["workspaces/weir-dispatcher-check"]);
    directory.server.stop();
    let output = check(&["--online"], 1);
    assert!(output.contains("the directory at `http://"), "{output}");
    assert!(output.contains("dispatcher.toml:"), "{output}");
    check(&[], 0);

    for (lines, why) in [
        ("token_file = \"none\"", "`none` has no token"),
        ("path = \"directory.toml\"", "`path` is used only with source = \"file\""),
        ("url = \"http://directory.example.com\"", "`url` must start with https://"),
    ] {
        write(&directory.within(config(), "").with("[directory]", lines));
        let output = check(&[], 64);
        assert!(output.contains(why), "{why}: {output}");
    }
}
