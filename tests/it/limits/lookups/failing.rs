//! What becomes of requests while a directory is slow, broken or gone.

use std::time::Duration;

use weir_tests::answer::Answer;
use weir_tests::request::{Request, data_host};
use weir_tests::wait;

use super::{ADDRESS, Asked};

/// Entries are old at once, and of use for long.
const OLD: &str = "ttl = \"1ms\"\nnegative_ttl = \"1ms\"\nstale_for = \"1h\"\ntimeout = \"10s\"";

#[test]
fn a_directory_that_is_gone_leaves_known_tenants_served_and_refuses_the_others() {
    let mut asked = Asked::with(OLD);
    assert_eq!(asked.limit("ws_special"), 7);
    asked.directory.server.stop();
    for _ in 0..3 {
        assert_eq!(asked.limit("ws_special"), 7, "as it was known last");
    }
    assert!(asked.metric("weir_gateway_directory_stale_total") >= 3.0);

    let used = asked.world.gateway.used("address", ADDRESS);
    let refused = asked.get("ws_acme").expect(503);
    assert_eq!(refused.retry_after(), 1);
    assert_eq!(refused.allowance().resource, "address");
    let problem = refused.expect_problem(503);
    assert_eq!(problem["title"], "Tenants cannot be looked up now");
    assert_eq!(asked.world.gateway.used("address", ADDRESS), used + 1);
    asked.world.get("/healthz").expect(200);
    asked.world.get("/v1/me").expect(200);

    let said = |line: &serde_json::Value, word: &str| {
        line["message"].as_str().is_some_and(|text| text.contains(word))
    };
    wait::until("three questions without an answer", || {
        asked.get("ws_acme").expect(503);
        let log = asked.world.gateway.log().json();
        log.iter().any(|line| said(line, "does not answer")).then_some(())
    });
    asked.directory.server.start_again();
    wait::until("the directory to be asked again", || {
        (asked.get("ws_acme").status == 200).then_some(())
    });
    asked.world.gateway.log().wait("the end of the outage", |line| said(line, "answers again"));
}

#[test]
fn a_refusal_by_the_directory_is_charged_to_the_address_alone_and_is_limited() {
    let mut asked = Asked::with(OLD);
    asked.directory.server.stop();
    let statuses: Vec<u16> = (0..70).map(|_| asked.get("ws_acme").status).collect();
    assert_eq!(statuses.iter().filter(|status| **status == 503).count(), 60);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 10);
    asked.directory.server.start_again();
    wait::until("the directory to be asked again", || {
        (asked.get("ws_acme").status == 200).then_some(())
    });
    assert_eq!(asked.world.gateway.used("workspace", "ws_acme"), 1);
    assert_eq!(asked.world.gateway.used("organisation", "org_acme"), 1);
}

#[test]
fn an_entry_that_is_too_old_is_not_used_any_more() {
    let lines = "ttl = \"1ms\"\nstale_for = \"700ms\"\ntimeout = \"10s\"";
    let mut asked = Asked::with(lines);
    assert_eq!(asked.limit("ws_special"), 7);
    asked.directory.server.stop();
    let refused = wait::until("the entry to be too old", || {
        let answer = asked.get("ws_special");
        (answer.status == 503).then_some(answer)
    });
    refused.expect_problem(503);
}

#[test]
fn a_directory_that_never_answers_delays_few_and_is_asked_little() {
    let asked = Asked::with(
        "ttl = \"1ms\"\nnegative_ttl = \"1ms\"\nstale_for = \"1h\"\ntimeout = \"400ms\"",
    );
    assert_eq!(asked.limit("ws_big"), 600);
    let before = asked.directory.questions().len();
    let silent = Answer::script().rest(Duration::from_secs(15));
    asked.directory.server.always(silent);
    let started = wait::now();
    let mut slow = 0;
    for _ in 0..200 {
        let before = wait::now();
        assert_eq!(asked.limit("ws_big"), 600);
        slow += u32::from(before.elapsed() > Duration::from_millis(300));
    }
    let seconds = u32::try_from(started.elapsed().as_secs()).unwrap();
    // Its workspace and its organisation, each once and then each second at most.
    assert!((1..=2 + 2 * (seconds + 1)).contains(&slow), "{slow} of 200 waited in {seconds} s");
    let questions = asked.directory.questions().len() - before;
    assert!(questions <= 4 + 2 * usize::try_from(seconds).unwrap(), "{questions}");
    let refused = wait::now();
    asked.get("ws_acme").expect_problem(503);
    assert!(refused.elapsed() < Duration::from_secs(5), "{:?}", refused.elapsed());
}

#[test]
fn an_answer_that_cannot_be_used_is_refused_reported_once_and_counted() {
    let asked = Asked::with("timeout = \"10s\"");
    for (at, (answer, word)) in [
        (Answer::ok("[]"), "not an object"),
        (Answer::ok(r#"{"plan": "free", "plan": "pro"}"#), "stands twice"),
        (Answer::ok(r#"{"plan": 7}"#), "plan must be text"),
        (Answer::ok(r#"{"plan": "gold"}"#), "unknown plan `gold`"),
        (Answer::ok(r#"{"limits": {"wrkspace": {"requests": 1}}}"#), "unknown limit `wrkspace`"),
        (Answer::ok(r#"{"limits": {"workspace": {"rate": 1}}}"#), "is a rolling window"),
        (Answer::ok(r#"{"organisation": "a/../b"}"#), "not an identifier"),
        (Answer::status(500), "answered 500"),
        (Answer::status(302).field("Location", "http://127.0.0.1:1/"), "answered 302"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("ws_{at}");
        asked.directory.answer(&format!("workspaces/{name}"), answer);
        for _ in 0..2 {
            asked.get(&name).expect_problem(503);
        }
        let entry = format!("workspaces/{name}");
        let about = |line: &serde_json::Value| line["entry"] == entry.as_str();
        let line = asked.world.gateway.log().wait("the report", about);
        assert!(line["error"].as_str().unwrap().contains(word), "{line}");
        let lines = asked.world.gateway.log().json();
        assert_eq!(lines.iter().filter(|line| about(line)).count(), 1);
    }
    assert_eq!(asked.metric("weir_gateway_directory_requests_total{outcome=\"invalid\"}"), 7.0);
    assert_eq!(asked.metric("weir_gateway_directory_requests_total{outcome=\"failed\"}"), 2.0);
    assert_eq!(asked.metric("weir_gateway_directory_unusable_total"), 9.0);
    assert_eq!(asked.world.control.requests().len(), 0);
}

#[test]
fn an_answer_without_end_is_cut_off() {
    let asked = Asked::with("timeout = \"10s\"");
    let endless = Answer::script()
        .send("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        .flood(8 << 20)
        .close();
    asked.directory.answer("workspaces/ws_acme", endless);
    asked.get("ws_acme").expect_problem(503);
    assert_eq!(asked.metric("weir_gateway_directory_requests_total{outcome=\"unanswered\"}"), 1.0);
}

#[test]
fn a_directory_that_fails_is_asked_about_a_name_once_a_second() {
    let asked = Asked::with(OLD);
    assert_eq!(asked.limit("ws_big"), 600);
    asked.directory.answer("workspaces/ws_big", Answer::status(500));
    let before = asked.directory.count("workspaces/ws_big");
    let started = wait::now();
    for _ in 0..100 {
        assert_eq!(asked.limit("ws_big"), 600);
    }
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    let questions = asked.directory.count("workspaces/ws_big") - before;
    assert!((1..=seconds + 2).contains(&questions), "{questions} in {seconds} s");
}

#[test]
fn an_answer_that_turns_bad_leaves_the_last_good_one() {
    let asked = Asked::with(OLD);
    assert_eq!(asked.limit("ws_special"), 7);
    asked.directory.set("workspaces/ws_special", r#"{"plan": "gold"}"#);
    assert_eq!(asked.limit("ws_special"), 7);
    asked.directory.set("workspaces/ws_special", r#"{"limits": {"workspace": {"requests": 5}}}"#);
    wait::until("it to be asked again", || {
        let answer = asked.get("ws_special");
        (answer.allowance().limit == 5).then_some(())
    });
}

#[test]
fn an_instance_has_values_of_its_own_only_where_its_plan_allows() {
    let asked = Asked::with("ttl = \"1ms\"\nnegative_ttl = \"1ms\"\ntimeout = \"10s\"");
    let login = Request::get("/login").host(&data_host("in_special"));
    assert_eq!(asked.world.call(&login).expect(200).allowance().limit, 9);
    asked.directory.set("workspaces/ws_special", r#"{"plan": "free"}"#);
    let refused = wait::until("the other plan", || {
        let answer = asked.world.call(&login);
        (answer.status != 200).then_some(answer)
    });
    refused.expect_problem(503);
    let line = asked
        .world
        .gateway
        .log()
        .wait("the report", |line| line["entry"] == "instances/in_special");
    assert!(line["error"].as_str().unwrap().contains("per_instance_limits = true"), "{line}");
    asked.directory.set("instances/in_special", r#"{"workspace": "ws_special"}"#);
    wait::until("no values of its own", || {
        let answer = asked.world.call(&login);
        (answer.status == 200 && answer.allowance().limit == 200).then_some(())
    });
}
