//! Allowances raised for a while, by an operator's request.

use weir_tests::request::{Request, data_host};
use weir_tests::response::Response;
use weir_tests::wait;
use weir_tests::world::World;

const TARGET: &str = "/v1/workspaces/ws_acme";

#[test]
fn a_boost_raises_one_keys_allowance_and_forgets_nothing() {
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
        r#"{"requests":100000,"ttl":"10m"}"#,
        r#"{"requests":120,"ttl":"soon"}"#,
        r#"{"rate":1,"burst":2,"ttl":"10m"}"#,
        r#"{"requests":120,"ttl":"10m","more":1}"#,
    ] {
        let status = boost(&world, "workspace/ws_acme", body).status;
        assert!([400, 422].contains(&status), "{body} is {status}");
    }
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

fn boost(world: &World, place: &str, body: &str) -> Response {
    world.gateway.ask(&Request::post(&format!("/limits/{place}/boost"), body))
}
