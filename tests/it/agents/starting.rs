//! What is refused at the start, and what `check` says.

use weir_tests::dispatcher::{ACME, TOKENS, entry, tokens};
use weir_tests::folder::Folder;
use weir_tests::process;

use super::{PROGRAM, Stage};

#[test]
fn flags_that_would_not_be_safe_are_refused() {
    let folder = Folder::new();
    folder.write("token", "hidden");
    let url = "https://api.example.com";
    for (flags, words) in [
        (&["--url", "http://api.example.com", "--token-file", "token"][..], "https://"),
        (&["--url", url, "--token-file", "nothing"], "cannot read nothing"),
        (&["--url", url], "--token-file"),
        (&["--url", url, "--http", "127.0.0.1:0"], "--agents"),
        (
            &["--url", url, "--http", "0.0.0.0:0", "--agents", "a.toml"],
            "can be reached from other machines",
        ),
        (&["--url", url, "--http", "127.0.0.1:0", "--agents", "a.toml"], "a.toml:1:1: cannot read"),
        (
            &[
                "--url",
                url,
                "--http",
                "127.0.0.1:0",
                "--agents",
                "a.toml",
                "--host",
                "https://a.test",
            ],
            "--host https://a.test must be a name",
        ),
        (&["--url", url, "--token-file", "token", "--wait-max", "1h"], "--wait-max"),
        (&["--url", url, "--token-file", "token", "--agents", "a.toml"], "--agents needs --http"),
    ] {
        let finished = process::run(PROGRAM, &folder, flags);
        assert_ne!(finished.code, Some(0), "{flags:?}");
        assert!(finished.stderr.contains(words), "{flags:?}: {}", finished.stderr);
        assert!(!finished.output().contains("hidden"), "{}", finished.output());
    }
}

#[test]
fn check_knows_a_good_token_from_a_bad_one() {
    let stage = Stage::new();
    let check = |workspace: &str| {
        let url = stage.url();
        let flags = ["check", "--url", &url, "--token-file", "token", "--workspace", workspace];
        process::run(PROGRAM, &stage.folder, &flags)
    };
    let good = check("ws_acme").expect(0);
    assert_eq!(good.stdout.trim(), "ok: the token reads the webhooks of ws_acme");
    assert!(check("ws_quiet").expect(1).stderr.contains("404 not-found"));
    assert!(check("../x").expect(64).stderr.contains("--workspace ../x must be 1 to 64"));
    stage.folder.write("token", "hidden-and-unknown");
    let unknown = check("ws_acme").expect(1).stderr;
    assert!(unknown.contains("401 unauthorized") && !unknown.contains("hidden"), "{unknown}");
}

#[test]
fn a_token_for_every_workspace_is_refused_at_the_start_of_http() {
    let stage = Stage::new();
    let all = entry("all", "hidden-token-of-all", "*", r#"["webhooks:read", "webhooks:write"]"#);
    stage.dispatcher.folder().write(TOKENS, &(tokens() + &all));
    stage.dispatcher.reload().expect(200);
    stage.folder.write("all", "hidden-token-of-all");
    let start = |text: &str, action: &[&str]| {
        stage.folder.write("agents.toml", text);
        let url = stage.url();
        let flags = ["--url", &url, "--http", "127.0.0.1:0", "--agents", "agents.toml"];
        process::run(PROGRAM, &stage.folder, &[action, &flags[..]].concat())
    };
    for action in [&[][..], &["check"]] {
        let refused = start(&stage.agents("ws_acme", "all"), action).expect(64).stderr;
        assert!(
            refused.contains("agent acme: its token reaches workspaces other than"),
            "{refused}"
        );
        assert!(!refused.contains("hidden"), "{refused}");
    }
    let shared = stage.agents("ws_acme", "token").replace("acme\"\nsha", "other\"\nsha");
    let shared = shared.replace(&weir_tests::receiver::sha256(super::BEARER), &"0f".repeat(32));
    let twice = stage.agents("ws_acme", "token") + &shared;
    let refused = start(&twice, &[]).expect(64).stderr;
    assert!(refused.contains("`acme` has the same token"), "{refused}");
    let every = stage.agents("*", "token");
    assert!(start(&every, &[]).expect(64).stderr.contains("workspace must be"));
    start(&stage.agents("ws_acme", "token"), &["check"]).expect(0);
    let elsewhere = start(&stage.agents("ws_quiet", "token"), &["check"]).expect(1).stderr;
    assert!(elsewhere.contains("agent acme: 404 not-found"), "{elsewhere}");
    assert_ne!(ACME, super::BEARER);
}

#[test]
fn completions_are_printed() {
    let folder = Folder::new();
    let printed = process::run(PROGRAM, &folder, &["completions", "bash"]).expect(0).stdout;
    assert!(printed.contains("--token-file"), "{printed}");
}
