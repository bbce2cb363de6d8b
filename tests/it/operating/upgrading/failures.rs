//! A new process that fails costs the old one nothing.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use serde_json::json;
use weir_tests::answer::{Answer, Gate};
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::{self, Gateway};
use weir_tests::http2::Http2;
use weir_tests::issuer::{Signer, published};
use weir_tests::process::{self, Process, program};
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

use super::TARGET;
use crate::http2::Edge;
use crate::tokens::{bearing, by_keys};

#[test]
fn an_invalid_configuration_leaves_the_old_process_serving() {
    let world = World::new();
    world.get(TARGET).expect(200);
    let mut kept = world.client();
    kept.get(TARGET).expect(200);
    let bad = world.config().with("[limits.workspace]", "requsts = 1");
    world.gateway.write_config(&bad.to_string());
    world.gateway.signal("USR2");
    let why = world.gateway.wait_for_no_successor();
    assert!(why.contains("requsts"), "{why}");
    let again = kept.get(TARGET).expect(200);
    assert_eq!(again.allowance().remaining, 57);
    assert_ne!(again.field("Connection"), Some("close"));
    world.gateway.call_admin(&Request::get("/readyz")).expect(200);
    world.gateway.write_config(&world.config().to_string());
    world.gateway.upgrade();
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 56);
}

#[test]
fn an_identity_server_without_keys_leaves_the_old_process_serving() {
    let (server, signer) = (Upstream::start(), Signer::new("first"));
    server.always(Answer::ok(published(&[&signer])));
    let world = World::with(|config| by_keys(config, &server));
    let request = bearing(TARGET, &signer.token(&json!({ "workspace_id": "ws_acme" })));
    world.call(&request).expect(200);
    server.always(Answer::status(500));
    world.gateway.signal("USR2");
    let why = world.gateway.wait_for_no_successor();
    assert!(why.contains("identity.jwt.jwks_url: the answer is 500"), "{why}");
    world.call(&request).expect(200);
    server.always(Answer::ok(published(&[&signer])));
    world.gateway.upgrade();
    world.call(&request).expect(200);
}

#[test]
fn an_address_in_use_leaves_the_old_process_serving() {
    let world = World::new();
    let used = world.data.address();
    let bad = world.config().with("[server]", &format!("http = [\"127.0.0.1:0\", \"{used}\"]"));
    world.gateway.write_config(&bad.to_string());
    world.gateway.signal("USR2");
    let why = world.gateway.wait_for_no_successor();
    assert!(why.contains(&used), "{why}");
    world.get(TARGET).expect(200);
}

/// A gateway that was started through a symlink, which a test changes later.
fn by_link(upstream: &Upstream) -> Gateway {
    by_link_with(upstream, |config| config)
}

fn by_link_with(upstream: &Upstream, change: impl FnOnce(Config) -> Config) -> Gateway {
    let folder = Folder::new();
    let link = folder.path("weir");
    symlink(program("weir-gateway"), &link).unwrap();
    let servers = format!("servers = [\"{}\"]", upstream.address());
    let config = Config::default().with("[upstreams.control]", &servers);
    Gateway::start_as(&link, &[], folder, &change(config).to_string(), DIRECTORY)
}

fn put_script(gateway: &Gateway, script: &str) {
    let draft = gateway.folder().write("script", &format!("#!/bin/sh\n{script}\n"));
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(draft, gateway.folder().path("weir")).unwrap();
}

#[test]
fn a_file_that_is_no_program_leaves_the_old_process_serving() {
    let upstream = Upstream::start();
    let gateway = by_link(&upstream);
    let all = [
        ("exit 3", "the new process ended before it was ready: exit status: 3"),
        ("printf nonsense >&0; exit 0", ""),
        // A valid `Hello`, and then the end.
        (r"printf '\005\000\000\000\001\004\000\000\000' >&0; exit 0", ""),
        (
            r"printf '\005\000\000\000\001\377\000\000\000' >&0; exec cat >&2",
            "the new program speaks upgrade protocol 255, this one 4: restart instead of upgrading",
        ),
        (
            r"printf '\001\000\000\000\004' >&0; exec cat >&2",
            "unexpected message from the other process: expected its version of the upgrade \
             protocol",
        ),
    ];
    let count = all.len();
    for (nth, (script, why)) in all.into_iter().enumerate() {
        put_script(&gateway, script);
        gateway.signal("USR2");
        let failures = || {
            let output = |line: &serde_json::Value| {
                line["message"].as_str().is_some_and(|output| output.starts_with("upgrade failed"))
            };
            gateway.log().json().into_iter().filter(output).collect::<Vec<_>>()
        };
        wait::until("the failure", || (failures().len() > nth).then_some(()));
        let output = failures()[nth]["error"].to_string();
        assert!(output.contains(why), "{script}: {output}");
        gateway.client().get(TARGET).expect(200);
    }
    put_link(&gateway, &program("weir-gateway"));
    gateway.upgrade();
    assert_eq!(gateway.used("workspace", "ws_acme"), count as u64);
}

fn put_link(gateway: &Gateway, to: &Path) {
    let draft = gateway.folder().path("draft");
    symlink(to, &draft).unwrap();
    fs::rename(draft, gateway.folder().path("weir")).unwrap();
}

#[test]
fn a_successor_that_dies_during_the_transfer_leaves_the_counters_with_the_old_process() {
    let upstream = Upstream::start();
    let gateway = by_link(&upstream);
    gateway.client().get(TARGET).expect(200);
    let mut kept = gateway.client();
    kept.get(TARGET).expect(200);
    // Sends `Hello` and `Ready`, reads 300 bytes, and exits.
    let ready = r"printf '\005\000\000\000\001\004\000\000\000\001\000\000\000\004' >&0";
    put_script(&gateway, &format!("{ready}; head -c 300 >/dev/null; exit 0"));
    gateway.signal("USR2");
    let why = gateway.wait_for_no_successor();
    assert!(why.contains("counters") || why.contains("new process"), "{why}");
    assert_eq!(kept.get(TARGET).expect(200).allowance().remaining, 57);
    assert_eq!(gateway.used("workspace", "ws_acme"), 3);
    gateway.call_admin(&Request::get("/readyz")).expect(200);
}

#[test]
fn a_successor_that_fails_with_the_counters_is_killed_before_the_old_process_counts_again() {
    let upstream = Upstream::start();
    let gateway = by_link(&upstream);
    gateway.client().get(TARGET).expect(200);
    // As above, but it sends `End` in the place of `Received`, and stays.
    let ready = r"printf '\005\000\000\000\001\004\000\000\000\001\000\000\000\004' >&0";
    let end = r"printf '\001\000\000\000\013' >&0";
    put_script(&gateway, &format!("echo process $$ >&2; {ready}; {end}; exec sleep 600"));
    gateway.signal("USR2");
    gateway.wait_for_no_successor();
    let log = gateway.log().text();
    let id = log.lines().find_map(|line| line.strip_prefix("process ")).unwrap();
    assert!(!Path::new(&format!("/proc/{id}")).exists(), "it still runs:\n{log}");
    assert_eq!(gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn requests_that_end_during_a_transfer_that_fails_are_released() {
    let upstream = Upstream::start();
    let section = "[limits.workspace]";
    let lines = "key = \"workspace\"\nalgorithm = \"concurrency\"\nrequests = 2";
    let gateway = by_link_with(&upstream, |config| config.without(section).with(section, lines));
    let (first, second) = (Gate::new(), Gate::new());
    let mut clients = [(&first, 1), (&second, 2)].map(|(gate, count)| {
        upstream.always(Answer::script().wait(gate).and(Answer::ok("finished")));
        let mut client = gateway.client();
        client.send(Request::get(TARGET).head_bytes());
        upstream.wait_for_requests(count);
        client
    });
    // As above; all shards are closed when it has reported.
    let ready = r"printf '\005\000\000\000\001\004\000\000\000\001\000\000\000\004' >&0";
    let reports = "sleep 0.3; echo closed >&2; sleep 1";
    put_script(&gateway, &format!("{ready}; head -c 300 >/dev/null; {reports}; exit 0"));
    gateway.signal("USR2");
    wait::until("the transfer", || gateway.log().text().contains("\nclosed").then_some(()));
    first.open();
    clients[0].read().expect(200);
    gateway.wait_for_no_successor();
    wait::until("its release", || (gateway.used("workspace", "ws_acme") == 1).then_some(()));
    upstream.always(Answer::ok("third"));
    gateway.client().get(TARGET).expect(200);
    second.open();
    clients[1].read().expect(200);
    wait::until("the other", || (gateway.used("workspace", "ws_acme") == 0).then_some(()));
}

#[test]
fn a_start_by_hand_with_the_variable_of_an_upgrade_is_refused() {
    let folder = Folder::new();
    folder.write(gateway::CONFIG, &Config::default().to_string());
    folder.write(gateway::DIRECTORY, DIRECTORY);
    let variable = [("WEIR_TAKE_OVER", "1".to_owned())];
    let arguments = ["run", "--config", gateway::CONFIG];
    let process = Process::start_with(&variable, "weir-gateway", &folder, &arguments);
    let ended = process::finish(process);
    assert_ne!(ended.code, Some(0));
    let why = "WEIR_TAKE_OVER is set, but standard input is not the upgrade socket; only an \
               upgrade starts the program this way";
    assert!(ended.output().contains(why), "{}", ended.output());
}

#[test]
fn a_stop_does_not_wait_for_a_starting_successor() {
    let upstream = Upstream::start();
    let mut gateway = by_link(&upstream);
    put_script(&gateway, "echo started >&2; exec sleep 60");
    gateway.signal("USR2");
    wait::until("the other to start", || gateway.log().text().contains("\nstarted").then_some(()));
    let before = wait::now();
    gateway.signal("TERM");
    assert_eq!(gateway.wait_for_exit(), Some(0));
    assert!(before.elapsed().as_secs() < 10);
}

#[test]
fn when_the_new_process_is_lost_the_old_one_admits_nothing_and_ends() {
    let mut world = World::new();
    let mut idle = world.client();
    idle.get(TARGET).expect(200);
    let new = world.gateway.upgrade();
    assert!(process::signal(new, "KILL"));
    world.gateway.log().wait("that it is lost", |line| line["message"] == "limit owner lost");
    // Idle connections are closed: no process can decide on their next request.
    idle.expect_end();
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
}

#[test]
fn when_the_new_process_is_lost_a_slow_request_does_not_keep_the_old_one_for_the_whole_grace() {
    let mut world = World::with(|config| config.with("[server]", "shutdown_grace = \"10m\""));
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("too late")));
    let mut slow = world.client();
    slow.send(Request::get(TARGET).head_bytes());
    world.control.wait_for_requests(1);
    let new = world.gateway.upgrade();
    assert!(process::signal(new, "KILL"));
    // What starts the program again waits for its end, and nothing listens meanwhile.
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
}

#[test]
fn when_the_new_process_is_lost_requests_in_flight_finish_and_no_more_are_admitted() {
    let mut edge = Edge::new();
    let gate = Gate::new();
    let world = &mut edge.world;
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("finished")));
    // A charged request, a batch whose body is arriving, and a request whose head is arriving.
    let mut down = world.client();
    down.send(Request::get(TARGET).head_bytes());
    let mut up = world.client();
    up.send(Request::post("/v1/workspaces/ws_acme/tenants:batch", "[1, 2, 3]").head_bytes());
    up.send("[1, ");
    let mut half = world.client();
    half.send(&Request::get(TARGET).head_bytes()[..20]);
    let mut several = Http2::connect(&edge.address, &edge.authority);
    let first = several.request(&Request::get(TARGET));
    // This client does not acknowledge PINGs, so the graceful shutdown leaves it open for new
    // streams.
    several.polite = false;
    world.control.wait_for_requests(2);
    wait::until("the batch to be charged", || {
        (world.gateway.used("batch", "ws_acme") == 1).then_some(())
    });
    let new = world.gateway.upgrade();
    assert!(process::signal(new, "KILL"));
    world.gateway.log().wait("that it is lost", |line| line["message"] == "limit owner lost");
    // No process can decide on a limited request; an exempt one needs no decision.
    let refused = several.call(&Request::get(TARGET)).expect_problem(503);
    assert_eq!(refused["type"], "urn:weir:problem:limits-unavailable");
    several.get("/assets/a").expect(200);
    // An incomplete head is closed like an idle connection.
    half.expect_end();
    up.send("2, 3]");
    world.control.wait_for_requests(3);
    gate.open();
    assert_eq!(down.read().expect(200).body, b"finished");
    assert_eq!(up.read().expect(200).body, b"finished");
    assert_eq!(several.answer(first).expect(200).body, b"finished");
    drop(several);
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    assert_eq!(world.control.requests().len(), 3);
}
