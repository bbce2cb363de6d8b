//! An operator raises an allowance for a while.

use serde_json::{Value, json};
use weir_tests::config::DIRECTORY;
use weir_tests::directory::Directory;
use weir_tests::request::{Request, data_host};
use weir_tests::response::Response;
use weir_tests::wait;
use weir_tests::world::World;

const TARGET: &str = "/v1/workspaces/ws_acme";

#[test]
fn a_boost_raises_one_keys_allowance_and_keeps_its_count() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 2"));
    world.get(TARGET).expect(200);
    world.get(TARGET).expect(200);
    world.get(TARGET).expect(429);
    boost(&world, "workspace/ws_acme", r#"{"requests":120,"ttl":"10m"}"#).expect(200);
    let allowance = world.get(TARGET).expect(200).allowance();
    assert_eq!((allowance.limit, allowance.remaining), (120, 117));
    assert_eq!(world.gateway.allowed("workspace", "ws_acme"), 120);
    assert_eq!(world.get("/v1/workspaces/ws_quiet").expect(200).allowance().limit, 2);
}

#[test]
fn a_boost_ends_with_its_time_to_live() {
    let world = World::new();
    boost(&world, "workspace/ws_acme", r#"{"requests":600,"ttl":"500ms"}"#).expect(200);
    wait::until("the boost to end", || {
        (world.gateway.allowed("workspace", "ws_acme") == 60).then_some(())
    });
    assert_eq!(world.get(TARGET).expect(200).allowance().limit, 60);
}

#[test]
fn a_bucket_is_boosted_by_rate_and_burst() {
    let world = World::with(|config| config.with("[limits.instance]", "rate = 1\nburst = 2"));
    boost(&world, "instance/in_acme", r#"{"rate":100,"burst":500,"ttl":"10m"}"#).expect(200);
    let login = Request::get("/login").host(&data_host("in_acme"));
    assert_eq!(world.call(&login).expect(200).allowance().limit, 500);
}

#[test]
fn a_boost_that_makes_no_sense_changes_nothing() {
    let world = World::new();
    for body in [
        "",
        "nonsense",
        "{}",
        r#"{"requests":120}"#,
        r#"{"ttl":"10m"}"#,
        r#"{"requests":0,"ttl":"10m"}"#,
        r#"{"requests":-1,"ttl":"10m"}"#,
        r#"{"requests":20000000,"ttl":"10m"}"#,
        r#"{"requests":120,"ttl":"soon"}"#,
        r#"{"requests":120,"ttl":"0s"}"#,
        r#"{"rate":1,"burst":2,"ttl":"10m"}"#,
        r#"{"requests":120,"ttl":"10m","more":1}"#,
        r#"{"requests":120,"ttl":"10m","requests":9000}"#,
    ] {
        let status = boost(&world, "workspace/ws_acme", body).status;
        assert!([400, 422].contains(&status), "{body} is {status}");
    }
    let none = boost(&world, "workspace/ws_acme", r#"{"requests":120,"ttl":"0s"}"#);
    assert!(none.expect_problem(422)["detail"].to_string().contains("DELETE"));
    assert_eq!(boost(&world, "no_such_limit/ws_acme", r#"{"requests":9,"ttl":"1m"}"#).status, 404);
    assert_eq!(world.get(TARGET).expect(200).allowance().limit, 60);
}

#[test]
fn a_boost_outlives_a_reload() {
    let world = World::new();
    boost(&world, "workspace/ws_acme", r#"{"requests":120,"ttl":"10m"}"#).expect(200);
    world.gateway.reload().expect(200);
    assert_eq!(world.get(TARGET).expect(200).allowance().limit, 120);
}

#[test]
fn a_boost_has_the_window_that_a_reload_has_brought() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 6"));
    boost(&world, "workspace/ws_acme", r#"{"requests":18,"ttl":"10m"}"#).expect(200);
    let longer = world.config().with("[limits.workspace]", "window = \"5m\"");
    world.gateway.write_config(&longer.to_string());
    world.gateway.reload().expect(200);
    let state = world.gateway.limit("workspace", "ws_acme");
    assert_eq!(
        state["allowance"],
        json!({"algorithm": "rolling_window", "requests": 18, "window": "5m"}),
        "{state}"
    );
    let before = wait::unix_seconds();
    assert!(world.get(TARGET).expect(200).allowance().reset >= before + 299);
    // A configured limit above the boost wins.
    let higher = longer.with("[limits.workspace]", "requests = 30");
    world.gateway.write_config(&higher.to_string());
    world.gateway.reload().expect(200);
    assert_eq!(world.get(TARGET).expect(200).allowance().limit, 30);
}

#[test]
fn a_boost_raises_each_number_that_it_names() {
    let world = World::new();
    let instance = |body: &str| boost(&world, "instance/in_acme", body);
    for (body, output) in [
        (r#"{"rate":1,"ttl":"10m"}"#, "`rate` is 50 now, and 1 is less"),
        (r#"{"rate":1,"burst":900,"ttl":"10m"}"#, "`rate` is 50 now, and 1 is less"),
        (r#"{"rate":90,"burst":9,"ttl":"10m"}"#, "`burst` is 200 now, and 9 is less"),
    ] {
        let detail = instance(body).expect(422).json()["detail"].to_string();
        assert!(detail.contains(output), "{body}: {detail}");
    }
    assert_eq!(world.gateway.limit("instance", "in_acme")["boosted_until"], Value::Null);
    instance(r#"{"rate":60,"ttl":"10m"}"#).expect(200);
    let state = world.gateway.limit("instance", "in_acme");
    assert_eq!(
        state["allowance"],
        json!({"algorithm": "token_bucket", "rate": 60, "burst": 200}),
        "{state}"
    );
}

/// An organisation whose workspaces are on two plans, one of which sets the organisation's
/// allowance.
fn shop() -> World {
    let world =
        World::with(|config| config.with("[plans.free]", "limits.organisation = { requests = 3 }"));
    let more = "\n[workspaces.ws_shop]\norganisation = \"org_acme\"\nplan = \"enterprise\"\n";
    world.gateway.write_directory(&format!("{DIRECTORY}{more}"));
    world.gateway.reload().expect(200);
    world
}

#[test]
fn an_organisations_limits_are_shown_and_boosted_by_plan() {
    let world = shop();
    (0..3).for_each(|_| drop(world.get(TARGET).expect(200)));
    world.get(TARGET).expect(429);
    let state = world.gateway.limit("organisation", "org_acme");
    assert_eq!((&state["remaining"], &state["allowance"]["requests"]), (&json!(0), &json!(3)));
    let of = |state: &Value| -> Vec<Value> {
        let values = state["by_plan"].as_array().unwrap_or_else(|| panic!("{state}")).iter();
        values.map(|v| json!([v["plan"], v["allowance"]["requests"], v["remaining"]])).collect()
    };
    assert_eq!(of(&state), [json!([null, 600, 597]), json!(["free", 3, 0])]);
    world.get("/v1/workspaces/ws_shop").expect(200);

    let body = |requests: u32| format!("{{\"requests\":{requests},\"ttl\":\"10m\"}}");
    let refused = boost(&world, "organisation/org_acme", &body(2)).expect(422).json();
    assert!(refused["detail"].to_string().contains("`requests` is 3 now"), "{refused}");
    let state = boost(&world, "organisation/org_acme", &body(100)).expect(200).json();
    assert_eq!(of(&state), [json!([null, 600, 596]), json!(["free", 100, 96])]);
    world.get(TARGET).expect(200);

    let listed = world.gateway.call_admin(&Request::get("/limits")).expect(200).json();
    let organisation = listed["limits"].as_array().unwrap().iter();
    let organisation = { organisation }.find(|l| l["limit"] == "organisation").unwrap();
    let free = json!({"algorithm": "rolling_window", "requests": 3, "window": "1m"});
    let by_plan = json!([{"plan": "free", "allowance": free}]);
    assert_eq!(organisation["by_plan"], by_plan);
}

#[test]
fn an_organisation_with_a_plan_of_its_own_has_one_value() {
    let world = shop();
    let own =
        DIRECTORY.replace("[organisations.org_acme]", "[organisations.org_acme]\nplan = \"free\"");
    world.gateway.write_directory(&own);
    world.gateway.reload().expect(200);
    let state = world.gateway.limit("organisation", "org_acme");
    assert_eq!((&state["allowance"]["requests"], &state["by_plan"]), (&json!(3), &Value::Null));
    let other = world.gateway.limit("organisation", "org_globex");
    assert_eq!((&other["allowance"]["requests"], &other["by_plan"]), (&json!(600), &Value::Null));
}

#[test]
fn by_a_directory_over_http_any_plan_may_be_that_of_a_workspace() {
    let directory = Directory::start();
    let world = World::with(|config| {
        let config = directory.within(config, "");
        config.with("[plans.free]", "limits.organisation = { requests = 3 }")
    });
    let state = world.gateway.limit("organisation", "org_acme");
    assert_eq!(state["by_plan"][1]["plan"], "free", "{state}");
    assert_eq!((&state["known"], &state["remaining"]), (&json!(true), &json!(3)));
    assert_eq!(world.gateway.limit("organisation", "org_nobody")["known"], false);
}

fn boost(world: &World, place: &str, body: &str) -> Response {
    world.gateway.call_admin(&Request::post(&format!("/limits/{place}/boost"), body))
}
