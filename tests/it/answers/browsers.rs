//! Cross-origin requests: which responses a page may read, and what a preflight answers.

use weir_tests::answer::Answer;
use weir_tests::request::{Request, data_host};
use weir_tests::response::Response;
use weir_tests::world::World;

use super::{APP, House, PROTOCOLS, readable};

const EXPOSED: [&str; 8] = [
    "X-RateLimit-Limit",
    "X-RateLimit-Remaining",
    "X-RateLimit-Reset",
    "X-RateLimit-Resource",
    "Retry-After",
    "X-Request-Id",
    "RateLimit",
    "RateLimit-Policy",
];

/// The CORS fields and `Vary`.
fn cors_fields(answer: &Response) -> Vec<(String, String)> {
    let fields = answer.head.fields.iter().map(|(name, value)| (name.to_lowercase(), value));
    let relevant = fields.filter(|(name, _)| name.starts_with("access-control-") || name == "vary");
    relevant.map(|(name, value)| (name, value.clone())).collect()
}

#[track_caller]
pub(super) fn assert_readable(answer: &Response) {
    let field = |name: &str| answer.field(name).unwrap_or_default().to_owned();
    assert_eq!(field("access-control-allow-origin"), APP, "{}", answer.head_text());
    assert_eq!(field("access-control-allow-credentials"), "true");
    assert_eq!(field("vary"), "Origin");
    let exposed: Vec<String> =
        field("access-control-expose-headers").split(", ").map(str::to_owned).collect();
    assert_eq!(exposed, EXPOSED);
}

#[test]
fn a_page_that_may_read_can_read_every_refusal() {
    for protocol in PROTOCOLS {
        let house = House::with(|config| {
            readable(config)
                .with("[limits.workspace]", "requests = 1")
                .with("[upstreams.dispatcher]", "servers = [\"127.0.0.1:9\"]")
        });
        let batch = "/v1/workspaces/ws_big/tenants:batch";
        house.call(protocol, &[], "/v1/workspaces/ws_acme").expect(200);
        for (status, target, more) in [
            (429, "/v1/workspaces/ws_acme", vec![]),
            (404, "/nowhere", vec![]),
            (405, "/healthz", vec!["-X", "PUT"]),
            (400, "/v1//twice", vec![]),
            (400, batch, vec!["--json", "{}"]),
            (415, batch, vec!["--json", "[]", "-H", "Content-Encoding: gzip"]),
            (502, "/assets/a.css", vec![]),
        ] {
            let origin = format!("Origin: {APP}");
            let answer = house.call(protocol, &[&more[..], &["-H", &origin]].concat(), target);
            assert_eq!(answer.status, status, "{protocol:?} {target}: {}", answer.text());
            assert_readable(&answer);
            answer.expect_problem(status);
        }
    }
}

#[test]
fn a_page_of_another_origin_gets_no_cors_headers_and_vary_names_origin() {
    let world = World::with(readable);
    for origin in [None, Some("null"), Some("https://evil.example"), Some("https://app.example")] {
        let mut request = Request::get("/nowhere");
        if let Some(origin) = origin {
            request = request.field("Origin", origin);
        }
        let answer = world.call(&request).expect(404);
        assert_eq!(cors_fields(&answer), [("vary".to_owned(), "Origin".to_owned())], "{origin:?}");
    }
}

#[test]
fn a_plane_without_cors_settings_sends_no_cors_headers() {
    let world = World::with(readable);
    let request = Request::get("/").host(&data_host("in_acme")).field("Origin", APP);
    let answer = world.call(&request).expect(200);
    assert_eq!(cors_fields(&answer), []);
    let unknown = Request::get("/").host("unknown.localhost").field("Origin", APP);
    assert_eq!(cors_fields(&world.call(&unknown).expect(404)), []);
}

#[test]
fn with_a_wildcard_origin_every_origin_gets_the_same_answer() {
    let world = World::with(|config| config.with("[planes.control.cors]", "origins = [\"*\"]"));
    for request in [Request::get("/nowhere"), Request::get("/nowhere").field("Origin", "null")] {
        let answer = world.call(&request).expect(404);
        assert_eq!(answer.field("access-control-allow-origin"), Some("*"));
        assert_eq!(answer.field("access-control-allow-credentials"), None);
        assert_eq!(answer.field("vary"), None);
    }
}

#[test]
fn headers_that_the_upstream_exposes_are_kept_beside_the_limit_headers() {
    for protocol in PROTOCOLS {
        let house = House::with(readable);
        let upstream = Answer::ok("x")
            .field("Access-Control-Allow-Origin", "https://theirs.example")
            .field("Access-Control-Expose-Headers", "X-Total")
            .field("Vary", "Origin, Accept");
        house.world.control.always(upstream);
        let answer = house.call(protocol, &["-H", &format!("Origin: {APP}")], "/v1/me").expect(200);
        let field = |name| answer.head.all(name).join("; ");
        assert_eq!(field("access-control-allow-origin"), "https://theirs.example", "{protocol:?}");
        assert_eq!(field("vary"), "Origin, Accept");
        let exposed = format!("X-Total; {}", EXPOSED.join(", "));
        assert_eq!(field("access-control-expose-headers"), exposed);
        answer.allowance();
    }
}

#[test]
fn a_page_reads_what_an_upstream_without_cors_headers_of_its_own_answers() {
    for protocol in PROTOCOLS {
        let house = House::with(readable);
        // Without an origin it allows nothing, and the plane decides about cookies.
        let upstream = Answer::ok("x").field("Access-Control-Allow-Credentials", "false");
        house.world.control.always(upstream);
        let call = |origin: &str| {
            house.call(protocol, &["-H", &format!("Origin: {origin}")], "/v1/me").expect(200)
        };
        let answer = call(APP);
        assert_readable(&answer);
        assert_eq!(answer.head.all("access-control-allow-credentials"), ["true"], "{protocol:?}");
        answer.allowance();
        let other = cors_fields(&call("https://evil.example"));
        assert_eq!(other, [("vary".to_owned(), "Origin".to_owned())], "{protocol:?}");
    }
}

#[test]
fn a_page_reads_its_own_limits() {
    let world = World::with(|config| {
        let lines = "plane = \"control\"\nmethods = [\"GET\"]\n\
            path = \"/v1/workspaces/{workspace}/limits\"\nanswer = \"limits\"\n\
            limits = [\"workspace\", \"organisation\"]\npublic = true\n";
        readable(config).with("[[routes]]", lines)
    });
    let request = Request::get("/v1/workspaces/ws_acme/limits").field("Origin", APP);
    assert_readable(&world.call(&request).expect(200));
}

/// A preflight for a page of `origin` that wants to use `method`.
fn preflight(origin: &str, method: &str, target: &str) -> Request {
    Request::new("OPTIONS", target)
        .field("Origin", origin)
        .field("Access-Control-Request-Method", method)
        .field("Access-Control-Request-Headers", "authorization,content-type")
}

#[test]
fn a_preflight_is_answered_by_the_gateway_and_charges_no_tenant() {
    for protocol in PROTOCOLS {
        let house =
            House::with(|config| readable(config).with("[limits.workspace]", "requests = 1"));
        for left in [599, 598, 597] {
            let origin = format!("Origin: {APP}");
            let preflight =
                ["-X", "OPTIONS", "-H", &origin, "-H", "Access-Control-Request-Method: PUT"];
            let names = ["-H", "Access-Control-Request-Headers: authorization,x-own"];
            let target = "/v1/workspaces/ws_acme/users/1";
            let answer =
                house.call(protocol, &[&preflight[..], &names].concat(), target).expect(204);
            let field = |name| answer.head.all(name).join("; ");
            assert_eq!(field("access-control-allow-origin"), APP, "{protocol:?}");
            assert_eq!(field("access-control-allow-credentials"), "true");
            assert_eq!(field("access-control-allow-methods"), "PUT");
            assert_eq!(field("access-control-allow-headers"), "authorization,x-own");
            assert_eq!(field("access-control-max-age"), "600");
            let vary = "Origin, Access-Control-Request-Method, Access-Control-Request-Headers";
            assert_eq!(field("vary"), vary);
            assert_eq!(answer.field("content-length"), None, "204 has no length");
            assert_eq!(answer.field("access-control-allow-private-network"), None);
            let allowance = answer.allowance();
            assert_eq!((allowance.resource.as_str(), allowance.remaining), ("refused", left));
        }
        house.world.control.assert_untouched();
        assert_eq!(house.world.gateway.used("workspace", "ws_acme"), 0);
        house.call(protocol, &[], "/v1/workspaces/ws_acme").expect(200);
    }
}

#[test]
fn a_preflight_lists_the_methods_that_the_path_accepts() {
    let world = World::with(readable);
    let mut client = world.client();
    for (target, method, methods) in [
        ("/healthz", "GET", "GET, HEAD"),
        ("/healthz", "DELETE", "GET, HEAD"),
        ("/v1/me", "PATCH", "PATCH"),
        ("/v1/workspaces/ws_acme/tenants:batch", "POST", "POST"),
        ("/v1/workspaces/ws_acme/tenants:batch", "PURGE", "PURGE"),
    ] {
        // All on one connection, which a preflight leaves open.
        let answer = client.call(&preflight(APP, method, target)).expect(204);
        assert_eq!(
            answer.field("access-control-allow-methods"),
            Some(methods),
            "{method} {target}"
        );
        assert_eq!(answer.field("connection"), Some("keep-alive"));
    }
    client.get("/healthz").expect(200);
}

#[test]
fn a_preflight_for_what_is_not_served_is_refused_like_any_request() {
    let world = World::with(readable);
    for (target, status) in
        [("/nowhere", 404), ("/v1/%2e%2e/x", 400), ("/v1/workspaces/w%20s/x", 400)]
    {
        world.call(&preflight(APP, "GET", target)).expect_problem(status);
    }
    let elsewhere = preflight(APP, "GET", "/v1/me").host("unknown.localhost");
    world.call(&elsewhere).expect_problem(404);
    world.control.assert_untouched();
}

#[test]
fn an_options_request_that_is_no_preflight_is_forwarded_and_counted() {
    let world = World::with(readable);
    let target = "/v1/workspaces/ws_acme/users";
    let requests = [
        preflight("https://evil.example", "PUT", target),
        preflight("null", "PUT", target),
        Request::new("OPTIONS", target).field("Origin", APP),
        Request::new("OPTIONS", target),
        Request::get(target).field("Origin", APP).field("Access-Control-Request-Method", "PUT"),
    ];
    for (count, request) in (1..).zip(&requests) {
        world.call(request).expect(200).allowance();
        assert_eq!(world.control.requests().len(), count);
        assert_eq!(world.gateway.used("workspace", "ws_acme"), count as u64);
    }
}

#[test]
fn only_the_headers_that_are_named_may_be_sent_where_some_are() {
    let world = World::with(|config| {
        let cors = "origins = [\"*\"]\nheaders = [\"Authorization\", \"X-Own\"]\nmax_age = \"1h\"";
        config.with("[planes.control.cors]", cors)
    });
    let answer = world.call(&preflight(APP, "PUT", "/v1/me")).expect(204);
    assert_eq!(answer.field("access-control-allow-headers"), Some("Authorization, X-Own"));
    assert_eq!(answer.field("access-control-max-age"), Some("3600"));
    assert_eq!(answer.field("access-control-allow-origin"), Some("*"));
}
