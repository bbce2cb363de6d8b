//! Two gateways that share a Valkey server.

use weir_tests::redis::Redis;
use weir_tests::request::{Request, data_host};
use weir_tests::wait;

use super::{Fleet, TARGET, count};

fn fleet() -> Fleet {
    let fleet = Fleet::of(Redis::start_valkey(&[]), 2, |config| config);
    fleet.wait_until_known();
    fleet
}

#[test]
fn two_gateways_on_valkey_admit_exactly_one_allowance_also_after_it_forgets() {
    let fleet = fleet();
    assert_eq!(count(&fleet.in_turn(30), 200), 30);
    fleet.redis.run("FLUSHALL");
    fleet.redis.run("SCRIPT FLUSH");
    let answers = fleet.at_once(2, 20, &Request::get(TARGET));
    assert_eq!((count(&answers, 200), count(&answers, 429)), (30, 50));
}

#[test]
fn a_valkey_that_stands_still_leaves_each_gateway_its_share() {
    let fleet = fleet();
    assert_eq!(count(&fleet.in_turn(10), 200), 10);
    fleet.redis.pause();
    let away = fleet.in_turn(64);
    fleet.redis.resume();
    fleet.wait_for_return();
    let back = fleet.in_turn(4);
    assert_eq!((count(&away, 200), count(&back, 200)), (50, 0));
}

#[test]
fn a_bucket_and_a_reset_work_on_valkey() {
    let fleet = fleet();
    let login = Request::get("/login").host(&data_host("in_acme"));
    assert_eq!(count(&fleet.at_once(1, 20, &login), 200), 40);
    assert_eq!(count(&fleet.in_turn(62), 200), 60);
    fleet.gateways[0].call_admin(&Request::new("DELETE", "/limits/workspace/ws_acme")).expect(200);
    wait::until("the reset to arrive", || (fleet.get(1, TARGET).status == 200).then_some(()));
}
