//! Lists: pages follow each other without gaps, and filters return exactly what they name.

use std::collections::BTreeSet;

use weir_tests::answer::Answer;

use super::{Stage, text, time};

#[test]
fn pages_follow_each_other_without_a_gap_or_a_repetition() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    let mut posted = stage.dispatcher.post_events("user.created", 25);
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("delivered", 25);
    let listed = acme.deliveries("limit=10");
    let mut ids: Vec<_> = listed.iter().map(|one| text(one, "event_id").to_owned()).collect();
    ids.sort();
    posted.sort();
    assert_eq!(ids, posted);
    let first = acme.get("/deliveries?limit=10").expect(200).json();
    assert_eq!(first["data"].as_array().unwrap().len(), 10);
    assert!(first["next_cursor"].is_string(), "{first}");
    let all = acme.get("/deliveries?limit=30").expect(200).json();
    assert!(all["next_cursor"].is_null(), "not the last page: {}", all["next_cursor"]);
}

#[test]
fn an_export_has_the_lines_of_all_pages_and_only_what_its_filter_selects() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created", "plan.changed"]);
    stage.dispatcher.post_events("user.created", 230);
    let plan = stage.dispatcher.post_event("plan.changed");
    let acme = stage.dispatcher.acme();
    acme.wait_for_count("delivered", 231);
    let export = |query: &str| -> Vec<serde_json::Value> {
        let answer = acme.get(&format!("/deliveries/export{query}")).expect(200);
        assert_eq!(answer.field("content-type"), Some("application/x-ndjson"));
        let body = answer.text();
        assert!(body.is_empty() || body.ends_with('\n'), "the last line is cut");
        body.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    };
    let mut listed = acme.deliveries("");
    assert_eq!(export(""), listed);
    listed.reverse();
    assert_eq!(export("?order=oldest"), listed);
    let of_plan = export(&format!("?event={plan}&status=200"));
    assert_eq!(of_plan.iter().map(|one| text(one, "event_id")).collect::<Vec<_>>(), [plan]);
    assert_eq!(export("?tenant=tn_none"), [] as [serde_json::Value; 0]);
    acme.get("/deliveries/export?limit=5").expect_problem(400);
}

#[test]
fn webhooks_are_listed_by_pages_too() {
    let stage = Stage::new();
    let made: BTreeSet<String> =
        (0..7).map(|number| stage.webhook(&format!("/{number}"), &["user.created"]).id).collect();
    let listed = stage.dispatcher.acme().list("/webhooks", "limit=3");
    assert_eq!(listed.len(), 7);
    let listed: BTreeSet<String> = listed.iter().map(|one| text(one, "id").to_owned()).collect();
    assert_eq!(listed, made);
}

#[test]
fn an_invented_cursor_is_refused() {
    let stage = Stage::new();
    let acme = stage.dispatcher.acme();
    for query in ["cursor=nonsense", "limit=0", "limit=x", "state=lost", "colour=x"] {
        let answer = acme.get(&format!("/deliveries?{query}"));
        let status = answer.status;
        assert!([400, 422].contains(&status), "{query}: {status}");
        answer.expect_problem(status);
    }
}

#[test]
fn filters_let_through_what_they_name() {
    let stage = Stage::new();
    stage.receiver.answer(|request| match request.target().as_slice() {
        b"/bad" => Answer::status(500),
        _ => Answer::status(200),
    });
    let good = stage.webhook("/good", &["user.created", "plan.changed"]);
    let bad = stage.webhook("/bad", &["user.created"]);
    let acme = stage.dispatcher.acme();
    let created = stage.dispatcher.post_event("user.created");
    let changed = stage.dispatcher.post_event("plan.changed");
    acme.wait_for_count("failed_permanent", 1);
    acme.wait_for_count("delivered", 2);

    let found = |filter: &str| -> BTreeSet<(String, String)> {
        let pair = |one: &serde_json::Value| {
            (text(one, "event_id").to_owned(), text(one, "webhook_id").to_owned())
        };
        acme.deliveries(filter).iter().map(pair).collect()
    };
    let pair = |event: &String, webhook: &String| (event.clone(), webhook.clone());
    let failed = pair(&created, &bad.id);
    let [first, second] = [&created, &changed].map(|event| pair(event, &good.id));
    assert_eq!(found("state=failed_permanent"), BTreeSet::from([failed.clone()]));
    assert_eq!(found("state=delivered"), BTreeSet::from([first.clone(), second.clone()]));
    assert_eq!(found(&format!("webhook={}", bad.id)), BTreeSet::from([failed.clone()]));
    assert_eq!(found("type=plan.changed"), BTreeSet::from([second.clone()]));
    let both = format!("type=user.created&webhook={}", good.id);
    assert_eq!(found(&both), BTreeSet::from([first]));
    let last = acme.wait_for_delivery(&changed, |_| true);
    assert_eq!(found("since=2999-01-01T00:00:00Z"), BTreeSet::new());
    assert!(found(&format!("since={}", text(&last, "created_at"))).contains(&second));
    assert!(time(&last, "ended_at") >= time(&last, "created_at"), "{last}");
}
