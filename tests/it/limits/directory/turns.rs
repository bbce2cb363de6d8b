//! How many names an address can have looked up, and whom that delays.

use std::thread;
use std::time::Duration;

use weir_tests::answer::{Answer, Gate};
use weir_tests::directory::Directory;
use weir_tests::request::Request;
use weir_tests::wait;
use weir_tests::world::World;

use super::Setup;
use super::requests::LONG;

#[test]
fn an_address_that_invents_names_has_a_bounded_number_fetched_and_delays_no_other() {
    let directory = Directory::start();
    let world = World::with(|config| {
        let config = config.with("[server]", "trusted_proxies = [\"127.0.0.1\"]");
        directory.within(config, &format!("{LONG}\nunknown = \"by_address\""))
    });
    let setup = Setup { directory, world };
    assert_eq!(setup.limit("ws_acme"), 60);
    let from = |address: &str, workspace: &str| {
        Request::get(&format!("/v1/workspaces/{workspace}/users")).field("X-Forwarded-For", address)
    };
    let started = wait::now();
    thread::scope(|scope| {
        for thread in 0..20 {
            let (setup, from) = (&setup, &from);
            scope.spawn(move || {
                let mut client = setup.world.client();
                for number in 0..50 {
                    let name = format!("ws_invented_{thread}_{number}");
                    let status = client.call(&from("198.51.100.7", &name)).status;
                    assert!([200, 429, 503].contains(&status), "{status}");
                }
            });
        }
    });
    let invented =
        setup.directory.fetched().iter().filter(|path| path.contains("invented")).count();
    // 60 at once, one each second, and those in flight at the same time as the last.
    let most = 60 + 16 + usize::try_from(started.elapsed().as_secs()).unwrap() + 1;
    assert!((60..=most).contains(&invented), "{invented} questions, of 60 to {most}");
    assert_eq!(setup.world.gateway.used("address", "198.51.100.7"), 60);

    // This address still reaches a cached tenant, and another address an uncached one.
    setup.world.call(&from("198.51.100.7", "ws_acme")).expect(200);
    setup.world.call(&from("198.51.100.8", "ws_quiet")).expect(200);
}

#[test]
fn invented_names_of_one_ipv6_48_delay_no_known_tenant_and_no_new_one_of_another_network() {
    let directory = Directory::start();
    let world = World::with(|config| {
        let config = config.with("[server]", "trusted_proxies = [\"127.0.0.1\"]");
        directory.within(config, "ttl = \"1ms\"\nstale_for = \"1h\"\ntimeout = \"3s\"")
    });
    let setup = Setup { directory, world };
    let from = |address: &str, workspace: &str| {
        Request::get(&format!("/v1/workspaces/{workspace}/users")).field("X-Forwarded-For", address)
    };
    setup.world.call(&from("198.51.100.8", "ws_acme")).expect(200);
    let silent = Gate::new();
    let invented = |nth: usize| format!("ws_invented_{nth}");
    for nth in 0..100 {
        let entry = format!("workspaces/{}", invented(nth));
        setup.directory.answer(&entry, Answer::script().wait(&silent));
    }
    thread::scope(|scope| {
        for nth in 0..100 {
            let (setup, request) =
                (&setup, from(&format!("2001:db8:7:{nth:x}::1"), &invented(nth)));
            scope.spawn(move || setup.world.call(&request));
        }
        setup.directory.server.wait("the flood", |seen| (seen.requests.len() >= 10).then_some(()));
        wait::until("all hundred", || {
            (setup.metric("weir_gateway_requests_in_flight") >= 100.0).then_some(())
        });
        let started = wait::now();
        setup.world.call(&from("198.51.100.8", "ws_acme")).expect(200);
        setup.world.call(&from("198.51.100.9", "ws_big")).expect(200);
        assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
        silent.open();
    });
}
