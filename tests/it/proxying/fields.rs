//! What an upstream learns about a client, and which headers the gateway removes.

use weir_tests::answer::Answer;
use weir_tests::request::{Request, data_host};
use weir_tests::world::World;

#[test]
fn hop_by_hop_headers_of_a_client_stop_at_the_gateway() {
    let world = World::new();
    let request = Request::get("/v1/me")
        .field("Connection", "keep-alive, X-Hop, x-other-hop")
        .field("Keep-Alive", "timeout=5")
        .field("Proxy-Connection", "keep-alive")
        .field("TE", "trailers")
        .field("Upgrade", "h2c")
        .field("X-Hop", "1")
        .field("X-Other-Hop", "2")
        .field("X-End-To-End", "3");
    world.call(&request).expect(200);
    let head = world.control.only().head;
    for name in ["keep-alive", "proxy-connection", "te", "upgrade", "x-hop", "x-other-hop"] {
        assert_eq!(head.field(name), None, "{name} was passed on");
    }
    let nominated = head.all("connection").join(",").to_ascii_lowercase();
    assert!(!nominated.contains("hop") && !nominated.contains("upgrade"), "{nominated}");
    assert_eq!(head.field("x-end-to-end"), Some("3"));
}

#[test]
fn hop_by_hop_headers_of_an_upstream_stop_at_the_gateway() {
    let world = World::new();
    world.control.always(
        Answer::ok("x")
            .field("Connection", "X-Hop")
            .field("X-Hop", "1")
            .field("Keep-Alive", "timeout=5")
            // As Apache offers HTTP/2: clients of HTTP/2 take a response with it for malformed.
            .field("Upgrade", "h2,h2c")
            .field("X-End-To-End", "3"),
    );
    let mut client = world.client();
    let answer = client.get("/v1/me").expect(200);
    for name in ["x-hop", "keep-alive", "upgrade"] {
        assert_eq!(answer.field(name), None, "{name} was passed on");
    }
    assert_eq!(answer.field("x-end-to-end"), Some("3"));
    client.get("/v1/me").expect(200);
}

#[test]
fn hop_by_hop_headers_of_interim_responses_stop_and_a_demand_to_upgrade_passes() {
    let world = World::new();
    let hints = Answer::status(103).field("Connection", "X-Hop").field("X-Hop", "1");
    let hints = hints.field("Keep-Alive", "timeout=5").field("Link", "</a.css>");
    world.control.always(hints.and(Answer::status(426).field("Upgrade", "h2c")));
    let answer = world.get("/v1/me").expect(426);
    assert_eq!(answer.field("upgrade"), Some("h2c"));
    let [interim] = &answer.interim[..] else {
        panic!("{} interim responses", answer.interim.len())
    };
    for name in ["connection", "x-hop", "keep-alive"] {
        assert_eq!(interim.field(name), None, "{name} was passed on");
    }
    assert_eq!(interim.field("link"), Some("</a.css>"));
}

#[test]
fn an_upstream_gets_the_clients_address_and_no_client_can_forge_it() {
    let world = World::new();
    let liar = Request::get("/v1/me")
        .field("X-Forwarded-For", "192.0.2.1")
        .field("x-forwarded-for", "192.0.2.2")
        .field("X-Forwarded-Host", "evil.example")
        .field("X-Forwarded-Proto", "https")
        .field("X-Forwarded-Port", "443")
        .field("X-Real-IP", "192.0.2.3")
        .field("Forwarded", "for=192.0.2.4;host=evil.example;proto=https");
    for request in [liar, Request::get("/v1/me")] {
        world.call(&request).expect(200);
        let head = world.control.last().head;
        assert_eq!(head.all("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(head.all("x-forwarded-host"), ["api.localhost"]);
        assert_eq!(head.all("x-forwarded-proto"), ["http"]);
        let text = String::from_utf8_lossy(&head.raw).into_owned();
        assert!(!text.contains("192.0.2.") && !text.contains("evil"), "{text}");
        let [forwarded] = head.all("forwarded")[..] else { panic!("{text}") };
        assert!(forwarded.contains("for=127.0.0.1"), "{forwarded}");
        assert!(forwarded.contains("proto=http"), "{forwarded}");
    }
}

#[test]
fn forwarded_headers_of_a_trusted_proxy_are_kept_and_extended() {
    let world =
        World::with(|config| config.with("[server]", "trusted_proxies = [\"127.0.0.1/32\"]"));
    let request = Request::get("/v1/me")
        .field("X-Forwarded-For", "203.0.113.7, 192.0.2.1")
        .field("X-Forwarded-Proto", "https");
    world.call(&request).expect(200);
    let head = world.control.only().head;
    let hops = head.all("x-forwarded-for").join(", ");
    assert_eq!(hops, "203.0.113.7, 192.0.2.1, 127.0.0.1");
    assert_eq!(head.all("x-forwarded-proto"), ["https"]);
}

#[test]
fn a_client_cannot_remove_our_headers_by_naming_them_in_connection() {
    let world = World::new();
    for name in ["X-Forwarded-For", "Forwarded", "X-Request-Id", "X-Forwarded-Host", "traceparent"]
    {
        let answer = world.call(&Request::get("/v1/me").field("Connection", name));
        if answer.status == 400 {
            continue;
        }
        let head = world.control.last().head;
        assert!(head.field(name).is_some(), "nominated in Connection, {name} was taken off");
    }
}

#[test]
fn a_request_id_of_a_trusted_proxy_is_kept() {
    let world =
        World::with(|config| config.with("[server]", "trusted_proxies = [\"127.0.0.1/32\"]"));
    let name = "given-by-the-proxy-in-front";
    let answer = world.call(&Request::get("/v1/me").field("X-Request-Id", name)).expect(200);
    assert_eq!(world.control.only().head.all("x-request-id"), [name]);
    assert_eq!(answer.head.all("x-request-id"), [name], "one name upstream, another downstream");
    world.gateway.access_log().wait("that name", |line| line.to_string().contains(name));
}

#[test]
fn the_host_is_passed_on_as_it_was_sent() {
    let world = World::new();
    for host in ["API.localhost:8080", "api.localhost"] {
        world.call(&Request::get("/healthz").host(host)).expect(200);
        assert_eq!(world.control.last().head.all("host"), [host]);
    }
    world.call(&Request::get("/login").host("login.special.example")).expect(200);
    assert_eq!(world.data.only().head.all("host"), ["login.special.example"]);
}

#[test]
fn a_request_has_one_id_in_upstream_response_and_log() {
    let world = World::new();
    let mut names = Vec::new();
    for _ in 0..3 {
        let answer = world.get("/v1/me").expect(200);
        let head = world.control.last().head;
        let [name] = head.all("x-request-id")[..] else { panic!("{:?}", head.fields) };
        assert!(name.len() >= 16, "{name} can be guessed, or repeat");
        assert_eq!(answer.head.all("x-request-id"), [name], "the client gets another");
        world.gateway.access_log().wait("that name", |line| line.to_string().contains(name));
        names.push(name.to_owned());
    }
    names.dedup();
    assert_eq!(names.len(), 3);
}

#[test]
fn a_refusal_has_a_request_id_too() {
    let world = World::with(|config| config.with("[limits.address]", "requests = 1"));
    world.get("/v1/me").expect(200);
    for target in ["/v1/me", "/nowhere", "/a//b"] {
        let refused = world.get(target);
        assert_ne!(refused.status, 200);
        let name = refused.field("x-request-id").unwrap_or_default().to_owned();
        assert!(!name.is_empty(), "{target}: {}", refused.head_text());
        world.gateway.access_log().wait("that name", |line| line.to_string().contains(&name));
    }
}

#[test]
fn a_valid_traceparent_is_continued() {
    let world = World::new();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let traced = Request::get("/v1/me").field("traceparent", trace).field("tracestate", "a=b");
    world.call(&traced).expect(200);
    let head = world.control.last().head;
    let [passed] = head.all("traceparent")[..] else { panic!("{:?}", head.fields) };
    assert_eq!(passed.split('-').nth(1), trace.split('-').nth(1), "another trace");
    assert_eq!(head.all("tracestate"), ["a=b"]);

    for broken in ["00-xyz", "", "00-00000000000000000000000000000000-b7ad6b7169203331-01"] {
        world.call(&Request::get("/v1/me").field("traceparent", broken)).expect(200);
        let head = world.control.last().head;
        assert!(!head.all("traceparent").contains(&broken), "{broken:?} was passed on");
    }
}

#[test]
fn cookies_and_tokens_are_forwarded_and_never_logged() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 2"));
    let request = Request::post("/v1/workspaces/ws_acme?access_token=hush-query", "hush-body")
        .field("Authorization", "Bearer hush-token")
        .field("Cookie", "session=hush-cookie");
    world.call(&request).expect(200);
    assert_eq!(world.control.only().head.field("cookie"), Some("session=hush-cookie"));
    world.call(&request).expect(200);
    world.call(&request).expect(429);
    world.call(&request.host(&data_host("in_acme"))).expect(200);
    let instance = |line: &serde_json::Value| line.to_string().contains("in_acme");
    world.gateway.access_log().wait("the last request", instance);
    let output = world.gateway.access_log().text() + &world.gateway.log().text();
    assert!(!output.contains("hush"), "{output}");
}

#[test]
fn each_request_writes_one_access_log_line_with_its_outcome() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 1"));
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.get("/v1/workspaces/ws_acme").expect(429);
    world.get("/nowhere").expect(404);
    let log = world.gateway.access_log();
    for status in [200, 429, 404] {
        log.wait("the status", |line| line["status"] == status);
    }
    let about = log.json();
    assert_eq!(about.len(), 3, "{about:#?}");
    let refused = about.iter().find(|line| line["status"] == 429).unwrap().to_string();
    assert!(refused.contains("workspace") && refused.contains("ws_acme"), "{refused}");
}

/// Headers that other servers and frameworks trust, in spellings that some of them treat as equal.
const OF_PROXIES: &[&str] = &[
    "X-Forwarded-Port",
    "X_Forwarded_Port",
    "X-Forwarded_Ssl",
    "X-Forwarded-Ssl",
    "X-Forwarded-Prefix",
    "X-Forwarded-Scheme",
    "X-Forwarded-Server",
    "X-Forwarded-Client-Cert",
    "X-Forwarded-User",
    "X-Original-URL",
    "X_Original_URL",
    "X-Original-Host",
    "X-Rewrite-URL",
    "X-Rewrite.URL",
    "True-Client-IP",
    "X-Client-IP",
    "X-Cluster-Client-IP",
    "Client-IP",
    "CF-Connecting-IP",
    "Fastly-Client-IP",
    "X-SSL-Client-Verify",
    "X-Amzn-Mtls-Clientcert-Leaf",
    "CF-Client-Cert-Der-Base64",
    "SSL_CLIENT_CERT",
    "Remote-User",
    "X-HTTP-Method-Override",
    "X_HTTP_METHOD_OVERRIDE",
    "X-Real-IP",
    "X_Real_IP",
];

fn of_proxies() -> Request {
    let request = Request::get("/v1/me").field("X-Custom", "kept");
    OF_PROXIES.iter().fold(request, |request, name| request.field(name, "192.0.2.66"))
}

#[test]
fn proxy_headers_of_an_untrusted_client_are_removed() {
    let edge = crate::http2::Edge::new();
    edge.world.call(&of_proxies()).expect(200);
    edge.client().call(&of_proxies()).expect(200);
    let requests = edge.world.control.requests();
    assert_eq!(requests.len(), 2);
    for request in requests {
        let text = String::from_utf8_lossy(&request.head.raw).into_owned();
        assert!(!text.contains("192.0.2.66"), "{text}");
        assert_eq!(request.head.field("x-custom"), Some("kept"));
    }
}

#[test]
fn proxy_headers_of_a_trusted_proxy_pass() {
    let trusted = "trusted_proxies = [\"127.0.0.1/32\"]";
    let world = World::with(|config| config.with("[server]", trusted));
    world.call(&of_proxies()).expect(200);
    let head = world.control.only().head;
    for name in ["X-Forwarded-Port", "X-Original-URL", "X-Real-IP", "SSL_CLIENT_CERT"] {
        assert_eq!(head.all(name), ["192.0.2.66"], "{name}");
    }
    // A header that the gateway sets has one spelling, whatever a client sends.
    assert_eq!(head.field("X_Real_IP"), None);
}

#[test]
fn an_operator_configures_the_headers_that_only_trusted_proxies_may_send() {
    let lines = "trusted_headers = [\"X-Tenant\", \"x-acme-*\"]";
    let world = World::with(|config| config.with("[server]", lines));
    let request = Request::get("/v1/me")
        .field("X-Tenant", "a")
        .field("X_Acme_Role", "admin")
        .field("X-Forwarded-Port", "1")
        .field("X-Real-IP", "192.0.2.1");
    world.call(&request).expect(200);
    let head = world.control.only().head;
    for name in ["x-tenant", "x_acme_role", "x-real-ip"] {
        assert_eq!(head.field(name), None, "{name}");
    }
    assert_eq!(head.field("x-forwarded-port"), Some("1"));
}

#[test]
fn a_removed_header_does_not_pass_in_another_spelling() {
    let world = World::new();
    const NAMES: [&str; 8] = [
        "X_RateLimit_Limit",
        "X-RateLimit_Remaining",
        "RateLimit_Policy",
        "Content_Length",
        "Transfer_Encoding",
        "Keep_Alive",
        "Proxy_Connection",
        "Proxy_Authorization",
    ];
    let request = Request::get("/v1/me").field("X_Custom", "kept");
    let request = NAMES.iter().fold(request, |request, name| request.field(name, "7"));
    world.call(&request).expect(200);
    let head = world.control.only().head;
    for name in NAMES {
        assert_eq!(head.field(name), None, "{name}");
    }
    assert_eq!(head.field("x_custom"), Some("kept"));
}
