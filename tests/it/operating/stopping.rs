//! A stop finishes requests in flight, accepts no more, and ends as soon as it can.

use std::fs;
use std::process::Command;
use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::{self, Gateway};
use weir_tests::request::{Request, chunk};
use weir_tests::wait;
use weir_tests::world::World;

#[test]
fn a_stop_with_nothing_in_flight_ends_at_once() {
    for signal in ["TERM", "INT"] {
        let mut world = World::new();
        let mut idle = world.client();
        idle.get("/healthz").expect(200);
        let before = wait::now();
        world.gateway.signal(signal);
        assert_eq!(world.gateway.wait_for_exit(), Some(0), "{signal}");
        // The grace is 30 s: it ended early because nothing was in flight.
        assert!(before.elapsed() < Duration::from_secs(10), "{signal}: {:?}", before.elapsed());
        idle.expect_end();
    }
}

#[test]
fn a_stop_finishes_requests_in_flight_and_accepts_none() {
    let mut world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("finished")));
    let mut down = world.client();
    down.send(Request::get("/v1/me").head_bytes());
    let mut up = world.client();
    up.send(Request::post("/v1/me", "").chunks(&["x"]).head_bytes());
    up.send(chunk("half"));
    world.control.wait_for_requests(2);

    let address = world.gateway.http().to_owned();
    world.gateway.signal("TERM");
    wait::until("the listener to close", || Client::try_connect(&address).err());
    up.send(chunk("and half"));
    up.send(chunk(""));
    gate.open();
    assert_eq!(down.read().expect(200).body, b"finished");
    assert_eq!(up.read().expect(200).body, b"finished");
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    let bodies: Vec<_> = world.control.requests().into_iter().map(|one| one.body).collect();
    assert!(bodies.contains(&b"halfand half".to_vec()), "{bodies:?}");
}

#[test]
fn an_answer_that_streams_is_sent_to_its_end() {
    let mut world = World::new();
    let gate = Gate::new();
    let answer = Answer::script().send("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nfirst");
    world.control.always(answer.wait(&gate).send("second"));
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    client.read_until("first");
    world.gateway.signal("TERM");
    let address = world.gateway.http().to_owned();
    wait::until("the listener to close", || Client::try_connect(&address).err());
    gate.open();
    client.read_until("second");
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
}

#[test]
fn a_stop_waits_no_longer_than_its_grace() {
    let mut world = World::with(|config| config.with("[server]", "shutdown_grace = \"500ms\""));
    let never = Gate::new();
    world.control.always(Answer::script().wait(&never));
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    world.control.wait_for_requests(1);
    let before = wait::now();
    world.gateway.signal("TERM");
    world.gateway.wait_for_exit();
    let waited = before.elapsed();
    assert!(waited >= Duration::from_millis(500), "ended after {waited:?}");
    assert!(waited < Duration::from_secs(10), "ended after {waited:?}");
    never.open();
}

#[test]
fn counters_survive_a_restart_with_a_snapshot() {
    let world = World::with(|config| {
        config
            .with("[store]", "snapshot = \"limits.snapshot\"")
            .with("[limits.workspace]", "requests = 3")
    });
    let config = world.config().to_string();
    let World { control, gateway, .. } = world;
    for _ in 0..2 {
        gateway.client().get("/v1/workspaces/ws_acme").expect(200);
    }
    gateway.signal("TERM");
    let gateway = Gateway::start_in(gateway.into_folder(), &config, DIRECTORY);
    assert_eq!(gateway.used("workspace", "ws_acme"), 2);
    assert_eq!(gateway.used("organisation", "org_acme"), 2);
    let mut client = gateway.client();
    assert_eq!(client.get("/v1/workspaces/ws_acme").expect(200).allowance().remaining, 0);
    client.get("/v1/workspaces/ws_acme").expect_problem(429);
    assert_eq!(control.requests().len(), 3);
}

#[test]
fn a_broken_snapshot_is_logged_and_discarded() {
    for broken in ["", "weir limits 3\0\0\0", "weir limits 999"] {
        let folder = Folder::new();
        folder.write("limits.snapshot", broken);
        let config =
            Config::default().with("[store]", "snapshot = \"limits.snapshot\"").to_string();
        let gateway = Gateway::start_in(folder, &config, DIRECTORY);
        assert_eq!(gateway.used("workspace", "ws_acme"), 0);
    }
}

#[test]
fn a_snapshot_that_is_a_folder_or_another_file_is_refused_and_stays() {
    let folder = Folder::new();
    folder.write("data/dispatcher.db", "another program's");
    folder.write(gateway::DIRECTORY, DIRECTORY);
    let wrong = [("data", "no regular file"), ("data/dispatcher.db", "no snapshot of limits")];
    for (path, why) in wrong {
        let line = format!("snapshot = \"{path}\"");
        folder.write(gateway::CONFIG, &Config::default().with("[store]", &line).to_string());
        for command in [&["check", "--online"][..], &["run"]] {
            let ended = gateway::run(&folder, &[command, &["--config", gateway::CONFIG]].concat());
            assert_ne!(ended.code, Some(0), "{command:?}");
            assert!(ended.output().contains(why), "{}", ended.output());
            let there = fs::read_to_string(folder.path("data/dispatcher.db")).unwrap();
            assert_eq!(there, "another program's");
        }
    }
}

#[test]
fn a_snapshot_whose_new_file_is_a_fifo_is_refused_at_once() {
    let folder = Folder::new();
    let fifo = folder.path("limits.new");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let config = Config::default().with("[store]", "snapshot = \"limits\"").to_string();
    folder.write(gateway::CONFIG, &config);
    folder.write(gateway::DIRECTORY, DIRECTORY);
    for command in [&["check", "--online"][..], &["run"]] {
        let ended = gateway::run(&folder, &[command, &["--config", gateway::CONFIG]].concat());
        assert_ne!(ended.code, Some(0), "{command:?}");
        assert!(ended.output().contains("`limits.new` is no regular file"), "{}", ended.output());
    }
    assert!(fs::metadata(fifo).is_ok());
}

#[test]
fn a_window_continues_while_the_gateway_is_down() {
    let world = World::with(|config| {
        config
            .with("[store]", "snapshot = \"limits.snapshot\"")
            .with("[limits.workspace]", "requests = 1\nwindow = \"1s\"")
    });
    let config = world.config().to_string();
    let World { control, gateway, .. } = world;
    gateway.client().get("/v1/workspaces/ws_acme").expect(200);
    let spent = wait::now();
    gateway.signal("TERM");
    let folder = gateway.into_folder();
    wait::pass(Duration::from_secs(1).saturating_sub(spent.elapsed()));
    let gateway = Gateway::start_in(folder, &config, DIRECTORY);
    gateway.client().get("/v1/workspaces/ws_acme").expect(200);
    assert_eq!(control.requests().len(), 2);
}

#[test]
fn a_kill_loses_no_more_than_counters() {
    let world = World::new();
    let config = world.config().to_string();
    let World { control, gateway, .. } = world;
    gateway.client().get("/v1/workspaces/ws_acme").expect(200);
    gateway.signal("KILL");
    let gateway = Gateway::start_in(gateway.into_folder(), &config, DIRECTORY);
    gateway.client().get("/v1/workspaces/ws_acme").expect(200);
    assert_eq!(control.requests().len(), 2);
}

#[test]
fn request_ids_are_unique_across_a_restart() {
    let snapshot = "snapshot = \"limits.snapshot\"";
    let mut world = World::with(|config| config.with("[store]", snapshot));
    let name = |answer: weir_tests::response::Response| {
        answer.head.field("x-request-id").map(str::to_owned)
    };
    let first = name(world.get("/v1/me"));
    world.gateway.signal("TERM");
    world.gateway.wait_for_exit();
    let config = world.config().to_string();
    let folder = world.gateway.into_folder();
    let next = Gateway::start_in(folder, &config, DIRECTORY);
    assert_ne!(first, name(next.client().get("/v1/me")));
}

#[test]
fn a_delayed_stop_reports_not_ready_first_and_accepts_until_the_delay_ends() {
    let delay = Duration::from_millis(1_500);
    let mut world = World::with(|config| config.with("[server]", "shutdown_delay = \"1500ms\""));
    let mut kept = world.client();
    kept.get("/healthz").expect(200);
    let before = wait::now();
    world.gateway.signal("TERM");
    wait::until("/readyz to be 503", || {
        (world.gateway.call_admin(&Request::get("/readyz")).status == 503).then_some(())
    });
    // Open connections are served with `Connection: close`, and new ones are served too.
    assert_eq!(kept.get("/v1/me").expect(200).field("Connection"), Some("close"));
    world.get("/v1/me").expect(200);
    assert!(before.elapsed() < delay, "too slow to tell");
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    assert!(before.elapsed() >= delay, "ended after {:?}", before.elapsed());
    assert_eq!(world.control.requests().len(), 3);
}
