//! Upgrades under load: no connection fails, and the count is exact.

use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_tests::authority::Authority;
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::process::{self, Finished, Process};
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::TARGET;

/// The number of upgrades, one after another, under load.
const UPGRADES: usize = 10;

/// The time under load between two upgrades.
const BETWEEN: Duration = Duration::from_millis(150);

fn generous(config: Config) -> Config {
    config
        .with("[limits.workspace]", "requests = 1000\nwindow = \"10m\"")
        .with("[limits.organisation]", "requests = 4096\nwindow = \"10m\"")
}

/// The output of wrk, which loads a gateway for as long as the upgrades take.
fn upgraded_under_wrk(world: &World, fields: &[&str]) -> String {
    let url = format!("http://{}{TARGET}", world.gateway.http());
    let mut wrk = Command::new("wrk");
    wrk.args(["-t2", "-c24", "-d60s", "--timeout", "20s", "-H", "Host: api.localhost"]);
    let wrk = Process::spawn("wrk", wrk.args(fields).arg(&url));
    world.control.wait_for_requests(1);
    for _ in 0..UPGRADES {
        world.gateway.upgrade();
        wait::pass(BETWEEN);
    }
    // On a slow machine the limit is reached later.
    world.control.wait_for_requests(1_000);
    wait::pass(BETWEEN);
    // When interrupted, wrk prints its counts.
    wrk.signal("INT");
    let Finished { stdout, .. } = process::finish(wrk);
    stdout
}

#[track_caller]
fn number(output: &str, words: &str, before: bool) -> u64 {
    let line =
        output.lines().find(|line| line.contains(words)).unwrap_or_else(|| panic!("{output}"));
    let (left, right) = line.split_once(words).unwrap();
    let digits = if before { left } else { right };
    digits.trim().parse().unwrap_or_else(|_| panic!("{output}"))
}

#[test]
fn ten_upgrades_under_wrk_fail_no_connection_and_lose_no_count() {
    for fields in [&[][..], &["-H", "Connection: close"]] {
        let world = World::with(generous);
        let output = upgraded_under_wrk(&world, fields);
        assert!(!output.contains("Socket errors"), "{fields:?}\n{output}");
        let all = number(&output, " requests in", true);
        let refused = number(&output, "Non-2xx or 3xx responses:", false);
        assert!(all > 1_000, "{output}");
        let admitted = world.control.requests().len();
        assert_eq!(admitted, 1_000, "{fields:?}\n{output}");
        assert_eq!(all - refused, 1_000, "{fields:?}\n{output}");
        assert_eq!(world.gateway.used("organisation", "org_acme"), 1_000);
        let strange = |status: &u64| ![200, 429, 499].contains(status);
        let log = world.gateway.access_log().all();
        let line = |line: &String| serde_json::from_str::<serde_json::Value>(line).unwrap();
        let status = |line: serde_json::Value| line["status"].as_u64().unwrap_or(499);
        let strange: Vec<_> = log.iter().map(line).map(status).filter(strange).collect();
        assert!(strange.is_empty(), "{strange:?}");
    }
}

/// When each admitted request was sent, and when its response was read: it was admitted in between.
type Admitted = Vec<(Instant, Instant)>;

/// Sends requests at full speed until `stop` is set.
fn hammer(address: &str, stop: &AtomicBool, admitted: &Mutex<Admitted>) {
    let mut client = Client::connect(address);
    while !stop.load(Ordering::Relaxed) {
        let from = wait::now();
        let answer = client.call(&Request::get(TARGET));
        match answer.status {
            200 => admitted.lock().unwrap().push((from, wait::now())),
            429 => {}
            other => panic!("{other}"),
        }
        if answer.field("Connection") == Some("close") {
            client = Client::connect(address);
        }
    }
}

#[test]
fn no_window_admits_more_than_the_limit_and_none_much_less() {
    const LIMIT: usize = 200;
    const WINDOW: Duration = Duration::from_secs(2);
    let world = World::with(|config| {
        config
            .with("[limits.workspace]", &format!("requests = {LIMIT}\nwindow = \"2s\""))
            .with("[limits.organisation]", "requests = 4096")
    });
    let (stop, admitted) = (AtomicBool::new(false), Mutex::default());
    let began = wait::now();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| hammer(world.gateway.http(), &stop, &admitted));
        }
        for _ in 0..6 {
            world.gateway.upgrade();
            wait::pass(Duration::from_millis(500));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let lasted = began.elapsed();
    let mut admitted = admitted.into_inner().unwrap();
    admitted.sort();
    for (nth, (from, _)) in admitted.iter().enumerate() {
        let within = |(_, until): &&(Instant, Instant)| *until < *from + WINDOW;
        let surely = admitted[nth..].iter().filter(within).count();
        assert!(surely <= LIMIT, "{surely} within {WINDOW:?}");
    }
    let windows = (lasted.as_millis() / WINDOW.as_millis()) as usize;
    assert!(admitted.len() >= LIMIT * windows, "{} in {lasted:?}", admitted.len());
}

/// A world with a TLS listener and the plain one, and the signer of its certificate.
fn with_tls() -> (World, Authority) {
    let authority = Authority::of_server();
    let https = authority.entry_of("server");
    (World::with(|config| generous(config).with("[[server.https]]", &https)), authority)
}

#[test]
fn a_tls_listener_moves_and_http2_loses_no_request() {
    let (world, _certificate) = with_tls();
    let address = world.gateway.listening("https");
    let port = address.rsplit(':').next().unwrap();
    let url = format!("https://api.localhost:{port}{TARGET}?[1-4000]");
    let mut curl = Command::new("curl");
    curl.args(["-sSk", "--http2", "--resolve", &format!("api.localhost:{port}:127.0.0.1")]);
    curl.args(["-Z", "--parallel-max", "8", "-o", "/dev/null"]);
    let curl = Process::spawn("curl", curl.args(["-w", "%{http_code} %{http_version}\n", &url]));
    world.control.wait_for_requests(1);
    while !curl.stdout().has_ended() && world.gateway.successors().len() < UPGRADES {
        world.gateway.upgrade();
    }
    let Finished { stdout, stderr, .. } = process::finish(curl).expect(0);
    assert!(world.gateway.successors().len() > 1, "it was over too soon");
    let count = |line: &str| stdout.lines().filter(|output| *output == line).count();
    assert_eq!(count("200 2"), 1_000, "{stderr}");
    assert_eq!(count("429 2"), 3_000, "{stderr}");
    assert_eq!(world.control.requests().len(), 1_000);
}
