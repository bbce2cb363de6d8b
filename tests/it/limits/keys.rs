//! Which key a request is charged to, and how large that key's allowance is.

use weir_tests::config::DIRECTORY;
use weir_tests::request::{Request, data_host};
use weir_tests::world::World;

use super::{count, repeat};

#[test]
fn workspaces_and_instances_do_not_touch_each_other() {
    let world = World::with(|config| {
        config
            .with("[limits.workspace]", "requests = 2")
            .with("[limits.instance]", "rate = 1\nburst = 2")
    });
    let acme = repeat(&world, 3, &Request::get("/v1/workspaces/ws_acme"));
    assert_eq!((count(&acme, 200), count(&acme, 429)), (2, 1));
    world.get("/v1/workspaces/ws_quiet").expect(200);
    world.get_from("in_acme", "/login").expect(200);
    world.get_from("in_other", "/login").expect(200);
    world.get("/v1/organisations/org_acme").expect(200);
}

#[test]
fn an_organisations_own_calls_and_its_workspaces_share_its_allowance() {
    let world = World::with(|config| config.with("[limits.organisation]", "requests = 3"));
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.get("/v1/workspaces/ws_quiet").expect(200);
    let own = world.get("/v1/organisations/org_acme").expect(200).allowance();
    assert_eq!((own.resource.as_str(), own.remaining), ("organisation", 0));
    world.get("/v1/workspaces/ws_acme").expect(429);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 1);
    world.get("/v1/organisations/org_globex").expect(200);
}

#[test]
fn a_tenants_own_entry_precedes_its_plan_and_its_plan_the_limit() {
    let world = World::new();
    let limit = |workspace: &str| {
        world.get(&format!("/v1/workspaces/{workspace}")).expect(200).allowance().limit
    };
    assert_eq!(limit("ws_acme"), 60, "a free plan changes nothing");
    // The plan and the organisation both allow 600: the binding limit does not matter.
    assert_eq!(limit("ws_big"), 600);
    assert_eq!(limit("ws_special"), 7, "its own entry, against 600 of its plan");
    assert_eq!(limit("ws_unknown"), 60);
}

#[test]
fn an_instance_has_its_workspaces_plan_and_its_own_entry() {
    let world = World::with(|config| {
        config.with("[plans.enterprise]", "limits.instance = { rate = 10, burst = 77 }")
    });
    let directory = format!("{DIRECTORY}\n[instances.in_big]\nworkspace = \"ws_big\"\n");
    world.gateway.write_directory(&directory);
    world.gateway.reload().expect(200);
    let limit =
        |host: &str| world.call(&Request::get("/login").host(host)).expect(200).allowance().limit;
    assert_eq!(limit(&data_host("in_acme")), 200);
    assert_eq!(limit(&data_host("in_big")), 77);
    assert_eq!(limit(&data_host("in_special")), 9);
    assert_eq!(limit(&data_host("in_unknown")), 200);
}

#[test]
fn a_custom_domain_is_its_instance() {
    let world = World::new();
    let own = world.get_from("in_special", "/login").expect(200).allowance();
    let custom =
        world.call(&Request::get("/login").host("login.special.example")).expect(200).allowance();
    assert_eq!((own.limit, custom.limit), (9, 9));
    assert!(custom.remaining <= own.remaining, "{custom:?} after {own:?}");
    let answers = repeat(&world, 20, &Request::get("/login").host("login.special.example"));
    assert!(count(&answers, 429) > 5);
    world.get_from("in_special", "/login").expect(429);
}

#[test]
fn an_unknown_tenant_has_an_allowance_of_its_own() {
    let world = World::with(|config| {
        config
            .with("[limits.workspace]", "requests = 2")
            .with("[limits.instance]", "rate = 1\nburst = 2")
    });
    for unknown in ["ws_unknown_1", "ws_unknown_2"] {
        let request = Request::get(&format!("/v1/workspaces/{unknown}"));
        let answers = repeat(&world, 4, &request);
        assert_eq!((count(&answers, 200), count(&answers, 429)), (2, 2), "{unknown}");
        assert_eq!(answers[0].allowance().resource, "workspace");
    }
    assert_eq!(world.get_from("in_stranger", "/").expect(200).allowance().resource, "instance");
}

#[test]
fn on_a_public_gateway_unknown_tenants_share_their_addresss_allowance() {
    let world = World::with(|config| {
        config
            .with("[directory]", "unknown = \"by_address\"")
            .with("[limits.address]", "requests = 5")
    });
    let mut admitted = 0;
    for number in 0..10 {
        let answer = if number % 2 == 0 {
            world.get(&format!("/v1/workspaces/ws_invented_{number}"))
        } else {
            world.get_from(&format!("in_invented_{number}"), "/login")
        };
        assert_eq!(answer.allowance().resource, "address");
        admitted += usize::from(answer.status == 200);
    }
    assert_eq!(admitted, 5);
    world.get("/v1/workspaces/ws_acme").expect(200);
    world.get_from("in_acme", "/login").expect(200);
}

#[test]
fn countless_unknown_tenants_neither_evict_a_known_tenant_nor_gain_by_it() {
    let world = World::with(|config| {
        config.with("[store]", "max_keys = 1_000").with("[limits.workspace]", "requests = 1")
    });
    let tenant = Request::get("/v1/workspaces/ws_acme");
    assert_eq!(count(&repeat(&world, 2, &tenant), 429), 1);
    let mut client = world.client();
    let mut admitted = 0;
    for number in 0..8_000 {
        let answer = client.get(&format!("/v1/workspaces/ws_invented_{number}"));
        admitted += usize::from(answer.status == 200);
    }
    // 1,000 unknown keys have their own entries; all others share 4,096.
    assert!(admitted < 5_200, "{admitted} of 8,000 unknown tenants were admitted");
    world.call(&tenant).expect(429);
    assert_eq!(world.gateway.used("workspace", "ws_acme"), 1);
}

#[test]
fn a_route_without_a_tenant_is_charged_to_the_address() {
    let world = World::with(|config| config.with("[limits.address]", "requests = 2"));
    for target in ["/v1/me", "/v1/plans"] {
        assert_eq!(world.get(target).expect(200).allowance().resource, "address");
    }
    world.get("/v1/me").expect_problem(429);
    world.get("/v1/workspaces/ws_acme").expect(200);
}

#[test]
fn behind_a_trusted_proxy_the_address_is_the_rightmost_untrusted_hop() {
    let world = World::with(|config| {
        config
            .with("[server]", "trusted_proxies = [\"127.0.0.0/8\", \"10.0.0.0/8\"]")
            .with("[limits.address]", "requests = 1")
    });
    let status =
        |hops: &str| world.call(&Request::get("/v1/me").field("X-Forwarded-For", hops)).status;
    assert_eq!(status("192.0.2.1"), 200);
    assert_eq!(status("192.0.2.1"), 429);
    assert_eq!(status("203.0.113.9, 192.0.2.1"), 429, "what the client invents is to the left");
    assert_eq!(status("203.0.113.9, 192.0.2.1, 10.1.2.3"), 429, "a trusted hop was counted");
    assert_eq!(status("192.0.2.2"), 200);
    // One customer has a /64 and can walk through it.
    assert_eq!(status("2001:db8:1:2::1"), 200);
    assert_eq!(status("2001:db8:1:2:ffff::9"), 429);
    assert_eq!(status("2001:db8:1:3::1"), 200);
    // The same address in another notation is the same address.
    assert_eq!(status("::ffff:192.0.2.2"), 429);
}

#[test]
fn without_trusted_proxies_no_field_changes_the_address() {
    let world = World::with(|config| config.with("[limits.address]", "requests = 1"));
    world.get("/v1/me").expect(200);
    for field in ["X-Forwarded-For", "X-Real-IP", "Forwarded", "True-Client-IP", "Client-IP"] {
        let value = if field == "Forwarded" { "for=192.0.2.7" } else { "192.0.2.7" };
        world.call(&Request::get("/v1/me").field(field, value)).expect(429);
    }
}

#[test]
fn an_override_on_a_plan_that_has_none_is_refused_at_the_start() {
    let directory = DIRECTORY.replace("plan = \"enterprise\"", "plan = \"free\"");
    let folder = weir_tests::folder::Folder::new();
    let config = weir_tests::config::Config::default().to_string();
    folder.write(weir_tests::gateway::CONFIG, &config);
    folder.write(weir_tests::gateway::DIRECTORY, &directory);
    let checked = weir_tests::gateway::run(&folder, &["check", "--config", "gateway.toml"]);
    assert!(checked.expect(64).output().contains("in_special"));
}
