//! Requests while the directory is slow, broken or down.

use std::time::Duration;

use weir_tests::answer::Answer;
use weir_tests::directory::Directory;
use weir_tests::request::{Request, data_host};
use weir_tests::wait;
use weir_tests::world::World;

use super::{ADDRESS, Setup};

/// Entries expire at once, and may be used stale for long.
const OLD: &str = "ttl = \"1ms\"\nnegative_ttl = \"1ms\"\nstale_for = \"1h\"\ntimeout = \"10s\"";

#[test]
fn without_the_directory_known_tenants_are_served_and_others_refused() {
    let mut setup = Setup::with(OLD);
    assert_eq!(setup.limit("ws_special"), 7);
    setup.directory.server.stop();
    for _ in 0..3 {
        assert_eq!(setup.limit("ws_special"), 7, "as it was known last");
    }
    assert!(setup.metric("weir_gateway_directory_stale_total") >= 3.0);

    let used = setup.world.gateway.used("refused", ADDRESS);
    let refused = setup.get("ws_acme").expect(503);
    assert_eq!(refused.retry_after(), 1);
    assert_eq!(refused.allowance().resource, "refused");
    let problem = refused.expect_problem(503);
    assert_eq!(problem["title"], "Tenants cannot be looked up now");
    assert_eq!(setup.world.gateway.used("refused", ADDRESS), used + 1);
    setup.world.get("/healthz").expect(200);
    setup.world.get("/v1/me").expect(200);

    let output = |line: &serde_json::Value, word: &str| {
        line["message"].as_str().is_some_and(|text| text.contains(word))
    };
    wait::until("the log line of the outage", || {
        setup.get("ws_acme").expect(503);
        let log = setup.world.gateway.log().json();
        log.iter().any(|line| output(line, "directory unavailable")).then_some(())
    });
    setup.directory.server.start_again();
    wait::until("the directory to be requested again", || {
        (setup.get("ws_acme").status == 200).then_some(())
    });
    setup
        .world
        .gateway
        .log()
        .wait("the end of the outage", |line| output(line, "directory available again"));
}

#[test]
fn a_refusal_by_the_directory_is_charged_to_the_address_alone() {
    let mut setup = Setup::with(OLD);
    setup.directory.server.stop();
    (0..70).for_each(|_| drop(setup.get("ws_acme").expect(503)));
    assert_eq!(setup.world.gateway.used("refused", ADDRESS), 70);
    // One failure is no outage, which would have a line of its own.
    let line = setup.world.gateway.log().wait("the report", |line| !line["entry"].is_null());
    assert!(line["error"].as_str().unwrap().contains("the directory did not answer"), "{line}");
    setup.directory.server.start_again();
    wait::until("the directory to be requested again", || {
        (setup.get("ws_acme").status == 200).then_some(())
    });
    assert_eq!(setup.world.gateway.used("workspace", "ws_acme"), 1);
    assert_eq!(setup.world.gateway.used("organisation", "org_acme"), 1);
}

#[test]
fn an_outage_is_noticed_where_one_tenant_is_in_use() {
    let mut setup = Setup::with(OLD);
    assert_eq!(setup.limit("ws_special"), 7);
    setup.directory.server.stop();
    let log = setup.world.gateway.log();
    wait::until("the log line of the outage", || {
        setup.get("ws_new").expect(503);
        log.json().iter().any(|line| line["message"] == "directory unavailable").then_some(())
    });
    let line = log.wait("the line of the first failure", |line| !line["entry"].is_null());
    assert_eq!(line["message"], "directory lookup unanswered");
    assert_eq!(line["entry"], "workspaces/ws_new");
}

#[test]
fn an_expired_entry_is_not_used() {
    let lines = "ttl = \"1ms\"\nstale_for = \"700ms\"\ntimeout = \"10s\"";
    let mut setup = Setup::with(lines);
    assert_eq!(setup.limit("ws_special"), 7);
    setup.directory.server.stop();
    let refused = wait::until("the entry to be too old", || {
        let answer = setup.get("ws_special");
        (answer.status == 503).then_some(answer)
    });
    refused.expect_problem(503);
}

#[test]
fn a_directory_that_never_answers_delays_few_requests_and_gets_few() {
    let setup = Setup::with(
        "ttl = \"1ms\"\nnegative_ttl = \"1ms\"\nstale_for = \"1h\"\ntimeout = \"400ms\"",
    );
    assert_eq!(setup.limit("ws_big"), 600);
    let before = setup.directory.fetched().len();
    let silent = Answer::script().pause(Duration::from_secs(15));
    setup.directory.server.always(silent);
    let started = wait::now();
    let mut slow = 0;
    for _ in 0..200 {
        let before = wait::now();
        assert_eq!(setup.limit("ws_big"), 600);
        slow += u32::from(before.elapsed() > Duration::from_millis(300));
    }
    let seconds = u32::try_from(started.elapsed().as_secs()).unwrap();
    // The workspace and the organisation are fetched once each, and then at most once a second
    // each.
    assert!((1..=2 + 2 * (seconds + 1)).contains(&slow), "{slow} of 200 waited in {seconds} s");
    let questions = setup.directory.fetched().len() - before;
    assert!(questions <= 4 + 2 * usize::try_from(seconds).unwrap(), "{questions}");
    let refused = wait::now();
    setup.get("ws_acme").expect_problem(503);
    assert!(refused.elapsed() < Duration::from_secs(5), "{:?}", refused.elapsed());
}

#[test]
fn an_invalid_response_is_refused_logged_once_and_counted() {
    let setup = Setup::with("timeout = \"10s\"");
    for (at, (answer, word)) in [
        (Answer::ok("[]"), "not an object"),
        (Answer::ok(r#"{"plan": "free", "plan": "pro"}"#), "stands twice"),
        (Answer::ok(r#"{"plan": 7}"#), "plan must be text"),
        (Answer::ok(r#"{"plan": "gold"}"#), "unknown plan `gold`"),
        (Answer::ok(r#"{"limits": {"wrkspace": {"requests": 1}}}"#), "unknown limit `wrkspace`"),
        (Answer::ok(r#"{"limits": {"workspace": {"rate": 1}}}"#), "only with algorithm"),
        (Answer::ok(r#"{"organisation": "a/../b"}"#), "not an identifier"),
        (Answer::status(500), "answered 500"),
        (Answer::status(302).field("Location", "http://127.0.0.1:1/"), "answered 302"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("ws_{at}");
        setup.directory.answer(&format!("workspaces/{name}"), answer);
        for _ in 0..2 {
            setup.get(&name).expect_problem(503);
        }
        let entry = format!("workspaces/{name}");
        let about = |line: &serde_json::Value| line["entry"] == entry.as_str();
        let line = setup.world.gateway.log().wait("the report", about);
        assert!(line["error"].as_str().unwrap().contains(word), "{line}");
        let lines = setup.world.gateway.log().json();
        assert_eq!(lines.iter().filter(|line| about(line)).count(), 1);
    }
    assert_eq!(setup.metric("weir_gateway_directory_requests_total{outcome=\"invalid\"}"), 7.0);
    assert_eq!(setup.metric("weir_gateway_directory_requests_total{outcome=\"failed\"}"), 2.0);
    assert_eq!(setup.metric("weir_gateway_directory_unusable_total"), 9.0);
    assert_eq!(setup.world.control.requests().len(), 0);
}

#[test]
fn an_endless_response_is_cut_off() {
    let setup = Setup::with("timeout = \"10s\"");
    let endless = Answer::script()
        .send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        .flood(8 << 20)
        .close();
    for name in ["ws_1", "ws_2", "ws_3"] {
        setup.directory.answer(&format!("workspaces/{name}"), endless.clone());
        setup.get(name).expect_problem(503);
    }
    assert_eq!(setup.metric("weir_gateway_directory_requests_total{outcome=\"failed\"}"), 3.0);
    // The directory responds: this is no outage, and another tenant is looked up.
    setup.get("ws_quiet").expect(200);
}

#[test]
fn a_failing_directory_gets_one_request_a_second_for_a_name() {
    let setup = Setup::with(OLD);
    assert_eq!(setup.limit("ws_big"), 600);
    setup.directory.answer("workspaces/ws_big", Answer::status(500));
    let before = setup.directory.count("workspaces/ws_big");
    let started = wait::now();
    for _ in 0..100 {
        assert_eq!(setup.limit("ws_big"), 600);
    }
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    let questions = setup.directory.count("workspaces/ws_big") - before;
    assert!((1..=seconds + 2).contains(&questions), "{questions} in {seconds} s");
}

#[test]
fn an_invalid_response_leaves_the_last_valid_entry() {
    let setup = Setup::with(OLD);
    assert_eq!(setup.limit("ws_special"), 7);
    setup.directory.set("workspaces/ws_special", r#"{"plan": "gold"}"#);
    assert_eq!(setup.limit("ws_special"), 7);
    setup.directory.set("workspaces/ws_special", r#"{"limits": {"workspace": {"requests": 5}}}"#);
    wait::until("it to be asked again", || {
        let answer = setup.get("ws_special");
        (answer.allowance().limit == 5).then_some(())
    });
}

#[test]
fn an_instance_has_values_of_its_own_only_where_its_plan_allows() {
    let setup = Setup::with("ttl = \"1ms\"\nnegative_ttl = \"1ms\"\ntimeout = \"10s\"");
    let login = Request::get("/login").host(&data_host("in_special"));
    assert_eq!(setup.world.call(&login).expect(200).allowance().limit, 9);
    setup.directory.set("workspaces/ws_special", r#"{"plan": "free"}"#);
    wait::until("the other plan, whose values apply", || {
        (setup.world.call(&login).expect(200).allowance().limit == 200).then_some(())
    });
    let line = setup
        .world
        .gateway
        .log()
        .wait("the report", |line| line["entry"] == "instances/in_special");
    assert!(line["error"].as_str().unwrap().contains("per_instance_limits = true"), "{line}");
    setup.directory.set("workspaces/ws_special", r#"{"plan": "enterprise"}"#);
    wait::until("its own values again", || {
        (setup.world.call(&login).allowance().limit == 9).then_some(())
    });
}

/// Its workspace is cached with the plan `free`, and has another one by now.
fn upgraded_instance() -> (Setup, Request) {
    let setup = Setup::with("ttl = \"1h\"\ntimeout = \"10s\"");
    setup.directory.set("workspaces/ws_special", r#"{"plan": "free"}"#);
    assert_eq!(setup.limit("ws_special"), 60);
    setup.directory.set("workspaces/ws_special", r#"{"plan": "enterprise"}"#);
    (setup, Request::get("/login").host(&data_host("in_special")))
}

#[test]
fn an_instances_values_apply_with_a_plan_that_is_newer_than_its_workspaces_entry() {
    let (setup, login) = upgraded_instance();
    for _ in 0..3 {
        assert_eq!(setup.world.call(&login).expect(200).allowance().limit, 9);
    }
    assert_eq!(setup.limit("ws_special"), 600, "of its new plan");
    assert_eq!(setup.directory.count("workspaces/ws_special"), 2);
    assert_eq!(setup.directory.count("instances/in_special"), 1);
    assert_eq!(setup.metric("weir_gateway_directory_unusable_total"), 0.0);
}

#[test]
fn values_that_no_plan_allows_are_ignored_without_a_lookup_for_each_request() {
    let (setup, login) = upgraded_instance();
    setup.directory.set("workspaces/ws_special", r#"{"plan": "free"}"#);
    for _ in 0..20 {
        assert_eq!(setup.world.call(&login).expect(200).allowance().limit, 200);
    }
    assert_eq!(setup.directory.count("workspaces/ws_special"), 2);
    assert_eq!(setup.directory.count("instances/in_special"), 1);
    assert_eq!(setup.metric("weir_gateway_directory_unusable_total"), 20.0);
    let log = setup.world.gateway.log();
    let about = |line: &serde_json::Value| line["entry"] == "instances/in_special";
    log.wait("the report", about);
    assert_eq!(log.json().iter().filter(|line| about(line)).count(), 1);
}

#[test]
fn a_workspace_that_cannot_be_looked_up_again_keeps_its_plan() {
    let (setup, login) = upgraded_instance();
    setup.directory.answer("workspaces/ws_special", Answer::status(500));
    for _ in 0..3 {
        assert_eq!(setup.world.call(&login).expect(200).allowance().limit, 200);
    }
    assert_eq!(setup.limit("ws_special"), 60);
    setup.directory.set("workspaces/ws_special", r#"{"plan": "enterprise"}"#);
    wait::until("its new plan", || (setup.world.call(&login).allowance().limit == 9).then_some(()));
}

#[test]
fn a_path_with_another_workspace_leaves_an_instance_its_values() {
    let directory = Directory::start();
    let world = World::with(|config| {
        let lines = "plane = \"data\"\npath = \"/of/{workspace}/login\"\n\
                     limits = [\"instance\"]\nupstream = \"data\"";
        directory.within(config, "ttl = \"1h\"\ntimeout = \"10s\"").with("[[routes]]", lines)
    });
    for workspace in ["ws_special", "ws_acme"] {
        let answer = world.get_from("in_special", &format!("/of/{workspace}/login"));
        assert_eq!(answer.expect(200).allowance().limit, 9, "{workspace}");
    }
}
