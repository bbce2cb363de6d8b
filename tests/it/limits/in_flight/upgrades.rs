//! What is in flight when its process stops, is replaced or is killed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weir_tests::answer::Answer;
use weir_tests::config::DIRECTORY;
use weir_tests::gateway::Gateway;
use weir_tests::process;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::{KEY, TARGET, expect_two_free, gated, holding, in_flight, wait_for, world};

#[test]
fn a_restart_with_a_snapshot_finds_nothing_in_flight() {
    let world = World::with(|config| {
        in_flight(config, 2)
            .with("[server]", "shutdown_grace = \"300ms\"")
            .with("[store]", "snapshot = \"limits.snapshot\"")
    });
    let config = world.config().to_string();
    let World { gateway, control, .. } = world;
    let _gate = gated(&control);
    let _clients = [1, 2].map(|count| holding(&gateway, count));
    gateway.signal("TERM");
    let gateway = Gateway::start_in(gateway.into_folder(), &config, DIRECTORY);
    assert_eq!(gateway.used("organisation", "org_acme"), 2, "the snapshot was read");
    assert_eq!(gateway.used("workspace", KEY), 0);
    expect_two_free(&gateway, &control);
}

#[test]
fn after_an_upgrade_the_new_process_counts_what_the_old_one_has_in_flight() {
    let mut world = world();
    let gate = gated(&world.control);
    let mut clients = [1, 2].map(|count| holding(&world.gateway, count));
    world.gateway.upgrade();
    assert_eq!(world.gateway.used("workspace", KEY), 2);
    assert_eq!(world.get(TARGET).expect(429).retry_after(), 1);
    gate.open();
    for client in &mut clients {
        client.read().expect(200);
    }
    expect_two_free(&world.gateway, &world.control);
    assert_eq!(world.gateway.wait_for_exit(), Some(0));
}

#[test]
fn requests_that_begin_in_the_old_process_after_an_upgrade_are_counted_and_released() {
    let world = world();
    let mut idle = [(); 3].map(|()| world.client());
    for client in &mut idle {
        client.get("/healthz").expect(200);
    }
    let gate = gated(&world.control);
    world.gateway.upgrade();
    let [answered, gone, refused] = &mut idle;
    for (client, count) in [(answered, 1), (gone, 2)] {
        client.send(Request::get(TARGET).head_bytes());
        wait_for(&world.gateway, count);
    }
    refused.get(TARGET).expect(429);
    world.get(TARGET).expect(429);
    let [mut answered, gone, _] = idle;
    drop(gone);
    wait_for(&world.gateway, 1);
    gate.open();
    answered.read().expect(200);
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn a_killed_predecessor_releases_what_it_had_in_flight() {
    let world = world();
    let mut idle = world.client();
    idle.get("/healthz").expect(200);
    let _gate = gated(&world.control);
    let _before = holding(&world.gateway, 1);
    world.gateway.upgrade();
    idle.send(Request::get(TARGET).head_bytes());
    wait_for(&world.gateway, 2);
    world.get(TARGET).expect(429);
    assert!(process::signal(world.gateway.id(), "KILL"));
    expect_two_free(&world.gateway, &world.control);
}

#[test]
fn two_upgrades_release_what_the_oldest_process_has_in_flight() {
    let world = world();
    let gate = gated(&world.control);
    let mut oldest = holding(&world.gateway, 1);
    let between = world.gateway.upgrade();
    let old = holding(&world.gateway, 2);
    world.gateway.upgrade();
    assert_eq!(world.gateway.used("workspace", KEY), 2);
    world.get(TARGET).expect(429);
    drop(old);
    wait_for(&world.gateway, 1);
    gate.open();
    oldest.read().expect(200);
    expect_two_free(&world.gateway, &world.control);
    // It ends once its predecessor has ended.
    wait::until("the process between to end", || (!process::signal(between, "0")).then_some(()));
}

#[test]
fn an_upgrade_under_load_neither_loses_nor_keeps_a_request() {
    let world = World::with(|config| {
        in_flight(config, 3).with("[limits.organisation]", "requests = 1000000")
    });
    world.control.always(Answer::script().pause(Duration::from_millis(3)).and(Answer::ok("a")));
    world.control.forget();
    let stop = AtomicBool::new(false);
    let statuses: Vec<u16> = thread::scope(|scope| {
        let run = || {
            let mut statuses = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let mut client = world.client();
                for _ in 0..5 {
                    let answer = client.get(TARGET);
                    statuses.push(answer.status);
                    if answer.field("Connection") == Some("close") {
                        break;
                    }
                }
            }
            statuses
        };
        let running: Vec<_> = (0..6).map(|_| scope.spawn(run)).collect();
        for _ in 0..5 {
            wait::pass(Duration::from_millis(200));
            world.gateway.upgrade();
        }
        stop.store(true, Ordering::Relaxed);
        running.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    let strange: Vec<_> = statuses.iter().filter(|status| ![200, 429].contains(*status)).collect();
    assert!(strange.is_empty(), "{strange:?}");
    let admitted = statuses.iter().filter(|status| **status == 200).count();
    assert!(admitted > 50, "{admitted} of {}", statuses.len());
    wait_for(&world.gateway, 0);
}
