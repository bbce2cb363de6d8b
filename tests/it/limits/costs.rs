//! What a request costs, how large its body may be, and what its tenants may read of it.

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::request::Request;
use weir_tests::world::World;

const BATCH: &str = "/v1/workspaces/ws_acme/things:batch";

/// A route for batches that cost their items, of a limit of ten.
fn by_items(config: Config) -> Config {
    config
        .with(
            "[limits.items]",
            "key = \"workspace\"\nalgorithm = \"rolling_window\"\nrequests = 10\nwindow = \"1m\"",
        )
        .with(
            "[[routes]]",
            "plane = \"control\"\nmethods = [\"POST\"]\n\
             path = \"/v1/workspaces/{workspace}/things:batch\"\nlimits = [\"items\"]\n\
             batch_items_max = 8\ncost = \"items\"\nupstream = \"control\"",
        )
}

fn batch(items: usize) -> Request {
    Request::new("POST", BATCH).body(format!("[{}]", vec!["1"; items].join(",")))
}

#[test]
fn a_batch_costs_its_items_before_the_upstream_sees_it() {
    let world = World::with(by_items);
    assert_eq!(world.call(&batch(7)).expect(200).allowance().remaining, 3);
    let refused = world.call(&batch(4));
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert!((1..=60).contains(&refused.retry_after()));
    assert_eq!(world.control.requests().len(), 1);
    assert_eq!(world.gateway.used("items", "ws_acme"), 7, "a refused batch costs nothing");
    world.call(&batch(2)).expect(200);
    world.call(&batch(0)).expect(200);
    assert_eq!(world.gateway.used("items", "ws_acme"), 10, "an empty batch costs one");
    // Refused before its body is read: the client need not send it.
    let mut client = world.client();
    client
        .send(format!("POST {BATCH} HTTP/1.1\r\nHost: api.localhost\r\nContent-Length: 9\r\n\r\n"));
    assert_eq!(client.read().status, 429);
}

#[test]
fn a_batch_with_a_wrong_body_costs_one() {
    let world = World::with(by_items);
    let wrong = Request::new("POST", BATCH).body("{}");
    assert_eq!(world.call(&wrong).expect(400).allowance().remaining, 9);
    world.call(&batch(9)).expect(422);
    assert_eq!(world.gateway.used("items", "ws_acme"), 2);
    world.control.assert_untouched();
}

#[test]
fn a_route_has_a_cost_in_each_of_its_limits() {
    let world = World::with(|config| {
        config.with("[limits.workspace]", "requests = 60").with(
            "[[routes]]",
            "plane = \"control\"\npath = \"/v1/workspaces/{workspace}/export\"\n\
             limits = [\"workspace\", \"organisation\"]\ncost = 25\nupstream = \"control\"",
        )
    });
    let export = "/v1/workspaces/ws_acme/export";
    assert_eq!(world.get(export).expect(200).allowance().remaining, 35);
    assert_eq!(world.get(export).expect(200).allowance().remaining, 10);
    assert_eq!(world.get(export).status, 429);
    assert_eq!(world.get("/v1/workspaces/ws_acme").expect(200).allowance().remaining, 9);
    assert_eq!(world.gateway.used("organisation", "org_acme"), 51);
}

#[test]
fn a_request_that_costs_more_than_a_tenants_whole_allowance_is_no_429() {
    let world = World::with(|config| {
        config.with(
            "[[routes]]",
            "plane = \"control\"\npath = \"/v1/workspaces/{workspace}/export\"\n\
             limits = [\"workspace\"]\ncost = 25\nupstream = \"control\"",
        )
    });
    let refused = world.get("/v1/workspaces/ws_special/export");
    assert_eq!((refused.allowance().remaining, refused.field("retry-after")), (7, None));
    let problem = refused.expect_problem(422);
    assert_eq!((&problem["limit"], &problem["resource"]), (&json!(7), &json!("workspace")));
    world.get("/v1/workspaces/ws_special").expect(200);
    world.control.only();
}

#[test]
fn a_body_above_its_routes_maximum_is_a_413_and_the_upstream_sees_no_more() {
    let world = World::with(|config| {
        config.with(
            "[[routes]]",
            "plane = \"control\"\npath = \"/v1/workspaces/{workspace}/files\"\n\
             limits = [\"workspace\"]\nbody_bytes_max = \"10B\"\nupstream = \"control\"",
        )
    });
    let target = "/v1/workspaces/ws_acme/files";
    world.call(&Request::new("POST", target).body("0123456789")).expect(200);
    let announced = world.call(&Request::new("POST", target).body("0123456789a"));
    assert_eq!(announced.allowance().resource, "workspace");
    let problem = announced.expect_problem(413);
    assert_eq!(
        (&problem["bytes_max"], &problem["type"]),
        (&json!(10), &json!("urn:weir:problem:body-too-large"))
    );
    assert_eq!(world.control.requests().len(), 1);

    let head = format!(
        "POST {target} HTTP/1.1\r\nHost: api.localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let chunked = |pieces: &[&str]| {
        let mut client = Client::connect(world.gateway.http());
        client.send(&head);
        for piece in pieces {
            client.send(format!("{:x}\r\n{piece}\r\n", piece.len()));
        }
        client.send("0\r\n\r\n");
        client.read().status
    };
    assert_eq!(chunked(&["01234", "56789"]), 200);
    assert_eq!(chunked(&["01234", "567890"]), 413);
    let bodies: Vec<_> = world.control.requests().into_iter().map(|seen| seen.body).collect();
    assert!(bodies.iter().all(|body| body.len() <= 10), "{bodies:?}");
}

fn own_view(config: Config, more: &str) -> Config {
    let route = "plane = \"control\"\nmethods = [\"GET\", \"HEAD\"]\n\
                 path = \"/v1/workspaces/{workspace}/limits\"\n\
                 limits = [\"workspace\", \"organisation\"]\nanswer = \"limits\"\n";
    config.with("[[routes]]", &format!("{route}{more}"))
}

#[test]
fn a_workspace_reads_its_own_limits_and_pays_for_it() {
    let world = World::with(|config| own_view(config, "public = true"));
    world.get("/v1/workspaces/ws_acme").expect(200);
    let answer = world.get("/v1/workspaces/ws_acme/limits").expect(200);
    assert_eq!(answer.allowance().remaining, 58);
    let view = answer.json();
    assert_eq!(
        (&view["workspace"], &view["organisation"]),
        (&json!("ws_acme"), &json!("org_acme"))
    );
    let of = |name: &str| {
        let mut limits = view["limits"].as_array().unwrap().iter();
        limits.find(|limit| limit["limit"] == name).cloned().unwrap_or(Value::Null)
    };
    let workspace = of("workspace");
    assert_eq!((&workspace["used"], &workspace["remaining"]), (&json!(2), &json!(58)), "{view}");
    assert_eq!(workspace["allowance"]["requests"], 60);
    assert_eq!((&of("organisation")["used"], &of("batch")["used"]), (&json!(2), &json!(0)));
    assert_eq!(
        (of("address"), of("instance"), of("refused")),
        (Value::Null, Value::Null, Value::Null)
    );
    assert_eq!(world.control.requests().len(), 1, "no upstream sees it");
}

#[test]
fn contradictions_of_routes_are_reported() {
    let world = World::new();
    for (config, words) in [
        (own_view(world.config(), ""), "public = true"),
        (own_view(world.config(), "public = true\nupstream = \"control\""), "no upstream"),
        (
            world
                .config()
                .replacing("batch_items_max = 100", "batch_items_max = 100\ncost = \"items\""),
            "a request may cost 100, and limit `batch` has 5",
        ),
        (
            world
                .config()
                .replacing("batch_items_max = 100", "batch_items_max = 100\ncost = \"all\""),
            "a whole number from 1 to 1000000, or \"items\"",
        ),
        (
            world.config().replacing("path = \"/healthz\"", "path = \"/healthz\"\npublic = true"),
            "`public` is used only with answer",
        ),
        (
            world
                .config()
                .replacing("path = \"/healthz\"", "path = \"/healthz\"\ncost = \"items\""),
            "add batch_items_max",
        ),
    ] {
        world.gateway.write_config(&config.to_string());
        let refused = world.gateway.reload();
        assert_eq!(refused.status, 422, "{words}");
        assert!(
            refused.text().replace("\\\"", "\"").contains(words),
            "{words}: {}",
            refused.text()
        );
    }
}

#[test]
fn what_an_observed_limit_would_refuse_is_counted_by_plan() {
    let world =
        World::with(|config| config.with("[limits.workspace]", "requests = 2\nmode = \"observe\""));
    world.control.always(Answer::ok("x"));
    (0..5).for_each(|_| drop(world.get("/v1/workspaces/ws_acme").expect(200)));
    let metrics = world.gateway.call_admin(&Request::get("/metrics")).text();
    let line =
        metrics.lines().find(|line| line.starts_with("weir_gateway_limit_would_refuse_total"));
    let line = line.unwrap_or_else(|| panic!("{metrics}"));
    assert!(line.contains("limit=\"workspace\"") && line.ends_with(" 3"), "{line}");
}
