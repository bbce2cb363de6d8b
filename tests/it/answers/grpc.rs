//! Refusals as the gRPC clients of PyPI and npm read them.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use weir_tests::real;
use weir_tests::request::{CONTROL, Request};
use weir_tests::wait;

use super::{APP, House, PROTOCOLS, Protocol, readable};

const TARGET: &str = "/weir.test.Echo/Unary";

/// A gateway that allows one call in each window; if `used`, that call has been made.
#[track_caller]
fn house(window: &str, used: bool) -> House {
    let house = House::with(|config| {
        let limit = format!("requests = 1\nwindow = \"{window}\"");
        let route = "plane = \"control\"\nmethods = [\"POST\"]\nlimits = [\"address\"]\n\
                     path = \"/weir.test.Echo/{*rest}\"\nupstream = \"control\"";
        readable(config).with("[limits.address]", &limit).with("[[routes]]", route)
    });
    if used {
        house.world.get("/v1/me").expect(200);
    }
    house
}

/// What a client prints about its call, as JSON.
#[track_caller]
fn seen(house: &House, mut client: Command, arguments: &[&str]) -> Value {
    client.args([&house.https, CONTROL]).arg(house.authority.path("ca.crt")).args(arguments);
    serde_json::from_str(&real::run(&mut client).expect(0).stdout).unwrap()
}

#[test]
fn real_grpc_clients_see_resource_exhausted_and_the_retry_delay() {
    let house = house("1m", true);
    for method in ["unary", "stream"] {
        for (name, client) in [
            ("PyPI", real::python("tests/real/grpc_refused.py")),
            ("npm", real::node("tests/real/grpc_refused.mjs")),
        ] {
            let before = wait::now();
            let seen = seen(&house, client, &[method]);
            assert_eq!(seen["code"], "RESOURCE_EXHAUSTED", "{name} {method}: {seen}");
            let details = seen["details"].as_str().unwrap();
            assert!(details.starts_with("The allowance `address` of 1 is used up."), "{seen}");
            let metadata = &seen["metadata"];
            assert_eq!(metadata["x-ratelimit-limit"], "1", "{name} {method}: {seen}");
            assert_eq!(metadata["x-ratelimit-remaining"], "0");
            assert_eq!(metadata["x-ratelimit-resource"], "address");
            let number = |name: &str| -> u64 { metadata[name].as_str().unwrap().parse().unwrap() };
            assert!((1..=60).contains(&number("retry-after")), "{seen}");
            assert_eq!(number("grpc-retry-pushback-ms"), number("retry-after") * 1_000);
            assert!(number("x-ratelimit-reset") >= wait::unix_seconds());
            assert!(before.elapsed() < Duration::from_secs(14), "{name} {method} ran out of time");
        }
    }
    assert_eq!(house.world.gateway.used("address", "127.0.0.1"), 1, "a refusal was charged");
    assert_eq!(house.world.control.requests().len(), 1);
    let line =
        house.world.gateway.access_log().wait("a refused call", |line| line["path"] == TARGET);
    assert_eq!(line["status"], 429, "{line}");
    let of_streams = |line: &&Value| line["path"] == "/weir.test.Echo/Stream";
    let lines = house.world.gateway.access_log().json();
    let waits = lines.iter().filter(of_streams).map(|line| line["duration_ms"].as_f64().unwrap());
    let shortest = waits.fold(f64::INFINITY, f64::min);
    assert!(shortest < 400.0, "a call that goes on sending was read first: {shortest} ms");
    let metrics = house.world.gateway.call_admin(&Request::get("/metrics")).text();
    let counted = metrics.lines().any(|line| line.contains("\"rate-limited\"} 4"));
    assert!(counted, "{metrics}");
}

#[test]
fn a_retrying_grpc_client_waits_for_the_retry_delay() {
    let house = house("2s", true);
    let client = real::python("tests/real/grpc_refused.py");
    // The upstream does not speak gRPC, so the call fails; but its second attempt reaches the
    // upstream.
    seen(&house, client, &["unary", "retry"]);
    let requests = house.world.control.requests();
    let calls: Vec<_> = requests.iter().filter(|one| one.target() == TARGET.as_bytes()).collect();
    let tries: Vec<_> =
        calls.iter().map(|call| call.head.field("grpc-previous-rpc-attempts")).collect();
    assert!(tries == [Some("1")] || tries == [None], "{tries:?}");
    if tries == [None] {
        // The client started so slowly that the window had passed: its first attempt was admitted.
        let refused = |line: &Value| line["path"] == TARGET && line["status"] == 429;
        assert!(!house.world.gateway.access_log().json().iter().any(refused));
    }
}

#[test]
fn a_call_from_a_page_is_refused_in_its_dialect_and_can_be_read_there() {
    let house = house("1m", true);
    for protocol in PROTOCOLS {
        for (sent, answered) in [
            ("application/grpc-web+proto", "application/grpc-web+proto"),
            ("application/grpc-web-text", "application/grpc-web-text+proto"),
            ("application/grpc", "application/grpc"),
        ] {
            if protocol == Protocol::Http2 && sent == answered && !sent.contains("web") {
                // This curl cannot handle a response that arrives before it has sent its body; the
                // gRPC clients above cover this case.
                continue;
            }
            let fields = [format!("Content-Type: {sent}"), format!("Origin: {APP}")];
            let arguments = ["-H", &fields[0], "-H", &fields[1], "--data-binary", "x"];
            let answer = house.call(protocol, &arguments, TARGET).expect(200);
            assert_eq!(answer.field("content-type"), Some(answered), "{protocol:?}");
            assert_eq!(answer.field("grpc-status"), Some("8"));
            assert!(answer.body.is_empty());
            assert_eq!(answer.allowance().remaining, 0);
            let exposed = answer.head.all("access-control-expose-headers").join(", ");
            for name in ["Grpc-Status", "Grpc-Message", "X-RateLimit-Remaining", "Retry-After"] {
                assert!(exposed.contains(name), "no {name} in {exposed}");
            }
        }
    }
}

#[test]
fn each_refusal_maps_to_its_grpc_status() {
    let house = house("1m", false);
    let post = |target: &str| Request::post(target, "x").field("Content-Type", "application/grpc");
    let grpc = |target: &str| {
        Request::new("POST", target).field("Content-Type", "application/grpc").body("x")
    };
    for (target, status) in [
        ("/nowhere", "12"),
        ("/healthz", "12"),
        ("/weir.test.Echo//x", "3"),
        ("/v1/workspaces/ws_acme/tenants:batch", "3"),
    ] {
        let answer = house.world.call(&grpc(target)).expect(200);
        assert_eq!(answer.field("grpc-status"), Some(status), "{target}");
        assert_eq!(answer.field("content-length"), Some("0"));
    }
    // Two content types count as none: no gRPC response.
    let answer = house.world.call(&post("/nowhere"));
    assert_eq!(answer.status, 404);
    // A GET is no gRPC call and gets a plain refusal.
    let get = Request::get("/nowhere").field("Content-Type", "application/grpc");
    house.world.call(&get).expect_problem(404);
}
