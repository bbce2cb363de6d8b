//! Several gateways on a primary that Sentinels watch, and charges that replicas acknowledge.

use weir_tests::config::DIRECTORY;
use weir_tests::gateway::Gateway;
use weir_tests::redis::Redis;
use weir_tests::redis_sentinel::{PRIMARY, Sentinels};
use weir_tests::wait;

use super::connecting::why;
use super::{Fleet, TARGET, count};

/// The settings of a gateway that finds the primary by these Sentinels.
fn settings(sentinels: &Sentinels) -> (String, String) {
    let more: Vec<String> =
        sentinels.sentinels[1..].iter().map(|own| format!("\"{}\"", own.address())).collect();
    let lines = format!("sentinel = \"{PRIMARY}\"\nservers = [{}]", more.join(", "));
    (sentinels.sentinels[0].url(), lines)
}

/// Two gateways that find the primary by Sentinels, with these further settings.
fn fleet(more: &str) -> Fleet<Sentinels> {
    let sentinels = Sentinels::start();
    let (url, lines) = settings(&sentinels);
    // No test lasts as long as its window.
    let fleet = Fleet::on(sentinels, &url, 2, |config| {
        let config = config.with("[store]", &format!("{lines}\n{more}"));
        config.with("[limits.workspace]", "window = \"10m\"")
    });
    fleet.wait_until_known();
    fleet
}

/// Waits until all gateways use a store again.
fn wait_until_up(fleet: &Fleet<Sentinels>) {
    for gateway in &fleet.gateways {
        wait::until("the store to be asked", || {
            (gateway.metric("weir_gateway_store_up") == 1.0).then_some(())
        });
    }
}

#[test]
fn a_failover_admits_no_more() {
    let mut fleet = fleet("");
    let mut total = count(&fleet.in_turn(30), 200);
    assert_eq!(total, 30);
    fleet.redis.servers[0].kill();
    fleet.redis.wait_for_primary(1);
    total += count(&fleet.in_turn(2), 200);
    wait_until_up(&fleet);
    let before = fleet.redis.servers[1].calls("evalsha");
    total += count(&fleet.in_turn(70), 200);
    assert_eq!(total, 60);
    assert!(fleet.redis.servers[1].calls("evalsha") >= before + 28, "the new primary decides");
}

#[test]
fn gateways_with_their_sentinels_in_another_order_use_one_primary_during_a_failover() {
    // The failover lasts until the second replica has its data, five seconds later.
    let sentinels = Sentinels::with(2, 5);
    let leader = sentinels.sentinels[2].url();
    let (url, lines) = settings(&sentinels);
    let mut fleet = Fleet::on(sentinels, &url, 2, |config| {
        let config = config.with("[store]", &lines);
        config.with("[limits.workspace]", "window = \"10m\"")
    });
    let own = |nth: usize| format!("\"{}\"", fleet.redis.sentinels[nth].address());
    let others = |all: [usize; 2]| format!("servers = [{}]", all.map(own).join(", "));
    let address = |url: &str| format!("url = \"{url}\"");
    let config = fleet.config.clone().replacing(&address(&url), &address(&leader));
    let config = config.replacing(&others([1, 2]), &others([0, 1]));
    fleet.gateways[1] = Gateway::start(&config.to_string(), DIRECTORY);
    fleet.wait_until_known();
    assert_eq!(count(&fleet.in_turn(30), 200), 30);
    fleet.redis.sentinels[2].run(&format!("SENTINEL FAILOVER {PRIMARY}"));
    fleet.wait_for_return();
    let remaining = |nth: usize| fleet.get(nth, TARGET).expect(200).allowance().remaining;
    let before = remaining(0);
    // The other one knows of each: both use one primary.
    assert_eq!([0, 0, 1, 0].map(remaining), [1, 2, 3, 4].map(|count| before - count));
}

#[test]
fn a_primary_that_comes_back_after_a_failover_is_not_used() {
    let fleet = fleet("");
    let mut total = count(&fleet.in_turn(20), 200);
    fleet.redis.servers[0].pause();
    fleet.redis.wait_for_primary(1);
    total += count(&fleet.in_turn(10), 200);
    wait_until_up(&fleet);
    // It takes itself for the primary until a Sentinel tells it otherwise.
    fleet.redis.servers[0].resume();
    total += count(&fleet.in_turn(70), 200);
    assert_eq!(total, 60);
}

#[test]
fn sentinels_that_do_not_answer_leave_each_gateway_its_share() {
    let mut sentinels = Sentinels::start();
    for sentinel in &mut sentinels.sentinels {
        sentinel.stop();
    }
    let (url, lines) = settings(&sentinels);
    let mut fleet = Fleet::on(sentinels, &url, 2, |config| {
        config.with("[store]", &format!("{lines}\ngateways = 2"))
    });
    assert!(why(&fleet.gateways[0]).contains("no Sentinel answers"), "{}", why(&fleet.gateways[0]));
    assert_eq!(count(&fleet.in_turn(70), 200), 60, "30 each");
    for sentinel in &mut fleet.redis.sentinels {
        sentinel.start_again();
    }
    wait_until_up(&fleet);
    assert_eq!(count(&fleet.in_turn(4), 200), 0, "all of it is in the store");
}

#[test]
fn why_sentinels_refuse_is_logged_once_the_primary_is_lost() {
    let mut fleet = fleet("");
    for sentinel in &fleet.redis.sentinels {
        sentinel.run("ACL SETUSER default -sentinel");
    }
    for server in &mut fleet.redis.servers {
        server.kill();
    }
    fleet.gateways[0].log().wait("the refusal of the Sentinels", |line| {
        line["error"].as_str().is_some_and(|why| why.contains("no Sentinel helps"))
    });
}

#[test]
fn a_sentinel_that_stands_still_delays_nothing() {
    let fleet = fleet("");
    fleet.redis.sentinels[0].pause();
    assert_eq!(count(&fleet.in_turn(64), 200), 60);
    let alone = "weir_gateway_store_decisions_total{kind=\"alone\"}";
    assert_eq!(fleet.gateways[0].metric(alone), 0.0);
    fleet.redis.sentinels[0].resume();
}

#[test]
fn servers_of_another_kind_are_named_at_the_start() {
    let sentinel = Redis::start_sentinel();
    let single = Redis::start(&[]);
    for (url, line, problem) in [
        (sentinel.url(), "gateways = 1", "it is a Sentinel: set `sentinel`"),
        (single.url(), "cluster = true", "it is no node of a Cluster"),
    ] {
        let why = super::connecting::refused_with(&url, line);
        assert!(why.contains(problem), "{why}");
    }
}

#[test]
fn what_replicas_have_acknowledged_outlives_the_primary_and_all_gateways() {
    let mut fleet = fleet("acknowledge = 1");
    let mut total = count(&fleet.in_turn(40), 200);
    assert_eq!(total, 40);
    // No witness is left, and no Sentinel has to be waited for.
    fleet.redis.servers[0].kill();
    for nth in [0, 1] {
        fleet.start_again(nth, "KILL");
    }
    fleet.redis.wait_for_primary(1);
    // A store without a replica acknowledges nothing: it counts as away, and shares would decide.
    fleet.redis.servers[0].start_again();
    wait_until_up(&fleet);
    total = 40 + count(&fleet.in_turn(64), 200);
    assert_eq!(total, 60);
}

#[test]
fn a_store_without_enough_replicas_counts_as_away() {
    let redis = Redis::start(&[]);
    let fleet = Fleet::of(redis, 1, |config| {
        let lines = "acknowledge = 1\ntimeout = \"20ms\"";
        config.with("[store]", lines).with("[limits.workspace]", "on_store_failure = \"refuse\"")
    });
    assert!(why(&fleet.gateways[0]).contains("replicas"), "{}", why(&fleet.gateways[0]));
    fleet.get(0, TARGET).expect(503);
    let replica = Redis::start(&["--repl-diskless-sync-delay", "0"]);
    replica.run(&format!("REPLICAOF 127.0.0.1 {}", fleet.redis.port()));
    fleet.gateways[0].log().wait("it is used", |line| line["message"] == "shared store available");
    assert_eq!(count(&fleet.in_turn(62), 200), 60);
}
