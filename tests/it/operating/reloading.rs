//! A reload drops no connection, loses no counter and never activates an invalid file.

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

const TARGET: &str = "/v1/workspaces/ws_acme";

#[test]
fn a_signal_a_changed_file_and_a_call_each_activate_the_new_file() {
    let world = World::new();
    write(&world, 70);
    world.gateway.reload().expect(200);
    assert_eq!(limit(&world), 70);

    write(&world, 80);
    world.gateway.signal("HUP");
    wait::until("the reload by SIGHUP", || (limit(&world) == 80).then_some(()));

    write(&world, 90);
    wait::until("the reload of a changed file", || (limit(&world) == 90).then_some(()));

    let directory = DIRECTORY.replace("requests = 7", "requests = 8");
    world.gateway.write_directory(&directory);
    wait::until("the reload of a changed directory", || {
        (world.gateway.allowed("workspace", "ws_special") == 8).then_some(())
    });
}

#[test]
fn counters_are_kept() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 5"));
    world.get(TARGET).expect(200);
    world.get(TARGET).expect(200);
    world.get_from("in_acme", "/login").expect(200);
    write(&world, 10);
    world.gateway.reload().expect(200);
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 7);
    assert_eq!(world.gateway.used("organisation", "org_acme"), 3);
}

#[test]
fn a_limit_lowered_and_raised_again_keeps_its_counts() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 10"));
    for _ in 0..4 {
        world.get(TARGET).expect(200);
    }
    write(&world, 2);
    world.gateway.reload().expect(200);
    let refused = world.get(TARGET).expect(429).allowance();
    assert_eq!((refused.limit, refused.remaining), (2, 0));
    write(&world, 10);
    world.gateway.reload().expect(200);
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 5);
}

#[test]
fn a_bad_file_is_refused_with_every_problem_and_the_old_one_stays() {
    let world = World::new();
    let bad = world.config().with("[limits.workspace]", "requests = 0\nrequsts = 1");
    world.gateway.write_config(&bad.to_string());
    let refused = world.gateway.reload().expect(422).json();
    let problems = refused["problems"].as_array().unwrap_or_else(|| panic!("{refused}"));
    assert!(problems.len() >= 2, "{refused}");
    assert_eq!(limit(&world), 60);

    world.gateway.signal("HUP");
    world.gateway.log().wait("why the file was refused", |line| {
        let level = line["level"].as_str().unwrap_or_default();
        ["error", "warn"].contains(&level) && line.to_string().contains("requsts")
    });
    assert_eq!(limit(&world), 60);
    world.get(TARGET).expect(200);

    write(&world, 61);
    world.gateway.reload().expect(200);
    assert_eq!(limit(&world), 61);
}

#[test]
fn a_refused_reload_names_the_restart_or_upgrade_that_would_do() {
    let folder = Folder::new();
    let secret = folder.write("secret", &"s".repeat(32)).display().to_string();
    let world = World::new();
    let refused = |config: Config| {
        world.gateway.write_config(&config.to_string());
        world.gateway.reload().expect(422).json()["problems"].to_string()
    };
    let problems = refused(world.config().with("[server]", "threads = 1"));
    let either = "`server.threads` changes only with a restart or an upgrade (SIGUSR2)";
    assert!(problems.contains(either), "{problems}");
    let store =
        format!("kind = \"redis\"\nurl = \"redis://127.0.0.1:1\"\nsecret_file = \"{secret}\"");
    let shared = world.config().without("[store]").with("[store]", &store);
    let problems = refused(shared);
    assert!(problems.contains("`store.kind` changes only with a restart, not"), "{problems}");
    assert!(!problems.contains("upgrade"), "{problems}");
}

#[test]
fn a_bad_directory_is_refused_like_a_bad_file() {
    let world = World::new();
    for bad in ["[workspaces.ws_acme", "[workspaces.ws_acme]\norganisation = \"unknown\"", "x = 1"]
    {
        world.gateway.write_directory(bad);
        world.gateway.reload().expect(422);
        assert_eq!(world.gateway.allowed("workspace", "ws_special"), 7);
    }
}

#[test]
fn a_half_written_file_is_never_activated() {
    let world = World::new();
    let text = world.config().with("[limits.workspace]", "requests = 70").to_string();
    let cut = text.len() / 2;
    world.gateway.write_config(&text[..cut]);
    world.gateway.reload().expect(422);
    assert_eq!(limit(&world), 60);
    world.gateway.write_config(&text);
    world.gateway.reload().expect(200);
    assert_eq!(limit(&world), 70);
}

#[test]
fn connections_and_requests_in_flight_survive_a_reload() {
    let world = World::new();
    let gate = Gate::new();
    world.control.always(Answer::script().wait(&gate).and(Answer::ok("late")));
    let mut idle = world.client();
    idle.call(&Request::get("/assets/a")).expect(200);
    let mut waiting = world.client();
    waiting.send(Request::get(TARGET).head_bytes());
    world.control.wait_for_requests(1);
    for requests in [70, 71, 72] {
        write(&world, requests);
        world.gateway.reload().expect(200);
    }
    gate.open();
    let late = waiting.read().expect(200);
    assert_eq!(late.body, b"late");
    assert_eq!(late.allowance().limit, 60, "the response carries the limit that decided");
    assert_eq!(waiting.get(TARGET).expect(200).allowance().limit, 72);
    assert_eq!(idle.get(TARGET).expect(200).allowance().limit, 72);
}

#[test]
fn routes_and_upstreams_change_too() {
    let world = World::new();
    let other = Upstream::start();
    other.always(Answer::ok("other"));
    let mut client = world.client();
    assert_eq!(client.get(TARGET).body, b"hello");
    let config = world
        .config()
        .with("[upstreams.control]", &format!("servers = [\"{}\"]", other.address()))
        .with(
            "[[routes]]",
            "plane = \"control\"\npath = \"/new\"\nlimits = [\"address\"]\n\
            upstream = \"control\"",
        );
    client.get("/new").expect(404);
    world.gateway.write_config(&config.to_string());
    world.gateway.reload().expect(200);
    assert_eq!(client.get(TARGET).body, b"other");
    assert_eq!(client.get("/new").expect(200).body, b"other");
}

#[test]
fn reloads_under_load_lose_no_request_and_admit_none_too_many() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 100"));
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = world.client();
                    let admitted = |_: &usize| client.get(TARGET).status == 200;
                    (0..100).filter(admitted).count()
                })
            })
            .collect();
        for _ in 0..10 {
            world.gateway.reload().expect(200);
        }
        let admitted: usize = clients.into_iter().map(|client| client.join().unwrap()).sum();
        assert_eq!(admitted, 100);
    });
}

/// Writes the configuration with this server of the control upstream.
fn with_control(world: &World, server: &str) {
    let servers = format!("servers = [\"{server}\"]");
    let config = world.config().with("[upstreams.control]", &servers);
    world.gateway.write_config(&config.to_string());
}

/// The address of `server` by host name, which needs a lookup.
fn by_name(server: &Upstream) -> String {
    server.address().replace("127.0.0.1", "localhost")
}

#[test]
fn a_server_added_by_a_reload_serves_the_next_request_and_so_does_the_one_that_returns() {
    let world = World::new();
    let other = Upstream::start();
    other.always(Answer::ok("other"));
    for _ in 0..3 {
        with_control(&world, &by_name(&other));
        world.gateway.reload().expect(200);
        assert_eq!(world.get("/healthz").expect(200).body, b"other");
        with_control(&world, &by_name(&world.control));
        world.gateway.reload().expect(200);
        assert_eq!(world.get("/healthz").expect(200).body, b"hello");
    }
    // A name that another upstream has resolved is resolved.
    let servers = format!("servers = [\"{}\"]", by_name(&world.control));
    let both = world.config().with("[upstreams.control]", &servers);
    world.gateway.write_config(&both.with("[upstreams.data]", &servers).to_string());
    world.gateway.reload().expect(200);
    world.get_from("in_acme", "/login").expect(200);
    assert_eq!(world.data.requests().len(), 0);
}

#[test]
fn an_unresolvable_name_is_refused_with_its_place_and_the_old_file_stays() {
    let world = World::new();
    with_control(&world, "nosuch.invalid:80");
    let refused = world.gateway.reload().expect(422).json();
    let problem = refused["problems"][0].as_str().unwrap();
    assert!(problem.contains("`nosuch.invalid:80` does not resolve: "), "{problem}");
    let config = world.config().to_string();
    let line = 1 + config.lines().position(|line| line == "[upstreams.control]").unwrap() + 1;
    assert!(problem.starts_with(&format!("gateway.toml:{line}:")), "{problem}");
    world.get("/healthz").expect(200);
    world.gateway.call_admin(&Request::get("/readyz")).expect(200);
    with_control(&world, &world.control.address());
    let undone = world.gateway.reload().expect(200).json();
    assert_eq!(undone["outcome"], "unchanged");
    world.get("/healthz").expect(200);
}

#[test]
fn a_gateway_whose_upstream_does_not_resolve_is_not_ready_until_a_reload_fixes_it() {
    let world = World::new();
    with_control(&world, "nosuch.invalid:80");
    // An upgrade fails as well: its successor does not become ready.
    world.gateway.signal("USR2");
    let why = world.gateway.wait_for_no_successor();
    assert!(why.contains("no server of upstream control resolves"), "{why}");
    world.get("/healthz").expect(200);

    let folder = world.gateway.folder();
    let mut command = std::process::Command::new(weir_tests::process::program("weir-gateway"));
    command.args(["run", "--config", "gateway.toml"]).current_dir(folder.root());
    let fresh = weir_tests::process::Process::spawn("weir-gateway", &mut command);
    let admin = fresh.listening("admin");
    let call = |request: Request| Client::connect(&admin).call(&request);
    // Until a reload fixes the name, a listening process reports that it is not ready.
    let output = wait::until("that it is not ready", || {
        let answer = call(Request::get("/readyz"));
        assert_eq!(answer.status, 503);
        Some(answer.text()).filter(|text| text.contains("upstream"))
    });
    assert_eq!(output, "not ready: no server resolves of upstream control\n");
    with_control(&world, &by_name(&world.control));
    call(Request::new("POST", "/reload").body("")).expect(200);
    call(Request::get("/readyz")).expect(200);
}

/// Writes the configuration with another limit on workspaces.
fn write(world: &World, requests: u32) {
    let line = format!("requests = {requests}");
    world.gateway.write_config(&world.config().with("[limits.workspace]", &line).to_string());
}

/// The active limit on workspaces.
fn limit(world: &World) -> u64 {
    world.gateway.allowed("workspace", "ws_acme")
}
