//! Acknowledged events arrive although the process ends, is killed, or loses its database or
//! its disk space.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::DIRECTORY;
use weir_tests::dispatcher::{self, CONFIG, Dispatcher, event, ingest_request, run};
use weir_tests::folder::Folder;
use weir_tests::receiver::Receiver;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::{failing_sync, process};

use super::Stage;

/// How often the dispatcher is killed.
const ROUNDS: u64 = 100;

#[test]
fn a_hundred_kills_under_load_lose_no_event_that_was_acknowledged() {
    let mut stage = Stage::with(|config| {
        config.with("[egress]", "requests = 4000").with("[retry]", "give_up_after = \"10m\"")
    });
    let webhook = stage.webhook("/hook", &["user.created"]);
    let acknowledged = Mutex::new(BTreeSet::new());
    for round in 0..ROUNDS {
        let over = AtomicBool::new(false);
        let address = stage.dispatcher.ingest_address().to_owned();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| load(&address, &over, &acknowledged));
            }
            // Each round has another length, so that kills hit every phase of the load.
            wait::pass(Duration::from_millis(10 + round * 37 % 120));
            stage.dispatcher.kill();
            over.store(true, Ordering::SeqCst);
        });
        stage.dispatcher.start_again();
    }
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() > 500, "only {} were acknowledged", acknowledged.len());
    let arrived = || {
        stage.receiver.upstream().look(|seen| seen.requests.len()) >= acknowledged.len()
            && missing(&stage, &acknowledged).is_empty()
    };
    wait::within(wait::PATIENCE, || arrived().then_some(()));
    assert_eq!(missing(&stage, &acknowledged), BTreeSet::new());
    let mut bodies = BTreeMap::new();
    for delivered in stage.receiver.deliveries() {
        delivered.verify(&webhook.secret);
        let body = bodies.entry(delivered.id()).or_insert_with(|| delivered.body.clone());
        assert_eq!(*body, delivered.body, "the same bytes each time");
    }
}

/// Posts events until the dispatcher stops responding, and records the acknowledged ids.
fn load(address: &str, over: &AtomicBool, acknowledged: &Mutex<BTreeSet<String>>) {
    let request = ingest_request("application/json", &event("ws_acme", "user.created").to_string());
    let bytes = [request.head_bytes(), request.body_bytes()].concat();
    let Ok(mut client) = Client::try_connect(address) else { return };
    while !over.load(Ordering::SeqCst) {
        let Ok(answer) = client.try_exchange(&bytes) else { return };
        let Some(id) = (answer.status == 202)
            .then(|| answer.json()["events"][0]["id"].as_str().map(str::to_owned))
            .flatten()
        else {
            return;
        };
        acknowledged.lock().unwrap().insert(id);
    }
}

fn missing(stage: &Stage, acknowledged: &BTreeSet<String>) -> BTreeSet<String> {
    let arrived: BTreeSet<String> =
        stage.receiver.deliveries().iter().map(|one| one.id()).collect();
    acknowledged.difference(&arrived).cloned().collect()
}

#[test]
fn a_checkpoint_that_cannot_be_synced_ends_the_process_and_the_next_one_has_all_events() {
    let folder = Folder::new();
    let switch = folder.path("failing");
    let environment = [
        ("LD_PRELOAD", failing_sync::library(&folder).display().to_string()),
        (failing_sync::SWITCH, switch.display().to_string()),
    ];
    let (receiver, gate) = (Receiver::start(), Gate::new());
    receiver.upstream().always(Answer::script().wait(&gate).and(Answer::status(200)));
    let config = dispatcher::config().with("[egress]", "requests = 4000");
    let mut dispatcher = Dispatcher::start_with(&environment, &config, DIRECTORY);
    dispatcher.create_webhook(&receiver.url("/hook"), &["user.created"]);
    fs::write(&switch, "").unwrap();
    let acknowledged = Mutex::new(BTreeSet::new());
    let over = AtomicBool::new(false);
    let log = || dispatcher.log().text();
    let logged = std::thread::scope(|scope| {
        scope.spawn(|| load(dispatcher.ingest_address(), &over, &acknowledged));
        let message = "\"message\":\"store cannot sync\"";
        let logged = wait::within(wait::PATIENCE, || log().contains(message).then_some(()));
        over.store(true, Ordering::SeqCst);
        logged
    });
    assert!(logged.is_some(), "{}", log());
    assert_eq!(dispatcher.wait_for_exit(), None, "it aborts");
    fs::remove_file(&switch).unwrap();
    gate.open();
    dispatcher.start_again();
    let acknowledged = acknowledged.into_inner().unwrap();
    assert!(acknowledged.len() > 10, "only {} were acknowledged", acknowledged.len());
    dispatcher.acme().wait_for_count("delivered", acknowledged.len());
    dispatcher.stop();
}

#[test]
fn a_stop_answers_requests_in_flight() {
    let mut stage = Stage::with(|config| config.with("[server]", "shutdown_grace = \"30s\""));
    let request = ingest_request("application/json", &event("ws_acme", "user.created").to_string());
    let ingest = stage.dispatcher.ingest_address().to_owned();
    let mut client = Client::connect(&ingest);
    let body = request.body_bytes();
    client.send([&request.head_bytes(), &body[..10]].concat());
    stage.dispatcher.post_events("user.created", 1);
    stage.dispatcher.signal("TERM");
    wait::until("the listener to close", || Client::try_connect(&ingest).err());
    // The body is sent slowly, in real time, because the dispatcher is another process.
    wait::pass(Duration::from_secs(3));
    assert_eq!(client.exchange(&body[10..]).status, 202);
    assert_eq!(stage.dispatcher.wait_for_exit(), Some(0));
}

#[test]
fn a_stop_finishes_attempts_in_flight_and_starts_none() {
    let mut stage = Stage::with(|config| {
        config
            .with("[egress]", "deadline = \"10s\"\nrequests = 8\nwindow = \"1s\"")
            .with("[server]", "shutdown_grace = \"15s\"")
    });
    let gate = Gate::new();
    stage.receiver.upstream().always(Answer::script().wait(&gate).and(Answer::status(200)));
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 10);
    stage.receiver.wait(2);
    stage.dispatcher.signal("TERM");
    let ingest = stage.dispatcher.ingest_address().to_owned();
    wait::until("the listener to close", || Client::try_connect(&ingest).err());
    let begun = stage.receiver.count();
    gate.open();
    assert_eq!(stage.dispatcher.wait_for_exit(), Some(0));
    assert_eq!(stage.receiver.count(), begun, "nothing new began");
    stage.dispatcher.start_again();
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("delivered", 10);
    assert_eq!(stage.receiver.count(), 10, "what was finished is not sent again");
}

#[test]
fn a_stop_waits_no_longer_than_its_grace_and_records_no_interrupted_attempt() {
    let mut stage = Stage::with(|config| {
        config.with("[egress]", "deadline = \"30s\"").with("[server]", "shutdown_grace = \"500ms\"")
    });
    let never = Gate::new();
    stage.receiver.upstream().always(Answer::script().wait(&never));
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
    let before = wait::now();
    stage.dispatcher.stop();
    let waited = before.elapsed();
    assert!(waited >= Duration::from_millis(500), "{waited:?}");
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    never.open();
    stage.receiver.status(200);
    stage.dispatcher.start_again();
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    assert_eq!(delivery["attempts"], 1, "{delivery}");
}

#[test]
fn a_restart_continues_the_schedule() {
    let mut stage =
        Stage::with(|config| config.with("[retry]", "delays = [\"2s\"]\ngive_up_after = \"60s\""));
    stage.receiver.status(500);
    stage.webhook("/hook", &["user.created"]);
    let id = stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_delivery(&id, |one| one["attempts"] == 1);
    stage.receiver.status(200);
    stage.dispatcher.stop();
    stage.dispatcher.start_again();
    let acme = stage.dispatcher.acme();
    let delivery = acme.wait_for_delivery(&id, |one| one["state"] == "delivered");
    let log = super::attempts(&delivery);
    assert_eq!(log.len(), 2, "{delivery}");
    assert!(log[1].0 - log[0].0 >= 1_999, "{log:?}");
}

#[test]
fn a_second_process_on_the_same_database_is_refused() {
    let stage = Stage::new();
    let second = run(stage.dispatcher.folder(), &["run", "--config", CONFIG]);
    assert!(second.code.is_some_and(|code| code != 0), "{}", second.output());
    assert!(second.stderr.contains("dispatcher.db"), "{}", second.stderr);
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
}

#[test]
fn a_backup_taken_under_load_opens_as_a_store() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let ids = stage.dispatcher.post_events("user.created", 20);
    stage.dispatcher.acme().wait_for_count("delivered", 20);
    let folder = stage.dispatcher.folder();
    run(folder, &["backup", "--config", CONFIG, "backup.db"]).expect(0);
    stage.dispatcher.post_event("user.created");

    let copy = Folder::new();
    for (from, to) in [("backup.db", "dispatcher.db"), ("secrets.key", "secrets.key")] {
        fs::copy(folder.path(from), copy.path(to)).unwrap();
    }
    let other = Dispatcher::start_in(copy, &dispatcher::config(), DIRECTORY);
    let events: BTreeSet<String> = other
        .acme()
        .deliveries("state=delivered")
        .iter()
        .map(|one| super::text(one, "event_id").to_owned())
        .collect();
    assert_eq!(events, ids.into_iter().collect());
    other.post_event("user.created");
    other.acme().wait_for_count("delivered", 21);
}

#[test]
fn without_its_key_file_the_dispatcher_does_not_start() {
    let mut stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.stop();
    let folder = stage.dispatcher.folder();
    fs::remove_file(folder.path("secrets.key")).unwrap();
    let refused = run(folder, &["run", "--config", CONFIG]);
    assert!(refused.code.is_some_and(|code| code != 0), "{}", refused.output());
    assert!(refused.stderr.contains("secrets.key"), "{}", refused.stderr);
    assert!(!folder.path("secrets.key").exists(), "no other key is made in its place");
}

#[test]
fn a_database_moved_away_at_run_time_accepts_no_events_and_does_not_flood_the_log() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("delivered", 1);
    let failed = || stage.dispatcher.metric("weir_dispatcher_store_failures_total");
    let before = failed();
    let path = |name: &str| stage.dispatcher.folder().path(name);
    fs::rename(path("dispatcher.db"), path("elsewhere.db")).unwrap();
    let event = event("ws_acme", "user.created");
    for _ in 0..20 {
        assert_eq!(stage.dispatcher.ingest(&event).expect(503).retry_after(), 1);
    }
    assert!(failed() - before >= 20.0, "{} counted", failed());
    let errors = || {
        let lines = stage.dispatcher.log().json().into_iter();
        lines.filter(|line| line["level"] == "error").collect::<Vec<_>>()
    };
    let is_logged = |line: &Value| {
        let cause = line["cause"].as_str().unwrap_or_default();
        line["message"] == "store writes failing" && cause.contains("put it back")
    };
    wait::until("the log to tell", || errors().iter().any(is_logged).then_some(()));
    assert!(errors().len() < 5, "each call logs an error: {:?}", errors());
    let readiness = || stage.dispatcher.call_admin(&Request::get("/readyz"));
    let not_ready = readiness().expect(503).text();
    assert!(not_ready.contains("the database cannot be written"), "{not_ready}");
    fs::rename(path("elsewhere.db"), path("dispatcher.db")).unwrap();
    // Readiness returns without an event: a process that is not ready receives none.
    wait::until("writes to recover", || (readiness().status == 200).then_some(()));
    stage.dispatcher.post_event("user.created");
    acme.wait_for_count("delivered", 2);
}

#[test]
fn a_file_size_limit_counts_as_a_full_disk_and_ends_nothing() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let limit = |bytes: &str| {
        let (process, limit) = (stage.dispatcher.id().to_string(), format!("--fsize={bytes}:"));
        let done = Command::new("prlimit").args(["--pid", &process, &limit]).status();
        assert!(done.unwrap().success());
    };
    limit("0");
    stage.dispatcher.ingest(&event("ws_acme", "user.created")).expect(503);
    limit("unlimited");
    stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_count("delivered", 1);
}

#[test]
fn a_reload_that_allows_more_attempts_raises_the_limit_of_descriptors() {
    let with =
        |most: u32| dispatcher::config().with("[egress]", &format!("in_flight_max = {most}"));
    let stage = Stage::with(|_| with(500));
    let process = stage.dispatcher.id().to_string();
    let done = Command::new("prlimit").args(["--pid", &process, "--nofile=1000:"]).status();
    assert!(done.unwrap().success());
    stage.dispatcher.folder().write(CONFIG, &with(4_096).to_string());
    stage.dispatcher.reload().expect(200);
    let limits = fs::read_to_string(format!("/proc/{process}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    let soft: u64 = line.split_whitespace().nth(3).unwrap().parse().unwrap();
    assert!(soft > 8_192, "{line}");
}

#[test]
fn an_unread_log_delays_neither_deliveries_nor_a_stop() {
    let mut stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.stop();
    let mut command = Command::new(process::program("weir-dispatcher"));
    command.args(["run", "--config", CONFIG]).current_dir(stage.dispatcher.folder().root());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut log = BufReader::new(child.stderr.take().unwrap());
    let mut addresses = BTreeMap::new();
    loop {
        let mut line = String::new();
        log.read_line(&mut line).unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        match (line["listener"].as_str(), line["address"].as_str()) {
            (Some(name), Some(at)) => drop(addresses.insert(name.to_owned(), at.to_owned())),
            _ => assert_eq!(line["message"], "ready"),
        }
        if line["message"] == "ready" {
            break;
        }
    }
    // Each reload logs a line of more than a hundred bytes, and a pipe buffers 64 KiB.
    let mut admin = Client::connect(&addresses["admin"]);
    for _ in 0..1_000 {
        admin.call(&Request::new("POST", "/reload").body("")).expect(200);
    }
    let request = ingest_request("application/json", &event("ws_acme", "user.created").to_string());
    Client::connect(&addresses["ingest"]).call(&request).expect(202);
    stage.receiver.wait(1);
    process::signal(child.id(), "TERM");
    let status = wait::until("the process to end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    drop(log);
}
