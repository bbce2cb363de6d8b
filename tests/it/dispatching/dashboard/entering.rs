//! Links open once, for their bearer, until they expire; and no stranger learns or keeps one.

use std::time::Duration;

use serde_json::json;
use weir_tests::client::Client;
use weir_tests::dispatcher::{self, ACME, READER, TOKENS, entry};
use weir_tests::request::Request;
use weir_tests::wait;

use super::{Site, Stage, Visitor, address, cookie_of, form};

#[test]
fn a_link_is_shown_as_often_as_one_likes_and_opens_once_also_after_a_crash() {
    let mut site = Site::new();
    let link = site.link(ACME);
    let path = link.split_once("/dashboard").map(|(_, path)| format!("/dashboard{path}")).unwrap();
    for _ in 0..3 {
        let page = site.call(&Request::get(&path)).expect(200);
        assert!(page.text().contains("ws_acme") && page.field("set-cookie").is_none());
        assert_eq!(page.field("referrer-policy"), Some("no-referrer"));
        assert_eq!(page.field("cache-control"), Some("no-store"));
        site.call(&Request::new("HEAD", &path)).expect(200);
    }
    let opened = site.open(&link).expect(303);
    let cookie = cookie_of(&opened);
    site.open(&link).expect(403);
    site.call(&Request::get(&path)).expect(403);

    site.stage.dispatcher.kill();
    site.stage.dispatcher.start_again();
    // Its listener has another port now.
    let direct =
        |request: &Request| Client::connect(site.stage.dispatcher.api_address()).call(request);
    let (_, text) = link.split_once("link=").unwrap();
    direct(&form("/dashboard/enter", &[("link", text)])).expect(403);
    let page = Request::get("/dashboard/workspaces/ws_acme/webhooks").field("Cookie", &cookie);
    direct(&page).expect(200);
}

#[test]
fn many_at_once_open_a_link_once() {
    let site = Site::new();
    let link = site.link(ACME);
    let opened = std::thread::scope(|scope| {
        let all: Vec<_> = (0..16).map(|_| scope.spawn(|| site.open(&link).status)).collect();
        all.into_iter().filter(|_| true).map(|one| one.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(opened.iter().filter(|status| **status == 303).count(), 1, "{opened:?}");
    assert_eq!(opened.iter().filter(|status| **status == 403).count(), 15, "{opened:?}");
}

#[test]
fn a_link_that_was_changed_or_is_old_opens_nothing() {
    let site =
        Site::with(|config| config.with("[dashboard]", "link_expires = \"1s\""), |gateway| gateway);
    let link = site.link(ACME);
    let (content, signature) = link.rsplit_once('.').unwrap();
    let middle = content.len() - 20;
    let changed = format!(
        "{}{}{}.{signature}",
        &content[..middle],
        if content.as_bytes()[middle] == b'A' { 'B' } else { 'A' },
        &content[middle + 1..]
    );
    for wrong in [changed.as_str(), content, &link[..link.len() - 4], "x?link=", "x?link=a.b"] {
        let refused = site.open(wrong).expect(403);
        assert!(refused.text().contains("This link opens nothing"), "{wrong}");
    }
    wait::within(wait::PATIENCE, || (site.open(&site.link(ACME)).status == 303).then_some(()));
    wait::pass(Duration::from_millis(1_100));
    assert!(site.open(&link).expect(403).text().contains("It has expired"));
}

#[test]
fn a_link_permits_no_more_than_its_token_and_may_permit_less() {
    let site = Site::new();
    let api = |token| site.stage.dispatcher.api(token, "ws_acme");
    let full = json!({ "role": "full" });
    api(READER).post("/dashboard-links", &full).expect_problem(403);
    assert_eq!(api(READER).act("/dashboard-links").expect(201).json()["role"], "read_only");
    assert_eq!(api(ACME).act("/dashboard-links").expect(201).json()["role"], "full");
    let less = json!({ "role": "read_only" });
    let link = api(ACME).post("/dashboard-links", &less).expect(201).json();
    assert_eq!(link["role"], "read_only");
    site.stage.dispatcher.api(ACME, "ws_quiet").act("/dashboard-links").expect_problem(404);
    api("unknown").act("/dashboard-links").expect_problem(401);
    api(dispatcher::BACKEND).act("/dashboard-links").expect_problem(403);

    let opened = site.open(link["url"].as_str().unwrap()).expect(303);
    let reader = Visitor { site: &site, cookie: cookie_of(&opened) };
    let webhook = site.stage.webhook("/hook", &["user.created"]);
    let page = reader.get(&format!("webhooks/{}", webhook.id)).expect(200).text();
    assert!(page.contains("read only") && !page.contains("Rotate the secret"), "{page}");
    for change in ["delete", "rotate", "test", "disable"] {
        reader.post(&format!("webhooks/{}/{change}", webhook.id), &[]).expect(403);
    }
    reader.post("webhooks", &[("url", "https://a.example/"), ("events", "x")]).expect(403);
    assert_eq!(site.stage.dispatcher.acme().list("/webhooks", "").len(), 1);
}

#[test]
fn sessions_and_links_end_with_the_token_they_come_from() {
    let site = Site::new();
    let visitor = site.visitor(ACME);
    let unused = site.link(ACME);
    visitor.get("webhooks").expect(200);
    let others = dispatcher::tokens()
        .replace(&entry("acme", ACME, "ws_acme", r#"["webhooks:read", "webhooks:write"]"#), "");
    site.stage.dispatcher.folder().write(TOKENS, &others);
    site.stage.dispatcher.reload().expect(200);
    let page = visitor.get("webhooks").expect(401);
    assert!(page.text().contains("Sign in"));
    assert!(site.open(&unused).expect(403).text().contains("was revoked"));

    // A token that may only read leaves a session that may only read.
    let reads = entry("acme", ACME, "ws_acme", r#"["webhooks:read"]"#);
    site.stage.dispatcher.folder().write(TOKENS, &format!("{others}{reads}"));
    site.stage.dispatcher.reload().expect(200);
    assert!(visitor.get("webhooks").expect(200).text().contains("read only"));
    assert!(visitor.get("webhooks/new").expect(403).text().contains("Read only"));
    visitor.post("webhooks", &[("url", "https://a.example/")]).expect(403);
}

#[test]
fn a_token_signs_in_where_it_reaches_the_workspace() {
    let site = Site::new();
    let sign_in = |workspace: &str, token: &str| {
        site.call(&form("/dashboard/sign-in", &[("workspace", workspace), ("token", token)]))
    };
    let opened = sign_in("ws_acme", ACME).expect(303);
    let visitor = Visitor { site: &site, cookie: cookie_of(&opened) };
    visitor.get("webhooks").expect(200);
    assert_eq!(opened.field("location"), Some("/dashboard/workspaces/ws_acme/webhooks"));
    for (workspace, token, status) in [
        ("ws_quiet", ACME, 403),
        ("ws_acme", "wrong", 401),
        ("ws_acme", "", 401),
        ("", ACME, 403),
        ("ws_acme", dispatcher::BACKEND, 403),
    ] {
        let refused = sign_in(workspace, token);
        assert_eq!(refused.status, status, "{workspace} {token}: {}", refused.text());
        assert!(refused.text().contains("Sign in") && refused.field("set-cookie").is_none());
    }
}

#[test]
fn a_request_without_a_token_whose_body_never_comes_gives_way_to_a_customer() {
    for call in ["POST /dashboard/sign-in", "GET /openapi.json"] {
        let stage = Stage::with(|config| {
            let config = config.with("[dashboard]", &address("127.0.0.1:80"));
            config.with("[server]", "connections_max = 1")
        });
        let mut stranger = Client::connect(stage.dispatcher.api_address());
        let fields = "Host: x\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n";
        stranger.send(format!("{call} HTTP/1.1\r\n{fields}"));
        assert_eq!(stranger.read_interim().start, "HTTP/1.1 100 Continue", "{call}");
        stage.dispatcher.acme().get("/webhooks").expect(200);
        stranger.expect_end();
    }
}

#[test]
fn strangers_send_forms_of_a_few_kilobytes_and_none_to_a_workspace() {
    let site = Site::new();
    let answer = |path: &str, cookie: &str, bytes: usize| {
        let fields = format!("Cookie: {cookie}\r\nSec-Fetch-Site: same-origin");
        let mut client = Client::connect(site.stage.dispatcher.api_address());
        let expect = format!("Content-Length: {bytes}\r\nExpect: 100-continue");
        client.send(format!("POST {path} HTTP/1.1\r\nHost: x\r\n{fields}\r\n{expect}\r\n\r\n"));
        String::from_utf8(client.read_until("\r\n")).unwrap().trim_end().to_owned()
    };
    let edit = "/dashboard/workspaces/ws_acme/webhooks";
    let (own, bytes) = (site.visitor(ACME).cookie, 192 * 1024);
    assert_eq!(answer(edit, &own, bytes), "HTTP/1.1 100 Continue");
    for (path, cookie, bytes, start) in [
        ("/dashboard/sign-in", "a=1", 16 * 1024, "HTTP/1.1 100 Continue"),
        ("/dashboard/sign-in", "a=1", bytes - 1, "HTTP/1.1 413 Payload Too Large"),
        ("/dashboard/enter", own.as_str(), bytes, "HTTP/1.1 413 Payload Too Large"),
        (edit, "weir_session=unknown", 1, "HTTP/1.1 401 Unauthorized"),
    ] {
        assert_eq!(answer(path, cookie, bytes), start, "{bytes} bytes to {path} with {cookie}");
    }
}

#[test]
fn links_cookies_and_tokens_are_in_no_log() {
    let site = Site::with(|config| config.with("[log]", "level = \"debug\""), |gateway| gateway);
    let link = site.link(ACME);
    let path = link.split_once("/dashboard").map(|(_, path)| format!("/dashboard{path}")).unwrap();
    site.call(&Request::get(&path)).expect(200);
    let cookie = cookie_of(&site.open(&link).expect(303));
    let token = [("workspace", "ws_acme"), ("token", ACME)];
    site.call(&form("/dashboard/sign-in", &token)).expect(303);
    let page = Request::get("/dashboard/workspaces/ws_acme/webhooks").field("Cookie", &cookie);
    site.call(&page).expect(200);
    let Site { mut stage, mut gateway, .. } = site;
    stage.dispatcher.stop();
    gateway.signal("TERM");
    gateway.wait_for_exit();
    let logs = [
        stage.dispatcher.log().to_end(),
        stage.dispatcher.attempt_log().to_end(),
        gateway.log().to_end(),
        gateway.access_log().to_end(),
    ];
    let (_, signed) = link.split_once("link=").unwrap();
    let (_, secret) = cookie.split_once('=').unwrap();
    for hidden in [signed, secret, ACME] {
        for log in &logs {
            assert!(!log.contains(hidden), "{log}");
        }
    }
    assert!(logs[3].contains("/dashboard/enter"), "{}", logs[3]);
}
