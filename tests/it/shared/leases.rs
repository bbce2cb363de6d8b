//! Tokens of a bucket that a gateway holds: few calls, one allowance, and nothing spent twice.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weir_tests::redis::Redis;
use weir_tests::request::{Request, data_host};
use weir_tests::wait;

use super::{Fleet, count};

/// How long a lease lasts, and a little more.
const LEASE: Duration = Duration::from_millis(1_200);

/// So many gateways with this bucket for each instance.
#[track_caller]
fn fleet(gateways: usize, bucket: &str) -> Fleet {
    Fleet::of(Redis::start(&[]), gateways, |config| config.with("[limits.instance]", bucket))
}

fn login() -> Request {
    Request::get("/login").host(&data_host("in_acme"))
}

impl Fleet {
    /// The calls of the script so far: heartbeats read no states.
    fn scripts(&self) -> u64 {
        self.redis.calls("getrange")
    }

    /// The tokens that a gateway holds.
    fn leased(&self, nth: usize) -> f64 {
        self.gateways[nth].metric("weir_gateway_store_leased_tokens")
    }

    /// Sends requests to all gateways until none has admitted one for as long as a lease lasts, and
    /// returns how many were admitted.
    pub(super) fn drained(&self) -> usize {
        let (mut admitted, mut last) = (0, wait::now());
        while last.elapsed() < LEASE {
            let round = count(&self.at_once(1, 20, &login()), 200);
            if round > 0 {
                (admitted, last) = (admitted + round, wait::now());
            }
            wait::pass(Duration::from_millis(50));
        }
        admitted
    }

    #[track_caller]
    fn change(&self, nth: usize, method: &str, path: &str, body: &str) {
        let path = format!("/limits/instance/in_acme{path}");
        self.gateways[nth].call_admin(&Request::new(method, &path).body(body)).expect(200);
    }
}

#[test]
fn a_thousand_requests_within_the_rate_cost_fifty_calls_at_most() {
    let fleet = fleet(2, "rate = 1_000\nburst = 2_000");
    let before = fleet.scripts();
    let answers = fleet.at_once(2, 250, &login());
    assert_eq!(count(&answers, 200), 1_000);
    let calls = fleet.scripts() - before;
    assert!(calls <= 50, "{calls} calls");
    let leased = "weir_gateway_store_decisions_total{kind=\"leased\"}";
    let leased: f64 = fleet.gateways.iter().map(|gateway| gateway.metric(leased)).sum();
    assert!(leased >= 950.0, "{leased}");
    wait::until("all leases to be returned", || (fleet.leased(0) == 0.0).then_some(()));
}

#[test]
fn a_client_just_within_the_rate_of_an_instance_costs_one_call_in_twenty_requests() {
    let fleet = fleet(2, "rate = 50\nburst = 200");
    let mut clients = [0, 1].map(|nth| fleet.gateways[nth].client());
    let before = fleet.scripts();
    for nth in 0..240 {
        clients[nth % 2].call(&login()).expect(200);
        wait::pass(Duration::from_millis(20));
    }
    // Each gateway starts with some calls, until it knows its demand.
    let calls = fleet.scripts() - before;
    assert!(calls <= 240 / 20 + 2 * 6, "{calls} calls");
}

#[test]
fn many_requests_at_once_are_few_calls() {
    let fleet = fleet(1, "rate = 1_000\nburst = 2_000");
    let before = fleet.scripts();
    assert_eq!(count(&fleet.at_once(60, 1, &login()), 200), 60);
    let calls = fleet.scripts() - before;
    assert!(calls <= 20, "{calls} calls");
}

#[test]
fn a_client_sees_one_allowance_count_down() {
    let fleet = fleet(1, "rate = \"1/h\"\nburst = 30");
    let mut client = fleet.gateways[0].client();
    for left in (0..30).rev() {
        assert_eq!(client.call(&login()).expect(200).allowance().remaining, left);
    }
    client.call(&login()).expect(429);
    assert!(fleet.scripts() < 20, "{} calls", fleet.scripts());
}

#[test]
fn two_gateways_spend_no_more_than_the_burst_and_the_flow() {
    let fleet = fleet(2, "rate = 100\nburst = 60");
    let (stop, admitted) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let hammer = |nth: usize| {
        let mut client = fleet.gateways[nth].client();
        while !stop.load(Ordering::Relaxed) {
            let from = wait::now();
            let answer = client.call(&login());
            if answer.status == 200 {
                admitted.lock().unwrap().push((from, wait::now()));
            }
            if answer.field("Connection") == Some("close") {
                client = fleet.gateways[nth].client();
            }
        }
    };
    thread::scope(|scope| {
        (0..4).for_each(|nth| drop(scope.spawn(move || hammer(nth % 2))));
        wait::pass(Duration::from_secs(3));
        stop.store(true, Ordering::Relaxed);
    });
    let mut admitted: Vec<(Instant, Instant)> = admitted.into_inner().unwrap();
    admitted.sort();
    for (first, (start, _)) in admitted.iter().enumerate() {
        // Those that were surely admitted by then, in the order in which they ended.
        let mut ends: Vec<Instant> = admitted[first..].iter().map(|(_, end)| *end).collect();
        ends.sort();
        for (nth, end) in ends.iter().enumerate() {
            let allowed = 60.0 + 100.0 * (*end - *start).as_secs_f64();
            assert!((nth + 1) as f64 <= allowed, "{} of {allowed}", nth + 1);
        }
    }
    assert!(admitted.len() >= 60 + 200, "{}", admitted.len());
}

#[test]
fn tokens_of_a_killed_gateway_count_as_spent() {
    let mut fleet = fleet(2, "rate = \"1/h\"\nburst = 200");
    let mut client = fleet.gateways[0].client();
    let mut admitted = (0..40).filter(|_| client.call(&login()).status == 200).count();
    let held = fleet.leased(0) as usize;
    drop(client);
    fleet.gateways.remove(0).signal("KILL");
    assert!(held > 0, "it holds none");
    admitted += fleet.drained();
    assert!((200 - held..=200).contains(&admitted), "{admitted}, {held} held");
}

#[test]
fn tokens_that_a_gateway_holds_are_returned_when_it_ends() {
    let mut fleet = fleet(2, "rate = \"1/h\"\nburst = 200");
    let mut client = fleet.gateways[0].client();
    let admitted = (0..40).filter(|_| client.call(&login()).status == 200).count();
    assert!(fleet.leased(0) > 0.0, "it holds none");
    drop(client);
    fleet.start_again(0, "TERM");
    assert_eq!(admitted + fleet.drained(), 200);
}

#[test]
fn a_lease_does_not_outlive_a_reset() {
    let fleet = fleet(2, "rate = \"1/h\"\nburst = 40");
    let (stop, spent) = (AtomicBool::new(false), AtomicUsize::new(0));
    let mut before = 0;
    thread::scope(|scope| {
        // It goes on spending, so its lease is not returned meanwhile.
        scope.spawn(|| {
            let mut client = fleet.gateways[1].client();
            while !stop.load(Ordering::Relaxed) {
                let admitted = client.call(&login()).status == 200;
                spent.fetch_add(admitted.into(), Ordering::Relaxed);
                wait::pass(Duration::from_millis(30));
            }
        });
        wait::until("a lease", || (fleet.leased(1) > 2.0).then_some(()));
        before = spent.load(Ordering::Relaxed);
        fleet.change(0, "DELETE", "", "");
        stop.store(true, Ordering::Relaxed);
    });
    let mut client = fleet.gateways[0].client();
    let first = (0..60).filter(|_| client.call(&login()).status == 200).count();
    let admitted = first + count(&fleet.at_once(1, 60, &login()), 200);
    // What it spent while the reset was under way is charged to the new allowance, or was not yet.
    let meanwhile = spent.load(Ordering::Relaxed) - before;
    assert!(admitted <= 40 && admitted + meanwhile >= 30, "{admitted}, {meanwhile} meanwhile");
}

#[test]
fn a_boost_applies_to_what_is_leased_and_its_end_too() {
    let fleet = fleet(2, "rate = \"1/h\"\nburst = 40");
    let mut client = fleet.gateways[0].client();
    let admitted = (0..20).filter(|_| client.call(&login()).status == 200).count();
    fleet.change(0, "POST", "/boost", r#"{"rate":"1/h","burst":100,"ttl":"10m"}"#);
    assert_eq!(client.call(&login()).expect(200).allowance().limit, 100);
    let admitted = admitted + 1 + fleet.drained();
    assert!((90..=100).contains(&admitted), "{admitted}");
    fleet.change(0, "DELETE", "/boost", "");
    wait::until("the end of the boost", || {
        (fleet.call(1, &login()).allowance().limit == 40).then_some(())
    });
    assert_eq!(fleet.drained(), 0);
}

#[test]
fn a_gateway_spends_its_lease_while_the_store_is_away_and_that_counts_when_it_is_back() {
    let fleet = fleet(1, "rate = \"1/h\"\nburst = 100\non_store_failure = \"refuse\"");
    let mut client = fleet.gateways[0].client();
    assert_eq!((0..20).filter(|_| client.call(&login()).status == 200).count(), 20);
    let held = fleet.leased(0);
    fleet.redis.pause();
    let more = (0..5).filter(|_| client.call(&login()).status == 200).count();
    assert!(more as f64 <= held && (more > 0 || held == 0.0), "{more} of {held}");
    fleet.redis.resume();
    wait::until("the store", || (client.call(&login()).status == 200).then_some(()));
    assert!(21 + more + fleet.drained() <= 100);
}
