//! Limits that count by a claim, by a header, or by several parts together.

use serde_json::{Value, json};
use weir_tests::answer::Answer;
use weir_tests::config::Config;
use weir_tests::gateway::{CONFIG, run};
use weir_tests::issuer::{Signer, published};
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

use super::{count, repeat};
use crate::tokens::{bearing, by_keys};

const TARGET: &str = "/v1/workspaces/ws_acme/own";

/// A world in which `/own` of a workspace has the limits `own` and `workspace`, and an issuer.
struct Setup {
    world: World,
    signer: Signer,
    _server: Upstream,
}

impl Setup {
    /// With two requests a minute for each value of `key`.
    #[track_caller]
    fn of(key: &str) -> Self {
        Self::with(key, |config| config)
    }

    #[track_caller]
    fn with(key: &str, change: impl FnOnce(Config) -> Config) -> Self {
        let (server, signer) = (Upstream::start(), Signer::new("first"));
        server.always(Answer::ok(published(&[&signer])));
        let world = World::with(|config| change(with_own(by_keys(config, &server), key)));
        Self { world, signer, _server: server }
    }

    fn request(&self, claims: Value) -> Request {
        let mut all = json!({ "workspace_id": ["ws_acme", "ws_quiet"] });
        all.as_object_mut().unwrap().extend(claims.as_object().unwrap().clone());
        bearing(TARGET, &self.signer.token(&all))
    }

    /// The response to a request whose token has these claims.
    #[track_caller]
    fn get(&self, claims: Value) -> Response {
        self.world.call(&self.request(claims))
    }
}

/// Adds a limit `own` with this key, and routes that have it.
fn with_own(config: Config, key: &str) -> Config {
    let values = "algorithm = \"rolling_window\"\nrequests = 2\nwindow = \"1m\"";
    let route = "plane = \"control\"\nlimits = [\"own\", \"workspace\"]\nupstream = \"control\"";
    config.with("[limits.own]", &format!("key = {key}\n{values}")).with(
        "[[routes]]",
        &format!("path = \"/v1/workspaces/{{workspace}}/own/{{*rest}}\"\n{route}"),
    )
}

#[test]
fn each_value_of_a_claim_has_an_allowance() {
    let setup = Setup::of("\"claim:sub\"");
    let ann = repeat(&setup.world, 3, &setup.request(json!({ "sub": "ann" })));
    assert_eq!((count(&ann, 200), count(&ann, 429)), (2, 1));
    assert_eq!(ann[2].allowance().resource, "own");
    setup.get(json!({ "sub": "ben/ä\n" })).expect(200);
    setup.get(json!({ "sub": 7 })).expect(200);
    setup.get(json!({ "sub": "7" })).expect(200);
    let used = |key: &str| setup.world.gateway.used("own", key);
    assert_eq!((used("ann"), used("ben%252F%C3%A4%250A"), used("7")), (2, 1, 2));
    let state = setup.world.gateway.limit("own", "ann");
    assert_eq!((&state["kind"], &state["known"]), (&json!("claim:sub"), &json!(false)));
    let line = setup.world.gateway.access_log().wait("ann's", |line| line["status"] == 429);
    assert_eq!(line["limits"][0]["key"], "ann");
    setup.world.gateway.access_log().wait("ben's", |line| line["limits"][0]["key"] == "ben%2Fä%0A");
}

#[test]
fn a_token_without_the_claim_is_charged_to_its_address_or_to_one_shared_key() {
    let nothing = [
        json!({}),
        json!({ "sub": null }),
        json!({ "sub": ["a"] }),
        json!({ "sub": "x".repeat(257) }),
    ];
    let setup = Setup::of("\"claim:sub\"");
    for claims in &nothing {
        setup.get(claims.clone()).expect(200);
    }
    assert_eq!(setup.world.gateway.used("address", "127.0.0.1"), 4);
    assert_eq!(setup.world.gateway.used("workspace", "ws_acme"), 4, "the other limit stays");

    let setup = Setup::of("\"claim:sub\"\nmissing = \"shared\"");
    let statuses: Vec<u16> =
        nothing.iter().map(|claims| setup.get(claims.clone()).status).collect();
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(setup.world.gateway.used("own", "(none)"), 2);
    assert_eq!(setup.world.gateway.used("address", "127.0.0.1"), 0);
    setup.get(json!({ "sub": "(none)" })).expect(200);
}

#[test]
fn a_reload_that_counts_by_another_claim_reads_it_from_cached_tokens() {
    let setup = Setup::of("\"claim:sub\"");
    let request = setup.request(json!({ "sub": "ann", "azp": { "id": "app" } }));
    setup.world.call(&request).expect(200);
    let config = setup.world.config().with("[limits.own]", "key = \"claim:azp.id\"");
    setup.world.gateway.write_config(&config.to_string());
    setup.world.gateway.reload().expect(200);
    setup.world.call(&request).expect(200);
    assert_eq!(setup.world.gateway.used("own", "app"), 1);
    assert_eq!(setup.world.gateway.used("address", "127.0.0.1"), 0);
}

#[test]
fn a_combination_has_its_own_allowance_and_the_tenants_plan() {
    let setup = Setup::with("[\"workspace\", \"claim:sub\"]", |config| {
        config.with("[plans.free]", "limits.own = { requests = 3 }")
    });
    let ann = setup.request(json!({ "sub": "ann" }));
    assert_eq!(count(&repeat(&setup.world, 4, &ann), 200), 3, "the plan's three, not two");
    setup.get(json!({ "sub": "ben" })).expect(200);
    let other = "/v1/workspaces/ws_quiet/own";
    let token = json!({ "workspace_id": "ws_quiet", "sub": "ann" });
    setup.world.call(&bearing(other, &setup.signer.token(&token))).expect(200);
    let gateway = &setup.world.gateway;
    let used = |key: &str| gateway.used("own", key);
    assert_eq!((used("ws_acme/ann"), used("ws_acme%2Fben"), used("ws_quiet/ann")), (3, 1, 1));
    gateway.call_admin(&Request::get("/limits/own/ws_acme")).expect(404);
    let limits = |arguments: &[&str]| {
        let admin = ["--admin", gateway.admin()];
        run(gateway.folder(), &[&["limits"], arguments, &admin].concat()).expect(0).stdout
    };
    let shown = limits(&["show", "ws_acme/ann"]);
    assert!(shown.starts_with("own ws_acme/ann: used 3, remaining 0"), "{shown}");
    assert_eq!(limits(&["show", "ws_acme"]).lines().count(), 1, "no combination");
    limits(&["boost", "ws_acme/ann", "--limit", "own", "--requests", "4"]);
    setup.world.call(&ann).expect(200);
    limits(&["reset", "ws_acme/ann"]);
    assert_eq!(used("ws_acme/ann"), 0);
}

#[test]
fn each_value_of_a_header_has_an_allowance_and_appears_nowhere() {
    let world = World::with(|config| with_own(config, "\"header:X-Api-Key\""));
    let call = |values: &[&str]| {
        let mut request = Request::get(TARGET);
        for value in values {
            request = request.field("X-Api-Key", value);
        }
        world.call(&request)
    };
    let mut texts = Vec::new();
    for value in ["secret-of-ann", "secret-of-ben"] {
        let answers = [0, 1, 2].map(|_| call(&[value]));
        assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 200, 429], "{value}");
        texts.push(answers[2].text());
    }
    // Missing, repeated and empty values share one key.
    call(&[]).expect(200);
    call(&["secret-of-ann", "secret-of-cid"]).expect(200);
    call(&[""]).expect(429);
    let gateway = &world.gateway;
    assert_eq!(gateway.used("own", "(none)"), 2);
    let line = gateway.access_log().wait("the refusal", |line| line["status"] == 429);
    let key = line["limits"][0]["key"].as_str().unwrap().to_owned();
    assert!(key.starts_with("header:") && key.len() == 7 + 32, "{key}");
    assert_eq!(gateway.used("own", &key), 2);
    gateway.call_admin(&Request::get("/limits/own/secret-of-ann")).expect(404);
    for path in ["/top", "/metrics", "/config", "/limits", &format!("/limits/own/{key}")] {
        texts.push(gateway.call_admin(&Request::get(path)).expect(200).text());
    }
    gateway.access_log().wait("the last", |line| {
        line["limits"][0]["key"] == "(none)" && line["limits"][0]["decision"] == "refuse"
    });
    texts.extend([gateway.access_log().text(), gateway.log().text()]);
    assert!(texts.iter().any(|text| text.contains(&key)), "{key}");
    for text in texts {
        assert!(!text.contains("secret-of"), "{text}");
    }
    let seen = world.control.requests();
    assert_eq!(seen[0].head.field("x-api-key"), Some("secret-of-ann"), "the upstream gets it");
}

#[test]
fn invented_headers_are_bounded_and_touch_no_known_tenant() {
    const TARGET: &str = "/v1/invented";
    let wide =
        "key = \"address\"\nalgorithm = \"token_bucket\"\nrate = 1_000_000\nburst = 1_000_000";
    let route = "plane = \"control\"\nlimits = [\"own\", \"wide\"]\nupstream = \"control\"";
    let world = World::with(|config| {
        with_own(config, "\"header:X-Api-Key\"")
            .with("[store]", "max_keys = 1_000")
            .with("[limits.own]", "requests = 1")
            .with("[limits.wide]", wide)
            .with("[[routes]]", &format!("path = \"{TARGET}\"\n{route}"))
    });
    let mut client = world.client();
    client.get("/v1/workspaces/ws_quiet").expect(200);
    let mut admitted = 0;
    for number in 0..9_000 {
        let request = Request::get(TARGET).field("X-Api-Key", &format!("invented-{number}"));
        admitted += usize::from(client.call(&request).status == 200);
    }
    let metric = |name: &str| world.gateway.metric(&format!("weir_gateway_limit_keys_{name}"));
    assert_eq!(metric("unknown_max"), 1_000.0);
    // The room of each of 256 shards is rounded up.
    assert!(metric("unknown") <= 1_024.0, "{}", metric("unknown"));
    // The others share 16 entries in each shard.
    assert!((1_000..5_200).contains(&admitted), "{admitted} of 9,000 invented keys");
    assert_eq!(world.gateway.used("workspace", "ws_quiet"), 1);
}

#[test]
fn explain_prints_the_parts_of_a_key_and_where_each_comes_from() {
    let setup = Setup::of("[\"workspace\", \"claim:sub\", \"header:X-Api-Key\"]");
    let token = setup.signer.token(&json!({ "workspace_id": "ws_acme", "sub": "ann" }));
    let bearer = format!("Authorization: Bearer {token}");
    let url = format!("http://api.localhost{TARGET}");
    let explain = |more: &[&str]| {
        let arguments = ["explain", "GET", &url, "--config", CONFIG, "-H", &bearer];
        run(setup.world.gateway.folder(), &[&arguments[..], more].concat()).expect(0).stdout
    };
    let output = explain(&["-H", "X-Api-Key: secret-of-ann"]);
    for line in [
        "limit         own for ws_acme/ann/header:(its hash): 2 requests in any 1m",
        "key           workspace ws_acme (the path), claim:sub ann (the token), \
         header:x-api-key header:(its hash) (the header)",
        "limit         workspace for ws_acme: 60 requests in any 1m",
    ] {
        assert!(output.contains(line), "{line} is not in\n{output}");
    }
    assert!(!output.contains("secret-of-ann"), "{output}");
    let twice = explain(&["-H", "X-Api-Key: secret-of-ann", "-H", "X-Api-Key: secret-of-ann"]);
    let line = "header:x-api-key (none) (the request has the header more than once)";
    assert!(twice.contains(line), "{twice}");
    assert!(explain(&["-H", "X-Api-Key:"]).contains("(none) (the header is empty)"));
    let value: Value = serde_json::from_str(&explain(&["--json"])).unwrap();
    let own = &value["limits"][0];
    assert_eq!(own["key"], "ws_acme/ann/(none)");
    let last = json!({
        "part": "header:x-api-key", "value": "(none)", "from": "the request has none",
    });
    assert_eq!(own["parts"][2], last);
}

#[test]
fn check_refuses_a_key_that_no_request_has_and_one_that_a_client_chooses() {
    let check = |key: &str, change: &dyn Fn(Config) -> Config| {
        let folder = weir_tests::folder::Folder::new();
        folder.write(CONFIG, &change(with_own(Config::default(), key)).to_string());
        folder.write(weir_tests::gateway::DIRECTORY, weir_tests::config::DIRECTORY);
        run(&folder, &["check", "--config", CONFIG])
    };
    let same = |config: Config| config;
    check("\"header:X-Api-Key\"", &same).expect(0);
    let output = check("\"claim:sub\"", &same).expect(64).output();
    assert!(output.contains("kept by claim:sub, and this route has none"), "{output}");
    let output = check("[\"workspace\", \"adress\"]", &same).expect(64).output();
    assert!(output.contains("unknown key `adress`; did you mean `address`?"), "{output}");
    let alone = |config: Config| config.with("[limits.workspace]", "mode = \"observe\"");
    let output = check("\"header:X-Api-Key\"", &alone).expect(64).output();
    assert!(output.contains("a client chooses its headers"), "{output}");
}
