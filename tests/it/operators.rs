//! The operators' screens on the admin listeners of both programs: in a real browser
//! (`tests/real/operators.mjs`), and by requests that no browser of an operator would send.
//!
//! With `WEIR_PICTURES` set to a folder, each page is kept there as a picture.

use std::env;
use std::time::Duration;

use serde_json::{Value, json};
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::dispatcher::{self, Dispatcher};
use weir_tests::folder::Folder;
use weir_tests::process::{Process, finish};
use weir_tests::real;
use weir_tests::receiver::Receiver;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;
use weir_tests::wait;
use weir_tests::world::World;

const TOKEN: &str = "a-token-of-some-length-0123456789";

/// Chromium takes some seconds to start, a sample some more, and a busy machine makes all slow.
const BROWSER_PATIENCE: Duration = Duration::from_secs(240);

/// Plays a program's part of the script.
#[track_caller]
fn play(program: &str, admin: &str, more: &[(&str, Value)]) {
    let mut stage = json!({
        "url": format!("http://{admin}"),
        "token": null,
        "script": true,
        "looks": false,
        "host": "127.0.0.1",
        "chromium": "/usr/bin/chromium",
        "pictures": env::var_os("WEIR_PICTURES").map(|path| path.to_string_lossy().into_owned()),
    });
    for (name, value) in more {
        stage[*name] = value.clone();
    }
    let mut script = real::node("tests/real/operators.mjs");
    let mut process = Process::spawn(program, script.arg(program).arg(stage.to_string()));
    process.wait_for_exit_within(BROWSER_PATIENCE);
    let finished = finish(process).expect(0);
    assert_eq!(finished.stdout.trim(), "done", "{}", finished.stderr);
}

/// A file with the admin listener's token, and the line of the configuration for it.
fn token_file() -> (Folder, String) {
    let folder = Folder::new();
    let path = folder.write("admin.token", &format!("{TOKEN}\n"));
    let line = format!("admin_token_file = \"{}\"", path.display());
    (folder, line)
}

/// A gateway that has refused some requests of `ws_acme`, by its plan.
#[track_caller]
fn gateway(change: impl FnOnce(Config) -> Config) -> World {
    let world = World::with(|config| {
        change(config).with("[plans.free]", "limits.workspace = { requests = 3 }")
    });
    let mut client = world.client();
    for _ in 0..20 {
        client.get("/v1/workspaces/ws_acme/users");
    }
    world
}

/// A dispatcher with a paused webhook.
struct Paused {
    dispatcher: Dispatcher,
    _receiver: Receiver,
}

#[track_caller]
fn paused(change: impl FnOnce(Config) -> Config) -> Paused {
    let config = dispatcher::config()
        .with("[retry]", "delays = [\"100ms\", \"200ms\", \"400ms\"]\ngive_up_after = \"60s\"")
        .with("[health]", "warn_for = \"500ms\"\npause_after = \"1s\"");
    let dispatcher = Dispatcher::start(&change(config), weir_tests::config::DIRECTORY);
    let receiver = Receiver::start();
    receiver.status(500);
    let webhook = dispatcher.create_webhook(&receiver.url("/hidden"), &["user.created"]);
    dispatcher.post_event("user.created");
    dispatcher.acme().wait_for_state(&webhook.id, "paused");
    Paused { dispatcher, _receiver: receiver }
}

#[test]
fn an_operator_of_the_gateway_sees_boosts_and_explains_and_every_page_is_accessible() {
    let (_folder, line) = token_file();
    let world = gateway(|config| config.with("[server]", &line));
    let more = [("token", json!(TOKEN)), ("looks", json!(true))];
    play("gateway", world.gateway.admin(), &more);
}

#[test]
fn the_gateways_screen_works_without_a_script_and_on_loopback_without_a_token() {
    let world = gateway(|config| config);
    play("gateway", world.gateway.admin(), &[("script", json!(false))]);
}

#[test]
fn an_operator_of_the_dispatcher_finds_what_fails_and_every_page_is_accessible() {
    let (_folder, line) = token_file();
    let paused = paused(|config| config.with("[server]", &line));
    let more = [("token", json!(TOKEN)), ("looks", json!(true))];
    play("dispatcher", paused.dispatcher.admin_address(), &more);
}

#[test]
fn the_dispatchers_screen_works_without_a_script_and_on_loopback_without_a_token() {
    let paused = paused(|config| config);
    play("dispatcher", paused.dispatcher.admin_address(), &[("script", json!(false))]);
}

/// A form as a browser sends it from a page of this origin.
fn form(admin: &str, origin: &str, path: &str, body: &str) -> Request {
    Request::new("POST", path)
        .host(admin)
        .field("Origin", origin)
        .field("Content-Type", "application/x-www-form-urlencoded")
        .body(body)
}

#[track_caller]
fn call(admin: &str, request: &Request) -> Response {
    Client::connect(admin).call(request)
}

/// The token that the forms of a page have.
#[track_caller]
fn form_token(page: &Response) -> String {
    let text = page.text();
    let (_, after) = text.split_once("name=\"form_token\" value=\"").expect("a form");
    after.split('"').next().unwrap().to_owned()
}

/// What holds of both programs without a token: `act` is a form that changes something.
#[track_caller]
fn only_its_own_pages_on_loopback(admin: &str, act: &str) {
    let home = |host: &str| call(admin, &Request::get("/dashboard").host(host));
    // A site whose name leads to this machine (DNS rebinding) sees nothing.
    for host in ["evil.example", "127.0.0.1.evil.example"] {
        let refused = home(host).expect(403).text();
        assert!(!refused.contains("form_token"), "{refused}");
    }
    let page = home(admin).expect(200);
    for (name, part) in [
        ("content-security-policy", "default-src 'none'; style-src 'self'; script-src 'self'"),
        ("x-frame-options", "DENY"),
        ("cache-control", "no-store"),
    ] {
        assert!(page.field(name).unwrap_or_default().contains(part), "{name}: {page:?}");
    }
    let body = format!("form_token={}", form_token(&page));
    let ours = format!("http://{admin}");
    for (origin, body) in
        [("http://evil.example", &*body), ("null", &body), (&*ours, ""), (&ours, "form_token=AAAA")]
    {
        call(admin, &form(admin, origin, act, body)).expect(403);
    }
    let cross = form(admin, &ours, act, &body).field("Sec-Fetch-Site", "cross-site");
    call(admin, &cross).expect(403);
    call(admin, &form(admin, &ours, act, &body)).expect(200);
    // What a page may not do is not possible without the pages either.
    call(admin, &form(admin, &ours, "/reload", &body)).expect(403);
}

#[test]
fn without_a_token_only_pages_of_this_machine_change_anything() {
    let world = World::new();
    only_its_own_pages_on_loopback(world.gateway.admin(), "/dashboard/explain");
    let dispatcher = Dispatcher::start(&dispatcher::config(), weir_tests::config::DIRECTORY);
    only_its_own_pages_on_loopback(dispatcher.admin_address(), "/dashboard/reactivate");
}

/// Signs in and returns the cookie.
#[track_caller]
fn session(admin: &str, token: &str) -> String {
    let entered = format!("token={token}");
    let sent = form(admin, &format!("http://{admin}"), "/dashboard/sign-in", &entered);
    let cookie = call(admin, &sent).expect(303).field("set-cookie").expect("a cookie").to_owned();
    assert!(cookie.contains("; HttpOnly") && cookie.contains("; SameSite=Strict"), "{cookie}");
    cookie.split(';').next().unwrap().to_owned()
}

#[test]
fn a_session_ends_once_the_token_has_changed() {
    let (folder, line) = token_file();
    let world = World::with(|config| config.with("[server]", &line));
    let admin = world.gateway.admin();
    let get =
        |cookie: &str| call(admin, &Request::get("/dashboard").host(admin).field("Cookie", cookie));
    get("").expect(401);
    let cookie = session(admin, TOKEN);
    get(&cookie).expect(200);
    get(&cookie.replace("weir_gateway", "weir_dispatcher")).expect(401);
    folder.write("admin.token", "another-token-0123456789\n");
    let bearer = "Bearer another-token-0123456789";
    let reload = Request::post("/reload", "").host(admin).field("Authorization", bearer);
    // The files are watched as well: the gateway may already have reloaded.
    let answer = call(admin, &reload);
    if answer.status == 401 {
        let earlier = format!("Bearer {TOKEN}");
        let reload = Request::post("/reload", "").host(admin);
        call(admin, &reload.field("Authorization", &earlier)).expect(200);
    }
    get(&cookie).expect(401);
    get(&session(admin, "another-token-0123456789")).expect(200);
}

#[test]
fn a_proxy_that_cannot_be_used_is_named_on_the_screen() {
    let proxy = Upstream::refusing();
    let line = format!("proxy = \"{}\"", proxy.address());
    let config = dispatcher::config().with("[egress]", &line);
    let dispatcher = Dispatcher::start(&config, weir_tests::config::DIRECTORY);
    let receiver = Receiver::start();
    dispatcher.create_webhook(&receiver.url("/in"), &["user.created"]);
    dispatcher.post_event("user.created");
    let admin = dispatcher.admin_address();
    let shown = wait::until("the notice", || {
        let page = call(admin, &Request::get("/dashboard").host(admin)).expect(200).text();
        page.contains("egress.proxy").then_some(page)
    });
    assert!(shown.contains(&format!(", {},", proxy.address())), "{shown}");
    assert!(!shown.contains("Own faults"), "{shown}");
}

#[test]
fn a_redelivery_is_cancelled_after_a_question() {
    let config = dispatcher::config().with("[egress]", "requests = 1\nwindow = \"60s\"");
    let dispatcher = Dispatcher::start(&config, weir_tests::config::DIRECTORY);
    let receiver = Receiver::start();
    dispatcher.create_webhook(&receiver.url("/in"), &["user.created"]);
    dispatcher.post_events("user.created", 1_000);
    let acme = dispatcher.acme();
    let all = json!({ "state": "waiting" });
    let job = acme.post("/deliveries:redeliver", &all).expect(202).json();
    let id = job["id"].as_str().expect("an identifier");
    let admin = dispatcher.admin_address();
    let page = call(admin, &Request::get("/dashboard").host(admin)).expect(200);
    let token = form_token(&page);
    let send = |more: &str| {
        let body = format!("form_token={token}&workspace=ws_acme&id={id}{more}");
        let path = "/dashboard/redeliveries/cancel";
        call(admin, &form(admin, &format!("http://{admin}"), path, &body))
    };
    assert!(send("").expect(200).text().contains("Cancel the redelivery?"));
    let shown = acme.get(&format!("/redeliveries/{id}")).expect(200).json();
    assert_ne!(shown["state"], "cancelled", "it was only asked");
    let done = send("&confirmed=yes").expect(303);
    assert_eq!(done.field("location"), Some("/dashboard?done=cancelled"));
    let shown = acme.get(&format!("/redeliveries/{id}")).expect(200).json();
    assert_eq!(shown["state"], "cancelled");
}
