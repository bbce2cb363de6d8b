//! Which entries the gateway fetches, how often, and how it caches them.

use std::thread;
use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::config::Config;
use weir_tests::directory::Directory;
use weir_tests::folder::Folder;
use weir_tests::gateway::{CONFIG, run};
use weir_tests::request::{Request, data_host};
use weir_tests::wait;
use weir_tests::world::World;

use super::super::{at_once, count};
use super::{ADDRESS, Setup};

/// Entries stay valid for longer than a test, unless the test sets another time.
pub(super) const LONG: &str = "ttl = \"1h\"\nnegative_ttl = \"1h\"\ntimeout = \"10s\"";

#[test]
fn a_tenant_is_fetched_once_and_limited_as_by_the_file() {
    let setup = Setup::with(LONG);
    for _ in 0..3 {
        assert_eq!(setup.limit("ws_acme"), 60);
        assert_eq!(setup.limit("ws_special"), 7, "its own, against 600 of its plan");
        assert_eq!(setup.limit("ws_big"), 600);
    }
    let login = Request::get("/login").host(&data_host("in_special"));
    for _ in 0..3 {
        assert_eq!(setup.world.call(&login).expect(200).allowance().limit, 9);
    }
    assert_eq!(
        setup.directory.fetched(),
        [
            "workspaces/ws_acme",
            "organisations/org_acme",
            "workspaces/ws_special",
            "organisations/org_globex",
            "workspaces/ws_big",
            "instances/in_special",
        ]
    );
    assert_eq!(setup.world.gateway.used("organisation", "org_globex"), 6);
    assert_eq!(setup.world.gateway.allowed("workspace", "ws_special"), 7);
    assert_eq!(setup.metric("weir_gateway_directory_requests_total{outcome=\"known\"}"), 6.0);
    assert_eq!(setup.metric("weir_gateway_directory_request_duration_seconds_count"), 6.0);
    assert_eq!(setup.metric("weir_gateway_directory_entries{kind=\"known\"}"), 6.0);
}

#[test]
fn a_hundred_requests_at_once_for_one_tenant_fetch_it_once() {
    for workspace in ["ws_acme", "ws_stranger"] {
        let setup = Setup::with(LONG);
        let gate = Gate::new();
        let path = format!("workspaces/{workspace}");
        let answer = match workspace {
            "ws_acme" => Answer::ok(r#"{"organisation": "org_acme"}"#),
            _ => Answer::status(404),
        };
        setup.directory.answer(&path, Answer::script().wait(&gate).and(answer));
        let request = Request::get(&format!("/v1/workspaces/{workspace}/users"));
        thread::scope(|scope| {
            let answers = scope.spawn(|| at_once(&setup.world, 100, 1, &request));
            setup.world.control.assert_untouched();
            setup.directory.server.wait("the question", |seen| seen.requests.first().map(|_| ()));
            wait::until("all hundred", || {
                (setup.metric("weir_gateway_requests_in_flight") >= 100.0).then_some(())
            });
            gate.open();
            let answers = answers.join().unwrap();
            assert_eq!((count(&answers, 200), count(&answers, 429)), (60, 40), "{workspace}");
        });
        assert_eq!(setup.directory.count(&path), 1);
    }
}

#[test]
fn a_change_or_removal_is_seen_when_the_cached_entry_expires() {
    let setup = Setup::with("ttl = \"300ms\"\nnegative_ttl = \"300ms\"\ntimeout = \"10s\"");
    assert_eq!(setup.limit("ws_special"), 7);
    let changed = r#"{"plan": "enterprise", "limits": {"workspace": {"requests": 5}}}"#;
    setup.directory.set("workspaces/ws_special", changed);
    // Admitted or refused, the response carries the allowance.
    let seen = |what, limit| {
        wait::until(what, || (setup.get("ws_special").allowance().limit == limit).then_some(()));
    };
    seen("the change", 5);
    setup.directory.remove("workspaces/ws_special");
    seen("the removal", 60);
    setup.directory.set("workspaces/ws_special", changed);
    seen("the return", 5);
}

#[test]
fn an_operator_refreshes_an_entry_at_once() {
    let setup = Setup::with(LONG);
    assert_eq!(setup.limit("ws_special"), 7);
    assert_eq!(setup.limit("ws_new"), 60);
    setup.directory.set("workspaces/ws_special", r#"{"limits": {"workspace": {"requests": 5}}}"#);
    setup.directory.set("workspaces/ws_new", r#"{"limits": {"workspace": {"requests": 4}}}"#);
    assert_eq!((setup.limit("ws_special"), setup.limit("ws_new")), (7, 60));
    for name in ["ws_special", "ws_new"] {
        let forget = Request::new("POST", &format!("/directory/forget/workspaces/{name}")).body("");
        let forgotten = setup.world.gateway.call_admin(&forget).expect(200).json();
        assert_eq!(forgotten["forgotten"], format!("workspaces/{name}"));
    }
    assert_eq!((setup.limit("ws_special"), setup.limit("ws_new")), (5, 4));
    for wrong in ["tenants/ws_new", "workspaces/a.b", "workspaces"] {
        let forget = Request::new("POST", &format!("/directory/forget/{wrong}")).body("");
        setup.world.gateway.call_admin(&forget).expect(404);
    }
    let forget = Request::new("POST", "/directory/forget/workspaces/ws_acme").body("");
    World::new().gateway.call_admin(&forget).expect_problem(409);
}

#[test]
fn an_organisation_that_a_known_entry_names_is_known() {
    let setup = Setup::with(&format!("{LONG}\nunknown = \"by_address\""));
    setup.directory.remove("organisations/org_acme");
    setup.directory.remove("workspaces/ws_acme");
    setup.directory.set("workspaces/ws_quiet", r#"{"organisation": "org_acme"}"#);
    let own = Request::get("/v1/organisations/org_acme");
    let before = setup.world.call(&own).expect(200).allowance();
    assert_eq!(before.resource, "address", "no known entry names it yet");
    assert_eq!(setup.get("ws_quiet").expect(200).allowance().resource, "workspace");
    assert_eq!(setup.world.gateway.used("organisation", "org_acme"), 1);
    assert_eq!(setup.world.gateway.used("address", ADDRESS), 1);
    setup.world.get_from("in_acme", "/login").expect(200);
    assert_eq!(setup.directory.count("organisations/org_acme"), 1, "it was asked already");
}

#[test]
fn a_request_without_a_tenant_limit_fetches_no_entry() {
    let setup = Setup::with(LONG);
    setup.world.get("/healthz").expect(200);
    setup.world.get("/v1/me").expect(200);
    setup.world.get_from("in_acme", "/oauth/v2/keys").expect(200);
    assert_eq!(setup.directory.fetched(), [""; 0]);
    let batch = Request::post("/v1/workspaces/ws_acme/tenants:batch", "[]");
    setup.world.call(&batch).expect(200);
    setup.world.get_from("in_acme", "/login").expect(200);
    assert_eq!(setup.directory.fetched(), ["workspaces/ws_acme", "instances/in_acme"]);
}

#[test]
fn unlisted_workspaces_behind_one_address_are_served_and_keep_out_no_listed_one() {
    let mut setup = Setup::with("ttl = \"1h\"\nnegative_ttl = \"1ms\"\ntimeout = \"10s\"");
    setup.directory.remove("organisations/org_acme");
    setup.get("ws_quiet").expect(200);
    let started = wait::now();
    for _ in 0..20 {
        (0..10).for_each(|n| drop(setup.get(&format!("ws_unlisted_{n}")).expect(200)));
    }
    let lookups = setup.directory.fetched().iter().filter(|path| path.contains("unlisted")).count();
    // Half of the 60 are left to new names.
    let most = 30 + usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((10..=most).contains(&lookups), "{lookups} lookups, of 10 to {most}");
    assert_eq!(setup.limit("ws_special"), 7);
    setup.get("ws_unlisted_new").expect(200);

    setup.directory.server.stop();
    setup.get("ws_unlisted_0").expect(200);
    setup.get("ws_quiet").expect(200);
}

#[test]
fn names_that_the_directory_refuses_are_bounded_as_invented_ones_and_logged() {
    let setup = Setup::with(LONG);
    setup.directory.server.always(Answer::status(400));
    let started = wait::now();
    (0..100).for_each(|n| drop(setup.get(&format!("ws_{n}")).expect(503)));
    let lookups = setup.directory.fetched().len();
    let most = 60 + usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((60..=most).contains(&lookups), "{lookups} lookups, of 60 to {most}");
    setup.world.gateway.log().wait("the report", |line| {
        line["message"] == "lookups of unknown names refused" && line["address"] == ADDRESS
    });
}

#[test]
fn names_that_get_no_response_are_bounded_as_invented_ones() {
    let setup = Setup::with("ttl = \"1ms\"\nstale_for = \"1h\"\ntimeout = \"100ms\"");
    let silent = Gate::new();
    for n in 0..70 {
        let entry = format!("workspaces/ws_{n}");
        setup.directory.answer(&entry, Answer::script().wait(&silent));
    }
    let started = wait::now();
    for n in 0..70 {
        setup.get("ws_big").expect(200);
        setup.get(&format!("ws_{n}")).expect(503);
    }
    let is_silent = |path: &&String| *path != "workspaces/ws_big" && !path.starts_with("org");
    let lookups = setup.directory.fetched().iter().filter(is_silent).count();
    let most = 60 + usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((60..=most).contains(&lookups), "{lookups} lookups, of 60 to {most}");
    silent.open();
}

#[test]
fn a_tenant_whose_lookup_failed_is_served_beside_unlisted_ones_once_the_directory_is_well() {
    let setup = Setup::with("ttl = \"1h\"\nnegative_ttl = \"1ms\"\ntimeout = \"10s\"");
    setup.directory.answer("workspaces/ws_late", Answer::status(500));
    let beside_unlisted = || {
        (0..10).for_each(|n| drop(setup.get(&format!("ws_unlisted_{n}"))));
        setup.get("ws_late").status
    };
    (0..20).for_each(|_| assert_eq!(beside_unlisted(), 503));
    setup.directory.set("workspaces/ws_late", "{}");
    wait::until("it to be served", || (beside_unlisted() == 200).then_some(()));
}

#[test]
fn tenants_whose_lookups_failed_are_served_soon_after_the_directory_is_well() {
    let setup = Setup::with(LONG);
    setup.directory.server.always(Answer::status(500));
    (0..60).for_each(|n| drop(setup.get(&format!("ws_{n}")).expect(503)));
    (0..60).for_each(|n| setup.directory.set(&format!("workspaces/ws_{n}"), "{}"));
    setup.directory.recover();
    let all = || (0..60).all(|n| setup.get(&format!("ws_{n}")).status == 200);
    let served = wait::within(Duration::from_secs(8), || all().then_some(()));
    assert!(served.is_some(), "{} requests", setup.directory.fetched().len());
}

#[test]
fn tenants_that_are_not_cached_wait_for_a_slow_directory_and_are_served() {
    let setup = Setup::with("timeout = \"1s\"");
    let slow = Answer::script().pause(Duration::from_millis(200)).and(Answer::ok("{}"));
    setup.directory.server.always(slow);
    thread::scope(|scope| {
        for n in 0..120 {
            let setup = &setup;
            scope.spawn(move || drop(setup.get(&format!("ws_{n}")).expect(200)));
        }
    });
}

#[test]
fn one_address_may_call_for_many_known_tenants() {
    let setup = Setup::with(&format!("{LONG}\nunknown = \"by_address\""));
    for number in 0..200 {
        setup.directory.set(&format!("workspaces/ws_{number}"), "{}");
    }
    thread::scope(|scope| {
        for thread in 0..20 {
            let setup = &setup;
            scope.spawn(move || {
                for number in 0..10 {
                    setup.get(&format!("ws_{}", thread * 10 + number)).expect(200);
                }
            });
        }
    });
    assert_eq!(setup.world.gateway.used("address", ADDRESS), 0);
}

#[test]
fn a_reload_keeps_the_cache_unless_the_directory_changes() {
    let setup = Setup::with(LONG);
    assert_eq!((setup.limit("ws_big"), setup.limit("ws_special")), (600, 7));
    let before = setup.directory.fetched().len();
    // The new limit and plan come first, so those that a cached entry refers to change their
    // indexes.
    let config = setup
        .world
        .config()
        .with(
            "[limits.aaa]",
            "key = \"workspace\"\nalgorithm = \"token_bucket\"\nrate = 1\nburst = 1",
        )
        .with("[plans.aaa]", "")
        .with("[server]", "body_timeout = \"20s\"\nidle_timeout = \"1234567ms\"");
    setup.world.gateway.write_config(&config.to_string());
    setup.world.gateway.reload().expect(200);
    assert_eq!((setup.limit("ws_big"), setup.limit("ws_special")), (600, 7));
    assert_eq!(setup.directory.fetched().len(), before, "it was asked again");

    setup.world.gateway.write_config(&config.with("[directory]", "ttl = \"2h\"").to_string());
    setup.world.gateway.reload().expect(200);
    assert_eq!(setup.limit("ws_special"), 7);
    assert!(setup.directory.fetched().len() > before, "it was not asked again");
}

#[test]
fn directory_requests_carry_the_token_and_a_new_token_is_picked_up() {
    let folder = Folder::new();
    let token = folder.write("token", "secret-one\n").display().to_string();
    let setup = Setup::with(&format!("{LONG}\ntoken_file = \"{token}\""));
    setup.get("ws_acme").expect(200);
    let sent = |at: usize| {
        let head = setup.directory.server.requests()[at].head.clone();
        head.field("authorization").unwrap_or_default().to_owned()
    };
    assert_eq!(sent(0), "Bearer secret-one");
    folder.write("token", "secret-two\n");
    setup.world.gateway.reload().expect(200);
    setup.get("ws_acme").expect(200);
    assert_eq!(setup.directory.fetched().len(), 2, "a new token forgets nothing");
    setup.get("ws_quiet").expect(200);
    assert_eq!(sent(2), "Bearer secret-two");
    let all = setup.world.gateway.log().text() + &setup.world.gateway.access_log().text();
    assert!(!all.contains("secret-"), "{all}");
}

#[test]
fn explain_fetches_the_entries_that_a_request_needs() {
    let directory = Directory::start();
    let folder = Folder::new();
    let free = "plane = \"control\"\nmethods = [\"GET\"]\nexempt = true\nupstream = \"control\"\n\
                path = \"/v1/workspaces/{workspace}/logo\"";
    let config = directory.within(Config::default(), LONG).with("[[routes]]", free);
    folder.write(CONFIG, &config.to_string());
    let explain_of = |path: &str| {
        let url = format!("http://api.localhost/v1/workspaces/ws_special{path}");
        run(&folder, &["explain", "GET", &url, "--config", CONFIG]).expect(0).stdout
    };
    let explain = || explain_of("/users");
    let output = explain();
    for word in ["org_globex", "enterprise", "7 requests", "its own, in the directory"] {
        assert!(output.contains(word), "{word} is not in\n{output}");
    }
    directory.server.always(Answer::status(500));
    let output = explain();
    assert!(output.contains("503") && output.contains("cannot be looked up"), "{output}");
    // No limit of the route needs the entry, so a request is forwarded without it.
    let output = explain_of("/logo");
    assert!(output.contains("ws_special (not looked up"), "{output}");
    directory.recover();
    let url = "http://api.localhost/v1/workspaces/ws_stranger/users";
    let output = run(&folder, &["explain", "GET", url, "--config", CONFIG]).expect(0).stdout;
    assert!(output.contains("ws_stranger (without an entry"), "{output}");
}

#[test]
fn an_invalid_directory_setting_is_reported_with_its_place() {
    let http = "source = \"http\"\n";
    for (lines, word) in [
        ("url = \"directory.example.com\"", "must be a URL"),
        ("url = \"ftp://127.0.0.1\"", "must start with https://"),
        ("url = \"http://directory.example.com\"", "http:// is allowed on loopback"),
        ("url = \"http://127.0.0.1\"\npath = \"directory.toml\"", "no domains of their own"),
        ("url = \"http://127.0.0.1\"\ntoken_file = \"nowhere\"", "`nowhere` has no token"),
        ("url = \"https://127.0.0.1\"\nca = \"nowhere\"", "cannot read `nowhere`"),
        ("url = \"https://127.0.0.1\"\nca = \"gateway.toml\"", "gateway.toml"),
        ("ttl = \"1m\"", "url is missing"),
    ] {
        let config = Config::default().without("[directory]");
        let folder = Folder::new();
        folder.write(CONFIG, &config.with("[directory]", &format!("{http}{lines}")).to_string());
        let output = run(&folder, &["check", "--config", CONFIG]).expect(64).output();
        assert!(output.contains(word), "{lines}: {output}");
        assert!(output.trim().starts_with("gateway.toml:"), "{output}");
        assert_eq!(output.trim().lines().count(), 1, "{output}");
    }
    let config = Config::default().with("[directory]", "url = \"http://127.0.0.1\"");
    let folder = Folder::new();
    folder.write(CONFIG, &config.to_string());
    folder.write("directory.toml", "");
    let output = run(&folder, &["check", "--config", CONFIG]).expect(64).output();
    assert!(output.contains("source = \"http\""), "{output}");
}
