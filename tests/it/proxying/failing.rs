//! Upstreams that are down, slow or send malformed responses: which requests are retried, and
//! what the client gets.

use weir_tests::answer::{Answer, Gate};
use weir_tests::request::{Request, chunk};
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

use super::listed;

#[test]
fn a_server_that_refuses_connections_is_skipped() {
    let servers = [Upstream::refusing(), Upstream::start(), Upstream::refusing()];
    let world = World::with(|config| config.with("[upstreams.control]", &listed(&servers)));
    for _ in 0..10 {
        world.get("/v1/workspaces/ws_acme").expect(200);
        world.call(&Request::post("/v1/workspaces/ws_acme", "body")).expect(200);
    }
    let received = servers[1].requests();
    assert_eq!(received.len(), 20);
    assert!(received.iter().filter(|one| one.method() == "POST").all(|one| one.body == b"body"));
    // However many servers were tried, each request was charged once.
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 20);
}

#[test]
fn a_server_that_stops_and_restarts_is_used_again() {
    let mut world = World::new();
    world.get("/v1/me").expect(200);
    world.control.stop();
    world.get("/v1/me").expect_problem(502);
    world.control.start_again();
    world.get("/v1/me").expect(200);
}

#[test]
fn no_server_at_all_is_a_502_with_the_headers_of_what_was_charged() {
    let mut world = World::new();
    world.control.stop();
    world.data.stop();
    let control = world.get("/v1/workspaces/ws_acme");
    assert_eq!(
        (control.allowance().resource.as_str(), control.allowance().remaining),
        ("workspace", 59)
    );
    control.expect_problem(502);
    let data = world.get_from("in_acme", "/login");
    assert_eq!(data.allowance().resource, "instance");
    data.expect_problem(502);
    let exempt = world.get("/healthz");
    exempt.assert_no_allowance();
    exempt.expect_problem(502);
}

#[test]
fn interim_answers_that_never_end_are_a_502() {
    let world = World::new();
    let hint = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n";
    world.control.always(Answer::script().send(hint.repeat(150)).and(Answer::ok("hello")));
    let answer = world.get("/healthz").expect(200);
    assert_eq!((answer.interim.len(), &*answer.body), (150, &b"hello"[..]));
    // The server continues to send them as long as they are read.
    let long = std::time::Duration::from_micros(10);
    world.control.always(Answer::script().drip(hint, 10_000_000, long));
    for request in [Request::get("/healthz"), Request::post("/v1/me", "x")] {
        let answer = world.call(&request);
        // Some of the last interim responses may still be in flight at the end.
        let interim = answer.interim.len();
        assert!((151..=200).contains(&interim), "{interim} interim answers");
        answer.expect_problem(502);
    }
}

#[test]
fn an_unread_request_body_ends_its_connection() {
    let world = World::with(|config| config.with("[limits.address]", "requests = 1000"));
    world.control.always(Answer::ok("early").at_head());
    let head = "POST /v1/me HTTP/1.1\r\nHost: api.localhost\r\n";
    for (framing, now, later) in [
        ("Content-Length: 5", "", "hello"),
        ("Content-Length: 5", "he", "llo"),
        ("Content-Length: 5", "hello", ""),
        ("Transfer-Encoding: chunked", "5\r\nhello\r\n", "0\r\n\r\n"),
    ]
    .repeat(10)
    {
        let mut client = world.client();
        client.send(format!("{head}{framing}\r\n\r\n{now}"));
        let answer = client.read().expect(200);
        let closes = answer.field("connection") == Some("close");
        assert!(closes || later.is_empty(), "{framing} {now}");
        let _ = client.try_send(later);
        let _ = client.try_send(Request::get("/healthz").head_bytes());
        match closes {
            true => client.expect_end(),
            false => drop(client.read().expect(200)),
        }
    }
}

#[test]
fn a_502_that_ends_its_connection_carries_connection_close() {
    // Pingora closes a connection after a failed request; the response announces it, so that the
    // client opens another.
    let mut world = World::new();
    world.control.stop();
    let answer = world.client().get("/healthz");
    assert_eq!(answer.head.field("connection"), Some("close"));
    answer.expect_problem(502);
    world.control.start_again();
    world.client().get("/healthz").expect(200);
}

#[test]
fn a_request_that_may_have_been_carried_out_is_not_sent_twice() {
    let servers = [(); 2].map(|()| Upstream::start());
    for server in &servers {
        server.always(Answer::script().close());
    }
    let world = World::with(|config| config.with("[upstreams.control]", &listed(&servers)));
    let lost = world.call(&Request::post("/v1/workspaces/ws_acme", "once"));
    lost.expect_problem(502);
    assert_eq!(servers.iter().map(|server| server.requests().len()).sum::<usize>(), 1);
}

#[test]
fn a_closed_pooled_connection_is_replaced() {
    let world = World::new();
    world.control.always(Answer::ok("bye").close());
    for _ in 0..20 {
        assert_eq!(world.get("/v1/me").expect(200).body, b"bye");
    }
}

#[test]
fn nonsense_from_upstream_is_a_502() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 100"));
    for nonsense in [
        "SSH-2.0-OpenSSH_9.6\r\n\r\n",
        "HTTP/1.1 banana OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "\0\0\0\0",
    ] {
        world.control.always(Answer::script().send(nonsense).close());
        let answer = world.get("/v1/workspaces/ws_acme");
        assert_eq!(answer.allowance().resource, "workspace", "{nonsense:?}");
        answer.expect_problem(502);
    }
    world.control.always(Answer::script().reset());
    world.get("/v1/workspaces/ws_acme").expect_problem(502);
}

#[test]
fn a_truncated_response_is_not_passed_as_complete() {
    let world = World::new();
    let fixed = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nfive.";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfive.\r\n";
    for broken in [fixed, chunked] {
        for end in [Answer::script().send(broken).close(), Answer::script().send(broken).reset()] {
            world.control.always(end);
            let mut client = world.client();
            client.send(Request::get("/v1/me").head_bytes());
            // If the upstream connection ends before the head was forwarded, the response is a 502.
            if let Ok(answer) = client.try_read() {
                answer.expect_problem(502);
            }
        }
    }
}

#[test]
fn a_server_that_never_answers_is_a_504_with_its_headers() {
    let world =
        World::with(|config| config.with("[upstreams.control]", "read_timeout = \"300ms\""));
    let never = Gate::new();
    world.control.always(Answer::script().wait(&never));
    let late = world.get("/v1/workspaces/ws_acme");
    assert_eq!(late.allowance().remaining, 59);
    late.expect_problem(504);
    let late = world.call(&Request::post("/v1/workspaces/ws_acme", "once"));
    late.expect_problem(504);
    assert_eq!(world.control.requests().len(), 2, "a request that timed out was sent again");
    never.open();
}

#[test]
fn a_slow_server_may_take_longer_than_one_read() {
    let world = World::with(|config| config.with("[upstreams.control]", "read_timeout = \"1s\""));
    let gates = [(); 3].map(|()| Gate::new());
    let mut script = Answer::script().send("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n");
    for gate in &gates {
        script = script.wait(gate).send("x");
    }
    world.control.always(script);
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    client.read_head_only().expect(200);
    for gate in &gates {
        weir_tests::wait::pass(std::time::Duration::from_millis(500));
        gate.open();
        client.read_until("x");
    }
}

#[test]
fn a_client_that_disconnects_cancels_its_upstream_request() {
    let world = World::new();
    let gate = Gate::new();
    let endless = Answer::script()
        .send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        .send(chunk("first"))
        .wait(&gate);
    world.control.always(endless);
    let mut client = world.client();
    client.send(Request::get("/v1/me").head_bytes());
    client.read_until("first");
    drop(client);
    gate.open();
    // Whatever happens to that upstream connection, the next client gets its own response.
    world.control.always(Answer::ok("mine"));
    assert_eq!(world.get("/v1/me").expect(200).body, b"mine");
}

#[test]
fn a_pooled_connection_closed_under_a_post_is_a_502() {
    let world = World::new();
    world.get("/v1/me").expect(200);
    // The server keeps the connection open, and closes it when the next request arrives.
    world.control.always(Answer::script().close().at_head());
    let problem = world.call(&Request::post("/v1/me", "once")).expect_problem(502);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("closed the connection before it answered"), "{detail}");
    assert!(detail.contains("may have been carried out"), "{detail}");
    assert!(!problem.to_string().contains("could not be reached"), "{problem}");
    assert_eq!(world.control.requests().iter().filter(|one| one.method() == "POST").count(), 1);
}

#[test]
fn an_unreachable_server_and_a_malformed_response_are_logged_apart() {
    let mut world = World::new();
    world.control.always(Answer::script().send("nonsense\r\n\r\n").close());
    let problem = world.call(&Request::post("/v1/me", "x")).expect_problem(502);
    assert!(problem["detail"].as_str().unwrap().contains("was not HTTP"), "{problem}");
    world.control.stop();
    let problem = world.call(&Request::post("/v1/me", "x")).expect_problem(502);
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("could not be reached: the request was not carried out"), "{detail}");
}
