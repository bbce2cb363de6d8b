//! A real browser with a page of another origin: what the page's script can read over HTTP/1.1 and
//! HTTP/2.
//!
//! The page posts its report to the server that served it, so that no test drives the browser.

use std::process::Command;

use serde_json::Value;
use weir_tests::answer::Answer;
use weir_tests::folder::Folder;
use weir_tests::process::Process;
use weir_tests::upstream::{Received, Upstream};
use weir_tests::wait;

use super::{House, Protocol};

/// The page's script: three scenarios, reported as JSON.
const SCRIPT: &str = r#"
const read = (answer) => Object.fromEntries([
  "Retry-After", "X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset",
  "X-RateLimit-Resource", "X-Request-Id", "X-Hidden",
].map((name) => [name, answer.headers.get(name)]));
const call = async (target, options) => {
  try {
    const answer = await fetch(GATEWAY + target, options);
    const body = await answer.text();
    return { status: answer.status, fields: read(answer), body };
  } catch (error) {
    return { error: String(error) };
  }
};
const until429 = async (target, options) => {
  const answers = [];
  do answers.push(await call(target, options)); while (answers.at(-1).status === 200);
  return answers;
};
(async () => {
  const put = { method: "PUT", headers: { Authorization: "Bearer x" }, body: "{}" };
  const report = {
    plain: await until429("/v1/workspaces/ws_acme/a"),
    credentialed: await until429("/v1/workspaces/ws_quiet/a", { credentials: "include" }),
    preflighted: await until429("/v1/workspaces/ws_big/a", put),
    missing: await call("/nowhere"),
    unreadable: await call("/v1/workspaces/ws_special/a"),
  };
  await fetch("/report", { method: "POST", body: JSON.stringify(report) });
})();
"#;

/// How many times the usual timeout a browser may take: it starts slowly while other tests run.
const STARTS: u32 = 6;

/// A browser with one page; killed on drop.
struct Browser {
    _process: Process,
    _profile: Folder,
}

impl Browser {
    #[track_caller]
    fn open(url: &str) -> Self {
        let profile = Folder::new();
        let mut command = Command::new("chromium");
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-sync"])
            .args(["--disable-component-update", "--disable-dev-shm-usage"])
            // The certificate is self-made: only what a page may read is tested.
            .args(["--ignore-certificate-errors", "--remote-debugging-port=0"])
            .arg(format!("--user-data-dir={}", profile.path("profile").display()))
            .arg(url);
        Self { _process: Process::spawn("chromium", &mut command), _profile: profile }
    }
}

/// Opens the page in a browser, with the gateway reached over this protocol, and returns its
/// report.
#[track_caller]
fn report(protocol: Protocol) -> (House, Value) {
    let page = Upstream::start();
    let origin = page.address().replace("127.0.0.1", "http://app.localhost");
    let opened = format!("{origin}/");
    let house = House::with(|config| {
        let cors = format!("origins = [\"{origin}\"]\ncredentials = true");
        config
            .with("[planes.control.cors]", &cors)
            .with("[limits.workspace]", "requests = 3")
            .with("[plans.enterprise]", "limits.workspace = { requests = 3 }")
    });
    house.world.control.answer(move |received| served(received, &origin));
    let script = format!("const GATEWAY = \"{}\";\n{SCRIPT}", house.url(protocol, ""));
    page.answer(move |received| match received.method() {
        "POST" => Answer::status(204),
        _ => Answer::ok(format!("<!doctype html><title>app</title><script>{script}</script>"))
            .field("Content-Type", "text/html"),
    });
    let _browser = Browser::open(&opened);
    let reported = || {
        let requests = page.requests();
        let found = requests.iter().find(|one| one.method() == "POST" && one.complete)?;
        Some(serde_json::from_slice(&found.body).unwrap())
    };
    let report = wait::within(wait::PATIENCE * STARTS, reported);
    (house, report.unwrap_or_else(|| panic!("the page never reported")))
}

/// The upstream's response, with CORS headers: of one workspace for another origin alone.
fn served(received: &Received, origin: &str) -> Answer {
    let answer = Answer::ok("served").field("X-Hidden", "1");
    if received.target().starts_with(b"/v1/workspaces/ws_special/") {
        return answer.field("Access-Control-Allow-Origin", "https://other.example");
    }
    answer
        .field("Access-Control-Allow-Origin", origin)
        .field("Access-Control-Allow-Credentials", "true")
}

/// Checks a page's four responses under a limit of three requests.
#[track_caller]
fn check_story(answers: &Value) {
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), 4, "{answers:#?}");
    for (answer, left) in answers.iter().zip(["2", "1", "0"]) {
        assert_eq!((&answer["status"], &answer["body"]), (&200.into(), &"served".into()));
        assert_eq!(answer["fields"]["X-RateLimit-Remaining"], left, "{answer}");
        assert_eq!(answer["fields"]["X-RateLimit-Limit"], "3", "{answer}");
        assert_eq!(answer["fields"]["Retry-After"], Value::Null, "{answer}");
        assert_eq!(answer["fields"]["X-Hidden"], Value::Null, "no response exposes it: {answer}");
    }
    let refused = &answers[3];
    assert_eq!(refused["status"], 429, "{refused}");
    let fields = &refused["fields"];
    assert_eq!(fields["X-RateLimit-Remaining"], "0", "{refused}");
    assert_eq!(fields["X-RateLimit-Resource"], "workspace", "{refused}");
    let number = |name: &str| -> u64 { fields[name].as_str().unwrap().parse().unwrap() };
    assert!((1..=60).contains(&number("Retry-After")), "{refused}");
    assert!(number("X-RateLimit-Reset") > 1_700_000_000, "{refused}");
    assert_eq!(fields["X-Request-Id"].as_str().unwrap().len(), 32, "{refused}");
    let body: Value = serde_json::from_str(refused["body"].as_str().unwrap()).unwrap();
    assert_eq!(body["retry_after"], number("Retry-After"), "{body}");
}

#[test]
fn a_script_in_a_browser_reads_its_allowance_and_its_refusals() {
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let (house, report) = report(protocol);
        for story in ["plain", "credentialed", "preflighted"] {
            check_story(&report[story]);
        }
        assert_eq!(report["missing"]["status"], 404, "{report:#}");
        assert!(report["unreadable"]["error"].is_string(), "no origin may read this: {report:#}");
        let requests = house.world.control.requests();
        let preflights = requests.iter().filter(|one| one.method() == "OPTIONS").count();
        assert_eq!(preflights, 0, "a preflight reached the upstream");
        let puts: Vec<_> = requests.iter().filter(|one| one.method() == "PUT").collect();
        assert_eq!(puts.len(), 3);
        assert_eq!(puts[0].head.field("authorization"), Some("Bearer x"));
        let log = house.world.gateway.access_log();
        let answered = log.wait("a preflight", |line| line["method"] == "OPTIONS");
        assert_eq!(answered["status"], 204, "{answered}");
        let version = if protocol == Protocol::Http2 { "HTTP/2.0" } else { "HTTP/1.1" };
        assert_eq!(answered["version"], version, "{answered}");
    }
}
