//! Passive ejection of servers that fail requests, and which requests are retried.

use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::request::Request;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

use super::listed;

fn world_of(servers: &[Upstream], more: &str) -> World {
    let lines = format!("{}\n{more}", listed(servers));
    World::with(|config| {
        config
            .with("[upstreams.control]", &lines)
            .with("[limits.workspace]", "requests = 1000")
            .with("[limits.address]", "requests = 1000")
    })
}

/// Settings with ejection for failures of every kind, including a server's own 502, 503 and 504.
fn ejection(failures: u32, pause: &str) -> String {
    format!("{}\ngateway_errors = true", ejection_by_default(failures, pause))
}

fn ejection_by_default(failures: u32, pause: &str) -> String {
    format!("\n[upstreams.control.ejection]\nfailures = {failures}\npause = \"{pause}\"")
}

fn metric(world: &World, name: &str, server: &Upstream) -> Option<String> {
    let text = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
    let labels = format!("{name}{{server=\"{}\",upstream=\"control\"}} ", server.address());
    text.lines().find_map(|line| line.split_once(&labels)).map(|(_, value)| value.to_owned())
}

#[test]
fn a_server_with_consecutive_failures_is_ejected_and_one_request_probes_it() {
    let servers = [(); 2].map(|()| Upstream::start());
    for (status, gateway_errors) in [(503, true), (502, true), (504, true)] {
        servers[0].always(Answer::status(status));
        let world = world_of(&servers, &ejection(3, "300ms"));
        let mut client = world.client();
        let bad = |client: &mut weir_tests::client::Client, times| {
            (0..times).filter(|_| client.get("/healthz").status == status).count()
        };
        assert_eq!(bad(&mut client, 20), 3, "{status} {gateway_errors}");
        assert_eq!(metric(&world, "upstream_ejected", &servers[0]).as_deref(), Some("1"));
        let line = world
            .gateway
            .log()
            .wait("the ejection", |line| line["message"] == "upstream server ejected");
        assert_eq!(line["server"], servers[0].address());
        // Each probe fails and extends the ejection; all other requests go to the other server.
        wait::pass(Duration::from_millis(320));
        assert_eq!(bad(&mut client, 10), 1);
        servers[0].always(Answer::ok("back"));
        wait::until("its ejection to end", || {
            world.get("/healthz").expect(200);
            (metric(&world, "upstream_ejected", &servers[0])? == "0").then_some(())
        });
        assert_eq!(metric(&world, "upstream_ejections_total", &servers[0]).as_deref(), Some("2"));
        let before = servers[0].requests().len();
        (0..10).for_each(|_| drop(client.get("/healthz").expect(200)));
        assert_eq!(servers[0].requests().len() - before, 5);
    }
}

#[test]
fn a_flapping_server_returns_in_full_each_time_and_its_ejections_do_not_grow() {
    let servers = [(); 2].map(|()| Upstream::start());
    let world = world_of(&servers, &ejection(1, "400ms"));
    let mut client = world.client();
    for nth in 1..=4 {
        servers[0].always(Answer::status(503));
        wait::until("it to fail", || (client.get("/healthz").status == 503).then_some(()));
        servers[0].always(Answer::ok("back"));
        let ejections = metric(&world, "upstream_ejections_total", &servers[0]).unwrap();
        assert_eq!(ejections, nth.to_string());
        let line = |line: &serde_json::Value| line["message"] == "upstream server ejected";
        let lines = wait::until("its log line", || {
            let lines: Vec<_> = world.gateway.log().json().into_iter().filter(line).collect();
            (lines.len() >= nth).then_some(lines)
        });
        assert_eq!(lines[nth - 1]["seconds"], 0.4, "its ejections do not grow");
        let before = servers[0].requests().len();
        wait::until("its ejection to end", || {
            client.get("/healthz").expect(200);
            (metric(&world, "upstream_ejected", &servers[0])? == "0").then_some(())
        });
        assert_eq!(servers[0].requests().len(), before + 1, "one request probes it");
        (0..10).for_each(|_| drop(client.get("/healthz").expect(200)));
        assert_eq!(servers[0].requests().len(), before + 6, "and then it has its half");
    }
}

#[test]
fn a_recovered_server_returns_before_its_long_response_ends() {
    let servers = [(); 2].map(|()| Upstream::start());
    servers[0].always(Answer::status(503));
    let world = world_of(&servers, &ejection(1, "1s"));
    while world.get("/healthz").status != 503 {}
    let end = Gate::new();
    let long = "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n";
    servers[0].always(Answer::script().send(long).wait(&end).send("end"));
    let probe = wait::until("a request to be sent to it", || {
        let mut client = world.client();
        client.send(Request::get("/healthz").head_bytes());
        let long = client.read_head_only().field("content-length") == Some("3");
        long.then_some(client)
    });
    assert_eq!(metric(&world, "upstream_ejected", &servers[0]).as_deref(), Some("0"));
    end.open();
    drop(probe);
}

#[test]
fn a_servers_own_5xx_do_not_eject_it() {
    let servers = [(); 2].map(|()| Upstream::start());
    let (gateway_errors, by_default) = (ejection(2, "1h"), ejection_by_default(2, "1h"));
    for (status, more) in [(500, &gateway_errors), (429, &gateway_errors), (503, &by_default)] {
        servers[0].always(Answer::status(status));
        let world = world_of(&servers, more);
        let mut client = world.client();
        let bad = (0..20).filter(|_| client.get("/healthz").status == status).count();
        assert_eq!(bad, 10, "{status}{more}");
    }
}

#[test]
fn a_tenant_that_provokes_errors_ejects_no_server_of_another() {
    let servers = [(); 3].map(|()| Upstream::start());
    for server in &servers {
        server.answer(|request| match request.target().ends_with(b"/broken") {
            true => Answer::status(503),
            false => Answer::ok("served"),
        });
    }
    // With the default settings.
    let world = world_of(&servers, "");
    let broken = "/v1/workspaces/ws_acme/broken";
    let status = |target: &str| world.get(target).status;
    assert!((0..60).all(|_| status(broken) == 503));
    assert!((0..30).all(|_| status("/v1/workspaces/ws_quiet/fine") == 200));
    for server in &servers {
        assert_eq!(
            metric(&world, "upstream_ejections_total", server).as_deref(),
            Some("0"),
            "none is ejected"
        );
        let fine = server.requests().iter().filter(|one| one.target().ends_with(b"/fine")).count();
        assert_eq!(fine, 10, "each serves its third");
    }
}

#[test]
fn a_client_that_owes_its_body_ejects_no_server() {
    let servers = [(); 2].map(|()| Upstream::start());
    let never = Gate::new();
    // With the default settings, but for the timeout.
    let world = world_of(&servers, "read_timeout = \"300ms\"");
    for (fields, status) in [
        (&["Expect: 100-continue"][..], 504),
        (&["Expect: 100-continue", "Connection: expect"], 504),
        (&[], 502),
    ] {
        for server in &servers {
            server.always(match status {
                504 => Answer::script().wait(&never).at_head(),
                _ => Answer::script().pause(Duration::from_millis(100)).reset().at_head(),
            });
        }
        let clients = (0..16).map(|_| {
            let mut client = world.client();
            let request = Request::post("/v1/workspaces/ws_acme", "held back");
            let field = |request: Request, line: &&str| {
                let (name, value) = line.split_once(": ").unwrap();
                request.field(name, value)
            };
            client.send(fields.iter().fold(request, field).head_bytes());
            client
        });
        for mut client in clients.collect::<Vec<_>>() {
            assert_eq!(client.read().status, status, "{fields:?}");
        }
        for server in &servers {
            assert_eq!(
                metric(&world, "upstream_ejections_total", server).as_deref(),
                Some("0"),
                "{fields:?}"
            );
        }
    }
    never.open();
}

#[test]
fn an_unreachable_server_is_not_tried_by_every_request() {
    let servers = [Upstream::start(), Upstream::refusing()];
    let world = world_of(&servers, &ejection(3, "1h"));
    for _ in 0..30 {
        world.get("/healthz").expect(200);
    }
    let text = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
    let line = "upstream_failures_total{kind=\"connect\",upstream=\"control\"} 3";
    assert!(text.contains(line), "{text}");
}

#[test]
fn timeouts_and_malformed_responses_eject_and_an_ejection_survives_a_reload() {
    let never = Gate::new();
    for bad in [Answer::script().wait(&never), Answer::script().send("nonsense\r\n\r\n").close()] {
        let servers = [(); 2].map(|()| Upstream::start());
        servers[0].always(bad);
        let more = format!("read_timeout = \"2s\"{}", ejection(2, "1h"));
        let world = world_of(&servers, &more);
        let failed = |times| (0..times).filter(|_| world.get("/healthz").status >= 502).count();
        assert_eq!(failed(12), 2);
        let more = more.replace("2s", "3s");
        let lines = format!("{}\n{more}", listed(&servers));
        let changed = world.config().without("[upstreams.control]");
        let changed = changed.with("[upstreams.control]", &lines);
        world.gateway.write_config(&changed.to_string());
        world.gateway.reload().expect(200);
        assert_eq!(metric(&world, "upstream_ejected", &servers[0]).as_deref(), Some("1"));
        assert_eq!(failed(8), 0);
    }
    never.open();
}

#[test]
fn a_slow_request_body_ejects_no_server() {
    let servers = [(); 2].map(|()| Upstream::start());
    let more = format!("{}\nread_timeout = \"100ms\"{}", listed(&servers), ejection(1, "1h"));
    let world = World::with(|config| {
        config.with("[upstreams.control]", &more).with("[server]", "body_timeout = \"300ms\"")
    });
    // The second head offers to upgrade to another protocol.
    for lines in ["", "Upgrade: a\r\nConnection: upgrade\r\n"].repeat(4) {
        let mut client = world.client();
        let head = format!("POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\n{lines}");
        client.send(format!("{head}Content-Length: 9\r\n\r\nhalf"));
        client.read().expect_problem(408);
    }
    for server in &servers {
        assert_eq!(metric(&world, "upstream_ejected", server).as_deref(), Some("0"));
    }
}

#[test]
fn a_lone_server_is_never_ejected() {
    let server = Upstream::start();
    server.always(Answer::status(503));
    let world = world_of(std::slice::from_ref(&server), &ejection(1, "1h"));
    for _ in 0..10 {
        world.get("/healthz").expect(503);
    }
    assert_eq!(server.requests().len(), 10);
    server.always(Answer::ok("well"));
    world.get("/healthz").expect(200);
}

#[test]
fn the_last_server_is_not_ejected() {
    let servers = [(); 3].map(|()| Upstream::start());
    for server in &servers {
        server.always(Answer::status(503));
    }
    let world = world_of(&servers, &ejection(1, "1h"));
    for _ in 0..10 {
        world.get("/healthz").expect(503);
    }
    assert_eq!(servers.iter().map(|server| server.requests().len()).sum::<usize>(), 10);
    let ejected =
        servers.iter().filter(|s| metric(&world, "upstream_ejected", s).as_deref() == Some("1"));
    assert_eq!(ejected.count(), 2);
}

#[test]
fn a_request_on_a_closed_pooled_connection_is_retried_only_if_idempotent() {
    // The server announces a persistent connection, and closes it at the next request.
    let closing = || {
        let server = Upstream::start();
        let seen = std::sync::Mutex::new(std::collections::HashSet::new());
        server.answer(move |request| {
            let first = seen.lock().unwrap().insert(request.connection);
            let answer = Answer::ok("hello");
            if first { answer } else { Answer::script().close() }
        });
        server
    };
    for (method, status) in
        [("GET", 200), ("PUT", 200), ("DELETE", 200), ("POST", 502), ("PATCH", 502)]
    {
        let servers = [closing()];
        let world = world_of(&servers, "");
        let mut client = world.client();
        client.get("/v1/workspaces/ws_acme").expect(200);
        let again = client.call(&Request::new(method, "/v1/workspaces/ws_acme").body("once"));
        assert_eq!(again.status, status, "{method}");
        let sent = servers[0].requests().iter().filter(|one| one.method() == method).count();
        let expected = if method == "GET" {
            3
        } else if status == 200 {
            2
        } else {
            1
        };
        assert_eq!(sent, expected, "{method}");
        assert_eq!(world.gateway.used("workspace", "ws_acme"), 2, "charged once each");
        assert!(servers[0].requests().iter().all(|one| one.body.is_empty() || one.body == b"once"));
    }
}

#[test]
fn no_more_servers_are_tried_than_allowed_and_none_twice() {
    let servers = [(); 5].map(|()| Upstream::refusing());
    let world = world_of(&servers, &format!("tries = 4{}", ejection(0, "1s")));
    world.call(&Request::post("/v1/workspaces/ws_acme", "x")).expect_problem(502);
    let text = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
    assert!(text.contains("upstream_failures_total{kind=\"connect\",upstream=\"control\"} 4"));
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn a_request_is_not_retried_once_its_response_has_begun() {
    let servers = [(); 2].map(|()| Upstream::start());
    for server in &servers {
        let begun = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfive.";
        server.always(Answer::script().send(begun).close());
    }
    let world = world_of(&servers, "");
    let mut client = world.client();
    client.send(Request::get("/healthz").head_bytes());
    let _ = client.try_read();
    assert_eq!(servers.iter().map(|server| server.requests().len()).sum::<usize>(), 1);
}

#[test]
fn a_response_head_has_a_size_limit() {
    let world = World::new();
    let large = format!("HTTP/1.1 200 OK\r\nX-Large: {}\r\n\r\n", "x".repeat(2 << 20));
    world.control.always(Answer::script().send(large).close());
    world.get("/healthz").expect_problem(502);
    let many: String = (0..1_000).map(|nth| format!("X-{nth}: y\r\n")).collect();
    world.control.always(Answer::script().send(format!("HTTP/1.1 200 OK\r\n{many}\r\n")).close());
    world.get("/healthz").expect_problem(502);
}
