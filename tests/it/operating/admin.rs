//! The admin listener: health, metrics and limits.

use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

#[test]
fn livez_and_readyz_answer_200() {
    let mut world = World::new();
    world.gateway.call_admin(&Request::get("/livez")).expect(200);
    world.gateway.call_admin(&Request::get("/readyz")).expect(200);
    // An upstream that is down does not make the gateway unready: it can still refuse.
    world.control.stop();
    world.gateway.call_admin(&Request::get("/readyz")).expect(200);
}

#[test]
fn unknown_admin_calls_are_404_or_405() {
    let world = World::new();
    for request in [
        Request::get("/nowhere"),
        Request::get("/reload"),
        Request::get("/limits/no_such_limit/ws_acme"),
        Request::post("/limits/workspace/ws_acme", "{}"),
        Request::new("DELETE", "/metrics"),
    ] {
        let status = world.gateway.call_admin(&request).status;
        assert!([404, 405].contains(&status), "{status}: {request:?}");
    }
}

#[test]
fn showing_a_limit_charges_nothing() {
    let world = World::new();
    let fresh = world.gateway.limit("workspace", "ws_never_seen");
    assert_eq!((&fresh["used"], &fresh["remaining"]), (&0.into(), &60.into()));
    let allowance = world.get("/v1/workspaces/ws_acme").expect(200).allowance();
    for _ in 0..3 {
        let state = world.gateway.limit("workspace", "ws_acme");
        assert_eq!(state["limit"], "workspace", "{state}");
        assert_eq!(state["key"], "ws_acme", "{state}");
        assert_eq!(state["used"], 1, "{state}");
        assert_eq!(state["remaining"], 59, "{state}");
        assert_eq!(state["reset"], allowance.reset, "{state}");
    }
    world.get_from("in_acme", "/login").expect(200);
    assert_eq!(world.gateway.allowed("workspace", "ws_acme"), 60);
    assert_eq!(world.gateway.allowed("instance", "in_acme"), 200);
    world.get("/v1/me").expect(200);
    assert_eq!(world.gateway.used("address", "127.0.0.1"), 1);
}

#[test]
fn a_limit_can_be_reset_for_one_key() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 1"));
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.get("/v1/workspaces/ws_quiet").expect(200);
    world.get("/v1/workspaces/ws_acme").expect(429);
    let reset = world.gateway.call_admin(&Request::new("DELETE", "/limits/workspace/ws_acme"));
    assert!((200..300).contains(&reset.status), "{}", reset.status);
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.get("/v1/workspaces/ws_quiet").expect(429);
    assert_eq!(world.gateway.used("organisation", "org_acme"), 3, "only the key that was reset");
}

#[test]
fn a_reset_of_a_key_that_is_counted_with_others_resets_nothing_and_is_a_409() {
    let world = World::with(|config| config.with("[store]", "max_keys = 1_000"));
    let mut client = world.client();
    // The room of each of 256 shards is rounded up.
    for number in 0..6_000 {
        client.get(&format!("/v1/workspaces/ws_invented_{number}")).expect(200);
    }
    world.get("/v1/workspaces/ws_late").expect(200);
    let used = world.gateway.used("workspace", "ws_late");
    assert!(used > 0, "of an entry that it shares");
    let reset = |key: &str| Request::new("DELETE", &format!("/limits/workspace/{key}"));
    let refused = world.gateway.call_admin(&reset("ws_late")).expect_problem(409);
    assert!(refused["detail"].to_string().contains("max_keys"), "{refused}");
    assert_eq!(world.gateway.used("workspace", "ws_late"), used);
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.gateway.call_admin(&reset("ws_acme")).expect(200);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 0);
}

#[test]
fn metrics_move_and_never_name_a_tenant() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 1"));
    let before = metrics(&world);
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.get("/v1/workspaces/ws_acme").expect(429);
    world.get("/v1/workspaces/ws_invented/secret-name").expect(200);
    world.get_from("in_acme", "/login").expect(200);
    world.get("/nowhere-at-all").expect(404);
    let after = metrics(&world);
    assert_ne!(before, after);
    assert!(after.contains("workspace"), "which limit refused:\n{after}");
    for name in ["ws_acme", "ws_invented", "secret-name", "in_acme", "org_acme", "nowhere-at-all"] {
        assert!(!after.contains(name), "{name} is in\n{after}");
    }
}

#[test]
fn metrics_have_no_more_series_however_many_tenants_there_are() {
    let world = World::new();
    let series = || metrics(&world).lines().filter(|line| !line.starts_with('#')).count();
    // A request is counted when it ends, which may be after its response has been read.
    let counted = |count: u64| {
        let line = format!("weir_gateway_requests_total{{code=\"200\",plane=\"control\"}} {count}");
        wait::until(&line, || metrics(&world).contains(&line).then_some(()));
    };
    world.get("/v1/workspaces/ws_0").expect(200);
    counted(1);
    let before = series();
    for number in 1..200 {
        world.get(&format!("/v1/workspaces/ws_{number}/p{number}")).expect(200);
    }
    counted(200);
    assert_eq!(series(), before);
}

#[test]
fn the_busiest_and_the_most_refused_keys_are_listed() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 2"));
    let mut client = world.client();
    for _ in 0..10 {
        client.get("/v1/workspaces/ws_acme");
    }
    client.get("/v1/workspaces/ws_quiet").expect(200);
    let top = world.gateway.call_admin(&Request::get("/top")).expect(200).json().to_string();
    assert!(top.contains("ws_acme"), "{top}");
    world.gateway.call_admin(&Request::get("/top?n=1")).expect(200);
}

#[test]
fn a_query_that_is_not_understood_is_refused_and_changes_nothing() {
    let world = World::new();
    world.get("/v1/workspaces/ws_acme").expect(200);
    let admin = |request: &Request| world.gateway.call_admin(request);
    for query in ["n=abc", "n=", "m=1", "n=1&m=1"] {
        let refused = admin(&Request::get(&format!("/top?{query}"))).expect_problem(400);
        let detail = format!("The query is `{query}`; this call takes `n`, a whole number.");
        assert_eq!(refused["detail"], *detail);
    }
    admin(&Request::get("/limits?n=1")).expect_problem(400);
    admin(&Request::new("DELETE", "/limits/workspace/ws_acme?dry_run")).expect_problem(400);
    let usage = admin(&Request::get("/limits/workspace/ws_acme")).expect(200).json();
    assert_eq!(usage["used"], 1, "{usage}");
}

#[test]
fn the_active_configuration_can_be_read() {
    let world = World::new();
    let answer = world.gateway.call_admin(&Request::get("/config")).expect(200);
    for word in ["workspace", "organisation", "instance", "batch", "api.localhost"] {
        assert!(answer.text().contains(word), "{word} is not in {}", answer.text());
    }
}

#[test]
fn beyond_loopback_the_admin_listener_requires_its_token() {
    let token = "a-token-of-some-length-0123456789";
    let folder = weir_tests::folder::Folder::new();
    let path = folder.write("admin.token", &format!("{token}\n"));
    let line = format!("admin_token_file = \"{}\"", path.display());
    // Readiness needs no token: a load balancer has none.
    let world = World::with(|config| config.with("[server]", &line));
    world.gateway.call_admin(&Request::get("/limits/workspace/ws_acme")).expect(401);
    world.gateway.call_admin(&Request::post("/reload", "")).expect(401);
    let with = |token: &str| {
        let field = format!("Bearer {token}");
        world.gateway.call_admin(&Request::get("/config").field("Authorization", &field))
    };
    with("wrong").expect(401);
    with(&token[1..]).expect(401);
    let shown = with(token).expect(200).text();
    assert!(!shown.contains(token), "a secret is shown: {shown}");
    let field = format!("Bearer {token}");
    let twice = Request::get("/config").field("Authorization", &field);
    world.gateway.call_admin(&twice.field("Authorization", "Bearer other")).expect(401);
}

#[test]
fn a_reload_takes_up_another_admin_token() {
    let folder = weir_tests::folder::Folder::new();
    let path = folder.write("admin.token", "the-first\n");
    let line = format!("admin_token_file = \"{}\"", path.display());
    let world = World::with(|config| config.with("[server]", &line));
    let reload = |token: &str| {
        let field = format!("Bearer {token}");
        world.gateway.call_admin(&Request::post("/reload", "").field("Authorization", &field))
    };
    folder.write("admin.token", "the-second\n");
    // The files are watched as well: the gateway may already have reloaded.
    let first = reload("the-first");
    assert!([200, 401].contains(&first.status), "{first:?}");
    reload("the-second").expect(200);
    reload("the-first").expect(401);
    folder.write("admin.token", "thé-third\n");
    let problem = reload("the-second").expect_problem(422);
    assert!(problem["detail"].as_str().unwrap().contains("visible ASCII"), "{problem}");
    reload("the-second").expect(422);
}

#[test]
fn only_the_admin_routes_answer_and_each_names_its_methods() {
    let world = World::new();
    let allowed = |method: &str, target: &str| {
        let answer = world.gateway.call_admin(&Request::new(method, target)).expect(405);
        answer.field("allow").unwrap_or_default().to_owned()
    };
    assert_eq!(allowed("PUT", "/limits/workspace/ws_acme"), "GET, HEAD, DELETE");
    assert_eq!(allowed("GET", "/limits/workspace/ws_acme/boost"), "POST, DELETE");
    assert_eq!(allowed("DELETE", "/limits"), "GET, HEAD");
    assert_eq!(allowed("GET", "/directory/forget/ws_acme"), "POST");
    for target in ["//limits", "//limits/workspace/ws_acme", "//top", "/limits/"] {
        world.gateway.call_admin(&Request::get(target)).expect(404);
    }
}

/// The metrics, in the text format that Prometheus reads.
fn metrics(world: &World) -> String {
    let answer = world.gateway.call_admin(&Request::get("/metrics")).expect(200);
    let kind = answer.field("content-type").unwrap_or_default();
    assert!(kind.starts_with("text/plain"), "{kind}");
    let text = answer.text();
    assert!(text.contains("# HELP ") && text.contains("# TYPE "), "{text}");
    text
}

#[test]
fn without_a_token_the_admin_listener_answers_as_this_machine_alone() {
    let world = World::new();
    let admin = world.gateway.admin().to_owned();
    for target in ["/top", "/config", "/metrics", "/limits/workspace/ws_acme", "/readyz"] {
        for host in ["localhost", "127.0.0.1:8081", &admin, "[::1]"] {
            world.gateway.call_admin(&Request::get(target).host(host)).expect(200);
        }
        // The request of a page whose host name resolves to 127.0.0.1 (DNS rebinding).
        for host in ["evil.example", "evil.example:8081", "localhost.evil.example", "192.0.2.1"] {
            let refused = world.gateway.call_admin(&Request::get(target).host(host));
            let problem = refused.expect_problem(403);
            assert_eq!(problem["type"], "urn:weir:problem:host", "{target} at {host}");
        }
    }
    let write = Request::post("/reload", "");
    world.gateway.call_admin(&write.clone().host("evil.example")).expect_problem(403);
    world
        .gateway
        .call_admin(&write.clone().field("Origin", "http://evil.example"))
        .expect_problem(403);
    world.gateway.call_admin(&write).expect(200);
}
