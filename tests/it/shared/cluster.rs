//! Several gateways on a Redis Cluster.

use std::cell::Cell;
use std::time::Duration;

use weir_tests::config::Config;
use weir_tests::folder::Folder;
use weir_tests::gateway::Gateway;
use weir_tests::redis_cluster::RedisCluster;
use weir_tests::request::Request;
use weir_tests::wait;

use super::connecting::RIGHTS;
use super::{Fleet, count};

/// In this time some heartbeats pass, and a Cluster that has lost its majority still answers.
const PASSED: Duration = Duration::from_millis(700);

/// Two gateways on a Cluster with so many replicas of each primary.
fn fleet(replicas: usize) -> Fleet<RedisCluster> {
    fleet_with(replicas, |config| config)
}

/// The same, with a change of their configuration.
fn fleet_with(replicas: usize, change: impl FnOnce(Config) -> Config) -> Fleet<RedisCluster> {
    // One primary that is away does not stop the others.
    let cluster = RedisCluster::start(replicas, &["--cluster-require-full-coverage", "no"]);
    let url = cluster.url();
    // No test lasts as long as its window.
    let fleet = Fleet::on(cluster, &url, 2, |config| {
        let config = config.with("[limits.workspace]", "window = \"10m\"");
        change(config.with("[store]", "cluster = true"))
    });
    fleet.wait_until_known();
    fleet
}

fn target(workspace: &str) -> String {
    format!("/v1/workspaces/{workspace}/users")
}

/// How many of so many requests of a workspace are admitted, sent to one gateway after the other.
fn admitted(fleet: &Fleet<RedisCluster>, workspace: &str, times: usize) -> usize {
    let answer = |nth: usize| fleet.get(nth % fleet.gateways.len(), &target(workspace));
    count(&(0..times).map(answer).collect::<Vec<_>>(), 200)
}

/// The decisions of all gateways that were made without the store.
fn alone(fleet: &Fleet<RedisCluster>) -> f64 {
    let metric = "weir_gateway_store_decisions_total{kind=\"alone\"}";
    fleet.gateways.iter().map(|gateway| gateway.metric(metric)).sum()
}

/// A workspace whose keys are on this node.
fn workspace_on(fleet: &Fleet<RedisCluster>, node: usize) -> String {
    let known = |nth: usize| {
        let before = fleet.redis.tags();
        let workspace = format!("ws_{nth}");
        fleet.get(0, &target(&workspace)).expect(200);
        let added = fleet.redis.tags().into_iter().find(|tag| !before.contains(tag));
        added.filter(|(_, own)| *own == node).map(|_| workspace)
    };
    // Names that were tried before have keys already.
    (100 + fleet.redis.tags().len()..).find_map(known).unwrap()
}

#[test]
fn each_workspace_has_one_allowance_wherever_its_keys_are() {
    let fleet = fleet(0);
    for nth in 0..12 {
        assert_eq!(admitted(&fleet, &format!("ws_{nth}"), 64), 60);
    }
    let mut used: Vec<usize> = fleet.redis.tags().into_iter().map(|(_, node)| node).collect();
    used.dedup();
    assert_eq!(used, [0, 1, 2], "all primaries have keys");
    assert_eq!(alone(&fleet), 0.0);
    assert_eq!(fleet.gateways[0].metric("weir_gateway_store_servers_up"), 3.0);
}

#[test]
fn an_address_and_what_it_sends_are_charged_in_one_call_wherever_their_keys_are() {
    let route = "plane = \"control\"\npath = \"/dashboard/{*rest}\"\nverify = \"none\"\n\
        limits = [\"dashboard\", \"session\"]\nupstream = \"dispatcher\"";
    let limit = |key: &str, requests: u32| {
        let values = "algorithm = \"rolling_window\"\nwindow = \"10m\"";
        format!("key = {key}\nrequests = {requests}\n{values}")
    };
    let fleet = fleet_with(0, |config| {
        let config = config.with("[limits.dashboard]", &limit("\"address\"", 1_200));
        let session = limit("[\"address\", \"header:Cookie\"]", 120);
        config.with("[limits.session]", &session).with("[[routes]]", route)
    });
    let page = |cookie: String| Request::get("/dashboard/x").field("cookie", &cookie);
    // Each session has its own allowance, which both gateways charge.
    for session in 0..5 {
        let answer = |nth: usize| fleet.call(nth % 2, &page(format!("weir_session={session}")));
        assert_eq!(count(&(0..122).map(answer).collect::<Vec<_>>(), 429), 2);
    }
    // Those who invent one for each request have that of their address.
    let answer = |nth: usize| fleet.call(nth % 2, &page(format!("weir_session=x{nth}")));
    assert_eq!(count(&(0..610).map(answer).collect::<Vec<_>>(), 429), 10);
    assert_eq!(alone(&fleet), 0.0);
}

#[test]
fn a_slot_that_moves_admits_neither_more_nor_less() {
    let fleet = fleet(0);
    let workspace = workspace_on(&fleet, 0);
    let (tag, _) = fleet.redis.tags().into_iter().find(|(_, node)| *node == 0).unwrap();
    let slot = fleet.redis.slot(&tag);
    let total = Cell::new(1 + admitted(&fleet, &workspace, 19));
    fleet.redis.migrate(slot, (0, 1), || {
        total.set(total.get() + admitted(&fleet, &workspace, 10));
    });
    assert_eq!(total.get(), 30);
    assert_eq!(fleet.redis.owner(&tag), 1);
    total.set(total.get() + admitted(&fleet, &workspace, 40));
    assert_eq!((total.get(), alone(&fleet)), (60, 0.0));
}

#[test]
fn a_user_of_a_cluster_needs_few_rights() {
    let options = ["--cluster-require-full-coverage", "no"];
    let cluster = RedisCluster::start(0, &options);
    for node in &cluster.nodes {
        node.run(&format!("ACL SETUSER weir reset on >open-sesame {RIGHTS}"));
        node.run("ACL SETUSER weir +cluster|nodes +asking");
    }
    let files = Folder::new();
    let password = files.write("password", "open-sesame");
    let url = cluster.url().replace("redis://", "redis://weir@");
    let lines = format!("cluster = true\npassword_file = \"{}\"", password.display());
    let fleet = Fleet::on(cluster, &url, 2, |config| config.with("[store]", &lines));
    fleet.wait_until_known();
    let workspace = workspace_on(&fleet, 0);
    let (tag, _) = fleet.redis.tags().into_iter().find(|(_, node)| *node == 0).unwrap();
    let slot = fleet.redis.slot(&tag);
    fleet.redis.migrate(slot, (0, 1), || assert_eq!(admitted(&fleet, &workspace, 9), 9));
    assert_eq!(admitted(&fleet, &workspace, 60), 50);
    assert_eq!(alone(&fleet), 0.0);
}

#[test]
fn a_primary_that_fails_over_admits_no_more_and_harms_no_other() {
    let mut fleet = fleet(1);
    let (own, other) = (workspace_on(&fleet, 0), workspace_on(&fleet, 1));
    let mut total = 1 + admitted(&fleet, &own, 19);
    assert_eq!(admitted(&fleet, &other, 10), 10);
    fleet.redis.nodes[0].kill();
    // By shares until the replica has taken over, and by what both have told it from then on.
    for servers in [2.0, 3.0] {
        wait::until("the primary to be missed, then the replica to be asked", || {
            total += admitted(&fleet, &own, 2);
            let up = |gateway: &Gateway| gateway.metric("weir_gateway_store_servers_up") == servers;
            fleet.gateways.iter().all(up).then_some(())
        });
    }
    let before = alone(&fleet);
    assert!(before > 0.0);
    assert_eq!(admitted(&fleet, &other, 60), 49, "it went on");
    total += admitted(&fleet, &own, 60);
    assert_eq!(total, 60);
    assert_eq!(alone(&fleet), before, "the new primary decides");
}

#[test]
fn the_server_of_what_all_gateways_share_fails_over_and_harms_no_other() {
    let fleet = fleet(1);
    let registry = fleet.redis.owner("gateways");
    let workspace = workspace_on(&fleet, (registry + 1) % 3);
    assert_eq!(admitted(&fleet, &workspace, 9), 9);
    let before = alone(&fleet);
    // It stands still: its connections stay open.
    fleet.redis.nodes[registry].pause();
    let mut times = 0;
    for (servers, what) in [(2.0, "the loss to be noticed"), (3.0, "the replica to be asked")] {
        wait::until(what, || {
            times += 1;
            assert_eq!(admitted(&fleet, &workspace, 1), usize::from(times <= 50));
            let has =
                |gateway: &Gateway| gateway.metric("weir_gateway_store_servers_up") == servers;
            fleet.gateways.iter().all(has).then_some(())
        });
    }
    assert_eq!(alone(&fleet), before);
    let path = format!("/limits/workspace/{workspace}");
    fleet.gateways[0].call_admin(&Request::new("DELETE", &path)).expect(200);
    assert_eq!(admitted(&fleet, &workspace, 62), 60);
    fleet.redis.nodes[registry].resume();
    fleet.wait_until_known();
}

#[test]
fn one_server_that_loses_its_data_gets_it_from_the_gateways() {
    let fleet = fleet(0);
    let workspaces = [0, 1, 2].map(|node| workspace_on(&fleet, node));
    for workspace in &workspaces {
        assert_eq!(admitted(&fleet, workspace, 29), 29);
    }
    fleet.redis.nodes[2].run("FLUSHALL");
    for workspace in &workspaces {
        assert_eq!(admitted(&fleet, workspace, 40), 30, "{workspace}");
    }
}

#[test]
fn a_reset_and_a_boost_reach_every_gateway_of_a_cluster() {
    let fleet = fleet(0);
    for node in [0, 1, 2] {
        let workspace = workspace_on(&fleet, node);
        let change = |nth: usize, method: &str, path: &str, body: &str| {
            let path = format!("/limits/workspace/{workspace}{path}");
            fleet.gateways[nth].call_admin(&Request::new(method, &path).body(body)).expect(200);
        };
        assert_eq!(admitted(&fleet, &workspace, 62), 59);
        change(0, "DELETE", "", "");
        assert_eq!(admitted(&fleet, &workspace, 62), 60);
        change(1, "POST", "/boost", r#"{"requests":70,"ttl":"10m"}"#);
        wait::until("the boost to arrive", || {
            (fleet.get(0, &target(&workspace)).status == 200).then_some(())
        });
        assert_eq!(admitted(&fleet, &workspace, 20), 9);
    }
}

#[test]
fn a_gateway_starts_while_one_node_is_away() {
    let mut cluster = RedisCluster::start(0, &["--cluster-require-full-coverage", "no"]);
    cluster.nodes[2].kill();
    let servers = format!("servers = [\"{}\"]", cluster.nodes[1].address());
    let url = cluster.nodes[2].url();
    let fleet = Fleet::on(cluster, &url, 1, |config| {
        config.with("[store]", "cluster = true").with("[store]", &servers)
    });
    let workspace = workspace_on(&fleet, 1);
    assert_eq!(admitted(&fleet, &workspace, 62), 59);
}

#[test]
fn refusals_are_remembered_while_other_servers_are_away() {
    let mut fleet = fleet(0);
    let registry = fleet.redis.owner("gateways");
    let (asked, away) = ((registry + 1) % 3, (registry + 2) % 3);
    let workspace = workspace_on(&fleet, asked);
    assert_eq!(admitted(&fleet, &workspace, 62), 59);
    // Heartbeats read no windows, and some of them pass here. While the registry is away as well,
    // each of them makes the gateway ask once more, for both limits.
    for (gone, servers, asks) in [(away, 2.0, 0..=0), (registry, 1.0, 1..=20)] {
        fleet.redis.nodes[gone].kill();
        wait::until("the loss to be noticed", || {
            (fleet.gateways[0].metric("weir_gateway_store_servers_up") == servers).then_some(())
        });
        fleet.get(0, &target(&workspace)).expect(429);
        let calls = || fleet.redis.nodes[asked].calls("getrange");
        let (before, until) = (calls(), wait::now() + PASSED);
        while wait::now() < until {
            fleet.get(0, &target(&workspace)).expect(429);
        }
        let asked = calls() - before;
        assert!(asks.contains(&asked), "{asked}");
    }
}
