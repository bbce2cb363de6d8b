//! A limit admits exactly its allowance, however many requests arrive at once.

mod algorithms;
mod combined;
mod costs;
mod directory;
mod headers;
mod in_flight;
mod keys;
mod refusals;
mod warnings;

use std::thread;
use std::time::Duration;

use weir_tests::answer::Answer;
use weir_tests::request::{Request, data_host};
use weir_tests::response::Response;
use weir_tests::wait;
use weir_tests::world::World;

#[test]
fn three_hundred_at_once_on_a_limit_of_sixty_admit_exactly_sixty() {
    let world = World::new();
    let answers = at_once(&world, 30, 10, &Request::get("/v1/workspaces/ws_acme/users"));
    assert_eq!(count(&answers, 200), 60);
    assert_eq!(count(&answers, 429), 240);
    assert_eq!(world.control.requests().len(), 60, "a refused request was forwarded");
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 60);
    assert_eq!(world.gateway.used("organisation", "org_acme"), 60);

    let mut left: Vec<u64> = answers
        .iter()
        .filter(|answer| answer.status == 200)
        .map(|answer| answer.allowance().remaining)
        .collect();
    left.sort_unstable();
    assert_eq!(left, (0..60).collect::<Vec<u64>>(), "two responses carried the same remaining");
}

#[test]
fn a_noisy_workspace_costs_its_organisation_only_what_was_admitted() {
    let world = World::with(|config| {
        config
            .with("[limits.workspace]", "requests = 5")
            .with("[limits.organisation]", "requests = 8")
    });
    let noisy = at_once(&world, 10, 10, &Request::get("/v1/workspaces/ws_acme/users"));
    assert_eq!(count(&noisy, 200), 5);
    assert_eq!(world.gateway.used("organisation", "org_acme"), 5);

    let quiet = repeat(&world, 5, &Request::get("/v1/workspaces/ws_quiet/users"));
    assert_eq!(count(&quiet, 200), 3, "the organisation has 8, of which 5 are gone");
    assert_eq!(world.gateway.used("workspace", "ws_quiet"), 3, "a refusal was charged");
    assert_eq!(quiet[3].allowance().resource, "organisation");
    assert_eq!(world.gateway.used("organisation", "org_acme"), 8);
}

#[test]
fn no_window_admits_more_than_the_allowance_and_a_refused_request_delays_nothing() {
    let world =
        World::with(|config| config.with("[limits.workspace]", "requests = 3\nwindow = \"2s\""));
    let request = Request::get("/v1/workspaces/ws_acme");
    let mut client = world.client();
    let before = wait::now();
    for _ in 0..3 {
        client.call(&request).expect(200);
    }
    // Requests continue without a pause: if refusals were charged, none would ever be admitted.
    wait::until("the oldest request to leave the window", || {
        (client.call(&request).status == 200).then_some(())
    });
    let waited = before.elapsed();
    assert!(waited >= Duration::from_secs(2), "a fourth in a window of 2 s after {waited:?}");
    assert!(waited < Duration::from_secs(10), "the window is 2 s, it took {waited:?}");
}

#[test]
fn a_client_that_waits_for_retry_after_is_admitted() {
    let world = World::with(|config| {
        config.with("[limits.workspace]", "requests = 1\nwindow = \"1500ms\"")
    });
    let request = Request::get("/v1/workspaces/ws_acme");
    world.call(&request).expect(200);
    for _ in 0..2 {
        let refused = world.call(&request).expect(429);
        assert!(refused.retry_after() <= 2, "the window is 1.5 s");
        wait::pass(Duration::from_secs(refused.retry_after()));
        world.call(&request).expect(200);
    }
}

#[test]
fn a_client_within_the_rolling_limit_is_never_refused() {
    let world =
        World::with(|config| config.with("[limits.workspace]", "requests = 2\nwindow = \"500ms\""));
    let mut client = world.client();
    let request = Request::get("/v1/workspaces/ws_acme");
    let mut answered: Vec<std::time::Instant> = Vec::new();
    for number in 0..8_usize {
        // A request may start a whole window after the response to the one before last.
        if let Some(free) = number.checked_sub(2).map(|earlier| answered[earlier]) {
            let free = free + Duration::from_millis(500);
            wait::pass(free.saturating_duration_since(wait::now()));
        }
        client.call(&request).expect(200);
        answered.push(wait::now());
    }
}

#[test]
fn a_bucket_admits_its_burst_at_once_and_then_its_rate() {
    let world = World::with(|config| config.with("[limits.instance]", "rate = 2\nburst = 20"));
    let request = Request::get("/login").host(&data_host("in_acme"));
    let before = wait::now();
    let answers = at_once(&world, 10, 5, &request);
    let most = 20 + 2 * (before.elapsed().as_secs() + 1);
    let admitted = count(&answers, 200) as u64;
    assert!((20..=most).contains(&admitted), "{admitted} admitted, of 20 to {most}");
    assert_eq!(count(&answers, 429) as u64, 50 - admitted);
    assert_eq!(answers[0].allowance().limit, 20, "the limit of a bucket is its burst");

    let refused = wait::until("a refusal", || {
        Some(world.call(&request)).filter(|answer| answer.status == 429)
    });
    assert_eq!(refused.retry_after(), 1, "a token comes every half second");
    wait::pass(Duration::from_secs(1));
    world.call(&request).expect(200);
}

#[test]
fn an_idle_bucket_accumulates_no_more_than_its_burst() {
    let world = World::with(|config| config.with("[limits.instance]", "rate = 1000\nburst = 3"));
    let request = Request::get("/login").host(&data_host("in_acme"));
    world.call(&request).expect(200);
    wait::pass(Duration::from_millis(100));
    let allowance = world.call(&request).expect(200).allowance();
    assert_eq!((allowance.limit, allowance.remaining), (3, 2));
}

#[test]
fn a_request_that_its_upstream_fails_is_still_charged() {
    let world = World::new();
    world.control.always(Answer::script().close());
    let lost = world.get("/v1/workspaces/ws_acme");
    assert_eq!(lost.status, 502);
    assert_eq!(lost.allowance().remaining, 59);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn an_observed_limit_refuses_no_request_and_sends_no_header() {
    let world =
        World::with(|config| config.with("[limits.workspace]", "requests = 2\nmode = \"observe\""));
    for number in 1..=4 {
        let answer = world.get("/v1/workspaces/ws_acme").expect(200);
        assert_eq!(answer.allowance().resource, "organisation");
        assert_eq!(answer.allowance().remaining, 600 - number);
    }
    assert_eq!(world.gateway.used("organisation", "org_acme"), 4);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 2, "what it would have admitted");
}

#[test]
fn a_call_under_observed_limits_alone_carries_no_headers() {
    let world = World::with(|config| {
        config.with("[limits.instance]", "rate = 1\nburst = 1\nmode = \"observe\"")
    });
    for _ in 0..3 {
        world.get_from("in_acme", "/login").expect(200).assert_no_allowance();
    }
}

#[test]
fn exempt_calls_pass_however_many_there_are() {
    let world = World::with(|config| {
        config
            .with("[limits.instance]", "rate = 1\nburst = 1")
            .with("[limits.address]", "requests = 1")
    });
    let answers = at_once(&world, 10, 20, &Request::get("/healthz"));
    assert_eq!(count(&answers, 200), 200);
    let keys = Request::get("/oauth/v2/keys").host(&data_host("in_acme"));
    assert_eq!(count(&at_once(&world, 10, 20, &keys), 200), 200);
    world.get_from("in_acme", "/login").expect(200);
    world.get_from("in_acme", "/oauth/v2/keys").expect(200).assert_no_allowance();
}

/// Sends `each` requests one after the other on each of `clients` connections.
pub(crate) fn at_once(
    world: &World,
    clients: usize,
    each: usize,
    request: &Request,
) -> Vec<Response> {
    thread::scope(|scope| {
        let client = || {
            let mut client = world.client();
            (0..each).map(|_| client.call(request)).collect::<Vec<_>>()
        };
        let running: Vec<_> = (0..clients).map(|_| scope.spawn(client)).collect();
        running.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// Sends `times` requests one after the other.
pub(crate) fn repeat(world: &World, times: usize, request: &Request) -> Vec<Response> {
    at_once(world, 1, times, request)
}

pub(crate) fn count(answers: &[Response], status: u16) -> usize {
    answers.iter().filter(|answer| answer.status == status).count()
}
