//! How an operator runs the dispatcher: files, flags, signals and the admin listener.

use std::time::Duration;

use weir_tests::config::DIRECTORY as DIRECTORY_TEXT;
use weir_tests::dispatcher::{BACKEND, CONFIG, DIRECTORY, TOKENS, config, entry, run, tokens};
use weir_tests::folder::Folder;
use weir_tests::request::Request;
use weir_tests::wait;

use super::Stage;

#[test]
fn a_workspace_of_another_prefix_is_refused_wherever_it_is_written_first() {
    let remedy = "identifiers.workspace_prefix sets another";
    let token = ["token", "--name", "shop", "--workspace", "shop_prod"];
    let with = |more: &[&'static str]| [&token[..], &["--scope", "events:write"], more].concat();
    let strict = folder(&config().to_string());
    let finished = run(&strict, &with(&["--config", CONFIG])).expect(64);
    let where_it_stands =
        format!("{remedy}, in the events.toml of the configuration that --config names");
    assert!(finished.output().contains(&where_it_stands), "{}", finished.output());
    let entry = entry("shop", "hidden-token", "shop_prod", r#"["events:write"]"#);
    strict.write(TOKENS, &entry);
    strict.write(DIRECTORY, "[workspaces.shop_test]\n");
    let printed = run(&strict, &["check", "--config", CONFIG]).expect(64).output();
    for name in ["`shop_prod`", "`shop_test`"] {
        let placed = printed.lines().any(|line| line.contains(name) && line.contains(remedy));
        assert!(placed, "{name}: {printed}");
    }
    let own = config().with("[events]", "file = \"events.toml\"");
    strict.write(CONFIG, &own.to_string());
    let shipped = include_str!("../../../config/events.toml");
    let prefixed = |prefix: &str| shipped.replace("\"ws_\"", &format!("\"{prefix}\""));
    strict.write("events.toml", &prefixed("shop_"));
    run(&strict, &["check", "--config", CONFIG]).expect(0);
    run(&strict, &with(&["--config", CONFIG])).expect(0);
    strict.write("events.toml", &prefixed("a b"));
    let printed = run(&strict, &["check", "--config", CONFIG]).expect(64).output();
    assert!(printed.contains("`a b` begins no identifier"), "{printed}");
}

#[test]
fn a_good_file_is_found_good() {
    run(&folder(&config().to_string()), &["check", "--config", CONFIG]).expect(0);
}

#[test]
fn every_configuration_error_is_reported_at_once_with_its_place() {
    let bad = config()
        .with("[egress]", "deadline = \"0s\"\nallow_networks = [\"10.0.0.0/99\"]\ndeadlin = 1")
        .with("[retry]", "delays = []\ngive_up_after = \"soon\"")
        .with("[health]", "warn_share = 7")
        .with("[auth]", "tokens = \"nowhere.toml\"")
        .with("[colour]", "red = 1");
    let folder = folder(&bad.to_string());
    for command in ["check", "run"] {
        let finished = run(&folder, &[command, "--config", CONFIG]).expect(64);
        let output = finished.output();
        for word in [
            "deadline",
            "10.0.0.0/99",
            "deadlin",
            "delays",
            "give_up_after",
            "warn_share",
            "nowhere.toml",
            "colour",
        ] {
            assert!(output.contains(word), "{word} is not in\n{output}");
        }
        let placed = output.lines().filter(|line| line.contains("dispatcher.toml:")).count();
        assert!(placed >= 7, "each with its line:\n{output}");
    }
}

#[test]
fn check_refuses_a_password_without_tls_and_a_missing_password_file() {
    let check = |mail: &str| {
        let config = config().with("[mail]", &format!("{mail}\nfrom = \"weir@example.com\""));
        run(&folder(&config.to_string()), &["check", "--config", CONFIG])
    };
    check("smtp = \"smtp+starttls://u:hunter2@mail.example.com\"").expect(0);
    let output = check("smtp = \"smtp://u:hunter2@mail.example.com\"").expect(64).output();
    assert!(output.contains("smtp+starttls://") && !output.contains("hunter2"), "{output}");
    let file = "smtp = \"smtps://u@mail.example.com\"\npassword_file = \"nowhere\"";
    let output = check(file).expect(64).output();
    assert!(output.contains("cannot read `nowhere`"), "{output}");
}

#[test]
fn a_missing_catalogue_is_one_error_at_its_setting() {
    let folder = folder(&config().with("[events]", "file = \"nope.toml\"").to_string());
    let output = run(&folder, &["check", "--config", CONFIG]).expect(64).stderr;
    assert!(output.contains("set events.file") && output.lines().count() == 1, "{output}");
}

#[test]
fn a_bad_token_file_is_reported_too() {
    for bad in [
        "[[tokens]]\nname = \"x\"\n",
        "[[tokens]]\nname = \"x\"\nsha256 = \"short\"\nworkspaces = [\"*\"]\nscopes = []\n",
        &entry("x", "x", "ws_acme", "[\"webhooks:fly\"]"),
        "nonsense",
    ] {
        let folder = folder(&config().to_string());
        folder.write(TOKENS, bad);
        let finished = run(&folder, &["check", "--config", CONFIG]).expect(64);
        assert!(finished.output().contains(TOKENS), "{bad}: {}", finished.output());
    }
}

#[test]
fn check_finds_what_a_start_would_refuse_with_its_place() {
    for (section, line, place, word) in [
        ("[server]", "api = \"192.0.2.1:9003\"", "api = ", "192.0.2.1:9003"),
        ("[store]", "path = \"tokens.toml\"", "path = ", "not a database of weir-dispatcher"),
        ("[store]", "path = \"tokens.toml/x.db\"", "path = ", "cannot use"),
        ("[secrets]", "key_file = \"tokens.toml\"", "key_file = ", "the key file tokens.toml"),
        ("[egress]", "extra_ca = \"nowhere.pem\"", "extra_ca = ", "nowhere.pem"),
        ("[egress]", "proxy = \"http://proxy:3128\"", "proxy = ", "host:port"),
        ("[egress]", "source = [\"10.0.0.0/8\"]", "source = [", "not an address"),
        ("[server]", "admin_token_file = \"nowhere\"", "admin_token_file = ", "nowhere"),
    ] {
        let text = config().with(section, line).to_string();
        let folder = folder(&text);
        let output = run(&folder, &["check", "--config", CONFIG]).expect(64).output();
        let at = 1 + text.lines().position(|one| one.trim() == line).unwrap();
        let expected = format!("{CONFIG}:{at}:{}: ", 1 + place.len());
        assert!(output.contains(&expected) && output.contains(word), "{expected}{word}:\n{output}");
        assert_ne!(run(&folder, &["run", "--config", CONFIG]).code, Some(0), "{line}");
    }
}

#[test]
fn a_check_beside_a_dispatcher_that_runs_finds_nothing_and_changes_nothing() {
    let mut stage = Stage::new();
    let check = |folder: &Folder| run(folder, &["check", "--config", CONFIG]).expect(0);
    check(stage.dispatcher.folder());
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    check(stage.dispatcher.folder());
    stage.dispatcher.stop();
    let files = |folder: &Folder| std::fs::read_dir(folder.root()).unwrap().count();
    let before = files(stage.dispatcher.folder());
    check(stage.dispatcher.folder());
    assert_eq!(files(stage.dispatcher.folder()), before);
    let unused = folder(&config().with("[store]", "path = \"new/dispatcher.db\"").to_string());
    check(&unused);
    assert!(!unused.path("new").exists());
}

#[test]
fn without_a_configuration_nothing_starts_and_no_file_is_made() {
    let folder = Folder::new();
    for command in ["run", "check"] {
        let output = run(&folder, &[command]).expect(64).output();
        let path = folder.path("config/dispatcher.toml").display().to_string();
        for word in [path.as_str(), "--config FILE", "--demo"] {
            assert!(output.contains(word), "{command}: {word} is not in\n{output}");
        }
    }
    let output = run(&folder, &["check", "--demo"]).expect(0).output();
    assert!(output.contains("built-in dispatcher.toml: no problems"), "{output}");
    assert_eq!(std::fs::read_dir(folder.root()).unwrap().count(), 0);
    run(&folder, &["check", "--demo", "--config", CONFIG]).expect(2);
}

#[test]
fn help_names_every_command_and_version_a_number() {
    let help = run(&Folder::new(), &["--help"]).expect(0).stdout;
    for command in ["run", "check", "backup", "listen", "verify", "send-test", "completions"] {
        assert!(help.contains(command), "{command} is not in\n{help}");
    }
    let version = run(&Folder::new(), &["--version"]).expect(0).stdout;
    assert!(version.starts_with("weir-dispatcher "), "{version}");
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&Folder::new(), &["completions", shell]).expect(0).stdout;
        assert!(script.contains("weir-dispatcher") && script.contains("send-test"), "{shell}");
    }
}

#[test]
fn a_reload_changes_the_schedule_the_tokens_and_the_allowed_addresses() {
    let stage = Stage::with(|config| config.with("[retry]", "delays = [\"60s\"]"));
    stage.receiver.status(500);
    stage.webhook("/hook", &["user.created"]);
    let folder = stage.dispatcher.folder();
    folder.write(CONFIG, &config().with("[retry]", "give_up_after = \"300ms\"").to_string());
    let fresh = entry("fresh", "hidden-fresh", "ws_acme", "[\"webhooks:read\"]");
    folder.write(TOKENS, &format!("{}{fresh}", tokens()));
    let newcomer = stage.dispatcher.api("hidden-fresh", "ws_acme");
    newcomer.get("/webhooks").expect_problem(401);
    stage.dispatcher.signal("HUP");
    wait::until("the new token to count", || {
        (newcomer.get("/webhooks").status == 200).then_some(())
    });
    stage.dispatcher.post_event("user.created");
    stage.dispatcher.acme().wait_for_count("failed_permanent", 1);

    folder.write(CONFIG, &config().with("[egress]", "allow_networks = []").to_string());
    stage.dispatcher.reload().expect(200);
    let before = stage.receiver.count();
    let id = stage.dispatcher.post_event("user.created");
    let acme = stage.dispatcher.acme();
    let failed = acme.wait_for_delivery(&id, |one| one["attempts"].as_u64() >= Some(1));
    assert_eq!(super::attempts(&failed)[0].1, "blocked_address", "{failed}");
    assert_eq!(stage.receiver.count(), before);
}

#[test]
fn a_bad_file_is_refused_with_every_reason_and_the_old_one_stays() {
    let stage = Stage::new();
    let folder = stage.dispatcher.folder();
    folder.write(CONFIG, &config().with("[retry]", "delays = []\ncolour = 1").to_string());
    let refused = stage.dispatcher.reload().expect(422).json();
    assert!(refused["problems"].as_array().is_some_and(|all| all.len() >= 2), "{refused}");
    folder.write(CONFIG, &config().to_string());
    folder.write(TOKENS, "nonsense");
    stage.dispatcher.reload().expect(422);
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_event("user.created");
    stage.receiver.wait(1);
}

#[test]
fn the_metrics_are_prometheus_text_without_tenant_labels() {
    let stage = Stage::new();
    stage.webhook("/hook", &["user.created"]);
    stage.dispatcher.post_events("user.created", 3);
    stage.dispatcher.acme().wait_for_count("delivered", 3);
    let page = stage.dispatcher.call_admin(&Request::get("/metrics")).expect(200);
    assert!(page.field("content-type").is_some_and(|kind| kind.starts_with("text/plain")));
    let page = page.text();
    let unlabelled = |word: &str| !page.contains(word);
    assert!(unlabelled("ws_acme") && unlabelled("wh_"), "no label names a tenant\n{page}");
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let ours = line.starts_with("weir_dispatcher_") || line.starts_with("process_");
        assert!(ours, "{line}");
    }
    assert!(stage.dispatcher.metric("weir_dispatcher_past_due_oldest_seconds") < 60.0);
    assert_eq!(stage.dispatcher.metric("weir_dispatcher_attempts_in_flight"), 0.0);
}

#[test]
fn the_metrics_are_current_when_they_are_scraped() {
    let stage = Stage::with(|config| config.with("[egress]", "requests = 1"));
    let metric = |name: &str| stage.dispatcher.metric(&format!("weir_dispatcher_{name}"));
    assert_eq!((metric("webhooks"), metric("deliveries_waiting")), (0.0, 0.0));
    stage.webhook("/hook", &["user.created"]);
    assert_eq!(metric("webhooks"), 1.0);
    let commits = metric("store_commits");
    stage.dispatcher.post_events("user.created", 20);
    // An attempt may have started in the meantime.
    assert!(metric("deliveries_waiting") >= 19.0, "{}", metric("deliveries_waiting"));
    assert!(metric("store_commits") > commits);
}

#[test]
fn ready_means_that_every_listener_accepts() {
    let stage = Stage::new();
    stage.dispatcher.call_admin(&Request::get("/readyz")).expect(200);
    stage.dispatcher.call_admin(&Request::get("/livez")).expect(200);
}

#[test]
fn a_stop_with_nothing_to_do_is_over_at_once() {
    for signal in ["TERM", "INT"] {
        let mut stage = Stage::with(|config| config.with("[server]", "shutdown_grace = \"30s\""));
        let before = wait::now();
        stage.dispatcher.signal(signal);
        assert_eq!(stage.dispatcher.wait_for_exit(), Some(0), "{signal}");
        assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());
    }
}

#[test]
fn an_admin_listener_beyond_loopback_requires_a_token() {
    let open = config().with("[server]", "admin = \"0.0.0.0:0\"");
    let folder = folder(&open.to_string());
    let finished = run(&folder, &["check", "--config", CONFIG]).expect(64);
    assert!(finished.output().contains("admin"), "{}", finished.output());
    assert!(!finished.output().contains(BACKEND));
}

/// A folder with these files, for commands that need no running dispatcher.
pub(super) fn folder(config: &str) -> Folder {
    let folder = Folder::new();
    folder.write(CONFIG, config);
    folder.write(DIRECTORY, DIRECTORY_TEXT);
    folder.write(TOKENS, &tokens());
    folder
}

#[test]
fn without_a_token_the_admin_listener_answers_as_this_machine_alone() {
    let stage = Stage::new();
    for target in ["/metrics", "/config", "/readyz"] {
        for host in ["localhost:9005", "127.0.0.1", "[::1]:9005"] {
            stage.dispatcher.call_admin(&Request::get(target).host(host)).expect(200);
        }
        for host in ["evil.example", "localhost.evil.example:9005", "192.0.2.1"] {
            let refused = stage.dispatcher.call_admin(&Request::get(target).host(host));
            let problem = refused.expect_problem(403);
            assert_eq!(problem["type"], "urn:weir:problem:host", "{target} at {host}");
        }
    }
    let write = Request::post("/reload", "");
    let of_page = write.clone().field("Origin", "http://evil.example");
    let problem = stage.dispatcher.call_admin(&of_page).expect_problem(403);
    assert_eq!(problem["type"], "urn:weir:problem:origin");
    stage.dispatcher.call_admin(&write).expect(200);
}
