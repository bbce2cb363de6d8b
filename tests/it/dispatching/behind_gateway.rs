//! The dispatcher behind the gateway, which forwards owners' calls to it.

use serde_json::json;
use weir_tests::world::World;

use super::{Stage, text};

#[test]
fn a_webhook_is_created_through_the_gateway_and_counted_there() {
    let stage = Stage::new();
    let world = front(&stage);
    let acme = stage.dispatcher.acme().through(world.gateway.http());
    let body = json!({ "url": stage.receiver.url("/hook"), "events": ["user.created"] });
    let created = acme.post("/webhooks", &body).expect(201);
    let allowance = created.allowance();
    assert_eq!((allowance.resource.as_str(), allowance.limit), ("workspace", 60));
    assert_eq!(allowance.remaining, 59);
    let webhook = created.json();
    let read = acme.get(&format!("/webhooks/{}", text(&webhook, "id"))).expect(200);
    assert_eq!(read.allowance().remaining, 58);
    let pinged = acme.act(&format!("/webhooks/{}:ping", text(&webhook, "id"))).expect(202);
    assert_eq!(pinged.allowance().remaining, 57);
    stage.receiver.wait(1)[0].verify(text(&webhook, "secret"));
    world.dispatcher.assert_untouched();
}

#[test]
fn an_export_of_several_pages_comes_whole_through_the_gateway() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 230);
    stage.dispatcher.acme().wait_for_count("delivered", 230);
    let world = front(&stage);
    let acme = stage.dispatcher.acme().through(world.gateway.http());
    let export = acme.get("/deliveries/export").expect(200);
    assert_eq!(export.allowance().remaining, 59);
    assert_eq!(export.text().lines().count(), 230);
}

#[test]
fn the_sixty_first_call_reaches_no_dispatcher() {
    let stage = Stage::new();
    let world = front(&stage);
    let acme = stage.dispatcher.acme().through(world.gateway.http());
    for _ in 0..60 {
        acme.get("/webhooks").expect(200);
    }
    let body = json!({ "url": stage.receiver.url("/hook"), "events": ["user.created"] });
    acme.post("/webhooks", &body).expect_problem(429);
    assert!(stage.dispatcher.acme().list("/webhooks", "").is_empty());
}

#[test]
fn a_dispatcher_that_is_down_is_a_502_and_that_is_all() {
    let mut stage = Stage::new();
    let world = front(&stage);
    stage.dispatcher.stop();
    let acme = stage.dispatcher.acme().through(world.gateway.http());
    let answer = acme.get("/webhooks");
    assert!((502..=504).contains(&answer.status), "{}", answer.status);
    assert_eq!(answer.allowance().remaining, 59);
}

/// A gateway in front of the stage's dispatcher.
#[track_caller]
fn front(stage: &Stage) -> World {
    let servers = format!("servers = [\"{}\"]", stage.dispatcher.api_address());
    World::with(|config| config.with("[upstreams.dispatcher]", &servers))
}
