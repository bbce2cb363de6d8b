//! Every algorithm of a limit counts as its documentation says, across plans, reloads and restarts.

use std::time::Duration;

use serde_json::json;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::gateway::{CONFIG, Gateway, run};
use weir_tests::process;
use weir_tests::request::Request;
use weir_tests::timestamp;
use weir_tests::wait;
use weir_tests::world::World;

use super::{count, repeat};

const TARGET: &str = "/v1/workspaces/ws_acme";
const DAY: u64 = 86_400;

/// The limit of workspaces has these lines, and their plans and entries no values of it.
fn limited(config: Config, lines: &str) -> Config {
    let section = "[limits.workspace]";
    let config = config.without(section).with(section, &format!("key = \"workspace\"\n{lines}"));
    let config = config.with("[limits.organisation]", "requests = 10_000_000");
    config.without("[plans.enterprise]").with("[plans.enterprise]", "per_instance_limits = true")
}

fn directory() -> String {
    DIRECTORY.replace("limits.workspace = { requests = 7 }\n", "")
}

fn world(lines: &str) -> World {
    World::of(|config| limited(config, lines), &directory())
}

/// Activates other lines of the limit.
#[track_caller]
fn reload(world: &World, lines: &str) {
    world.gateway.write_config(&limited(world.config(), lines).to_string());
    world.gateway.reload().expect(200);
}

/// The next midnight UTC, at least half a minute from now.
fn next_midnight() -> u64 {
    let left = DAY - wait::unix_seconds() % DAY;
    if left < 30 {
        wait::pass(Duration::from_secs(left + 1));
    }
    (wait::unix_seconds() / DAY + 1) * DAY
}

#[test]
fn a_window_of_a_hundred_thousand_counts_each_request_and_keeps_its_count() {
    let lines = "algorithm = \"rolling_window\"\nrequests = 100_000\nwindow = \"10m\"";
    let world = World::of(
        |config| {
            let config = config.with("[store]", "snapshot = \"limits.snapshot\"");
            limited(config, lines)
        },
        &directory(),
    );
    let answers = repeat(&world, 200, &Request::get(TARGET));
    let last = answers.last().unwrap().allowance();
    assert_eq!((last.limit, last.remaining), (100_000, 99_800));
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 200);
    let url = format!("http://api.localhost{TARGET}");
    let explain = ["explain", "GET", &url, "--config", CONFIG];
    let explained = run(world.gateway.folder(), &explain).expect(0).stdout;
    assert!(explained.contains("100000 requests in any 10m, counted in slots of"), "{explained}");

    let new = world.gateway.upgrade();
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 99_799);
    let config = world.config().to_string();
    let World { gateway, control: _control, .. } = world;
    assert!(process::signal(new, "TERM"));
    gateway.log().to_end();
    let gateway = Gateway::start_in(gateway.into_folder(), &config, &directory());
    assert_eq!(gateway.used("workspace", "ws_acme"), 201);
}

#[test]
fn a_quota_that_is_lowered_below_the_use_of_its_slots_refuses_until_it_is_raised() {
    let lines = |requests: u32| {
        format!("algorithm = \"rolling_window\"\nrequests = {requests}\nwindow = \"10m\"")
    };
    let world = world(&lines(100_000));
    repeat(&world, 20, &Request::get(TARGET)).into_iter().for_each(|answer| {
        answer.expect(200);
    });
    reload(&world, &lines(20));
    let refused = world.get(TARGET);
    assert!((599..=601).contains(&refused.retry_after()), "{}", refused.retry_after());
    refused.expect_problem(429);
    reload(&world, &lines(100_000));
    assert_eq!(world.get(TARGET).expect(200).allowance().remaining, 99_979);
}

#[test]
fn a_rate_per_hour_gives_back_one_token_at_a_time() {
    for (rate, seconds) in [("3600/h", 1), ("5000/h", 1), ("360/h", 10), ("10/15m", 90)] {
        let world = world(&format!("algorithm = \"token_bucket\"\nrate = \"{rate}\"\nburst = 2"));
        let answers = repeat(&world, 3, &Request::get(TARGET));
        assert_eq!((count(&answers, 200), count(&answers, 429)), (2, 1), "{rate}");
        assert_eq!(answers[2].retry_after(), seconds, "{rate}");
        assert_eq!(answers[2].allowance().limit, 2, "{rate}");
        if seconds == 1 {
            wait::pass(Duration::from_secs(1));
            world.get(TARGET).expect(200);
        }
    }
}

#[test]
fn a_day_of_utc_ends_at_midnight_and_its_count_survives_a_restart() {
    let lines = "algorithm = \"calendar_day\"\nrequests = 3\ntime_zone = \"UTC\"";
    let midnight = next_midnight();
    let world = World::of(
        |config| limited(config.with("[store]", "snapshot = \"limits.snapshot\""), lines),
        &directory(),
    );
    for remaining in [2, 1] {
        let allowance = world.get(TARGET).expect(200).allowance();
        assert_eq!((allowance.limit, allowance.remaining), (3, remaining));
        assert_eq!(allowance.reset, midnight);
    }
    let config = world.config().to_string();
    let World { gateway, control: _control, .. } = world;
    gateway.signal("TERM");
    let gateway = Gateway::start_in(gateway.into_folder(), &config, &directory());
    let mut client = gateway.client();
    assert_eq!(client.get(TARGET).expect(200).allowance().remaining, 0);
    let refused = client.get(TARGET);
    let left = midnight - wait::unix_seconds();
    assert!((left..=left + 2).contains(&refused.retry_after()), "{}", refused.retry_after());
    assert_eq!(refused.allowance().reset, midnight);
    refused.expect_problem(429);
    gateway.upgrade();
    let refused = gateway.client().get(TARGET).expect(429);
    assert_eq!(refused.allowance().reset, midnight);
}

#[test]
fn a_day_begins_at_midnight_of_its_zone_and_a_month_on_its_first_day() {
    next_midnight();
    let day = world("algorithm = \"calendar_day\"\nrequests = 3\ntime_zone = \"Asia/Tokyo\"");
    let reset = day.get(TARGET).expect(200).allowance().reset;
    assert_eq!(reset % DAY, 15 * 3_600, "midnight in Tokyo");
    assert!((0..=DAY).contains(&(reset - wait::unix_seconds())), "{reset}");

    let month = world("algorithm = \"calendar_month\"\nrequests = 3\ntime_zone = \"UTC\"");
    let reset = month.get(TARGET).expect(200).allowance().reset;
    let line = month.gateway.log().json().remove(0);
    let (year, rest) = line["time"].as_str().unwrap().split_once('-').unwrap();
    let (year, number): (u64, u64) = (year.parse().unwrap(), rest[..2].parse().unwrap());
    let (year, number) = if number == 12 { (year + 1, 1) } else { (year, number + 1) };
    let first = timestamp::millis(&format!("{year}-{number:02}-01T00:00:00Z"));
    assert_eq!(reset, first / 1_000);
}

#[test]
fn a_plan_and_a_tenant_change_the_algorithm_for_themselves_alone() {
    let world = World::of(
        |config| {
            config.with(
                "[plans.enterprise]",
                "limits.workspace = { algorithm = \"token_bucket\", rate = \"360/h\", burst = 3 }",
            )
        },
        &DIRECTORY.replace("{ requests = 7 }", "{ algorithm = \"concurrency\", requests = 8 }"),
    );
    let of = |workspace: &str| {
        let path = format!("/v1/workspaces/{workspace}/users");
        repeat(&world, 4, &Request::get(&path))
    };
    let big = of("ws_big");
    assert_eq!((count(&big, 200), big[3].retry_after()), (3, 10));
    assert_eq!(big[0].allowance().limit, 3);
    let acme = of("ws_acme");
    assert_eq!((count(&acme, 200), acme[3].allowance().remaining), (4, 56));
    let special = of("ws_special");
    assert_eq!((count(&special, 200), special[3].allowance().remaining), (4, 7));
    let allowance = |key: &str| world.gateway.limit("workspace", key)["allowance"].clone();
    let bucket = json!({"algorithm": "token_bucket", "rate": "360/h", "burst": 3});
    assert_eq!(allowance("ws_big"), bucket);
    assert_eq!(allowance("ws_special"), json!({"algorithm": "concurrency", "requests": 8}));
    assert_eq!(allowance("ws_acme")["algorithm"], "rolling_window");
    assert_eq!(world.gateway.used("workspace", "ws_special"), 0);
}

#[test]
fn a_reload_that_changes_the_algorithm_and_changes_it_back_loses_nothing() {
    const ROLLING: &str = "algorithm = \"rolling_window\"\nrequests = 5\nwindow = \"1h\"";
    next_midnight();
    for other in [
        "algorithm = \"token_bucket\"\nrate = \"1/h\"\nburst = 5",
        "algorithm = \"rolling_window\"\nrequests = 100_000\nwindow = \"1h\"",
        "algorithm = \"calendar_day\"\nrequests = 5\ntime_zone = \"UTC\"",
        "algorithm = \"calendar_month\"\nrequests = 5\ntime_zone = \"Asia/Tokyo\"",
        "algorithm = \"concurrency\"\nrequests = 5",
    ] {
        let world = world(ROLLING);
        repeat(&world, 5, &Request::get(TARGET)).into_iter().for_each(|answer| {
            answer.expect(200);
        });
        reload(&world, other);
        let status = world.get(TARGET).status;
        let is_other_count = other.contains("concurrency") || other.contains("100_000");
        assert_eq!(status, if is_other_count { 200 } else { 429 }, "{other}");
        reload(&world, ROLLING);
        let refused = world.get(TARGET);
        assert!((3_590..=3_601).contains(&refused.retry_after()), "{other}");
        refused.expect_problem(429);
    }
}

#[test]
fn a_boost_raises_what_may_be_in_flight_and_what_a_day_has() {
    for (lines, raised) in [
        ("algorithm = \"concurrency\"\nrequests = 2", "{\"requests\":5,\"ttl\":\"10m\"}"),
        (
            "algorithm = \"calendar_day\"\nrequests = 2\ntime_zone = \"UTC\"",
            "{\"requests\":5,\"ttl\":\"10m\"}",
        ),
        (
            "algorithm = \"token_bucket\"\nrate = \"1/h\"\nburst = 2",
            "{\"burst\":5,\"rate\":\"2/h\",\"ttl\":\"10m\"}",
        ),
    ] {
        let world = world(lines);
        assert_eq!(world.get(TARGET).expect(200).allowance().limit, 2, "{lines}");
        let boost = Request::post("/limits/workspace/ws_acme/boost", raised);
        world.gateway.call_admin(&boost).expect(200);
        assert_eq!(world.get(TARGET).expect(200).allowance().limit, 5, "{lines}");
        world.gateway.upgrade();
        assert_eq!(world.get(TARGET).expect(200).allowance().limit, 5, "{lines}");
    }
}

#[test]
fn a_rate_per_hour_is_boosted_by_the_command_line() {
    let world = world("algorithm = \"token_bucket\"\nrate = \"360/h\"\nburst = 2");
    let admin = world.gateway.admin();
    let boost = |rate: &str| {
        let arguments = ["limits", "boost", "ws_acme", "--limit", "workspace", "--rate", rate];
        run(world.gateway.folder(), &[&arguments[..], &["--admin", admin]].concat())
    };
    let shown = boost("720/h").expect(0).stdout;
    assert!(shown.contains("(rate 720/h, burst 2)"), "{shown}");
    assert!(boost("3").expect(0).stdout.contains("(rate 3, burst 2)"));
    for (rate, why) in [("5 per hour", "5000/h"), ("359/h", "is less")] {
        let refused = boost(rate).expect(1).stderr;
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn workspaces_of_several_plans_do_not_free_their_organisations_allowance() {
    let enterprise = |value: &str| format!("limits.organisation = {{ {value} }}");
    let mut wrong = Vec::new();
    for value in [
        "requests = 9",
        "algorithm = \"token_bucket\", rate = 1000, burst = 9",
        "requests = 9, window = \"100ms\"",
        "algorithm = \"concurrency\", requests = 9",
    ] {
        let world = World::of(
            |config| {
                config
                    .with("[limits.organisation]", "requests = 5")
                    .with("[plans.enterprise]", &enterprise(value))
            },
            &DIRECTORY.replace(
                "[workspaces.ws_quiet]\norganisation = \"org_acme\"\nplan = \"free\"",
                "[workspaces.ws_quiet]\norganisation = \"org_acme\"\nplan = \"enterprise\"",
            ),
        );
        let answers = repeat(&world, 6, &Request::get(TARGET));
        assert_eq!(count(&answers, 200), 5, "{value}");
        wait::pass(Duration::from_millis(300));
        world.get("/v1/workspaces/ws_quiet").expect(200);
        wait::pass(Duration::from_millis(300));
        if world.get(TARGET).status != 429 {
            wrong.push(value);
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
