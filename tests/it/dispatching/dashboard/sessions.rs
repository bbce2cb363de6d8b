//! A session reaches its workspace alone, and no other site acts in its name.

use std::time::Duration;

use weir_tests::dispatcher::{ACME, QUIET};
use weir_tests::request::Request;
use weir_tests::wait;

use super::{Site, Visitor, cookie_of, encoded, form};

#[test]
fn a_session_sees_nothing_of_another_workspace() {
    let site = Site::new();
    let quiet = site.stage.dispatcher.api(QUIET, "ws_quiet");
    let theirs = quiet.create_webhook(&site.stage.receiver.url("/theirs"), &["user.created"]);
    let event =
        site.stage.dispatcher.post(&weir_tests::dispatcher::event("ws_quiet", "user.created"));
    let delivery = quiet.wait_for_delivery(&event, |one| one["state"] == "delivered");
    let visitor = site.visitor(ACME);
    for page in ["webhooks", "failed", "deliveries", "redeliveries", "webhooks/new"] {
        visitor.get_path(&format!("/dashboard/workspaces/ws_quiet/{page}")).expect(404);
    }
    visitor.get(&format!("webhooks/{}", theirs.id)).expect(404);
    visitor.get(&format!("deliveries/{}", super::text(&delivery, "id"))).expect(404);
    visitor.get(&format!("events/{event}")).expect(404);
    let listed = visitor.get("deliveries").expect(200).text();
    assert!(!listed.contains(&event), "{listed}");
    for change in ["delete", "rotate", "test"] {
        visitor.post(&format!("webhooks/{}/{change}", theirs.id), &[]).expect(404);
    }
    let token = visitor.form_token();
    let path = format!("/dashboard/workspaces/ws_quiet/webhooks/{}/delete", theirs.id);
    visitor.send(form(&path, &[("form_token", &token)])).expect(404);
    // A path that says otherwise than it looks is the gateway's to refuse.
    let odd = "/dashboard/workspaces/ws_acme/../ws_quiet/webhooks";
    visitor.get_path(odd).expect(400);
    assert_eq!(quiet.list("/webhooks", "").len(), 1);
}

#[test]
fn a_form_needs_our_origin_and_the_token_of_its_session() {
    let site = Site::new();
    let webhook = site.stage.webhook("/hook", &["user.created"]);
    let [mine, other] = [(); 2].map(|()| site.visitor(ACME));
    let path = format!("/dashboard/workspaces/ws_acme/webhooks/{}/delete", webhook.id);
    let (token, stolen) = (mine.form_token(), other.form_token());
    let plain = |fields: &[(&str, &str)]| {
        Request::new("POST", &path)
            .field("Content-Type", "application/x-www-form-urlencoded")
            .body(encoded(fields))
    };
    for (what, request) in [
        ("no token", form(&path, &[])),
        ("another session's", form(&path, &[("form_token", &stolen)])),
        ("no origin", plain(&[("form_token", &token)])),
        (
            "another origin",
            plain(&[("form_token", &token)]).field("Origin", "https://evil.example"),
        ),
        ("a sandboxed frame", plain(&[("form_token", &token)]).field("Origin", "null")),
        (
            "another site",
            plain(&[("form_token", &token)])
                .field("Sec-Fetch-Site", "cross-site")
                .field("Origin", "https://evil.example"),
        ),
        ("a sibling", plain(&[("form_token", &token)]).field("Sec-Fetch-Site", "same-site")),
    ] {
        let refused = mine.send(request);
        assert_eq!(refused.status, 403, "{what}");
        assert!(refused.text().contains("nothing was changed"), "{what}");
    }
    assert_eq!(site.stage.dispatcher.acme().list("/webhooks", "").len(), 1);
    // Browsers without `Sec-Fetch-Site` name the origin alone.
    let origin = site.link(ACME).split("/dashboard").next().unwrap().to_owned();
    let sent = mine.send(plain(&[("form_token", &token)]).field("Origin", &origin));
    assert_eq!(sent.status, 303, "{}", sent.text());
    // A link that another site submits opens no session in the name of a visitor.
    let (_, link) =
        site.link(ACME).split_once("link=").map(|(a, b)| (a.len(), b.to_owned())).unwrap();
    let request = Request::new("POST", "/dashboard/enter")
        .field("Content-Type", "application/x-www-form-urlencoded")
        .field("Sec-Fetch-Site", "cross-site")
        .body(encoded(&[("link", &link)]));
    site.call(&request).expect(403);
}

#[test]
fn pages_forbid_scripts_of_others_and_frames() {
    let site = Site::new();
    let visitor = site.visitor(ACME);
    let policy = |page: &weir_tests::response::Response| {
        page.field("content-security-policy").unwrap_or_default().to_owned()
    };
    for page in [visitor.get("webhooks"), visitor.get("nonsense"), visitor.get_path("/dashboard")] {
        let found = policy(&page);
        assert!(found.contains("default-src 'none'") && !found.contains("unsafe"), "{found}");
        assert!(found.contains("frame-ancestors 'none'"), "{found}");
        assert_eq!(page.field("x-frame-options"), Some("DENY"));
        assert_eq!(page.field("referrer-policy"), Some("no-referrer"));
        assert_eq!(page.field("cache-control"), Some("no-store"));
        assert_eq!(page.field("x-content-type-options"), Some("nosniff"));
    }
    let frames = "frame_origins = [\"https://app.acme.example\"]";
    site.configure(|config| config.with("[dashboard]", frames));
    let page = visitor.get("webhooks").expect(200);
    assert!(policy(&page).contains("frame-ancestors https://app.acme.example"));
    assert_eq!(page.field("x-frame-options"), None);
}

#[test]
fn the_cookie_is_for_pages_alone_and_never_for_scripts() {
    let site = Site::new();
    let opened = site.open(&site.link(ACME)).expect(303);
    let cookie = opened.field("set-cookie").unwrap();
    for part in ["Path=/dashboard", "HttpOnly", "SameSite=Lax", "Max-Age=43"] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains("Secure") && !cookie.contains("Domain"), "{cookie}");
    let https = "url = \"https://api.acme.example/dashboard\"";
    site.configure(|config| config.with("[dashboard]", https));
    let opened = site.open(&site.link(ACME)).expect(303);
    let cookie = opened.field("set-cookie").unwrap();
    assert!(cookie.contains("; Secure") && cookie.contains("SameSite=Lax"), "{cookie}");
    let frames = "frame_origins = [\"https://app.acme.example\"]";
    site.configure(|config| config.with("[dashboard]", https).with("[dashboard]", frames));
    let opened = site.open(&site.link(ACME)).expect(303);
    let cookie = opened.field("set-cookie").unwrap();
    assert!(cookie.contains("SameSite=None; Partitioned; Secure"), "{cookie}");
}

#[test]
fn a_session_ends_when_its_visitor_signs_out_and_when_its_time_is_over() {
    let site = Site::new();
    let visitor = site.visitor(ACME);
    let out = visitor.post("sign-out", &[]).expect(303);
    assert!(out.field("set-cookie").is_some_and(|cookie| cookie.contains("Max-Age=0")));
    visitor.get("webhooks").expect(401);
    site.configure(|config| config.with("[dashboard]", "session_expires = \"1s\""));
    let opened = site.open(&site.link(ACME)).expect(303);
    let short = Visitor { site: &site, cookie: cookie_of(&opened) };
    wait::pass(Duration::from_millis(1_100));
    short.get("webhooks").expect(401);
    for cookie in ["weir_session=", "weir_session=x", "other=1", "weir_session"] {
        let stranger = Visitor { site: &site, cookie: cookie.to_owned() };
        stranger.get("webhooks").expect(401);
    }
}

#[test]
fn a_form_that_is_sent_again_adds_and_rotates_nothing_again() {
    let site = Site::new();
    let visitor = site.visitor(ACME);
    let made_at = |page: &str| {
        let page = visitor.get(page).expect(200).text();
        let (_, rest) = page.split_once("name=\"form_made_at\" value=\"").expect("a form");
        rest.split('"').next().unwrap_or_default().to_owned()
    };
    let url = site.stage.receiver.url("/hook");
    let made = made_at("webhooks/new");
    let fields = [("form_made_at", made.as_str()), ("url", &url), ("events", "user.created")];
    let added = [(); 2].map(|()| visitor.post("webhooks", &fields).expect(201).text());
    assert_eq!(added[0], added[1], "the same secret");
    let other = [&fields[..2], &[("events", "plan.changed")]].concat();
    visitor.post("webhooks", &other).expect(201);
    let webhooks = site.stage.dispatcher.acme().list("/webhooks", "");
    assert_eq!(webhooks.len(), 2, "another form adds another");
    let page = format!("webhooks/{}/rotate", super::text(&webhooks[0], "id"));
    let made = made_at(&page);
    let rotate = |made: &str| visitor.post(&page, &[("form_made_at", made)]).expect(200).text();
    let rotated = [rotate(&made), rotate(&made)];
    assert_eq!(rotated[0], rotated[1]);
    assert_ne!(rotate(&made_at(&page)), rotated[0], "a page that was loaded again rotates again");
}
