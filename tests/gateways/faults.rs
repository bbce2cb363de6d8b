//! What fails in a run, and when.
//!
//! Not here: what is promised meanwhile (`plan`).

use std::rc::Rc;
use std::time::Duration;

use tokio::time::sleep;
use weir_tests::admissions::Loss;
use weir_tests::rng::SeededRng;

use super::fleet::Fleet;
use super::network::{Network, SENTINEL_PORT};
use super::plan::Situation;

/// After a server was lost, every gateway that lives has told a new one within this time, in
/// microseconds: it is not asked before.
const HELD_OFF: u64 = 1_500_000;

/// Lets things fail until the run is over.
pub(crate) async fn run(fleet: Rc<Fleet>) {
    let mut rng = fleet.rng();
    if fleet.plan.situation == Situation::Shares {
        // Before the first reply a gateway goes by its machine's clock, which is wrong here.
        sleep(Duration::from_secs(1)).await;
    }
    loop {
        sleep(rng.millis(150, 2_500)).await;
        let place = rng.below(fleet.plan.gateways as u64) as usize;
        match fleet.plan.situation {
            Situation::InTime => gateway_ends(&fleet, place, &mut rng).await,
            Situation::Unreachable => match rng.below(6) {
                0 => gateway_ends(&fleet, place, &mut rng).await,
                1 => stands_still(&fleet, rng.millis(30, 1_500)).await,
                _ => link_fails(&fleet, place, &mut rng).await,
            },
            Situation::Unanswered if rng.chance(50) => {
                let late = 2 * fleet.plan.timeout.as_millis() as u64;
                stands_still(&fleet, rng.millis(late, 3 * late)).await;
            }
            Situation::Unanswered => replies_are_lost(&fleet, &mut rng).await,
            Situation::ClockBack => step(&fleet, -(rng.below(1_500_000) as i64)),
            Situation::ClockAhead => step(&fleet, rng.below(4_000_000) as i64),
            Situation::Flushed => {
                fleet.network.servers[0].data.borrow_mut().flush();
                lost(&fleet, 0, fleet.plan.untold());
                if rng.chance(30) {
                    gateway_ends(&fleet, place, &mut rng).await;
                }
            }
            Situation::Restarted => {
                fleet.network.kill(0);
                sleep(rng.millis(20, 1_500)).await;
                fleet.network.servers[0].is_alive.set(true);
                // A gateway that starts now asks it before the others have told it all.
                lost(&fleet, 0, fleet.plan.untold());
                if rng.chance(30) {
                    gateway_ends(&fleet, place, &mut rng).await;
                }
            }
            Situation::FailedOver | Situation::Acknowledged => fail_over(&fleet, &mut rng).await,
            Situation::TwoPrimaries => two_primaries(&fleet, &mut rng).await,
            Situation::Shares => {
                stands_still(&fleet, rng.millis(300, 3_000)).await;
                // Both ends of one absence, and no other, are in a window.
                sleep(Duration::from_secs(7)).await;
            }
        }
    }
}

/// Notes that the store has lost what was charged since some time.
fn lost(fleet: &Fleet, since: u64, untold: u64) {
    let at = fleet.network.now();
    let loss = Loss { since, began: at, at, untold, survivable: at + untold.max(HELD_OFF) };
    fleet.history.borrow_mut().losses.push(loss);
}

/// A gateway is killed or ends; another one starts in its place.
async fn gateway_ends(fleet: &Rc<Fleet>, place: usize, rng: &mut SeededRng) {
    if rng.chance(60) {
        fleet.kill(place);
    } else {
        fleet.stop(place).await;
    }
    sleep(rng.millis(1, 800)).await;
    fleet.start(place);
}

async fn stands_still(fleet: &Fleet, time: Duration) {
    let server = &fleet.network.servers[0];
    server.set_runs(false);
    sleep(time).await;
    server.set_runs(true);
}

async fn link_fails(fleet: &Fleet, place: usize, rng: &mut SeededRng) {
    let link = fleet.network.link(place, Network::port(0));
    match rng.below(4) {
        0 => link.break_all(),
        1 => {
            link.swallows.set(true);
            sleep(rng.millis(5, 400)).await;
            link.swallows.set(false);
        }
        2 => {
            let timeout = fleet.plan.timeout.as_millis() as u64;
            let (usual, slow) = (link.delay.get(), rng.below(2 * timeout));
            link.delay.set((slow / 2, slow));
            sleep(rng.millis(50, 1_500)).await;
            link.delay.set(usual);
        }
        _ => {
            link.is_down.set(true);
            link.break_all();
            sleep(rng.millis(50, 1_500)).await;
            link.is_down.set(false);
        }
    }
}

/// All connections break, after no reply has come over them for less than a request waits.
async fn replies_are_lost(fleet: &Fleet, rng: &mut SeededRng) {
    let link = |place| fleet.network.link(place, Network::port(0));
    let links: Vec<_> = (0..fleet.plan.gateways).map(link).collect();
    links.iter().for_each(|link| link.swallows.set(true));
    sleep(rng.millis(10, fleet.plan.timeout.as_millis() as u64)).await;
    for link in links {
        link.break_all();
        link.swallows.set(false);
    }
}

/// The clock of the server is set.
fn step(fleet: &Fleet, by: i64) {
    let server = &fleet.network.servers[0];
    server.ahead.set(server.ahead.get() + by);
    fleet.history.borrow_mut().steps.push((fleet.network.now(), by));
}

/// The replica gets data once in a while; then the primary is killed, and the replica takes over.
async fn fail_over(fleet: &Fleet, rng: &mut SeededRng) {
    let network = &fleet.network;
    let (old, epoch) = network.primary.get();
    let new = 1 - old;
    let acknowledged = fleet.plan.situation == Situation::Acknowledged;
    if !acknowledged {
        network.servers[old].replicate();
    }
    let since = network.now();
    sleep(rng.millis(10, 900)).await;
    // What it has acknowledged is newer, and `kill` takes the rest.
    let replica = network.servers[old].replica.borrow().clone();
    network.kill(old);
    sleep(rng.millis(50, 1_500)).await;
    *network.servers[new].data.borrow_mut() = replica;
    network.servers[new].is_alive.set(true);
    network.primary.set((new, epoch + 1));
    lost(fleet, since, fleet.plan.untold());
    // The old one is its replica from now on.
    sleep(Duration::from_millis(100)).await;
}

/// The replica takes over while some gateways do not reach the Sentinel.
async fn two_primaries(fleet: &Fleet, rng: &mut SeededRng) {
    let network = &fleet.network;
    let (old, epoch) = network.primary.get();
    let new = 1 - old;
    let cut_off: Vec<usize> = (0..fleet.plan.gateways).filter(|_| rng.chance(50)).collect();
    for place in &cut_off {
        let link = network.link(*place, SENTINEL_PORT);
        link.is_down.set(true);
        link.break_all();
    }
    let taken_over = network.servers[old].data.borrow().clone();
    *network.servers[new].data.borrow_mut() = taken_over;
    network.servers[new].is_alive.set(true);
    network.primary.set((new, epoch + 1));
    sleep(rng.millis(100, 4_000)).await;
    network.kill(old);
    for place in cut_off {
        network.link(place, SENTINEL_PORT).is_down.set(false);
    }
    // No window has two of these.
    sleep(Duration::from_secs(6)).await;
}
