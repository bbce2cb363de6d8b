//! Requests in flight: all gateways together have the slots of one limit, wherever requests arrive.

use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::client::Client;
use weir_tests::config::Config;
use weir_tests::redis::Redis;
use weir_tests::redis_cluster::RedisCluster;
use weir_tests::request::Request;
use weir_tests::wait;

use super::{Fleet, TARGET};

/// So many requests of a workspace may be in flight.
fn in_flight(config: Config, requests: u32) -> Config {
    let lines = format!("key = \"workspace\"\nalgorithm = \"concurrency\"\nrequests = {requests}");
    let limits = ["[limits.workspace]", "[limits.batch]"];
    let config = limits.iter().fold(config, |to, limit| to.without(limit).with(limit, &lines));
    config.without("[plans.enterprise]").with("[plans.enterprise]", "per_instance_limits = true")
}

/// So many gateways with this limit, and what their upstream's responses wait for.
fn fleet(gateways: usize, requests: u32) -> (Fleet, Gate) {
    let fleet = Fleet::of(Redis::start(&[]), gateways, |config| in_flight(config, requests));
    fleet.wait_until_known();
    let gate = fleet.gated();
    (fleet, gate)
}

impl<S> Fleet<S> {
    fn gated(&self) -> Gate {
        let gate = Gate::new();
        self.upstream.always(Answer::script().wait(&gate).and(Answer::ok("finished")));
        gate
    }

    /// Clients of a gateway whose requests are in flight, after `before` others.
    #[track_caller]
    fn hold(&self, nth: usize, count: usize, before: usize) -> Vec<Client> {
        let hold = |_| {
            let mut client = self.gateways[nth].client();
            client.send(Request::get(TARGET).head_bytes());
            client
        };
        let clients = (0..count).map(hold).collect();
        self.upstream.wait_for_requests(before + count);
        clients
    }

    /// Waits until a gateway admits one more request, which goes on, and returns how long it took.
    #[track_caller]
    fn wait_for_slot(&self, nth: usize, before: usize) -> (Client, Duration) {
        let began = wait::now();
        let client = wait::until("a slot", || {
            let mut client = self.gateways[nth].client();
            client.send(Request::get(TARGET).head_bytes());
            let is_admitted = wait::within(Duration::from_millis(40), || {
                (self.upstream.requests().len() > before).then_some(())
            });
            is_admitted.map(|()| client)
        });
        (client, began.elapsed())
    }
}

/// Ends all requests, which were admitted.
#[track_caller]
fn finish(gate: &Gate, clients: Vec<Client>) {
    gate.open();
    for mut client in clients {
        client.read().expect(200);
    }
}

#[test]
fn all_slots_are_one_gateways_where_all_requests_arrive() {
    let (fleet, gate) = fleet(2, 9);
    let held = fleet.hold(0, 9, 0);
    let refused = fleet.get(1, TARGET).expect(429);
    // The store's clock may be a little behind what the gateway takes it for.
    assert!((1..=2).contains(&refused.retry_after()), "{}", refused.head_text());
    fleet.get(0, TARGET).expect(429);
    // Heartbeats renew what is in use.
    wait::pass(Duration::from_millis(1_500));
    for nth in [0, 1] {
        fleet.get(nth, TARGET).expect(429);
        assert_eq!(fleet.gateways[nth].used("workspace", "ws_acme"), 9);
    }
    finish(&gate, held);
    let (client, took) = fleet.wait_for_slot(1, 9);
    assert!(took < Duration::from_secs(1), "{took:?}");
    finish(&gate, vec![client]);
}

#[test]
fn both_gateways_share_the_slots_as_requests_arrive() {
    let (fleet, gate) = fleet(2, 4);
    let mut held = fleet.hold(0, 3, 0);
    held.extend(fleet.hold(1, 1, 3));
    for nth in [0, 1] {
        fleet.get(nth, TARGET).expect(429);
    }
    finish(&gate, held);
}

#[test]
fn slots_of_a_killed_gateway_are_free_after_their_lease() {
    let (mut fleet, gate) = fleet(2, 3);
    let held = fleet.hold(0, 3, 0);
    fleet.get(1, TARGET).expect(429);
    drop(held);
    fleet.gateways.remove(0).signal("KILL");
    let (client, took) = fleet.wait_for_slot(0, 3);
    assert!(took < Duration::from_millis(1_800), "{took:?}");
    finish(&gate, vec![client]);
}

#[test]
fn a_gateway_that_stands_still_exceeds_the_limit_by_what_it_holds_at_most() {
    let (fleet, gate) = fleet(2, 3);
    let mut held = fleet.hold(0, 2, 0);
    fleet.gateways[0].signal("STOP");
    let (first, _) = fleet.wait_for_slot(1, 2);
    held.push(first);
    wait::pass(Duration::from_millis(1_200));
    held.extend(fleet.hold(1, 2, 3));
    fleet.get(1, TARGET).expect(429);
    fleet.gateways[0].signal("CONT");
    wait::pass(Duration::from_millis(600));
    // Five are in flight: none is admitted until fewer than three are.
    for nth in [0, 1] {
        fleet.get(nth, TARGET).expect(429);
    }
    finish(&gate, held);
}

#[test]
fn requests_in_flight_count_after_the_store_has_forgotten_them() {
    let (fleet, gate) = fleet(2, 4);
    let mut held = fleet.hold(0, 3, 0);
    fleet.redis.run("FLUSHALL");
    wait::pass(Duration::from_millis(600));
    held.extend(fleet.hold(1, 1, 3));
    for nth in [0, 1] {
        fleet.get(nth, TARGET).expect(429);
    }
    finish(&gate, held);
}

#[test]
fn a_gateway_alone_admits_its_share_and_what_it_admitted_counts_when_the_store_is_back() {
    let (fleet, gate) = fleet(2, 4);
    fleet.redis.pause();
    let mut held = fleet.hold(0, 2, 0);
    fleet.get(0, TARGET).expect(429);
    fleet.redis.resume();
    wait::until("the store", || {
        let up =
            |gateway: &weir_tests::gateway::Gateway| gateway.metric("weir_gateway_store_up") == 1.0;
        fleet.gateways.iter().all(up).then_some(())
    });
    wait::pass(Duration::from_millis(600));
    held.extend(fleet.hold(1, 2, 2));
    for nth in [0, 1] {
        fleet.get(nth, TARGET).expect(429);
    }
    finish(&gate, held);
}

#[test]
fn a_gateway_that_ends_returns_its_slots() {
    let (mut fleet, gate) = fleet(2, 3);
    let held = fleet.hold(0, 3, 0);
    finish(&gate, held);
    let ended = fleet.gateways.remove(0);
    ended.signal("TERM");
    drop(ended.into_folder());
    let began = wait::now();
    let (client, _) = fleet.wait_for_slot(0, 3);
    assert!(began.elapsed() < Duration::from_millis(900));
    finish(&gate, vec![client]);
}

#[test]
fn a_cluster_has_one_allowance_in_flight_for_each_workspace() {
    let cluster = RedisCluster::start(0, &[]);
    let url = cluster.url();
    let fleet = Fleet::on(cluster, &url, 2, |config| {
        in_flight(config, 5).with("[store]", "cluster = true")
    });
    fleet.wait_until_known();
    let gate = fleet.gated();
    let mut held = fleet.hold(0, 4, 0);
    held.extend(fleet.hold(1, 1, 4));
    wait::pass(Duration::from_millis(1_500));
    for nth in [0, 1] {
        fleet.get(nth, TARGET).expect(429);
    }
    finish(&gate, held);
    let (client, took) = fleet.wait_for_slot(1, 5);
    assert!(took < Duration::from_secs(1), "{took:?}");
    finish(&gate, vec![client]);
}
