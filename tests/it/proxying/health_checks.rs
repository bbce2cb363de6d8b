//! Active health probes, and servers given by host name.

use weir_tests::answer::Answer;
use weir_tests::request::Request;
use weir_tests::upstream::{Received, Upstream};
use weir_tests::wait;
use weir_tests::world::World;

const HEALTH: &str = "\n[upstreams.control.health]\npath = \"/are-you-well\"\n\
    interval = \"50ms\"\ntimeout = \"500ms\"\nunhealthy_after = 2\nhealthy_after = 2";

/// The requests of clients, without the health probes.
fn served(server: &Upstream) -> usize {
    server.requests().iter().filter(|request| request.target() != b"/are-you-well").count()
}

/// A server that answers health probes with `status`, and everything else with 200.
fn feeling(status: u16) -> impl Fn(&Received) -> Answer + Send + Sync + 'static {
    move |request| match request.target() == b"/are-you-well" {
        true => Answer::status(status),
        false => Answer::ok("served"),
    }
}

#[test]
fn an_unhealthy_server_gets_no_requests_until_it_recovers() {
    let [healthy, unhealthy] = [(); 2].map(|()| Upstream::start());
    healthy.answer(feeling(200));
    unhealthy.answer(feeling(500));
    let servers =
        format!("servers = [\"{}\", \"{}\"]{HEALTH}", healthy.address(), unhealthy.address());
    let world = World::with(|config| config.with("[upstreams.control]", &servers));
    let metrics = |number: &str| {
        let text = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
        let line = format!(
            "upstream_healthy{{server=\"{}\",upstream=\"control\"}} {number}",
            unhealthy.address()
        );
        text.contains(&line).then_some(())
    };
    wait::until("the ill server to be found out", || metrics("0"));
    let before = served(&unhealthy);
    for _ in 0..6 {
        world.get("/healthz").expect(200);
    }
    assert_eq!(served(&unhealthy), before, "it was sent requests");
    unhealthy.answer(feeling(204));
    wait::until("the server to be found well again", || metrics("1"));
    for _ in 0..4 {
        world.get("/healthz").expect(200);
    }
    assert!(served(&unhealthy) > before, "it gets requests again");
}

#[test]
fn without_a_healthy_server_the_response_is_503_with_retry_after() {
    let unhealthy = Upstream::start();
    unhealthy.answer(feeling(500));
    let servers = format!("servers = [\"{}\"]{HEALTH}", unhealthy.address());
    let world = World::with(|config| config.with("[upstreams.control]", &servers));
    wait::until("the only server to be found out", || {
        (world.get("/healthz").status == 503).then_some(())
    });
    let answer = world.get("/v1/workspaces/ws_acme");
    assert_eq!(answer.retry_after(), 1);
    assert_eq!(answer.allowance().resource, "workspace");
    answer.expect_problem(503);
}

#[test]
fn responses_are_503_exactly_while_no_server_is_healthy() {
    let servers = [(); 2].map(|()| Upstream::start());
    let lines =
        format!("servers = [\"{}\", \"{}\"]{HEALTH}", servers[0].address(), servers[1].address());
    let world = World::with(|config| config.with("[upstreams.control]", &lines));
    let healthy = |count: f64| {
        let of = |server: &Upstream| {
            let labels = format!("server=\"{}\",upstream=\"control\"", server.address());
            world.gateway.metric(&format!("weir_gateway_upstream_healthy{{{labels}}}"))
        };
        (servers.iter().map(of).sum::<f64>() == count).then_some(())
    };
    for _ in 0..3 {
        for (unhealthy, count) in [(&servers[0], 1.0), (&servers[1], 0.0)] {
            unhealthy.answer(feeling(500));
            wait::until("one more to be found out", || healthy(count));
            world.get("/healthz").expect(if count > 0.0 { 200 } else { 503 });
        }
        assert_eq!(world.get("/healthz").retry_after(), 1);
        servers[1].answer(feeling(200));
        wait::until("one to be healthy", || healthy(1.0));
        world.get("/healthz").expect(200);
        servers[0].answer(feeling(200));
        wait::until("both to be healthy", || healthy(2.0));
        let before = servers.each_ref().map(served);
        (0..4).for_each(|_| drop(world.get("/healthz").expect(200)));
        let after = servers.each_ref().map(served);
        assert_eq!([after[0] - before[0], after[1] - before[1]], [2, 2], "each its half at once");
    }
}

#[test]
fn a_server_may_be_a_host_name() {
    let server = Upstream::start();
    let port = server.address().rsplit(':').next().unwrap().to_owned();
    let servers = format!("servers = [\"localhost:{port}\"]");
    let world = World::with(|config| config.with("[upstreams.control]", &servers));
    world.get("/healthz").expect(200);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn a_reload_takes_a_removed_server_out_of_the_metrics_and_no_other() {
    let servers = [(); 2].map(|()| Upstream::start());
    let lines = |names: &str| format!("servers = [{names}]{}", HEALTH.replace("50ms", "1h"));
    let [kept, removed] = servers.each_ref().map(|server| server.address().to_string());
    let both = lines(&format!("\"{kept}\", \"{removed}\""));
    let world = World::with(|config| config.with("[upstreams.control]", &both));
    let is_shown = |server: &str| {
        let text = world.gateway.call_admin(&Request::get("/metrics")).expect(200).text();
        ["healthy", "ejected"].map(|of| {
            let series = format!("upstream_{of}{{server=\"{server}\",upstream=\"control\"}}");
            text.contains(&series)
        })
    };
    assert_eq!([&kept, &removed].map(|server| is_shown(server)), [[true; 2]; 2]);
    let one = world.config().with("[upstreams.control]", &lines(&format!("\"{kept}\"")));
    world.gateway.write_config(&one.to_string());
    world.gateway.reload().expect(200);
    assert_eq!([&kept, &removed].map(|server| is_shown(server)), [[true; 2], [false; 2]]);
}

#[test]
fn a_shorter_probe_interval_takes_effect_before_the_old_one_ends() {
    let server = Upstream::start();
    let servers = |interval: &str| {
        let health = HEALTH.replace("50ms", interval);
        format!("servers = [\"{}\"]{health}", server.address())
    };
    let probes = || server.requests().len();
    let world = World::with(|config| config.with("[upstreams.control]", &servers("1h")));
    wait::until("the first probe", || (probes() == 1).then_some(()));
    let often = world.config().with("[upstreams.control]", &servers("50ms"));
    world.gateway.write_config(&often.to_string());
    world.gateway.reload().expect(200);
    wait::until("two more", || (probes() >= 3).then_some(()));
}
