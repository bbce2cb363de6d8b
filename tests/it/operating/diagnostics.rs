//! Errors in the configuration: all are reported at once, each with its place and a correction.

use weir_tests::config::{Config, DIRECTORY};
use weir_tests::gateway::{CONFIG, run};
use weir_tests::upstream::Upstream;
use weir_tests::world::World;

use super::folder_of;

/// A section, lines set in it, and a word that the error must have.
const PROBLEMS: &[(&str, &str, &str)] = &[
    ("[server]", "htpp = [\"127.0.0.1:0\"]", "http"),
    ("[sever]", "threads = 1", "server"),
    ("[server]", "threads = \"many\"", "threads"),
    ("[server]", "threads = -1", "threads"),
    ("[server]", "http = [\"localhost\"]", "localhost"),
    ("[server]", "http = []", "no listener for clients"),
    ("[server]", "admin = \"0.0.0.0:0\"", "token"),
    ("[server]", "trusted_proxies = [\"10.0.0.0/99\"]", "10.0.0.0/99"),
    ("[server]", "trusted_headers = [\"X Y\"]", "`X Y` is not a header name"),
    ("[server]", "trusted_headers = [\"*\"]", "`*` is not a header name"),
    ("[server]", "trusted_headers = [\"c*\"]", "`c*` would drop `connection`"),
    ("[server]", "trusted_headers = [\"Content_Length\"]", "would drop `content-length`"),
    ("[server]", "head_timeout = \"soon\"", "head_timeout"),
    ("[server]", "head_timeout = 10", "head_timeout"),
    ("[store]", "kind = \"memry\"", "memory"),
    ("[directory]", "unknown = \"by_adress\"", "by_address"),
    ("[identity]", "verify = \"maybe\"", "none"),
    ("[identifiers]", "workspace_prefix = \"a.b\"", "begins no identifier"),
    ("[planes.control]", "hosts = [\"api localhost\"]", "api localhost"),
    ("[planes.data]", "hosts = [\"api.localhost\"]", "another plane"),
    ("[planes.control]", "hosts = [\"a.example\", \"a.example\"]", "is listed twice"),
    ("[planes.control.cors]", "origins = [\"https://a.example/\"]", "slash"),
    ("[planes.control.cors]", "origins = [\"https://A.example\"]", "lower case"),
    ("[planes.control.cors]", "origins = [\"https://a.example:443\"]", "leave the port out"),
    ("[planes.control.cors]", "origins = [\"*\", \"https://a.example\"]", "the only one"),
    ("[planes.control.cors]", "origins = [\"null\"]\ncredentials = true", "null"),
    ("[planes.control.cors]", "origins = [\"*\"]\ncredentials = true", "credentials"),
    ("[planes.control.cors]", "origins = []", "origins"),
    ("[planes.control.cors]", "origins = [\"*\"]\nheaders = [\"a b\"]", "a b"),
    ("[planes.control.cors]", "origins = [\"*\"]\nheaders = [\"*\"]", "headers"),
    ("[upstreams.control]", "servers = []", "servers"),
    ("[upstreams.control]", "servers = [\"no port\"]", "no port"),
    ("[upstreams.control.ejection]", "pause = \"2m\"\npause_max = \"1m\"", "pause_max"),
    ("[limits.workspace]", "requests = 0", "requests"),
    ("[limits.workspace]", "requests = 10_000_001", "token_bucket"),
    ("[limits.workspace]", "request = 60", "requests"),
    ("[limits.workspace]", "window = \"1 fortnight\"", "window"),
    ("[limits.workspace]", "rate = 5", "rate"),
    ("[limits.workspace]", "key = \"wrkspace\"", "workspace"),
    ("[limits.workspace]", "algorithm = \"leaky\"", "rolling_window"),
    ("[limits.instance]", "burst = 0", "burst"),
    ("[limits.instance]", "window = \"1m\"", "window"),
    ("[limits.more]", "key = \"address\"", "algorithm"),
    ("[limits.workspace]", "algorithm = \"concurrency\"", "which takes requests: remove it"),
    ("[limits.workspace]", "time_zone = \"UTC\"", "\"calendar_day\" or \"calendar_month\""),
    ("[limits.instance]", "rate = \"5 per hour\"", "as \"5000/h\""),
    ("[limits.instance]", "rate = \"5/40d\"", "31d"),
    ("[limits.more]", "key = \"address\"\nalgorithm = \"concurrency\"", "missing `requests`"),
    (
        "[limits.more]",
        "key = \"address\"\nalgorithm = \"concurrency\"\nrequests = 1_000_001",
        "at most 1000000 with algorithm = \"concurrency\": lower it",
    ),
    (
        "[limits.more]",
        "key = \"address\"\nalgorithm = \"calendar_day\"\nrequests = 5",
        "missing `time_zone`",
    ),
    (
        "[limits.more]",
        "key = \"address\"\nalgorithm = \"calendar_day\"\nrequests = 1_000_000_001\n\
         time_zone = \"UTC\"",
        "from 1 to 1000000000",
    ),
    (
        "[limits.more]",
        "key = \"address\"\nalgorithm = \"calendar_month\"\nrequests = 5\n\
         time_zone = \"Europe/Zurch\"",
        "did you mean `Europe/Zurich`?",
    ),
    (
        "[plans.free]",
        "limits.workspace = { algorithm = \"token_bucket\", burst = 6 }",
        "missing `rate`",
    ),
    (
        "[plans.free]",
        "limits.workspace = { algorithm = \"concurrency\", requests = 6, window = \"1m\" }",
        "remove it",
    ),
    ("[plans.free]", "limits.wrkspace = { requests = 6 }", "workspace"),
    ("[plans.free]", "limits.workspace = { burst = 6 }", "requests"),
    ("[[routes]]", "plane = \"contrl\"\npath = \"/a\"\nupstream = \"control\"", "control"),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"/a\"\nupstream = \"unknown_upstream\"",
        "unknown_upstream",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"/a\"\nlimits = [\"wrkspace\"]\nupstream = \"control\"",
        "workspace",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"a\"\nexempt = true\nupstream = \"control\"",
        "path",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"/a/../b\"\nexempt = true\nupstream = \"control\"",
        "path",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"/a\"\nexempt = true\nlimits = [\"address\"]\n\
         upstream = \"control\"",
        "exempt",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"/a\"\nlimits = [\"instance\"]\nupstream = \"control\"",
        "instance",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\nmethods = [\"GET\"]\npath = \"/healthz\"\nexempt = true\n\
         upstream = \"control\"",
        "no order decides",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\nmethods = [\"PUT\", \"POST\"]\nlimits = [\"batch\"]\n\
         path = \"/v1/workspaces/{workspace}/tenants:batch\"\nupstream = \"control\"",
        "for POST",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"/a/{*rest}\"\nlimits = [\"address\"]\n\
         upstream = \"control\"\nspellings = [\"escape\"]",
        "did you mean `escapes`?",
    ),
    (
        "[[routes]]",
        "plane = \"control\"\npath = \"/a/{b}\"\nlimits = [\"address\"]\n\
         upstream = \"control\"\nspellings = [\"escaped_slash\"]",
        "{*rest}",
    ),
    ("[[routes]]", "plane = \"control\"\nexempt = true\nupstream = \"control\"", "path"),
    ("[server", "", "unclosed"),
];

#[test]
fn every_configuration_error_is_reported_with_its_place() {
    let mut wrong = Vec::new();
    for (section, lines, word) in PROBLEMS {
        let config = Config::default().with(section, lines);
        let finished = run(&folder_of(&config, DIRECTORY), &["check", "--config", CONFIG]);
        let printed = finished.output();
        let placed = printed.lines().any(|line| is_placed(line, CONFIG) && line.contains(word));
        if finished.code != Some(64) || !placed {
            wrong.push(format!("{section} {lines}: exit {:?}, {printed}", finished.code));
        }
    }
    assert!(wrong.is_empty(), "{} mistakes:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn errors_in_the_directory_are_reported_with_the_others() {
    let mut wrong = Vec::new();
    for (entry, word) in [
        ("[workspaces.ws_x]\norganisation = \"org_nobody\"", "org_nobody"),
        ("[workspaces.ws_x]\norganisation = \"org_acme\"\nplan = \"golden\"", "golden"),
        ("[workspaces.ws_x]\norganization = \"org_acme\"", "organisation"),
        ("[workspaces.\"ws x\"]\norganisation = \"org_acme\"", "ws x"),
        ("[instances.in_x]\nworkspace = \"ws_nobody\"", "ws_nobody"),
        (
            "[instances.in_x]\nworkspace = \"ws_acme\"\nlimits.instance = { rate = 9, burst = 9 }",
            "per_instance_limits",
        ),
        (
            "[instances.in_x]\nworkspace = \"ws_big\"\ndomains = [\"api.localhost\"]",
            "api.localhost",
        ),
        (
            "[instances.in_x]\nworkspace = \"ws_big\"\ndomains = [\"login.special.example\"]",
            "login.special.example",
        ),
        (
            "[workspaces.ws_x]\norganisation = \"org_acme\"\nlimits.wrkspace = { requests = 1 }",
            "workspace",
        ),
        ("[workspaces.ws_acme]", "`ws_acme` is set twice"),
        ("[workspaces.shop_prod]", "identifiers.workspace_prefix sets another"),
    ] {
        let directory = format!("{DIRECTORY}\n{entry}\n");
        let folder = folder_of(&Config::default(), &directory);
        let finished = run(&folder, &["check", "--config", CONFIG]);
        let printed = finished.output();
        let placed =
            printed.lines().any(|line| is_placed(line, "directory.toml") && line.contains(word));
        if finished.code != Some(64) || !placed {
            wrong.push(format!("{entry}: exit {:?}, {printed}", finished.code));
        }
    }
    assert!(wrong.is_empty(), "{} mistakes:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn all_errors_are_reported_at_once_with_their_places() {
    let config = Config::default()
        .with("[server]", "headtimeout = \"1s\"")
        .with("[limits.workspace]", "requests = 0")
        .with("[upstreams.data]", "servers = [\"nonsense\"]");
    let text = config.to_string();
    let folder = folder_of(&config, &DIRECTORY.replace("\"free\"", "\"fre\""));
    for command in ["check", "run"] {
        let finished = run(&folder, &[command, "--config", CONFIG]).expect(64);
        let printed = finished.output();
        for line in ["headtimeout = \"1s\"", "requests = 0", "servers = [\"nonsense\"]"] {
            let number = 1 + text.lines().position(|known| known == line).unwrap();
            let place = format!("{CONFIG}:{number}:");
            assert!(printed.contains(&place), "{command} does not say {place} in\n{printed}");
        }
        let of_directory = printed.lines().filter(|line| is_placed(line, "directory.toml")).count();
        assert_eq!(of_directory, 2, "two workspaces have a plan that is none:\n{printed}");
    }
}

#[test]
fn two_ambiguous_routes_are_reported_with_their_lines() {
    let route = |path: &str| {
        format!(
            "plane = \"control\"\npath = \"{path}\"\nlimits = [\"address\"]\n\
             upstream = \"control\""
        )
    };
    let paths = ["/a/{one}/c", "/a/{two}/c", "/a/{*rest}", "/a", "/a/{one}/{three}"];
    let config = paths
        .iter()
        .fold(Config::default(), |config, path| config.with("[[routes]]", &route(path)));
    let text = config.to_string();
    let line_of = |path: &str| {
        let line = format!("path = \"{path}\"");
        // The line of `[[routes]]`, two above, counted from 1.
        text.lines().position(|known| known == line).unwrap() - 1
    };
    let finished = run(&folder_of(&config, DIRECTORY), &["check", "--config", CONFIG]).expect(64);
    let printed = finished.output();
    let (one, two) = (line_of(paths[0]), line_of(paths[1]));
    let expected = format!(
        "{CONFIG}:{two}:1: no order decides between `/a/{{two}}/c` here and `/a/{{one}}/c` of the \
         route in line {one}, for all methods"
    );
    assert!(printed.contains(&expected), "{printed}");
    assert_eq!(printed.matches("no order").count(), 1, "{printed}");
}

#[test]
fn check_online_connects_to_every_server_and_reports_failures_with_their_place() {
    let world = World::new();
    let online = ["check", "--online", "--config", CONFIG];
    run(world.gateway.folder(), &online).expect(0);

    let occupant = Upstream::start();
    let config = Config::default()
        .with("[server]", &format!("http = [\"{}\"]", occupant.address()))
        .with("[upstreams.data]", "servers = [\"no-such-host.invalid:80\"]")
        .with("[store]", "snapshot = \"/dev/null/nowhere/limits\"")
        .with("[identity]", "verify = \"jwt\"\nplanes = [\"control\"]")
        .with(
            "[identity.jwt]",
            "issuer = \"i\"\naudience = [\"a\"]\n\
               jwks_url = \"http://127.0.0.1:9/keys\"",
        )
        .with("[directory]", "source = \"http\"\nurl = \"http://127.0.0.1:9\"");
    let text = config.to_string().replace("path = \"directory.toml\"\n", "");
    let folder = folder_of(&config, DIRECTORY);
    folder.write(CONFIG, &text);
    run(&folder, &["check", "--config", CONFIG]).expect(0);
    let printed = run(&folder, &online).expect(1).stderr;
    for line in [
        format!("http = [\"{}\"]", occupant.address()),
        "servers = [\"127.0.0.1:9\"]".to_owned(),
        "servers = [\"no-such-host.invalid:80\"]".to_owned(),
        "snapshot = \"/dev/null/nowhere/limits\"".to_owned(),
        "jwks_url = \"http://127.0.0.1:9/keys\"".to_owned(),
        "url = \"http://127.0.0.1:9\"".to_owned(),
    ] {
        let number = 1 + text.lines().position(|known| known.trim() == line).expect(&line);
        assert!(printed.contains(&format!("{CONFIG}:{number}:")), "{line} at {number}:\n{printed}");
    }
}

#[test]
fn only_addresses_of_the_running_gateway_may_be_in_use() {
    let world = World::new();
    let occupant = Upstream::start();
    let of = |http: &str| {
        let lines = format!("admin = \"{}\"\nhttp = [\"{http}\"]", world.gateway.admin());
        folder_of(&world.config().with("[server]", &lines), DIRECTORY)
    };
    let online = ["check", "--online", "--config", CONFIG];
    let printed = run(&of(&occupant.address()), &online).expect(1).stderr;
    assert!(printed.contains(&occupant.address()), "{printed}");
    run(&of("127.0.0.1:0"), &online).expect(0);
}

#[test]
fn check_online_creates_no_file() {
    let world = World::new();
    let folder = world.gateway.folder();
    let kept = world.config().with("[store]", "snapshot = \"data/limits.snapshot\"");
    world.gateway.write_config(&kept.to_string());
    run(folder, &["check", "--online", "--config", CONFIG]).expect(0);
    assert!(!folder.path("data").exists());
}

#[test]
fn settings_that_a_reload_cannot_change_are_reported_with_their_place() {
    let world = World::new();
    let admin = world.gateway.admin().to_owned();
    let changed = world
        .config()
        .with("[server]", &format!("admin = \"{admin}\"\nthreads = 1"))
        .with("[log]", "access = \"off\"");
    let text = changed.to_string();
    world.gateway.write_config(&text);
    let checked = run(world.gateway.folder(), &["check", "--online", "--config", CONFIG]);
    let refused = world.gateway.reload().expect(422).text();
    for line in ["threads = 1", "access = \"off\""] {
        let number = 1 + text.lines().position(|known| known.trim() == line).expect(line);
        let place = format!("{CONFIG}:{number}:1: `");
        assert!(checked.stderr.contains(&format!("warning: {place}")), "{checked:?}");
        assert!(refused.contains(&place), "{refused}");
    }
    assert_eq!(checked.code, Some(0), "it can be started so: {checked:?}");
}

#[test]
fn a_token_file_without_a_token_is_found_before_the_start() {
    let folder = weir_tests::folder::Folder::new();
    let path = folder.write("admin.token", "\n");
    let line = format!("admin_token_file = \"{}\"", path.display());
    let folder = folder_of(&Config::default().with("[server]", &line), DIRECTORY);
    let printed = run(&folder, &["check", "--config", CONFIG]).expect(64).stderr;
    assert!(printed.contains("its first line is empty"), "{printed}");
}

#[test]
fn an_address_in_use_is_reported_and_the_process_ends() {
    let occupant = Upstream::start();
    for key in ["http", "admin"] {
        let value = format!("\"{}\"", occupant.address());
        let value = if key == "http" { format!("[{value}]") } else { value };
        let config = Config::default().with("[server]", &format!("{key} = {value}"));
        let finished = run(&folder_of(&config, DIRECTORY), &["run", "--config", CONFIG]);
        assert!(finished.code.is_some_and(|code| code != 0), "{:?}", finished.code);
        assert!(finished.stderr.contains(&occupant.address()), "{}", finished.stderr);
    }
}

/// Whether a line begins with `…file:line:column: `.
fn is_placed(line: &str, file: &str) -> bool {
    let Some((_, rest)) = line.split_once(&format!("{file}:")) else { return false };
    let mut parts = rest.splitn(3, ':');
    let mut number = || parts.next().is_some_and(|part| part.parse::<u32>().is_ok_and(|n| n > 0));
    number() && number() && parts.next().is_some_and(|rest| rest.starts_with(' '))
}
