//! The command line: its output, its streams and its exit codes.

use serde_json::Value;
use weir_tests::answer::Answer;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::directory::Directory;
use weir_tests::folder::Folder;
use weir_tests::gateway::{CONFIG, Gateway, run};
use weir_tests::process::{Finished, program};
use weir_tests::world::World;

use super::{folder, folder_of};

#[test]
fn a_good_file_is_found_good() {
    run(&folder(), &["check", "--config", CONFIG]).expect(0);
}

#[test]
fn trusting_every_address_as_a_proxy_is_accepted_with_a_warning() {
    for (key, network) in [
        ("trusted_proxies", "0.0.0.0/0"),
        ("trusted_proxies", "::/0"),
        ("proxy_protocol_from", "0.0.0.0/0"),
    ] {
        let line = format!("{key} = [\"10.0.0.0/8\", \"{network}\"]");
        let config = Config::default().with("[server]", &line);
        let checked = run(&folder_of(&config, DIRECTORY), &["check", "--config", CONFIG]);
        let output = checked.expect(0).output();
        assert!(output.contains("warning: ") && output.contains(key), "{output}");
        let gateway = Gateway::start(&config.to_string(), DIRECTORY);
        gateway.log().wait("the warning", |line| {
            line["level"] == "warn"
                && line["detail"].as_str().is_some_and(|text| text.contains(key))
        });
    }
    let output = run(&folder(), &["check", "--config", CONFIG]).expect(0).output();
    assert!(!output.contains("warning"), "{output}");
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let empty = Folder::new();
    for command in ["check", "run"] {
        let finished = run(&empty, &[command, "--config", "nowhere.toml"]).expect(64);
        assert!(finished.output().contains("nowhere.toml"), "{}", finished.output());
    }
}

#[test]
fn without_a_configuration_nothing_starts_and_the_error_names_the_example() {
    let empty = Folder::new();
    for arguments in [&["run"][..], &["check"], &["explain", "GET", "http://api.localhost/"]] {
        let output = run(&empty, arguments).expect(64).output();
        let path = empty.path("config/gateway.toml").display().to_string();
        for word in [path.as_str(), "--config FILE", "--demo"] {
            assert!(output.contains(word), "{arguments:?}: {word} is not in\n{output}");
        }
    }
    let output = run(&empty, &["check", "--demo"]).expect(0).output();
    assert!(output.contains("built-in gateway.toml: no problems"), "{output}");
    run(&empty, &["explain", "GET", "http://api.localhost/healthz", "--demo"]).expect(0);
}

#[test]
fn an_unknown_argument_is_an_error() {
    for arguments in [&["fly"][..], &["run", "--fast"], &["explain", "GET"], &["limits", "show"]] {
        let finished = run(&folder(), arguments);
        assert_ne!(finished.code, Some(0), "{arguments:?}");
        assert!(!finished.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_names_every_command_and_version_a_number() {
    let help = run(&folder(), &["--help"]).expect(0).stdout;
    for command in ["run", "check", "explain", "limits", "completions"] {
        assert!(help.contains(command), "{command} is not in\n{help}");
    }
    let version = run(&folder(), &["--version"]).expect(0).stdout;
    assert!(version.starts_with("weir-gateway "), "{version}");
}

#[test]
fn completions_are_printed_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let script = run(&folder(), &["completions", shell]).expect(0).stdout;
        assert!(script.contains("weir-gateway") && script.contains("explain"), "{shell}");
    }
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(program("weir-gateway"));
    let output = command.args(["completions", "bash"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(printed.contains("cannot write to standard output: No space left"), "{printed}");
}

#[test]
fn listeners_that_overlap_are_refused_with_both_names() {
    let check = |text: &str| {
        let folder = folder();
        folder.write(CONFIG, text);
        run(&folder, &["check", "--config", CONFIG]).expect(64).output()
    };
    for (http, why) in [
        ("\"127.0.0.1:1\", \"127.0.0.1:1\"", "server.http[1] (127.0.0.1:1) and server.http[0]"),
        ("\"0.0.0.0:9999\"", "server.http[0] (0.0.0.0:9999) and server.admin (127.0.0.1:9999)"),
        ("\"127.0.0.1:2\", \"[::]:2\"", "cannot both listen"),
    ] {
        let lines = format!("[server]\nhttp = [{http}]\nadmin = \"127.0.0.1:9999\"\n");
        let output = check(&lines);
        assert!(output.contains(why), "{output}");
    }
    let output =
        check("[server]\nhttp = [\"127.0.0.1:2\", \"[::1]:2\", \"[::1]:0\", \"[::1]:0\"]\n");
    assert!(!output.contains("cannot both listen"), "{output}");
}

#[test]
fn explain_prints_the_limits_of_a_request_and_their_keys() {
    let output = explain(&["GET", "http://api.localhost/v1/workspaces/ws_special/users"]);
    for word in ["/v1/workspaces/{workspace}/{*rest}", "workspace", "ws_special", "organisation"] {
        assert!(output.contains(word), "{word} is not in\n{output}");
    }
    for word in ["org_globex", "enterprise", "7", "600"] {
        assert!(output.contains(word), "{word} is not in\n{output}");
    }

    let batch = explain(&["POST", "http://api.localhost/v1/workspaces/ws_acme/tenants:batch"]);
    let limits = |output: &str| output.lines().filter(|line| line.starts_with("limit")).count();
    assert!(batch.contains("batch for ws_acme") && limits(&batch) == 1, "{batch}");
    let instance = explain(&["GET", "http://in_acme.auth.localhost/login"]);
    assert!(instance.contains("in_acme") && instance.contains("200"), "{instance}");
    let domain = explain(&["GET", "https://login.special.example/login"]);
    assert!(domain.contains("in_special") && domain.contains('9'), "{domain}");
}

#[test]
fn explain_prints_exemptions_and_refusals() {
    assert!(explain(&["GET", "http://api.localhost/healthz"]).contains("exempt"));
    for (method, url, status) in [
        ("GET", "http://api.localhost/healthz/../v1/me", "400"),
        ("GET", "http://api.localhost/nowhere", "404"),
        ("GET", "http://unknown.example/", "404"),
        ("POST", "http://api.localhost/healthz", "405"),
        ("get", "http://api.localhost/healthz", "400"),
        ("CONNECT", "http://api.localhost/healthz", "405"),
    ] {
        let finished = run(&folder(), &["explain", method, url, "--config", CONFIG]);
        assert!(finished.output().contains(status), "{url}: {}", finished.output());
    }
}

#[test]
fn explain_accepts_headers_and_prints_json() {
    let url = "http://api.localhost/v1/workspaces/ws_acme";
    let output =
        explain(&["GET", url, "--json", "-H", "Accept: */*", "-H", "X-Forwarded-For: ::1"]);
    let value: Value = serde_json::from_str(&output).unwrap();
    let text = value.to_string();
    for word in ["ws_acme", "org_acme", "workspace", "organisation", "60"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
}

#[test]
fn limits_are_shown_reset_and_raised_through_the_admin_listener() {
    let world = World::with(|config| config.with("[limits.workspace]", "requests = 2"));
    let target = "/v1/workspaces/ws_acme";
    world.get(target).expect(200);
    world.get(target).expect(200);
    world.get(target).expect(429);
    let limits = |arguments: &[&str]| -> Finished {
        let admin = ["--admin", world.gateway.admin()];
        run(world.gateway.folder(), &[&["limits"], arguments, &admin].concat())
    };
    let shown = limits(&["show", "ws_acme", "--limit", "workspace"]).expect(0).stdout;
    assert!(shown.contains("workspace") && shown.contains('2'), "{shown}");
    let all = limits(&["show", "ws_acme"]).expect(0).stdout;
    assert!(all.contains("workspace") && !all.contains("batch"), "what it has used: {all}");

    limits(&["boost", "ws_acme", "--limit", "workspace", "--requests", "5", "--for", "10m"])
        .expect(0);
    let boosted = world.get(target).expect(200).allowance();
    assert_eq!((boosted.limit, boosted.remaining), (5, 2));

    limits(&["reset", "ws_acme"]).expect(0);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 0);
    assert_ne!(limits(&["show", "ws_acme", "--limit", "no_such_limit"]).code, Some(0));
}

#[test]
fn an_unknown_key_is_reported_as_unknown() {
    let world = World::new();
    world.get("/v1/workspaces/ws_new").expect(200);
    let limits = |arguments: &[&str]| -> Finished {
        let admin = ["--admin", world.gateway.admin()];
        run(world.gateway.folder(), &[&["limits"], arguments, &admin].concat())
    };
    for arguments in [
        &["show", "unknown"][..],
        &["show", "ws_nobody", "--limit", "workspace"],
        &["reset", "unknown"],
        &["unboost", "ws_nobody", "--limit", "workspace"],
        &["show", "no key"],
    ] {
        let finished = limits(arguments).expect(1);
        let output = format!("unknown key `{}`", arguments[1]);
        assert!(finished.stderr.contains(&output), "{arguments:?}: {finished:?}");
        assert_eq!(finished.stdout, "", "{arguments:?}");
    }
    // A key in the directory, a key with a count, and an address are known.
    for key in ["ws_quiet", "ws_new", "org_acme", "192.0.2.7"] {
        limits(&["show", key]).expect(0);
    }
    // A tenant may be boosted before its first call.
    let boost = ["boost", "ws_soon", "--limit", "workspace", "--requests", "90"];
    let boosted = limits(&boost).expect(0);
    assert!(boosted.stderr.contains("unknown key `ws_soon`"), "{boosted:?}");
    limits(&["show", "ws_soon"]).expect(0);
    let other = limits(&["boost", "ws_acme", "--limit", "instance", "--requests", "9000"]);
    assert!(other.stderr.contains("`ws_acme`: it is no instance"), "{other:?}");
}

#[test]
fn limits_are_shown_with_their_plan() {
    let world = World::with(|config| {
        config.with("[plans.free]", "limits.organisation = { requests = 22 }")
    });
    world.get("/v1/workspaces/ws_acme").expect(200);
    let admin = ["--admin", world.gateway.admin()];
    let show = [&["limits", "show", "org_acme"][..], &admin].concat();
    let shown = run(world.gateway.folder(), &show).expect(0).stdout;
    let lines: Vec<&str> = shown.lines().collect();
    let [other, free] = lines.as_slice() else { panic!("{shown}") };
    assert!(other.contains("remaining 599") && other.ends_with("all other requests"), "{shown}");
    assert!(free.contains("remaining 21") && free.ends_with("on plan free"), "{shown}");
}

#[test]
fn a_directory_that_does_not_answer_is_no_unknown_key() {
    let mut directory = Directory::start();
    let world = World::with(|config| directory.within(config, "timeout = \"300ms\""));
    directory.server.stop();
    let show = ["limits", "show", "ws_acme", "--admin", world.gateway.admin()];
    let finished = run(world.gateway.folder(), &show).expect(1);
    assert!(finished.stderr.contains("503"), "{finished:?}");
}

#[test]
fn a_gateway_that_is_not_there_is_an_error_with_its_address() {
    let finished = run(&folder(), &["limits", "show", "ws_acme", "--admin", "127.0.0.1:9"]);
    assert_ne!(finished.code, Some(0));
    assert!(finished.stderr.contains("127.0.0.1:9"), "{}", finished.stderr);
    let unnamed = ["limits", "show", "ws_acme", "--config", "gone.toml"];
    assert_eq!(run(&folder(), &unnamed).code, Some(64), "its address is not known");
}

#[test]
fn a_listener_that_is_no_gateways_is_named_with_its_address() {
    let world = World::new();
    let answers = [
        Answer::ok("<p>Welcome</p>"),
        Answer::ok(r#"{"limits": 3}"#),
        Answer::status(404).body("no such page"),
        Answer::status(404).body(r#"{"detail": "No such path."}"#),
        Answer::status(403).body(r#"{"error": "forbidden"}"#),
    ];
    for answer in answers {
        world.control.always(answer);
        let admin = world.control.address();
        for command in [&["show"][..], &["boost", "--requests", "9"], &["reset"]] {
            let (action, more) = command.split_first().unwrap();
            let key = ["limits", action, "ws_acme", "--limit", "workspace", "--admin", &admin];
            let ended = run(&folder(), &[&key[..], more].concat()).expect(1);
            let text = format!("{admin} is not the admin listener of a weir-gateway");
            assert!(ended.stderr.contains(&text), "{}", ended.stderr);
        }
    }
}

#[test]
fn check_warns_of_a_method_that_is_nearly_one_of_http_and_of_no_other() {
    let folder = folder();
    let check = |methods: &str| {
        let route = "plane = \"control\"\npath = \"/v1/more\"\nlimits = [\"address\"]\n\
            upstream = \"control\"";
        let route = format!("{route}\nmethods = [{methods}]");
        let config = Config::default().with("[[routes]]", &route).to_string();
        folder.write(CONFIG, &config);
        run(&folder, &["check", "--config", CONFIG]).expect(0).stderr
    };
    assert_eq!(check("\"GTE\"").lines().count(), 1);
    assert!(check("\"GTE\"").contains("`/v1/more` takes `GTE`"));
    assert!(check("\"GTE\"").contains("did you mean `GET`?"));
    assert_eq!(check("\"GET\", \"PURGE\", \"PROPFIND\", \"QUERY\", \"REPORT\""), "");
}

/// The output of `explain` for a request under the default files.
#[track_caller]
fn explain(arguments: &[&str]) -> String {
    let all = [&["explain"], arguments, &["--config", CONFIG]].concat();
    run(&folder(), &all).expect(0).stdout
}
