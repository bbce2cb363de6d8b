//! What all gateways admit together is exactly the allowance.

use std::time::Duration;

use weir_tests::config::Config;
use weir_tests::gateway::Gateway;
use weir_tests::redis::{Redis, Reply};
use weir_tests::relay::{Relay, Replies};
use weir_tests::request::{Request, data_host};
use weir_tests::wait;

use super::{Fleet, TARGET, check_windows, count};

#[test]
fn two_gateways_in_turn_count_down_one_allowance_and_agree_when_it_is_back() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 20"));
    for nth in 0..20 {
        let allowance = fleet.get(nth % 2, TARGET).expect(200).allowance();
        assert_eq!((allowance.limit, allowance.remaining), (20, 19 - nth as u64));
    }
    let [first, second] = [0, 1].map(|nth| fleet.get(nth, TARGET).expect(429));
    assert!(first.retry_after().abs_diff(second.retry_after()) <= 1);
    assert!(first.allowance().reset.abs_diff(second.allowance().reset) <= 1);
    assert!((50..=60).contains(&first.retry_after()), "{}", first.retry_after());
    first.expect_problem(429);
    assert_eq!(fleet.upstream.requests().len(), 20);
}

#[test]
fn two_gateways_at_once_admit_exactly_one_allowance() {
    let fleet = Fleet::with(|config| config);
    let answers = fleet.at_once(5, 20, &Request::get(TARGET));
    assert_eq!((count(&answers, 200), count(&answers, 429)), (60, 140));
    assert_eq!(fleet.upstream.requests().len(), 60);
    let admitted = answers.iter().filter(|answer| answer.status == 200);
    let mut left: Vec<u64> = admitted.map(|answer| answer.allowance().remaining).collect();
    left.sort_unstable();
    assert_eq!(left, (0..60).collect::<Vec<_>>(), "two responses carried the same remaining");
}

#[test]
fn a_workspace_and_its_organisation_are_charged_together_or_not_at_all() {
    let fleet = Fleet::with(|config| {
        config
            .with("[limits.workspace]", "requests = 5")
            .with("[limits.organisation]", "requests = 8")
    });
    let noisy = fleet.at_once(2, 5, &Request::get(TARGET));
    assert_eq!((count(&noisy, 200), count(&noisy, 429)), (5, 15));
    let quiet = fleet.at_once(2, 3, &Request::get("/v1/workspaces/ws_quiet/users"));
    assert_eq!(count(&quiet, 200), 3, "the organisation has 8, of which 5 are gone");
    for refused in quiet.iter().filter(|answer| answer.status == 429) {
        assert_eq!(refused.allowance().resource, "organisation");
    }
    assert_eq!(fleet.upstream.requests().len(), 8);
}

#[test]
fn a_flood_of_refused_requests_does_not_reach_the_store() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 5"));
    assert_eq!(count(&fleet.at_once(1, 6, &Request::get(TARGET)), 200), 5);
    // Heartbeats read no windows.
    let before = fleet.redis.calls("getrange");
    assert!(before >= 6, "{before}");
    assert_eq!(count(&fleet.at_once(2, 100, &Request::get(TARGET)), 429), 400);
    assert_eq!(fleet.redis.calls("getrange"), before);
    fleet.get(0, "/v1/workspaces/ws_quiet").expect(200);
    assert!(fleet.redis.calls("getrange") > before);
}

#[test]
fn no_window_of_two_gateways_admits_more_and_none_less() {
    const WINDOW: Duration = Duration::from_millis(1_500);
    let fleet = Fleet::with(|config| {
        config
            .with("[limits.workspace]", "requests = 50\nwindow = \"1500ms\"")
            .with("[limits.organisation]", "requests = 100_000")
    });
    let admitted = fleet.under_load(|| wait::pass(3 * WINDOW));
    check_windows(&admitted, 50, WINDOW);
}

#[test]
fn a_bucket_of_two_gateways_has_one_burst_and_one_rate() {
    let world = |lines: &str| Fleet::with(|config| config.with("[limits.instance]", lines));
    let request = Request::get("/login").host(&data_host("in_acme"));
    let fleet = world("rate = \"1/h\"\nburst = 30");
    // One may be refused while the other still holds tokens.
    let admitted = count(&fleet.at_once(3, 10, &request), 200);
    assert_eq!(admitted + fleet.drained(), 30);
    assert_eq!(fleet.upstream.requests().len(), 30);

    let fleet = world("rate = 100\nburst = 10");
    let began = wait::now();
    let answers = fleet.at_once(2, 200, &request);
    let most = 10 + began.elapsed().as_millis() / 10 + 1;
    let admitted = count(&answers, 200);
    assert!((10..=most).contains(&(admitted as u128)), "{admitted} admitted, at most {most}");
    wait::pass(Duration::from_millis(50));
    fleet.call(0, &request).expect(200);
}

#[test]
fn a_calendar_of_two_gateways_is_one_allowance() {
    let lines = "key = \"workspace\"\nalgorithm = \"calendar_month\"\nrequests = 9\n\
                 time_zone = \"UTC\"";
    let fleet = Fleet::with(|config| {
        config
            .without("[limits.workspace]")
            .with("[limits.workspace]", lines)
            .without("[plans.enterprise]")
            .with("[plans.enterprise]", "per_instance_limits = true")
            .replacing("limits = [\"workspace\", \"organisation\"]", "limits = [\"workspace\"]")
    });
    for nth in 0..9 {
        let allowance = fleet.get(nth % 2, TARGET).expect(200).allowance();
        assert_eq!(allowance.remaining, 8 - nth as u64);
    }
    let [first, second] = [0, 1].map(|nth| fleet.get(nth, TARGET).expect(429).allowance());
    assert_eq!(first, second);
}

#[test]
fn a_batch_costs_its_items_in_the_store() {
    let fleet = Fleet::with(|config| {
        config
            .with(
                "[limits.items]",
                "key = \"workspace\"\nalgorithm = \"rolling_window\"\nrequests = 10\n\
                 window = \"1m\"",
            )
            .with(
                "[[routes]]",
                "plane = \"control\"\nmethods = [\"POST\"]\n\
                 path = \"/v1/workspaces/{workspace}/things:batch\"\nlimits = [\"items\"]\n\
                 batch_items_max = 8\ncost = \"items\"\nupstream = \"control\"",
            )
    });
    let batch = |items: usize| {
        let body = format!("[{}]", vec!["1"; items].join(","));
        Request::new("POST", "/v1/workspaces/ws_acme/things:batch").body(body)
    };
    assert_eq!(fleet.call(0, &batch(7)).expect(200).allowance().remaining, 3);
    assert_eq!(fleet.call(1, &batch(4)).expect(429).allowance().limit, 10);
    assert_eq!(fleet.call(1, &batch(2)).expect(200).allowance().remaining, 1);
    fleet.call(0, &batch(2)).expect(429);
    assert_eq!(fleet.call(0, &batch(1)).expect(200).allowance().remaining, 0);
    fleet.call(1, &batch(1)).expect(429);
}

#[test]
fn a_tenant_that_the_directory_does_not_know_has_one_allowance_too() {
    let fleet = Fleet::with(|config| config.with("[limits.workspace]", "requests = 7"));
    let answers = fleet.at_once(2, 5, &Request::get("/v1/workspaces/ws_unknown"));
    assert_eq!(count(&answers, 200), 7);
    let address = fleet.at_once(2, 20, &Request::get("/v1/anything"));
    assert_eq!(count(&address, 200), 60);
}

#[test]
fn invented_keys_beyond_the_bound_share_a_few_in_the_store_too() {
    let own = "key = \"header:X-Api-Key\"\nalgorithm = \"rolling_window\"\nrequests = 1\n\
               window = \"1m\"";
    let fleet = Fleet::of(Redis::start(&[]), 1, |config| {
        config
            .with("[store]", "max_keys = 1_000")
            .with("[limits.own]", own)
            .with("[limits.address]", "requests = 100_000")
            .with(
                "[[routes]]",
                "plane = \"control\"\npath = \"/v1/invented\"\nlimits = [\"own\", \"address\"]\n\
                 upstream = \"control\"",
            )
    });
    let mut client = fleet.gateways[0].client();
    let mut admitted = 0;
    for number in 0..2_500 {
        let name = format!("invented-{number}");
        let request = Request::get("/v1/invented").field("X-Api-Key", &name);
        admitted += i64::from(client.call(&request).status == 200);
    }
    // 1,500 share 4,096 entries: 1,256 of them are the first.
    assert!((1_900..2_400).contains(&admitted), "{admitted} of 2,500");
    let Reply::Number(keys) = fleet.redis.run("DBSIZE") else { panic!("no number") };
    // The address, the fingerprint and the gateways are keys, too.
    assert_eq!(keys, admitted + 3);
    let unknown = fleet.gateways[0].metric("weir_gateway_limit_keys_unknown");
    assert!(unknown <= 1_026.0, "{unknown}");
}

/// Two gateways, of which the first reaches the store through a relay.
pub(super) fn relayed(timeout: &str, change: impl FnOnce(Config) -> Config) -> (Fleet, Relay) {
    let redis = Redis::start(&[]);
    let relay = Relay::start(&redis.address());
    let url = format!("url = \"redis://{}\"\ntimeout = \"{timeout}\"", relay.address());
    let fleet = Fleet::of(redis, 2, |config| change(config.with("[store]", &url)));
    (fleet, relay)
}

#[test]
fn a_slow_store_admits_exactly_the_allowance() {
    let (fleet, relay) = relayed("1s", |config| config);
    relay.set(Replies::Delay(Duration::from_millis(20)));
    let answers = fleet.at_once(4, 12, &Request::get(TARGET));
    assert_eq!(count(&answers, 200), 60);
    assert_eq!(fleet.upstream.requests().len(), 60);
}

#[test]
fn cut_connections_admit_no_more_than_the_allowance() {
    let (fleet, relay) = relayed("1s", |config| config);
    fleet.wait_until_known();
    let mut admitted = 0;
    for round in 0..20 {
        admitted += count(&fleet.at_once(1, 4, &Request::get(TARGET)), 200);
        if round % 3 == 0 {
            relay.cut();
        }
    }
    // A call whose reply was lost may have charged.
    assert!((50..=60).contains(&admitted), "{admitted}");
}

#[test]
fn lost_replies_admit_no_more_than_the_allowance_and_are_not_repeated() {
    let (fleet, relay) =
        relayed("300ms", |config| config.with("[limits.workspace]", "requests = 20"));
    fleet.wait_until_known();
    relay.set(Replies::Swallow);
    let lost = fleet.at_once(1, 3, &Request::get(TARGET));
    assert_eq!(count(&lost, 200), 6, "each admits its share");
    relay.set(Replies::Pass);
    fleet.gateways[0].log().wait("the return", |line| line["message"] == "shared store available");
    let is_up = |gateway: &Gateway| gateway.metric("weir_gateway_store_up") == 1.0;
    wait::until("both", || fleet.gateways.iter().all(is_up).then_some(()));
    let admitted = 6 + count(&fleet.at_once(2, 10, &Request::get(TARGET)), 200);
    assert!((14..=20).contains(&admitted), "{admitted}");
}
