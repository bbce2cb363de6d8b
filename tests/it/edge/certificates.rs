//! Certificate files: changed ones are loaded, broken ones are refused.

use weir_tests::authority::Authority;
use weir_tests::client::Client;
use weir_tests::config::{Config, DIRECTORY};
use weir_tests::folder::Folder;
use weir_tests::gateway::{self, run};
use weir_tests::wait;
use weir_tests::world::World;

use super::{NAMES, secured, world_of};

/// The certificate that a new connection gets.
#[track_caller]
fn shown(world: &World, authority: &Authority) -> Vec<u8> {
    secured(world, authority).tls().peer_certificates().unwrap()[0].to_vec()
}

#[test]
fn a_new_certificate_is_used_without_a_restart_and_open_connections_continue() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let mut earlier = secured(&world, &authority);
    earlier.get("/healthz").expect(200);
    for trigger in ["saved", "signal", "request"] {
        let before = authority.der("server.crt");
        authority.sign("server", NAMES, 3);
        assert_ne!(authority.der("server.crt"), before);
        match trigger {
            "signal" => world.gateway.signal("HUP"),
            "request" => drop(world.gateway.reload().expect(200)),
            _ => {}
        }
        wait::until(&format!("the new certificate ({trigger})"), || {
            (shown(&world, &authority) == authority.der("server.crt")).then_some(())
        });
        earlier.get("/healthz").expect(200);
    }
}

#[test]
fn a_broken_file_is_refused_with_its_place_and_the_earlier_certificate_stays() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let (good, key) = (authority.der("server.crt"), authority.read("server.key"));
    authority.sign("other", NAMES, 2);
    let other_key = authority.read("other.key");
    for (file, text, word) in [
        ("server.key", other_key.as_str(), "not that of the certificate"),
        ("server.key", "nothing of the kind", "no private key"),
        ("server.crt", "", "no certificate"),
    ] {
        let before = authority.read(file);
        authority.write(file, text);
        let refused = world.gateway.reload();
        let problems = refused.expect_problem(422)["problems"].to_string();
        assert!(problems.contains(word), "{problems}");
        assert!(problems.contains("gateway.toml:"), "{problems}");
        assert_eq!(shown(&world, &authority), good);
        assert_eq!(world.gateway.metric("weir_gateway_config_last_reload_successful"), 0.0);
        authority.write(file, &before);
        world.gateway.reload().expect(200);
        assert_eq!(world.gateway.metric("weir_gateway_config_last_reload_successful"), 1.0);
    }
    // A missing file.
    std::fs::remove_file(authority.path("server.key")).unwrap();
    let problems = world.gateway.reload().expect_problem(422)["problems"].to_string();
    assert!(problems.contains("cannot be read"), "{problems}");
    assert_eq!(shown(&world, &authority), good);
    authority.write("server.key", &key);
    world.gateway.reload().expect(200);
    let output = world.gateway.log().text();
    let secret = |line: &str| line.len() > 20 && output.contains(line);
    assert!(!key.lines().chain(other_key.lines()).any(secret), "a key was logged");
}

#[test]
fn a_metric_shows_when_the_first_certificate_expires() {
    let authority = Authority::new();
    authority.sign("later", "DNS:later.example", 9);
    let later = authority.entry_of("later");
    let world = world_of(&authority, &[("server", NAMES)], "", |config| {
        config.with("[[server.https]]", &later)
    });
    let expires = "weir_gateway_certificate_expires_timestamp_seconds";
    let from_now = |seconds: f64| seconds - wait::unix_seconds() as f64;
    let days = from_now(world.gateway.metric(expires)) / 86_400.0;
    assert!((1.9..2.1).contains(&days), "{days}");
    authority.sign("server", NAMES, 5);
    world.gateway.reload().expect(200);
    let days = from_now(world.gateway.metric(expires)) / 86_400.0;
    assert!((4.9..5.1).contains(&days), "{days}");
}

#[test]
fn a_reload_adds_a_certificate_to_an_address_and_no_address() {
    let authority = Authority::new();
    let world = world_of(&authority, &[("server", NAMES)], "", |config| config);
    let connects = |name: &str| {
        let client = Client::connect(&world.gateway.https());
        client.try_secured(&authority.trusted(), name).is_ok()
    };
    assert!(!connects("more.example"));
    let more = authority.entry("more", "DNS:more.example");
    let added = world.config().with("[[server.https]]", &more);
    world.gateway.write_config(&added.to_string());
    world.gateway.reload().expect(200);
    assert!(connects("more.example") && connects("api.localhost"));
    let elsewhere = more.replace("127.0.0.1:0", "127.0.0.2:0");
    let moved = world.config().with("[[server.https]]", &elsewhere);
    world.gateway.write_config(&moved.to_string());
    let refused = world.gateway.reload().expect_problem(422)["problems"].to_string();
    assert!(refused.contains("server.https") && refused.contains("restart"), "{refused}");
}

/// The output of `check` for these entries.
#[track_caller]
fn checked(entries: &[String], code: i32) -> String {
    let folder = Folder::new();
    let add = |config: Config, entry: &String| config.with("[[server.https]]", entry);
    folder.write(gateway::CONFIG, &entries.iter().fold(Config::default(), add).to_string());
    folder.write(gateway::DIRECTORY, DIRECTORY);
    run(&folder, &["check", "--config", gateway::CONFIG]).expect(code).output()
}

#[test]
fn check_reports_invalid_certificates() {
    let authority = Authority::new();
    for (name, subjects, days) in [
        ("server", NAMES, 2),
        ("again", "DNS:more.example,DNS:API.localhost", 2),
        ("nameless", "", 2),
        ("lapsed", "DNS:lapsed.example", -1),
        ("other", "DNS:other.example", 2),
    ] {
        authority.sign(name, subjects, days);
    }
    let entry = |name| authority.entry_of(name);
    let with = |name, lines: &str| format!("{}\n{lines}", entry(name));
    let ca = format!("client_ca = \"{}\"", authority.path("ca.crt"));
    let mixed = entry("server").replace("server.key", "other.key");
    let missing = entry("server").replace("server.crt", "missing.crt");
    authority.sign_with("large", NAMES, "-newkey ec -pkeyopt ec_paramgen_curve:secp521r1");
    authority.sign_with("small", NAMES, "-newkey rsa:1024");
    let swapped = entry("server").replace("server.crt", "server.key");
    let no_root = with("server", &ca.replace("ca.crt", "server.key"));
    let disagreeing = [entry("server"), with("other", "tls_min = \"1.3\"")];
    let unequal = [entry("server"), with("other", &ca)];
    let used = entry("server").replace("127.0.0.1:0", "127.0.0.1:7");
    for (entries, word) in [
        (vec![missing], "cannot be read"),
        (vec![mixed], "not that of the certificate"),
        (vec![entry("large")], "RSA of 2,048 to 4,096 bits, ECDSA with P-256 or P-384"),
        (vec![entry("small")], "RSA of 2,048 to 4,096 bits, ECDSA with P-256 or P-384"),
        (vec![swapped], "no certificate"),
        (vec![no_root], "no certificate"),
        (vec![entry("server"), entry("again")], "api.localhost"),
        (vec![entry("server"), entry("server")], "earlier one of the same address"),
        (vec![entry("server"), entry("nameless")], "names no host"),
        (disagreeing.to_vec(), "must agree"),
        (unequal.to_vec(), "must agree"),
    ] {
        let output = checked(&entries, 64);
        assert!(output.contains(word) && output.contains("gateway.toml:"), "{word}: {output}");
    }
    checked(&[used], 0);
    checked(&[entry("nameless"), entry("other")], 0);
    let output = checked(&[entry("lapsed")], 0);
    assert!(output.contains("warning: ") && output.contains("lapsed.crt"), "{output}");
}

#[test]
fn a_certificate_that_expires_while_it_is_active_is_logged_once() {
    let authority = Authority::new();
    authority.sign_briefly("brief", NAMES, 3);
    authority.sign_briefly("later", "DNS:later.example", 6);
    let [brief, later] = ["brief", "later"].map(|name| authority.entry_of(name));
    let world = World::with(|config| {
        config.with("[[server.https]]", &brief).with("[[server.https]]", &later)
    });
    let expired = |line: &serde_json::Value, name: &str| {
        line["message"] == "certificate expired" && line["detail"].to_string().contains(name)
    };
    for name in ["brief.crt", "later.crt"] {
        world.gateway.log().wait("that it has expired", |line| expired(line, name));
    }
    let lines = world.gateway.log().json();
    assert_eq!(lines.iter().filter(|line| expired(line, ".crt")).count(), 2);
}

#[test]
fn a_gateway_starts_with_an_expired_certificate_and_logs_it() {
    let authority = Authority::new();
    authority.sign("lapsed", NAMES, -1);
    let entry = authority.entry_of("lapsed");
    let world = World::with(|config| config.with("[[server.https]]", &entry));
    world
        .gateway
        .log()
        .wait("that it has expired", |line| line["message"] == "certificate expired");
    let refused =
        Client::connect(&world.gateway.https()).try_secured(&authority.trusted(), "api.localhost");
    assert!(refused.unwrap_err().to_string().contains("Expired"));
}
