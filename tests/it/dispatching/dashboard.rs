//! The customers' dashboard behind the shipped gateway: in a real browser, and by requests that
//! no browser would send.

mod browser;
mod empty_pages;
mod entering;
mod saving;
mod sessions;

use serde_json::json;
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::dispatcher::{self, CONFIG, Dispatcher};
use weir_tests::gateway::Gateway;
use weir_tests::receiver::Receiver;
use weir_tests::request::Request;
use weir_tests::response::Response;
use weir_tests::upstream::Upstream;

use super::{Stage, text};
use crate::shipped::shipped_gateway;

/// The dispatcher behind a gateway with the shipped routes.
struct Site {
    stage: Stage,
    gateway: Gateway,
    config: Config,
    _others: [Upstream; 2],
}

impl Site {
    #[track_caller]
    fn new() -> Self {
        Self::with(|config| config, |gateway| gateway)
    }

    /// With changes of the dispatcher's configuration, and of the gateway's shipped text.
    #[track_caller]
    fn with(
        change: impl FnOnce(Config) -> Config,
        change_gateway: impl FnOnce(String) -> String,
    ) -> Self {
        // Its port is known only once the gateway has started.
        let config = change(dispatcher::config().with("[dashboard]", &address("127.0.0.1:80")));
        let dispatcher = Dispatcher::start(&config, weir_tests::config::DIRECTORY);
        let stage = Stage { receiver: Receiver::start(), dispatcher };
        let others = [(); 2].map(|()| Upstream::start());
        let [control, data] = [&others[0], &others[1]].map(Upstream::address);
        let upstreams = [control, data, stage.dispatcher.api_address().to_owned()];
        let gateway = shipped_gateway(&upstreams, change_gateway);
        let config = config.with("[dashboard]", &address(gateway.http()));
        let site = Self { stage, gateway, config, _others: others };
        site.configure(|config| config);
        site
    }

    /// Changes the dispatcher's configuration while it serves.
    #[track_caller]
    fn configure(&self, change: impl FnOnce(Config) -> Config) {
        let config = change(self.config.clone());
        self.stage.dispatcher.folder().write(CONFIG, &config.to_string());
        self.stage.dispatcher.reload().expect(200);
    }

    /// A link into the dashboard of `ws_acme`.
    #[track_caller]
    fn link(&self, token: &str) -> String {
        let answer = self.stage.dispatcher.api(token, "ws_acme").act("/dashboard-links");
        text(&answer.expect(201).json(), "url").to_owned()
    }

    /// One request of a browser to the gateway.
    #[track_caller]
    fn call(&self, request: &Request) -> Response {
        Client::connect(self.gateway.http()).call(request)
    }

    /// Opens a link by its button, and returns the answer.
    #[track_caller]
    fn open(&self, link: &str) -> Response {
        let (_, link) = link.split_once("link=").unwrap_or_else(|| panic!("{link}"));
        self.call(&form("/dashboard/enter", &[("link", link)]))
    }

    /// A visitor whom a link of this token lets in.
    #[track_caller]
    fn visitor(&self, token: &str) -> Visitor<'_> {
        let opened = self.open(&self.link(token)).expect(303);
        Visitor { site: self, cookie: cookie_of(&opened) }
    }
}

/// The options of `[dashboard]` for a gateway at this address.
fn address(gateway: &str) -> String {
    let (_, port) = gateway.split_once(':').unwrap_or_else(|| panic!("{gateway}"));
    format!("url = \"http://api.localhost:{port}/dashboard\"")
}

/// A form that a page of the dashboard sends.
fn form(path: &str, fields: &[(&str, &str)]) -> Request {
    Request::new("POST", path)
        .field("Content-Type", "application/x-www-form-urlencoded")
        .field("Sec-Fetch-Site", "same-origin")
        .body(encoded(fields))
}

/// Fields as browsers encode them.
fn encoded(fields: &[(&str, &str)]) -> String {
    let escaped = |text: &str| {
        let bytes = text.bytes().map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        });
        bytes.collect::<String>()
    };
    let pairs = fields.iter().map(|(name, value)| format!("{name}={}", escaped(value)));
    pairs.collect::<Vec<_>>().join("&")
}

/// The name and value of the cookie that an answer sets.
#[track_caller]
fn cookie_of(answer: &Response) -> String {
    let field = answer.field("set-cookie").unwrap_or_else(|| panic!("{}", answer.head_text()));
    field.split(';').next().unwrap_or_default().to_owned()
}

/// A browser with a session for `ws_acme`.
struct Visitor<'s> {
    site: &'s Site,
    cookie: String,
}

impl Visitor<'_> {
    /// A page of `ws_acme`.
    #[track_caller]
    fn get(&self, page: &str) -> Response {
        self.get_path(&format!("/dashboard/workspaces/ws_acme/{page}"))
    }

    #[track_caller]
    fn get_path(&self, path: &str) -> Response {
        self.site.call(&Request::get(path).field("Cookie", &self.cookie))
    }

    /// The token of this session's forms.
    #[track_caller]
    fn form_token(&self) -> String {
        let page = self.get("webhooks").expect(200).text();
        let (_, rest) = page.split_once("name=\"form_token\" value=\"").expect("a form");
        rest.split('"').next().unwrap_or_default().to_owned()
    }

    /// Sends a form of a page of `ws_acme`, with its token.
    #[track_caller]
    fn post(&self, page: &str, fields: &[(&str, &str)]) -> Response {
        let token = self.form_token();
        let fields = [&[("form_token", token.as_str())], fields].concat();
        self.send(form(&format!("/dashboard/workspaces/ws_acme/{page}"), &fields))
    }

    #[track_caller]
    fn send(&self, request: Request) -> Response {
        self.site.call(&request.field("Cookie", &self.cookie))
    }
}

#[test]
fn assets_are_kept_by_browsers_and_cost_nothing() {
    let site = Site::new();
    let page = site.call(&Request::get("/dashboard/sign-in")).expect(200);
    // Two limits govern pages: a session's and its address's.
    assert_eq!(page.allowance().resource, "session", "it has less left");
    let page = page.text();
    let paths: Vec<&str> = page.split('"').filter(|part| part.starts_with("/assets/")).collect();
    assert_eq!(paths.len(), 4, "{page}");
    for path in paths {
        let asset = site.call(&Request::get(path)).expect(200);
        asset.assert_no_allowance();
        assert_eq!(asset.field("cache-control"), Some("public, max-age=31536000, immutable"));
        let head = site.call(&Request::new("HEAD", path)).expect(200);
        head.assert_no_allowance();
        site.call(&Request::get(&format!("{path}x"))).expect(404);
    }
}

#[test]
fn five_tabs_that_refresh_are_within_the_limit_of_a_session_and_a_flood_stays_its_own() {
    let site = Site::new();
    let [busy, calm] = [(); 2].map(|()| site.visitor(dispatcher::ACME));
    // A tab refreshes every five seconds.
    for _ in 0..5 * 12 {
        busy.get("webhooks").expect(200);
    }
    let refused = (0..200).find(|_| busy.get("webhooks").status == 429);
    assert!(refused.is_some(), "a session has a limit");
    calm.get("webhooks").expect(200);
    // The API of the workspace is not charged by pages.
    let acme = site.stage.dispatcher.acme().through(site.gateway.http());
    assert_eq!(acme.get("/webhooks").expect(200).allowance().remaining, 59);
}

#[test]
fn a_workspace_sees_its_limits_as_the_gateway_counts_them() {
    let route = r#"
        [[routes]]
        plane = "control"
        path = "/v1/workspaces/{workspace}/limits"
        limits = ["workspace", "organisation"]
        answer = "limits"
        public = true
    "#;
    let site = Site::with(
        |config| config,
        |gateway| {
            let hosts = "hosts = [\"api.localhost\"]";
            assert!(gateway.contains(hosts));
            let gateway = gateway.replace(hosts, "hosts = [\"api.localhost\", \"127.0.0.1\"]");
            format!("{gateway}{route}")
        },
    );
    let visitor = site.visitor(dispatcher::ACME);
    let page = visitor.get("webhooks").expect(200).text();
    assert!(!page.contains("workspaces/ws_acme/limits"), "there is no page of limits");
    visitor.get("limits").expect(404);
    let url = format!("http://{}/v1/workspaces/{{workspace}}/limits", site.gateway.http());
    site.configure(|config| config.with("[dashboard]", &format!("limits_url = \"{url}\"")));
    let acme = site.stage.dispatcher.acme().through(site.gateway.http());
    for _ in 0..6 {
        acme.get("/webhooks").expect(200);
    }
    assert!(visitor.get("webhooks").expect(200).text().contains("workspaces/ws_acme/limits"));
    let page = visitor.get("limits").expect(200).text();
    for shown in ["workspace", "org_acme", "60 per minute", "600 per minute", "value=\"7\""] {
        assert!(page.contains(shown), "{shown}: {page}");
    }
    // It asks no more by itself once a read of the limits is refused, and says when it passes.
    assert!((0..200).any(|_| acme.get("/webhooks").status == 429), "a workspace has a limit");
    let page = visitor.get("limits").expect(200).text();
    let shown = page.contains("allowance for this page is used up") && page.contains("It is back");
    assert!(shown && !page.contains("data-refresh"), "{page}");
    // Without the gateway, the page says so.
    let nothing = "limits_url = \"http://127.0.0.1:9/{workspace}\"";
    site.configure(|config| config.with("[dashboard]", nothing));
    let page = visitor.get("limits").expect(200).text();
    assert!(page.contains("does not say at the moment"), "{page}");
}

#[test]
fn an_operator_sets_the_accent_and_a_logo() {
    let site = Site::new();
    let logo = "<svg xmlns=\"http://www.w3.org/2000/svg\"/>";
    site.stage.dispatcher.folder().write("logo.svg", logo);
    let files = || {
        let page = site.call(&Request::get("/dashboard/sign-in")).expect(200).text();
        let paths = page.split('"').filter(|part| part.starts_with("/assets/"));
        paths.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = files();
    let looks = "accent = \"#7a1fa2\"\naccent_dark = \"#e0b0ff\"\nlogo = \"logo.svg\"";
    site.configure(|config| config.with("[dashboard]", looks));
    let after = files();
    let theme = after.iter().find(|path| path.contains("theme")).unwrap();
    assert!(!before.contains(theme), "another content, another name: {theme}");
    let style = site.call(&Request::get(theme)).expect(200).text();
    assert!(style.contains("#7a1fa2") && style.contains("#e0b0ff"), "{style}");
    let path = after.iter().find(|path| path.contains("logo")).unwrap();
    assert_eq!(site.call(&Request::get(path)).expect(200).text(), logo);
    // Other colours cannot be read: the reload is refused.
    let pale = site.config.clone().with("[dashboard]", "accent = \"#ffcc00\"");
    site.stage.dispatcher.folder().write(CONFIG, &pale.to_string());
    let refused = site.stage.dispatcher.reload().expect(422).text();
    assert!(refused.contains("cannot be read well on #ffffff"), "{refused}");
}

#[test]
fn pages_of_many_webhooks_with_long_urls_have_their_urls_and_less_than_60_kib() {
    let site = Site::with(
        |config| {
            config
                .with("[webhooks]", "per_workspace_max = 200")
                .with("[retry]", "delays = [\"50ms\"]\ngive_up_after = \"100ms\"")
        },
        |gateway| gateway,
    );
    let (acme, long) = (site.stage.dispatcher.acme(), "x".repeat(1_850));
    site.stage.receiver.status(410);
    for nth in 0..130 {
        site.stage.webhook(&format!("/{nth}/{long}/{nth}"), &["user.created"]);
    }
    site.stage.dispatcher.post_event("user.created");
    acme.wait_for_count("failed_permanent", 130);
    let visitor = site.visitor(dispatcher::ACME);
    for name in ["webhooks", "deliveries", "failed"] {
        let page = visitor.get(name).expect(200).text();
        let assets = page.split('"').filter(|part| part.starts_with("/assets/"));
        let assets = assets.map(|path| site.call(&Request::get(path)).expect(200).body.len());
        let bytes = page.len() + assets.sum::<usize>();
        assert!(bytes <= 60 * 1024, "{name}: {bytes} bytes");
        assert!(
            !page.contains(">wh_") && page.contains("x/129<") == (name != "webhooks"),
            "{page}"
        );
    }
}

#[test]
fn without_a_url_there_are_no_pages_and_no_links() {
    let stage = Stage::new();
    let answer = stage.dispatcher.acme().act("/dashboard-links").expect_problem(409);
    assert_eq!(answer["title"], "There is no dashboard");
    Client::connect(stage.dispatcher.api_address()).get("/dashboard").expect_problem(404);
}

#[test]
fn activity_counts_every_attempt_by_class_with_its_answer_time() {
    let stage = Stage::with(|config| {
        config.with("[retry]", "delays = [\"50ms\"]\ngive_up_after = \"100ms\"")
    });
    let webhook = stage.webhook("/hook", &["user.created"]);
    for status in [200, 404, 503] {
        stage.receiver.status(status);
        let event = stage.dispatcher.post_event("user.created");
        stage.dispatcher.acme().wait_for_delivery(&event, |one| !one["ended_at"].is_null());
    }
    let acme = stage.dispatcher.acme();
    let attempts: u64 =
        acme.deliveries("").iter().map(|one| one["attempts"].as_u64().unwrap()).sum();
    let activity = acme.get(&format!("/webhooks/{}/activity", webhook.id)).expect(200).json();
    let total = &activity["total"];
    assert_eq!(total["attempts"], json!(attempts), "{activity}");
    assert_eq!(total["delivered"], 1);
    let failed = ["client_errors", "server_errors"].map(|name| total[name].as_u64().unwrap());
    assert!(failed.iter().all(|count| *count >= 1), "{activity}");
    assert_eq!(failed.iter().sum::<u64>() + 1, attempts, "{activity}");
    assert!(total["p50_ms"].as_f64().unwrap() <= total["p95_ms"].as_f64().unwrap());
    let hours = activity["hours"].as_array().unwrap();
    assert_eq!(hours.len(), 24);
    let counted: u64 = hours.iter().map(|hour| hour["attempts"].as_u64().unwrap()).sum();
    assert_eq!(counted, attempts);
}

#[test]
fn a_form_that_was_left_open_changes_only_what_was_changed_in_it() {
    let site = Site::new();
    let (acme, webhook) =
        (site.stage.dispatcher.acme(), site.stage.webhook("/hook", &["user.created"]));
    let path = format!("/webhooks/{}", webhook.id);
    let patch = |change| acme.call("PATCH", &path, Some(&change)).expect(200).json();
    patch(json!({ "description": "old", "metadata": { "a": "1", "b": "2" } }));
    let (visitor, page) = (site.visitor(dispatcher::ACME), format!("webhooks/{}/edit", webhook.id));
    let form = visitor.get(&page).expect(200).text();
    let (_, shown) = form.split_once("name=\"shown\" value=\"").expect("what it shows");
    let shown = shown.split('"').next().unwrap_or_default().replace("&#34;", "\"");
    // An attribute has no other characters here.
    assert!(!shown.contains('&'), "{shown}");
    patch(json!({ "description": "new", "metadata": { "c": "3" }, "headers": { "X-New": "1" } }));
    let url = site.stage.receiver.url("/hook");
    let fields = |metadata| {
        [
            ("shown", shown.as_str()),
            ("url", url.as_str()),
            ("events", "user.created"),
            ("description", "old"),
            ("answers", "failures"),
            ("metadata", metadata),
        ]
    };
    visitor.post(&page, &fields("a: 9")).expect(303);
    let saved = acme.webhook(&webhook.id);
    assert_eq!(saved["description"], "new");
    assert_eq!(saved["metadata"], json!({ "a": "9", "c": "3" }));
    assert_eq!(saved["headers"].as_object().map(|headers| headers.len()), Some(1));
    // Its URL is no longer one that the API takes.
    site.configure(|config| config.with("[egress]", "allow_http = false"));
    visitor.post(&page, &fields("a: 8\nb: 2")).expect(303);
    assert_eq!(acme.webhook(&webhook.id)["metadata"], json!({ "a": "8", "c": "3" }));
    visitor.post(&page, &fields("a: 8")[1..]).expect(400);
    patch(json!({ "events": ["user.created", "plan.changed"] }));
    let mut other = fields("a: 8\nb: 2");
    other[2].1 = "user.deleted";
    visitor.post(&page, &other).expect(303);
    assert_eq!(acme.webhook(&webhook.id)["events"], json!(["plan.changed", "user.deleted"]));
    other[3].1 = "mine";
    let refused = visitor.post(&page, &other).expect(409).text();
    assert!(refused.contains("changed to \u{201c}new\u{201d}"), "{refused}");
    assert_eq!(acme.webhook(&webhook.id)["description"], "new");
}
