//! An upgrade replaces the running program: no connection fails, and no count is lost.

mod container;
mod failures;
mod systemd;
mod under_load;

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::DIRECTORY;
use weir_tests::gateway::Gateway;
use weir_tests::process;
use weir_tests::request::{Request, data_host};
use weir_tests::wait;
use weir_tests::world::World;

const TARGET: &str = "/v1/workspaces/ws_acme";

#[test]
fn windows_buckets_and_boosts_survive_an_upgrade() {
    let world = World::with(|config| {
        config
            .with("[limits.workspace]", "requests = 5")
            .with("[limits.instance]", "rate = 1\nburst = 9")
    });
    for _ in 0..4 {
        world.get(TARGET).expect(200);
        world.get("/v1/workspaces/ws_quiet").expect(200);
    }
    let before = world.get_from("in_acme", "/login").expect(200).allowance().remaining;
    let boost = Request::post("/limits/workspace/ws_quiet/boost", r#"{"requests":9,"ttl":"10m"}"#);
    world.gateway.call_admin(&boost).expect(200);
    let process = world.gateway.upgrade();
    assert_ne!(process, world.gateway.id());
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 0);
    world.get(TARGET).expect(429);
    let after = world.get_from("in_acme", "/login").expect(200).allowance().remaining;
    assert!((before - 1..before + 9).contains(&after), "{before} then {after}");
    let boosted = world.get("/v1/workspaces/ws_quiet").expect(200).allowance();
    assert_eq!((boosted.limit, boosted.remaining), (9, 4));
    assert_eq!(world.gateway.used("organisation", "org_acme"), 4 + 4 + 1 + 1);
}

#[test]
fn an_idle_connection_gets_one_more_response_decided_by_the_new_process() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 4"));
    let mut idle = [world.client(), world.client(), world.client()];
    idle.iter_mut().for_each(|client| drop(client.get(TARGET).expect(200)));
    world.gateway.upgrade();
    let [first, second, third] = &mut idle;
    let last = first.get(TARGET).expect(200);
    assert_eq!(last.allowance().remaining, 0);
    assert_eq!(last.field("Connection"), Some("close"));
    first.expect_end();
    let refused = second.get(TARGET);
    assert_eq!(refused.field("Connection"), Some("close"));
    assert!(refused.retry_after() <= 60);
    refused.expect_problem(429);
    third.get("/healthz").expect(200);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 4);
}

#[test]
fn a_connection_two_processes_behind_is_charged_at_the_limit_owner() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 5"));
    let mut oldest = world.client();
    oldest.get(TARGET).expect(200);
    world.gateway.upgrade();
    let mut old = world.client();
    old.get(TARGET).expect(200);
    world.gateway.upgrade();
    assert_eq!(oldest.get(TARGET).expect(200).allowance().remaining, 2);
    assert_eq!(old.get(TARGET).expect(200).allowance().remaining, 1);
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 0);
    assert_eq!(world.control.requests().len(), 5);
}

#[test]
fn an_upgrade_finishes_requests_in_flight_and_buffered_batches() {
    let mut world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("finished")));
    let mut down = world.client();
    down.send(Request::get(TARGET).head_bytes());
    let batch = Request::post("/v1/workspaces/ws_acme/tenants:batch", "[1, 2, 3]");
    let batch = batch.field("Content-Type", "application/json");
    let mut up = world.client();
    up.send(batch.head_bytes());
    up.send("[1, ");
    world.control.wait_for_requests(1);
    wait::until("the batch to be charged", || {
        (world.gateway.used("batch", "ws_acme") == 1).then_some(())
    });
    world.gateway.upgrade();
    up.send("2, 3]");
    world.control.wait_for_requests(2);
    gate.open();
    assert_eq!(down.read().expect(200).body, b"finished");
    assert_eq!(up.read().expect(200).body, b"finished");
    assert_eq!(world.gateway.used("batch", "ws_acme"), 1);
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    world.get(TARGET).expect(200);
}

#[test]
fn the_admin_listener_moves_and_an_old_admin_connection_reports_it() {
    let world = World::new();
    let mut old = Client::connect(world.gateway.admin());
    let mut older = Client::connect(world.gateway.admin());
    old.get("/readyz").expect(200);
    older.get("/readyz").expect(200);
    world.gateway.upgrade();
    old.get("/readyz").expect(503);
    assert_eq!(older.get("/limits/workspace/ws_acme").expect_problem(503)["status"], 503);
    world.gateway.call_admin(&Request::get("/readyz")).expect(200);
    world.gateway.call_admin(&Request::get("/livez")).expect(200);
}

#[test]
fn two_signals_at_once_start_one_successor() {
    let mut world = World::new();
    world.gateway.signal("USR2");
    world.gateway.signal("USR2");
    wait::until("another process to take over", || world.gateway.successors().pop());
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    assert_eq!(world.gateway.successors().len(), 1);
    world.get(TARGET).expect(200);
}

#[test]
fn a_stop_right_after_an_upgrade_ends_only_the_old_process() {
    let mut world = World::new();
    let mut idle = world.client();
    idle.get("/healthz").expect(200);
    let before = wait::now();
    let new = world.gateway.upgrade();
    world.gateway.signal("TERM");
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
    assert!(before.elapsed().as_secs() < 15, "it waited for its grace of 30 s");
    world.get(TARGET).expect(200);
    assert_eq!(world.gateway.serving(), new);
}

#[test]
fn a_stop_of_the_new_process_ends_both_and_nothing_counted_is_lost() {
    let world = World::with(|config| config.with("[store]", "snapshot = \"limits.snapshot\""));
    let config = world.config().to_string();
    let World { gateway, control, .. } = world;
    let mut idle = gateway.client();
    idle.get(TARGET).expect(200);
    let new = gateway.upgrade();
    gateway.client().get(TARGET).expect(200);
    idle.get(TARGET).expect(200);
    let mut idle = gateway.client();
    idle.get(TARGET).expect(200);
    assert!(process::signal(new, "TERM"));
    gateway.log().to_end();
    let gateway = Gateway::start_in(gateway.into_folder(), &config, DIRECTORY);
    assert_eq!(gateway.used("workspace", "ws_acme"), 4);
    assert_eq!(control.requests().len(), 4);
}

#[test]
fn an_upgrade_loads_a_changed_configuration_and_its_listeners() {
    let world = World::new();
    world.get(TARGET).expect(200);
    let changed = world.config().with("[limits.workspace]", "requests = 2");
    let changed =
        changed.with("[server]", "http = [\"127.0.0.1:0\", \"127.0.0.1:0\"]\nthreads = 1");
    world.gateway.write_config(&changed.to_string());
    world.gateway.upgrade();
    let lines = world.gateway.log().json();
    let listens = |line: &&serde_json::Value| line["listener"] == "http";
    let listens: Vec<_> =
        lines.iter().filter(listens).map(|line| line["address"].clone()).collect();
    let [first, kept, new] = listens.as_slice() else { panic!("{listens:?}") };
    assert_eq!(first, kept, "the socket that there was is taken over");
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 0);
    let mut by_new = Client::connect(new.as_str().unwrap());
    by_new.get(TARGET).expect(429);
    by_new.call(&Request::get("/login").host(&data_host("in_acme"))).expect(200);
}
